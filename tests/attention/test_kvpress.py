"""Presses are given what kvpress gives them, and refused by name where they do more than score keys. kvpress itself is
not needed: a module with the same names stands in; test_golden_kvpress.py compares with the real one."""

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch

from assay.attention import attention
from assay.attention.base import Budget
from assay.attention.lanes import Lane, attended
from assay.attention.layer import Layer
from assay.core.errors import UserError

transformers = pytest.importorskip("transformers")
PREFIX, SLOTS, TIME = 20, 7, 30


@dataclass
class BasePress:
    def post_init_from_model(self, model):
        """Nothing."""

    def compress(self):
        raise NotImplementedError

    def forward_hook(self):
        raise NotImplementedError

    def __call__(self, model):
        raise NotImplementedError


@dataclass
class ScorerPress(BasePress):
    compression_ratio: float = 0.0

    def compress(self):
        raise NotImplementedError


SEEN = []


@dataclass
class Inputs(ScorerPress):
    """Scores by the hidden states, as a press that reads the module does."""

    power: int = 1

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        SEEN.append((self.compression_ratio, module, hidden_states, keys, values, attentions, kwargs))
        queries = module.q_proj(hidden_states).unflatten(-1, (keys.shape[1], -1, keys.shape[3]))
        return queries.norm(dim=-1).mean(-1).mT ** self.power


@dataclass
class Drawn(ScorerPress):
    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return torch.rand(keys.shape[:-1])


@dataclass
class Rotated(ScorerPress):
    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        cos = module.rotary_emb(keys, torch.arange(keys.shape[2])[None])[0]
        assert torch.equal(cos, kwargs["position_embeddings"][0])
        return keys[..., 0]


@dataclass
class ObservedAttentionPress(ScorerPress):
    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return attentions.sum(2).unflatten(1, (keys.shape[1], -1)).mean(2)


@dataclass
class AnotherModel(ScorerPress):
    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return module.no_such_projection(hidden_states)


@dataclass
class Merging(BasePress):
    def compress(self):
        """Changes values."""


@dataclass
class OwnBudgets(ScorerPress):
    def compress(self):
        """Decides for each head."""


PRESSES = (BasePress, ScorerPress, Inputs, Drawn, Rotated, ObservedAttentionPress, AnotherModel, Merging, OwnBudgets)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    module = ModuleType("kvpress")
    for press in PRESSES:
        setattr(module, press.__name__, press)
    monkeypatch.setitem(sys.modules, "kvpress", module)
    SEEN.clear()


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


def tokens(rows=2):
    return torch.randint(40, (rows, TIME), generator=torch.Generator().manual_seed(0))


def masks(model, word, ids, monkeypatch):
    """What each layer lets the last query see of the prefix."""
    from assay.models import causal_lm

    found, attend = [], causal_lm.attend

    def looked_at(lanes, layer, **options):
        found.append(attended(lanes, layer)[:, :: layer.group, -1, :PREFIX])
        return attend(lanes, layer, **options)

    monkeypatch.setattr(causal_lm, "attend", looked_at)
    with causal_lm.sparse(model, attention.parse(word), slots=SLOTS, prefix=PREFIX):
        model(ids, use_cache=False)
    return torch.stack(found)


def test_a_press_is_given_the_prefix_of_each_sequence_and_its_scores_decide(model, monkeypatch):
    ids = tokens()
    kept = masks(model, "kvpress:press=Inputs:options=power=3", ids, monkeypatch)
    hidden = model.model.embed_tokens(ids[:, :PREFIX])
    first = model.model.layers[0]
    expected = first.self_attn.q_proj(first.input_layernorm(hidden)).unflatten(-1, (2, 2, 4)).norm(dim=-1).mean(-1).mT
    assert torch.equal(kept[0], torch.zeros_like(kept[0]).scatter(-1, expected.topk(SLOTS).indices, True))
    assert (kept.sum(-1) == SLOTS).all()
    ratio, module, given, keys, values, attentions, named = SEEN[0]
    assert ratio == 1 - SLOTS / PREFIX and module is first.self_attn and attentions is None
    assert given.shape == (1, PREFIX, 16) and keys.shape == values.shape == (1, 2, PREFIX, 4)
    assert named["position_embeddings"][0].shape == (1, PREFIX, 4) and named["hidden_states"] is given


