"""The memory guard: what cannot fit is one line before anything is allocated, and what can is never refused."""

import resource
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.api import combined_grid, configure
from assay.core import memory as core
from assay.core.errors import UserError
from assay.core.executors import executors
from assay.core.plan import make_plan
from assay.core.run import Numerics, Run
from assay.core.study import Study
from assay.studies import studies
from assay.train import memory

Cli = Callable[..., tuple[int, str, str]]
GB = 10**9
TOO_LARGE = {  # the command, and the option that it has to name
    "icl --task.vocab_size 2000000000": "--task.vocab_size",
    "icl --task.input_seq_len 1000000000": "--task.input_seq_len",
    "icl --train.micro_batch_size 1000000000": "--train.micro_batch_size",
    "icl --model.model_dim 10000000": "--model.model_dim",
    "icl --model.num_layers 100000000": "--model.num_layers",
    "icl --references_only --task.vocab_size 2000000000": "--task.vocab_size",
    "icl task:regression --task.input_dim 1000000000": "--task.input_dim",
    "icl task:state_tracking --task.length 1000000000": "--task.length",
    "expressivity --D_z 1000000": "--D_z",
    "expressivity --L 1000000": "--L",
    "expressivity --batch_eval 100000000": "--batch_eval",
    "expressivity --models gru:width=1000000": "width in --models",
    "sae --coders topk --d_code 10000000": "--d_code",
    "sae --coders topk --data dictionary:rows=2000000000": "--data.rows",
    "sae --coders topk --data dictionary:d_in=500000000": "--data.d_in",
    "sae ablation --dataset dictionary:rows=1000000000": "rows in --dataset",
    "sae theorem --hidden_dim 1000000000": "--hidden_dim",
    "modular sweep --P 10000 --dimensions 4": "--P",
    "modular sweep --dimensions 1000000000": "--dimensions",
    "perplexity --datasets pydoc --context-lengths 1000000 --max-length 1000000": "--context-lengths",
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int | None], None]:
    """A machine with so much free memory, no limit of a process, and no model in any cache."""
    for name in ("ASSAY_CACHE", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "empty"))

    def of(free: int | None) -> None:
        monkeypatch.setattr(memory, "free_memory", lambda: free)
        monkeypatch.setattr(memory, "free_addresses", lambda: None)

    return of


@pytest.mark.parametrize(("words", "option"), TOO_LARGE.items(), ids=TOO_LARGE.keys())
def test_what_cannot_fit_is_refused_in_a_line_that_names_the_option_to_lower(
    words: str, option: str, cli: Cli, machine: Callable[[int], None], tmp_path: Path
) -> None:
    machine(8 * GB)
    # A dry run, so that a guard which lets it through costs an assertion and not the machine.
    code, out, err = cli(*words.split(), "--cpu-only", "--dry-run", "--out", tmp_path)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert "of memory" in line and "has 8.0 GB free" in line and f"Lower {option}, now" in line


def test_the_value_that_is_said_to_fit_fits(cli: Cli, machine: Callable[[int], None], tmp_path: Path) -> None:
    machine(8 * GB)
    words = ("icl", "--cpu-only", "--dry-run", "--workers", "1", "--out", tmp_path, "--task.vocab_size")
    fitting = cli(*words, "2000000000")[2].partition("now 2000000000: ")[2].split()[0]
    assert int(fitting) > 1000
    assert cli(*words, fitting)[0] == 0


def presets() -> Iterator[Any]:
    for name in studies.names():
        if issubclass(studies[name], Study):
            yield from (pytest.param(name, preset, id=f"{name} {preset}") for preset in (None, *studies[name].presets))


