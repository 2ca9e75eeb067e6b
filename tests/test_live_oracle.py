"""The same content written by netCDF-C as netCDF-4 and as NCZarr: xarray must see no difference.

`tests.ncwriter.WRITERS` is a library of contents. Each is written twice with the netCDF4
wheel; then ``engine="netcdf4"`` on the one and ``engine="nczarr"`` on the other must agree
in everything: values, types, attributes, encoding, laziness.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_xarray import FormatError
from nczarr_xarray.model import NC_DEFAULT_FILL
from tests.ncwriter import WRITERS, Writer, grid

# h5py and netCDF4 bring an HDF5 each; xarray's own tests ignore this as well
pytestmark = pytest.mark.filterwarnings("ignore:h5py is running against HDF5:UserWarning")

#: Keys of `encoding` that only ``engine="nczarr"`` has.
OURS = {"compressor", "filters", "endian"}
#: Keys that differ where HDF5 stores a variable in one piece: NCZarr knows chunks only.
LAYOUT = {"contiguous", "chunksizes", "preferred_chunks"}

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


class Pair(NamedTuple):
    """One content in both forms."""

    nc: str
    nczarr: str

    def datasets(self, **options: Any) -> tuple[xr.Dataset, xr.Dataset]:
        """Ours, and ``engine="netcdf4"``'s."""
        ours = xr.open_dataset(self.nczarr, engine="nczarr", **options)
        return ours, xr.open_dataset(self.nc, engine="netcdf4", **options)


def write_pair(folder: Path, write: Writer) -> Pair:
    pair = Pair(str(folder / "x.nc"), f"file://{folder}/x.file#mode=nczarr,file")
    for target in pair:
        with netCDF4.Dataset(target, "w") as dataset:
            write(dataset)
    return pair


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """A content by the name of its writer; each is written once."""
    written: dict[str, Pair] = {}

    def pair(name: str) -> Pair:
        if name not in written:
            written[name] = write_pair(tmp_path_factory.mktemp("pair"), WRITERS[name])
        return written[name]

    return pair


# -- what may differ ---------------------------------------------------------------


def cut(value: Any) -> Any:
    """What is left of floats when netCDF-C writes them into metadata: six digits."""
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind == "f":
        digits = [float(f"{element:.6g}") for element in np.atleast_1d(value).tolist()]
        return np.array(digits, dtype=value.dtype).reshape(np.shape(value))[()]
    return value


def as_stored(theirs: xr.Dataset) -> xr.Dataset:
    """A netCDF-4 dataset after its attributes and fill values were cut to six digits."""
    if any(_fill_is_cut(variable) for variable in theirs.data_vars.values()):
        theirs = theirs.copy(data={n: _refilled(v) for n, v in theirs.data_vars.items()})
    else:
        theirs = theirs.copy()
    theirs.attrs = {name: cut(value) for name, value in theirs.attrs.items()}
    for variable in theirs.variables.values():
        variable.attrs = {name: cut(value) for name, value in variable.attrs.items()}
    return theirs


def _fill(variable: xr.DataArray) -> Any:
    return variable.dtype.type(variable.attrs.get("_FillValue", NC_DEFAULT_FILL["double"]))


def _fill_is_cut(variable: xr.DataArray) -> bool:
    return variable.dtype.kind == "f" and cut(_fill(variable)) != _fill(variable)


def _refilled(variable: xr.DataArray) -> Any:
    """Values with the fill value cut (what equals it was never written in these tests)."""
    if not _fill_is_cut(variable):
        return variable.data
    return np.where(variable == _fill(variable), cut(_fill(variable)), variable)


def assert_same(ours: xr.Dataset, theirs: xr.Dataset) -> None:
    """Everything agrees but what the functions and constants above say."""
    assert list(ours.variables) == list(theirs.variables)
    assert list(ours.coords) == list(theirs.coords)
    assert {name: type(index) for name, index in ours.xindexes.items()} == {
        name: type(index) for name, index in theirs.xindexes.items()
    }
    for name, variable in theirs.variables.items():
        assert ours.variables[name]._in_memory == variable._in_memory, name
        assert ours[name].dtype == variable.dtype, name
        assert_same_encoding(ours[name].encoding, variable.encoding, f"{name}")
    assert ours.encoding.keys() == theirs.encoding.keys()
    assert ours.encoding.get("unlimited_dims") == theirs.encoding.get("unlimited_dims")
    expected = as_stored(theirs)
    for one, other in [(ours, expected), *((ours[n], v) for n, v in expected.variables.items())]:
        assert list(one.attrs) == list(other.attrs)
        for name, value in other.attrs.items():
            assert_same_value(one.attrs[name], value, name)
    xr.testing.assert_identical(ours, expected)


def assert_same_value(ours: Any, theirs: Any, name: str) -> None:
    assert type(ours) is type(theirs), name
    if isinstance(theirs, (np.ndarray, np.generic)):
        assert ours.dtype == theirs.dtype, name
        np.testing.assert_array_equal(ours, theirs, name)
        if theirs.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(ours), np.signbit(theirs), name)
    else:
        assert ours == theirs, name


def assert_same_encoding(ours: dict[str, Any], theirs: dict[str, Any], name: str) -> None:
    one_piece = theirs.get("contiguous") and theirs.get("original_shape") != ()
    ignored = OURS | {"source"} | (LAYOUT if one_piece else set())
    if one_piece:
        assert ours["chunksizes"] == theirs["original_shape"], name
        assert ours["contiguous"] is False, name
    assert set(ours) - ignored == set(theirs) - ignored, name
    for key in set(theirs) - ignored:
        assert_same_value(ours[key], cut(theirs[key]), f"{name}: {key}")


# -- whole datasets ----------------------------------------------------------------


@pytest.mark.parametrize("how", DECODINGS)
@pytest.mark.parametrize("name", WRITERS)
def test_same_dataset(pairs: Callable[[str], Pair], name: str, how: str) -> None:
    ours, theirs = pairs(name).datasets(**DECODINGS[how])
    with ours, theirs:
        assert_same(ours, theirs)


@pytest.mark.parametrize("how", ["decoded", "raw"])
@pytest.mark.parametrize("name", WRITERS)
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
        child.createVariable("both", "i4", both)[:] = np.arange(15).reshape(3, 5)
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


def test_chunks_of_the_store(pairs: Callable[[str], Pair]) -> None:
    for name in ("chunk-shapes", "compression", "all-types"):
        ours, theirs = pairs(name).datasets(chunks={})
        with ours, theirs:
            for label, variable in theirs.variables.items():
                assert ours[label].chunks == variable.chunks, label


def test_missing_group(pairs: Callable[[str], Pair]) -> None:
    with pytest.raises(OSError, match="no/such"):
        xr.open_dataset(pairs("groups").nczarr, engine="nczarr", group="no/such")
