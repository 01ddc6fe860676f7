"""The static site: every link leads somewhere, every page is as strict as the single one, and nobody's page is lost."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import UserError
from assay.metrics.intervals import Interval
from assay.report.section import Section
from assay.report.site import build_site, check_folder
from assay.report.style import PALETTE
from browsing import PATIENCE, Visit

USED = {"recall": ["mixer/gru", "mixer/lost_one", "state mixer/mlp"], "coding": ["encoder/gru"]}


def section(study: str, *names: str) -> Section:
    from assay.report.charts import interval_bars

    made = Section(study)
    rows = [{"model": name, "score": Interval(0.1 * n, 0.0, 0.3 * n, 3)} for n, name in enumerate(names, start=1)]
    made.finding(f"{names[-1]} is best in {study}.", chart="scores")
    made.table("scores", rows)
    made.chart("scores", interval_bars(rows, label="model", value="score"), caption="Scores.")
    return made


@pytest.fixture
def sections() -> list[tuple[str, str, Section]]:
    return [
        ("recall", "What is recalled?", section("recall", "attention", "gru:conv=4")),
        ("coding", "What is coded?", section("coding", "StaticMLP", "GRU", "<b>")),
    ]


@pytest.fixture
def site(sections) -> dict[str, str]:
    return dict(build_site(sections, [], USED))


def test_there_is_a_page_per_study_and_per_plugin_and_every_link_leads_to_a_file(site):
    pages = {name for name in site if name.endswith(".html")}
    assert pages == {
        "index.html",
        "study-recall.html",
        "study-coding.html",
        "plugin-mixer-gru.html",
        "plugin-mixer-lost_one.html",
        "plugin-state-mixer-mlp.html",
        "plugin-encoder-gru.html",
    }
    for page in pages:
        for target in re.findall(r'(?:href|src)="([^"#]+)(?:#[^"]*)?"', site[page]):
            assert target in site or target.startswith("data:"), f"{page}: {target}"


def test_a_plugin_has_what_its_source_says_and_its_rows_in_the_studies_that_ran_it(site):
    mixer, encoder = site["plugin-mixer-gru.html"], site["plugin-encoder-gru.html"]
    assert "gru:conv=4" in mixer and "attention" not in mixer and "StaticMLP" not in mixer
    assert "GRU</a></td>" in encoder and "gru:conv=4" not in encoder
    assert "no table tells it apart" in site["plugin-state-mixer-mlp.html"]
    assert "does not know it" in site["plugin-mixer-lost_one.html"]
    assert '<a href="plugin-mixer-gru.html">gru:conv=4</a>' in site["study-recall.html"]


def test_a_plugin_has_one_colour_on_all_pages(site):
    def colours(page: str) -> dict[str, str]:
        spec = json.loads(re.search(r'type="application/json"[^>]*>(.*?)</script>', site[page])[1])
        scale = spec["layer"][0]["encoding"]["color"]["scale"]
        return dict(zip(scale["domain"], scale["range"], strict=True))

    recall, coding = colours("study-recall.html"), colours("study-coding.html")
    assert recall["gru:conv=4"] == coding["GRU"] != coding["StaticMLP"]
    assert set(recall.values()) <= set(PALETTE) and "attention is best" not in site["index.html"]


def test_pages_run_no_script_but_the_sites_own_and_names_are_text(site):
    for name, text in site.items():
        if name.endswith(".html"):
            policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1].replace("&#39;", "'")
            assert "default-src 'none'; script-src 'self';" in policy and "unsafe-eval" not in policy
            assert not re.search(r"<script>", text), "nothing inline runs"
            assert "<b>" not in text


def test_somebodys_own_page_stays(tmp_path, site):
    check_folder(tmp_path / "new")
    (tmp_path / "index.html").write_text(site["index.html"])
    check_folder(tmp_path)
    (tmp_path / "index.html").write_text("<h1>My home page</h1>")
    with pytest.raises(UserError, match="not written by assay"):
        check_folder(tmp_path)


def test_the_site_opens_from_a_disk_and_its_links_work(browser: Any, site: dict[str, str], tmp_path: Path):
    for name, text in site.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    visit = Visit(page)
    page.goto((tmp_path / "index.html").as_uri())
    page.locator("html.drawn").wait_for(state="attached")
    assert page.locator(".card svg.marks").count() == 2
    page.locator(".card h3 a", has_text="coding").click()
    page.locator("html.drawn").wait_for(state="attached")
    assert page.locator("h1").inner_text() == "coding" and page.locator("figure svg.marks").count() == 1
    assert page.locator("nav a[aria-current]").all_inner_texts() == ["coding"]
    page.locator("td a", has_text="GRU").click()
    assert page.locator("h1").inner_text() == "gru" and visit.problems == []
    page.close()


def test_report_writes_a_site_from_the_command_line_and_leaves_a_foreign_page_alone(cli, tmp_path):
    toy = Path(__file__).parent.parent / "toy.py"
    cli("toy", "--plugin", toy, "--seeds", "0", "--out", tmp_path / "results", "--executor", "serial")
    words = ["report", "--plugin", toy, "--out", tmp_path / "results", "--site", tmp_path / "site"]
    code, out, _ = cli(*words)
    assert code == 0 and out.strip() == str(tmp_path / "site" / "index.html")
    assert (tmp_path / "site" / "study-toy.html").is_file() and not (tmp_path / "results" / "report.html").exists()
    (tmp_path / "site" / "index.html").write_text("mine")
    code, _, told = cli(*words)
    assert code == 2 and "was not written by assay" in told and (tmp_path / "site" / "index.html").read_text() == "mine"
