"""The command that writes networks for other programs."""

# ruff: noqa: FBT002 - typer makes options of them

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softprune.cli.terminal import console


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
            "program (torch.export) or hub (a Hugging Face folder).",
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
) -> None:
    """Write the network of a run, or of baked weights, for the engine or for other programs.

    softprune export runs/a

    softprune export runs/a --format onnx --out model.onnx

    softprune export model.safetensors --model resnet50 --format compressed
    """
    print_written(source, format_name, out=out, best=best, model=model, shape=shape, force=force)


def print_written(
    source: Path,
    format_name: str,
    *,
    out: Path | None = None,
    best: bool = False,
    model: str | None = None,
    shape: str | None = None,
    force: bool = False,
) -> Path:
    """Write a network and say how large it is; returns where it is."""
    import torch

    from softprune.deploy.export.formats import Content, target, write_format
    from softprune.train.plain import plain_network

    place = target(source, format_name, out=out, force=force)
    network = plain_network(source, best=best, model=model, shape=shape)
    content = Content(network.module, torch.zeros(network.example_shape), network.name, network.args)
    written = write_format(content, format_name, place)
    console.print(
        f"wrote {written.path}: {written.bytes:,} bytes, dense {written.dense_bytes:,}; "
        f"{written.nonzeros:,} of {written.weights:,} weights are not zero",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return written.path
