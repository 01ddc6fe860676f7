"""What every executor promises, run on each of them."""

import itertools
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import UserError
from assay.core.executors import executors, local
from assay.core.executors import ray as ray_executor
from assay.core.executors.base import Began, Ended, Executor
from assay.core.run import canonical
from assay.core.store import Store
from assay.core.time_limit import time_limit

NAMES = executors.names()


@pytest.fixture(scope="module", autouse=True)
def one_ray_cluster() -> Iterator[None]:
    """Starting Ray takes seconds: one cluster for the module. An executor uses a connection that is already there."""
    import ray

    environment = dict(os.environ)
    with executors["ray"](workers=2).connected():
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers cannot import a test module
        assert dict(os.environ) == environment
        yield


def collect(name: str, fn: Callable[..., None], jobs: Any, **options: Any) -> dict[Any, list[Any]]:
    """job -> its messages, in the order they came."""
    seen: dict[Any, list[Any]] = {}
    executor: Executor = executors[name](workers=2, **options)
    executor.run(fn, jobs, lambda job, message: seen.setdefault(job, []).append(message))
    return seen


def square(job: int, emit: Callable[[Any], None]) -> None:
    emit(job)
    emit(job * job)


def fail_on_two(job: int, emit: Callable[[Any], None]) -> None:
    emit("started")
    if job == 2:
        raise ValueError("two is not allowed")


def die_until_marked(job: tuple[str, int, int], emit: Callable[[Any], None]) -> None:
    """Kill this process on the first `deaths` tries of job `number`, counted by files."""
    folder, number, deaths = job
    tries = len(list(Path(folder).glob(f"{number}.*")))
    Path(folder, f"{number}.{tries}").touch()
    if tries < deaths:
        os.kill(os.getpid(), 9)
    emit(tries)


def slow(job: int, emit: Callable[[Any], None]) -> None:
    time.sleep(0.05)
    emit(os.getpid())


def test_what_is_started_after_a_serial_run_is_not_marked_as_its_own() -> None:
    before = dict(os.environ)
    executors.parse("serial").run(slow, [1], lambda job, message: None)
    assert dict(os.environ) == before


@pytest.mark.parametrize("name", NAMES)
def test_every_message_comes_home_in_order_and_each_job_ends_once(name: str) -> None:
    seen = collect(name, square, range(7))
    assert seen == {job: [job, job * job, Ended("finished")] for job in range(7)}


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_kept_workers_serve_the_next_plan_and_end_with_the_block() -> None:
    def pids() -> set[int]:
        return {messages[0] for messages in collect("local", slow, range(6)).values()}

    with local.kept_workers():
        first = pids()
        assert pids() == first and len(first) == 2, "no process is started again"
        with suppress(KeyboardInterrupt):
            executors["local"](workers=2).run(slow, range(6), _interrupt)
        assert not any(map(alive, first)), "a plan that is left early takes its workers with it"
        last = pids()
        assert not last & first
    assert not any(map(alive, last))


def _interrupt(job: int, message: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", [name for name in NAMES if name != "serial"])
def test_a_sweep_stores_the_bytes_it_stores_under_serial(
    name: str, tmp_path: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    def stored(executor: str) -> dict[str, str]:
        out = tmp_path / executor
        words = ["--plugin", Path(__file__).parent.parent / "toy.py", "--executor", executor, "--workers", "2"]
        code, _, err = cli("toy", *words, "--out", out)
        assert code == 0, err
        return {record.run.id: canonical(dict(record.metrics)) for record in Store(out).records()}

    assert stored(name) == stored("serial") and len(stored(name)) == 6


@pytest.mark.parametrize("name", NAMES)
def test_an_exception_ends_its_job_alone_and_is_not_retried(name: str) -> None:
    seen = collect(name, fail_on_two, range(5))
    *before, last = seen.pop(2)
    assert before == ["started"] and last.status == "failed" and "ValueError: two is not allowed" in last.detail
    assert all(messages == ["started", Ended("finished")] for messages in seen.values()) and len(seen) == 4


@pytest.mark.parametrize("name", [name for name in NAMES if name != "serial"])
def test_a_lost_worker_costs_one_job_which_is_retried(name: str, tmp_path: Path) -> None:
    jobs = [(str(tmp_path), number, 1 if number == 1 else 0) for number in range(5)]
    seen = collect(name, die_until_marked, jobs)
    assert [seen[job][0] for job in jobs] == [0, 1, 0, 0, 0]
    assert all(messages[-1] == Ended("finished") for messages in seen.values())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "serial"])
