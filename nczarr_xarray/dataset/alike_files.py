"""Read fragments in files that are alike: many at a time, and without parsing their metadata.

The metadata of a file are compared, byte by byte, with those of one that was parsed
(`nczarr_xarray.formats.alike`). Small data of many such files are chunks of one array with a
dimension more, the files, whose chunks lie in as many sources.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.local_files import OPEN_FLAGS, read_at
from nczarr_fsspec.ranges.local import LocalFileBytes
from nczarr_fsspec.transport.request import UNKNOWN, Stamp
from nczarr_xarray.chunks.grid import Grid, GridRead
from nczarr_xarray.chunks.plan import Plan, plan_outer, plan_points
from nczarr_xarray.chunks.scatter import allocate
from nczarr_xarray.chunks.sources import EncodedChunk
from nczarr_xarray.chunks.threads import share
from nczarr_xarray.dataset.file import DataFile, at_hand
from nczarr_xarray.dataset.fragment_datasets import Opening
from nczarr_xarray.dataset.fragment_parts import FragmentRequest, Part, as_it_is, reading_of
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.alike import AlikeChunks, MetadataPattern, moved, read_alike_chunks
from nczarr_xarray.formats.registry import OpenOptions, Source, read_pattern
from nczarr_xarray.model import (
    Array,
    ChunkTable,
    CodecConfig,
    FileChunks,
    FileStrides,
    FragmentArray,
    FragmentMapping,
    FragmentPlace,
    Variable,
)

#: Bytes from the beginning of a file that are read at once: mostly the data are among them.
_TOGETHER = 1 << 16
#: Files whose pattern is learned, at most: in a folder of many kinds there is nothing to be gained.
_MOST_PATTERNS = 8
#: Files of a stack: more than are ever read at a time.
_MOST_FILES = 1 << 20
#: Decoded bytes of chunks that are read at a time. Of a fragment that has more of them, opening the
#: file is a small part.
RUN_BYTES = 1 << 20
#: Fragments that are read at a time.
_RUN = 256
#: To open a file and compare its metadata takes the interpreter's lock as long as so many chunks
#: do. Of small fragments two threads would read no more than one, for half as much time again.
_CHUNKS_A_FILE = 3


class StampedFile(NamedTuple):
    """A file of this machine, and which version of it is meant."""

    path: str
    stamp: Stamp = UNKNOWN


#: A file of a stack: where it is, all of its bytes, or its chunks; None if it is in no such form.
StackedFile: TypeAlias = StampedFile | bytes | list[EncodedChunk] | None


class AlikeVariable(NamedTuple):
    """A variable that files have with the same metadata.

    Attributes
    ----------
    pattern
        The metadata.
    variable
        As one of the files has it.
    """

    pattern: MetadataPattern
    variable: Variable

    def open(self, file: DataFile) -> Opening | None:
        """Open the variable of a file; None if that has other metadata."""
        source = file.source
        if not self.pattern.fits(source.head[: self.pattern.stop], source.size):
            return None
        variable = moved(self.variable, file.url, source.size)
        return Opening(VariableReader(file, variable), variable, alike=True)


async def read_alike_variable(file: DataFile, name: str, *, entire: bool) -> AlikeVariable | None:
    """Read what a variable has in common with those of other files; None if these are parsed.

    Parameters
    ----------
    name
        Path of the variable.
    entire
        Whether to read all of the group, which shows the names of the variable's dimensions.
    """
    group, _, short = name.strip("/").rpartition("/")
    options = OpenOptions(group=group, tree=False, only=None if entire else short)
    pattern = await read_pattern(Source(file.url, file.source), options)
    variable = None if pattern is None else pattern.variable(name)
    return None if pattern is None or variable is None else AlikeVariable(pattern, variable)


class AlikeFiles:
    """The files that have the pattern of one that was opened before. Safe in threads.

    Parameters
    ----------
    entire
        As of `read_alike_variable`.

    Attributes
    ----------
    stack
        Reads small data of many files at a time, if these are local, or came with the first answer
        of a server; None if that takes a parser.
    """

    def __init__(self, *, entire: bool) -> None:
        self._entire = entire
        self.stack: AlikeStack | None = None
        self._known: tuple[str, AlikeVariable | None] = "", None
        self._learned = 0

    def variable(self, name: str) -> AlikeVariable | None:
        """Return what a file may have which has a variable of this name."""
        known, variable = self._known
        return variable if name == known else None

    def open(self, path: str, place: FragmentPlace) -> Opening | None:
        """Open a fragment in a local file, which stays open; None if it has another pattern."""
        variable = self.variable(place.name)
        if variable is None:
            return None
        try:
            source = LocalFileBytes(path)
            place.stamp.check(source.stamp, source.url)
        except NCZarrError:
            return None  # which is found again, and explained
        opening = variable.open(DataFile(source))
        if opening is None:
            source.close()
        return opening

    async def learn(self, name: str, opening: Opening) -> bool:
        """Learn the pattern of a file that has been opened; tell whether to use the stack.

        Nothing suspends it of a local file; that of a remote one is read on its loop.
        """
        file, array = opening.reader.store, opening.variable.array
        if self._learned >= _MOST_PATTERNS or not isinstance(array, (FileChunks, FileStrides)):
            return False
        if not isinstance(file, DataFile):
            return False
        self._learned += 1
        reading = read_alike_variable(file, name, entire=self._entire)
        alike = file.parse(reading) if file.ranges is None else await file.parse_remote(reading)
        self._known = name, alike
        here = file if file.ranges is None else at_hand(file.source)
        if alike is None or alike.variable.array is None or here is None:
            return False
        chunks = here.parse(read_alike_chunks(alike.variable.array))
        if chunks is not None:
            self.stack = AlikeStack(name, alike, chunks)
        return chunks is not None


# -- stacks --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _StackArray(Array):
    """The same variable of many files, whose chunks are brought along."""

    chunk_shape: tuple[int, ...]
    dtype: np.dtype
    fill: Any
    codecs: tuple[CodecConfig, ...]


class AlikeStack:
    """Reads a variable of many files with one pattern: planned once, decoded in rows of chunks.

    Safe in threads.

    Parameters
    ----------
    name
        Path of the variable in the files.
    alike
        The variable, without a conversion.
    chunks
        Where the files have its chunks.
    """

    def __init__(self, name: str, alike: AlikeVariable, chunks: AlikeChunks) -> None:
        self.name = name
        self.pattern, self.variable = alike
        self._chunks = chunks
        array = self.variable.array
        assert array is not None
        shape, chunk_shape = (_MOST_FILES, *array.shape), (1, *chunks.shape)
        self._grid = Grid(
            _StackArray(array.path, shape, chunk_shape, array.dtype, array.fill, array.codecs)
        )

    def begun(self, start: bytes, size: int) -> list[EncodedChunk] | None:
        """Return the chunks of a file of this size; None if they are not in its first bytes."""
        numbers = range(len(self._chunks.masks))
        return self._chunks_of(start, size, None, numbers, self._grid.bound.stored)

    def nbytes(self, key: tuple[Any, ...], *, points: bool) -> int:
        """Return the decoded bytes of the chunks that a selection touches in a file."""
        return self._plan(1, key, points).count * self._grid.nbytes

    def read(
        self, files: Sequence[StackedFile], key: tuple[Any, ...], *, points: bool
    ) -> tuple[list[int], np.ndarray]:
        """Read the same selection of several files, in the calling thread.

        Parameters
        ----------
        key, points
            As of `nczarr_xarray.model.Selections.read`, for each of them.

        Returns
        -------
        The numbers of the files that were read, and the data, with a dimension of these before the
        others. Those that are None, cannot be read or have another pattern are left out.

        Raises
        ------
        FormatError, StoreError
            If a chunk of one of them cannot be read or decoded.
        """
        grid, masks = self._grid, self._chunks.masks
        plan = self._plan(len(files), key, points)
        room = allocate(grid.array, plan.shape)
        reading = GridRead(grid, plan, room, remember=False, local=True)
        windows = [window for _, window in reading.windows()]
        ids = [np.zeros(0, np.int64), *(window.ids for window in windows)]
        numbers = np.unique(np.concatenate(ids) % len(masks))
        wanted, most = numbers.tolist(), grid.bound.stored
        fetched = [self._fetch(file, wanted, most) for file in files]
        for window in windows:
            owners, own = np.divmod(window.ids, len(masks))
            rows = zip(owners.tolist(), np.searchsorted(numbers, own).tolist(), strict=True)
            data = [None if (of := fetched[file]) is None else of[row] for file, row in rows]
            here = np.zeros(len(own), np.int64)
            table = ChunkTable(here, here, masks[own])
            pieces = reading.pieces(window.ids, window, table, parts=False)
            pieces.scatter(np.arange(len(data)), data)
        result = plan.finish(room)
        result = np.moveaxis(result, 1, 0) if points else result
        read = [number for number, chunks in enumerate(fetched) if chunks is not None]
        return read, result if len(read) == len(files) else result[read]

    def _plan(self, files: int, key: tuple[Any, ...], points: bool) -> Plan:
        array = self._grid.array
        plan = plan_points if points else plan_outer
        return plan((slice(0, files), *key), array.shape, array.chunk_shape)

    def _fetch(
        self, file: StackedFile, numbers: Sequence[int], most: int
    ) -> Sequence[EncodedChunk] | None:
        """Fetch chunks of a file, of at most so many bytes; None if it is read in another way."""
        if file is None:
            return None
        if isinstance(file, list):
            return [file[number] for number in numbers]
        if isinstance(file, bytes):
            return self._chunks_of(file, len(file), None, numbers, most)
        try:
            descriptor = os.open(file.path, OPEN_FLAGS)
        except (OSError, ValueError):
            return None
        try:
            before = os.fstat(descriptor)
            file.stamp.check(Stamp(before.st_size, before.st_mtime_ns), file.path)
            data = None
            if stat.S_ISREG(before.st_mode):
                size, needed = before.st_size, max(self.pattern.stop, self._chunks.stop)
                start = read_at(descriptor, 0, min(max(_TOGETHER, needed), size))
                data = self._chunks_of(start, size, descriptor, numbers, most)
            after = os.fstat(descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        same = (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
        return data if same else None

    def _chunks_of(
        self,
        start: bytes,
        size: int,
        descriptor: int | None,
        numbers: Sequence[int],
        most: int,
    ) -> list[EncodedChunk] | None:
        """Return chunks of a file; None if it has another pattern.

        Its start is given. Without a descriptor, chunks that are not there cannot be read.
        """
        chunks = self._chunks
        fits = len(start) >= chunks.stop and self.pattern.fits(start, size)
        extents = chunks.extents(start) if fits else None
        if extents is None:
            return None
        data: list[EncodedChunk] = []
        for number in numbers:
            extent = extents[number]
            if extent is None:
                data.append(None)
                continue
            begin, end = extent
            if end > size or end - begin > most:
                return None
            if end <= len(start):
                data.append(start[begin:end])
            elif descriptor is None:
                return None
            else:
                data.append(read_at(descriptor, begin, end))
        return data


# -- parts of an aggregation ---------------------------------------------------------------------


class _Run(NamedTuple):
    """Parts of which the same is read, and becomes values in the same way."""

    request: FragmentRequest
    nbytes: int
    parts: list[Part]


def read_alike(
    array: FragmentArray,
    stack: AlikeStack,
    parts: Sequence[Part],
    file: Callable[[Part], StackedFile],
) -> list[Part]:
    """Read parts of fragments that are alike, of which one selection wants something.

    Parameters
    ----------
    array
        The aggregation.
    stack
        Reads the files.
    file
        Returns the file of a part's fragment; None if it cannot be read here.

    Returns
    -------
    Parts that have to be read one by one: of other files, for several selections, and where
    something is wrong.
    """
    left: list[Part] = []
    runs = list(_runs(array, stack, parts, left))

    def read(some: list[_Run]) -> None:
        for run in some:
            left.extend(_read_run(stack, run, file))

    count = max(1, len(runs))
    nbytes = sum(run.nbytes * len(run.parts) for run in runs) // count
    members = sum(len(run.parts) for run in runs) // count
    share(read, runs, nbytes, chunks=max(1, members) * _CHUNKS_A_FILE)
    return sorted(left, key=lambda part: part.number)


def _runs(
    array: FragmentArray, stack: AlikeStack, parts: Sequence[Part], left: list[Part]
) -> Iterator[_Run]:
    """Divide parts into runs; put those that cannot be in one into `left`."""
    mappings, names = array.fragments.mappings, array.fragments.names
    groups: list[list[Part]] = []
    for part in parts:
        if names[part.number] != stack.name or len(part.shares) > 1:
            left.append(part)
        elif groups and _same(groups[-1][0], part, mappings):
            groups[-1].append(part)
        else:
            groups.append([part])
    for group in groups:
        first = group[0]
        try:
            reading = reading_of(array, first.number, stack.variable)
            share = first.shares[0]
            request = reading.request(share.key, points=share.points)
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
    if one.shape != other.shape:
        return False
    if mappings and mappings.get(one.number) != mappings.get(other.number):
        return False
    wanted, of_other = one.shares[0], other.shares[0]
    return wanted.result is of_other.result and all(map(_equal, wanted.key, of_other.key))


def _equal(one: Any, other: Any) -> bool:
    """Tell whether two indexes are the same; arrays are only if they are one."""
    return one is other or (type(one) is type(other) is slice and one == other)


def _axis(parts: Sequence[Part]) -> int | None:
    """Return along which dimension of the result parts follow each other; None if they do not."""
    targets = [part.shares[0].target for part in parts]
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


def _join(parts: Sequence[Part], axis: int, values: np.ndarray) -> None:
    """Put parts of one shape, which follow each other along a dimension, into the result."""
    first, last = parts[0].shares[0], parts[-1].shares[0]
    target = list(first.target)
    target[axis] = slice(target[axis].start, last.target[axis].stop)
    out = first.result[tuple(target)]
    out = out.reshape(*out.shape[:axis], len(parts), -1, *out.shape[axis + 1 :])  # a view
    out[...] = np.moveaxis(values, 0, axis)


def _read_run(stack: AlikeStack, run: _Run, file: Callable[[Part], StackedFile]) -> list[Part]:
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
        _join(parts, axis, values)
        return []
    for member, of_member in zip(members, values, strict=True):
        share = parts[member].shares[0]
        share.result[share.target] = request.arranged(of_member)
    there = set(members)
    return [part for number, part in enumerate(parts) if number not in there]
