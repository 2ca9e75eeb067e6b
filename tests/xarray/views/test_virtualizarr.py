"""Files as VirtualiZarr has them: the same values, found by fewer requests."""

from __future__ import annotations

import inspect
import pickle
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

from nczarr_fsspec.errors import (
    DatasetNotFoundError,
    FormatError,
    LossWarning,
    NCZarrError,
    NCZarrWarning,
)
from nczarr_xarray import NCZarrParser, open_hierarchy, references
from tests.support.corpora import classic_corpus, hdf5_corpus, random_netcdf
from tests.support.marks import slow_but
from tests.support.servers.realservers import RangeServer

pytest.importorskip("virtualizarr")
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import HTTPStore, LocalStore, MemoryStore
from virtualizarr import open_virtual_dataset
from virtualizarr.manifests import manifest
from virtualizarr.parsers import HDFParser
from virtualizarr.parsers.typing import Parser

pytestmark = [
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3"),
    pytest.mark.filterwarnings("ignore:The data type:FutureWarning"),
]
LOCAL = ObjectStoreRegistry({"file://": LocalStore()})
#: Whether manifests hold chunks themselves.
HOLDS = hasattr(manifest, "INLINED_CHUNK_PATH")
#: What VirtualiZarr can be asked for: the first is Zarr 2, and all that its older releases write.
FORMATS: list[dict[str, int]] = [{}]
if "zarr_format" in inspect.signature(xr.Dataset.vz.to_kerchunk).parameters:  # type: ignore[attr-defined]
    FORMATS = [{"zarr_format": 2}, {"zarr_format": 3}]


def arrays(group: Any, above: str = "") -> Iterator[str]:
    """Paths of the arrays of a group of VirtualiZarr."""
    yield from (f"{above}{name}" for name in group.arrays)
    for name, below in group.groups.items():
        yield from arrays(below, f"{above}{name}/")


def array_at(store: Any, path: str) -> Any:
    """The array of VirtualiZarr at a path."""
    *above, name = path.split("/")
    group = store._group
    for part in above:
        group = group.groups[part]
    return group.arrays[name]


def values(store: Any, path: str) -> np.ndarray:
    return np.asarray(zarr.open_group(store, mode="r", zarr_format=3)[path][...])  # type: ignore[index]


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether all bits are the same, whatever the byte order, and the layout of structures."""
    if other.dtype.hasobject or other.dtype.names:
        return one.shape == other.shape and repr(one.tolist()) == repr(other.tolist())
    plain = [a.astype(a.dtype.newbyteorder("<")) for a in (one, other)]
    return (
        one.shape == other.shape
        and plain[0].dtype == plain[1].dtype
        and plain[0].tobytes() == plain[1].tobytes()
    )


def check(path: Path, *, less: bool = False) -> int:
    """Compare all that our parser finds in a file with our engine and with HDFParser."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NCZarrWarning)
        store = NCZarrParser()(path.as_uri(), LOCAL)
    found = [name for name in arrays(store._group) if path.stem != "h5_shapes" or name != "sparse"]
    with open_hierarchy(path) as opened:
        groups = opened.hierarchy.root.walk()
        stored = {v.path.strip("/"): v for group in groups for v in group.variables.values()}
        for name in found:
            assert same(values(store, name), opened.read(stored[name])), name
    # what is not in the file as it is shown, netCDF shows otherwise than HDF5
    common = {name for name in found if not getattr(array_at(store, name).manifest, "_inlined", ())}
    try:
        other = HDFParser()(path.as_uri(), LOCAL)
        theirs = {name: values(other, name) for name in common & {*arrays(other._group)}}
    except Exception:  # noqa: BLE001 - it fails on text, complex attributes and classic files
        theirs = {}
    for name, one in theirs.items():
        # (HDF5 has no booleans, and netCDF shows the integers that h5py takes for some)
        assert same(values(store, name), one.view("i1") if one.dtype == bool else one), name
    return len(theirs)


@pytest.mark.parametrize("name", slow_but(sorted(hdf5_corpus.CASES), "nc_fill"))
def test_values_of_hdf5_are_those_of_its_own_parser(tmp_path: Path, name: str) -> None:
    check(hdf5_corpus.write(name, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_values_of_random_files(tmp_path: Path, seed: int) -> None:
    check(random_netcdf.write(random.Random(seed), tmp_path / "r.nc").path)


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2, 5])
def test_values_of_classic_files(tmp_path: Path, version: int) -> None:
    classic_corpus.make("everything", version, path := tmp_path / "c.nc")
    check(path)


