"""The flags `--quick-test`, `--icml-full` and `--config FILE`, the experiments they stand for, and the flags beside
them, which win.

    --quick-test --offline --context-lengths 512      contexts 128 and 256, and 256 for sparsities  ->  512 alone

A flag also takes the place of what an experiment says about the same thing in other words (`beside`): 512 is then
where sparsities are measured, and the experiment's limit of 256 tokens does not refuse it.
"""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Any

from assay.attention import attention
from assay.attention.base import Method, Pattern, Select
from assay.core.errors import UserError
from assay.core.foreign import loaded_sources
from assay.data.text import named
from assay.studies.perplexity.spec.config import say, unheard, warn
from assay.studies.perplexity.spec.experiment import OFFLINE, BenchmarkConfig, ExperimentConfig, as_words

PRESETS = {"--quick-test": "quick_test", "--icml-full": "icml_full"}


def commands(
    words: Sequence[str], *, known: Container[str] = (), renamed: Mapping[str, str] = MappingProxyType({})
) -> list[list[str]]:
    """Expand `--quick-test`, `--icml-full` and `--config FILE` to the commands they stand for; flags beside them come
    last, and so win. `known` are the study's options, `renamed` other names of theirs."""
    chosen = [PRESETS[_dashed(word)] for word in words if _dashed(word) in PRESETS]
    rest = [word for word in words if _dashed(word) not in PRESETS]
    while found := [i for i, word in enumerate(rest) if word == "--config" or word.startswith("--config=")]:
        flag = rest.pop(found[0])
        if "=" not in flag and found[0] >= len(rest):
            raise UserError("--config needs a file, or the name of a config that comes with assay.")
        chosen.append(flag.partition("=")[2] if "=" in flag else rest.pop(found[0]))
    if len(chosen) > 1:
        raise UserError(f"choose one of --quick-test, --icml-full and --config, not {len(chosen)}.")
    if not chosen:
        return [rest]
    flags = flags_in(rest, known, renamed)
    quick = chosen[0] == "quick_test"
    name = OFFLINE if quick and "offline" in flags else chosen[0]
    more = ["--yes"] if quick else []
    benchmark = BenchmarkConfig.load(name)
    warn([*unheard(benchmark), *chain(*(one.unheard() for one in benchmark.experiments))])
    return [[*as_words(beside(flags, experiment)), *more, *rest] for experiment in benchmark.placed()]


def _dashed(flag: str) -> str:
    return flag[:2] + flag[2:].replace("_", "-")


def flags_in(words: Sequence[str], known: Container[str], renamed: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the words behind each flag, by its option's name: `--context-lengths 512` -> {"context_lengths": ["512"]}.
    An axis of `--grid` counts as a flag."""
    found: dict[str, list[str]] = {"": []}
    name = ""
    for word in words:
        head, equals, value = word.removeprefix("--").partition("=")
        choice, colon, chosen = word.partition(":")
        if word.startswith("--"):
            name = renamed.get(head.replace("-", "_"), head.replace("-", "_"))
            found[name] = [value] if equals else []
        elif colon and choice in known:  # `methods:h2o` is `--methods h2o`
            name = choice
            found[name] = [chosen]
        elif name == "grid" and equals:
            found[renamed.get(head, head)] = re.split(r"[,+]", value)
        else:
            found[name].append(word)
    return found


def beside(flags: Mapping[str, Sequence[str]], experiment: ExperimentConfig) -> dict[str, Any]:
    """Return the experiment's options without what a flag beside it contradicts in other words."""
    if limits := _numbers(flags, "max_length"):
        # As an experiment's own limit does: longer contexts are left out.
        experiment = replace(experiment, model=replace(experiment.model, max_length=int(limits[-1])))
    options = experiment.options()
    options["methods"] += attention.brought(loaded_sources())  # a --methods beside it wins
    if "model" in flags:
        options["revision"] = None  # of the experiment's model
    if "context_lengths" in flags:
        options |= {"context_sweep": True, "fixed_context_length": 0}
    asked = [*_numbers(flags, "context_lengths"), *_numbers(flags, "fixed_context_length")]
    options["max_length"] = int(max([options["max_length"], *asked]))
    if levels := _numbers(flags, "sparsity_levels"):
        options["sparsity_sweep"] = True
        if options["fixed_sparsity"] not in levels:  # which nobody asked for, in the sweep over contexts
            options["fixed_sparsity"] = max(levels)
    if "datasets" in flags:
        limits_by_name = (word.rpartition("=") for word in options["max_samples"])
        asked_for = set(map(named, flags["datasets"]))
        kept = [(name, sign, most) for name, sign, most in limits_by_name if not sign or named(name) in asked_for]
        options["max_samples"] = tuple("".join(parts) for parts in kept)
    if flags.get("protocol") == ["prefix"]:
        options["methods"] = tuple(_of_a_prefix(options["methods"], warn="methods" not in flags))
    if {"budgets", "no_sparsity_sweep"} <= flags.keys() and ("no_context_sweep" in flags or len(asked) == 1):
        del options["fixed_sparsity"]  # slots at one context: nothing reads it
    return options


def _numbers(flags: Mapping[str, Sequence[str]], name: str) -> list[float]:
    """The numbers behind a flag; a word that is none is refused later, by the study."""
    return [float(word) for word in flags.get(name, ()) if re.fullmatch(r"\d+(\.\d*)?|\.\d+", word)]


def _of_a_prefix(words: Sequence[str], *, warn: bool) -> list[str]:
    """The methods that can cut down a prefix."""
    left = [word for word in words if not _cuts(attention.parse(word))]
    if left and warn:
        say(f"methods that cannot cut down a prefix are left out: {', '.join(left)}")
    return [word for word in words if word not in left]


def _cuts(method: Method) -> bool:
    return not isinstance(method, Select) and (not isinstance(method, Pattern) or method.forgets)
