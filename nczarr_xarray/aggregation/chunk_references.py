"""The files of an aggregation as the chunks of one Zarr array for each variable.

Files that follow each other make a regular chunk grid if each begins where a chunk of the grid
does. Zarr 3 also has rectilinear grids, whose chunks may have several lengths along a dimension. A
file may still end inside of a chunk, as its storage has room for whole ones only: what is there of
such a chunk is *cut*, and becomes a chunk of its own.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.stores.mapping import MappingWriter
from nczarr_fsspec.stores.referenceformat import inline_text
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.export.cfa.content import Content, Member, in_one_chunk, write_tree
from nczarr_xarray.export.cfa.master import without_enum
from nczarr_xarray.export.form.storage import netcdf_type, note_text
from nczarr_xarray.formats.cf import PACKING, packing_of
from nczarr_xarray.formats.nczarr.spellings import VIRTUAL
from nczarr_xarray.model import NC_DEFAULT_FILL, ChunkedArray, Fragments, Variable, grid_of
from nczarr_xarray.views.references import MOST_INLINE, Cut, Wanted
from nczarr_xarray.views.zarr_tree import CHUNK_BYTES, SMALL, in_json, part_of

#: References of one file, or of all: by key, text or an address with an extent.
References = dict[str, "str | list[Any]"]
#: Per dimension, the length of all chunks, or that of each.
Grid = list[int | list[int]]

#: Attributes that say what the numbers of a variable mean: they must be the same in all files.
_MEANING = ("units", "calendar", "_FillValue", "missing_value", *PACKING)
_DOCUMENTS = (".zgroup", ".zattrs", ".zarray")
#: Settings of codecs that only a writer needs.
_EFFORT = frozenset({"level", "clevel"})
#: Bytes of a variable that is cut into a regular grid rather than in one that few programs read.
LITTLE = 1 << 18
#: Chunks of plain elements that are not too many, however small they are.
_FEW = 1 << 16
_HINT = "references cannot say that; an aggregation of CFA can: write MASTER.nca"
_ANEW = "nczarr copy MASTER.nca OUTPUT.zarr writes all data anew"


@dataclass(slots=True)
class Combination:
    """Combines the references of files.

    Parameters
    ----------
    found
        The aggregation.
    resolve
        Returns what opens an address.

    Attributes
    ----------
    grids
        The grids that are not regular, by path of the variable; known when all files are added.
    odd
        The first variable of these, and the first of its files that fits into no regular grid.
    """

    found: Aggregated
    resolve: Callable[[str], str]
    grids: dict[str, Grid] = field(default_factory=dict)
    odd: str = ""
    _wanted: dict[str, list[tuple[Variable, int]]] = field(default_factory=dict)
    _parts: dict[str, list[_Part]] = field(default_factory=dict)

    def files(self) -> list[tuple[str, Wanted]]:
        """Return what the files that have fragments are opened by, and what is wanted of them.

        Raises
        ------
        ExportError
            If fragments are not taken as they are, or the name of a dimension would mean another.
        """
        self.found.check_dimensions(self.found.variables())
        wanted: dict[str, Wanted] = {}
        for variable in self.found.variables():
            table = self.found.tables.get(variable.path)
            if table is None:
                continue
            if table.mappings or table.others or table.values is not None:
                number = next(iter({**table.mappings, **table.others}), 0)
                what = f"such as {table.addresses[number]}"
                reason = f"has fragments that are not taken as they are, {what}: {_HINT}"
                raise ExportError(variable.path, reason)
            run = _run(table, variable)
            for number, address in enumerate(table.addresses.tolist()):
                if address is not None:
                    self._wanted.setdefault(address, []).append((variable, number))
                    name = str(table.names[number]).strip("/")
                    wanted.setdefault(address, {})[name] = run
        return [(self.resolve(address), names) for address, names in wanted.items()]

    def add(self, of_files: Iterable[Mapping[str, Any]]) -> None:
        """Add the references of each of `files`.

        Raises
        ------
        ExportError
            Naming the file whose chunks or codecs are others.
        """
        for (address, wanted), references in zip(self._wanted.items(), of_files, strict=True):
            target, arrays = self.resolve(address), _by_array(references)
            for variable, number in wanted:
                self._add(target, variable, number, arrays)
        for variable in self.found.variables():
            if variable.path in self._parts:
                parts = self._parts[variable.path]
                grid, odd = _grid(variable, parts)
                if odd is not None:
                    is_little = math.prod(variable.shape) * variable.dtype.itemsize <= LITTLE
                    run = _run(self.found.tables[variable.path], variable) if is_little else None
                    if run is not None:
                        for part in parts:
                            part.rechunk(variable, run)
                        continue
                    self.grids[variable.path] = grid
                    self.odd = self.odd or f"{variable.path} in {odd}"
                numbers = [
                    _numbers(lengths, {part.extent[axis][0] for part in parts})
                    for axis, lengths in enumerate(grid)
                ]
                for part in parts:
                    part.place(variable, numbers)

    def cuts(self) -> dict[str, list[Cut]]:
        """Return the chunks that are to be cut, by what opens their file.

        Raises
        ------
        ExportError
            If they are too many to be held by references.
        """
        found: dict[str, list[Cut]] = {}
        for path, parts in self._parts.items():
            first = next((part for part in parts if part.cuts), None)
            nbytes = sum(cut.nbytes for part in parts for cut in part.cuts)
            if first is not None and nbytes > MOST_INLINE:
                raise ExportError(
                    path,
                    f"has files that end inside of a chunk, such as {first.target}; these chunks "
                    f"would have to be in the references, {nbytes / 1e6:.0f} MB of values: {_ANEW}",
                )
            for part in parts:
                if part.cuts:
                    found.setdefault(part.target, []).extend(part.cuts)
        return found

    def combined(self, cut: Mapping[str, str]) -> References:
        """Return all references, as of Zarr 2; those of `grids` have no grid that this knows.

        Parameters
        ----------
        cut
            The references of `cuts`, by their keys.
        """
        documents = self._documents()
        metadata = {
            key: json.loads(text)
            for key, text in documents.items()
            if isinstance(text, str) and key.rpartition("/")[2] in _DOCUMENTS
        }
        consolidated = json.dumps({"metadata": metadata, "zarr_consolidated_format": 1})
        found = {**documents, ".zmetadata": consolidated}
        for part in itertools.chain.from_iterable(self._parts.values()):
            found |= part.references
        return {**found, **cut}

    def _add(
        self,
        target: str,
        variable: Variable,
        number: int,
        arrays: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Add the chunks of one fragment; the references of its file are those of `_by_array`."""
        table = self.found.tables[variable.path]
        name = str(table.names[number]).strip("/")
        references = arrays.get(name, {})
        if ".zarray" not in references:
            raise ExportError(target, f"has no references for {name}: {_HINT}")
        part = _Part.of(target, variable, name, references, table.extent(number))
        packing = self.found.packing == "after" and packing_of(variable)
        if packing and not part.attributes.keys().isdisjoint(PACKING):
            raise ExportError(
                target, f"{variable.path} is packed, and so is the aggregation: {_HINT}"
            )
        parts = self._parts.setdefault(variable.path, [part])
        if part is not parts[0]:
            parts[0].check(part, variable.path)
            # of 100,000 files one copy is enough
            part.array, part.attributes = parts[0].array, parts[0].attributes
            parts.append(part)

    def _documents(self) -> References:
        """Return what does not refer to files: metadata, and what the aggregation holds itself."""
        members = []
        for variable in map(_in_json, self.found.variables()):
            if variable.path in self.found.values:
                member = in_one_chunk(variable, self.found.values[variable.path])
                note_text(member.variable, VIRTUAL)
                members.append(member)
            else:
                chunks = tuple(max(1, size) for size in variable.shape)
                array = ChunkedArray(
                    variable.path.strip("/"), variable.shape, chunks, variable.dtype
                )
                members.append(Member(replace(variable, array=array)))
        objects: dict[str, bytes] = {}
        root = self.found.hierarchy.root
        groups = {path: in_json(own) for path, own in self.found.group_attributes().items()}
        content = Content(in_json(root.attributes), members, (), groups)
        write_tree(content, MappingWriter(objects), VIRTUAL)
        documents: References = {}
        for key, data in objects.items():
            if key.rpartition("/")[2] in _DOCUMENTS:
                documents[key] = data.decode()
            else:
                documents[key] = inline_text(data)
        for variable in self.found.variables():
            if variable.path in self._parts:
                first = self._parts[variable.path][0]
                path = variable.path.strip("/")
                mask = {}
                if None in self.found.tables[variable.path].addresses.tolist():
                    mask = first.mask(variable)
                document = {**first.array, **mask, "chunks": first.chunks, "shape": variable.shape}
                documents[f"{path}/.zarray"] = json.dumps(document)
                documents[f"{path}/.zattrs"] = json.dumps(first.shown(variable, mask))
        return documents


