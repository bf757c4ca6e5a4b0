"""Figures of runs by name, for notebooks and as files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from softprune.records import write_text, write_whole
from softprune.reporting.charts import CHARTS, Chart
from softprune.reporting.frontier import COMPARISONS, only_cohort
from softprune.reporting.run import Run, find_runs, read_outcome, read_run
from softprune.reporting.svg import standalone

Where = str | os.PathLike[str] | Run


@dataclass(frozen=True)
class Figure:
    """A drawn chart, which a notebook shows by itself."""

    chart: Chart
    svg: str  # the picture as the text of an SVG file

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the figure to a file that ends in .svg; or in .png or .pdf, where CairoSVG is installed."""
        target = Path(path)
        if target.suffix == ".svg":
            return write_text(target, self.svg)
        if target.suffix not in (".png", ".pdf"):
            raise ValueError(f"a figure is written as .svg, .png or .pdf, got {target}")
        try:
            import cairosvg
        except ImportError as error:
            raise ImportError(
                f"{target.name} needs CairoSVG: pip install cairosvg; a name that ends in .svg needs nothing"
            ) from error
        convert = cairosvg.svg2png if target.suffix == ".png" else cairosvg.svg2pdf
        content = convert(bytestring=self.svg.encode(), scale=2 if target.suffix == ".png" else 1)
        write_whole(target, lambda part: part.write_bytes(content))
        return target


def figure(name: str, runs: Where | Iterable[Where]) -> Figure:
    """Draw one of the charts of reports and comparisons.

    Args:
        name: such as "layer_sparsity" (of runs) or "frontier" (of many runs, grouped by method and sparsity).
        runs: a run or several: folders, folders of runs, or what `read_run` returns.

    Example:
        softprune.reporting.figure("frontier", "runs/target").save("frontier.svg")
    """
    if name not in CHARTS and name not in COMPARISONS:
        raise ValueError(f"there is no figure {name!r}; the figures are {', '.join([*CHARTS, *COMPARISONS])}")
    many = [runs] if isinstance(runs, str | os.PathLike | Run) else list(runs)
    if not many:
        raise ValueError("a figure needs at least one run")
    read = read_outcome if name in COMPARISONS else read_run
    found: list[Run] = []
    for where in many:
        found += [where] if isinstance(where, Run) else [read(path) for path in find_runs([Path(where)])]
    chart = CHARTS[name](found) if name in CHARTS else COMPARISONS[name](only_cohort(found))
    return Figure(chart, standalone(chart))


def save_figures(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Write NAME.svg of every chart into a folder, which is made if needed; the same charts give the same bytes.

    Nothing is written if two charts have one name, or a name cannot be that of a file.
    """
    names = [chart.name for chart in charts]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two charts have the name {', '.join(repeated)}: each needs its own, as its file name")
    if wrong := [name for name in names if not name or Path(name).name != name or name.startswith(".")]:
        raise ValueError(f"{wrong[0]!r} cannot be the name of a file: a chart's name is a word such as 'frontier'")
    folder.mkdir(parents=True, exist_ok=True)
    return [write_text(folder / f"{chart.name}.svg", standalone(chart)) for chart in charts]
