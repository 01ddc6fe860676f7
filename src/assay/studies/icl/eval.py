"""Score any function on a task, untrained: `assay icl eval --model mine.py:answer task:mqar --task.num_kv_pairs 4`.

    def answer(inputs):                   # (batch, time) tokens, or (batch, time, d) vectors
        return logits                     # (batch, time, outputs): an answer at every position
    def answer(inputs, *, positions):     # or, where (batch, answers) positions are asked for,
        return logits                     # (batch, answers, outputs)

Where a task reads several answers at one position, `outputs` are those of the first, then those of the second, ...

The model is a function, or an `nn.Module` that is built already, of a file (`folder/mine.py:answer`) or of a module
that Python can import from here (`package.mine:answer`). The sha256 of that file is part of a run's options: an edited
model is another run. What the file itself reads, weights or other modules, is not.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from assay.core.convert import convert, nearest
from assay.core.errors import UserError
from assay.core.files import is_there
from assay.core.foreign import Source, load_source, loaded_sources, read_source
from assay.core.run import Record, Run
from assay.core.study import Context, Outcome, Report, Study
from assay.models.sequence import read_out
from assay.nn.random import initialised_from, stream
from assay.report.draw import table
from assay.report.rows import rows
from assay.studies import studies
from assay.studies.icl.findings import say_untrained
from assay.studies.icl.references import score_references
from assay.studies.icl.report import SCORES, reference_lines
from assay.studies.icl.scoring import MOST, Answer, largest, score
from assay.tasks import tasks
from assay.tasks.base import Batch, Task, Tokens
from assay.train.device import activate

NOTE = "Nothing is trained; rows in parentheses are the task's own oracle and plain predictors."
NUMBERS = 2**25
"""Most output numbers per call of the function: answers at every position are half a million per long sequence."""
_IMPORTED: dict[str, str] = {}
"""The sha256 that each module's file had when it was imported: Python does not read it again."""


@studies.register("icl.eval")
@dataclass(frozen=True, kw_only=True)
class Eval(Study):
    """How well does a function of my own answer a task, without being trained here?"""

    question: ClassVar[str] = "How well does a function of my own answer a task, without being trained here?"
    renamed: ClassVar[Mapping[str, str]] = {"task.eval_size": "eval_size"}

    model: str = ""
    """The function to score: mine.py:answer, or package.module:answer."""
    task: Task = field(default_factory=lambda: tasks.parse("mqar"))
    """The task to answer in context."""
    eval_size: int = 10_000
    """Sequences per seed."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each seed is new data."""

    def __post_init__(self) -> None:
        if not 1 <= self.eval_size <= MOST:
            raise UserError(f"eval_size={self.eval_size}: score at least one sequence, and at most {MOST:,}.")

    def plan(self) -> list[Run]:
        """Plan a run per seed, and one that scores the task's oracle and plain predictors on as many sequences."""
        self.task.require(self.task.in_context, "one answer per sequence: it is for encoders (assay expressivity).")
        asked: dict[str, Any] = {"task": self.task, "eval_size": self.eval_size}
        return [run for model in (located(self.model), None) for run in self.cells(self.seeds, **asked, model=model)]

    def largest(self, run: Run) -> int:
        return largest(run)

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        with activate(ctx.numerics) as device:
            for run in runs:
                yield score_references(run, device) if run.options["model"] is None else score_model(run, device)

    def report(self, records: Sequence[Record], out: Report) -> None:
        models = [record for record in records if record.run.options["model"] is not None]
        found = rows(models, names={"task": "task", "model": _short}, short=["task"], ignore=["model"])
        references = rows([record for record in records if record.run.options["model"] is None])
        say_untrained(found, out)
        table(out, "icl_eval", found, SCORES, extra=reference_lines(references, title="model"), note=NOTE)


def _short(record: Record) -> dict[str, Any]:
    """The model's spec; eight digits tell two versions of a file apart."""
    spec = record.run.options["model"]
    return {**spec, "sha256": spec["sha256"][:8]}


def score_model(run: Run, device: torch.device) -> Outcome:
    """Score the function. Its random draws come from a stream of the run's seed."""
    task = convert(Task, run.options["task"], what="option 'task'")
    function = loaded(run.options["model"])
    if isinstance(function, nn.Module):
        function = function.to(device).eval()
    answer = answering(function, task, name=run.options["model"]["name"])
    _check_causal(answer, task, run, device)
    with initialised_from(run.seed, "model"):
        (found,) = score(
            answer, task.held_out("test"), size=run.options["eval_size"], rngs=[stream(run.seed, "test", device=device)]
        )
    return Outcome(run, found)


@torch.no_grad()
def _check_causal(answer: Answer, task: Task, run: Run, device: torch.device) -> None:
    """Raise if the model looks ahead: in these tasks the answer may follow its question."""
    rng = stream(run.seed, "causality", device=device)
    batch, other = task.parts()[0].sample(8, rng), task.parts()[0].sample(8, rng)
    first = batch.asked.min(dim=1).values
    later = torch.arange(batch.inputs.shape[1], device=rng.device) > first[:, None]
    later = later.reshape(*later.shape, *[1] * (batch.inputs.ndim - 2))
    twin = replace(batch, inputs=torch.where(later, other.inputs, batch.inputs))
    here = (batch.asked == first[:, None]).nonzero(as_tuple=True)
    given = []
    for asked in (batch, twin):
        with initialised_from(run.seed, "causality"):  # a random model draws the same for both
            given += [answers[here].float() for answers in answer([asked])]
    one, other_way = given
    if not torch.allclose(one, other_way, rtol=1e-3, atol=1e-3):
        raise UserError(
            f"--model {run.options['model']['name']} looks ahead: its answer changes with tokens after the question, "
            "where the right answer may stand. Let each position see only what came before."
        )


