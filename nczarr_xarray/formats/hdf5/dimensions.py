"""Dimensions of netCDF in HDF5: scales, the variables that use them, and unnamed dimensions.

netCDF-C 4.10.1 does this (read and observed): datasets of class DIMENSION_SCALE
are dimensions, their numbers are in ``_Netcdf4Dimid``. A variable's dimensions
are, in this order, those whose numbers its ``_Netcdf4Coordinates`` lists;
itself; the scales attached to it, if its first dimension has any; else any
dimension of its group that has the length, or a new one, ``phony_dim_<number>``.
Numbers run through the whole file, children before their parents.
Where the numbers contradict the extents, the attached scales count here.

netCDF-C refuses an attached scale in another branch, and a first dimension with
a scale followed by one without. Here the scale, or a phony dimension, is used. It crashes on a
scale without extent. Here that names the dimension of the first variable it is attached to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nczarr_xarray.formats.hdf5.attributes import H5Attribute, Sequences, read_heap_values
from nczarr_xarray.formats.hdf5.binary import Frame
from nczarr_xarray.formats.hdf5.datasets import H5Dataset
from nczarr_xarray.formats.hdf5.datatypes import Datatype
from nczarr_xarray.formats.hdf5.messages import Dataspace
from nczarr_xarray.model import Dimension, nearness

_WITHOUT_VARIABLE = b"This is a netCDF dimension but not a netCDF variable."
#: The type of a revised reference.
_OBJECT_REFERENCE = 2
#: Per dimension of a dataset the addresses of the scales attached to it.
Attached = list[list[int]]


@dataclass(slots=True, eq=False)
class Scale:
    """A dimension in the making.

    Parameters
    ----------
    group, name, unlimited
        See `nczarr_xarray.model.Dimension`.
    length
        Length of the scale itself. That of an unlimited dimension is `reach`.
    number
        netCDF's, of the dimension.
    address
        Address of the scale; None for a phony dimension.
    reach
        Length of the longest variable along it.
    """

    group: str
    name: str
    length: int
    unlimited: bool
    number: int
    address: int | None = None
    reach: int = 0

    def dimension(self) -> Dimension:
        """Return the dimension, once all its variables are known."""
        size = self.reach if self.unlimited else self.length
        return Dimension(self.name, size, self.unlimited, self.group)


class Dimensions:
    """The dimensions of a file.

    Attributes
    ----------
    groups : dict of lists
        By group path, in order.
    """

    def __init__(self) -> None:
        self.groups: dict[str, list[Scale]] = {}
        self._by_number: dict[int, list[Scale]] = {}
        self._by_address: dict[int, list[Scale]] = {}
        self._by_length: dict[tuple[str, int, bool], list[Scale]] = {}
        self._unsized: dict[int, tuple[str, str]] = {}
        self._next = 0

    def add(self, group: str, dataset: H5Dataset) -> None:
        """Note the dimension of a dataset that is a scale. Parents come before children."""
        shape, maxshape = dataset.space.shape, dataset.space.maxshape
        if shape is None and is_scale(dataset):
            self._unsized.setdefault(dataset.address, (group, dataset.name))
        if not shape or not is_scale(dataset):
            return
        assigned = _integers(dataset.attributes.get("_Netcdf4Dimid"))
        number = assigned[0] if assigned else self._next
        self._next = max(self._next, number + 1)
        unlimited = None in maxshape[:1] or not shape[0]  # as in netCDF-C
        self._note(Scale(group, dataset.name, shape[0], unlimited, number, dataset.address))

    def of(self, group: str, dataset: H5Dataset, attached: Attached | None) -> list[Scale]:
        """Return the dimensions of a variable. Children come before their parents.

        Parameters
        ----------
        attached
            The scales attached to it, if it is known that there are some.
        """
        shape = dataset.space.shape or ()
        listed = self._listed(group, dataset)
        scales = listed or []
        fits = all(s.unlimited or s.length == n for s, n in zip(scales, shape, strict=False))
        if len(scales) != len(shape) or not (fits or attached is None or [] in attached):
            own = self._own(group, dataset)
            if own is not None or attached is None or not attached[0]:
                attached = [[] for _ in shape]
            scales = [] if own is None else [own]
            for axis, addresses in enumerate(attached[len(scales) :], len(scales)):
                # as in netCDF-C, the last one counts
                scale = self._attached(group, addresses[-1], shape[axis]) if addresses else None
                lost = listed is None or bool(addresses)
                scales.append(scale or self._phony(group, dataset, axis, scales, lost))
        for scale, length in zip(scales, shape, strict=True):
            scale.reach = max(scale.reach, length)
        return scales

    def _attached(self, group: str, address: int, length: int) -> Scale | None:
        """Return the dimension of an attached scale; one without extent gets it here."""
        found = _nearest(group, self._by_address.get(address, ()))
        if address not in self._unsized:
            return found
        if found is None:
            found = Scale(*self._unsized[address], length, False, self._next, address)
            self._next += 1
            self._note(found)
        return found if found.length == length else None

    def _note(self, scale: Scale) -> None:
        self.groups.setdefault(scale.group, []).append(scale)
        if scale.address is not None:  # nothing in the file means a phony dimension
            self._by_number.setdefault(scale.number, []).append(scale)
            self._by_address.setdefault(scale.address, []).append(scale)
        same = (scale.group, scale.length, scale.unlimited)
        self._by_length.setdefault(same, []).append(scale)

    def _own(self, group: str, dataset: H5Dataset) -> Scale | None:
        """Return the dimension that a scale is: under each of its names, if links lead to it."""
        found = self._by_address.get(dataset.address, ()) if is_scale(dataset) else ()
        named = (s for s in found if (s.group, s.name) == (group, dataset.name))
        return next(named, None)

    def _listed(self, group: str, dataset: H5Dataset) -> list[Scale] | None:
        """Return the dimensions that ``_Netcdf4Coordinates`` lists, if all of them exist."""
        scales = []
        for number in _integers(dataset.attributes.get("_Netcdf4Coordinates")):
            scale = _nearest(group, self._by_number.get(number, ()))
            if scale is None:
                return None
            scales.append(scale)
        return scales

    def _phony(
        self, group: str, dataset: H5Dataset, axis: int, used: Sequence[Scale], lost: bool
    ) -> Scale:
        """Return an unnamed dimension; a new one if the present one is `lost`."""
        shape, maxshape = dataset.space.shape or (), dataset.space.maxshape
        unlimited = None in maxshape[axis : axis + 1]
        same = (group, shape[axis], unlimited)
        for scale in () if lost else self._by_length.get(same, ()):
            if scale not in used:
                return scale
        unlimited = unlimited or not shape[axis]
        scale = Scale(group, f"phony_dim_{self._next}", shape[axis], unlimited, self._next)
        self._next += 1
        self._note(scale)
        return scale


def _nearest(group: str, scales: Sequence[Scale]) -> Scale | None:
    """Return the scale of the group, else of the next group above, else of any other."""
    return min(scales, key=lambda scale: nearness(scale.group, group), default=None)


async def read_classes(frame: Frame, datasets: Iterable[H5Dataset]) -> None:
    """Read the ``CLASS`` of datasets where it is in the heap, as text of fixed size.

    netCDF-C reads this attribute from the heap, but no other one of scales (``NAME``).
    """
    found = []
    for dataset in datasets:
        attribute = dataset.attributes.get("CLASS")
        if attribute and attribute.type.text and attribute.space.shape in ((), (1,)):
            found.append((dataset, attribute))
    if not found:
        return
    wanted = [Sequences(attribute.data, 1) for _, attribute in found]
    texts = await read_heap_values(frame, wanted)
    for (dataset, attribute), text in zip(found, texts, strict=True):
        if isinstance(text, list):  # if it cannot be read, there is no class
            fixed = Datatype("string", max(1, len(text[0])))
            own = H5Attribute(attribute.name, fixed, Dataspace(()), text[0])
            dataset.attributes = {**dataset.attributes, attribute.name: own}


def is_scale(dataset: H5Dataset) -> bool:
    """Tell whether HDF5 calls the dataset a dimension scale."""
    class_ = dataset.attributes.get("CLASS")
    return class_ is not None and _text(class_) == b"DIMENSION_SCALE"


def is_variable(dataset: H5Dataset) -> bool:
    """Tell whether a dataset is a variable, not only a dimension."""
    name = dataset.attributes.get("NAME")
    return not (
        is_scale(dataset) and name is not None and _text(name).startswith(_WITHOUT_VARIABLE)
    )


class References:
    """Records which scale is attached to which dimension, by ``REFERENCE_LIST`` of the scales.

    ``REFERENCE_LIST`` is read with the headers, while the datasets' own
    ``DIMENSION_LIST`` is in the global heap. But it does not state the order of
    several scales of one dimension.
    """

    def __init__(self) -> None:
        self._scales: dict[tuple[int, int], list[int]] = {}

    def add(self, scale: H5Dataset, offset_size: int) -> None:
        """Note the ``REFERENCE_LIST`` of a scale."""
        attribute = scale.attributes.get("REFERENCE_LIST")
        if attribute is None or len(attribute.type.members) != 2:
            return
        dataset, axis = attribute.type.members
        if dataset.type.kind != "reference" or dataset.type.size != offset_size:
            return
        if axis.type.kind != "integer" or attribute.type.numpy is None:
            return
        count = len(attribute.data) // attribute.type.size
        rows = np.frombuffer(attribute.data, attribute.type.numpy, count)
        addresses = np.frombuffer(rows[dataset.name].tobytes(), f"<u{offset_size}")
        for address, number in zip(addresses.tolist(), rows[axis.name].tolist(), strict=True):
            self._scales.setdefault((address, number), []).append(scale.address)

    def attached(self, dataset: H5Dataset) -> Attached | None:
        """Return the scales of each dimension; None if ``DIMENSION_LIST`` must be read.

        That is so if it has several scales for a dimension, or not as many as were recorded.
        """
        lengths = list_lengths(dataset)
        attached = [self._scales.get((dataset.address, axis), []) for axis in range(len(lengths))]
        if max(lengths, default=0) > 1 or lengths != [len(scales) for scales in attached]:
            return None
        return attached


def reference_size(dataset: H5Dataset) -> int:
    """Return the number of bytes of a reference in ``DIMENSION_LIST``, which must exist."""
    base = dataset.attributes["DIMENSION_LIST"].type.base
    assert base is not None  # it is a list
    return base.size


def list_lengths(dataset: H5Dataset) -> list[int]:
    """Return how many scales ``DIMENSION_LIST`` has for each dimension; empty without that list."""
    attribute = dataset.attributes.get("DIMENSION_LIST")
    rank = len(dataset.space.shape or ())
    if attribute is None or attribute.type.kind != "vlen" or attribute.space.shape != (rank,):
        return []
    size = attribute.type.size
    if len(attribute.data) < rank * size:
        return []
    starts = range(0, rank * size, size)
    return [int.from_bytes(attribute.data[at : at + 4], "little") for at in starts]


def decode_list(elements: Sequence[memoryview | bytes], size: int, offset_size: int) -> Attached:
    """Return the addresses in a ``DIMENSION_LIST`` whose references take `size` bytes."""
    return [
        [
            _address(bytes(element[at : at + size]), offset_size)
            for at in range(0, len(element) - size + 1, size)
        ]
        for element in elements
    ]


def _address(reference: bytes, offset_size: int) -> int:
    """Return the address of an old or revised reference to an object; -1 for any other one.

    A revised reference (HDF5 1.12) begins with its type, flags, and the size of the address.
    """
    if len(reference) == offset_size:
        return int.from_bytes(reference, "little")
    kind, flags, width = reference[:3].ljust(3, b"\0")
    if kind != _OBJECT_REFERENCE or flags or not 0 < width <= offset_size:
        return -1
    return int.from_bytes(reference[3 : 3 + width], "little")


def _integers(attribute: H5Attribute | None) -> list[int]:
    """Return the values of an attribute of integers; [] for any other."""
    if attribute is None or attribute.type.kind != "integer" or attribute.type.numpy is None:
        return []
    dtype = attribute.type.numpy
    count = len(attribute.data) // dtype.itemsize
    values: list[int] = np.frombuffer(attribute.data, dtype, count).tolist()
    return values


def _text(attribute: H5Attribute) -> bytes:
    """Return the bytes of an attribute of fixed text; b"" for any other."""
    if attribute.type.kind != "string":
        return b""
    return bytes(attribute.data).partition(b"\0")[0]
