"""What every executor promises, run on each of them."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import UserError
from assay.core.executors import executors
from assay.core.executors.base import Ended, Executor

NAMES = executors.names()


@pytest.fixture(scope="module", autouse=True)
def one_ray_cluster() -> Iterator[None]:
    """Starting Ray takes seconds: one cluster for the module. An executor uses a connection that is already there."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers cannot import a test module
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


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


@pytest.mark.parametrize("name", NAMES)
def test_every_message_comes_home_in_order_and_each_job_ends_once(name: str) -> None:
    seen = collect(name, square, range(7))
    assert seen == {job: [job, job * job, Ended("finished")] for job in range(7)}


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


def test_local_workers_do_not_outlive_the_run() -> None:
    seen = collect("local", slow, range(4))
    pids = {messages[0] for messages in seen.values()}
    assert len(pids) == 2 and os.getpid() not in pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_local_worker_sees_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    seen = collect("local", tell_gpu, range(6), gpus=(0, 1))
    assert {messages[0] for messages in seen.values()} <= {"4", "7"}
    assert "4" in {messages[0] for messages in seen.values()}


def tell_gpu(job: int, emit: Callable[[Any], None]) -> None:
    time.sleep(0.05)
    emit(os.environ["CUDA_VISIBLE_DEVICES"])
