"""Every attention method keeps every promise, and the promises notice methods that do not."""

import re
from dataclasses import dataclass, replace

import pytest
import torch

from assay.attention import attention
from assay.attention.base import BlockSelect, Evict, Pattern, Prefix, Select, best
from assay.attention.checks import MethodFault, numbers
from assay.contracts import attention as contract
from assay.contracts import base
from assay.contracts.base import promises
from portable import METHODS
from promised import broken

FAMILIES = (Pattern, Select, Evict, Prefix)
VARIANTS = (
    "h2o:granularity=layer", "tova:granularity=kv_head", "keydiff:granularity=layer", "h2o:recent=0.0",
    "local_strided:pattern=strided",
)  # fmt: skip


@pytest.mark.parametrize("word", [*METHODS, *VARIANTS])
def test_attention_method_keeps_every_promise(word):
    assert not broken("attention", attention.parse(word))


@dataclass(frozen=True, kw_only=True)
class LongestKeys(Select):
    """The longest keys in sight, with one fault."""

    fault: str = ""
    seed: int = 0

    def keep(self, layer, budget):
        score = layer.k.double().norm(dim=-1).repeat_interleave(2, 1)[:, :, None].expand(-1, -1, layer.time, -1)
        match self.fault:
            case "blind":
                return torch.zeros_like(layer.causal).expand_as(score)
            case "future":
                total = score.masked_fill(score < score.mean(-1, keepdim=True), 0.0)
                return best(total, layer, budget)
            case "recalls":
                return best(score * layer.q.double().norm(dim=-1).cumsum(-1).sin()[..., None], layer, budget)
            case "beyond":
                return layer.causal.expand_as(score)
            case "global":
                return best(torch.rand(score.shape), layer, budget)
            case "batch":
                return best((score - score.mean(0)).abs(), layer, budget)
            case "half":
                return best(
                    (layer.k * layer.k).sum(-1).repeat_interleave(2, 1)[:, :, None].expand_as(score), layer, budget
                )
            case "window":
                return attention["window"]().keep(layer, budget).expand(-1, 4, -1, -1)
        return best(score + self.seed * torch.rand(layer.time, generator=torch.Generator()), layer, budget)


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
    names = {name for name in METHODS if issubclass(attention[name], family)}
    others = set(FAMILIES) - {family}
    assert names and not any(issubclass(attention[name], other) for name in names for other in others)


def test_no_two_names_give_one_mask():
    masks = {name: contract._mask_of(attention[name]()) for name in METHODS}
    pairs = [(a, b) for a in masks for b in masks if a < b]
    assert [(a, b) for a, b in pairs if torch.equal(masks[a], masks[b])] == []


@dataclass(frozen=True, kw_only=True)
class Loudest(Evict):
    """Keys of large norm stay, with one fault in the scores."""

    fault: str = ""

    def initial_score(self, layer):
        norms = layer.k.double().norm(dim=-1)
        match self.fault:
            case "initial_score is no number":
                return norms * torch.nan
            case "initial_score is infinite":
                return norms / 0
            case "initial_score has no heads":
                return norms.mean(1)
            case "initial_score is a mask":
                return norms > 1
            case "initial_score is elsewhere":
                return norms.to("meta")
            case "initial_score is nothing":
                return None
        return norms

    def score(self, before, step):
        match self.fault:
            case "score is no number":
                return before + (before * 0 / 0).where(step.position[..., :] % 7 == 0, 0.0)
            case "score has a query":
                return before[..., None]
        return before


SCORES = [
    ("initial_score is no number", "initial_score must be finite: 512 of 512 are not"),
    ("initial_score is infinite", "initial_score must be finite: 512 of 512 are not"),
    ("initial_score has no heads", r"initial_score must be \(rows, kv_heads, time\) = \(2, 2, 128\), got \(2, 128\)"),
    ("initial_score is a mask", "initial_score must be real numbers, got torch.bool"),
    ("initial_score is elsewhere", "initial_score must be on cpu, where the keys are, got meta"),
    ("initial_score is nothing", "initial_score must be a tensor, got NoneType"),
    ("score is no number", "score must be finite"),
    ("score has a query", r"score must be \(rows, kv_heads, slots\) = .*, got"),
]


@pytest.mark.parametrize(("fault", "seen"), SCORES)
def test_scores_that_are_no_scores_are_noticed_and_described(monkeypatch, fault, seen):
    monkeypatch.setattr(base, "promises", lambda folder: [contract.scores_with_finite_numbers])
    (fine,), (wrong,) = (base.check("attention", Loudest(fault=one)) for one in ("", fault))
    assert fine.kept and not wrong.kept and re.search(seen, wrong.seen)


