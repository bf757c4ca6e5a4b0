"""Charts as SVG: well formed, escaped, with gaps, ticks and error bars in their places."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from softprune.reporting.charts import Axis, Chart, Mark, Series
from softprune.reporting.svg import figure, figures, plot
from softprune.reporting.svg.axes import Scale, fitted, framed, short_names, ticks
from softprune.reporting.svg.plot import line, thinned

NAN, INF = float("nan"), float("inf")
HOSTILE = "<script>alert('x')</script>\"&]]>"


def chart(*series: Series, x: Axis | None = None, y: Axis | None = None) -> Chart:
    return Chart("c", "Title", "Caption.", x or Axis("epoch"), y or Axis("loss"), series)


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def paths(text: str, kind: str) -> list[str]:
    return [path.get("d", "") for path in parsed(text).iter("path") if path.get("class") == kind]


@pytest.mark.parametrize("mark", ["line", "step", "points", "bars"])
def test_every_mark_is_well_formed_and_has_a_text_for_readers(mark: Mark) -> None:
    root = parsed(plot(chart(Series("a", (0, 1, 2), (1.0, 3.0, 2.0), mark=mark))))
    assert root.get("role") == "img"
    title, desc = root.findall("title")[0], root.findall("desc")[0]
    assert root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
    assert title.text == "Title"
    assert desc.text == "Caption. loss against epoch. a: 1 to 3, last 2."


def test_a_line_goes_through_its_values() -> None:
    text = plot(chart(Series("a", (0, 1), (0.0, 1.0)), x=Axis("x", low=0, high=1), y=Axis("y", low=0, high=1)))
    left, right, bottom, top = map(float, parsed(text).get("data-box", "").split())
    (drawn,) = paths(text, "line")
    numbers = [float(n) for n in re.findall(r"[\d.]+", drawn)]
    assert numbers == [left, bottom, right, top]


def test_what_is_not_finite_is_a_gap() -> None:
    (drawn,) = paths(plot(chart(Series("a", (0, 1, 2, 3, 4, 5), (1.0, 2.0, NAN, 1.0, INF, 2.0)))), "line")
    assert drawn.count("M") == 3  # two points, one point, one point
    assert "nan" not in drawn and "inf" not in drawn


def test_a_chart_without_any_value_says_so() -> None:
    for series in ((), (Series("a", (), ()),), (Series("a", (1,), (NAN,)),)):
        root = parsed(plot(chart(*series)))
        assert any(text.text == "no values yet" for text in root.iter("text"))


@pytest.mark.parametrize(
    ("xs", "ys"),
    [
        ((0,), (5.0,)),
        ((0, 1), (3.0, 3.0)),
        ((0, 1), (1e300, -1e300)),
        ((0, 1), (5e-324, 0.0)),
        ((1e9, 1e9 + 1), (0, 1)),
    ],
)
def test_extreme_values_still_make_a_picture(xs: tuple[float, ...], ys: tuple[float, ...]) -> None:
    for scale in ("linear", "log"):
        text = plot(chart(Series("a", xs, ys), y=Axis("y", scale=scale)))
        parsed(text)
        assert not re.search(r"\b(nan|inf)\b", text)


def test_values_without_a_logarithm_are_gaps() -> None:
    (drawn,) = paths(plot(chart(Series("a", (0, 1, 2), (1.0, 0.0, 100.0)), y=Axis("y", scale="log"))), "line")
    assert drawn.count("M") == 2


def test_everything_is_escaped() -> None:
    one = Series(HOSTILE, (0, 1), (1.0, 2.0), notes=(HOSTILE, HOSTILE), group=HOSTILE)
    hostile = Chart("c", HOSTILE, HOSTILE, Axis(HOSTILE, categories=(HOSTILE, HOSTILE)), Axis(HOSTILE), (one,))
    root = parsed(plot(hostile))
    assert root.findall("title")[0].text == HOSTILE
    assert not list(root.iter("script"))
    tags = Tags()
    tags.feed(figure(hostile))
    assert tags.found.count("script") == 1  # the values
    assert json.loads(tags.scripts[0])["series"][0]["name"] == HOSTILE


def test_error_bars_are_drawn_and_seen() -> None:
    low_high = chart(Series("a", (0, 1), (1.0, 2.0), spread=(0.5, NAN)))
    (drawn,) = paths(plot(low_high), "spread")
    assert drawn.count("M") == 1
    assert framed(low_high, 560, 340).y.low < 0.5


def test_bars_of_several_series_stand_side_by_side() -> None:
    both = chart(*(Series(n, (0, 1), (1.0, 2.0), mark="bars") for n in "ab"), x=Axis("x", categories=("p", "q")))
    first, second = paths(plot(both), "bars")
    begin = [float(re.findall(r"M([\d.]+)", drawn)[0]) for drawn in (first, second)]
    width = float(re.findall(r"h([\d.]+)", first)[0])
    assert begin[0] + width < begin[1]
    assert framed(both, 560, 340).y.low == 0


def test_groups_share_a_colour_and_series_differ() -> None:
    text = plot(chart(*(Series(n, (0, 1), (1.0, 2.0), group=n[0]) for n in ("a1", "a2", "b1"))))
    classes = [g.get("class", "").split() for g in parsed(text).iter("g") if g.get("data-series")]
    assert classes[0][1] == classes[1][1] != classes[2][1]
    assert len({tuple(c) for c in classes}) == 3


def test_many_series_have_a_sequence_of_colours() -> None:
    text = plot(chart(*(Series(f"s{i}", (0, 1), (1.0, i)) for i in range(54))))
    classes = [g.get("class", "").split()[1] for g in parsed(text).iter("g") if g.get("data-series")]
    assert classes[0] == "r0" and classes[-1] == "r15"


def test_names_of_many_layers_are_thinned_on_the_axis_and_complete_in_the_values() -> None:
    names = tuple(f"layer{i}.conv.weight" for i in range(10_000))
    many = chart(Series("a", tuple(range(10_000)), (0.5,) * 10_000, mark="bars"), x=Axis("layer", categories=names))
    text = figure(many)
    tags = Tags()
    tags.feed(text)
    assert json.loads(tags.scripts[0])["x"]["categories"] == list(names)
    assert len(framed(many, 1120, 380).x_ticks) < 100
    assert len(plot(many)) < 60_000


def test_short_names_drop_a_common_ending_and_keep_the_end() -> None:
    assert short_names(["a.weight", "b.weight"]) == ["a", "b"]
    assert short_names(["a.weight", "b.bias"]) == ["a.weight", "b.bias"]
    (long,) = short_names(["encoder.layers.11.attention.output"])
    assert long.startswith("\u2026") and long.endswith("attention.output") and len(long) == 22


def test_thinning_keeps_the_extremes() -> None:
    points = [(i / 100, math.sin(i)) for i in range(10_000)]
    points[5_055] = (50.55, 99.0)
    kept = thinned(points)
    assert len(kept) <= 4 * 101 and (50.55, 99.0) in kept and kept[0] == points[0] and kept[-1] == points[-1]
    assert line([(0, 0), (1, 1)], step=True) == "M0,0H1V1"


@pytest.mark.parametrize(
    ("axis", "low", "high", "labels"),
    [
        (Axis("a", percent=True), 0.0, 1.0, ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]),
        (Axis("a", percent=True), 0.9, 0.91, ["90.0 %", "90.2 %", "90.4 %", "90.6 %", "90.8 %", "91.0 %"]),
        (Axis("a"), 0.0, 5e6, ["0", "1 M", "2 M", "3 M", "4 M", "5 M"]),
        (Axis("a", scale="log"), 1e-3, 10.0, ["0.001", "0.01", "0.1", "1", "10"]),
        (Axis("a", scale="log"), 20.0, 100.0, ["20", "50", "100"]),
        (Axis("a"), -0.1, 0.1, ["-0.1", "-0.05", "0", "0.05", "0.1"]),
    ],
)
def test_ticks_are_round(axis: Axis, low: float, high: float, labels: list[str]) -> None:
    scale = Scale(low, high, axis.scale == "log", 0, 100)
    assert [label for _, label in ticks(axis, scale, count=5)] == labels


def test_ranges_fit_the_values_or_are_given() -> None:
    assert fitted(Axis("a", low=0.0, high=2.0), [5.0]) == (0.0, 2.0)
    low, high = fitted(Axis("a", percent=True), [0.5, 0.99])
    assert 0.4 < low < 0.5 and high == 1.0
    assert fitted(Axis("a", categories=("x", "y")), []) == (-0.5, 1.5)
    assert fitted(Axis("a"), [3.0], zero=True)[0] == 0


def test_a_chart_that_would_be_alone_takes_the_line() -> None:
    three = [Chart(n, n, "", Axis("x"), Axis("y"), (Series("a", (0, 1), (1.0, 2.0)),)) for n in "abc"]
    assert [("whole" in part) for part in figures(three).split("<figure")[1:]] == [False, False, True]
    assert "chart whole" not in figures(three[:2])


class Tags(HTMLParser):
    """The tags of a page, and what is in its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1] == "script" and data.strip():
            self.scripts.append(data)
