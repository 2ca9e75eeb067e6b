"""A hierarchy as the keys of a pure Zarr 2 tree, without reading anything: documents and arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_fsspec.forks import cached_property
from nczarr_fsspec.keystore import ZARR_METADATA, chunk_number, is_safe_name
from nczarr_xarray.chunks.encoder import Encoder
from nczarr_xarray.chunks.scatter import same_fill
from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.dataset.dataset import attribute_value, dimension_names, shown_name
from nczarr_xarray.formats.nczarr.emit import array_documents, group_documents
from nczarr_xarray.formats.nczarr.jsontext import dumps
from nczarr_xarray.formats.nczarr.spellings import VIRTUAL
from nczarr_xarray.formats.nczarr.values import shown_fill
from nczarr_xarray.formats.nczarr.zarray import packed
from nczarr_xarray.model import (
    Array,
    Attribute,
    ChunkedArray,
    ChunkIndex,
    ChunkTable,
    CodecConfig,
    Group,
    Hierarchy,
    Variable,
    box_of,
    grid_of,
    position_of,
    readable,
)


class Tree:
    """The keys of a view, its documents, and the arrays that have the chunks.

    Parameters
    ----------
    hierarchy
        Variables and groups that Zarr cannot have are left out.
    scattered
        See `view_of`.

    Attributes
    ----------
    problems : list of NCZarrError
        What was left out, and why.
    """

    def __init__(self, hierarchy: Hierarchy, *, scattered: bool) -> None:
        self.problems: list[NCZarrError] = []
        #: by path, without outer slashes
        self.groups: dict[str, Group] = {}
        self.arrays: dict[str, ArrayView] = {}
        self._members: dict[str, list[str]] = {}
        #: what the variables of a group call dimensions, by path of the group
        self._names: dict[str, dict[str, str]] = {}
        self._documents: dict[str, bytes] = {}
        self._consolidated: bytes | None = None
        pending = [("", hierarchy.root)]
        while pending:
            path, group = pending.pop()
            self.groups[path] = group
            members = self._members[path] = []
            for variable in group.variables.values():
                if (view := self._view(variable, scattered)) is not None:
                    members.append(variable.name)
                    self.arrays[variable.path.strip("/")] = view
            for name, below in group.groups.items():
                if self._fits(below.path, name) and name not in group.variables:
                    members.append(name)
                    pending.append((below.path.strip("/"), below))

    def leave_out(self, path: str) -> None:
        """Leave out the array at a path."""
        del self.arrays[path]
        group, _, name = path.rpartition("/")
        self._members[group].remove(name)
        for file in (".zarray", ".zattrs"):
            self._documents.pop(f"{path}/{file}", None)
        self._consolidated = None

    def document(self, key: str) -> bytes | None:
        """Return a metadata object; None if there is none of this name."""
        if key == ".zmetadata":
            if self._consolidated is None:
                self._consolidated = _consolidated(self.documents())
            return self._consolidated
        if key not in self._documents:
            path, _, name = key.rpartition("/")
            if name not in ZARR_METADATA:
                return None
            if path in self.arrays:
                self._documents |= self._array_documents(path)
            elif path in self.groups:
                attributes = in_json(self.groups[path].attributes)
                group = replace(self.groups[path], attributes=attributes)
                self._documents |= group_documents(group, VIRTUAL, None)
        return self._documents.get(key)

    def documents(self) -> Mapping[str, bytes]:
        """Return all metadata objects by key, without the consolidated one."""
        for path in (*self.groups, *self.arrays):
            self.document(f"{path}/.zattrs".lstrip("/"))
        return self._documents

    def find(self, key: str) -> bytes | tuple[ArrayView, int] | None:
        """Return a metadata object, or array and number of the chunk that `key` may name."""
        document = self.document(key)
        if document is not None:
            return document
        path, _, name = key.rpartition("/")
        view = self.arrays.get(path)
        number = None if view is None else view.number(name)
        return None if view is None or number is None else (view, number)

    def members(self, path: str) -> list[str]:
        """Return the names below a group or an array (without chunks); empty if there is none."""
        if path in self.arrays:
            return [".zarray", ".zattrs"]
        if path in self.groups:
            root = [] if path else [".zmetadata"]
            return [".zattrs", ".zgroup", *root, *self._members[path]]
        return []

    def _view(self, variable: Variable, scattered: bool) -> ArrayView | None:
        if not self._fits(variable.path, variable.name):
            return None
        try:
            return view_of(variable, scattered=scattered)
        except NCZarrError as error:
            self.problems.append(error)
            return None

    def _fits(self, path: str, name: str) -> bool:
        # zarr-python turns a backslash into a slash
        fits = is_safe_name(name) and name not in ZARR_METADATA and "\\" not in name
        fits = fits and readable(name) == name
        if not fits:
            self.problems.append(FormatError(path, f"{name!r} cannot be a name in Zarr"))
        return fits

    def _array_documents(self, path: str) -> dict[str, bytes]:
        view = self.arrays[path]
        variable = view.variable
        group = self.groups[variable.group.strip("/")]
        names = self._names.get(group.path)
        if names is None:
            names = self._names[group.path] = dimension_names(group.path, group.variables.values())
        dimensions = tuple(names[dimension.path] for dimension in variable.dimensions)
        shown = renamed(view, dimensions)
        shown.attributes = in_json(variable.attributes)
        shown.enum = None  # netCDF4-python does not show the names, either
        return array_documents(shown, VIRTUAL)


def in_json(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Return the attributes that JSON has a form for: all but structures."""
    found = map(_shown, attributes.values())
    return {attribute.name: attribute for attribute in found if attribute.type != "compound"}


