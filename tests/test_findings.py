"""`assay findings`: from shipped records alone, with a certificate under every 'it cannot be learnt'."""

import json
import lzma
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.command.findings import Sources, _thin, certified_line, judged, page, planned, sentences, ship
from assay.command.reproduce import known_claims
from assay.core import shipped
from assay.core.errors import UserError
from assay.core.run import Provenance, Record, Run, canonical
from assay.core.store import Store
from assay.core.study import Outcome
from assay.metrics.intervals import Interval
from assay.report.certificate import Finding, certified
from assay.report.claims import Certificate, Check, Claim, Judged, Verdict, Word, has_options, identity
from assay.report.recipes import varied
from assay.studies.modular.claims import half_perfect, share_perfect

ROOT = Path(__file__).parent.parent
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def shipped_findings() -> list[Finding]:
    sources = Sources(Path("none"))  # as for the command: what ships is read once
    return [judged(name, claim, sources) for name, claim in known_claims().items()]


def test_the_page_is_what_shipped_records_alone_say(shipped_findings: list[Finding]) -> None:
    again = "`assay findings --out none --page docs/FINDINGS.md` writes it"
    assert page(shipped_findings) == (ROOT / "docs" / "FINDINGS.md").read_text(), again


def test_the_readme_states_no_finding_without_a_whole_certificate(shipped_findings: list[Finding]) -> None:
    section = (ROOT / "README.md").read_text().partition("## What came out\n")[2].partition("\n## ")[0]
    before, _, rest = section.partition("```text\n")
    shown, _, after = rest.partition("```")
    (elsewhere,) = re.findall(r"sed -E '/ (.+): /", before)
    kept = [one for one in shipped_findings if one.publishable and not re.fullmatch(elsewhere, one.name)]
    lines = [certified_line(one) for one in kept]
    assert shown == "".join(f"{line}\n" for line in lines), 'python docs/refresh.py "assay findings" writes it'
    assert not re.search(r"\d\.\d", before + after), "a number of a finding is printed by the command, not written"
    assert lines and len(lines) < len(shipped_findings), "some are certified, and not all"


def test_a_certified_claim_has_a_line_and_its_number_another(shipped_findings: list[Finding]) -> None:
    for one in (one for one in shipped_findings if one.publishable):
        assert one.deciding is not None
        first, second = certified_line(one).split("\n")
        assert max(len(first), len(second)) <= 118 and first.startswith(one.verdict.word) and f"{one.name}: " in first
        assert second.endswith(f"; wanted {one.deciding.check.wanted}") and f"{one.deciding.number[:9]}" in second
        assert "..." not in first + second, f"{one.name} needs a `short` that fits"


def test_two_of_three_seeds_reach_the_goal_of_parity_at_one_rate_alone(shipped_findings: list[Finding]) -> None:
    """What the source of `parity-eigenvalues` says in words, counted in the records that ship."""
    (one,) = (one for one in shipped_findings if one.name == "parity-eigenvalues")
    reached: dict[float, list[bool]] = {}
    for record in one.behind:
        if has_options(record.run, {"model.seq_mixer.beta_max": 2, "train.max_steps": 20000}):
            found = reached.setdefault(record.run.options["optimizer"]["lr"], [])
            found.append(record.metrics["by_length"]["256"] >= 0.99)
    assert {lr: (sum(each), len(each)) for lr, each in reached.items()} == {0.001: (0, 3), 0.003: (2, 3), 0.01: (0, 3)}
    assert "2 of 3 seeds with beta_max=2 reach 0.99 at a rate of 0.003, and none at 0.001 or 0.01" in one.claim.source


@pytest.mark.parametrize("name", ["expressivity", "icl", "modular", "perplexity", "sae"])
def test_a_study_page_begins_with_what_its_records_decide(name: str, shipped_findings: list[Finding]) -> None:
    section = (ROOT / "docs" / f"{name}.md").read_text().partition("## What came out\n")[2]
    mark, _, rest = section.partition("```text\n")
    (cut,) = re.findall(r"sed -nE '/ (.+)/\{N;p;\}'", mark)
    lines = [certified_line(one) for one in shipped_findings if one.publishable and re.match(cut, f"{one.name}:")]
    shown = rest.partition("```")[0]
    assert lines and shown == "".join(f"{line}\n" for line in lines), 'python docs/refresh.py "--certified" writes it'


