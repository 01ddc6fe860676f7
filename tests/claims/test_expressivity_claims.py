"""What the expressivity study rests on: its scores mean what they say."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import UserError
from assay.core.run import canonical
from assay.encoders import encoders
from assay.nn.random import initialised_from
from assay.studies.expressivity import Config, ExpressivityTester, HybridGenerator
from assay.studies.expressivity.expressivity import Expressivity, build
from assay.studies.expressivity.references import Reference, planted, reference

CFG = Config(retr_steps=60, retr_train_steps=5, jac_points=8)
QUICK = Config(batch_eval=256, retr_steps=20, retr_train_steps=3, jac_points=4)


def evaluate(enc: Any, cfg: Config = QUICK) -> dict[str, Any]:
    scores = ExpressivityTester(cfg).evaluate(enc)
    scores.pop("sec/run")
    return scores


def encoder(name: str = "self_attn", cfg: Config = QUICK) -> nn.Module:
    return build(encoders[name]().spec(), cfg)


class Rewired(nn.Module):
    """An encoder with its code changed by a function."""

    def __init__(self, inner: nn.Module, change: Any) -> None:
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.inner(x))


@pytest.fixture(scope="module")
def oracle() -> dict[str, Any]:
    return evaluate(Reference("Oracle", CFG.D_z, CFG.seed), CFG)


@pytest.fixture(scope="module")
def noise() -> dict[str, Any]:
    return evaluate(Reference("Noise", CFG.D_z, CFG.seed), CFG)


def test_the_ideal_observer_of_the_noisy_input_explains_over_99_percent_from_any_quarter_of_its_code(
    oracle: dict,
) -> None:
    for context in (0, 1, 2):
        assert oracle[f"R2_1.00_ctx{context}"] > 0.99
    assert oracle["R2_0.25"] > 0.99
    assert math.isfinite(oracle["BA_bits"]) and oracle["BA_bits"] > 15


def test_the_ideal_observer_needs_exactly_as_many_components_as_there_are_factors(oracle: dict) -> None:
    curve = oracle["R2_pc"]
    assert len(curve) == CFG.D_z and curve[2] < 0.9 and curve[3] > 0.99


def test_noise_scores_zero_held_out(noise: dict) -> None:
    for score in ("R2", "R2_0.75", "R2_0.50", "R2_0.25"):
        assert abs(noise[score]) < 0.005
    assert abs(noise["NCE_bits"]) < 0.05 and abs(noise["BA_bits"]) < 0.05 and abs(noise["RetrieveR2"]) < 0.05


@pytest.mark.parametrize(("keys", "ceiling"), [("unique", 1.0), ("ambiguous", 8 / 31)])
def test_the_ideal_observer_reaches_the_lookup_ceiling_through_the_same_head(keys: Any, ceiling: float) -> None:
    cfg = Config(keys=keys, retr_steps=400)
    found = ExpressivityTester(cfg).retrieval(Reference("Oracle", cfg.D_z, cfg.seed))["RetrieveR2"]
    assert cfg.lookup().ceiling() == pytest.approx(ceiling)
    assert found == pytest.approx(ceiling, abs=0.03)


def test_the_same_encoder_scores_the_same_bits_twice_and_whatever_was_measured_before() -> None:
    alone = evaluate(encoder())
    tester = ExpressivityTester(QUICK)
    tester.evaluate(encoder("gru"))
    torch.manual_seed(123)  # nobody else's randomness matters
    after = tester.evaluate(encoder())
    after.pop("sec/run")
    assert canonical(alone) == canonical(after)


def test_leaving_out_the_jacobian_and_the_long_lookup_changes_nothing_else() -> None:
    full, fast = evaluate(encoder()), evaluate(encoder(), Config(**{**vars(QUICK), "fast": True}))
    assert "entropy" not in fast and "entropy" in full
    for score in ("R2", "R2_0.75", "R2_0.50", "R2_0.25", "NCE_bits", "BA_bits"):
        assert fast[score] == full[score]


def test_permuting_units_moves_nothing_but_the_masks() -> None:
    order = torch.randperm(QUICK.D_z, generator=torch.Generator().manual_seed(0))
    plain, turned = evaluate(encoder()), evaluate(Rewired(encoder(), lambda z: z[:, order]))
    for score in ("R2", "NCE_bits", "BA_bits", "erank", "entropy"):
        assert turned[score] == pytest.approx(plain[score], abs=1e-4), score
    assert turned["R2_pc"] == pytest.approx(plain["R2_pc"], abs=1e-4)
    assert turned["R2_0.50"] == pytest.approx(plain["R2_0.50"], abs=0.1)


def test_a_gain_of_the_code_moves_no_score_but_those_in_units_of_it() -> None:
    plain, loud = evaluate(encoder()), evaluate(Rewired(encoder(), lambda z: 37.0 * z))
    for score in ("R2", "R2_0.75", "R2_0.50", "R2_0.25", "NCE_bits", "BA_bits", "erank", "RetrieveR2", "logdet_bits"):
        assert loud[score] == pytest.approx(plain[score], abs=1e-3), score
    assert loud["sv_median"] == pytest.approx(37 * plain["sv_median"], rel=1e-3)


def test_a_rotation_of_the_code_leaves_the_component_curve() -> None:
    turn = torch.linalg.qr(torch.randn(QUICK.D_z, QUICK.D_z, generator=torch.Generator().manual_seed(1)))[0]
    plain, turned = evaluate(encoder()), evaluate(Rewired(encoder(), lambda z: z @ turn))
    assert turned["R2_pc"] == pytest.approx(plain["R2_pc"], abs=1e-3)


def test_training_changes_a_copy_and_never_the_encoder() -> None:
    cfg = Config(**{**vars(QUICK), "train_steps": 60, "batch_eval": 1024})
    enc = encoder("static_mlp", cfg)
    before = copy.deepcopy(enc.state_dict())
    flags = [(p.requires_grad, p.grad is None) for p in enc.parameters()]
    scores = evaluate(enc, cfg)
    assert all(torch.equal(before[key], value) for key, value in enc.state_dict().items())
    assert [(p.requires_grad, p.grad is None) for p in enc.parameters()] == flags == [(True, True)] * len(flags)
    assert scores["AfterTrainR2"] > scores["R2_1.00_ctx0"] + 0.05, "sixty steps should beat a random encoder"


def test_an_encoder_in_training_mode_is_measured_in_evaluation_mode_and_left_as_it_was() -> None:
    enc = nn.Sequential(encoder(), nn.Dropout(0.9)).train()
    assert evaluate(enc)["R2"] == evaluate(encoder())["R2"] and enc.training


def test_dropout_of_a_trained_copy_has_a_stream_of_its_own() -> None:
    scores = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        scores.append(evaluate(nn.Sequential(encoder("static_mlp"), nn.Dropout(0.5))))
    assert canonical(scores[0]) == canonical(scores[1])


def test_sequences_that_mix_in_a_batch_are_refused() -> None:
    with pytest.raises(UserError, match="depends on the others"):
        evaluate(Rewired(encoder(), lambda z: z - z.mean(0)))


def test_a_code_that_is_not_finite_diverges() -> None:
    with pytest.raises(FloatingPointError):
        evaluate(Rewired(encoder(), lambda z: z * float("nan")))


def test_one_unit_is_tight_and_works() -> None:
    cfg = Config(**{**vars(QUICK), "D_z": 1})
    assert evaluate(encoder("mean_linear", cfg), cfg)["R2_0.25"] == evaluate(encoder("mean_linear", cfg), cfg)["R2"]


def test_the_version_of_a_task_is_part_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Expressivity(seeds=(0,)).plan()[0]
    monkeypatch.setattr(type(before_task := Config().lookup()), "version", 99)
    assert Expressivity(seeds=(0,)).plan()[0].id != before.id and before_task.component_version() == "99"


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_a_code_per_token_is_pooled_by_name(pool: Any) -> None:
    cfg = Config(**{**vars(QUICK), "pool": pool})
    with initialised_from(0, "test"):
        per_token = nn.Sequential(nn.Linear(cfg.D_in, cfg.D_z), nn.ReLU())
    pooled = Rewired(per_token, lambda z: z[:, -1] if pool == "last" else z.mean(1))
    scores = evaluate(per_token, cfg)
    assert scores.pop("pool") == pool
    assert canonical(scores) == canonical(evaluate(pooled, cfg))


@pytest.mark.parametrize("change", [lambda z: z[:, :5], lambda z: z[0], lambda z: (z, z)])
def test_a_code_of_another_shape_is_refused_with_the_shape_it_must_have(change: Any) -> None:
    with pytest.raises(UserError, match=r"must be \(2, 32\) or \(2, 32, 32\)"):
        evaluate(Rewired(encoder(), change))


def test_the_generator_follows_its_configuration() -> None:
    cfg = Config(K_keys=5, V_dim=3, F_feat=8, L=20)
    world = HybridGenerator(cfg)
    assert cfg.D_in == 16 and world.features(7, 2).inputs.shape == (7, 20, 16)
    assert world.lookups(7).targets.shape == (7, 3)
    assert torch.equal(world.features(7).inputs, world.features(7).inputs)
    assert not torch.equal(world.features(7, part="fit").inputs, world.features(7, part="test").inputs)


def test_every_encoder_of_a_seed_sees_the_same_data_and_every_seed_another_world() -> None:
    runs = Expressivity(models=(encoders["gru"](), encoders["static_mlp"]()), seeds=(0, 1)).plan()
    assert [(run.options["model"]["name"], run.seed) for run in runs] == [
        (name, seed) for name in ("gru", "static_mlp", "Oracle", "Noise") for seed in (0, 1)
    ]
    one, other = HybridGenerator(Config(seed=0)), HybridGenerator(Config(seed=1))
    assert not torch.equal(one.features(4).inputs, other.features(4).inputs)


def test_a_budget_gives_every_encoder_the_same_size() -> None:
    plan = Expressivity(budget="25k", seeds=(0,)).plan()
    cfg = Config()
    for run in plan:
        if run.options["model"]["name"] not in ("Oracle", "Noise"):
            module = build(run.options["model"], cfg)
            assert sum(p.numel() for p in module.parameters()) == pytest.approx(25_000, rel=0.03)


def held(word: str) -> dict[str, Any]:
    return evaluate(reference(planted.parse(word).spec(), QUICK))


def test_planted_factors_are_kept_in_as_many_units_as_they_say() -> None:
    """1.6: which codes say what drop tolerance means."""
    once, copied, one = (held(f"planted_factors:{given}") for given in ("copies=1", "copies=8", "factors=1:copies=32"))
    assert once["R2"] > 0.99 and copied["R2"] > 0.99 and one["R2"] == pytest.approx(0.25, abs=0.05)
    assert once["R2_0.25"] == pytest.approx(0.25, abs=0.1) and copied["R2_0.25"] > 0.8 and one["R2_0.25"] > 0.2


def test_planted_bins_hold_the_same_bits_in_any_order_of_their_numbers() -> None:
    code = planted.parse("planted_factors:factors=2:bins=8:numbered=at_random")
    ordered, shuffled = (
        Reference("", QUICK.D_z, QUICK.seed, planted.parse(f"planted_factors:factors=2:bins=8:numbered={how}"))
        for how in ("in_order", "at_random")
    )
    world = HybridGenerator(QUICK)
    codes = [one.code(world.contexts[0], world.features(512), "fit").long() for one in (ordered, shuffled)]
    pairs = {tuple(row.tolist()) for row in torch.stack([codes[0][:, 0], codes[1][:, 0]], dim=1)}
    assert len(pairs) == 8 and codes[1][:, 2:].count_nonzero() == 0, "one number for the other"
    assert held(code.label)["NCE_bits"] < 2 < held("planted_factors:factors=2:bins=8")["NCE_bits"]


def test_a_planted_lookup_answers_the_share_of_keys_it_says() -> None:
    world = HybridGenerator(QUICK)
    batch = world.lookups(512)
    code = Reference("", QUICK.D_z, QUICK.seed, planted.parse("planted_lookup:share=.5"))
    found = code.code(world.retrieval, batch, "fit")
    answered = (found[:, : QUICK.V_dim] == batch.targets).all(dim=1).double().mean()
    assert float(answered) == pytest.approx(0.5, abs=0.1) and found[:, QUICK.V_dim :].count_nonzero() == 0


def test_a_planted_map_has_the_spectrum_it_says_and_reads_factors_or_none() -> None:
    flat, steep = (held(f"planted_map:{given}") for given in ("ratio=1", "ratio=.7:factors=true"))
    assert flat["gini"] == pytest.approx(1 - 1 / QUICK.D_z, abs=1e-4) and flat["sv_min"] == pytest.approx(1, abs=1e-4)
    assert abs(flat["R2"]) < 0.05 and steep["R2"] > 0.8 and steep["gini"] < flat["gini"] - 0.1
