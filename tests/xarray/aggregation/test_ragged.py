"""Collections whose chunks, or last chunks, differ, as references that other programs read."""

from __future__ import annotations

import base64
import itertools
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_fsspec.errors import DatasetExistsError, ExportError, FormatError, LossWarning
from nczarr_xarray import (
    NCZarrParser,
    NCZarrWarning,
    aggregate,
    convert_references,
    open_many,
    references,
)
from nczarr_xarray.aggregation import chunk_references
from nczarr_xarray.cli.main import main
from tests.support.builders.manyfiles import write
from tests.support.servers.httpserver import Server

pytestmark = [
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3"),
    pytest.mark.filterwarnings("ignore:The data type:FutureWarning"),
]
FLAG = "array.rectilinear_chunks"
needs_zarr = pytest.mark.skipif(
    zarr.config.get(FLAG, None) is None, reason="zarr-python has no such grids before 3.2"
)
ragged = pytest.mark.filterwarnings("ignore:.*(has chunks of several lengths|end inside of a)")
CUT = {"chunksizes": (4,)}
DEFLATED = {"zlib": True, "shuffle": True}


def tile(
    path: Path,
    time: range,
    x: range,
    chunks: tuple[int, int] | None,
    large: Any = None,
    **more: Any,
) -> str:
    values = 100.0 * np.array(time)[:, None] + np.array(x)
    encoding = {"chunksizes": chunks} if chunks else {}
    coordinates: dict[str, Any] = {
        "time": (("time",), np.array(time, "f8"), {}),
        "x": (("x",), np.array(x), {}),
    }
    others = {} if large is None else {"large": large}
    return write(
        path, {**coordinates, **others, "v": (("time", "x"), values, {**encoding, **more})}
    )


def series(folder: Path, lengths: list[int], chunk: int | None = 4, **more: Any) -> list[str]:
    ends = [*itertools.accumulate(lengths)]
    rows = [range(end - n, end) for n, end in zip(lengths, ends, strict=True)]
    chunks = None if chunk is None else (chunk, 3)
    return [tile(folder / f"{i}.nc", row, range(6), chunks, **more) for i, row in enumerate(rows)]


def expected(times: int, xs: int = 6) -> np.ndarray:
    return 100.0 * np.arange(times)[:, None] + np.arange(xs)


