"""Kerchunk references as Parquet: a folder with ``.zmetadata``, and files with rows of references.

The references of the array ``v`` are in ``v/refs.0.parq``, ``v/refs.1.parq``, ..., so many in
each; the number of a row is that of the chunk. This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError, StoreError
from nczarr_fsspec.keystore import ZARR_METADATA, child_names, chunk_number
from nczarr_fsspec.stores.referenceformat import (
    CONSOLIDATED,
    Found,
    Part,
    References,
    Row,
    part,
    versions_in,
)
from nczarr_fsspec.transport.request import Stamp

#: Bytes of one file of references at most, as it is and unpacked.
MAX_FILE = 1 << 26
_MAX_UNPACKED = 1 << 30
#: Rows that one file may have.
MAX_RECORD = 1 << 24
_COLUMNS = ("path", "offset", "size", "raw")


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One file of references, in columns.

    Attributes
    ----------
    names : list of str
        Addresses.
    codes : ndarray
        Numbers of addresses; -1 for none.
    offsets, sizes : ndarray
        In bytes.
    inside
        Bytes that are in the references themselves, or None; an array of Arrow.
    """

    names: list[str]
    codes: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    inside: Any

    @classmethod
    def parse(cls, data: bytes | None, shown: str) -> Rows:
        """Read a file of Parquet; one that is missing has no rows.

        Raises
        ------
        ImportError
            If pyarrow is not installed.
        StoreError
            If it is no such file, or too large.
        """
        if data is None:
            nothing = np.empty(0, dtype=np.int64)
            return cls([], nothing, nothing, nothing, None)
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError:
            raise ImportError(
                f"{shown}: references in Parquet need pyarrow: pip install 'nczarr-xarray[parquet]'"
            ) from None
        try:
            metadata = parquet.read_metadata(pa.BufferReader(data))
            groups = range(metadata.num_row_groups)
            unpacked = sum(metadata.row_group(group).total_byte_size for group in groups)
            if metadata.num_rows > MAX_RECORD or not 0 <= unpacked <= _MAX_UNPACKED:
                raise StoreError(shown, "has more references than a file of them may have")
            there = [name for name in _COLUMNS if name in metadata.schema.names]
            # equal texts stay one text: rows that repeat a long one would take all memory
            texts = [name for name in ("path", "raw") if name in there]
            file = parquet.ParquetFile(
                pa.BufferReader(data), metadata=metadata, read_dictionary=texts
            )
            table = file.read(columns=there).combine_chunks()
            found = {name: _one_array(table.column(name)) for name in there}
            for column in found.values():
                column.validate(full=True)  # a row may name a text that is not there
            return cls._of(found, table.num_rows, pa)
        except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(shown, f"is no file of references: {error}") from None

    @classmethod
    def _of(cls, found: Mapping[str, Any], count: int, pa: Any) -> Rows:
        if not count or not {"path", "raw"} & found.keys():
            raise TypeError("it has no rows, or neither addresses nor bytes")
        codes = np.full(count, -1, dtype=np.int32)
        names: list[str] = []
        paths = found.get("path")
        # a column without any value has any type
        if paths is not None and paths.null_count < count:
            if not pa.types.is_dictionary(paths.type):
                raise TypeError(f"its addresses are of type {paths.type}")
            codes = paths.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
            names = [str(name or "") for name in paths.dictionary.to_pylist()]
        numbers = (found.get(name) for name in ("offset", "size"))
        offsets, sizes = (
            np.zeros(count, dtype=np.int64)
            if column is None
            else column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            for column in numbers
        )
        inside = found.get("raw")
        if inside is not None and inside.null_count == count:
            inside = None
        if inside is not None and not pa.types.is_dictionary(inside.type):
            raise TypeError(f"its bytes are of type {inside.type}")
        return cls(names, codes, offsets, sizes, inside)

    def find(self, number: int, shown: str) -> bytes | Part | None:
        """Return what the reference in a row is; errors as `References.find`."""
        count = len(self.codes)
        if number >= count:
            if not count:  # there is no file: writers leave out one without references
                return None
            raise StoreError(shown, f"is in row {number} of a file that has {count} rows")
        if self.inside is not None:
            data = self.inside[number].as_py()
            if data is not None:
                return data.encode() if isinstance(data, str) else bytes(data)
        code = int(self.codes[number])
        if code < 0:
            return None
        address, offset, size = self.names[code], int(self.offsets[number]), int(self.sizes[number])
        try:
            return part(address) if offset == size == 0 else part(address, offset, size)
        except ValueError:
            raise StoreError(
                shown, f"is [{address!r:.80}, {offset}, {size}], which is no reference"
            ) from None


