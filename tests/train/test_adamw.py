"""The optimizer against torch's class of the same name, and what it does not import."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from assay.train.adamw import AdamW, FusedAdamW
from assay.train.recipe import Optimizer

OPTIONS = (Optimizer(), Optimizer(lr=3e-3, beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.3))
SHARES = (0.5, 1.0, 0.25)


def tensors(seed: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(3, 4, generator=rng), torch.randn(5, generator=rng)]


def gradients(step: int, seed: int) -> list[Tensor]:
    return tensors(100 * step + seed + 1)


def stepped(optimizer: AdamW, models: list[list[Tensor]], steps: range) -> None:
    for step in steps:
        for seed, model in enumerate(models):
            for p, gradient in zip(model, gradients(step, seed), strict=True):
                p.grad = gradient
        optimizer.set_rate(SHARES[step])
        optimizer.step()


def over(models: list[list[Tensor]]) -> AdamW:
    return AdamW((options, model[:1], model[1:]) for options, model in zip(OPTIONS, models, strict=True))


def test_every_model_moves_as_under_torchs_class() -> None:
    models = [tensors(seed) for seed in range(2)]
    stepped(over(models), models, range(3))
    for seed, (options, model) in enumerate(zip(OPTIONS, models, strict=True)):
        wanted = [p.requires_grad_() for p in tensors(seed)]
        torchs = torch.optim.AdamW(
            [{"params": wanted[:1]}, {"params": wanted[1:], "weight_decay": 0.0}],
            betas=(options.beta1, options.beta2), eps=options.eps, weight_decay=options.weight_decay,
        )  # fmt: skip
        for step in range(3):
            for p, gradient in zip(wanted, gradients(step, seed), strict=True):
                p.grad = gradient
            for group in torchs.param_groups:
                group["lr"] = options.lr * SHARES[step]
            torchs.step()
        for p, right in zip(model, wanted, strict=True):
            torch.testing.assert_close(p, right.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_without_a_schedule_it_has_the_bits_of_torchs_fused_class(kind: type) -> None:
    """Without decay of Adam, with decay of AdamW: every bank uses this one optimizer."""
    decay = {torch.optim.Adam: 0.0, torch.optim.AdamW: 0.3}[kind]
    mine, wanted = tensors(0), [p.requires_grad_() for p in tensors(0)]
    fused = FusedAdamW(mine, lr=1e-2, weight_decay=decay)
    torchs = kind(wanted, lr=1e-2, weight_decay=decay, fused=True)
    for step in range(4):
        for p, gradient in zip(wanted, gradients(step, 0), strict=True):
            p.grad = gradient
        fused.step(gradients(step, 0))
        torchs.step()
    assert all(torch.equal(p, right) for p, right in zip(mine, wanted, strict=True))


def test_rows_that_are_kept_go_on_as_before() -> None:
    """Models leave a bank while the others are trained."""
    which = torch.tensor([True, False, True])
    whole, part = ([torch.randn(3, 4, generator=torch.Generator().manual_seed(0))] for _ in range(2))
    all_of_them, some = FusedAdamW(whole, lr=1e-2), FusedAdamW(part, lr=1e-2)
    for step in range(4):
        all_of_them.step([gradients(step, 0)[0]])
        some.step([gradients(step, 0)[0][which] if step >= 2 else gradients(step, 0)[0]])
        if step == 1:
            some.keep(which)
    assert torch.equal(some.tensors[0], whole[0][which])


def test_tensors_of_two_types_are_never_in_one_call() -> None:
    """On CUDA the kernel refuses them; a mixer or an encoder of somebody else may have both."""
    models = [[torch.ones(3), torch.ones(3, dtype=torch.float64)]]
    optimizer = AdamW([(OPTIONS[0], models[0], [])])
    assert [len({p.dtype for p in group.tensors}) for group in optimizer.groups.values()] == [1, 1]


def test_a_tensor_without_a_gradient_stays() -> None:
    moved, still = tensors(0)
    moved.grad = torch.ones_like(moved)
    optimizer = AdamW([(OPTIONS[0], [moved, still], [])])
    optimizer.set_rate(1.0)
    optimizer.step()
    assert torch.equal(still, tensors(0)[1]) and not torch.equal(moved, tensors(0)[0])
    moved.grad = None
    once = moved.clone()
    optimizer.step()
    assert torch.equal(moved, once)


def test_it_goes_on_from_a_saved_state() -> None:
    whole, first = ([tensors(seed) for seed in range(2)] for _ in range(2))
    stepped(over(whole), whole, range(3))
    optimizer = over(first)
    stepped(optimizer, first, range(2))
    second = [[p.detach().clone() for p in model] for model in first]
    later = over(second)
    later.restore(optimizer.state())
    stepped(later, second, range(2, 3))
    assert all(
        torch.equal(a, b) for mine, right in zip(second, whole, strict=True) for a, b in zip(mine, right, strict=True)
    )


@pytest.mark.parametrize("module", ["torch._dynamo"])
def test_training_imports_no_compiler(module: str) -> None:
    """Its import takes seconds, in every worker."""
    program = f"""
import sys, torch
from assay.models.sequence import SequenceModel
from assay.tasks import tasks
from assay.train.recipe import Optimizer, Train
from assay.train.trainer import SingleTrainer
task = tasks.parse("mqar:vocab_size=32:input_seq_len=16:num_kv_pairs=2")
model = SequenceModel(model_dim=16).build(task.shape())
list(SingleTrainer(model, task, Train(max_steps=2, micro_batch_size=2), Optimizer(), seed=0).run())
print({module!r} in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
