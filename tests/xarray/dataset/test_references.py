"""Kerchunk references as datasets, against kerchunk, fsspec and zarr-python."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from kerchunk.combine import MultiZarrToZarr
from kerchunk.hdf import SingleHdf5ToZarr

from nczarr_fsspec.errors import (
    AccessDeniedError,
    DatasetNotFoundError,
    FormatError,
    NCZarrWarning,
    StoreError,
)
from nczarr_fsspec.stores.referencefolder import Rows
from nczarr_fsspec.stores.references import RemoteReferences
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.views.references import references
from tests.support.builders.remotefiles import FORMATS, expected, write_file
from tests.support.builders.trees import read_tree
from tests.support.servers.httpserver import Server
from tests.support.servers.s3server import S3Server

#: Without it these tests do not run; the extra "parquet" has it.
NEEDS_PYARROW = "NO REFERENCES IN PARQUET TESTED: pip install 'nczarr-xarray[parquet]'"


pytestmark = pytest.mark.usefixtures("no_waiting")


def opened(target: Any, **options: Any) -> xr.Dataset:
    with xr.open_dataset(target, engine="nczarr", **options) as ds:
        return ds.load()


def fails(target: Any, kind: type[Exception], match: str, **options: Any) -> None:
    """Check that reading ``t`` fails so; xarray reads coordinates before, which fail alike."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NCZarrWarning)
        with xr.open_dataset(target, engine="nczarr", **options) as ds:
            with pytest.raises(kind, match=match):
                ds["t"].load()


def by_zarr(refs: str | dict[str, Any]) -> xr.Dataset:
    """What fsspec and zarr-python read."""
    mapper = fsspec.filesystem("reference", fo=refs, asynchronous=False).get_mapper("")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with xr.open_dataset(mapper, engine="zarr", consolidated=False, zarr_format=2) as ds:
            return ds.load()


def write_steps(folder: Path, count: int = 3) -> list[Path]:
    """Write files that kerchunk combines along time."""
    paths = []
    for number in range(count):
        random = np.random.default_rng(number)
        ds = xr.Dataset(
            {"t": (("time", "y", "x"), random.normal(size=(4, 20, 30)), {"units": "K"})},
            coords={"time": ("time", 4 * number + np.arange(4.0)), "x": np.arange(30.0)},
        )
        paths.append(folder / f"s{number}.nc")
        ds.to_netcdf(
            paths[-1], engine="netcdf4", encoding={"t": {"chunksizes": (1, 10, 15), "zlib": True}}
        )
    return paths


