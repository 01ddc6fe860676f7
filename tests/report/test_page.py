import base64
import hashlib
import json
import re

from assay.report.page import build_page
from assay.report.section import Section
from assay.report.views import json_block


def scripts(html: str) -> list[str]:
    """The scripts a browser would run."""
    return re.findall(r"<script>(.*?)</script>", html, re.DOTALL)


def test_a_page_without_records_says_how_to_make_some():
    html = build_page([], [], title="assay report")
    assert "make demo" in html
    assert len(html) < 50_000, "no chart, no Vega"


def test_text_from_configs_and_plugins_is_escaped_everywhere(section, record, hostile):
    failed = record(status="failed", error=f"Traceback\nValueError: {hostile}", model={"name": hostile})
    html = build_page([(hostile, hostile, section)], [failed, record(study=hostile)], title=hostile)
    assert "<img src=x" not in html
    assert "<script>window.__hacked" not in html
    assert html.count("&lt;/script&gt;") > 5


def test_the_bundle_is_there_once_and_only_listed_scripts_may_run(section):
    html = build_page([("one", "?", section), ("two", "?", section)], [])
    assert html.count('<script type="application/json"') == 4, "a card draws from the data of its section"
    assert len(scripts(html)) == 2
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html).group(1)
    for script in scripts(html):
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy.replace("&#43;", "+")
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe-eval" not in policy
    assert "script-src &#39;unsafe-inline" not in policy


def test_json_blocks_round_trip_and_cannot_end_their_element(hostile):
    value = {hostile: ["\u2028\u2029&", float("nan"), 1.5]}
    text = json_block(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {hostile: ["\u2028\u2029&", None, 1.5]}


def test_runs_without_a_result_are_counted_and_shown_with_their_traceback(record):
    lost = [
        record(status="failed", error="Traceback (most recent call last):\n  deep\nValueError: last words"),
        record(seed=1, status="diverged"),
    ]
    html = build_page([("toy", "Why?", Section("toy"))], [*lost, record(seed=2)])
    assert "2 runs failed or diverged" in html
    assert '<p class="last">ValueError: last words</p>' in html
    assert "a metric was not finite" in html
    assert all(one.run.id in html for one in lost)
    assert re.search(r"<details><summary>Traceback.*deep.*</details>", html, re.DOTALL)


def test_provenance_lists_every_version_device_and_date(record):
    html = build_page([], [record(), record(seed=3, device="cuda")])
    facts = dict(re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', html))
    assert facts["records"] == "2 done"
    assert facts["device"] == "cpu, float32; cuda, float32"
    assert facts["PyTorch"] == "2.9.0" and facts["source of assay"] == "0123456789ab"
    assert facts["computed"] == "2025-06-01 10:00 to 2025-06-04 10:00 UTC"


def test_records_of_an_unknown_study_are_named_not_dropped(record):
    html = build_page([], [record(study="mystery"), record(study="mystery", seed=1)])
    assert "<code>mystery</code>: 2 records" in html
    assert "Nothing has been run yet" not in html


def test_a_table_without_rows_and_a_study_without_tables_have_a_place():
    section = Section("toy")
    section.table("scores", [])
    html = build_page([("toy", "Why?", section), ("other", "What?", Section("other"))], [])
    assert "(no rows)" in html
    assert "reported nothing" in html
