"""``nczarr copy --hard-links``: chunks of a copy that are links to the files of its source."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.keystore import ALL
from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_xarray import to_nczarr
from nczarr_xarray.cli.main import main
from tests.support.copying import copy, failed
from tests.support.ncwriter import ramp
from tests.support.trees import read_tree

CHUNKS = tuple(f"v/{row}.{column}" for row in range(5) for column in range(4))


def cube() -> xr.Dataset:
    return xr.Dataset({"v": (("time", "x"), ramp((20, 16), "f4"))}, coords={"x": np.arange(16.0)})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """NCZarr with a variable of 5 x 4 chunks, the last ones of which end inside."""
    dataset = cube().isel(time=slice(18))
    encoding = {"v": {"chunksizes": (4, 4), "zlib": True, "_FillValue": None}}
    path = tmp_path / "source"
    to_nczarr(dataset, path, encoding=encoding, unlimited_dims=["time"])
    return path


def linked(source: Path, target: Path) -> set[str]:
    """The names of files of a copy that are files of its source."""
    names = [str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()]
    return {
        name
        for name in names
        if (source / name).exists() and os.path.samefile(source / name, target / name)
    }


def whole(source: Path) -> set[str]:
    """The chunks that are moved: not those in which the unlimited dimension ends."""
    return {name for name in CHUNKS if not name.startswith("v/4")} | {"x/0"}


@pytest.mark.parametrize(
    "options", [(), ("--format", "Zarr2"), ("--memory", "600MB"), ("--resume",), ("--workers", "2")]
)
def test_chunks_are_links_and_nothing_else_is(
    source: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    copy(source, tmp_path / "copy", "--hard-links", *options)
    assert linked(source, tmp_path / "copy") == whole(source)
    assert main(["compare", str(source), str(tmp_path / "copy")]) == 0


def test_no_links_unless_asked_for(source: Path, tmp_path: Path) -> None:
    copy(source, tmp_path / "copy")
    assert linked(source, tmp_path / "copy") == set()


def test_only_chunks_that_stay_as_they_are(source: Path, tmp_path: Path) -> None:
    copy(source, tmp_path / "copy", "--hard-links", "--chunks", "time=4")
    assert linked(source, tmp_path / "copy") == {"x/0"}
    assert main(["compare", str(source), str(tmp_path / "copy")]) == 0


@pytest.mark.parametrize("changed", ["copy", "source"])
@pytest.mark.parametrize("change", ["append", "region", "overwrite", "upgrade"])
def test_changes_of_one_leave_the_other(
    source: Path, tmp_path: Path, change: str, changed: str
) -> None:
    """This package never writes into a file that exists."""
    if change == "upgrade":
        copy(source, tmp_path / "fixed", "--fixed")
        source = tmp_path / "fixed"
    copy(source, tmp_path / "copy", "--hard-links")
    assert linked(source, tmp_path / "copy") >= whole(source)
    target, other = tmp_path / "copy", source
    if changed == "source":
        target, other = other, target
    before = read_tree(other)
    if change == "append":
        to_nczarr(cube().isel(time=slice(18, 20)).drop_vars("x"), target, "a", append_dim="time")
    elif change == "region":
        part = -cube()[["v"]].drop_vars("x").isel(time=slice(3, 10))
        to_nczarr(part, target, "r+", region={"time": slice(3, 10)})
    elif change == "overwrite":
        to_nczarr(-cube(), target, "w")
    else:
        assert main(["upgrade", str(target), "--compat", "4.9.2"]) == 0
    assert read_tree(other) == before


@pytest.mark.parametrize("foreign", [False, True])
def test_a_copy_replaces_one_with_the_same_links(
    source: Path, tmp_path: Path, foreign: bool
) -> None:
    """Two links to one file cannot replace each other by renaming; nothing is left behind."""
    target = tmp_path / "copy"
    copy(source, target, "--hard-links")
    names = set(read_tree(target))
    if foreign:  # then each file is put in place by itself
        (target / "notes").write_text("of a user")
        names.add("notes")
    copy(source, target, "--hard-links", "--overwrite")
    assert set(read_tree(target)) == names
    assert linked(source, target) == whole(source)
    assert not [path for path in target.rglob("*") if path.is_dir() and not any(path.iterdir())]


def test_links_that_the_system_refuses_are_copies(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))

    monkeypatch.setattr(os, "link", refuse)
    copy(source, tmp_path / "copy", "--hard-links")
    assert linked(source, tmp_path / "copy") == set()
    assert read_tree(tmp_path / "copy").keys() == read_tree(source).keys()


def test_what_is_a_symbolic_link_is_copied(source: Path, tmp_path: Path) -> None:
    """A link to a symbolic link would lead elsewhere."""
    chunk = source / "v/0.0"
    data = chunk.read_bytes()
    chunk.rename(source / "v/.elsewhere")
    chunk.symlink_to(".elsewhere")
    copy(source, tmp_path / "copy", "--hard-links")
    assert not (tmp_path / "copy/v/0.0").is_symlink()
    assert (tmp_path / "copy/v/0.0").read_bytes() == data
    assert linked(source, tmp_path / "copy") == whole(source) - {"v/0.0"}


def test_a_file_that_is_replaced_meanwhile_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/k").write_bytes(b"old")
    for part in DirectoryStore(tmp_path / "source").ranges([("k", ALL)], 10):
        assert part is not None
        (tmp_path / "new").write_bytes(b"new")
        os.replace(tmp_path / "new", tmp_path / "source/k")
        DirectoryWriter(tmp_path / "tree").put_range("a/k", part, link=True)
    assert read_tree(tmp_path / "tree") == {"a/k": b"old"}


@pytest.mark.parametrize("part", [slice(0, 2), slice(1, 3)])
def test_a_part_of_a_file_is_copied(tmp_path: Path, part: slice) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/k").write_bytes(b"abc")
    for atomic in (False, True):
        for found in DirectoryStore(tmp_path / "source").ranges([("k", part)], 10):
            assert found is not None
            store = DirectoryWriter(tmp_path / "tree", atomic=atomic)
            store.put_range("k", found, link=True)
        assert read_tree(tmp_path / "tree") == {"k": b"abc"[part]}


@pytest.mark.parametrize("atomic", [False, True])
def test_a_link_is_never_written_into(tmp_path: Path, atomic: bool) -> None:
    """Neither by the writer of a tree that is being made, when it writes a chunk again."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/k").write_bytes(b"abc")
    store = DirectoryWriter(tmp_path / "tree", atomic=atomic)

    def link() -> None:
        for found in DirectoryStore(tmp_path / "source").ranges([("k", ALL)], 10):
            assert found is not None
            store.put_range("k", found, link=True)

    link()
    link()
    assert linked(tmp_path / "source", tmp_path / "tree") == {"k"}
    store.put("k", b"other")
    assert read_tree(tmp_path / "source") == {"k": b"abc"}
    assert read_tree(tmp_path / "tree") == {"k": b"other"}


