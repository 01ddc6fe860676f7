"""Finds the plug-ins in a Python file that a command is given."""

from collections.abc import Sequence

from assay.command.progress import say
from assay.contracts.base import has_contract
from assay.core.convert import nearest
from assay.core.errors import UserError
from assay.core.foreign import load_source, read_source
from assay.core.plugin import registries


def plugins_of(path: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Returns (folder, word) of the plug-ins in a file: all that have promises to keep, or those named. A torch module
    is a mixer where it is named, and where it is the only one of a file without plug-ins."""
    from assay.mixers.wrapped import layers_of

    module = load_source(read_source(path))
    every = [(folder, entry) for folder, known in registries().items() for entry in known.entries()]
    found = [(folder, entry) for folder, entry in every if entry.module == module.__name__]
    spellings = {spelled: (folder, e.name) for folder, e in found for spelled in (e.name, *e.aliases)}
    layers = [name for name in layers_of(module) if name not in spellings]
    if not spellings and not layers:
        raise UserError(f"'{path}' has no plug-in: a class with @mixers.register('name') above it, or a torch module.")
    if not spellings and not names and len(layers) > 1:
        raise UserError(f"'{path}' has several torch modules ({', '.join(layers)}): name one, {path}:{layers[-1]}.")
    for word in names or ([] if spellings else layers):
        name, known = word.partition(":")[0], list(spellings or layers)
        if name in layers and registries()["mixers"].wrap(name):
            spellings[name] = "mixers", name
        if name not in spellings:
            raise UserError(f"'{path}' has no plug-in '{name}'.{nearest(name, known)} It has {', '.join(known)}.")
    if names or not found:
        return [(spellings[word.partition(":")[0]][0], word) for word in names or layers]
    chosen = [(folder, entry.name) for folder, entry in found if has_contract(folder)]
    for folder, entry in found:
        if not has_contract(folder):
            say(f"{folder}: {entry.name} is left out: {folder} make no promises that can be checked.")
    if not chosen:
        raise UserError(f"'{path}' has nothing to check.")
    return chosen
