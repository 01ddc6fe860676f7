"""docs/methods.md shows records that ship, and its claims are judged from them alone."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType

import pytest

from assay.card.methods import SHIPPED
from assay.core import shipped
from assay.core.run import Record
from assay.studies.perplexity.field import ASKED
from assay.studies.perplexity.field_claims import END, Told, at_end, field_claims, form_of, probe_claims, told

MODEL = "smollm2-135m"
Change = Callable[[Record], Record]


@pytest.fixture(scope="module")
def records(script: Callable[[str], ModuleType]) -> list[Record]:
    is_text = script("docs/methods_perplexity.py").is_text
    return [record for record in shipped.records(SHIPPED) if is_text(record)]


def changed(records: Sequence[Record], method: str, change: Change) -> list[Record]:
    return [change(r) if r.run.options["method"]["name"] == method else r for r in records]


def moved(by: float, *, slots: int | None = None) -> Change:
    """The same record with so many nats per token more."""

    def change(record: Record) -> Record:
        if slots is not None and record.run.options["budget"]["slots"] != slots:
            return record
        sums = dict(record.metrics["sums"])
        sums["nll"] = [nll + by * n for nll, n in zip(sums["nll"], sums["tokens"], strict=True)]
        return replace(record, metrics={**record.metrics, "sums": sums})

    return change


def tova_against_streaming(records: Sequence[Record]) -> Told:
    (found,) = [one for one in told(records, field_claims("methods", MODEL)) if one.claim.claim.startswith("tova ")]
    return found


def test_the_page_is_what_the_records_say(script: Callable[[str], ModuleType]) -> None:
    made = script("docs/methods_perplexity.py")
    page = made.PAGE.read_text(encoding="utf-8")
    assert made.placed(page) == page, "run python docs/methods_perplexity.py"
    methods = {word for model in made.TITLES for preset in made.PROTOCOLS for word in made.measured(model, preset)}
    assert len(methods) >= 20, "of both protocols, at three budgets each"


def test_the_table_of_texts_is_what_the_records_say(script: Callable[[str], ModuleType]) -> None:
    made = script("docs/texts_perplexity.py")
    page = made.PAGE.read_text(encoding="utf-8")
    assert made.placed(page) == page, "run python docs/texts_perplexity.py"
    every = [row for own in made.asked().values() for row in own.values()]
    assert all(len(made.sums(row, "tokens")[0]) == 24 for row in every), "clusters of each text, each once"


def test_no_record_that_ships_names_a_folder_of_some_machine() -> None:
    told_all = "".join(repr(record.to_json()) for record in shipped.records(SHIPPED))
    assert not re.search(r"['\"](/|~|\.\.?/)\w", told_all)


def test_a_claim_holds_only_if_it_does_at_every_budget(records: list[Record]) -> None:
    assert tova_against_streaming(records).verdict == "holds"
    slots = ASKED["methods"]["budgets"][0]
    worse = tova_against_streaming(changed(records, "tova", moved(1.0, slots=slots)))
    assert worse.verdict == "does not hold"
    assert [each.verdict.word for each in worse.judged] == ["not reproduced", "reproduced", "reproduced"]
    gap = next(each.found.mean for each in tova_against_streaming(records).judged if each.found)
    level = tova_against_streaming(changed(records, "tova", moved(-gap, slots=slots)))
    assert level.verdict == "undecided", "no difference at one budget"


def test_methods_that_hold_other_bytes_are_not_compared(records: list[Record]) -> None:
    def larger(record: Record) -> Record:
        usage = {**record.metrics["usage"], "vectors_stored": 1.03 * record.metrics["usage"]["vectors_stored"]}
        return replace(record, metrics={**record.metrics, "usage": usage})

    found = tova_against_streaming(changed(records, "tova", larger))
    assert found.verdict == "no record" and "not as many" in found.judged[0].reason


def test_records_that_are_missing_are_said(records: list[Record]) -> None:
    without = [record for record in records if record.run.options["method"]["name"] != "tova"]
    found = tova_against_streaming(without)
    assert found.verdict == "no record" and "0 and 24 documents" in found.judged[0].reason
    nowhere = told([], field_claims("methods", MODEL))
    assert {one.verdict for one in nowhere} == {"no record"}


def test_a_difference_that_holm_does_not_leave_is_undecided(records: list[Record]) -> None:
    found = tova_against_streaming(records)
    weak = replace(found, p=[0.06, *found.p[1:]])
    assert found.verdict == "holds" and weak.verdict == "undecided"
    refuted = tova_against_streaming(changed(records, "tova", moved(1.0)))
    assert replace(refuted, p=[0.06] * 3).verdict == "undecided" and refuted.verdict == "does not hold"


def test_answers_at_the_end_of_a_text_do_not_decide_a_claim() -> None:
    """Keeping the latest keys is enough there: with all of them right or none the verdict is the same."""
    probes = [r for r in shipped.records(SHIPPED) if "probe" in r.run.options["dataset"]]

    def with_the_end(share: float) -> Change:
        def change(record: Record) -> Record:
            sums, depths = dict(record.metrics["sums"]), record.metrics["depths"]
            both = zip(depths, sums["right"], sums["tokens"], strict=True)
            sums["right"] = [share * n if depth == END else right for depth, right, n in both]
            return replace(record, metrics={**record.metrics, "sums": sums})

        return change

    claims = probe_claims("methods-prefix", MODEL)
    none, every = (told(changed(probes, "keydiff", with_the_end(share)), claims) for share in (0.0, 1.0))
    assert [one.p for one in none] == [one.p for one in every] and all(one.verdict != "no record" for one in none)
    (few,), (many,) = ([one for one in some if one.claim.claim.startswith("keydiff ")] for some in (none, every))
    assert few.verdict == many.verdict == "holds"
    assert at_end(few.judged[0]).mean < -0.9 and at_end(many.judged[0]).mean > 0
    assert at_end(few.judged[0]).n == 15 and at_end(few.judged[0]).low is None, "too few texts for an interval"


def test_rows_say_what_differs_from_the_published_form() -> None:
    assert form_of("methods", "streaming_llm") == "streaming_llm"
    assert form_of("methods-prefix", "streaming_llm") == "streaming_llm (absolute positions)"
    named = {"finch": "absolute positions", "simlayerkv": "k in lazy layers", "expected_attention": "even budgets"}
    assert all(said in form_of("methods-prefix", name) for name, said in named.items())
    assert form_of("methods", "cab_v3") == "cab_v3:block_size=8 (causal)"


def test_probes_show_the_ceiling_the_floor_and_every_budget(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made of the tiny Llama's records, which has no probe right: here dense attention has all, and h2o half at 32."""
    made = script("docs/methods_perplexity.py")
    own = [r for r in made.records_of(made.TINY, "methods") if r.run.options["dataset"]["name"] == "probe:passkey"]
    assert "Dense attention does not do " in made.probes(made.TINY, "methods"), "what ships says nothing of methods"

    def with_share(record: Record, share: float, **options: object) -> Record:
        sums = dict(record.metrics["sums"])
        sums["right"] = [share * n for n in sums["tokens"]]
        sums["nll"] = [(1 - share) * n for n in sums["tokens"]]
        run = replace(record.run, options={**record.run.options, **options})
        return replace(record, run=run, metrics={**record.metrics, "sums": sums})

    dense = [with_share(r, 0.0 if r.run.options["dataset"]["floor"] else 1.0) for r in own]
    h2o = next(r.run.options["method"] for r in shipped.records(SHIPPED) if r.run.options["method"]["name"] == "h2o")
    seen = [r for r in own if not r.run.options["dataset"]["floor"]]
    budgets = [(k, {"sparsity": None, "slots": k}) for k in ASKED["methods"]["budgets"]]
    rows = [with_share(r, 0.5 if k == 32 else 1.0, method=h2o, budget=budget) for r in seen for k, budget in budgets]
    monkeypatch.setattr(made, "every", lambda: [*dense, *rows])
    page = made.probes(made.TINY, "methods")
    assert "| method | passkey, 152 / 72 / 32 | at the end, 152 / 72 / 32 |" in page
    assert "| dense (ceiling) | 1.00" in page and "| dense, answer not in the text (floor) | 0.00" in page
    assert "| `h2o` | 1.00 / 1.00 / 0.50 | 1.00 / 1.00 / 0.50 |" in page
    assert "| `tova` | - / - / - | - / - / - |" in page
