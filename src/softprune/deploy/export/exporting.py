"""From a module to a file that the engine or torch.export runs, or to a module that runs on the engine."""

from __future__ import annotations

import io
import os
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from softprune.core.parametrization import inside_compiled, managed_tensors
from softprune.deploy.export.aten import RULES
from softprune.deploy.export.passes import simplify
from softprune.deploy.export.translate import translate
from softprune.deploy.format.graph import Graph
from softprune.deploy.format.spx import spx_content
from softprune.deploy.format.storage import write_tensors
from softprune.records import write_whole
from softprune.structure.program import Example, exported

if TYPE_CHECKING:
    from softprune.deploy.engine.inference import Engine


def plain_module(module: nn.Module) -> nn.Module:
    """The module itself, out of wrappers that compile or distribute it.

    Raises:
        ValueError: if a Sparsifier manages it, or a value is not finite; says what to do first.
    """
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


def to_graph(module: nn.Module, example: Example) -> Graph:
    """The module in the operations of the format, norms folded and activations fused; errors as `export`."""
    return simplify(translate(exported(plain_module(module), example), RULES))


def write_spx(graph: Graph, path: Path) -> None:
    """Write the graph and its weights, each in its smallest form; equal graphs give equal bytes."""
    tensors, metadata = spx_content(graph)
    write_whole(path, lambda part: write_tensors(part, tensors, metadata))


def export(module: nn.Module, path: str | os.PathLike[str], *, example: Example) -> Path:
    """Write a network into a ``.spx`` file, from which `softprune.load` makes an engine.

    The file holds the network in eval mode, for batches of any size and inputs that are otherwise of the example's
    shape. Zeros cost nothing in it.

    Args:
        module: baked, or any other with zeros in its weights; left as it was.
        path: of the file; an existing one is replaced as a whole.
        example: one input or a tuple of them, float32, with a batch of any size.

    Returns:
        The path.

    Raises:
        ValueError: if the module is still managed by a Sparsifier, or uses operations that are not in the format;
            the message names all of them, and nothing is written.

    Example:
        >>> import tempfile, torch
        >>> from torch import nn
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export(nn.Linear(4, 2), f"{folder}/model.spx", example=torch.zeros(1, 4)).name
        'model.spx'
    """
    target = with_suffix(path, ".spx")
    if not target.parent.is_dir():
        raise ValueError(f"there is no folder {target.parent}: make it first")
    write_spx(to_graph(module, example), target)
    return target


def save_program(module: nn.Module, path: str | os.PathLike[str], *, example: Example) -> Path:
    """Write a ``.pt2`` file that ``torch.export.load`` reads, with a batch of any size; replaces one that is there.

    The module must be plain and is left as it was; the example is one input or a tuple of them, float32.
    """
    target = with_suffix(path, ".pt2")
    # Not straight into the file: where the disk is full, torch ends the whole process.
    content = io.BytesIO()
    torch.export.save(exported(plain_module(module), example), content)
    write_whole(target, lambda part: part.write_bytes(content.getbuffer()))
    return target


def with_suffix(path: str | os.PathLike[str], suffix: str) -> Path:
    """The path of a file, checked to end in ``suffix``."""
    target = Path(path)
    if target.suffix != suffix:
        raise ValueError(f"the file must end in {suffix}, got {target.name!r}")
    return target


class Accelerated(nn.Module):
    """A network inside PyTorch code that runs on the engine; for inference only."""

    def __init__(self, engine: Engine, structure: pytree.TreeSpec) -> None:
        super().__init__()
        self.engine = engine
        self._structure = structure  # of what the original returns: one tensor, a tuple, a dictionary

    def forward(self, *inputs: Tensor) -> Any:
        """What the original returns for float32 inputs on the CPU; a ValueError if a gradient would be lost."""
        if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
            raise ValueError("an accelerated network has no gradients: call it under torch.inference_mode()")
        found = self.engine(*(x.detach() for x in inputs))
        arrays = [found] if isinstance(found, np.ndarray) else list(found)
        return pytree.tree_unflatten([torch.from_numpy(array) for array in arrays], self._structure)

    def extra_repr(self) -> str:
        return f"{self.engine.level}, {self.engine.threads} threads"


def accelerate(module: nn.Module, example: Example, *, threads: int | None = None, tune: bool = True) -> Accelerated:
    """A drop-in for a module with zeros in it, that runs on the engine.

    Args:
        module: plain; left as it was, and later changes of its weights are not seen.
        example: one input or a tuple of them, float32; sizes other than the batch hold for good.
        threads: of the engine; None takes all cores.
        tune: whether the first call measures the fastest way to compute each layer.

    Returns:
        A module with the same inputs and outputs.

    Raises:
        ValueError: if the module is managed by a Sparsifier or uses operations that are not in the format.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(3, 4)
        >>> with torch.inference_mode():
        ...     torch.allclose(accelerate(model, x, tune=False)(x), model(x), atol=1e-6)
        True
    """
    from softprune.deploy.engine.inference import load  # here: files are written where no engine is wanted

    program = exported(plain_module(module), example)
    with TemporaryDirectory(prefix="softprune-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.spx"
        write_spx(simplify(translate(program, RULES)), path)
        # The engine maps the file; a mapped file may lose its name.
        return Accelerated(load(path, threads=threads, tune=tune), program.call_spec.out_spec)
