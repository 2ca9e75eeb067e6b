"""Kerchunk references as Parquet: which row a chunk is, and what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.errors import FormatError, StoreError
from nczarr_fsspec.stores import referencefolder
from nczarr_fsspec.stores import references as references_module
from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_fsspec.stores.referencefolder import FolderReferences, Rows
from nczarr_fsspec.stores.referenceformat import Part, Row
from nczarr_xarray.dataset.open import open_references

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def rows(**columns: Any) -> Rows:
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file)
    return Rows.parse(file.getvalue(), "refs.0.parq")


def folder(array: object, record: int = 4) -> FolderReferences:
    documents = {".zgroup": {"zarr_format": 2}, "g/v/.zarray": array, "g/v/.zattrs": {"a": 1}}
    text = json.dumps({"record_size": record, "metadata": documents}).encode()
    return FolderReferences.parse(text, "r")


GRID = {"shape": [5, 7], "chunks": [2, 3]}


@pytest.mark.parametrize(
    ("array", "name", "row"),
    [
        (GRID, "0.0", (0, 0)),
        (GRID, "1.0", (0, 3)),
        (GRID, "2.2", (2, 0)),
        ({**GRID, "dimension_separator": "/"}, "2/1", (1, 3)),
        ({"shape": [], "chunks": []}, "0", (0, 0)),
        # what is no chunk of the array
        (GRID, "3.0", None),
        (GRID, "0.3", None),
        (GRID, "0", None),
        (GRID, "0.0.0", None),
        (GRID, "0/0", None),
        (GRID, "-1.0", None),
        (GRID, "a.0", None),
        (GRID, "\u0661.0", None),  # a digit of another script
        (GRID, f"{'0' * 30}.0", None),
        ({"shape": [], "chunks": []}, "1", None),
        ({"shape": [], "chunks": []}, "0.0", None),
        (GRID, ".zattributes", None),
    ],
)
def test_a_chunk_is_a_row_of_a_file(
    array: dict[str, Any], name: str, row: tuple[int, int] | None
) -> None:
    found = folder(array).find(f"g/v/{name}")
    assert found == (None if row is None else Row(f"g/v/refs.{row[0]}.parq", row[1]))


def test_documents_are_in_the_metadata() -> None:
    refs = folder(GRID)
    assert refs.find("g/v/.zattrs") == b'{"a": 1}'
    assert refs.find("g/v/.zgroup") is None
    assert refs.find("w/0.0") is None
    whole = refs.find(".zmetadata")
    assert isinstance(whole, bytes)
    assert json.loads(whole)["metadata"]["g/v/.zarray"] == GRID
    assert refs.names("") == {".zmetadata", ".zgroup", "g"}
    assert refs.names("g") == {"v"}
    assert refs.names("g/v") is None  # its chunks are in files
    assert refs.names("w") == frozenset()
    assert [*refs.files()] == ["g/v/refs.0.parq"]


@pytest.mark.parametrize(
    "array",
    [
        5,
        {"shape": [5]},
        {"shape": [5, 7], "chunks": [2]},
        {"shape": [5], "chunks": [0]},
        {"shape": ["a"], "chunks": [2]},
        {"shape": [5], "chunks": [-2]},
        {"shape": [5.5], "chunks": [2]},
        {"shape": [5], "chunks": [2], "dimension_separator": "-"},
    ],
)
def test_an_array_without_a_grid_is_an_error_that_names_it(array: object) -> None:
    with pytest.raises(StoreError, match=r"r: g/v/\.zarray: has no valid shape and chunks"):
        folder(array).find("g/v/0.0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "record_size is None"),
        ('{"record_size": true, "metadata": {}}', "record_size is True"),
        ('{"record_size": 0, "metadata": {}}', "record_size is 0"),
        ('{"record_size": 99999999999, "metadata": {}}', "record_size is 99999999999"),
        ('{"record_size": 4, "metadata": []}', "'metadata' is not an object"),
    ],
)
def test_metadata_of_no_folder_of_references_are_refused(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        FolderReferences.parse(text.encode(), "r")


def test_a_row_is_an_address_bytes_or_nothing() -> None:
    found = rows(
        path=["a.nc", "a.nc", None, None, "b.nc"],
        offset=[0, 5, 0, 0, None],
        size=[0, 7, 0, 0, None],
        raw=[None, None, b"bytes", None, None],
    )
    expected = [Part("a.nc"), Part("a.nc", 5, 12), b"bytes", None, Part("b.nc")]
    assert [found.find(number, "r") for number in range(5)] == expected
    assert rows(raw=["text"]).find(0, "r") == b"text"
    assert rows(path=["a.nc"]).find(0, "r") == Part("a.nc")
    # a column without any value has any type
    assert rows(path=pa.array([None]), raw=pa.array([None])).find(0, "r") is None


def test_a_file_without_all_of_its_rows_is_an_error() -> None:
    """Only of a file that is not there are the chunks missing."""
    with pytest.raises(StoreError, match="r: is in row 2 of a file that has 2 rows"):
        rows(path=["a.nc"] * 2).find(2, "r")
    with pytest.raises(StoreError, match="no file of references: it has no rows"):
        rows(path=pa.array([], "string"))
    assert Rows.parse(None, "refs.0.parq").find(2, "r") is None


@pytest.mark.parametrize(("offset", "size"), [(-1, 5), (5, -1), (1 << 62, 1 << 62)])
def test_a_row_that_is_no_reference_is_an_error(offset: int, size: int) -> None:
    found = rows(path=["a.nc"], offset=[offset], size=[size])
    with pytest.raises(StoreError, match=f"'a.nc', {offset}, {size}], which is no reference"):
        found.find(0, "r")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"path": [5]}, "its addresses are of type int64"),
        ({"raw": [5]}, "its bytes are of type int64"),
        ({"path": ["a"], "offset": ["x"]}, "is no file of references"),
        ({"offset": [1], "size": [2]}, "neither addresses nor bytes"),
    ],
)
def test_columns_of_other_types_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(StoreError, match=message):
        rows(**columns)


def test_too_many_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(referencefolder, "MAX_RECORD", 3)
    assert len(rows(path=["a"] * 3).codes) == 3
    with pytest.raises(StoreError, match="has more references than a file of them may have"):
        rows(path=["a"] * 4)


def test_what_is_no_parquet_is_refused() -> None:
    with pytest.raises(StoreError, match=r"refs\.0\.parq.*is no file of references"):
        Rows.parse(b"PAR1 and no more", "refs.0.parq")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_damage_is_an_error_of_ours_or_seen_in_the_rows(compression: str) -> None:
    """Of a file, each byte at a time: Arrow believes the numbers of texts that it reads."""
    file = io.BytesIO()
    columns = {"path": ["a.nc", "b.nc", "a.nc", None], "offset": [1] * 4, "size": [2] * 4}
    columns["raw"] = [None, None, None, b"raw"]
    parquet.write_table(pa.table(columns), file, compression=compression, store_schema=False)
    whole = file.getvalue()
    refused = 0
    for at in range(4, len(whole)):
        data = bytearray(whole)
        for damaged in (data[at] ^ 0xFF, data[at] ^ 0x01):
            data[at] = damaged
            try:
                found = Rows.parse(bytes(data), "refs.0.parq")
                for number in range(5):
                    found.find(number, "r")
            except StoreError:
                refused += 1
    assert refused > len(whole)


@pytest.fixture
def five(tmp_path: Path) -> DirectoryStore:
    """An array of ten chunks, two in each file of references; the last file is not there."""
    array = {"shape": [10], "chunks": [1]}
    folder = tmp_path / "refs"
    (folder / "v").mkdir(parents=True)
    (tmp_path / "data").write_bytes(bytes(range(100)))
    document = {"record_size": 2, "metadata": {".zgroup": {"zarr_format": 2}, "v/.zarray": array}}
    (folder / ".zmetadata").write_text(json.dumps(document))
    for file in range(4):
        table = pa.table({"path": ["data"] * 2, "offset": [2 * file, 2 * file + 1], "size": [9, 9]})
        parquet.write_table(table, folder / f"v/refs.{file}.parq")
    return DirectoryStore(folder)


def test_few_files_of_references_are_held(
    five: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references_module, "MOST_FOLDER_FILES", 2)
    parsed: list[str] = []
    parse = Rows.parse

    def counted(data: bytes, name: str) -> Rows:
        parsed.append(name.rpartition("/")[2])
        return parse(data, name)

    monkeypatch.setattr(Rows, "parse", counted)
    store: Any = open_references(five, AddressPolicy.of(five.url))
    for chunk in (*range(8), 0, 5):
        assert store.get(f"v/{chunk}") == bytes(range(chunk, chunk + 9))
    assert parsed == [f"refs.{number}.parq" for number in (0, 1, 2, 3, 0, 2)]
    assert store.get("v/8") is None  # as a chunk that was never written
    assert store.get("v/10") is None


def test_what_a_folder_of_references_is_is_known_by_its_metadata(five: DirectoryStore) -> None:
    first, again = (open_references(five, AddressPolicy.of(five.url)) for _ in range(2))
    before = first.contents()
    assert again.contents() == before
    metadata = Path(five.path, ".zmetadata")
    metadata.write_text(metadata.read_text().replace("[10]", "[9]"))
    assert first.contents() != before


def test_metadata_that_cannot_be_read_are_an_error(
    five: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(key: str, *_: Any) -> None:
        raise StoreError(key, "cannot be read: Input/output error")

    monkeypatch.setattr(five, "get", fails)
    with pytest.raises(StoreError, match="Input/output error"):
        open_references(five, AddressPolicy.of(five.url)).get_many(["v/0"])
