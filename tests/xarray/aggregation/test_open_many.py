from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import nczarr_xarray
from nczarr_fsspec.errors import DatasetNotFoundError, ExportError, FormatError, NCZarrWarning
from nczarr_xarray import open_many
from tests.support.builders.manyfiles import Given, field, step
from tests.support.servers.httpserver import Server
from tests.support.servers.s3server import S3Server


def parts(folder: Path, **options: Any) -> list[str]:
    """Write files whose names are not in the order of their times."""
    folder.mkdir(exist_ok=True)
    return [step(folder / f"{9 - n}.nc", [2 * n, 2 * n + 1], **options) for n in range(3)]


@pytest.mark.parametrize("form", ["NETCDF4", "NETCDF3_CLASSIC"])
@pytest.mark.parametrize("chunks", [None, {}, {"time": 2}])
def test_equals_the_other_engine(tmp_path: Path, form: str, chunks: Any) -> None:
    labels: dict[str, Given] = {"label": (("x",), np.array(list("abc"), "S1"), {})}
    files = parts(tmp_path, form=form, more=labels, title="one")
    with (
        open_many(tmp_path, chunks=chunks) as ours,
        xr.open_mfdataset(
            files,
            engine="netcdf4",
            combine="by_coords",
            data_vars="minimal",
            compat="equals",
            join="exact",
        ) as theirs,
    ):
        xr.testing.assert_identical(ours.load(), theirs.load())


@pytest.mark.parametrize("name", ["m.nca", "m.nczarr", "m.json"])
def test_what_was_opened_is_saved(tmp_path: Path, name: str) -> None:
    parts(tmp_path / "in")
    many = open_many(f"{tmp_path}/in/*.nc")
    many.nczarr.save(tmp_path / name)
    with xr.open_dataset(tmp_path / name, engine="nczarr") as saved:
        xr.testing.assert_equal(saved.load(), many.load())
    with pytest.raises(ExportError, match="open_many"):
        (many + 1).nczarr.save(tmp_path / "other.nca")


def test_is_pickled_and_has_groups_and_dropped_variables(tmp_path: Path) -> None:
    parts(tmp_path)
    many = open_many(tmp_path, drop_variables="x", decode_times=False)
    assert "x" not in many.variables
    again = pickle.loads(pickle.dumps(many))
    assert np.array_equal(again.tas.values, field([*range(6)]))
    with pytest.raises(DatasetNotFoundError, match="/none"):
        open_many(tmp_path, group="/none")


def test_one_file(tmp_path: Path) -> None:
    file = step(tmp_path / "0.nc", [0])
    with xr.open_dataset(file, engine="nczarr") as one:
        xr.testing.assert_identical(open_many(tmp_path).load(), one.load())
        assert [*open_many(tmp_path, variables=["tas"]).data_vars] == ["tas"]
        assert [*open_many(tmp_path, variables="x").variables] == ["x"]


def test_packed_files(tmp_path: Path) -> None:
    for n in range(2):
        packed = xr.Dataset({"t": ("x", [1.5 + n, np.nan])}, {"x": [2.0 * n, 2.0 * n + 1]})
        form = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}
        packed.to_netcdf(tmp_path / f"{n}.nc", encoding={"t": form})
    with open_many(tmp_path) as many:
        assert many.t.encoding["dtype"] == "int16"
        assert np.array_equal(many.t.values, [1.5, np.nan, 2.5, np.nan], equal_nan=True)


def test_what_is_no_dataset_is_named_or_left_out(tmp_path: Path) -> None:
    parts(tmp_path)
    (tmp_path / "README").write_text("not one")
    with pytest.raises(FormatError, match="README"):
        open_many(tmp_path)
    with (
        pytest.warns(NCZarrWarning, match="README.*left out"),
        open_many(tmp_path, skip_unreadable=True, decode_times=False) as many,
    ):
        assert np.array_equal(many.tas.values, field([*range(6)]))
    with (
        pytest.warns(NCZarrWarning, match="README"),
        pytest.raises(DatasetNotFoundError, match="is no dataset"),
    ):
        open_many([tmp_path / "README"] * 2, skip_unreadable=True)


def test_what_cannot_be_reached_is_not_left_out(tmp_path: Path) -> None:
    data = Path(step(tmp_path / "0.nc", [0])).read_bytes()
    with Server({"/0.nc": data, "/1.nc": data}) as server:
        files = [f"{server.url}/{n}.nc" for n in (0, 1, 2)]
        with pytest.raises(DatasetNotFoundError, match=r"2\.nc"):
            open_many(files, skip_unreadable=True)


def test_remote_files(tmp_path: Path) -> None:
    files = parts(tmp_path)
    served = {f"/{Path(file).name}": Path(file).read_bytes() for file in files}
    with Server(served) as server:
        many = open_many([server.url + name for name in served], decode_times=False)
        assert len(server.requests) <= 2 * len(files)
        assert np.array_equal(many.tas.values, field([*range(6)]))


@pytest.mark.servers
def test_options_of_a_private_bucket(tmp_path: Path, s3_server: S3Server) -> None:
    import s3fs

    options = s3_server.signed()
    fs = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    for file in parts(tmp_path):
        fs.put_file(file, f"{s3_server.private}/many/{Path(file).name}")
    many = open_many(
        f"s3://{s3_server.private}/many/*.nc", storage_options=options, decode_times=False
    )
    assert np.array_equal(many.tas.values, field([*range(6)]))
    target = f"s3://{s3_server.private}/many/m.nca"
    many.nczarr.save(target, output_options=options)
    with xr.open_dataset(
        target, engine="nczarr", storage_options=options, decode_times=False
    ) as saved:
        assert np.array_equal(saved.tas.values, field([*range(6)]))


def test_it_is_public() -> None:
    assert nczarr_xarray.open_many is open_many
    assert "open_many" in dir(nczarr_xarray)
