"""The benchmark of long contexts runs at a toy's size, so that it does not fail where GPU time is short."""

import pytest


@pytest.mark.slow
def test_the_toy_runs_every_method_and_meets_a_goal_of_memory(script, capsys, monkeypatch):
    pytest.importorskip("transformers")
    benchmark = script("benchmarks/long_context_cuda.py")
    assert benchmark.main(["--toy"]) == 0
    said = capsys.readouterr().out
    assert all(f"{word}: " in said for word in benchmark.METHODS) and "MISSED" not in said
    monkeypatch.setattr(benchmark, "MOST_BYTES", 1.0)
    monkeypatch.setattr(benchmark, "METHODS", ("streaming_llm",))
    assert benchmark.main(["--toy"]) == 1 and "MISSED" in capsys.readouterr().out


def test_without_a_gpu_nothing_is_measured(script, capsys, monkeypatch):
    benchmark = script("benchmarks/long_context_cuda.py")
    monkeypatch.setattr(benchmark.torch.cuda, "is_available", lambda: False)
    assert benchmark.main([]) == 0 and "nothing is measured" in capsys.readouterr().out
