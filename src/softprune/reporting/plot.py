"""Charts drawn with matplotlib, for papers and notebooks. matplotlib is imported when the first one is drawn."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from softprune.budget.files import write_whole
from softprune.reporting.chart import Chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 200
# matplotlib reads the seed of the ids in an SVG from a setting of the whole process: one figure is written at a time.
_salted = threading.Lock()


def draw(chart: Chart) -> Figure:
    """Draw a chart for print: one column wide, or two if it shows much.

    No window and no state of pyplot is involved, so it works in any thread and without a display.

    Returns:
        A matplotlib figure, which a notebook shows and `savefig` writes.

    Raises:
        ImportError: without matplotlib.

    Example:
        >>> from softprune.reporting.chart import Axis, Chart, Series
        >>> line = Series("a", (0.0, 1.0), (0.5, 0.9))
        >>> figure = draw(Chart("c", "Accuracy", "", Axis("epoch"), Axis("accuracy", percent=True), (line,)))
        >>> figure.axes[0].get_xlabel()
        'epoch'
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'softprune[report]'") from error
    from softprune.reporting.drawing import drawn

    return drawn(chart)


def save_figures(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Write NAME.svg and NAME.png of every chart into a folder, which is made if it is not there.

    The same charts give the same bytes of SVG with the same matplotlib.

    Returns:
        The files, two for each chart.

    Raises:
        ImportError: without matplotlib.
        ValueError: if two charts have one name, or a name is no file name. Nothing is written then.
    """
    names = [chart.name for chart in charts]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two charts have the name {', '.join(repeated)}: each needs its own, as its file name")
    if wrong := [name for name in names if not name or Path(name).name != name or name.startswith(".")]:
        raise ValueError(f"{wrong[0]!r} cannot be the name of a file: a chart's name is a word such as 'frontier'")
    figures = [draw(chart) for chart in charts]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in zip(names, figures, strict=True):
        for kind in ("svg", "png"):
            written.append(folder / f"{name}.{kind}")
            _save(figure, written[-1], kind)
    return written


def _save(figure: Figure, path: Path, kind: str) -> None:
    import matplotlib

    settings = matplotlib.rcParams
    # No date and no version: they would change the file where the figure has not changed.
    metadata = {"Date": None, "Creator": "softprune"} if kind == "svg" else {"Software": "softprune"}
    with _salted:
        before = settings["svg.hashsalt"]
        settings["svg.hashsalt"] = "softprune"
        try:
            write_whole(path, lambda part: figure.savefig(part, format=kind, dpi=DPI, metadata=metadata))
        finally:
            settings["svg.hashsalt"] = before
