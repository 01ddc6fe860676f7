"""A stream of activations: the rows a plain forward pass gives, a buffer at a time; documents held out; the same
numbers whatever is trained beside, and after a kill."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_pass import plain_rows

import assay
from assay.core.errors import UserError
from assay.core.run import canonical
from assay.data import named, text, token_windows
from assay.data.places import cache
from assay.data.row_stream import RowStream
from assay.nn.preparation import Preparation
from assay.studies.sae import fitting
from assay.studies.sae.sae import Sae, parsed
from assay.vectors import vectors
from assay.vectors.stream import Stream


def test_whole_documents_are_held_out(stream: Stream) -> None:
    windows = stream.windows()
    ends = torch.from_numpy(token_windows._opened(*kept(), kept()[1].stat().st_mtime_ns).ends)
    documents = {
        part: set(torch.searchsorted(ends, getattr(windows, part), right=True).tolist())
        for part in ("train", "validation", "test")
    }
    assert not documents["train"] & documents["test"] and not documents["train"] & documents["validation"]
    assert not documents["validation"] & documents["test"]
    assert len(windows.test) >= 400 // 20 and len(windows.train) > 4 * len(windows.test)


def kept() -> tuple[Path, Path]:
    return next((cache() / "tokens").glob("*.tokens")), next((cache() / "tokens").glob("*.ends"))


def test_a_text_is_tokenised_once_and_no_further_than_asked(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(stream, tokens=1000, held_out=200)
    assert len(short.windows().ids) == 1000 + 2 * 200
    monkeypatch.setattr(token_windows, "_tokenise", None)
    again = short.windows()
    assert torch.equal(again.train, short.windows().train)
    whole = "".join(named.shared_tokenizer("tiny").convert_ids_to_tokens(again.ids[:40].tolist()))
    assert whole == next(text.documents(str(named.text_path("documents.jsonl"))))[:40]


def test_blocks_end_with_documents_but_for_very_long_ones() -> None:
    def edges(*ends: int) -> list[int]:
        return token_windows._blocks(np.array(ends), 10)

    assert edges(4, 8, 13, 30, 33, 400) == [0, 13, 30, *range(40, 391, 10), 400]
    assert edges(4, 8, 13, 30, 33) == [0, 13, 30, 33]


def test_a_last_block_that_is_shorter_than_a_window_has_none() -> None:
    ids = np.arange(2003, dtype=np.uint32)
    windows = token_windows.TokenFile(ids, np.array([*range(100, 2001, 100), 2003])).windows(20, 100)
    assert len(windows.train) + len(windows.validation) + len(windows.test) > 0
    assert max(int(part.max()) for part in (windows.train, windows.validation, windows.test)) + 20 <= 2003


def test_every_pass_over_the_text_has_all_windows_in_an_order_of_its_own(stream: Stream) -> None:
    windows = stream.windows()
    n = len(windows.train)
    first, second = windows.training(0, n), windows.training(n, n)
    assert first.sort().values.equal(windows.train.sort().values) and second.sort().values.equal(first.sort().values)
    assert not first.equal(second)
    assert windows.training(n - 3, 6).equal(torch.cat([first[-3:], second[:3]]))


def test_a_buffer_has_the_rows_of_a_plain_pass_for_several_modules_from_one(stream: Stream) -> None:
    data = stream.load()
    other = replace(stream, hook="model.layers.1").load()
    both = stream.rows({"model.layers.0": data.preparation, "model.layers.1": other.preparation})
    alone = stream.rows({"model.layers.0": data.preparation})
    calls: list[object] = []
    first_layer = named.shared_model("tiny").model.layers[0]
    handle = first_layer.register_forward_hook(lambda *_: calls.append(1))
    both.fill(1)
    handle.remove()
    assert len(calls) == -(-both.per_buffer // stream.batch), "one pass for both"
    windows = stream.windows()
    ids = windows.tokens(windows.training(both.per_buffer, both.per_buffer))
    for layer, own in enumerate((data, other)):
        raw = plain_rows(ids, layer)
        rows = own.preparation.prepare(raw[own.preparation.usual(raw)])[: stream.buffer]
        torch.testing.assert_close(both.buffers[f"model.layers.{layer}"], rows, rtol=1e-4, atol=1e-4)
    alone.fill(1)
    assert torch.equal(alone.buffers["model.layers.0"], both.buffers["model.layers.0"])


def test_rows_that_are_left_out_are_made_up_for_by_other_rows(stream: Stream) -> None:
    data = stream.load()
    raw = plain_rows(stream.windows().tokens(stream.windows().train))
    strict = replace(data.preparation, limit=float(raw.norm(dim=1).quantile(0.8)))
    rows = stream.rows({stream.hook: strict})
    rows.fill(0)
    assert (rows.buffers[stream.hook] != 0).any(dim=1).all()
    assert len(rows.buffers[stream.hook].unique(dim=0)) < stream.buffer
    nobody = stream.rows({stream.hook: replace(data.preparation, limit=0.0)})
    with pytest.raises(UserError, match="more than half of the rows are longer than `longest` allows"):
        nobody.fill(0)


def test_the_sample_is_centred_scaled_and_without_sinks(stream: Stream) -> None:
    data = stream.load()
    assert data.train.x.mean(dim=0).abs().max() < 1e-5 and data.train.x.square().mean() == pytest.approx(1, abs=1e-4)
    raw = plain_rows(stream.windows().tokens(stream.windows().test))
    torch.testing.assert_close(
        data.test.x, data.preparation.prepare(raw[data.preparation.usual(raw)]), rtol=1e-4, atol=1e-4
    )
    assert Preparation.of(raw, 0.0).usual(raw).all()


def trained(stream: Stream, coders: list[str], out: Path, **options: Any) -> dict[str, Any]:
    given = {"d_code": 24, "steps": 9, "batch": 40, "warmup": 0.2, "decay": 0.5, "lrs": (1e-2,), "seeds": (0, 1)}
    found = assay.run(
        "sae", data=stream, coders=parsed(coders), out=out, executor="serial", device="cpu", **{**given, **options}
    )
    assert [record.status for record in found] == ["done"] * len(found), [record.error for record in found]
    return {record.run.id: record for record in found}


KINDS = ["topk:k=4", "topk:k=2", "relu_l1", "lse_infomax", "random_relu"]


def test_coders_trained_on_one_pass_have_the_numbers_each_has_alone(stream: Stream, tmp_path: Path) -> None:
    together = trained(stream, KINDS, tmp_path / "together")
    alone = trained(stream, ["relu_l1"], tmp_path / "alone", seeds=(1,))
    (ours,) = alone.values()
    assert canonical(dict(together[ours.run.id].metrics)) == canonical(dict(ours.metrics))
    assert together[ours.run.id].cost["trained_together"] == 8 and ours.cost["trained_together"] == 1
    metrics = together[ours.run.id].metrics
    history = metrics["history"]
    assert history["steps"] == [3, 6, 9] and len(history["curve_fvu"]) == len(history["curve_dead"]) == 3
    assert {"fvu", "fvu_own", "kl", "kl_own", "ce_spliced", "ce_spliced_own"} <= metrics.keys()
    assert ours.cost["tokens_streamed"] >= 3 * stream.buffer and ours.cost["tokens_per_s"] > 0
    free = [r for r in together.values() if r.run.options["coder"]["name"] in ("lse_infomax", "random_relu")]
    assert all("kl" in r.metrics and "kl_own" not in r.metrics for r in free), "no decoder of their own"


def test_modules_of_one_stream_share_a_forward_pass_and_keep_their_numbers(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[list[str]] = []
    fill = RowStream.fill
    monkeypatch.setattr(RowStream, "fill", lambda self, n: filled.append([*self.buffers]) or fill(self, n))
    grid = {"data.hook": ["model.layers.0", "model.layers.1"]}
    both = trained(stream, ["topk:k=4"], tmp_path / "both", seeds=(0,), grid=grid)
    assert len(filled) == 3 and all(len(hooks) == 2 for hooks in filled)
    (alone,) = trained(replace(stream, hook="model.layers.1"), ["topk:k=4"], tmp_path / "one", seeds=(0,)).values()
    assert canonical(dict(both[alone.run.id].metrics)) == canonical(dict(alone.metrics))


def test_an_interrupted_stream_goes_on_to_the_same_numbers(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["topk:k=4", "lse_infomax"]
    whole = trained(stream, words, tmp_path / "whole", seeds=(0,))
    filled: list[int] = []
    fill = RowStream.fill

    def killed(self: RowStream, number: int) -> None:
        if number == 2 and 2 not in filled:
            filled.append(number)
            raise KeyboardInterrupt
        filled.append(number)
        fill(self, number)

    monkeypatch.setattr(RowStream, "fill", killed)
    with pytest.raises(KeyboardInterrupt):
        trained(stream, words, tmp_path / "killed", seeds=(0,))
    resumed = trained(stream, words, tmp_path / "killed", seeds=(0,))
    assert filled[:3] == [0, 1, 2] and filled[3] > 0, "it goes on from a checkpoint, and makes its buffer again"
    for key, record in whole.items():
        assert canonical(dict(record.metrics)) == canonical(dict(resumed[key].metrics))


def test_one_reading_of_the_tokens_is_the_default_and_shares_need_steps(stream: Stream) -> None:
    assert Sae(data=stream, batch=100).recipe().steps == 60
    assert Sae(data=stream, batch=100, steps=7).recipe().steps == 7
    assert Sae().recipe() == Sae(epochs=40).recipe()
    with pytest.raises(UserError, match="are shares of --steps"):
        Sae(warmup=0.1).recipe()
    with pytest.raises(UserError, match="--optimizer sgd"):
        Sae(steps=5, optimizer="sgd").recipe()


def test_another_text_or_model_is_another_run_wherever_it_lies(stream: Stream, tiny_model: Path) -> None:
    def planned(folder: Path | None = None, data: Stream = stream) -> str:
        return Sae(data=data, coders=parsed(["topk"]), seeds=(0,), data_dir=folder).plan()[0].id

    first, other = planned(), tiny_model / "other"
    shutil.copytree(tiny_model / "models", other / "models")
    shutil.copy(tiny_model / "documents.jsonl", other)
    assert planned(other) == first
    (other / "documents.jsonl").write_text('{"text": "bees"}\n' * 300)
    assert planned(other) != first != planned(data=replace(stream, hook="model.layers.1"))


def test_a_folder_a_named_text_and_a_data_set_of_the_hub_are_texts(stream: Stream, tiny_model: Path) -> None:
    folder = tiny_model / "folder"
    folder.mkdir()
    (folder / "b.txt").write_text("second")
    (folder / "a.txt").write_text("first")
    (folder / "c.bin").write_bytes(b"\0")
    assert list(text.documents(str(folder))) == ["first", "second"]
    assert replace(stream, text="folder").fingerprint() == replace(stream, text=str(folder)).fingerprint() is not None
    assert text.is_on_the_hub("HuggingFaceFW/fineweb-edu/sample-10BT") and text.is_on_the_hub("c4")
    assert not any(map(text.is_on_the_hub, ("absent.txt", "some/absent.txt", "/etc/passwd", "./x/y", "a/b/c/d")))
    with pytest.raises(UserError, match=r"no text 'absent\.txt'"):
        replace(stream, text="absent.txt").check()
    with pytest.raises(UserError, match=r"no module 'model\.layers\.9'"):
        replace(stream, hook="model.layers.9").check()
    with pytest.raises(UserError, match="too few for 10 windows"):
        (folder / "a.txt").write_text("a few letters")
        replace(stream, text="folder").windows()


def test_sizes_are_known_before_anything_is_loaded(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "loaded_model", None)
    assert stream.shape() == (6000, 16)
    assert replace(stream, hook="model.layers.0.mlp.act_fn").shape() is None, "another width"
    with pytest.raises(UserError, match="tokens=100 is too small"):
        replace(stream, tokens=100)


def test_a_cohort_on_a_stream_is_all_that_shares_its_forward_pass(stream: Stream) -> None:
    def keys(data: Stream, coder: str, **options: Any) -> set[str]:
        study = Sae(data=data, coders=parsed([coder]), **{"steps": 5, **options})
        return {fitting.cohort_key(run) for run in study.plan()}

    ours = keys(stream, "topk")
    assert len(ours) == 1 and ours == keys(stream, "relu_l1") == keys(replace(stream, hook="model.layers.1"), "gated")
    assert ours != keys(stream, "topk", steps=6) and ours != keys(replace(stream, context=30), "topk")
    assert len(keys(stream, "random_relu")) == 3, "nothing to train together"


def test_progress_tells_tokens_per_second(stream: Stream, tmp_path: Path) -> None:
    told: list[Any] = []
    trained(stream, ["topk:k=4"], tmp_path, seeds=(0,), watch=lambda event: told.append(event.progress))
    assert any("tokens_per_s" in progress.metrics for progress in told if progress)


def test_parts_of_the_study_know_a_stream_by_its_word() -> None:
    found = vectors.parse("stream:tokens=50_000_000:hook=model.layers.15")
    assert isinstance(found, Stream) and found.tokens == 50_000_000
