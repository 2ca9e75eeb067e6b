"""Programs that create, write, grow and read do the same here as with netCDF4-python."""

from __future__ import annotations

import itertools
import pickle
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, ClassVar

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nczarr_xarray
import nczarr_xarray.netcdf4 as ours
from nczarr_fsspec.changes.edit import Change
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.stores.mapping import MappingWriter
from nczarr_xarray.netcdf4.writing import TreeWriter
from tests.support.oracles.netcdf4_python import compare, keys, read_both

TYPES = ("i1", "i2", "i4", "i8", "u1", "u2", "f4", "f8", "S1", "string")
LENGTHS = (None, 1, 3, 5)


class Program:
    """One program that runs on a netCDF file and on a tree of NCZarr, step by step."""

    #: attributes that say what is missing
    marks: ClassVar[dict[str, Any]] = {"missing_value": 5}

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.paths = folder / "theirs.nc", folder / "ours.nczarr"
        self.draw = draw
        self.pair: list[Any] = [
            netCDF4.Dataset(self.paths[0], "w"),
            ours.Dataset(self.paths[1], "w"),
        ]
        self.lengths: dict[str, int | None] = {}
        self.types: dict[str, str] = {}
        self.log: list[str] = []

    def both(self, what: str, step: Callable[[Any], Any]) -> None:
        """Do a step on both; both do it, or both refuse."""
        self.log.append(what)
        errors = []
        for dataset in self.pair:
            try:
                step(dataset)
            except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
                errors.append(error)
        assert len(errors) != 1, [*self.log, errors]

    def step(self) -> None:
        """Do one more thing, any."""
        draw = self.draw
        choices = [self.dimension, self.variable, self.attribute, self.sync, self.reopen, self.read]
        choices += [self.rename_variable, self.rename_attribute]
        if not self.lengths:
            self.dimension()
        elif not self.types:
            self.variable()
        else:
            draw.choice([*choices, self.write, self.write, self.write, self.write])()

    def dimension(self) -> None:
        name, length = f"d{len(self.lengths)}", self.draw.choice(LENGTHS)
        self.lengths[name] = length
        self.both(f"dimension {name} {length}", lambda nc: nc.createDimension(name, length))

    def variable(self) -> None:
        draw, number = self.draw, len(self.types)
        kind = draw.choice(TYPES)
        name = f"v{number}" if draw.random() < 0.7 else f"/g/v{number}"
        # with two that grow, netCDF-C 4.9.3 puts values into wrong places (observed)
        fixed = [d for d, length in self.lengths.items() if length is not None]
        growing = [d for d, length in self.lengths.items() if length is None]
        dims = draw.sample(growing, min(len(growing), draw.randrange(2)))
        dims += draw.sample(fixed, min(len(fixed), draw.randrange(3)))
        options: dict[str, Any] = {}
        if kind == "S1":
            options = draw.choice([{}, {"fill_value": "x"}])
        elif kind != "string":
            options = draw.choice([{}, {"fill_value": 7}, {"zlib": True}, {"shuffle": True}])
        if dims and draw.random() < 0.3:
            options["chunksizes"] = [min(2, self.lengths[one] or 2) for one in dims]
        dtype: Any = str if kind == "string" else kind
        self.types[name] = kind
        self.both(
            f"variable {name} {kind} {dims} {options}",
            lambda nc: nc.createVariable(name, dtype, dims, **options),
        )

    def attribute(self) -> None:
        draw = self.draw
        name = draw.choice([*self.types])
        values: dict[str, Any] = {"units": "K", "note": draw.choice(["é", [1, 2], ["a", "b"]])}
        if self.types[name] not in ("S1", "string"):
            values |= {"scale_factor": 0.5, "add_offset": 2.0, "valid_min": 1} | self.marks
        attribute = draw.choice([*values])
        self.both(
            f"{name}.{attribute} = {values[attribute]!r}",
            lambda nc: setattr(nc[name], attribute, values[attribute]),
        )

    # what netCDF-C 4.9.3 renames in HDF5 files without a fault (observed): variables of the root
    # that are stored and no coordinates, and attributes that were stored once

    def rename_variable(self) -> None:
        old = next((name for name in self.types if name.startswith("v")), None)
        if old is not None:
            self.reopen()
            self.both(f"rename {old}", lambda nc: nc.renameVariable(old, f"{old}_"))
            self.types[f"{old}_"] = self.types.pop(old)
            self.reopen()

    def rename_attribute(self) -> None:
        name = self.draw.choice([*self.types])
        self.reopen()
        self.both(f"rename {name}.note", lambda nc: nc[name].renameAttribute("note", "remark"))

    def sync(self) -> None:
        self.both("sync", lambda nc: nc.sync())

    def reopen(self, mode: str = "a") -> None:
        self.log.append(f"reopen {mode}")
        for number, module in enumerate((netCDF4, ours)):
            self.pair[number].close()
            self.pair[number] = module.Dataset(self.paths[number], mode)

    def read(self) -> None:
        name = self.draw.choice([*self.types])
        theirs, mine = (dataset[name] for dataset in self.pair)
        for key in keys(theirs.shape, self.draw):
            told = read_both(theirs, mine, key)
            assert not told, [*self.log, f"read {name} {key}: {told}"]

    def write(self) -> None:
        draw = self.draw
        name = draw.choice([*self.types])
        variable, kind = self.pair[0][name], self.types[name]
        key: list[Any] = []
        shape: list[int] = []
        for dimension in variable.get_dims():
            length = len(dimension) + (3 if dimension.isunlimited() else 0)
            # theirs fails where text is assigned by a list of positions
            index, count = self.index(length, lists=kind != "string")
            key.append(index)
            shape += [] if count is None else [count]
        data = self.data(kind, tuple(shape))
        where = tuple(key) if key else Ellipsis
        self.both(f"{name}[{where}] = {data!r}", lambda nc: nc[name].__setitem__(where, data))

    def index(self, length: int, *, lists: bool) -> tuple[Any, int | None]:
        """Return an index, and how long a dimension of the data it makes."""
        draw = self.draw
        low = draw.randrange(length)
        high = draw.randrange(low, length) + 1
        some = sorted(draw.sample(range(length), draw.randrange(1, min(3, length) + 1)))
        step = draw.choice([1, 2])
        choices: list[tuple[Any, int | None]] = [
            (low, None),
            (slice(low, high), high - low),
            (slice(0, length, step), len(range(0, length, step))),
        ]
        return draw.choice([*choices, (some, len(some))] if lists else choices)

    def close(self) -> None:
        """Close both, also what could not be stored."""
        for dataset in self.pair:
            with suppress(OSError, RuntimeError, ValueError), dataset:
                pass

    def data(self, kind: str, shape: tuple[int, ...]) -> Any:
        """Return values of a type and a shape; one value for all; some of them masked."""
        draw = self.draw
        count = int(np.prod(shape))
        if kind == "string":
            texts = [draw.choice(["a", "bb", "", "ñ" * 200]) for _ in range(count)]
            return np.array(texts, object).reshape(shape) if shape else texts[0]
        if kind == "S1":
            letters = [draw.choice([b"a", b"b"]) for _ in range(count)]
            return np.array(letters, "S1").reshape(shape) if shape else letters[0]
        if draw.random() < 0.2:
            return draw.randrange(50)
        numbers = np.array([draw.randrange(50) for _ in range(count)]).reshape(shape)
        if shape and draw.random() < 0.3:
            mask = np.array([draw.random() < 0.3 for _ in range(count)]).reshape(shape)
            return np.ma.masked_array(numbers, mask)
        return numbers


