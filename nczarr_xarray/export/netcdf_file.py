"""Writing our data model into a netCDF file, through the netCDF4 library."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError, StoreError
from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.export.form.storage import StorageProperties
from nczarr_xarray.formats.nczarr.values import stated_fill
from nczarr_xarray.model import (
    NC_DTYPES,
    Attribute,
    CodecConfig,
    Dimension,
    EnumType,
    Group,
    Variable,
    bytes_of,
    is_below,
    mapped,
)


def need_netcdf4(url: str) -> None:
    """Raise `ImportError` if netCDF4 is not installed."""
    try:
        import netCDF4  # noqa: F401
    except ImportError:
        raise ImportError(
            f"{url}: a netCDF file needs netCDF4: pip install 'nczarr-xarray[netcdf4]'"
        ) from None


@contextmanager
def new_file(path: str, model: str, url: str, mode: str = "x") -> Iterator[Any]:
    """Make a file of a format, by the word of netCDF4.

    Parameters
    ----------
    url
        How messages name the file.
    mode
        "r+" opens a file that was made here, to write more.

    Raises
    ------
    ImportError
        If netCDF4 is not installed.
    StoreError
        If the file cannot be written.
    """
    need_netcdf4(url)
    import netCDF4

    made = mode == "r+"
    try:
        with _named(path, mode) as (name, encoding):
            file = netCDF4.Dataset(name, mode, format=model, encoding=encoding)
        with file:
            made = True
            yield file
    except StoreError:
        raise
    except (OSError, RuntimeError) as error:  # netCDF4 raises both kinds
        raise refused(path, url, error, made=made) from error


@contextmanager
def _named(path: str, mode: str) -> Iterator[tuple[str, str]]:
    """Yield the name of a file for netCDF4, and how it is encoded; it need not be UTF-8.

    Where netCDF4 does not find a name in UTF-8, "r+" makes a new file.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        if mode != "r+":
            yield os.fsencode(path).decode("latin-1"), "latin-1"
            return
        with open(path, "r+b") as file:
            yield f"/dev/fd/{file.fileno()}", "utf-8"
    else:
        yield path, "utf-8"


def refused(path: str, url: str, error: BaseException, *, made: bool = True) -> StoreError:
    """Return the error for a file that a library could not write; parameters as of `new_file`."""
    reason = _refusal(path, made=made) or getattr(error, "strerror", None) or error
    return StoreError(url, f"cannot be written: {reason}")


def _refusal(path: str, *, made: bool) -> str | None:
    """Return why the system lets nobody write more of a file that could not be written.

    netCDF does not say so: on a full disk there is an "HDF error", or permission is denied.

    Parameters
    ----------
    made
        Whether the file was made here. One that was there before is another's, and not touched.
    """
    folder = os.path.dirname(path) or "."
    try:
        with open(path, "ab") if made else tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
    except OSError as error:
        return error.strerror
    return None


def declare(
    file: Any, root: Group, stored: Callable[[Variable], StorageProperties]
) -> list[tuple[Variable, Any]]:
    """Make all of a dataset but its values, before these, because classic files are moved for that.

    Parameters
    ----------
    stored
        Decides how a variable is stored.

    Returns
    -------
    Pairs of a variable, and the one of the file.

    Raises
    ------
    FormatError
        If a variable has a dimension of a group that it is not in.
    """
    made = []
    for group in root.walk():
        target = group_at(file, group.path)
        for enum in group.types.values():
            _enum_type(file, enum)
        for dimension in group.dimensions.values():
            # for netCDF, a dimension without elements is an unlimited one
            target.createDimension(dimension.name, None if dimension.unlimited else dimension.size)
        write_attributes(target, group)
        variables = group.variables.values()
        made += [(v, create_variable(file, v, stored(v))) for v in variables]
    return made


def put(made: Any, variable: Variable, values: np.ndarray, part: tuple[slice, ...] = ()) -> None:
    """Write values of a variable, as they are stored, into that of a file."""
    if variable.nc_type == "string":
        values = mapped(lambda text: text if isinstance(text, bytes) else bytes_of(text), values)
    if variable.enum is not None:
        # netCDF4 refuses values that are no members, as some fill values are; netCDF-C does not
        made.datatype.enum_dict |= {str(n): n for n in np.unique(values).tolist()}
    # `...` would be as long as a dimension that hides the one of the variable
    part = part or tuple(slice(0, size) for size in variable.shape)
    with _found_by_name(made.group(), variable):
        made[part or ...] = values if values.ndim else values[()]


@contextmanager
def _found_by_name(group: Any, variable: Variable) -> Iterator[None]:
    """Let netCDF4 find the dimensions of a variable, though others of their names hide them.

    It makes a variable of dimensions, and then looks for them by name from the group on.
    """
    seen = group.dimensions
    made = [(dim.name, _dimension(group, variable, dim)) for dim in variable.dimensions]
    before = {name: seen.get(name) for name, _ in made}
    for name in before:
        # parts are slices within bounds, so the largest of several does for all
        same = (dim for one, dim in made if one == name)
        seen[name] = max(same, key=lambda dim: (dim.isunlimited(), len(dim)))
    try:
        yield
    finally:
        for name, own in before.items():
            if own is None:
                del seen[name]
            else:
                seen[name] = own


