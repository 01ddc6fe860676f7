"""Runs every measurement of one encoder. An extra probe is a method of a subclass:

@register("WithNorm")
class WithNorm(ExpressivityTester):
    def code_norm(self, enc):
        z = self.code(enc, self.generator.contexts[0], self.generator.features(256))
        return {"code_norm": z.norm(dim=1).mean().item()}

    def probes(self):
        return [*super().probes(), self.code_norm]
"""

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.core.errors import UserError
from assay.metrics.information import barber_agakov_bits, nce_bits
from assay.metrics.jacobian import jacobians, spectrum
from assay.metrics.probes import Split, masked_r2, principal_r2, r2
from assay.metrics.size import flops_per_token, parameters
from assay.nn.random import initialised_from, stream
from assay.studies.expressivity.references import Reference
from assay.studies.expressivity.spec.config import CACHED_LOOKUPS, Config
from assay.tasks.base import Batch, Task
from assay.train.adamw import FusedAdamW
from assay.train.head import head_r2

SHARES = (1.0, 0.75, 0.5, 0.25)
NCE_BLOCK = 1024
CONTEXTS: tuple[Literal[0, 1, 2], ...] = (0, 1, 2)

Subject = nn.Module | Reference
Probe = Callable[[Subject], dict[str, Any]]


class HybridGenerator:
    """Draws the synthetic world of the study: three contexts that hide global factors, and a lookup. A sample is from
    a named stream of the seed, so no encoder's data depend on what ran before. Subclass it to tweak a law, and give the
    subclass to `ExpressivityTester(cfg, generator=...)`."""

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self.contexts: tuple[Task, ...] = tuple(cfg.context(context, seed=cfg.seed) for context in CONTEXTS)
        self.retrieval: Task = cfg.lookup()

    def features(self, batch: int, context: int = 0, *, part: str = "sample") -> Batch:
        """Sequences whose targets are the global factors."""
        return self._draw(self.contexts[context], batch, f"context{context}", part)

    def lookups(self, batch: int, *, part: str = "sample") -> Batch:
        """Sequences whose target is the value at the queried key."""
        return self._draw(self.retrieval, batch, "retrieval", part)

    def stream(self, *names: str) -> torch.Generator:
        # Always on the CPU, so that a score does not depend on the device's generator.
        return stream(self.cfg.seed, "data", *names)

    def _draw(self, task: Task, batch: int, *names: str) -> Batch:
        return to_device(task.sample(batch, self.stream(*names)), self.cfg.torch_device)


def to_device(batch: Batch, device: str) -> Batch:
    return Batch(batch.inputs.to(device), batch.targets.to(device))


class PooledModule(nn.Module):
    """An encoder with one code per sequence, whatever the module inside returns."""

    def __init__(self, module: nn.Module, pool: str) -> None:
        super().__init__()
        self.module, self.pool = module, pool

    def forward(self, x: Float[Tensor, "batch time d_in"]) -> Float[Tensor, "batch d_code"]:
        z = self.module(x)
        if z.ndim == 3:
            return z[:, -1] if self.pool == "last" else z.mean(1)
        return z


