"""The sweeps that drills disturb: each study's demo with fewer steps, and what it stores when nothing disturbs it."""

import json
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench import Bench, Contents, checkpoints_in, contents, expect, records, wait_for

from assay.core.plugin import registries

# Scripts beside the package find each other by their folder.
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from stored import articles, tiny_model

sys.path.pop(0)

SHORTER = {
    "expressivity": "--models SelfAttn StaticMLP --seeds 0..2 --batch_eval 256 --retr_steps 40 --retr_train_steps 20",
    "icl": "--seeds 0 1 --train.max_steps 50 --train.validate_every 10 --eval_size 100",
    "modular sweep": "--seeds 0 1 --epochs 40",
    "perplexity": "--model {folder}/model --datasets {folder}/articles.txt --context-lengths 80 160 --max-samples 24",
    "sae": "--coders topk:k=4 topk:k=8 relu_l1:l1=0.1 relu_l1:l1=0.3 pca random_relu --seeds 0 1 --epochs 15",
}
"""Options that make a demo ten to twenty CPU seconds long, with several jobs and, but in expressivity, checkpoints. A
study that is not here is drilled with its whole demo."""


@dataclass
class Sweep:
    """One study's sweep, and its undisturbed result, which is computed once for all drills."""

    name: str
    words: tuple[str, ...]
    out: Path
    """Where the undisturbed sweep is stored."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _undisturbed: "Undisturbed | None" = None

    @property
    def undisturbed(self) -> "Undisturbed":
        with self._lock:  # drills run at once
            self._undisturbed = self._undisturbed or self._computed()
            return self._undisturbed

    def _computed(self) -> "Undisturbed":
        place = Bench(self.out.parent)
        started = time.monotonic()
        process = place.start(*self.words, "--out", self.out)
        wait_for(lambda: place.workers() or process.poll() is not None, f"workers of {self.name}", 600)
        working, checkpoints = time.monotonic(), False
        while process.poll() is None:
            checkpoints = checkpoints or bool(checkpoints_in(self.out))
            time.sleep(0.05)
        place.finish(process).expect(0)
        ended = time.monotonic()
        place.expect_no_process_left()
        again = place.run(*self.words, "--out", self.out).expect(0, said="nothing to run")
        found = contents(self.out)
        expect(found and all(status == "done" for status, *_ in found.values()), f"a run of {self.name} is not done")
        expect(f"{len(found)} stored, nothing to run" in again.err, f"{self.name} is not stored: {again.err[:200]}")
        return Undisturbed(found, working - started, ended - working, checkpoints)

    @property
    def size(self) -> int:
        """Bytes on disk of the undisturbed records and their artifacts, in pages of 4 kB."""
        files = (path for path in (self.out / ".store").rglob("*") if path.is_file())
        return sum(-(-path.stat().st_size // 4096) * 4096 for path in files)

    @property
    def artifacts(self) -> list[str]:
        """The runs that have artifacts."""
        return [
            name
            for name, path in records(self.out).items()
            if json.loads((path / "record.json").read_text())["artifacts"]
        ]


@dataclass(frozen=True)
class Undisturbed:
    """What an undisturbed sweep stored, and how long it took: drills draw their moments from these times."""

    contents: Contents
    starting: float
    """Seconds from the start to the first worker process."""
    working: float
    """Seconds from there to the end."""
    checkpoints: bool
    """Whether its runs write checkpoints."""


def sweeps(folder: Path) -> dict[str, Sweep]:
    """Every study that has a demo, by the words of its command."""
    tiny_model(folder)  # a language model that loads in no time: what is drilled is the driver, not the model
    articles(folder)
    studies = registries()["studies"]
    names = [name.replace(".", " ") for name in studies.names() if "demo" in studies[name].presets]
    return {name: Sweep(name, _words(name, folder), folder / name.replace(" ", "-")) for name in names}


def _words(name: str, folder: Path) -> tuple[str, ...]:
    shorter = SHORTER.get(name, "").format(folder=folder).split()
    return (*name.split(), "--preset", "demo", "--device", "cpu", "--workers", "2", *shorter)