@pytest.mark.parametrize(("name", "preset"), list(presets()))
def test_no_preset_is_refused_on_eight_gigabytes(
    name: str, preset: str | None, machine: Callable[[int], None], tmp_path: Path
) -> None:
    machine(8 * GB)
    options: dict[str, Any] = {}
    if name == "icl.eval":
        (tmp_path / "mine.py").write_text("def answer(inputs):\n    return inputs\n")
        options["model"] = f"{tmp_path / 'mine.py'}:answer"
    if preset == "stream":  # its text is fetched first
        options["data"] = studies[name].presets[preset]["data"].replace("text=library", "text=pydoc")
    study = configure(studies[name], preset, options)
    plan = make_plan(study, combined_grid(studies[name], preset, {}, named=()), Numerics())
    memory.check_memory(study, plan.runs, executors.parse("local:workers=2"))
    study.check(plan.runs)


class Heavy(Study):
    """Runs that need a gigabyte each."""

    name = "heavy"

    def memory(self, run: Run) -> dict[str, int]:
        return {"a thing": int(run.options["count"]) * GB}


@pytest.fixture
def heavy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setitem(studies._classes, "heavy", Heavy)

    def check(count: int, *, runs: int = 1, executor: str = "serial") -> None:
        planned = [Run("heavy", {"count": count}, seed, {}) for seed in range(runs)]
        memory.check_memory(Heavy(), planned, executors.parse(executor))

    return check


def test_many_runs_that_fit_one_by_one_are_not_refused(
    heavy: Callable[..., None], machine: Callable[[int], None]
) -> None:
    machine(8 * GB)
    heavy(7, runs=1000)  # a bank of them is halved until it fits


def test_workers_that_do_not_fit_beside_each_other_are_told_how_many_do(
    heavy: Callable[..., None], machine: Callable[[int], None]
) -> None:
    machine(8 * GB)
    heavy(4, runs=3, executor="local:workers=8")
    with pytest.raises(UserError, match=r"8 runs at once need about 18\.0 GB .* 8\.0 GB free\. Use --workers 3\."):
        heavy(4, runs=9, executor="local:workers=8")


