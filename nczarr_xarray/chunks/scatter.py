"""Scattering decoded chunks: their elements to where they belong in the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.chunks.decoder import SMALL, Decoder
from nczarr_xarray.chunks.joint import SharedTask
from nczarr_xarray.chunks.plan import ChunkTask, Segment
from nczarr_xarray.codecs.codec import Buffer
from nczarr_xarray.codecs.shuffle import unshuffle, unshuffle_into
from nczarr_xarray.model import Array

# -- result --------------------------------------------------------------------------------------
# The arrays that reads fill.


def same_fill(one: Array, other: Array) -> bool:
    """Tell whether elements that are not stored read as the same bits, in arrays of one dtype."""
    first, second = (np.array([array.missing], one.dtype) for array in (one, other))
    return first.tobytes() == second.tobytes()


def allocate(array: Array, shape: tuple[int, ...]) -> np.ndarray:
    """Return room for elements of an array.

    Raises
    ------
    FormatError
        If there is none.
    """
    try:
        # scattering chunks swaps bytes on the way: the result is always native
        return np.empty(shape, dtype=array.dtype.newbyteorder("="))
    except (MemoryError, ValueError) as error:
        raise FormatError(
            array.path, f"a selection of shape {shape} does not fit ({error})"
        ) from None


def fill(task: ChunkTask, value: Any, result: Any) -> None:
    """Put a value where the elements of a chunk that is not stored go."""
    if isinstance(task, SharedTask):
        for number, _, share in task.shares:
            result[number][share.target] = value
    else:
        result[task.target] = value


# -- scatter -------------------------------------------------------------------------------------


#: Where less than this share of a shuffled chunk is wanted, only that is brought together.
_SELECTIVE = 0.4
#: The same of small chunks in rows.
_SELECTIVE_ROWS = 0.1


class Scatter:
    """Puts the elements of decoded chunks into results.

    The results have the dtype of the array in native byte order: bytes are swapped on the way.

    Parameters
    ----------
    decoder
        Of the chunks.
    planes
        Bytes of an element, if chunks come as planes of bytes, else 0; as `Decoder.decode` leaves
        them if None.
    """

    __slots__ = ("_array", "_count", "_fields", "_objects", "_ordered", "_small")

    def __init__(self, decoder: Decoder, planes: int | None = None) -> None:
        self._array = decoder.array
        self._count = math.prod(decoder.array.chunk_shape)
        self._objects = decoder.array.dtype.kind == "O"
        self._small = decoder.in_rows and decoder.nbytes <= SMALL
        #: names of the bytes of an element, if chunks are planes of bytes
        self._fields = [f"f{i}" for i in range(decoder.planes if planes is None else planes)]
        #: the same in the order of the planes
        self._ordered = self._fields if self._array.dtype.isnative else self._fields[::-1]

    def one(
        self, chunk: Buffer, task: ChunkTask, axes: tuple[int, ...] | None, result: np.ndarray
    ) -> None:
        """Put what `task` wants of a chunk into `result`.

        Parameters
        ----------
        axes
            Order in which `task` sees the dimensions of the chunk, if not its own.
        """
        if isinstance(task, SharedTask):
            self._shared(chunk, task, result)
            return
        elements = chunk if self._objects else np.frombuffer(chunk, self._array.dtype)
        if self._fields:
            basic = not any(isinstance(index, np.ndarray) for index in task.target)
            # with an Ellipsis a basic key gives a view even where it selects one element
            out = result[(*task.target, ...)] if basic else None
            if out is None or out.size < _SELECTIVE * self._count:
                self._one_by_planes(np.frombuffer(chunk, np.uint8), task, axes, result, out)
                return
            size = len(self._fields)
            if self._array.dtype.isnative and self._is_copy(task, axes, out):
                unshuffle_into([chunk], size, out.reshape(-1).view(np.uint8))
                return
            elements = unshuffle([chunk], size).view(self._array.dtype)
        result[task.target] = self._part(elements, task, axes)

    def _shared(self, decoded: Buffer, task: SharedTask, rooms: Any) -> None:
        """Put what each of several plans wants of a chunk into the room of that plan."""
        if len(task.shares) == 1 and self._fields:  # only what is wanted need be brought together
            ((number, axes, only),) = task.shares
            self.one(decoded, only, axes, rooms[number])
            return
        elements = decoded if self._objects else np.frombuffer(decoded, self._array.dtype)
        if self._fields:
            elements = unshuffle([decoded], len(self._fields)).view(self._array.dtype)
        chunk = elements.reshape(self._array.chunk_shape, order=self._array.order)
        for number, axes, (_, source, target) in task.shares:
            rooms[number][target] = (chunk if axes is None else chunk.transpose(axes))[source]

    def many(
        self,
        chunks: Sequence[Buffer],
        tasks: Sequence[ChunkTask],
        axes: tuple[int, ...] | None,
        result: np.ndarray,
    ) -> None:
        """Do as `one` does, for several chunks that are in no row."""
        joint = bool(tasks) and isinstance(tasks[0], SharedTask)
        if joint or len(tasks) < 2 or not self._small:
            for chunk, task in zip(chunks, tasks, strict=True):
                self.one(chunk, task, axes, result)
        else:
            apart: Iterable[np.ndarray]
            if self._fields or isinstance(chunks, np.ndarray):
                apart = self._elements(chunks)
            else:  # to join them would copy all, for the part of each that is wanted
                shape, dtype = self._array.chunk_shape, self._array.dtype
                apart = (np.ndarray(shape, dtype, chunk) for chunk in chunks)
            for elements, task in zip(apart, tasks, strict=True):
                seen = elements if axes is None else elements.transpose(axes)
                result[task.target] = seen[task.source]

    def rows(
        self,
        chunks: Sequence[Buffer],
        segments: Sequence[tuple[Segment, int, int]],
        result: np.ndarray,
    ) -> bool:
        """Do as `one` does, for segments with a constant step; see `Decoder.in_rows`.

        Parameters
        ----------
        segments
            Each with the bounds of its own among `chunks`.

        Returns
        -------
        False if nothing was done, since `one` does it sooner: little of chunks that are not small.
        """
        outs = [result[segment.target] for segment, _, _ in segments]
        size, total = len(self._fields), sum(out.size for out in outs)
        own = sum(high - low for _, low, high in segments)
        if not self._small and total < self._count * own * _SELECTIVE:
            return False
        if not size or total >= self._count * len(chunks) * _SELECTIVE_ROWS:
            elements = self._elements(chunks)
            for out, (segment, low, high) in zip(outs, segments, strict=True):
                out, wanted = self._row(out, segment, high - low)
                out[...] = wanted(elements[low:high])
            return True
        planes = np.frombuffer(b"".join(chunks), np.uint8)
        planes = planes.reshape(len(chunks), size, *self._array.chunk_shape)
        bytewise = np.dtype([(name, np.uint8) for name in self._fields])
        for out, (segment, low, high) in zip(outs, segments, strict=True):
            out, wanted = self._row(out, segment, high - low)
            out = out.view(bytewise)
            for i, field in enumerate(self._ordered):
                out[field] = wanted(planes[low:high, i])
        return True

    def _row(
        self, out: np.ndarray, segment: Segment, count: int
    ) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """Return where a row goes, `out` in another shape, and what takes that from its chunks."""
        shape, axis = self._array.chunk_shape, segment.axis
        source = segment.first.source
        if segment.dense:  # the result is divided, which is a view
            out = out.reshape(*out.shape[:axis], count, shape[axis], *out.shape[axis + 1 :])
            out = out.transpose(axis, *range(axis), *range(axis + 1, out.ndim))
            key = (slice(None), *source)
            return out, lambda chunks: chunks[key]
        # the chunks are joined, which is a copy
        last = segment.pieces[-1].source
        assert isinstance(last, slice)  # there is a step
        stop = (count - 1) * shape[axis] + last.stop
        along = (*[slice(None)] * axis, slice(source[axis].start, stop, segment.step))
        across = (slice(None), *source[:axis], slice(None), *source[axis + 1 :])

        def wanted(chunks: np.ndarray) -> np.ndarray:
            part = chunks[across]
            part = part.transpose(*range(1, axis + 1), 0, *range(axis + 1, part.ndim))
            rows: np.ndarray = part.reshape(*part.shape[:axis], -1, *part.shape[axis + 2 :])[along]
            return rows

        return out, wanted

    def room_for(
        self, task: ChunkTask, axes: tuple[int, ...] | None, result: np.ndarray
    ) -> memoryview | None:
        """Find where in `result` all bytes of a plain chunk go as they are; None if nowhere."""
        if isinstance(task, SharedTask) or not self._count:
            return None
        if any(isinstance(index, np.ndarray) for index in task.target):
            return None
        out = result[(*task.target, ...)]
        return out.reshape(-1).view(np.uint8).data if self._is_copy(task, axes, out) else None

    def _elements(self, chunks: Sequence[Buffer]) -> np.ndarray:
        """Return small chunks as elements, one after the other along a first dimension."""
        size = len(self._fields)
        if isinstance(chunks, np.ndarray):  # of `Decoder.together`
            stored = chunks
        else:
            stored = unshuffle(chunks, size) if size else b"".join(chunks)
        shape = (len(chunks), *self._array.chunk_shape)
        return np.frombuffer(stored, self._array.dtype).reshape(shape)

    def _is_copy(self, task: ChunkTask, axes: tuple[int, ...] | None, out: np.ndarray) -> bool:
        """Tell whether `out`, which `task` fills, has the elements in the order of the chunk."""
        return (
            axes is None
            and self._array.order == "C"
            and out.size == self._count
            and out.flags.c_contiguous
            and all(isinstance(index, slice) for index in task.source)  # others may repeat
        )

    def _one_by_planes(
        self,
        planes: np.ndarray,
        task: ChunkTask,
        axes: tuple[int, ...] | None,
        result: np.ndarray,
        out: np.ndarray | None,
    ) -> None:
        """Put what is wanted of a shuffled chunk into `result` (`out` is that part of it)."""
        count = self._count
        parts = [
            self._part(planes[i * count : (i + 1) * count], task, axes)
            for i in range(len(self._fields))
        ]
        whole = np.empty(parts[0].shape, result.dtype) if out is None else out
        bytewise = whole.view([(name, np.uint8) for name in self._fields])
        for name, part in zip(self._ordered, parts, strict=True):
            bytewise[name] = part
        if out is None:
            result[task.target] = whole

    def _part(self, flat: np.ndarray, task: ChunkTask, axes: tuple[int, ...] | None) -> Any:
        """Return what `task` wants of a chunk (or of one byte plane of it)."""
        chunk = flat.reshape(self._array.chunk_shape, order=self._array.order)
        return (chunk if axes is None else chunk.transpose(axes))[task.source]
