"""What does a language model lose when attention is made sparse?

    assay perplexity --quick-test --offline
    assay perplexity --model gpt2 --datasets my.txt --methods dense h2o streaming_llm --budgets 64 256

A run is one method with one budget on one shard of the documents at one context length. The runs of one model, text,
context and shard are lanes of one forward pass.
"""

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from assay.attention import attention
from assay.attention.base import Budget, BudgetTooSmall, Evict, Method, Pattern, Prefix, Select
from assay.core.convert import option_types, stated
from assay.core.errors import UserError
from assay.core.files import exists
from assay.core.grouping import grouped
from assay.core.run import Record, Run, canonical
from assay.core.study import Context, Outcome, Report, Study
from assay.data import hub, smollm2, text
from assay.data.language_model import DTYPES, KNOWN_WITHOUT_THE_HUB, POSITIONS, is_here, may_slide, placed
from assay.models.causal_lm import check_contexts, check_model
from assay.studies import studies
from assay.studies.perplexity.document import Sweeps
from assay.studies.perplexity.execution import COPY, execute, lane_of, located, spans_for
from assay.studies.perplexity.field import FIELDS
from assay.studies.perplexity.generating import GENERATE, check_generates, generate_cells
from assay.studies.perplexity.probing import PROBE, check_probes, probe_cells
from assay.studies.perplexity.windows import check_copy, read_limits
from assay.train.device import activate

SHARDS = 2
"""Parts of the documents that are scored separately, so that two workers have work."""


