"""Aggregations that the interface of netCDF4-python writes: ``format="CFA4"`` and ``"CFA3"``."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nczarr_xarray
import nczarr_xarray.netcdf4 as ours
from nczarr_fsspec.errors import ConflictError, DatasetExistsError, ExportError
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_xarray.netcdf4.aggregating import MasterWriter
from tests.support.oracles.netcdf4_python import compare
from tests.support.servers.s3server import S3Server
from tests.whole.test_live_cfa import READERS, read_by
from tests.xarray.netcdf4.test_writing import Program

VERSIONS: Any = ("0.4", "0.6.2", "1.13")


class AggregatingProgram(Program):
    """A program that runs on a netCDF file, and on an aggregation in small fragments."""

    #: none: missing fragments are `missing_value` where there is one
    marks: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: Path, draw: random.Random) -> None:
        super().__init__(folder, draw)
        self.pair[1].close()
        self.paths = self.paths[0], folder / "ours.nca"
        self.version = draw.choice(VERSIONS)
        self.options: dict[str, Any] = {"memory_limit": draw.choice([100, 1000, 1 << 20])}
        self.options["max_object_size"] = draw.choice([8, 30, 100, 1000])
        self.log.append(f"{self.version} {self.options}")
        self.pair[1] = ours.Dataset(
            self.paths[1], "w", format="CFA4", cfa_version=self.version, **self.options
        )

    def dimension(self) -> None:
        super().dimension()
        name, length = [*self.lengths.items()][-1]
        if length is None:  # it stays unlimited because the master holds its coordinate
            self.types[name] = "f8"
            self.both(f"coordinate {name}", lambda nc: nc.createVariable(name, "f8", (name,)))

    def reopen(self, mode: str = "a") -> None:
        self.log.append(f"reopen {mode}")
        for dataset in self.pair:
            dataset.close()
        options = self.options if mode == "a" else {}
        self.pair = [
            netCDF4.Dataset(self.paths[0], mode),
            ours.Dataset(self.paths[1], mode, **options),
        ]


@pytest.mark.parametrize("examples", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_programs(tmp_path: Path, examples: int) -> None:
    @settings(
        max_examples=examples, deadline=None, suppress_health_check=[*HealthCheck], database=None
    )
    @given(st.randoms(use_true_random=False), st.integers(4, 25))
    def check(draw: random.Random, steps: int) -> None:
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        with closing(AggregatingProgram(tmp_path, draw)) as program:
            for _ in range(steps):
                program.step()
            program.reopen("r")
            theirs, mine = program.pair
            found = compare(theirs, mine, draw)
        assert not found, [*program.log, *found]

    check()


@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_another_variable_makes_a_dimension_longer(tmp_path: Path, memory: int) -> None:
    """A fragment in memory gets as long as its place in the grid."""
    with ours.Dataset(tmp_path / "m.nca", "w", format="CFA4", memory_limit=memory) as nc:
        nc.createDimension("t", None)
        nc.createVariable("t", "f8", ("t",))
        for name in ("a", "b"):
            nc.createVariable(name, "i2", ("t",), subarray_shape=(8,), fill_value=-1)
        nc["a"][:4] = [1, 2, 3, 4]
        nc["b"][:7] = 5
        nc["t"][:] = np.arange(7)
    with ours.Dataset(tmp_path / "m.nca") as nc:
        assert nc["a"][:].filled(-1).tolist() == [1, 2, 3, 4, -1, -1, -1]
        assert nc["b"][:].tolist() == [5] * 7
    with ours.Dataset(tmp_path / "m.nca", "a") as nc:
        nc["b"][7:9] = 6
        nc["a"][3] = 8
    with ours.Dataset(tmp_path / "m.nca") as nc:
        assert nc["a"][:].filled(-1).tolist() == [1, 2, 3, 8, *[-1] * 5]


@pytest.mark.parametrize("version", VERSIONS)
def test_masked_fragments_are_put_once(tmp_path: Path, version: Any) -> None:
    """All of a shape are one file, whose version the table has: it is not written again."""
    options: Any = {"format": "CFA4", "cfa_version": version, "memory_limit": 1}
    masked = np.ma.masked_all(3, "i4")
    with ours.Dataset(tmp_path / "m.nca", "w", **options) as nc:
        nc.createDimension("t", 12)
        v = nc.createVariable("v", "i4", ("t",), subarray_shape=(3,), fill_value=7)
        v[:] = 1
        nc.sync()
        for first in (0, 3):  # memory has room for one fragment only
            v[first : first + 3] = masked
            v[first + 6 : first + 9] = 2
        assert len([*tmp_path.rglob("*.missing.*")]) == 1
    with ours.Dataset(tmp_path / "m.nca") as nc:
        assert nc["v"][:].filled(-1).tolist() == [*[-1] * 6, *[2] * 6]


def write_field(target: Any, mode: str = "w", **options: Any) -> None:
    """Write steps 0 to 6 of a field of 4 x 6, in fragments of 3 x 4 x 3."""
    with ours.Dataset(target, mode, **{"format": "CFA4", **options}) as nc:
        nc.title = "seven days"
        nc.createDimension("time", None)
        nc.createDimension("lat", 4)
        nc.createDimension("lon", 6)
        time = nc.createVariable("time", "f8", ("time",))
        time.setncatts({"units": "days since 2000-01-01", "standard_name": "time"})
        for name, standard in (("lat", "latitude"), ("lon", "longitude")):
            coordinate = nc.createVariable(name, "f4", (name,))
            coordinate.standard_name = standard
            coordinate[:] = np.arange(len(nc.dimensions[name]))
        tas = nc.createVariable(
            "tas", "f4", ("time", "lat", "lon"), fill_value=-9.0, subarray_shape=(3, 4, 3)
        )
        tas.setncatts({"units": "K", "standard_name": "air_temperature"})
        for step in range(7):
            time[step] = step
            tas[step] = field(step)


def field(step: float) -> np.ndarray:
    return np.asarray(100 * step + np.arange(24.0).reshape(4, 6))


ALL = np.stack([field(step) for step in range(7)])


def names(target: Path) -> list[str]:
    return sorted(path.name for path in target.with_suffix("").iterdir())


@pytest.mark.parametrize("version", VERSIONS)
def test_fragments_are_datasets_of_their_own(tmp_path: Path, version: Any) -> None:
    target = tmp_path / "m.nca"
    write_field(target, cfa_version=version)
    grid = [(t, x) for t in range(3) for x in range(2)]
    assert names(target) == [f"m.tas.{t}.0.{x}.nc" for t, x in grid]
    with netCDF4.Dataset(target.with_suffix("") / "m.tas.2.0.1.nc") as fragment:
        assert fragment["tas"].units == "K"
        assert fragment.title == "seven days"
        np.testing.assert_array_equal(fragment["tas"][:], ALL[6:7, :, 3:])
        assert fragment["lon"][:].tolist() == [3, 4, 5]
        assert fragment["time"][:].tolist() == [6]
    with xr.open_dataset(target, engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["tas"], ALL)
        assert ds["time"].dt.day.values.tolist() == [1, 2, 3, 4, 5, 6, 7]
    with netCDF4.Dataset(target) as master:
        assert master["tas"].shape == ()
        assert master.dimensions["time"].isunlimited()


@pytest.mark.parametrize(("kind", "model"), [("CFA3", "CDF"), ("CFA4", "HDF")])
def test_both_formats(tmp_path: Path, kind: str, model: str) -> None:
    target = tmp_path / "m.nc"
    write_field(target, format=kind)
    for file in (target, target.with_suffix("") / "m.tas.0.0.0.nc"):
        assert model.encode() in file.read_bytes()[:4]
    with ours.Dataset(target) as nc:
        assert nc.data_model == {"CFA3": "NETCDF3_CLASSIC", "CFA4": "NETCDF4"}[kind]
        np.testing.assert_array_equal(nc["tas"][:], ALL)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_written_is_missing(tmp_path: Path, version: Any) -> None:
    target = tmp_path / "m.nca"
    with ours.Dataset(target, "w", format="CFA4", cfa_version=version) as nc:
        nc.createDimension("x", 10)
        nc.createVariable("none", "i2", ("x",))
        some = nc.createVariable("some", "f8", ("x",), subarray_shape=[2])
        some[5] = 1.5
    assert names(target) == ["m.none.missing.10.nc", "m.some.2.nc", "m.some.missing.2.nc"]
    with ours.Dataset(target, "a") as nc:
        assert nc["none"][:].mask.all()
        nc["some"][9] = 2.5
        nc["none"][3] = 7
    assert len(names(target)) == 4
    with ours.Dataset(target) as nc:
        expected = np.ma.masked_all(10)
        expected[5], expected[9] = 1.5, 2.5
        assert nc["some"][:].tolist() == expected.tolist()
        assert nc["none"][:].tolist() == [None] * 3 + [7] + [None] * 6


def test_sizes_of_fragments(tmp_path: Path) -> None:
    """By the dataset or the variable, in bytes or as lengths; as S3netCDF4 calls these."""
    target = tmp_path / "m.nca"
    with ours.Dataset(
        target, "w", format="CFA4", max_object_size="800B", subarray_shape={"y": 5}
    ) as nc:
        for name, size in (("time", None), ("x", 10), ("y", 10)):
            nc.createDimension(name, size)
        for name, dimensions, options in (
            ("by_size", ("time", "x"), {}),
            ("by_smaller_size", ("time", "x"), {"max_subarray_size": 80}),
            ("by_length", ("x", "y"), {}),
            ("by_lengths", ("x", "y"), {"subarray_shape": np.array([5, 10])}),
        ):
            nc.createVariable(name, "f8", dimensions, **options)[:] = np.zeros((10, 10))
    grids = {name.split(".")[1]: name.split(".")[2:4] for name in names(target)}
    assert grids == {
        "by_size": ["0", "0"],
        "by_smaller_size": ["9", "0"],
        "by_length": ["0", "1"],
        "by_lengths": ["1", "0"],
    }


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fragments that have no room are put; those that grow end there, and none is read again."""
    target = tmp_path / "m.nca"
    taken = []
    make_room = MasterWriter.make_room

    def noted(self: MasterWriter, nbytes: int) -> None:
        make_room(self, nbytes)
        taken.append(self.taken + nbytes)

    monkeypatch.setattr(MasterWriter, "make_room", noted)
    with ours.Dataset(target, "w", format="CFA4", memory_limit=100_000) as nc:
        nc.createDimension("time", None)
        nc.createDimension("x", 1000)
        variables = [nc.createVariable(name, "f4", ("time", "x")) for name in "abcde"]
        for step in range(60):
            for number, variable in enumerate(variables):
                variable[step] = step + number
        assert max(taken) <= 100_000
        assert 10 < len(names(target)) < 150  # of 300 steps
        assert variables[0][3, 7] == 3
        variables[1][0, 0] = -1
    with ours.Dataset(target) as nc:
        for number, name in enumerate("abcde"):
            expected = np.arange(60.0) + number
            np.testing.assert_array_equal(nc[name][:, 7], expected)
        assert nc["b"][0, :2].tolist() == [-1, 1]


