"""The check of consolidated metadata against the documents that they repeat."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.nczarr import spellings
from nczarr_xarray.formats.nczarr.consolidated import KEY, Consolidated
from nczarr_xarray.formats.nczarr.jsontext import JSON, loads, same
from nczarr_xarray.tools.finding import Finding, some
from nczarr_xarray.tools.validate.subject import Subject

_ADVICE = "make it anew: nczarr validate --fix"


def consolidated(subject: Subject) -> Iterator[Finding]:
    """Find ``.zmetadata`` that is damaged, or differs from the documents."""
    data = subject.found.get(KEY) if subject.is_zarr2 else None
    if data is None:
        return
    try:
        known = Consolidated.parse(loads(data, KEY)).documents
    except FormatError as error:
        text = f"{error.reason}: readers that trust it fail"
        yield Finding("warning", "consolidated-damaged", KEY, text, _ADVICE)
        return
    only = sorted(_only_copies(subject, known))
    if only:
        text = f"has {len(only)} documents that are nowhere else: {some(only)}"
        yield Finding(
            "warning", "consolidated-only", KEY, text, "write these documents under their own keys"
        )
        return
    own = _documents(subject)
    there = {key: document for key, document in subject.documents.items() if key != KEY}
    stale = [key for key, document in own.items() if not same(document, known.get(key))]
    # what no group lists may be repeated as well, as it is
    stale += [key for key in known.keys() - own.keys() if not same(known[key], there.get(key))]
    if stale:
        text = f"is stale: {len(stale)} documents differ: {some(sorted(stale))}"
        yield Finding("warning", "consolidated-stale", KEY, text, _ADVICE)


def _only_copies(subject: Subject, known: Iterable[str]) -> Iterator[str]:
    """Yield documents that are missing or damaged themselves, though their node is there."""
    keys = subject.keys or ()
    broken = {variable.path.strip("/") for variable in subject.variables if variable.error}
    for key in known:
        path = key.rpartition("/")[0]
        start = f"{path}/" if path else ""
        at = bisect_left(keys, start)
        is_there = at < len(keys) and keys[at].startswith(start)
        if key not in subject.documents and (is_there or path in broken):
            yield key


def _documents(subject: Subject) -> dict[str, JSON]:
    """Return the documents of all groups and variables, by key."""
    paths = [group.path for group in subject.groups] + [v.path for v in subject.variables]
    found = {}
    for path in paths:
        start = f"{path.strip('/')}/".lstrip("/")
        for name in {*spellings.GROUP_FILES, *spellings.ARRAY_FILES}:
            if start + name in subject.documents:
                found[start + name] = subject.documents[start + name]
    return found
