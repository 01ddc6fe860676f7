"""The loop that exact eviction is timed against computes the same thing, and its verdict can be missed."""

import pytest


@pytest.fixture
def benchmark(script):
    pytest.importorskip("transformers")
    return script("benchmarks/eviction_cuda.py")


def test_the_loop_s_logits_are_those_of_the_one_pass(benchmark, capsys):
    assert benchmark.main(["--toy"]) == 0
    said = capsys.readouterr().out
    assert said.count("goal 1e-4") == 3 and "MISSED" not in said


def test_lanes_as_rows_are_each_the_same(benchmark):
    import torch

    net = benchmark.small_llama(layers=2, width=32, heads=4, kv_heads=2, inner=48)
    ids = torch.randint(512, (3, 30), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        together = benchmark.Loop(net, ids, "h2o", 8).run()
        for row in range(3):
            alone = benchmark.Loop(net, ids[row : row + 1], "h2o", 8).run()
            torch.testing.assert_close(together[:, row], alone[:, 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["h2o", "tova", "streaming_llm", "random_evict"])
def test_the_loop_holds_no_more_than_its_slots_and_what_a_method_keeps(benchmark, method):
    import torch

    net = benchmark.small_llama(layers=2, width=32, heads=4, kv_heads=2, inner=48)
    ids = torch.randint(512, (1, 30), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        loop = benchmark.Loop(net, ids, method, 10)
        loop.run()
    held = loop.position.flatten(0, 2)
    assert (held >= 0).sum(-1).tolist() == [10] * 4, "the next key's place is free"
    assert all(len(set(own)) == 11 for own in held.tolist()), "every key is held once"
    if method in ("streaming_llm", "random_evict"):
        assert all(set(range(4)) <= set(own) for own in held.tolist())
    if method in ("h2o", "random_evict"):
        assert all(set(range(25, 30)) <= set(own) for own in held.tolist())


def test_the_goal_is_of_busy_time_and_can_be_missed(benchmark, capsys):
    loop, ours = benchmark.Spent(5.0, 0.5), benchmark.Spent(0.05, 0.04)
    assert benchmark.judged(loop, ours, 1) and "12.5x by the time the GPU was busy" in capsys.readouterr().out
    assert not benchmark.judged(benchmark.Spent(5.0, 0.3), ours, 1) and "MISSED" in capsys.readouterr().out
    assert not benchmark.judged(benchmark.Spent(5.0, None, "no profiler"), ours, 1)
    assert "no profiler" in capsys.readouterr().out
    assert benchmark.judged(benchmark.Spent(0.01, 0.01), ours, 24), "no goal for lanes as rows"


def test_without_a_gpu_nothing_is_measured(benchmark, capsys, monkeypatch):
    monkeypatch.setattr(benchmark.torch.cuda, "is_available", lambda: False)
    assert benchmark.main([]) == 0 and "nothing is measured" in capsys.readouterr().out
