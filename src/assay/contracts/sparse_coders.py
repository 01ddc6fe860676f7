"""Every sparse coder keeps these promises: see assay.sparse_coders.base."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.sparse_coders.base import CoderModule, SparseCoder, TrainedCoder, pick, stack

D_IN, D_CODE, BATCH = 12, 8, 40


def gives_a_code_per_row(coder: SparseCoder) -> None:
    """(groups, batch, d_in) in, finite (models, batch, d_code) out."""
    module = _module(coder)
    code = module.encode(_rows(1))
    assert code.shape == (module.models, BATCH, D_CODE), f"gave {tuple(code.shape)}"
    assert code.isfinite().all(), "codes are not finite"
    assert module.directions().shape == (module.models, D_CODE, D_IN), "a unit stands for one direction of the input"


def codes_each_row_alone(coder: SparseCoder) -> None:
    """A row's code does not depend on the other rows, within 1e-9 in float64."""
    module, x = _module(coder), _rows(1)
    alone = torch.cat([module.encode(row) for row in x.split(1, dim=1)], dim=1)
    worst = (alone - module.encode(x)).abs().max().item()
    assert worst < 1e-9, f"rows mix: {worst:.1e}"


def distinguishes_rows(coder: SparseCoder) -> None:
    """Different rows have different codes."""
    code = _module(coder).encode(_rows(1))[0]
    assert (code != code[0]).any(), "all rows have one code"


def gradients_are_those_of_the_loss(coder: SparseCoder) -> None:
    """`gradient` writes what autograd makes of `loss`, within 1e-9 in float64, to every parameter."""
    if not isinstance(coder, TrainedCoder):
        return
    mine, plain = (_fresh([coder] * 2, [0, 1]) for _ in range(2))
    x = _rows(2)
    terms = mine.gradient(x)
    loss = plain.loss(x)
    loss["total"].sum().backward()
    for name, parameter in mine.named_parameters():
        other = plain.get_parameter(name).grad
        assert parameter.grad is not None and other is not None, f"{name} got no gradient"
        assert parameter.grad.isfinite().all(), f"the gradient of {name} is not finite"
        worst = (parameter.grad - other).abs().max().item()
        assert worst < 1e-9 * max(1.0, other.abs().max().item()), f"the gradient of {name} is off by {worst:.1e}"
    for name, term in terms.items():
        worst = (term - loss[name]).abs().max().item()
        assert worst < 1e-9 * max(1.0, loss[name].abs().max().item()), f"{name} is off by {worst:.1e}"


def keeps_models_apart(coder: SparseCoder) -> None:
    """Through two steps of training, a model's loss, gradient, buffers and code are the same bits alone and beside
    others of other seeds and levels."""
    if not isinstance(coder, TrainedCoder):
        return
    x, other = _rows(2).float(), _of_another_level(coder)
    coders, seeds = [coder, other, other, coder], [0, 0, 1, 1]
    together = _fresh(coders, seeds, torch.float32)
    alone = [_fresh([one], [seed], torch.float32) for one, seed in zip(coders, seeds, strict=True)]
    for _ in range(2):
        terms = _step(together, x)
        for place, module in enumerate(alone):
            group = seeds[place]
            for name, term in _step(module, x[group : group + 1]).items():
                assert torch.equal(term[0], terms[name][place]), f"{name} of the loss depends on who else is trained"
            for name, parameter in module.named_parameters():
                mine, shared = parameter.grad, together.get_parameter(name).grad
                assert mine is not None and shared is not None
                assert torch.equal(mine[0], shared[place]), f"the gradient of {name} depends on who else is trained"
    codes = together.encode(x)
    for place, module in enumerate(alone):
        own = x[seeds[place] : seeds[place] + 1]
        assert torch.equal(module.encode(own)[0], codes[place]), "a code depends on who else is trained"
        picked = pick(coders[place], together, place)
        assert torch.equal(picked.encode(own), module.encode(own)), "a picked model codes differently"
        for name, value in module.state_dict().items():
            assert torch.equal(value, picked.state_dict()[name]), f"{name} depends on who else is trained"