def test_a_job_that_always_kills_its_worker_is_given_up_and_the_others_finish(name: str, tmp_path: Path) -> None:
    jobs = [(str(tmp_path), number, 99 if number == 0 else 0) for number in range(3)]
    seen = collect(name, die_until_marked, jobs, retries=1)
    assert seen[jobs[0]][-1].status == "lost"
    assert [seen[job][-1].status for job in jobs[1:]] == ["finished", "finished"]


def likely_to_be_ended(job: int, emit: Callable[[Any], None]) -> None:
    emit(int(Path("/proc/self/oom_score_adj").read_text()))


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="asks Linux")
@pytest.mark.parametrize("name", [name for name in NAMES if name != "serial"])
def test_where_memory_runs_out_the_kernel_ends_a_worker_before_the_driver(name: str) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())  # a container may have set that to the most, 1000
    for seen in collect(name, likely_to_be_ended, [1, 2]).values():
        assert next(message for message in seen if isinstance(message, int)) >= max(own, 400)


@pytest.mark.parametrize("name", NAMES)
def test_jobs_are_pulled_when_there_is_room_not_all_at_once(name: str) -> None:
    finished, ahead = 0, []

    def jobs() -> Iterator[int]:
        for job in range(12):
            ahead.append(job - finished)
            yield job

    def emit(job: int, message: Any) -> None:
        nonlocal finished
        finished += message == Ended("finished")

    executors[name](workers=2).run(slow, jobs(), emit)
    assert finished == 12 and max(ahead) <= 4


@pytest.mark.parametrize("name", NAMES)
def test_an_error_of_the_receiver_stops_everything(name: str) -> None:
    def refuse(job: int, message: Any) -> None:
        raise UserError("disk full")

    with pytest.raises(UserError, match="disk full"):
        executors[name](workers=2).run(slow, range(100), refuse)


def leave_a_thread_that_speaks(job: int, emit: Callable[[Any], None]) -> None:
    """A heartbeat that nobody stops: it goes on after its job, and through those that follow."""
    emit("started")

    def beat() -> None:
        while True:
            emit(f"beat of {job}")
            time.sleep(0.0005)

    threading.Thread(target=beat, daemon=True).start()
    time.sleep(0.1)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_thread_sends_after_its_job_reaches_neither_that_job_nor_the_next(name: str) -> None:
    seen: dict[int, list[Any]] = {}
    executor: Executor = executors[name](workers=1)
    executor.run(leave_a_thread_that_speaks, range(4), lambda job, message: seen.setdefault(job, []).append(message))
    assert sorted(seen) == [0, 1, 2, 3]
    for job, (first, *beats, last) in seen.items():
        assert first == "started" and last == Ended("finished") and set(beats) == {f"beat of {job}"}


def leave_a_child_that_speaks(job: int, emit: Callable[[Any], None]) -> None:
    """A process forked from the worker knows nothing of the job's end; this one even returns where its parent does."""
    emit("started")
    if os.fork() == 0:
        with suppress(ConnectionError):
            emit("from the child")
        return
    os.wait()
    emit("the child has gone")


def test_a_forked_child_is_not_heard_and_takes_no_job() -> None:
    received: list[Any] = []
    executors["local"](workers=1).run(
        leave_a_child_that_speaks, [0, 1], lambda job, message: received.append((job, message))
    )
    said = ["started", "the child has gone", Ended("finished")]
    assert received == [(job, message) for job in (0, 1) for message in said]


def send_much_and_die(job: tuple[str, int], emit: Callable[[Any], None]) -> None:
    """Die in the middle of a large message, once."""
    folder, size = job
    if not Path(folder, "died").exists():
        Path(folder, "died").touch()
        threading.Timer(0.05, lambda: os.kill(os.getpid(), 9)).start()
        emit(b"x" * size)
    emit("done")


def test_a_worker_killed_in_the_middle_of_a_large_message_is_a_lost_worker(tmp_path: Path) -> None:
    job = (str(tmp_path), 300_000_000)
    received: list[Any] = []

    def slow_receiver(job: Any, message: Any) -> None:
        received.append(message if isinstance(message, str | Ended) else "much")

    executors["local"](workers=1).run(send_much_and_die, [job], slow_receiver)
    assert received[-2:] == ["done", Ended("finished")]


