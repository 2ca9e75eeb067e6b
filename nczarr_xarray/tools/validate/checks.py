"""The table of checks, and validation as a walk through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

from nczarr_xarray.tools.finding import Finding
from nczarr_xarray.tools.validate import (
    changes,
    compat,
    consolidated,
    documents,
    files,
    fragments,
    metadata,
    objects,
)
from nczarr_xarray.tools.validate.data import chunks
from nczarr_xarray.tools.validate.subject import Subject

#: In the order of their findings. A new check is a function and a row.
CHECKS: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    metadata.opening,
    changes.incomplete,
    changes.journal,
    changes.locks,
    changes.staged,
    changes.work,
    changes.siblings,
    changes.claims,
    changes.temporaries,
    metadata.root,
    metadata.groups,
    metadata.dimensions,
    metadata.variables,
    documents.arrays,
    documents.attribute_types,
    documents.array_dimensions,
    documents.dialect,
    consolidated.consolidated,
    objects.listing,
    objects.foreign,
    objects.unlisted,
    objects.missing,
    objects.outside,
    files.ends,
    fragments.fragments,
    chunks,
    compat.obstacles,
    compat.releases,
)


def validate(
    target: Any,
    storage_options: Mapping[str, Any] | None = None,
    *,
    data: bool = False,
    replace: Mapping[str, str] | None = None,
    allow: Any = None,
) -> tuple[Finding, ...]:
    """Find out whether a dataset is sound.

    Parameters
    ----------
    target, storage_options, replace, allow
        As for `nczarr_xarray.open_hierarchy`.
    data
        Whether all chunks are decoded, too. Otherwise only metadata are read, and keys listed.

    Returns
    -------
    tuple of Finding
        The findings. The dataset is sound if all of them are notes.

    Raises
    ------
    NCZarrError
        If there is no dataset, or it cannot be reached.
    """
    with closing(Subject.open(target, storage_options, replace=replace, allow=allow)) as subject:
        asked = (check for check in CHECKS if data or check is not chunks)
        return tuple(finding for check in asked for finding in check(subject))
