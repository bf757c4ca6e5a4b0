"""The end of the demo: how fast its network is, and how fast a large one would be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from softprune.cli.bench import progress
from softprune.cli.export import print_written
from softprune.cli.terminal import console

PUBLISHED = "zoo:resnet50/str-90.23"


def show_speed(folder: Path) -> None:
    """Export the network of a run, time it, time ResNet50 with a published budget, and print the ratios.

    A machine on which that cannot be done gets a line that says why.

    Args:
        folder: a run, left alone if it is not finished; it gets model.spx and latency.json.
    """
    from softprune.train.run_folder import RESULT

    if not (folder / RESULT).is_file():
        return  # it was stopped, and whoever did that does not want to wait
    from softprune.deploy.bench.output import write_bench
    from softprune.deploy.runtime.library import library

    try:
        spx = print_written(folder, "spx", force=True)
        if library() is None:
            _say(
                "no times: the engine's kernels are not compiled here. With a C++ compiler installed, "
                "`python -m softprune.deploy.runtime.build` makes them"
            )
            return
        with progress() as note:
            own, large = _measure(str(spx), note)
        write_bench(own, folder / "latency.json")
        for line in _lines(own, large, spx):
            _say(line)
    except (ValueError, OSError, ImportError) as error:
        _say(f"no times: {error}")


def _measure(spx: str, note: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    from softprune.deploy.bench import bench
    from softprune.deploy.bench.opponents import missing

    engine = "torch" if missing("onnxruntime") else "onnxruntime"
    alone = engine == "torch"  # a .spx file has no module that torch could run
    own = bench(spx, against=[] if alone else [engine], bursts=4, seconds=0.2, progress=note)
    large = bench(PUBLISHED, against=[engine], bursts=4, seconds=0.5, layers=False, progress=note)
    return own, large


def _lines(own: Mapping[str, Any], large: Mapping[str, Any], spx: Path) -> Iterator[str]:
    yield f"this network on one thread: {_times(own)}"
    yield f"ResNet50 with a published budget, 90.23 % zeros, on one thread: {_times(large)}"
    yield f"more: softprune bench {PUBLISHED}, softprune bench {spx}"


def _times(result: Mapping[str, Any]) -> str:
    words = f"{1e3 * result['engines']['softprune']['seconds']:.3g} ms"
    for name, ratio in result["ratios"].items():
        dense = 1e3 * result["engines"][name]["seconds"]
        words += f", dense in {name} {dense:.3g} ms: {ratio['best']:.2f} times as fast"
    return words


def _say(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