def _by_array(references: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return references by the name of their array, and what is left of their keys."""
    arrays: dict[str, dict[str, Any]] = {}
    for key, value in references.items():
        name, _, rest = key.rpartition("/")
        arrays.setdefault(name, {})[rest] = value
    return arrays


@dataclass(slots=True)
class _Part:
    """A fragment as the references of its file have it, in the dimensions of the aggregation.

    Parameters
    ----------
    target, name
        The file, and the array in it.
    array, attributes
        Its documents.
    extent
        Begin and end of the fragment per dimension.
    chunks
        Lengths of chunks, per dimension of the aggregation.
    axes
        Which dimensions of the aggregation the array has.
    references
        Those of its chunks: in the file, and when it has its place in the aggregation.
    cuts
        Chunks that are cut; known when it has its place.
    """

    target: str
    name: str
    array: Mapping[str, Any]
    attributes: Mapping[str, Any]
    extent: tuple[tuple[int, int], ...]
    chunks: tuple[int, ...]
    axes: tuple[int, ...]
    references: References
    cuts: list[Cut] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        target: str,
        variable: Variable,
        name: str,
        references: Mapping[str, Any],
        extent: tuple[tuple[int, int], ...],
    ) -> _Part:
        array = json.loads(references[".zarray"])
        attributes = json.loads(references.get(".zattrs", "{}"))
        lengths = [stop - start for start, stop in extent]
        # dimensions of length 1 may be absent
        for axes in itertools.combinations(range(len(lengths)), len(array["shape"])):
            others = (length for axis, length in enumerate(lengths) if axis not in axes)
            if [lengths[axis] for axis in axes] == array["shape"] and all(n == 1 for n in others):
                break
        else:
            raise ExportError(
                target, f"{variable.path} has the shape {array['shape']}, and its part {lengths}"
            )
        chunks = [1] * len(lengths)
        for axis, length in zip(axes, array["chunks"], strict=True):
            chunks[axis] = length
        own = {key: value for key, value in references.items() if key not in _DOCUMENTS}
        return cls(target, name, array, attributes, extent, tuple(chunks), axes, own)

    def check(self, other: _Part, path: str) -> None:
        """Raise `ExportError` if another file has other codecs, or other packing."""
        for name in self.array.keys() | other.array.keys():
            mine, theirs = other.array.get(name), self.array.get(name)
            if name not in ("shape", "chunks") and _decoding(mine) != _decoding(theirs):
                raise ExportError(
                    other.target,
                    f"{path} has the {name} {json.dumps(mine)}, and in {self.target} "
                    f"{json.dumps(theirs)}: {_HINT}",
                )
        for name in _MEANING:
            mine, theirs = other.attributes.get(name), self.attributes.get(name)
            if json.dumps(mine) != json.dumps(theirs):  # NaN is what NaN is
                raise ExportError(
                    other.target, f"{path} has another {name} than in {self.target}: {_HINT}"
                )

    def place(self, variable: Variable, numbers: Sequence[Mapping[int, int]]) -> None:
        """Give the references the keys that they have in the grid of the aggregation.

        Parameters
        ----------
        numbers
            Per dimension, the number of the chunk that begins where a fragment does.
        """
        path, placed = variable.path.strip("/"), {}
        begins = [known[start] for known, (start, _) in zip(numbers, self.extent, strict=True)]
        lengths = [stop - start for start, stop in self.extent]
        ends = [(length // n, length % n) for length, n in zip(lengths, self.chunks, strict=True)]
        is_cut = [
            axis
            for axis, (_, stop) in enumerate(self.extent)
            if stop != variable.shape[axis] and ends[axis][1]
        ]
        for chunk, value in self.references.items():
            index = [0] * len(begins)
            for axis, word in zip(self.axes, chunk.split("."), strict=False):  # "0" of a scalar
                index[axis] = int(word)
            key = f"{path}/{'.'.join(str(at + n) for at, n in zip(index, begins, strict=True))}"
            rests = {axis: ends[axis][1] for axis in is_cut if index[axis] == ends[axis][0]}
            if not rests:
                placed[key] = value
                continue
            shape = [rests.get(axis, n) for axis, n in enumerate(self.chunks)]
            firsts = [at * n for at, n in zip(index, self.chunks, strict=True)]
            self._cut(key, firsts, shape)
        self.references = placed

    def rechunk(self, variable: Variable, chunks: tuple[int, ...]) -> None:
        """Cut all of it into the chunks of a grid in which it begins and ends."""
        lengths = [stop - start for start, stop in self.extent]
        for firsts in itertools.product(*map(range, [0] * len(chunks), lengths, chunks)):
            ahead = zip(firsts, self.extent, chunks, strict=True)
            place = ".".join(str((at + start) // n) for at, (start, _), n in ahead) or "0"
            self._cut(f"{variable.path.strip('/')}/{place}", firsts, chunks)
        self.chunks, self.references = chunks, {}

    def _cut(self, key: str, firsts: Sequence[int], shape: Sequence[int]) -> None:
        """Note a part of the fragment that becomes a chunk of its own, by its first elements."""
        box = [
            slice(firsts[axis], min(firsts[axis] + shape[axis], stop - start))
            for axis, (start, stop) in enumerate(self.extent)
        ]
        own = tuple(shape[axis] for axis in self.axes)
        part = tuple(box[axis] for axis in self.axes)
        nbytes = math.prod(shape) * np.dtype(self.array["dtype"]).itemsize
        self.cuts.append(Cut(key, self.name, part, own, nbytes))

    def mask(self, variable: Variable) -> dict[str, Any]:
        """Return the fill value by which parts without a file are missing, if the array has none.

        Raises
        ------
        ExportError
            If all numbers may be data.
        """
        dtype = np.dtype(self.array["dtype"])
        if self.array["fill_value"] is not None or dtype.kind not in "iuf":
            return {}
        stated = self.attributes.get("missing_value")
        fill = stated[0] if isinstance(stated, list) else stated
        if fill is None and dtype.itemsize > 1:
            fill = NC_DEFAULT_FILL[str(netcdf_type(dtype))]
        if fill is None:
            raise ExportError(
                variable.path,
                "has no _FillValue, and all its values may be data, so that nothing can stand for "
                "the parts without a file",
            )
        return {"fill_value": fill}

    def shown(self, variable: Variable, mask: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes that all files have, with the names of dimensions.

        Chunks are as they are in files, so what says what their numbers mean is, too: an
        aggregation of packed files is unpacked.

        Parameters
        ----------
        mask
            What `mask` returned: some readers take the fill value for missing only if it is said.
        """
        names = {*variable.attributes, *_MEANING}
        kept = {name: value for name, value in self.attributes.items() if name in names}
        if mask:
            kept["_FillValue"] = mask["fill_value"]
        packing = {name: value for name, value in packing_of(variable).items() if name not in kept}
        return {**kept, **packing, "_ARRAY_DIMENSIONS": [d.name for d in variable.dimensions]}


def _decoding(stated: Any) -> Any:
    """Return what a document says of a codec, or of several, without what only a writer needs."""
    if isinstance(stated, list):
        return [*map(_decoding, stated)]
    if isinstance(stated, dict):
        return {key: value for key, value in stated.items() if key not in _EFFORT}
    return stated


def _in_json(variable: Variable) -> Variable:
    """Return a variable with the attributes that readers of references know."""
    variable = without_enum(variable)
    return replace(variable, attributes=in_json(variable.attributes))


# -- grids ----------------------------------------------------------------------------------------


def _grid(variable: Variable, parts: Sequence[_Part]) -> tuple[Grid, str | None]:
    """Return the chunks of an aggregation along each dimension, and a file that makes it ragged.

    Raises
    ------
    ExportError
        Naming two files that have the same part of a dimension in chunks of two lengths.
    """
    grid: Grid = []
    ragged = None
    for axis, size in enumerate(variable.shape):
        owners: dict[tuple[int, int], _Part] = {}
        for part in parts:
            first = owners.setdefault(part.extent[axis], part)
            if first.chunks[axis] != part.chunks[axis]:
                raise ExportError(
                    part.target,
                    f"{variable.path} has the chunks {json.dumps(part.chunks)}, and in "
                    f"{first.target} {json.dumps(first.chunks)}: no grid of Zarr has both, as they "
                    f"have the same steps along {variable.dimensions[axis].path}: {_HINT}",
                )
        n = parts[0].chunks[axis]
        odd = (
            part.target
            for (start, stop), part in owners.items()
            if part.chunks[axis] != n or start % n or (stop % n and stop != size)
        )
        first_odd = next(odd, None)
        grid.append(n if first_odd is None else _lengths(owners, axis, size))
        ragged = ragged or first_odd
    return grid, ragged


def _lengths(owners: Mapping[tuple[int, int], _Part], axis: int, size: int) -> list[int]:
    """Return the length of each chunk along a dimension; gaps between files are chunks, too."""
    found: list[int] = []
    end = 0
    for (start, stop), part in sorted(owners.items(), key=lambda one: one[0]):
        chunk = part.chunks[axis]
        rest = (stop - start) % chunk
        gap = [start - end] if start > end else []
        last = [rest if stop != size else chunk] if rest else []
        found += [*gap, *[chunk] * ((stop - start) // chunk), *last]
        end = stop
    return [*found, size - end] if end < size else found


def _numbers(lengths: int | list[int], starts: set[int]) -> dict[int, int]:
    """Return the numbers of the chunks that begin at some steps."""
    if isinstance(lengths, int):
        return {start: start // lengths for start in starts}
    edges = np.cumsum(lengths)
    return {start: int(np.searchsorted(edges, start, side="right")) for start in starts}


def _run(table: Fragments, variable: Variable) -> tuple[int, ...] | None:
    """Return chunks of plain elements that lie in one piece in all files, and make a regular grid.

    Returns
    -------
    tuple
        The largest such chunk of a good size; None if there would be very many tiny ones.
    """
    itemsize = max(1, variable.dtype.itemsize)
    chunk, room = [1] * len(variable.shape), CHUNK_BYTES // itemsize
    for axis in reversed(range(len(chunk))):
        starts, stops = table.starts[axis], table.stops[axis]
        cell = max(1, int(np.gcd.reduce(np.concatenate([starts, stops]))))
        fits = cell if cell <= room else part_of(cell, room)
        chunk[axis] = fits if cell % fits == 0 else 1
        if chunk[axis] != cell or (stops - starts != cell).any():
            break
        room = max(1, room // cell)
    few = math.prod(grid_of(variable.shape, tuple(chunk))) <= _FEW
    return tuple(chunk) if few or math.prod(chunk) * itemsize >= SMALL else None