@dataclass(frozen=True, kw_only=True)
class Chooses(Select):
    fault: str = ""

    def keep(self, layer, budget):
        score = layer.k.double().norm(dim=-1).repeat_interleave(2, 1)[:, :, None].expand(-1, -1, layer.time, -1)
        match self.fault:
            case "no number":
                return best(score * torch.nan, layer, budget)
            case "own top-k":
                taken = (score * torch.nan).topk(8).indices
                return torch.zeros_like(score, dtype=torch.bool).scatter(-1, taken, True) & layer.visible[:, None]
            case "own threshold":
                return ((score - torch.inf + torch.inf > 1) | torch.eye(layer.time).bool()) & layer.visible[:, None]
            case "own loop":
                first = [max(range(layer.time), key=row.__getitem__) for row in (score[0, :, -1] * torch.nan).tolist()]
                seen = torch.arange(layer.time) <= max(first)
                return layer.visible[:, None].expand(-1, 4, -1, -1) & (seen | torch.eye(layer.time).bool())
            case "numbers":
                return best(score, layer, budget).double()
            case "one head less":
                return best(score, layer, budget)[:, :-1]
        return best(score, layer, budget)


@dataclass(frozen=True, kw_only=True)
class Cuts(Prefix):
    fault: str = ""

    def score(self, layer, length):
        score = layer.k.double().norm(dim=-1)[..., :length]
        return score * torch.nan if self.fault == "no number" else score[..., 1:] if self.fault else score


@dataclass(frozen=True, kw_only=True)
class Sees(Pattern):
    fault: str = ""

    def sees(self, query, key, *, time, slots):
        seen = query - key <= slots
        return seen.int() if self.fault == "numbers" else seen[..., :-1] if self.fault else seen


@dataclass(frozen=True, kw_only=True)
class Blocks(BlockSelect):
    fault: str = ""

    def chosen(self, layer, budget):
        blocks = layer.time // self.block_size + (not self.fault)
        return torch.ones(layer.rows, 4, blocks, blocks, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    ("method", "seen"),
    [
        (Chooses(fault="no number"), "scores must be finite, and some are no numbers"),
        (Chooses(fault="own top-k"), "scores must be finite, and some are no numbers"),
        (Chooses(fault="own threshold"), "scores must be finite, and some are no numbers"),
        (Chooses(fault="own loop"), "scores must be finite, and some are no numbers"),
        (Chooses(fault="numbers"), "keep must be booleans, got torch.float64"),
        (Chooses(fault="one head less"), r"keep must be \(rows, heads, query, key\) = \(2, 4, 192, 192\), got \(2, 3,"),
        (Cuts(fault="no number"), "scores must be finite, and some are no numbers"),
        (Cuts(fault="short"), r"score must be \(rows, kv_heads, prefix\) = \(2, 2, 96\), got \(2, 2, 95\)"),
        (Sees(fault="numbers"), "sees must be booleans, got torch.int32"),
        (Sees(fault="short"), r"sees must be \(rows, query, key\) = .* got \(2, 192, 191\)"),
        (
            Blocks(block_size=40, fault="short"),
            r"chosen must be \(rows, heads, block, block of keys\) = \(2, 4, 5, 5\)",
        ),
    ],
    ids=str,
)
def test_what_a_method_of_another_family_gives_is_looked_at_too(method, seen):
    contract.scores_with_finite_numbers(replace(method, fault=""))
    with pytest.raises(MethodFault, match=seen):
        contract.scores_with_finite_numbers(method)


@dataclass(frozen=True, kw_only=True)
class Surprised(Select):
    """Keys by their part in the entropy of attention: 0 log 0 is no number where the model hides a key."""

    mended: bool = False

    def keep(self, layer, budget):
        weights = layer.scores.softmax(-1)
        part = -weights * weights.log()
        if self.mended:
            part = part.where(~part.isnan(), 0.0)
        own = torch.eye(layer.time, dtype=torch.bool)
        return ((part > 0.01) | own) & layer.visible[:, None]


@pytest.mark.parametrize("mended", [True, False])
def test_what_is_no_number_for_a_pair_that_the_model_hides_is_no_fault(mended):
    contract.scores_with_finite_numbers(Surprised(mended=mended))


def test_a_method_is_not_to_blame_for_keys_that_are_no_numbers():
    layer = contract._layer()
    layer.k[0, 0, 5] = torch.nan
    with numbers() as seen:
        contract._each(Loudest(), layer)
        contract._each(Chooses(), layer)
        seen.raise_for_none()


