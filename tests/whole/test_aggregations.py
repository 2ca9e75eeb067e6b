"""Aggregations of every dialect through xarray, dask and the command line."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

import nczarr_xarray
from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.errors import AccessDeniedError, DatasetNotFoundError, NCZarrError
from nczarr_xarray.backend.entrypoint import is_ours
from nczarr_xarray.cli.main import main
from nczarr_xarray.model import FragmentArray
from tests.support.builders.selections import indexers
from tests.support.servers.realservers import RangeServer, range_server

DATA = Path(__file__).parents[1] / "data" / "cfa-vectors"
FILL = -9.0
#: Masters that may be opened where they are, without warnings.
MASTERS = [
    "seed01_cfa3/m.nca",
    "seed01_cfa4/m.nca",
    "s3nc21_cfa04_cfa3_sparse/m.nca",
    "s3nc21_cfa04_cfa4/m.nca",
    "s3nc21_cfa05_cfa4/m.nca",
    "cf3131_cfa04/agg_flip.nca",
    "cf3131_cfa04/agg_punits.nca",
    "cf3131_cfa04/agg_roll.nca",
    "cf3131_cfa04/agg_sub.nca",
    "cf3131_cfa04/agg_trans.nca",
    "cf3131_cfa04/agg_varid.nca",
    "cf3162_cfa062/agg_subst.nca",
    "cf3162_cfa062/agg_versions.nca",
    "cfdm1133_cf113/agg_group.nca",
    "cfdm1133_cf113/agg_rel.nca",
    "cfdm1133_cf113/agg_unique.nca",
]


def expected(case: str) -> np.ndarray:
    path = DATA / case
    document = json.loads((path.parent / "expected.json").read_text())
    own = document if "data" in document else document[path.name]
    values = np.array(own.get("spec_expected", own["data"]), "f4").reshape(own["shape"])
    return np.where(values == FILL, np.float32(np.nan), values)


def open_master(case: str | Path, **options: Any) -> xr.Dataset:
    return xr.open_dataset(DATA / case, engine="nczarr", **options)


class TestDatasets:
    @pytest.mark.parametrize("case", MASTERS)
    def test_values(self, case: str) -> None:
        with open_master(case) as ds:
            np.testing.assert_array_equal(ds["tas"].values, expected(case))
            assert set(ds.variables) == {"tas", *ds["tas"].dims}
            assert ds["tas"].attrs["units"] == "K"
            assert not [name for name in ds["tas"].attrs if name.startswith(("cfa", "agg", "cf_"))]
            assert ds["tas"].encoding["_FillValue"] == FILL

    @pytest.mark.parametrize("case", MASTERS)
    def test_selections(self, case: str) -> None:
        choose = random.Random(case)
        values = expected(case)
        with open_master(case) as ds:
            whole = xr.DataArray(values, dims=ds["tas"].dims)
            sizes = {str(name): size for name, size in whole.sizes.items()}
            for _ in range(25):
                key = indexers(choose, sizes)
                found = ds["tas"].drop_vars(ds["tas"].coords).isel(key)
                np.testing.assert_array_equal(found.values, whole.isel(key).values)

    @pytest.mark.parametrize("case", MASTERS)
    @pytest.mark.slow
    def test_dask(self, case: str) -> None:
        with open_master(case, chunks={}) as ds:
            np.testing.assert_array_equal(ds["tas"].compute().values, expected(case))
            again = pickle.loads(pickle.dumps(ds))
            np.testing.assert_array_equal(again["tas"].compute().values, expected(case))

    def test_the_variable_that_dask_reads_in_blocks_of_fragments(self) -> None:
        with open_master("cfdm1133_cf113/agg_rel.nca") as ds:
            preferred = ds["tas"].encoding["preferred_chunks"]
            assert preferred == {"time": (3, 5), "lat": 6, "lon": (4, 6)}
            assert preferred.blocks == {"time": 8, "lat": 6, "lon": 10}
            assert "chunksizes" not in ds["tas"].encoding

    def test_the_suffix_says_that_it_is_ours(self) -> None:
        assert is_ours(str(DATA / "seed01_cfa3" / "m.nca"))

    def test_one_group(self) -> None:
        case = "cfdm1133_cf113/agg_group.nca"
        with open_master(case, group="/") as ds:
            np.testing.assert_array_equal(ds["tas"].values, expected(case))
        with nczarr_xarray.open_hierarchy(DATA / case) as opened:
            assert not opened.hierarchy.root.groups


def test_positions_in_files_that_are_alike(tmp_path: Path) -> None:
    """Along both dimensions, those that count are listed."""
    partitions, count = [], 12  # in a few files, it is not looked for
    for number in range(count):
        values = np.arange(9.0).reshape(3, 3) + 100 * number
        with netCDF4.Dataset(tmp_path / f"{number}.nc", "w") as file:
            file.createDimension("y", 3)
            file.createDimension("x", 3)
            file.createVariable("v", "f8", ("y", "x"))[:] = values
        stored = {"file": f"{number}.nc", "ncvar": "v", "shape": [2, 2]}
        partitions.append(
            {
                "index": [number, 0],
                "location": [[2 * number, 2 * number + 1], [0, 1]],
                "subarray": stored,
                "part": "[(2, 0), (1, 2)]",
            }
        )
    table = {
        "Partitions": partitions,
        "pmdimensions": ["y", "x"],
        "pmshape": [count, 1],
        "base": "",
    }
    with netCDF4.Dataset(tmp_path / "m.nca", "w") as file:
        file.createDimension("y", 2 * count)
        file.createDimension("x", 2)
        master = file.createVariable("v", "f8", ())
        master.setncatts({"cfa_dimensions": "y x", "cfa_array": json.dumps(table)})
    expected = [[7, 8], [1, 2]]
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        assert ds["v"].values.tolist() == [
            [value + 100 * number for value in row] for number in range(count) for row in expected
        ]


class TestFiles:
    @pytest.fixture
    def alone(self, tmp_path: Path) -> Path:
        """A master without its fragments."""
        return Path(shutil.copy(DATA / "cfdm1133_cf113" / "agg_rel.nca", tmp_path))

    def test_opening_touches_no_fragment(self, alone: Path) -> None:
        with open_master(alone) as ds:
            assert ds["tas"].shape == (8, 6, 10)
            with pytest.raises(DatasetNotFoundError, match=r"f00\.nc.*fragment \(0, 0, 0\).*repl"):
                ds["tas"].load()

    def test_fragments_that_moved(self, alone: Path) -> None:
        case = "cfdm1133_cf113/agg_rel.nca"
        new = str((DATA / case).parent)
        with open_master(alone, replace={str(alone.parent): new}) as ds:
            np.testing.assert_array_equal(ds["tas"].values, expected(case))

    @pytest.mark.parametrize("kind", ["nczarr", "zarr2", "zarr3", "classic"])
    def test_masters_of_other_formats(self, tmp_path: Path, kind: str) -> None:
        case = "seed01_cfa3/m.nca"
        shutil.copytree((DATA / case).parent, tmp_path, dirs_exist_ok=True)
        with xr.open_dataset(DATA / case, engine="netcdf4", decode_cf=False) as raw:
            raw.load()
        target = tmp_path / "other"
        if kind == "nczarr":
            raw.nczarr.to_nczarr(target)
        elif kind == "classic":
            raw.to_netcdf(target, format="NETCDF3_64BIT")
        else:
            version: Any = int(kind[-1])
            raw.to_zarr(target, zarr_format=version, consolidated=False)
        with open_master(target) as ds:
            np.testing.assert_array_equal(ds["tas"].values, expected(case))

    def test_fragments_of_nczarr(self, tmp_path: Path) -> None:
        case = "seed01_cfa3/m.nca"
        for path in (DATA / case).parent.rglob("m_tas*.nc"):
            with xr.open_dataset(path, engine="netcdf4", decode_cf=False) as ds:
                target = tmp_path / path.relative_to((DATA / case).parent)
                target.parent.mkdir(exist_ok=True)
                ds.nczarr.to_nczarr(f"file://{target}#mode=nczarr,file")
        shutil.copy(DATA / case, tmp_path)
        with open_master(tmp_path / "m.nca") as ds:
            np.testing.assert_array_equal(ds["tas"].values, expected(case))

    def test_an_aggregation_of_aggregations(self, tmp_path: Path) -> None:
        case = "cfdm1133_cf113/agg_rel.nca"
        shutil.copytree((DATA / case).parent, tmp_path, dirs_exist_ok=True)
        write_master(tmp_path / "outer.nca", ["agg_rel.nca", "agg_rel.nca"], (8, 6, 10))
        with open_master(tmp_path / "outer.nca") as ds:
            twice = np.concatenate([expected(case)] * 2)
            np.testing.assert_array_equal(ds["tas"].values, twice)

    def test_one_that_holds_itself(self, tmp_path: Path) -> None:
        write_master(tmp_path / "m.nca", ["m.nca"], (8, 6, 10))
        with open_master(tmp_path / "m.nca") as ds, pytest.raises(NCZarrError, match="a circle"):
            ds["tas"].load()

    def test_circles_through_many_places_end_soon(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each of eight aggregations names two others: not all of the ways are tried."""
        opened: list[str] = []
        resolve = AddressPolicy.resolve

        def counted(policy: AddressPolicy, address: str) -> str:
            opened.append(address)
            return resolve(policy, address)

        monkeypatch.setattr(AddressPolicy, "resolve", counted)
        with netCDF4.Dataset(tmp_path / "m.nca", "w") as file:
            for name, size in {"x": 3, "one": 1, "places": 2}.items():
                file.createDimension(name, size)
            v = file.createVariable("v", "f8", ())
            v.aggregated_dimensions = "x"
            v.aggregated_data = "location: length file: files format: kind address: names"
            file.createVariable("length", "i4", ("one", "one"))[:] = 3
            for name, values in (("files", ["m.nca", "./m.nca"]), ("names", ["v", "v"])):
                column = file.createVariable(name, str, ("one", "places"))
                column[:] = np.array([values], object)
            file.createVariable("kind", str, ())[...] = "nc"
        with open_master(tmp_path / "m.nca") as ds, pytest.raises(NCZarrError, match="a circle"):
            ds["v"].load()
        assert len(opened) < 40


