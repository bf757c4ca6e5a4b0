"""Commands that export and time networks, and what prints times."""

# ruff: noqa: FBT002 - typer makes options of them

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from softprune.cli.terminal import Best, InputShape, Trust, console, errors, number, say, table
from softprune.records import LATENCY, OUR_ENGINE, RESULT
from softprune.records import BenchKey as Key

if TYPE_CHECKING:
    from softprune.budget.latency import LatencyTable, Timing
    from softprune.deploy.export.formats import Content
    from softprune.train.load_run import PlainNetwork

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
            help="Other engines, with commas: onnxruntime, openvino, torch (zoo networks only), in lower precision "
            "onnxruntime-int8, openvino-int8, openvino-bf16, beside --int8 also softprune-float32; or none. "
            "By default those of the usual ones that can be used."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Samples per call.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads of each engine.")] = 1,
    bursts: Annotated[int, typer.Option(help="Bursts of each engine; the engines take turns.")] = 10,
    seconds: Annotated[float, typer.Option(help="Length of a burst.")] = 0.5,
    size: Annotated[int | None, typer.Option(help="Pixels a side of the images, for zoo networks.")] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantise a zoo network first; a file says itself what it holds.")
    ] = False,
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

    softprune bench zoo:resnet50/str-90.23 --int8 --against openvino-int8,onnxruntime-int8

    softprune bench resnet50 --table table.json
    """
    if to_table is not None:
        options = (("--against", against), ("--out", out), ("--int8", int8 or None))
        if given := [name for name, value in options if value is not None]:
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
            int8=int8,
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
        _print_layers(result[Key.LAYERS], int8=result[Key.ENGINES][OUR_ENGINE][Key.PRECISION] == "int8")


def _print_layers(layers: list[Mapping[str, Any]], *, int8: bool = False) -> None:
    wide = console.width >= _WIDE
    rows = table("layer", "nonzeros", "MACs", "us", "GFLOP/s", "roofline")
    if wide:
        rows.add_column("kernel")
    for column in rows.columns:
        column.no_wrap = True
    for layer in layers:
        counts = rates = "", ""
        if layer[Key.MACS] > 0:
            counts = number(layer[Key.NONZEROS]), number(layer[Key.MACS])
            # The roofline is that of float32.
            rates = f"{layer[Key.GFLOPS]:.1f}", "" if int8 else f"{layer[Key.ROOFLINE]:.0%}"
        kernel = [escape(f"{layer[Key.WHAT]} {layer[Key.HOW]}")] * wide
        name = escape(layer[Key.PATH] or layer[Key.WHAT])
        rows.add_row(name, *counts, f"{layer[Key.MICROSECONDS]:.1f}", *rates, *kernel)
    rows.add_section()
    sums = (number(sum(layer[key] for layer in layers)) for key in (Key.NONZEROS, Key.MACS))
    rows.add_row("sum", *sums, f"{sum(layer[Key.MICROSECONDS] for layer in layers):.1f}")
    console.print(rows)


def _remarks(result: Mapping[str, Any]) -> Iterator[str]:
    from softprune.deploy.bench.contest import SAME

    int8 = result[Key.ENGINES][OUR_ENGINE][Key.PRECISION] == "int8"
    if int8 and result[Key.MACS] is not None:
        yield f"{result[Key.MACS]:,} multiply-adds on nonzeros per sample, of 8-bit integers"
    elif result[Key.ROOFLINE_SHARE] is None:
        yield f"the compiled kernels are missing, the slow reference engine ran: {HOW_TO_COMPILE}"
    else:
        yield (
            f"{result[Key.MACS]:,} multiply-adds on nonzeros per sample; {result[Key.ROOFLINE_SHARE]:.0%} of what "
            f"this processor can load for them from its second-level cache"
        )
    if result[Key.RATIOS]:
        yield (
            "ratio: best time of the other engine, which computes the zeros too, over softprune's; spread: quartiles "
            "of bursts side by side"
        )
    for name, reason in result[Key.SKIPPED].items():
        yield f"{name} was left out: {reason}"
    for name, standing in result[Key.ENGINES].items():
        kind, difference = standing[Key.PRECISION], standing[Key.DIFFERENCE]
        limit = SAME["int8" if int8 else kind]
        if difference is None or difference > limit:
            yield f"the result of {name} differs from softprune's: do not trust its time"
        elif limit > SAME["float32"] and name != OUR_ENGINE:
            yield (
                f"the result of {name} differs from softprune's by {difference:.2g} of its largest value: they round"
                f" differently, {kind} and {'int8' if int8 else 'float32'}"
            )
        if standing[Key.LOW_LAYERS]:
            ran, every = standing[Key.LOW_LAYERS]
            yield f"{name} runs {ran} of its {every} layers in {kind}"


def _names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    return [] if names == ["none"] else names


# The end of the demo.


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

    others = [] if missing("onnxruntime") else ["onnxruntime"]
    own = bench(spx, against=others, bursts=4, seconds=0.2, progress=note)
    # torch cannot run a .spx file, which has no module of its own.
    large = bench(PUBLISHED, against=others or ["torch"], bursts=4, seconds=0.5, layers=False, progress=note)
    return own, large


def _times(result: Mapping[str, Any]) -> str:
    words = f"{1e3 * result[Key.ENGINES][OUR_ENGINE][Key.SECONDS]:.3g} ms"
    for name, ratio in result[Key.RATIOS].items():
        dense = 1e3 * result[Key.ENGINES][name][Key.SECONDS]
        words += f", dense in {name} {dense:.3g} ms: {ratio[Key.BEST]:.2f} times as fast"
    return words


# Tables of times: measured, and laid over a budget.


def write_latency(
    network: str, path: Path, *, batch: int, threads: int, shape: str | None, size: int | None, tune: bool, trust: bool
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
    print_facts(found)
    points = found.layers[0].densities
    rows = table("tensor", *(f"us at {density:g}" for density in points))
    for layer in found.layers:
        rows.add_row(layer.name, *(f"{1e6 * seconds:.1f}" for seconds in layer.seconds))
    rows.add_section()
    rows.add_row("everything else", *[f"{1e6 * found.fixed:.1f}"] * len(points))
    rows.add_row("total", *(f"{1e6 * found.total({x.name: d for x in found.layers}):.1f}" for d in points))
    console.print(rows)
    say(f"wrote {found.save(path)}")


def print_facts(found: LatencyTable) -> None:
    say(f"{found.processor} ({found.level}), batch {found.batch}, threads {found.threads}")


def print_timing(timing: Timing) -> None:
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


# Export.

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
    content = _content(network, c=format_name == "c", int8=int8, name=name, normalisation=normalisation)
    written = write_format(content, format_name, place)
    say(
        f"wrote {written.path}: {written.bytes:,} bytes, dense {written.dense_bytes:,}; "
        f"{written.nonzeros:,} of {written.weights:,} weights are not zero"
    )
    if written.note:
        say(written.note)
    return written.path


def _content(network: PlainNetwork, *, c: bool, int8: bool, name: str | None, normalisation: str | None) -> Content:
    import torch

    from softprune.deploy.export.formats import Content
    from softprune.nn import FastGRNNClassifier

    if not c or not isinstance(network.module, FastGRNNClassifier):
        return Content(network.module, torch.zeros(network.example_shape), network.name, network.args)
    found = network.source.normalisation if network.source is not None and normalisation != "none" else None
    if found is not None and normalisation == "features":
        found = found.over_steps()
    values = None if found is None else (found.mean, found.scale)
    windows, name = network.inputs(WINDOWS), name or "fastgrnn"
    return Content(network.module, windows, network.name, network.args, int8, name, values)
