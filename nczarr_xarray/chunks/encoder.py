"""Encoding one chunk: elements of any layout to the bytes that are stored.

An `Encoder` is made once per array and used for every chunk, from any thread:
the mirror image of `nczarr_xarray.chunks.decoder.Decoder`. Padding and byte
swapping are one copy, straight from where the values lie; a chunk that needs
neither goes to the codecs as it is.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.codecs import registry, shuffle
from nczarr_xarray.codecs.codec import Buffer, Step
from nczarr_xarray.codecs.filters import UNSAFE
from nczarr_xarray.model import ChunkedArray, CodecConfig, bytes_of

#: Kinds of elements that are one number each: reversing their bytes swaps the byte order.
_NUMBERS = "iufmM"


class Scratch(threading.local):
    """Blocks of memory that a thread uses again for one chunk after another, ``with`` this.

    The C library gives larger ones back to the system as soon as they are freed, and the system
    clears every page before it gives it out again: a tenth of the time of an export.

    Parameters
    ----------
    useful
        Whether memory may be used again: not if what is made in it is stored without a copy.
    """

    def __init__(self, *, useful: bool) -> None:
        self._useful = useful
        self._blocks: dict[str, np.ndarray] | None = None

    def __enter__(self) -> None:
        self._blocks = {} if self._useful else None

    def __exit__(self, *_: object) -> None:
        self._blocks = None

    def empty(self, use: str, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Return an array of any content, perhaps where this thread's last one of this `use` is."""
        if self._blocks is None:
            return np.empty(shape, dtype)
        size = math.prod(shape) * dtype.itemsize
        block = self._blocks.get(use)
        if block is None or block.size < size:
            block = self._blocks[use] = np.empty(size, np.uint8)
        return block[:size].view(dtype).reshape(shape)


