"""Records that nothing computed, and a section with one of everything."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from assay.core.run import Numerics, Provenance, Record, Run, Status
from assay.metrics.intervals import Interval
from assay.report.section import Section
from browsing import CHROMIUM, QUIET

HOSTILE = "</script><script>window.__hacked = 1</script><img src=x onerror=window.__hacked=1>"


@pytest.fixture
def hostile() -> str:
    return HOSTILE


@pytest.fixture
def record() -> Callable[..., Record]:
    def make(
        *,
        seed: int = 0,
        study: str = "toy",
        status: Status = "done",
        metrics: dict[str, Any] | None = None,
        error: str | None = None,
        device: str = "cpu",
        version: str = "1",
        **options: Any,
    ) -> Record:
        run = Run(study, options, seed, {study: version}, Numerics(device=device))
        made = Provenance("0.1.0", "3.11.7", "2.9.0", "box", "Linux x86_64", source="0123456789ab")
        return Record(run, status, metrics or {}, {}, error, made, f"2025-06-0{seed + 1}T10:00:00+00:00")

    return make


@pytest.fixture
def section() -> Section:
    """One table and both kinds of chart, with a hostile name in each."""
    from assay.report.charts import interval_bars, interval_lines

    means = {"gru": 0.9, HOSTILE: 0.1, "conv": 10.5}
    section = Section("toy")
    rows = [{"Model": name, "R2_0.75": Interval(mean, mean - 0.1, mean + 0.1, 5)} for name, mean in means.items()]
    lost: dict[str, Any] = {"Model": "lost", "R2_0.75": None}
    cells = [{"k-params": 12.5, **row, "seconds": 1.5} for row in [*rows, lost]]
    section.table("scores", cells, lead=["Model", "R2_0.75"], note=f"A note with {HOSTILE}.")
    section.finding(f"conv is best, 10.5 ±0.1 (n = 5); {HOSTILE} is not.", chart="lines")
    points = [row | {"k": k} for row in rows for k in (1, 2, 4)]
    dots = [
        {"Model": row["Model"], "k": k, "R2_0.75": 0.5, "seed": 0, "run": "0a1b2c3d"} for row in rows for k in (1, 2, 4)
    ]
    lines = interval_lines(
        points, x="k", y="R2_0.75", series="Model", dots=dots, references={"ceiling": 11.0, HOSTILE: 0.0}, title=HOSTILE
    )
    section.chart("lines", lines, caption=f"A caption with {HOSTILE}.")
    section.chart("bars", interval_bars(rows, label="Model", value="R2_0.75", dots=dots, references={"ceiling": 11.0}))
    return section


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM and os.environ.get("REQUIRE_BROWSER") != "1":
        pytest.skip("no chromium here: the browser tests are skipped")
    assert CHROMIUM, "REQUIRE_BROWSER=1, but there is no chromium; on Debian: apt-get install chromium"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[f"--{flag}" for flag in (*QUIET, "no-first-run")]
        )
        yield browser
        browser.close()