def test_a_sequence_is_scored_alone_and_what_is_drawn_leaves_the_generator_alone(model, monkeypatch):
    before = torch.random.get_rng_state()
    both, alone = (masks(model, "kvpress:press=Drawn", tokens()[:rows], monkeypatch) for rows in (2, 1))
    assert torch.equal(both[:, :1], alone) and torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(alone, masks(model, "kvpress:press=Drawn:seed=1", tokens(1), monkeypatch))


def test_a_press_finds_the_rotary_embedding_which_is_taken_away_again(model, monkeypatch):
    assert masks(model, "kvpress:press=Rotated", tokens(), monkeypatch).any()
    assert not hasattr(model.model.layers[0].self_attn, "rotary_emb")


def test_attention_is_given_to_the_press_that_observes_it(model, monkeypatch):
    kept = masks(model, "kvpress:press=ObservedAttentionPress", tokens(), monkeypatch)
    assert kept[..., 0].all(), "the first key, which every query sees, has received most"


def test_other_methods_share_out_slots_by_the_scores_of_a_press(model, monkeypatch):
    kept = masks(model, "ada:method=(kvpress:press=Inputs):safeguard=0.0", tokens(), monkeypatch)
    assert kept.sum((-1, -2)).max() == 2 * SLOTS and (kept.sum(-1) != SLOTS).any()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("press=Merging", r"Merging of kvpress does more than score keys \(it has a compress of its own\)"),
        ("press=OwnBudgets", "OwnBudgets of kvpress does more than score keys"),
        ("press=ScorerPress", "it scores no keys"),
        ("press=Nothing", "kvpress has no 'Nothing'. Those that score keys: AnotherModel, Drawn, Inputs"),
        ("press=Inputs:options=width=3", "unexpected keyword argument 'width'"),
        ("press=AnotherModel", "AnotherModel does not take LlamaAttention: .*no_such_projection"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(model, monkeypatch, word, said):
    with pytest.raises(UserError, match=said):
        masks(model, f"kvpress:{word}", tokens(), monkeypatch)
    assert not model.model.layers[0].self_attn._forward_pre_hooks


def test_a_press_that_cannot_run_is_refused_before_anything_is_computed():
    for word in ("kvpress:press=Merging", "ada:method=(kvpress:press=Merging)"):
        with pytest.raises(UserError, match="does more than score keys"):
            Lane(attention.parse(word), Budget(slots=SLOTS), prefix=PREFIX).check(TIME)


def test_without_a_model_or_the_package_it_says_so(model, monkeypatch):
    q, k = torch.randn(1, 4, TIME, 4), torch.randn(1, 2, TIME, 4)
    lane = Lane(attention.parse("kvpress:press=Inputs"), Budget(slots=SLOTS), prefix=PREFIX)
    with pytest.raises(UserError, match="reads the attention module of a language model"):
        attended([lane], Layer(q, k, k))
    monkeypatch.setitem(sys.modules, "kvpress", None)
    with pytest.raises(UserError, match=r"pip install 'assay-bench\[kvpress\]'"):
        attended([lane], Layer(q, k, k))


def test_padded_sequences_are_refused(model):
    from assay.models.causal_lm import sparse

    seen = torch.ones(2, TIME, dtype=torch.long)
    seen[0, :3] = 0
    with (
        sparse(model, attention.parse("kvpress:press=Inputs"), slots=SLOTS, prefix=PREFIX),
        pytest.raises(UserError, match="does not know sequences that are padded"),
    ):
        model(tokens(), attention_mask=seen, use_cache=False)