@pytest.mark.parametrize("examples", [8, pytest.param(80, marks=pytest.mark.slow)])
def test_programs(tmp_path: Path, examples: int) -> None:
    @settings(
        max_examples=examples, deadline=None, suppress_health_check=[*HealthCheck], database=None
    )
    @given(st.randoms(use_true_random=False), st.integers(4, 20))
    def check(draw: random.Random, steps: int) -> None:
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        with closing(Program(tmp_path, draw)) as program:
            for _ in range(steps):
                program.step()
            program.reopen("r")
            theirs, mine = program.pair
            found = compare(theirs, mine, draw)
            assert not found, [*program.log, *found]

    check()


@pytest.fixture(params=["a.nczarr", "a.zarr", "a.zip"])
def target(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return tmp_path / str(request.param)


def write_steps(target: Path, low: int, high: int) -> None:
    with ours.Dataset(target, "a") as nc:
        if "t" not in nc.dimensions:
            nc.createDimension("t", None)
            nc.createDimension("x", 3)
            nc.createVariable("v", "f4", ("t", "x"), zlib=True, fill_value=-1.0)
            nc.createVariable("names", str, ("t",))
        nc["v"][low:high] = np.arange(3 * low, 3 * high).reshape(-1, 3)
        nc["names"][low:high] = np.array([f"n{i}" for i in range(low, high)], object)


def test_a_dataset_grows_from_one_program_to_the_next(target: Path) -> None:
    write_steps(target, 0, 4)
    write_steps(target, 4, 9)
    ds = xr.open_dataset(target, engine="nczarr")
    np.testing.assert_array_equal(ds["v"], np.arange(27.0).reshape(9, 3))
    assert ds["names"].values.tolist() == [f"n{i}" for i in range(9)]


def test_netcdf_c_reads_what_is_written(tmp_path: Path) -> None:
    target = tmp_path / "a.nczarr"
    write_steps(target, 0, 4)
    with netCDF4.Dataset(f"file://{target}#mode=nczarr,file") as nc:
        np.testing.assert_array_equal(nc["v"][:], np.arange(12.0).reshape(4, 3))
        assert nc.dimensions["t"].isunlimited()


def fail_in_the_middle(target: Path, mode: str) -> None:
    with ours.Dataset(target, mode) as nc:
        nc.createDimension("other", 2)
        nc.createVariable("new", "i4", ("other",))[:] = 1 // 0


def test_an_exception_leaves_the_old_dataset(target: Path) -> None:
    write_steps(target, 0, 2)
    for mode in ("a", "w"):
        with pytest.raises(ZeroDivisionError):
            fail_in_the_middle(target, mode)
        with ours.Dataset(target) as nc:
            assert [*nc.variables] == ["v", "names"]
            assert nc["v"].shape == (2, 3)


def test_readers_see_the_state_of_the_last_sync(target: Path) -> None:
    with ours.Dataset(target, "w") as nc:
        nc.createDimension("x", None)
        variable = nc.createVariable("v", "i4", ("x",))
        variable[:] = [1, 2]
        nc.sync()
        variable[2:4] = [3, 4]
        with ours.Dataset(target) as reader:
            assert reader["v"][:].tolist() == [1, 2]
        assert variable[:].tolist() == [1, 2, 3, 4]
    with ours.Dataset(target) as reader:
        assert reader["v"][:].tolist() == [1, 2, 3, 4]


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that have no room are put before they are committed, and read from there."""
    put: list[str] = []
    put_one = TreeWriter.put

    def note(self: TreeWriter, key: str, data: memoryview) -> None:
        put.append(key)
        put_one(self, key, data)

    monkeypatch.setattr(TreeWriter, "put", note)
    target = tmp_path / "a.nczarr"
    with ours.Dataset(target, "w", memory_limit=40_000) as nc:
        nc.createDimension("t", None)
        nc.createDimension("x", 1000)
        variable = nc.createVariable("v", "i4", ("t", "x"), chunksizes=(1, 1000))
        for step in range(50):
            variable[step, :900] = step
        assert 40 <= len(put) < 50  # ten of 4,000 bytes have room
        assert variable[3, 7] == 3
    with ours.Dataset(target) as nc:
        assert nc["v"][:, 0].tolist() == list(range(50))


def chunks_below(folder: Path) -> dict[str, int]:
    """Return the times of chunks of ``v``, wherever they are, by their names."""
    return {
        path.name: path.stat().st_mtime_ns for path in folder.rglob("v/*") if path.name[0].isdigit()
    }


def test_complete_chunks_are_put_as_they_are_written(tmp_path: Path) -> None:
    """What is written a second time stays in memory."""
    with ours.Dataset(tmp_path / "a.nczarr", "w") as nc:
        nc.createDimension("t", None)
        nc.createDimension("x", 1000)
        variable = nc.createVariable("v", "f4", ("t", "x"), chunksizes=(2, 500), zlib=True)
        values = np.random.default_rng(0).random((40, 1000)).astype("f4")
        variable[:40] = values
        put = chunks_below(tmp_path)
        assert len(put) == 40
        variable[4:7, ::-1] = values[4:7, ::-1] + 1
        values[4:7] += 1
        assert chunks_below(tmp_path) == put
        variable[40] = variable[0]
        np.testing.assert_array_equal(variable[:40], values)
        nc.sync()
        np.testing.assert_array_equal(variable[:40], values)
        variable[2:4] = values[2:4] - 1
    with ours.Dataset(tmp_path / "a.nczarr") as nc:
        np.testing.assert_array_equal(nc["v"][2:4], values[2:4] - 1)
        np.testing.assert_array_equal(nc["v"][4:40], values[4:])
        np.testing.assert_array_equal(nc["v"][40], values[0])


class FarAway:
    """Stores of mappings as if they were far away: the first puts wait for each other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, together: int = 1) -> None:
        self.fails = ""
        self.meeting = threading.Barrier(together)
        put_one = MappingWriter.put
        waiting = itertools.count()

        def put(store: MappingWriter, key: str, data: Any) -> None:
            if self.fails and key.endswith(self.fails):
                raise StoreError(key, "no room")
            if "v/" in key and next(waiting) < together:
                self.meeting.wait(60)  # which fails if the others are not put meanwhile
            put_one(store, key, data)

        monkeypatch.setattr(MappingWriter, "put", put)
        monkeypatch.setattr(MappingWriter, "parallel", 64)


