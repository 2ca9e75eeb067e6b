"""One object and what is written beside it: where that is, and whether it is there."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from nczarr_fsspec.destination import FilePlace, open_destination
from nczarr_fsspec.errors import DatasetNotFoundError, StoreError, URLError
from nczarr_fsspec.keystore import LocalStore
from nczarr_fsspec.place import Place
from nczarr_fsspec.stores.mapping import MappingWriter


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_local_file_has_its_folder_beside_it(form: str, tmp_path: Path) -> None:
    place = FilePlace.find(form.format(tmp_path / "a.nc"))
    assert (place.name, place.folder) == ("a.nc", f"{tmp_path}/")
    assert not place.exists()
    (tmp_path / "a.nc").write_bytes(b"x" * 100)
    assert place.exists()


def test_modes_of_a_url_are_known(tmp_path: Path) -> None:
    place = FilePlace.find(f"file://{tmp_path}/a.nc#mode=bytes")
    assert place.mode == {"bytes"}
    assert place.target.endswith("#mode=bytes")


def test_a_folder_is_something(tmp_path: Path) -> None:
    (tmp_path / "a.nc").mkdir()
    (tmp_path / "a.nc" / "inside").write_bytes(b"x")
    assert FilePlace.find(tmp_path / "a.nc").exists()


def test_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    place = FilePlace.find("~/a.nc")
    assert (place.name, place.folder) == ("a.nc", f"{tmp_path}/")
    # what is called so is what is meant
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~").mkdir()
    (tmp_path / "~" / "a.nc").write_bytes(b"x")
    assert FilePlace.find("~/a.nc").folder == f"{tmp_path}/~/"


def test_an_object_of_another_filesystem() -> None:
    place = FilePlace.find("memory://beside/below/a.nc#mode=bytes")
    assert place.name == "a.nc"
    assert place.folder == "memory://beside/below/"
    assert not place.exists()
    place.store.put("a.nc", b"data")
    assert place.exists()
    assert fsspec.filesystem("memory").cat_file("/beside/below/a.nc") == b"data"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("/", "names no file"),
        ("memory://", "names no object"),
        ("http://127.0.0.1:1/a.nc", "HTTP"),
        (io.BytesIO(), "no place beside it"),
        ({}, "no place beside it"),
    ],
)
def test_what_has_nothing_beside_it_is_refused(target: Any, message: str) -> None:
    with pytest.raises(URLError, match=message):
        FilePlace.find(target)


def test_that_an_object_cannot_be_looked_at_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = FilePlace.find(tmp_path / "a.nc")

    def fails(self: LocalStore, keys: Any, most: int | None = None) -> list[StoreError]:
        return [StoreError(key, "cannot be read: Input/output error") for key in keys]

    monkeypatch.setattr(LocalStore, "get_many", fails)
    monkeypatch.setattr(type(place.store.reader()), "get_many", fails)
    with pytest.raises(StoreError, match="Input/output error"):
        place.exists()


def test_what_a_destination_may_be() -> None:
    keys: dict[str, bytes] = {}
    found = open_destination(keys)
    assert isinstance(found.store, MappingWriter)
    assert open_destination(found.store).store is found.store
    with pytest.raises(URLError, match="a file object cannot hold a dataset"):
        open_destination(io.BytesIO())
    with pytest.raises(URLError, match="storage_options apply to URLs and paths only"):
        open_destination(keys, {"anon": True})
    with pytest.raises(URLError, match="is not a path, URL, mapper or mutable mapping"):
        open_destination(5)
    mapper = fsspec.get_mapper("memory://a/tree.nc")
    assert open_destination(mapper).kind == open_destination("memory://a/tree").kind
    opened = fsspec.open("memory://a/tree.zip", "wb")  # which is not open yet: it names a file
    assert open_destination(opened).kind == open_destination("memory://a/tree.zip").kind == "zip"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "is not a path"),
        ("memory://a/x.nc#mode=bytes", "names one classic or HDF5 file"),
        ("/tmp/x#mode=nczarr", "only a URL has a fragment: write file://"),
        ("http://127.0.0.1:1/tree", "HTTP"),
        (str(Path("s3://bucket/tree")), "s3:/bucket/tree: a URL has two slashes, and pathlib"),
    ],
)
def test_what_no_dataset_can_be_written_to(target: str, message: str) -> None:
    with pytest.raises(URLError, match=message):
        open_destination(target)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("s3:/b/x.nc#mode=bytes", "a URL has two slashes, and pathlib.Path takes one away: give"),
        ("x.nc#mode=bytes", "only a URL has a fragment: write file://"),
    ],
)
def test_a_path_that_is_meant_to_be_a_url(
    target: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatasetNotFoundError, match=f"no such file or directory; {message}"):
        Place.of(target).open()
    for opener in (open_destination, FilePlace.find):
        with pytest.raises(URLError, match=message):
            opener(target)
    assert not os.listdir(tmp_path)
    (tmp_path / "s3:").mkdir()  # then it is a path, as on any other day
    assert open_destination("s3:/x").path == f"{tmp_path}/s3:/x"
    assert open_destination("C:/x").kind == "directory"


def test_paths_of_universal_pathlib_are_what_they_name() -> None:
    """Each has a ``root``, as all of pathlib's, which is no mapper's."""
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/universal/x.nc", b"CDF\x01")
    fs.pipe_file("/universal/tree/.zgroup", b"{}")

    def path(name: str) -> Any:
        return SimpleNamespace(fs=fs, path=f"/universal/{name}", root="/")

    assert open_destination(path("new.nczarr")).url == "memory:///universal/new.nczarr"
    assert bytes(Place.of(path("x.nc")).open().data.head) == b"CDF\x01"  # type: ignore[union-attr]
    tree = Place.of(path("tree")).open().data
    assert isinstance(tree, LocalStore)
    assert tree.get(".zgroup") == b"{}"


def test_a_path_of_universal_pathlib_itself() -> None:
    upath = pytest.importorskip("upath")
    target = upath.UPath("memory://universal/new.nczarr")
    assert open_destination(target).url == "memory:///universal/new.nczarr"
