"""Every encoder keeps every promise, and the promises notice encoders that do not."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from assay.contracts import encoders as contract
from assay.encoders import encoders
from assay.encoders.base import Encoder
from promised import broken

VARIANTS = ("static_mlp:width=16", "self_attn:width=70", "self_attn:width=5", "self_attn:heads=1")


@pytest.mark.parametrize("word", [*encoders.names(), *VARIANTS])
def test_encoder_keeps_every_promise(word):
    assert not broken("encoders", encoders.parse(word))


class Broken(nn.Module):
    """A linear code of the last token with one fault."""

    def __init__(self, d_in, d_code, fault):
        super().__init__()
        self.fault, self.unused = fault, nn.Parameter(torch.zeros(())) if fault == "unused" else None
        self.code = nn.Linear(d_in, d_code)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        match self.fault:
            case "batch":
                x = x - x.mean(0)
            case "random":
                x = x + torch.randn_like(x)
            case "overflow":
                x = torch.exp(x)
            case "constant":
                x = x * 0
            case "dtype":
                return self.code.float()(x.float())[:, -1]
            case "counts":
                self.calls += 1
            case "tokens":
                return self.code(x)
        return self.code(x)[:, -1]


@dataclass(frozen=True, kw_only=True)
class Faulty(Encoder):
    fault: str = ""

    def build(self, length, d_in, d_code):
        return Broken(d_in, d_code, self.fault)


@pytest.mark.parametrize(
    ("fault", "promise", "seen"),
    [
        ("batch", contract.codes_each_sequence_alone, "differ by"),
        ("random", contract.is_the_same_twice, "two forward passes differ"),
        ("overflow", contract.is_finite, "not finite for inputs of size 100"),
        ("constant", contract.distinguishes_sequences, "all have the code"),
        ("unused", contract.trains_every_parameter, "unused got no gradient"),
        ("constant", contract.trains_every_parameter, r"gradient of code\.weight is exactly zero"),
        ("dtype", contract.works_in_float64, "gave torch.float32"),
        ("counts", contract.keeps_its_weights, "changed calls"),
    ],
)
def test_a_broken_promise_is_noticed(fault, promise, seen):
    promise(Faulty())
    with pytest.raises(AssertionError, match=seen):
        promise(Faulty(fault=fault))


def test_only_a_foreign_encoder_may_give_a_code_per_token(monkeypatch):
    contract.gives_one_code_per_sequence(Faulty(fault="tokens"))
    monkeypatch.setattr(Faulty, "__module__", "assay.encoders.faulty")
    with pytest.raises(AssertionError, match=r"gave \(4, 32, 32\), expected \(4, 32\)"):
        contract.gives_one_code_per_sequence(Faulty(fault="tokens"))
