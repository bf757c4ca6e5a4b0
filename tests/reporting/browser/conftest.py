"""A browser for tests of pages: Chromium without a window, skipped with a reason where it is not installed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chromium import start_chromium


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Chromium of its own for a file of tests, with its logs of the console and of requests."""
    folder = tmp_path_factory.mktemp("chromium")
    made = start_chromium(folder)
    made.downloads = folder / "downloads"
    yield made
    made.quit()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file, wide and light unless asked otherwise; afterwards nothing was requested, and nothing failed."""
    opened: list[str] = []

    def open_(page: Path, *, width: int = 1250, dark: bool = False) -> Any:
        # Without motion: what is clicked must not be on its way.
        asked = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in asked.items()]
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        drain(chromium)
        opened.append(page.as_uri())
        chromium.get(page.as_uri())
        return chromium

    yield open_
    errors, requests = drain(chromium)
    assert errors == []
    assert [
        url for url in requests if url.partition("#")[0] not in opened and not url.startswith(("data:", "blob:"))
    ] == []


def drain(chromium: Any) -> tuple[list[str], list[str]]:
    """The console's errors and the addresses that were requested since it was last asked."""
    errors = [entry["message"] for entry in chromium.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    messages = [json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return errors, [url for url in sent if not url.startswith("chrome")]