@pytest.fixture
def months(tmp_path: Path) -> list[Path]:
    """Two files that follow each other."""
    paths = []
    for first in (0, 3):
        time = np.arange(first, first + 3)
        data = np.arange(first * 20, (first + 3) * 20, dtype="f4").reshape(3, 4, 5)
        data[1, 2, 3] = np.nan
        month = xr.Dataset({"t": (("time", "y", "x"), data)}, {"time": time, "y": np.arange(4.0)})
        encoding = {"t": {"zlib": True, "chunksizes": (1, 4, 5), "_FillValue": np.float32(-9)}}
        paths.append(tmp_path / f"{first}.nc")
        month.to_netcdf(paths[-1], engine="netcdf4", encoding=encoding)
    return paths


@pytest.mark.slow
def test_what_virtualizarr_makes_of_files(tmp_path: Path, months: list[Path]) -> None:
    from virtualizarr import open_virtual_mfdataset

    parser = NCZarrParser()
    assert isinstance(parser, Parser)
    assert pickle.loads(pickle.dumps(parser)) == parser
    how: Any = {"concat_dim": "time", "combine": "nested", "data_vars": "minimal"}
    how |= {"coords": "minimal", "compat": "override"}
    virtual = open_virtual_mfdataset(
        [path.as_uri() for path in months], registry=LOCAL, parser=parser, **how
    )
    virtual.vz.to_kerchunk(str(tmp_path / "both.json"), format="json")
    with (
        xr.open_mfdataset(months, engine="netcdf4", **how) as expected,
        xr.open_dataset(tmp_path / "both.json", engine="nczarr", allow=[str(tmp_path)]) as found,
    ):
        xr.testing.assert_equal(found.load(), expected.load())


@pytest.mark.slow
def test_a_group_and_what_is_left_out(tmp_path: Path) -> None:
    inner = xr.Dataset({"a": ("x", [1, 2]), "b": ("x", [3, 4])})
    path = tmp_path / "g.nc"
    xr.DataTree.from_dict({"/": inner[["b"]], "/g/h": inner}).to_netcdf(path, engine="netcdf4")
    with netCDF4.Dataset(path, "a") as file:
        group = file["g/h"]
        group.createVariable("list", group.createVLType("i4", "list_t"), ("x",))
    with pytest.warns(NCZarrWarning, match=r"left out: /g/h/list"):
        store = NCZarrParser("g/h", drop_variables=["b"])(path.as_uri(), LOCAL)
    assert list(arrays(store._group)) == ["a"]
    with pytest.warns(NCZarrWarning, match=r"left out: /g/h/list"):
        whole = NCZarrParser()(str(path), LOCAL)  # a plain path will do, too
    assert set(arrays(whole._group)) == {"b", "g/h/a", "g/h/b"}


def test_chunks_that_do_not_exist_read_as_the_fill_value_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "holes.nc"
    with netCDF4.Dataset(path, "w") as ds:
        ds.createDimension("x", 6)
        ds.createVariable("v", "i4", ("x",), chunksizes=(2,), fill_value=7)[4:] = 1
        ds.createVariable("w", "f8", ("x",), chunksizes=(3,))
    store = NCZarrParser()(path.as_uri(), LOCAL)
    assert values(store, "v").tolist() == [7, 7, 7, 7, 1, 1]
    assert values(store, "w").tolist() == [netCDF4.default_fillvals["f8"]] * 6


def with_texts_and_structures(path: Path) -> Path:
    pair = np.dtype([("a", "i4"), ("b", "f8")])
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 4)
        file.createVariable("v", "i4", ("x",))[:] = np.arange(4)
        texts = np.array(["é", "b", "", "dd"], object)
        file.createVariable("text", str, ("x",), zlib=True, chunksizes=(3,))[:] = texts
        file.createVariable("masked", str, ("x",), fill_value="none", chunksizes=(2,))[2] = "z"
        file.createVariable("part", str, ("x",), chunksizes=(1,))[2] = "here"
        file.createVariable("never", str, ("x",))
        file.createVariable("one", str, ())[...] = "one"
        type_ = file.createCompoundType(pair, "pair")
        values = np.array([(i, i / 2) for i in range(4)], pair)
        file.createVariable("pairs", type_, ("x",), zlib=True, chunksizes=(3,))[:] = values
        file.createVariable("unset", type_, ("x",))
    return path


