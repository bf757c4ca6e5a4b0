"""Commands about budgets and about what networks cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from softprune.budget.show import shape_text
from softprune.cli.deploy import print_facts, print_timing
from softprune.cli.terminal import InputShape, ModelName, console, number, print_budget, say, table

if TYPE_CHECKING:
    from softprune.budget.costs import Profile

app = typer.Typer(
    help="Budgets: how much of each tensor is kept. A budget is named by a .json or .csv file, a run folder, or a "
    "published name such as resnet50/str-90.23.",
    no_args_is_help=True,
)
Where = Annotated[str, typer.Argument(help="File, run folder or published name.")]


@app.command("list")
def list_published() -> None:
    """List the published budgets."""
    from softprune.budget import zoo

    rows = table("name", "method", "sparsity", "note")
    for entry in zoo():
        rows.add_row(entry.name, entry.method, f"{entry.sparsity:.2%}", entry.note)
    console.print(rows)


@app.command()
def show(
    where: Where,
    latency: Annotated[
        Path | None, typer.Option(help="Also show what a table of times says of it (softprune bench --table).")
    ] = None,
) -> None:
    """Show a budget tensor by tensor."""
    from softprune import Budget, LatencyTable

    budget = Budget.load(where)
    timing = None if latency is None else (found := LatencyTable.load(latency)).of(budget)
    print_budget(budget)
    if timing is not None:
        print_facts(found)
        print_timing(timing)


@app.command()
def compare(first: Where, second: Where) -> None:
    """Set two budgets of one network side by side."""
    from softprune import Budget
    from softprune.budget.units import shared_noun

    one, two = Budget.load(first), Budget.load(second)
    comparison, kept = one.compare(two), shared_noun((one.units, two.units))
    rows = table("tensor", kept, "MACs", first, second, "difference")
    for row in comparison.rows:
        x, y = 1 - row.density_a, 1 - row.density_b
        rows.add_row(row.name, number(row.params), number(row.macs), f"{x:.2%}", f"{y:.2%}", f"{y - x:+.2%}")
    if (a := comparison.total_a) and (b := comparison.total_b):
        rows.add_section()
        rows.add_row("overall", "", "", f"{a.overall:.2%}", f"{b.overall:.2%}", f"{b.overall - a.overall:+.2%}")
        rows.add_row(f"{kept} left", "", "", number(a.params), number(b.params), f"{b.params - a.params:+,}")
        rows.add_row("MACs left", "", "", number(a.macs), number(b.macs), "")
    console.print(rows)


@app.command()
def allocate(
    model: ModelName,
    sparsity: Annotated[float | None, typer.Option(help="Fraction of zeros, in (0, 1).")] = None,
    params: Annotated[float | None, typer.Option(help="Weights to keep.")] = None,
    flops: Annotated[float | None, typer.Option(help="Multiply-adds to keep.")] = None,
    ms: Annotated[float | None, typer.Option(help="Milliseconds of a call; needs --latency.")] = None,
    latency: Annotated[Path | None, typer.Option(help="The table of times for --ms (softprune bench --table).")] = None,
    by: Annotated[Literal["uniform", "erk"], typer.Option(help="How to share it out.")] = "uniform",
    dense: Annotated[list[str] | None, typer.Option(help="Tensor or glob to keep dense; may be repeated.")] = None,
    like: Annotated[
        str | None, typer.Option(help="In place of --by: in the proportions of this budget, file or run folder.")
    ] = None,
    shape: InputShape = None,
    out: Annotated[Path | None, typer.Option(help="Write the budget to this .json or .csv file.")] = None,
) -> None:
    """Share a total out over the tensors of a network: the same density everywhere, Erdos-Renyi-kernel (ERK), or in the
    proportions of another budget.
    """
    from softprune import Budget, Flops, Latency, LatencyTable, Params, Sparsity, erk, scaled, uniform

    given = ((Sparsity, sparsity), (Params, params), (Flops, flops))
    goals: list[Any] = [kind(value) for kind, value in given if value is not None]
    if (ms is None) != (latency is None):
        raise ValueError("--ms and --latency go together: a goal in milliseconds needs a table of times")
    if ms is not None and latency is not None:
        goals.append(Latency(ms, LatencyTable.load(latency)))
    if len(goals) != 1:
        raise ValueError(f"name one goal, --sparsity, --params, --flops or --ms; got {len(goals)}")
    if like is not None and dense:
        raise ValueError("--dense has no effect with --like, whose budget says what each tensor keeps")
    if like is not None:
        budget = scaled(_count(model, shape), goals[0], like=Budget.load(like))
    else:
        budget = {"uniform": uniform, "erk": erk}[by](_count(model, shape), goals[0], dense=tuple(dense or ()))
    print_budget(budget)
    if out is not None:
        say(f"wrote {budget.save(out)}")


# Commands about networks.


def profile(
    model: ModelName,
    shape: InputShape = None,
    out: Annotated[Path | None, typer.Option(help="Also write the profile to this JSON file.")] = None,
) -> None:
    """Count weights and multiply-adds of a network, tensor by tensor. Needs no memory for the weights."""
    costs = _count(model, shape)
    rows = table("tensor", "shape", "weights", "MACs")
    for t in costs:
        rows.add_row(t.name, shape_text(t.shape), number(t.params), number(t.macs))
    rows.add_section()
    rows.add_row("total", "", number(costs.params), number(costs.macs))
    rows.add_row("average pools", "", "", number(costs.pool_macs))
    if costs.other_macs:
        rows.add_row("of the total, in no tensor", "", "", number(costs.other_macs))
    console.print(rows)
    if out is not None:
        from softprune.budget.budget import to_json
        from softprune.records import write_text

        say(f"wrote {write_text(out, to_json(costs.to_dict()))}")


def import_str(
    file: Annotated[Path, typer.Argument(help="Checkpoint of the authors' code (keys end in sparseThreshold).")],
    out: Annotated[Path, typer.Option(help="Folder for model.safetensors and budget.json.")],
) -> None:
    """Turn a published STR checkpoint into plain sparse weights and a budget; runs no code from the file."""
    from softprune.core.state_file import read_str_checkpoint, write_sparse_weights

    weights, budget = read_str_checkpoint(file)
    write_sparse_weights(weights, budget, out)
    say(f"{len(budget)} sparse tensors, {budget.overall:.2%} zeros overall, {budget.params:,} weights left")
    say(f"wrote {out / 'model.safetensors'} and {out / 'budget.json'}")


def _count(model: str, shape: str | None) -> Profile:
    import torch

    from softprune.budget.profiler import profile as profile_of
    from softprune.nn.catalog import build_on_meta, example_shape

    return profile_of(build_on_meta(model), torch.empty(example_shape(model, shape), device="meta"))
