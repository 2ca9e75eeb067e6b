"""What a reader says of a dataset, in a form in which readers can be compared.

A `Reading` holds all groups of a dataset: attributes, dimensions, and of every variable the
values, or why they could not be read. `differences` tells two of them apart.
"""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr

#: Keys of `encoding` that say nothing of the data, or that only ``engine="nczarr"`` has.
NOT_COMPARED = {"source", "compressor", "filters", "endian"}
#: Values as they are stored: `xarray.open_groups` passes `decode_cf=False` to no engine.
RAW: dict[str, Any] = {
    "mask_and_scale": False,
    "decode_times": False,
    "concat_characters": False,
    "decode_coords": False,
}
#: Attributes by which HDF5 and netCDF-4 note what is none.
RESERVED = {
    "CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS", "_NCProperties",
    "_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict",
}  # fmt: skip
#: Bytes of a variable above which only its corners are read.
LARGE = 64 << 20


class Failed(str):
    """Why values could not be read."""

    __slots__ = ()


@dataclass
class VariableReading:
    """What a reader says of one variable; None for what it does not tell."""

    values: Any
    dims: tuple[str, ...] | None = None
    dtype: Any = None
    attrs: dict[str, Any] | None = None
    encoding: dict[str, Any] | None = None
    shape: tuple[int, ...] = ()


@dataclass
class GroupReading:
    """What a reader says of one group."""

    attrs: dict[str, Any] | None = None
    encoding: dict[str, Any] | None = None
    variables: dict[str, VariableReading] = field(default_factory=dict)


#: Groups by path.
Reading = dict[str, GroupReading]


@dataclass(frozen=True)
class Difference:
    """One thing of which two readers say different things.

    Attributes
    ----------
    where : str
        Path of a group or variable.
    what : str
        ``"groups"``, ``"variables"``, ``"dims"``, ``"shape"``, ``"dtype"``, ``"attribute NAME"``,
        ``"attributes"`` (their names), ``"encoding KEY"``, ``"values"``, ``"order"``.
    ours, theirs : str
        What each says, cut short.
    """

    where: str
    what: str
    ours: str
    theirs: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: {self.ours} / {self.theirs}"


# -- reading ------------------------------------------------------------------------------------


def by_xarray(target: Any, engine: str, **options: Any) -> Reading:
    """All groups of a dataset as an engine of xarray reads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        groups = xr.open_groups(target, engine=engine, **options)
        try:
            return of_datasets(groups)
        finally:
            for dataset in groups.values():
                dataset.close()


def of_one(engine: str, target: Any) -> Reading:
    """The root group as an engine reads it that knows no others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with xr.open_dataset(target, engine=engine, **RAW) as dataset:
            return of_datasets({"/": dataset})


def of_datasets(groups: Mapping[str, xr.Dataset]) -> Reading:
    """Read all variables of open datasets."""
    return {
        path: GroupReading(
            dict(dataset.attrs),
            dict(dataset.encoding),
            {str(name): _of_variable(v) for name, v in dataset.variables.items()},
        )
        for path, dataset in groups.items()
    }


def _of_variable(variable: xr.Variable) -> VariableReading:
    dtype = variable.dtype  # of sequences it is another one once they are in memory
    try:
        chosen = corners(variable)  # xarray makes a scalar of no dimensions another type
        values: Any = (variable.isel(chosen) if chosen else variable).values
    except Exception as error:  # noqa: BLE001 - what it is, is compared
        values = Failed(f"{type(error).__name__}: {error}")
    return VariableReading(
        values,
        tuple(map(str, variable.dims)),
        dtype,
        dict(variable.attrs),
        dict(variable.encoding),
        variable.shape,
    )


def corners(variable: Any) -> dict[Any, Any]:
    """Which part of a variable to read: all of it, or the ends of each dimension."""
    itemsize = max(8, variable.dtype.itemsize)  # of float32 and float64, the same corners
    if math.prod(variable.shape) * itemsize <= LARGE:
        return {}
    count = max(1, int((LARGE / itemsize) ** (1 / variable.ndim) / 2))
    return {
        name: np.r_[0:count, length - count : length]
        for name, length in zip(variable.dims, variable.shape, strict=True)
        if length > 2 * count
    }


def by_h5py(target: Any, *, attributes: bool = False, **options: Any) -> Reading:
    """The datasets of an HDF5 file: shapes, types and values, in netCDF's types.

    Parameters
    ----------
    target
        A path or an open file.
    attributes
        Whether there are only attributes that netCDF has, and they are wanted.
    **options
        For h5py.
    """
    reading: Reading = {}
    with h5py.File(target, "r", **options) as file:
        _walk(file, "/", reading, [], attributes)
    return reading


