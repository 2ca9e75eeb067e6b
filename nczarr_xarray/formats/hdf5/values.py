"""Values of attributes, and text in variables, as netCDF4-python shows them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_xarray.formats.hdf5.binary import Frame
from nczarr_xarray.formats.hdf5.heaps import resolve_vlen
from nczarr_xarray.formats.hdf5.netcdf_types import TypeNames, value_type
from nczarr_xarray.formats.hdf5.objects import H5Attribute
from nczarr_xarray.formats.waves import caught, together
from nczarr_xarray.model import Attribute

#: Attributes by which HDF5 and netCDF-C keep structure; `_NCProperties` is told apart.
HIDDEN = frozenset(
    {
        "CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST", "_Netcdf4Coordinates",
        "_Netcdf4Dimid", "_nc3_strict", "_NCProperties", "_Format", "_IsNetcdf4",
        "_SuperblockVersion", "_ARRAY_DIMENSIONS", "_Codecs", "_nczarr_superblock",
        "_nczarr_group", "_nczarr_array", "_nczarr_attr",
    }
)  # fmt: skip


def in_heap(attribute: H5Attribute) -> bool:
    """Whether the elements of an attribute are in the global heap."""
    return attribute.type.kind == "vlen"


def count_of(attribute: H5Attribute) -> int:
    """Elements of an attribute, 0 for a null dataspace.

    Raises
    ------
    FormatError
        If its bytes are fewer than its shape demands.
    """
    shape = attribute.space.shape
    count = 0 if shape is None else math.prod(shape)
    if count * attribute.type.size > len(attribute.data):
        raise FormatError(
            attribute.name,
            f"has {len(attribute.data)} bytes for {count} elements of {attribute.type.size}",
        )
    return count


@dataclass(frozen=True, slots=True)
class Sequences:
    """Elements of variable length: their stored bytes, their number, bytes of what they are of."""

    data: bytes | memoryview
    count: int
    size: int = 1

    def cut(self, objects: list[memoryview], frame: Frame) -> list[memoryview]:
        """The elements, given the heap's objects, which may be longer than they."""
        step = frame.offset_size + 8
        lengths = np.ndarray(self.count, "<u4", bytes(self.data), strides=(step,)).tolist()
        for length, found in zip(lengths, objects, strict=True):
            if len(found) < length * self.size:
                reason = f"{len(found)} bytes in the heap, {length * self.size} are needed"
                raise frame.error("data of variable length", reason)
        return [found[: length * self.size] for length, found in zip(lengths, objects, strict=True)]


async def read_heap_values(
    frame: Frame, wanted: list[Sequences]
) -> list[list[memoryview] | FormatError]:
    """Elements of variable length of many attributes, all in one wave.

    Returns
    -------
    For each attribute its elements' bytes, or why they cannot be read.
    """
    size = frame.offset_size + 8
    parts = [bytes(one.data[: one.count * size]) for one in wanted]
    everything = await caught(
        resolve_vlen(frame, b"".join(parts), sum(one.count for one in wanted))
    )
    objects: list[list[memoryview] | NCZarrError] = []
    if isinstance(everything, list):
        at = 0
        for one in wanted:
            objects.append(everything[at : at + one.count])
            at += one.count
    else:  # whose fault it is comes out one by one
        alone = zip(parts, wanted, strict=True)
        objects += await together(
            caught(resolve_vlen(frame, part, one.count)) for part, one in alone
        )
    results: list[list[memoryview] | FormatError] = []
    for one, found in zip(wanted, objects, strict=True):
        try:
            if not isinstance(found, list):
                raise found
            results.append(one.cut(found, frame))
        except NCZarrError as error:
            results.append(FormatError(error.object, error.reason))
    return results


def decode_attribute(
    attribute: H5Attribute, heap: list[memoryview] | None, types: TypeNames
) -> Attribute | None:
    """An attribute as netCDF shows it; None if it has no type for it and shows nothing.

    Parameters
    ----------
    heap
        Its elements, if they are in the global heap.
    types
        Of the file. Values of an enum that is not among them are not shown.

    Raises
    ------
    FormatError
        If it is damaged, or has a form that netCDF does not know.
    """
    name, type_ = attribute.name, attribute.type
    count = count_of(attribute)
    data = attribute.data
    if type_.kind == "vlen":
        if not type_.text:
            return None
        assert heap is not None
        return Attribute(name, "string", tuple(lenient_text(bytes(text)) for text in heap))
    if type_.kind == "string":
        if attribute.space.shape in ((), None):
            return Attribute(name, "char", lenient_text(bytes(data[: count * type_.size]), "keep"))
        texts = (bytes(data[i * type_.size : (i + 1) * type_.size]) for i in range(count))
        return Attribute(name, "string", tuple(lenient_text(text) for text in texts))
    if type_.kind == "enum" and not types.knows(type_):
        return None
    value = value_type(type_)
    if value is None or value.nc_type is None or value.read != "plain":
        return None
    if len(attribute.space.shape or ()) > 1:
        reason = f"has {len(attribute.space.shape or ())} dimensions, netCDF knows one"
        raise FormatError(name, reason)
    numbers = np.frombuffer(data, value.stored, count)
    return Attribute(name, value.nc_type, numbers.astype(value.dtype.newbyteorder("=")))


def lenient_text(data: bytes, nul: str = "end") -> str:
    """Text of an attribute: bytes that are no UTF-8 are replaced, as netCDF4-python does.

    Parameters
    ----------
    nul
        "end": text ends at the first NUL. "keep": what follows NULs belongs to it.
    """
    if nul == "end":
        data = data.partition(b"\0")[0]
    return data.decode(errors="replace").replace("\0", "")


def strict_text(data: bytes, what: str) -> str:
    """Text of a variable, which ends at the first NUL.

    Raises
    ------
    FormatError
        If it is not UTF-8.
    """
    data = data.partition(b"\0")[0]
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FormatError(what, f"{data[:60]!r} is not UTF-8") from None


@dataclass(frozen=True, slots=True)
class FixedText:
    """`nczarr_xarray.model.Conversion` of strings of fixed size.

    Parameters
    ----------
    path
        Of the variable, for messages.
    """

    path: str

    async def __call__(self, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """``str`` of ``S<n>``."""
        return _texts([strict_text(text, self.path) for text in stored.ravel().tolist()], stored)


@dataclass(frozen=True, slots=True)
class HeapText:
    """`nczarr_xarray.model.Conversion` of variable-length strings.

    Parameters
    ----------
    path
        Of the variable, for messages.
    frame
        Of the file.
    """

    path: str
    frame: Frame

    async def __call__(self, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """``str`` of references to the global heap, all of whose parts are read in one wave."""
        data = stored.tobytes()
        found = await resolve_vlen(self.frame, data, stored.size)
        texts = Sequences(data, stored.size).cut(found, self.frame)
        return _texts([strict_text(bytes(text), self.path) for text in texts], stored)


def _texts(texts: list[str], stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values = np.empty(len(texts), dtype=object)
    values[:] = texts
    return values.reshape(stored.shape)
