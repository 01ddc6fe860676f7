"""Progress is shown as a bar with the time left and the latest metrics on a terminal, as plain lines elsewhere.

Everything goes to standard error; standard output is for results.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from assay.core.drive import Event
from assay.core.estimate import duration
from assay.core.run import Record, Run
from assay.core.words import printable, printable_lines
from assay.report.time_left import OfPlan, of_run

Watch = Callable[[Event], None]
SILENCE = 15.0
"""Seconds without output after which, without a terminal, the progress of an unfinished run is printed."""
FIRST = 3.0
"""Seconds after which it is printed for the first time, to show that something happens."""
UNKNOWN = "?"
BAR, TIMES = 20, 28
"""Characters of the bar, and of what stands between it and the latest run, but for the number of runs."""


@contextmanager
def shown(
    labels: Mapping[str, str],
    todo: Sequence[Run],
    *,
    workers: Callable[[], int] = lambda: 1,
    costs: Callable[[], Iterable[Record]] = lambda: (),
    part: str = "",
    quiet: bool = False,
) -> Iterator[Watch]:
    """Yields a function that shows the events of the runs that are to be computed, by so many workers at once, as they
    come; `labels` maps run ids to names, `costs` are of runs before. `part` says what part of a whole the runs are,
    such as `round 1 of 5`: the time left is that of the part."""
    total = len(todo)
    if quiet or not total:
        yield lambda event: None
    elif sys.stderr.isatty() and sys.stdout.isatty():
        with _bar(labels, total, part, OfPlan(todo, workers, costs)) as watch:
            yield watch
    elif in_notebook():
        yield _one_line(labels, total)
    else:
        yield _lines(labels, total)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    session = sys.modules.get("IPython")
    return session is not None and "IPKernelApp" in getattr(session.get_ipython(), "config", {})


def _one_line(labels: Mapping[str, str], total: int) -> Watch:
    """Rewrites one line below a notebook's cell: a cell with a line per run would bury its result."""
    done, width, found, left = 0, 0, _found_last(), of_run()

    def watch(event: Event) -> None:
        nonlocal done, width
        done += event.record is not None
        share = f" {_percent(event.progress.share)}" if event.progress else ""
        text = printable(f"{done}/{total}{share} {labels[event.run.id]}{_about(left(event))}{found(event)}")
        print(f"\r{text:<{width}}", end="\n" if done == total else "", file=sys.stderr, flush=True)
        width = len(text)

    return watch


def _lines(labels: Mapping[str, str], total: int) -> Watch:
    """Prints a line for each stored run, and after a silence the progress of an unfinished one.

    [ 3/35  12 s] done expressivity self_attn seed=2  R2 0.89
    [ 3/35  42 s] 31 % of expressivity self_attn seed=3 (about 2 min left)  loss 0.41

    On a terminal, whose other stream goes elsewhere, lines are cut to its width; in a file they are whole."""
    done, found, left = 0, _found_last(), of_run()
    start = time.monotonic()
    said = start - SILENCE + FIRST

    def tell(text: str) -> None:
        nonlocal said
        said = time.monotonic()
        line = f"[{done:>{len(str(total))}}/{total} {said - start:5.0f} s] {text}"
        say(line[: shutil.get_terminal_size().columns - 1] if sys.stderr.isatty() else line)

    def watch(event: Event) -> None:
        nonlocal done
        if event.kind == "waiting":
            say(f"waiting for another assay process, which computes it: {labels[event.run.id]}")
        about = f"{labels[event.run.id]}{_about(left(event))}{found(event)}"
        if event.record:
            done += 1
            tell(f"{event.record.verdict} {about}")
        elif event.progress and time.monotonic() - said >= SILENCE:
            tell(f"{_percent(event.progress.share)} of {about}")

    return watch


@contextmanager
def _bar(labels: Mapping[str, str], total: int, part: str, time_left: OfPlan) -> Iterator[Watch]:
    from rich import progress as rich
    from rich.console import Console

    of = f" of {part}" if part else ""
    remaining = rich.TextColumn(f"left {{task.fields[left]}}{of}", markup=False)
    latest = rich.TextColumn("{task.fields[latest]}", markup=False)
    count = rich.TextColumn("{task.fields[finished]}/{task.total}")  # the bar has the shares of unfinished runs too
    columns = rich.BarColumn(BAR), count, rich.TimeElapsedColumn(), remaining, latest
    console = Console(stderr=True)
    taken = BAR + 2 * len(str(total)) + TIMES + len(of)
    with rich.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, finished=0, latest="", left=UNKNOWN)
        finished, partial, found = 0, dict[str, float](), _found_last()

        def watch(event: Event) -> None:
            nonlocal finished
            if event.progress:
                partial[event.run.id] = event.progress.share
            if event.record:
                finished += 1
                partial.pop(event.run.id, None)
            text = f"{event.kind if event.kind == 'waiting' else ''} {labels[event.run.id]}{found(event)}"
            text = cut(text.strip(), max(0, console.width - taken))
            left = str(time_left(event) or UNKNOWN)
            bar.update(task, completed=finished + sum(partial.values()), finished=finished, latest=text, left=left)

        yield watch


def cut(text: str, room: int) -> str:
    """The text with its middle left out where it is longer: runs differ at the end, in rate and seed, before the
    numbers."""
    if len(text) <= room:
        return text
    head = room // 3
    return f"{text[:head]}…{text[head + 1 + len(text) - room :]}" if room else ""


def say(text: str) -> None:
    print(printable_lines(text), file=sys.stderr, flush=True)


def _percent(share: float) -> str:
    """`31 %`; of a long run that has just begun `0.03 %`."""
    return f"{100 * share:{'.1g' if 0 < share < 0.01 else '.0f'}} %"


def _about(seconds: float | None) -> str:
    return "" if seconds is None else f" (about {duration(seconds)} left)"


def _found_last() -> Callable[[Event], str]:
    """Returns `_found`, with the last numbers of a run where an event of its progress has none."""
    last: dict[str, str] = {}

    def found(event: Event) -> str:
        text = _found(event)
        if event.record or not event.progress:
            return text
        last[event.run.id] = text or last.get(event.run.id, "")
        return last[event.run.id]

    return found


def _found(event: Event) -> str:
    """Returns the first three metrics, or the reason why there are none; nothing of a run that failed or diverged,
    whose numbers are no scores."""
    if event.record and event.record.refusal:
        return f": {event.record.refusal}"
    if event.record and event.record.status != "done":
        return ""
    source = event.record or event.progress
    numbers = [(key, value) for key, value in source.metrics.items() if isinstance(value, float)] if source else []
    return "".join(f"  {key} {value:.3g}" for key, value in numbers[:3])
