"""The table of checks, and validation as a walk through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from nczarr_xarray.tools.finding import Finding
from nczarr_xarray.tools.validate import (
    changes,
    compat,
    consolidated,
    data,
    documents,
    files,
    fragments,
    metadata,
    objects,
)
from nczarr_xarray.tools.validate.subject import Subject


class Check(NamedTuple):
    """One question about a dataset.

    Attributes
    ----------
    find
        Yields the findings; none for what it does not concern.
    reads_data
        Whether it is asked only if the data are to be read.
    """

    find: Callable[[Subject], Iterator[Finding]]
    reads_data: bool = False


#: In the order of their findings. A new check is a function and a row.
CHECKS: tuple[Check, ...] = (
    Check(metadata.opening),
    Check(changes.incomplete),
    Check(changes.journal),
    Check(changes.locks),
    Check(changes.staged),
    Check(changes.work),
    Check(changes.siblings),
    Check(changes.claims),
    Check(changes.temporaries),
    Check(metadata.groups),
    Check(metadata.dimensions),
    Check(metadata.variables),
    Check(documents.arrays),
    Check(documents.attribute_types),
    Check(documents.array_dimensions),
    Check(documents.dialect),
    Check(consolidated.consolidated),
    Check(objects.listing),
    Check(objects.foreign),
    Check(objects.unlisted),
    Check(objects.missing),
    Check(objects.outside),
    Check(files.ends),
    Check(fragments.fragments),
    Check(data.chunks, reads_data=True),
    Check(compat.obstacles),
    Check(compat.releases),
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
        asked = (check for check in CHECKS if data or not check.reads_data)
        return tuple(finding for check in asked for finding in check.find(subject))