def test_fragments_come_before_the_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[str] = []
    for method in ("put", "put_file", "create"):
        original = getattr(DirectoryWriter, method)

        def noted(self: Any, key: str, *given: Any, call: Any = original, **named: Any) -> Any:
            put.append(key)
            return call(self, key, *given, **named)

        monkeypatch.setattr(DirectoryWriter, method, noted)
    write_field(tmp_path / "m.nca")
    stored = [key for key in put if not key.endswith(".writing")]
    assert len(stored) == 7
    assert stored[-1] == "m.nca"


def break_off(target: Any, mode: str, **options: Any) -> None:
    with ours.Dataset(target, mode, format="CFA4", memory_limit=100, **options) as nc:
        if mode == "w":
            nc.createDimension("time", None)
            nc.createVariable("tas", "f4", ("time",), subarray_shape=[2])
        for step in range(20):
            nc["tas"][step] = -1
        raise ZeroDivisionError


@pytest.mark.parametrize("mode", ["w", "a"])
def test_an_exception_leaves_the_old_aggregation(tmp_path: Path, mode: str) -> None:
    target = tmp_path / "m.nca"
    write_field(target)
    before = names(target)
    with pytest.raises(ZeroDivisionError):
        break_off(target, mode)
    assert names(target) == before
    with ours.Dataset(target) as nc:
        np.testing.assert_array_equal(nc["tas"][:], ALL)