def _shown(attribute: Attribute) -> Attribute:
    """Return an attribute for readers of JSON, with the text of `attribute_value`."""
    value = attribute.value
    if isinstance(value, str):
        value = attribute_value(attribute)
    elif isinstance(value, tuple):
        value = tuple(map(readable, value))
    return Attribute(shown_name(attribute.name), attribute.type, value, json=attribute.json)


def _consolidated(documents: Mapping[str, bytes]) -> bytes:
    """Return ``.zmetadata``, made of the texts of the documents."""
    members = b",\n".join(dumps(key).encode() + b": " + documents[key] for key in sorted(documents))
    return b'{"metadata": {\n' + members + b'\n}, "zarr_consolidated_format": 1}'


# -- arrays ------------------------------------------------------------------------------------
# Variables of files as Zarr arrays: their ``.zarray``, and the locations of their chunks.


_TEXT = ({"id": "vlen-utf8"},)
#: Bytes that a text is assumed to have, to choose the number of texts in a chunk.
_TEXT_BYTES = 64
#: The codec of quantizing filters, which undoes nothing.
_QUANTIZED = "hdf5-identity"
#: Bytes of a variable that may be one chunk even if it is scattered in the file.
SMALL = 1 << 16
#: Chunks that are located together.
WINDOW = 1 << 20
#: Chunks of a grid that are looked for, at most; many of them may not exist.
MOST_CHUNKS = 1 << 26