def codes_what_it_trains(coder: SparseCoder) -> None:
    """`encode` gives the code of the loss. With a decoder: the term `mse` is what decode(encode(x)) leaves, summed or
    averaged over inputs, within 1 % (a batch may be cut otherwise than a row). Without one the loss sees x through
    the code alone, and all of it: its slope in x lies in the span of the code's, and a unit that it feels on some rows
    it feels on every row on which the unit moves."""
    if not isinstance(coder, TrainedCoder):
        return
    module, x = _disturbed(coder), _rows(1).requires_grad_()
    terms, code = module.loss(x), module.encode(x)
    if module.has_decoder:
        assert "mse" in terms, "a coder with a decoder names its squared error `mse` among the terms of its loss"
        left = (x - module.decode(code)).square().sum(dim=2).mean().item()
        claimed = terms["mse"].item()
        ratio = min((claimed / left, claimed * D_IN / left), key=lambda share: abs(share - 1))
        assert abs(ratio - 1) < 0.01, f"encode is not the code of the loss: mse {claimed:.4g}, of the code {left:.4g}"
        return
    (slope,) = torch.autograd.grad(terms["total"].sum(), x)
    units = [torch.autograd.grad(unit.sum(), x, retain_graph=True)[0][0] for unit in code[0].unbind(1)]
    span = torch.stack(units, dim=2)  # row by row, what each unit sees of x
    felt = (torch.linalg.pinv(span) @ slope[0][:, :, None])[:, :, 0]  # the loss's slope in each unit
    missed = slope[0] - (span @ felt[:, :, None])[:, :, 0]
    share = (missed.norm() / slope.norm()).item()
    assert share < 1e-6, f"encode is not the code of the loss: {share:.1%} of its slope in x is not the code's"
    # Per unit: a hinge on a unit's variance is flat on all rows alike, and is a loss of the code nonetheless.
    most = felt.abs().amax(dim=0)
    unfelt = (felt.abs() < 1e-9 * most) & (most > 1e-9 * most.max())
    silent = (unfelt & (span.norm(dim=1) > 0)).double().mean().item()
    assert silent == 0, f"encode is not the code of the loss: {silent:.1%} of it move without moving the loss"


def training_lowers_its_loss(coder: SparseCoder) -> None:
    """A hundred small steps down the gradient, on one batch, lower the loss."""
    if not isinstance(coder, TrainedCoder):
        return
    module, x = _fresh([coder], [0]), _rows(1)
    first = module.gradient(x)["total"].item()
    with torch.no_grad():
        optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
        for _ in range(100):
            optimizer.step()
            module.after_step()
            last = module.gradient(x)["total"].item()
    assert last < first, f"the loss went from {first:.4g} to {last:.4g}"


def is_the_same_twice(coder: SparseCoder) -> None:
    """Fitted or initialised twice from one seed, it gives the same codes."""
    one, other = (_module(coder).encode(_rows(1)) for _ in range(2))
    assert torch.equal(one, other), "two builds differ"


def _module(coder: SparseCoder) -> CoderModule:
    if isinstance(coder, TrainedCoder):
        return _fresh([coder], [0])
    coder.check(D_IN, D_CODE, BATCH)
    return coder.fit(_rows(1)[0].repeat(4, 1), D_CODE, seed=0)  # type: ignore[attr-defined]


def _fresh(coders: list[TrainedCoder], seeds: list[int], dtype: torch.dtype = torch.float64) -> CoderModule:
    coders[0].check(D_IN, D_CODE, BATCH)
    module = stack(coders, D_IN, D_CODE).to(dtype)
    module.initialise(seeds, torch.zeros(D_IN, dtype=dtype))
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return module


def _of_another_level(coder: TrainedCoder) -> TrainedCoder:
    """Return the coder with other values of the options in which the models of one module may differ."""
    coder.check(D_IN, D_CODE, BATCH)
    for column in coder.columns:
        value = getattr(coder, column)
        for another in (2 * value, value + 1, value - 1, value // 2):
            try:
                changed = replace(coder, **{column: another})
                changed.check(D_IN, D_CODE, BATCH)
            except UserError:
                continue
            if another != value:
                break
        else:
            raise AssertionError(f"no value of {column} but {value} is accepted: it is no column")
        coder = changed
    return coder


def _step(module: CoderModule, x: Tensor) -> Mapping[str, Tensor]:
    """Take one step down the gradient; return the terms of the loss before it."""
    terms = {name: term.clone() for name, term in module.gradient(x).items()}
    with torch.no_grad():
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=1e-3)
        module.after_step()
    return terms


def _disturbed(coder: TrainedCoder) -> CoderModule:
    """Return a module moved away from its start, where biases may be 0 and decoders tied."""
    module, rng = _fresh([coder], [0]), stream(0, "contract", "disturbed")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=rng, dtype=parameter.dtype), alpha=0.1)
        module.after_step()
    return module


def _rows(groups: int) -> Tensor:
    """Return standard normal rows, the same at every call."""
    rng = stream(0, "contract")
    return torch.randn(groups, BATCH, D_IN, generator=rng, dtype=torch.float64)
