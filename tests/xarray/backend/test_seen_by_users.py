"""What users see when a dataset cannot be opened, or only in part: short, and about their code."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import netCDF4
import numpy as np
import pytest
import xarray as xr

import nczarr_xarray
from nczarr_fsspec.errors import DatasetNotFoundError, FormatError, NCZarrWarning


@pytest.mark.parametrize(
    ("name", "expected"), [("none.nc", DatasetNotFoundError), ("text.nc", FormatError)]
)
def test_traceback_names_few_of_our_functions(
    name: str, expected: type[Exception], tmp_path: Path
) -> None:
    (tmp_path / "text.nc").write_text("hello\n")
    with pytest.raises(expected) as caught:
        xr.open_dataset(tmp_path / name, engine="nczarr")
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files[0] == __file__
    assert len([file for file in files if Path(file).name == "entrypoint.py"]) == 2
    assert Path(files[-1]).name == "entrypoint.py"


def test_warning_names_the_line_that_opens(tmp_path: Path) -> None:
    xr.Dataset({"v": ("x", np.arange(3))}).to_zarr(tmp_path / "a.zarr", zarr_format=2)
    (tmp_path / "a.zarr" / "other").mkdir()
    (tmp_path / "a.zarr" / "other" / "0").write_bytes(b"?")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        xr.open_dataset(tmp_path / "a.zarr", engine="nczarr", consolidated=False)
        nczarr_xarray.load_dataset(tmp_path / "a.zarr")
    ours = [warning for warning in caught if issubclass(warning.category, NCZarrWarning)]
    assert {warning.filename for warning in ours} == {__file__}


def test_a_misspelt_group_is_answered_with_its_name(tmp_path: Path) -> None:
    tree = xr.DataTree.from_dict({"/ocean": xr.Dataset({"v": ("x", np.arange(3))})})
    tree.to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    nczarr_xarray.to_nczarr(tree, tmp_path / "a.nczarr")
    for name in ("a.nc", "a.nczarr"):
        with pytest.raises(DatasetNotFoundError, match=r"no group ./ocaen.; did you mean ocean\?"):
            xr.open_dataset(tmp_path / name, engine="nczarr", group="ocaen")


@pytest.mark.parametrize("group", [".", "./", "./ocean", "ocean/."])
@pytest.mark.parametrize("name", ["a.nc", "a.nczarr"])
def test_a_dot_is_no_group(tmp_path: Path, name: str, group: str) -> None:
    """As for netCDF."""
    tree = xr.DataTree.from_dict({"/ocean": xr.Dataset({"v": ("x", np.arange(3))})})
    if name == "a.nc":
        tree.to_netcdf(tmp_path / name, engine="netcdf4")
        with pytest.raises(OSError, match="group not found"):
            xr.open_dataset(tmp_path / name, engine="netcdf4", group=group)
    else:
        nczarr_xarray.to_nczarr(tree, tmp_path / name)
    with pytest.raises(DatasetNotFoundError):
        xr.open_dataset(tmp_path / name, engine="nczarr", group=group)


def damaged(name: str, part: str, folder: Path) -> Path:
    """Make a dataset of which a chunk, a variable or the root is damaged."""
    path, ds = folder / name, xr.Dataset({"v": ("x", np.arange(1000))})
    encoding = {"v": {"zlib": True, "chunksizes": (500,)}}
    if name == "a.nc":
        ds.to_netcdf(path, engine="netcdf4", encoding=encoding)
        data = bytearray(path.read_bytes())
        if part == "root":
            data[8] = 77  # the version of the superblock
        else:  # the beginnings of the chunks
            for at in [at for at in range(len(data) - 1) if data[at : at + 2] == b"\x78\x5e"]:
                data[at : at + 40] = bytes(40)
        path.write_bytes(data)
        return path
    ds.nczarr.to_nczarr(path, encoding=encoding)
    key = {"chunk": "v/1", "variable": "v/.zarray", "root": ".zgroup"}[part]
    (path / key).write_text('{"zarr_format": 2}' if part == "variable" else "{")
    return path


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("a.nc", "chunk"),
        ("a.nc", "root"),
        ("a.nczarr", "chunk"),
        ("a.nczarr", "variable"),
        ("a.nczarr", "root"),
    ],
)
@pytest.mark.filterwarnings("ignore:variable '/v' cannot be read")
def test_errors_name_the_dataset(name: str, part: str, tmp_path: Path) -> None:
    """One time: of many that are opened together, the damaged one has to be found."""
    path = damaged(name, part, tmp_path)
    for _ in range(2):  # it may be remembered
        with pytest.raises(FormatError) as caught:
            xr.open_dataset(path, engine="nczarr", chunks=None).load()
        assert str(caught.value).count(str(path)) == 1


@pytest.mark.parametrize("made", [xr.Dataset, xr.DataTree, xr.DataArray])
@pytest.mark.parametrize("function", [nczarr_xarray.validate, nczarr_xarray.open_hierarchy])
def test_what_xarray_opened_is_no_store(made: type, function: Callable[..., Any]) -> None:
    """A Dataset is a mapping, too; that it has no Zarr metadata would say nothing to a user."""
    with pytest.raises(nczarr_xarray.URLError, match=f"{made.__name__} object: is not a path"):
        function(made())


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_folder_of_datasets_is_not_taken_for_an_empty_one(
    zarr_format: Literal[2, 3], tmp_path: Path
) -> None:
    for name in ("a.zarr", "b.zarr"):
        xr.Dataset({"v": ("x", np.arange(3))}).to_zarr(
            tmp_path / name, zarr_format=zarr_format, consolidated=False
        )
    with pytest.warns(NCZarrWarning, match=r"only the groups 'a\.zarr', 'b\.zarr': open one"):
        xr.open_dataset(tmp_path, engine="nczarr")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(xr.open_groups(tmp_path, engine="nczarr")) == 3
        xr.open_dataset(tmp_path, engine="nczarr", group="a.zarr")
        xr.open_dataset(tmp_path / "a.zarr", engine="nczarr")


def test_the_folder_of_a_group_is_no_dataset_of_its_own(tmp_path: Path) -> None:
    tree = xr.DataTree.from_dict({"/ocean": xr.Dataset({"v": ("x", np.arange(3))})})
    nczarr_xarray.to_nczarr(tree, tmp_path / "a.nczarr", unlimited_dims={"/ocean": ["x"]})
    with pytest.warns(NCZarrWarning, match="is a group of an NCZarr dataset: open that dataset"):
        part = xr.open_dataset(tmp_path / "a.nczarr" / "ocean", engine="nczarr")
    assert not part.encoding["unlimited_dims"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xr.open_dataset(tmp_path / "a.nczarr", engine="nczarr", group="ocean")
        target = f"{(tmp_path / 'a.nczarr' / 'ocean').as_uri()}#mode=zarr"
        xr.open_dataset(target, engine="nczarr")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (["a.nc", "b.nc"], "^list object: .* opened from; xr.open_mfdataset opens several"),
        ("*.nc", r"^\*\.nc: there is no such file or directory; xr.open_mfdataset opens several"),
        ("", "^'': there is no such file or directory$"),
    ],
)
def test_errors_say_what_opens_several(target: Any, message: str) -> None:
    with pytest.raises((nczarr_xarray.URLError, DatasetNotFoundError), match=message):
        xr.open_dataset(target, engine="nczarr")


def test_without_dask_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dask.delayed", None)
    with pytest.raises(ImportError, match="compute=False needs dask"):
        nczarr_xarray.to_nczarr(xr.Dataset({"v": 1}), tmp_path / "a.nczarr", compute=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.nc", "file://{}/a.nczarr#mode=nczarr,file"])
def test_strings_with_an_encoding_are_text(tmp_path: Path, name: str) -> None:
    """xarray would decode them as bytes, which fails with netCDF4's engine."""
    url = name.format(tmp_path) if ":" in name else str(tmp_path / name)
    texts = np.array(["é", "b"], object)
    with netCDF4.Dataset(url, "w") as file:
        file.createDimension("x", 2)
        variable = file.createVariable("t", str, ("x",))
        variable.setncattr("_Encoding", "utf-8")
        variable[:] = texts
    with xr.open_dataset(url, engine="nczarr") as ds:
        assert ds["t"].values.tolist() == texts.tolist()
        ds.to_netcdf(tmp_path / "back.nc", engine="netcdf4")
        ds.nczarr.to_nczarr(tmp_path / "back.nczarr")
    for back in ("back.nc", "back.nczarr"):
        assert xr.load_dataset(tmp_path / back, engine="nczarr")["t"].values.tolist() == [*texts]
