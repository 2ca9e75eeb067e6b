"""Write references: as JSON, or as a folder of Parquet files."""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nczarr_fsspec.changes.leftovers import partial_path, remove_leftovers, remove_partial
from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import DatasetExistsError, ExportError, StoreError, on_error
from nczarr_fsspec.keystore import chunk_number
from nczarr_fsspec.local_files import exchange
from nczarr_fsspec.stores.referenceformat import inline_bytes
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.kerchunk import Combination, References
from nczarr_xarray.export.cfa.master_place import MasterPlace
from nczarr_xarray.model import grid_of, readable
from nczarr_xarray.views.references import find_references

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
    name = place.file.name.lower()
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
    name, path = place.file.name, place.file.folder + place.file.name
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
    if not place.file.folder.startswith("/"):
        name = place.file.name
        parts = {f"{name}/{key}": data for key, data in objects.items()}
        place.store.delete(set(place.store.keys_below(name)) - parts.keys())
        for key, data in parts.items():
            place.store.put(key, data)
        return
    path = os.path.realpath(place.file.folder + place.file.name)
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
