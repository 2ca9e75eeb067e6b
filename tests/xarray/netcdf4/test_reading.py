"""Reading by the interface of netCDF4-python equals netCDF4-python, to the bit."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nczarr_xarray.netcdf4 as ours
from tests.support.oracles.netcdf4_python import compare, difference

NUMBERS = ("i1", "i2", "i4", "f4", "f8")
MORE = ("u1", "u2", "u4", "i8", "u8")
FORMATS = ("NETCDF4", "NETCDF4_CLASSIC", "NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA")


def make(path: Path, draw: random.Random) -> None:
    """Write a file of variables whose attributes are as odd as netCDF allows."""
    kind = draw.choice(FORMATS)
    types = [*NUMBERS, "S1"]
    if kind in ("NETCDF4", "NETCDF3_64BIT_DATA"):
        types += MORE
    if kind == "NETCDF4":
        types.append("string")
    with netCDF4.Dataset(path, "w", format=kind) as nc:
        nc.createDimension("x", None if draw.random() < 0.6 else 4)
        nc.createDimension("y", draw.randrange(1, 6))
        nc.createDimension("z", 3)
        groups: list[Any] = [nc]
        if kind == "NETCDF4":
            groups += [nc.createGroup("g"), nc.createGroup("g/h")]
        for number in range(3):
            add(draw.choice(groups), f"v{number}", draw.choice(types), draw)


def add(group: Any, name: str, kind: str, draw: random.Random) -> None:
    """Add a variable with data and attributes."""
    dims = draw.choice([(), ("x",), ("x", "y"), ("y", "z"), ("x", "y", "z"), ("z",)])
    numbers = kind not in ("S1", "string")
    options: dict[str, Any] = {}
    if draw.random() < 0.5:
        marks = ["a"] if kind == "S1" else [7, 0, 100, np.nan if kind[0] == "f" else 3]
        options["fill_value"] = draw.choice(marks) if kind != "string" else None
    elif numbers and draw.random() < 0.2:
        options["fill_value"] = False
    if numbers and group.data_model.startswith("NETCDF4"):
        options |= {"zlib": draw.random() < 0.3, "endian": draw.choice(["native", "big"])}
    dtype: Any = str if kind == "string" else kind
    variable = group.createVariable(name, dtype, dims, **options)
    if numbers:
        for attribute, value in some_attributes(draw):
            variable.setncattr(attribute, value)
    if kind == "S1" and dims and draw.random() < 0.5:
        variable.setncattr("_Encoding", draw.choice(["ascii", "utf-8", "none"]))
    variable.set_auto_maskandscale(False)
    variable.set_auto_chartostring(False)
    shape = tuple(4 if one.isunlimited() else len(one) for one in variable.get_dims())
    values = [element(kind, draw) for _ in range(int(np.prod(shape)))]
    data = np.array(values, object if kind == "string" else kind).reshape(shape)
    if not shape:
        variable[...] = data[()]
    else:
        variable[tuple(slice(0, length) for length in shape)] = data


def some_attributes(draw: random.Random) -> list[tuple[str, Any]]:
    """Return attributes by which numbers are decoded, possible and impossible ones."""
    values: dict[str, list[Any]] = {
        "missing_value": [np.int16(3), np.float64(1e20), np.nan, "abc", np.array([1, 2], "i2")],
        "valid_min": [np.int16(2), np.float64(0.5)],
        "valid_max": [np.int16(90), np.float64(60)],
        "valid_range": [np.array([2, 90], "i2")],
        "scale_factor": [np.float32(0.1), 2.0, np.int16(2), "x", 1.0, np.array([1.0, 2.0])],
        "add_offset": [np.float32(10), 0.0, -3.0],
        "_Unsigned": ["true", "True", "false", "yes"],
    }
    return [(name, draw.choice(v)) for name, v in values.items() if draw.random() < 0.25]


def element(kind: str, draw: random.Random) -> Any:
    """Return an element, often one that is a mark of missing data."""
    if kind == "string":
        return draw.choice(["", "ab", "ñandú"])
    if kind == "S1":
        return draw.choice([b"a", b"b", b"\0"])
    usual = netCDF4.default_fillvals[kind]
    return draw.choice([0, 3, 7, 100, draw.randrange(120), usual])


@pytest.mark.parametrize("examples", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_every_selection_of_every_type(tmp_path: Path, examples: int) -> None:
    @settings(
        max_examples=examples, deadline=None, suppress_health_check=[*HealthCheck], database=None
    )
    @given(st.randoms(use_true_random=False))
    def check(draw: random.Random) -> None:
        path = tmp_path / "made.nc"
        path.unlink(missing_ok=True)
        with warnings.catch_warnings():  # netCDF4-python has some about what is asked for
            warnings.simplefilter("ignore")
            make(path, draw)
        with netCDF4.Dataset(path) as theirs, ours.Dataset(path) as mine:
            found = compare(theirs, mine, draw)
            # of one element in the other byte order, they apply attributes to swapped bytes
            found = [one for one in found if not _is_swapped(theirs, one)]
            assert not found, "\n".join(found)

    check()


def _is_swapped(theirs: Any, told: str) -> bool:
    path, _, name = told.partition(" ")
    name = name.partition("(")[0].partition(" ")[0].partition(":")[0].partition(".")[0]
    variable = theirs[f"{path}/{name}"] if name else None
    return variable is not None and variable.dtype is not str and not variable.dtype.isnative


def test_types_that_have_names(tmp_path: Path) -> None:
    path = tmp_path / "types.nc"
    with netCDF4.Dataset(path, "w") as nc:
        nc.createDimension("x", 2)
        pair = nc.createCompoundType(np.dtype([("a", "i4"), ("text", "S1", (4,))]), "pair")
        group = nc.createGroup("g")
        outer = np.dtype([("inner", pair.dtype), ("b", "f8")], align=True)
        group.createCompoundType(outer, "outer")
        ragged = nc.createVLType("i2", "ragged")
        nc.createEnumType("i1", "cloud", {"clear": 0})
        nc.createVariable("pairs", pair, ("x",))
        group.createVariable("outers", group.cmptypes["outer"], ("x",))
        group.createVariable("rows", ragged, ("x",))[0] = np.arange(3, dtype="i2")
    with netCDF4.Dataset(path) as theirs, ours.Dataset(path) as mine:
        assert compare(theirs, mine, random.Random(0)) == []
        assert repr(mine.vltypes["ragged"]) == (
            "<class 'nczarr_xarray.netcdf4.VLType'>: name = 'ragged', numpy dtype = int16"
        )
        assert mine["pairs"].datatype.dtype_view == theirs["pairs"].datatype.dtype_view


def test_types_without_names_are_numbered_as_by_netcdf_c(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", track_order=True) as file:
        file["pairs"] = np.zeros(3, [("x", "i4"), ("y", "f8")])
        file.create_dataset("rows", (2,), h5py.vlen_dtype("i4"))
        file["other"] = np.dtype([("q", "i4")])
        file.create_dataset("of_other", (2,), file["other"])
    with netCDF4.Dataset(path) as theirs, ours.Dataset(path) as mine:
        assert sorted(mine.cmptypes) == ["_AnonymousCompound1", "other"]
        assert compare(theirs, mine, random.Random(0)) == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w") as nc:
        nc.title = "one"
        nc.createDimension("x", None)
        nc.createDimension("y", 3)
        packed = nc.createVariable("g/packed", "i2", ("x", "y"), fill_value=-5, zlib=True)
        packed.setncatts({"scale_factor": 0.5, "add_offset": 2.0, "axis": "X"})
        packed.accuracy = np.float32(0.1)
        packed[:] = np.arange(12).reshape(4, 3)
        nc.createVariable("plain", "f8", ("y",))[:] = [1, 2, 3]
    return path


def test_paths_lead_to_groups_and_variables(path: Path) -> None:
    with ours.Dataset(path) as nc:
        assert nc["g/packed"] is nc.groups["g"].variables["packed"]
        assert nc["/g"].path == "/g"
        assert nc["g"].parent is nc
        with pytest.raises(IndexError, match="nothing not found in /g"):
            nc["g/nothing"]


def test_printed_as_netcdf4_python_prints(path: Path) -> None:
    with netCDF4.Dataset(path) as theirs, ours.Dataset(path) as mine:
        for one in ("", "g", "g/packed", "plain"):
            expected = repr(theirs[one] if one else theirs)
            expected = expected.replace("netCDF4.", "nczarr_xarray.netcdf4.")
            assert repr(mine[one] if one else mine) == expected
        expected = repr(theirs.dimensions["x"]).replace("netCDF4.", "nczarr_xarray.netcdf4.")
        assert repr(mine.dimensions["x"]) == expected


def test_storage_is_told_as_netcdf4_python_tells_it(path: Path) -> None:
    with netCDF4.Dataset(path) as theirs, ours.Dataset(path) as mine:
        for method in ("chunking", "filters", "endian", "get_fill_value", "quantization"):
            for name in ("g/packed", "plain"):
                told = getattr(mine[name], method)()
                assert told == getattr(theirs[name], method)()


def test_numbers_that_are_no_integers_are_no_positions(path: Path) -> None:
    with ours.Dataset(path) as nc:
        assert nc["plain"][np.float32(1)] == 2
        for index in (0.8, -0.8, np.array(0.8)):
            with pytest.raises(IndexError, match="only integers"):
                nc["plain"][index]


def test_variables_are_found_by_attributes(path: Path) -> None:
    with ours.Dataset(path) as nc:
        group = nc["g"]
        assert group.get_variables_by_attributes(axis="X") == [group["packed"]]
        assert group.get_variables_by_attributes(axis=lambda axis: axis is None) == []


def test_several_variables_are_loaded_at_once(path: Path) -> None:
    with netCDF4.Dataset(path) as theirs, ours.Dataset(path) as mine:
        loaded = mine.load(["g/packed", "plain"])
        for name, values in loaded.items():
            assert not difference(theirs[name][...], values)


def test_bytes_and_file_objects(path: Path) -> None:
    data = path.read_bytes()
    with ours.Dataset("named.nc", memory=data) as nc, path.open("rb") as file:
        assert nc.filepath() == "named.nc"
        assert ours.Dataset(file)["plain"][1] == nc["plain"][1] == 2


def test_a_pickled_dataset_is_opened_again(path: Path) -> None:
    with ours.Dataset(path) as nc:
        variable, group = pickle.loads(pickle.dumps((nc["g/packed"], nc["g"])))
        assert variable is group["packed"]
        assert not difference(nc["g/packed"][:], variable[:])


def test_threads_need_no_lock(path: Path) -> None:
    with ours.Dataset(path) as nc, ThreadPoolExecutor(8) as threads:
        expected = nc["g/packed"][:]
        for values in threads.map(lambda _: nc["g/packed"][:], range(200)):
            assert not difference(expected, values)


def test_what_is_opened_to_read_is_not_changed(path: Path) -> None:
    with ours.Dataset(path) as nc:
        for change in (
            lambda: nc.createDimension("z", 1),
            lambda: setattr(nc, "title", "two"),
            lambda: delattr(nc["plain"], "units"),
            lambda: nc["plain"].__setitem__(0, 1),
        ):
            with pytest.raises(RuntimeError, match="Write to read only"):
                change()


def test_what_is_not_there_says_what_to_use(path: Path) -> None:
    with pytest.raises(NotImplementedError, match="use dask"):
        ours.Dataset(path, parallel=True)
    with pytest.raises(FileNotFoundError):
        ours.Dataset(path.with_name("other.nc"))
    with pytest.raises(TypeError, match="no argument 'grup'"):
        ours.Dataset(path, grup="g")


def test_importing_and_reading_need_neither_xarray_nor_dask(path: Path) -> None:
    code = (
        "import sys; from nczarr_xarray.netcdf4 import Dataset\n"
        f"assert Dataset({str(path)!r})['g/packed'][1, 2] == 5\n"
        "assert not {'xarray', 'dask', 'pandas', 'zarr'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_dask_reads_what_iris_asks_for(path: Path) -> None:
    with ours.Dataset(path) as nc:
        lazy = nc["g/packed"]._data_array  # the name is iris's
        assert lazy.chunks == ((1, 1, 1, 1), (3,))
        assert not difference(nc["g/packed"][:], lazy.compute())


def test_attributes_are_decoded_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w") as nc:
        nc.characters = "深入".encode("big5")
        nc.setncattr_string("string", "深入".encode("big5"))
    with ours.Dataset(path) as nc:
        for name in ("characters", "string"):
            assert nc.getncattr(name, encoding="big5") == "深入"