@pytest.mark.parametrize("call", ["task.file_bytes", "GradualAggregation.read"])
def test_a_process_that_dies_leaves_the_old_aggregation(tmp_path: Path, call: str) -> None:
    """Before the master is put, or while fragments are; the next writer removes what is left."""
    target = tmp_path / "m.nca"
    write_field(target)
    before = names(target)
    code = (
        "import os\n"
        "from nczarr_xarray.export.cfa import task\n"
        "from nczarr_xarray.export.cfa.gradual import GradualAggregation\n"
        "from nczarr_xarray.netcdf4 import Dataset\n"
        f"nc = Dataset({str(target)!r}, 'a', memory_limit=400)\n"
        f"{call} = lambda *_: os._exit(9)\n"
        "for n in (0, 3, 6, 0): nc['tas'][n] = -1\n"
        "nc.close()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert len(names(target)) > len(before)
    with ours.Dataset(target) as nc:
        np.testing.assert_array_equal(nc["tas"][:], ALL)
    with ours.Dataset(target, "a") as nc:
        nc["tas"][0] = -2
    assert len(names(target)) == len(before)
    with ours.Dataset(target) as nc:
        assert (nc["tas"][0] == -2).all()
        np.testing.assert_array_equal(nc["tas"][1:], ALL[1:])


def test_readers_see_the_state_of_the_last_sync(tmp_path: Path) -> None:
    target = tmp_path / "m.nca"
    with ours.Dataset(target, "w", format="CFA4") as nc:
        nc.createDimension("x", None)
        x = nc.createVariable("x", "i4", ("x",))
        v = nc.createVariable("v", "i4", ("x",), subarray_shape=[4])
        for step in range(6):
            x[step], v[step] = step, 10 * step
            nc.sync()
            with ours.Dataset(target) as reader:
                assert reader["v"][:].tolist() == [10 * n for n in range(step + 1)]
            v[0] = -1
            with ours.Dataset(target) as reader:
                assert reader["v"][0] == 0
            v[0] = 0
    assert len(names(target)) == 2


def test_another_writer_is_noticed(tmp_path: Path) -> None:
    target = tmp_path / "m.nca"
    write_field(target)

    def change_at_a_time() -> None:
        with ours.Dataset(target, "a") as second:
            second["tas"][0] = 2
            with ours.Dataset(target, "a") as first:
                first["tas"][0] = 1

    with pytest.raises(ConflictError, match="changed by another writer"):
        change_at_a_time()
    with ours.Dataset(target) as nc:
        assert (nc["tas"][0] == 1).all()


def test_two_at_a_time(tmp_path: Path) -> None:
    target = tmp_path / "m.nca"
    write_field(target)
    with ours.Dataset(target, "a", memory_limit=100) as first:
        for step in range(7):
            first["tas"][step] = 1
        with pytest.raises(ConflictError, match="is being written"):
            write_field(target)
    with ours.Dataset(target) as nc:
        assert (nc["tas"][:] == 1).all()


# -- what is there --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_masters_of_to_cfa_are_changed(tmp_path: Path, version: Any) -> None:
    target = tmp_path / "m.nca"
    ds = xr.Dataset({"v": (("t", "x"), np.arange(35.0).reshape(7, 5))}, {"t": np.arange(7.0)})
    ds["v"].encoding = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -1}
    nczarr_xarray.to_cfa(
        ds, target, cfa_version=version, subarray_shape={"t": 3}, unlimited_dims=["t"]
    )
    with ours.Dataset(target, "r+") as nc:
        nc["v"][2:4, 1] = [50.5, 51.5]
        nc["v"][9] = 7.5
        nc["t"][7:10] = [7, 8, 9]
        nc.createVariable("w", "i4", ("t",))[:] = 5
    with xr.open_dataset(target, engine="nczarr") as found:
        expected = np.full((10, 5), np.nan)
        expected[:7] = ds["v"]
        expected[2:4, 1] = [50.5, 51.5]
        expected[9] = 7.5
        np.testing.assert_array_equal(found["v"], expected)
        assert found["w"].values.tolist() == [5] * 10
        assert found["v"].encoding["scale_factor"] == 0.5
    more = xr.Dataset(
        {"v": (("t", "x"), np.ones((2, 5))), "w": ("t", np.array([1, 2], np.int32))},
        {"t": [10.0, 11.0]},
    )
    nczarr_xarray.to_cfa(more, target, append_dim="t")
    with ours.Dataset(target) as nc:
        assert nc["v"][-2:].tolist() == np.ones((2, 5)).tolist()


