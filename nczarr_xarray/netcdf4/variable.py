"""Dimensions and variables, as netCDF4-python has them."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import replace
from operator import attrgetter, getitem
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_xarray.codecs.quantize import QUANTIZE_ATTRIBUTES, round_decimals
from nczarr_xarray.codecs.registry import netcdf_filters
from nczarr_xarray.netcdf4.attributes import HasAttributes
from nczarr_xarray.netcdf4.indexing import Index, conforming, region, split
from nczarr_xarray.netcdf4.text import chartostring, stringtochar
from nczarr_xarray.netcdf4.types import CompoundType, EnumType, VLType, default_fillvals
from nczarr_xarray.netcdf4.values import Decoding, Switches, as_texts, is_same, packed

if TYPE_CHECKING:
    from nczarr_xarray.model import Attribute
    from nczarr_xarray.model import EnumType as StoredEnum
    from nczarr_xarray.netcdf4.dataset import Dataset


class Dimension:
    """A named length.

    Attributes
    ----------
    name : str
        Its name.
    size : int
        Its present length.
    """

    __slots__ = ("__weakref__", "_group", "_name", "_size", "_unlimited")

    def __init__(self, grp: Any, name: str, size: int | None = None) -> None:
        self._group = grp
        self._name = name
        self._unlimited = not size
        self._size = size or 0

    name = property(attrgetter("_name"))
    size = property(attrgetter("_size"))

    def group(self) -> Any:
        """Return the group that declares it."""
        return self._group

    def isunlimited(self) -> bool:
        """Tell whether it can grow."""
        return self._unlimited

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        kind = " (unlimited)" if self._unlimited else ""
        return f"{repr(type(self))!r}{kind}: name = {self._name!r}, size = {self._size}"


class Elements(ABC):
    """Where the stored elements of a variable are, and how they are stored.

    Parameters
    ----------
    array
        How they are stored; None for a scalar without any.
    """

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def filled(self) -> bool:
        """Whether elements that were not written read as a fill value."""
        return self.array is None or self.array.fill is not None

    @abstractmethod
    def read(self, key: tuple[Index, ...]) -> np.ndarray:
        """Return an orthogonal selection; dimensions that integers index are left out."""

    def write(self, key: tuple[Index, ...], data: np.ndarray) -> None:
        """Replace an orthogonal selection by data of its shape, in a dataset that is written."""
        raise NotImplementedError


class Variable(HasAttributes):
    """A variable: reads like an array, with masked and scaled values.

    Attributes
    ----------
    name : str
        The name, without the path of the group.
    dtype : numpy.dtype or type
        Of the stored elements; ``str`` for texts, of sequences that of their elements.
    datatype : numpy.dtype, CompoundType, VLType or EnumType
        The type as netCDF has it.
    dimensions : tuple of str
        The names of the dimensions.
    shape : tuple of int
        Their present lengths.
    mask, scale, always_mask, chartostring : bool
        What `set_auto_mask` and the like have set.
    """

    __slots__ = (
        "__weakref__",
        "_attributes",
        "_chunk_cache",
        "_decoding",
        "_dimensions",
        "_elements",
        "_enum",
        "_grp",
        "_name",
        "_ncstring_attrs",
        "_switches",
        "datatype",
        "dtype",
    )

    def __init__(
        self,
        grp: Dataset,
        name: str,
        datatype: Any,
        dimensions: tuple[Dimension, ...],
        attributes: dict[str, Attribute],
        elements: Elements,
        enum: StoredEnum | None = None,
    ) -> None:
        self._grp = grp
        self._name = name
        self._dimensions = dimensions
        self._attributes = attributes
        self._elements = elements
        self._enum = enum
        self._switches = Switches()
        self._ncstring_attrs = False
        self._decoding: Decoding | None = None
        self._chunk_cache = get_chunk_cache()
        self.datatype = datatype
        self.dtype = datatype if isinstance(datatype, np.dtype) else datatype.dtype

    name = property(attrgetter("_name"))

    @property
    def dimensions(self) -> tuple[str, ...]:
        return tuple(dimension.name for dimension in self._dimensions)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(dimension.size for dimension in self._dimensions)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._dimensions)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    mask = property(attrgetter("_switches.mask"))
    scale = property(attrgetter("_switches.scale"))
    always_mask = property(attrgetter("_switches.always_mask"))
    chartostring = property(attrgetter("_switches.chartostring"))

    def group(self) -> Dataset:
        """Return the group that it is in."""
        return self._grp

    def get_dims(self) -> tuple[Dimension, ...]:
        """Return its dimensions."""
        return self._dimensions

    # -- switches ---------------------------------------------------------------------------------

    def _switch(self, **changes: bool) -> None:
        self._switches = replace(self._switches, **changes)
        self._decoding = None

    def set_auto_maskandscale(self, maskandscale: bool) -> None:
        """Switch masking and scaling on or off."""
        self._switch(mask=bool(maskandscale), scale=bool(maskandscale))

    def set_auto_mask(self, mask: bool) -> None:
        """Switch on or off that missing and invalid values are masked."""
        self._switch(mask=bool(mask))

    def set_auto_scale(self, scale: bool) -> None:
        """Switch ``scale_factor``, ``add_offset`` and ``_Unsigned`` on or off."""
        self._switch(scale=bool(scale))

    def set_always_mask(self, always_mask: bool) -> None:
        """Switch on or off that arrays are masked arrays where nothing is masked, too."""
        self._switch(always_mask=bool(always_mask))

    def set_auto_chartostring(self, chartostring: bool) -> None:
        """Switch on or off that characters with ``_Encoding`` are texts."""
        self._switch(chartostring=bool(chartostring))

    def set_ncstring_attrs(self, ncstring_attrs: bool) -> None:
        """Switch on or off that attributes of one text are NC_STRING."""
        self._ncstring_attrs = bool(ncstring_attrs)

    def use_nc_get_vars(self, use_nc_get_vars: bool) -> None:
        """Do nothing: strided selections are read in one way here."""

    def set_collective(self, value: bool) -> None:
        """Raise `NotImplementedError`: there is no MPI here."""
        raise NotImplementedError("parallel access by MPI is not there: use dask, or threads")

    def get_var_chunk_cache(self) -> tuple[int, int, float]:
        """Return what was set; chunks to which reads come back are remembered by other rules."""
        return self._chunk_cache

    def set_var_chunk_cache(
        self, size: int | None = None, nelems: int | None = None, preemption: float | None = None
    ) -> None:
        """Note what `get_var_chunk_cache` returns."""
        self._chunk_cache = _cache_of(self._chunk_cache, size, nelems, preemption)

    # -- reading ----------------------------------------------------------------------------------

    def __getitem__(self, elem: Any) -> Any:
        shape = self.shape
        key = split(elem, shape or (1,))
        return self._decoded(self._elements.read(key if shape else ()), key)

    def _decoded(self, data: Any, key: tuple[Index, ...]) -> Any:
        """Return the values of elements that a key has selected."""
        if self._decoding is None:
            attributes = {name: self.getncattr(name) for name in self.ncattrs()}
            filled = self._elements.filled
            self._decoding = Decoding.of(attributes, self.datatype, self._switches, filled=filled)
        if data.ndim == 0:
            if self._dimensions or data.dtype.kind == "O":
                data = data[()]  # one element; of a scalar it stays an array
        elif isinstance(self.dtype, np.dtype) and not self.dtype.isnative and data.dtype != object:
            data = data.astype(self.dtype)
        values = self._decoding(data)
        if self._switches.chartostring:
            values = self._as_text(values, key)
        return values

    def _as_text(self, values: Any, key: tuple[Index, ...]) -> Any:
        """Return characters as texts, if an attribute says so and the last dimension is whole."""
        kind = self.datatype
        if isinstance(kind, CompoundType):
            return values.view(kind.dtype_view) if kind.dtype != kind.dtype_view else values
        if self.dtype != np.dtype("S1") or "_Encoding" not in self._attributes or not self.ndim:
            return values
        last, length = key[-1], self.shape[-1]
        if isinstance(last, slice):
            whole = len(range(*last.indices(length))) == length
        else:
            whole = np.array_equal(last, np.arange(length))
        if not whole or np.ndim(values) == 0:
            return values
        return chartostring(values, encoding=self.getncattr("_Encoding"))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self[...]
        return np.asarray(values if dtype is None else values.astype(dtype))

    def __len__(self) -> int:
        if not self._dimensions:
            raise TypeError("len() of unsized object")
        return len(self._dimensions[0])

    def getValue(self) -> Any:  # noqa: N802
        """Return the value of a scalar."""
        if self._dimensions:
            raise IndexError("to retrieve values from a non-scalar variable, use slicing")
        return self[...]

    @property
    def _data_array(self) -> Any:
        """The values as a lazy array of dask, which iris asks dataset-like objects for.

        Without dask, and for a scalar, the values themselves.
        """
        try:
            import dask.array as da
        except ImportError:
            return self[...]
        if not self.ndim:
            return self[...]
        chunks = self.chunking()
        given = chunks if isinstance(chunks, list) else "auto"
        one = self[(slice(0, 0),) * self.ndim]
        return da.from_array(_Sliced(self, one.dtype), chunks=given, asarray=False, meta=one)

    # -- writing ----------------------------------------------------------------------------------

    def __setitem__(self, elem: Any, data: Any) -> None:
        values = self._stored_form(data)
        scalar = not self._dimensions
        grows = tuple(dimension.isunlimited() for dimension in self._dimensions) or (False,)
        key, counts, ends = region(elem, self.shape or (1,), grows, values.shape)
        values = conforming(values, counts, key)
        if 0 in counts:
            return
        self._change()
        for dimension, end in zip(self._dimensions, ends, strict=False):
            if end > dimension.size:
                dimension._size = end  # noqa: SLF001 - growing is what writing does
        self._elements.write(() if scalar else key, values.reshape(()) if scalar else values)

    def _stored_form(self, data: Any) -> np.ndarray:
        """Return values as the elements to store: packed, without a mask, characters apart."""
        dtype = self.dtype
        attributes = {name: self.getncattr(name) for name in self.ncattrs()}
        if dtype is str:
            return as_texts(data)
        encoding = attributes.get("_Encoding")
        if dtype == np.dtype("S1") and encoding is not None and self._switches.chartostring:
            if isinstance(data, (str, bytes)):
                kind = "S" if encoding == "ascii" else "U"
                data = np.asarray(data, f"{kind}{self.shape[-1]}")
            data = np.asarray(data)
            if data.dtype.kind in "SU" and data.dtype.itemsize > 1:
                data = stringtochar(data, encoding=encoding, n_strlen=self.shape[-1])
        packing = self._switches.scale and not isinstance(self.datatype, EnumType)
        if not isinstance(data, (np.ndarray, np.generic)):
            scaled = packing and {"scale_factor", "add_offset"} & attributes.keys()
            data = np.array(data, np.float64 if scaled else dtype)
        if isinstance(self.datatype, EnumType):
            known = [*self.datatype.enum_dict.values()]
            if not np.all(np.isin(np.ma.filled(data), known)):
                raise ValueError("trying to assign illegal value to Enum variable")
        if "least_significant_digit" in attributes:
            digits = int(attributes["least_significant_digit"])
            exact = round_decimals(np.ma.getdata(data), digits, attributes.get("_FillValue"))
            data = np.ma.masked_array(exact, data.mask) if np.ma.isMaskedArray(data) else exact
        return packed(data, attributes, dtype, scaled=packing)

    def assignValue(self, val: Any) -> None:  # noqa: N802
        """Set the value of a scalar."""
        if self._dimensions:
            raise IndexError("to assign values to a non-scalar variable, use a slice")
        self[...] = val

    # -- storage ----------------------------------------------------------------------------------

    def get_fill_value(self) -> Any:
        """Return what elements read as that were not written; None if nothing is written there."""
        if not self._elements.filled:
            return None
        if "_FillValue" in self._attributes:
            return self.getncattr("_FillValue")
        if isinstance(self.datatype, np.dtype):
            return np.array(default_fillvals[self.dtype.str[1:]], self.dtype)
        return None

    def chunking(self) -> str | list[int] | None:
        """Return the lengths of chunks, ``"contiguous"``, or None for a classic file."""
        if not self._grp.data_model.startswith("NETCDF4"):
            return None
        array = self._elements.array
        return list(array.chunk_shape) if array is not None and array.is_chunked else "contiguous"

    def filters(self) -> dict[str, Any] | None:
        """Return how elements are compressed, by netCDF's words; None for a classic file."""
        if not self._grp.data_model.startswith("NETCDF4"):
            return None
        array = self._elements.array
        return netcdf_filters(() if array is None else array.codecs)

    def quantization(self) -> tuple[int, str] | None:
        """Return the digits, or bits, to which values were rounded, and how; None if not."""
        for mode, word in QUANTIZE_ATTRIBUTES.items():
            if word in self._attributes:
                return int(self.getncattr(word)), mode
        return None

    def endian(self) -> str:
        """Return the order of stored bytes: ``"little"``, ``"big"`` or ``"native"``."""
        dtype = self.dtype
        if not self._grp.data_model.startswith("NETCDF4") or not isinstance(dtype, np.dtype):
            return "native"
        if dtype.kind not in "iuf":
            return "native"
        return "big" if dtype.newbyteorder("=").str[0] != dtype.str[0] else "little"

    # -- the rest ---------------------------------------------------------------------------------

    def setncattr(self, name: str, value: Any) -> None:
        """Set an attribute.

        Raises
        ------
        AttributeError
            For ``_FillValue``, which is an argument of `Dataset.createVariable`.
        """
        if name == "_FillValue":
            raise AttributeError(
                "_FillValue attribute must be set when variable is created (using fill_value "
                "keyword to createVariable)"
            )
        super().setncattr(name, value)

    def _assigned(self, name: str, value: Any) -> Any:
        """Return marks and bounds of values in the type of the variable, if they fit."""
        bounds = ("valid_min", "valid_max", "valid_range", "missing_value")
        if name in bounds and isinstance(self.datatype, np.dtype):
            given = np.array(value)
            cast = given.astype(self.dtype)
            if is_same(given, cast):
                return cast
            warnings.warn(f"WARNING: {name} cannot be safely cast to variable dtype", stacklevel=3)
        return value

    @property
    def _classic(self) -> bool:  # type: ignore[override]
        return self._grp._classic  # noqa: SLF001 - a variable is a part of its group

    def _change(self, kind: str = "char") -> None:
        self._grp._change(kind)  # noqa: SLF001 - a variable is a part of its group
        self._decoding = None

    def __reduce__(self) -> Any:
        return getitem, (self._grp, self._name)

    def __repr__(self) -> str:
        kind = self.datatype
        word = {CompoundType: "compound", VLType: "vlen", EnumType: "enum"}.get(type(kind))
        along = ", ".join(self.dimensions)
        lines = [repr(type(self)), f"{word or self.dtype} {self._name}({along})"]
        lines += [f"    {name}: {self.getncattr(name)!s}" for name in self.ncattrs()]
        if word:
            lines.append(f"{word} data type: {self.dtype}")
        if self._grp.path != "/":
            lines.append(f"path = {self._grp.path}")
        grow = [dimension.name for dimension in self._dimensions if dimension.isunlimited()]
        lines.append(f"unlimited dimensions: {', '.join(grow)}")
        lines.append(f"current shape = {self.shape!r}")
        if not word:
            lines.append(self._filling())
        return "\n".join(lines)

    def _filling(self) -> str:
        if not self._elements.filled:
            return "filling off"
        if "_FillValue" in self._attributes:
            return "filling on"
        code = self.dtype.str[1:]
        used = "ignored" if code in ("u1", "i1") else "used"
        return f"filling on, default _FillValue of {default_fillvals[code]} {used}"


class _Sliced:
    """A variable with the shape and dtype that its values have, for dask."""

    def __init__(self, variable: Variable, dtype: np.dtype) -> None:
        self.variable = variable
        self.dtype = dtype
        self.shape = variable.shape
        self.ndim = variable.ndim

    def __getitem__(self, key: Any) -> Any:
        return self.variable[key]


def get_chunk_cache() -> tuple[int, int, float]:
    """Return what was set, or the default size, slots and preemption of netCDF-C's cache."""
    return _chunk_cache[0]


def set_chunk_cache(
    size: int | None = None, nelems: int | None = None, preemption: float | None = None
) -> None:
    """Note what `get_chunk_cache` returns; chunks are remembered by other rules."""
    _chunk_cache[0] = _cache_of(_chunk_cache[0], size, nelems, preemption)


_chunk_cache: list[tuple[int, int, float]] = [(16777216, 4133, 0.75)]


def _cache_of(known: tuple[int, int, float], *given: Any) -> Any:
    return tuple(old if new is None else new for old, new in zip(known, given, strict=True))