def test_no_page_points_to_a_finding_without_a_whole_certificate(shipped_findings: list[Finding]) -> None:
    whole = {one.name for one in shipped_findings if one.publishable}
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        named = set(re.findall(r"FINDINGS\.md#([\w-]+)", path.read_text()))
        assert named <= whole, f"{path.name} states {', '.join(named - whole)}"


def test_an_uncertified_claim_cannot_be_published(shipped_findings: list[Finding]) -> None:
    for one in shipped_findings:
        if one.verdict.word in ("not converged", "undecided", "no record"):
            assert not one.publishable
        assert not replace(one, parts=(*one.parts[:-1], replace(one.parts[-1], holds=False))).publishable


def test_every_spec_that_states_something_has_claims_and_every_claim_a_line_on_the_page() -> None:
    lines = (ROOT / "docs" / "FINDINGS.md").read_text().splitlines()
    for name in known_claims():
        assert sum(line.startswith(f"| [{name}](#{name})") for line in lines) == 1
    studies = {claim.study.partition(".")[0] for claim in known_claims().values()}
    assert studies == {"expressivity", "icl", "modular", "perplexity", "sae"}


def test_every_sentence_of_the_documents_has_a_verdict_or_a_reason(cli: Cli, shipped_findings: list[Finding]) -> None:
    """1.6: each is listed by the command and stands in the page's table with the claims that judge it."""
    listed = list(sentences(shipped_findings))
    documents = [document[:3] for document in dict.fromkeys(document for document, *_ in listed)]
    assert documents == ["000", "001", "002", "003", "004"]
    stated = tomllib.loads((ROOT / "src/assay/studies/sentences.toml").read_text(encoding="utf-8"))
    assert [sentence for of in stated.values() for sentence in of] == list(dict.fromkeys(row[1] for row in listed))
    named = {name for of in stated.values() for ids in of.values() if " here: " not in ids for name in ids.split()}
    assert named == {name for *_, name, _ in listed} - {"-"} <= known_claims().keys()
    code, out, _ = cli("findings", "--out", "none")
    shown, page = " ".join(out.split()), (ROOT / "docs" / "FINDINGS.md").read_text()
    for document, sentence, name, word in listed:
        assert f"{word} {document[:3]} {sentence} ({name})" in shown and code == 0
        assert word.partition(": ")[2] if name == "-" else word in ("reproduced", "not reproduced", "undecided")
        link = name if name == "-" else f"[{name}](#{name})"
        told = sentence.replace("|", "\\|")
        assert f"| {document} | {told} | {link} | {word} |" in page


def judged_as(found: Sequence[Finding], name: str) -> list[tuple[str, float]]:
    (one,) = (one for one in found if one.name == name)
    return [(each.verdict.word, each.found.mean) for each in one.judged if each.found is not None]


def test_scores_of_expressivity_are_judged_by_codes_of_known_content(shipped_findings: list[Finding]) -> None:
    """1.6, 000."""
    (drop, rank), (one, less) = judged_as(shipped_findings, "expressivity-drop")
    assert drop == one == "not reproduced" and rank < -0.9 and less > 0.7, "it counts copies"
    (ordered, r), (anyhow, r_of_all) = judged_as(shipped_findings, "expressivity-nce")
    assert (ordered, anyhow) == ("reproduced", "not reproduced") and r == 1 and r_of_all < 0.7
    (follows, _), (untrained, over) = judged_as(shipped_findings, "expressivity-lookup")
    assert (follows, untrained) == ("reproduced", "not reproduced") and over < 0.1
    (capacity, _), (factors, gap) = judged_as(shipped_findings, "expressivity-spectra")
    assert (capacity, factors) == ("reproduced", "not reproduced") and gap < -0.8
    for name in ("expressivity-properties", "expressivity-reproducible"):
        assert {word for word, _ in judged_as(shipped_findings, name)} == {"reproduced"}


