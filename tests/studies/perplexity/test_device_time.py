"""benchmarks/device_time.py: what is captured, what is not, and that the two sides of a ratio are timed alike."""

from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType


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


def profiler(*events):
    """One that has seen these, as (device, start, end, whether it is a named region), in microseconds."""

    class Profile:
        def __init__(self, activities):
            self.activities = activities

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return False

        def events(self):
            return [
                SimpleNamespace(
                    device_type=device, time_range=SimpleNamespace(start=start, end=end), is_user_annotation=named
                )
                for device, start, end, named in events
            ]

    return Profile


def test_busy_is_when_the_gpu_runs_something(clock, monkeypatch):
    gpu, host = DeviceType.CUDA, DeviceType.CPU
    seen = [(gpu, 5e3, 6e3, False), (gpu, 0.0, 2e3, False), (gpu, 1e3, 3e3, False), (host, 0.0, 9e3, False)]
    monkeypatch.setattr(clock, "profile", profiler(*seen, (gpu, 0.0, 9e3, True)))
    assert clock.busy(clock.call) == (4.0, ""), "3 ms of two that overlap and 1; neither the host nor a named region"
    found = clock.spent(clock.call)
    assert found == clock.Spent(4.0, 4.0) and str(found.per(8)) == "0.5 ms elapsed, 0.5 ms busy"


def test_a_profiler_that_gives_nothing_costs_the_busy_time_alone(clock, monkeypatch):
    monkeypatch.setattr(clock, "profile", profiler((DeviceType.CPU, 0.0, 1.0, False)))
    found = clock.spent(clock.call).per(2)
    assert str(found) == "2 ms elapsed, busy time not measured: the profiler saw no kernel"

    def refuses(activities):
        raise RuntimeError("no CUPTI\non this machine")

    monkeypatch.setattr(clock, "profile", refuses)
    assert clock.busy(clock.call) == (None, "no CUPTI")


def test_spans_inside_others_are_counted_once(clock):
    assert clock.covered([(0, 10), (2, 3), (9, 12), (20, 21)]) == 13 and clock.covered([]) == 0


def test_both_ratios_are_of_the_same_kind_of_time(clock):
    loops = [clock.Spent(4.0, 1.0), clock.Spent(8.0, 2.0)]
    assert clock.mean(loops).over(clock.Spent(0.06, 0.05)) == (pytest.approx(100), pytest.approx(30))
    unknown = clock.mean([*loops, clock.Spent(6.0, None, "no CUPTI")])
    assert unknown == clock.Spent(6.0, None, "no CUPTI")
    assert unknown.over(loops[0]) == (1.5, None) and loops[0].over(unknown)[1] is None


@pytest.mark.parametrize(
    ("loop", "ours", "met", "said"),
    [
        ((6.0, 0.5), (0.06, 0.05), True, "100x fewer CUDA seconds per (lane, token), elapsed by CUDA events; 10x by"),
        ((2.4, 2.4), (0.06, 0.01), False, "40x fewer CUDA seconds per (lane, token), elapsed by CUDA events; 240x by"),
        ((6.0, None, "no CUPTI"), (0.06, 0.05), True, "elapsed by CUDA events; busy time not measured: no CUPTI (goal"),
    ],
)
def test_the_goal_of_eviction_is_one_of_elapsed_time_with_the_busy_ratio_beside(loop, ours, met, said, script, capsys):
    cuda = script("benchmarks/perplexity_cuda.py")
    assert cuda.judged(cuda.Spent(*loop), cuda.Spent(*ours)) is met
    out = capsys.readouterr().out
    assert said in out and "(goal 50x elapsed)" in out and ("MISSED" in out) is not met