def by_hand(refs: dict[str, Any], name: str) -> np.ndarray:
    """An array of references of Zarr 3, by its specification and numcodecs."""
    document = json.loads(refs[f"{name}/zarr.json"])
    grid, shape = document["chunk_grid"], document["shape"]
    if grid["name"] == "rectilinear":
        runs = grid["configuration"]["chunk_shapes"]
        lengths = [
            [n for run in axis for n in ([run[0]] * run[1] if isinstance(run, list) else [run])]
            for axis in runs
        ]
    else:
        sizes = grid["configuration"]["chunk_shape"]
        lengths = [[n] * -(-size // n) for n, size in zip(sizes, shape, strict=True)]
    first, *others = document["codecs"]
    dtype = np.dtype(document["data_type"])
    if first.get("configuration"):
        dtype = dtype.newbyteorder(first["configuration"]["endian"])
    ends = [[*itertools.accumulate(axis)] for axis in lengths]
    found = np.full([axis[-1] for axis in ends], document["fill_value"], dtype)
    for index in np.ndindex(*map(len, lengths)):
        value = refs.get(f"{name}/c/{'/'.join(map(str, index))}")
        if value is None:
            continue
        data = base64.b64decode(value.removeprefix("base64:")) if isinstance(value, str) else b""
        if not isinstance(value, str):
            with Path(value[0]).open("rb") as file:
                file.seek(value[1])
                data = file.read(value[2])
        for codec in reversed(others):
            config = {"id": codec["name"].removeprefix("numcodecs."), **codec["configuration"]}
            data = numcodecs.get_codec(config).decode(data)
        block = [axis[at] for axis, at in zip(lengths, index, strict=True)]
        box = tuple(
            slice(axis[at] - n, axis[at]) for axis, at, n in zip(ends, index, block, strict=True)
        )
        found[box] = np.frombuffer(data, dtype).reshape(block)
    return found[tuple(map(slice, shape))]


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())["refs"]
    return found


@pytest.fixture(autouse=True, scope="module")
def large() -> Iterator[None]:
    """Small variables are taken for large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_references, "LITTLE", 0)
        yield


@pytest.fixture
def enabled() -> Iterator[None]:
    with zarr.config.set({FLAG: True}):
        yield


def by_zarr(path: Path) -> xr.Dataset:
    options: Any = {"fo": str(path), "remote_protocol": "file"}
    return xr.open_dataset(
        "reference://", engine="zarr", storage_options=options, consolidated=False
    )


@pytest.mark.parametrize("more", [{}, DEFLATED, {"zlib": True, "fletcher32": True}], ids=str)
def test_files_that_end_inside_of_a_chunk(tmp_path: Path, more: dict[str, Any]) -> None:
    """As years of 365 and 366 days do; what that costs is said."""
    files = series(tmp_path, [5, 6, 7], **more)
    with pytest.warns(NCZarrWarning) as told:
        aggregate(files, tmp_path / "all.json")
    grid, held = [str(one.message) for one in told]
    assert "all.json: has chunks of several lengths, the first ones of /v in " in grid
    assert "zarr.config.set({'array.rectilinear_chunks': True})" in grid
    assert f"holds 4 chunks itself, {(1 + 2) * 6 * 8} bytes before they are compressed" in held
    assert files[0] in held
    assert np.array_equal(by_hand(read(tmp_path / "all.json"), "v"), expected(18))


@needs_zarr
@ragged
@pytest.mark.parametrize("engine", ["zarr", "nczarr"])
def test_they_are_read_by_zarr(tmp_path: Path, engine: str, enabled: None) -> None:
    aggregate(series(tmp_path, [5, 6, 7], **DEFLATED, _FillValue=505.0), tmp_path / "all.json")
    target = tmp_path / "all.json"
    with by_zarr(target) if engine == "zarr" else xr.open_dataset(target, engine=engine) as ds:
        values = expected(18)
        np.testing.assert_array_equal(ds.v, np.where(values == 505, np.nan, values))


@ragged
def test_chunks_of_each_file(tmp_path: Path) -> None:
    """A chunk of a whole year, of months of 28 to 31 days: nothing has to be held."""
    rows = [range(5), range(5, 11), range(11, 14)]
    files = [
        tile(tmp_path / f"{n}.nc", row, range(6), (len(row), 6), **DEFLATED)
        for n, row in enumerate(rows)
    ]
    aggregate(files, tmp_path / "all.json")
    refs = read(tmp_path / "all.json")
    grid = json.loads(refs["v/zarr.json"])["chunk_grid"]
    assert grid["configuration"]["chunk_shapes"] == [[5, 6, 3], [6]]
    assert np.array_equal(by_hand(refs, "v"), expected(14))


@ragged
def test_remote_files_that_end_inside_of_a_chunk(tmp_path: Path) -> None:
    files = series(tmp_path, [5, 6, 7], **DEFLATED)
    with Server({f"/{Path(file).name}": Path(file).read_bytes() for file in files}) as server:
        urls = [f"{server.url}/{Path(file).name}" for file in files]
        aggregate(urls, tmp_path / "all.json")
    text = (tmp_path / "all.json").read_text().replace(server.url, str(tmp_path))
    assert np.array_equal(by_hand(json.loads(text)["refs"], "v"), expected(18))


@ragged
def test_chunks_that_are_longer_than_their_files(tmp_path: Path) -> None:
    """As those of unlimited dimensions are by default."""
    files = []
    for first, length in ((0, 5), (5, 6), (11, 3)):
        files.append(str(tmp_path / f"{first}.nc"))
        ds = xr.Dataset(
            {"v": ("time", np.arange(first, first + length))},
            {"time": np.arange(first, first + length)},
        )
        encoding = {"v": {"chunksizes": (8,)}}
        ds.to_netcdf(files[-1], unlimited_dims=["time"], encoding=encoding, engine="netcdf4")
    aggregate(files, tmp_path / "all.json")
    refs = read(tmp_path / "all.json")
    assert by_hand(refs, "v").tolist() == [*range(14)]
    shapes = json.loads(refs["v/zarr.json"])["chunk_grid"]["configuration"]["chunk_shapes"]
    assert shapes == [[5, 6, 8]]


@pytest.mark.parametrize("name", ["all.json", "all.parq"])
@pytest.mark.filterwarnings("ignore:.*end inside of a chunk")
def test_small_variables_are_held_in_a_regular_grid(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one with chunks of a default length it does not depend who reads all others."""
    if name.endswith(".parq"):
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(chunk_references, "LITTLE", 1 << 10)
    files = []
    for n, row in enumerate([range(6), range(6, 15), range(15, 18)]):
        large = (("time", "z"), np.ones((len(row), 200)), {"chunksizes": (1, 200)})
        path, chunks = tmp_path / f"{n}.nc", (min(4, len(row)), 4)
        files.append(tile(path, row, range(6), chunks, **DEFLATED, large=large))
    aggregate(files, tmp_path / name)
    with xr.open_dataset(tmp_path / name, engine="nczarr") as ds:
        assert np.array_equal(ds.v.values, expected(18))
        assert ds.v.encoding["chunksizes"] == (3, 6)
    if name == "all.json":
        with by_zarr(tmp_path / name) as ds:
            assert np.array_equal(ds.v.values, expected(18))
            assert (ds.large.values == 1).all()


@ragged
@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    columns=st.lists(st.integers(1, 5), min_size=1, max_size=2),
    data=st.data(),
)
def test_any_tiles(
    rows: list[int], columns: list[int], data: st.DataObject, tmp_path_factory: Any
) -> None:
    """Values are right, or the error names two files that have other chunks."""
    folder = tmp_path_factory.mktemp("tiles")
    files = []
    more: Any = data.draw(st.sampled_from([{}, DEFLATED]))
    mostly = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 3)))
    for (i, end), (j, right) in itertools.product(
        enumerate(itertools.accumulate(rows)), enumerate(itertools.accumulate(columns))
    ):
        own = data.draw(st.sampled_from([mostly, mostly, (2, 2), None]))
        chunks = own and (min(own[0], rows[i]), min(own[1], columns[j]))
        part = range(end - rows[i], end), range(right - columns[j], right)
        how = more if chunks else {}
        files.append(tile(folder / f"{i}{j}.nc", *part, chunks, **how))
    target = folder / "all.json"
    try:
        aggregate(files, target, "time" if len(files) == 1 else None)
    except ExportError as error:
        assert any(word in str(error) for word in ("has the chunks", "compressor", "filters"))
        return
    refs = read(target)
    if "v/zarr.json" in refs:
        assert np.array_equal(by_hand(refs, "v"), expected(sum(rows), sum(columns)))
    else:
        with by_zarr(target) as ds:
            assert np.array_equal(ds.v.values, expected(sum(rows), sum(columns)))