def test_chunks_are_put_at_the_same_time_far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    FarAway(monkeypatch, together=9)
    url = "memory://many-puts/a.nczarr"
    with ours.Dataset(url, "w") as nc:
        nc.createDimension("t", None)
        nc.createDimension("x", 10)
        variable = nc.createVariable("v", "i4", ("t", "x"), chunksizes=(1, 10))
        row = np.zeros(10, "i4")
        for step in range(60):
            row[:] = step  # what was put does not change with it
            variable[step] = row
        for step in range(60):
            variable[step] = step + 1
        assert variable[7].tolist() == [8] * 10
    with ours.Dataset(url) as nc:
        assert nc["v"][:, 0].tolist() == list(range(1, 61))


def test_a_put_that_fails_far_away_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    puts, url = FarAway(monkeypatch), "memory://failing-put/a.nczarr"
    with ours.Dataset(url, "w") as nc:
        nc.createDimension("t", None)
        nc.createVariable("v", "i4", ("t",), chunksizes=(1,))[0] = 5
    puts.fails = "v/3"
    nc = ours.Dataset(url, "a")
    nc["v"][1:6] = 7
    with pytest.raises(StoreError, match="no room"):
        nc.close()
    with pytest.raises(StoreError, match="given up"):
        nc["v"][0] = 1
    with ours.Dataset(url) as nc:
        assert nc["v"][:].tolist() == [5]