def test_config_b_and_d_and_the_table_of_004_are_judged(shipped_findings: list[Finding]) -> None:
    """1.6, 001 and 004."""
    for name, word in (("sae-b", "reproduced"), ("sae-d", "reproduced"), ("sparse-perplexity", "not reproduced")):
        (found,) = (one for one in shipped_findings if one.name == name)
        assert found.verdict.word == word and found.publishable


def test_the_key_findings_of_002_are_judged_at_its_own_recipe(shipped_findings: list[Finding]) -> None:
    """1.6, 002: every width of five seeds, and both similarity sentences."""
    names = [one.name for one in shipped_findings if one.name.endswith("-spec")]
    assert len(names) == 4
    for one in (one for one in shipped_findings if one.name in (*names, "modular-tn", "modular-activations")):
        runs = [record.run for record in one.records]
        assert one.verdict.word == "not reproduced" and one.publishable
        assert {(run.options["d_hidden"], run.seed) for run in runs} == {(d, s) for d in range(1, 65) for s in range(5)}
        recipe = {(run.options["lr"], run.options["weight_decay"], run.options["test_share"]) for run in runs}
        assert recipe == {(3e-3, 1e-4, 0.0)}


def test_of_the_values_per_epoch_those_ship_that_a_claim_reads() -> None:
    metrics = {"fvu": 0.5, "history": {"train_loss": [2.0, 1.0], "lse": [1.0, 0.5]}, "curve": [1, 2]}
    record = Record(Run("sae", {}, 0, {}), "done", metrics)
    assert _thin(record, {"history.train_loss"}).metrics == {"fvu": 0.5, "history": {"train_loss": [2.0, 1.0]}}
    assert _thin(record, {"history", "history.train_loss"}).metrics == {"fvu": 0.5, "history": metrics["history"]}
    assert _thin(record, {"curve"}).metrics == {"fvu": 0.5, "curve": [1, 2]}
    assert _thin(record, ()).metrics == {"fvu": 0.5}


def test_what_ships_is_small() -> None:
    assert sum(path.stat().st_size for path in shipped.FOLDER.iterdir()) < 3_000_000


@pytest.mark.parametrize("lost", [0, 1])
def test_a_shipped_record_that_is_deleted_is_no_record(
    lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = known_claims()["mqar-zoology"]
    needed = set(claim.checks[0].chosen(planned(claim)))
    cuda = [r for r in shipped.records("icl") if replace(r.run, numerics=next(iter(needed)).numerics) in needed]
    assert len(cuda) == 3
    kept = [record for record in shipped.records("icl") if record.run.id not in [r.run.id for r in cuda[:lost]]]
    shipped.write(tmp_path, "icl", kept)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    found = judged("mqar-zoology", claim, Sources(tmp_path / "out"))
    assert found.verdict.word == ("no record" if lost else "reproduced")
    assert "1 of 3 runs are not stored" in found.judged[0].number if lost else found.judged[0].found is not None


def test_records_are_packed_alike_each_time_without_the_machines_name(tmp_path: Path) -> None:
    records = [*shipped.records("sae.theorem"), *shipped.records("icl")[:6]]
    assert len({canonical(record.run.options) for record in records}) > 2
    named = [replace(r, provenance=replace(r.provenance, host="a machine of mine")) for r in records]
    for place, some in enumerate((records, named[::-1])):
        shipped.write(tmp_path, str(place), some)
    one, other = (shipped.packed_in(tmp_path, name).read_bytes() for name in "01")
    assert one == other
    alike = sorted(records, key=lambda record: (canonical(record.run.options), record.run.id))
    assert shipped.records("0", tmp_path) == alike != sorted(records, key=lambda record: record.run.id)
    assert shipped.records("absent", tmp_path) == [] and shipped.measured(tmp_path) == {}


def test_a_record_ships_that_tells_which_code_made_it_and_else_only_one_that_ships_already(tmp_path: Path) -> None:
    old, new, newer = shipped.records("icl")[:3]
    shipped.write(tmp_path, "icl", [old])
    told = [
        replace(new, provenance=Provenance("unknown", source="0123456789ab")),
        replace(newer, provenance=Provenance("0.1.0")),
    ]
    shipped.add("icl", tmp_path, [old, *told])
    assert {record.run.id: record for record in shipped.records("icl", tmp_path)} == {
        record.run.id: record for record in (old, *told)
    }
    before = shipped.packed_in(tmp_path, "icl").read_bytes()
    for untold in ("", "unknown"):
        again = replace(new, provenance=Provenance(untold), metrics={"accuracy": 1.0})
        with pytest.raises(
            UserError, match=rf"cannot ship: 1 of 2, the first {new.run.id}.*`assay rm ID`, compute them again"
        ):
            shipped.add("icl", tmp_path, [again, old])
    shipped.add("icl", tmp_path, [replace(again, status="failed")])
    assert shipped.packed_in(tmp_path, "icl").read_bytes() == before


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"no xz", "not supported"),
        (lzma.compress(b'{"id": 3}\n'), "its id is missing"),
        (lzma.compress(b"{}")[:-9], "it is cut short"),
        (lzma.compress(bytes(1025)), "or holds more than"),
        (lzma.compress(b"") + lzma.compress(b""), "something follows"),
    ],
    ids=["no xz", "no record", "cut", "too large", "joined"],
)
def test_a_damaged_file_of_records_is_one_message(
    data: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "MOST", 1024)
    shipped.packed_in(tmp_path, "icl").write_bytes(data)
    with pytest.raises(UserError, match=f"cannot read the records .*{said}") as alone:
        shipped.records("icl", tmp_path)
    assert "install" not in str(alone.value), "a stranger's card is not mended by that"
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    with pytest.raises(UserError, match=f"{said}.*They ship with assay: install it again"):
        shipped.records("icl")


