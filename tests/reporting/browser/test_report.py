"""The report in a browser: sort, filter, legend, tooltips, keyboard, themes, small screens, and no requests."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import write_run

pytest.importorskip("selenium", reason="selenium is not installed")

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from softprune.reporting.charts import Axis, Chart, Series
from softprune.reporting.page import FollowServer, render
from softprune.reporting.report import load, report_page, write_report
from softprune.reporting.svg import figure
from softprune.reporting.tables import Column, Table, table_html

HOSTILE = "<script>document.title='taken'</script>"
OpenPage = Callable[..., Any]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    run = write_run(folder / "run", tensors=("conv.weight", HOSTILE), model={"name": HOSTILE})
    return write_report([run], folder / "report.html", against=["uniform", "erk"])[0]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    runs = [write_run(folder / name, name=method) for name, method in (("a", "str"), ("b", "gmp"), ("c", "st3"))]
    return write_report(runs, folder / "report.html")[0]


def find(browser: Any, selector: str) -> Any:
    return browser.find_element(By.CSS_SELECTOR, selector)


def texts(browser: Any, selector: str) -> list[str]:
    return [element.text for element in browser.find_elements(By.CSS_SELECTOR, selector)]


def column(browser: Any, number: int) -> list[str]:
    return texts(browser, f"#layer-table tbody tr > :nth-child({number})")


def shown_series(browser: Any, figure: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((g) => g.dataset.series)"
    return browser.execute_script(script, f"#{figure} .wide .series:not(.off)")


def test_hostile_names_are_text(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    assert browser.title == "run"
    assert HOSTILE in find(browser, "#summary").text
    assert HOSTILE in column(browser, 1)
    assert HOSTILE in texts(browser, "#thresholds .entry span")


def test_a_header_sorts_both_ways_and_back(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    head = find(browser, "#layer-table thead th:nth-child(5)")
    assert column(browser, 5) == ["98.00 %", "50.00 %"]
    button = head.find_element(By.TAG_NAME, "button")
    button.click()
    assert (head.get_attribute("aria-sort"), column(browser, 5)) == ("descending", ["98.00 %", "50.00 %"])
    button.click()
    assert (head.get_attribute("aria-sort"), column(browser, 5)) == ("ascending", ["50.00 %", "98.00 %"])
    button.send_keys(Keys.ENTER)  # the keyboard does the same
    assert (head.get_attribute("aria-sort"), column(browser, 5)) == ("none", ["98.00 %", "50.00 %"])


def test_a_filter_keeps_matching_rows(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    find(browser, "#layer-table input").send_keys("CONV")
    assert column(browser, 1) == ["conv.weight"]
    assert find(browser, "#layer-table .count").text == "1 of 2 rows"


def test_the_table_is_downloaded_with_exact_values(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    find(browser, "#layer-table button.csv").click()
    file = browser.downloads / "layer-table.csv"
    WebDriverWait(browser, 20).until(lambda _: file.is_file() and file.stat().st_size)
    head, first, second = file.read_text().splitlines()
    assert head.startswith("layer,shape,weights,weights left,sparsity,threshold,s,MACs,MACs left")
    assert first.startswith("conv.weight,40 x 25,1000,20,0.98,0.02,-5.0,100000,2000,")
    assert second.startswith(HOSTILE)


def test_a_chart_is_downloaded(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    find(browser, "#layer_macs button.csv").click()
    file = browser.downloads / "layer_macs.csv"
    WebDriverWait(browser, 20).until(lambda _: file.is_file() and file.stat().st_size)
    assert "this run,conv.weight,2000,," in file.read_text()


def test_a_legend_entry_hides_its_series(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    entry = find(browser, "#layer_sparsity .entry[data-series='1']")
    assert entry.get_attribute("aria-pressed") == "true"
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    assert shown_series(browser, "layer_sparsity") == ["0", "2"]
    entry.send_keys(Keys.SPACE)
    assert shown_series(browser, "layer_sparsity") == ["0", "1", "2"]
    find(browser, "#layer_sparsity .none").click()
    assert shown_series(browser, "layer_sparsity") == []
    find(browser, "#layer_sparsity .all").click()
    assert shown_series(browser, "layer_sparsity") == ["0", "1", "2"]


def test_pointing_at_a_value_tells_it_exactly(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    svg = find(browser, "#accuracy .wide svg")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", svg)
    left, right, bottom, top = map(float, svg.get_attribute("data-box").split())
    x_low, x_high, y_low, y_high = map(float, svg.get_attribute("data-ends").split())
    scale = svg.size["width"] / 560
    x = left + (2 - x_low) / (x_high - x_low) * (right - left)
    y = bottom + (0.7 - y_low) / (y_high - y_low) * (top - bottom)
    middle = (560 / 2, 340 / 2)
    offset = (round((x - middle[0]) * scale) + 2, round((y - middle[1]) * scale) + 2)
    ActionChains(browser).move_to_element_with_offset(svg, *offset).perform()
    tip = find(browser, "#accuracy .tip")
    assert tip.is_displayed()
    assert tip.text.splitlines() == ["accuracy", "epochs trained: 2", "test accuracy: 70 %"]
    ActionChains(browser).move_to_element(find(browser, "h1")).perform()
    assert not tip.is_displayed()


def test_arrow_keys_read_a_chart(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    canvas = find(browser, "#layer_sparsity .canvas")
    canvas.send_keys(Keys.ARROW_RIGHT)
    tip = find(browser, "#layer_sparsity .tip")
    assert "layer: conv.weight" in tip.text and "sparsity: 98 %" in tip.text
    assert "20 of 1,000 weights are left" in tip.text
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert f"layer: {HOSTILE}" in tip.text
    canvas.send_keys(Keys.ARROW_DOWN)
    assert tip.text.startswith("uniform (90.00 %)")
    assert "uniform" in find(browser, "#live").get_attribute("textContent")
    canvas.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()


def test_tab_reaches_every_control_and_focus_is_seen(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    seen = []
    for _ in range(12):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        seen.append(browser.execute_script("return document.activeElement.className || document.activeElement.tagName"))
    assert seen[0] == "skip" and "canvas" in seen and "quiet" in seen and "entry" in seen
    outline = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def background(browser: Any) -> str:
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


def test_light_and_dark(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    light = background(browser)
    button = find(browser, "#theme")
    button.click()
    dark = background(browser)
    assert light != dark and button.text == "Light"
    browser = open_page(page, dark=True)
    assert background(browser) == dark  # what the system asks for
    find(browser, "#theme").click()
    assert background(browser) == light


def contrast(browser: Any, selector: str, behind: str) -> float:
    script = """
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((v) => linear(v / 255))
      .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const style = (selector) => getComputedStyle(document.querySelector(selector));
    const [a, b] = [light(style(arguments[0]).color), light(style(arguments[1]).backgroundColor)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    """
    return browser.execute_script(script, selector, behind)


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_legible(open_page: OpenPage, page: Path, dark: bool) -> None:
    browser = open_page(page, dark=dark)
    for selector, behind in ((".lead", "body"), (".card dt", ".card"), ("figcaption p", ".chart"), ("nav a", "body")):
        assert contrast(browser, selector, behind) >= 4.5


@pytest.mark.parametrize("width", [320, 390, 700])
@pytest.mark.parametrize("which", ["page", "several"])
def test_a_narrow_screen_scrolls_in_one_direction(
    open_page: OpenPage, request: pytest.FixtureRequest, which: str, width: int
) -> None:
    browser = open_page(request.getfixturevalue(which), width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert find(browser, "#accuracy .narrow svg").is_displayed()
    assert not find(browser, "#accuracy .wide svg").is_displayed()


def test_a_run_is_hidden_in_charts_and_table_at_once(open_page: OpenPage, several: Path) -> None:
    browser = open_page(several)
    button = find(browser, "[data-group-toggle='b']")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert shown_series(browser, "accuracy") == ["0", "2"]
    assert shown_series(browser, "layer_macs") == ["0", "2"]
    assert set(column(browser, 1)) == {"a", "c"}
    button.click()
    assert set(column(browser, 1)) == {"a", "b", "c"}


def test_a_long_table_has_pages_and_a_large_chart_still_tells(open_page: OpenPage, tmp_path: Path) -> None:
    number = 5_000
    names = tuple(f"layer{i}.weight" for i in range(number))
    table = Table("long", "Long.", (Column("name"), Column("n", "count")), tuple((n, i) for i, n in enumerate(names)))
    places = tuple(map(float, range(number)))
    chart = Chart(
        "big", "Big", "", Axis("layer", categories=names), Axis("n"), (Series("n", places, places, mark="bars"),)
    )
    empty, begin = render("base.html", title="Long"), '<main id="content" data-follow="0">'
    file = tmp_path / "page.html"
    file.write_text(empty.replace(begin, begin + figure(chart) + table_html(table)), encoding="utf-8")
    browser = open_page(file)
    assert len(browser.find_elements(By.CSS_SELECTOR, "#long tbody tr")) == 200
    find(browser, "#long .next").click()
    assert find(browser, "#long tbody th").text == "layer200.weight"
    assert find(browser, "#long .pager span").text == "Page 2 of 25"
    find(browser, "#long thead th:nth-child(2) button").click()
    find(browser, "#long .back").click()
    assert find(browser, "#long tbody th").text == "layer4999.weight"
    find(browser, "#big .canvas").send_keys(Keys.END)
    assert "layer: layer4999.weight" in find(browser, "#big .tip").text


def test_paper_shows_all_rows_without_controls(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not find(browser, "#layer-table .tools").is_displayed()
    assert find(browser, "#accuracy .wide svg").is_displayed()
    assert len(column(browser, 1)) == 2
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_a_served_page_renews_itself_and_keeps_what_was_chosen(chromium: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", finished=False)
    still = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": still})
    with FollowServer(lambda: report_page(load([run])[0], follow=1)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            chromium.get(server.url)
            # In one go: between two calls the page may have renewed itself, and an element is gone.
            chromium.execute_script("""document.querySelector("#thresholds .entry[data-series='1']").click()""")
            find(chromium, "h1").click()
            with (run / "metrics.jsonl").open("a") as file:
                file.write('{"kind": "epoch", "epoch": 5, "step": 24, "accuracy": 0.5}\n')
            (run / "result.json").write_text('{"seconds": 3}')
            wait = WebDriverWait(chromium, 60, ignored_exceptions=(StaleElementReferenceException,))
            wait.until(lambda browser: "The run is finished" in find(browser, "#summary").text)
            assert find(chromium, "#thresholds .entry[data-series='1']").get_attribute("aria-pressed") == "false"
            assert find(chromium, "#content").get_attribute("data-follow") == "1"
        finally:
            chromium.get("about:blank")
            server.shutdown()
            thread.join()
