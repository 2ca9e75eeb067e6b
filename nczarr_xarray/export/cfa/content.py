"""Small whole datasets, as the bytes of a netCDF file or as the objects of NCZarr."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.keystore import WritableStore
from nczarr_fsspec.local_files import temporary_file
from nczarr_xarray.backend.compat import VLEN_STRING, netcdf4_lock
from nczarr_xarray.export.chunk_writer import ChunkWriter
from nczarr_xarray.export.contents import Contents, Item
from nczarr_xarray.export.form.classic import (
    classic_attributes,
    classic_values,
    classic_variable,
    dimension_problems,
)
from nczarr_xarray.export.form.storage import StorageProperties
from nczarr_xarray.export.form.text import longest
from nczarr_xarray.export.netcdf_file import declare, new_file, put
from nczarr_xarray.export.options import FileKind
from nczarr_xarray.export.write_task import WRITER, put_all
from nczarr_xarray.formats.nczarr.emit import documents
from nczarr_xarray.formats.nczarr.spellings import Profile
from nczarr_xarray.model import (
    NC_DTYPES,
    Attribute,
    ChunkedArray,
    Dimension,
    Group,
    Variable,
    bytes_of,
)

#: Bytes of the data from which on a classic file needs 64-bit offsets, with room for the header.
_CLASSIC_BYTES = (1 << 31) - (1 << 24)


class Member(NamedTuple):
    """A variable and all its values.

    Parameters
    ----------
    variable
        With its `ChunkedArray`.
    values
        As they are stored; None for a scalar without a value.
    chunked
        Whether its chunks matter in a file without compression.
    """

    variable: Variable
    values: np.ndarray | None = None
    chunked: bool = False


def in_one_chunk(variable: Variable, values: np.ndarray) -> Member:
    """Return a variable with these values, as one chunk without codecs."""
    dtype = NC_DTYPES[str(variable.nc_type)]
    variable = replace(variable, dtype=dtype, array=whole(variable, values.shape, values))
    return Member(variable, values.astype(dtype, copy=False))


def whole(
    variable: Variable, shape: tuple[int, ...], texts: np.ndarray | None = None
) -> ChunkedArray:
    """Return an array of one chunk without codecs, with room for the longest of some texts."""
    dtype = NC_DTYPES[str(variable.nc_type)]
    if variable.nc_type == "string":
        found = [] if texts is None else texts.ravel().tolist()
        dtype = np.dtype(f"S{max((len(bytes_of(str(text))) for text in found), default=1) or 1}")
    chunks = tuple(max(1, size) for size in shape)
    return ChunkedArray(variable.path.strip("/"), shape, chunks, dtype)


@dataclass(slots=True)
class Content:
    """A dataset that is in memory.

    Attributes
    ----------
    dimensions
        Those that no variable may have; others are known from the variables.
    groups
        Attributes of groups below the root, by path; groups without any are known from the
        variables.
    """

    attributes: Mapping[str, Attribute]
    members: list[Member]
    dimensions: Iterable[Dimension] = ()
    groups: Mapping[str, Mapping[str, Attribute]] = field(default_factory=dict)

    def contents(self) -> Contents:
        """Return the dataset as a tree of groups."""
        found = Contents(Group(attributes=dict(self.attributes)))
        used = (d for member in self.members for d in member.variable.dimensions)
        for dimension in (*self.dimensions, *used):
            found.group(dimension.group).dimensions[dimension.name] = dimension
        for path, attributes in self.groups.items():
            found.group(path).attributes.update(attributes)
        for variable, *_ in self.members:
            found.group(variable.group).variables[variable.name] = variable
        return found

    def fitted(self) -> Content:
        """Return the dataset as a tree is to hold it, where texts have a length."""
        return replace(self, members=[_with_room(member) for member in self.members])

    def check_names(self, url: str) -> None:
        """Raise `ExportError` if a name is that of two variables or dimensions, as of a table."""
        sizes: dict[str, int] = {}
        used = (d for member in self.members for d in member.variable.dimensions)
        for dimension in (*self.dimensions, *used):
            if sizes.setdefault(dimension.path, dimension.size) != dimension.size:
                raise ExportError(
                    url,
                    f"would hold the dimension {dimension.path} with two lengths: give it another "
                    "name",
                )
        seen: set[str] = set()
        for path in (member.variable.path for member in self.members):
            if path in seen:
                raise ExportError(url, f"would hold {path} twice: give the variable another name")
            seen.add(path)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(0 if m.values is None else m.values.nbytes for m in self.members)


def file_bytes(content: Content, kind: FileKind, shown: str) -> bytes:
    """Return a dataset as a netCDF file; parameters and errors as of `write_file`."""
    with temporary_file() as path:
        write_file(path, content, kind, shown)
        return Path(path).read_bytes()


def write_file(path: str, content: Content, kind: FileKind, shown: str) -> None:
    """Write a dataset as a netCDF file.

    Not into memory, where netCDF-C 4.9 does not note the order in which things are made.

    Parameters
    ----------
    shown
        How messages name the file.

    Raises
    ------
    ImportError
        If netCDF4 is not installed.
    ExportError
        If netCDF has no such form.
    FormatError
        If classic netCDF cannot hold a value.
    StoreError
        If the file cannot be written.
    """
    model = "NETCDF4"
    if kind == "netCDF3":
        content = as_classic(content, shown)
        large = content.nbytes > _CLASSIC_BYTES
        model = "NETCDF3_64BIT_OFFSET" if large else "NETCDF3_CLASSIC"
    members = {member.variable.path: member for member in content.members}
    root = content.contents().root
    try:
        with netcdf4_lock(), new_file(path, model, shown) as file:
            for variable, made in declare(file, root, lambda v: _stored(members[v.path])):
                values = members[variable.path].values
                if values is not None and values.size:
                    put(made, variable, values)
    except (ValueError, TypeError) as error:
        raise ExportError(shown, f"cannot be written: {error}") from error


def as_classic(content: Content, shown: str) -> Content:
    """Return a dataset in the types of classic netCDF; errors as of `write_file`."""
    problems: list[str] = []
    groups = {m.variable.group for m in content.members} | {*content.groups}
    if groups - {"/"}:
        problems.append(f"{', '.join(sorted(groups - {'/'}))}: classic netCDF has no groups")
    attributes = classic_attributes("/", content.attributes, problems)
    members = []
    for member in content.members:
        variable = member.variable
        if variable.nc_type == "string":
            problems.append(f"{variable.path} is text, which classic netCDF lacks")
            continue
        try:
            held = classic_variable(variable)
        except ValueError as error:
            problems.append(f"{variable.path}: {error}")
            continue
        assert isinstance(held.array, ChunkedArray)
        held = replace(held, array=replace(held.array, dtype=held.dtype))
        values = member.values
        if values is not None:
            values = classic_values(values, variable, held)
        members.append(member._replace(variable=held, values=values))
    dimensions = [*content.dimensions]
    problems += dimension_problems([member.variable for member in members], dimensions)
    if problems:
        reason = "cannot be classic netCDF: write format='CFA4'"
        raise ExportError(shown, reason, problems)
    return Content(attributes, members, dimensions)


def _stored(member: Member) -> StorageProperties:
    variable, array = member.variable, member.variable.array
    assert isinstance(array, ChunkedArray)
    grows = any(d.unlimited or not d.size for d in variable.dimensions)
    plain = not array.codecs and not grows and not member.chunked
    return StorageProperties(array.dtype, array.chunk_shape, array.codecs, contiguous=plain)


def _with_room(member: Member) -> Member:
    variable, values = member.variable, member.values
    if variable.nc_type != "string" or values is None:
        return member
    array = variable.array
    assert isinstance(array, ChunkedArray)
    room = max(2, longest(values))  # with one byte it would be a char array in pure Zarr
    return member._replace(
        variable=replace(variable, array=replace(array, dtype=np.dtype(f"S{room}")))
    )


def write_tree(content: Content, store: WritableStore, profile: Profile) -> None:
    """Write a dataset as NCZarr, where nothing reads yet."""
    content = content.fitted()
    for item in items(content):
        assert isinstance(item.variable.array, ChunkedArray)
        if isinstance(item.source, xr.Variable) and item.source.size:
            writer = ChunkWriter(item.variable.array, store, skip_fill=True)
            writer.write(np.asarray(item.source.data), threads=1)
    put_all(store, documents(content.contents().root, profile, WRITER))


def items(content: Content) -> Iterator[Item]:
    """Yield the variables of a dataset that have values."""
    for variable, values, _ in content.members:
        if values is not None:
            names = [f"d{number}" for number in range(values.ndim)]
            data = values.astype(VLEN_STRING) if values.dtype.kind == "O" else values
            yield Item(variable, xr.Variable(names, data))