class ArrayView:
    """A variable as a Zarr array.

    Parameters
    ----------
    variable
        The variable.
    array
        As what it is shown, `codecs` and `fill` included.
    index
        Where its chunks are. What it says of a chunk is about the bytes of the file; a `mask`
        that is not zero means that these are not what is shown: then the values have to be
        read and encoded.
    hides_fill
        Whether chunks that do not exist are shown nevertheless, because `array.fill` is not
        what their elements read as.
    """

    def __init__(
        self, variable: Variable, array: ChunkedArray, index: ChunkIndex, *, hides_fill: bool
    ) -> None:
        self.variable = variable
        self.array = array
        self.index = index
        self.hides_fill = hides_fill
        self.grid = grid_of(array.shape, array.chunk_shape)
        self.count = math.prod(self.grid)

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder for chunks of values."""
        return Encoder(self.array)

    async def locate(self, ids: np.ndarray) -> ChunkTable:
        """Find chunks (numbers in C order, ascending); awaits reads of metadata only."""
        table = await self.index.locate(ids)
        missing = table.start < 0
        if self.hides_fill and missing.any():
            return table._replace(
                start=np.where(missing, 0, table.start),
                mask=np.where(missing, np.uint32(1), table.mask),
            )
        return table

    async def existing(self) -> tuple[np.ndarray, ChunkTable]:
        """Return the chunks that exist: their numbers and locations.

        Raises
        ------
        FormatError
            If the grid has too many chunks to look for them all.
        """
        if self.count > MOST_CHUNKS:
            raise FormatError(
                self.variable.path,
                f"has a grid of {self.count} chunks; {MOST_CHUNKS} are the most that are listed",
            )
        numbers, tables = [np.zeros(0, np.int64)], [_table(0)]
        for start in range(0, self.count, WINDOW):
            ids = np.arange(start, min(start + WINDOW, self.count), dtype=np.int64)
            table = await self.index.locate(ids)
            there = table.start >= 0
            numbers.append(ids[there])
            tables.append(table.of(there))
        columns = zip(*(table[:3] for table in tables), strict=True)
        return np.concatenate(numbers), ChunkTable(*map(np.concatenate, columns))

    def name(self, number: int) -> str:
        """Return the last segment of the key of a chunk."""
        return ".".join(map(str, position_of(number, self.grid))) or "0"

    def number(self, name: str) -> int | None:
        """Return the chunk with this last segment of a key; None if there is none."""
        return chunk_number(name.split("."), self.grid)

    def selection(self, number: int) -> tuple[slice, ...]:
        """Return the selection of the variable that lies in a chunk."""
        position = position_of(number, self.grid)
        return box_of(position, self.array.chunk_shape, self.array.shape)


def view_of(variable: Variable, *, scattered: bool = True) -> ArrayView:
    """Return a variable as a Zarr array.

    Parameters
    ----------
    scattered
        Whether chunks may be made of many pieces of the file. If not, only
        small variables that have to be scattered are.

    Raises
    ------
    FormatError
        If Zarr has no such type.
    """
    array = variable.array
    if variable.error is not None:
        raise variable.error.with_traceback(None)
    assert array is not None
    if array.strides is not None:
        if not array.conversion and variable.shape == array.shape:
            return _view_of_strides(variable, array, array.strides, scattered=scattered)
    elif not array.reads_itself:
        return _view_of_chunks(variable, array)
    return _view_of_values(variable, array)


def view_in_chunks(variable: Variable, chunks: tuple[int, ...]) -> ArrayView | None:
    """Return a variable as a Zarr array with certain chunks.

    Returns
    -------
    None if its chunks have another shape; plain elements may have chunks of any shape.

    Raises
    ------
    FormatError
        As `view_of`.
    """
    array = variable.array
    strides = None if array is None else array.strides
    if array is None or strides is None or array.conversion or variable.shape != array.shape:
        view = view_of(variable)
        return view if view.array.chunk_shape == chunks else None
    fits = len(chunks) == len(array.shape)
    return _in_runs(variable, array, strides, chunks) if fits else None


def _view_of_chunks(variable: Variable, array: Array) -> ArrayView:
    """Return the view with the chunks of the file as they are, if Zarr's codecs can decode them."""
    # quantizing cannot be undone: readers leave it out, and need not know where a writer did
    kept = tuple(config for config in array.codecs if config["id"] != _QUANTIZED)
    left_out = sum(1 << i for i, config in enumerate(array.codecs) if config["id"] == _QUANTIZED)
    names = [config["id"] for config in kept]
    # numcodecs refuses to shuffle a broken number of elements, such as encoded bytes
    of_zarr = all(codec(name).zarr for name in names)
    shared = of_zarr and "shuffle" not in names[1:] and not array.conversion
    dtype, codecs = (array.dtype, kept) if shared else _type_of_values(variable)
    chunks = tuple(max(1, length) for length in array.chunk_shape)
    shown = _shown_array(variable, dtype, chunks, codecs)
    index = _FileIndex(array, variable.shape, decoded=not shared, left_out=left_out)
    hides_fill = array.conversion is not None or not same_fill(shown, array)
    return ArrayView(variable, shown, index, hides_fill=hides_fill)


