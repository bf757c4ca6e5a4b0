"""Figures as files: they stand alone, say what the chart says, and are the same each time."""

import math
import re
import subprocess
import sys
import types
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from softprune.reporting.charts import Axis, Chart, Series
from softprune.reporting.figures import Figure, save_figures
from softprune.reporting.svg import standalone

SVG = "{http://www.w3.org/2000/svg}"
LINE = Series("str", (0.9, 0.95, 0.99), (0.91, math.inf, 0.87), spread=(0.01, 0.0, 0.02))
DENSE = Series("dense", (0.9, 0.99), (0.92, 0.92), faint=True)
CHART = Chart("frontier", "T", "", Axis("sparsity", percent=True), Axis("accuracy", percent=True), (LINE, DENSE))


def _bars(names: tuple[str, ...], scale: str = "linear") -> Chart:
    x = tuple(float(place) for place in range(len(names)))
    series = tuple(Series(name, x, tuple(10.0 ** (2 + v % 3) for v in x), mark="bars") for name in ("a", "b"))
    return Chart("bars", "T", "", Axis("layer", categories=names), Axis("MACs", scale=scale), series)


def _legend(chart: Chart) -> list[str]:
    root = ElementTree.fromstring(standalone(chart))
    return [text.text or "" for text in root.iter(f"{SVG}text") if text.get("class") == "name"]


def _classes(text: str) -> set[str]:
    return {word for found in re.findall(r'class="([^"]*)"', text) for word in found.split()}


def test_what_is_not_finite_is_a_gap_and_percent_is_written():
    text = standalone(CHART)
    assert "nan" not in text and "inf" not in text
    lines = re.findall(r'class="line" d="([^"]*)"', text)
    assert [line.count("M") for line in lines[:2]] == [1, 2]  # the reference is behind, then two pieces
    assert "90 %" in text


def test_a_file_has_all_that_it_needs():
    text = standalone(_bars(("x", "y", "z")))
    root = ElementTree.fromstring(text)
    assert (root.tag, root.get("viewBox")) == (f"{SVG}svg", f"0 0 {root.get('width')} {root.get('height')}")
    # No variables and no functions of style sheets, which other programs than browsers do not know.
    assert "var(" not in text and "color-mix" not in text and "href" not in text
    (style,) = (element.text for element in root.iter(f"{SVG}style"))
    assert all(f".{name} " in style for name in ("c0", "c1"))
    ids = re.findall(r'id="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(ids)


def test_every_class_of_a_series_has_a_colour():
    series = tuple(Series(str(n), (0.0, 1.0), (float(n), 1.0)) for n in range(40))
    for chart in (CHART, replace(CHART, series=series)):
        text = standalone(chart)
        colours = {name for name in _classes(text) if re.fullmatch(r"[cr]\d+|grey", name)}
        assert colours and all(re.search(rf"\.{name} \.line[^}}]*stroke:#[0-9a-f]{{6}}", text) for name in colours)


def test_the_legend_names_all_series_in_lines_that_fit():
    assert _legend(CHART) == ["str", "dense"]
    assert _legend(replace(CHART, series=(LINE,))) == []
    series = tuple(Series(f"layer {n}", (0.0, 1.0), (float(n), 1.0)) for n in range(54))
    many = replace(CHART, series=series)
    assert _legend(many) == [f"layer {n}" for n in range(54)]
    width, height = (int(ElementTree.fromstring(standalone(many)).get(side)) for side in ("width", "height"))
    places = re.findall(r'<g transform="translate\((\d+),(\d+)\)"><g class', standalone(many))
    assert all(int(x) < width and int(y) < height for x, y in places)
    assert len({y for _, y in places}) > 2


def test_a_series_without_values_keeps_its_colour_and_has_no_entry():
    chart = replace(CHART, series=(Series("absent", (), ()), LINE, DENSE))
    assert _legend(chart) == ["str", "dense"]
    assert 'class="series c1 ' in standalone(chart)


@pytest.mark.parametrize("mark", ["line", "step", "points", "bars"])
def test_a_series_without_values_is_no_trouble(mark):
    chart = replace(CHART, y=Axis("y", scale="log"), series=(Series("none", (), (), mark=mark),))
    assert "no values yet" in standalone(chart)


def test_files_are_whole_and_the_same_each_time(tmp_path):
    first = save_figures([CHART, _bars(("x", "y"))], tmp_path / "new" / "one")
    second = save_figures([CHART, _bars(("x", "y"))], tmp_path / "two")
    assert [path.name for path in first] == ["frontier.svg", "bars.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert sorted(path.name for path in first[0].parent.iterdir()) == ["bars.svg", "frontier.svg"]


def test_names_with_markup_and_control_characters_stay_text(tmp_path):
    name = "<script>alert(1)</script> $\\frac{1}{2$ --> ]]> \x00\x1b"
    chart = replace(CHART, title=name, series=(replace(LINE, name=name), DENSE))
    (svg,) = save_figures([chart], tmp_path)
    tags = {element.tag.rsplit("}", 1)[-1] for element in ElementTree.parse(svg).iter()}
    assert "script" not in tags
    assert _legend(chart)[0] == name.replace("\x00", "\ufffd").replace("\x1b", "\ufffd")


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "a/b"])
def test_a_name_that_is_no_file_name_is_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(ValueError, match="name of a file"):
        save_figures([CHART, replace(CHART, name=name)], tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_two_charts_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="two charts have the name frontier"):
        save_figures([CHART, CHART], tmp_path)


def test_a_figure_is_shown_and_saved(tmp_path):
    figure = Figure(CHART, standalone(CHART))
    assert figure._repr_svg_().startswith("<svg ")
    assert figure.save(tmp_path / "a.svg").read_text(encoding="utf-8") == figure.svg
    with pytest.raises(ValueError, match=r"as \.svg, \.png or \.pdf, got .*a\.jpg"):
        figure.save(tmp_path / "a.jpg")


def test_png_and_pdf_need_a_converter(tmp_path, monkeypatch):
    figure = Figure(CHART, standalone(CHART))
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    with pytest.raises(ImportError, match=r"a\.png needs CairoSVG: pip install cairosvg; .* ends in \.svg"):
        figure.save(tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []
    stand_in = types.SimpleNamespace(
        svg2png=lambda *, bytestring, scale: b"png %d" % len(bytestring),
        svg2pdf=lambda *, bytestring, scale: b"pdf %d" % len(bytestring),
    )
    monkeypatch.setitem(sys.modules, "cairosvg", stand_in)
    for kind in ("png", "pdf"):
        written = figure.save(tmp_path / f"a.{kind}").read_bytes()
        assert written == f"{kind} {len(figure.svg.encode())}".encode()


def test_neither_torch_nor_matplotlib_is_touched():
    code = (
        "import sys; from softprune.reporting.svg import standalone; from softprune.reporting.charts import *;"
        "standalone(Chart('c', '', '', Axis('x'), Axis('y'), (Series('a', (1.0,), (1.0,)),)));"
        "assert not {'matplotlib', 'torch'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