def _dimension(group: Any, variable: Variable, dim: Dimension) -> Any:
    """Return the dimension of a file that a variable in `group` has."""
    if not is_below(variable.group, dim.group):
        reason = f"dimension {dim.path!r} is declared in none of the groups it is in"
        raise FormatError(variable.path, reason)
    for _ in range(_depth(variable.group) - _depth(dim.group)):
        group = group.parent
    return group.dimensions[dim.name]


def _depth(path: str) -> int:
    """Return how many groups are above that of a path."""
    return path.rstrip("/").count("/")


def group_at(file: Any, path: str) -> Any:
    """Return a group of a file, which is made if it is not there."""
    return file if path == "/" else file.createGroup(path)


def write_attributes(target: Any, owner: Group | Variable) -> None:
    """Write the attributes of a group or variable with their types.

    ``_FillValue`` of a variable is given when it is made.

    Raises
    ------
    FormatError
        If netCDF does not take the name of one: netCDF-4 reserves some.
    """
    for attribute in owner.attributes.values():
        if attribute.name == "_FillValue" and isinstance(owner, Variable):
            continue
        try:
            _write_attribute(target, attribute)
        except AttributeError as error:  # netCDF4 raises it for all that netCDF-C refuses here
            reason = f"netCDF does not take an attribute of the name {attribute.name!r}: {error}"
            raise FormatError(owner.path, reason) from error


def _write_attribute(target: Any, attribute: Attribute) -> None:
    if attribute.type == "string":
        texts = [bytes_of(text) for text in attribute.value]
        target.setncattr_string(attribute.name, texts[0] if len(texts) == 1 else texts)
    elif attribute.type == "char":
        target.setncattr(attribute.name, bytes_of(str(attribute.value)))
    else:
        target.setncattr(attribute.name, attribute.value)


def create_variable(file: Any, variable: Variable, stored: StorageProperties) -> Any:
    """Make a variable without its values, which are to be put as they are stored."""
    group = group_at(file, variable.group)
    dimensions = tuple(_dimension(group, variable, dim) for dim in variable.dimensions)
    text, netcdf4 = variable.nc_type == "string", file.data_model == "NETCDF4"
    fill = stated_fill(variable)
    options: dict[str, Any] = {}
    if netcdf4 and variable.shape and not text:
        options |= _filters(stored.codecs)
    if netcdf4 and variable.shape and not stored.contiguous:
        options["chunksizes"] = tuple(
            c if d.unlimited or d.size == 0 else min(c, d.size)
            for c, d in zip(stored.chunk_shape, variable.dimensions, strict=True)
        )
    if fill is not None:
        options["fill_value"] = bytes_of(fill) if variable.nc_type == "char" else fill
    elif netcdf4 and stored.unfilled and not text and variable.enum is None:
        options["fill_value"] = False  # or a reader takes the default one for missing
    big = netcdf4 and not text and stored.dtype.byteorder == ">"
    datatype: Any = str if text else (stored.dtype if big else stored.dtype.newbyteorder("="))
    if variable.enum is not None:
        datatype = _enum_type(file, variable.enum)
    made = group.createVariable(
        variable.name,
        datatype,
        dimensions,
        endian="big" if big else "native",
        **options,
    )
    write_attributes(made, variable)
    return _plain(made)


def existing_variable(file: Any, variable: Variable) -> Any:
    """Return a variable that a file has, whose values are to be put as they are stored."""
    return _plain(group_at(file, variable.group).variables[variable.name])


def _plain(made: Any) -> Any:
    made.set_auto_maskandscale(False)
    made.set_auto_chartostring(False)
    return made


def _enum_type(file: Any, enum: EnumType) -> Any:
    """Return an enum of the file; it is made, unless a variable of another group has it already."""
    group = group_at(file, enum.group)
    if enum.name not in group.enumtypes:
        group.createEnumType(NC_DTYPES[enum.nc_type], enum.name, dict(enum.members))
    return group.enumtypes[enum.name]


def _filters(codecs: Iterable[CodecConfig]) -> dict[str, Any]:
    """Return the options of `createVariable` for codecs; others are left out."""
    options: dict[str, Any] = {"shuffle": False}
    for config in codecs:
        row = codec(config["id"])
        said = row.options(config) if row.options else {}
        options |= {**said, "shuffle": options["shuffle"] or said.get("shuffle", False)}
    return options


def left_out(codecs: Iterable[CodecConfig]) -> list[str]:
    """Return the ids of netCDF's codecs that a file does not get, or another one instead.

    netCDF4-python shuffles for zlib only.
    """
    found, compressor = [], _filters(codecs).get("compression")
    for config in codecs:
        row = codec(config["id"])
        said = row.options(config) if row.options else {}
        own = row.netcdf.name if row.netcdf else None
        if said.get("compression", own) != own or (row.id == "shuffle" and compressor != "zlib"):
            found.append(row.id)
    return found
