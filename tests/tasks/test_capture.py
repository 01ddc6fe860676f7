"""What the in-context tasks promise a CUDA graph: sampling never waits for the device."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from assay.nn.random import stream
from assay.tasks import tasks

# A value read back, or a result whose size is a value.
WAIT = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "bincount", "equal", "lift_fresh")

WORDS = [
    *("mqar", "mqar:filler=no_keys", "mqar:filler=zero:power_a=1", "mqar:min_kv_pairs=1:filler=no_keys"),
    *("mqar:num_kv_pairs=128:input_seq_len=512:min_kv_pairs=4", "disjoint"),
    *(f"state_tracking:group={group}" for group in ("parity", "s3", "a5", "s5")),
    *("state_tracking:length=3..40", "state_tracking:group=s5:tokens=generators"),
    *("in_context_recall", "noisy_recall", "fuzzy_recall"),
    *("selective_copying", "compression", "memorization", "multi_hop_recall", "icll", "markov", "text"),
    *(f"regression:regression_type={kind}" for kind in ("linear", "quadratic", "sparse_linear", "noisy", "outlier")),
    *(f"boolean:boolean_type={kind}" for kind in ("dnf3", "cnf3", "int_halfspace", "sparse_threshold", "parity")),
    *(f"boolean:boolean_type={kind}" for kind in ("sparse_parity", "disjunction", "conjunction")),
]


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.waited = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        masked = any(index is not None and index.dtype == torch.bool for index in indices)
        if masked or name.startswith(WAIT):
            self.waited.add(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("word", WORDS)
def test_sampling_reads_nothing_back_copies_nothing_over_and_has_static_shapes(word):
    task, rng = tasks.parse(word), stream(0, "test")
    first = task.sample(8, rng)  # tables are kept per device, so a first call may copy them over
    with Watch() as watch:
        second = task.sample(8, rng)
    assert not watch.waited
    assert [(t.shape, t.dtype) for t in vars(first).values() if t is not None] == [
        (t.shape, t.dtype) for t in vars(second).values() if t is not None
    ]


def test_the_watch_sees_a_value_read_back_a_table_copied_over_and_a_boolean_index():
    with Watch() as watch:
        x = torch.arange(3) + torch.tensor([1, 2, 3])
        assert x[x > 2].sum().item() == 8
    assert watch.waited == {"lift_fresh", "index", "_local_scalar_dense"}