def combined(paths: list[Path]) -> dict[str, Any]:
    """What kerchunk makes of several files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        singles = [SingleHdf5ToZarr(str(path), inline_threshold=100).translate() for path in paths]
        many = MultiZarrToZarr(
            singles, concat_dims=["time"], identical_dims=["x"], remote_protocol="file"
        )
        found: dict[str, Any] = many.translate()
    return found


def write_json(path: Path, refs: object) -> str:
    path.write_text(json.dumps(refs))
    return str(path)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], xr.Dataset]:
    """References to several files, and what is in them."""
    paths = write_steps(tmp_path_factory.mktemp("steps"))
    parts = [expected(path) for path in paths]
    return combined(paths), xr.concat(parts, "time", data_vars="minimal")


# ---- JSON


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_references_to_a_file_read_as_the_file(name: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NCZarrWarning)
        refs = references(path)
    target = write_json(tmp_path / "refs.json", refs)
    ours, there = opened(target), expected(path)
    assert set(ours.variables) == set(there.variables)
    xr.testing.assert_equal(ours, there)
    for variable in ours.variables:
        assert ours[variable].attrs == there[variable].attrs


def test_what_kerchunk_combines(steps: tuple[dict[str, Any], xr.Dataset], tmp_path: Path) -> None:
    refs, there = steps
    ours = opened(write_json(tmp_path / "r.json", refs))
    xr.testing.assert_identical(ours, by_zarr(refs))
    xr.testing.assert_equal(ours, there)


def test_version_0(steps: tuple[dict[str, Any], xr.Dataset], tmp_path: Path) -> None:
    refs, there = steps
    xr.testing.assert_equal(opened(write_json(tmp_path / "r.json", refs["refs"])), there)


def test_references_in_memory(steps: tuple[dict[str, Any], xr.Dataset]) -> None:
    refs, there = steps
    xr.testing.assert_equal(opened(refs, allow=True), there)
    xr.testing.assert_equal(opened(refs["refs"], allow=True), there)
    fails(refs, AccessDeniedError, "allow=")


def test_templates(tmp_path: Path) -> None:
    data = np.arange(40, dtype="<i4")
    (tmp_path / "all.bin").write_bytes(data.tobytes())
    array = {
        "zarr_format": 2,
        "shape": [40],
        "chunks": [20],
        "dtype": "<i4",
        "order": "C",
        "compressor": None,
        "filters": None,
        "fill_value": None,
    }
    refs = {
        "version": 1,
        "templates": {"base": str(tmp_path), "f": "all.bin"},
        "refs": {
            ".zgroup": '{"zarr_format": 2}',
            "v/.zarray": json.dumps(array),
            "v/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}',
            "v/0": ["{{base}}/{{f}}", 0, 80],
            "v/1": ["{{base}}/{{f}}", 80, 80],
        },
    }
    np.testing.assert_array_equal(opened(write_json(tmp_path / "r.json", refs))["v"], data)


@pytest.mark.parametrize(
    "key",
    [
        {"time": 5},
        {"time": slice(3, 9, 2), "y": slice(None, None, -1)},
        {"time": [7, 0, 7], "x": [29, 3]},
        {"time": xr.DataArray([1, 8, 11], dims="p"), "y": xr.DataArray([0, 19, 5], dims="p")},
        {"x": slice(5, 5)},
    ],
)
def test_selections(
    key: dict[str, Any], steps: tuple[dict[str, Any], xr.Dataset], tmp_path: Path
) -> None:
    refs, there = steps
    with xr.open_dataset(write_json(tmp_path / "r.json", refs), engine="nczarr") as ds:
        xr.testing.assert_equal(ds["t"].isel(key), there["t"].isel(key))


def test_zarr_3(tmp_path: Path) -> None:
    values = np.arange(24.0).reshape(4, 6)
    root = zarr.open_group(tmp_path / "tree", mode="w", zarr_format=3)
    array = root.create_array(
        "v", shape=(4, 6), chunks=(2, 3), dtype="f8", dimension_names=("y", "x")
    )
    array[:] = values
    refs: dict[str, Any] = {}
    for path in sorted((tmp_path / "tree").rglob("*")):
        if path.is_file():
            key = path.relative_to(tmp_path / "tree").as_posix()
            text = path.name == "zarr.json"
            refs[key] = path.read_text() if text else [str(path), 0, path.stat().st_size]
    target = write_json(tmp_path / "r.json", {"version": 1, "refs": refs})
    np.testing.assert_array_equal(opened(target)["v"], values)


def test_groups(tmp_path: Path) -> None:
    path = write_file(tmp_path / "h5.nc")
    target = write_json(tmp_path / "r.json", references(path))
    xr.testing.assert_equal(opened(target, group="model/run"), expected(path, group="model/run"))
    with pytest.raises(DatasetNotFoundError):
        opened(target, group="model/none")


@pytest.mark.slow
def test_dask_threads_and_processes(
    steps: tuple[dict[str, Any], xr.Dataset], tmp_path: Path
) -> None:
    pytest.importorskip("dask")
    refs, there = steps
    target = write_json(tmp_path / "r.json", refs)
    with xr.open_dataset(target, engine="nczarr", chunks={"time": 2}) as ds:
        xr.testing.assert_equal(ds.compute(scheduler="threads"), there)
    with xr.open_dataset(target, engine="nczarr") as ds:
        text = pickle.dumps(ds)
        with ThreadPoolExecutor(8) as pool:
            for found in pool.map(lambda _: pickle.loads(text)["t"].sum().item(), range(16)):
                assert found == there["t"].sum().item()
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            assert pool.submit(_sum, text).result() == there["t"].sum().item()


def _sum(text: bytes) -> float:
    return float(pickle.loads(text)["t"].sum())


def test_other_json_is_told_from_references(tmp_path: Path) -> None:
    target = write_json(tmp_path / "other.json", {"a": 1})
    with pytest.raises(FormatError, match="holds no kerchunk references"):
        opened(target)


def test_the_command_line_shows_references(
    steps: tuple[dict[str, Any], xr.Dataset],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = write_json(tmp_path / "r.json", steps[0])
    assert main(["dump", "-h", target]) == 0
    assert "double t(time, y, x)" in capsys.readouterr().out
    assert main(["info", target]) == 0
    assert "store     kerchunk references\n" in capsys.readouterr().out


# ---- what goes wrong


def test_missing_references_are_fill_and_missing_files_are_not(tmp_path: Path) -> None:
    (path,) = write_steps(tmp_path, 1)
    refs = combined([path])
    removed = {key: value for key, value in refs["refs"].items() if key != "t/0.0.0"}
    fewer = opened(write_json(tmp_path / "fewer.json", {"version": 1, "refs": removed}))
    assert np.isnan(fewer["t"][0, :10, :15]).all()
    assert not np.isnan(fewer["t"][1:]).any()
    target = write_json(tmp_path / "r.json", refs)
    path.rename(tmp_path / "moved.nc")
    fails(target, DatasetNotFoundError, r"s0\.nc.*reference '")
    moved = opened(target, replace={str(path): str(tmp_path / "moved.nc")})
    xr.testing.assert_equal(moved, expected(tmp_path / "moved.nc"))


@pytest.mark.parametrize("value", [["u", -1, 5], ["u", 0, 1 << 70], {"a": 1}, 7, ["u", "0", "1"]])
def test_references_that_make_no_sense(value: Any, tmp_path: Path) -> None:
    (path,) = write_steps(tmp_path, 1)
    refs = combined([path])
    refs["refs"]["t/1.0.0"] = value
    with xr.open_dataset(write_json(tmp_path / "r.json", refs), engine="nczarr") as ds:
        assert ds["t"][0].shape == (20, 30)
        assert not np.isnan(ds["t"][0]).any()
        with pytest.raises((StoreError, FormatError), match=r"t/1\.0\.0|t"):
            ds["t"][1].load()


def test_a_part_of_a_chunk_that_is_too_short(tmp_path: Path) -> None:
    """What is behind it in the file belongs to something else."""
    values = np.arange(200_000, dtype="<i4")
    (tmp_path / "x.bin").write_bytes(values.tobytes())
    array = {"zarr_format": 2, "shape": [200_000], "chunks": [200_000], "dtype": "<i4"}
    array |= {"compressor": None, "filters": None, "fill_value": 0, "order": "C"}
    refs = {
        ".zgroup": '{"zarr_format": 2}',
        "v/.zarray": json.dumps(array),
        "v/0": ["x.bin", 0, values.nbytes - 4],
    }
    with xr.open_dataset(write_json(tmp_path / "r.json", refs), engine="nczarr") as ds:
        with pytest.raises(FormatError, match="has no byte 799999 of 800000: truncated"):
            ds.v[199_990:].load()
        assert ds.v[199_989:199_999].values.tolist() == values[199_989:199_999].tolist()


def test_how_large_a_document_may_be(tmp_path: Path) -> None:
    (path,) = write_steps(tmp_path, 1)
    refs = combined([path])
    refs["refs"][".zattrs"] = json.dumps({"note": "x" * 5000})
    target = write_json(tmp_path / "r.json", refs)
    assert len(opened(target).attrs["note"]) == 5000
    with pytest.raises(StoreError, match="max_metadata"):
        opened(target, storage_options={"max_metadata": 3000})


# ---- behind a network


def served(server: Server, folder: Path, refs: dict[str, Any]) -> str:
    """Serve references, and the files that they lead to, by addresses relative to them."""
    for path in folder.glob("*.nc"):
        server.files[f"/data/{path.name}"] = path.read_bytes()
    text = json.dumps(refs).replace(f'"{folder}/', '"data/')
    server.files["/r.json"] = text.encode()
    return f"{server.url}/r.json"


def test_over_http(tmp_path: Path) -> None:
    paths = write_steps(tmp_path)
    there = xr.concat([expected(path) for path in paths], "time", data_vars="minimal")
    with Server({}) as server:
        url = served(server, tmp_path, combined(paths))
        with xr.open_dataset(url, engine="nczarr") as ds:
            opening = len(server.requests)
            xr.testing.assert_equal(ds.load(), there)
            assert isinstance(open_hierarchy(url).store, RemoteReferences)
        assert opening <= 3
        # 48 chunks of three files, one after another in each
        assert len([one for one in server.requests if one.path.endswith(".nc")]) <= 6


def test_a_remote_file_must_not_make_us_read_elsewhere(tmp_path: Path) -> None:
    (path,) = write_steps(tmp_path, 1)
    refs = combined([path])
    with Server({}) as server:
        server.files["/r.json"] = json.dumps(refs).encode()
        url = f"{server.url}/r.json"
        fails(url, AccessDeniedError, r"s0\.nc.*allow=")
        xr.testing.assert_equal(opened(url, allow=[tmp_path]), expected(path))


@pytest.mark.servers
def test_over_s3(s3_server: S3Server, tmp_path: Path) -> None:
    paths = write_steps(tmp_path)
    there = xr.concat([expected(path) for path in paths], "time", data_vars="minimal")
    fs = fsspec.filesystem("s3", **s3_server.signed())
    for path in paths:
        fs.put_file(str(path), f"{s3_server.private}/refs/{path.name}")
    refs = combined(paths)
    text = json.dumps(refs).replace(f'"{tmp_path}/', f'"s3://{s3_server.private}/refs/')
    fs.pipe_file(f"{s3_server.private}/refs/r.json", text.encode())
    target = f"s3://{s3_server.private}/refs/r.json"
    xr.testing.assert_equal(opened(target, storage_options=s3_server.signed()), there)
    (tmp_path / "r.json").write_text(text)
    allow = {f"s3://{s3_server.private}": s3_server.signed()}
    xr.testing.assert_equal(opened(str(tmp_path / "r.json"), allow=allow), there)


# ---- Parquet


def write_parquet(folder: Path, refs: dict[str, Any], record_size: int = 10) -> str:
    """Write references as kerchunk does."""
    pytest.importorskip("pyarrow", reason=NEEDS_PYARROW)
    from fsspec.implementations.reference import LazyReferenceMapper

    store = LazyReferenceMapper.create(str(folder), record_size=record_size, engine="pyarrow")
    keys = sorted(refs["refs"], key=lambda key: "/.z" not in f"/{key}")  # documents first
    for key in keys:
        store[key] = refs["refs"][key]
    store.flush()
    return str(folder)


@pytest.mark.parametrize("record_size", [1, 7, 10_000])
def test_parquet(
    record_size: int, steps: tuple[dict[str, Any], xr.Dataset], tmp_path: Path
) -> None:
    refs, there = steps
    target = write_parquet(tmp_path / "r.parq", refs, record_size)
    xr.testing.assert_equal(opened(target), there)
    with xr.open_dataset(target, engine="nczarr") as ds:
        again = pickle.loads(pickle.dumps(ds))
        xr.testing.assert_equal(again["t"][3:9, ::-3].load(), there["t"][3:9, ::-3])


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("there", ["another", "nothing"])
def test_a_folder_of_parquet_that_is_replaced(there: str, pickled: bool, tmp_path: Path) -> None:
    """No chunk reads as the fill value because another folder has no reference to it."""
    long, short = tmp_path / "long.nc", tmp_path / "short.nc"
    encoding = {"v": {"chunksizes": (10,), "_FillValue": -9.0}}
    for path, count in ((long, 1000), (short, 20)):
        xr.Dataset({"v": ("x", np.arange(float(count)))}).to_netcdf(path, encoding=encoding)
    target = write_parquet(tmp_path / "r.parq", references(str(long)))
    with xr.open_dataset(target, engine="nczarr", cache=False) as opened_before:
        ds = pickle.loads(pickle.dumps(opened_before)) if pickled else opened_before
        assert ds["v"][3] == 3
        Path(target).rename(tmp_path / "old.parq")
        if there == "another":
            write_parquet(Path(target), references(str(short)))
        with pytest.raises(StoreError, match=r"another dataset is in its place|cannot be found"):
            ds["v"][700].load()
        assert ds["v"][3] == 3  # of references that were read before


def test_parquet_is_read_as_fsspec_reads_it(
    steps: tuple[dict[str, Any], xr.Dataset], tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow", reason=NEEDS_PYARROW)
    from fsspec.implementations.reference import LazyReferenceMapper

    target = write_parquet(tmp_path / "r.parq", steps[0])
    theirs = LazyReferenceMapper(target, engine="pyarrow")
    store = open_hierarchy(target).keys
    for key in steps[0]["refs"]:
        if key.startswith("t/") and "/." not in key:
            address, offset, size = theirs[key]
            (data,) = store.get_many([key])
            assert data == Path(address).read_bytes()[offset : offset + size]


def test_parquet_over_http(tmp_path: Path) -> None:
    paths = write_steps(tmp_path)
    there = xr.concat([expected(path) for path in paths], "time", data_vars="minimal")
    refs = json.loads(json.dumps(combined(paths)).replace(f'"{tmp_path}/', '"data/'))
    folder = Path(write_parquet(tmp_path / "r.parq", refs))
    files = {f"/data/{path.name}": path.read_bytes() for path in paths}
    with Server(files | read_tree(folder, "/r.parq/")) as server:
        xr.testing.assert_equal(opened(f"{server.url}/r.parq"), there)


def _no_parquet(folder: Path) -> None:
    (folder / "t" / "refs.0.parq").write_bytes(b"PAR1 this is not PAR1")


def _too_few_rows(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    columns = {"path": ["f"], "offset": [-5], "size": [10]}
    parquet.write_table(pa.table(columns), folder / "t" / "refs.0.parq")


def _text_for_numbers(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    columns = {"path": ["f"], "offset": ["x"], "size": ["y"]}
    parquet.write_table(pa.table(columns), folder / "t" / "refs.0.parq")


@pytest.mark.parametrize("damage", [_no_parquet, _too_few_rows, _text_for_numbers])
def test_damaged_parquet(damage: Callable[[Path], None], tmp_path: Path) -> None:
    paths = write_steps(tmp_path, 1)
    folder = Path(write_parquet(tmp_path / "r.parq", combined(paths)))
    damage(folder)
    fails(str(folder), StoreError, r"refs\.0\.parq|reference 't/0\.0\.0'")


def test_rows_that_repeat_a_long_text_take_no_memory(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason=NEEDS_PYARROW)
    from pyarrow import parquet

    rows = 1 << 20
    numbers = pa.array(np.zeros(rows, dtype=np.int32))
    text = pa.DictionaryArray.from_arrays(numbers, pa.array([bytes(1 << 20)]))  # 1 TiB
    parquet.write_table(pa.table({"raw": text}), tmp_path / "refs.0.parq")
    found = Rows.parse((tmp_path / "refs.0.parq").read_bytes(), "refs.0.parq")
    assert found.find(rows - 1, "v/1") == bytes(1 << 20)
    with pytest.raises(StoreError, match=f"v/2: is in row {rows} of a file that has {rows} rows"):
        found.find(rows, "v/2")


@pytest.mark.parametrize("metadata", ['{"record_size": 0}', '{"record_size": 10}', '{"record_size'])
def test_damaged_metadata_of_parquet(metadata: str, tmp_path: Path) -> None:
    folder = tmp_path / "r.parq"
    folder.mkdir()
    (folder / ".zmetadata").write_text(metadata)
    with pytest.raises((FormatError, DatasetNotFoundError)):
        opened(str(folder))


def test_without_pyarrow(
    monkeypatch: pytest.MonkeyPatch, steps: tuple[dict[str, Any], xr.Dataset], tmp_path: Path
) -> None:
    folder = Path(write_parquet(tmp_path / "r.parq", steps[0]))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"nczarr-xarray\[parquet\]"):
        opened(str(folder))
