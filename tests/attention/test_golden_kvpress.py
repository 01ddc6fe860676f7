"""kvpress 0.5.5 keeps the same keys, and its losses are the same, wherever it defines the same method."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from assay.attention import attention
from assay.attention.base import Budget
from assay.attention.lanes import Lane, attended

GOLDEN = Path(__file__).parent.parent / "golden" / "kvpress.safetensors"
PREFIX, SLOTS = 96, 48
TOLERANCE = 2e-5
"""Nats per token: float32, one pass here and a cache there."""


@pytest.fixture(scope="module")
def golden():
    with safe_open(GOLDEN, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["config"])  # noqa: SIM118


@pytest.fixture(scope="module")
def model(golden):
    transformers = pytest.importorskip("transformers")
    tensors, config = golden
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    weights = {name.removeprefix("model."): weight for name, weight in tensors.items() if name.startswith("model.")}
    made.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    return made


def words():
    with safe_open(GOLDEN, framework="pt") as file:
        return sorted(name.removesuffix(" kept") for name in file.keys() if name.endswith(" kept"))  # noqa: SIM118


def marked():
    """Presses themselves need kvpress; assay's own methods do not."""
    missing = pytest.mark.skipif(find_spec("kvpress") is None, reason="runs where kvpress is installed")
    return [pytest.param(word, marks=missing) if word.startswith("kvpress:") else word for word in words()]


@torch.no_grad()
@pytest.mark.parametrize("word", marked())
def test_sets_and_losses_are_those_of_kvpress(golden, model, monkeypatch, word):
    from assay.models import causal_lm

    tensors, masks, attend = golden[0], [], causal_lm.attend
    lane = Lane(attention.parse(word), Budget(slots=SLOTS), prefix=PREFIX)

    def looked_at(lanes, layer, **options):
        masks.append(attended(lanes, layer)[0, :: layer.group, -1, :PREFIX])
        return attend(lanes, layer, **options)

    monkeypatch.setattr(causal_lm, "attend", looked_at)
    with causal_lm.sparse_lanes(model, [lane]):
        logits = model(tensors["ids"], use_cache=False).logits[0]
    different = (torch.stack(masks) != tensors[f"{word} kept"]).any(-1)
    assert not different.any(), f"other keys in {int(different.sum())} of {different.numel()} heads"
    targets = tensors["ids"][0, PREFIX + 1 :]
    losses = -logits[PREFIX:-1].log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    torch.testing.assert_close(losses, tensors[f"{word} loss"], rtol=0, atol=TOLERANCE)


def test_every_press_with_a_counterpart_is_compared():
    named = {word.partition(":")[0] for word in words()}
    here = {"streaming_llm", "keydiff", "snapkv", "ada", "observed", "lagkv", "leverage", "chunkkv"}
    assert named == here | {"expected_attention", "finch", "simlayerkv", "kvpress"}
