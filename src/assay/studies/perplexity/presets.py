"""The flags `--quick-test`, `--icml-full` and `--config FILE`, and the experiments they stand for."""

from collections.abc import Sequence

from assay.core.errors import UserError
from assay.studies.perplexity.spec.experiment import OFFLINE, BenchmarkConfig

PRESETS = {"--quick-test": "quick_test", "--icml-full": "icml_full"}


def commands(words: Sequence[str]) -> list[list[str]]:
    """Expand `--quick-test`, `--icml-full` and `--config FILE` to the commands they stand for; flags beside them come
    last, and so win."""
    rest, chosen = list(words), list[str]()
    for flag, name in PRESETS.items():
        for spelled in (flag, flag.replace("-", "_").replace("__", "--")):
            while spelled in rest:
                rest.remove(spelled)
                chosen.append(name)
    while found := [i for i, word in enumerate(rest) if word == "--config" or word.startswith("--config=")]:
        flag = rest.pop(found[0])
        if "=" not in flag and found[0] >= len(rest):
            raise UserError("--config needs a file, or the name of a config that comes with assay.")
        chosen.append(flag.partition("=")[2] if "=" in flag else rest.pop(found[0]))
    if len(chosen) > 1:
        raise UserError(f"choose one of --quick-test, --icml-full and --config, not {len(chosen)}.")
    if not chosen:
        return [rest]
    quick = chosen[0] == "quick_test"
    name = OFFLINE if quick and "--offline" in rest else chosen[0]
    more = ["--yes"] if quick else []
    return [[*experiment.words(), *more, *rest] for experiment in BenchmarkConfig.load(name).placed()]
