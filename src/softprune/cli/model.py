"""Commands about models: count what they cost, import published ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softprune.cli.terminal import console, number, table

if TYPE_CHECKING:
    from softprune.budget.costs import Profile

ModelName = Annotated[
    str, typer.Argument(help="A network such as resnet50 or mobilenetv1, or package.module:factory of your own.")
]
InputShape = Annotated[str | None, typer.Option("--input", help="Input shape with batch 1, such as 1,3,224,224.")]


def profile(
    model: ModelName,
    shape: InputShape = None,
    out: Annotated[Path | None, typer.Option(help="Also write the profile to this JSON file.")] = None,
) -> None:
    """Count weights and multiply-adds of a network, tensor by tensor. Needs no memory for the weights."""
    costs = count(model, shape)
    rows = table("tensor", "shape", "weights", "MACs")
    for t in costs:
        rows.add_row(t.name, "x".join(map(str, t.shape)), number(t.params), number(t.macs))
    rows.add_section()
    rows.add_row("total", "", number(costs.params), number(costs.macs))
    rows.add_row("average pools", "", "", number(costs.pool_macs))
    if costs.other_macs:
        rows.add_row("of the total, in no tensor", "", "", number(costs.other_macs))
    console.print(rows)
    if out is not None:
        from softprune.budget.budget import to_json
        from softprune.records import write_text

        write_text(out, to_json(costs.to_dict()))
        console.print(f"wrote {out}", highlight=False)


def import_str(
    file: Annotated[Path, typer.Argument(help="Checkpoint of the authors' code (keys end in sparseThreshold).")],
    out: Annotated[Path, typer.Option(help="Folder for model.safetensors and budget.json.")],
) -> None:
    """Turn a published STR checkpoint into plain sparse weights and a budget; runs no code from the file."""
    from softprune.core.state_file import read_str_checkpoint, write_sparse_weights

    weights, budget = read_str_checkpoint(file)
    write_sparse_weights(weights, budget, out)
    console.print(f"{len(budget)} sparse tensors, {budget.overall:.2%} zeros overall, {budget.params:,} weights left")
    console.print(f"wrote {out / 'model.safetensors'} and {out / 'budget.json'}", highlight=False)


def count(model: str, shape: str | None) -> Profile:
    """The profile of a network by name, counted on the meta device."""
    import torch

    from softprune.budget.profiler import profile as profile_of
    from softprune.nn.catalog import build_on_meta, example_shape

    return profile_of(build_on_meta(model), torch.empty(example_shape(model, shape), device="meta"))
