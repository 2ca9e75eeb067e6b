"""``nczarr check --cmip7``: faults of files and across files, and repacking."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

import nczarr_xarray
from nczarr_fsspec.errors import ExportError
from nczarr_xarray.cli.main import main
from nczarr_xarray.tools import check
from nczarr_xarray.tools.checks import Finding
from tests.support.builders.cmip import DAYS, Draft, drafts
from tests.support.oracles.nc_adapter import find_ncdump, ncdump
from tests.support.servers.realservers import range_server

Change = Callable[[list[Draft]], object]


def attribute(name: str, value: Any) -> Change:
    return lambda files: files[2].attributes.update({name: value})


def of(variable: str, name: str, value: Any) -> Change:
    return lambda files: files[2].variables[variable][2].update({name: value})


def without(variable: str, name: str) -> Change:
    return lambda files: files[2].variables[variable][2].pop(name)


def option(variable: str, name: str, value: Any) -> Change:
    return lambda files: files[2].variables[variable][3].update({name: value})


def values(variable: str, change: Callable[[np.ndarray], Any]) -> Change:
    return lambda files: files[2].replace(variable, change)


def times(change: Callable[[np.ndarray], Any]) -> Change:
    """Change what lies along time: elements are chosen, or numbers changed."""

    def changed(files: list[Draft]) -> None:
        for name in ("time", "time_bnds"):
            files[2].replace(name, change)

    return changed


def chosen(part: Any) -> Change:
    def changed(files: list[Draft]) -> None:
        for name in ("time", "time_bnds", "tas"):
            files[2].replace(name, lambda values: values[part])

    return changed


def renamed(old: str, new: str) -> Change:
    def changed(files: list[Draft]) -> None:
        made = files[2].variables
        made[new] = made.pop(old)

    return changed


def along(old: str, new: str) -> Change:
    """Give a dimension another name."""

    def changed(files: list[Draft]) -> None:
        made = files[2].variables
        for name, (dims, *rest) in list(made.items()):
            made[name] = tuple(new if d == old else d for d in dims), *rest  # type: ignore[assignment]

    return changed


def transposed(files: list[Draft]) -> None:
    dims, data, attributes, options = files[2].variables["tas"]
    files[2].variables["tas"] = (dims[0], dims[2], dims[1]), data, attributes, options


def longer(files: list[Draft]) -> None:
    files[2] = drafts(4, cells=9)[2]


def packed(files: list[Draft]) -> None:
    files[2].replace("tas", lambda v: (v * 10).astype("i2"))
    files[2].variables["tas"][2].update({"scale_factor": 0.1, "add_offset": 0.0})
    files[2].variables["tas"][3]["fillvalue"] = np.int16(-1)


#: A change of the third of four files, what is found, and of which file.
FAULTS: dict[str, tuple[Change, str, int]] = {
    # global attributes
    "another model": (attribute("source_id", "OTHER"), "unlike-attribute", 2),
    "another experiment": (attribute("experiment_id", "ssp585"), "unlike-attribute", 2),
    "another member": (attribute("variant_label", "r2i1p1f1"), "unlike-attribute", 2),
    "another frequency": (attribute("frequency", "mon"), "unlike-attribute", 2),
    "another grid": (attribute("grid_label", "g2"), "unlike-attribute", 2),
    "another era": (attribute("mip_era", "CMIP6"), "unlike-attribute", 2),
    "other conventions": (attribute("Conventions", "CF-1.7"), "unlike-attribute", 2),
    "another variable_id": (attribute("variable_id", "tasmax"), "unlike-attribute", 2),
    "one more attribute": (attribute("comment", "mine"), "unlike-attribute", 2),
    "another number": (attribute("realization_index", np.int32(2)), "unlike-attribute", 2),
    "another type": (attribute("realization_index", np.int64(1)), "unlike-attribute", 2),
    "an attribute less": (lambda f: f[2].attributes.pop("source_id"), "unlike-attribute", 2),
    # attributes of variables
    "other units": (of("tas", "units", "degC"), "unlike-attribute", 2),
    "no units": (without("tas", "units"), "unlike-attribute", 2),
    "another name": (of("tas", "standard_name", "surface_temperature"), "unlike-attribute", 2),
    "other cell methods": (of("tas", "cell_methods", "time: point"), "unlike-attribute", 2),
    "one more of a variable": (of("tas", "comment", "mine"), "unlike-attribute", 2),
    "no coordinates": (without("tas", "coordinates"), "unlike-attribute", 2),
    "another fill value": (option("tas", "fillvalue", np.float32(-1)), "unlike-attribute", 2),
    "no fill value": (lambda f: f[2].variables["tas"][3].pop("fillvalue"), "unlike-attribute", 2),
    "a missing value": (of("tas", "missing_value", np.float32(1e20)), "unlike-attribute", 2),
    "packed": (packed, "unlike-variable", 2),
    "other units of latitude": (of("lat", "units", "radians"), "unlike-attribute", 2),
    "another direction": (of("height", "positive", "down"), "unlike-attribute", 2),
    "another axis": (of("time", "axis", "X"), "unlike-attribute", 2),
    "other bounds": (of("lat", "bnds", "lat_bnds"), "unlike-attribute", 2),
    # variables and dimensions
    "another dtype": (values("tas", lambda v: v.astype("f8")), "unlike-variable", 2),
    "latitude in single": (values("lat", lambda v: v.astype("f4")), "unlike-variable", 2),
    "times as integers": (values("time", lambda v: v.astype("i4")), "unlike-variable", 2),
    "a variable less": (lambda f: f[2].variables.pop("height"), "unlike-variable", 2),
    "bounds less": (lambda f: f[2].variables.pop("lat_bnds"), "unlike-variable", 2),
    "a variable more": (
        lambda f: f[2].variables.update(more=(("lat",), np.zeros(8), {}, {})),
        "unlike-variable",
        2,
    ),
    "a variable called otherwise": (renamed("tas", "ta"), "unlike-variable", 2),
    "a dimension called otherwise": (along("bnds", "nv"), "unlike-dimension", 2),
    "dimensions in another order": (transposed, "unlike-variable", 2),
    "more rows": (longer, "unlike-dimension", 2),
    "a fixed dimension": (lambda f: f[2].unlimited.clear(), "unlike-dimension", 2),
    # coordinates
    "rows elsewhere": (values("lat", lambda v: v + 1), "unlike-coordinate", 2),
    "rows off by a bit": (values("lat", lambda v: np.nextafter(v, 99)), "unlike-coordinate", 2),
    "columns reversed": (values("lon", lambda v: v[::-1]), "unlike-coordinate", 2),
    "another height": (values("height", lambda v: v * 5), "unlike-coordinate", 2),
    "other edges": (values("lat_bnds", lambda v: v * 1.01), "unlike-coordinate", 2),
    "a row that is no number": (
        values("lat", lambda v: np.where(np.arange(8) == 3, np.nan, v)),
        "unlike-coordinate",
        2,
    ),
    # time
    "another calendar": (of("time", "calendar", "360_day"), "unlike-attribute", 2),
    "no calendar": (without("time", "calendar"), "unlike-attribute", 2),
    "other units of time": (of("time", "units", "days since 1900-01-01"), "unlike-attribute", 2),
    "hours": (of("time", "units", "hours since 1850-01-01"), "unlike-attribute", 2),
    "a file less": (lambda f: f.pop(2), "time-gap", 2),
    "begins late": (chosen(slice(1, None)), "time-gap", 2),
    "ends early": (chosen(slice(None, -1)), "time-gap", 3),
    "a day less": (chosen([0, 1, 3, 4, 5]), "time-gap", 2),
    "every other day": (chosen(slice(None, None, 2)), "time-gap", 2),
    "begins early": (times(lambda v: v - 1), "time-overlap", 2),
    "all again": (times(lambda v: v - DAYS), "time-overlap", 2),
    "comes late": (times(lambda v: v + 1), "time-gap", 2),
    "falls": (times(lambda v: v[::-1]), "time-order", 2),
    "a time twice": (times(lambda v: v[[0, 1, 2, 2, 3, 4]]), "time-order", 2),
    "a time that is no number": (
        values("time", lambda v: np.where(np.arange(DAYS) == 2, np.nan, v)),
        "time-order",
        2,
    ),
    "bounds of others": (values("time_bnds", lambda v: v + 3), "time-bounds", 2),
    "bounds with a gap": (
        values("time_bnds", lambda v: v - np.where(np.arange(DAYS) == 2, 0.25, 0)[:, None]),
        "time-bounds",
        2,
    ),
    "bounds that end early": (
        values("time_bnds", lambda v: np.minimum(v, v.max() - 0.25)),
        "time-gap",
        3,
    ),
    # layout
    "time in chunks": (option("time", "chunks", (1,)), "cmip7", 2),
    "bounds in chunks": (option("time_bnds", "chunks", (1, 2)), "cmip7", 2),
    "small chunks": (option("tas", "chunks", (1, 8, 8)), "cmip7", 2),
    "index among the data": (lambda f: setattr(f[2], "block", 2048), "cmip7", 2),
}


def write(folder: Path, files: list[Draft]) -> list[str]:
    return [str(file.write(folder)) for file in files]


def packing(path: str) -> tuple[Finding, ...]:
    return nczarr_xarray.check_cmip7(path)[path]


def test_enough_faults() -> None:
    assert len(FAULTS) >= 50


@pytest.mark.parametrize("name", FAULTS)
def test_faults(tmp_path: Path, name: str) -> None:
    change, code, number = FAULTS[name]
    files = drafts()
    change(files)
    paths = write(tmp_path, files)
    found = nczarr_xarray.check_cmip7(tmp_path)
    assert [*found] == paths
    assert code in {one.code for one in found[paths[number]]}
    others = {path for path in paths if found[path]} - {paths[number]}
    # what comes too early at one end leaves a gap at the other
    assert others <= set(paths[3:] if code.startswith("time-") else ())


def test_sound_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = drafts(12)
    files[1].attributes["history"] = "its own"
    paths = write(tmp_path, files)
    assert nczarr_xarray.check_cmip7(paths[::-1]) == dict.fromkeys(paths[::-1], ())
    assert main(["check", *paths, "--cmip7"]) == 0
    assert capsys.readouterr().out == "sound: 12 files\n"


def test_files_of_several_datasets(tmp_path: Path) -> None:
    """A range of time ends the name of one; files without are told apart by ``variable_id``."""
    paths = write(tmp_path, drafts(2))
    other = drafts(2)
    for file in other:
        renamed("tas", "pr")([file] * 3)
        file.attributes["variable_id"] = "pr"
        file.name = file.name.replace("tas_", "pr_")
    paths += write(tmp_path, other)
    for name in ("areacella", "orog"):
        fixed = drafts(1)[0]
        fixed.name = f"{name}_fx.nc"
        fixed.attributes["variable_id"] = name
        for lost in ("time", "time_bnds", "tas"):
            del fixed.variables[lost]
        fixed.replace("lat", lambda v: v + len(paths))
        paths.append(str(fixed.write(tmp_path)))
    assert nczarr_xarray.check_cmip7(paths) == dict.fromkeys(paths, ())
    fixed.name = "again_fx.nc"
    again = str(fixed.write(tmp_path))
    assert [one.code for one in nczarr_xarray.check_cmip7([*paths, again])[again]] == [
        "time-overlap"
    ]


def test_months_are_not_equally_long(tmp_path: Path) -> None:
    edges = xr.date_range("1850-01-01", periods=25, freq="MS", use_cftime=True, calendar="noleap")
    days = np.array([(one - edges[0]).days for one in edges], "f8")
    paths = []
    for number, part in enumerate((slice(0, 12), slice(12, 24))):
        file = drafts(1)[0]
        low, high = days[:-1][part], days[1:][part]
        file.replace("time", lambda _: (low + high) / 2)  # noqa: B023
        file.replace("time_bnds", lambda _: np.stack([low, high], -1))  # noqa: B023
        file.replace("tas", lambda v: np.zeros((12, *v.shape[1:]), v.dtype))
        for name, chunks in {"time": (12,), "time_bnds": (12, 2), "tas": (12, 8, 8)}.items():
            file.variables[name][3]["chunks"] = chunks
        file.name = f"tas_mon_185{number}01-185{number}12.nc"
        paths.append(str(file.write(tmp_path)))
    assert nczarr_xarray.check_cmip7(paths) == dict.fromkeys(paths, ())


def test_what_cannot_be_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write(tmp_path, drafts(3))
    Path(paths[1]).write_bytes(Path(paths[1]).read_bytes()[:600])
    assert main(["check", *paths, "--cmip7", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    codes = {(one["file"], one["code"]) for one in found}
    assert (paths[1], "unreadable") in codes
    assert main(["check", str(tmp_path / "none.nc"), "--cmip7"]) == 2
    with netCDF4.Dataset(tmp_path / "classic.nc", "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("x", 2)
    capsys.readouterr()
    assert main(["check", str(tmp_path / "classic.nc"), "--cmip7"]) == 1
    assert "CMIP7 wants netCDF-4" in capsys.readouterr().out


def test_remote_files(tmp_path: Path) -> None:
    """What is found is what is found of the same files here."""
    files = drafts()
    files[1].attributes["source_id"] = "OTHER"
    files[2].variables["time"][3]["chunks"] = (1,)
    local = nczarr_xarray.check_cmip7(write(tmp_path, files))
    with range_server(tmp_path) as server:
        urls = [f"{server.url}/{file.name}" for file in files]
        found = nczarr_xarray.check_cmip7(urls)
    codes = [[(one.code, one.path) for one in own] for own in found.values()]
    assert codes == [[(one.code, one.path) for one in own] for own in local.values()]
    assert codes[1:3] == [[("unlike-attribute", "/")], [("cmip7", "/time")]]


# -- repacking -----------------------------------------------------------------------------------


def verdict(*paths: str) -> subprocess.CompletedProcess[str]:
    """Let ``check_cmip7_packing`` of cmip7_repack look at files."""
    try:
        files = importlib.metadata.files("cmip7_repack") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("cmip7_repack is not installed")
    (program,) = (one for one in files if str(one) == "cmip7_repack/check_cmip7_packing")
    command = [sys.executable, str(program.locate()), *paths]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def oracle(*paths: str) -> None:
    """Check that files pass."""
    done = verdict(*paths)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASS") == len(paths)


#: Steps of data whose chunk has 4 MiB.
FULL = 64
#: Chunk lengths along time, None for contiguous: of ``time``, its bounds and the data. A variable
#: that is not named does not exist. ``ahead``: whether there is room for metadata before the data;
#: if not, the index of a variable lies behind the data of those that are named before.
LAYOUTS: dict[str, dict[str, Any]] = {
    "all contiguous": {"time": None, "bnds": None, "v": None},
    "chunks of 4 MiB": {"time": 128, "bnds": 128, "v": FULL},
    "chunks of 4 MiB less a step": {"time": 128, "bnds": 128, "v": FULL - 1},
    "chunks of 4 MiB less two steps": {"time": 128, "bnds": 128, "v": FULL - 2},
    "data in one chunk": {"time": 128, "bnds": 128, "v": 128},
    "data contiguous": {"time": 128, "bnds": 128, "v": None},
    "time in two chunks": {"time": 64, "bnds": 128, "v": FULL},
    "bounds in two chunks": {"time": 128, "bnds": 64, "v": FULL},
    "no bounds": {"time": 128, "v": FULL},
    "no bounds, small chunks": {"time": 128, "v": 1},
    "no data variable": {"time": 128, "bnds": 128},
    "index among the data": {"v": FULL, "time": 128, "bnds": 128, "ahead": False},
    "index among the data, small chunks": {"time": 128, "v": 1, "ahead": False},
    "time contiguous, small chunks": {"time": None, "v": 1},
    "bounds contiguous, small chunks": {"time": 128, "bnds": None, "v": 1},
    "no time, small chunks": {"v": 1},
}
#: Where that program has another verdict. It looks at the chunks of the data only if the bounds of
#: time, or time where there are none, have chunks; and then it fails where the data have none.
KNOWN = {
    "data contiguous",
    "time contiguous, small chunks",
    "bounds contiguous, small chunks",
    "no time, small chunks",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_verdicts_are_those_of_check_cmip7_packing(tmp_path: Path, name: str) -> None:
    lengths = dict(LAYOUTS[name])
    block = 1 << 20 if lengths.pop("ahead", True) else 2048
    shapes = {"time": (128,), "bnds": (128, 2), "v": (128, 64, 256)}
    path = str(tmp_path / "x.nc")
    with h5py.File(path, "w", meta_block_size=block) as file:
        file.attrs["_NCProperties"] = "version=2,netcdf=4.9.3,hdf5=1.14.3"
        file.attrs.update(variable_id="v", mip_era="CMIP7")
        for variable, length in lengths.items():
            shape = shapes[variable]
            chunks = None if length is None else (length, *shape[1:])
            file.create_dataset(variable, data=np.zeros(shape, "f4"), chunks=chunks)
        if "bnds" in lengths:
            file["time"].attrs["bounds"] = "bnds"
    assert (nczarr_xarray.doctor(path).cmip7 == ()) is (
        (verdict(path).returncode == 0) ^ (name in KNOWN)
    )
    check.repack(path)
    oracle(path)


def badly_packed(path: Path, **options: Any) -> Path:
    """A file by netCDF4: 48 steps of 100 kB, each a chunk, with texts, an enum and a scalar."""
    with netCDF4.Dataset(path, "w") as file:
        file.variable_id, file.count = "tas", np.array([1, 2], "i2")
        for name, length in (("time", None), ("y", 160), ("x", 160), ("bnds", 2), ("n", 3)):
            file.createDimension(name, length)
        time = file.createVariable("time", "f8", ("time",), chunksizes=(7,))
        time.units, time.bounds = "days since 1850-01-01", "time_bnds"
        bounds = file.createVariable("time_bnds", "f8", ("time", "bnds"))
        state = file.createEnumType("u1", "onoff", {"off": 0, "on": 1})
        file.createVariable("state", state, ("time",), fill_value=1)[:] = np.ones(48, "u1")
        file.createVariable("names", str, ("n",))[:] = np.array(["a", "é", ""], object)
        file.createVariable("code", "S1", ("n", "bnds"))[:] = np.full((3, 2), b"x")
        file.createVariable("height", "f8", ())[:] = 2
        kind = {"zlib": True, "complevel": 2, "fletcher32": True, "chunksizes": (1, 160, 160)}
        options = {"datatype": "f4", "fill_value": 1e20, **kind, **options}
        tas = file.createVariable("tas", dimensions=("time", "y", "x"), **options)
        days = np.arange(48.0)
        time[:], bounds[:] = days + 0.5, np.stack([days, days + 1], -1)
        tas[:] = np.random.default_rng(0).integers(250, 300, (48, 160, 160))
        tas.units, tas.flags = "K", np.array([1, 2, 3], "u1")
    return path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunksizes": (20, 160, 160)},
        {"chunksizes": (49, 160, 160)},
        {"zlib": False, "fletcher32": False},
        {"chunksizes": (1, 16, 160), "datatype": ">f4", "endian": "big"},
    ],
)
def test_repacked_files_are_equal_and_pass(tmp_path: Path, options: Any) -> None:
    path = str(badly_packed(tmp_path / "x.nc", **options))
    (tmp_path / "old.nc").write_bytes(Path(path).read_bytes())
    os.chmod(path, 0o640)
    assert {one.code for one in packing(path)} == {"cmip7"}
    check.repack(path)
    assert packing(path) == ()
    assert {one.name for one in tmp_path.iterdir()} == {"x.nc", "old.nc"}
    for engine in ("netcdf4", "h5netcdf"):
        with (
            xr.open_dataset(path, engine=engine) as new,
            xr.open_dataset(tmp_path / "old.nc", engine=engine) as old,
        ):
            xr.testing.assert_identical(new.load(), old.load())
            for name, variable in old.variables.items():
                for key, value in variable.attrs.items():
                    assert np.asarray(value).dtype == np.asarray(new[name].attrs[key]).dtype
    with netCDF4.Dataset(path) as new, netCDF4.Dataset(tmp_path / "old.nc") as old:
        assert new["tas"].filters() == old["tas"].filters()
        assert new.dimensions["time"].isunlimited()
        assert new["time"].chunking() == [48]
        chunks = new["tas"].chunking()
        assert np.prod(chunks) * 4 >= 4 << 20 or chunks[0] >= 48
        assert new["state"].datatype.enum_dict == {"off": 0, "on": 1}
    oracle(path)


def chunks_of(path: Path, name: str) -> list[bytes]:
    with h5py.File(path) as file:
        dataset = file[name]
        infos = [dataset.id.get_chunk_info(n) for n in range(dataset.id.get_num_chunks())]
        return [dataset.id.read_direct_chunk(info.chunk_offset)[1] for info in infos]


def test_chunks_are_moved_where_they_are_large_enough(tmp_path: Path) -> None:
    """So that one which is damaged stays so: it is not decoded."""
    file = drafts(1)[0]
    file.variables["time"][3]["chunks"] = (1,)
    path = file.write(tmp_path)
    before = chunks_of(path, "tas")[0]
    data = bytearray(path.read_bytes())
    data[data.index(before) + 40] ^= 255
    path.write_bytes(data)
    target = tmp_path / "y.nc"
    nczarr_xarray.copy(path, target, cmip7=True)
    assert chunks_of(target, "tas") == chunks_of(path, "tas") != [before]
    with pytest.raises(ExportError, match="stays as it is"):  # what cannot be read is not equal
        check.repack(str(path))


def test_data_without_chunks(tmp_path: Path) -> None:
    """The program fails for these where time has chunks."""
    file = drafts(1)[0]
    file.block = 2048
    file.unlimited.clear()
    file.variables["tas"][3].clear()
    path = str(file.write(tmp_path))
    check.repack(path)
    oracle(path)


def test_fix_and_master(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = drafts()
    for file in files[1:3]:
        file.variables["time"][3]["chunks"] = (1,)
    paths = write(tmp_path, files)
    master = tmp_path / "tas.nca"
    command = ["check", *paths, "--cmip7", "-o", str(master)]
    assert main(command) == 1
    assert not master.exists()
    assert f"{master} is not written" in capsys.readouterr().out
    sound = Path(paths[0]).read_bytes()
    assert main([*command, "--fix"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        *(f"repacked {path}" for path in paths[1:3]),
        "sound: 4 files",
    ]
    assert Path(paths[0]).read_bytes() == sound
    with xr.open_dataset(master, engine="nczarr") as ds:
        assert ds.sizes["time"] == 4 * DAYS
        np.testing.assert_array_equal(
            ds["tas"].values, np.concatenate([f.variables["tas"][1] for f in drafts()])
        )
    oracle(*paths)


def test_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file stays whose copy would lack something, or is not equal to it."""
    path = badly_packed(tmp_path / "x.nc")
    with netCDF4.Dataset(path, "a") as file:
        kind = file.createCompoundType(np.dtype([("a", "i4")]), "pair")
        file.createVariable("pairs", kind, ("n",))
    before = path.read_bytes()
    assert main(["check", str(path), "--cmip7", "--fix"]) == 2
    assert "/pairs" in capsys.readouterr().err
    assert path.read_bytes() == before
    path = badly_packed(tmp_path / "y.nc")
    before = path.read_bytes()
    copy = nczarr_xarray.copy

    def wrong(source: str, target: str, **options: Any) -> Any:
        copy(source, target, **options)
        with h5py.File(target, "r+") as file:
            file["tas"][3, 4, 5] = 0
        return nczarr_xarray.compare(source, target)

    monkeypatch.setattr("nczarr_xarray.tools.check.copy", wrong)
    with pytest.raises(ExportError, match="stays as it is"):
        check.repack(str(path))
    assert path.read_bytes() == before
    assert {one.name for one in tmp_path.iterdir()} == {"x.nc", "y.nc"}


