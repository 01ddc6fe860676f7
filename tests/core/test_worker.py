"""A worker: its messages are whole whatever happens to it, and its time limit is kept."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from assay.core.executors.base import Ended, call
from assay.core.guard import guard
from assay.core.pipe import Pipe
from assay.core.time_limit import RunTimeoutError, time_limit

BLOCK = b"x" * 20_000
"""Of this size, a message's length is what finds the pipe full, so that an alarm would fall between it and the rest."""


def pipes() -> tuple[Pipe, Pipe]:
    ours, theirs = socket.socketpair()
    return Pipe(ours), Pipe(theirs)


@contextmanager
def sigalrm_taken_by_another_thread() -> Iterator[None]:
    """As in a process with more threads than one, where the system chooses which of them takes a signal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def sigalrm_taken_by_the_main_thread() -> Iterator[None]:
    yield


@pytest.mark.parametrize("taken", [sigalrm_taken_by_another_thread, sigalrm_taken_by_the_main_thread])
def test_an_alarm_that_finds_the_pipe_full_leaves_no_half_message(taken: Callable[[], Any]) -> None:
    ours, theirs = pipes()
    received: list[Any] = []
    late = threading.Event()

    def read() -> None:
        late.wait(60)  # until then nobody reads, and the sender waits
        while not received or received[-1] != "the end":
            received.append(ours.receive())

    reader = threading.Thread(target=read)
    reader.start()
    expired = threading.Timer(1.0, late.set)  # well after the alarm
    with taken(), pytest.raises(RunTimeoutError), time_limit(0.3, theirs.send) as send:
        expired.start()
        while True:
            send(BLOCK)
    theirs.send("the end")
    reader.join(60)
    assert not reader.is_alive() and received[:-1] == [BLOCK] * (len(received) - 1) and len(received) > 1


def test_an_alarm_is_put_off_until_the_message_is_sent() -> None:
    sent: list[str] = []

    def emit(message: str) -> None:
        sent.append("first half")
        signal.raise_signal(signal.SIGALRM)
        sent.append("second half")

    with pytest.raises(RunTimeoutError, match="limit of 60 s"), time_limit(60, emit) as send:
        send("message")
    assert sent == ["first half", "second half"]
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_messages_of_several_threads_do_not_mix() -> None:
    ours, theirs = pipes()
    texts = [letter * 50_000 for letter in "abcd"]

    def send(text: str) -> None:
        for _ in range(20):
            theirs.send(text)

    threads = [threading.Thread(target=send, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    received = [ours.receive() for _ in range(80)]
    for thread in threads:
        thread.join()
    assert sorted(received) == sorted(texts * 20)


def in_child(act: Callable[[], Any]) -> int:
    """Fork a child that does this and ends; its process id."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            act()
            code = 0
        except ConnectionError:
            code = 7
        finally:
            os._exit(code)
    return child


def test_a_forked_child_cannot_tear_a_message_of_its_parent() -> None:
    ours, theirs = pipes()
    children = [in_child(lambda: [theirs.send(b"c" * 300_000) for _ in range(20)]) for _ in range(2)]
    sender = threading.Thread(target=lambda: [theirs.send(b"p" * 300_000) for _ in range(20)], daemon=True)
    sender.start()
    received = [ours.receive() for _ in range(20)]
    sender.join()
    assert set(received) == {b"p" * 300_000}
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [7, 7]


def test_a_forked_child_neither_takes_a_message_of_its_parent_nor_holds_the_pipe_open() -> None:
    ours, theirs = pipes()
    ours.send("for the parent")
    child = in_child(lambda: os._exit(5 if theirs.arrived() == ([], False) else 6))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert theirs.receive() == "for the parent"
    child = in_child(lambda: time.sleep(600))
    theirs.close()
    try:
        with pytest.raises(EOFError):
            ours.receive()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_reading_what_has_arrived_does_not_wait_for_the_rest() -> None:
    ours, theirs = pipes()
    theirs.send("whole")
    theirs._end.sendall(b"\0\0\0\0\0\0\0\xffhalf a mess")
    assert ours.arrived() == (["whole"], True)
    theirs.close()
    assert ours.arrived() == ([], False)


def test_what_cannot_be_pickled_is_an_error_before_a_byte_is_sent() -> None:
    ours, theirs = pipes()
    with pytest.raises(AttributeError, match="pickle"):
        theirs.send(lambda: None)
    theirs.send("fine")
    assert ours.receive() == "fine"


def test_a_run_that_catches_exceptions_is_interrupted_all_the_same() -> None:
    def deaf(job: Any, emit: Any) -> None:
        with time_limit(0.2, emit):
            while True:
                with suppress(Exception):
                    time.sleep(60)

    ended = call(deaf, None, print)
    assert isinstance(ended, Ended) and ended.status == "failed" and "over its limit of 0.2 s" in ended.detail


def test_a_job_outside_the_main_thread_has_no_alarm() -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call(lambda job, emit: _nap(), None, print)))
    thread.start()
    thread.join(60)
    assert found == [Ended("finished")]


def _nap() -> None:
    with time_limit(0.01, print):
        time.sleep(0.1)


def test_a_guard_kills_the_groups_that_are_left_when_its_input_ends() -> None:
    quiet, left, child = (subprocess.Popen(["sleep", "600"], start_new_session=alone) for alone in (True, True, False))
    try:
        guard([f"+{quiet.pid}\n", f"+{left.pid}\n", f"-{quiet.pid}\n"])
        assert left.wait(60) == -signal.SIGKILL
        assert quiet.poll() is None and child.poll() is None
        guard([f"+{left.pid}\n"])  # it has gone already
    finally:
        for process in (quiet, left, child):
            process.kill()
            process.wait()
