"""Decoding chunks: bytes as stored to bytes of elements, by the fastest library for each codec.

A `Decoder` is made once per array and used for every chunk, from any thread.
Sizes are checked on the way: inflating stops at the chunk's size, and a chunk
that decodes to anything but its exact size is an error.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrWarning, caller_level, refuse_pointer
from nczarr_xarray.codecs.codec import UNKNOWN, Buffer, ChunkBound, Size, Step, bytewise
from nczarr_xarray.codecs.decompress import Together, together
from nczarr_xarray.codecs.registry import codec, need_libhdf5, step_of
from nczarr_xarray.codecs.shuffle import WIDEST, element_size
from nczarr_xarray.model import Array

#: Chunks up to this many bytes are put into the result several at a time: each by itself costs
#: more in calls of numpy than in copying.
SMALL = 1 << 16
#: The same of chunks with codecs: each call takes the interpreter's lock, and other threads wait
#: for that instead of decoding. (Of those above `SMALL`, only where most of them is wanted.)
_IN_ROWS = 1 << 18
#: Why chunks are longer than they should be.
LONGER = "netCDF-C stores them so if nc_def_var_chunking_ints is called, as by netCDF-Fortran"
#: Bytes that a stored chunk may have besides what its codecs can make of it.
_SLACK = 1 << 16


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
    array
        What it was made for.
    bound
        How many bytes a chunk may have; `nbytes` are those of a decoded one.
    is_plain
        Whether chunks are stored as the bytes of their elements.
    in_rows
        Whether chunks are small, and are scattered several at a time.
    planes
        Bytes of an element, if chunks are left shuffled, as planes of bytes; else 0.
    needs_libhdf5
        Whether it must not be used in the thread of an event loop.
    together
        Decodes several small chunks by one call, all codecs of them, to the rows of an array; None
        if nothing can. It returns None if one is damaged: `decode` tells which one.
    is_direct
        Whether `decode_into` may decode a chunk.
    """

    def __init__(self, array: Array, mask: int) -> None:
        self.array = array
        self._codecs = [config for i, config in enumerate(array.codecs) if not mask >> i & 1]
        self._count = math.prod(array.chunk_shape)
        self._objects = array.dtype.kind == "O"
        self.nbytes = self._count * array.dtype.itemsize
        self.is_plain = not self._codecs and array.dtype.isnative and not self._objects
        most = _IN_ROWS if self._codecs else SMALL
        self.in_rows = self.nbytes <= most and not self._objects and array.order == "C"
        self.needs_libhdf5 = need_libhdf5(self._codecs)
        self._steps, stored = self._plan()
        if array.longer > self.nbytes:
            # two compressors make of noise less than three times as much
            stored += 3 * (array.longer - self.nbytes)
        self.bound = ChunkBound(max(stored, array.most_of_object), self.nbytes)
        self.together = self._plan_together() if self.in_rows else None
        # The last step is mostly to unshuffle: bytes then go straight to where they belong in
        # the result, and only those that are wanted.
        self.planes = 0
        # (Swapping all bytes of an element is right for a single number only.)
        single = array.dtype.isnative or array.dtype.kind in "iufmM"
        if self._steps and self._codecs[0]["id"] == "shuffle" and single and not self._objects:
            size = element_size(self._codecs[0], array)
            if size == array.dtype.itemsize and 1 < size <= WIDEST:
                self._steps = self._steps[:-1]
                self.planes = size
        self._mask = mask
        self._longer: Decoder | None = None
        self._told = False
        self._into: Callable[[Buffer, memoryview], bool] | None = None
        make = codec(self._codecs[0]["id"]).decode_into if self._codecs else None
        if make is not None and array.dtype.isnative and not self._objects:
            self._into = make(self._codecs[0], Size(self.nbytes))
        self.is_direct = self._into is not None and not self.in_rows

    def _plan(self) -> tuple[tuple[Step, ...], int]:
        """Return how to undo the codecs, and the most bytes that these make of a chunk."""
        array = self.array
        if self._objects and not self._codecs:
            reason = "dtype '|O' needs an object codec in 'filters'"
            raise FormatError(array.described, reason)
        steps: list[Step] = []
        size = UNKNOWN if self._objects else Size(self.nbytes)
        stored = size.most + _SLACK
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
            longer = 0 if size.exact else stored * 3 // 2
            stored = longer if size == UNKNOWN else max(longer, size.most + _SLACK)
            steps.insert(0, step)
        return tuple(steps), stored

    def _plan_together(self) -> Together | None:
        shuffled = bool(self._codecs) and self._codecs[0]["id"] == "shuffle"
        width = element_size(self._codecs[0], self.array) if shuffled else 1
        compressed = self._codecs[shuffled:]
        frame = codec(compressed[0]["id"]).frame if compressed else None
        undo = None if frame is None else together(frame, width, self.nbytes)
        before = self._steps[: len(compressed) - 1]  # checksums
        if undo is None or not before:
            return undo

        def checked(data: Sequence[Buffer]) -> Sequence[Buffer] | None:
            try:
                return undo([bytewise(_undone(chunk, before)) for chunk in data])
            except Exception:  # noqa: BLE001  (codec libraries raise whatever they like)
                return None

        return checked

    def decode(self, data: Sequence[Buffer], name: Callable[[int], str]) -> list[Buffer]:
        """Decode chunks as `Scatter` takes them: without the last step, where that goes along.

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
                chunks = list(map(bytewise, chunks))
                if set(map(len, chunks)) == {self.nbytes}:
                    return chunks
            except Exception:  # noqa: BLE001, S110  (which one it is shows below)
                pass
        return [self._decode(chunk, partial(name, i)) for i, chunk in enumerate(data)]

    def decode_into(self, data: Buffer, room: memoryview) -> bool:
        """Decode a chunk to where all its bytes go; tell whether it was, else `decode` has to."""
        assert self._into is not None
        try:
            return self._into(_undone(data, self._steps[:-1]), room)
        except Exception:  # noqa: BLE001  (what is wrong with it, `decode` tells)
            return False

    def _decode(self, data: Buffer, name: Callable[[], str]) -> Buffer:
        """Decode one chunk: all elements in stored order (shuffled, if `planes`)."""
        try:
            return self._decoded(data, name)
        except FormatError:
            beginning = self.beginning(data)
            if beginning is None:
                raise
        if not self._told:
            self._told = True
            text = (
                f"{self.array.path}: chunks have {self.array.longer} bytes, of which the first "
                f"{self.nbytes} are read ({LONGER}); a copy by nczarr copy is without the rest"
            )
            warnings.warn(text, NCZarrWarning, stacklevel=caller_level())
        return beginning

    def beginning(self, data: Buffer) -> Buffer | None:
        """Return the beginning of a chunk that is as long as `Array.longer`; None if it is not."""
        longer = self._of_longer_chunks()
        if longer is None:
            return None
        try:
            whole = longer.decode([data], lambda _: "")[0]
        except FormatError:
            return None
        planes = np.frombuffer(whole, np.uint8).reshape(self.planes or 1, -1)
        return np.ascontiguousarray(planes[:, : self.nbytes // len(planes)]).reshape(-1)

    def _of_longer_chunks(self) -> Decoder | None:
        """Return what decodes chunks of `Array.longer` bytes; made when the first one comes."""
        array = self.array
        if self._longer is None and array.longer > self.nbytes:
            shape = (array.longer // array.dtype.itemsize,)
            whole: dict[str, Any] = {"shape": shape, "chunk_shape": shape}
            self._longer = Decoder(replace(array, **whole), self._mask)
        return self._longer

    def _decoded(self, data: Buffer, name: Callable[[], str]) -> Buffer:
        try:
            undone = _undone(data, self._steps)
            if self._objects:
                return self._objects_of(undone)
            elements = bytewise(undone)
            if len(elements) != self.nbytes:
                Size(self.nbytes).check(len(elements))
            return elements
        except FormatError as error:
            refuse_pointer(name(), data)
            raise type(error)(name(), error.reason) from None
        except MemoryError:
            raise FormatError(name(), f"a chunk of {self.nbytes} bytes does not fit") from None
        except Exception as error:  # codec libraries raise whatever they like
            refuse_pointer(name(), data)
            raise FormatError(name(), f"the chunk cannot be decoded ({error})") from error

    def _objects_of(self, data: Buffer) -> np.ndarray:
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


def _undone(data: Buffer, steps: Sequence[Step]) -> Buffer:
    for step in steps:
        data = step(data)
    return data


def _is_absent(element: Any) -> bool:
    """Tell whether an object is what stands where no text was put: None, NaN, or zarr's default, 0.

    zarr-python 2 completes the chunks at the edges with that.
    """
    if isinstance(element, float):
        return math.isnan(element)
    return element is None or (type(element) is int and element == 0)


def _refusal(error: FormatError, array: Array) -> Step:
    """Raise why a codec cannot be undone; of HDF5, return what raises that for each chunk.

    HDF5 may store chunks without an optional filter: libhdf5 does so where the filter has
    impossible parameters, or is not installed. Such chunks can be read.
    """
    if array.codec_words != "hdf5":
        raise error

    def refuse(_: Buffer) -> Buffer:
        raise error.with_traceback(None)

    return refuse
