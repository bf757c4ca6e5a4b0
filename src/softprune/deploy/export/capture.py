"""From a module to its program in torch.export, if no Sparsifier manages it any more; and that program as a file."""

from __future__ import annotations

import io
import os
from itertools import chain
from pathlib import Path

import torch
from torch import nn
from torch.export import ExportedProgram

from softprune.core.parametrization import managed_tensors
from softprune.core.refusal import inside_compiled
from softprune.records import write_whole
from softprune.structure.program import Example, exported


def capture(module: nn.Module, example: Example) -> ExportedProgram:
    """The operations of the module in eval mode, without in-place operations.

    Args:
        module: plain, with zeros in its weights or without; left as it was.
        example: one input or several; sizes other than the batch hold for good.

    Raises:
        TypeError: if the module is none, or an input is no tensor.
        ValueError: if the module is managed by a Sparsifier, an input has no batch or is not float32, or torch.export
            cannot follow the module.
    """
    return exported(plain_module(module), example)


def plain_module(module: nn.Module) -> nn.Module:
    """The module itself, or an error that says what to do first."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"a torch.nn.Module is needed, got {type(module).__name__}")
    module = inside_compiled(module)
    if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
        module = inside_compiled(module.module)
    managed = [name for name, _, _ in managed_tensors(module)]
    if managed:
        raise ValueError(
            f"{len(managed)} tensors are still managed by a Sparsifier ({managed[0]}, ...): "
            "call softprune.bake(model) first, which writes the zeros into the weights"
        )
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        bad = 0 if tensor.is_meta else int((~torch.isfinite(tensor.detach())).sum())
        if bad:
            raise ValueError(f"{name} has {bad} NaN or infinite values of {tensor.numel():,}: export finite weights")
    return module


def save_program(module: nn.Module, path: str | os.PathLike[str], *, example: Example) -> Path:
    """Write a ``.pt2`` file that ``torch.export.load`` reads, with a batch of any size.

    Args:
        module: plain; left as it was.
        path: of the file; an existing one is replaced as a whole.
        example: one input or a tuple of them, float32.

    Returns:
        The path.
    """
    target = Path(path)
    if target.suffix != ".pt2":
        raise ValueError(f"the file must end in .pt2, got {target.name!r}")
    program = capture(module, example)
    # Not straight into the file: where the disk is full, torch ends the whole process.
    content = io.BytesIO()
    torch.export.save(program, content)
    write_whole(target, lambda part: part.write_bytes(content.getbuffer()))
    return target
