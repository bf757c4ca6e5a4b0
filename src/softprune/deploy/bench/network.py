"""The network of a benchmark: a file, or one of the zoo that is made on the spot."""

from __future__ import annotations

from pathlib import Path

from softprune.deploy.runtime.spx import read_spx

ZOO = "zoo:"


def zoo_name(where: str) -> str | None:
    """The name behind ``zoo:``, or None for a file."""
    return where.removeprefix(ZOO) if where.startswith(ZOO) else None


def write_files(where: str, folder: Path, *, onnx: bool, size: int | None = None) -> dict[str, str | None]:
    """Write what the engines read.

    Args:
        where: a .spx file, or zoo:NAME.
        folder: for the files that must be made.
        onnx: whether an ONNX file is wanted.
        size: pixels a side of the images of a network of the zoo.

    Returns:
        The paths "spx" and "onnx".

    Raises:
        OSError: if the file cannot be read.
        ValueError: if there is no such network, or the file is no valid one.
    """
    files: dict[str, str | None] = {"spx": where, "onnx": str(folder / "network.onnx") if onnx else None}
    name = zoo_name(where)
    if name is None:
        read_spx(where)  # what is wrong with it is said before anything is written
        if files["onnx"]:
            from softprune.deploy.export.onnx_spx import spx_to_onnx

            spx_to_onnx(where, files["onnx"])
        return files
    from softprune.deploy.export import export, export_onnx
    from softprune.deploy.export.zoo import sparse_network, zoo_example

    module, example = sparse_network(name), zoo_example(name, size=size)
    files["spx"] = str(export(module, folder / "network.spx", example=example))
    if files["onnx"]:
        export_onnx(module, files["onnx"], example=example)
    return files


def input_shapes(spx: str, batch: int) -> tuple[tuple[int, ...], ...]:
    """The shapes of the inputs of a .spx file with a batch."""
    inputs = read_spx(spx).graph.inputs.values()
    return tuple(tuple(batch if n is None else n for n in shape) for shape in inputs)