def meet(job: tuple[str, int], emit: Callable[[Any], None]) -> None:
    """Goes on once two processes have a job: a worker that starts late finds one left."""
    Path(job[0], str(os.getpid())).touch()
    while len(list(Path(job[0]).iterdir())) < 2:
        time.sleep(0.01)
    emit((os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")))


def test_local_workers_do_not_outlive_the_run(tmp_path: Path) -> None:
    seen = collect("local", meet, [(str(tmp_path), number) for number in range(4)])
    pids = {messages[0][0] for messages in seen.values()}
    assert len(pids) == 2 and os.getpid() not in pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_local_worker_sees_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    seen = collect("local", meet, [(str(tmp_path), number) for number in range(6)], gpus=(0, 1))
    assert {messages[0][1] for messages in seen.values()} == {"4", "7"}


def go_on_for_ever(job: str, emit: Callable[[Any], None]) -> None:
    emit(Began())
    emit("started")
    while job == "deaf":
        time.sleep(1)
    if job == "held":  # in C code, where it hears no signal and lets no other thread run
        deque(itertools.repeat(None), maxlen=0)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "serial"])
@pytest.mark.parametrize("kind", ["deaf", "held"])
def test_a_job_that_does_not_stop_at_its_limit_is_killed_once_and_the_others_finish(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (local, ray_executor):
        monkeypatch.setattr(module, "GRACE", 1.0)
    seen: dict[str, list[Any]] = {kind: []}
    executors[name](workers=2).run(
        go_on_for_ever,
        [kind, "a", "b", "c"],
        lambda job, message: seen.setdefault(job, []).append(message),
        limit=lambda job: 1.0 if job == kind else None,
    )
    assert seen.pop(kind)[-1] == Ended.overdue(1.0)
    assert seen == {job: ["started", Ended("finished")] for job in "abc"}


def flood(job: int, emit: Callable[[Any], None]) -> None:
    """More than the pipe holds, until the alarm."""
    with time_limit(1.0, emit) as send:
        while True:
            send(b"x" * 20_000)


def test_a_time_limit_that_falls_into_a_message_ends_its_job_alone() -> None:
    received: list[Any] = []

    def busy(job: int, message: Any) -> None:
        if not received:
            time.sleep(2.5)  # the worker fills the pipe and waits, and its time runs out there
        received.append(message)

    executors["local"](workers=1).run(flood, [0], busy)
    *blocks, ended = received
    assert ended.status == "failed" and "over its limit of 1 s" in ended.detail
    assert blocks and set(blocks) == {b"x" * 20_000}


def fork_and_die(job: str, emit: Callable[[Any], None]) -> None:
    """Leave a child that outlives the worker; once."""
    if not Path(job).exists():
        Path(job).touch()
        if os.fork() == 0:
            time.sleep(600)
        os.kill(os.getpid(), 9)
    emit("second try")


def test_a_dead_worker_is_noticed_although_its_child_lives(tmp_path: Path) -> None:
    job = str(tmp_path / "tried")
    assert collect("local", fork_and_die, [job])[job] == ["second try", Ended("finished")]


def test_ray_has_as_many_slots_as_its_cluster_has_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert executors["ray"]().slots() == 2
    with pytest.warns(UserWarning, match="has no GPU now: jobs wait"):
        assert executors["ray"](gpus=(0,)).slots() == 1
    assert executors["ray"](workers=7).slots() == 7


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads the sockets of processes from /proc")
def test_a_ray_of_our_own_listens_on_loopback_alone() -> None:
    listening = sockets_listening()
    assert len(listening) > 3 and {address for address, _ in listening} <= {
        "0100007F",  # 127.0.0.1, as /proc writes it
        "0000000000000000FFFF00000100007F",  # the same within IPv6
    }


def sockets_listening() -> list[tuple[str, str]]:
    """Address and port, of this process and its descendants."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    addresses = {line[9]: tuple(line[1].split(":")) for line in lines if line[3] == "0A"}
    parents = {int(path.parent.name): parent_of(path) for path in Path("/proc").glob("[0-9]*/stat")}
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    found = []
    for descriptor in (path for pid in ours for path in Path(f"/proc/{pid}/fd").glob("*")):
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue
        if (inode := target.removeprefix("socket:[").rstrip("]")) in addresses:
            found.append(addresses[inode])
    return found  # type: ignore[return-value]


def parent_of(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


PROBE = """
import sys
from ray._raylet import GcsClient
print("inside:", GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None, timeout=60))
"""


def test_nobody_reaches_a_ray_of_our_own_without_its_token(tmp_path: Path) -> None:
    import ray

    def knock(**token: str) -> subprocess.CompletedProcess[str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        command = [sys.executable, "-c", PROBE, ray.get_runtime_context().gcs_address]
        environment = {**plain, "HOME": str(tmp_path), **token}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)

    refused, known = knock(), knock(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=ray_executor._token())
    assert "inside" in known.stdout, known.stderr
    assert "inside" not in refused.stdout and "oken" in refused.stderr and refused.returncode != 0
