"""The check of consolidated metadata against the documents that they repeat."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from nczarr_fsspec.errors import FormatError, IncompleteExportError, NCZarrError
from nczarr_xarray.formats.nczarr import spellings
from nczarr_xarray.formats.nczarr.documents import KEY, Consolidated
from nczarr_xarray.formats.nczarr.jsontext import JSON, loads, same
from nczarr_xarray.tools.finding import Finding, some
from nczarr_xarray.tools.validate.metadata import dimensions
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
        text = f"has {len(only)} documents that are missing or damaged themselves: {some(only)}"
        advice = "if they are right, write these documents under their own keys"
        yield Finding("warning", "consolidated-only", KEY, text, advice)
        return
    known = {key: _own(document) for key, document in known.items()}
    own = _documents(subject)
    there = {key: document for key, document in subject.documents.items() if key != KEY}
    stale = [key for key, document in own.items() if not same(document, known.get(key))]
    # what no group lists may be repeated as well, as it is
    stale += [key for key in known.keys() - own.keys() if not same(known[key], there.get(key))]
    if stale:
        text = f"is stale: {len(stale)} documents differ: {some(sorted(stale))}"
        yield Finding("warning", "consolidated-stale", KEY, text, _ADVICE)


def _own(document: JSON) -> JSON:
    """Return a document without what zarr-python adds to groups here: all that is below them."""
    if isinstance(document, dict):
        return {name: one for name, one in document.items() if name != "consolidated_metadata"}
    return document


def _only_copies(subject: Subject, known: Mapping[str, JSON]) -> Iterator[str]:
    """Yield documents that are missing or damaged themselves, though their node is there."""
    assert subject.opened is not None
    keys = subject.keys or ()
    broken = {v.path.strip("/") for v in subject.variables if _is_broken(subject.error(v))}
    broken |= {finding.path.strip("/") for finding in dimensions(subject)}
    damaged = {problem.object for problem in subject.opened.hierarchy.problems}
    for key, document in known.items():
        path = key.rpartition("/")[0]
        start = f"{path}/" if path else ""
        at = bisect_left(keys, start)
        is_there = at < len(keys) and keys[at].startswith(start)
        if key not in subject.documents:
            is_only = is_there or path in broken
        else:  # what is valid JSON may be damaged, too
            suspect = path in broken or key in damaged
            is_only = suspect and not same(document, subject.documents[key])
        if is_only:
            yield key


def _is_broken(error: NCZarrError | None) -> bool:
    """Tell whether the metadata of a variable may be damaged; chunks may be still to come."""
    return error is not None and not isinstance(error, IncompleteExportError)


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