def _view_of_strides(
    variable: Variable, array: Array, strides: tuple[int, ...], *, scattered: bool
) -> ArrayView:
    """Return the view with runs of elements of the file as chunks."""
    itemsize = array.dtype.itemsize
    chunks = rows(array.shape, itemsize)
    apart = lies_apart(array)
    small = math.prod(array.shape) * itemsize <= SMALL
    if apart and not (scattered or small):
        chunks = (1, *chunks[1:])
    return _in_runs(variable, array, strides, chunks)


def lies_apart(array: Array) -> bool:
    """Tell whether plain elements do not lie one behind the other along the first dimension."""
    if array.strides is None or not array.shape or array.shape[0] <= 1:
        return False
    return array.strides[0] != math.prod(array.shape[1:]) * array.dtype.itemsize


def _in_runs(
    variable: Variable, array: Array, strides: tuple[int, ...], chunks: tuple[int, ...]
) -> ArrayView:
    """Return the view of plain elements in chunks of a shape."""
    shown = _shown_array(variable, array.dtype, chunks)
    plain, inner = True, array.dtype.itemsize
    for chunk, stride in zip(reversed(chunks), reversed(strides), strict=True):
        plain = plain and (chunk == 1 or stride == inner)
        inner *= chunk
    index = _StridesIndex(array, strides, chunks, plain=plain)
    return ArrayView(variable, shown, index, hides_fill=not same_fill(shown, array))


def _view_of_values(variable: Variable, array: Array) -> ArrayView:
    """Return the view whose chunks are read and encoded when they are asked for."""
    dtype, codecs = _type_of_values(variable)
    chunks = tuple(max(1, length) for length in array.chunk_shape)
    if array.chunk_shape == array.shape:
        chunks = rows(variable.shape, _TEXT_BYTES if codecs else dtype.itemsize)
    return ArrayView(
        variable, _shown_array(variable, dtype, chunks, codecs), _NoIndex(), hides_fill=False
    )


def _type_of_values(variable: Variable) -> tuple[np.dtype, tuple[CodecConfig, ...]]:
    """Return dtype and codecs of a view whose values are encoded."""
    dtype = variable.dtype
    if variable.nc_type == "string":
        return np.dtype(object), _TEXT
    if dtype.hasobject:
        raise FormatError(variable.path, "is of variable-length sequences: Zarr 2 has no such type")
    return packed(dtype), ()


def _is_zarr_type(dtype: np.dtype) -> bool:
    """Tell whether zarr-python has a type; it lacks structures and arrays within structures."""
    fields = [dtype.fields[name][0] for name in dtype.names or ()] if dtype.fields else [dtype]
    return all(
        one.subdtype is None
        and one.fields is None
        and one.kind in "biufcSV"
        and one.str[1:] not in ("f12", "f16", "c24", "c32")
        for one in fields
    )


def _shown_array(
    variable: Variable,
    dtype: np.dtype,
    chunks: tuple[int, ...],
    codecs: tuple[CodecConfig, ...] = (),
) -> ChunkedArray:
    if not _is_zarr_type(dtype) and codecs != _TEXT:
        raise FormatError(variable.path, f"is of a type that Zarr 2 does not have ({dtype})")
    return ChunkedArray(
        path=variable.path.strip("/"),
        shape=variable.shape,
        chunk_shape=chunks,
        dtype=dtype,
        fill=shown_fill(variable, dtype),
        codecs=codecs,
    )


@dataclass(frozen=True, slots=True)
class _FileIndex:
    """The chunks of an array as those of a variable, which may have another shape.

    Parameters
    ----------
    shape
        Of the variable.
    decoded
        Whether all chunks are to be read and encoded.
    left_out
        Bits of the filters that the view does not have.
    """

    array: Array
    shape: tuple[int, ...]
    decoded: bool
    left_out: int

    async def locate(self, ids: np.ndarray) -> ChunkTable:
        table = await self._stored(ids)
        if self.decoded:
            table.mask[table.start >= 0] = 1
        return table

    async def _located(self, ids: np.ndarray) -> ChunkTable:
        table = await self.array.locate(ids)
        return table._replace(mask=table.mask & ~np.uint32(self.left_out))

    async def _stored(self, ids: np.ndarray) -> ChunkTable:
        array = self.array
        if array.shape == self.shape:
            return await self._located(ids)
        # positions in C order are in C order of any grid
        position = np.unravel_index(ids, grid_of(self.shape, array.chunk_shape))
        grid = grid_of(array.shape, array.chunk_shape)
        inside = np.ones(len(ids), dtype=bool)
        cut = np.zeros(len(ids), dtype=bool)
        lengths = zip(position, grid, array.chunk_shape, array.shape, self.shape, strict=True)
        for at, count, chunk, length, seen in lengths:
            inside &= at < count
            # beyond its own length an array reads as padding, whatever a chunk holds there
            cut |= (at + 1) * chunk > length if seen > length else False
        table = _table(len(ids))
        table.start[:] = -1
        if inside.any():
            stored = np.ravel_multi_index([at[inside] for at in position], grid)
            there = await self._located(stored)
            for column, found in zip(table[:3], there[:3], strict=True):
                column[inside] = found
        table.start[cut], table.mask[cut] = 0, 1
        return table