class ExpressivityTester:
    """Measures an encoder: what survives in its code, and what it can look up. The encoder itself is never changed."""

    def __init__(self, cfg: Config, generator: HybridGenerator | None = None) -> None:
        self.cfg = cfg
        self.generator = generator or HybridGenerator(cfg)
        self._splits: dict[int, Split] = {}
        self.watch: Callable[[int, int, dict[str, Any]], None] = lambda done, total, metrics: None

    def evaluate(self, enc: Subject) -> dict[str, Any]:
        """The spec's scores by name (`R2`, `R2_0.75`, `R2_0.75_ctx1`, `NCE_bits`, `RetrieveR2`, ...) and ours."""
        start = time.perf_counter()
        self._splits.clear()
        out: dict[str, Any] = {}
        subject = enc if isinstance(enc, Reference) else self._prepared(enc, out)
        probes = self.probes()
        for done, probe in enumerate(probes):
            with initialised_from(self.cfg.seed, "probe", probe.__name__):  # a stream of its own for dropout and such
                out |= probe(subject)
            self.watch(done + 1, len(probes), out)
        return out | {"sec/run": time.perf_counter() - start}

    def probes(self) -> list[Probe]:
        """The probes that `evaluate` runs, in order."""
        wanted: list[Probe] = [self.compression, self.information]
        wanted += [self.after_training] if self.cfg.train_steps else []
        wanted += [self.retrieval] if self.cfg.head_steps else []
        wanted += [self.retrieval_trained] if self.cfg.end_to_end_steps else []
        wanted += [self.jacobian] if self.cfg.jac_points and not self.cfg.fast else []
        return [*wanted, self.size]

    def size(self, enc: Subject) -> dict[str, Any]:
        if isinstance(enc, Reference):
            return {}
        return {"enc_params": parameters(enc), "flops_per_token": flops_per_token(enc, self.cfg.L, self.cfg.D_in)}

    def compression(self, enc: Subject) -> dict[str, Any]:
        """Held-out ridge R2 of the global factors, from random shares of the code and from its top components."""
        cfg, out, curves = self.cfg, dict[str, Any](), []
        for context in CONTEXTS:
            split = self.context_split(enc, context)
            for share in SHARES:
                rng = stream(cfg.seed, "masks", context, str(share))
                out[f"R2_{share:.2f}_ctx{context}"] = masked_r2(split, share, cfg.masks, rng)
            curves.append(principal_r2(split))
        out["R2_pc"] = [_mean(column) for column in zip(*curves, strict=True)]
        means = {f"R2_{share:.2f}": _mean([out[f"R2_{share:.2f}_ctx{c}"] for c in CONTEXTS]) for share in SHARES}
        whole = means.pop("R2_1.00")
        return {"R2": whole} | means | {"R2_1.00": whole} | out

    def information(self, enc: Subject) -> dict[str, Any]:
        """Lower bounds on the bits that the code holds about the global factors."""
        split = self.context_split(enc, 0)
        return {"NCE_bits": nce_bits(split, NCE_BLOCK), "BA_bits": barber_agakov_bits(split)}

    def retrieval(self, enc: Subject) -> dict[str, Any]:
        """Train a small head on the frozen encoder."""
        cfg, task = self.cfg, self.generator.retrieval
        split = self.split(enc, task, self.generator.lookups, fit=CACHED_LOOKUPS * cfg.batch_eval)
        sizes = {"hidden": 2 * cfg.retr_hid, "steps": cfg.head_steps, "batch": cfg.batch_train}
        return {"RetrieveR2": head_r2(split, **sizes, lr=1e-3, seed=cfg.seed)}

    def retrieval_trained(self, enc: Subject) -> dict[str, Any]:
        """Train a copy of the encoder and a head end to end, with the same budget for every encoder."""
        if isinstance(enc, Reference):
            return {}
        cfg, task = self.cfg, self.generator.retrieval
        with initialised_from(cfg.seed, "lookup head"):
            hidden = 2 * cfg.retr_hid
            head = nn.Sequential(nn.Linear(cfg.D_z, hidden), nn.ReLU(), nn.Linear(hidden, cfg.V_dim))
        test = self.generator.lookups(cfg.batch_eval, part="test")
        return {"RetrieveR2_trained": self.trained_r2(enc, head, task, cfg.end_to_end_steps, test)}

    def after_training(self, enc: Subject) -> dict[str, Any]:
        """Train a copy of the encoder and a linear decoder on context 0."""
        if isinstance(enc, Reference):
            return {}
        cfg, task = self.cfg, self.generator.contexts[0]
        with initialised_from(cfg.seed, "decoder"):
            decoder = nn.Linear(cfg.D_z, cfg.r_global)
        test = self.generator.features(cfg.batch_eval, 0, part="test")
        return {"AfterTrainR2": self.trained_r2(enc, decoder, task, cfg.train_steps, test)}

    def jacobian(self, enc: Subject) -> dict[str, Any]:
        """Singular values of d code / d input: how many directions the code can move in."""
        if isinstance(enc, Reference):
            return {}
        batch = self.generator.features(self.cfg.jac_points, 0, part="jacobian")
        # The noise in units of the code's own spread, so that a gain of the code adds no capacity.
        spread = self.code(enc, self.generator.contexts[0], batch).std(dim=0).square().mean().sqrt().item()
        return spectrum(jacobians(enc, batch.inputs), self.cfg.noise * spread)

    # ------------------------------------------------------------------------------------------- for probes to use

    @torch.no_grad()
    def code(self, enc: Subject, task: Task, batch: Batch, part: str = "") -> Float[Tensor, "batch d_code"]:
        z = enc.code(task, batch, part) if isinstance(enc, Reference) else enc(batch.inputs)
        if not torch.isfinite(z).all():
            raise FloatingPointError("the code is not finite")
        return z

    def context_split(self, enc: Subject, context: int) -> Split:
        """Codes of one context, computed once per evaluation."""

        def draw(batch: int, *, part: str) -> Batch:
            return self.generator.features(batch, context, part=part)

        if context not in self._splits:
            task = self.generator.contexts[context]
            self._splits[context] = self.split(enc, task, draw, fit=self.cfg.batch_eval)
        return self._splits[context]

    def split(self, enc: Subject, task: Task, draw: Callable[..., Batch], *, fit: int) -> Split:
        """Codes and targets to fit a probe on, and others to score it on."""
        seen, held_out = draw(fit, part="fit"), draw(self.cfg.batch_eval, part="test")
        codes = self.code(enc, task, seen, "fit"), self.code(enc, task, held_out, "test")
        return Split(codes[0], seen.targets, codes[1], held_out.targets)

    def trained_r2(self, enc: nn.Module, head: nn.Module, task: Task, steps: int, test: Batch) -> float:
        """Held-out R2 after training a copy of `enc` under `head`; fresh sequences every step."""
        cfg = self.cfg
        model = nn.Sequential(copy.deepcopy(enc), head).to(cfg.torch_device).train()
        rng = self.generator.stream(task.name, "train")

        def loss() -> Tensor:
            batch = to_device(task.sample(cfg.batch_train, rng), cfg.torch_device)
            return nn.functional.mse_loss(model(batch.inputs), batch.targets)

        descend(model, loss, steps=steps, lr=cfg.lr)
        with torch.no_grad():
            return r2(model.eval()(test.inputs), test.targets)

    def _prepared(self, enc: nn.Module, out: dict[str, Any]) -> nn.Module:
        """Copy the encoder in evaluation mode to the device, and check its code's shape."""
        subject = PooledModule(copy.deepcopy(enc).to(self.cfg.torch_device).eval(), self.cfg.pool)
        with torch.no_grad():
            raw = subject.module(self.generator.features(2).inputs)
        expected = [(2, self.cfg.D_z), (2, self.cfg.L, self.cfg.D_z)]
        if not isinstance(raw, Tensor) or tuple(raw.shape) not in expected:
            seen = tuple(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
            raise UserError(f"the encoder returned {seen} for a batch of 2; it must be {expected[0]} or {expected[1]}.")
        if raw.ndim == 3:
            out["pool"] = self.cfg.pool
        self._check_alone(subject)
        return subject

    @torch.no_grad()
    def _check_alone(self, subject: nn.Module) -> None:
        """Raise if a code depends on the other sequences of its batch, which would leak the probes' targets."""
        x = self.generator.features(4).inputs
        together, alone = subject(x), torch.cat([subject(row) for row in torch.split(x, 1)])
        if not torch.isfinite(together).all():
            raise FloatingPointError("the code is not finite")
        if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4 * float(alone.abs().max())):
            raise UserError("the encoder's code of a sequence depends on the others of its batch: scores would leak.")


def descend(model: nn.Module, loss: Callable[[], Tensor], *, steps: int, lr: float) -> None:
    """Take `steps` of Adam on `loss()`, where the caller draws its batches."""
    parameters = list(model.parameters())
    # On CUDA the kernel takes tensors of one type.
    kinds = dict.fromkeys(p.dtype for p in parameters)
    adams = [FusedAdamW([p for p in parameters if p.dtype == kind], lr=lr) for kind in kinds]
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        loss().backward()
        with torch.no_grad():
            for adam in adams:
                adam.step([p.grad for p in adam.tensors])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
