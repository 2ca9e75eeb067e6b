"""Checks for what writers leave: changes that are not finished, and those of dead writers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from nczarr_fsspec.changes.journal import (
    INCOMPLETE,
    JOURNAL,
    STAGED,
    WRITERS,
    Incomplete,
    Journal,
    is_state,
)
from nczarr_fsspec.changes.leftovers import leftovers
from nczarr_fsspec.changes.resumption import WORK
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.stores.ownership import Owner, parse_json
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_xarray.export.cfa.task import claim_key, holder
from nczarr_xarray.tools.checks import Finding
from nczarr_xarray.tools.checks.subject import Subject

_FIX = "remove it: nczarr validate --fix"
_WAIT = "wait for it; if it has died on its machine: nczarr recover"


def incomplete(subject: Subject) -> Iterator[Finding]:
    """Find the mark of an export of which chunks are still to come."""
    data = _object(subject, INCOMPLETE)
    if data is None or not is_state(data, INCOMPLETE):
        return
    mark = Incomplete.parse(data)
    what = "all data" if mark.pending is None else ", ".join(sorted(mark.pending))
    text = f"{mark.error('').reason.partition(';')[0]}; to come: {what}"
    yield Finding(
        "error", "incomplete", INCOMPLETE, text, 'write what is missing, or anew with mode="w"'
    )


def journal(subject: Subject) -> Iterator[Finding]:
    """Find the journal of a change that is valid and not carried out."""
    data = _object(subject, JOURNAL)
    if data is None or not is_state(data, JOURNAL):
        return
    try:
        found = Journal.parse(data, subject.url)
    except StoreError as damaged:
        yield Finding("error", "journal-damaged", JOURNAL, damaged.reason)
        return
    text = f"a change of {len(found.staged)} objects is valid, but not carried out"
    if found.owner.has_left(found.transaction):
        advice = "netCDF-C and zarr-python fail until it is: nczarr validate --fix"
        yield Finding("warning", "leftover-journal", JOURNAL, f"{text}: its writer died", advice)
    else:
        yield Finding("note", "writer", JOURNAL, f"{text} ({found.owner})", _WAIT)


def locks(subject: Subject) -> Iterator[Finding]:
    """Find locks of writers, dead or at work."""
    for key in (key for key in subject.private if key.startswith(f"{WRITERS}/")):
        document = parse_json(_object(subject, key) or b"")
        owner = Owner.parse(document.get("owner") if isinstance(document, dict) else None)
        if owner.has_left(key.rpartition("/")[2]):
            yield Finding("warning", "leftover-lock", key, f"the writer has died ({owner})", _FIX)
        else:
            yield Finding("note", "writer", key, f"a writer may be at work ({owner})", _WAIT)


def staged(subject: Subject) -> Iterator[Finding]:
    """Find staged objects to which there is no lock and no journal."""
    journal = parse_json(_object(subject, JOURNAL) or b"")
    valid = journal.get("transaction") if isinstance(journal, dict) else None
    locked = {key.rpartition("/")[2] for key in subject.private if key.startswith(WRITERS)}
    below = [key for key in subject.private if key.startswith(f"{STAGED}/")]
    changes = Counter(key[len(STAGED) + 1 :].partition("/")[0] for key in below)
    for name, count in changes.items():
        if name not in locked and name != valid:
            text = f"{count} objects of a change that was given up"
            yield Finding("warning", "leftover-staged", f"{STAGED}/{name}", text, _FIX)


def work(subject: Subject) -> Iterator[Finding]:
    """Find notes of a copy that is complete; without the mark nothing continues it."""
    found = [key for key in subject.private if key.startswith(f"{WORK}/")]
    under_way = any(key == INCOMPLETE or key.startswith(WRITERS) for key in subject.private)
    if found and not under_way:
        text = f"{len(found)} notes of a copy that has ended, or chunks between its passes"
        yield Finding("warning", "leftover-work", WORK, text, _FIX)


def siblings(subject: Subject) -> Iterator[Finding]:
    """Find what writers have left beside a dataset of this machine."""
    path = subject.place.path if subject.place is not None else None
    for partial, owner in leftovers(os.path.realpath(path)) if path is not None else ():
        if owner.has_left(os.path.basename(partial)):
            text = f"an export that was cut off ({owner})"
            yield Finding("warning", "leftover-sibling", partial, text, _FIX)
        else:
            yield Finding("note", "writer", partial, f"a writer may be at work ({owner})", _WAIT)


def claims(subject: Subject) -> Iterator[Finding]:
    """Find the claim of a writer of an aggregation beside its fragments."""
    if subject.master is None:
        return
    try:
        found = holder(subject.master)
    except StoreError:  # some servers refuse what is not there
        return
    if found is not None and found.has_ended:
        text = f"an export of fragments that was cut off ({found.owner})"
        yield Finding("warning", "leftover-claim", claim_key(subject.master), text, _FIX)
    elif found is not None:
        text = f"a writer may be at work ({found.owner})"
        yield Finding("note", "writer", claim_key(subject.master), text, _WAIT)


def temporaries(subject: Subject) -> Iterator[Finding]:
    """Find files in a directory tree whose writing was cut off."""
    store = subject.place.store if subject.place is not None else None
    for key, owner in store.temporaries() if isinstance(store, DirectoryWriter) else ():
        if owner.is_dead():
            text = f"an object whose writer died before it was complete ({owner})"
            yield Finding("warning", "leftover-temporary", key, text, _FIX)
        else:
            yield Finding("note", "writer", key, f"an object is being written ({owner})", _WAIT)


def _object(subject: Subject, key: str) -> bytes | None:
    """Return a private object as it is stored now."""
    if key not in subject.private or subject.place is None:
        return None
    store = subject.place.reader()
    return None if store is None else store.get_one(key)