@dataclass(frozen=True, slots=True)
class _Grid:
    """The chunks of one array, as many along each dimension as `counts` has."""

    counts: tuple[int, ...]
    separator: str

    @classmethod
    def of(cls, document: Any, shown: str) -> _Grid:
        try:
            shape, chunks = document["shape"], document["chunks"]
            counts = tuple(-(-length // size) for length, size in zip(shape, chunks, strict=True))
            separator = document.get("dimension_separator") or "."
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            counts, separator = (-1,), ""
        if separator not in {".", "/"} or any(
            type(count) is not int or count < 0 for count in counts
        ):
            raise StoreError(shown, "has no valid shape and chunks")
        return cls(counts, separator)

    def number(self, name: str) -> int | None:
        """Return the number of a chunk; None if there is no such chunk."""
        return chunk_number(name.split(self.separator), self.counts)


class FolderReferences(References):
    """References in a folder of Parquet files.

    Parameters
    ----------
    documents
        The metadata, by key.
    record
        References per file.
    shown
        How messages name the folder.
    versions
        As of `References`.
    """

    __slots__ = ("_children", "_grids", "_record", "_shown", "documents")

    def __init__(
        self, documents: Mapping[str, Any], record: int, shown: str, versions: Mapping[str, Stamp]
    ) -> None:
        self.documents = documents
        self.versions = versions
        self._record = record
        self._shown = shown
        self._grids: dict[str, _Grid] = {}
        self._children = child_names([CONSOLIDATED, *documents])

    @classmethod
    def parse(cls, text: bytes, shown: str) -> FolderReferences:
        """Read ``.zmetadata``; `FormatError` if it is not that of a folder of references."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{shown}: {CONSOLIDATED}", f"is no JSON: {error}") from None
        record = document.get("record_size") if isinstance(document, dict) else None
        documents = document.get("metadata") if isinstance(document, dict) else None
        if type(record) is not int or not 0 < record <= MAX_RECORD:
            raise FormatError(f"{shown}: {CONSOLIDATED}", f"record_size is {record!r:.40}")
        if not isinstance(documents, dict):
            raise FormatError(f"{shown}: {CONSOLIDATED}", "'metadata' is not an object")
        return cls(documents, record, shown, versions_in(document, shown))

    def find(self, key: str) -> Found:
        if key == CONSOLIDATED:
            whole = {"zarr_consolidated_format": 1, "metadata": self.documents}
            return json.dumps(whole).encode()
        document = self.documents.get(key)
        if document is not None:
            return json.dumps(document).encode()
        array, _, name = key.rpartition("/")
        while array and f"{array}/.zarray" not in self.documents:  # keys may be nested
            array, _, above = array.rpartition("/")
            name = f"{above}/{name}"
        if not array or name.rpartition("/")[2] in ZARR_METADATA:
            return None
        number = self._grid(array).number(name)
        if number is None:
            return None
        file, row = divmod(number, self._record)
        return Row(f"{array}/refs.{file}.parq", row)

    def _grid(self, array: str) -> _Grid:
        grid = self._grids.get(array)
        if grid is None:
            key = f"{array}/.zarray"
            grid = self._grids[array] = _Grid.of(self.documents[key], f"{self._shown}: {key}")
        return grid

    def names(self, prefix: str) -> frozenset[str] | None:
        if f"{prefix}/.zarray" in self.documents:
            return None  # which chunks there are is in files that need not be read for it
        return self._children.get(prefix, frozenset())

    def addresses(self) -> Iterable[str]:
        return ()

    def files(self) -> Iterable[str]:
        for key in self.documents:
            array, slash, name = key.rpartition("/")
            if slash and name == ".zarray":
                yield f"{array}/refs.0.parq"


def _one_array(column: Any) -> Any:
    chunks = column.num_chunks
    return column.chunk(0) if chunks == 1 else column.combine_chunks()
