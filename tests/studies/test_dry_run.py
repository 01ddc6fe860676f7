"""`--dry-run` refuses what the run would refuse for its options alone, in the same line and with nothing computed."""

from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]
REFUSED = {
    "sae --coders topk:k=99": "k must be between 1 and the 32 units there are",
    "sae --coders pca --d_code 65": "64 inputs have 64 components",
    "sae --coders topk --batch 2000": "there are only 1197 rows to train on",
    "sae --coders lse_infomax:decorrelation=logdet --batch 64": "needs a batch of at least 128",
    "sae benchmark --config FILE --dataset digits": "k must be between 1 and the 64 units there are",
    "sae --data activations:text=nothere.txt": "no text 'nothere.txt'",
    "sae --data activations:text=pydoc:model=./nothere": "cannot load the model './nothere'",
    "sae --data mnist --data-dir nothere": "the data folder 'nothere' does not exist",
    "sae --data digits --data-dir nothere": "the data folder 'nothere' does not exist",
    "sae ablation --dataset mnist --data-dir nothere": "the data folder 'nothere' does not exist",
    "perplexity --datasets nothere.txt": "no dataset 'nothere.txt'",
    "perplexity --datasets pydoc --model ./nothere": "cannot load the model './nothere'",
    "perplexity --datasets pydoc --protocol prefix --methods local_strided:pattern=strided": "comes back to keys",
    "icl eval --model ./nothere.py:answer": "there is no file 'nothere.py'",
    "icl --model.model_dim 30 model.seq_mixer:attention:num_heads=4": "4 heads do not divide model_dim=30",
    "icl task:regression --model.tied": "a tied head needs a task",
    "modular sweep --save FOLDER.pkl --seeds 0": "a folder has that name",
    "expressivity --models pooled_mixer:width=30:mixer=(attention:positions=rotary:num_heads=2)": "pairs of channels",
    "perplexity --datasets copy --context-lengths 40 --model here": "the copy probe needs a context of at least 48",
}


@pytest.mark.parametrize(("words", "said"), REFUSED.items(), ids=REFUSED.keys())
def test_a_dry_run_refuses_what_the_run_would(words: str, said: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "folder.pkl").mkdir()
    (tmp_path / "bench.yaml").write_text("models:\n  - {name: wide, type: 'topk:k=99'}\n")
    words = words.replace("FOLDER", str(tmp_path / "folder")).replace("FILE", str(tmp_path / "bench.yaml"))
    code, out, err = cli(*words.split(), "--dry-run", "--cpu-only", "--out", tmp_path / "out")
    assert (code, out) == (2, "") and said in err and len(err.splitlines()) == 1


def test_a_model_that_is_away_is_not_fetched_and_the_dry_run_says_so(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.data import hub, language_model

    def fetch(*_: object, **__: object) -> None:
        raise AssertionError("a dry run asked the hub")

    monkeypatch.setattr(language_model, "load_config", fetch)
    monkeypatch.setattr(hub, "answers", fetch)
    for name in ("ASSAY_CACHE", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "empty"))
    words = ("perplexity", "--datasets", "pydoc", "--context-lengths", "64", "--dry-run", "--out", tmp_path)
    for model in ("someone/away", "smollm2-135m"):
        code, out, _ = cli(*words, "--model", model)
        assert code == 0 and out.splitlines()[-1].startswith("not here yet") and model in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "away"),
    {
        "sae --data mnist": "MNIST. `assay data pull mnist`",
        "sae --data mnist --data-dir hub": "MNIST. `assay data pull mnist`",
        "sae benchmark": "MNIST. `assay data pull mnist`",
        "sae --data activations": "the text 'wikitext-2/valid.txt', the model 'stories260K'. Give a file",
        "sae --data activations:text=wikitext-2": "the text 'wikitext-2', the model 'stories260K'. Give a file",
        "sae --data activations:text=pydoc": "the model 'stories260K'. Give a file",
    }.items(),
)
def test_data_that_is_away_is_not_fetched_and_the_dry_run_says_so(
    words: str, away: str, cli: Cli, tmp_path: Path
) -> None:
    code, out, err = cli(*words.split(), "--dry-run", "--cpu-only", "--out", tmp_path)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith(f"not here yet, and not fetched by a dry run: {away}")


def test_data_that_is_here_is_not_said_to_be_away(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").touch()
    for words in (("--data", "mnist", "--data-dir", tmp_path), ("--data", "digits")):
        code, out, _ = cli("sae", *words, "--dry-run", "--cpu-only", "--out", tmp_path)
        assert code == 0 and "not here" not in out