def write_master(path: Path, addresses: list[str], shape: tuple[int, ...]) -> None:
    """An aggregation of CF-1.13 along the first dimension."""
    count = len(addresses)
    with netCDF4.Dataset(path, "w") as file:
        file.Conventions = "CF-1.13"
        names = ["time", "lat", "lon"]
        for name, size in zip(names, (count * shape[0], *shape[1:]), strict=True):
            file.createDimension(name, size)
        for name, size in {"j": 3, "i": count, "f": count, "one": 1}.items():
            file.createDimension(name, size)
        tas = file.createVariable("tas", "f4", (), fill_value=FILL)
        tas.units = "K"
        tas.aggregated_dimensions = " ".join(names)
        tas.aggregated_data = "map: lengths uris: places identifiers: name"
        lengths = np.ma.masked_all((3, count), "i4")
        lengths[0], lengths[1, 0], lengths[2, 0] = shape[0], shape[1], shape[2]
        file.createVariable("lengths", "i4", ("j", "i"))[:] = lengths
        places = file.createVariable("places", str, ("f", "one", "one"))
        places[:] = np.array(addresses, dtype=object).reshape(count, 1, 1)
        file.createVariable("name", str, ())[...] = "tas"


@pytest.fixture(scope="module")
def server() -> Iterator[RangeServer]:
    with range_server(DATA) as running:
        yield running


