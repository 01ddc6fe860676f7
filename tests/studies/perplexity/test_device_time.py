"""benchmarks/device_time.py: what is captured, what is not, and that the two sides of a ratio are timed alike."""

import pytest
import torch


@pytest.fixture
def clock(script, monkeypatch):
    """The script, with a clock that counts calls: one started from Python is 4 ms, one replayed 3."""
    module = script("benchmarks/device_time.py")
    spent = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def milliseconds(work, rounds):
        spent.clear()
        work()
        return [float(sum(spent))] * rounds

    monkeypatch.setattr(module, "milliseconds", milliseconds)
    monkeypatch.setattr(module, "captured", lambda work, calls: lambda: spent.append(3 * calls))
    module.call = lambda: spent.append(4)
    return module


def test_both_times_are_per_call(clock):
    found = clock.timed("kernel", clock.call, calls=7)
    assert (found.called, found.device, found.best) == (4.0, 3.0, 3.0)
    assert str(found) == "| kernel | 3.000 | 4.000 |"


@pytest.mark.parametrize(
    ("raised", "said"), [(RuntimeError("waits\nfor the GPU"), "waits"), (ValueError(), "ValueError")]
)
def test_what_cannot_be_captured_is_timed_as_called_and_says_why(clock, monkeypatch, raised, said):
    def refuses(work, calls):
        raise raised

    monkeypatch.setattr(clock, "captured", refuses)
    found = clock.timed("kernel", clock.call)
    assert (found.called, found.device, found.best) == (4.0, None, 4.0)
    assert str(found) == f"| kernel | not captured: {said} | 4.000 |"


def test_work_that_fails_by_itself_is_not_taken_for_a_failed_capture(clock):
    def broken():
        raise RuntimeError("no such backend")

    with pytest.raises(RuntimeError, match="no such backend"):
        clock.timed("backend", broken)


def test_two_sides_are_compared_by_replay_only_if_both_were_captured(clock):
    dense, ours = clock.Times("dense", 9.0, 8.0), clock.Times("ours", 3.0, 1.0)
    slow = clock.Times("choosing", 1.0, None, "waits")
    assert clock.ratio([dense], [ours]) == (8.0, "device time, graph replay")
    assert clock.ratio([dense], [ours, slow]) == (9.0 / 4.0, "as called from Python")


def test_the_fastest_is_found_on_one_scale(clock):
    one, two = clock.Times("one", 5.0, 2.0), clock.Times("two", 4.0, 3.0)
    assert clock.fastest([one, two]) is one
    assert clock.fastest([one, clock.Times("three", 4.5, None)]).name == "three"


def test_the_note_on_the_cache_tells_what_fits(clock):
    assert "little is still cached" in clock.cache_note(512 * 2**20, 50 * 2**20)
    assert "find much of them cached" in clock.cache_note(60 * 2**20, 50 * 2**20)
