"""Files that change after they were aggregated are errors that name them, until a refresh."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import netCDF4
import numpy as np
import pytest
import s3fs
import xarray as xr
from fsspec.implementations.reference import LazyReferenceMapper
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nczarr_xarray
from nczarr_fsspec.errors import (
    ChangedError,
    DatasetNotFoundError,
    ExportError,
    FormatError,
    URLError,
)
from nczarr_fsspec.ranges.index_memory import memory
from nczarr_xarray.aggregation import files, reading
from nczarr_xarray.aggregation.api import aggregate, convert_references
from nczarr_xarray.cli.main import main
from nczarr_xarray.netcdf4 import Dataset
from tests.support.builders.manyfiles import field, step, write
from tests.support.examples import examples
from tests.support.servers.httpserver import Server
from tests.support.servers.s3server import S3Server

WAYS = ("same size", "longer", "shorter", "another variable", "touched")
#: Between the times of neighbours, so that longer ones do not overlap.
APART = 10.0


@pytest.fixture(autouse=True)
def _forget() -> None:
    memory.clear()


def write_old(path: Path, times: list[float], add: float = 0.0, name: str = "tas") -> Path:
    """Write a file, as of long ago."""
    write(
        path,
        {
            "time": (("time",), np.array(times), {"units": "days since 2000-01-01"}),
            name: (("time", "x"), field(times, add=add), {}),
        },
    )
    os.utime(path, ns=(10**18, 10**18 + 1))
    return path


def write_all(folder: Path, count: int) -> list[Path]:
    folder.mkdir(exist_ok=True)
    return [write_old(folder / f"{n:03}.nc", [APART * n, APART * n + 1]) for n in range(count)]


def change(path: Path, way: str) -> None:
    """Change a file of `write_all`; only in this way."""
    first, before = APART * int(path.stem), path.stat().st_mtime_ns % 1000
    times = {"longer": [first, first + 1, first + 2], "shorter": [first]}.get(
        way, [first, first + 1]
    )
    if way != "touched":
        write_old(path, times, add=0.5, name="pr" if way == "another variable" else "tas")
    moment = path.stat().st_mtime_ns + 1 + before
    os.utime(path, ns=(moment, moment))


def opened(master: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(master, engine="nczarr", decode_times=False, **options)


def values(master: Any, **options: Any) -> list[float]:
    with opened(master, **options) as ds:
        found: list[float] = ds.tas.values[:, 0].tolist()
        return found


def master_of(folder: Path, version: str) -> Callable[[], xr.Dataset]:
    """Aggregate the files of a folder; return what opens that."""
    if version == "memory":
        many = nczarr_xarray.open_many(f"{folder}/*.nc", decode_times=False)
        return lambda: pickle.loads(pickle.dumps(many))
    aggregate(f"{folder}/*.nc", folder / "m.nca", cfa_version=version)
    return lambda: opened(folder / "m.nca")


@pytest.mark.parametrize("version", ["1.13", "0.6.2", "memory"])
@pytest.mark.parametrize("way", WAYS)
def test_a_fragment_that_changed_is_an_error(tmp_path: Path, way: str, version: str) -> None:
    """Also if it is one of many that are alike, which are not opened one by one."""
    paths = write_all(tmp_path / "files", 12)
    master = master_of(tmp_path / "files", version)
    assert master().tas.shape == (24, 3)
    change(paths[7], way)
    for key in (slice(None), slice(14, 16), slice(1, 16, 2)):
        with pytest.raises(ChangedError, match=r"007\.nc: has changed since .*--refresh"):
            master().tas[key].load()
    expected = field([APART * n + at for n in range(7) for at in range(2)])
    np.testing.assert_array_equal(master().tas[:14], expected)


def test_all_of_100_files_that_changed_are_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_all(tmp_path, 120)
    aggregate(f"{tmp_path}/*.nc", tmp_path / "m.nca")
    for number, path in enumerate(paths[:100]):
        change(path, WAYS[number % 5])
    with opened(tmp_path / "m.nca") as ds:
        for number, path in enumerate(paths[:100]):
            with pytest.raises(ChangedError, match=path.name):
                ds.tas[2 * number].load()
        assert ds.tas[200:].shape == (40, 3)
    findings = nczarr_xarray.validate(tmp_path / "m.nca")
    assert Counter(finding.code for finding in findings) == {"fragment-changed": 100}
    assert all(path.name in one.text for path, one in zip(paths, findings, strict=False))
    with pytest.raises(ExportError, match=r"003\.nc: has no variable"):
        aggregate(None, tmp_path / "m.nca", refresh=True)
    for path in paths[3:100:5]:
        path.unlink()
    codes = Counter(one.code for one in nczarr_xarray.validate(tmp_path / "m.nca"))
    assert codes == {"fragment-changed": 80, "fragment-missing": 20}
    with pytest.raises(DatasetNotFoundError, match=r"003\.nc"):
        aggregate(None, tmp_path / "m.nca", refresh=True)
    read = files.read_one
    names: list[str] = []

    def noted(target: str, wanted: Any) -> files.Read:
        names.append(Path(target).name)
        return read(target, wanted)

    monkeypatch.setattr(reading, "read_one", noted)
    assert main(["aggregate", f"{tmp_path}/*.nc", "-o", str(tmp_path / "m.nca"), "--refresh"]) == 0
    assert names == [path.name for path in paths[:100] if path.exists()]
    assert not nczarr_xarray.validate(tmp_path / "m.nca")
    assert main(["aggregate", "-o", str(tmp_path / "m.nca"), "--refresh"]) == 0
    assert names == [path.name for path in paths[:100] if path.exists()]  # and no more
    aggregate(f"{tmp_path}/*.nc", tmp_path / "new.nca")
    with opened(tmp_path / "m.nca") as ds, opened(tmp_path / "new.nca") as new:
        xr.testing.assert_identical(ds.load(), new.load())
    capsys.readouterr()


def served(folder: Path, paths: list[Path]) -> dict[str, bytes]:
    return {f"/{path.relative_to(folder)}": path.read_bytes() for path in paths if path.exists()}


@pytest.mark.parametrize("is_known", [False, True])
def test_files_of_a_server(tmp_path: Path, is_known: bool) -> None:
    """What has the same tag is equal; checking costs no request."""
    paths = write_all(tmp_path / "d", 20)
    with Server(served(tmp_path, paths), etag="md5") as server:
        files = [f"{server.url}/d/{path.name}" for path in paths]
        for name, version in (("m.nca", "1.13"), ("old.nca", "0.4")):
            aggregate(files, tmp_path / name, cfa_version=version)
        many = nczarr_xarray.open_many(files, decode_times=False)
        asked = []
        for name in ("old.nca", "m.nca"):
            memory.clear()
            before = len(server.requests)
            assert values(tmp_path / name)[:3] == [0, 100, 1000]
            asked.append(len(server.requests) - before)
        assert asked[0] == asked[1]
        for number, path in enumerate(paths[:10]):
            change(path, WAYS[number % 5])
        server.files = served(tmp_path, paths)
        for ds in (opened(tmp_path / "m.nca"), many):
            for number, path in enumerate(paths):
                if not is_known:
                    memory.clear()
                if number < 10 and WAYS[number % 5] != "touched":
                    with pytest.raises(ChangedError, match=path.name):
                        ds.tas[2 * number : 2 * number + 2].load()
                else:
                    expected = field([APART * number, APART * number + 1])
                    assert np.array_equal(ds.tas[2 * number : 2 * number + 2], expected)
        for number in (3, 8):
            paths[number].unlink()
        server.files = served(tmp_path, paths)
        codes = Counter(one.code for one in nczarr_xarray.validate(tmp_path / "m.nca"))
        assert codes == {"fragment-changed": 6, "fragment-missing": 2}
        before, there = (
            len(server.requests),
            [f for f, p in zip(files, paths, strict=True) if p.exists()],
        )
        aggregate(there, tmp_path / "m.nca", refresh=True)
        requests = Counter(request.path for request in server.requests[before:])
        assert sum(requests.values()) <= len(there) + 2 * 6
        aggregate(there, tmp_path / "new.nca")
        with opened(tmp_path / "m.nca") as ds, opened(tmp_path / "new.nca") as new:
            xr.testing.assert_identical(ds.load(), new.load())


def test_files_of_a_bucket(tmp_path: Path, s3_server: S3Server) -> None:
    options, folder = s3_server.signed(), f"{s3_server.private}/changed"
    fs = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    paths, master = write_all(tmp_path / "d", 15), f"s3://{folder}/m.nca"

    def put() -> None:
        for path in paths[:10]:
            fs.put_file(str(path), f"{folder}/{path.name}")

    put()
    for path in paths[10:]:
        fs.put_file(str(path), f"{folder}/{path.name}")
    aggregate(f"s3://{folder}/*.nc", master, storage_options=options)
    for number, path in enumerate(paths[:10]):
        change(path, WAYS[number % 5])
    put()
    with opened(master, storage_options=options) as ds:
        for number, path in enumerate(paths):
            if number < 10 and WAYS[number % 5] != "touched":
                with pytest.raises(ChangedError, match=path.name):
                    ds.tas[2 * number].load()
            else:
                assert ds.tas[2 * number, 0] == APART * number * 100
    fs.rm([f"{folder}/{paths[number].name}" for number in (3, 8)])
    fs.invalidate_cache()
    codes = Counter(one.code for one in nczarr_xarray.validate(master, options))
    assert codes == {"fragment-changed": 6, "fragment-missing": 2}
    for name in ("m", "new"):
        target, refresh = f"s3://{folder}/{name}.nca", name == "m"
        aggregate(f"s3://{folder}/*.nc", target, storage_options=options, refresh=refresh)
    found = [values(f"s3://{folder}/{one}.nca", storage_options=options) for one in ("m", "new")]
    assert found[0] == found[1]


# -- what stays ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["r.json", "r.parq"])
@pytest.mark.parametrize("is_remote", [False, True])
def test_references_know_the_versions_of_files(tmp_path: Path, name: str, is_remote: bool) -> None:
    """By a key of ours, at which neither fsspec nor VirtualiZarr looks."""
    if name == "r.parq":
        pytest.importorskip("pyarrow", reason="NO REFERENCES IN PARQUET TESTED: see pyarrow")
    folder, references = tmp_path / "f", str(tmp_path / name)
    folder.mkdir()

    def put(number: int, add: float, **more: Any) -> Path:
        wide = np.full((1, 500), number + add, "f4")
        variables = {"tas": (("time", "x"), wide, {}), **more}
        times = np.array([float(number)]), {"units": "days since 2000-01-01"}
        return Path(write(folder / f"{number}.nc", {"time": (("time",), *times), **variables}))

    paths = [put(number, 0) for number in range(4)]
    with Server(served(tmp_path, paths), etag="md5") as server:
        aggregate(
            [f"{server.url}/f/{path.name}" for path in paths] if is_remote else paths, references
        )
        assert values(references) == [0, 1, 2, 3]
        if name == "r.json":
            fs = fsspec.filesystem("reference", fo=references)
            assert np.frombuffer(fs.cat("tas/2.0"), "f4").tolist() == [2] * 500
        else:
            theirs = LazyReferenceMapper(references, engine="pyarrow")
            assert theirs["tas/2.0"][0].endswith("/f/2.nc")
        put(0, 0.5)
        put(1, 0, pr=(("time", "x"), np.zeros((1, 500)), {}))
        os.utime(paths[2])
        server.files = served(tmp_path, paths)
        memory.clear()
        with opened(references) as ds:
            for number, path in enumerate(paths):
                if number == 3 or (is_remote and number == 2):
                    assert ds.tas[number, 0] == number
                else:
                    with pytest.raises(ChangedError, match=f"{path.name}: has changed .* anew"):
                        ds.tas[number].load()


def test_files_of_references_that_have_moved_are_told_by_their_size(tmp_path: Path) -> None:
    aggregate(write_all(tmp_path / "a", 2), tmp_path / "r.json")
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    for path in (tmp_path / "b").iterdir():
        os.utime(path, ns=(1, 1))
    moves = {f"{tmp_path}/a": f"{tmp_path}/b"}
    assert values(tmp_path / "r.json", replace=moves) == values(tmp_path / "r.json")


def test_what_is_no_version_of_a_file_is_refused(tmp_path: Path) -> None:
    aggregate(write_all(tmp_path, 2), tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text())
    wrongs: list[Any] = [[], {"a": 1}, {"a": ["x", 1]}]
    for wrong in wrongs:
        (tmp_path / "r.json").write_text(json.dumps({**document, "nczarr_versions": wrong}))
        with pytest.raises(FormatError, match="has to be an object of"):
            opened(tmp_path / "r.json")


def test_what_has_moved_is_told_by_its_size(tmp_path: Path) -> None:
    """A copy has other times. Relative addresses name it, and so does replace=."""
    write_all(tmp_path / "a", 4)
    aggregate(f"{tmp_path}/a/*.nc", tmp_path / "a" / "m.nca")
    aggregate(f"{tmp_path}/a/*.nc", tmp_path / "absolute.nca", relative=False)
    expected = values(tmp_path / "a" / "m.nca")
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    replace = {str(tmp_path / "a"): str(tmp_path / "b")}
    assert values(tmp_path / "b" / "m.nca") == expected
    assert values(tmp_path / "absolute.nca", replace=replace) == expected
    os.utime(tmp_path / "a" / "001.nc")
    with pytest.raises(ChangedError):
        values(tmp_path / "absolute.nca")
    write_old(tmp_path / "b" / "002.nc", [*np.linspace(20, 21, 1000)])
    for master, options in (("b/m.nca", {}), ("absolute.nca", {"replace": replace})):
        with pytest.raises(ChangedError, match=r"b/002\.nc: .* bytes and has"):
            values(tmp_path / master, **options)
    aggregate(None, tmp_path / "b" / "m.nca", refresh=True)
    assert len(values(tmp_path / "b" / "m.nca")) == 1006
    os.utime(tmp_path / "b" / "003.nc")
    with pytest.raises(ChangedError, match=r"003\.nc"):
        values(tmp_path / "b" / "m.nca")


def test_a_link_to_the_folder_is_the_folder(tmp_path: Path) -> None:
    write_all(tmp_path / "a", 2)
    aggregate(f"{tmp_path}/a/*.nc", tmp_path / "a" / "m.nca")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.utime(tmp_path / "a" / "001.nc")
    with pytest.raises(ChangedError):
        values(tmp_path / "link" / "m.nca")


@pytest.mark.parametrize("version", ["1.13", "0.6.2"])
@pytest.mark.parametrize("name", ["m.nca", "m.zarr"])
def test_the_record_stays_when_a_master_is_written_again(
    tmp_path: Path, version: str, name: str
) -> None:
    paths = write_all(tmp_path, 4)
    aggregate(paths[:2], tmp_path / name, cfa_version=version)
    aggregate(paths[2:], tmp_path / name, append=True)
    convert_references(tmp_path / name, tmp_path / "other.nca", cfa_version="0.6.2")
    nczarr_xarray.open_many(paths, decode_times=False).nczarr.save(tmp_path / "saved.nca")
    with opened(tmp_path / "other.nca") as ds:
        later = ds.isel(time=[0]).load()
        later = later.assign_coords(time=("time", [999.0], later.time.attrs))
    later.nczarr.to_cfa(tmp_path / "other.nca", append_dim="time")
    masters = [tmp_path / name, tmp_path / "other.nca", tmp_path / "saved.nca"]
    before = [values(master) for master in masters]
    assert before[1] == [*before[0], 0]
    for path in paths:
        os.utime(path)
        for master in masters:
            with pytest.raises(ChangedError, match=path.name):
                values(master)
        os.utime(path, ns=(10**18, 10**18 + 1))
    assert [values(master) for master in masters] == before


@pytest.mark.parametrize("version", ["1.13", "0.6.2"])
def test_fragments_that_are_written_here_are_recorded(tmp_path: Path, version: str) -> None:
    """By `to_cfa`, by what is added to it, and by the interface of netCDF4-python."""
    time = {"units": "days since 2000-01-01"}
    ds = xr.Dataset(
        {"tas": (("time", "x"), field([*range(8)]))}, {"time": ("time", np.arange(8.0), time)}
    )
    master, other = tmp_path / "m.nca", tmp_path / "o.nca"
    ds[{"time": slice(4)}].nczarr.to_cfa(master, cfa_version=version, subarray_shape={"time": 2})
    with_zeros = ds[{"time": slice(4, 6)}].assign(tas=ds.tas[4:6] * np.nan)  # all of it missing
    with_zeros.nczarr.to_cfa(master, append_dim="time")
    ds[{"time": slice(6, 8)}].nczarr.to_cfa(master, append_dim="time")
    part = ds[["tas"]].drop_vars("time")[{"time": slice(4, 6)}]
    part.nczarr.to_cfa(master, region={"time": slice(4, 6)})
    with Dataset(other, "w", format="CFA4", cfa_version=version, subarray_shape=[2, 3]) as nc:
        nc.createDimension("time", None)
        nc.createDimension("x", 3)
        nc.createVariable("time", "f8", ("time",)).setncatts(time)
        nc.createVariable("tas", "f8", ("time", "x"))
        nc["time"][:], nc["tas"][:] = ds.time.values, ds.tas.values
    for one in (master, other):
        assert np.array_equal(opened(one).tas, ds.tas)
        assert not nczarr_xarray.validate(one)
        paths = sorted(one.with_suffix("").iterdir())
        assert len(paths) == 4
        for path in paths:
            before = path.stat().st_mtime_ns
            os.utime(path, ns=(0, before + 1))
            with pytest.raises(ChangedError, match=path.name):
                opened(one).tas.load()
            assert [one.code for one in nczarr_xarray.validate(one)] == ["fragment-changed"]
            os.utime(path, ns=(0, before))
        with netCDF4.Dataset(paths[1], "a") as nc:
            nc["tas"][:] = 7
        aggregate(None, one, refresh=True)
        assert opened(one).tas[2:4].values.tolist() == [[7, 7, 7], [7, 7, 7]]


def test_a_master_without_a_record_is_not_checked(tmp_path: Path) -> None:
    """CFA-0.4 has none, and what other programs make of a record may be none."""
    paths = write_all(tmp_path, 3)
    for version in ("0.4", "1.13"):
        aggregate(paths, tmp_path / f"{version}.nca", cfa_version=version)
    with netCDF4.Dataset(tmp_path / "1.13.nca", "a") as file:
        file.renameVariable("tas_fragment_sizes", "something")
    change(paths[1], "same size")
    for version in ("0.4", "1.13"):
        assert values(tmp_path / f"{version}.nca")[2] == 1000.5
    with netCDF4.Dataset(tmp_path / "1.13.nca", "a") as file:
        file.createVariable("tas_fragment_sizes", "f4", ())
    with pytest.warns(
        nczarr_xarray.NCZarrWarning, match="tas_fragment_versions is not of its fragments"
    ):
        assert values(tmp_path / "1.13.nca")[2] == 1000.5


def test_trees_have_no_version(tmp_path: Path) -> None:
    """So a refresh reads them again."""
    for n in range(3):
        ds = xr.Dataset({"tas": ("time", [float(n)])}, {"time": [n]})
        ds.nczarr.to_nczarr(tmp_path / f"{n}.zarr")
    aggregate([tmp_path / f"{n}.zarr" for n in range(3)], tmp_path / "m.nca")
    (ds + 5).assign_coords(time=ds.time).nczarr.to_nczarr(tmp_path / "2.zarr", mode="w")
    assert opened(tmp_path / "m.nca").tas.values.tolist() == [0, 1, 7]
    aggregate(None, tmp_path / "m.nca", refresh=True)
    assert opened(tmp_path / "m.nca").tas.values.tolist() == [0, 1, 7]


# -- refresh ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["files/*.nc", "files", "files.txt"])
@pytest.mark.parametrize("version", ["1.13", "0.6.2"])
def test_new_files_are_found_where_the_others_are(
    tmp_path: Path, source: str, version: str
) -> None:
    """A master knows its folders, patterns and lists, also after other programs added to it."""
    folder, master = tmp_path / "files", tmp_path / "with blanks" / "m.nca"
    master.parent.mkdir()
    paths, listed = write_all(folder, 3), tmp_path / "files.txt"
    listed.write_text("\n".join(map(str, paths)))
    aggregate(tmp_path / source, master, cfa_version=version)
    aggregate([write_old(tmp_path / "other.nc", [APART * 9])], master, append=True)
    aggregate(None, master, refresh=True)
    assert not nczarr_xarray.validate(master)
    paths += [write_old(folder / f"{n:03}.nc", [APART * n, APART * n + 1]) for n in (3, 4)]
    listed.write_text("\n".join(map(str, paths)))
    change(paths[1], "longer")
    paths[0].rename(tmp_path / "away")
    listed.write_text("\n".join(map(str, paths[1:])))
    found = {one.code: one.text for one in nczarr_xarray.validate(master)}
    assert [*found] == ["fragment-missing", "fragment-changed", "fragment-new"]
    assert "003.nc" in found["fragment-new"]
    (tmp_path / "away").rename(paths[0])
    listed.write_text("\n".join(map(str, paths)))
    assert main(["aggregate", "-o", str(master), "--refresh"]) == 0
    assert not nczarr_xarray.validate(master)
    aggregate([*paths, tmp_path / "other.nc"], tmp_path / "new.nca", cfa_version=version)
    with opened(master) as one, opened(tmp_path / "new.nca") as new:
        xr.testing.assert_identical(one.load(), new.load())
    shutil.copytree(tmp_path, tmp_path / "copy")  # where the sources may be others
    write_old(folder / "005.nc", [APART * 5])
    codes = [one.code for one in nczarr_xarray.validate(tmp_path / "copy/with blanks/m.nca")]
    assert "fragment-new" not in codes
    aggregate([*paths], master, refresh=True)
    assert not nczarr_xarray.validate(master)


@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.lists(st.sampled_from([*WAYS[:3], "touched", "gone", ""]), min_size=6, max_size=6),
        min_size=1,
        max_size=3,
    ),
    version=st.sampled_from(["1.13", "0.6.2"]),
)
def test_a_refreshed_master_is_as_a_new_one(
    tmp_path: Path, steps: list[list[str]], version: str
) -> None:
    shutil.rmtree(tmp_path / "f", ignore_errors=True)
    paths = write_all(tmp_path / "f", 6)
    master, new = tmp_path / "f" / "m.nca", tmp_path / "f" / "new.nca"
    aggregate(paths[:4], master, cfa_version=version)
    for ways in steps:
        for path, way in zip(paths, ways, strict=True):
            if way == "gone":
                path.unlink(missing_ok=True)
            elif way and path.exists():
                change(path, way)
            elif way:
                write_old(path, [APART * int(path.stem), APART * int(path.stem) + 1])
        there = [path for path in paths if path.exists()]
        if len(there) < 2:
            return
        aggregate(there, master, refresh=True)
        aggregate(there, new, overwrite=True, cfa_version=version)
        with opened(master) as one, opened(new) as other:
            xr.testing.assert_identical(one.load(), other.load())


def tile(path: Path, time: float, y: list[float], add: float = 0.0, **more: Any) -> str:
    return write(
        path,
        {
            "time": (("time",), np.array([time]), {"units": "days since 2000-01-01"}),
            "y": (("y",), np.array(y), {"units": "m"}),
            "tas": (("time", "y"), np.array([y]) + 100 * time + add, {}),
            **more,
        },
    )


def test_a_refresh_of_tiles(tmp_path: Path) -> None:
    tiles = {(t, y): tmp_path / f"{t}{y}.nc" for t in range(3) for y in range(2)}
    for (t, y), path in tiles.items():
        tile(path, t, [2.0 * y, 2.0 * y + 1])
    aggregate([*tiles.values()], tmp_path / "m.nca")
    tile(tiles[1, 0], 1, [0, 1], add=0.5)
    tile(tiles[2, 0], 7, [0, 1])
    tile(tiles[2, 1], 7, [2, 3])
    aggregate(None, tmp_path / "m.nca", refresh=True)
    with opened(tmp_path / "m.nca") as ds:
        assert ds.time.values.tolist() == [0, 1, 7]
        assert ds.tas.values.tolist() == [
            [0, 1, 2, 3],
            [100.5, 101.5, 102, 103],
            [700, 701, 702, 703],
        ]
    tile(tiles[1, 0], 1, [0, 5])
    before = (tmp_path / "m.nca").read_bytes()
    with pytest.raises(ExportError, match=r"10\.nc"):
        aggregate(None, tmp_path / "m.nca", refresh=True)
    assert (tmp_path / "m.nca").read_bytes() == before


def test_what_the_first_file_says_is_read_again(tmp_path: Path) -> None:
    """And with others, what the master holds stays."""
    paths = [tmp_path / f"{n}.nc" for n in range(3)]

    def height(value: float) -> dict[str, Any]:
        return {"height": (("y",), np.array([value, value]), {"units": "m"})}

    for n, path in enumerate(paths):
        tile(path, n, [0, 1], **height(n))
    aggregate(paths, tmp_path / "m.nca")
    for changed, expected in ((2, 0.0), (0, 10.0)):
        tile(paths[changed], changed, [0, 1], **height(10 + changed))
        aggregate(None, tmp_path / "m.nca", refresh=True)
        with opened(tmp_path / "m.nca") as ds:
            assert ds.height.values.tolist() == [expected, expected]
            assert ds.tas[:, 0].values.tolist() == [0, 100, 200]


def test_files_in_the_order_in_which_they_are_given(tmp_path: Path) -> None:
    """No coordinate says where one belongs: all are read."""
    paths = [tmp_path / f"{n}.nc" for n in (2, 0, 1)]
    for n, path in enumerate(paths):
        write(path, {"tas": (("run", "x"), np.full((1, 2), n, "f4"), {})})
    aggregate(paths, tmp_path / "m.nca", dim="run")
    write(paths[1], {"tas": (("run", "x"), np.full((1, 2), 7, "f4"), {})})
    os.utime(paths[1])
    aggregate(None, tmp_path / "m.nca", dim="run", refresh=True)
    assert opened(tmp_path / "m.nca").tas[:, 0].values.tolist() == [0, 7, 2]


def test_what_cannot_be_refreshed(tmp_path: Path) -> None:
    path = Path(step(tmp_path / "a.nc", [0]))
    other = Path(step(tmp_path / "b.nc", [1]))
    with pytest.raises(DatasetNotFoundError, match="no dataset to change"):
        aggregate([path, other], tmp_path / "m.nca", refresh=True)
    with pytest.raises(ExportError, match="made anew"):
        aggregate([path, other], tmp_path / "m.json", refresh=True)
    with pytest.raises(URLError, match="give one"):
        aggregate([path], tmp_path / "m.nca", refresh=True, append=True)
    with pytest.raises(URLError, match="no file"):
        aggregate(None, tmp_path / "m.nca")
    assert main(["aggregate", "-o", str(tmp_path / "m.nca")]) == 2
