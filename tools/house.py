"""Measures the house: what a reader must open to follow a command, and what repeats. `make house` prints it.

    python tools/house.py [--compute] [--root src/assay] [--json FILE]

route      first-party files and lines that a command imports, without plug-in files and files of at most 6 lines; the
           command has to succeed. --compute adds `assay card` of the README's file, which trains for a minute
folders    lines of *.py, kernels apart
names      how often a name is bound (assigned, an argument, a function, a class), over 40 times
repeated   lines that stand in a run of six or more that stands elsewhere too

Beside it what was measured of others the same way. These are measures of a design: nothing fails by them.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

TRACE = """
import contextlib, io, json, sys
from assay.command.cli import main
from assay.core.plugin import registries
shown = io.StringIO()
with contextlib.redirect_stdout(shown):
    code = main(sys.argv[1:])
plugins = {entry.module for registry in registries().values() for entry in registry.folder.values()}
files = [m.__file__ for n, m in list(sys.modules.items()) if n.split(".")[0] == "assay" and n not in plugins]
print(json.dumps([code or 0, [f for f in files if f and f.endswith(".py")]]))
"""
COMMANDS = {
    "card X --stored": ["card", "delta_net", "--stored"],
    "icl --dry-run": ["icl", "--dry-run"],
    "perplexity --dry-run": ["perplexity", "--quick-test", "--dry-run"],
    "sae --dry-run": ["sae", "--dry-run"],
    "expressivity --dry-run": ["expressivity", "--dry-run"],
    "modular sweep --dry-run": ["modular", "sweep", "--dry-run"],
    "findings": ["findings"],
    "list": ["list"],
}
COMPUTED = ["--tier", "smoke", "--questions", "recall"]
ANCHORS = (
    "kvpress 48 files, 6.9k lines, 12 % repeated · nanochat 30, 6.7k, 3 % · equinox 72, 16k, .4 % · "
    "SAELens 35, 11k, 3 %"
)
SMALL, OFTEN, ALIKE = 6, 40, 6


def route(words: list[str], root: Path) -> dict[str, Any]:
    """Return the exit code of a command, and the files and lines of ours that it imported."""
    with tempfile.TemporaryDirectory() as out:
        given = words if "--help" in words or words[0] == "list" else [*words, "--out", out]
        ran = subprocess.run(
            [sys.executable, "-c", TRACE, *given], capture_output=True, text=True, cwd=root.parent.parent,
            env={**os.environ, "PYTHONPATH": str(root.parent)},
        )  # fmt: skip
    if ran.returncode:
        return {"code": ran.returncode, "said": ran.stderr.strip().splitlines()[-1:], "files": 0, "lines": 0}
    code, files = json.loads(ran.stdout.strip().splitlines()[-1])
    lines = {Path(f).resolve(): lines_of(Path(f)) for f in files}
    counted = [n for path, n in lines.items() if n > SMALL and path.is_relative_to(root)]
    return {"code": code, "files": len(counted), "lines": sum(counted)}


def lines_of(path: Path) -> int:
    return path.read_text().count("\n")


def folders(root: Path) -> dict[str, int]:
    found: Counter[str] = Counter()
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        deep = parts[0] == "studies" and len(parts) > 2
        found["/".join(parts[:2]) if deep else parts[0] if len(parts) > 1 else "."] += lines_of(path)
    return dict(found.most_common())


def bound(root: Path) -> dict[str, int]:
    """Return the names bound most often, but for those that stand for nothing: `self`, `_`."""
    found: Counter[str] = Counter()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Name(id=name, ctx=ast.Store()):
                    found[name] += 1
                case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    found[name] += 1
    return {name: count for name, count in found.most_common() if count > OFTEN and name not in ("self", "cls", "_")}


def repeated(root: Path) -> tuple[int, int]:
    """Return the lines that stand in a run of ALIKE like another run, and all lines that are not blank."""
    places: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    count = 0
    for path in root.rglob("*.py"):
        kept = [line.strip() for line in path.read_text().splitlines() if len(line.strip()) > 3]
        count += len(kept)
        for i in range(len(kept) - ALIKE + 1):
            window = tuple(kept[i : i + ALIKE])
            if not any(line.startswith(("import ", "from ")) for line in window):
                places[window].append((path, i))
    twice = {(path, at + k) for some in places.values() if len(some) > 1 for path, at in some for k in range(ALIKE)}
    return len(twice), count


def main() -> int:
    ask = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    ask.add_argument("--root", type=Path, default=Path(__file__).parent.parent / "src" / "assay")
    ask.add_argument("--compute", action="store_true", help="also a card that trains, of the README's file")
    ask.add_argument("--json", type=Path)
    given = ask.parse_args()
    root = given.root.resolve()
    commands = dict(COMMANDS)
    found: dict[str, Any] = {"routes": {}}
    with tempfile.TemporaryDirectory() as folder:
        if given.compute:
            readme = (root.parent.parent / "README.md").read_text()
            own = re.search(r"```python my_mixer\.py\n(.*?)```", readme, re.S)
            assert own, "the README shows no my_mixer.py"
            (path := Path(folder) / "my_mixer.py").write_text(own[1])
            commands["card my_mixer.py"] = ["card", str(path), *COMPUTED]
        print(f"{'command':26} {'files':>6} {'lines':>8}  exit")
        for name, words in commands.items():
            found["routes"][name] = row = route(words, root)
            print(f"{name:26} {row['files']:6} {row['lines']:8,}  {row['code']} {' '.join(row.get('said', ()))[:60]}")
    found["folders"] = folders(root)
    kernels, whole = found["folders"].get("kernels", 0), sum(found["folders"].values())
    print(f"\nsrc {whole:,} lines, {whole - kernels:,} without kernels/")
    print("  ".join(f"{name} {n:,}" for name, n in found["folders"].items()))
    found["names"] = bound(root)
    print(f"\n{len(found['names'])} names bound over {OFTEN} times")
    print("  ".join(f"{name} {n}" for name, n in list(found["names"].items())[:24]))
    twice, count = found["repeated"] = repeated(root)
    print(f"\n{twice:,} of {count:,} lines repeated, {twice / count:.1%}\n{ANCHORS}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    return int(any(row["code"] for row in found["routes"].values()))


if __name__ == "__main__":
    sys.exit(main())
