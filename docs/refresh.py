"""Run the commands whose output the documents show, and put the output in its place (`make docs`).

A block to fill stands under `<!-- output of: COMMAND -->`; the command runs in a fresh folder.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"<!-- output of: (?P<command>.+?) -->\n```text\n(?P<shown>.*?)```", re.DOTALL)


def output_of(command: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        print(f"$ {command}", file=sys.stderr)
        ran = subprocess.run(command, shell=True, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return ran.stdout.rstrip() + "\n"


def refreshed(text: str) -> str:
    return BLOCK.sub(lambda m: f"<!-- output of: {m['command']} -->\n```text\n{output_of(m['command'])}```", text)


if __name__ == "__main__":
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
