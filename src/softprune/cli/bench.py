"""The command that times networks, and what prints times."""

# ruff: noqa: FBT002 - typer makes options of them

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from softprune.cli.export import export
from softprune.cli.terminal import InputShape, Trust, console, errors, number, say, table
from softprune.records import LATENCY, OUR_ENGINE, RESULT
from softprune.records import BenchKey as Key

if TYPE_CHECKING:
    from softprune.budget.latency import LatencyTable, Timing

_WIDE = 110  # characters, from which on there is room for the kernel of each layer
PUBLISHED = "zoo:resnet50/str-90.23"
HOW_TO_COMPILE = "with a C++ compiler installed, `python -m softprune.deploy.engine.build` makes them"


def bench(
    network: Annotated[
        str,
        typer.Argument(
            help="A .spx file; or zoo:resnet50/str-90.23, zoo:resnet50/uniform-80, zoo:resnet50/dense and the like, "
            "made on the spot with random weights: the zeros decide the time, not the values."
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            help="Other engines, with commas: onnxruntime, openvino, torch (zoo networks only), or none. "
            "By default those that can be used."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Samples per call.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads of each engine.")] = 1,
    bursts: Annotated[int, typer.Option(help="Bursts of each engine; the engines take turns.")] = 10,
    seconds: Annotated[float, typer.Option(help="Length of a burst.")] = 0.5,
    size: Annotated[int | None, typer.Option(help="Pixels a side of the images, for zoo networks.")] = None,
    tune: Annotated[
        bool,
        typer.Option(
            help="First measure the fastest way to compute each layer, once per processor, network, batch and number "
            "of threads (kept in the cache folder); without it defaults are taken."
        ),
    ] = True,
    layers: Annotated[bool, typer.Option(help="Time every layer by itself too.")] = True,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write everything to this JSON file.")] = None,
    to_table: Annotated[
        Path | None,
        typer.Option(
            "--table",
            help="Instead, measure every layer at five densities and write this table of times, for goals in "
            "milliseconds; the network is then a name as for softprune profile, zoo:NAME, or a run folder.",
        ),
    ] = None,
    shape: InputShape = None,
    trust: Trust = False,
) -> None:
    """Time a sparse network on this machine: against other engines, and layer by layer.

    softprune bench model.spx --against onnxruntime,openvino

    softprune bench zoo:resnet50/str-90.23 --threads 2 --out bench.json

    softprune bench resnet50 --table table.json
    """
    if to_table is not None:
        if given := [name for name, value in (("--against", against), ("--out", out)) if value is not None]:
            raise ValueError(f"{given[0]} has no effect with --table: leave it out")
        write_latency(network, to_table, batch=batch, threads=threads, shape=shape, size=size, tune=tune, trust=trust)
        return
    if shape is not None:
        raise ValueError("--input goes with --table: a file, or --size for a network of the zoo, says what it takes")
    from softprune.deploy.bench import bench as measure
    from softprune.deploy.bench.contest import check_target, write_bench

    if out is not None:
        check_target(out)
    with progress() as note:
        result = measure(
            network,
            against=_names(against),
            batch=batch,
            threads=threads,
            bursts=bursts,
            seconds=seconds,
            size=size,
            tune=tune,
            layers=layers,
            progress=note,
        )
    print_bench(result)
    if out is not None:
        say(f"wrote {write_bench(result, out)}")


@contextmanager
def progress() -> Iterator[Callable[[str], object]]:
    """Notes on the error stream: one line that changes on a terminal, else one line each."""
    if not errors.is_terminal:
        yield lambda text: errors.print(text, highlight=False, markup=False, soft_wrap=True)
        return
    with errors.status("starting") as status:
        yield lambda text: status.update(escape(text))


def print_bench(result: Mapping[str, Any]) -> None:
    """Standings, ratios, share of the roofline, and the layers if they were timed."""
    say(
        f"{result[Key.NETWORK]} on {result[Key.PROCESSOR]} ({result[Key.LEVEL]}), batch {result[Key.BATCH]}, "
        f"threads {result[Key.THREADS]}"
    )
    rows = table("engine", "best ms", "median ms", "bursts", "dropped", "ratio", "spread")
    for name, standing in result[Key.ENGINES].items():
        ratio = result[Key.RATIOS].get(name)
        faster = [f"{ratio[Key.BEST]:.2f} x", f"{ratio[Key.LOW]:.2f} to {ratio[Key.HIGH]:.2f}"] if ratio else ["", ""]
        times = f"{1e3 * standing[Key.SECONDS]:.3f}", f"{1e3 * standing[Key.MEDIAN]:.3f}"
        rows.add_row(name, *times, str(standing[Key.BURSTS]), str(standing[Key.DROPPED]), *faster)
    console.print(rows)
    for line in _remarks(result):
        say(line)
    if result[Key.LAYERS]:
        print_layers(result[Key.LAYERS])


def print_layers(layers: list[Mapping[str, Any]]) -> None:
    """A row for each layer, for one sample, and their sums."""
    wide = console.width >= _WIDE
    rows = table("layer", "nonzeros", "MACs", "us", "GFLOP/s", "roofline")
    if wide:
        rows.add_column("kernel")
    for column in rows.columns:
        column.no_wrap = True
    for layer in layers:
        counts = number(layer[Key.NONZEROS]), number(layer[Key.MACS])
        rates = f"{layer[Key.GFLOPS]:.1f}", f"{layer[Key.ROOFLINE]:.0%}"
        counted = layer[Key.MACS] > 0
        rows.add_row(
            escape(layer[Key.PATH] or layer[Key.WHAT]),
            *(counts if counted else ("", "")),
            f"{layer[Key.MICROSECONDS]:.1f}",
            *(rates if counted else ("", "")),
            *([escape(f"{layer[Key.WHAT]} {layer[Key.HOW]}")] if wide else []),
        )
    rows.add_section()
    sums = (number(sum(layer[key] for layer in layers)) for key in (Key.NONZEROS, Key.MACS))
    rows.add_row("sum", *sums, f"{sum(layer[Key.MICROSECONDS] for layer in layers):.1f}")
    console.print(rows)


def _remarks(result: Mapping[str, Any]) -> Iterator[str]:
    from softprune.deploy.bench.contest import SAME

    if result[Key.ROOFLINE_SHARE] is not None:
        yield (
            f"{result[Key.MACS]:,} multiply-adds on nonzeros per sample; {result[Key.ROOFLINE_SHARE]:.0%} of what "
            f"this processor can load for them from its second-level cache"
        )
    else:
        yield f"the compiled kernels are missing, the slow reference engine ran: {HOW_TO_COMPILE}"
    if result[Key.RATIOS]:
        yield (
            "ratio: best time of the other engine, which computes the zeros too, over softprune's; spread: quartiles "
            "of bursts side by side"
        )
    for name, reason in result[Key.SKIPPED].items():
        yield f"{name} was left out: {reason}"
    for name, standing in result[Key.ENGINES].items():
        if standing[Key.DIFFERENCE] is None or standing[Key.DIFFERENCE] > SAME:
            yield f"the result of {name} differs from softprune's: do not trust its time"


def _names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    return [] if names == ["none"] else names


# The end of the demo: how fast its network is, and how fast a large one would be.


def show_speed(folder: Path) -> None:
    """Export the network of a finished run, time it and ResNet50 with a published budget, and print the ratios.

    The run folder gets model.spx and latency.json. A machine on which that cannot be done gets a line that says why.
    """
    if not (folder / RESULT).is_file():
        return  # it was stopped: do not let the user wait
    from softprune.deploy.bench.contest import write_bench
    from softprune.deploy.engine.library import library

    try:
        spx = export(folder, force=True)
        if library() is None:
            say(f"no times: the engine's kernels are not compiled here; {HOW_TO_COMPILE}")
            return
        with progress() as note:
            own, large = _measure(str(spx), note)
        write_bench(own, folder / LATENCY)
    except (ValueError, OSError, ImportError) as error:
        say(f"no times: {error}")
        return
    say(f"this network on one thread: {_times(own)}")
    say(f"ResNet50 with a published budget, 90.23 % zeros, on one thread: {_times(large)}")
    say(f"more: softprune bench {PUBLISHED}, softprune bench {spx}")


def _measure(spx: str, note: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    from softprune.deploy.bench import bench
    from softprune.deploy.bench.engines import missing

    engine = "torch" if missing("onnxruntime") else "onnxruntime"
    alone = engine == "torch"  # a .spx file has no module that torch could run
    own = bench(spx, against=[] if alone else [engine], bursts=4, seconds=0.2, progress=note)
    large = bench(PUBLISHED, against=[engine], bursts=4, seconds=0.5, layers=False, progress=note)
    return own, large


def _times(result: Mapping[str, Any]) -> str:
    words = f"{1e3 * result[Key.ENGINES][OUR_ENGINE][Key.SECONDS]:.3g} ms"
    for name, ratio in result[Key.RATIOS].items():
        dense = 1e3 * result[Key.ENGINES][name][Key.SECONDS]
        words += f", dense in {name} {dense:.3g} ms: {ratio[Key.BEST]:.2f} times as fast"
    return words


# Tables of times: measured, and laid over a budget.


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

    from softprune.deploy.bench.contest import check_target
    from softprune.deploy.bench.latency import Effort, measure_latency, subject

    if path.suffix != ".json":
        raise ValueError(f"a table of times is a .json file, got {path}")
    check_target(path)
    if Path(network).is_dir():
        from softprune.train.load_run import network_of

        module, example = network_of(Path(network), trust=trust)
    else:
        module, example = subject(network, shape=shape, size=size)
    with progress() as note, torch.no_grad():
        found = measure_latency(module, example, batch=batch, threads=threads, effort=Effort(tune=tune), progress=note)
    print_latency(found)
    say(f"wrote {found.save(path)}")


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
    """Print the processor, batch and threads of a table of times."""
    say(f"{found.processor} ({found.level}), batch {found.batch}, threads {found.threads}")


def print_timing(timing: Timing) -> None:
    """Microseconds of a budget, tensor by tensor and in total."""
    rows = table("tensor", "density", "us", "us dense", "times faster")
    for row in timing.rows:
        faster = f"{row.dense_seconds / row.seconds:.2f}" if row.seconds > 0 else "-"
        micro = f"{1e6 * row.seconds:.1f}", f"{1e6 * row.dense_seconds:.1f}"
        rows.add_row(row.name, f"{row.density:.4f}", *micro, faster)
    rows.add_section()
    rows.add_row("everything else", "", *[f"{1e6 * timing.fixed:.1f}"] * 2, "")
    times = (f"{1e6 * seconds:.1f}" for seconds in (timing.seconds, timing.dense_seconds))
    rows.add_row("total", "", *times, f"{timing.dense_seconds / timing.seconds:.2f}" if timing.seconds > 0 else "-")
    console.print(rows)
