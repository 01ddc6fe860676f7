"""A run is one cell of a study with everything that decides its numbers; its id is the hash of exactly that.

Run(study="expressivity", options={"model": {...}, "L": 32, ...}, seed=0, versions={...}, numerics=...).id
"""

import hashlib
import importlib.metadata
import json
import math
import numbers
import platform
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cache, cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from assay.core.errors import UserError
from assay.core.files import read_plain, sha256

T = TypeVar("T")
Status = Literal["done", "failed", "diverged"]
FORMAT = 2
"""Version of record.json; a store written by a later one is refused, never guessed at. 1 (assay 0.1.0) has no sizes and
hashes of files and no hardware, and its reader takes records with fields that it does not know for damaged ones."""
REFUSED = "refused"
"""The metric in which a run says why it gives no numbers: it is done, and is not retried."""
UNKNOWN = "unknown"
"""What a provenance says of code that cannot be identified."""
STORED = ("run", "status", "metrics", "cost", "error", "provenance", "finished", "artifacts", "files", "place")
"""The fields of a record, in the order of its file."""


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(value: Any) -> str:
    """Return one text per JSON value: sorted keys, no spaces, no NaN."""
    return _CANONICAL.encode(value)


@dataclass(frozen=True)
class Numerics:
    """Settings that change the last bits of a result, so part of the id. Host, device index and workers are not."""

    device: str = "cpu"
    dtype: str = "float32"
    matmul_precision: str = "highest"
    backend: str = "torch"
    compile: bool = False
    threads: int = 1


@dataclass(frozen=True, eq=False)
class Run:
    study: str
    options: Mapping[str, Any]
    seed: int
    versions: Mapping[str, str]
    numerics: Numerics = Numerics()

    @cached_property
    def id(self) -> str:
        """The hash of the canonical text of `to_json`."""
        return _hash(self.setting, self.seed)

    @property
    def setting(self) -> tuple[str, str]:
        """What runs share that differ only in their seed: their canonical text before and behind it. Keys are sorted,
        so the seed stands in between."""
        before = canonical({"numerics": vars(self.numerics), "options": self.options})
        behind = canonical({"study": self.study, "versions": self.versions})
        return f'{before[:-1]},"seed":', f",{behind[1:]}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def label(self) -> str:
        """Label for progress lines: the names of the run's plug-ins and its seed."""
        names = (str(name) for _, name in plugins_of(self.options))
        return " ".join([self.study, *names, f"seed={self.seed}"])

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.study,
            "options": dict(self.options),
            "seed": self.seed,
            "versions": dict(self.versions),
            "numerics": dict(vars(self.numerics)),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, id: str | None = None) -> Self:
        """Return the run that was written, with its stored id: another version may compute another."""
        numerics = shared(Numerics, data["numerics"])
        run = cls(data["study"], data["options"], data["seed"], data["versions"], numerics)
        if id is not None:
            vars(run)["id"] = id  # where `cached_property` looks it up
        return run


@dataclass(frozen=True)
class Provenance:
    """Says where and when a record was made; never part of an id."""

    assay: str = ""
    python: str = ""
    torch: str = ""
    host: str = ""
    machine: str = ""
    cpu: str = ""
    gpu: str = ""
    driver: str = ""
    cuda: str = ""
    source: str = ""
    """Digest of assay's own code (`source_digest`); records made before it was taken have none."""

    @property
    def names_its_code(self) -> bool:
        """Whether it tells which code made the record: an installed version, or the digest of the source."""
        return {self.assay, self.source} - {"", UNKNOWN} != set()

    @classmethod
    def here(cls) -> Self:
        """Return the provenance of this process, with the device that it computes on now (`computing_on`)."""
        return cls(
            assay=version_of("assay-bench"),
            python=platform.python_version(),
            torch=version_of("torch"),
            host=platform.node(),
            machine=f"{platform.system()} {platform.machine()}",
            cpu=cpu_model(),
            source=source_digest(),
            **_device,
        )


