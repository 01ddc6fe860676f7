"""The page as it looks: where its cards, charts and tables lie, and how much is drawn in each, against layout.json.

Fonts differ from machine to machine, and with them the lines of a text; so sides are compared closely, heights and
ink loosely. `python tests/report/test_page_layout.py` (with tests/ on PYTHONPATH) writes layout.json again: look at
the page before.
"""

import base64
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.metrics.intervals import Interval
from assay.report.page import build_page
from assay.report.section import Section
from browsing import PATIENCE, Visit

GOLDEN = Path(__file__).parent / "layout.json"
PARTS = ("nav", ".card", ".card svg.marks", "figure.chart", "figure.chart svg.marks", ".block .table")
A4 = 688
"""Pixels between the margins."""
MODES = {"wide": 1400, "phone": 420, "print": 1400}
SIDE, HEIGHT, INK = 14, 0.4, 0.6
"""Tolerances: pixels of an edge, shares of a height and of the ink."""
Boxes = dict[str, list[list[float]]]
"""By part, the x, y, width and height of each."""


def sections() -> list[tuple[str, str, Section]]:
    """Three studies with one of every kind of chart; the second has two sentences, the third no finding."""
    import altair as alt

    from assay.report.charts import heatmap, interval_bars, interval_lines

    def point(value: float) -> Interval:
        return Interval(value, value - 0.05, value + 0.05, 5)

    names = ("attention", "delta_net", "gru", "a_mixer_with_quite_a_long_name")
    made = []
    for number, study in enumerate(("recall", "capacity", "bare")):
        section = Section(study)
        rows = [
            {"mixer": name, "accuracy": point(0.9 - 0.2 * n), **{f"column_{k}": k * 1000.5 for k in range(12)}}
            for n, name in enumerate(names)
        ]
        long = [{"step": step, "loss": 1 / (1 + step)} for step in range(60)]
        section.table("scores", rows, lead=["mixer", "accuracy"], note="What the numbers mean. " * 12)
        if number == 0:
            section.table("steps", long)
        lines = [{"s": name, "x": 2**k, "y": point(k / (6 + n))} for n, name in enumerate(names) for k in range(5)]
        if number == 0:
            cells = [{"x": x, "y": y, "v": x * y} for x in range(8) for y in range(8)]
            section.chart("lines", interval_lines(lines, x="x", y="y", series="s", log_x=True), caption="By pairs.")
            section.chart("map", heatmap(cells, x="x", y="y", value="v", title="map"), caption="By pairs and width.")
        else:
            panels = [interval_bars(rows, label="mixer", value="accuracy", value_title=what) for what in "ab"]
            section.chart("panels", alt.hconcat(*panels), caption="Two measures.")
            section.chart("bars", interval_bars(rows, label="mixer", value="accuracy"), caption="Accuracy.")
        for sentence in range((1, 2, 0)[number]):
            section.finding(f"attention is best, 0.90 ±0.05 (n = 5); this is sentence {sentence + 1}.", chart="bars")
        made.append((study, "Which mixer remembers how much, and for how long?", section))
    return made


def placed(page: Any) -> Boxes:
    """Left and top edge, width and height of every part."""
    return page.evaluate(
        """parts => Object.fromEntries(parts.map(part => [part, Array.from(document.querySelectorAll(part),
        one => one.getBoundingClientRect()).map(box => [box.x, box.y + window.scrollY, box.width, box.height])]))""",
        list(PARTS),
    )


def inked(page: Any, boxes: Boxes) -> dict[str, list[float]]:
    """The share of every part's pixels that are not background."""
    shot = base64.b64encode(page.screenshot(full_page=True)).decode()
    ink = page.context.browser.new_page()
    ink.set_default_timeout(PATIENCE)
    shares = ink.evaluate(
        """async ([shot, boxes]) => {
        const image = new Image(); image.src = "data:image/png;base64," + shot; await image.decode();
        const canvas = new OffscreenCanvas(image.width, image.height), pen = canvas.getContext("2d");
        pen.drawImage(image, 0, 0);
        const share = ([x, y, width, height]) => {
          const pixels = pen.getImageData(x, y, Math.max(1, width), Math.max(1, height)).data;
          let drawn = 0;
          for (let at = 0; at < pixels.length; at += 4)
            drawn += Math.min(pixels[at], pixels[at + 1], pixels[at + 2]) < 235;
          return drawn * 4 / pixels.length;
        };
        return Object.fromEntries(Object.entries(boxes).map(([part, own]) => [part, own.map(share)]));
        }""",
        [shot, boxes],
    )
    ink.close()
    return shares


