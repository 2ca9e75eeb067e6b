"""Values of attributes, as netCDF4-python shows them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.hdf5.binary import Frame
from nczarr_xarray.formats.hdf5.heaps import resolve_vlen
from nczarr_xarray.formats.hdf5.netcdf_types import TypeNames, bits_of, is_plain, value_type
from nczarr_xarray.formats.hdf5.objects import H5Attribute
from nczarr_xarray.formats.rounds import caught, together
from nczarr_xarray.model import Attribute, text_of

#: Attributes that hold structure of HDF5 and netCDF-C; `_NCProperties` is handled separately.
HIDDEN = frozenset(
    {
        "CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST", "_Netcdf4Coordinates",
        "_Netcdf4Dimid", "_nc3_strict", "_NCProperties", "_Format", "_IsNetcdf4",
        "_SuperblockVersion", "_ARRAY_DIMENSIONS", "_Codecs", "_nczarr_superblock",
        "_nczarr_group", "_nczarr_array", "_nczarr_attr",
    }
)  # fmt: skip


def count_of(attribute: H5Attribute) -> int:
    """Return the number of elements of an attribute, 0 for a null dataspace.

    Raises
    ------
    FormatError
        If it has fewer bytes than its shape needs.
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


async def read_heap_values(
    frame: Frame, wanted: list[Sequences]
) -> list[list[bytes] | FormatError]:
    """Return the elements of variable length of many attributes, all read in one round.

    Returns
    -------
    For each attribute its elements' bytes, or why they cannot be read.
    """
    groups = [
        [number for number, one in enumerate(wanted) if one.size == size]
        for size in {one.size for one in wanted}
    ]
    found = await together(_read_group(frame, [wanted[n] for n in group]) for group in groups)
    results: dict[int, list[bytes] | FormatError] = {}
    for group, values in zip(groups, found, strict=True):
        results.update(zip(group, values, strict=True))
    return [results[number] for number in range(len(wanted))]


async def _read_group(frame: Frame, wanted: list[Sequences]) -> list[list[bytes] | FormatError]:
    """Return the elements of variable length of attributes whose elements have one size."""
    parts = [bytes(one.data[: one.count * (frame.offset_size + 8)]) for one in wanted]
    size, count = wanted[0].size, sum(one.count for one in wanted)
    everything = await caught(resolve_vlen(frame, b"".join(parts), count, size))
    if isinstance(everything, list):
        elements = iter(everything)
        return [list(itertools.islice(elements, one.count)) for one in wanted]
    # one is damaged: read them one by one to find it
    found = await together(
        caught(resolve_vlen(frame, part, one.count, size))
        for part, one in zip(parts, wanted, strict=True)
    )
    return [one if isinstance(one, list) else FormatError(one.object, one.reason) for one in found]


def decode_attribute(
    attribute: H5Attribute, heap: list[bytes] | None, types: TypeNames
) -> Attribute | None:
    """Return an attribute as netCDF shows it; None if netCDF has no such type and hides it.

    Parameters
    ----------
    heap
        Its elements, if they are in the global heap.
    types
        Types of the file. Values of an enum that is not among them are not shown.

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
        return Attribute(name, "string", tuple(map(c_text, heap)))
    if type_.kind == "string":
        if attribute.space.shape in ((), None):
            return Attribute(name, "char", text_of(bytes(data[: count * type_.size])))
        texts = (bytes(data[i * type_.size : (i + 1) * type_.size]) for i in range(count))
        return Attribute(name, "string", tuple(map(c_text, texts)))
    if type_.kind in ("enum", "compound") and not types.knows(type_):
        return None
    value = value_type(type_)
    bits = None if is_plain(type_) or type_.kind != "integer" else bits_of(type_)
    if value is None or not (is_plain(type_) or bits):
        return None
    nc_type = "compound" if type_.kind == "compound" else value.nc_type
    if nc_type is None:
        return None
    numbers = np.frombuffer(data, value.stored, count)
    values = bits.values(numbers) if bits else numbers.astype(value.dtype.newbyteorder("="))
    if type_.kind == "compound":
        values = values.view(_with_strings(values.dtype))
    return Attribute(name, nc_type, values, types.enum(type_))


def _with_strings(dtype: np.dtype) -> np.dtype:
    """Return `dtype` with strings in place of arrays of characters, as netCDF4-python has them."""
    if dtype.fields is not None:
        fields = [dtype.fields[name] for name in dtype.names or ()]
        layout: Any = {
            "names": dtype.names,
            "formats": [_with_strings(field[0]) for field in fields],
            "offsets": [field[1] for field in fields],
            "itemsize": dtype.itemsize,
        }
        structure: np.dtype = np.dtype(layout)
        return structure
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        if base == np.dtype("S1"):
            return np.dtype((f"S{shape[-1]}", shape[:-1]))
        return np.dtype((_with_strings(base), shape))
    return dtype


def c_text(data: bytes) -> str:
    """Return text of type string, which ends at its first NUL."""
    return text_of(data.partition(b"\0")[0])