def sweep_claim(measure: Callable[[Sequence[Record]], Interval | None] = share_perfect, **options: Any) -> Claim:
    """Two widths, three seeds, a recipe of three by three in the middle."""
    wanted = {
        "P": 13,
        "batch": 32,
        "dimensions": [8, 12],
        "seeds": [0, 1, 2],
        "lr": 0.02,
        "weight_decay": 0.2,
        "epochs": 300,
    }
    return Claim(
        claim="Width 12 is enough.",
        source="nobody",
        study="modular.sweep",
        options={**wanted, **options},
        checks=(Check(what="share perfect", measure=measure, at_least=0.9),),
        certificate=Certificate(
            about="what width 12 can learn",
            metric="perfect",
            tried={"lr": [0.01, 0.02, 0.04], "weight_decay": [0.1, 0.2, 0.4]},
            longer={"epochs": 600},
            number=Check(what="half perfect", measure=half_perfect, at_most=8),
        ),
    )


def store_sweep(out: Path, claim: Claim, perfect: Callable[[Mapping[str, Any]], bool]) -> None:
    """Records of everything that the claim and its certificate need, as if models had been trained."""
    certificate = claim.certificate
    assert certificate is not None
    longer = replace(claim, options={**claim.options, **certificate.longer})
    for runs in (planned(claim), planned(replace(claim, grid=certificate.tried)), planned(longer)):
        for run in runs:
            store(out, run, passed=perfect(run.options))


def store_wider(out: Path, claim: Claim, perfect: Callable[[Mapping[str, Any]], bool], **axes: Sequence[float]) -> None:
    assert claim.certificate is not None
    for run in planned(varied(claim, {}, {**claim.certificate.tried, **axes})):
        store(out, run, passed=perfect(run.options))


def store(out: Path, run: Run, *, passed: bool) -> None:
    metrics = {"val_acc": 1.0 if passed else 0.5, "perfect": int(passed), "test_acc": 1.0 if passed else 0.5}
    Store(out).commit(Outcome(run, metrics, {}))


def verdict_of(out: Path, claim: Claim, perfect: Callable[[Mapping[str, Any]], bool]) -> Finding:
    store_sweep(out, claim, perfect)
    return judged("planted", claim, Sources(out))