@ragged
@pytest.mark.filterwarnings("ignore:.*parts have no file")
def test_a_tile_that_is_missing(tmp_path: Path) -> None:
    files = []
    for (i, row), (j, column) in itertools.product(
        enumerate([range(5), range(5, 8)]), enumerate([range(3), range(3, 7)])
    ):
        path = tmp_path / f"{i}{j}.nc"
        files.append(tile(path, row, column, (2, 2), **DEFLATED, _FillValue=-1.0))
    aggregate(files[1:], tmp_path / "all.json")
    found = by_hand(read(tmp_path / "all.json"), "v")
    assert (found[:5, :3] == -1).all()
    found[:5, :3] = expected(5, 3)
    assert np.array_equal(found, expected(8, 7))


@pytest.mark.parametrize("kind", ["NETCDF3_CLASSIC", "NETCDF4"])
@pytest.mark.parametrize("unlimited", [False, True])
def test_plain_elements_are_chunks_of_the_length_that_fits(
    tmp_path: Path, kind: Any, unlimited: bool
) -> None:
    """Files without chunks need no grid of Zarr 3, whatever their lengths are."""
    if kind == "NETCDF4" and unlimited:
        pytest.skip("such files have chunks")
    files = []
    for first, length in ((0, 365), (365, 366), (731, 365)):
        files.append(str(tmp_path / f"{first}.nc"))
        with netCDF4.Dataset(files[-1], "w", format=kind) as file:
            file.createDimension("time", None if unlimited else length)
            file.createDimension("x", 200)
            for name in ("v", "w"):
                file.createVariable(name, "f4", ("time", "x"))
            file.createVariable("time", "f8", ("time",))[:] = np.arange(first, first + length)
            file["v"][:] = np.arange(first, first + length)[:, None] + np.arange(200) / 256
            file["w"][:] = 2 * file["v"][:]
    aggregate(files, tmp_path / "all.json")
    refs = read(tmp_path / "all.json")
    assert json.loads(refs["v/.zarray"])["chunks"] == [1, 200]
    whole = np.arange(1096)[:, None] + np.arange(200) / 256
    with by_zarr(tmp_path / "all.json") as ds:
        assert np.array_equal(ds["v"].values, whole)
        assert np.array_equal(ds["w"].values, 2 * whole)