class TestRefused:
    def test_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        cube().to_netcdf(tmp_path / "source.nc")
        said = failed(capsys, tmp_path / "source.nc", tmp_path / "copy", "--hard-links", status=2)
        assert "--hard-links" in said
        assert "source.nc is no tree of files on this machine" in said
        assert not (tmp_path / "copy").exists()

    @pytest.mark.parametrize("target", ["memory://copy#mode=nczarr", "copy.zip"])
    def test_a_target_that_is_no_tree(
        self, source: Path, tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        where = target if ":" in target else tmp_path / target
        said = failed(capsys, source, where, "--hard-links", status=2)
        assert f"{where} is no tree of files on this machine" in said

    @pytest.mark.parametrize("name", ["copy.nc", "copy.nca"])
    def test_another_kind(
        self, source: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said = failed(capsys, source, tmp_path / name, "--hard-links", status=2)
        assert "--hard-links: not for" in said

    def test_another_file_system(self, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
        memory = Path("/dev/shm")
        if not memory.is_dir() or memory.stat().st_dev == source.stat().st_dev:
            pytest.skip("there is one file system")
        target = memory / f"nczarr-{os.getpid()}" / "copy"
        said = failed(capsys, source, target, "--hard-links", status=2)
        assert f"{source} and {target} are not on one file system" in said
        shutil.rmtree(target.parent, ignore_errors=True)