def test_variables_are_renamed_with_their_chunks(target: Path) -> None:
    write_steps(target, 0, 3)
    with ours.Dataset(target, "a") as nc:
        nc.renameVariable("v", "w")
        nc.renameDimension("x", "y")
        nc["w"].units = "K"
        nc["w"].renameAttribute("units", "unit")
    with ours.Dataset(target) as nc:
        assert [*nc.variables] == ["names", "w"] or [*nc.variables] == ["w", "names"]
        assert nc["w"].dimensions == ("t", "y")
        assert nc["w"].unit == "K"
        np.testing.assert_array_equal(nc["w"][:], np.arange(9.0).reshape(3, 3))
    assert not (target.is_dir() and (target / "v").exists())


def test_a_variable_is_renamed_that_does_not_fit_into_memory(tmp_path: Path) -> None:
    target = tmp_path / "a.nczarr"
    for mode in ("w", "a"):
        with ours.Dataset(target, mode, memory_limit=40_000) as nc:
            if mode == "w":
                nc.createDimension("t", None)
                nc.createDimension("x", 1000)
                nc.createVariable("v", "i4", ("t", "x"), chunksizes=(1, 1000))
                for step in range(50):
                    nc["v"][step] = step
            nc.renameVariable("v", "w")
            nc["w"][3, 0] = -3
            nc.renameVariable("w", "v")
        with ours.Dataset(target) as nc:
            assert nc["v"][:, 1].tolist() == list(range(50))
            assert nc["v"][2:5, 0].tolist() == [2, -3, 4]