_device: Mapping[str, str] = {}


@contextmanager
def computing_on(**device: str) -> Iterator[None]:
    """Let `Provenance.here` name this device inside the block: its `gpu`, `driver` and `cuda`; none for a CPU. The core
    knows no device library, so whoever chooses a device calls this."""
    global _device
    before, _device = _device, device
    try:
        yield
    finally:
        _device = before


@cache
def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return `Intel(R) Xeon(R) Platinum 8480C`; for an ARM core on Linux, which has no name, maker and part numbers."""
    text = ""
    with suppress(OSError):
        text = cpuinfo.read_text()
    facts = dict(re.findall(r"^([^:\n]+?)\s*: *(.+)$", text, re.MULTILINE))
    if "CPU part" in facts:
        return f"ARM implementer {facts.get('CPU implementer', '?')} part {facts['CPU part']}"
    return facts.get("model name") or platform.processor() or platform.machine()


@dataclass(frozen=True)
class Record:
    """The result of a run. `metrics` are functions of the id; `cost` depends on the machine."""

    run: Run
    status: Status
    metrics: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    provenance: Provenance = Provenance()
    finished: str = ""
    artifacts: tuple[str, ...] = ()
    place: int | None = None
    """Position in the plan that it was computed for: tables show rows in that order, whoever makes them."""
    folder: Path | None = field(default=None, compare=False)
    """Folder of the artifacts; not part of the record."""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Artifact -> its `bytes` and `sha256`; empty in records of assay 0.1.0."""

    @property
    def verdict(self) -> str:
        """Status, as people read it."""
        return REFUSED if self.refusal else self.status

    @property
    def refusal(self) -> str | None:
        reason = self.metrics.get(REFUSED)
        return None if reason is None else str(reason)

    def artifact(self, name: str) -> bytes:
        """Return what the run saved under a name."""
        if self.folder is None or name not in self.artifacts:
            known = ", ".join(self.artifacts) or "none"
            raise UserError(f"run {self.run.id} has no artifact '{name}'. It has: {known}.")
        try:
            data = read_plain(self.folder / name)
        except (OSError, ValueError) as error:
            raise self.damaged(name, getattr(error, "strerror", None) or str(error)) from None
        written = self.files.get(name)
        if written and hashlib.sha256(data).hexdigest() != written["sha256"]:
            raise self.damaged(name, "it is not what was written")
        return data

    def damaged(self, name: str, reason: str) -> UserError:
        """Return the error to raise for an artifact that cannot be used."""
        return UserError(
            f"run {self.run.id} cannot be read: {self.folder}/{name}: {reason}. Remove the run with "
            f"`assay rm {self.run.id}`, then repeat the command that computed it."
        )

    def missing(self) -> str | None:
        """Return the first artifact that is missing, or is not what was written."""
        for name in self.artifacts if self.folder else ():
            path, written = Path(f"{self.folder}/{name}"), self.files.get(name)
            try:
                if not stat.S_ISREG(path.lstat().st_mode) or (written and sha256(path) != written["sha256"]):
                    return name
            except OSError:
                return name
        return None

    def to_json(self) -> dict[str, Any]:
        stored = {name: getattr(self, name) for name in STORED}
        stored |= {"run": self.run.to_json(), "provenance": asdict(self.provenance), "artifacts": list(self.artifacts)}
        return {"format": FORMAT, "id": self.run.id, **stored}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], folder: Path | None = None) -> Self:
        stored = {name: data[name] for name in STORED if name in data}  # assay 0.1.0 wrote neither files nor place
        run, provenance = Run.from_json(data["run"], id=data["id"]), shared(Provenance, data["provenance"])
        stored |= {"run": run, "provenance": provenance, "artifacts": tuple(data["artifacts"])}
        return cls(**stored, folder=folder)


