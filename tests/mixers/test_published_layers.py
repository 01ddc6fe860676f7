"""Whole layers against other people's, with their weights: projections, convolution, gates, recurrence and norm.

tests/golden/make_published_layers.py wrote the weights and outputs, under the word that names the mixer here. Words say
sizes alone: what else a layer has must be the default.
"""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from assay.mixers import mixers
from assay.mixers.base import MixerModule

EVERY = load_file(Path(__file__).parent.parent / "golden" / "published_layers.safetensors")
WORDS = sorted({name.split("/")[0] for name in EVERY} - {"x"})
OURS = {
    "o_proj.weight": "heads.out.weight",
    "b_proj.weight": "beta.weight",
    "g_proj.weight": "gate.weight",
    "a_proj.weight": "decay.project.weight",
    "dt_bias": "decay.bias",
    "A_log": "decay.log_rate",
    "D": "skip",
    "out_proj.weight": "out.weight",
    "conv1d.bias": "convolution.bias",
}
"""Theirs -> ours, where only the name differs."""
PATTERNS = {
    r"(o_norm|g_norm_swish_gate|norm)\.weight": r"norm.weight",
    r"gk_proj\.(.*)": r"decay.\1",
    r"f_proj\.(.*)": r"decay.project.\1",
    r"g_proj\.([01].*)": r"gate.\1",
    r"feature_map_q\.layer1\.(.*)": r"query_map.one.\1",
    r"feature_map_q\.layer2\.(.*)": r"query_map.other.\1",
    r"feature_map_k\.layer1\.(.*)": r"key_map.one.\1",
    r"feature_map_k\.layer2\.(.*)": r"key_map.other.\1",
}


def translated(theirs: dict[str, Tensor], module: MixerModule) -> dict[str, Tensor]:
    """Return the weights under our names: projections and convolutions of q, k and v are one tensor each."""
    left, ours = dict(theirs), {}
    if "x_r" in left:
        return token_shifted(left)
    if "lambda_params" in left:
        return least_squares(left)
    if "learnable_skip" in left:
        return exponential(left)
    if "filter_fn.bias" in left:
        return long_convolution(left)
    if "projection.weight" in left:
        return gated_convolution(left)
    if "q_proj.weight" in left:
        ours["heads.qkv.weight"] = torch.cat([left.pop(f"{part}_proj.weight") for part in "qkv"])
    if "q_conv1d.weight" in left:
        ours["heads.convolution.weight"] = torch.cat([left.pop(f"{part}_conv1d.weight") for part in "qkv"]).squeeze(1)
    if "in_proj.weight" in left:
        rows = module.project.out_features
        ours["project.weight"], ours["decay.project.weight"] = left["in_proj.weight"].split(
            [rows, len(left.pop("in_proj.weight")) - rows]
        )
        ours["convolution.weight"] = left.pop("conv1d.weight").squeeze(1)
    for name, weight in left.items():
        known = [
            re.sub(f"^{pattern}$", new, name) for pattern, new in PATTERNS.items() if re.match(f"^{pattern}$", name)
        ]
        ours[known[0] if known else OURS[name]] = weight
    return ours


