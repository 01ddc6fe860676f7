"""Every plug-in keeps its promises with drawn options, not with its defaults alone.

Options are drawn from the types of the fields. What a plug-in refuses in words (a UserError) is fine; anything else
that it raises, and every broken promise, is a fault. The draws are the same on every machine.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from assay.attention.base import Budget, BudgetTooSmall
from assay.attention.checks import numbers
from assay.attention.lanes import Lane, attended, realised_density
from assay.attention.layer import Layer
from assay.contracts import base, encoders, mixers, probes, sparse_coders, state_mixers, tasks, vectors
from assay.contracts.shared import loads_back
from assay.core.convert import option_types
from assay.core.errors import UserError
from assay.core.plugin import Plugin, registries
from assay.nn.random import stream

FEW, MANY = 5, 60
NEEDS_FILES = {"activations", "mnist"}
NEEDS_A_GPU = {"fla_layer"}
PINNED: dict[str, dict[str, Any]] = {
    "concepts": {"rows": 400},
    "delta_product": {"num_householder": 3},
    "dictionary": {"rows": 400},
    "stream": {"model": "tiny", "hook": "model.layers.0", "text": "documents.jsonl"},  # else it would ask the hub
}
"""What would only make a test slow."""
HERE_ALONE = {"kvpress"}
"""No other test of promises tries its defaults."""


def keeps_its_mask(method: Any) -> None:
    """The promises of an attention method, on a layer short enough for many draws."""
    loads_back(method)
    rng, time = stream(0, "drawn"), 40
    q, k, v = (torch.randn(2, heads, time, 4, generator=rng) for heads in (4, 2, 2))
    layer, later = Layer(q, k, v, index=8, layers=12), torch.arange(time)[:, None, None] >= time - 5
    changed = Layer(*(torch.where(later[:, 0], x.flip(2), x) for x in (q, k, v)), index=8, layers=12)
    for budget in (Budget(slots=9), Budget(sparsity=0.25), Budget(sparsity=0.0)):
        lane = Lane(method, budget)
        try:
            lane.check(time)
        except BudgetTooSmall:
            continue
        with numbers() as seen:
            kept, again = attended([lane], layer), attended([lane], changed)
            seen.raise_for_none()
        assert not (kept & ~layer.visible[:, None]).any(), f"{budget}: a query attends to what is hidden"
        assert kept.diagonal(dim1=2, dim2=3).all(), f"{budget}: a query does not attend to itself"
        assert torch.equal(kept[:, :, : time - 5], again[:, :, : time - 5]), f"{budget}: the future is read"
        dense, real = lane.is_dense(time), realised_density(kept, layer).mean().item()
        assert not dense or real == 1, f"{budget}: it calls itself dense, and its density is {real:.4f}"
        expected = method.expected_density(time, budget)
        close = expected is None or abs(real - expected) <= 0.02 * expected
        assert close, f"{budget}: density {real:.4f}, expected_density says {expected:.4f}"


def steps_as_it_runs_in_parallel(mixer: Any) -> None:
    """In float64: norms over heads of one or two channels make much of the rounding of float32."""
    module, x = mixers._module(mixer).double(), mixers._sequences(3).double()
    state, outputs = module.init_state(len(x)), []
    with torch.no_grad():
        for token in x.unbind(1):
            y, state = module.step(token, state)
            outputs.append(y)
        worst = (module(x) - torch.stack(outputs, dim=1)).abs().max().item()
    assert worst < 1e-8, f"the two forms differ by {worst:.1e}"


CHEAP: dict[str, list[Callable[[Any], None]]] = {
    "attention": [keeps_its_mask],
    "encoders": [
        encoders.gives_one_code_per_sequence,
        encoders.codes_each_sequence_alone,
        encoders.is_finite,
        loads_back,
    ],
    "mixers": [
        mixers.keeps_the_shape_for_any_length,
        mixers.does_not_read_the_future,
        steps_as_it_runs_in_parallel,
        mixers.carries_the_state_it_declares,
        mixers.mixes_each_sequence_alone,
        loads_back,
    ],
    "probes": [
        probes.gives_the_same_text_for_the_same_seed,
        probes.has_its_answer_in_the_context,
        probes.is_answered_by_the_context_alone,
        probes.has_its_answer_nowhere_else,
        loads_back,
    ],
    "sparse_coders": [
        sparse_coders.gives_a_code_per_row,
        sparse_coders.codes_each_row_alone,
        sparse_coders.gradients_are_those_of_the_loss,
        sparse_coders.keeps_models_apart,
        loads_back,
    ],
    "state_mixers": [
        state_mixers.keeps_the_shape,
        state_mixers.works_on_each_position_alone,
        state_mixers.is_finite_and_trains,
        loads_back,
    ],
    "tasks": [
        tasks.gives_equal_batches_to_equal_generators,
        tasks.draws_together_what_it_draws_alone,
        tasks.has_the_shape_it_says,
        tasks.is_finite,
        tasks.answers_each_sequence_alone,
        loads_back,
    ],
    "vectors": [vectors.has_three_parts_of_finite_rows, vectors.is_the_same_every_time, loads_back],
}
PLUGINS = [
    (folder, name) for folder in CHEAP for name in registries()[folder].names() if name not in NEEDS_FILES | NEEDS_A_GPU
]


def values(hint: Any, default: Any) -> st.SearchStrategy[Any]:
    """Values of a field: those near the edges of what it may take, its default, and some that should be refused."""
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if isinstance(hint, type) and issubclass(hint, Plugin):
        return st.one_of(st.just(default), st.sampled_from([hint.registry[name] for name in hint.registry.names()]))
    match default:
        case bool():
            return st.booleans()
        case int():
            return st.one_of(st.integers(1, 12), st.integers(-1, 40))
        case float():
            return st.sampled_from([default, default / 2, 2 * default, 0.0, 1e-3, 0.25, 1.0, 3.0, -1.0])
        case None if int in get_args(hint):
            return st.one_of(st.none(), st.integers(0, 12))
        case _:
            return st.just(default)


def drawn(draw: Callable[[Any], Any], cls: type[Plugin]) -> Plugin | None:
    """A plug-in with some of its options drawn; None where it refuses them."""
    options: dict[str, Any] = dict(PINNED.get(cls.name, {}))
    plain = cls(**options)
    for name, hint in option_types(cls).items():
        if name not in options and draw(st.booleans()):
            options[name] = draw(values(hint, getattr(plain, name)))
    try:
        made = {name: value() if isinstance(value, type) else value for name, value in options.items()}
        return cls(**made)
    except UserError:
        return None


def keeps(folder: str, plugin: Plugin) -> None:
    for promise in CHEAP[folder]:
        try:
            promise(plugin)
        except UserError as error:
            assert str(error), f"{plugin} is refused without a word"
        except Exception as error:
            raise AssertionError(f"{folder} {plugin}: {type(error).__name__}: {error}") from error


def tried(folder: str, name: str, examples: int) -> None:
    @seed(0)  # and not `derandomize`, whose draws are others when a line of this file is
    @settings(
        max_examples=examples,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # looking for a simpler fault takes minutes, and options are few
    )
    @given(st.data())
    def draws(data: st.DataObject) -> None:
        plugin = drawn(data.draw, cls)
        if plugin is not None and plugin not in seen:
            keeps(folder, plugin)
            seen.add(plugin)

    cls = registries()[folder][name]
    # With its defaults, the first draw, a plug-in keeps every promise elsewhere: test_mixers and its neighbours.
    seen = set[Plugin]() if name in {*PINNED, *HERE_ALONE} else {cls()}
    draws()


@pytest.fixture
def files(request: pytest.FixtureRequest, name: str) -> None:
    """The files that a plug-in's pinned options name."""
    if name == "stream":
        request.getfixturevalue("stream")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many draws on short sequences: test_mixers tries the long ones, with the published options."""
    monkeypatch.setattr(mixers, "LENGTHS", (mixers.SHORT,))


@pytest.mark.parametrize(("folder", "name"), PLUGINS)
def test_a_plug_in_keeps_its_promises_with_drawn_options(folder: str, name: str, files: None) -> None:
    tried(folder, name, FEW)


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "name"), PLUGINS)
def test_a_plug_in_keeps_its_promises_with_many_drawn_options(folder: str, name: str, files: None) -> None:
    tried(folder, name, MANY)


def test_what_is_pinned_can_be_loaded(stream: Any) -> None:
    """A stream that is always refused, for a model that is not here, would keep every promise."""
    vectors.has_three_parts_of_finite_rows(registries()["vectors"]["stream"](**PINNED["stream"]))


def test_every_folder_with_promises_has_some_that_are_tried_on_draws() -> None:
    assert set(CHEAP) == {folder for folder in registries() if base.has_contract(folder)}


def test_a_fault_that_shows_with_other_options_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = registries()["state_mixers"]["mlp"]
    build = cls.build

    def broken(self: Any, d_model: int) -> Any:
        if 1 <= self.inner < 8:
            raise RuntimeError("too narrow")
        return build(self, d_model)

    monkeypatch.setattr(cls, "build", broken)
    with pytest.raises(AssertionError, match=r"mlp:inner=.*RuntimeError: too narrow"):
        tried("state_mixers", "mlp", MANY)
