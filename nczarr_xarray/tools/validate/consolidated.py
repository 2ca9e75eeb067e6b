"""The check of consolidated metadata against the documents that they repeat."""

from __future__ import annotations

from collections.abc import Iterator

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.nczarr import spellings
from nczarr_xarray.formats.nczarr.consolidated import KEY, Consolidated, same
from nczarr_xarray.formats.nczarr.jsontext import JSON, loads
from nczarr_xarray.tools.finding import Finding
from nczarr_xarray.tools.validate.finding import warning
from nczarr_xarray.tools.validate.subject import Subject

_ADVICE = "make it anew: nczarr validate --fix"
_SHOWN = 3


def consolidated(subject: Subject) -> Iterator[Finding]:
    """Find ``.zmetadata`` that is damaged, or differs from the documents."""
    data = subject.found.get(KEY) if subject.is_zarr2 else None
    if data is None:
        return
    try:
        known = Consolidated.parse(loads(data, KEY)).documents
    except FormatError as error:
        text = f"{error.reason}: readers that trust it fail"
        yield warning("consolidated-damaged", KEY, text, _ADVICE)
        return
    own = _documents(subject)
    there = {key: document for key, document in subject.documents.items() if key != KEY}
    stale = [key for key, document in own.items() if not same(document, known.get(key))]
    # what no group lists may be repeated as well, as it is
    stale += [key for key in known.keys() - own.keys() if not same(known[key], there.get(key))]
    if stale:
        names = ", ".join(sorted(stale)[:_SHOWN]) + (", ..." if len(stale) > _SHOWN else "")
        text = f"is stale: {len(stale)} documents differ, among them {names}"
        yield warning("consolidated-stale", KEY, text, _ADVICE)


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
