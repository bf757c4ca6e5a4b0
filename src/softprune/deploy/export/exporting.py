"""export: from a module to a file that the engine runs."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from softprune.channels.program import Example
from softprune.deploy.export.capture import capture
from softprune.deploy.export.graph import Graph
from softprune.deploy.export.passes import simplify
from softprune.deploy.export.spx import write_spx
from softprune.deploy.export.translation import lower


def to_graph(module: nn.Module, example: Example) -> Graph:
    """The module in the operations of the format, norms folded and activations fused."""
    return simplify(lower(capture(module, example)))


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
    target = Path(path)
    if target.suffix != ".spx":
        raise ValueError(f"the file must end in .spx, got {target.name!r}")
    if not target.parent.is_dir():
        raise ValueError(f"there is no folder {target.parent}: make it first")
    graph = to_graph(module, example)
    write_spx(graph, target)
    return target
