"""Writes a store of many records, in the shapes that real runs leave, for benchmarks/store.py.

    python benchmarks/stored.py FOLDER 100000

A few small runs of every study are computed first (a minute). Each record of the store is one of theirs with other
options, another seed and slightly other numbers, under the id that such a run has: plans find it, and reports draw it.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEEDS = 5
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
MIXERS = (
    "attention", "attention:conv=4", "linear_attention", "linear_attention:conv=4", "based", "delta_net:num_heads=1",
    "delta_net:num_heads=4", "gated_delta_net:num_heads=1", "gated_linear_attn", "retention", "mamba2", "gru",
)  # fmt: skip
TASKS = (
    "mqar:vocab_size=64:input_seq_len=16:num_kv_pairs=4",
    "regression",
    "boolean",
    "state_tracking",
)
WORDS = (
    "the", "of", "a", "city", "river", "king", "battle", "won", "in", "near", "was", "built", "after", "before", "and",
    "old",
)  # fmt: skip


@dataclass(frozen=True)
class Family:
    """The records of one study: its small runs, and how the store's records differ from them."""

    study: str
    share: float
    axes: Mapping[str, Sequence[Any]]
    """Dotted option -> its values. A template without the option is taken once."""
    options: Mapping[str, Any]
    """Options of the small runs."""
    grid: Mapping[str, Sequence[Any]]
    seeds: int = SEEDS
    """Seeds per setting, while there are settings left; a larger store has more."""


def families(scratch: Path) -> list[Family]:
    from assay.models.sequence import SequenceModel
    from assay.train.recipe import Train

    steps = Train(max_steps=10, micro_batch_size=4, validate_every=2)
    return [
        Family(
            "icl", 0.6,
            {"model.num_layers": (1, 2, 4), "model.model_dim": (32, 64, 128, 256), "optimizer.lr": RATES},
            {"eval_size": 20, "train": steps, "model": SequenceModel(model_dim=32, positions="auto"), "seeds": (0,)},
            {"task": TASKS, "model.seq_mixer": MIXERS},
        ),
        Family(
            "expressivity", 0.15,
            {"noise": tuple(n / 100 for n in range(1, 21)), "D_z": (8, 16, 32, 64), "L": (32, 64)},
            {"models": ("SelfAttn", "GRU", "CausalConv", "StaticMLP"), "batch_eval": 256, "batch_train": 32,
             "retr_steps": 5, "retr_train_steps": 5, "jac_points": 4, "seeds": (0,)},
            {},
        ),
        Family(
            "modular.sweep", 0.1,
            {"lr": RATES, "weight_decay": (1e-4, 1e-2, 0.5, 1.0)},
            {"P": 13, "dimensions": tuple(range(1, 17)), "epochs": 40, "batch": 32, "lr": 1e-2, "seeds": (0,)},
            {},
        ),
        Family(
            "sae", 0.1,
            {"lr": (1e-3, 3e-3, 1e-2), "recipe.batch": (64, 128, 256, 512), "recipe.epochs": (20, 40)},
            {"epochs": 2, "lrs": (1e-3,), "d_code": 16, "seeds": (0,)},
            {},
        ),
        Family(
            "perplexity", 0.05,
            {"model.name": tuple(f"model-{n}" for n in range(100)), "dtype": ("float32", "bfloat16")},
            {"model": str(tiny_model(scratch)), "datasets": (str(articles(scratch)),), "context_lengths": (32, 64),
             "methods": ("dense", "h2o", "streaming_llm", "window"), "sparsity_levels": (0.5, 0.9)},
            {},
            seeds=1,
        ),
    ]  # fmt: skip


