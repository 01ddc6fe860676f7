"""Attention methods are asked what a language model loses with them: the presets `methods` and `methods-prefix` of
perplexity, for one method at three budgets, on the first of their texts.

A method's runs are lanes of one forward pass of SmolLM2-135M, beside a dense one. The field's records ship: they are
looked up by id, as they would be computed on the device that computed them. Whether they may stand beside what was
computed here is what dense attention says, which is in both: its loss must be the same for every document.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.api import Execution, Session, configure
from assay.attention import attention
from assay.attention.base import Prefix
from assay.card.running import ComputeSession, obtained, stored
from assay.core import shipped
from assay.core.plan import make_plan
from assay.core.run import Numerics, Record, Run
from assay.core.store import Store
from assay.core.study import Study
from assay.report.rows import Row
from assay.studies import studies
from assay.studies.perplexity.cells import budget_of, cells, error, result, sums
from assay.studies.perplexity.generating import GENERATE
from assay.studies.perplexity.perplexity import counts_in_cache

VERSION = 1
"""Of the protocol: a change of a preset's model, text, context or budgets raises it."""
ONLINE, PREFIX = "methods", "methods-prefix"
SHIPPED = "perplexity.methods"
DENSE = "dense"
MODEL, TINY = "smollm2-135m", "stories260K"
"""The model that presets ask, and a second one for the page of methods: a Llama of 260K parameters, whose folder has to
be in the data folder."""
BASELINES = {ONLINE: ("streaming_llm", "h2o", "random_evict"), PREFIX: ("streaming_llm", "keydiff", "random_evict")}
"""The field where no records ship: computed here, beside the method."""
AGREE = 1e-3
"""Nats per token by which dense attention may differ from its shipped loss, in any document."""


def protocol_of(word: str) -> str:
    """Return the preset that asks a method: a method that cuts down a prefix has a protocol of its own."""
    return PREFIX if isinstance(attention.parse(word), Prefix) else ONLINE


def field_of(preset: str) -> list[str]:
    """Return the methods of a preset, as users spell them."""
    words = studies["perplexity"].presets[preset]["methods"]
    return [label for word in words if (label := attention.parse(word).label) != DENSE]


def study_of(preset: str, word: str, text: str | None = None, model: str = MODEL) -> Study:
    """Return the study that asks one method, and dense attention, on the preset's first text or on another; a preset of
    probes has none."""
    given: dict[str, Any] = {
        "methods": [word],
        "datasets": [text] if text else list(studies["perplexity"].presets[preset]["datasets"][:1]),
    }
    if model != MODEL:
        given["model"] = model
    if not counts_in_cache(attention.parse(word)):
        given["positions"] = "absolute"
    return configure(studies["perplexity"], preset, given)


@dataclass(frozen=True)
class Measured:
    """One method at one budget: its cell, and dense attention's from the same machine."""

    method: str
    cell: Row
    dense: Row
    ships: bool
    """Whether its records are shipped ones."""

    @property
    def slots(self) -> int:
        return int(budget_of(self.cell).slots or 0)

    @property
    def error(self) -> str:
        """Why there is no number, if there is none."""
        return error(self.cell) or error(self.dense) or ""

    @cached_property
    def numbers(self) -> Mapping[str, Any]:
        """What the JSON of perplexity says of the cell (`cells.result`)."""
        return result(self.cell, self.dense, None)

    @property
    def held(self) -> float:
        """Bytes of keys and values that are held for a sequence."""
        return float(self.numbers["kv_bytes_resident"])

    @property
    def left_out(self) -> float:
        """The realised sparsity: the share of attention that is left out."""
        return float(self.numbers["realised_sparsity"])


@dataclass(frozen=True)
class DenseAgreement:
    """Says how far dense attention came out here from its shipped loss."""

    gap: float | None
    """Nats per token, the largest over documents; None where the two cannot be compared."""
    why: str = ""
    """Why they cannot."""

    @property
    def holds(self) -> bool:
        return self.gap is not None and self.gap <= AGREE


def agreement(here: Row, there: Row) -> DenseAgreement:
    """Compare dense attention, document by document; other documents or tokens never agree."""
    if error(here):
        return DenseAgreement(None, "dense attention failed here")
    if error(there):
        return DenseAgreement(None, "the shipped record of dense attention has no number")
    (nll, tokens), (other, of_other) = (sums(each, "nll", "tokens") for each in (here, there))
    if tokens != of_other:
        return DenseAgreement(None, "dense attention read other documents here")
    return DenseAgreement(max(abs(a - b) / n for a, b, n in zip(nll, other, tokens, strict=True) if n))


