"""The sweeps of an experiment: which of its cells lie along context lengths, sparsities and budgets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from assay.attention import attention
from assay.attention.base import Pattern
from assay.report.rows import Row
from assay.studies.perplexity.cells import after_prefix, budget_of, is_dense, method_of


@dataclass(frozen=True)
class Sweeps:
    """The values of each sweep (empty: no such sweep), and the positions and protocol that the command asked for, which
    records alone do not tell."""

    context_lengths: tuple[int, ...]
    fixed_sparsity: float | None
    sparsity_levels: tuple[float, ...]
    budgets: tuple[int, ...]
    fixed_context_length: int
    positions: str | None = None
    protocol: str | None = None

    def fit(self, cells: Iterable[Row]) -> bool:
        """Return whether all cells belong to these sweeps; a page of several commands has others."""
        cells = list(cells)
        levels, at_fixed = self.sparsity_levels, [cell for cell in cells if not self.by_context(cell)]
        asked = {("positions", "absolute"), ("protocol", "online"), ("positions", self.positions)}
        asked.add(("protocol", self.protocol))
        if any((key, cell.options[key]) not in asked for cell in cells for key in ("positions", "protocol")):
            return False
        return all(
            cell.options["context"] == self.fixed_context_length
            and (is_dense(cell) or budget_of(cell).sparsity in levels or budget_of(cell).slots in self.budgets)
            for cell in at_fixed
        )

    def by_context(self, cell: Row) -> bool:
        fits = is_dense(cell) or budget_of(cell).sparsity == self.fixed_sparsity
        return fits and cell.options["context"] in self.context_lengths

    def by_sparsity(self, cell: Row) -> bool:
        """Return whether the cell is in the sweep over sparsities; dense attention is at 0, beside budgets too."""
        has_fixed = bool(self.sparsity_levels or self.budgets)
        fits = budget_of(cell).sparsity in self.sparsity_levels or (is_dense(cell) and has_fixed)
        return fits and cell.options["context"] == self.fixed_context_length

    def by_budget(self, cell: Row) -> bool:
        return budget_of(cell).slots in self.budgets and cell.options["context"] == self.fixed_context_length

    def title(self, cell: Row, *, hidden: bool = False) -> str:
        """The method's name in tables, with every departure from the published form and from the command. `hidden`: the
        model's own window hides keys that the method keeps."""
        positions, protocol = cell.options["positions"], cell.options["protocol"]
        method, label = method_of(cell), attention.label_of(cell.options["method"])
        said = [method.departure] if method and method.departure else []
        in_cache = isinstance(method, Pattern) and method.published_in_cache
        if positions == "absolute" and (in_cache or (self.positions == "cache" and not is_dense(cell))):
            said.append("absolute positions")
        if hidden and isinstance(method, Pattern):
            said.append(method.when_hidden)
        if protocol == "chunked":
            said.append(f"chunks of {cell.options['chunk']}")
        elif protocol == "online" and self.protocol == "chunked" and not is_dense(cell):
            said.append("online")
        if after_prefix(cell):
            said.append("prefix")
        return f"{label} ({', '.join(said)})" if said else label


def guessed_sweeps(cells: Sequence[Row]) -> Sweeps:
    """Guess the sweeps from records alone: the fixed context is the most common one, the fixed sparsity the one with
    most contexts."""
    contexts = [cell.options["context"] for cell in cells]
    lossy = [cell for cell in cells if not is_dense(cell)]
    pairs = {(budget_of(cell).sparsity, cell.options["context"]) for cell in lossy}
    spread = [level for level, _ in pairs if level is not None]
    return Sweeps(
        tuple(sorted(set(contexts))),
        max(spread, key=lambda level: (spread.count(level), level), default=None),
        tuple(sorted({0.0, *spread})),
        tuple(sorted({slots for cell in lossy if (slots := budget_of(cell).slots) is not None})),
        max(contexts, key=lambda context: (contexts.count(context), context)),
    )
