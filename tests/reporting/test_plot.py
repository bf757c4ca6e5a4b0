"""Charts drawn with matplotlib: what is drawn is what the chart says, and files are the same each time."""

import math
import sys
import threading
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from softprune.reporting.chart import Axis, Chart, Series
from softprune.reporting.plot import draw, save_figures
from softprune.reporting.style import COLOURS, GREY, looks, thinned

LINE = Series("str", (0.9, 0.95, 0.99), (0.91, math.inf, 0.87), spread=(0.01, 0.0, 0.02))
DENSE = Series("dense", (0.9, 0.99), (0.92, 0.92), faint=True)
CHART = Chart("frontier", "T", "", Axis("sparsity", percent=True), Axis("accuracy", percent=True), (LINE, DENSE))


def _bars(names: tuple[str, ...], scale: str = "linear") -> Chart:
    x = tuple(float(place) for place in range(len(names)))
    series = tuple(Series(name, x, tuple(10.0 ** (2 + v % 3) for v in x), mark="bars") for name in ("a", "b"))
    return Chart("bars", "T", "", Axis("layer", categories=names), Axis("MACs", scale=scale), series)


def _curves(figure: Figure) -> list[list[float]]:
    return [list(container[0].get_ydata()) for container in figure.axes[0].containers]


def test_values_are_drawn_and_what_is_not_finite_is_a_gap():
    first, second = _curves(draw(CHART))
    assert first[0] == 0.91
    assert math.isnan(first[1])
    assert second == [0.92, 0.92]


def test_spread_becomes_error_bars_and_percent_is_written():
    figure = draw(CHART)
    _, _, bars = figure.axes[0].containers[0]
    ends = [segment[:, 1].tolist() for segment in bars[0].get_segments() if len(segment)]
    assert ends[0] == pytest.approx([0.90, 0.92])
    assert ends[-1] == pytest.approx([0.85, 0.89])
    figure.draw_without_rendering()
    assert "90%" in [tick.get_text() for tick in figure.axes[0].get_xticklabels()]


def test_a_reference_stands_behind_and_is_in_the_legend():
    figure = draw(CHART)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["str", "dense"]
    front, back = (container[0] for container in figure.axes[0].containers)
    assert back.get_zorder() < front.get_zorder()
    assert back.get_color() == GREY


def test_bars_stand_beside_each_other_and_show_on_a_log_axis():
    figure = draw(_bars(("x", "y", "z"), scale="log"))
    one, two = figure.axes[0].containers
    assert [bar.get_height() for bar in one] == [100, 1000, 10000]
    assert all(a.get_x() + a.get_width() <= b.get_x() + 1e-9 for a, b in zip(one, two, strict=True))
    figure.draw_without_rendering()
    bottom = figure.axes[0].get_ylim()[0]
    assert 0 < bottom < 100
    assert one[0].get_window_extent().height > 10


def test_many_categories_are_thinned_and_upright():
    names = tuple(f"layer{number}.conv.weight" for number in range(200))
    axes = draw(_bars(names)).axes[0]
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert len(shown) < 60
    assert (shown[0], shown[-1]) == (names[0], names[-1])
    assert axes.get_xticklabels()[0].get_rotation() == 90


def test_many_series_have_a_thinned_legend_beside_the_plot():
    series = tuple(Series(f"layer {n}", (0.0, 1.0), (float(n), 1.0)) for n in range(54))
    figure = draw(replace(CHART, series=series))
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert (names[0], names[-1]) == ("layer 0", "layer 53")
    assert figure.legends[0].get_title().get_text() == f"{len(names)} of 54"
    assert len(figure.axes[0].containers) == 54


def test_axes_keep_the_limits_of_the_chart():
    chart = replace(CHART, y=Axis("accuracy", low=0.5, high=1.0))
    assert draw(chart).axes[0].get_ylim() == (0.5, 1.0)


@pytest.mark.parametrize("mark", ["line", "step", "points", "bars"])
def test_a_series_without_values_is_no_trouble(mark):
    chart = replace(CHART, y=Axis("y", scale="log"), series=(Series("none", (), (), mark=mark),))
    draw(chart).draw_without_rendering()
    assert draw(chart).axes[0].get_ylabel() == "y"


def test_looks_differ_also_without_colours_and_groups_share_one():
    found = looks([Series(str(n), (), ()) for n in range(len(COLOURS))])
    assert len({look.colour for look in found}) == len({look.marker for look in found}) == len(COLOURS)
    one, two = looks([Series("a 0", (), (), group="a"), Series("a 1", (), (), group="a")])
    assert one.colour == two.colour
    assert (one.dash, one.marker) != (two.dash, two.marker)


def test_more_groups_than_colours_get_a_sequence_of_different_ones():
    found = looks([Series(str(n), (), ()) for n in range(40)])
    assert len({look.colour for look in found}) == 40


def test_thinned_keeps_the_ends():
    assert thinned(1000, room=5) == [0, 250, 500, 749, 999]
    assert thinned(2, room=1) == [0, 1]


def test_files_are_whole_and_the_same_each_time(tmp_path):
    before = matplotlib.rcParams["svg.hashsalt"]
    first = save_figures([CHART, _bars(("x", "y"))], tmp_path / "new" / "one")
    second = save_figures([CHART, _bars(("x", "y"))], tmp_path / "two")
    assert [path.name for path in first] == ["frontier.svg", "frontier.png", "bars.svg", "bars.png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert sorted(path.name for path in first[0].parent.iterdir()) == sorted(path.name for path in first)
    assert matplotlib.rcParams["svg.hashsalt"] == before
    assert imread(first[1]).shape[1] == 700  # 3.5 inches at 200 dots
    assert ElementTree.parse(first[0]).getroot().tag.endswith("svg")


def test_names_with_markup_and_formulas_stay_text(tmp_path):
    name = "<script>alert(1)</script> $\\frac{1}{2$ --> ]]>"
    chart = replace(CHART, title=name, series=(replace(LINE, name=name), DENSE))
    svg, _ = save_figures([chart], tmp_path)
    tags = {element.tag.rsplit("}", 1)[-1] for element in ElementTree.parse(svg).iter()}
    assert "script" not in tags
    assert draw(chart).axes[0].containers[0].get_label() == name.replace("$", r"\$")


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "a/b"])
def test_a_name_that_is_no_file_name_is_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(ValueError, match="name of a file"):
        save_figures([CHART, replace(CHART, name=name)], tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_two_charts_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="two charts have the name frontier"):
        save_figures([CHART, CHART], tmp_path)


def test_without_matplotlib_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'softprune\[report\]'"):
        draw(CHART)


def test_threads_draw_at_the_same_time(tmp_path):
    failures: list[Exception] = []

    def work(folder: Path) -> None:
        try:
            save_figures([CHART], folder)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(tmp_path / str(n),)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len({(tmp_path / str(n) / "frontier.svg").read_bytes() for n in range(3)}) == 1


def test_pyplot_is_not_touched():
    import subprocess

    code = (
        "import sys; from softprune.reporting.plot import draw; from softprune.reporting.chart import *;"
        "draw(Chart('c', '', '', Axis('x'), Axis('y'), (Series('a', (1.0,), (1.0,)),)))._repr_png_();"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_series_without_values_keeps_its_colour_and_has_no_entry():
    figure = draw(replace(CHART, series=(Series("absent", (), ()), LINE, DENSE)))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["str", "dense"]
    assert figure.axes[0].containers[1][0].get_color() == COLOURS[1]
