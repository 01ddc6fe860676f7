"""The page in a real browser: it draws, sorts, stays at home and lets no name become code."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from assay.report.page import build_page
from browsing import PATIENCE, Visit


@pytest.fixture
def visit(browser: Any, section: Any, record: Any, hostile: str, tmp_path: Path) -> Iterator[Visit]:
    """The page of a section in which everything that has a name has a hostile one."""
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    visit = Visit(page)
    failed = record(status="failed", error=f"Traceback\nValueError: {hostile}", model={"name": hostile})
    visit.open(tmp_path / "report.html", build_page([("toy", hostile, section)], [failed], title=hostile))
    assert visit.page.locator(".plot").count() == 3
    yield visit
    page.close()


def test_charts_are_drawn_without_a_complaint_or_a_request(visit):
    assert visit.page.locator("figure .plot svg.marks").count() == 2
    assert visit.page.locator(".card .plot svg.marks").count() == 1
    assert visit.page.locator("figure .plot .mark-line path").count() == 3
    assert visit.page.locator("figure .plot .mark-rect path").count() >= 3
    assert visit.problems == []


def test_hovering_over_a_dot_shows_its_run(visit):
    visit.page.locator("figure .plot .mark-symbol.role-mark path").first.hover(force=True)
    visit.page.locator("#vg-tooltip-element.visible").wait_for()
    told = visit.page.locator("#vg-tooltip-element").inner_text()
    assert "seed" in told and "0a1b2c3d" in told


@pytest.mark.parametrize("what", [".role-legend .mark-symbol path", ".role-mark.mark-symbol path"])
def test_a_click_on_a_legend_entry_or_a_mark_singles_out_its_series(visit, what):
    assert visit.opacities(".mark-line") == [1, 1, 1]
    visit.page.locator(f"#study-1 figure.chart:first-child {what}").first.click(force=True)
    visit.wait_until(lambda: sorted(visit.opacities(".mark-line"))[0] < 0.2)
    assert sorted(opacity > 0.9 for opacity in visit.opacities(".mark-line")) == [False, False, True]


def test_the_contents_follow_the_scroll(visit):
    here = visit.page.locator("nav a[aria-current]")
    assert here.all_inner_texts() == ["Findings"]
    visit.page.locator("#study-1").evaluate("section => section.scrollIntoView()")
    visit.wait_until(lambda: here.all_inner_texts() == ["toy"])
    visit.page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight)")
    visit.wait_until(lambda: here.all_inner_texts() == ["Provenance"])
    assert visit.page.locator("nav").bounding_box()["y"] >= 0, "it stays on the screen"


def test_columns_beyond_the_lead_fold_and_unfold_from_the_keyboard(visit):
    hidden = visit.page.locator("#study-1 th", has_text="k-params")
    button = visit.page.locator("#study-1 button.unfold")
    assert not hidden.is_visible() and button.get_attribute("aria-expanded") == "false"
    button.focus()
    visit.page.keyboard.press("Enter")
    assert hidden.is_visible() and button.get_attribute("aria-expanded") == "true"
    visit.page.keyboard.press("Enter")
    assert not hidden.is_visible() and button.inner_text() == "2 more columns"


def test_headings_step_down_one_at_a_time_and_charts_have_words(visit):
    levels = visit.page.locator("h1, h2, h3, h4").evaluate_all("all => all.map(one => Number(one.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for plot in visit.page.locator(".plot").all():
        assert plot.get_attribute("role") in ("img", "group")
        assert "tables of this section" in plot.get_attribute("aria-label")
        assert plot.locator("svg.marks").get_attribute("aria-hidden") == "true", "its marks are not read one by one"


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


def test_a_table_that_is_wider_than_the_screen_says_so_until_its_end_is_seen(visit):
    page, hint = visit.page, visit.page.locator("#study-1 .block .hint").first
    page.set_viewport_size({"width": 1400, "height": 640})
    visit.wait_until(lambda: not hint.is_visible())
    page.set_viewport_size({"width": 220, "height": 640})
    page.locator("#study-1 .unfold").first.click()
    visit.wait_until(lambda: hint.is_visible())
    box = page.locator("#study-1 .block .table").first
    box.evaluate("box => box.scrollTo({ left: box.scrollWidth })")
    visit.wait_until(lambda: not hint.is_visible())
    box.evaluate("box => box.scrollTo({ left: 0 })")
    visit.wait_until(lambda: hint.is_visible())
    page.emulate_media(media="print")
    assert not hint.is_visible(), "paper does not scroll"


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
    assert page.locator("#study-1 th", has_text="k-params").is_visible(), "nothing can be unfolded"
    assert page.locator("figcaption").first.bounding_box()["width"] > 200
    assert page.locator("body").bounding_box()["width"] <= width
    context.close()


def test_with_scripts_nothing_is_said_of_them(visit):
    assert visit.page.locator("noscript").first.bounding_box() is None
