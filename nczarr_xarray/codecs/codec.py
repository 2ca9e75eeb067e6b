"""What a codec is to the program: one row of `nczarr_xarray.codecs.registry`.

A row holds everything that anything here has to know of a codec: how to undo and apply it, what
its sizes are, and what Zarr, HDF5 and netCDF call it. Packages add rows of their own with the entry
point group ``nczarr_xarray.codecs`` (docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.model import Array, ChunkedArray, CodecConfig

Buffer: TypeAlias = Any
#: Takes stored bytes; returns decoded bytes (anything with the buffer protocol). Or the reverse.
Step: TypeAlias = Callable[[Buffer], Buffer]


class Size(NamedTuple):
    """How many bytes a step has to return, or may at most."""

    most: int
    exact: bool = True

    def check(self, size: int) -> None:
        """Raise `FormatError` if `size` is not what is expected."""
        if size > self.most:
            raise FormatError("", f"decodes to {size} bytes, not {self.most}")
        if self.exact and size < self.most:
            raise FormatError("", f"decodes to {size} bytes, not {self.most} (truncated?)")


#: What a compressor may return where nothing tells how much it has to, as with text.
UNKNOWN = Size(1 << 30, exact=False)


def bytewise(chunk: Buffer) -> Buffer:
    """Return the bytes of what a codec has returned, which may be an array of elements."""
    if isinstance(chunk, (bytes, bytearray)):
        return chunk
    if isinstance(chunk, np.ndarray):
        if chunk.dtype.hasobject:
            raise FormatError("", "decodes to Python objects, not numbers")
        return np.ascontiguousarray(chunk).reshape(-1).view(np.uint8)
    return memoryview(chunk).cast("B")


def packed(size: Size) -> Size:
    """Return what a compressor may have made of so many bytes: hardly more than they were."""
    return Size(size.most + size.most // 4 + 4096, exact=False)


class ChunkBound(NamedTuple):
    """How many bytes a chunk of an array may have.

    `nczarr_xarray.chunks.decoder` reckons that once for an array. It is passed down to all that
    fetch chunks; a store gets how many a key may have. Nothing else judges it.

    Attributes
    ----------
    stored
        As it is stored: no codec makes more of a chunk.
    decoded
        Of its elements.
    """

    stored: int
    decoded: int


#: Makes the step that undoes a codec whose result has to have a size; says what that step takes.
Decode: TypeAlias = Callable[[CodecConfig, Array, Size], tuple[Step, Size]]
#: Makes what undoes a codec into memory of exactly the right size. That returns False if it cannot,
#: as where the stored bytes do not state their size, or if they state another.
DecodeInto: TypeAlias = Callable[[CodecConfig, Size], Callable[[Buffer, memoryview], bool]]
#: Returns a codec as Zarr 3 calls it, with its settings there. It is told whether the bytes of the
#: elements are shuffled, which Zarr 3 has inside of blosc only.
AsZarr3: TypeAlias = Callable[[CodecConfig, bool], CodecConfig]
#: Makes the step that applies a codec to chunks of an array.
Encode: TypeAlias = Callable[[CodecConfig, ChunkedArray], Step]


def compressor(decode: Callable[[CodecConfig, Size], Step]) -> Decode:
    """Make a `Decode` for what compressors make, of a function that gives the step alone."""
    return lambda config, _, size: (decode(config, size), packed(size))


@dataclass(frozen=True, slots=True)
class HDF5Filter:
    """A codec as a filter of HDF5.

    Parameters
    ----------
    number
        As registered with The HDF Group.
    settings
        The settings of the codec from the filter's parameters; `IndexError` or `ValueError`
        if it cannot have these.
    decodes
        Whether the codec with these settings undoes the filter: then a chunk has the same bytes
        in Zarr, and can be moved there as it is stored. If not, libhdf5 undoes it.
    """

    number: int
    settings: Callable[[tuple[int, ...]], dict[str, Any]]
    decodes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyword:
    """A codec in the words of netCDF: netCDF4-python's, which are xarray's in ``encoding``.

    Parameters
    ----------
    name
        The key of `encoding` that turns it on, and a value of ``compression``.
    config
        The codec from the value of ``compression`` (or `name`), an `encoding`, and a level;
        None if the codec is no choice of ``compression``.
    told
        What `encoding` has under `name` for a codec.
    needs
        Settings without which netCDF-C refuses it in NCZarr.
    level
        The setting that ``complevel`` is; ``""`` if there is none.
    levels
        Those that are possible.
    shuffled
        Whether byte shuffling comes with it unless it is turned off, as in netCDF4-python.
    below, told_below
        The level that stands for one below 0, which netCDF has not: when it is written, and
        when it is told.
    also
        More values of ``compression`` that mean it.
    keys
        More keys of `encoding` that are about it.
    """

    name: str
    config: Callable[[str, Mapping[str, Any], int], CodecConfig] | None = None
    told: Callable[[CodecConfig], Any] = lambda _: True
    needs: tuple[str, ...] = ()
    level: str = ""
    levels: range = range(10)
    shuffled: bool = False
    below: int = 4
    told_below: int = 1
    also: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


def with_level(id_: str, name: str, levels: range, **more: Any) -> Keyword:
    """Return the `Keyword` of a compressor whose only setting is a level."""

    def config(_: str, __: Mapping[str, Any], level: int) -> CodecConfig:
        return {"id": id_, "level": checked("complevel", level, levels)}

    return Keyword(name=name, config=config, needs=("level",), level="level", levels=levels, **more)


def checked(name: str, value: int, possible: range) -> int:
    """Return `value`, if it is possible (`ValueError` if not)."""
    if value not in possible:
        raise ValueError(f"{name} {value} is not between {possible[0]} and {possible[-1]}")
    return value


class Frame(NamedTuple):
    """How several small chunks are undone together: see `nczarr_xarray.codecs.decompress`.

    Attributes
    ----------
    number
        Of the compressor in blosc's header.
    most
        Bytes of the largest chunks for which that takes less time.
    """

    number: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """A row of the table of codecs.

    Parameters
    ----------
    id
        What Zarr 2 calls it (numcodecs' ``codec_id``).
    decode, encode
        How to undo and to apply it; None: as numcodecs does.
    hdf5
        Its filter.
    netcdf
        Its words in netCDF; None if netCDF-C does not have it.
    options
        Arguments of netCDF4-python's ``createVariable`` that say the same, or what comes next to
        it there; None if nothing does.
    zarr
        Whether Zarr 2 has it. If not, it is one of HDF5 only.
    zarr3
        The codec of Zarr 3 that says the same, or what comes next to it there; None if nothing
        does.
    compressor
        Whether Zarr 2 counts it among compressors, not filters. What `encode` returns is then
        new, and none of the bytes that were given.
    lossless
        Whether it gives back the values that it was given, of any type.
    portable
        Whether every reader of Zarr 2 has it.
    needs_libhdf5
        Whether libhdf5 is used to decode, and to prepare that.
    frame
        How several of its chunks are undone together; None if they are not.
    decode_into
        How to undo it straight into a result; None if that cannot be.
    rate
        Decoded bytes per second of one processor, of large chunks (the table in docs/codecs.md):
        `doctor` predicts by it what reads take.
    """

    id: str
    decode: Decode | None = None
    encode: Encode | None = None
    hdf5: HDF5Filter | None = None
    netcdf: Keyword | None = None
    options: Callable[[CodecConfig], dict[str, Any]] | None = None
    zarr: bool = True
    zarr3: AsZarr3 | None = None
    compressor: bool = False
    lossless: bool = False
    portable: bool = False
    needs_libhdf5: bool = False
    frame: Frame | None = None
    decode_into: DecodeInto | None = None
    rate: float = 500e6