@dataclass(frozen=True, kw_only=True)
class Uneven(Evict):
    """Keys of large norm stay; heads have budgets of their own, with one fault."""

    fault: str = ""

    def initial_score(self, layer):
        return layer.k.double().norm(dim=-1)

    def expected_density(self, time, budget):
        return None

    def budgets(self, layer, length, slots):
        less = min(slots // 2, length - slots) if slots < length else 0
        pair = torch.tensor([slots + less, slots - less]).expand(layer.rows, 2)
        match self.fault:
            case "more":
                return pair + (layer.index == 3)
            case "debt":
                return pair - torch.tensor([0, slots])
            case "part":
                return pair / 1
            case "rows":
                return pair[0]
        return pair


@pytest.mark.parametrize(
    ("fault", "error", "seen"),
    [
        ("more", AssertionError, r"slots=48: 1154 slots in 12 layers, 1152 in all were given"),
        ("debt", AssertionError, r"a budget of -\d+ slots"),
        ("part", MethodFault, "budgets must be whole numbers, got torch.float32"),
        ("rows", MethodFault, r"budgets must be \(rows, kv_heads\) = \(2, 2\), got \(2,\)"),
    ],
)
def test_budgets_that_are_not_within_the_total_are_noticed(monkeypatch, fault, error, seen):
    monkeypatch.setattr(contract, "BUDGETS", (contract.Budget(slots=48),))
    contract.stays_within_its_budgets(Uneven())
    with pytest.raises(error, match=seen):
        contract.stays_within_its_budgets(Uneven(fault=fault))


def test_a_head_that_holds_more_than_its_budget_is_noticed(monkeypatch):
    monkeypatch.setattr(contract, "BUDGETS", (contract.Budget(slots=48),))
    held = contract._each
    monkeypatch.setattr(contract, "_each", lambda method, layer: held(Uneven(), layer))
    contract.stays_within_its_budgets(Uneven())
    with pytest.raises(AssertionError, match="a head holds 24 keys more than its budget"):
        contract.stays_within_its_budgets(attention["h2o"]())


SIBLINGS = """
from dataclasses import dataclass
from assay.attention import attention
from assay.attention.base import Evict

@attention.register("innocent")
@dataclass(frozen=True, kw_only=True)
class Innocent(Evict):
    def initial_score(self, layer):
        return layer.k.double().abs().amax(-1)

@attention.register("culprit")
@dataclass(frozen=True, kw_only=True)
class Culprit(Evict):
    BODY
"""
CULPRITS = {
    "option": ("size: int", "missing 1 required keyword-only argument: 'size'"),
    "construction": ("def __post_init__(self): raise RuntimeError('not today')", "not today"),
    "score": ("def score(self, before, step): raise RuntimeError('no score')", "no score"),
    "shape": (
        "def initial_score(self, layer): return layer.k[..., 0, 0]",
        r"culprit: initial_score must be (rows, kv_heads, time)",
    ),
}


@pytest.mark.parametrize("where", CULPRITS)
def test_a_broken_sibling_is_named_and_the_innocent_passes(cli, tmp_path, monkeypatch, where):
    few = [contract.scores_with_finite_numbers, contract.is_not_another_method_by_name]
    monkeypatch.setattr(base, "promises", lambda folder: few)
    body, seen = CULPRITS[where]
    plugin = tmp_path / "two.py"
    plugin.write_text(SIBLINGS.replace("BODY", body))
    code, out, err = cli("check", plugin)
    assert code == 1 and out.count("attention:") == 2
    innocent = out[out.index("attention: innocent") :]
    assert "FAIL" not in innocent and "FAIL" in out[: out.index("attention: innocent")] and seen in out
    assert "not compared with culprit, which is broken" in err and seen in err


def test_assay_check_prints_every_promise(cli):
    code, out, _ = cli("check", "attention", "window")
    assert code == 0 and out.count("\n") >= len(promises("attention"))


FORMER = """
from dataclasses import dataclass
from assay.attention import attention
from assay.attention.base import Evict, Prefix

@attention.register("old_style")
@dataclass(frozen=True, kw_only=True)
class OldStyle(FAMILY):
    def NAME(self, *shown):
        return shown[0].k[..., 0]
"""


@pytest.mark.parametrize(
    ("family", "old", "new"), [("Evict", "arrival", "initial_score"), ("Prefix", "worth", "score")]
)
def test_a_file_that_defines_a_former_name_is_told_the_new_one(cli, tmp_path, family, old, new):
    plugin = tmp_path / "old_style.py"
    plugin.write_text(FORMER.replace("FAMILY", family).replace("NAME", old))
    code, _, err = cli("check", plugin)
    assert code == 2 and err.count("\n") == 1, err
    assert f"OldStyle: rename '{old}', which is now called '{new}'" in err
