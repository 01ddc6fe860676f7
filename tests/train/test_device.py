"""The settings of torch that belong to a run."""

import torch

from assay.core.run import Numerics
from assay.train.device import activate


def product() -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    left, right = (torch.randn(64, 48, 48, generator=rng) for _ in range(2))
    return left @ right.mT


def test_the_bits_of_a_run_do_not_depend_on_whether_torch_dropped_onednn_before() -> None:
    found = []
    for dropped in (False, True):
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(not dropped)
        with activate(Numerics(device="cpu")):
            found.append(product())
        assert torch._C._get_mkldnn_enabled() is not dropped, "left as it was found"
        torch._C._set_mkldnn_enabled(before)
    assert torch.equal(*found)
