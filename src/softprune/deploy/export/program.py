"""The module as a program of torch.export, for runtimes that read those."""

from __future__ import annotations

import io
import os
from pathlib import Path

import torch
from torch import nn

from softprune.budget.files import write_whole
from softprune.channels.program import Example
from softprune.deploy.export.capture import capture


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
