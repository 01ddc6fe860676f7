"""Write fla_naive.safetensors: random inputs and what flash-linear-attention's plain PyTorch loops make of them.

    pip install --no-deps --target /tmp/peers fla-core==0.6.0
    python tests/golden/make_fla_naive.py /tmp/peers

The peer's files are run one by one, by path: its package asks for triton on import, these files for torch and einops.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

BATCH, HEADS, TIME, D_KEY, D_VALUE = 2, 3, 70, 8, 6  # more than one chunk of 64, and not a multiple


def naive(peers: Path, op: str) -> ModuleType:
    """fla/ops/<op>/naive.py as a module of its own."""
    spec = importlib.util.spec_from_file_location(
        f"fla_naive_{op.replace('/', '_')}", peers / "fla" / "ops" / op / "naive.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs() -> dict[str, Tensor]:
    """Layout (batch, heads, time, ...), as in assay.nn.scan."""
    rng = torch.Generator().manual_seed(0)

    def draw(*last: int) -> Tensor:
        return torch.randn(BATCH, HEADS, TIME, *last, generator=rng)

    return {
        "q": draw(D_KEY),
        "k": normalize(draw(D_KEY), dim=-1),
        "v": draw(D_VALUE),
        "beta": 2 * torch.sigmoid(draw()),
        "log_decay_channel": logsigmoid(draw(D_KEY)),
        "log_decay_head": logsigmoid(draw()),
        "state": torch.randn(BATCH, HEADS, D_KEY, D_VALUE, generator=rng),
        # Two steps of the delta rule per token; a direction that is read and erased; least squares with as many value
        # channels as key channels, since the peer's form has no other.
        "k_steps": normalize(torch.randn(BATCH, HEADS, 2 * TIME, D_KEY, generator=rng), dim=-1),
        "v_steps": torch.randn(BATCH, HEADS, 2 * TIME, D_VALUE, generator=rng),
        "beta_steps": 2 * torch.sigmoid(torch.randn(BATCH, HEADS, 2 * TIME, generator=rng)),
        "removed": normalize(draw(D_KEY), dim=-1),
        "rate": torch.sigmoid(draw(D_KEY)),
        "v_square": draw(D_KEY),
        "ridge": 0.25 + torch.rand(HEADS, D_KEY, generator=rng),
    }


def outputs(peers: Path, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """`<op>` and, where the peer gives it, the last state `<op>_state`. Two of its files put time before heads."""
    q, k, v, beta, state = x["q"], x["k"], x["v"], x["beta"], x["state"]
    tq, tk, tv, tbeta, channel, head = (
        y.transpose(1, 2) for y in (q, k, v, beta, x["log_decay_channel"], x["log_decay_head"])
    )
    gla, gla_state = naive(peers, "gla").naive_recurrent_gla(tq, tk, tv, channel, state, True)
    delta, delta_state = naive(peers, "delta_rule").delta_rule_recurrence(q, k, v, beta, state, True)
    gated, gated_state = naive(peers, "gated_delta_rule").naive_recurrent_gated_delta_rule(
        tq, tk, tv, tbeta, head, initial_state=state, output_final_state=True
    )
    return more_outputs(peers, x) | {
        "gla": gla.transpose(1, 2),
        "gla_state": gla_state,
        "delta_rule": delta,
        "delta_rule_state": delta_state,
        "gated_delta_rule": gated.transpose(1, 2),
        "gated_delta_rule_state": gated_state,
        "retention": naive(peers, "retention").naive_retention(q, k, v),
    }


def more_outputs(peers: Path, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same for the newer mixers; `dplr` is the recurrence of RWKV-7."""

    def swapped(*names: str) -> list[Tensor]:
        return [x[name].transpose(1, 2) for name in names]

    kda, kda_state = naive(peers, "kda").naive_recurrent_kda(
        *swapped("q", "k", "v", "log_decay_channel", "beta"), initial_state=x["state"], output_final_state=True
    )
    product, product_state = naive(peers, "gated_delta_product").naive_recurrent_gated_delta_product(
        *swapped("q", "k_steps", "v_steps", "log_decay_head", "beta_steps"),
        scale=D_KEY**-0.5, initial_state=x["state"], output_final_state=True, num_householder=2,
    )  # fmt: skip
    dplr, dplr_state = naive(peers, "generalized_delta_rule/dplr").dplr_recurrence(
        *(x[name] for name in ("q", "k", "v", "removed")),
        -x["rate"] * x["removed"], x["log_decay_channel"], x["state"], True,
    )  # fmt: skip
    strength = torch.sigmoid(x["beta"])
    q, k, v, g, beta = (y.transpose(1, 2) for y in (x["q"], x["k"], x["v_square"], x["log_decay_head"], strength))
    mesa, gram, memory = naive(peers, "mesa_net").naive_mesa_net_exact(q, k, v, g, x["ridge"], beta)
    return {
        "kda": kda.transpose(1, 2),
        "kda_state": kda_state,
        "delta_product": product.transpose(1, 2),
        "delta_product_state": product_state,
        "dplr": dplr,
        "dplr_state": dplr_state,
        "mesa": mesa.transpose(1, 2),
        "mesa_gram": gram,
        "mesa_state": memory,
    }


def main() -> None:
    x = inputs()
    tensors = x | outputs(Path(sys.argv[1]), x)
    target = Path(__file__).with_name("fla_naive.safetensors")
    save_file({name: y.contiguous() for name, y in tensors.items()}, target, {"peer": "fla-core 0.6.0"})


if __name__ == "__main__":
    main()
