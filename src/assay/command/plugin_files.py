"""Finds the plug-ins in a Python file that a command is given."""

from collections.abc import Sequence

from assay.command.progress import say
from assay.contracts.base import has_contract
from assay.core.convert import nearest
from assay.core.errors import UserError
from assay.core.foreign import load_source, read_source
from assay.core.plugin import registries


def plugins_of(path: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Returns (folder, word) of the plug-ins in a file: all that have promises to keep, or those named."""
    module = load_source(read_source(path)).__name__
    found = [(folder, e) for folder, known in registries().items() for e in known.entries() if e.module == module]
    spellings = {spelled: (folder, e.name) for folder, e in found for spelled in (e.name, *e.aliases)}
    if not found:
        raise UserError(
            f"'{path}' has no plug-in: a class with @mixers.register('name') above it is a mixer, for example."
        )
    for word in names:
        if (name := word.partition(":")[0]) not in spellings:
            raise UserError(
                f"'{path}' has no plug-in '{name}'.{nearest(name, spellings)} It has {', '.join(spellings)}."
            )
    if names:
        return [(spellings[word.partition(":")[0]][0], word) for word in names]
    chosen = [(folder, entry.name) for folder, entry in found if has_contract(folder)]
    for folder, entry in found:
        if not has_contract(folder):
            say(f"{folder}: {entry.name} is left out: {folder} make no promises that can be checked.")
    if not chosen:
        raise UserError(f"'{path}' has nothing to check.")
    return chosen
