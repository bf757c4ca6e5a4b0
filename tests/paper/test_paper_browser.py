"""The page in a browser: sorting, filtering by verdict, tooltips, a narrow screen; nothing is asked of the network."""

import json

import pytest
from benchmarks.paper.report import paper_report, write_paper_report

from chromium import start_chromium

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "paper.html"
    write_paper_report(paper_report(), out=path)
    return path


@pytest.fixture
def browser(page, tmp_path):
    driver = start_chromium(tmp_path)
    try:
        driver.get(page.as_uri())
        yield driver
        assert driver.get_log("browser") == []
        events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
        # Settings of the browser's own new tab are not the page's doing.
        assert {url for url in asked if not url.startswith(("data:", "chrome:"))} == {page.as_uri()}
    finally:
        driver.quit()


def column(browser, table, number):
    return browser.execute_script(
        "const [table, number] = arguments;"
        "return [...document.querySelectorAll(`#${table} tbody tr`)].map((row) => row.cells[number].textContent)",
        table,
        number,
    )


def press(browser, selector):
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def test_flops_are_sorted_by_size(browser):
    press(browser, "#table_01_resnet50_results thead th:nth-child(7) button")
    found = column(browser, "table_01_resnet50_results", 6)
    assert found[:5] == ["4.09G", "1.68G", "1.68G", "1.63G", "1.23G"]
    assert found[-1] == "-"
    assert found.index("960M") < found.index("~600M") < found.index("41M")


def test_verdicts_filter_all_tables(browser):
    press(browser, '[data-group-toggle="agrees"]')
    press(browser, '[data-group-toggle="other count"]')
    press(browser, '[data-group-toggle="not computable"]')
    assert set(column(browser, "table_01_resnet50_results", 8)) == {"differs"}
    assert len(column(browser, "checks", 0)) == 25
    assert len(column(browser, "table_06_resnet50_str_budgets", 0)) == 54 + 6
    press(browser, '[data-group-toggle="agrees"]')
    assert set(column(browser, "checks", 5)) == {"agrees", "differs"}


def test_points_tell_printed_and_ours(browser):
    browser.set_window_size(1280, 1000)
    canvas = browser.find_element("css selector", "#figure_05_accuracy_flops .canvas")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas)
    canvas.send_keys("\ue014")  # the right arrow
    tip = browser.find_element("css selector", "#figure_05_accuracy_flops .tip").text
    assert "printed" in tip and "ours" in tip


def test_a_narrow_screen_scrolls_in_one_direction(browser):
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