@pytest.mark.skipif(not HOLDS, reason="VirtualiZarr holds no chunks before 2.7")
@pytest.mark.filterwarnings("ignore:left out.*_FillValue:nczarr_xarray.NCZarrWarning")
@pytest.mark.parametrize("options", FORMATS)
def test_texts_and_structures_are_held_inline(tmp_path: Path, options: dict[str, int]) -> None:
    path, target = with_texts_and_structures(tmp_path / "t.nc"), tmp_path / "t.json"
    assert check(path) == 0
    virtual = open_virtual_dataset(path.as_uri(), registry=LOCAL, parser=NCZarrParser())
    virtual.vz.to_kerchunk(str(target), format="json", **options)
    with (
        xr.open_dataset(path, engine="netcdf4", mask_and_scale=False) as expected,
        xr.open_dataset(target, engine="nczarr", mask_and_scale=False) as found,
    ):
        assert set(found.variables) == set(expected.variables)
        for name, variable in found.variables.items():
            assert same(variable.values, expected[name].values.astype(object)), name


@pytest.mark.skipif(HOLDS, reason="VirtualiZarr holds them")
def test_texts_and_structures_are_left_out_by_older_releases(tmp_path: Path) -> None:
    path = with_texts_and_structures(tmp_path / "t.nc")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = NCZarrParser()(path.as_uri(), LOCAL)
    assert list(arrays(store._group)) == ["v"]
    assert sum("VirtualiZarr 2.7" in str(warning.message) for warning in caught) == 7


@pytest.mark.parametrize("file_format", ["NETCDF4", "NETCDF3_64BIT_OFFSET"])
@pytest.mark.parametrize("loaded", [[], ["c"]], ids=["", "loaded"])
def test_a_fill_value_of_characters_loses_no_file(
    tmp_path: Path, file_format: Any, loaded: list[str]
) -> None:
    path, target = tmp_path / "c.nc", tmp_path / "c.json"
    with netCDF4.Dataset(path, "w", format=file_format) as file:
        file.createDimension("x", 3)
        file.createDimension("n", 2)
        file.createVariable("c", "S1", ("x", "n"), fill_value=b"-")[:2] = [["a", "b"], ["c", "-"]]
        file.createVariable("v", "i2", ("x",), fill_value=np.int16(-1))[1:] = 5
    with pytest.warns(NCZarrWarning, match=r"left out: /c: attribute '_FillValue'"):
        virtual = open_virtual_dataset(
            path.as_uri(), registry=LOCAL, parser=NCZarrParser(), loadable_variables=loaded
        )
    virtual.vz.to_kerchunk(str(target), format="json")
    with (
        xr.open_dataset(path, engine="netcdf4") as expected,
        xr.open_dataset(target, engine="nczarr") as found,
    ):
        assert found.c.values.tolist() == expected.c.values.tolist()
        xr.testing.assert_equal(found.v, expected.v)


@pytest.mark.parametrize("name", ["h5_scale_of_other_length", "h5_scale_longer_than_variable"])
def test_a_variable_that_does_not_fit_its_dimension_loses_no_file(
    tmp_path: Path, name: str
) -> None:
    """Its own parser has it in the store, and then there is no dataset."""
    url = hdf5_corpus.write(name, tmp_path).as_uri()
    with pytest.raises(ValueError, match="conflicting sizes"):
        open_virtual_dataset(url, registry=LOCAL, parser=HDFParser())
    with pytest.warns(NCZarrWarning, match="left out: /v: has length"):
        virtual = open_virtual_dataset(url, registry=LOCAL, parser=NCZarrParser())
    assert list(virtual.variables) == ["x"]


def test_a_fill_value_of_several_elements_loses_no_file(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        file["m"] = np.arange(3, dtype="i4")
        file["m"].attrs["_FillValue"] = np.array([1, 2], "i4")
    with pytest.warns(NCZarrWarning, match=r"left out: /m: attribute '_FillValue'"):
        virtual = open_virtual_dataset(path.as_uri(), registry=LOCAL, parser=NCZarrParser())
    assert list(virtual.variables) == ["m"]


def test_what_is_no_file_is_an_error_that_names_it(tmp_path: Path, months: list[Path]) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"gone\.nc"):
        NCZarrParser()((tmp_path / "gone.nc").as_uri(), LOCAL)
    (tmp_path / "text.nc").write_text("no dataset")
    with pytest.raises(FormatError, match=r"text\.nc"):
        NCZarrParser()((tmp_path / "text.nc").as_uri(), LOCAL)
    with pytest.raises(NCZarrError, match="no group '/nowhere'"):
        NCZarrParser("nowhere")(months[0].as_uri(), LOCAL)
    registry = ObjectStoreRegistry({"s3://bucket": MemoryStore()})
    with pytest.raises(DatasetNotFoundError, match=r"s3://bucket/k\.nc"):
        NCZarrParser()("s3://bucket/k.nc", registry)