@dataclass(frozen=True, slots=True)
class _StridesIndex:
    """Runs of elements as chunks.

    Parameters
    ----------
    plain
        Whether the elements of a chunk that is full lie one behind the other.
    """

    array: Array
    strides: tuple[int, ...]
    chunks: tuple[int, ...]
    plain: bool

    async def locate(self, ids: np.ndarray) -> ChunkTable:
        array = self.array
        size = np.full(len(ids), math.prod(self.chunks) * array.dtype.itemsize, dtype=np.int64)
        mask = np.zeros(len(ids), dtype=np.uint32)
        first = await array.locate(np.zeros(1, dtype=np.int64))
        start = np.full(len(ids), first.start[0], dtype=np.int64)
        if first.start[0] < 0:
            return ChunkTable(start, size, mask)
        grid = grid_of(array.shape, self.chunks)
        position = np.unravel_index(ids, grid) if grid else ()
        for at, chunk, length, stride in zip(
            position, self.chunks, array.shape, self.strides, strict=True
        ):
            start += at * chunk * stride
            mask[(at + 1) * chunk > length] = 1
        if first.source is not None or not self.plain:
            mask[:] = 1
        return ChunkTable(start, size, mask)


class _NoIndex:
    """Chunks that are all read and encoded."""

    async def locate(self, ids: np.ndarray) -> ChunkTable:
        table = _table(len(ids))
        table.mask[:] = 1
        return table


def _table(count: int) -> ChunkTable:
    """Return a table with room for `count` chunks."""
    return ChunkTable(np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, "u4"))


def renamed(view: ArrayView, names: tuple[str, ...]) -> Variable:
    """Return the variable for the documents: with `names` of dimensions and the array shown."""
    variable = view.variable
    dimensions = tuple(
        replace(dimension, name=name)
        for dimension, name in zip(variable.dimensions, names, strict=True)
    )
    return replace(variable, dimensions=dimensions, array=view.array)


#: Bytes of a chunk, at most; twice as many if a divisor of the length needs them.
CHUNK_BYTES = 1 << 21
#: Divisors of a length that are tried.
_TRIES = 10_000


def rows(shape: Sequence[int], itemsize: int, room: int = CHUNK_BYTES) -> tuple[int, ...]:
    """Return a shape whose chunks are runs of elements in C order, of about `room` bytes.

    The last dimensions are whole, one is split, the first ones have length one. If the length
    that is split has a divisor of about the right size, no chunk reaches over the edge.
    """
    chunk = [1] * len(shape)
    left = max(1, room // max(1, itemsize))
    for axis in reversed(range(len(shape))):
        length = max(1, shape[axis])
        if length > left:
            chunk[axis] = part_of(length, left)
            break
        chunk[axis] = length
        left //= length
    return tuple(chunk)


def part_of(length: int, most: int) -> int:
    """Return a good chunk length: a divisor of a quarter to twice `most`, else equal parts."""
    least = max(1, math.ceil(length / (2 * most)))
    parts = range(least, min(math.ceil(4 * length / most), least + _TRIES) + 1)
    divisors = [length // count for count in parts if length % count == 0]
    if divisors:
        return min(divisors, key=lambda size: abs(math.log(size / most)))
    return math.ceil(length / math.ceil(length / most))