class Encoder:
    """Encodes chunks of one array.

    Parameters
    ----------
    array
        Its codecs are applied from the first to the last.

    Attributes
    ----------
    nbytes : int
        Of one chunk before it is encoded.
    scratch : Scratch
        A thread that encodes many chunks does so ``with`` this.

    Raises
    ------
    FormatError
        If a codec is not known or cannot be used.
    """

    def __init__(self, array: ChunkedArray) -> None:
        dtype = array.dtype
        self._array = array
        # elements in "F" order are the transposed chunk in "C" order
        self._shape = array.chunk_shape[::-1] if array.order == "F" else array.chunk_shape
        self._text = dtype.kind == "S" and dtype.itemsize > 1
        self.nbytes = math.prod(array.chunk_shape) * dtype.itemsize
        if dtype.hasobject and not array.codecs:
            reason = f"dtype {dtype.str!r} needs an object codec in 'filters'"
            raise FormatError(array.described, reason)
        missing = array.missing  # which pads a chunk
        as_text = self._as_bytes(np.array(missing, object)) if self._text else missing
        self._fill = np.array(as_text, dtype=dtype)
        # compressors return bytes of their own; filters may return what they were given
        last = registry.codec(array.codecs[-1]["id"]) if array.codecs else None
        compressed = last is not None and last.compressor and last.encode is not None
        self.scratch = Scratch(useful=compressed and not dtype.hasobject)
        steps = [(config["id"], _step(config, array)) for config in array.codecs]
        self._shuffled_first = False
        if steps and steps[0][0] == "shuffle":
            first = shuffle.encode(array.codecs[0], array, self.scratch.empty)
            steps[0] = ("shuffle", lambda data: first(_plain(data)))
            size = shuffle.element_size(array.codecs[0], array)
            self._shuffled_first = size == dtype.itemsize
        self._steps = tuple(steps)

    def __reduce__(self) -> tuple[type[Encoder], tuple[ChunkedArray]]:
        return type(self), (self._array,)

    def encode(self, values: np.ndarray) -> memoryview:
        """Return the bytes to store for a chunk.

        Parameters
        ----------
        values
            What lies in this chunk, from its low corner on: of `chunk_shape`, or shorter at the
            high edges of the array (the rest is fill). Any strides and byte order, and any
            dtype that numpy casts to the array's; for NC_STRING (``S<n>``, n > 1) and object
            arrays, objects of ``str`` (None is an empty text).

        Returns
        -------
        memoryview
            Bytes, one-dimensional. They may be those of `values`: store them before these change.

        Raises
        ------
        FormatError
            If a text is longer than the dtype, or a codec cannot encode these values.
        """
        return self._encoded(self._gathered(self._elements(values)), self._steps)

    def _encoded(self, data: Buffer, steps: Sequence[tuple[str, Step]]) -> memoryview:
        for name, step in steps:
            try:
                data = step(data)
            except FormatError:
                raise
            except Exception as error:  # codec libraries raise whatever they like
                reason = f"codec {name!r:.80} cannot encode a chunk ({error})"
                raise FormatError(self._array.path, reason) from error
        return memoryview(_plain(data))

    def encode_run(
        self, values: np.ndarray, count: int, *, axis: int, skip_fill: bool
    ) -> Iterator[memoryview | None]:
        """Return the bytes of `count` whole chunks that lie side by side along one dimension.

        What is done to elements is done to those of all chunks at once: for small
        chunks that takes a fraction of the time, and threads wait less for each other.
        Within `scratch`, take all of them before this thread encodes anything else.

        Parameters
        ----------
        values
            As for `encode`, with `count` times the chunk's length along that dimension.
        axis
            Number of the dimension.
        skip_fill
            Whether chunks for which `is_fill` is true are None.
        """
        length = self._array.chunk_shape[axis]
        dtype = self._array.dtype
        if self._text or dtype.kind == "U" or dtype.hasobject or self._array.order == "F":
            for start in range(0, count * length, length):
                part = values[(*[slice(None)] * axis, slice(start, start + length))]
                skip = skip_fill and self.is_fill(part)
                yield None if skip else self.encode(part)
            return
        apart = values.reshape(*values.shape[:axis], count, length, *values.shape[axis + 1 :])
        apart = np.moveaxis(apart, axis, 0)
        if apart.dtype != dtype or not apart.flags.c_contiguous:
            apart = self._copied(apart)
        chunks = apart.reshape(count, -1)
        empty = _rows_equal(chunks, self._fill) if skip_fill else np.zeros(count, bool)
        data = chunks.view(np.uint8)
        steps = self._steps
        if self._shuffled_first:
            data = shuffle.shuffled(data, dtype.itemsize, self.scratch.empty)
            steps = steps[1:]
        # parts of a memoryview take a fraction of the time of rows of an array
        stored = data.reshape(-1).data
        for number, nothing in enumerate(empty.tolist()):
            row = stored[number * self.nbytes : (number + 1) * self.nbytes]
            yield None if nothing else self._encoded(row, steps)

    def as_stored(self, values: np.ndarray) -> np.ndarray:
        """Return `values` with the dtype of the array in native byte order, texts as bytes."""
        elements = np.asarray(values)
        if self._text:
            return self._as_bytes(elements)
        if self._array.dtype.kind == "U":
            self._check_length(elements)
        return elements.astype(self._array.dtype.newbyteorder("="), copy=False)

    def is_fill(self, values: np.ndarray) -> bool:
        """Tell whether all elements equal the array's fill, bit for bit.

        Without fill, whether all are what a missing chunk reads as: NaT in times, or zero bytes.

        Parameters
        ----------
        values
            As for `encode`.
        """
        # most chunks differ in the first element
        corner = (slice(1),) * values.ndim
        return self._equal_fill(values[corner]) and self._equal_fill(values)

    def _equal_fill(self, values: np.ndarray) -> bool:
        elements, dtype = self._elements(values), self._array.dtype
        if dtype.hasobject:
            return bool(np.all(elements == self._fill))
        if elements.dtype != dtype and not self._swapped(elements):
            elements = elements.astype(dtype)
        size = dtype.itemsize
        fill = np.frombuffer(self._fill.astype(elements.dtype).tobytes(), np.uint8)
        if size in (1, 2, 4, 8):  # as integers: no copy, and -0.0 and NaN are bits like others
            return bool(np.all(elements.view(f"u{size}") == fill.view(f"u{size}")))
        return bool(np.all(elements[..., None].view(np.uint8) == fill))

    def _elements(self, values: np.ndarray) -> np.ndarray:
        """Return `values` in the order of storage, texts as bytes."""
        elements = np.asarray(values)
        if self._text:
            elements = self._as_bytes(elements)
        elif self._array.dtype.kind == "U":
            self._check_length(elements)
        elif self._array.dtype.hasobject:
            elements = np.where(elements == np.array(None), "", elements)
        return elements.T if self._array.order == "F" else elements

    def _as_bytes(self, texts: np.ndarray) -> np.ndarray:
        path, size = self._array.path, self._array.dtype.itemsize
        encoded = []
        for text in texts.astype(object, copy=False).ravel():
            if not isinstance(text, (str, bytes, type(None))):
                raise FormatError(path, f"{text!r:.80} is not text")
            try:
                data = bytes_of(text) if isinstance(text, str) else text or b""
            except UnicodeEncodeError as error:  # half of a surrogate pair
                raise FormatError(path, f"text {text!r:.80} has no UTF-8 ({error})") from None
            if len(data) > size:
                reason = f"text {text!r:.80} has {len(data)} bytes, and {size} is the most here"
                raise FormatError(path, f"{reason}; set '_nczarr_maxstrlen' in its encoding")
            encoded.append(data)
        return np.array(encoded, dtype=self._array.dtype).reshape(texts.shape)

    def _check_length(self, texts: np.ndarray) -> None:
        """Raise `FormatError` for a text that numpy would cut off."""
        if texts.dtype.kind == "U" and texts.dtype.itemsize <= self._array.dtype.itemsize:
            return
        room = self._array.dtype.itemsize // 4
        for text in texts.ravel().tolist():
            if isinstance(text, (str, bytes)) and len(text) > room:
                reason = f"text {text!r:.80} has {len(text)} characters, and {room} is the most"
                raise FormatError(self._array.path, f"{reason} here")

    def _gathered(self, elements: np.ndarray) -> np.ndarray:
        """Return the whole chunk, flat; no copy if `elements` are that already."""
        dtype, shape = self._array.dtype, self._shape
        if elements.shape == shape and elements.dtype == dtype and elements.flags.c_contiguous:
            return elements.reshape(-1)
        if elements.shape == shape:
            return self._copied(elements).reshape(-1)
        chunk = np.full(shape, self._fill, dtype=dtype)
        chunk[tuple(map(slice, elements.shape))] = elements
        return chunk.reshape(-1)

    def _copied(self, elements: np.ndarray) -> np.ndarray:
        """Return the same in "C" order, with the dtype of the array."""
        copy = self.scratch.empty("elements", elements.shape, self._array.dtype)
        copy[...] = elements
        return copy

    def _swapped(self, elements: np.ndarray) -> bool:
        """Tell whether only the byte order of `elements` is another."""
        dtype = self._array.dtype
        return dtype.kind in _NUMBERS and elements.dtype == dtype.newbyteorder() != dtype


