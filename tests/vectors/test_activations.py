"""Activations of a language model: the rows a plain forward pass gives, kept on disk, taken up after a kill; and what a
reconstruction costs the model."""

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from assay.core.errors import UserError
from assay.data import activation_cache, language_model, named, splice
from assay.data.places import FOLDER, cache
from assay.nn.preparation import Preparation
from assay.nn.random import initialised_from, stream
from assay.studies.sae import fitting, get_llm_activations
from assay.studies.sae.sae import Sae, parsed
from assay.vectors import activations, vectors


class Counting(nn.Module):
    """Three layers that count their calls; the second gives a tuple, as layers of language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.calls = [0, 0, 0]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for place, layer in enumerate(self.layers):
            self.calls[place] += 1
            x = layer(x)
        return x


@pytest.fixture
def model() -> Counting:
    with initialised_from(0, "init"):
        return Counting()


def ids(sequences: int = 6, length: int = 5) -> torch.Tensor:
    return torch.randint(0, 11, (sequences, length), generator=stream(0, "ids"))


def test_several_modules_from_one_forward_pass_that_stops_after_the_last(model: Counting) -> None:
    seen = activation_cache.outputs(model, ["layers.0", "layers.1"], ids())
    x = model.layers[0](model.embed(ids()))
    torch.testing.assert_close(seen["layers.0"], x)
    torch.testing.assert_close(seen["layers.1"], model.layers[1](x))
    assert model.calls == [1, 1, 0], "the third layer was not needed"
    assert not any(layer._forward_hooks for layer in model.layers)


def test_rows_on_disk_are_those_of_a_plain_pass_whatever_the_shards(
    model: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation_cache, "SHARD", 7)
    found = activation_cache.collect(model, ["layers.0", "layers.2"], ids().split(2), tmp_path)
    plain = model(ids())[:, 1:].flatten(0, 1)
    torch.testing.assert_close(found.read("layers.2"), plain)
    assert found.read("layers.0").shape == (24, 6) and len(list(tmp_path.glob("layers.2-*.npy"))) == 4


def test_a_killed_collection_goes_on_where_it_stopped(model: Counting, tmp_path: Path) -> None:
    def killed():
        yield from ids().split(2)[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        activation_cache.collect(model, ["layers.1"], killed(), tmp_path)
    assert json.loads((tmp_path / activation_cache.PROGRESS).read_text()) == {"batches": 2, "rows": 16}
    model.calls = [0, 0, 0]
    found = activation_cache.collect(model, ["layers.1"], ids().split(2), tmp_path)
    assert model.calls[0] == 1, "two of three batches were there"
    torch.testing.assert_close(
        found.read("layers.1"), activation_cache.outputs(model, ["layers.1"], ids())["layers.1"][:, 1:].flatten(0, 1)
    )


PROGRESS_HARMS = {
    "a pipe": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "nested": lambda path: path.write_text("[" * 100_000),
    "no object": lambda path: path.write_text("[1]"),
    "no numbers": lambda path: path.write_text('{"batches": "2", "rows": -1}'),
    "empty": lambda path: path.write_text(""),
}


@pytest.mark.parametrize("harm", PROGRESS_HARMS)
def test_rows_whose_progress_is_damaged_are_written_anew(model: Counting, tmp_path: Path, harm: str) -> None:
    activation_cache.collect(model, ["layers.1"], ids().split(2), tmp_path)
    (tmp_path / activation_cache.PROGRESS).unlink()
    PROGRESS_HARMS[harm](tmp_path / activation_cache.PROGRESS)
    model.calls = [0, 0, 0]
    found = activation_cache.collect(model, ["layers.1"], ids().split(2), tmp_path)
    assert model.calls[0] == 3 and found.read("layers.1").shape == (24, 6)
    assert json.loads((tmp_path / activation_cache.PROGRESS).read_text()) == {"batches": 3, "rows": 24}


def test_a_lock_that_is_a_pipe_or_a_link_is_neither_waited_for_nor_emptied(model: Counting, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / activation_cache.LOCK)
    assert activation_cache.collect(model, ["layers.1"], ids().split(2), tmp_path).progress["batches"] == 3
    (tmp_path / activation_cache.LOCK).unlink()
    (tmp_path / "mine").write_text("words")
    (tmp_path / activation_cache.LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="A link stands where assay needs a file"):
        activation_cache.collect(model, ["layers.1"], ids().split(2), tmp_path)
    assert (tmp_path / "mine").read_text() == "words"


def test_what_a_module_puts_out_is_changed_inside_and_put_back_after(model: Counting) -> None:
    plain = model(ids())
    with activation_cache.replaced(model, "layers.0", torch.zeros_like):
        changed = model(ids())
    torch.testing.assert_close(changed, model.layers[2](model.layers[1](torch.zeros(6, 5, 6))))
    assert torch.equal(model(ids()), plain)


def test_a_module_that_is_not_there_is_named_with_what_is(model: Counting) -> None:
    with pytest.raises(UserError, match=r"Did you mean 'layers\.1'"):
        activation_cache.outputs(model, ["layer.1"], ids())


def test_a_language_models_rows_are_per_token_and_split_by_sequence(tiny: activations.Activations) -> None:
    data = tiny.load()
    assert [len(part) for part in (data.train, data.validation, data.test)] == [32 * 19, 4 * 19, 4 * 19]
    model = named.shared_model("tiny")
    with torch.no_grad():
        plain = model.model(tiny.tokens(), output_hidden_states=True).hidden_states[1][:, 1:].flatten(0, 1)
    mean = plain[: 32 * 19].mean(dim=0)
    scale = (plain[: 32 * 19] - mean).square().mean().sqrt()
    torch.testing.assert_close(data.test.x, (plain[-4 * 19 :] - mean) / scale, rtol=1e-4, atol=1e-4)
    assert data.train.labels.unique().numel() > 1
    assert torch.equal(tiny.load().test.x, data.test.x), "the second time from the cache"


def test_a_perfect_code_costs_the_model_nothing_and_the_mean_what_the_mean_costs(tiny: activations.Activations) -> None:
    splice = tiny.load().splice
    perfect, mean = splice(lambda x: x), splice(torch.zeros_like)
    assert perfect["ce_spliced"] == pytest.approx(perfect["ce"], abs=1e-5)
    assert perfect["kl"] == pytest.approx(0, abs=1e-6) and mean["kl"] > 1e-5
    assert mean["ce_spliced"] == pytest.approx(mean["ce_mean"], abs=1e-5)
    assert mean["ce_zero"] != mean["ce"]


class Successor(nn.Module):
    """Knows that 3 comes after 2."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(5 * torch.eye(11).roll(1, 1))
        self.layer = nn.Identity()

    def forward(self, ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.layer(self.embed(ids)))


