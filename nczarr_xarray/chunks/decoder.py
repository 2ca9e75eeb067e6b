"""Decoding one chunk: bytes as stored to elements in place, by the fastest library for each codec.

A `Decoder` is made once per array and used for every chunk, from any thread.
Sizes are checked on the way: inflating stops at the chunk's size, and a chunk
that decodes to anything but its exact size is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.chunks.plan import ChunkTask, Segment, segments_of
from nczarr_xarray.codecs.codec import UNKNOWN, Buffer, Size, Step
from nczarr_xarray.codecs.registry import need_libhdf5, step_of
from nczarr_xarray.codecs.shuffle import WIDEST, element_size, unshuffle, unshuffle_into
from nczarr_xarray.model import Array

#: Chunks up to this many bytes are put into the result several at a time: each by itself costs
#: more in calls of numpy than in copying.
_SMALL = 1 << 16
#: Bytes that a stored chunk may have besides what its codecs can make of it.
_SLACK = 1 << 16
#: Where less than this share of a shuffled chunk is wanted, only that is brought together.
_SELECTIVE = 0.4


class Decoder:
    """Decodes chunks of one array.

    Parameters
    ----------
    array
        Its codecs are undone from the last to the first.
    mask
        Bit i is set if codec i was not applied to the chunks that are decoded.

    Raises
    ------
    FormatError
        If a codec is not known or cannot be used. That of a file is an error of the chunks
        that it was applied to.

    Attributes
    ----------
    nbytes
        Of a decoded chunk.
    most
        Bytes that a stored chunk may have: no codec makes more of a chunk.
    is_plain
        Whether chunks are stored as the bytes of their elements.
    in_rows
        Whether chunks are put into the result several at a time, with `place_row`.
    needs_libhdf5
        Whether it must not be used in the thread of an event loop.
    """

    __slots__ = (
        "_array",
        "_codecs",
        "_count",
        "_fields",
        "_objects",
        "_order",
        "_steps",
        "in_rows",
        "is_plain",
        "most",
        "nbytes",
        "needs_libhdf5",
    )

    def __init__(self, array: Array, mask: int = 0) -> None:
        self._array = array
        self._codecs = [config for i, config in enumerate(array.codecs) if not mask >> i & 1]
        self._order = array.order
        self._count = math.prod(array.chunk_shape)
        self._objects = array.dtype.kind == "O"
        self.nbytes = self._count * array.dtype.itemsize
        self.is_plain = not self._codecs and array.dtype.isnative and not self._objects
        self.in_rows = self.nbytes <= _SMALL and not self._objects and self._order == "C"
        self.needs_libhdf5 = need_libhdf5(self._codecs)
        self._steps = self._plan()
        # The last step is mostly to unshuffle: bytes then go straight to where they belong in
        # the result, and only those that are wanted.
        self._fields: list[str] = []
        # (Swapping all bytes of an element is right for a single number only.)
        single = array.dtype.isnative or array.dtype.kind in "iufmM"
        if self._steps and self._codecs[0]["id"] == "shuffle" and single and not self._objects:
            size = element_size(self._codecs[0], array)
            if size == array.dtype.itemsize and 1 < size <= WIDEST:
                self._steps = self._steps[:-1]
                self._fields = [f"f{i}" for i in range(size)]

    def _plan(self) -> tuple[Step, ...]:
        array = self._array
        if self._objects and not self._codecs:
            reason = "dtype '|O' needs an object codec in 'filters'"
            raise FormatError(array.described, reason)
        steps: list[Step] = []
        size = UNKNOWN if self._objects else Size(self.nbytes)
        self.most = size.most + _SLACK
        for config in self._codecs:
            try:
                step, size = step_of(config, array, size)
            except FormatError as error:
                found = error if error.object else type(error)(array.described, error.reason)
                step, size = _refusal(found, array), UNKNOWN
            except Exception as error:  # noqa: BLE001  (codec libraries raise whatever they like)
                reason = f"codec {config['id']!r:.80} cannot be used ({error})"
                step, size = _refusal(FormatError(array.described, reason), array), UNKNOWN
            # what a compressor makes of noise is longer than that: by a fourth, with the worst
            self.most = size.most + _SLACK if size.exact else self.most * 3 // 2
            steps.insert(0, step)
        return tuple(steps)

    def decode(self, data: Sequence[Buffer], name: Callable[[int], str]) -> list[Buffer]:
        """Chunks as `place` takes them: decoded, but for the last step where that goes along.

        Parameters
        ----------
        data
            Stored chunks.
        name
            What messages call the i-th of them.

        Raises
        ------
        FormatError
            If the bytes of one cannot be decoded, or have the wrong size.
        """
        if len(data) > 1 and not self._objects:  # codec by codec, instead of chunk by chunk
            chunks = list(data)
            try:
                for step in self._steps:
                    chunks = [step(chunk) for chunk in chunks]
                if all(map(_is_bytes, chunks)) and set(map(len, chunks)) == {self.nbytes}:
                    return chunks
            except Exception:  # noqa: BLE001, S110  (which one it is shows below)
                pass
        return [self._decode(chunk, name(i)) for i, chunk in enumerate(data)]

    def place_many(
        self,
        chunks: Sequence[Buffer],
        tasks: Sequence[ChunkTask],
        axes: tuple[int, ...] | None,
        result: np.ndarray[Any, Any],
    ) -> None:
        """`place` several chunks; small ones that lie in a row go into `result` together."""
        alone: list[int] = []
        at = 0
        if axes is None and self.in_rows and len(tasks) > 1:
            for segment in segments_of(tasks, self._array.chunk_shape):
                end = at + len(segment.pieces)
                if segment.step and end > at + 1:
                    self.place_row(chunks[at:end], segment, result)
                else:
                    alone += range(at, end)
                at = end
        alone += range(at, len(tasks))
        if len(alone) == 1 or not self.in_rows:
            for i in alone:
                self.place(chunks[i], tasks[i], axes, result)
        elif alone:
            elements = self._elements([chunks[i] for i in alone])
            for chunk, i in zip(elements, alone, strict=True):
                task = tasks[i]
                result[task.target] = (chunk if axes is None else chunk.transpose(axes))[
                    task.source
                ]

    def _elements(self, chunks: Sequence[Buffer] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Small chunks as elements, one after the other along a first dimension."""
        size = len(self._fields)
        if isinstance(chunks, np.ndarray):
            stored: Buffer = chunks
        else:
            stored = unshuffle(chunks, size) if size else b"".join(chunks)
        shape = (len(chunks), *self._array.chunk_shape)
        return np.frombuffer(stored, self._array.dtype).reshape(shape)

    def place_row(
        self,
        chunks: Sequence[Buffer] | np.ndarray[Any, Any],
        segment: Segment,
        result: np.ndarray[Any, Any],
    ) -> None:
        """`place` the chunks of a segment with a constant step; see `in_rows`.

        Parameters
        ----------
        chunks
            As `decode` gives them; if none of that was needed, they may be the rows of an array.
        """
        shape, count, axis = self._array.chunk_shape, len(chunks), segment.axis
        source, out = segment.first.source, result[segment.target]
        if segment.dense:  # the result is divided, which is a view
            out = out.reshape(*out.shape[:axis], count, shape[axis], *out.shape[axis + 1 :])
            out = out.transpose(axis, *range(axis), *range(axis + 1, out.ndim))

            def wanted(chunks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
                return chunks[(slice(None), *source)]

        else:  # the chunks are joined, which is a copy
            last = segment.pieces[-1].source
            assert isinstance(last, slice)  # there is a step
            stop = (count - 1) * shape[axis] + last.stop
            along = slice(source[axis].start, stop, segment.step)
            across = (*source[:axis], slice(None), *source[axis + 1 :])

            def wanted(chunks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
                part = chunks[(slice(None), *across)]
                part = part.transpose(*range(1, axis + 1), 0, *range(axis + 1, part.ndim))
                rows = part.reshape(*part.shape[:axis], -1, *part.shape[axis + 2 :])
                return rows[(*[slice(None)] * axis, along)]

        if self._fields and out.size < self._count * count * _SELECTIVE:
            planes = np.frombuffer(b"".join(chunks), np.uint8)
            planes = planes.reshape(count, len(self._fields), *shape)
            bytewise = out.view([(name, np.uint8) for name in self._fields])
            for i, field in enumerate(self._ordered_fields()):
                bytewise[field] = wanted(planes[:, i])
            return
        out[...] = wanted(self._elements(chunks))

    def _ordered_fields(self) -> list[str]:
        """The bytes of a native element, in the order of the planes."""
        return self._fields if self._array.dtype.isnative else self._fields[::-1]

    def place(
        self,
        chunk: Buffer,
        task: ChunkTask,
        axes: tuple[int, ...] | None,
        result: np.ndarray[Any, Any],
    ) -> None:
        """Put what `task` wants of a chunk, as `decode` gives it, into `result`.

        Parameters
        ----------
        axes
            Order in which `task` sees the dimensions of the chunk, if not its own.
        result
            Has the array's dtype in native byte order.
        """
        elements = chunk if self._objects else np.frombuffer(chunk, self._array.dtype)
        if self._fields:
            basic = not any(isinstance(index, np.ndarray) for index in task.target)
            # with an Ellipsis a basic key gives a view even where it selects one element
            out = result[(*task.target, ...)] if basic else None
            if out is None or out.size < _SELECTIVE * self._count:
                self._place_planes(np.frombuffer(chunk, np.uint8), task, axes, result, out)
                return
            size = len(self._fields)
            if self._array.dtype.isnative and self._is_copy(task, axes, out):
                unshuffle_into([chunk], size, out.reshape(-1).view(np.uint8))
                return
            elements = unshuffle([chunk], size).view(self._array.dtype)
        result[task.target] = self._part(elements, task, axes)

    def room_for(
        self, task: ChunkTask, axes: tuple[int, ...] | None, result: np.ndarray[Any, Any]
    ) -> memoryview | None:
        """Where in `result` all bytes of a plain chunk go as they are; None if there is no such."""
        if not self.nbytes or any(isinstance(index, np.ndarray) for index in task.target):
            return None
        out = result[(*task.target, ...)]
        return out.reshape(-1).view(np.uint8).data if self._is_copy(task, axes, out) else None

    def _is_copy(
        self, task: ChunkTask, axes: tuple[int, ...] | None, out: np.ndarray[Any, Any]
    ) -> bool:
        """Whether `out`, which `task` fills, has the elements of the chunk in the same order."""
        return (
            axes is None
            and self._order == "C"
            and out.size == self._count
            and out.flags.c_contiguous
            and all(isinstance(index, slice) for index in task.source)  # others may repeat
        )

    def _place_planes(
        self,
        planes: np.ndarray[Any, Any],
        task: ChunkTask,
        axes: tuple[int, ...] | None,
        result: np.ndarray[Any, Any],
        out: np.ndarray[Any, Any] | None,
    ) -> None:
        """Put what is wanted of a shuffled chunk into `result` (`out` is that part of it)."""
        count = self._count
        parts = [
            self._part(planes[i * count : (i + 1) * count], task, axes)
            for i in range(len(self._fields))
        ]
        whole = np.empty(parts[0].shape, result.dtype) if out is None else out
        bytewise = whole.view([(name, np.uint8) for name in self._fields])
        for name, part in zip(self._ordered_fields(), parts, strict=True):
            bytewise[name] = part
        if out is None:
            result[task.target] = whole

    def _part(
        self, flat: np.ndarray[Any, Any], task: ChunkTask, axes: tuple[int, ...] | None
    ) -> Any:
        """What `task` wants of a chunk (or of one byte plane of it)."""
        chunk = flat.reshape(self._array.chunk_shape, order=self._order)
        return (chunk if axes is None else chunk.transpose(axes))[task.source]

    def _decode(self, data: Buffer, key: str) -> Buffer:
        """All elements of the chunk stored as `data`, in stored order (shuffled, if `_fields`)."""
        try:
            for step in self._steps:
                data = step(data)
            return self._objects_of(data) if self._objects else self._elements_of(data)
        except FormatError as error:
            raise type(error)(key, error.reason) from None
        except MemoryError:
            raise FormatError(key, f"a chunk of {self.nbytes} bytes does not fit") from None
        except Exception as error:  # codec libraries raise whatever they like
            raise FormatError(key, f"the chunk cannot be decoded ({error})") from error

    def _elements_of(self, data: Buffer) -> Buffer:
        if isinstance(data, np.ndarray):
            if data.dtype.hasobject:
                raise FormatError("", "decodes to Python objects, not numbers")
            data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        size = len(data) if isinstance(data, bytes) else memoryview(data).nbytes
        if size != self.nbytes:
            Size(self.nbytes).check(size)
        return data

    def _objects_of(self, data: Buffer) -> np.ndarray[Any, Any]:
        if not isinstance(data, np.ndarray) or data.dtype.kind != "O":
            raise FormatError("", "decodes to bytes, not to Python objects")
        if data.size != self._count:
            raise FormatError("", f"holds {data.size} elements, not {self._count}")
        elements = data.ravel().tolist()
        if all(isinstance(element, (str, bytes)) for element in elements):
            return data
        if not all(isinstance(e, (str, bytes)) or _is_absent(e) for e in elements):
            raise FormatError("", "holds objects that are neither text nor bytes")
        texts = np.empty(len(elements), object)
        texts[:] = ["" if _is_absent(element) else element for element in elements]
        return texts.reshape(data.shape)


def _is_absent(element: Any) -> bool:
    """Whether an object is what stands where no text was put: None, NaN, or zarr's default, 0.

    zarr-python 2 completes the chunks at the edges with that.
    """
    if isinstance(element, float):
        return math.isnan(element)
    return element is None or (type(element) is int and element == 0)


def _is_bytes(chunk: Buffer) -> bool:
    """Whether its length is in bytes; filters may return elements."""
    kind = type(chunk)
    return kind is bytes or kind is bytearray or (kind is np.ndarray and chunk.dtype == np.uint8)


def _refusal(error: FormatError, array: Array) -> Step:
    """Raise what keeps a codec from being undone; in a file, not before a chunk needs that.

    libhdf5 leaves an optional filter out, chunk by chunk, if that fails: so it does with
    parameters that no filter can have, and with filters that it does not have itself.
    """
    if array.codec_words != "hdf5":
        raise error

    def refuse(_: Buffer) -> Buffer:
        raise error.with_traceback(None)

    return refuse