def test_what_is_not_closed_is_stored_when_python_ends(tmp_path: Path) -> None:
    target = tmp_path / "a.nczarr"
    code = (
        "from nczarr_xarray.netcdf4 import Dataset\n"
        f"nc = Dataset({str(target)!r}, 'w'); nc.createDimension('x', 2)\n"
        "nc.createVariable('v', 'i4', ('x',))[:] = [1, 2]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with ours.Dataset(target) as nc:
        assert nc["v"][:].tolist() == [1, 2]


def test_two_writers_do_not_mix(tmp_path: Path) -> None:
    target = tmp_path / "a.nczarr"
    write_steps(target, 0, 2)
    first, second = ours.Dataset(target, "a"), ours.Dataset(target, "a")
    first["v"].units = "K"
    first.close()
    second["v"].units = "C"
    with pytest.raises(ValueError, match="changed by another writer"):
        second.close()
    with pytest.raises(ZeroDivisionError), second:  # which drops what it cannot store
        _ = 1 / 0
    with ours.Dataset(target) as nc:
        assert nc["v"].units == "K"


def test_after_an_error_nothing_is_committed_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.nczarr"
    write_steps(target, 0, 2)
    nc = ours.Dataset(target, "a")
    nc["v"][0] = 7
    full = OSError(28, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(Change, "commit", lambda *_: (_ for _ in ()).throw(full))
        with pytest.raises(OSError, match="No space left"):
            nc.close()
    with pytest.raises(OSError, match="was given up after an error"):
        nc.close()
    with ours.Dataset(target) as nc:
        assert nc["v"][0, 0] == 0


def test_netcdf_files_are_written_by_netcdf4_python(tmp_path: Path) -> None:
    with ours.Dataset(tmp_path / "a.nc", "w", format="NETCDF3_CLASSIC") as nc:
        assert isinstance(nc, ours.Dataset)
        nc.createDimension("x", 2)
        nc.createVariable("v", "i4", ("x",))[:] = [1, 2]
    with ours.Dataset(tmp_path / "a.nc") as nc:
        assert nc.data_model == "NETCDF3_CLASSIC"
        assert nc["v"][:].tolist() == [1, 2]


@pytest.mark.parametrize("target", ["memory://netcdf4/a.nc", "memory://netcdf4/a.nczarr"])
def test_the_same_program_writes_elsewhere(target: str) -> None:
    for mode, value in (("w", 1), ("a", 2)):
        with ours.Dataset(target, mode) as nc:
            if mode == "w":
                nc.createDimension("x", 2)
                nc.createVariable("v", "i4", ("x",))
            nc["v"][:] = value
        with ours.Dataset(target) as nc:
            assert nc["v"][:].tolist() == [value, value]


def test_enums_are_kept_as_flags(tmp_path: Path) -> None:
    with ours.Dataset(tmp_path / "a.nczarr", "w") as nc:
        cloud = nc.createEnumType("i1", "cloud", {"clear": 0, "cumulus": 1})
        variable = nc.createVariable("v", cloud, ())
        variable[...] = 1
        with pytest.raises(ValueError, match="illegal value"):
            variable[...] = 5
    with ours.Dataset(tmp_path / "a.nczarr") as nc:
        assert nc["v"].datatype.enum_dict == {"clear": 0, "cumulus": 1}
        assert nc["v"][...] == 1


def test_user_defined_types_need_netcdf(tmp_path: Path) -> None:
    with ours.Dataset(tmp_path / "a.nczarr", "w") as nc:
        with pytest.raises(NotImplementedError, match="NETCDF4"):
            nc.createVLType("i4", "ragged")
        with pytest.raises(NotImplementedError, match="NETCDF4"):
            nc.createCompoundType(np.dtype([("a", "i4")]), "pair")


def test_the_classic_data_model_is_kept(tmp_path: Path) -> None:
    refused: list[Callable[[Any], Any]] = [
        lambda nc: nc.createGroup("g"),
        lambda nc: nc.createDimension("second", None),
        lambda nc: nc.createVariable("text", str, ("x",)),
        lambda nc: nc.createVariable("long", "i8", ("x",)),
        lambda nc: nc.createEnumType("i1", "cloud", {"clear": 0}),
        lambda nc: setattr(nc, "texts", ["a", "b"]),
        lambda nc: setattr(nc["v"], "number", np.uint8(1)),
    ]
    for module, name in ((netCDF4, "a.nc"), (ours, "a.nczarr")):
        with module.Dataset(tmp_path / name, "w", format="NETCDF4_CLASSIC") as nc:
            assert nc.data_model == "NETCDF4_CLASSIC"
            nc.createDimension("x", None)
            nc.createVariable("v", "i4", ("x",)).number = 1  # which is an int, not an int64
            for step in refused:
                with pytest.raises((AttributeError, OSError, RuntimeError, ValueError)):
                    step(nc)
    with netCDF4.Dataset(tmp_path / "a.nc") as theirs, ours.Dataset(tmp_path / "a.nczarr") as mine:
        assert theirs["v"].number.dtype == mine["v"].number.dtype == "i4"
        assert [*theirs.variables] == [*mine.variables]


def test_what_cannot_be_written_again_as_it_is_is_not_changed(tmp_path: Path) -> None:
    root = zarr.create_group(tmp_path / "a.zarr", zarr_format=2)
    root.create_array("v", shape=(2,), dtype="bool").attrs["_ARRAY_DIMENSIONS"] = ["x"]
    before = (tmp_path / "a.zarr" / "v" / ".zarray").read_bytes()
    assert b"b1" in before
    code = f"from nczarr_xarray.netcdf4 import Dataset; Dataset({str(tmp_path / 'a.zarr')!r}, 'a')"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "type that netCDF lacks" in ended.stderr
    assert "was not stored" not in ended.stderr  # nothing is tried when Python ends
    assert (tmp_path / "a.zarr" / "v" / ".zarray").read_bytes() == before


def test_a_dataset_of_another_writer_keeps_what_it_says_of_itself(tmp_path: Path) -> None:
    target = f"file://{tmp_path}/a.nczarr#mode=nczarr,file"
    with netCDF4.Dataset(target, "w") as nc:
        nc.createDimension("x", 2)
        nc.createVariable("v", "i4", ("x",))[:] = [1, 2]
    with ours.Dataset(target, "a") as nc:
        nc.title = "two"
        nc["v"][1] = 3
    with netCDF4.Dataset(target) as nc:
        assert nc.title == "two"
        assert nc["v"][:].tolist() == [1, 3]
    assert "nczarr_xarray" not in (tmp_path / "a.nczarr" / ".zattrs").read_text()


def test_texts_are_strings_where_that_is_switched_on(tmp_path: Path) -> None:
    with ours.Dataset(tmp_path / "a.nczarr", "w") as nc:
        nc.set_ncstring_attrs(True)
        nc.one = "a"
        nc.createVariable("g/v", "i4").two = "b"
        nc.setncattr_string("three", b"c")
    with nczarr_xarray.open_hierarchy(tmp_path / "a.nczarr") as opened:
        root = opened.hierarchy.root
        variable = root.groups["g"].variables["v"]
        kinds = {**root.attributes, **variable.attributes}
        assert {name: kinds[name].value for name in ("one", "two", "three")} == {
            "one": ("a",),
            "two": ("b",),
            "three": ("c",),
        }


def test_a_dataset_that_is_written_is_printed_and_loaded(tmp_path: Path) -> None:
    with ours.Dataset(tmp_path / "a.nczarr", "w") as nc:
        nc.createVariable("v", "i4")[...] = 3
        assert nc.load(["v"])["v"] == 3
        assert "int v ;" in str(nc.tocdl())
        with pytest.raises(ValueError, match="is being written"):
            pickle.dumps(nc)


def test_decimals_are_kept_and_infinities_stay(tmp_path: Path) -> None:
    values = [1.26, np.inf, -3.14159]
    found = []
    for module, name in ((netCDF4, "a.nc"), (ours, "a.nczarr")):
        with module.Dataset(tmp_path / name, "w") as nc:
            nc.createDimension("x", 3)
            v = nc.createVariable("v", "f4", ("x",), least_significant_digit=1)
            v[:] = values
            found.append(v[:].tolist())
    assert found[0] == found[1]


def test_a_format_of_files_makes_no_tree(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"name it \.nc"):
        ours.Dataset(tmp_path / "a.nczarr", "w", format="NETCDF3_CLASSIC")


def test_data_for_nothing_must_conform(tmp_path: Path) -> None:
    with ours.Dataset(tmp_path / "a.nczarr", "w") as nc:
        nc.createDimension("x", 3)
        variable = nc.createVariable("v", "i4", ("x",))
        variable[[]] = [5]
        with pytest.raises(IndexError, match="does not conform"):
            variable[[]] = [5, 6]


def test_parameters_of_caches_are_kept(tmp_path: Path) -> None:
    before = ours.get_chunk_cache()
    ours.set_chunk_cache(10_000, preemption=0.5)
    assert ours.get_chunk_cache() == (10_000, before[1], 0.5)
    ours.set_chunk_cache(*before)
    with ours.Dataset(tmp_path / "a.nczarr", "w") as nc:
        variable = nc.createVariable("v", "i4", chunk_cache=15_000)
        assert variable.get_var_chunk_cache() == (15_000, *before[1:])
