"""What we write, netCDF-C reads back equal; and netCDF-4 comes back from NCZarr unchanged.

`tests.support.builders.ncwriter.WRITERS` is a library of contents. netCDF-C writes each as a
netCDF-4 file, xarray reads that, `to_nczarr` writes it, and netCDF-C reads both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings

from nczarr_xarray import to_nczarr
from nczarr_xarray.backend.compat import TO_ZARR_IGNORES_COMPRESSOR
from nczarr_xarray.cli.main import main
from nczarr_xarray.export.api import plan_groups
from nczarr_xarray.export.form.encode import Options
from nczarr_xarray.export.options import WriteOptions
from nczarr_xarray.export.progress import Progress
from tests.support.builders.ncwriter import FEW, JSON_LIKE, WRITERS, grid, ramp
from tests.support.corpora.random_contents import contents
from tests.support.examples import examples
from tests.support.marks import each_once, slow_but
from tests.support.oracles.described import became_zlib, bits, convert, described, different, url_of
from tests.support.oracles.nc_adapter import ncdump
from tests.support.oracles.netcdf_c import netcdf_model

pytestmark = [
    # xarray says so of either engine
    pytest.mark.filterwarnings("ignore:Duplicate dimension names present:UserWarning"),
    pytest.mark.filterwarnings("ignore:In a future version, xarray will not decode:FutureWarning"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """netCDF-4 files by the name of their writer; each is written once."""
    folder = tmp_path_factory.mktemp("netcdf")

    def file(name: str) -> str:
        path = folder / f"{name}.nc"
        if not path.exists():
            with netCDF4.Dataset(path, "w") as dataset:
                WRITERS[name](dataset)
        return str(path)

    return file


def export(groups: Mapping[str, xr.Dataset], target: str, **options: Any) -> None:
    """`to_nczarr` for groups that no DataTree can hold."""
    asked = {path: (dataset, Options({})) for path, dataset in groups.items()}
    with Progress("", shown=False) as progress:
        plan_groups(asked, target, WriteOptions(**options), "/").run(progress)


CONTENTS = slow_but(WRITERS, *FEW)


@pytest.mark.parametrize("name", CONTENTS)
def test_netcdf_reads_what_we_write(files: Callable[[str], str], tmp_path: Path, name: str) -> None:
    convert(files(name), url_of(tmp_path / "x"))
    found = different(described(url_of(tmp_path / "x")), described(files(name)))
    assert found == {}


@pytest.mark.filterwarnings("ignore")  # what xarray thinks of the content
@pytest.mark.parametrize("name", CONTENTS)
def test_like_to_netcdf(files: Callable[[str], str], tmp_path: Path, name: str) -> None:
    """What xarray's writer makes a netCDF-4 file of, `to_nczarr` makes the same NCZarr of."""
    if name == "compression" and not TO_ZARR_IGNORES_COMPRESSOR:
        pytest.skip("an older xarray writes netCDF-4 without bzip2 and zstd")
    theirs = str(tmp_path / "theirs.nc")
    with xr.open_dataset(files(name), engine="netcdf4") as dataset:
        dataset = writable(dataset)
        dataset.to_netcdf(theirs, engine="netcdf4")
        to_nczarr(dataset, url_of(tmp_path / "ours"))
    found = different(described(url_of(tmp_path / "ours")), described(theirs))
    # xarray writes netCDF-4 in the machine's order, whatever the data came in
    assert {key: pair for key, pair in found.items() if not key.endswith(" byte order")} == {}


def writable(dataset: xr.Dataset) -> xr.Dataset:
    """Without the encoding that keeps xarray from writing what it has read, or is in no order."""
    # a set: xarray puts these dimensions first, in its order, which collisions of hashes change
    dataset.encoding["unlimited_dims"] = sorted(dataset.encoding.get("unlimited_dims", ()))
    for variable in dataset.variables.values():
        variable.encoding.pop("blosc", None)
        variable.encoding.pop("szip", None)
        variable.encoding.setdefault("_FillValue", None)  # it would be NaN for all floats
    # among floats the largest of these is too large: it wraps around there, and stays double here
    return dataset.drop_vars(["extreme_i8", "extreme_u8"], errors="ignore")


