"""Run the commands whose output the documents show, and put the output in its place (`make docs`).

A block to fill stands under `<!-- output of: COMMAND -->`; the command runs in a fresh folder. `python docs/refresh.py
"assay findings"` fills only the blocks whose command has these words in it.
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


def refreshed(text: str, words: str = "") -> str:
    def filled(block: re.Match[str]) -> str:
        command = block["command"]
        return f"<!-- output of: {command} -->\n```text\n{output_of(command)}```" if words in command else block[0]

    return BLOCK.sub(filled, text)


if __name__ == "__main__":
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        page.write_text(refreshed(page.read_text(encoding="utf-8"), " ".join(sys.argv[1:])), encoding="utf-8")