def test_the_store_of_the_registry_reads(months: list[Path]) -> None:
    """Two stores that look alike have files of the same name."""
    stores = {}
    for number, path in enumerate(months):
        stores[number] = MemoryStore()
        stores[number].put("data/k.nc", path.read_bytes())
        registry = ObjectStoreRegistry({"s3://bucket": stores[number]})
        store = NCZarrParser()("s3://bucket/data/k.nc", registry)
        assert values(store, "time").tolist() == [3 * number, 3 * number + 1, 3 * number + 2]


def test_without_virtualizarr_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch, months: list[Path]
) -> None:
    monkeypatch.setitem(sys.modules, "virtualizarr.manifests", None)
    with pytest.raises(ImportError, match=r"nczarr-xarray\[virtualizarr\]"):
        NCZarrParser()(months[0].as_uri(), LOCAL)


@pytest.mark.slow
def test_fewer_round_trips_than_its_own_parser(files_root: Path, files_server: RangeServer) -> None:
    rng = np.random.default_rng(0)
    with netCDF4.Dataset(files_root / "interleaved.nc", "w") as ds:
        ds.createDimension("time", None)
        ds.createDimension("x", 1000)
        variables = [
            ds.createVariable(f"v{n}", "f4", ("time", "x"), chunksizes=(1, 1000), zlib=True)
            for n in range(20)
        ]
        for first in range(0, 600, 20):
            for variable in variables:
                variable[first : first + 20] = rng.random((20, 1000), "f4")
    store = HTTPStore.from_url(files_server.url, client_options={"allow_http": True})
    registry = ObjectStoreRegistry({files_server.url: store})
    stats, found = [], []
    for parser in (HDFParser(), NCZarrParser()):
        files_server.set(latency_ms=100)
        found.append(parser(f"{files_server.url}/interleaved.nc", registry))
        stats.append(files_server.control("stats"))
    theirs, ours = stats
    assert 2 * ours["depth"] < theirs["depth"]  # round trips that wait for each other
    assert 8 * ours["bytes"] < theirs["bytes"]
    one, other = (
        {name: array.manifest.dict() for name, array in store._group.arrays.items()}
        for store in found
    )
    assert one == other


@pytest.mark.parametrize("loaded", [[], ["height", "began"]], ids=["in the file", "inline"])
@pytest.mark.parametrize("options", FORMATS)
def test_scalars_of_references_that_virtualizarr_writes(
    loaded: list[str], options: dict[str, int], tmp_path: Path
) -> None:
    source, target = tmp_path / "a.nc", tmp_path / "a.json"
    began = np.datetime64("2020-01-02", "ns")
    dataset = xr.Dataset({"t": ("x", np.arange(4.0))}, {"height": 2.0, "began": began})
    dataset.to_netcdf(source, engine="netcdf4")
    virtual = open_virtual_dataset(
        source.as_uri(), registry=LOCAL, parser=NCZarrParser(), loadable_variables=loaded
    )
    virtual.vz.to_kerchunk(str(target), format="json", **options)
    with xr.open_dataset(target, engine="nczarr") as read:
        xr.testing.assert_identical(read.load(), dataset)


def test_numbers_that_json_lacks_become_texts_with_a_warning(tmp_path: Path) -> None:
    """Icechunk refuses bare NaN in documents; references, which only readers parse, have it."""
    path = tmp_path / "nan.nc"
    with netCDF4.Dataset(path, "w") as ds:
        ds.createDimension("x", 2)
        ds.createVariable("v", "f4", ("x",), fill_value=np.nan).limits = np.array([np.nan, 1])
        ds.top = np.inf
    with pytest.warns(LossWarning, match=r"become texts.*: /(v:limits|:top)$") as told:
        group = NCZarrParser()(path.as_uri(), LOCAL)._group
    assert {str(one.message).rpartition(" ")[2] for one in told} == {"/:top", "/v:limits"}
    assert group.arrays["v"].metadata.attributes["limits"] == ["NaN", 1.0]
    assert group.metadata.attributes["top"] == ["Infinity"]
    with xr.open_dataset(
        "reference://",
        engine="zarr",
        backend_kwargs={"storage_options": {"fo": references(path)}, "consolidated": False},
    ) as ds:
        np.testing.assert_array_equal(ds["v"].attrs["limits"], [np.nan, 1])
        assert ds.attrs["top"] == np.inf