# -- there and back ----------------------------------------------------------------------


def listing(path: str) -> list[str]:
    """Lines of ncdump, without the file's name."""
    return ncdump("-p", "9,17", path).splitlines()[1:]


@pytest.mark.parametrize("name", CONTENTS)
def test_copy_there_and_back(files: Callable[[str], str], tmp_path: Path, name: str) -> None:
    """``nczarr copy x.nc y; nczarr copy y z.nc``: ncdump prints of z.nc what it prints of x.nc."""
    middle, back = str(tmp_path / "y.nczarr"), str(tmp_path / "z.nc")
    for arguments in ([files(name), middle], [middle, back]):
        assert main(["copy", *arguments]) == 0
    ours, theirs = listing(back), listing(files(name))
    pairs = zip(ours, theirs, strict=True)
    assert [pair for pair in pairs if pair[0] != pair[1] and not is_known(*pair)] == []
    found = different(described(back), described(files(name)))
    # as a filter of HDF5 it fails on what it cannot make smaller
    assert {k: pair for k, pair in found.items() if not became_zlib("blosc", k, *pair)} == {}


def is_known(ours: str, theirs: str) -> bool:
    """Whether lines differ as netCDF4-python makes them: it does not tell string from char."""
    return theirs.strip().startswith("string ") and ours.strip() == theirs.strip()[7:]


