"""Read fragments in files that are alike: metadata are compared, byte by byte, and not parsed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.local_files import OPEN_FLAGS, read_at
from nczarr_fsspec.ranges.local import LocalFileBytes
from nczarr_xarray.chunks.sources import EncodedChunk
from nczarr_xarray.chunks.stack import ChunkStack, Stacked
from nczarr_xarray.dataset.file import DataFile, at_hand
from nczarr_xarray.dataset.fragment_opener import Opening
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.alike import MetadataPattern, moved
from nczarr_xarray.formats.alike_chunks import AlikeChunks, read_alike_chunks
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.formats.registry import Source, read_pattern
from nczarr_xarray.model import FileChunks, FileStrides

#: Bytes from the beginning of a file that are read at once: mostly the data are among them.
_TOGETHER = 1 << 16
#: Files whose pattern is learned, at most: in a folder of many kinds there is nothing to be gained.
_MOST_PATTERNS = 8

#: A file of a stack: its path, or all of its bytes; None if it is in neither form.
StackedFile: TypeAlias = "str | bytes | None"


class AlikeFiles:
    """The files that have the pattern of one that was opened before. Safe in threads.

    Parameters
    ----------
    entire
        As of `nczarr_xarray.dataset.fragment_opener.Opener.open`.

    Attributes
    ----------
    stack
        Reads small data of many files at a time, if these are local, or came with the first answer
        of a server; None if that takes a parser.
    """

    def __init__(self, *, entire: bool) -> None:
        self._entire = entire
        self.stack: AlikeStack | None = None
        self._known: tuple[str, MetadataPattern | None] = "", None
        self._learned = 0

    def pattern(self, name: str) -> MetadataPattern | None:
        """Return the pattern that a file may have which has a variable of this name."""
        known, pattern = self._known
        return pattern if name == known else None

    def open(self, path: str, name: str) -> Opening | None:
        """Open a variable of a local file, which stays open; None if it has another pattern."""
        pattern = self.pattern(name)
        if pattern is None:
            return None
        try:
            source = LocalFileBytes(path)
        except NCZarrError:
            return None
        if pattern.fits(source.head[: pattern.stop], source.size):
            return alike(DataFile(source), pattern)
        source.close()
        return None

    def learn(self, name: str, found: Opening) -> bool:
        """Learn the pattern of a local file that has been opened; tell whether to use the stack."""
        file = self._file_of(found)
        if file is None:
            return False
        pattern = file.parse(read_variable_pattern(file, name, entire=self._entire))
        self._known = name, pattern
        return self._learn_stack(name, pattern, file)

    async def learn_remote(self, name: str, found: Opening) -> None:
        """Do as `learn` does, of a remote file, on its loop."""
        file = self._file_of(found)
        if file is None:
            return
        reading = read_variable_pattern(file, name, entire=self._entire)
        pattern = await file.parse_remote(reading)
        self._known = name, pattern
        here = at_hand(file.source)
        if here is not None:
            self._learn_stack(name, pattern, here)

    def _learn_stack(self, name: str, pattern: MetadataPattern | None, file: DataFile) -> bool:
        """Learn where files of a pattern have chunks, from one that is read without waiting."""
        array = None if pattern is None else pattern.variable.array
        places = None if array is None else file.parse(read_alike_chunks(array))
        if pattern is None or array is None or places is None:
            return False
        stack = ChunkStack(array, places.shape, places.masks)
        self.stack = AlikeStack(name, pattern, stack, places)
        return True

    def _file_of(self, found: Opening) -> DataFile | None:
        """Return the file whose pattern is to be learned; None if that is not worth while."""
        file, array = found.reader.store, found.variable.array
        if self._learned >= _MOST_PATTERNS or not isinstance(file, DataFile):
            return None
        if not isinstance(array, (FileChunks, FileStrides)):
            return None
        self._learned += 1
        return file


@dataclass(frozen=True, slots=True)
class AlikeStack:
    """Reads a variable of many files with one pattern. Safe in threads.

    Parameters
    ----------
    name
        Path of the variable in the files.
    pattern
        Of the files.
    stack
        Reads chunks of the variable.
    places
        Where the files have these.
    """

    name: str
    pattern: MetadataPattern
    stack: ChunkStack
    places: AlikeChunks

    def nbytes(self, key: tuple[Any, ...], *, points: bool) -> int:
        """Return the decoded bytes of the chunks that a selection touches in a file."""
        return self.stack.nbytes(key, points=points)

    def read(self, files: Sequence[StackedFile], key: tuple[Any, ...], *, points: bool) -> Stacked:
        """Read the same selection of several files, as `ChunkStack.read` does.

        Members that are None, cannot be read or have another pattern are left out.
        """
        return self.stack.read(len(files), key, partial(self._fetch, files), points=points)

    def _fetch(
        self, files: Sequence[StackedFile], member: int, numbers: Sequence[int], most: int
    ) -> Sequence[EncodedChunk] | None:
        """Fetch chunks of a file: see `nczarr_xarray.chunks.stack.Fetch`."""
        file = files[member]
        if file is None:
            return None
        if isinstance(file, bytes):
            return self._chunks_of(file, len(file), _nothing_more, numbers, most)
        return self._fetch_local(file, numbers, most)

    def _fetch_local(
        self, path: str, numbers: Sequence[int], most: int
    ) -> list[EncodedChunk] | None:
        try:
            descriptor = os.open(path, OPEN_FLAGS)
        except (OSError, ValueError):
            return None
        try:
            before = os.fstat(descriptor)
            data = None
            if stat.S_ISREG(before.st_mode):
                size, needed = before.st_size, max(self.pattern.stop, self.places.stop)
                start = read_at(descriptor, 0, min(max(_TOGETHER, needed), size))
                rest = partial(read_at, descriptor)
                data = self._chunks_of(start, size, rest, numbers, most)
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
        rest: Callable[[int, int], bytes],
        numbers: Sequence[int],
        most: int,
    ) -> list[EncodedChunk] | None:
        """Return chunks of a file, of which the start is given; None if it has another pattern."""
        places = self.places
        fits = len(start) >= places.stop and self.pattern.fits(start, size)
        extents = places.extents(start) if fits else None
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
            near = end <= len(start)
            data.append(start[begin:end] if near else rest(begin, end))
        return data


def _nothing_more(begin: int, end: int) -> bytes:
    """Refuse to read more of a file of which all bytes are there."""
    raise AssertionError(f"bytes {begin} to {end} of a file that is shorter")


async def read_variable_pattern(
    file: DataFile, name: str, *, entire: bool
) -> MetadataPattern | None:
    """Read the pattern of one variable of a file; None if it has to be parsed for each.

    Parameters
    ----------
    name
        Path of the variable.
    entire
        Whether to read all of the group, which shows the names of the variable's dimensions.
    """
    group, _, short = name.strip("/").rpartition("/")
    options = OpenOptions(group=group, tree=False, only=None if entire else short)
    found = await read_pattern(Source(file.url, file.source), options)
    return None if found is None else found.of_variable(group, short)


def alike(file: DataFile, pattern: MetadataPattern) -> Opening:
    """Open the variable of a file that has a pattern."""
    variable = moved(pattern.variable, file.url, file.source.size)
    return Opening(VariableReader(file, variable), variable, alike=True)