@studies.register("perplexity")
@dataclass(frozen=True, kw_only=True)
class Perplexity(Study):
    """What does a language model lose when attention is made sparse?"""

    version: ClassVar[int] = 3
    question: ClassVar[str] = "What does a language model lose when attention is made sparse?"
    shows_failures: ClassVar[bool] = True
    asks_first: ClassVar[bool] = True
    renamed: ClassVar[Mapping[str, str]] = {"name": "title"}
    shorthands: ClassVar[Mapping[str, str]] = {
        "--quick-test": "TinyLlama on WikiText-2; with --offline SmolLM2-135M on pydoc, a few minutes on two cores.",
        "--icml-full": "three experiments with Llama-2-7B, one after another: WikiText-103, C4 and PG-19.",
        "--config FILE": "experiments of a YAML or JSON file, or of a name such as ablation_sparsity.",
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "demo": {
            "model": "smollm2-135m",
            "datasets": (text.PYDOC,),
            "methods": ("dense", "h2o", "streaming_llm", "window"),
            "budgets": (20,),
            "sparsity_levels": (),
            "context_lengths": (80,),
            "max_samples": 20,
            "max_windows": 1,
        },
        **FIELDS,
    }

    compares: ClassVar[str] = "methods"

    datasets: tuple[str, ...] = ("wikitext-103",)
    """Texts: wikitext-2, wikitext-103, c4, pg19 (the hub), pydoc, speeches, copy (a probe of random words), a file, a
    folder; a relative path is looked for in ASSAY_DATA too."""
    methods: tuple[Method, ...] = ()
    """Attention methods, such as h2o or streaming_llm:num_sink_tokens=8; none named: dense h2o cab_v4 streaming_llm
    window."""
    model: str = "HuggingFaceTB/SmolLM2-1.7B"
    """A causal language model: its name on the hub, its folder (looked for in ASSAY_DATA too), a GGUF file, or
    smollm2-135m, which needs no hub."""
    revision: str | None = None
    """Revision of a model on the hub."""
    sparsity_levels: tuple[float, ...] = (0.0, 0.9)
    """Nominal sparsities: k = (1 - s) T slots, or (1 - s) of the visible keys for methods that select."""
    budgets: tuple[int, ...] = ()
    """Slots given directly; swept at the fixed context length."""
    context_lengths: tuple[int, ...] = (512, 1024, 2048)
    """Windows of so many tokens; the same tokens are scored at each."""
    max_length: int = 4096
    """Longest context allowed."""
    fixed_sparsity: float = 0.9
    """Sparsity in the sweep over context lengths."""
    fixed_context_length: int = 0
    """Context length in the sweep over sparsities; 0: the longest."""
    context_sweep: bool = True
    """Sweep over context lengths where there are several, unless --no_context_sweep is given."""
    sparsity_sweep: bool = True
    """Sweep over sparsities, unless --no_sparsity_sweep is given."""
    positions: Literal["absolute", "cache"] = "absolute"
    """cache: positions inside the cache, as StreamingLLM was published; streaming_llm and window take it, the rows of
    others say that their positions are absolute."""
    protocol: Literal["online", "chunked", "prefix"] = "online"
    """Evict after every token, after every chunk (methods that evict; the rows of others say online), or once after a
    dense prefix, whose continuation is scored."""
    chunk: int = 128
    """Tokens between evictions, under the chunked protocol."""
    dtype: str = "auto"
    """float16, bfloat16, float32; auto: float32 on a CPU, bfloat16 on CUDA."""
    max_samples: tuple[str, ...] = ()
    """Most documents of each text: 100; or by name: c4=1000 pg19=100."""
    max_windows: int = 0
    """Most windows of the longest context per document; 0: all."""
    probes: tuple[str, ...] = ()
    """Probes with exact answers: passkey, needle, multi_key, ..., or all; at every context length and budget. Without a
    text: --datasets with no name behind it."""
    probe_depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Depths of what a probe asks for: 0 is the start of the context, 1 its end."""
    probe_samples: int = 5
    """Texts of a probe at each depth."""
    probe_decode: bool = True
    """Decode answers too, with keys really evicted; otherwise only their likelihood is scored, in a fraction of the
    time."""
    key_tokens: int = 0
    """Short context with which key tokens are found, those that a longer one makes likelier (LongPPL); their loss is
    then a column. 0: none."""
    generate: int = 0
    """Tokens to generate with caches from which keys are really evicted, behind the beginnings of a few documents of
    each text: speed, memory, and whether the text is what the replay predicts. 0: none."""
    title: str = "perplexity"
    """Name of the JSON files (--name)."""
    description: str = ""
    """A sentence for the JSON."""
    output_dir: str = ""
    """Folder for the JSON, tables and figures; by default the folder perplexity under --out."""
    offline: bool = False
    """Do not use the network: only the hub's cache, files, pydoc and smollm2-135m. With --quick-test: the small one."""
    verbose: bool = False
    """Print the table of every cell besides the summary."""
    seed: int = 42
    """Seed of the copy probe, and of the texts of the others."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "datasets", tuple(map(text.named, self.datasets)))
        contexts = (*self.context_lengths, self.fixed)
        if not self.context_lengths or min(contexts) < 2:
            raise UserError("--context-lengths: give at least one, of 2 tokens or more.")
        if self.longest > self.max_length:
            raise UserError(f"a context of {self.longest} is over --max-length {self.max_length}.")
        odd = sorted({context for context, _ in self.points() if self.longest % context})
        if odd and set(self.datasets) - {COPY}:
            raise UserError(
                f"--context-lengths: {', '.join(map(str, odd))} does not divide the longest, {self.longest}. The same "
                "tokens are scored at each length, in whole windows: choose lengths such as 512 1024 2048."
            )
        if self.dtype not in ("auto", *DTYPES):
            raise UserError(f"--dtype {self.dtype}: choose auto, {', '.join(DTYPES)}.")
        if self.protocol == "prefix" and self.positions == "cache":
            raise UserError("--positions cache is defined for the online protocol alone: leave --protocol prefix out.")
        if self.chunk < 1 or self.max_windows < 0:
            raise UserError("--chunk is at least 1, --max-windows at least 0.")
        if self.key_tokens < 0 or self.key_tokens >= self.longest:
            raise UserError(f"--key-tokens {self.key_tokens}: give fewer than the longest context, {self.longest}.")
        read_limits(self.max_samples, self.datasets)
        check_probes(self)
        check_generates(self)
        for level in (*self.sparsity_levels, self.fixed_sparsity):
            Budget(sparsity=level)
        for slots in self.budgets:
            Budget(slots=slots)

    @property
    def fixed(self) -> int:
        return self.fixed_context_length or max(self.context_lengths, default=0)

    @property
    def longest(self) -> int:
        """The longest context that is measured."""
        return max((context for context, _ in self.points()), default=self.fixed)

    @classmethod
    def commands(cls, words: list[str]) -> list[list[str]]:
        from assay.studies.perplexity.presets import commands

        return commands(words, known=option_types(cls), renamed=cls.renamed)

    def folder(self, out: Path) -> Path:
        return Path(self.output_dir) if self.output_dir else super().folder(out)

    def chosen(self) -> tuple[Method, ...]:
        dense, *others = map(attention.parse, ("dense", "h2o", "cab_v4", "streaming_llm", "window"))
        found = self.methods or [m for m in others if self.protocol != "prefix" or not isinstance(m, Select)]
        return tuple(dict.fromkeys((dense, *found)))

    @property
    def swept_contexts(self) -> tuple[int, ...]:
        """The contexts of the sweep over lengths; a single context beside other sweeps is no sweep."""
        alone = len({*self.context_lengths, self.fixed}) == 1
        other = (self.sparsity_sweep and self.sparsity_levels) or self.budgets
        return () if not self.context_sweep or (alone and other) else self.context_lengths

    def points(self) -> list[tuple[int, Budget]]:
        """The context lengths and budgets of the sweeps."""
        found = [(context, Budget(sparsity=self.fixed_sparsity)) for context in self.swept_contexts]
        if self.sparsity_sweep:
            found += [(self.fixed, Budget(sparsity=level)) for level in self.sparsity_levels]
        found += [(self.fixed, Budget(slots=slots)) for slots in self.budgets]
        return list(dict.fromkeys(found))

    def sweeps(self) -> Sweeps:
        """The values of each sweep, for the JSON."""
        levels, asked = self.sparsity_levels if self.sparsity_sweep else (), (self.positions, self.protocol)
        return Sweeps(self.swept_contexts, self.fixed_sparsity, levels, self.budgets, self.fixed, *asked)

    def plan(self) -> list[Run]:
        if not (points := self.points()):
            raise UserError("nothing to measure: no sweep and no --budgets.")
        if unknown := [name for name in self.datasets if name != COPY and not text.is_known(name)]:
            raise UserError(
                f"no dataset '{unknown[0]}': choose {', '.join([*text.HUB, *text.CARRIED, COPY])}, or a file."
            )
        if self.model.startswith(("/", ".", "~")) and not exists(self.model):  # no name on the hub begins so
            raise UserError(f"cannot load the model '{self.model}': there is no such folder.")
        shared: dict[str, Any] = {"model": located(self.model, self.revision), "dtype": self.dtype, "shards": SHARDS}
        cells: list[dict[str, Any]] = [
            passage | self.lane(method, budget) | {"shard": shard}
            for name in self.datasets
            for context, budget in points
            for passage in [self._text(name, context)]
            for method in self.chosen()
            for shard in range(SHARDS)
        ]
        cells += [{**cell, "shard": shard} for cell in probe_cells(self) for shard in range(SHARDS)]
        cells += generate_cells(self)
        self._check_heard(shared["model"])
        runs = [self.cell(seed=self.seed, **(shared | cell | _fitted(cell))) for cell in cells]
        _check_budgets(runs)
        return list({run.id: run for run in runs}.values())

    def _text(self, name: str, context: int) -> dict[str, Any]:
        keys = {"key_tokens": self.key_tokens} if self.key_tokens and name != COPY else {}
        return {"dataset": self.dataset(name), "context": context, **keys}

    def dataset(self, name: str) -> dict[str, Any]:
        if name == COPY:
            return {"name": COPY}
        most = read_limits(self.max_samples, self.datasets)[name]
        spans = {"longest": self.longest, "max_samples": most, "max_windows": self.max_windows}
        return {"name": name, "sha256": text.fingerprint(name), **spans}

    def lane(self, method: Method, budget: Budget) -> dict[str, Any]:
        """The options of a run's lane; those that do not apply to its method do not change its id."""
        if isinstance(method, Prefix) and self.protocol != "prefix":
            raise UserError(f"{method.label} cuts down a prefix: it runs under --protocol prefix alone.")
        if isinstance(method, Select) and self.protocol == "prefix":
            raise UserError(f"{method.label} selects anew for each query: --protocol prefix means nothing to it.")
        if isinstance(method, Pattern) and not method.forgets and self.protocol == "prefix":
            raise UserError(
                f"{method.label} comes back to keys that it has left out: --protocol prefix means nothing to it."
            )
        protocol = self.protocol if isinstance(method, Evict) or self.protocol == "prefix" else "online"
        return {
            "method": method,
            "budget": {"sparsity": 0.0, "slots": None} if method.name == "dense" else vars(budget),
            "positions": self.positions if counts_in_cache(method) else "absolute",
            "protocol": protocol,
            "chunk": self.chunk if protocol == "chunked" else 1,
            # Until it was so, sinks were hidden by the window of a model that has one: another number, another id.
            **({"model_window": "cache"} if self.positions == "cache" and self._slides(method) else {}),
        }

    def _slides(self, method: Method) -> bool:
        """Return whether sinks could be hidden by a sliding window of the model's own."""
        hides = isinstance(method, Pattern) and bool(method.when_hidden)
        return hides and counts_in_cache(method) and may_slide(self.model)

    def _check_heard(self, model: Mapping[str, Any]) -> None:
        """Raise for an option that nothing reads, and for a flag that no method takes; where only some take it, the
        others' rows say so."""
        is_local = self.model in KNOWN_WITHOUT_THE_HUB or model["sha256"] is not None
        probing = "" if self.probes else "there are no --probes"
        measured = self.swept_contexts or (self.sparsity_sweep and self.fixed_sparsity in self.sparsity_levels)
        unread = {
            "chunk": "" if self.protocol == "chunked" else "it is for --protocol chunked",
            "fixed_sparsity": "" if measured else "there is no sweep over several --context-lengths",
            **dict.fromkeys(("probe_depths", "probe_samples", "probe_decode"), probing),
            "revision": "the model is not from the hub" if is_local else "",
        }
        for name, why in unread.items():
            if why and getattr(self, name) != getattr(Perplexity, name):
                raise UserError(f"--{name.replace('_', '-')} means nothing here: {why}.")
        methods = self.chosen()
        named = ", ".join(method.label for method in methods)
        if self.positions == "cache" and not any(map(counts_in_cache, methods)):
            raise UserError(f"--positions cache is for streaming_llm and window: it means nothing to {named}.")
        if self.protocol == "chunked" and not any(isinstance(method, Evict) for method in methods):
            raise UserError(f"--protocol chunked is for methods that evict, such as h2o: it means nothing to {named}.")

    def cohort(self, run: Run) -> Hashable:
        """Group the lanes of one forward pass; the prefix protocol scores other tokens, so it is apart."""
        shared = {key: run.options[key] for key in ("dataset", "model", "dtype", "context", "shard", "shards")}
        alone = {GENERATE: run.id} if GENERATE in run.options else {}  # its speed is its own
        keys = {"prefix": run.options["protocol"] == "prefix", "key_tokens": run.options.get("key_tokens")}
        return canonical(shared | keys | alone)

    def prepare(self, runs: Sequence[Run]) -> None:
        """Fetch texts, tokenizers and models once, before anything is computed."""
        instead = _without_the_hub(runs)
        silent = not self.offline and instead and not hub.answers(hub.endpoint())
        if self.offline or silent:
            # The hub's libraries read this when they are imported, here and in workers, and then use their cache alone.
            os.environ["HF_HUB_OFFLINE"] = "1"
        try:
            self._fetch(runs)
        except UserError as error:
            if not instead or not (self.offline or silent):
                raise
            said = f"{hub.endpoint()} did not answer within {hub.PATIENCE:g} s, so only its cache was there to use: "
            raise UserError(f"{said * bool(silent)}{error} Here the command works with {instead} at its end.") from None

    def _fetch(self, runs: Sequence[Run]) -> None:
        for spec, contexts in _models(runs):
            check_model(spec["name"], contexts=contexts, revision=spec["revision"])
        for run in {_texts_of(run): run for run in runs}.values():
            spans_for(
                canonical(run.options["dataset"]), canonical(run.options["model"]), run.options["context"], run.seed
            )

    def check(self, runs: Sequence[Run]) -> None:
        """Check the models that are here; others are checked once they are fetched."""
        for context in {run.options["context"] for run in runs if run.options["dataset"]["name"] == COPY}:
            check_copy(context)
        for spec, contexts in _models(runs):
            if spec["name"] in POSITIONS:
                check_contexts(spec["name"], contexts, option="--context-lengths")
            if is_here(spec["name"], revision=spec["revision"]):
                check_model(spec["name"], contexts=contexts, revision=spec["revision"])

    def unfetched(self, runs: Sequence[Run]) -> str:
        away = [spec["name"] for spec, _ in _models(runs) if not is_here(spec["name"], revision=spec["revision"])]
        told = ", ".join(f"{name} ({POSITIONS.get(name, 'an unknown number of')} positions)" for name in away)
        return f"not here yet, and not fetched by a dry run: {told}." if away else ""

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        with activate(ctx.numerics) as device:
            yield from execute(runs, ctx, device)

    def report(self, records: Sequence[Record], out: Report) -> None:
        from assay.studies.perplexity.report import report

        head = {"name": self.title, "description": self.description}
        report(records, out, **head, sweeps=self.sweeps(), verbose=self.verbose)


