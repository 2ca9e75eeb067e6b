"""What users do by mistake, or as others have it: it works, or a message says what to do."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from botocore.exceptions import ClientError
from s3fs import S3FileSystem
from zarr.core.sync import sync

from nczarr_fsspec.errors import NCZarrError, NCZarrWarning, StoreError, URLError
from nczarr_fsspec.transport.filesystems import fail
from nczarr_xarray import to_nczarr
from nczarr_xarray.cli.main import main
from tests.support.builders.trees import read_tree
from tests.support.servers.httpserver import Server

DATA = xr.Dataset({"v": ("x", np.arange(4.0))}, {"x": np.arange(4)})
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab12\nsize 12345\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `DATA` as a netCDF file, in a zip archive and as trees."""
    DATA.to_netcdf(tmp_path / "one.nc", engine="h5netcdf")
    to_nczarr(DATA, tmp_path / "d")
    DATA.to_zarr(tmp_path / "z2", zarr_format=2, consolidated=False)
    DATA.to_zarr(tmp_path / "z3", zarr_format=3, consolidated=False)
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:
        archive.write(tmp_path / "one.nc", "one.nc")
    return tmp_path


def opened(target: Any, **options: Any) -> xr.Dataset:
    with xr.open_dataset(target, engine="nczarr", **options) as ds:
        return ds.load()


@pytest.mark.parametrize("prefix", ["[mode=nczarr]", "[log][mode=nczarr,file]", "[nczarr]"])
def test_a_fragment_in_brackets(folder: Path, prefix: str) -> None:
    """So netCDF-C takes it, too."""
    target = f"{prefix}file://{folder}/d"
    xr.testing.assert_identical(opened(target), DATA)
    to_nczarr(DATA * 2, target, mode="w")
    xr.testing.assert_identical(opened(folder / "d"), DATA * 2)


@pytest.mark.parametrize("write", [False, True])
def test_a_url_that_pathlib_has_changed(write: bool) -> None:
    options: dict[str, Any] = {"storage_options": {"anon": True}}
    with pytest.raises(URLError, match=r"s3:/b/x: a URL has two slashes, and pathlib"):
        to_nczarr(DATA, "s3:/b/x", **options) if write else opened("s3:/b/x", **options)


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        ("d", ".zgroup"),
        ("d", "v/.zarray"),
        ("d", "v/0"),
        ("z2", "v/0"),
        ("z3", "v/zarr.json"),
        ("z3", "v/c/0"),
    ],
)
def test_a_pointer_of_git_lfs_in_a_tree(folder: Path, tree: str, key: str) -> None:
    (folder / tree / key).write_bytes(POINTER)
    # one of a variable is a warning, as the others can be read
    with pytest.raises(
        (NCZarrError, NCZarrWarning), match=rf"{key}: is a pointer of Git LFS: git lfs pull"
    ):
        opened(folder / tree)


def test_an_archive_of_one_netcdf_file(folder: Path) -> None:
    with pytest.raises(NCZarrError, match=r"holds netCDF files \(one.nc\): open zip:") as caught:
        opened(folder / "one.zip")
    said = str(caught.value).rpartition(": open ")[2]
    xr.testing.assert_identical(opened(said), DATA)


def test_a_remote_file_whose_mode_says_tree(folder: Path) -> None:
    with Server(read_tree(folder, "/")) as server:
        with pytest.raises(NCZarrError, match=r"one netCDF file, leave the mode out"):
            opened(f"{server.url}/one.nc#mode=nczarr")
        xr.testing.assert_identical(opened(f"{server.url}/one.nc"), DATA)


def test_an_archive_that_zarr_has_open(folder: Path) -> None:
    store = sync(zarr.storage.ZipStore.open(folder / "new.zip", mode="w"))
    with pytest.raises(StoreError, match=r"new.zip: is open for writing already, by zarr: name"):
        to_nczarr(DATA, store)
    store.close()
    to_nczarr(DATA, zarr.storage.ZipStore(folder / "other.zip", mode="w"))
    xr.testing.assert_identical(opened(folder / "other.zip"), DATA)


