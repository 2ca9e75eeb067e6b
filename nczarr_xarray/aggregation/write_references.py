"""Write references: as JSON, as a folder of Parquet files, or into a repository of Icechunk."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nczarr_fsspec.changes.create import partial_path, remove_partial
from nczarr_fsspec.errors import DatasetExistsError, ExportError
from nczarr_xarray.aggregation.combine import Aggregated
from nczarr_xarray.aggregation.kerchunk import Combination, References, inline_bytes
from nczarr_xarray.aggregation.write_icechunk import SUFFIX, Source, write_icechunk
from nczarr_xarray.export.cfa.master_place import MasterPlace
from nczarr_xarray.views.references import find_references

#: References in one file of Parquet.
_RECORD = 100_000
#: Files whose chunks are found at a time.
_THREADS = 32
_PARQUET = (".parq", ".parquet")
_SUFFIXES = (".json", *_PARQUET, SUFFIX)


def are_references(output: str | os.PathLike[str]) -> bool:
    """Tell from the name of an output whether it is to be references."""
    return os.fsdecode(output).lower().endswith(_SUFFIXES)


def write_references(
    found: Aggregated,
    place: MasterPlace,
    resolve: Callable[[str], str],
    options: Callable[[str], Mapping[str, Any] | None],
    *,
    replaces: bool,
) -> None:
    """Write an aggregation as references, of kerchunk or of Icechunk.

    Parameters
    ----------
    found
        The aggregation.
    place
        Where to write; a name that ends in ``.json`` is a file, others are folders.
    resolve
        Returns what opens an address.
    options
        Returns the storage options for what `resolve` has returned.
    replaces
        Whether a repository of Icechunk that is there gets another version.

    Raises
    ------
    ExportError
        Naming the file that does not fit into one chunk grid with others.
    NCZarrError
        If a file cannot be read, or the references cannot be written.
    """
    combination = Combination(found, resolve)
    sources: dict[str, Source] = {}
    files = _of_files(combination.files(), options, sources)
    references = combination.combined(files)
    if place.file.name.lower().endswith(SUFFIX):
        write_icechunk(place, references, sources, replaces=replaces)
    elif place.file.name.lower().endswith(_PARQUET):
        _put_folder(place, dict(parquet(references)))
    else:
        text = json.dumps({"version": 1, "refs": references}, separators=(",", ":"))
        place.store.put(place.file.name, text.encode())


def _of_files(
    files: Sequence[str],
    options: Callable[[str], Mapping[str, Any] | None],
    sources: dict[str, Source],
) -> Iterator[Mapping[str, Any]]:
    """Yield the references of files; what has none is missing there, and is told of later.

    Parameters
    ----------
    options
        As of `write_references`.
    sources
        Gets each file, by its name in the references.
    """
    given = [options(file) for file in files]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="nczarr-references") as pool:
        for own, found in zip(given, pool.map(find_references, files, given), strict=True):
            sources[found.url] = Source(found.version, own)
            yield found.references["refs"]


def parquet(references: References) -> Iterator[tuple[str, bytes]]:
    """Yield the objects of a folder of Parquet files.

    Raises
    ------
    ImportError
        If pyarrow is not installed.
    """
    metadata = {**json.loads(str(references[".zmetadata"])), "record_size": _RECORD}
    arrays = {
        key.rpartition("/")[0]: document
        for key, document in metadata["metadata"].items()
        if key.rpartition("/")[2] == ".zarray"
    }
    rows: dict[str, dict[int, dict[int, Any]]] = {path: {} for path in arrays}
    for key, value in references.items():
        path, _, _ = key.rpartition("/")
        name = key[len(path) + 1 :]
        if path in arrays and not name.startswith("."):
            number = _number(arrays[path], name)
            rows[path].setdefault(number // _RECORD, {})[number % _RECORD] = value
    for path, files in rows.items():
        separator = arrays[path].get("dimension_separator")
        if separator == "/":
            raise ExportError(path, "has chunks with '/' in their names, which Parquet cannot say")
        for file, records in files.items():
            count = min(_RECORD, _count(arrays[path]) - file * _RECORD)
            yield f"{path}/refs.{file}.parq", _file(records, count)
    yield ".zmetadata", json.dumps(metadata).encode()


def _grid(array: Mapping[str, Any]) -> list[int]:
    return [-(-n // chunk) for n, chunk in zip(array["shape"], array["chunks"], strict=True)]


def _count(array: Mapping[str, Any]) -> int:
    return math.prod(_grid(array))


def _number(array: Mapping[str, Any], name: str) -> int:
    """Return the number of a chunk, in C order."""
    number = 0
    for word, length in zip(name.split("."), _grid(array), strict=False):
        number = number * length + int(word)
    return number


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
    columns = {
        "path": pa.array(paths, pa.string()).dictionary_encode(),
        "offset": pa.array(offsets, pa.int64()),
        "size": pa.array(sizes, pa.int64()),
        "raw": pa.array(raw, pa.binary()),
    }
    target = io.BytesIO()
    format_.write_table(pa.table(columns), target, compression="zstd")
    return target.getvalue()


def _put_folder(place: MasterPlace, objects: Mapping[str, bytes]) -> None:
    """Write a folder; a local one becomes visible as a whole, others with their last object."""
    name, folder, store = place.file.name, place.file.folder, place.store
    if store.keys_below(name):
        raise DatasetExistsError(place.url, "is a folder already; remove it first")
    if not folder.startswith("/"):
        for key, data in objects.items():
            store.put(f"{name}/{key}", data)
        return
    partial = partial_path(folder + name)
    try:
        for key, data in objects.items():
            store.put(f"{os.path.basename(partial)}/{key}", data)
        os.rename(partial, folder + name)
    finally:
        remove_partial(partial)