def test_levels_of_compression_may_differ(tmp_path: Path) -> None:
    rows = [range(4), range(4, 8)]
    files = [
        tile(tmp_path / f"{n}.nc", row, range(6), (2, 6), **DEFLATED, complevel=1 + 8 * n)
        for n, row in enumerate(rows)
    ]
    aggregate(files, tmp_path / "all.json")
    with by_zarr(tmp_path / "all.json") as ds:
        assert np.array_equal(ds.v.values, expected(8))


def test_what_parquet_cannot_have(tmp_path: Path) -> None:
    message = r"all.parq: would have .* of /v in .*0.nc, which Parquet.* cannot have: write FILE.js"
    with pytest.raises(ExportError, match=message):
        aggregate(series(tmp_path, [5, 4]), tmp_path / "all.parq")


@ragged
def test_what_is_too_much_to_be_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_references, "MOST_INLINE", 47)
    message = r"/v: has files that end inside of a chunk, such as .*0.nc; .* nczarr copy MASTER.nca"
    with pytest.raises(ExportError, match=message):
        aggregate(series(tmp_path, [5, 4]), tmp_path / "all.json")
    assert not (tmp_path / "all.json").exists()


@ragged
@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"limits": np.array([np.nan, 1])}, r"NaN and infinities among attributes become .*: /v$"),
        ({"_FillValue": np.uint8(9), "_Unsigned": "true"}, r"left out: a _FillValue of .*: /v$"),
    ],
    ids=["numbers", "mark"],
)
def test_what_zarr_3_lacks_is_told(tmp_path: Path, more: dict[str, Any], told: str) -> None:
    files = []
    for n in range(2):
        values = np.arange(5, dtype="u1")
        given = {"time": (("time",), 5.0 * n + values, {}), "v": (("time",), values, more)}
        files.append(write(tmp_path / f"{n}.nc", {**given, "w": (("time",), values, CUT)}))
    with pytest.warns(LossWarning, match=told):
        aggregate(files, tmp_path / "all.json")
    document = json.loads(read(tmp_path / "all.json")["v/zarr.json"])
    assert "_FillValue" not in document["attributes"]
    assert document["attributes"].get("limits", ["NaN", 1.0]) == ["NaN", 1.0]


@ragged
def test_a_ragged_master_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aggregate(series(tmp_path, [5, 6]), tmp_path / "all.nca")
    assert main(["convert-refs", str(tmp_path / "all.nca"), str(tmp_path / "all.json")]) == 0
    assert np.array_equal(by_hand(read(tmp_path / "all.json"), "v"), expected(11))
    assert main(["refs", str(tmp_path / "all.nca"), str(tmp_path / "no.json")]) == 1
    assert "is an aggregation, with /v in other files" in capsys.readouterr().err