def test_an_undertrained_sweep_says_nothing_about_what_can_be_learnt(tmp_path: Path) -> None:
    found = verdict_of(tmp_path, sweep_claim(), lambda o: o["epochs"] >= 600 and o["d_hidden"] >= 8)
    assert str(found.verdict) == "not converged: says nothing about what width 12 can learn"
    assert {part.name: part.holds for part in found.parts if part.name != "seeds"} == {
        "recipe": True,
        "doubled training": False,
    }
    assert not found.publishable
    trained = verdict_of(tmp_path / "trained", sweep_claim(), lambda o: o["d_hidden"] >= 100)
    assert trained.verdict.word == "not reproduced", "the same claim, where doubled training changes nothing"


def test_a_recipe_at_an_edge_or_below_another_says_nothing_either(tmp_path: Path) -> None:
    at_edge = verdict_of(tmp_path / "edge", sweep_claim(lr=0.04), lambda o: False)
    assert at_edge.verdict.word == "not converged" and "at an edge of lr" in at_edge.parts[0].said
    assert "of a wider grid" in at_edge.parts[0].said, "the next value is not stored"
    below = verdict_of(tmp_path / "below", sweep_claim(), lambda o: (o["lr"], o["weight_decay"]) == (0.01, 0.2))
    assert below.verdict.word == "not converged" and "told apart as better than the claim's own" in below.parts[0].said
    best = verdict_of(tmp_path / "best", sweep_claim(), lambda o: (o["lr"], o["weight_decay"]) == (0.02, 0.2))
    assert best.parts[0].holds, "the same, where its own is the best"


def test_a_grid_whose_best_is_at_an_edge_is_widened_there_by_itself(tmp_path: Path) -> None:
    def perfect(options: Mapping[str, Any]) -> bool:
        return bool(options["lr"] in (0.04, 0.1) and options["epochs"] == 300)

    own = sweep_claim(lr=0.04)
    found = verdict_of(tmp_path, own, perfect)
    assert not found.parts[0].holds and "at an edge of lr" in found.parts[0].said
    store_wider(tmp_path, own, perfect, lr=[0.1])
    found = judged("planted", own, Sources(tmp_path))
    assert found.parts[0].holds and "of 12 recipes" in found.parts[0].said


def test_a_tuned_recipe_that_more_training_does_not_change_does_refute(tmp_path: Path) -> None:
    found = verdict_of(tmp_path, sweep_claim(), lambda o: o["d_hidden"] >= 100)
    assert found.verdict.word == "not reproduced" and all(part.holds for part in found.parts) and found.publishable


def test_a_goal_that_was_reached_needs_no_certificate_unless_too_little_training_reaches_it(tmp_path: Path) -> None:
    claim = replace(sweep_claim(), checks=(Check(what="share", measure=share_perfect, at_least=0.3),))
    for run in planned(claim):
        store(tmp_path, run, passed=True)
    found = judged("planted", claim, Sources(tmp_path))
    assert found.verdict.word == "reproduced" and "the goal was reached" in found.parts[0].said
    assert claim.certificate is not None
    cannot = replace(claim, certificate=replace(claim.certificate, goal=False))
    found = judged("planted", cannot, Sources(tmp_path))
    assert found.checked.word == "reproduced" and found.verdict.word == "not converged"
    assert "runs of other recipes are not stored" in found.parts[0].said


@pytest.mark.parametrize("name", known_claims())
def test_every_claim_says_what_certifies_its_training_or_why_nothing_has_to(name: str) -> None:
    claim = known_claims()[name]
    assert bool(claim.exempt) != bool(claim.certificate)
    text = (ROOT / "docs" / "FINDINGS.md").read_text().partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert all(f"\n- {part}: " in text for part in ("recipe", "doubled training", "seeds")), text


def needs_weights(records: Sequence[Record]) -> Interval:
    raise UserError("no weights here")