def answering(function: Callable[..., Any], task: Task, *, name: str) -> Answer:
    """Wrap the function for `score`: it answers where the batch has questions."""
    outputs, count = task.shape().outputs, task.shape().answers_per_position
    width = count * (outputs.vocab if isinstance(outputs, Tokens) else outputs.dim)
    selective = takes_positions(function)

    def part(inputs: Tensor, positions: Tensor) -> Tensor:
        given = function(inputs, positions=positions) if selective else function(inputs)
        places = positions.shape[1] if selective else inputs.shape[1]
        _check(given, (len(inputs), places, width), name=name, selective=selective)
        given = given.to(inputs.device)
        chosen = given if selective else given.gather(1, positions[..., None].expand(-1, -1, width))
        return read_out(chosen, count)

    def answer(batches: Sequence[Batch]) -> Iterator[Tensor]:
        for batch in batches:
            rows = max(1, NUMBERS // (batch.inputs.shape[1] * width))
            pieces = zip(batch.inputs.split(rows), batch.asked.split(rows), strict=True)
            yield torch.cat([part(inputs, positions) for inputs, positions in pieces])

    return answer


def _check(given: Any, wanted: tuple[int, int, int], *, name: str, selective: bool) -> None:
    got = tuple(given.shape) if isinstance(given, Tensor) else f"a {type(given).__name__}"
    if got != wanted:
        axes = "(batch, answers, outputs)" if selective else "(batch, time, outputs)"
        raise UserError(f"--model {name} gave {got} where {wanted} is asked for: return a torch tensor {axes}.")


def takes_positions(function: Callable[..., Any]) -> bool:
    """Return whether the function has a parameter `positions`; `**kwargs` alone does not count."""
    parameters = _parameters(function)
    return parameters is not None and "positions" in parameters.parameters


def _parameters(function: Callable[..., Any]) -> inspect.Signature | None:
    try:  # the signature of a module's __call__ says nothing: ask its forward
        return inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except ValueError:  # some functions written in C have no signature
        return None


def located(word: str) -> dict[str, str]:
    """`folder/mine.py:answer` -> {"name": "mine:answer", "sha256": ...}, after checking that it loads."""
    where, _, function = word.rpartition(":")
    if not where or not function:
        raise UserError(f"--model '{word}': write file.py:function, or package.module:function.")
    by_path = where.endswith(".py")
    path = Path(where) if by_path else _file_of(where)
    if not by_path and ("." in where or path.name == "__init__.py"):
        spec = {"name": word, "sha256": _imported(where)[1]}  # a part of a package needs its name to import the others
    else:
        spec = {"name": f"{path.stem}:{function}", "sha256": _read(path).sha256}
    _check_callable(loaded(spec), word)
    return spec


def loaded(spec: Mapping[str, str]) -> Callable[..., Any]:
    """Load the function, from the text that came with the job or from an installed package."""
    where, _, name = spec["name"].rpartition(":")
    source: Source | None = next((one for one in loaded_sources() if one.sha256 == spec["sha256"]), None)
    module, sha256 = (load_source(source), source.sha256) if source else _imported(where)
    if sha256 != spec["sha256"]:
        raise UserError(f"the module '{where}' is another one on this worker: install the same version everywhere.")
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UserError(f"--model {spec['name']}: '{where}' has no function '{name}'.{nearest(name, own)}")
    return getattr(module, name)


def _read(path: Path) -> Source:
    """Read a single file: jobs carry its text, so that workers need not have it."""
    if not is_there(path):
        raise UserError(f"--model: there is no file '{path}'. Write file.py:function, seen from this folder.")
    _reach(path.resolve().parent)  # so that it can import the files beside it
    load_source(source := read_source(path))
    return source


def _check_callable(function: Any, word: str) -> None:
    if not callable(function) or inspect.isclass(function):
        kind = "a class: build it in the file, and name what was built" if callable(function) else "not a function"
        raise UserError(f"--model {word} is {kind}. It must be called as f(inputs).")
    signature = _parameters(function)
    try:
        if signature and takes_positions(function):
            signature.bind(0, positions=0)
        elif signature:
            signature.bind(0)
    except TypeError as error:
        raise UserError(f"--model {word} cannot be called as f(inputs) or f(inputs, positions=...): {error}.") from None


def _file_of(module: str) -> Path:
    """Find a module's source file, in this folder or on Python's path."""
    here = Path(f"{module}.py")
    if is_there(here):
        return here
    _reach(Path.cwd())
    importlib.invalidate_caches()  # the file may be younger than Python's listing of its folder
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not (spec.origin or "").endswith(".py"):
        raise UserError(
            f"--model: no module '{module}' in this folder or on Python's path. Give its file, such as {module}.py:f."
        )
    return Path(str(spec.origin))


def _imported(name: str) -> tuple[ModuleType, str]:
    """Import a module by name; return it with the sha256 of its file."""
    try:
        with redirect_stdout(sys.stderr):  # standard output is for results
            module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - whatever the user's module raises
        raise UserError(f"--model: the module '{name}' does not import: {type(error).__name__}: {error}") from None
    sha256 = read_source(str(module.__file__)).sha256
    if _IMPORTED.setdefault(name, sha256) != sha256:
        raise UserError(f"the module '{name}' was edited after Python imported it: start Python anew.")
    return module, sha256


def _reach(folder: Path) -> None:
    """Append a folder to Python's path; workers get the path of the process that starts them."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
