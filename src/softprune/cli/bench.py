"""The command that times networks."""

# ruff: noqa: FBT002 - typer makes options of them

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from softprune.cli.model import InputShape
from softprune.cli.terminal import Trust, console, errors, number, table

# Columns from which on there is room for the kernel of each layer.
_WIDE = 110


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
        from softprune.cli.timing import write_latency

        refuse_beside_table({"--against": against, "--out": out})
        write_latency(network, to_table, batch=batch, threads=threads, shape=shape, size=size, tune=tune, trust=trust)
        return
    if shape is not None:
        raise ValueError("--input goes with --table: a file, or --size for a network of the zoo, says what it takes")
    from softprune.deploy.bench import bench as measure
    from softprune.deploy.bench.output import check_target, write_bench

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
        console.print(f"wrote {write_bench(result, out)}", highlight=False, markup=False, soft_wrap=True)


def refuse_beside_table(options: Mapping[str, object]) -> None:
    """A table of times is made without other engines."""
    if given := [name for name, value in options.items() if value is not None]:
        raise ValueError(f"{given[0]} has no effect with --table: leave it out")


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
    console.print(
        f"{result['network']} on {result['processor']} ({result['level']}), batch {result['batch']}, "
        f"threads {result['threads']}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    rows = table("engine", "best ms", "median ms", "bursts", "dropped", "ratio", "spread")
    for name, standing in result["engines"].items():
        ratio = result["ratios"].get(name)
        faster = ("", "") if ratio is None else (f"{ratio['best']:.2f} x", f"{ratio['low']:.2f} to {ratio['high']:.2f}")
        times = f"{1e3 * standing['seconds']:.3f}", f"{1e3 * standing['median']:.3f}"
        rows.add_row(name, *times, str(standing["bursts"]), str(standing["dropped"]), *faster)
    console.print(rows)
    for line in _remarks(result):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if result["layers"]:
        print_layers(result["layers"])


def print_layers(layers: list[Mapping[str, Any]]) -> None:
    """The table of layers, for one sample."""
    rows = table("layer", "nonzeros", "MACs", "us", "GFLOP/s", "roofline")
    wide = console.width >= _WIDE
    if wide:
        rows.add_column("kernel")
    for column in rows.columns:
        column.no_wrap = True
    for layer in layers:
        counts = number(layer["nonzeros"]), number(layer["macs"])
        rates = f"{layer['gflops']:.1f}", f"{layer['roofline']:.0%}"
        counted = layer["macs"] > 0
        rows.add_row(
            escape(layer["path"] or layer["what"]),
            *(counts if counted else ("", "")),
            f"{layer['microseconds']:.1f}",
            *(rates if counted else ("", "")),
            *([escape(f"{layer['what']} {layer['how']}")] if wide else []),
        )
    rows.add_section()
    sums = (number(sum(layer[key] for layer in layers)) for key in ("nonzeros", "macs"))
    rows.add_row("sum", *sums, f"{sum(layer['microseconds'] for layer in layers):.1f}")
    console.print(rows)


def _remarks(result: Mapping[str, Any]) -> Iterator[str]:
    from softprune.deploy.bench.comparison import SAME

    if result["share of the roofline"] is not None:
        yield (
            f"{result['macs']:,} multiply-adds on nonzeros per sample; {result['share of the roofline']:.0%} of what "
            f"this processor can load for them from its second-level cache"
        )
    else:
        yield (
            "the compiled kernels are missing, the slow reference engine ran: with a C++ compiler installed, "
            "`python -m softprune.deploy.runtime.build` makes them"
        )
    if result["ratios"]:
        yield (
            "ratio: best time of the other engine, which computes the zeros too, over softprune's; spread: quartiles "
            "of bursts side by side"
        )
    for name, reason in result["skipped"].items():
        yield f"{name} was left out: {reason}"
    for name, standing in result["engines"].items():
        if standing["difference"] is None or standing["difference"] > SAME:
            yield f"the result of {name} differs from softprune's: do not trust its time"


def _names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    return [] if names == ["none"] else names