def test_a_number_from_weights_is_kept_for_exactly_its_records(tmp_path: Path) -> None:
    claim = replace(sweep_claim(needs_weights), certificate=None)
    for run in planned(claim):
        store(tmp_path, run, passed=True)
    found = judged("planted", claim, Sources(tmp_path))
    assert found.verdict.word == "no record" and found.judged[0].number == "no weights here"
    digest = shipped.digest(found.records)
    entry = {
        "claim": "planted",
        "check": "share perfect",
        "records": digest,
        "mean": 0.95,
        "low": 0.94,
        "high": 0.96,
        "n": 4,
    }
    (tmp_path / shipped.MEASURED).write_text(json.dumps([entry]))
    numbers = shipped.measured(tmp_path)
    kept = judged("planted", claim, Sources(tmp_path, numbers=numbers))
    assert kept.verdict.word == "reproduced" and kept.judged[0].number == "0.95 [0.94, 0.96]"
    store(tmp_path, planned(claim)[0], passed=False)  # another result is another number
    assert judged("planted", claim, Sources(tmp_path, numbers=numbers)).verdict.word == "no record"


def test_what_ships_is_what_the_claims_rest_on_and_the_store_counts_before_it(tmp_path: Path) -> None:
    claim = known_claims()["sae-theorem"]
    runs = planned(claim)
    for run in runs:
        Store(tmp_path / "out").commit(Outcome(run, {"correlation_a": 0.5, "largest_error_a": 1.0}, {}))
    assert judged("sae-theorem", claim, Sources(tmp_path / "none")).verdict.word == "reproduced", "from what ships"
    found = judged("sae-theorem", claim, Sources(tmp_path / "out"))
    assert found.verdict.word == "not reproduced", "from the store"
    weights = replace(claim, checks=(Check(what="from weights", measure=needs_weights, at_least=0),))
    number = Judged(weights.checks[0], Verdict("reproduced"), Interval(1.0, 0.5, 1.5, 3), records=found.records)
    ship([found, Finding("weighed", weights, (number,), found.records)], tmp_path / "packed")
    packed = shipped.records("sae.theorem", tmp_path / "packed")
    assert [record.metrics["correlation_a"] for record in packed] == [0.5] * 3
    ((key, entry),) = shipped.measured(tmp_path / "packed").items()
    assert key == shipped.key_of("weighed", "from weights", shipped.digest(packed)) and entry["high"] == 1.5


def test_data_that_is_not_here_hides_no_record() -> None:
    """A plan knows the hash of a text only where the text is; any other option tells runs apart."""
    (*_, here) = planned(known_claims()["sinks"])  # on pydoc, which is everywhere
    dataset = here.options["dataset"]
    elsewhere = replace(here, options={**here.options, "dataset": {**dataset, "sha256": None}})
    other = replace(here, options={**here.options, "dataset": {**dataset, "longest": 5}})
    assert here.id != elsewhere.id and identity(here) == identity(elsewhere) != identity(other)


@pytest.mark.parametrize("word", ["reproduced", "undecided", "not reproduced"])
def test_a_claim_that_lacks_its_certificate_says_nothing_whatever_came_out(word: Word) -> None:
    """A "cannot be learnt" is confirmed by every model that was trained too little."""
    claim = known_claims()["mqar-zoology"]
    assert (
        str(certified(Verdict(word), claim, ()))
        == "not converged: says nothing about whether attention recalls this much"
    )
    assert certified(Verdict("no record"), claim, ()) == Verdict("no record")
    assert certified(Verdict(word), replace(claim, certificate=None), ()) == Verdict(word)


def test_a_certificate_is_of_one_kind_of_device() -> None:
    """The claim's own runs are there from another device as well, its other recipes and doubled runs are not."""
    claim = known_claims()["parity-attention"]
    records = shipped.records("icl")
    own = {identity(run) for run in planned(claim)}
    elsewhere = [
        replace(record, run=replace(record.run, numerics=replace(record.run.numerics, device="cpu")))
        for record in records
        if identity(record.run) in own
    ]
    named = [(identity(record.run), record) for record in (*records, *elsewhere)]
    found = judged("parity-attention", claim, Sources(Path("none"), read={"icl": named}))
    assert {record.run.numerics.device for record in found.records} == {"cpu"}
    assert found.verdict.word == "not converged" and "are not stored" in found.parts[0].said, found.parts
