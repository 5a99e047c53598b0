"""A real browser shows the pages: Debian's Chromium, driven by selenium."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.table.tables import written
from tests.web.rows import run_rows
from tests.web.served import Served

_BROWSER = Path("/usr/bin/chromium")
_DRIVER = Path("/usr/bin/chromedriver")
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--window-size=1280,1000",
)
_SHOTS = os.environ.get("OTEL_ROLLOUT_TEST_SHOTS")
"""Directory for the screenshots, for a person."""
_LOADING = 60
"""Seconds in which a page has to be loaded after a click."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """Start the browser with a profile of its own."""
    options = ChromeOptions()
    options.binary_location = str(_BROWSER)
    for argument in (*_ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = Chrome(options=options, service=Service(executable_path=str(_DRIVER)))
    yield started
    started.quit()


def shown(browser: Chrome, name: str) -> None:
    """Check that the page has more than one colour, and that the browser has nothing to complain about."""
    png = browser.get_screenshot_as_png()
    if _SHOTS:
        (Path(_SHOTS) / f"{name}.png").write_bytes(png)
    colours = Image.open(io.BytesIO(png)).convert("RGB").getcolors(1 << 24)
    assert colours is not None
    assert len(colours) > 10
    assert browser.get_log("browser") == []


def follow(browser: Chrome, element: WebElement) -> None:
    """Click on a link or a button, and wait for the page to which it leads."""
    page = browser.find_element(By.TAG_NAME, "html")
    element.click()
    WebDriverWait(browser, _LOADING).until(staleness_of(page))
    WebDriverWait(browser, _LOADING).until(
        lambda driver: driver.execute_script("return document.readyState") == "complete"
    )


def test_clicks_lead_from_all_runs_to_two_trajectories(browser: Chrome, demo: Served) -> None:
    """A person who knows no address finds a trajectory with a low reward, and one to compare it with."""
    browser.get(f"{demo.address}/")
    shown(browser, "runs")
    follow(browser, browser.find_element(By.CSS_SELECTOR, "table.rows a"))
    shown(browser, "run")
    follow(browser, browser.find_element(By.LINK_TEXT, "trajectories"))
    shown(browser, "trajectories")
    browser.find_element(By.NAME, "reward").send_keys("<0.5")
    Select(browser.find_element(By.NAME, "sort")).select_by_visible_text("most turns")
    follow(browser, browser.find_element(By.CSS_SELECTOR, "form button"))
    assert "reward=%3C0.5" in browser.current_url
    shown(browser, "filtered")
    name = browser.find_element(By.CSS_SELECTOR, "table.rows a")
    chosen = name.text
    follow(browser, name)
    assert chosen in browser.find_element(By.TAG_NAME, "h1").text
    shown(browser, "trajectory")
    follow(browser, browser.find_element(By.PARTIAL_LINK_TEXT, "compare with"))
    assert "part at" in browser.find_element(By.CSS_SELECTOR, ".divergence").text
    shown(browser, "comparison")


def test_clicks_lead_from_a_run_to_step_group_and_health(browser: Chrome, demo: Served) -> None:
    """A curve's step leads to its time and groups, and a group to its trajectories."""
    browser.get(f"{demo.address}/run?refresh=off")
    for page in ("step", "timeline", "group", "trajectory"):
        follow(browser, browser.find_element(By.CSS_SELECTOR, f"a[href^='/{page}?']:not(svg a)"))
        shown(browser, f"way-{page}")
        if page == "timeline":
            browser.back()
    follow(browser, browser.find_element(By.LINK_TEXT, "health"))
    shown(browser, "health")


def test_page_of_a_live_run_loads_itself_again(browser: Chrome, tmp_path: Path) -> None:
    """The browser follows the address of the page; a link ends that."""
    # Spans of this moment: a run is live for some minutes after its last one.
    written(tmp_path / "table", run_rows(start_ns=time.time_ns()))
    with Served(tmp_path / "table", tmp_path) as server:
        browser.get(f"{server.address}/trajectories?refresh=on")
        first = browser.execute_script("return performance.timeOrigin")
        WebDriverWait(browser, 30).until(
            lambda driver: driver.execute_script("return performance.timeOrigin") != first
        )
        follow(browser, browser.find_element(By.LINK_TEXT, "stop reloading"))
        assert not browser.find_elements(By.CSS_SELECTOR, "meta[http-equiv=refresh]")
        assert browser.get_log("browser") == []


def test_words_stay_whole_in_a_narrow_window(browser: Chrome, tmp_path: Path) -> None:
    """A run's long name gives way to the badge beside it; a drawing of lanes that can be read scrolls."""
    rows = [row | {"experiment": "grpo-" * 20} for row in run_rows(start_ns=time.time_ns())]
    written(tmp_path / "table", rows)
    browser.set_window_size(800, 1000)
    with Served(tmp_path / "table", tmp_path) as server:
        browser.get(f"{server.address}/")
        badge = browser.find_element(By.CSS_SELECTOR, ".named .state")
        cell = browser.find_element(By.CSS_SELECTOR, "td:has(.named)")
        assert badge.rect["x"] + badge.rect["width"] <= cell.rect["x"] + cell.rect["width"]
        browser.get(f"{server.address}/timeline?step=1&refresh=off")
        assert browser.find_element(By.CSS_SELECTOR, ".lanes text").rect["height"] > 11
        page, coloured = edges(browser.find_element(By.CSS_SELECTOR, ".lanes"))
        assert page != coloured  # the drawing goes on


def test_edge_behind_which_a_table_goes_on_is_coloured(browser: Chrome, tmp_path: Path) -> None:
    """Without a script: at the table's end, the edge has the page's colour again."""
    written(tmp_path / "table", run_rows())
    browser.set_window_size(600, 1000)
    with Served(tmp_path / "table", tmp_path) as server:
        browser.get(f"{server.address}/trajectories?step=1")
        table = browser.find_element(By.CSS_SELECTOR, ".scroll")
        page, coloured = edges(table)
        assert page != coloured
        browser.execute_script("arguments[0].scrollLeft = 1e6", table)
        WebDriverWait(browser, _LOADING).until(lambda driver: edges(table)[1] == page)
        assert edges(table)[0] != page
    browser.set_window_size(1280, 1000)


def edges(element: WebElement) -> list[object]:
    """Return the most frequent colours of an element's left and right edge."""
    image = Image.open(io.BytesIO(element.screenshot_as_png)).convert("RGB")
    columns = (image.crop((x, 0, x + 1, image.height)) for x in (0, image.width - 1))
    return [max(column.getcolors() or [])[1] for column in columns]
