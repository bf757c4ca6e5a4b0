"""The comparison in a browser: a method is filtered everywhere at once, legends, tooltips, keyboard, themes, widths."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from outcomes import write_benchmark, write_outcome

pytest.importorskip("selenium", reason="selenium is not installed")

from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from softprune.reporting.compare import write_comparison

HOSTILE = "<script>document.title='taken'</script>"
OpenPage = Callable[..., Any]
ALL = {"gmp global", "st3", "str goal"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    return write_comparison([write_benchmark(folder / "runs")], folder / "compare.html")[0]


def find(browser: Any, selector: str) -> Any:
    element = browser.find_element(By.CSS_SELECTOR, selector)
    # In the middle, where the row of methods does not cover it.
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    return element


def series(browser: Any, figure: str) -> set[str]:
    """The names of the series that are drawn."""
    script = """
    const figure = document.getElementById(arguments[0]);
    const names = softprune.values(figure).series.map((one) => one.name);
    return [...figure.querySelectorAll('.wide .series')].filter((g) => getComputedStyle(g).display !== 'none')
      .map((g) => names[g.dataset.series]);
    """
    return set(browser.execute_script(script, figure))


def methods(browser: Any, table: str) -> list[str]:
    return [element.text for element in browser.find_elements(By.CSS_SELECTOR, f"#{table} tbody tr > :first-child")]


def test_a_method_is_hidden_in_all_charts_and_tables_at_once(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    assert series(browser, "frontier") == ALL | {"dense"}
    button = find(browser, "[data-group-toggle='st3']")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    for chart in ("frontier", "macs_frontier", "pareto", "layer_budgets"):
        assert "st3" not in series(browser, chart)
        assert "str goal" in series(browser, chart)
    for table in ("matched", "differences", "groups"):
        assert "st3" not in methods(browser, table)
        assert "gmp global" in methods(browser, table)
    button.send_keys(Keys.SPACE)  # the keyboard does the same
    assert "st3" in series(browser, "pareto") and "st3" in methods(browser, "matched")


def test_all_and_none(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    find(browser, "[data-groups='false']").click()
    assert series(browser, "frontier") == set()
    assert methods(browser, "matched") == methods(browser, "groups") == []
    find(browser, "[data-group-toggle='str goal']").click()
    assert series(browser, "frontier") == {"str goal"}
    find(browser, "[data-groups='true']").click()
    assert series(browser, "frontier") == ALL | {"dense"}


def test_a_legend_entry_hides_a_series_of_one_chart(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    entry = find(browser, "#frontier .entry[data-series='0']")
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    assert series(browser, "frontier") == {"st3", "str goal", "dense"}
    assert "gmp global" in series(browser, "macs_frontier")


def test_pointing_at_a_point_tells_mean_deviation_and_runs(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    svg = find(browser, "#frontier .wide svg")
    script = """
    const figure = document.getElementById('frontier'), svg = figure.querySelector('.wide svg');
    const at = softprune.values(figure).series.findIndex((one) => one.name === 'str goal');
    return softprune.mapping(svg, softprune.values(figure))(softprune.values(figure).series[at], 1);
    """
    x, y = browser.execute_script(script)
    width, height = map(float, svg.get_dom_attribute("viewBox").split()[2:])
    scale = svg.size["width"] / width
    offset = (round((x - width / 2) * scale), round((y - height / 2) * scale))
    ActionChains(browser).move_to_element_with_offset(svg, *offset).perform()
    tip = find(browser, "#frontier .tip").text.splitlines()
    assert tip[0] == "str goal"
    assert tip[1:3] == ["sparsity: 98 %", "accuracy: 90.1 % \u00b1 0.1 %"]
    assert tip[3].startswith("98 % sparsity, 3 runs") and "2,004 multiply-adds" in tip[3]


def test_arrow_keys_read_the_front(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    canvas = find(browser, "#pareto .canvas")
    canvas.send_keys(Keys.ARROW_RIGHT)
    canvas.send_keys(Keys.ARROW_UP)  # from the first series to the last one, the front
    tip = find(browser, "#pareto .tip")
    assert tip.text.startswith("not dominated")
    assert "str goal" in tip.text
    assert "not dominated" in browser.find_element(By.ID, "live").get_attribute("textContent")


def test_a_level_sorts_the_methods_and_the_best_is_marked(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    assert methods(browser, "matched") == ["gmp global", "st3", "str goal"]
    find(browser, "#matched thead th:nth-child(3) button").click()
    assert methods(browser, "matched") == ["str goal", "st3", "gmp global"]
    best = browser.find_elements(By.CSS_SELECTOR, "#matched td.best")
    assert len(best) == 2
    assert best[1].text.startswith("90.10 \u00b1 0.10 % (n=3)")
    assert int(best[1].value_of_css_property("font-weight")) >= 600
    assert best[1].find_element(By.XPATH, "..").text.startswith("str goal")


def test_the_table_is_downloaded_with_exact_means(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    find(browser, "#matched button.csv").click()
    file = browser.downloads / "matched.csv"
    WebDriverWait(browser, 20).until(lambda _: file.is_file() and file.stat().st_size)
    head, *rows = file.read_text().splitlines()
    assert head == "method,90 %,98 %"
    label, first, second = rows[2].split(",")
    assert label == "str goal"
    assert (float(first), float(second)) == (pytest.approx(0.921), pytest.approx(0.901))


def test_light_and_dark(open_page: OpenPage, page: Path) -> None:
    script = "return getComputedStyle(document.querySelector('.methods')).backgroundColor"
    light = open_page(page).execute_script(script)
    browser = open_page(page, dark=True)
    assert browser.execute_script(script) != light
    find(browser, "#theme").click()
    assert browser.execute_script(script) == light


@pytest.mark.parametrize("width", [320, 390, 700])
def test_a_narrow_screen_scrolls_in_one_direction(open_page: OpenPage, page: Path, width: int) -> None:
    browser = open_page(page, width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert find(browser, "#frontier .narrow svg").is_displayed()


def test_the_row_of_methods_stays_in_sight(open_page: OpenPage, page: Path) -> None:
    browser = open_page(page)
    find(browser, "#groups")
    top = browser.execute_script("return document.querySelector('.methods').getBoundingClientRect().top")
    assert top == pytest.approx(0, abs=1)


def test_hostile_names_are_text(open_page: OpenPage, tmp_path: Path) -> None:
    for number, method in enumerate(("str", HOSTILE)):
        write_outcome(tmp_path / "runs" / str(number), method=method, model={"name": HOSTILE})
    (page,) = write_comparison([tmp_path / "runs"], tmp_path / "compare.html")
    browser = open_page(page)
    assert browser.title == "Comparison of 2 runs"
    assert HOSTILE in find(browser, "h2").text
    assert HOSTILE in methods(browser, "matched")
    button = browser.find_elements(By.CSS_SELECTOR, "[data-group-toggle]")[0]
    assert button.text == HOSTILE
    button.click()
    assert HOSTILE not in methods(browser, "matched")
