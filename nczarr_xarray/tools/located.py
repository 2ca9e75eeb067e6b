"""Where variables are in the dataset that they come from, and how many bytes they take there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.places.url import is_url
from nczarr_fsspec.transport.policy import TIMEOUT_OPTION
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.formats.format import GENERATIONS
from nczarr_xarray.model import Variable
from nczarr_xarray.tools.survey import StorageSize, survey

#: Names, or paths below some group, and shapes.
Wanted: TypeAlias = Sequence[tuple[str, tuple[int, ...]]]
#: Seconds for each request, where a dataset is only looked at to be printed.
_PATIENCE = 10


class Located(NamedTuple):
    """What a dataset says of variables that come from it.

    Attributes
    ----------
    format
        In words.
    places
        Path and bytes of each variable that was found, by its name; None for bytes that the
        metadata do not tell.
    """

    format: str
    places: Mapping[str, tuple[str, StorageSize | None]]


def is_address(source: str) -> bool:
    """Tell whether ``encoding["source"]`` says where a dataset is, as ``"mapping"`` does not."""
    return is_url(source) or os.path.isabs(source)


def locate(source: str, wanted: Wanted) -> Located | None:
    """Look at the metadata of a dataset; None if it cannot be opened by its name alone."""
    if not is_address(source):
        return None
    remote = is_url(source) and not source.startswith("file:")
    options = {TIMEOUT_OPTION: _PATIENCE} if remote else None
    try:
        with open_hierarchy(source, storage_options=options) as opened:
            paths = _paths(opened.hierarchy.root.all_variables(), wanted)
            found = survey(opened, frozenset(paths.values()))
            generation = opened.hierarchy.generation
    except (NCZarrError, ImportError):
        return None
    stored = {facts.path: facts.stored for facts in found.facts}
    places = {name: (path, stored.get(path)) for name, path in paths.items()}
    return Located(GENERATIONS.get(generation, generation), places)


def _paths(there: Iterable[Variable], wanted: Wanted) -> dict[str, str]:
    """Return the paths of variables by name: below the group that has most of them."""
    by_name: dict[str, list[Variable]] = {}
    for variable in there:
        by_name.setdefault(variable.name, []).append(variable)
    found: dict[str, dict[str, str]] = {}
    for name, shape in wanted:
        end = f"/{name.lstrip('/')}"
        for variable in by_name.get(end.rpartition("/")[2], ()):
            if variable.path.endswith(end) and variable.shape == shape:
                found.setdefault(variable.path.removesuffix(end), {})[name] = variable.path
    best = min(found, key=lambda group: (-len(found[group]), len(group)), default="")
    return found.get(best, {})