class TestServers:
    @pytest.mark.parametrize("case", ["cfdm1133_cf113/agg_rel.nca", "s3nc21_cfa04_cfa3/m.nca"])
    def test_all_of_it_over_http(self, server: RangeServer, case: str) -> None:
        server.set()
        with xr.open_dataset(f"{server.url}/{case}#mode=bytes", engine="nczarr") as ds:
            assert server.requests <= 3
            np.testing.assert_array_equal(ds["tas"].values, expected(case))
            server.set()
            ds["tas"][0, 0, 0].load()
            assert server.requests <= 1

    @pytest.mark.parametrize(
        "address",
        ["file:///etc/hostname", "/etc/hostname", "http://127.0.0.1:9/x.nc", "s3://bucket/x.nc"],
    )
    def test_a_remote_master_names_nothing_else(self, tmp_path: Path, address: str) -> None:
        write_master(tmp_path / "m.nca", [address], (8, 6, 10))
        with (
            range_server(tmp_path) as server,
            xr.open_dataset(f"{server.url}/m.nca#mode=bytes", engine="nczarr") as ds,
            pytest.raises(AccessDeniedError, match=r"allow=\["),
        ):
            ds["tas"].load()

    def test_what_the_caller_allows(self, tmp_path: Path) -> None:
        case = "cfdm1133_cf113/agg_rel.nca"
        fragments = (DATA / case).parent
        write_master(tmp_path / "m.nca", [f"{fragments}{os.sep}agg_rel.nca"], (8, 6, 10))
        with range_server(tmp_path) as server:
            url = f"{server.url}/m.nca#mode=bytes"
            with xr.open_dataset(url, engine="nczarr", allow=[str(fragments)]) as ds:
                np.testing.assert_array_equal(ds["tas"].values, expected(case))