def test_remote_files_are_repacked(tmp_path: Path) -> None:
    path = badly_packed(tmp_path / "x.nc")
    fs, url = fsspec.filesystem("memory"), f"memory://check{tmp_path}/x.nc"
    fs.pipe_file(url, path.read_bytes())
    assert main(["check", url, "--cmip7", "--fix"]) == 0
    new = tmp_path / "new.nc"
    new.write_bytes(fs.cat_file(url))
    assert nczarr_xarray.compare(path, new).equal
    assert fs.ls(f"memory://check{tmp_path}", detail=False) == [f"/check{tmp_path}/x.nc"]
    oracle(str(new))


@pytest.mark.parametrize("count", [1, 64, 65, 5000])
def test_indexes_of_any_length_come_first(tmp_path: Path, count: int) -> None:
    """Threads put chunks in any order, so that nodes of the index are filled in part."""
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", count)
        file.createDimension("y", 8)
        data = file.createVariable("v", "f8", ("x", "y"), chunksizes=(1, 8))
        data[:] = np.random.default_rng(0).normal(size=(count, 8))
        file.createVariable("w", "f8", ("y", "x"), chunksizes=(8, 1))[:] = data[:].T
    for number, options in enumerate(({}, {"compress": "zlib:1"}, {"chunks": {"y": 2, "x": 1}})):
        target = tmp_path / f"{number}.nc"
        nczarr_xarray.copy(tmp_path / "x.nc", target, verify=True, **options)  # type: ignore[arg-type]
        assert packing(str(target)) == ()
        assert main(["compare", str(tmp_path / "x.nc"), str(target)]) == 0


