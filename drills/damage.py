"""Ways in which a record or an artifact can be damaged by hand, by a disk, or by somebody who means harm."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

RECORD = "record.json"
Damage = Callable[[Path], None]


def changed(**fields: Any) -> Damage:
    """Replace some fields of the record."""

    def damage(folder: Path) -> None:
        path = folder / RECORD
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return damage


def written(text: str) -> Damage:
    return lambda folder: (folder / RECORD).write_text(text) and None


def truncated(folder: Path) -> None:
    text = (folder / RECORD).read_text()
    (folder / RECORD).write_text(text[: len(text) // 2])


def fifo(folder: Path) -> None:
    (folder / RECORD).unlink()
    os.mkfifo(folder / RECORD)


def linked_elsewhere(folder: Path) -> None:
    (folder / RECORD).unlink()
    (folder / RECORD).symlink_to("/dev/zero")


def a_folder(folder: Path) -> None:
    (folder / RECORD).unlink()
    (folder / RECORD).mkdir()


def in_its_place(make: Callable[[Path], object]) -> Damage:
    """Put something else in the place of the run's folder."""

    def damage(folder: Path) -> None:
        shutil.rmtree(folder)
        make(folder)

    return damage


def another_run(folder: Path) -> None:
    data = json.loads((folder / RECORD).read_text())
    data["run"]["seed"] += 1000
    (folder / RECORD).write_text(json.dumps(data | {"id": "0" * 16}))


def long_number(folder: Path) -> None:
    data = json.loads((folder / RECORD).read_text())
    text = json.dumps(data | {"metrics": {"R2": "NUMBER"}}).replace('"NUMBER"', "9" * 5000)
    (folder / RECORD).write_text(text)


def without_artifact(folder: Path) -> None:
    for name in json.loads((folder / RECORD).read_text())["artifacts"]:
        (folder / name).unlink()


def short_artifact(folder: Path) -> None:
    for name in json.loads((folder / RECORD).read_text())["artifacts"]:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])


def flipped_artifact(folder: Path) -> None:
    for name in json.loads((folder / RECORD).read_text())["artifacts"]:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)


def folder_for_artifact(folder: Path) -> None:
    without_artifact(folder)
    for name in json.loads((folder / RECORD).read_text())["artifacts"]:
        (folder / name).mkdir()


RECORDS: dict[str, Damage] = {
    "cut in half": truncated,
    "empty": written(""),
    "no JSON": written("\x00\x01\x1b[2J not a record"),
    "a list": written("[1, 2, 3]"),
    "deeply nested": written("[" * 100_000),
    "status is an object": changed(status={}),
    "an unknown status": changed(status="\x1b[31mdone"),
    "metrics are a list": changed(metrics=[1, 2]),
    "finished is null": changed(finished=None),
    "a number of 5,000 digits": long_number,
    "no run": changed(run=None),
    "another run's id": another_run,
    "a FIFO": fifo,
    "a link to /dev/zero": linked_elsewhere,
    "a folder": a_folder,
    "a FIFO for the run's folder": in_its_place(os.mkfifo),
    "a file for the run's folder": in_its_place(Path.touch),
    "a link for the run's folder": in_its_place(lambda folder: folder.symlink_to(folder.parent)),
}

ARTIFACTS: dict[str, Damage] = {
    "artifact missing": without_artifact,
    "artifact cut in half": short_artifact,
    "one bit of an artifact flipped": flipped_artifact,
    "a folder for an artifact": folder_for_artifact,
}
