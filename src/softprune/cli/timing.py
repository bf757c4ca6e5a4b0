"""Tables of times on the command line: measured, and laid over a budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from softprune.cli.terminal import console, table

if TYPE_CHECKING:
    from softprune.budget.latency import LatencyTable, Timing


def write_latency(
    network: str,
    path: Path,
    *,
    batch: int,
    threads: int,
    shape: str | None,
    size: int | None,
    tune: bool,
    trust: bool = False,
) -> None:
    """Measure the times of a network, print them and write them."""
    import torch

    from softprune.cli.bench import progress
    from softprune.deploy.bench.latency import Effort, measure_latency
    from softprune.deploy.bench.output import check_target
    from softprune.deploy.bench.subject import subject

    if path.suffix != ".json":
        raise ValueError(f"a table of times is a .json file, got {path}")
    check_target(path)
    if Path(network).is_dir():
        from softprune.train.trained import network_of

        module, example = network_of(Path(network), trust=trust)
    else:
        module, example = subject(network, shape=shape, size=size)
    with progress() as note, torch.no_grad():
        found = measure_latency(module, example, batch=batch, threads=threads, effort=Effort(tune=tune), progress=note)
    print_latency(found)
    console.print(f"wrote {found.save(path)}", highlight=False, markup=False, soft_wrap=True)


def print_latency(found: LatencyTable) -> None:
    """Microseconds of each tensor's layer at the densities that were measured."""
    print_facts(found)
    points = found.layers[0].densities
    rows = table("tensor", *(f"us at {density:g}" for density in points))
    for layer in found.layers:
        rows.add_row(layer.name, *(f"{1e6 * seconds:.1f}" for seconds in layer.seconds))
    rows.add_section()
    rows.add_row("everything else", *[f"{1e6 * found.fixed:.1f}"] * len(points))
    rows.add_row("total", *(f"{1e6 * found.total({x.name: d for x in found.layers}):.1f}" for d in points))
    console.print(rows)


def print_facts(found: LatencyTable) -> None:
    """Where the times are from."""
    text = f"{found.processor} ({found.level}), batch {found.batch}, threads {found.threads}"
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def print_timing(timing: Timing) -> None:
    """Microseconds of a budget, tensor by tensor and in total."""
    rows = table("tensor", "density", "us", "us dense", "times faster")
    for row in timing.rows:
        faster = f"{row.dense_seconds / row.seconds:.2f}" if row.seconds > 0 else "-"
        rows.add_row(
            row.name, f"{row.density:.4f}", f"{1e6 * row.seconds:.1f}", f"{1e6 * row.dense_seconds:.1f}", faster
        )
    rows.add_section()
    rows.add_row("everything else", "", *[f"{1e6 * timing.fixed:.1f}"] * 2, "")
    times = (f"{1e6 * seconds:.1f}" for seconds in (timing.seconds, timing.dense_seconds))
    rows.add_row("total", "", *times, f"{timing.dense_seconds / timing.seconds:.2f}" if timing.seconds > 0 else "-")
    console.print(rows)