def test_codecs_that_not_every_program_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(drafts(1)[0].write(tmp_path))
    assert main(["copy", path, str(tmp_path / "y.nc"), "--compress", "zstd:3"]) == 2
    assert (
        "--compress: netCDF-4 files that every program reads have zlib" in capsys.readouterr().err
    )
    assert main(["copy", path, str(tmp_path / "y.nczarr"), "--cmip7"]) == 2
    assert "--cmip7: not for NCZarr, but for netCDF-4" in capsys.readouterr().err


def test_ncdump_reads_what_is_copied(tmp_path: Path) -> None:
    program, reason = find_ncdump()
    if program is None:
        pytest.skip(f"there is no ncdump: {reason}")
    path = badly_packed(tmp_path / "x.nc")
    with netCDF4.Dataset(path, "a") as file:
        file["state"][:] = 0  # ncdump of Debian fails for others than members
    nczarr_xarray.copy(path, tmp_path / "y.nc", cmip7=True, compress="zlib:1")
    one, other = (ncdump("-n", "x", str(tmp_path / name)) for name in ("x.nc", "y.nc"))
    assert one == other


@pytest.mark.parametrize("options", [["--optimize", "--cmip7"], ["--chunks", "time=3", "--cmip7"]])
def test_copy(tmp_path: Path, options: list[str]) -> None:
    source, target = badly_packed(tmp_path / "x.nc"), str(tmp_path / "y.nc")
    assert main(["copy", str(source), target, *options, "--compress", "zlib:1", "--verify"]) == 0
    assert packing(target) == ()
    with netCDF4.Dataset(target) as file:
        assert file["tas"].filters()["complevel"] == 1
        assert file["tas"].filters()["shuffle"]
    oracle(target)


@pytest.mark.parametrize("name", ["é.nc", os.fsdecode(b"\xff.nc")])
def test_names_that_are_not_ascii(tmp_path: Path, name: str) -> None:
    """netCDF4 would make a new file where it does not find one, to write what is in one piece."""
    source = badly_packed(tmp_path / "x.nc")
    path = tmp_path / name
    path.write_bytes(source.read_bytes())
    check.repack(str(path))
    assert nczarr_xarray.compare(source, path).equal
    assert {one.name for one in tmp_path.iterdir()} == {"x.nc", name}
