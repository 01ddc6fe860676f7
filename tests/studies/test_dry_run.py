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
