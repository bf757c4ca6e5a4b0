"""The network of a benchmark: a file, or one of the zoo that is made on the spot."""

from __future__ import annotations

from pathlib import Path

from softprune.deploy.runtime.spx import read_spx

ZOO = "zoo:"


def zoo_name(where: str) -> str | None:
    """The name behind ``zoo:``, or None for a file."""
    return where.removeprefix(ZOO) if where.startswith(ZOO) else None


def write_files(where: str, folder: Path, *, onnx: bool, size: int | None = None) -> tuple[str, str | None]:
    """Write what the engines read.

    Args:
        where: a .spx file, or zoo:NAME.
        folder: for the files that must be made.
        onnx: whether an ONNX file is wanted.
        size: pixels a side of the images of a network of the zoo.

    Returns:
        The paths of the .spx file and of the ONNX file.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if there is no such network, or the file is no valid one.
    """
    name, spx = zoo_name(where), where
    if name is not None:
        from softprune.deploy.export import export
        from softprune.deploy.export.zoo import sparse_network, zoo_example

        spx = str(export(sparse_network(name), folder / "network.spx", example=zoo_example(name, size=size)))
    read_spx(spx)  # what is wrong with it is said before anything is made of it
    if not onnx:
        return spx, None
    from softprune.deploy.export.onnx_spx import spx_to_onnx

    # From the file, not from the module: so it is the same network, and captured once.
    return spx, str(spx_to_onnx(spx, folder / "network.onnx"))


def input_shapes(spx: str, batch: int) -> tuple[tuple[int, ...], ...]:
    """The shapes of the inputs of a .spx file with a batch."""
    inputs = read_spx(spx).graph.inputs.values()
    return tuple(tuple(batch if n is None else n for n in shape) for shape in inputs)
