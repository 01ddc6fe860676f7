"""Draw the mask of every attention method into docs/perplexity.md, from the methods themselves.

    python docs/masks_perplexity.py

One head over random queries and keys, the same for all. A row is a query, a column a key: `#` is attended to, `.` is
not. Every registered method that needs no language model is drawn: a new one has its picture by running this again.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from assay.attention import attention
from assay.attention.base import BlockSelect, Budget, Evict, Pattern, Prefix, Select
from assay.attention.lanes import Lane, attended
from assay.attention.layer import Layer
from assay.nn.random import stream
from assay.report.section import Table
from assay.report.text import shown

PAGE = Path(__file__).parent / "perplexity.md"
TIME, SLOTS, WIDTH, ABREAST = 16, 4, 28, 4
FAMILIES = (Prefix, Select, Evict, Pattern)
"""Pattern first."""
OPTIONS = {
    "streaming_llm": "num_sink_tokens=1",
    "random_evict": "num_sink_tokens=1",
    "quest": "page_size=2:min_pages=2:dense_layers=0",
    "knorm": "skip_layers=",
    "cab_v3": "block_size=2",
    "cab_v4": "block_size=2",
    "snapkv": "window_size=2:kernel_size=3",
    "ada": "method=observed:safeguard=0.0",
    "pyramid": "method=(snapkv:window_size=2:kernel_size=3)",
    "chunkkv": "method=observed:chunk_size=2",
    "lagkv": "num_sink_tokens=1:lag_size=2",
    "expected_attention": "num_sink_tokens=1",
    "duo": "num_sink_tokens=2:recent=1",
    "finch": "question_size=2",
    "simlayerkv": "num_sink_tokens=2:last_queries=2:threshold=0.1",
}
"""Sizes that suit so short a text; the others have none, or make do with their own."""

LAYERS = 3
FIRST = {"ada": "head 1/2", "pyramid": "layer 1/3", "per_layer": "layer 1/3", "simlayerkv": "lazy", "duo": "streaming"}
"""What is drawn of methods that share slots out over heads or layers."""


def between(page: str, name: str, text: str) -> str:
    """The page with `text` between its marks <!-- NAME: begin --> and <!-- NAME: end -->."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"there is no place for the section: it stands between {begin} and {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def written(page: Path, placed: Callable[[str], str], ship: Callable[[Path], None]) -> None:
    """Write the page anew; with `--ship FOLDER` on the command line, first add the records of a results folder."""
    if sys.argv[1:2] == ["--ship"]:
        ship(Path(sys.argv[2]))
    page.write_text(placed(page.read_text(encoding="utf-8")), encoding="utf-8")


def markdown(table: Table, wanted: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows of a report's table as they are shown, in markdown, with those of the wanted columns that it has."""
    columns = [column for column in wanted if column in table.every_column]
    head = [f"| {' | '.join(column.rpartition('.')[2] for column in columns)} |", f"|{'---|' * len(columns)}"]
    return "\n".join(head + [f"| {' | '.join(str(shown(table, row, key)) for key in columns)} |" for row in rows])


def lane(name: str) -> Lane:
    method = attention.parse(":".join([name, OPTIONS[name]]) if name in OPTIONS else name)
    if isinstance(method, BlockSelect):
        return Lane(method, Budget(slots=4 * method.block_size))  # below four blocks there is no CAB
    return Lane(method, Budget(slots=SLOTS), prefix=TIME // 2 if isinstance(method, Prefix) else 0)


def picture(name: str) -> list[str]:
    """The name, what was chosen, and a line for each query."""
    chosen = lane(name)
    rng = stream(0, "masks")
    heads = [
        [2 * torch.randn(1, 1, TIME, 8, generator=rng) for _ in range(3)] for _ in range(2 if name == "ada" else 1)
    ]
    q, k, v = (torch.cat(parts, dim=1) for parts in zip(*heads, strict=True))
    scores = torch.arange(LAYERS * k.shape[1]).float().reshape(LAYERS, -1)  # the first head is a streaming one
    kept = attended([chosen], Layer(q, k, v, layers=LAYERS, heads=scores))[0, 0]
    named = {"block_size": "blocks of {}", "page_size": "pages of {}", "num_sink_tokens": "{} sink"}
    sizes = [said.format(getattr(chosen.method, key)) for key, said in named.items() if hasattr(chosen.method, key)]
    kind = f"of first {chosen.prefix}" if chosen.prefix else "slots"
    budget = [f"{chosen.budget.slots} {kind}"] if name != "dense" else ["everything"]
    sizes += [FIRST[name]] if name in FIRST else []
    rows = ["".join("#" if kept[t, j] else "." for j in range(t + 1)) for t in range(TIME)]
    return [name, ", ".join(budget + sizes), *rows]


def drawn() -> str:
    """All of them, some abreast, the families one after another."""
    there = [name for name in attention.names() if attention[name].portable]
    names = sorted(there, key=lambda name: [issubclass(attention[name], family) for family in FAMILIES])
    pictures = [picture(name) for name in names]
    bands = [pictures[i : i + ABREAST] for i in range(0, len(pictures), ABREAST)]
    rows = [zip(*band, strict=True) for band in bands]
    return "\n\n".join("\n".join("".join(f"{part:<{WIDTH}}" for part in row).rstrip() for row in band) for band in rows)


def placed(page: str) -> str:
    return between(page, "masks", f"```text\n{drawn()}\n```")


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
