"""The page in a real browser: it draws, sorts, stays at home and lets no name become code."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.report.page import build_page

QUIET = ("no-sandbox", "disable-gpu", "disable-background-networking", "disable-component-update", "disable-sync")
PATIENCE = 60_000
"""Milliseconds: a busy machine is slow, not wrong."""
CHROMIUM = shutil.which("chromium")
if not CHROMIUM and os.environ.get("REQUIRE_BROWSER") != "1":
    pytest.skip("no chromium here: the browser tests are skipped", allow_module_level=True)


class Visit:
    """An open page and everything it complained of or asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        page.on("console", lambda line: self.problems.append(line.text) if line.type in ("error", "warning") else None)
        page.on("request", lambda request: self._requested(request.url))

    def _requested(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self.problems.append(f"outside request: {url}")

    def open(self, path: Path, html: str) -> None:
        path.write_text(html, encoding="utf-8")
        self.page.goto(path.as_uri())
        for figure in self.page.locator("figure.chart").all():
            figure.locator(".plot svg.marks").wait_for()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Of what the page has told us: looked at again while the browser works, for as long as it takes under load."""
        for _ in range(PATIENCE // 50):
            if condition():
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"waited in vain; the page complained of {self.problems}")

    def column(self, number: int) -> list[str]:
        return self.page.locator(f"#study-1 tbody td:nth-child({number})").all_inner_texts()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    assert CHROMIUM, "REQUIRE_BROWSER=1, but there is no chromium; on Debian: apt-get install chromium"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[f"--{flag}" for flag in (*QUIET, "no-first-run")]
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any, section: Any, record: Any, hostile: str, tmp_path: Path) -> Iterator[Visit]:
    """The page of a section in which everything that has a name has a hostile one."""
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    visit = Visit(page)
    failed = record(status="failed", error=f"Traceback\nValueError: {hostile}", model={"name": hostile})
    visit.open(tmp_path / "report.html", build_page([("toy", hostile, section)], [failed], title=hostile))
    yield visit
    page.close()


def test_charts_are_drawn_without_a_complaint_or_a_request(visit):
    assert visit.page.locator(".plot svg.marks").count() == 2
    assert visit.page.locator(".plot .mark-line path").count() == 3
    assert visit.page.locator(".plot .mark-rect path").count() >= 3
    visit.page.locator(".plot .mark-symbol.role-mark path").first.hover(force=True)
    visit.page.locator("#vg-tooltip-element.visible").wait_for()
    assert visit.problems == []


def test_a_header_sorts_by_the_mean_up_then_down_with_missing_values_last(visit):
    header = visit.page.locator("#study-1 thead th:nth-child(2)")
    header.locator("button").click()
    assert [text.split()[0] for text in visit.column(2)] == ["0.10", "0.90", "10.50", "-"]
    assert header.get_attribute("aria-sort") == "ascending"
    header.locator("button").click()
    assert [text.split()[0] for text in visit.column(2)] == ["10.50", "0.90", "0.10", "-"]
    assert header.get_attribute("aria-sort") == "descending"


def test_headers_sort_from_the_keyboard(visit, hostile):
    visit.page.locator("#study-1 thead th:nth-child(1) button").focus()
    visit.page.keyboard.press("Enter")
    assert visit.column(1) == [hostile, "conv", "gru", "lost"]


def test_hostile_names_are_text(visit, hostile):
    assert visit.page.evaluate("window.__hacked") is None
    assert visit.page.locator("img").count() == 0
    assert visit.page.title() == hostile
    assert hostile in visit.page.locator("h1").inner_text()
    assert hostile in visit.column(1)
    assert hostile in visit.page.locator(".plot svg.marks").first.text_content()
    visit.page.locator("details summary", has_text="Traceback").click()
    assert hostile in visit.page.locator("details pre").inner_text()
    assert visit.problems == []


def test_even_injected_markup_could_not_run_or_fetch(visit):
    """The second wall: were the escaping to fail, the page's policy would still stop the script."""
    visit.page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=data:, onerror=\"window.__hacked = 1\">');"
        "const script = document.createElement('script');"
        "script.textContent = 'window.__hacked = 1'; document.body.append(script);"
    )
    visit.wait_until(lambda: sum("Content Security Policy" in problem for problem in visit.problems) >= 2)
    assert visit.page.evaluate("window.__hacked") is None


def test_wide_tables_scroll_in_their_own_box_on_a_phone(visit):
    visit.page.set_viewport_size({"width": 360, "height": 640})
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_table_that_is_cut_says_so_until_its_end_is_seen(visit):
    def wait_for(classes: str) -> None:
        """By a locator: `wait_for_function` evaluates text once it has to poll, which the page's policy forbids."""
        visit.page.locator(f"#study-1 div.table{classes}").first.wait_for(state="attached")

    box = visit.page.locator("#study-1 div.table").first
    visit.page.set_viewport_size({"width": 1600, "height": 640})
    wait_for(":not(.wide):not(.more)")
    visit.page.set_viewport_size({"width": 240, "height": 640})
    wait_for(".wide.more")
    note = "getComputedStyle(document.querySelector('#study-1 .note'), '::before').content"
    assert "scroll the table" in visit.page.evaluate(note)
    box.evaluate("box => box.scrollTo(box.scrollWidth, 0)")
    wait_for(".wide:not(.more)")


def test_the_empty_page_opens_cleanly(browser, tmp_path):
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    visit = Visit(page)
    visit.open(tmp_path / "report.html", build_page([], []))
    assert "make demo" in visit.page.locator("main").inner_text()
    assert visit.problems == []


@pytest.mark.parametrize("width", [1200, 400])
def test_without_scripts_the_tables_and_captions_are_readable_and_the_page_says_what_is_missing(
    browser, section, tmp_path, width
):
    context = browser.new_context(java_script_enabled=False, viewport={"width": width, "height": 800})
    page = context.new_page()
    path = tmp_path / "report.html"
    path.write_text(build_page([("toy", "?", section)], []), encoding="utf-8")
    page.goto(path.as_uri())
    assert "scripts are off" in page.locator("noscript").inner_text()
    assert page.locator("#study-1 tbody tr").count() == 4
    assert page.locator("figcaption").first.bounding_box()["width"] > 200
    assert page.locator("body").bounding_box()["width"] <= width
    context.close()


def test_with_scripts_nothing_is_said_of_them(visit):
    assert visit.page.locator("noscript").first.bounding_box() is None
