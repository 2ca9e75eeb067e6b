"""Is a dataset sound? Validation by the table of checks, and repairs of what is certain."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any, TypeAlias

from nczarr_fsspec.changes.edit import Lock
from nczarr_fsspec.changes.leftovers import remove_leftovers
from nczarr_fsspec.changes.recovery import pending_in
from nczarr_fsspec.changes.resumption import WORK
from nczarr_fsspec.errors import on_error
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_xarray.dataset.open import find_destination
from nczarr_xarray.export.cfa.master import MasterPlace
from nczarr_xarray.export.cfa.task import Claim, holder
from nczarr_xarray.export.existing import Existing
from nczarr_xarray.export.write_target import begin_edit
from nczarr_xarray.export.write_task import WriteTask
from nczarr_xarray.tools.checks import Finding, Findings
from nczarr_xarray.tools.checks.subject import Subject
from nczarr_xarray.tools.checks.table import Reads, findings


def validate(
    target: Any,
    storage_options: Mapping[str, Any] | None = None,
    *,
    data: bool = False,
    replace: Mapping[str, str] | None = None,
    allow: Any = None,
) -> Findings:
    """Find out whether a dataset is sound.

    Parameters
    ----------
    target, storage_options, replace, allow
        As for `nczarr_xarray.open_hierarchy`.
    data
        Whether all chunks are decoded, too. Otherwise only metadata are read, and keys listed.

    Returns
    -------
    Findings
        A tuple of the findings. The dataset is sound if all of them are notes.

    Raises
    ------
    NCZarrError
        If there is no dataset, or it cannot be reached.
    """
    with closing(Subject.open(target, storage_options, replace=replace, allow=allow)) as subject:
        return Findings(findings(subject, "validate", Reads.DATA if data else Reads.LISTING))


# -- repairs ---------------------------------------------------------------------------------------

Options: TypeAlias = Mapping[str, Any] | None


def _remove_leftovers(target: Any, storage_options: Options) -> None:
    """Do what the next writer does: finish or remove what dead ones left."""
    place = find_destination(target, storage_options)
    if place.path is not None:
        remove_leftovers(os.path.realpath(place.path))
    if place.store is not None:
        # a lock on nothing: to get it, a writer removes what dead ones left, and nothing else
        lock = Lock.acquire(place.store, {})
        try:
            if pending_in(place.store) is None:
                place.store.delete(place.store.keys_below(WORK))
        finally:
            lock.release()


def _remove_temporaries(target: Any, storage_options: Options) -> None:
    """Remove files of a directory tree that were not complete when their writer died."""
    store = find_destination(target, storage_options).store
    assert isinstance(store, DirectoryWriter)  # as `changes.temporaries` found
    store.delete([key for key, owner in store.temporaries() if owner.is_dead()])


def _give_up_claim(target: Any, storage_options: Options) -> None:
    """Remove the claim of a dead writer of an aggregation, and fragments that nothing refers to."""
    place = MasterPlace.find(target, storage_options)
    found = holder(place)
    if found is not None and found.has_ended:
        Claim.begin(place).release()


def _consolidate(target: Any, storage_options: Options) -> None:
    """Write ``.zmetadata`` anew, of the documents as they are."""
    place = find_destination(target, storage_options)
    change = begin_edit(place)
    with on_error(change.abort):
        existing = Existing.open(place)
        assert existing is not None  # it was validated
        with existing.opened:
            documents = existing.final_documents((), consolidated=True)
        WriteTask(change, documents=documents).finish()


#: What puts findings right, by their code.
_REPAIRS: dict[str, Callable[[Any, Options], None]] = {
    "leftover-journal": _remove_leftovers,
    "leftover-lock": _remove_leftovers,
    "leftover-staged": _remove_leftovers,
    "leftover-work": _remove_leftovers,
    "leftover-sibling": _remove_leftovers,
    "leftover-temporary": _remove_temporaries,
    "leftover-claim": _give_up_claim,
    "consolidated-damaged": _consolidate,
    "consolidated-stale": _consolidate,
}


def fixable(finding: Finding) -> bool:
    """Tell whether `repair` puts a finding right."""
    return finding.code in _REPAIRS


def repair(target: Any, findings: Iterable[Finding], storage_options: Options = None) -> None:
    """Put right those of the findings that are `fixable`.

    A valid change of a dead writer is carried out, what else dead writers left is removed, and
    stale consolidated metadata are made anew, as one change.

    Parameters
    ----------
    target, storage_options
        As for `nczarr_xarray.validate`.

    Raises
    ------
    ConflictError
        If another writer is at work.
    StoreError, URLError
        If the store cannot be changed.
    """
    wanted = {finding.code for finding in findings}
    for put_right in dict.fromkeys(_REPAIRS[code] for code in _REPAIRS if code in wanted):
        put_right(target, storage_options)
