"""Read fragments in files that are alike: many at a time, and without opening datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.chunks.threads import share
from nczarr_xarray.dataset.alike_files import AlikeStack, StackedFile
from nczarr_xarray.dataset.fragment_parts import Part
from nczarr_xarray.dataset.fragment_values import FragmentRequest, as_it_is, reading_of
from nczarr_xarray.model import FragmentArray, FragmentMapping

#: Decoded bytes of chunks that are read at a time. Of a fragment that has more of them, opening the
#: file is a small part.
RUN_BYTES = 1 << 20
#: Fragments that are read at a time.
_RUN = 256
#: To open a file and compare its metadata takes the interpreter's lock as long as so many chunks
#: do. Of small fragments two threads would read no more than one, for half as much time again.
_CHUNKS_A_FILE = 3


class _Run(NamedTuple):
    """Parts of which the same is read, and becomes values in the same way."""

    request: FragmentRequest
    nbytes: int
    parts: list[Part]


def read_alike(
    array: FragmentArray,
    stack: AlikeStack,
    result: np.ndarray,
    parts: Sequence[Part],
    file: Callable[[Part], StackedFile],
    *,
    points: bool,
) -> list[Part]:
    """Read parts of fragments that are alike into the result of a selection.

    Parameters
    ----------
    array
        The aggregation.
    stack
        Reads the files.
    file
        Returns the file of a part's fragment; None if it cannot be read here.
    points
        As of `nczarr_xarray.model.Selections.read`.

    Returns
    -------
    Parts that have to be read one by one: of other files, and where something is wrong.
    """
    left: list[Part] = []
    runs = list(_runs(array, stack, parts, left, points=points))

    def read(some: list[_Run]) -> None:
        for run in some:
            left.extend(_read_run(stack, result, run, file))

    count = max(1, len(runs))
    nbytes = sum(run.nbytes * len(run.parts) for run in runs) // count
    members = sum(len(run.parts) for run in runs) // count
    share(read, runs, nbytes, chunks=max(1, members) * _CHUNKS_A_FILE)
    return sorted(left, key=lambda part: part.number)


def _runs(
    array: FragmentArray,
    stack: AlikeStack,
    parts: Sequence[Part],
    left: list[Part],
    *,
    points: bool,
) -> Iterator[_Run]:
    """Divide parts into runs; put those that cannot be in one into `left`."""
    mappings, names = array.fragments.mappings, array.fragments.names
    groups: list[list[Part]] = []
    for part in parts:
        if names[part.number] != stack.name:
            left.append(part)
        elif groups and _same(groups[-1][0], part, mappings):
            groups[-1].append(part)
        else:
            groups.append([part])
    for group in groups:
        first = group[0]
        try:
            reading = reading_of(array, first.number, stack.pattern.variable)
            request = reading.request(first.key, points=points)
        except NCZarrError:
            left += group
            continue
        nbytes = stack.nbytes(request.key, points=request.points)
        most = min(_RUN, RUN_BYTES // max(1, nbytes))
        if not most:
            left += group
            continue
        for at in range(0, len(group), most):
            yield _Run(request, nbytes, group[at : at + most])


def _same(one: Part, other: Part, mappings: Mapping[int, FragmentMapping]) -> bool:
    """Tell whether the same is wanted of two fragments, and becomes values in the same way."""
    if one.shape != other.shape or mappings.get(one.number) != mappings.get(other.number):
        return False
    return all(map(_equal, one.key, other.key))


def _equal(one: Any, other: Any) -> bool:
    """Tell whether two indexes are the same; arrays are only if they are one."""
    return one is other or (isinstance(one, slice) and isinstance(other, slice) and one == other)


def _axis(parts: Sequence[Part]) -> int | None:
    """Return along which dimension of the result parts follow each other; None if they do not."""
    targets = [part.target for part in parts]
    if any(np.ndarray in map(type, target) for target in targets):
        return None
    first, last = targets[0], targets[-1]
    changing = [axis for axis, index in enumerate(first) if index != last[axis]]
    if len(changing) != 1:
        return None
    axis = changing[0]
    before, after = first[:axis], first[axis + 1 :]
    stop = first[axis].start
    for target in targets:
        along = target[axis]
        if along.start != stop or target[:axis] != before or target[axis + 1 :] != after:
            return None
        stop = along.stop
    return axis


def _join(result: np.ndarray, parts: Sequence[Part], axis: int, values: np.ndarray) -> None:
    """Put parts of one shape, which follow each other along a dimension, into the result."""
    target = list(parts[0].target)
    target[axis] = slice(target[axis].start, parts[-1].target[axis].stop)
    out = result[tuple(target)]
    out = out.reshape(*out.shape[:axis], len(parts), -1, *out.shape[axis + 1 :])  # a view
    out[...] = np.moveaxis(values, 0, axis)


def _read_run(
    stack: AlikeStack, result: np.ndarray, run: _Run, file: Callable[[Part], StackedFile]
) -> list[Part]:
    """Read a run; return what is left of it."""
    request, parts = run.request, run.parts
    try:
        files = list(map(file, parts))
        members, data = stack.read(files, request.key, points=request.points)
        values = request.values(data)
    except NCZarrError:
        return parts  # in which one it is shows when each is read by itself
    axis = _axis(parts) if len(members) == len(parts) and request.arranged is as_it_is else None
    if axis is not None:
        _join(result, parts, axis, values)
        return []
    for member, own in zip(members, values, strict=True):
        result[parts[member].target] = request.arranged(own)
    there = set(members)
    return [part for number, part in enumerate(parts) if number not in there]
