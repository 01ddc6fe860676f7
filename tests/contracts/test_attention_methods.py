"""Every attention method keeps every promise, and the promises notice methods that do not."""

from dataclasses import dataclass

import pytest
import torch

from assay.attention import attention
from assay.attention.base import Evict, Pattern, Prefix, Select, best
from assay.contracts import attention as contract
from assay.contracts.base import promises

FAMILIES = (Pattern, Select, Evict, Prefix)
VARIANTS = (
    "h2o:granularity=layer", "tova:granularity=kv_head", "keydiff:granularity=layer", "h2o:recent=0.0",
    "local_strided:pattern=strided",
)  # fmt: skip


@pytest.mark.parametrize("promise", promises("attention"), ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("word", [*attention.names(), *VARIANTS])
def test_attention_method_keeps(word, promise):
    promise(attention.parse(word))


@dataclass(frozen=True, kw_only=True)
class LongestKeys(Select):
    """The longest keys in sight, with one fault."""

    fault: str = ""
    seed: int = 0

    def keep(self, layer, budget):
        worth = layer.k.double().norm(dim=-1).repeat_interleave(2, 1)[:, :, None].expand(-1, -1, layer.time, -1)
        match self.fault:
            case "blind":
                return torch.zeros_like(layer.causal).expand_as(worth)
            case "future":
                total = worth.masked_fill(worth < worth.mean(-1, keepdim=True), 0.0)
                return best(total, layer, budget)
            case "recalls":
                return best(worth * layer.q.double().norm(dim=-1).cumsum(-1).sin()[..., None], layer, budget)
            case "beyond":
                return layer.causal.expand_as(worth)
            case "global":
                return best(torch.rand(worth.shape), layer, budget)
            case "batch":
                return best((worth - worth.mean(0)).abs(), layer, budget)
            case "half":
                return best(
                    (layer.k * layer.k).sum(-1).repeat_interleave(2, 1)[:, :, None].expand_as(worth), layer, budget
                )
            case "window":
                return attention["window"]().keep(layer, budget).expand(-1, 4, -1, -1)
        return best(worth + self.seed * torch.rand(layer.time, generator=torch.Generator()), layer, budget)


FAULTS = [
    ("blind", contract.keeps_everything_when_it_may, "keys are left out"),
    ("future", contract.does_not_read_the_future, "masks before"),
    ("recalls", contract.recalls_queries_only_if_it_says_so, "declare recalls_queries"),
    ("blind", contract.attends_to_itself, "do not see their own key"),
    ("beyond", contract.stays_inside_the_model_s_mask, "that the model hides"),
    ("beyond", contract.has_the_density_it_declares, r"density 1\.0000, expected_density says 0\.8"),
    ("global", contract.draws_from_its_own_seed_alone, "drew from the global generator"),
    ("future", contract.draws_from_its_own_seed_alone, "the seed changes nothing"),
    ("batch", contract.treats_each_sequence_and_lane_alone, "another mask alone"),
    ("half", contract.decides_in_float32_at_least, "bf16 and float32 give different masks"),
    ("window", contract.is_not_another_method_by_name, "the mask is that of window"),
]


@pytest.mark.parametrize(("fault", "promise", "seen"), FAULTS)
def test_a_broken_promise_is_noticed(fault, promise, seen):
    promise(LongestKeys())
    with pytest.raises(AssertionError, match=seen):
        promise(LongestKeys(fault=fault))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_method_belongs_to_one_family(family):
    names = {name for name in attention.names() if issubclass(attention[name], family)}
    others = set(FAMILIES) - {family}
    assert names and not any(issubclass(attention[name], other) for name in names for other in others)


def test_no_two_names_give_one_mask():
    masks = {name: contract._mask_of(name) for name in attention.names()}
    pairs = [(a, b) for a in masks for b in masks if a < b]
    assert [(a, b) for a, b in pairs if torch.equal(masks[a], masks[b])] == []


def test_assay_check_prints_every_promise(cli):
    code, out, _ = cli("check", "attention", "window")
    assert code == 0 and out.count("\n") >= len(promises("attention"))