COUNTED = torch.arange(33).view(3, 11) % 11


def recovered(ids: torch.Tensor, reconstruct: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, float]:
    centred = Preparation(torch.full((11,), 5 / 11), 1.0)
    return splice.Splice(Successor(), "layer", [ids], centred).loss_recovered(reconstruct)


def test_loss_recovered_is_1_for_a_perfect_code_and_0_for_the_mean() -> None:
    perfect, mean, half = (recovered(COUNTED, lambda x, share=share: share * x) for share in (1, 0, 0.5))
    assert perfect["loss_recovered"] == perfect["loss_recovered_from_mean"] == pytest.approx(1)
    assert mean["loss_recovered_from_mean"] == pytest.approx(0, abs=1e-6)
    assert 0.2 < half["loss_recovered_from_mean"] < 0.9
    own = torch.eye(11)[COUNTED].roll(1, 2)[:, 1:-1].mul(5).log_softmax(dim=2)
    other = torch.eye(11)[COUNTED].roll(1, 2)[:, 1:-1].mul(2.5).log_softmax(dim=2)
    assert half["kl"] == pytest.approx(float((own.exp() * (own - other)).sum(dim=2).mean()), abs=1e-5)
    assert perfect["kl"] == pytest.approx(0, abs=1e-6) and mean["kl"] > half["kl"]


@pytest.mark.parametrize("ids", [COUNTED.flip(1), torch.zeros(3, 11, dtype=torch.long)], ids=["backwards", "constant"])
def test_no_share_is_given_of_a_loss_that_the_baseline_does_not_have(ids: torch.Tensor) -> None:
    found = recovered(ids, lambda x: 0.5 * x)
    assert found["ce_mean"] < found["ce"], "the model is surer of what does not come than its mean is"
    assert found.keys() == {"ce", "ce_mean", "ce_zero", "ce_spliced", "kl"}


def test_a_baseline_must_be_clearly_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    gap = recovered(COUNTED, lambda x: x)["ce_mean"] - recovered(COUNTED, lambda x: x)["ce"]
    monkeypatch.setattr(splice, "CLEARLY", gap * 1.01)
    assert "loss_recovered_from_mean" not in recovered(COUNTED, lambda x: x)
    monkeypatch.setattr(splice, "CLEARLY", gap * 0.99)
    assert "loss_recovered_from_mean" in recovered(COUNTED, lambda x: x)