def tiny_model(folder: Path) -> Path:
    """Write a language model with random weights and a byte tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from assay.nn.random import initialised_from

    path = folder / "model"
    alphabet = ["<s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    byte = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[]))
    byte.pre_tokenizer, byte.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=byte, bos_token="<s>").save_pretrained(path)
    config = LlamaConfig(
        vocab_size=len(alphabet), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, bos_token_id=0,
    )  # fmt: skip
    with initialised_from(0, "model"):
        LlamaForCausalLM(config).save_pretrained(path)
    return path


def articles(folder: Path) -> Path:
    """Write short articles in the form of WikiText."""
    draw, path = random.Random(0), folder / "articles.txt"
    path.write_text("".join(f" = Title {n} = \n \n {' '.join(draw.choices(WORDS, k=60))} \n \n" for n in range(24)))
    return path


def generate(out: Path, count: int) -> None:
    """Write a store of about `count` records to an empty or new folder."""
    if (out / ".store").exists():
        raise SystemExit(f"{out} holds a store already: name another folder.")
    with tempfile.TemporaryDirectory() as scratch:
        for family in families(Path(scratch)):
            templates = _computed(family, Path(scratch))
            _write(out, family, templates, round(count * family.share))


def _computed(family: Family, scratch: Path) -> list[Any]:
    import assay

    return list(assay.run(family.study, out=scratch / "runs", executor="serial", grid=family.grid, **family.options))


def _write(out: Path, family: Family, templates: Sequence[Any], count: int) -> None:
    from assay.core.run import as_planned

    kept = list(_settings(as_planned(templates), family.axes))[: max(1, count // family.seeds)]
    draw = random.Random(0)
    for place in range(count):
        record, options = kept[place % len(kept)]
        _write_record(out, record, options, record.run.seed + place // len(kept), place, draw)


def _settings(templates: Sequence[Any], axes: Mapping[str, Sequence[Any]]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the templates with every combination of the axes' values, combination by combination; a template that lacks
    an axis comes once."""
    seen = set()
    for values in itertools.product(*axes.values()):
        for record in templates:
            options = json.loads(json.dumps(record.run.options))
            for path, value in zip(axes, values, strict=True):
                if _has(options, path):
                    _set(options, path, value)
            if (key := json.dumps(options)) not in seen:
                seen.add(key)
                yield record, options


def _set(options: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    for name in above:
        options = options[name]
    options[last] = value


def _has(options: Any, path: str) -> bool:
    for name in path.split("."):
        if not isinstance(options, Mapping) or options.get(name) is None:
            return False
        options = options[name]
    return True


def _write_record(out: Path, like: Any, options: dict[str, Any], seed: int, place: int, draw: random.Random) -> None:
    from dataclasses import replace

    from assay.core.run import Run

    run = Run(like.run.study, options, seed, like.run.versions, like.run.numerics)
    finished = f"2026-{1 + place % 12:02}-{1 + place % 28:02}T{place % 24:02}:{place % 60:02}:00+00:00"
    record = replace(
        like, run=run, metrics=_jittered(like.metrics, draw), cost=_jittered(like.cost, draw), place=place,
        finished=finished,
    )  # fmt: skip
    folder = out / ".store" / run.study / run.id
    folder.mkdir(parents=True, exist_ok=True)
    for name in like.artifacts:  # thousands of copies of a few files
        os.link(_shared(out, like, name), folder / name)
    (folder / "record.json").write_text(json.dumps(record.to_json(), indent=1))


def _shared(out: Path, like: Any, name: str) -> Path:
    """Write the one copy of a template's artifact that all its records link to."""
    path = out / "artifacts" / f"{like.run.id}_{name}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(like.folder / name, path)
    return path


def _jittered(value: Any, draw: random.Random) -> Any:
    """Lower floats by a few per cent, so that shares stay below 1; integers stay."""
    if isinstance(value, float):
        return value * draw.uniform(0.95, 1.0)
    if isinstance(value, Mapping):
        return {key: _jittered(item, draw) for key, item in value.items()}
    if isinstance(value, list):
        return [_jittered(item, draw) for item in value]
    return value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("count", type=int, nargs="?", default=100_000)
    arguments = parser.parse_args()
    generate(arguments.folder, arguments.count)
