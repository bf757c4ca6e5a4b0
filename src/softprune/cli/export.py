"""The command that writes networks for other programs."""

# ruff: noqa: FBT002 - typer makes options of them

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softprune.cli.terminal import Trust, console

if TYPE_CHECKING:
    from softprune.deploy.export.formats import Content
    from softprune.train.load_run import PlainNetwork

# Windows on which the ranges of integers are measured.
WINDOWS = 256
NORMALISATIONS = ("steps", "features", "none")


@dataclass(frozen=True)
class COptions:
    """What is asked for a C program.

    Attributes:
        int8: integer arithmetic.
        identifier: what its names begin with; None for the usual one.
        normalisation: one of `NORMALISATIONS`; None for the first.
    """

    int8: bool = False
    identifier: str | None = None
    normalisation: str | None = None

    def check(self, format_name: str) -> None:
        """Refuse options that do not fit, before anything is read."""
        if format_name != "c" and self != COptions():
            raise ValueError(f"--int8, --name and --normalisation are for --format c; the format is {format_name}")
        if self.normalisation not in (None, *NORMALISATIONS):
            raise ValueError(f"--normalisation is {', '.join(NORMALISATIONS)}; got {self.normalisation!r}")


def export(
    source: Annotated[
        Path, typer.Argument(help="A run folder; or a file of weights, such as softprune bake writes, with --model.")
    ],
    format_name: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="spx (for the engine), safetensors (dense), compressed (without zeros, exact), onnx, onnx-sparse, "
            "program (torch.export), hub (a Hugging Face folder) or c (C99 source of a FastGRNN).",
        ),
    ] = "spx",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File or folder to write; in the run folder by default.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The checkpoint of the best epoch, not the last one.")] = False,
    model: Annotated[
        str | None, typer.Option(help="For a file of weights: the network, such as resnet50 or package.module:factory.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option("--input", help="For a network of your own: input shape with batch 1, as 1,3,224,224.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    trust: Trust = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="For c: weights of 8 bits and integer arithmetic, not float32.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="For c: what the files and functions begin with; fastgrnn by default.")
    ] = None,
    normalisation: Annotated[
        str | None,
        typer.Option(
            help="For c, of a run: the program normalises raw values as in training, for each of the steps (default); "
            "alike for all of them: features; not at all: none."
        ),
    ] = None,
) -> None:
    """Write the network of a run, or of baked weights, for the engine or for other programs.

    softprune export runs/a

    softprune export runs/a --format onnx --out model.onnx

    softprune export model.safetensors --model resnet50 --format compressed

    softprune export runs/har2 --format c --int8
    """
    wish = COptions(int8, name, normalisation)
    print_written(source, format_name, out=out, best=best, model=model, shape=shape, force=force, trust=trust, c=wish)


def print_written(
    source: Path,
    format_name: str,
    *,
    out: Path | None = None,
    best: bool = False,
    model: str | None = None,
    shape: str | None = None,
    force: bool = False,
    trust: bool = False,
    c: COptions | None = None,
) -> Path:
    """Write a network and say how large it is; returns where it is."""
    from softprune.deploy.export.formats import target, write_format
    from softprune.train.load_run import plain_network

    wish = c or COptions()
    wish.check(format_name)
    place = target(source, format_name, out=out, force=force)
    network = plain_network(source, best=best, model=model, shape=shape, trust=trust)
    written = write_format(_content(network, format_name, wish), format_name, place)
    said = [
        f"wrote {written.path}: {written.bytes:,} bytes, dense {written.dense_bytes:,}; "
        f"{written.nonzeros:,} of {written.weights:,} weights are not zero",
        *([written.note] if written.note else []),
    ]
    for line in said:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return written.path


def _content(network: PlainNetwork, format_name: str, wish: COptions) -> Content:
    import torch

    from softprune.deploy.export.formats import Content
    from softprune.nn import FastGRNNClassifier

    example = torch.zeros(network.example_shape)
    if format_name != "c" or not isinstance(network.module, FastGRNNClassifier):
        return Content(network.module, example, network.name, network.args)
    found = network.source.normalisation if network.source is not None else None
    if found is not None and wish.normalisation == "features":
        found = found.over_steps()
    return Content(
        network.module,
        network.inputs(WINDOWS),
        network.name,
        network.args,
        int8=wish.int8,
        identifier=wish.identifier or "fastgrnn",
        normalisation=None if found is None or wish.normalisation == "none" else (found.mean, found.scale),
    )