def differences(found: Boxes, expected: Boxes) -> list[str]:
    """Where parts are that lie or are as large as none was."""
    told = [
        f"{part}: {len(found[part])} of them, not {len(then)}"
        for part, then in expected.items()
        if len(found[part]) != len(then)
    ]
    for part, number, now, then in _pairs(found, expected):
        near = abs(now[0] - then[0]) <= SIDE and abs(now[2] - then[2]) <= SIDE
        if not (near and math.isclose(now[3], then[3], rel_tol=HEIGHT)):
            told.append(f"{part} {number}: x, y, width, height {now}, not {then}")
    return told


def paler(found: dict[str, list[float]], expected: dict[str, list[float]]) -> list[str]:
    """Where much more or much less is drawn."""
    pairs = _pairs(found, expected)
    return [
        f"{part} {number}: ink {now}, not {then}"
        for part, number, now, then in pairs
        if not math.isclose(now, then, rel_tol=INK)
    ]


def _pairs(found: Any, expected: Any) -> Iterator[tuple[str, int, Any, Any]]:
    for part in PARTS:
        yield from (
            (part, number, *pair) for number, pair in enumerate(zip(found[part], expected[part], strict=False), 1)
        )


def beyond(page: Any, width: int) -> list[str]:
    """What reaches over the right edge, unless its own box scrolls."""
    return page.evaluate(
        """width => Array.from(document.querySelectorAll("body *"))
        .filter(one => !one.closest(".table, nav, .skip, svg") || one.matches(".table, svg.marks"))
        .filter(one => one.getBoundingClientRect().right > width + 1)
        .map(one => one.tagName + "." + one.getAttribute("class"))""",
        width,
    )


def opened(browser: Any, mode: str, folder: Path) -> Visit:
    page = browser.new_page(viewport={"width": MODES[mode], "height": 1000})
    page.set_default_timeout(PATIENCE)
    visit = Visit(page)
    visit.open(folder / "report.html", build_page(sections(), []))
    if mode == "print":  # a printer neither resizes the window nor draws again
        page.emulate_media(media="print")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        page.evaluate(f"document.body.style.width = '{A4}px'; document.body.style.margin = '0'")
        # A picture of the whole page does resize the window: as if every chart were drawn for its width already.
        page.evaluate("for (const plot of document.querySelectorAll('.plot')) plot.dataset.width = plot.clientWidth")
    return visit


@pytest.fixture(scope="module", params=MODES)
def looked(request: Any, browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Visit]]:
    visit = opened(browser, request.param, tmp_path_factory.mktemp("page"))
    yield request.param, visit
    visit.page.close()


def test_the_page_looks_as_it_did_and_a_lost_card_or_a_chart_that_overflows_is_seen(looked):
    mode, visit = looked
    golden = json.loads(GOLDEN.read_text())[mode]
    width = A4 if mode == "print" else MODES[mode]
    boxes = placed(visit.page)
    assert differences(boxes, golden["boxes"]) == [] and beyond(visit.page, width) == []
    assert paler(inked(visit.page, boxes), golden["ink"]) == []
    assert visit.problems == []
    chart = "document.querySelector('figure.chart svg.marks')"
    visit.page.evaluate(f"{chart}.style.cssText = 'max-width: none; width: 2000px'")
    assert beyond(visit.page, width) and differences(placed(visit.page), golden["boxes"])
    visit.page.evaluate(f"{chart}.style.cssText = ''; {chart}.replaceChildren()")
    if mode == "phone":
        assert any("svg.marks 1" in told for told in paler(inked(visit.page, boxes), golden["ink"])), "an empty chart"
    visit.page.evaluate("document.querySelector('.card').remove()")
    assert ".card: 2 of them, not 3" in differences(placed(visit.page), golden["boxes"])


def test_on_paper_folds_are_sensible(looked):
    mode, visit = looked
    on_paper = mode == "print"
    assert visit.page.locator("nav").is_visible() != on_paper
    assert visit.page.locator("details.note p").first.is_visible() == on_paper, "notes are open on paper"
    assert not visit.page.locator("th", has_text="column_11").first.is_visible()
    assert visit.page.locator(".on-paper").first.is_visible() == on_paper, "and the file with all columns is named"
    scrolls = "document.getElementById('study-1-table-2-box')"
    cut = visit.page.evaluate(f"{scrolls}.scrollHeight - {scrolls}.clientHeight > 100")
    assert cut != on_paper, "60 rows scroll on a screen, and are all there on paper"


if __name__ == "__main__":
    import tempfile

    from playwright.sync_api import sync_playwright

    from browsing import CHROMIUM, QUIET

    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as place:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=[f"--{flag}" for flag in QUIET])
        made = {}
        for mode in MODES:
            visit = opened(chromium, mode, Path(place))
            boxes = placed(visit.page)
            made[mode] = {"boxes": boxes, "ink": inked(visit.page, boxes)}
        chromium.close()
    short = json.loads(json.dumps(made), parse_float=lambda number: round(float(number), 3))
    GOLDEN.write_text(json.dumps(short, indent=1).replace("\n     ", " ").replace("\n    ]", " ]") + "\n")
