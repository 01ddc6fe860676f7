"""Hugging Face causal language models run here with sparse attention inside them.

    model = load_model("HuggingFaceTB/SmolLM2-135M")
    with sparse(model, "h2o", sparsity=0.9) as usage:
        logits = model(ids, use_cache=False).logits
    print(usage.attended / usage.visible)          # the density that was realised

Attention is taken over where the model asks for it (taking_over.py), so that most models can be made sparse; the
model's own mask (padding, a sliding window), capped scores and learned sinks are kept to. Inside `sparse_lanes` the
rows of a batch are the sequences of the first lane, then those of the second, and so on. transformers is in the extra
`lm`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from assay.attention import attention
from assay.attention.base import Budget, Method, Select
from assay.attention.checks import Numbers, numbers
from assay.attention.lanes import Lane, Usage, attend
from assay.attention.layer import Call, Keys, Layer, Output, Queries, Values
from assay.core.errors import UserError
from assay.core.files import is_there
from assay.core.plugin import plugins_in
from assay.data.language_model import WEIGHTS, check_loads, check_not_gguf_folder, placed
from assay.data.language_model import check_contexts as check_contexts
from assay.data.language_model import fingerprint as fingerprint
from assay.data.language_model import load_model as load_model
from assay.data.language_model import load_tokenizer as load_tokenizer
from assay.models.calibration import head_scores
from assay.models.layout import Layout, model_layout, why_not
from assay.models.taking_over import own_mask, taking_over


def check_model(name: str, *, contexts: Iterable[int], revision: str | None = None) -> None:
    """Raise UserError for what would fail or mean nothing once the model is loaded: a folder without weights, contexts
    that are longer than the model has positions for, and a quantised model whose package is missing."""
    check_not_gguf_folder(name)
    folder = placed(name)
    if is_there(folder, folder=True) and not any(path.suffix in WEIGHTS for path in Path(folder).iterdir()):
        raise UserError(f"cannot load the model '{name}': the folder has no file of weights ({', '.join(WEIGHTS)}).")
    check_contexts(name, contexts, option="--context-lengths", revision=revision)
    check_loads(name, revision=revision)


@contextmanager
def sparse(
    model: nn.Module,
    method: str | Method,
    *,
    sparsity: float | None = None,
    slots: int | None = None,
    positions: Literal["absolute", "cache"] = "absolute",
    chunk: int = 1,
    prefix: int = 0,
    **options: Any,
) -> Iterator[Usage]:
    """Run the model with one method inside: `sparse(model, "streaming_llm", slots=256, num_sink_tokens=4)`."""
    chosen = method if isinstance(method, Method) else attention.load({"name": method} | options)
    # Without a budget the method is dense, or has its own sizes.
    budget = Budget(sparsity=0.0 if sparsity is None and slots is None else sparsity, slots=slots)
    with sparse_lanes(model, [Lane(chosen, budget, positions, chunk, prefix)]) as (usage,):
        yield usage


@contextmanager
def sparse_lanes(model: nn.Module, lanes: Sequence[Lane], *, count: bool = True) -> Iterator[list[Usage]]:
    """Let rows of a batch attend by the lane they belong to, inside the block. The model is restored on leaving, also
    after an error; a nested block takes over until it ends. On leaving it raises MethodFault if scores were NaN."""
    methods = [method for lane in lanes for method in methods_of(lane)]
    heads = head_scores(model) if any(method.asks_heads for method in methods) else None
    state = State(tuple(lanes), [Usage() for _ in lanes], count, model, model_layout(model), heads)
    with ExitStack() as hooks, taking_over(model, state.attend), numbers() as state.numbers:
        # Hook the body, which runs whether or not logits are wanted.
        hooks.enter_context(getattr(model, "base_model", model).register_forward_hook(state.check_used))
        for part in model.modules() if any(method.asks_call for method in methods) else ():
            if hasattr(part, "layer_idx"):
                hooks.enter_context(part.register_forward_pre_hook(state.note_call, with_kwargs=True))
        yield state.usage
        state.numbers.raise_for_none()  # not after every forward pass, for which a GPU would wait


def methods_of(lane: Lane) -> list[Method]:
    """Return the method of a lane, and those whose scores it takes."""
    return [part for part in plugins_in(lane.method) if isinstance(part, Method)]


def refusal(layout: Layout, lane: Lane, time: int) -> str:
    """Return why a lane cannot run on a model of this layout; nothing, if it can. Known before a pass, so that others
    go on."""
    methods = methods_of(lane)
    if lane.is_dense(time):
        return ""
    for method in methods:
        if method.asks_plain_scores and layout.capped:
            return f"{method.name}: this model caps its scores, and it is defined for scores without a cap."
    sinks = lane.positions == "cache" and bool((lane.in_cache(time) or (0, 0))[0])
    if sinks and None in layout.turns.values():
        return "positions inside the cache need a model with rotary positions. Use --positions absolute."
    if sinks or any(method.asks_unturned for method in methods):
        return next(filter(None, map(why_not, layout.turns.values())), "")
    return ""


@dataclass
class State:
    """Computes the attention of a model inside a block."""

    lanes: tuple[Lane, ...]
    usage: list[Usage]
    count: bool
    model: nn.Module
    layout: Layout
    heads: Float[Tensor, "layers kv_heads"] | None
    used: bool = False
    """Whether a layer has asked for attention."""
    numbers: Numbers = field(default_factory=Numbers)
    calls: dict[int, Call] = field(default_factory=dict)
    """The latest call of each attention module, by its id, for methods that ask."""

    def note_call(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        hidden = named["hidden_states"] if "hidden_states" in named else args[0]
        self.calls[id(module)] = Call(self.model, module, hidden, named.get("position_embeddings"))

    def check_used(self, model: nn.Module, *_: Any) -> None:
        """Raise, after a forward pass, if no layer called the attention function."""
        if not self.used:
            raise UserError(f"no layer of {type(model).__name__} asked for attention: it has an attention of its own.")

    def attend(self, module: Any, q: Queries, k: Keys, v: Values, mask: Tensor | None, **how: Any) -> Output:
        """Return the output of attention in a layer; `how`: its scale, cap and sinks."""
        if q.shape[2] != k.shape[2]:
            raise UserError("sparse attention scores whole sequences: call the model with use_cache=False.")
        lanes = [lane.fitted(q.shape[2]) for lane in self.lanes]
        if refused := next(filter(None, (refusal(self.layout, lane, q.shape[2]) for lane in lanes)), ""):
            raise UserError(refused)
        self.used = True
        index, turns = int(module.layer_idx), self.layout.turns
        place, call = self.layout.place(index), self.calls.pop(id(module), None)
        how |= {"layers": len(turns), "turn": turns[index], "call": call, "heads": self.heads}
        layer = Layer(q, k, v, own_mask(mask, len(q)), place, **how)
        _check_padding(lanes, layer)
        return attend(lanes, layer, usage=self.usage if self.count else None)


def _check_padding(lanes: Sequence[Lane], layer: Layer) -> None:
    """Raise UserError for a sparsity with padded rows: it is a share of a sequence's length, which is not that of a row
    with padding in front. Methods that select take their share of what each query sees."""
    shares = [lane for lane in lanes if lane.budget.sparsity and not isinstance(lane.method, Select)]
    if shares and layer.mask is not None and layer.start.any():
        raise UserError(
            f"{shares[0].method.label}: a sparsity is a share of a sequence's length, and these sequences are padded "
            "in front. Give slots instead."
        )
