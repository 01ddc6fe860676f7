"""A pass over a text that is cut short goes on from its checkpoint, and ends in the bits of one that was not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from assay.attention import attention
from assay.core.run import canonical
from assay.core.store import Store
from assay.core.study import Context
from assay.studies.perplexity import execution
from assay.studies.perplexity.perplexity import Perplexity
from assay.studies.perplexity.scoring import Scorer
from assay.train import checkpoint

pytestmark = pytest.mark.usefixtures("undrawn")
METHODS = ("dense", "h2o", "window", "cab_v4:block_size=8")
AT_ONCE = 4
"""Windows of a group."""


def study(tiny, text, methods=METHODS):
    return Perplexity(
        model=str(tiny), datasets=(str(text),), methods=tuple(map(attention.parse, methods)), context_lengths=(64,),
        context_sweep=False, sparsity_levels=(0.0, 0.5, 0.8), max_windows=2,
    )  # fmt: skip


def first_shard(study):
    return [run for run in study.plan() if run.options["shard"] == 0]


SCRIPT = """
import os, signal, sys
from assay.core.store import Store
from assay.core.study import Context
from assay.studies.perplexity import execution
from assay.train import checkpoint
from test_perplexity_resume import AT_ONCE, first_shard, study

def emit(progress):
    if progress.done == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)

execution.TOKENS_AT_ONCE = 64 * AT_ONCE
checkpoint.SAVING = 1e9  # a checkpoint each time, however slow the disk is
chosen, store = study(sys.argv[1], sys.argv[2]), Store(sys.argv[3])
for outcome in chosen.execute(first_shard(chosen), Context(emit=emit, scratch=str(store.root))):
    store.commit(outcome)
"""


@pytest.fixture
def windows(monkeypatch):
    """How many windows each forward pass has scored."""
    sizes, plain = list[int](), Scorer.__call__
    monkeypatch.setattr(
        Scorer, "__call__", lambda self, lanes, some: sizes.append(len(some)) or plain(self, lanes, some)
    )
    monkeypatch.setattr(execution, "TOKENS_AT_ONCE", 64 * AT_ONCE)
    return sizes


@pytest.fixture(scope="module")
def whole(tiny, text):
    """The metrics of a shard in one pass, and how many windows that takes."""
    seen, chosen = [0], study(tiny, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "TOKENS_AT_ONCE", 64 * AT_ONCE)
        found = finished(chosen, first_shard(chosen), emit=lambda progress: seen.append(progress.done))
    return found, max(seen)


def finished(study, runs, scratch=None, emit=lambda progress: None):
    """The metrics of runs, as text."""
    ctx = Context(scratch=None if scratch is None else str(scratch), emit=emit)
    return {outcome.run.id: canonical(dict(outcome.metrics)) for outcome in study.execute(runs, ctx)}


def metrics_of(store):
    return {record.run.id: canonical(dict(record.metrics)) for record in store.records()}


def killed(tiny, text, out, at):
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    words = [sys.executable, "-c", SCRIPT, str(tiny), str(text), str(out), str(at)]
    ended = subprocess.run(words, env=os.environ | {"PYTHONPATH": path}, check=False)
    assert ended.returncode == -signal.SIGKILL
    return Store(out), metrics_of(Store(out))


def test_a_pass_killed_in_the_middle_of_a_text_goes_on_exactly(tiny, text, cli, tmp_path, windows, whole):
    """The command, repeated after kill -9."""
    expected, total = whole
    store, stored = killed(tiny, text, tmp_path, at=3 * AT_ONCE)
    assert total > 4 * AT_ONCE and all("refused" in metrics for metrics in stored.values()), "only refusals come first"
    words = [
        "--model",
        tiny,
        "--datasets",
        text,
        "--methods",
        *METHODS,
        "--context-lengths",
        "64",
        "--max-windows",
        "2",
    ]
    levels = ["--sparsity-levels", "0", "0.5", "0.8", "--no-context-sweep", "--device", "cpu", "--executor", "serial"]
    code, _, err = cli("perplexity", *words, *levels, "--out", tmp_path)
    assert code == 0, err
    assert sum(windows) == 2 * total - 3 * AT_ONCE, "both shards, without what was scored before"
    assert expected.items() <= metrics_of(store).items() and not list(store.root.rglob("checkpoint"))


def test_lanes_that_were_not_stored_after_the_last_window_need_no_pass(
    tiny, text, tmp_path, windows, whole, monkeypatch
):
    monkeypatch.setattr(checkpoint, "SAVING", 1e9)  # a checkpoint each time, however slow the disk is
    chosen, store = study(tiny, text), Store(tmp_path)
    runs = first_shard(chosen)
    # A generator that nobody closes runs no `finally`, like a process that is killed between two outcomes.
    abandoned = chosen.execute(runs, Context(scratch=str(store.root)))
    for outcome in abandoned:
        store.commit(outcome)
        if outcome.run.options["method"]["name"] == "h2o" and "refused" not in outcome.metrics:
            break
    del windows[:]
    stored = metrics_of(store)
    rest = [run for run in runs if run.id not in stored]
    found = stored | finished(chosen, rest, store.root)
    assert len(stored) > 1 and len(rest) > 1 and windows == []
    assert found == whole[0]
    abandoned.close()


def test_a_method_that_is_added_begins_while_the_others_go_on(tiny, text, tmp_path, windows, whole, monkeypatch):
    monkeypatch.setattr(checkpoint, "SAVING", 1e9)  # a checkpoint each time, however slow the disk is

    def interrupt(progress):
        if progress.done == 2 * AT_ONCE:
            raise KeyboardInterrupt

    few, more = study(tiny, text, METHODS[:2]), study(tiny, text)
    with pytest.raises(KeyboardInterrupt):
        finished(few, first_shard(few), tmp_path, interrupt)
    del windows[:]
    found = finished(more, first_shard(more), tmp_path)
    expected, total = whole
    assert found == expected
    assert sum(windows) == 2 * total - 2 * AT_ONCE, "two passes, one of them from the middle"