@dataclass(frozen=True)
class MethodRunner:
    """Finds or computes the records of methods under one protocol."""

    preset: str
    execution: Execution
    compute: ComputeSession
    own: bool = False
    """Whether shipped records are left out and everything is computed here."""
    used: dict[str, Record] = field(default_factory=dict)
    """The records that measurements rest on, by id."""
    _runs: dict[str, tuple[Run, ...]] = field(default_factory=dict)

    @cached_property
    def shipped(self) -> Mapping[str, Record]:
        return {} if self.own else {record.run.id: record for record in shipped.records(SHIPPED)}

    def runs(self, word: str) -> tuple[Run, ...]:
        """Return the runs of a method, and dense attention's."""
        if word not in self._runs:
            study = study_of(self.preset, word)
            self._runs[word] = make_plan(study, {}, Session.numerics(study, self.execution)).runs
        return self._runs[word]

    def ships(self, word: str) -> list[Record]:
        """Return the records of a method that ship, with dense attention's; none unless all do."""
        return _whole(self.runs(word), self.shipped)

    def field(self) -> list[str]:
        """Return the methods whose records ship."""
        return [word for word in field_of(self.preset) if self.ships(word)]

    def missing(self, words: Iterable[str]) -> list[Run]:
        """Return the runs that would be computed."""
        runs = [run for word in words if not self.ships(word) for run in self.runs(word)]
        there = stored(studies["perplexity"](), runs, self.execution) if runs else {}
        return [run for run in dict.fromkeys(runs) if run.id not in there]

    def measured(self, words: Sequence[str]) -> dict[str, list[Measured]]:
        """Return every method at its budgets, largest first; what neither ships nor is stored is computed."""
        shipped_ones = {word: there for word in words if (there := self.ships(word))}
        here = [run for word in words if word not in shipped_ones for run in self.runs(word)]
        found = obtained(study_of(self.preset, words[0]), here, self.execution, self.compute, {}) if here else {}
        every: dict[str, Sequence[Record]] = {
            word: shipped_ones.get(word) or [found[run.id] for run in self.runs(word)] for word in words
        }
        self.used.update((record.run.id, record) for records in every.values() for record in records)
        return {word: _measured(word, records, ships=word in shipped_ones) for word, records in every.items()}


def ship(folder: Path, *stores: Path) -> list[str]:
    """Add the records of the presets that some stores have to those that ship in a folder, of every model, method and
    text that is whole on one kind of device; return what is not. Unlike `assay card --ship` it reads records of devices
    that are not here.

    python -c "from assay.card.methods import ship; print(ship('src/assay/shipped', 'STORE'))"
    """
    every = (each for out in stores for each in Store(out).records("perplexity") if each.status == "done")
    there = {each.run.id: each for each in (*shipped.records(SHIPPED, Path(folder)), *every)}
    kept, lacking = dict[str, Record](), []
    for preset, model, text, word in _asked():
        runs = make_plan(study_of(preset, word, text, model), {}, Numerics()).runs
        # A preset that decodes plans the losses of its text too, which are another preset's and of any device.
        found = _whole([run for run in runs if GENERATE in run.options] or runs, there)
        kept |= {record.run.id: record for record in found}
        other = model if model != MODEL else None
        lacking += [] if found else [" ".join(each for each in (other, preset, text, word) if each)]
    shipped.add(SHIPPED, Path(folder), kept.values())
    return lacking


def _asked() -> Iterator[tuple[str, str, str | None, str]]:
    """Yield every preset, model, text and method whose records may ship."""
    for preset, given in studies["perplexity"].presets.items():
        if preset not in (ONLINE, PREFIX) and not preset.startswith(f"{ONLINE}-"):
            continue
        for model in (MODEL, TINY):
            for text in given["datasets"] or (None,):
                yield from ((preset, model, text, word) for word in (DENSE, *field_of(preset)))


def _whole(runs: Sequence[Run], there: Mapping[str, Record]) -> list[Record]:
    """Return the records of all these runs, as one kind of device computed them; none unless all are there."""
    for numerics in _numerics(there.values()):
        ids = [replace(run, numerics=numerics).id for run in runs]
        if all(each in there for each in ids):
            return [there[each] for each in ids]
    return []


def _numerics(records: Iterable[Record]) -> list[Numerics]:
    return list(dict.fromkeys(record.run.numerics for record in records))


def _measured(word: str, records: Sequence[Record], *, ships: bool) -> list[Measured]:
    dense, *others = sorted(cells(records), key=lambda cell: -(budget_of(cell).slots or 1 << 40))
    if word == DENSE:
        return []
    return [Measured(word, cell, dense, ships) for cell in others]