@pytest.mark.parametrize(("runs", "workers"), [(3, 8), (9, 3)])
def test_without_a_number_as_many_workers_are_used_as_fit(
    runs: int, workers: int, machine: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(studies._classes, "heavy", Heavy)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    machine(8 * GB)
    planned = [Run("heavy", {"count": 4}, seed, {}) for seed in range(runs)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        executor = memory.check_memory(Heavy(), planned, executors.parse("local"))
    assert executor.slots() == workers
    assert [str(warning.message) for warning in said] == [
        "heavy: 8 runs at once need about 18.0 GB of memory, and this machine has 8.0 GB free. --workers 3 is used."
    ][: runs // 9]


def test_a_machine_of_many_cores_is_not_refused_for_having_them(
    cli: Cli, machine: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    machine(8 * GB)
    words = [
        "icl",
        "--grid",
        "seed=0..511",
        "--task.vocab_size",
        "100000",
        "--cpu-only",
        "--dry-run",
        "--out",
        tmp_path,
    ]
    code, out, err = cli(*words)
    (line,) = err.splitlines()
    assert code == 0 and line.startswith("warning: icl: 64 runs at once need about ")
    fits = line.partition("--workers ")[2].split()[0]
    assert cli(*words, "--workers", fits) == (0, out, "")  # the same ids
    code, out, err = cli(*words, "--workers", "64")
    assert (code, out) == (2, "") and err.endswith(f"Use --workers {fits}.\n")


def test_a_machine_that_does_not_say_and_a_cluster_refuse_nothing(
    heavy: Callable[..., None], machine: Callable[[int | None], None]
) -> None:
    machine(None)
    heavy(10**6)
    machine(1)
    heavy(10**6, executor="ray:address=auto")
    with pytest.raises(UserError, match="Lower --count"):
        heavy(10**6, executor="ray")


def test_what_is_stored_is_read_on_a_smaller_machine(cli: Cli, machine: Callable[[int], None], tmp_path: Path) -> None:
    words = ["sae", "theorem", "--batch_size", "8", "--input_dim", "4", "--hidden_dim", "4", "--executor", "serial"]
    words += ["--cpu-only", "--quiet", "--output", str(tmp_path / "figure.svg"), "--out", str(tmp_path)]
    machine(8 * GB)
    assert cli(*words)[0] == 0
    machine(1)
    assert cli(*words)[0] == 0
    assert cli(*words, "--force")[0] == 2


def test_a_gpu_is_asked_and_not_the_host(
    heavy: Callable[..., None], machine: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    machine(1)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: SimpleNamespace(total_memory=80 * GB))
    heavy(79, executor="local:gpus=0")
    with pytest.raises(UserError, match=r"GPU 0 has 80\.0 GB free"):
        heavy(81, executor="local:gpus=0")


def test_processes_share_a_gpu_only_where_their_runs_fit(
    machine: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    monkeypatch.setitem(studies._classes, "heavy", Heavy)
    machine(1)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: SimpleNamespace(total_memory=8 * GB))

    def slots(count: int, executor: str) -> int:
        planned = [Run("heavy", {"count": count}, seed, {}) for seed in range(9)]
        return memory.check_memory(Heavy(), planned, executors.parse(executor)).slots()

    assert slots(4, "local:per_gpu=2:gpus=0+1") == 4
    with pytest.warns(UserWarning, match=r"2 runs at once need about 9\.0 GB .* GPU 0 has 8\.0 GB free\. --workers 2"):
        assert slots(6, "local:per_gpu=2:gpus=0+1") == 2
    with pytest.raises(UserError, match=r"Use --workers 2\."):
        slots(6, "local:workers=4:gpus=0+1")


def test_runs_of_one_size_are_measured_once() -> None:
    from assay.studies.icl.memory import _memory

    study = configure(studies["icl"], "quick", {})
    rates = {"optimizer.lr": [1e-3 * (1 + number) for number in range(50)]}
    runs = make_plan(study, rates, Numerics()).runs
    before = _memory.cache_info().misses
    assert len({sum(memory.need_of(run).values()) for run in runs}) == 2  # models, and references
    assert _memory.cache_info().misses - before <= 2


def test_a_container_s_limit_counts_less_what_it_could_forget(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   8000000 kB\n")
    assert core.free_memory(proc, groups) == 8_000_000 * 1024
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    for name, limit in (("outer", "3000000000"), ("outer/inner", "max")):
        (groups / name).mkdir(parents=True, exist_ok=True)
        (groups / name / "memory.max").write_text(f"{limit}\n")
        (groups / name / "memory.current").write_text("1500000000\n")
        (groups / name / "memory.stat").write_text("anon 5\ninactive_file 500000000\n")
    assert core.free_memory(proc, groups) == 2 * GB


def test_an_older_kind_of_container_counts_too(tmp_path: Path) -> None:
    proc, here = tmp_path / "proc", tmp_path / "cgroup" / "memory" / "job"
    (proc / "self").mkdir(parents=True)
    here.mkdir(parents=True)
    (proc / "meminfo").write_text("MemAvailable:   8000000 kB\n")
    (proc / "self" / "cgroup").write_text("5:cpu:/job\n4:memory:/job\n")
    (here / "memory.limit_in_bytes").write_text("2000000000")
    (here / "memory.usage_in_bytes").write_text("1000000000")
    (here / "memory.stat").write_text("total_inactive_file 0\n")
    assert core.free_memory(proc, tmp_path / "cgroup") == 1 * GB


def test_the_limit_of_a_process_counts_less_what_it_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert (core.free_memory() or 0) > 0
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4 * GB, 4 * GB))
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "statm").write_text("1000 1 1 1 0 1 0\n")
    assert core.free_addresses(tmp_path) == 4 * GB - 1000 * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 0))
    assert core.free_addresses(tmp_path) is None


def test_a_range_that_would_fill_memory_before_a_plan_is_refused(cli: Cli, tmp_path: Path) -> None:
    for words in ("--seeds 0..1000000000", "--dimensions 1..99999999", "--P 100000"):
        code, _, err = cli("modular", "sweep", *words.split(), "--dry-run", "--out", tmp_path)
        assert code == 2 and len(err.splitlines()) == 1 and words.split()[1] in err
