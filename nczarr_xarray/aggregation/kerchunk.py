"""Writing an aggregation as kerchunk references: JSON, or a folder of Parquet files."""

from __future__ import annotations

import io
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from nczarr_fsspec.changes.leftovers import partial_path, remove_leftovers, remove_partial
from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import (
    DatasetExistsError,
    ExportError,
    NCZarrWarning,
    StoreError,
    caller_level,
    on_error,
)
from nczarr_fsspec.keystore import chunk_number
from nczarr_fsspec.local_files import exchange
from nczarr_fsspec.stores.referenceformat import VERSIONS, inline_bytes
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_fsspec.transport.request import Stamp
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.as_zarr3 import as_zarr3
from nczarr_xarray.aggregation.chunk_references import Combination, References
from nczarr_xarray.export.cfa.master import MasterPlace
from nczarr_xarray.export.form.lacking import Lacking
from nczarr_xarray.model import grid_of, readable
from nczarr_xarray.views.references import cut_chunks, find_references

T = TypeVar("T")

#: References in one file of Parquet.
_RECORD = 100_000
#: Files whose chunks are found at a time.
_THREADS = 32
_PARQUET = (".parq", ".parquet")
_RECTILINEAR = (
    "Such a rectilinear grid of Zarr 3 is read by zarr-python 3.2 and later, after "
    "zarr.config.set({'array.rectilinear_chunks': True}); a master of CFA needs neither"
)
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
        reason = "is named as a repository of Icechunk: open it, and give session.store to "
        raise ExportError(place.url, f"{reason}convert_references, or to save after open_many")
    is_folder = name.endswith(_PARQUET)
    if not replaces:
        place.must_be_new()
    if is_folder:
        _check_folder(place, replaces=replaces)
    regular = "which Parquet, as Zarr 2, cannot have: write FILE.json" if is_folder else ""
    found = read()
    references = combined_references(found, resolve, options, place.url, regular=regular)
    versions = _versions(found, resolve)
    if is_folder:
        write_parquet(place, references, versions, replaces=replaces)
    else:
        document = {"version": 1, VERSIONS: versions, "refs": references}
        text = json.dumps(document, separators=(",", ":"))
        place.put(text.encode(), replaces=replaces)


def _versions(found: Aggregated, resolve: Callable[[str], str]) -> dict[str, Stamp]:
    """Return the versions of the files of an aggregation that are known."""
    stamps: dict[str, Stamp] = {}
    for table in found.tables.values():
        for number, address in enumerate(table.addresses.tolist() if table.record else ()):
            if address and address not in stamps:
                stamps[address] = table.places(number)[0].stamp
    return {resolve(address): stamp for address, stamp in stamps.items() if stamp.size >= 0}


def write_parquet(
    place: MasterPlace, references: References, versions: Mapping[str, Stamp], *, replaces: bool
) -> None:
    """Write references as a folder of Parquet.

    Parameters
    ----------
    versions
        Which versions of files they are about, by address.

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
    _put_folder(place, dict(parquet(references, versions)), replaces=replaces)


def combined_references(
    found: Aggregated,
    resolve: Callable[[str], str],
    options: Callable[[str], Mapping[str, Any] | None],
    shown: str,
    *,
    regular: str = "",
    zarr3: bool = False,
) -> References:
    """Return the references of an aggregation, of Zarr 3 where only that has its chunk grids.

    Parameters
    ----------
    resolve, options
        As of `write_references`.
    shown
        How messages name what is written.
    regular
        Why all grids must be regular, if they must, and what to do if one is not.
    zarr3
        Whether they are to be of Zarr 3 in any case.

    Raises
    ------
    ExportError
        Naming the variable or file that does not fit.
    NCZarrError
        If a file cannot be read.

    Warns
    -----
    NCZarrWarning
        For chunks of several lengths, and for chunks that are held by the references.
    """
    combination = Combination(found, resolve)

    def each(function: Callable[..., T], files: Sequence[tuple[str, Any]]) -> Iterator[T]:
        given = [(file, options(file), wanted) for file, wanted in files]
        with WaitingThreads(_THREADS, thread_name_prefix="nczarr-references") as pool:
            yield from pool.map(lambda one: function(*one), given)

    files = combination.files()
    combination.add(one.references["refs"] for one in each(find_references, files))
    ragged = combination.odd
    several = f"chunks of several lengths, the first ones of {ragged}"
    if ragged and regular:
        raise ExportError(shown, f"would have {several}, {regular}")
    cuts = combination.cuts()
    if ragged:
        _tell(shown, f"has {several}. {_RECTILINEAR}")
    if cuts:
        sizes = [cut.nbytes for of_file in cuts.values() for cut in of_file]
        held = f"holds {len(sizes)} chunks itself, {sum(sizes)} bytes before they are compressed: "
        _tell(shown, f"{held}files such as {next(iter(cuts))} end inside of a chunk")
    cut: dict[str, str] = {}
    for encoded in each(cut_chunks, [*cuts.items()]):
        cut |= encoded
    references = combination.combined(cut)
    if ragged or zarr3:
        lacking = Lacking(netcdf4=False, json=True)
        references = as_zarr3(references, combination.grids, lacking)
        lacking.tell(shown)
    return references


def _tell(shown: str, what: str) -> None:
    warnings.warn(f"{shown}: {what}", NCZarrWarning, stacklevel=caller_level())


def parquet(references: References, versions: Mapping[str, Stamp]) -> Iterator[tuple[str, bytes]]:
    """Yield the objects of a folder of Parquet files; `versions` as of `write_parquet`.

    Raises
    ------
    ImportError
        If pyarrow is not installed.
    """
    more = {"record_size": _RECORD, VERSIONS: versions}
    metadata = {**json.loads(str(references[".zmetadata"])), **more}
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