@pytest.mark.parametrize("version", VERSIONS)
def test_files_of_others_stay_as_they_are(tmp_path: Path, version: Any) -> None:
    files = []
    for number, length in enumerate((31, 28, 31)):
        files.append(tmp_path / f"month{number}.nc")
        with netCDF4.Dataset(files[-1], "w") as nc:
            nc.createDimension("time", None)
            nc.createDimension("x", 2)
            time = nc.createVariable("time", "f8", ("time",))
            time.units = "days since 2001-01-01"
            time[:] = np.arange(length) + (0, 31, 59)[number]
            nc.createVariable("v", "f4", ("time", "x"))[:] = np.full((length, 2), number)
    target = tmp_path / "year.nca"
    nczarr_xarray.aggregate(files, target, cfa_version=version)
    before = [file.read_bytes() for file in files]
    with ours.Dataset(target, "a") as nc:
        nc["v"][40:42] = 9
        assert nc["v"][38:44, 0].tolist() == [1, 1, 9, 9, 1, 1]
    assert [file.read_bytes() for file in files] == before
    assert len(names(target)) == 1
    with ours.Dataset(target) as nc:
        assert nc["v"][:, 0].tolist() == [0] * 31 + [1] * 9 + [9] * 2 + [1] * 17 + [2] * 31