def test_references_are_not_those_of_a_master(tmp_path: Path) -> None:
    aggregate(series(tmp_path, [4, 4]), tmp_path / "all.nca")
    message = r"all.nca: is an aggregation.* nczarr convert-refs"
    with pytest.raises(FormatError, match=message):
        references(tmp_path / "all.nca")
    pytest.importorskip("virtualizarr")
    from obspec_utils.registry import ObjectStoreRegistry

    with pytest.raises(FormatError, match=message):
        NCZarrParser()((tmp_path / "all.nca").as_uri(), ObjectStoreRegistry({}))


# -- Icechunk -------------------------------------------------------------------------------------


def repository(folder: Path, *, allowed: bool = True) -> Any:
    icechunk = pytest.importorskip("icechunk")
    url = f"{folder.as_uri()}/"
    config = icechunk.RepositoryConfig.default()
    if allowed:
        files = icechunk.local_filesystem_store(str(folder))
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(url, files))
    return icechunk.Repository.create(
        icechunk.in_memory_storage(), config, authorize_virtual_chunk_access={url: None}
    )


@pytest.mark.parametrize("from_master", [False, True])
def test_icechunk(tmp_path: Path, from_master: bool) -> None:
    files = series(tmp_path, [8, 5], **DEFLATED)
    session = repository(tmp_path).writable_session("main")
    long = [tile(tmp_path / f"é {n}.nc", range(n, n + 1), range(300), None) for n in range(2)]
    if from_master:
        aggregate(files, tmp_path / "all.nca")
        convert_references(tmp_path / "all.nca", session.store)
    else:
        open_many(files).nczarr.save(session.store)
    hows: dict[str, Any] = {"zarr": {"consolidated": False}, "nczarr": {}}
    for engine, how in hows.items():
        with xr.open_dataset(session.store, engine=engine, **how) as ds:
            assert np.array_equal(ds.v.values, expected(13))
            assert ds.v.dims == ("time", "x")
    with pytest.raises(DatasetExistsError, match="has data: write into a new branch"):
        open_many(files).nczarr.save(session.store)
    session = repository(tmp_path).writable_session("main")
    open_many(long).nczarr.save(session.store)  # whose chunks are not so small as to be held
    with xr.open_zarr(session.store, consolidated=False) as ds:
        assert np.array_equal(ds.v.values, expected(2, 300))


def test_icechunk_must_know_where_files_are(tmp_path: Path) -> None:
    files = [tile(tmp_path / f"l{n}.nc", range(n, n + 1), range(300), None) for n in range(2)]
    session = repository(tmp_path, allowed=False).writable_session("main")
    message = r"0.nc: of /v is in no virtual chunk container.* add one with RepositoryConfig"
    with pytest.raises(ExportError, match=message):
        open_many(files).nczarr.save(session.store)


@ragged
def test_icechunk_of_several_lengths(tmp_path: Path, enabled: None) -> None:
    icechunk = pytest.importorskip("icechunk")
    files, session = series(tmp_path, [5, 6, 7]), repository(tmp_path).writable_session("main")
    if icechunk.__version__.startswith("1."):
        with pytest.raises(ExportError, match=r"of /v in .*0.nc, which Icechunk 1.* Icechunk 2"):
            open_many(files).nczarr.save(session.store)
        return
    open_many(files).nczarr.save(session.store)
    with xr.open_zarr(session.store, consolidated=False) as ds:
        assert np.array_equal(ds.v.values, expected(18))


def test_virtualizarr_reads_references(tmp_path: Path) -> None:
    """And writes them to Icechunk."""
    manifest = pytest.importorskip("virtualizarr.manifests.manifest")
    if not hasattr(manifest, "INLINED_CHUNK_PATH"):
        pytest.skip("VirtualiZarr holds no chunks before 2.7")
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_dataset
    from virtualizarr.parsers import KerchunkJSONParser

    aggregate(series(tmp_path, [8, 5], **DEFLATED), tmp_path / "all.json")
    virtual = open_virtual_dataset(
        (tmp_path / "all.json").as_uri(),
        registry=ObjectStoreRegistry({"file://": LocalStore()}),
        parser=KerchunkJSONParser(),
    )
    session = repository(tmp_path).writable_session("main")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        virtual.vz.to_icechunk(session.store)
    with xr.open_zarr(session.store, consolidated=False) as ds:
        assert np.array_equal(ds.v.values, expected(13))