def _step(config: CodecConfig, array: ChunkedArray) -> Step:
    """Return how to apply one codec."""
    name = config["id"]
    row = registry.codec(name)
    try:
        if row.encode is not None and row.zarr:
            step = row.encode(config, array)
            return lambda data: step(_plain(data))
        return _of_numcodecs(config)
    except FormatError as error:
        raise type(error)(error.object or array.described, error.reason) from None
    except Exception as error:
        reason = f"codec {name!r:.80} cannot be used ({error})"
        raise FormatError(array.described, reason) from error


def _of_numcodecs(config: CodecConfig) -> Step:
    import numcodecs

    if config["id"] in UNSAFE:
        raise ValueError("reading it could run code")
    try:
        codec = numcodecs.get_codec(dict(config))
    except ValueError as error:
        raise ValueError(f"numcodecs: {error}") from None
    encode: Step = codec.encode
    return encode


def _plain(data: Buffer) -> Buffer:
    """Return arrays as flat bytes, everything else as it is."""
    if not isinstance(data, np.ndarray):
        return data
    if data.dtype.hasobject:
        raise ValueError("Python objects need an object codec, such as 'vlen-utf8', first")
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def _rows_equal(rows: np.ndarray, element: np.ndarray) -> np.ndarray:
    """Return which rows hold nothing but `element`, bit for bit."""
    size = rows.dtype.itemsize
    fill = np.frombuffer(element.astype(rows.dtype).tobytes(), np.uint8)
    bits = rows.view(np.uint8).reshape(len(rows), -1, size)
    same = np.all(bits[:, 0] == fill, axis=1)
    for row in np.flatnonzero(same).tolist():  # most rows differ in the first element
        same[row] = np.all(bits[row] == fill)
    found: np.ndarray = same
    return found