@pytest.mark.filterwarnings("ignore")  # what xarray thinks of the content
@pytest.mark.parametrize("name", CONTENTS)
def test_xarray_there_and_back(files: Callable[[str], str], tmp_path: Path, name: str) -> None:
    """A stop in NCZarr changes nothing of what a stop in netCDF-4 does not change as well."""
    detour, direct = str(tmp_path / "detour.nc"), str(tmp_path / "direct.nc")
    with xr.open_dataset(files(name), engine="netcdf4") as dataset:
        # xarray gives it a _FillValue that contradicts its missing_value, and refuses it then
        dataset = writable(dataset.drop_vars("missing", errors="ignore"))
        dataset.to_netcdf(tmp_path / "y.nc", engine="netcdf4")
        to_nczarr(dataset, tmp_path / "y.nczarr")
    with xr.open_dataset(tmp_path / "y.nc", engine="netcdf4") as dataset:
        writable(dataset).to_netcdf(direct, engine="netcdf4")
    with xr.open_dataset(tmp_path / "y.nczarr", engine="nczarr") as dataset:
        writable(dataset).to_netcdf(detour, engine="netcdf4")
    assert listing(detour) == listing(direct)
    assert different(described(detour), described(direct)) == {}


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.too_slow])
@given(content=contents())
def test_random_contents_there_and_back(content: Callable[[netCDF4.Dataset], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, middle, back = f"{folder}/x.nc", f"{folder}/y.nczarr", f"{folder}/z.nc"
        with netCDF4.Dataset(source, "w") as dataset:
            content(dataset)
        convert(source, middle)
        theirs = described(source)
        assert different(described(url_of(middle)), theirs) == {}
        assert main(["copy", middle, back]) == 0
        assert different(described(back), theirs) == {}


# -- what only xarray's side has -----------------------------------------------------------


def test_tree_writes_each_dimension_once(tmp_path: Path) -> None:
    tree = xr.DataTree.from_dict(
        {
            "/": xr.Dataset({"v": ("x", [1, 2, 3])}, coords={"x": [10, 20, 30]}),
            "/one": xr.Dataset({"w": (("x", "y"), np.zeros((3, 2), "f4"))}),
            "/one/two": xr.Dataset({"u": (("y", "z"), np.ones((2, 4), "i2"))}),
            "/other": xr.Dataset({"y": ("y", [7.0])}),
        }
    )
    to_nczarr(tree, tmp_path / "x", unlimited_dims={"/": ["x"]})
    root = netcdf_model(url_of(tmp_path / "x"))
    assert {g.path: [*g.dimensions] for g in root.walk()} == {
        "/": ["x"],
        "/one": ["y"],
        "/one/two": ["z"],
        "/other": ["y"],
    }
    assert root.dimensions["x"].unlimited
    assert [*root.groups["one"].variables] == ["w"]  # and no copy of the coordinate x
    with xr.open_datatree(tmp_path / "x", engine="nczarr") as back:
        xr.testing.assert_identical(back.load(), tree)


def test_dimension_of_the_root_that_another_hides(tmp_path: Path) -> None:
    dataset = xr.Dataset({"both": (("/x", "x"), np.arange(15).reshape(3, 5))})
    to_nczarr(xr.Dataset({"v": ("x", [1, 2, 3])}), tmp_path / "x")
    to_nczarr(dataset, tmp_path / "x", mode="a", group="child")
    root = netcdf_model(url_of(tmp_path / "x"))
    both = root.groups["child"].variables["both"]
    assert [dim.path for dim in both.dimensions] == ["/x", "/child/x"]
    assert [*root.dimensions] == [*root.groups["child"].dimensions] == ["x"]
    with xr.open_dataset(tmp_path / "x", engine="nczarr", group="child") as back:
        xr.testing.assert_identical(back.load(), dataset)


def test_quantized_values_and_their_mark(tmp_path: Path) -> None:
    """Values are those of netCDF-C to the bit, and so is the attribute that tells of it."""
    values = np.linspace(1, 2, 4000, dtype="f4").reshape(100, 40) * np.float32(np.pi)
    modes = {"BitGroom": 3, "GranularBitRound": 3, "BitRound": 9}
    ours, theirs = url_of(tmp_path / "ours"), str(tmp_path / "theirs.nc")
    with netCDF4.Dataset(theirs, "w") as dataset:
        grid(dataset, x=100, y=40)
        for mode, digits in modes.items():
            dataset.createVariable(
                mode, "f4", ("x", "y"), quantize_mode=mode, significant_digits=digits, zlib=True
            )[:] = values
    to_nczarr(
        xr.Dataset(dict.fromkeys(modes, (("x", "y"), values))),
        ours,
        encoding={
            mode: {
                "quantize_mode": mode,
                "significant_digits": digits,
                "zlib": True,
                "_FillValue": None,
                "chunksizes": (100, 40),
            }
            for mode, digits in modes.items()
        },
    )
    with netCDF4.Dataset(ours) as one, netCDF4.Dataset(theirs) as other:
        for mode in modes:
            assert bits(np.asarray(one[mode][:])) == bits(np.asarray(other[mode][:])), mode
            assert one[mode].quantization() == other[mode].quantization()
            assert one[mode].ncattrs() == other[mode].ncattrs()


ENCODINGS: dict[str, dict[str, Any]] = {
    "zlib": {"zlib": True, "complevel": 9},
    "zlib without shuffle": {"zlib": True, "shuffle": False},
    "fletcher32": {"fletcher32": True, "zlib": True},
    "zstd": {"zstd": True, "complevel": 5},
    "bzip2": {"bzip2": True},
    "blosc": {"compression": "blosc_zstd", "complevel": 3, "blosc_shuffle": 2},
    "szip": {"szip": True},
    "big": {"endian": "big", "zlib": True},
    "chunks": {"chunksizes": (7, 5)},
    "numcodecs": {"compressor": {"id": "zlib", "level": 2}, "filters": None},
}


@pytest.mark.parametrize(
    ("how", "kind"), each_once(list(ENCODINGS), ["u1", "i2", "u4", "i8", "f4", "f8"])
)
def test_netcdf_decodes_what_we_encode(tmp_path: Path, how: str, kind: str) -> None:
    data = ramp((40, 64), kind)
    chunks = {"chunksizes": (20, 32), "_FillValue": None}
    if "compressor" in ENCODINGS[how]:
        chunks = {"chunks": (20, 32), "_FillValue": None}
    to_nczarr(
        xr.Dataset({"v": (("x", "y"), data)}),
        tmp_path / "x",
        encoding={"v": {**chunks, **ENCODINGS[how]}},
    )
    with netCDF4.Dataset(url_of(tmp_path / "x")) as dataset:
        variable = dataset["v"]
        assert variable[:].dtype == data.dtype or how == "big"
        np.testing.assert_array_equal(variable[:], data)
        assert tuple(variable.chunking()) == ENCODINGS[how].get("chunksizes", (20, 32))
        filters = variable.filters()
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as ours:
        np.testing.assert_array_equal(ours["v"], data)
    for name in ("zlib", "zstd", "bzip2", "fletcher32", "szip"):
        if ENCODINGS[how].get(name):
            assert filters[name], filters


# -- other readers -------------------------------------------------------------------------


def plain() -> xr.Dataset:
    """What every generation and pure Zarr hold."""
    numbers = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")
    dataset = xr.Dataset(
        {f"v_{kind}": (("x", "y"), ramp((6, 4), kind)) for kind in numbers},
        coords={"x": np.arange(6.0), "time": ("y", np.arange("2000-01", "2000-05", dtype="M8[M]"))},
        attrs={"title": "text", "flag": "true", "year": "2020", "third": 1 / 3, "größe": "é温"},
    )
    dataset["v_f4"][1:3] = np.nan
    dataset["v_i2"].attrs = {"one": np.int16(7), "many": np.array([1, 2, 3], "u1")}
    dataset["chars"] = ("x", np.array([b"ab", b"c", b"", b"defg", b"x", b"y"]))
    return dataset.assign_coords(time=dataset["time"].astype("M8[ns]"))


def test_release_4_8_1_is_read_by_4_9_0(tmp_path: Path) -> None:
    """Debian's netCDF-C prints of it what it prints of the netCDF-4 file."""
    dataset = plain()
    dataset["x"].encoding["_FillValue"] = None  # it is a coordinate
    to_nczarr(dataset, tmp_path / "x.file", compat="4.8.1")
    dataset.to_netcdf(tmp_path / "x.nc", engine="netcdf4")
    ours = ncdump("-p", "9,17", url_of(tmp_path / "x.file"))
    theirs = ncdump("-p", "9,17", str(tmp_path / "x.nc"))
    # this release has no type string, and no unlimited dimensions
    assert sorted(ours.replace("string ", "").splitlines()[1:]) == sorted(
        theirs.replace("string ", "").splitlines()[1:]
    )


@pytest.mark.parametrize("compat", ["4.9.3", "4.9.2", "4.8.1"])
@pytest.mark.parametrize("form", ["x", "x.zip", "x#mode=nczarr,file,noxarray"])
def test_our_reader_reads_every_form(tmp_path: Path, form: str, compat: str) -> None:
    dataset = plain()
    target = f"file://{tmp_path}/{form}"
    to_nczarr(dataset, target, compat=compat)
    with xr.open_dataset(target, engine="nczarr") as back:
        xr.testing.assert_identical(back.load(), dataset)


def test_pure_zarr_is_read_by_zarr(tmp_path: Path) -> None:
    dataset = plain()
    texts = np.array(["é", "two", "", "four", "5", "six"], object)
    dataset["text"] = ("x", texts)
    to_nczarr(dataset, f"file://{tmp_path}/x#mode=zarr", consolidated=True)
    with xr.open_dataset(tmp_path / "x", engine="zarr") as back:
        assert back["text"].values.tolist() == texts.tolist()
        xr.testing.assert_identical(back.load().astype(dataset.dtypes), dataset)
    group: Any = zarr.open_group(tmp_path / "x", mode="r", zarr_format=2)
    np.testing.assert_array_equal(group["v_u8"][...], dataset["v_u8"])
    assert dict(group.attrs)["year"] == "2020"
    assert not [path for path in tmp_path.rglob("*") if ".nc" in path.name]


def test_text_that_looks_like_json(tmp_path: Path) -> None:
    """netCDF-C gives back whole what it would itself have stored as something else."""
    texts = [*JSON_LIKE.values(), "[", "{a}", '"quoted"', " ", "a\nb\tc", "back\\slash", "é世🌡"]
    dataset = xr.Dataset(attrs={f"a{i}": text for i, text in enumerate(texts)})
    dataset.attrs["list"] = texts
    to_nczarr(dataset, tmp_path / "x")
    with netCDF4.Dataset(url_of(tmp_path / "x")) as back:
        assert {name: back.getncattr(name) for name in back.ncattrs()} == dataset.attrs