def test_a_module_that_is_not_there_is_refused_before_anything_is_read_or_computed(
    tiny: activations.Activations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwanted(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    tiny.locate()
    monkeypatch.setattr(language_model, "load_model", unwanted)
    study = Sae(data=replace(tiny, hook="model.layers.99"), coders=parsed(["pca"]), seeds=(0,))
    with pytest.raises(UserError, match=r"no module 'model\.layers\.99'\. Did you mean 'model\.layers\.[01]") as said:
        study.prepare(study.plan())
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("change", [torch.neg, lambda w: w.flip(0)], ids=["signs", "order"])
def test_the_cache_of_other_weights_of_the_same_size_is_not_taken(
    tiny: activations.Activations, tmp_path: Path, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    first, rows = named.weights_hash("tiny"), tiny.load().test.x
    model = named.shared_model("tiny")
    content = named.content_hash(model)
    weight = model.get_parameter("model.embed_tokens.weight")
    with torch.no_grad():
        weight.copy_(change(weight))
    assert named.content_hash(model) != content, "also of a name, whose files are not at hand"
    model.save_pretrained(tmp_path / "models" / "tiny")
    assert named.weights_hash("tiny") != first
    assert not torch.equal(tiny.load().test.x, rows)


def test_rows_far_longer_than_the_others_are_left_out_and_left_as_they_are(tiny: activations.Activations) -> None:
    model = named.shared_model("tiny")
    with torch.no_grad():
        plain = model.model(tiny.tokens(), output_hidden_states=True).hidden_states[1][:, 1:]
    length = plain.norm(dim=2)
    limit = 1.1 * length[:32].median()
    some = replace(tiny, longest=1.1)
    data = some.load()
    assert len(data.test) == int((length[-4:] <= limit).sum()) < 4 * 19
    kept = plain[:32][length[:32] <= limit]
    assert len(data.train) == len(data.train.labels) == len(kept)
    scale = (kept - kept.mean(dim=0)).square().mean().sqrt()
    torch.testing.assert_close(data.train.x, (kept - kept.mean(dim=0)) / scale, rtol=1e-4, atol=1e-4)
    seen: list[torch.Tensor] = []
    data.splice(lambda x: seen.append(x) or x)  # type: ignore[func-returns-value]
    torch.testing.assert_close(torch.cat(seen), data.test.x, rtol=1e-3, atol=1e-3)
    assert len(replace(tiny, longest=0.0).load().test) == 4 * 19
    assert len(list((cache() / "activations").iterdir())) == 1, "what is computed is the same"
    with pytest.raises(UserError, match=r"longest=0\.5 would leave out the rows in the middle"):
        replace(tiny, longest=0.5)


def test_what_is_missing_is_said(tiny: activations.Activations) -> None:
    with pytest.raises(UserError, match=r"no text 'absent\.txt'"):
        activations.Activations(text="absent.txt").locate()
    with pytest.raises(UserError, match="too few for 10 sequences"):
        activations.Activations(model="tiny", text="text.txt", context=500).tokens()


def collect_in_a_process(folder: str, log: str) -> None:
    """Slow enough that the other process would be in the midst of it."""
    with initialised_from(0, "init"):
        model = Counting()

    batches = [torch.randint(0, 11, (2, 5), generator=stream(place, "ids")) for place in range(4)]
    plain = model.forward

    def slow(ids: torch.Tensor) -> torch.Tensor:
        with Path(f"{log}.computed").open("a") as file:
            file.write("1\n")
        time.sleep(0.2)
        return plain(ids)

    model.forward = slow  # type: ignore[method-assign]
    rows = activation_cache.collect(model, ["layers.1"], batches, Path(folder)).read("layers.1")
    torch.save(rows, f"{log}.{os.getpid()}.pt")


def test_two_processes_that_want_the_same_rows_compute_them_once(tmp_path: Path) -> None:
    fresh = multiprocessing.get_context("forkserver")
    fresh.set_forkserver_preload([__name__])  # torch is imported once for both
    log = str(tmp_path / "log")
    workers = [fresh.Process(target=collect_in_a_process, args=(str(tmp_path / "rows"), log)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert Path(f"{log}.computed").read_text().count("1") == 4, "each batch by one of them"
    one, other = (torch.load(path) for path in sorted(tmp_path.glob("log.*.pt")))
    assert torch.equal(one, other) and one.shape == (4 * 2 * 4, 6)


def test_rows_of_another_device_are_not_taken_up(
    tiny: activations.Activations, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, Path]] = []
    collect = activation_cache.collect

    def noted(model: nn.Module, names: list[str], batches: object, folder: Path) -> activation_cache.Shards:
        seen.append((next(model.parameters()).device.type, folder))
        return (
            collect(model, names, [batch.cpu() for batch in tiny.tokens().split(4)], folder) if len(seen) == 1 else None
        )  # type: ignore[return-value]

    monkeypatch.setattr(activation_cache, "collect", noted)
    tiny.load_with("cpu")
    with pytest.raises(AttributeError):  # no rows come of a device without memory; it was asked for them
        tiny.load_with("meta")
    named.loaded_model.cache_clear()
    assert [device for device, _ in seen] == ["cpu", "meta"] and seen[0][1] != seen[1][1]


def test_the_specs_function_keeps_rows_where_it_is_told(tiny: activations.Activations, tmp_path: Path) -> None:
    loaders = get_llm_activations("tiny", 0, tmp_path / "kept", 8, 300, text="text.txt")
    assert next(len(batch[0]) for batch in loaders[0]) == 8
    train, test = (loader.x for loader in loaders)
    assert train.shape[1] == test.shape[1] == 16 and list((tmp_path / "kept").glob("*/progress.json"))
    assert not (tmp_path / "cache").exists()
    assert len(test) > 1 and len(train) == 8 * len(test), "also where the text has more rows than were asked for"


def test_models_without_the_hub_and_named_texts_are_found(
    tiny: activations.Activations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"smollm2-135m": lambda: tmp_path / "smollm2"}
    monkeypatch.setattr(language_model, "KNOWN_WITHOUT_THE_HUB", found)
    assert named.find_model("smollm2-135m") == str(tmp_path / "smollm2")
    assert Path(named.find_model(tiny.model)).is_dir() and named.find_model("some/name") == "some/name"
    assert len(named.read_text("pydoc")) > 100_000
    with pytest.raises(UserError, match=r"no text 'absent.txt'.*`pydoc`"):
        named.read_text("absent.txt")


def test_two_texts_or_two_models_of_one_name_are_two_data_sets(tiny: activations.Activations, tmp_path: Path) -> None:
    def planned(data_dir: Path | None = None) -> str:
        return Sae(data=tiny, coders=parsed(["pca"]), seeds=(0,), data_dir=data_dir).plan()[0].id

    first, other = planned(), tmp_path / "other"
    assert planned() == first and planned(tmp_path) == first, "where it lies does not matter"
    shutil.copytree(tmp_path / "models", other / "models")
    (other / "text.txt").write_text("Bees! " * 300)
    second = planned(other)
    shutil.copy(tmp_path / "text.txt", other / "text.txt")
    assert second != first and planned(other) == first
    config = other / "models" / "tiny" / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    assert planned(other) not in (first, second)


def test_data_without_files_has_nothing_to_tell_apart() -> None:
    assert [vectors.parse(word).fingerprint() for word in ("digits", "mnist", "dictionary")] == [None] * 3
    absent = activations.Activations(model="absent", text="absent.txt")
    assert absent.fingerprint() is None, "it is said when the text is looked for: a plan can be shown without it"


def test_a_text_that_changes_is_read_again(tiny: activations.Activations, tmp_path: Path) -> None:
    first = fitting.load(tiny, torch.device("cpu"))
    assert fitting.load(tiny, torch.device("cpu")) is first
    (tmp_path / "text.txt").write_text("Bees! a cat, 3 dogs. " * 80)
    assert not torch.equal(fitting.load(tiny, torch.device("cpu")).test.x, first.test.x)


def test_the_cache_is_one_of_the_places_for_models_and_texts(tiny: activations.Activations, tmp_path: Path) -> None:
    kept = cache() / "models" / "kept"
    shutil.copytree(tmp_path / "models" / "tiny", kept)
    (cache() / "kept.txt").write_text("kept")
    assert named.find_model("kept") == str(kept) and named.read_text("kept.txt") == "kept"


def test_a_data_folder_that_is_not_there_is_said(
    tiny: activations.Activations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "absent"))
    with pytest.raises(UserError, match=r"absent' does not exist: name one that does, or none\. Give a file or folder"):
        tiny.locate()