def test_objects_of_icechunk(tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    for target in (repository, session, session.store):
        with pytest.raises(NCZarrError, match=r"Icechunk holds Zarr 3 only, so write with"):
            to_nczarr(DATA, target)
    with pytest.raises(NCZarrError, match=r"give the store of a session"):
        opened(session)
    DATA.to_zarr(session.store, consolidated=False)
    xr.testing.assert_identical(opened(session.store), DATA)


def test_a_region_of_no_dimension_is_one_error(folder: Path) -> None:
    with pytest.raises(NCZarrError) as caught:
        to_nczarr(DATA, folder / "d", region={"X": slice(0, 4)})
    lines = str(caught.value).splitlines()
    assert lines[1:] == ["  region names 'X', which the new values do not have"]
    with pytest.raises(NCZarrError) as caught:
        to_nczarr(DATA.isel(x=[0]), folder / "d", region={"X": slice(0, 1)})
    assert str(caught.value).splitlines()[1:] == lines[1:]


def test_validate_does_not_advise_to_correct_what_is_cut_off(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (folder / "one.nc").read_bytes()
    (folder / "cut.nc").write_bytes(whole[:-16])
    assert main(["validate", str(folder / "cut.nc")]) == 1
    said = capsys.readouterr().out
    assert "get the file again, or restore it from a copy" in said
    assert "correct" not in said


#: Arguments of the engines h5netcdf, netcdf4, scipy and zarr that ask for nothing special.
HARMLESS: list[dict[str, Any]] = [
    {"phony_dims": "sort", "decode_vlen_strings": True, "invalid_netcdf": None, "lock": False},
    {"format": "NETCDF4", "clobber": False, "diskless": False, "persist": False, "mode": "r"},
    {"zarr_format": None, "chunk_store": None, "synchronizer": None, "mmap": None},
]


@pytest.mark.parametrize("options", HARMLESS)
@pytest.mark.parametrize("opening", [xr.open_dataset, xr.open_datatree, xr.open_groups])
def test_arguments_of_other_engines(
    folder: Path, options: dict[str, Any], opening: Callable[..., Any]
) -> None:
    found = opening(folder / "one.nc", engine="nczarr", **options)
    assert (found["/"] if isinstance(found, dict) else found)["v"].values.tolist() == [0, 1, 2, 3]


def test_unnamed_dimensions_are_called_as_others_call_them(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "h.h5", "w") as file:
        file["b"], file["a"] = np.zeros((3, 2)), np.zeros((2, 5))
    theirs = xr.open_dataset(tmp_path / "h.h5", engine="h5netcdf", phony_dims="sort")
    with theirs, xr.open_dataset(tmp_path / "h.h5", engine="nczarr", phony_dims="sort") as ours:
        xr.testing.assert_equal(ours, theirs)


def test_arguments_that_mean_nothing_here_are_named(folder: Path) -> None:
    with pytest.raises(URLError, match=r"phony_dims=: 'access' has no meaning for engine 'nczarr'"):
        opened(folder / "one.nc", phony_dims="access")
    with pytest.raises(TypeError, match=r"engine 'nczarr' takes no argument 'storage_option'"):
        opened(folder / "one.nc", storage_option={})


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("SignatureDoesNotMatch", "the key or the secret is wrong"),
        ("InvalidAccessKeyId", "the key or the secret is wrong"),
        ("AccessDenied", '"anon": True'),
    ],
)
def test_keys_of_s3_that_are_wrong(code: str, said: str) -> None:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    refused = PermissionError("no")
    refused.__cause__ = ClientError(answer, "GetObject")
    with pytest.raises(StoreError) as caught:
        fail(S3FileSystem(anon=True, skip_instance_cache=True), "b/x", refused)
    assert said in str(caught.value)
    assert (code == "AccessDenied") == ("anon" in str(caught.value))


def test_the_script_of_continuous_integration_needs_a_new_python() -> None:
    script = Path(__file__).parents[2] / "ci" / "run.py"
    ast.parse(script.read_text("utf-8"), feature_version=(3, 7))
    code = "import sys; sys.version_info = (3, 10, 1); sys.argv = sys.argv[1:]; "
    code += "exec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'))"
    command = [sys.executable, "-c", code, str(script)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ci/run.py needs Python 3.11 or later" in done.stderr