def token_shifted(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """RWKV-7's weights under our names."""
    names = {"r_proj": "r", "k_proj": "k", "v_proj": "v", "o_proj": "out", "g_norm": "norm"}
    names |= {"w_lora.lora": "decay", "a_lora.lora": "rate", "g_lora.lora": "gate"}
    ours = {"shift": torch.cat([theirs.pop(f"x_{part}")[0] for part in "rwkvag"])}
    ours |= {"removal": theirs.pop("k_k"), "replacement": theirs.pop("k_a"), "bonus": theirs.pop("r_k")[:, None]}
    for name, weight in theirs.items():
        prefix = next(prefix for prefix in names if name.startswith(f"{prefix}."))
        ours[name.replace(prefix, names[prefix], 1).replace(".0.", ".down.").replace(".2.", ".up.")] = weight
    return ours


def least_squares(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """MesaNet's weights under our names."""
    ours = {"queries_and_keys.weight": torch.cat([theirs.pop("q_proj.weight"), theirs.pop("k_proj.weight")])}
    ours["convolution.weight"] = torch.cat([theirs.pop(f"{part}_conv1d.weight") for part in "qk"]).squeeze(1)
    for kind in ("weight", "bias"):
        ours[f"gates.{kind}"] = torch.cat([theirs.pop(f"a_proj.{kind}"), theirs.pop(f"b_proj.{kind}")])
    ours["ridge"] = theirs.pop("lambda_params").reshape(2, -1)
    names = {"v_proj.weight": "values.weight", "o_norm.weight": "norm.weight", "o_proj.weight": "out.weight"}
    return ours | {names[name]: weight for name, weight in theirs.items()}


def exponential(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The mLSTM's weights under our names; theirs are gains less 1."""
    gates = {kind: [theirs[f"mlstm_cell.{gate}gate.{kind}"] for gate in "fi"] for kind in ("weight", "bias")}
    return {
        "up.weight": theirs["proj_up.weight"],
        "out.weight": theirs["proj_down.weight"],
        "blocks": torch.stack([theirs[f"{part}_proj.weight"] for part in "qkv"]),
        "convolution.weight": theirs["conv1d.conv.weight"].squeeze(1),
        "convolution.bias": theirs["conv1d.conv.bias"],
        "norm": 1 + theirs["mlstm_cell.outnorm.weight"].reshape(2, 1, -1),
        "skip": theirs["learnable_skip"],
        **{f"gates.{kind}": torch.cat(parts) for kind, parts in gates.items()},
    }


def long_convolution(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Hyena's weights under our names; theirs has the gate behind the convolution first, ours the one before it."""
    mlp = "filter_fn.implicit_filter"
    ours = {"skip": theirs["filter_fn.bias"], "filter.frequency": theirs[f"{mlp}.1.freq"][0]}
    for kind in ("weight", "bias"):
        for part, name in (("project", "in_proj"), ("convolution", "short_filter")):
            after, before, v = theirs[f"{name}.{kind}"].chunk(3)
            ours[f"{part}.{kind}"] = torch.cat([before, after, v])
        ours[f"out.{kind}"] = theirs[f"out_proj.{kind}"]
        ours |= {f"filter.inner.{place}.{kind}": theirs[f"{mlp}.{2 * place}.{kind}"] for place in range(3)}
    ours["convolution.weight"] = ours["convolution.weight"].squeeze(1)
    return ours | {"filter.out.weight": theirs[f"{mlp}.6.weight"]}


def gated_convolution(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """BaseConv's weights under our names."""
    ours = {f"gate.{kind}": theirs[f"projection.{kind}"] for kind in ("weight", "bias")}
    return ours | {
        "convolution.weight": theirs["conv.conv.weight"].squeeze(1),
        "convolution.bias": theirs["conv.conv.bias"],
    }


def module_and_answer(word: str) -> tuple[MixerModule, Tensor]:
    module = mixers.parse(word).build(EVERY["x"].shape[-1], EVERY["x"].shape[1])
    theirs = {name.removeprefix(f"{word}/"): x for name, x in EVERY.items() if name.startswith(f"{word}/")}
    answer = theirs.pop("y")
    module.load_state_dict(translated(theirs, module))  # strict: no weight of theirs or ours is left over
    return module.eval(), answer


@pytest.mark.parametrize("word", WORDS)
@torch.no_grad()
def test_a_whole_layer_is_the_published_one(word: str) -> None:
    module, answer = module_and_answer(word)
    torch.testing.assert_close(module(EVERY["x"]), answer, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("word", WORDS)
@torch.no_grad()
def test_and_so_it_is_token_by_token(word: str) -> None:
    module, answer = module_and_answer(word)
    state, outputs = module.init_state(len(answer)), []
    for token in EVERY["x"].unbind(1):
        y, state = module.step(token, state)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, dim=1), answer, rtol=1e-5, atol=1e-5)


def test_the_other_layers_are_not_compared_with_themselves() -> None:
    """A wrong default would be seen: each of these options changes the layer, whose weights then fit no more or whose
    answer is another."""
    for word in ("delta_net:num_heads=2", "gated_delta_net:num_heads=2", "gated_linear_attn:conv=4"):
        module, answer = module_and_answer(word)
        module.heads.swish = False
        assert (module(EVERY["x"]) - answer).abs().max() > 0.1