def test_what_cannot_be_changed_says_what_to_use(tmp_path: Path) -> None:
    target = tmp_path / "tree.nczarr"
    write_field(target)
    with pytest.raises(ExportError, match="format='CFA4'"):
        ours.Dataset(target, "a")
    with ours.Dataset(target, "a", format="CFA4") as nc:
        nc["tas"][0] = 1
    with ours.Dataset(target) as nc:
        assert (nc["tas"][0] == 1).all()
    with pytest.raises(ExportError, match="leave cfa_version out"):
        ours.Dataset(target, "a", format="CFA4", cfa_version="1.13")
    with pytest.raises(ExportError, match=r"write one of 0\.4, 0\.6\.2, 1\.13"):
        ours.Dataset(tmp_path / "x.nca", "w", format="CFA4", cfa_version="0.5")
    with pytest.raises(ExportError, match="write format='CFA4'"):
        ours.Dataset(tmp_path / "x.nca", "w", format="CFA3", cfa_version="1.13")
    with ours.Dataset(tmp_path / "x.nca", "w", format="CFA3") as nc:
        with pytest.raises(TypeError, match="write format='CFA4'"):
            nc.createVariable("v", "i8")
    with pytest.raises(DatasetExistsError, match="mode='a' changes it"):
        ours.Dataset(target, "x", format="CFA4")


