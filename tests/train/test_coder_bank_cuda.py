"""On CUDA a step is one replayed graph: the numbers of the plain path, every kind of coder."""

import pytest
import torch

from assay.core.run import Numerics
from assay.nn.random import stream
from assay.sparse_coders import sparse_coders
from assay.train.coder_bank import CoderBank, CoderRecipe
from assay.train.device import activate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
KINDS = (
    ["lse_infomax", "lse_infomax:lambda_lse=0.0"],
    ["lse_infomax:scale=unit_norm"],
    ["lse_infomax:scale=hinge"],
    ["lse_infomax:decorrelation=logdet"],
    ["relu_l1:l1=0.1", "relu_l1:l1=1.0"],
    ["topk:k=2", "topk:k=6"],
    ["batch_topk:k=2", "batch_topk:k=6"],
    ["jump_relu:l0=0.1"],
    ["gated:l1=0.1"],
    ["matryoshka:k=2"],
)


@pytest.mark.parametrize("words", KINDS, ids=lambda words: words[0])
def test_a_graph_gives_the_numbers_of_the_plain_path(words: list[str]) -> None:
    x = torch.randn(410, 48, generator=stream(0, "data"))
    x[:, :3] = 0
    cells = [(word, seed, rate) for seed in (0, 1) for word in words for rate in (1e-3, 3e-3)]
    coders, seeds, rates = zip(*((sparse_coders.parse(word), seed, rate) for word, seed, rate in cells), strict=True)
    recipe = CoderRecipe(epochs=4, batch=64, partial="logdet" not in words[0])  # a last batch of 26 is too small for it
    with activate(Numerics(device="cuda")):
        banks = [CoderBank(coders, seeds, rates, x.cuda(), 16, recipe, graph=graph) for graph in (True, False)]
        histories = [list(bank.run()) for bank in banks]
    for graphed, plain in zip(*histories, strict=True):
        assert graphed.terms["total"] == pytest.approx(plain.terms["total"], rel=1e-4)
    for name, value in banks[0].module.state_dict().items():
        torch.testing.assert_close(value, banks[1].module.state_dict()[name], rtol=1e-3, atol=1e-4)


def test_a_graphed_bank_is_near_the_cpus() -> None:
    x = torch.randn(256, 48, generator=stream(0, "data"))
    recipe = CoderRecipe(epochs=3, batch=64)
    coder = sparse_coders.parse("lse_infomax")
    banks = [CoderBank([coder], [0], [1e-3], x.to(device), 16, recipe) for device in ("cpu", "cuda")]
    for cpu, cuda in zip(*(list(bank.run()) for bank in banks), strict=True):
        assert cpu.terms["total"] == pytest.approx(cuda.terms["total"], rel=1e-3)