def placed(runs: Iterable[Run], numerics: Numerics) -> Iterator[Run]:
    """Yield the runs with other numerics. A plan has thousands that differ from the one before only in their seed:
    their common part is serialised once for their ids."""
    before: Run | None = None
    around = ("", "")
    for run in runs:
        made = Run(run.study, run.options, run.seed, run.versions, numerics)
        alike = before is not None and run.options is before.options and run.versions is before.versions
        if not alike or before is None or run.study != before.study:
            around = made.setting
        vars(made)["id"] = _hash(around, run.seed)
        before = run
        yield made


def _hash(around: tuple[str, str], seed: int) -> str:
    return hashlib.sha256(f"{around[0]}{canonical(seed)}{around[1]}".encode()).hexdigest()[:16]


def as_planned(records: Iterable[Record]) -> list[Record]:
    """Sort records in the order of the plans that they were computed for; records of several plans, and those from
    before places were stored, by their labels."""
    ordered = sorted(records, key=_place)
    groups = (list(group) for _, group in groupby(ordered, key=_place))  # most are alone there, and need no label
    return [r for group in groups for r in (sorted(group, key=lambda r: r.run.label) if len(group) > 1 else group)]


def _place(record: Record) -> tuple[str, bool, int]:
    return record.run.study, record.place is None, record.place or 0


def finite(value: Any) -> tuple[Any, bool]:
    """Return the value with NaN and infinities as None, and whether it had none: they never reach JSON. Numbers of
    other libraries become Python's own."""
    if value is None or type(value) in (str, bool, int):  # first, since a plan has many and the ABC below is slow
        return value, True
    if isinstance(value, numbers.Integral):
        return (value if isinstance(value, bool) else int(value)), True
    if isinstance(value, float | numbers.Real):
        return (float(value), True) if math.isfinite(value) else (None, False)
    if isinstance(value, Mapping):
        pairs = {key: finite(item) for key, item in value.items()}
        return {key: item for key, (item, _) in pairs.items()}, all(ok for _, ok in pairs.values())
    if isinstance(value, list | tuple):
        items = [finite(item) for item in value]
        return [item for item, _ in items], all(ok for _, ok in items)
    return value, True


def not_finite(metrics: Mapping[str, Any]) -> list[str]:
    """Name the metrics that have a NaN or an infinity in them."""
    return [name for name, value in flat(dict(metrics)).items() if not finite(value)[1]]


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted names; a plug-in's name stands under its own key."""
    if not isinstance(value, dict):
        return {prefix: value}
    joined: dict[str, Any] = {}
    for key, item in value.items():
        path = key if not prefix else prefix if key == "name" else f"{prefix}.{key}"
        if isinstance(item, dict):
            joined |= flat(item, path)
        else:
            joined[path] = item
    return joined


def plugins_of(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and name of the outermost plug-ins among nested options."""
    for key, value in options.items():
        if isinstance(value, Mapping) and "name" in value:
            yield f"{prefix}{key}", value["name"]
        elif isinstance(value, Mapping):
            yield from plugins_of(value, f"{prefix}{key}.")


def shared(cls: type[T], data: Mapping[str, Any]) -> T:
    """Return an instance from a record's JSON, one object for all records that were made alike: missing fields have
    defaults, fields of a later version are dropped."""
    return _made(cls, *((f.name, data[f.name]) for f in fields(cls) if f.name in data))  # type: ignore[arg-type]


@lru_cache(maxsize=4096, typed=True)
def _made(cls: type[T], *values: tuple[str, Any]) -> T:
    return cls(**dict(values))


@cache
def version_of(distribution: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return UNKNOWN


@cache
def source_digest(package: Path = Path(__file__).parent.parent) -> str:
    """Return 12 hex digits that stand for the text of every Python file of a package, and where in it each file lies:
    one commit has one digest, and a checkout with edits has another."""
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("[!.]*.py")}  # no editor's lock files
    found = hashlib.sha256()
    try:
        for name in sorted(files):
            text = files[name].read_bytes()
            found.update(f"{name}\n{len(text)}\n".encode() + text)
    except OSError:
        return UNKNOWN
    return found.hexdigest()[:12] if files else UNKNOWN