@pytest.mark.parametrize("version", VERSIONS)
def test_groups(tmp_path: Path, version: Any) -> None:
    target = tmp_path / "m.nca"
    with ours.Dataset(target, "w", format="CFA4", cfa_version=version) as nc:
        nc.createDimension("x", 4)
        nc.createVariable("x", "f4", ("x",))[:] = [1, 2, 3, 4]
        group = nc.createGroup("one/two")
        group.createDimension("y", 2)
        group.createVariable("v", "f4", ("y", "x"), subarray_shape=(1, 4))[:] = [[1] * 4, [2] * 4]
        nc.createVariable("v", "f4", ("x",))[:] = 3
        group.note = "two"
    with ours.Dataset(target, "a") as nc:
        nc["one/two/v"][1, 2] = 9
    with ours.Dataset(target) as nc:
        assert nc["one/two"].note == "two"
        assert nc["one/two/v"][:].tolist() == [[1] * 4, [2, 2, 9, 2]]
        assert nc["v"][:].tolist() == [3] * 4
        assert [*nc.groups] == ["one"]


def test_units_that_change_are_those_of_the_fragments(tmp_path: Path) -> None:
    """As in a file, an attribute changes no number, though fragments have units of their own."""
    target = tmp_path / "m.nca"
    write_field(target)
    with ours.Dataset(target, "a") as nc:
        nc["tas"].units = "degC"
        nc.renameVariable("tas", "t2m")
    with ours.Dataset(target) as nc:
        np.testing.assert_array_equal(nc["t2m"][:], ALL)
    with netCDF4.Dataset(min(target.with_suffix("").iterdir())) as fragment:
        assert fragment["t2m"].units == "degC"


# -- elsewhere ------------------------------------------------------------------------------------


@pytest.mark.servers
def test_on_s3_with_an_alias(s3_server: S3Server, tmp_path: Path) -> None:
    host = {
        "alias": "store",
        "url": s3_server.endpoint,
        "accessKey": s3_server.access_key,
        "secretKey": s3_server.secret_key,
    }
    options = {"s3nc": {"hosts": {"s3://store": host}, "max_object_size": "100B"}}
    target = f"s3://store/{s3_server.public}/netcdf4/m.nca"
    write_field(target, storage_options=options)
    with ours.Dataset(target, "a", storage_options=options) as nc:
        nc["tas"][7] = field(7)
        nc["time"][7] = 7
        nc.createVariable("small", "f8", ("lat", "lon"))[:] = 1
    with ours.Dataset(target, storage_options=options) as nc:
        np.testing.assert_array_equal(nc["tas"][:7], ALL)
        np.testing.assert_array_equal(nc["tas"][7], field(7))
    with xr.open_dataset(target, engine="nczarr", storage_options=options) as ds:
        assert ds.sizes["time"] == 8
        assert ds["small"].values.tolist() == [[1.0] * 6] * 4
    with pytest.raises(ZeroDivisionError):
        break_off(target, "a", storage_options=options)
    with ours.Dataset(target, storage_options=options) as nc:
        np.testing.assert_array_equal(nc["tas"][:7], ALL)


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(find_spec, READERS)) or shutil.which("udunits2") is None,
    reason="needs cfdm, cfapyx, and the library UDUNITS-2 (on Debian: udunits-bin)",
)
@pytest.mark.parametrize("reader", READERS)
def test_others_read_them(tmp_path: Path, reader: str) -> None:
    target = tmp_path / "m.nca"
    write_field(target, cfa_version="1.13")
    with ours.Dataset(target, "a") as nc:
        nc["tas"][7] = field(7)
        nc["time"][7] = 7
    np.testing.assert_array_equal(read_by(reader, target), [*ALL, field(7)])
