"""The command that writes networks for other programs."""

# ruff: noqa: FBT002 - typer makes options of them

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softprune.cli.terminal import Best, Trust, say

if TYPE_CHECKING:
    from softprune.deploy.export.formats import Content
    from softprune.train.load_run import PlainNetwork

WINDOWS = 256  # of an example, on which the ranges of integers are measured
NORMALISATIONS = ("steps", "features", "none")


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
    best: Best = False,
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
) -> Path:
    """Write the network of a run, or of baked weights, for the engine or for other programs.

    softprune export runs/a

    softprune export runs/a --format onnx --out model.onnx

    softprune export model.safetensors --model resnet50 --format compressed

    softprune export runs/har2 --format c --int8
    """
    from softprune.deploy.export.formats import target, write_format
    from softprune.train.load_run import plain_network

    if format_name != "c" and (int8 or name is not None or normalisation is not None):
        raise ValueError(f"--int8, --name and --normalisation are for --format c; the format is {format_name}")
    if normalisation not in (None, *NORMALISATIONS):
        raise ValueError(f"--normalisation is {', '.join(NORMALISATIONS)}; got {normalisation!r}")
    place = target(source, format_name, out=out, force=force)
    network = plain_network(source, best=best, model=model, shape=shape, trust=trust)
    content = _content(network, c=format_name == "c", int8=int8, identifier=name, normalisation=normalisation)
    written = write_format(content, format_name, place)
    say(
        f"wrote {written.path}: {written.bytes:,} bytes, dense {written.dense_bytes:,}; "
        f"{written.nonzeros:,} of {written.weights:,} weights are not zero"
    )
    if written.note:
        say(written.note)
    return written.path


def _content(
    network: PlainNetwork, *, c: bool, int8: bool, identifier: str | None, normalisation: str | None
) -> Content:
    import torch

    from softprune.deploy.export.formats import Content
    from softprune.nn import FastGRNNClassifier

    if not c or not isinstance(network.module, FastGRNNClassifier):
        return Content(network.module, torch.zeros(network.example_shape), network.name, network.args)
    found = network.source.normalisation if network.source is not None else None
    if found is not None and normalisation == "features":
        found = found.over_steps()
    return Content(
        network.module,
        network.inputs(WINDOWS),
        network.name,
        network.args,
        int8=int8,
        identifier=identifier or "fastgrnn",
        normalisation=None if found is None or normalisation == "none" else (found.mean, found.scale),
    )
