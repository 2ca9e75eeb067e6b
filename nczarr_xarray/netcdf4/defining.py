"""What a dataset that is being written declares: dimensions, groups, variables, types."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.model import ChunkedArray, join
from nczarr_xarray.model import Group as StoredGroup
from nczarr_xarray.netcdf4.attributes import HasAttributes, rename
from nczarr_xarray.netcdf4.types import CompoundType, EnumType, VLType
from nczarr_xarray.netcdf4.variable import Dimension, Variable

if TYPE_CHECKING:
    from nczarr_xarray.netcdf4.open_file import OpenFile

_NO_TYPES = (
    "NCZarr has no user-defined types; netCDF files have: choose a name that ends in .nc, or "
    "format='NETCDF4'"
)


class Declares(HasAttributes):
    """The methods by which a group declares what is in it; a base of datasets and groups."""

    __slots__ = ()

    if TYPE_CHECKING:
        _file: OpenFile
        path: str
        dimensions: dict[str, Dimension]
        variables: dict[str, Variable]
        groups: dict[str, Any]
        enumtypes: dict[str, EnumType]

    def createDimension(self, dimname: str, size: int | None = None) -> Dimension:  # noqa: N802
        """Make a dimension and return it; without a size, or with 0, it can grow."""
        grow = not size and any(one.isunlimited() for one in self.dimensions.values())
        self._change("second dimension that grows" if grow else "char")
        _refuse_known(dimname, self.dimensions)
        made = self.dimensions[dimname] = Dimension(self, dimname, size)
        return made

    def createGroup(self, groupname: str) -> Any:  # noqa: N802
        """Make a group at a path, with those above it, and return it; one that is there stays."""
        self._change("group")
        group: Any = self
        for name in filter(None, posixpath.normpath(groupname).split("/")):
            if name not in group.groups:
                _refuse_known(name, group.variables)
                group.add_group(StoredGroup(join(group.path, name)))
            group = group.groups[name]
        return group

    def createVariable(  # noqa: N802
        self,
        varname: str,
        datatype: Any,
        dimensions: Any = (),
        compression: str | None = None,
        zlib: bool = False,
        complevel: int | None = 4,
        shuffle: bool = True,
        szip_coding: str = "nn",
        szip_pixels_per_block: int = 8,
        blosc_shuffle: int = 1,
        fletcher32: bool = False,
        contiguous: bool = False,
        chunksizes: Iterable[int] | None = None,
        endian: str = "native",
        least_significant_digit: int | None = None,
        significant_digits: int | None = None,
        quantize_mode: str = "BitGroom",
        fill_value: Any = None,
        chunk_cache: Any = None,
        *,
        subarray_shape: Any = None,
        max_subarray_size: int | str | None = None,
    ) -> Variable:
        """Make a variable at a path, with the groups above it, and return it.

        Parameters
        ----------
        varname
            Its name, or a path below this group.
        datatype
            A dtype or its code, or ``str``.
        dimensions
            `Dimension` objects, or names that this group or one above declares.
        fill_value
            ``_FillValue``; None for netCDF's default, False if elements need not be filled.
        compression, zlib, complevel, shuffle, szip_coding, szip_pixels_per_block, blosc_shuffle
            The compressor, its level and parameters.
        fletcher32, contiguous, chunksizes, endian
            The storage, as of netCDF4-python.
        least_significant_digit, significant_digits, quantize_mode
            What values are rounded to.
        chunk_cache
            What `Variable.get_var_chunk_cache` tells, no more.
        subarray_shape, max_subarray_size
            Of an aggregation: the lengths of fragments, as of `nczarr_xarray.to_cfa`, or the bytes
            of the largest one, in place of those that were given with the dataset.

        Raises
        ------
        NotImplementedError
            For user-defined types.
        RuntimeError
            If the name is in use.
        TypeError, ValueError
            If something that is asked for is impossible.
        """
        from nczarr_xarray.netcdf4.creating import new_variable, type_name, value_dtype

        self._change(type_name(value_dtype(datatype)))
        folder, name = posixpath.split(posixpath.normpath(varname))
        group: Any = self.createGroup(folder) if folder.strip("/") else self
        _refuse_known(name, {**group.variables, **group.groups})
        if isinstance(dimensions, (str, bytes, Dimension)):
            dimensions = (dimensions,)
        along = tuple(
            one if isinstance(one, Dimension) else nearest_dimension(group, one)
            for one in dimensions
        )
        compression = (compression or ("zlib" if zlib else None)) if complevel != 0 else None
        encoding = {
            "compression": compression,
            "complevel": complevel,
            "shuffle": compression == "zlib" and bool(shuffle),
            "blosc_shuffle": blosc_shuffle,
            "szip_coding": szip_coding,
            "szip_pixels_per_block": szip_pixels_per_block,
            "fletcher32": bool(fletcher32),
            "contiguous": bool(contiguous),
            "chunksizes": None if chunksizes is None else tuple(chunksizes),
            "endian": endian,
            "significant_digits": significant_digits,
            "quantize_mode": quantize_mode,
        }
        if fill_value is None and not self._file.fills:
            fill_value = False
        fragments = {
            "subarray_shape": subarray_shape,
            "max_object_size": max_subarray_size,
            "chunked": chunksizes is not None,
        }
        made = new_variable(group, name, datatype, along, fill_value, encoding, fragments)
        if least_significant_digit is not None:
            made.least_significant_digit = np.int64(least_significant_digit)
        made.set_var_chunk_cache(chunk_cache)
        group.variables[name] = made
        return made

    def renameDimension(self, oldname: str, newname: str) -> None:  # noqa: N802
        """Give a dimension of this group another name."""
        self._change()
        dimension = self.dimensions[oldname]
        _refuse_known(newname, self.dimensions)
        dimension._name = newname  # noqa: SLF001 - groups rename what they declare
        rename(self.dimensions, oldname, newname)

    def renameVariable(self, oldname: str, newname: str) -> None:  # noqa: N802
        """Give a variable of this group another name; its chunks are written anew."""
        self._change()
        variable = self.variables[oldname]
        _refuse_known(newname, {**self.variables, **self.groups})
        elements = variable._elements  # noqa: SLF001 - groups rename what they declare
        elements.rename(join(self.path, newname).strip("/"))  # type: ignore[attr-defined]
        variable._name = newname  # noqa: SLF001
        rename(self.variables, oldname, newname)

    def renameGroup(self, oldname: str, newname: str) -> None:  # noqa: N802
        """Raise `NotImplementedError`: all that is in a group has its name in its keys."""
        raise NotImplementedError(
            "groups of Zarr are not renamed: copy the dataset with nczarr copy, or make a new group"
        )

    def createCompoundType(self, datatype: Any, datatype_name: str) -> CompoundType:  # noqa: N802
        """Raise `NotImplementedError`: NCZarr has no structures."""
        raise NotImplementedError(_NO_TYPES)

    def createVLType(self, datatype: Any, datatype_name: str) -> VLType:  # noqa: N802
        """Raise `NotImplementedError`: NCZarr has no sequences."""
        raise NotImplementedError(_NO_TYPES)

    def createEnumType(  # noqa: N802
        self, datatype: Any, datatype_name: str, enum_dict: Mapping[str, int]
    ) -> EnumType:
        """Make a type of integers that have names, and return it.

        NCZarr keeps it with the variables of the type, as CF's flags.

        Raises
        ------
        KeyError
            If `datatype` is no type of integers.
        """
        self._change("enum")
        dtype = np.dtype(datatype)
        if dtype.kind not in "iu":
            raise KeyError(f"{datatype_name}: an enum needs integers, not {dtype}")
        made = self.enumtypes[datatype_name] = EnumType(dtype, datatype_name, enum_dict)
        made.group = self.path
        return made

    def has_blosc_filter(self) -> bool:
        """Tell whether variables can be compressed by blosc."""
        return _can_encode("blosc")

    def has_bzip2_filter(self) -> bool:
        """Tell whether variables can be compressed by bzip2."""
        return _can_encode("bz2")

    def has_szip_filter(self) -> bool:
        """Tell whether variables can be compressed by szip."""
        return _can_encode("szip")

    def has_zstd_filter(self) -> bool:
        """Tell whether variables can be compressed by zstd."""
        return _can_encode("zstd")

    def set_fill_on(self) -> None:
        """Have new variables read as fill values where nothing was written, as they do anyway."""
        self._file.fills = True

    def set_fill_off(self) -> None:
        """Have new variables without `fill_value` read as zeros where nothing was written."""
        self._file.fills = False


def nearest_dimension(group: Any, name: str | bytes) -> Any:
    """Return the dimension of a name that a group or one above declares; `ValueError` if none."""
    wanted = name.decode() if isinstance(name, bytes) else name
    while group is not None:
        if wanted in group.dimensions:
            return group.dimensions[wanted]
        group = group.parent
    raise ValueError(f"cannot find dimension {wanted} in this group or parent groups")


def _can_encode(name: str) -> bool:
    """Tell whether a codec can be applied with what is installed."""
    from nczarr_xarray.chunks.encoder import Encoder

    array = ChunkedArray("v", (4,), (4,), np.dtype("i4"), codecs=({"id": name},))
    try:
        Encoder(array).encode(np.arange(4, dtype="i4"))
    except (FormatError, ImportError):
        return False
    return True


def _refuse_known(name: str, members: Mapping[str, Any]) -> None:
    """Raise `RuntimeError` if a name is in use."""
    if name in members:
        raise RuntimeError(f"NetCDF: String match to name in use: {name!r}")