def counts_in_cache(method: Method) -> bool:
    """Return whether the method can count positions inside its cache."""
    return isinstance(method, Pattern) and method.cache(1 << 20) is not None


def _fitted(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a budget makes smaller of a method. Such cells were refused before it did: another id."""
    method, budget = cell["method"], Budget(**cell["budget"])
    return dict(set(stated(method.fitted(cell["context"], budget))) - set(stated(method)))


def _check_budgets(runs: Sequence[Run]) -> None:
    """Raise UserError for a method to which every budget is too small; of others the table shows which are."""
    able, refused = set[str](), dict[str, BudgetTooSmall]()
    for options in (run.options for run in runs if run.options["budget"]["sparsity"] != 0):
        try:
            lane_of(options).check(options["context"])
            able.add(attention.label_of(options["method"]))
        except BudgetTooSmall as error:
            refused.setdefault(attention.label_of(options["method"]), error)
    for label in (label for label in refused if label not in able):
        raise UserError(f"{label} can run with none of its budgets: {refused[label]}")


def _models(runs: Sequence[Run]) -> list[tuple[Mapping[str, Any], set[int]]]:
    """The models of the runs, each with its contexts."""
    groups = grouped(runs, lambda run: canonical(run.options["model"])).values()
    return [(own[0].options["model"], {run.options["context"] for run in own}) for own in groups]


def _texts_of(run: Run) -> str:
    """What the spans of a run depend on: the text and the tokenizer, and for probes the context that they fill."""
    dataset = run.options["dataset"]
    return canonical([dataset, run.options["model"], run.options["context"] if PROBE in dataset else 0])


def _without_the_hub(runs: Sequence[Run]) -> str:
    """Return the flags that spare a command the hub; none where it does not need it."""
    models, texts = ({run.options[key]["name"] for run in runs} for key in ("model", "dataset"))
    here = {name for name in models if name in KNOWN_WITHOUT_THE_HUB or exists(placed(name))}
    model, dataset = f"--model {smollm2.NAME}", f"--datasets {text.SPEECHES}"
    return " ".join([model] * bool(models - here) + [dataset] * bool(texts & text.HUB.keys()))
