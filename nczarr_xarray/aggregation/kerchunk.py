"""An aggregation as kerchunk references: the chunks of all files as those of one Zarr array."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nczarr_fsspec.changes.leftovers import partial_path, remove_leftovers, remove_partial
from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import DatasetExistsError, ExportError, StoreError, on_error
from nczarr_fsspec.keystore import chunk_number
from nczarr_fsspec.local_files import exchange
from nczarr_fsspec.stores.mapping import MappingWriter
from nczarr_fsspec.stores.referenceformat import inline_bytes, inline_text
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.export.cfa.content import Content, Member, in_one_chunk, write_tree
from nczarr_xarray.export.cfa.master import MasterPlace, without_enum
from nczarr_xarray.export.form.storage import netcdf_type, note_text
from nczarr_xarray.formats.cfa.dialect import PACKING, packing_of
from nczarr_xarray.formats.nczarr.spellings import VIRTUAL
from nczarr_xarray.model import NC_DEFAULT_FILL, ChunkedArray, Variable, grid_of, readable
from nczarr_xarray.views.references import find_references
from nczarr_xarray.views.zarr_tree import in_json

#: References of one file, or of all: by key, text or an address with an extent.
References = dict[str, "str | list[Any]"]

#: Attributes that say what the numbers of a variable mean: they must be the same in all files.
_MEANING = ("units", "calendar", "_FillValue", "missing_value", *PACKING)
_DOCUMENTS = (".zgroup", ".zattrs", ".zarray")
_HINT = "references cannot say that; an aggregation of CFA can: write MASTER.nca"


@dataclass(slots=True)
class Combination:
    """Combines the references of files.

    Parameters
    ----------
    found
        The aggregation.
    resolve
        Returns what opens an address.
    """

    found: Aggregated
    resolve: Callable[[str], str]
    _wanted: dict[str, list[tuple[Variable, int]]] = field(default_factory=dict)
    _arrays: dict[str, _Array] = field(default_factory=dict)
    _references: References = field(default_factory=dict)

    def files(self) -> list[str]:
        """Return what the files that have fragments are opened by.

        Raises
        ------
        ExportError
            If fragments are not taken as they are, or the name of a dimension would mean another.
        """
        self.found.check_dimensions(self.found.variables())
        for variable in self.found.variables():
            table = self.found.tables.get(variable.path)
            if table is None:
                continue
            if table.mappings or table.others or table.values is not None:
                reason = f"has fragments that are not taken as they are: {_HINT}"
                raise ExportError(variable.path, reason)
            for number, address in enumerate(table.addresses.tolist()):
                if address is not None:
                    self._wanted.setdefault(address, []).append((variable, number))
        return [*map(self.resolve, self._wanted)]

    def combined(self, of_files: Iterable[Mapping[str, Any]]) -> References:
        """Return the references of all files.

        Parameters
        ----------
        of_files
            Those of each of `files`.

        Raises
        ------
        ExportError
            Naming the file whose chunks or codecs are others.
        """
        for (address, wanted), references in zip(self._wanted.items(), of_files, strict=True):
            target, arrays = self.resolve(address), _by_array(references)
            for variable, number in wanted:
                self._add(target, variable, number, arrays)
        documents = self._documents()
        metadata = {
            key: json.loads(text)
            for key, text in documents.items()
            if isinstance(text, str) and key.rpartition("/")[2] in _DOCUMENTS
        }
        consolidated = json.dumps({"metadata": metadata, "zarr_consolidated_format": 1})
        return {**documents, ".zmetadata": consolidated, **self._references}

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
        array = json.loads(references[".zarray"])
        attributes = json.loads(references.get(".zattrs", "{}"))
        extent = table.extent(number)
        other = _Array.of(target, variable, array, attributes, extent)
        packing = self.found.packing == "after" and packing_of(variable)
        if packing and not other.attributes.keys().isdisjoint(PACKING):
            raise ExportError(
                target, f"{variable.path} is packed, and so is the aggregation: {_HINT}"
            )
        first = self._arrays.setdefault(variable.path, other)
        first.check(other, target, variable.path)
        path, begins = variable.path.strip("/"), _begins(target, variable, extent, first.chunks)
        for chunk, value in references.items():
            if chunk in _DOCUMENTS:
                continue
            index = list(begins)
            for axis, word in zip(other.axes, chunk.split("."), strict=False):  # "0" of a scalar
                index[axis] += int(word)
            self._references[f"{path}/{'.'.join(map(str, index))}"] = value

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
            first = self._arrays.get(variable.path)
            if first is not None:
                path = variable.path.strip("/")
                mask = {}
                if None in self.found.tables[variable.path].addresses.tolist():
                    mask = first.mask(variable)
                document = {**first.array, **mask, "shape": variable.shape}
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


@dataclass(frozen=True, slots=True)
class _Array:
    """An array as the references of one file have it, in the dimensions of the aggregation.

    Parameters
    ----------
    target
        The file.
    array, attributes
        Its documents.
    chunks
        Lengths of chunks, per dimension of the aggregation.
    axes
        Which dimensions of the aggregation the array has.
    """

    target: str
    array: Mapping[str, Any]
    attributes: Mapping[str, Any]
    chunks: tuple[int, ...]
    axes: tuple[int, ...]

    @classmethod
    def of(
        cls,
        target: str,
        variable: Variable,
        array: Mapping[str, Any],
        attributes: Mapping[str, Any],
        extent: tuple[tuple[int, int], ...],
    ) -> _Array:
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
        return cls(target, {**array, "chunks": chunks}, attributes, tuple(chunks), axes)

    def check(self, own: _Array, target: str, path: str) -> None:
        """Raise `ExportError` if another file has other chunks or codecs, or other packing."""
        for name in self.array.keys() | own.array.keys():
            mine, theirs = own.array.get(name), self.array.get(name)
            if name != "shape" and mine != theirs:
                raise ExportError(
                    target,
                    f"{path} has the {name} {json.dumps(mine)}, and in {self.target} "
                    f"{json.dumps(theirs)}: {_HINT}",
                )
        for name in _MEANING:
            mine, theirs = own.attributes.get(name), self.attributes.get(name)
            if json.dumps(mine) != json.dumps(theirs):  # NaN is what NaN is
                raise ExportError(
                    target, f"{path} has another {name} than in {self.target}: {_HINT}"
                )

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


def _in_json(variable: Variable) -> Variable:
    """Return a variable with the attributes that readers of references know."""
    variable = without_enum(variable)
    return replace(variable, attributes=in_json(variable.attributes))


def _begins(
    target: str,
    variable: Variable,
    extent: tuple[tuple[int, int], ...],
    chunks: tuple[int, ...],
) -> list[int]:
    """Return the numbers of the first chunk of a fragment; `ExportError` if it is not whole."""
    begins = []
    for (start, stop), chunk, dimension in zip(extent, chunks, variable.dimensions, strict=True):
        if start % chunk or (stop % chunk and stop != dimension.size):
            raise ExportError(
                target,
                f"{variable.path} has {stop - start} steps along {dimension.path} at {start}, in "
                f"chunks of {chunk}, which do not make one regular grid: {_HINT}",
            )
        begins.append(start // chunk)
    return begins


# -- writing --------------------------------------------------------------------------------------


# References are written as JSON, or as a folder of Parquet files.

#: References in one file of Parquet.
_RECORD = 100_000
#: Files whose chunks are found at a time.
_THREADS = 32
_PARQUET = (".parq", ".parquet")
#: What kerchunk's folders of references hold.
_OURS = re.compile(r"(.+/)?(\.z(metadata|group|array|attrs)|refs\.\d+\.parq)", re.DOTALL)
#: What these hold before their last object is there.
_PARTS = re.compile(r".+/refs\.\d+\.parq", re.DOTALL)


def write_references(
    read: Callable[[], Aggregated],
    place: MasterPlace,
    resolve: Callable[[str], str],
    options: Callable[[str], Mapping[str, Any] | None],
    *,
    replaces: bool,
) -> None:
    """Write an aggregation as references of kerchunk.

    Parameters
    ----------
    read
        Returns the aggregation; called once it is known that something can be written.
    place
        Where to write; a name that ends in ``.json`` is a file, others are folders.
    resolve
        Returns what opens an address.
    options
        Returns the storage options for what `resolve` has returned.
    replaces
        Whether there may be references already.

    Raises
    ------
    DatasetExistsError
        If there is something that must not, or cannot be replaced.
    ExportError
        Naming the file that does not fit into one chunk grid with others; or if the name is that
        of a repository of Icechunk.
    NCZarrError
        If a file cannot be read, or the references cannot be written.
    """
    name = place.name.lower()
    if name.endswith(".icechunk"):
        reason = "is named as a repository of Icechunk: VirtualiZarr writes it, with NCZarrParser"
        raise ExportError(place.url, reason)
    is_folder = name.endswith(_PARQUET)
    if not replaces:
        place.must_be_new()
    if is_folder:
        _check_folder(place, replaces=replaces)
    combination = Combination(read(), resolve)
    references = combination.combined(_of_files(combination.files(), options))
    if is_folder:
        write_parquet(place, references, replaces=replaces)
    else:
        text = json.dumps({"version": 1, "refs": references}, separators=(",", ":"))
        place.put(text.encode(), replaces=replaces)


def write_parquet(place: MasterPlace, references: References, *, replaces: bool) -> None:
    """Write references as a folder of Parquet.

    Raises
    ------
    DatasetExistsError
        If there is something that must not, or cannot be replaced.
    ImportError
        If pyarrow is not installed.
    NCZarrError
        If they cannot be written.
    """
    _check_folder(place, replaces=replaces)
    _put_folder(place, dict(parquet(references)), replaces=replaces)


def _of_files(
    files: Sequence[str], options: Callable[[str], Mapping[str, Any] | None]
) -> Iterator[Mapping[str, Any]]:
    """Yield the references of files; what has none is missing there, and is told of later.

    Parameters
    ----------
    options
        As of `write_references`.
    """
    given = [options(file) for file in files]
    with WaitingThreads(_THREADS, thread_name_prefix="nczarr-references") as pool:
        for found in pool.map(find_references, files, given):
            yield found.references["refs"]


def parquet(references: References) -> Iterator[tuple[str, bytes]]:
    """Yield the objects of a folder of Parquet files.

    Raises
    ------
    ImportError
        If pyarrow is not installed.
    """
    metadata = {**json.loads(str(references[".zmetadata"])), "record_size": _RECORD}
    grids = {
        key.rpartition("/")[0]: grid_of(document["shape"], document["chunks"])
        for key, document in metadata["metadata"].items()
        if key.rpartition("/")[2] == ".zarray"
    }
    rows: dict[str, dict[int, dict[int, Any]]] = {path: {} for path in grids}
    for key, value in references.items():
        path, _, name = key.rpartition("/")
        if path in grids and not name.startswith("."):
            number = chunk_number(name.split("."), grids[path])
            assert number is not None
            rows[path].setdefault(number // _RECORD, {})[number % _RECORD] = value
    for path, files in rows.items():
        for file, records in files.items():
            count = min(_RECORD, math.prod(grids[path]) - file * _RECORD)
            yield f"{path}/refs.{file}.parq", _file(records, count)
    yield ".zmetadata", json.dumps(metadata).encode()


def _file(records: Mapping[int, Any], count: int) -> bytes:
    """Return one file of references: by the number of their row."""
    try:
        import pyarrow as pa
        from pyarrow import parquet as format_
    except ImportError:
        raise ImportError(
            "references in Parquet need pyarrow: pip install 'nczarr-xarray[parquet]'"
        ) from None
    paths: list[str | None] = [None] * count
    offsets, sizes = [0] * count, [0] * count
    raw: list[bytes | None] = [None] * count
    for row, value in records.items():
        if isinstance(value, str):
            raw[row] = inline_bytes(value)
        else:
            paths[row] = value[0]
            offsets[row], sizes[row] = value[1:] if len(value) == 3 else (0, 0)
    for path in {*filter(None, paths)}:
        if readable(path) != path:
            raise ExportError(path, "is not UTF-8, as text in Parquet must be: write JSON instead")
    columns = {
        "path": pa.array(paths, pa.string()).dictionary_encode(),
        "offset": pa.array(offsets, pa.int64()),
        "size": pa.array(sizes, pa.int64()),
        "raw": pa.array(raw, pa.binary()),
    }
    target = io.BytesIO()
    format_.write_table(pa.table(columns), target, compression="zstd")
    return target.getvalue()


def _check_folder(place: MasterPlace, *, replaces: bool) -> None:
    """Raise if there is what a folder of references cannot replace."""
    name, path = place.name, place.folder + place.name
    is_local = path.startswith("/")
    keys = [key[len(name) + 1 :] for key in place.store.keys_below(name)]
    if not is_local and all(map(_PARTS.fullmatch, keys)):
        return  # a writer has not come to the last one: it is no dataset
    if keys and not replaces:
        raise DatasetExistsError(place.url, "is there already; overwrite=True replaces it")
    others = [key for key in keys if not _OURS.fullmatch(key)]
    if others:
        raise DatasetExistsError(
            place.url, f"holds what is no reference, such as {others[0]}; remove it first"
        )
    if not is_local:
        raise DatasetExistsError(
            place.url, "is a folder, which cannot be replaced in one step here; remove it first"
        )
    if os.path.lexists(path) and not os.path.isdir(path):
        raise DatasetExistsError(place.url, "is a file, not a folder; remove it first")


def _put_folder(place: MasterPlace, objects: Mapping[str, bytes], *, replaces: bool) -> None:
    """Write a folder; a local one becomes visible as a whole, others with their last object."""
    if not place.folder.startswith("/"):
        name = place.name
        parts = {f"{name}/{key}": data for key, data in objects.items()}
        place.store.delete(set(place.store.keys_below(name)) - parts.keys())
        for key, data in parts.items():
            place.store.put(key, data)
        return
    path = os.path.realpath(place.folder + place.name)
    remove_leftovers(path)
    new = partial_path(path)
    try:
        store = DirectoryWriter(new, atomic=False)
        for key, data in objects.items():
            store.put(key, data)
        _check_folder(place, replaces=replaces)
        if not os.path.isdir(path):
            os.rename(new, path)
        elif not exchange(new, path):
            old = partial_path(path)
            os.rename(path, old)
            with on_error(lambda: os.rename(old, path)):
                os.rename(new, path)
            remove_partial(old)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(place.url, f"cannot be written: {error.strerror}") from error
    finally:
        remove_partial(new)  # the old folder, if they were exchanged