def test_any_zarr_client_reads_them() -> None:
    case = "cf3131_cfa04/agg_flip.nca"
    group = zarr.open_group(nczarr_xarray.open_store(DATA / case), mode="r")
    found = np.asarray(group["tas"])
    np.testing.assert_array_equal(np.where(found == FILL, np.nan, found), expected(case))


class TestCommands:
    def test_info(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["info", str(DATA / "s3nc21_cfa04_cfa3_sparse" / "m.nca"), "--fragments"]) == 0
        out = capsys.readouterr().out
        assert "8 fragments (2 × 2 × 2), 6 missing: m/m.tas." in out
        assert out.count("  missing\n") == 6

    def test_check_of_types_and_units(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name, dtype, units in (("a", "f4", "K"), ("b", str, "K"), ("c", "f4", "m")):
            with netCDF4.Dataset(tmp_path / f"{name}.nc", "w") as file:
                file.createDimension("x", 1)
                file.createVariable("v", dtype, ("x",)).units = units
        ds = xr.Dataset(
            {
                "v": ((), np.float32(0), {"units": "K", "aggregated_dimensions": "x"}),
                "m": (("i", "j"), np.ones((1, 3), "i4")),
                "u": ("j", np.array([f"{name}.nc" for name in "abc"], object)),
                "n": ((), "v"),
                "x": ("x", np.arange(3)),
            }
        )
        ds["v"].attrs["aggregated_data"] = "map: m uris: u identifiers: n"
        ds.to_netcdf(tmp_path / "m.nca")
        assert main(["info", "--check", str(tmp_path / "m.nca")]) == 1
        said = capsys.readouterr().out
        assert "fragment (0,)" not in said
        for name, reason in (("b.nc", "/v: holds object"), ("c.nc", "/v: has the units")):
            (line,) = [line for line in said.splitlines() if reason in line]
            assert line.endswith(f"(in {tmp_path / name})")

    def test_check(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder = shutil.copytree(DATA / "cfdm1133_cf113", tmp_path / "d")
        target = str(folder / "agg_rel.nca")
        assert main(["info", target, "--check"]) == 0
        (folder / "f01.nc").unlink()
        (folder / "f10.nc").write_bytes(b"nothing")
        assert main(["info", target]) == 0
        capsys.readouterr()
        assert main(["info", target, "--check"]) == 1
        out = capsys.readouterr().out
        assert "/tas fragment (0, 0, 1): " in out
        assert "/tas fragment (1, 0, 0): " in out
        assert "f01.nc" in out
        assert "f10.nc" in out
        assert re.search(r"^\d+ of \d+ fragments can be read$", out, re.MULTILINE)

    @pytest.mark.parametrize("target", ["joined.nc", "joined.nczarr"])
    def test_copy_joins(self, tmp_path: Path, target: str) -> None:
        case = "cfdm1133_cf113/agg_rel.nca"
        assert main(["copy", str(DATA / case), str(tmp_path / target)]) == 0
        with xr.open_dataset(tmp_path / target, engine="nczarr") as ds:
            np.testing.assert_array_equal(ds["tas"].values, expected(case))
            assert set(ds.variables) == {"tas", "time", "lat", "lon"}

    @pytest.mark.parametrize("version", ["0.4", "0.6.2", "1.13"])
    def test_copy_divides(self, tmp_path: Path, version: str) -> None:
        case, target = "cf3131_cfa04/agg_flip.nca", tmp_path / "m.nca"
        options = ["--cfa-version", version, "--max-object-size", "400"]
        assert main(["copy", str(DATA / case), str(target), *options]) == 0
        with xr.open_dataset(target, engine="nczarr") as ds, open_master(case) as source:
            xr.testing.assert_identical(ds.load(), source.load())
        with nczarr_xarray.open_hierarchy(target) as opened:
            array = opened.hierarchy.root.variables["tas"].array
            assert isinstance(array, FragmentArray)
            assert array.fragments.count >= 5

    def test_dump(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        case = "cfdm1133_cf113/agg_rel.nca"
        main(["copy", str(DATA / case), str(tmp_path / "agg_rel.nc")])
        capsys.readouterr()
        assert main(["dump", str(DATA / case)]) == 0
        out = capsys.readouterr().out
        assert main(["dump", str(tmp_path / "agg_rel.nc")]) == 0
        assert out == capsys.readouterr().out
        assert "float tas(time, lat, lon) ;" in out


def test_a_master_that_is_an_open_file_or_a_store(tmp_path: Path) -> None:
    data = xr.Dataset({"v": ("x", np.arange(12.0))})
    for name, fragments in (("m.nca", "netCDF4"), ("t.nczarr", "NCZarr")):
        nczarr_xarray.to_cfa(
            data,
            tmp_path / name,
            cfa_version="1.13",
            subarray_shape={"x": 4},
            fragment_format=fragments,  # type: ignore[arg-type]
        )
    tree = str(tmp_path / "t.nczarr")
    with open(tmp_path / "m.nca", "rb") as file:
        assert open_as_is(file).identical(data)
    assert open_as_is(fsspec.get_mapper(tree)).identical(data)
    assert open_as_is(zarr.storage.LocalStore(tree)).identical(data)


def open_as_is(target: Any) -> xr.Dataset:
    with xr.open_dataset(target, engine="nczarr") as ds:
        return ds.load().drop_attrs()


def test_open_files_name_what_is_in_their_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "else").mkdir()
    data = xr.Dataset({"v": ("x", np.arange(12.0))})
    master = tmp_path / "m.nca"
    nczarr_xarray.to_cfa(data, master, cfa_version="1.13", subarray_shape={"x": 4}, relative=False)
    shutil.copy(master, tmp_path / "else")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write("m.nca")
    with open(tmp_path / "else" / "m.nca", "rb") as file:
        with pytest.raises(AccessDeniedError, match="is a local file"):
            open_as_is(file)
        with xr.open_dataset(file, engine="nczarr", allow=[str(tmp_path)]) as ds:
            assert ds["v"][11] == 11
    with zipfile.ZipFile("a.zip") as archive, archive.open("m.nca") as member:
        # which is called like a file of this machine
        with pytest.raises(AccessDeniedError, match="the dataset may name nothing"):
            open_as_is(member)
