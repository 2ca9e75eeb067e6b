"""The rules of CMIP7 for the inner layout of its files, as ``check_cmip7_packing`` has them.

Source: the manual of NCAS-CMS/cmip7_repack 1.1. The index of all chunks lies before the data; time
and its bounds are one chunk; the data variable is one chunk or has chunks of 4 MiB, or would have
with one step more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from nczarr_xarray.model import Group
from nczarr_xarray.tools.finding import Finding
from nczarr_xarray.tools.survey import Survey, VariableStorage

#: Bytes of a chunk of the data variable before codecs, at least.
LEAST = 4 << 20


def _is_one(facts: VariableStorage) -> bool:
    count = facts.count if facts.stored is None else facts.stored.count
    return not facts.array.is_chunked or (count or 0) <= 1


def _text(group: Group, path: str, name: str) -> str:
    """Return a text attribute of the root (path ``""``) or of a variable in it."""
    holder = group.attributes if not path else group.variables[path].attributes
    found = holder.get(name)
    if found is None:
        return ""
    return found.value if isinstance(found.value, str) else "".join(map(str, found.value))


def _index_first(survey: Survey, _: Group) -> Iterator[Finding]:
    chunked = [f.stored.low for f in survey.facts if f.array.is_chunked and f.stored is not None]
    begin = min((low for low in chunked if low is not None), default=None)
    if begin is not None and any(extent.start > begin for extent in survey.index):
        text = "a part of the index of the chunks lies after the first chunk"
        yield _failure("/", text, "repack the file with cmip7repack")


def _one_chunk_of_time(survey: Survey, root: Group) -> Iterator[Finding]:
    if "time" not in root.variables:
        return
    for name in ("time", _text(root, "time", "bounds")):
        facts = survey.of(f"/{name}")
        if facts is not None and not _is_one(facts):
            text = f"has {facts.count:,} chunks; CMIP7 needs one"
            yield _failure(facts.path, text, "repack the file with cmip7repack")


def _large_chunks(survey: Survey, root: Group) -> Iterator[Finding]:
    facts = survey.of(f"/{_text(root, '', 'variable_id')}")
    if facts is None or _is_one(facts):
        return
    shape = facts.array.chunk_shape
    step = math.prod(shape[1:]) * facts.itemsize if len(shape) > 1 else 0
    if facts.chunk_nbytes + step < LEAST:
        text = f"has chunks of {facts.chunk_nbytes:,} bytes; CMIP7 needs {LEAST - step:,} at least"
        yield _failure(facts.path, text, f"repack the file with cmip7repack -d {LEAST}")


#: The rules.
RULES: tuple[Callable[[Survey, Group], Iterator[Finding]], ...] = (
    _index_first,
    _one_chunk_of_time,
    _large_chunks,
)


def cmip7_failures(survey: Survey, root: Group) -> tuple[Finding, ...]:
    """Return what CMIP7 does not accept of a netCDF-4 file; nothing if it passes."""
    return tuple(failure for rule in RULES for failure in rule(survey, root))


def _failure(path: str, text: str, advice: str) -> Finding:
    return Finding("note", "cmip7", path, text, advice)