def _walk(
    group: h5py.Group, path: str, reading: Reading, above: list[Any], attributes: bool
) -> None:
    reading[path] = GroupReading(_h5py_attributes(group) if attributes else None)
    for name in group:
        if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
            continue
        member = group.get(name)  # None if it leads nowhere
        if isinstance(member, h5py.Group):
            if member.id not in above:
                child = f"{path.rstrip('/')}/{name}"
                _walk(member, child, reading, [*above, group.id], attributes)
        elif isinstance(member, h5py.Dataset) and _is_variable(member):
            variable = _of_h5py(member)
            variable.attrs = _h5py_attributes(member) if attributes else None
            reading[path].variables[name.removeprefix("_nc4_non_coord_")] = variable


def _h5py_attributes(where: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    found = {}
    for name in where.attrs:
        if name not in RESERVED:
            try:
                type_ = where.attrs.get_id(name).dtype
                value = where.attrs[name]
            except (OSError, TypeError, ValueError):  # of a type that h5py has not
                continue
            if isinstance(value, h5py.Empty):  # without elements, as those of no length
                value = np.zeros(0, type_.newbyteorder("="))
            if _has_references(type_):
                value = repr(value)
            text = h5py.check_string_dtype(type_) is not None
            found[name] = _text(value) if text else value
    return found


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    return [_text(item) for item in value] if isinstance(value, np.ndarray) else value


def _has_references(dtype: np.dtype[Any]) -> bool:
    """Whether elements are, or hold, references, which mean nothing outside of their file."""
    if dtype.names is not None:
        return any(_has_references(dtype[name]) for name in dtype.names)
    base = h5py.check_vlen_dtype(dtype)
    if isinstance(base, np.dtype):
        return _has_references(base)
    return h5py.check_ref_dtype(dtype) is not None


def _is_variable(dataset: h5py.Dataset) -> bool:
    """Whether a dataset is a variable to netCDF, not a dimension only, and of a type it has."""
    name = dataset.attrs.get("NAME", b"")
    alone = isinstance(name, bytes) and name.startswith(
        b"This is a netCDF dimension but not a netCDF variable"
    )
    # an element may be an array or a reference
    return not alone and dataset.dtype.subdtype is None and not _has_references(dataset.dtype)


def _of_h5py(dataset: h5py.Dataset) -> VariableReading:
    try:
        base = _element(dataset.dtype)
        # h5py does not swap the bytes of sequences
        foreign = base is not None and not base.isnative
        if foreign or math.prod(dataset.shape or ()) * dataset.dtype.itemsize > LARGE:
            return VariableReading(None, shape=dataset.shape)
        values: Any = dataset[()]
        if base is not None and not dataset.shape:
            values = np.array([None])
            values[0] = dataset[()]
        values = netcdf_values(values, dataset.dtype).reshape(dataset.shape)
    except (OSError, UnicodeError) as error:
        values = Failed(f"{type(error).__name__}: {error}")
    return VariableReading(values, shape=dataset.shape or ())


def netcdf_values(
    values: Any, dtype: np.dtype[Any], *, inner: bool = False
) -> np.ndarray[Any, Any]:
    """Values of h5py in the types of netCDF: text is str, but for single characters.

    Parameters
    ----------
    values, dtype
        What h5py returned, and the dtype of the dataset.
    inner
        Whether they are part of others, in which text of a fixed length remains bytes.
    """
    base = _element(dtype)
    if base is not None:
        rows = np.empty(values.shape, object)
        for at in np.ndindex(values.shape):
            rows[at] = netcdf_values(values[at], base, inner=True)
        return rows
    array = np.asarray(values)
    text = h5py.check_string_dtype(dtype)
    if dtype.names is not None:
        array = array.copy()
        for name in dtype.names:
            field_ = dtype[name].base
            if h5py.check_string_dtype(field_) and field_.kind == "O":
                array[name] = netcdf_values(array[name], field_)
        return array
    if text is None:
        enum = h5py.check_enum_dtype(dtype)
        if dtype.kind == "b" or enum is not None:
            return array.astype("i1" if dtype.kind == "b" else dtype.newbyteorder("="))
        return array
    if text.length == 1 or (text.length and inner):
        return array.astype(f"S{text.length}")
    result = np.empty(array.shape, object)
    for at in np.ndindex(array.shape):
        found = _text(array[at])
        result[at] = found.split("\0")[0] if text.length else found
    return result


def _element(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The type of the elements of sequences; text is none."""
    if h5py.check_string_dtype(dtype) is not None:
        return None
    base = h5py.check_vlen_dtype(dtype)
    return None if base is None else np.dtype(base)


def by_zarr(target: Any, **options: Any) -> Reading:
    """The arrays of a Zarr tree as zarr-python reads them."""
    import zarr

    reading: Reading = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if Path(target).is_file():
            with zipfile.ZipFile(target) as archive:
                tops = {name.split("/")[0] for name in archive.namelist()}
            # netCDF-C puts everything into one directory
            options["path"] = tops.pop() if len(tops) == 1 else ""
            target = zarr.storage.ZipStore(target, mode="r")
        root = zarr.open_group(target, mode="r", **options)
        pending: list[tuple[str, Any]] = [("/", root)]
        while pending:
            path, group = pending.pop()
            reading[path] = GroupReading(dict(group.attrs))
            for name, member in group.members():
                if isinstance(member, zarr.Group):
                    pending.append((f"{path.rstrip('/')}/{name}", member))
                else:
                    reading[path].variables[name] = _of_zarr(member)
    return reading


def _of_zarr(array: Any) -> VariableReading:
    attrs = dict(array.attrs)
    names = attrs.pop("_ARRAY_DIMENSIONS", None)
    if array.metadata.zarr_format == 3:
        names = array.metadata.dimension_names
    dims = tuple(names) if names and None not in names else None
    try:
        large = math.prod(array.shape) * array.dtype.itemsize > LARGE
        values: Any = None if large else np.asarray(array[...]).astype(array.dtype, copy=False)
    except Exception as error:  # noqa: BLE001 - what it is, is compared
        values = Failed(f"{type(error).__name__}: {error}")
    return VariableReading(values, dims, attrs=attrs, shape=array.shape)


# -- comparing ----------------------------------------------------------------------------------


def differences(ours: Reading, theirs: Reading, *, exact: bool = True) -> Iterator[Difference]:
    """Tell apart what two readers say.

    Parameters
    ----------
    ours, theirs
        The readings; what `theirs` does not tell is not compared.
    exact
        Whether types of attributes and the order of names are compared.
    """
    if set(ours) != set(theirs):
        yield Difference("/", "groups", str(sorted(ours)), str(sorted(theirs)))
    for path in [path for path in theirs if path in ours]:
        mine, other = ours[path], theirs[path]
        if other.attrs is not None:
            yield from _attributes(path, mine.attrs or {}, other.attrs, exact)
        if other.encoding is not None:
            yield from _encoding(path, mine.encoding or {}, other.encoding)
        if set(mine.variables) != set(other.variables):
            yield Difference(path, "variables", *map(str, map(sorted, _apart(mine, other))))
        elif exact and list(mine.variables) != list(other.variables):
            yield Difference(path, "order", str(list(mine.variables)), str(list(other.variables)))
        for name, variable in other.variables.items():
            if name in mine.variables:
                full = f"{path.rstrip('/')}/{name}"
                yield from _variable(full, mine.variables[name], variable, exact)


def _apart(ours: GroupReading, theirs: GroupReading) -> tuple[set[str], set[str]]:
    both = ours.variables.keys() & theirs.variables.keys()
    return set(ours.variables) - both, set(theirs.variables) - both


def _variable(
    path: str, ours: VariableReading, theirs: VariableReading, exact: bool
) -> Iterator[Difference]:
    if theirs.dims is not None and ours.dims != theirs.dims:
        yield Difference(path, "dims", str(ours.dims), str(theirs.dims))
    if ours.shape != theirs.shape:
        yield Difference(path, "shape", str(ours.shape), str(theirs.shape))
    if theirs.dtype is not None and ours.dtype != theirs.dtype:
        yield Difference(path, "dtype", short(ours.dtype), short(theirs.dtype))
    if theirs.attrs is not None:
        yield from _attributes(path, ours.attrs or {}, theirs.attrs, exact)
    unreadable = isinstance(ours.values, Failed) and isinstance(theirs.values, Failed)
    if theirs.encoding is not None and not unreadable:
        yield from _encoding(path, ours.encoding or {}, theirs.encoding)
    one, other = ours.values, theirs.values
    if other is None:
        return
    if isinstance(one, Failed) or isinstance(other, Failed):
        if type(one) is not type(other):
            yield Difference(path, "values", short(one), short(other))
    elif not same(one, other):
        yield Difference(path, "values", *_where(one, other))


def _where(one: Any, other: Any) -> tuple[str, str]:
    """Show the first elements that differ, of two arrays of one shape."""
    if one.shape == other.shape and one.dtype == other.dtype:
        for at in np.ndindex(one.shape):
            if not same(one[at], other[at]):
                return f"{short(one[at])} at {at}", short(other[at])
    return short(one), short(other)


def _attributes(
    path: str, ours: dict[str, Any], theirs: dict[str, Any], exact: bool
) -> Iterator[Difference]:
    agree = list(ours) == list(theirs) if exact else set(ours) == set(theirs)
    if not agree:
        yield Difference(path, "attributes", str(list(ours)), str(list(theirs)))
    for name, value in theirs.items():
        if name in ours and not (same if exact else alike)(ours[name], value):
            yield Difference(path, f"attribute {name}", short(ours[name]), short(value))


def _encoding(path: str, ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[Difference]:
    # what "blosc" stands for xarray cannot write again; instead there is a word for h5netcdf
    ignored = NOT_COMPARED | (set() if "blosc" in ours else {"blosc", "compression_opts"})
    for key in sorted((set(ours) | set(theirs)) - ignored):
        one, other = ours.get(key, "(none)"), theirs.get(key, "(none)")
        metadata = [getattr(value, "metadata", None) for value in (one, other)]
        if not same(one, other) or (metadata[0] or {}) != (metadata[1] or {}):
            yield Difference(path, f"encoding {key}", short(one), short(other))


def fit(truth: Reading, ours: Reading) -> set[str]:
    """Make h5py's values as long as ours, where a dimension has grown; what is more is ours.

    Returns the variables of which netCDF-C says wrong values then: those that are shorter than a
    dimension which is not their first.
    """
    grown = set()
    for path, group in truth.items():
        for name, variable in group.variables.items():
            mine = ours[path].variables.get(name) if path in ours else None
            values = variable.values
            if mine is None or isinstance(mine.values, Failed):
                continue
            if len(variable.shape) == len(mine.shape):
                if variable.shape[1:] != mine.shape[1:]:
                    grown.add(f"{path.rstrip('/')}/{name}")
                variable.shape = tuple(map(max, variable.shape, mine.shape))
            if isinstance(values, Failed):  # libhdf5 fails on text that was never written
                variable.values = None
            if not isinstance(values, np.ndarray):
                continue
            variable.values = values = native(values)
            if values.dtype.names is not None and values.dtype.names == mine.values.dtype.names:
                variable.values = values = values.astype(mine.values.dtype)
            longer = values.ndim == mine.values.ndim and values.shape != mine.values.shape
            if longer and all(a <= b for a, b in zip(values.shape, mine.values.shape, strict=True)):
                padded = native(mine.values).copy()
                padded[tuple(map(slice, values.shape))] = values
                variable.values = padded
                variable.encoding = {}
    return grown


def as_objects(reading: Reading) -> Reading:
    """A reading with text as objects, as h5py has it."""
    return {
        path: replace(
            group,
            variables={
                name: variable
                if isinstance(variable.values, Failed)
                else replace(variable, values=native(variable.values))
                for name, variable in group.variables.items()
            },
        )
        for path, group in reading.items()
    }


def native(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Values in the byte order of the machine, text as objects."""
    if values.dtype.kind in "TU":
        return values.astype(object)
    if values.dtype.isnative or values.dtype.names is not None:
        return values
    return values.astype(values.dtype.newbyteorder("="))


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same in type and content; all NaN are one."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
            return False
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.dtype.kind == "O":
            pairs = zip(one.reshape(-1), other.reshape(-1), strict=True)
            return all(same(a, b) for a, b in pairs)
        if one.dtype.names is not None:
            return all(same(one[name], other[name]) for name in one.dtype.names)
        if one.dtype.kind in "fc":
            return bool(np.array_equal(one, other, equal_nan=True)) and bool(
                np.array_equal(np.signbit(one.real[one == one]), np.signbit(other.real[one == one]))  # noqa: PLR0124
            )
        return one.tobytes() == other.tobytes()
    if type(one) is not type(other):
        return False
    if isinstance(one, np.generic):
        return same(np.asarray(one), np.asarray(other))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def alike(one: Any, other: Any) -> bool:
    """Whether two values of attributes are the same but for their type: of JSON, say."""
    return same(_plain(one), _plain(other))


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        return items[0] if len(items) == 1 else items
    if isinstance(value, bool):
        return value
    return float(value) if isinstance(value, int) and abs(value) < 2**53 else value


def short(value: Any, length: int = 1000) -> str:
    """Show a value in one line."""
    if isinstance(value, np.ndarray):
        text = f"{value.dtype} {value.shape} {value.reshape(-1)[:8].tolist()}"
    else:
        text = value if isinstance(value, Failed) else repr(value)
    text = " ".join(str(text).split())
    return text if len(text) <= length else f"{text[: length - 1]}…"
