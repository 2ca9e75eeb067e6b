"""The same content written by netCDF-C as netCDF-4 and as NCZarr: xarray must see no difference.

`tests.support.builders.ncwriter.WRITERS` is a library of contents. Each is written twice with the
netCDF4 wheel; then ``engine="netcdf4"`` on the one and ``engine="nczarr"`` on the other must agree
in everything: values, types, attributes, encoding, laziness.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_xarray import FormatError
from nczarr_xarray.backend.compat import TO_ZARR_IGNORES_COMPRESSOR
from tests.support.builders.ncwriter import FEW, WRITERS, grid
from tests.support.marks import each_once, slow_but
from tests.support.oracles.ncpair import Pair, as_stored, assert_same, cut_fills, write_pair

pytestmark = [
    # xarray says so of either engine
    pytest.mark.filterwarnings("ignore:Duplicate dimension names present:UserWarning"),
    # xarray of 2025 announces a change of its default
    pytest.mark.filterwarnings("ignore:In a future version, xarray will not decode:FutureWarning"),
]

#: Ways to open that must all agree.
DECODINGS: dict[str, dict[str, Any]] = {
    "decoded": {},
    "raw": {"decode_cf": False},
    "unmasked": {"mask_and_scale": False},
    "no-times": {"decode_times": False},
    "timedelta": {"decode_timedelta": True},
    "all-coords": {"decode_coords": "all"},
    "no-coords": {"decode_coords": False},
    "no-characters": {"concat_characters": False},
    "cftime": {"decode_times": xr.coders.CFDatetimeCoder(use_cftime=True)},
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """A content by the name of its writer; each is written once."""
    written: dict[str, Pair] = {}

    def pair(name: str) -> Pair:
        if name not in written:
            written[name] = write_pair(tmp_path_factory.mktemp("pair"), WRITERS[name])
        return written[name]

    return pair


# -- whole datasets ----------------------------------------------------------------


@pytest.mark.parametrize("how", DECODINGS)
@pytest.mark.parametrize("name", slow_but(WRITERS, *FEW))
def test_same_dataset(pairs: Callable[[str], Pair], name: str, how: str) -> None:
    ours, theirs = pairs(name).datasets(**DECODINGS[how])
    with ours, theirs:
        assert_same(ours, theirs)


@pytest.mark.parametrize(("name", "how"), each_once(list(WRITERS), ["decoded", "raw"]))
def test_same_groups(pairs: Callable[[str], Pair], name: str, how: str) -> None:
    pair = pairs(name)
    ours = xr.open_groups(pair.nczarr, engine="nczarr", **DECODINGS[how])
    theirs = xr.open_groups(pair.nc, engine="netcdf4", **DECODINGS[how])
    assert list(ours) == list(theirs)
    for path, dataset in theirs.items():
        with ours[path], dataset:
            assert_same(ours[path], dataset)


@pytest.mark.parametrize("group", ["one", "/one", "one/deep", "/one/deep/", "a b", "/"])
def test_same_group(pairs: Callable[[str], Pair], group: str) -> None:
    ours, theirs = pairs("groups").datasets(group=group)
    with ours, theirs:
        assert_same(ours, theirs)


def test_same_groups_below_a_group(pairs: Callable[[str], Pair]) -> None:
    pair = pairs("groups")
    ours = xr.open_groups(pair.nczarr, engine="nczarr", group="one")
    theirs = xr.open_groups(pair.nc, engine="netcdf4", group="one")
    assert list(ours) == list(theirs)
    for path, dataset in theirs.items():
        with ours[path], dataset:
            assert_same(ours[path], dataset)


def test_same_tree(pairs: Callable[[str], Pair]) -> None:
    pair = pairs("groups")
    with (
        xr.open_datatree(pair.nczarr, engine="nczarr") as ours,
        xr.open_datatree(pair.nc, engine="netcdf4") as theirs,
    ):
        assert [node.path for node in ours.subtree] == [node.path for node in theirs.subtree]
        assert len(list(ours.subtree)) == 5
        xr.testing.assert_identical(ours, theirs)
        assert ours["one"].sizes == {"time": 2, "x": 3, "y": 2, "level": 4}


def test_tree_with_shadowed_dimension_is_refused(pairs: Callable[[str], Pair]) -> None:
    pair = pairs("shadowed-dimensions")
    with pytest.raises(FormatError, match="open_groups"):
        xr.open_datatree(pair.nczarr, engine="nczarr")
    with pytest.raises(ValueError, match="not aligned"):
        xr.open_datatree(pair.nc, engine="netcdf4")


def test_two_dimensions_of_one_name(tmp_path: Path) -> None:
    """netCDF4-python knows dimensions by short name and gives such a variable a wrong shape."""

    def write(d: netCDF4.Dataset) -> None:
        grid(d, x=3)
        child = d.createGroup("child")
        grid(child, x=5)
        both = (d.dimensions["x"], child.dimensions["x"])
        child.createVariable("both", "i4", both)[:3] = np.arange(15).reshape(3, 5)
        child.createVariable("near", "i4", (child.dimensions["x"],))[:] = range(5)

    pair = write_pair(tmp_path, write)
    with xr.open_dataset(pair.nczarr, engine="nczarr", group="child") as ours:
        assert ours["both"].dims == ("/x", "x")
        assert ours["near"].dims == ("x",)
        assert ours["both"].values.tolist() == np.arange(15).reshape(3, 5).tolist()


@pytest.mark.parametrize("dropped", ["v_1_1", ["v_4_3", "record"], ["no such variable"], []])
def test_drop_variables(pairs: Callable[[str], Pair], dropped: str | list[str]) -> None:
    ours, theirs = pairs("chunk-shapes").datasets(drop_variables=dropped)
    with ours, theirs:
        assert_same(ours, theirs)


@pytest.mark.parametrize("dropped", ["time", "level", ["time", "area"]])
def test_variables_are_decoded_by_those_that_are_dropped(tmp_path: Path, dropped: Any) -> None:
    """Bounds by the units of their time, characters by other variables of their dimension."""

    def write(d: netCDF4.Dataset) -> None:
        grid(d, time=4, level=3, two=2)
        time = d.createVariable("time", "f8", ("time",))
        time[:] = range(4)
        time.setncatts({"units": "days since 2000-01-01", "bounds": "time_bnds"})
        d.createVariable("time_bnds", "f8", ("time", "two"))[:] = np.arange(8).reshape(4, 2)
        d.createVariable("level", "f4", ("level",))[:] = range(3)
        d.createVariable("grade", "S1", ("level",))[:] = np.array([b"a", b"b", b"c"])
        d.createVariable("quality", "S1", ("time",))[:] = np.array([b"g", b"b", b"g", b"g"])
        d.createVariable("area", "f4", ("level",))[:] = range(3)
        value = d.createVariable("value", "f4", ("time", "level"))
        value.setncatts({"cell_measures": "area: area", "coordinates": "area quality"})

    pair = write_pair(tmp_path, write)
    for how in ("decoded", "all-coords"):
        ours, theirs = pair.datasets(drop_variables=dropped, **DECODINGS[how])
        with ours, theirs:
            assert_same(ours, theirs)
            assert theirs["time_bnds"].dtype.kind == "M"
            assert theirs["quality"].shape == (4,)


def test_what_is_dropped_is_not_touched(tmp_path: Path) -> None:
    def write(d: netCDF4.Dataset) -> None:
        grid(d, x=2)
        d.createVariable("x", "f8", ("x",), zlib=True)[:] = [1, 2]
        d.createVariable("v", "f8", ("x",))[:] = [3, 4]

    pair = write_pair(tmp_path, write)
    (chunk,) = [path for path in tmp_path.rglob("0") if path.parent.name == "x"]
    chunk.write_bytes(b"damaged")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with xr.open_dataset(pair.nczarr, engine="nczarr", drop_variables="x") as ours:
            assert list(ours.variables) == ["v"]
            assert ours["v"].values.tolist() == [3, 4]


def test_chunks_of_the_store(pairs: Callable[[str], Pair]) -> None:
    for name in ("chunk-shapes", "compression", "all-types"):
        ours, theirs = pairs(name).datasets(chunks={})
        with ours, theirs:
            for label, variable in theirs.variables.items():
                assert ours[label].chunks == variable.chunks, label


def test_missing_group(pairs: Callable[[str], Pair]) -> None:
    with pytest.raises(FileNotFoundError, match="no group '/no'"):
        xr.open_dataset(pairs("groups").nczarr, engine="nczarr", group="no/such")


def test_codecs_in_the_encoding(pairs: Callable[[str], Pair]) -> None:
    with xr.open_dataset(pairs("compression").nczarr, engine="nczarr") as ds:
        packed, plain, hashed = (
            ds[name].encoding for name in ("zlib_f4", "contiguous_f4", "blosc_lz4_f4")
        )
    assert (packed["zlib"], packed["shuffle"], packed["complevel"]) == (True, True, 4)
    assert packed["filters"] is plain["filters"] is plain["compressor"] is None
    assert not plain["zlib"]
    if TO_ZARR_IGNORES_COMPRESSOR:
        assert packed["compressor"] == {"id": "zlib", "level": 4}
        assert hashed["compressor"]["cname"] == "lz4"
    else:  # it would keep `to_zarr` from working
        assert "compressor" not in packed


# -- what was read is written again --------------------------------------------------


def written(dataset: xr.Dataset, path: Path, form: str) -> xr.Dataset | type[Exception]:
    """What is read back after xarray wrote `dataset`, or what it failed with."""
    try:
        if form == "netcdf":
            dataset.to_netcdf(path, engine="netcdf4")
            return xr.load_dataset(path, engine="netcdf4")
        dataset.to_zarr(path, zarr_format=int(form[-1]))
        return xr.load_dataset(path, engine="zarr")
    except Exception as error:  # noqa: BLE001  # whatever xarray and zarr raise
        return type(error)


@pytest.mark.filterwarnings("ignore")  # what xarray and zarr think of the content
@pytest.mark.parametrize("form", slow_but(["zarr2", "zarr3", "netcdf"], "zarr3", "netcdf"))
@pytest.mark.parametrize("name", slow_but(WRITERS, *FEW[:3]))
def test_xarray_writes_it_like_any_other(
    pairs: Callable[[str], Pair], tmp_path: Path, name: str, form: str
) -> None:
    """Our encoding is no worse than that of ``engine="netcdf4"``: what works there works here."""
    ours, theirs = pairs(name).datasets()
    with ours, theirs:
        fills = cut_fills(theirs)
        ours = as_stored(ours, fills)
        mine = written(ours, tmp_path / "mine", form)
        other = written(as_stored(theirs, fills), tmp_path / "other", form)
    if isinstance(other, xr.Dataset):
        assert isinstance(mine, xr.Dataset), mine
        xr.testing.assert_identical(mine, other)
        assert mine.encoding.get("unlimited_dims") == other.encoding.get("unlimited_dims")
    elif isinstance(mine, xr.Dataset):  # better: theirs cannot be written
        xr.testing.assert_identical(mine, ours)
    else:
        assert mine is other
