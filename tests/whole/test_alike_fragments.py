"""Aggregations of many local files that are alike, but for some: what is read, and what is said."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nczarr_xarray
from nczarr_fsspec.errors import DatasetNotFoundError, FormatError, NCZarrError
from nczarr_xarray.dataset import alike_files
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats import registry
from nczarr_xarray.formats.registry import FORMATS, OpenOptions, Source
from nczarr_xarray.model import FileStrides, Hierarchy
from tests.support.builders.keys import outer, outer_keys, point_keys, pointwise
from tests.support.examples import examples

COUNT, SHAPE = 30, (4, 5)
#: How the data of a file may be stored.
STORED: dict[str, dict[str, Any]] = {
    "contiguous": {"contiguous": True},
    "plain": {},
    "packed": {"zlib": True, "shuffle": True},
    "classic": {"format": "NETCDF3_64BIT_OFFSET"},
    "chunks": {"zlib": True, "chunksizes": (1, 3, 2), "fletcher32": True},
}


def data_of(number: int) -> np.ndarray:
    """Return the data of one file, the less compressible the higher its number."""
    return np.random.default_rng(number).integers(0, number + 2, (1, *SHAPE)).astype("f4")


def write(path: Path, number: int, stored: str, units: str = "K") -> None:
    sizes = {"time": 1, "y": SHAPE[0], "x": SHAPE[1]}
    options = dict(STORED[stored])
    with netCDF4.Dataset(path, "w", format=options.pop("format", "NETCDF4")) as file:
        for name, size in sizes.items():
            file.createDimension(name, size)
            axis = file.createVariable(name, "f8", (name,))
            axis.units = "days since 2000-01-01" if name == "time" else "1"
            axis[:] = number if name == "time" else np.arange(size)
        tas = file.createVariable("tas", "f4", tuple(sizes), **options)
        tas.units = units
        tas[:] = data_of(number)


def master_of(folder: Path, stored: Callable[[int], str]) -> Path:
    files = [folder / f"{number:02}.nc" for number in range(COUNT)]
    for number, path in enumerate(files):
        write(path, number, stored(number))
    nczarr_xarray.aggregate(list(map(str, files)), folder / "m.nca")
    with netCDF4.Dataset(folder / "m.nca", "a") as file:  # files may change
        file["tas"].delncattr("aggregated_versions")
    return folder / "m.nca"


def reader(master: Path) -> VariableReader:
    opened = open_with(str(master), OpenOptions())
    return opened.reader(opened.hierarchy.root.variables["tas"])


EXPECTED = np.concatenate([data_of(number) for number in range(COUNT)])


@pytest.mark.parametrize("stored", STORED)
def test_all_at_once(tmp_path: Path, stored: str) -> None:
    tas = reader(master_of(tmp_path, lambda _: stored))
    np.testing.assert_array_equal(tas.read(), EXPECTED, strict=True)
    np.testing.assert_array_equal(tas.read(), EXPECTED, strict=True)  # now the pattern is known


@pytest.mark.parametrize("stored", STORED)
def test_fragments_that_are_too_large_for_a_run(
    tmp_path: Path, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alike_files, "RUN_BYTES", 1)
    tas = reader(master_of(tmp_path, lambda _: stored))
    np.testing.assert_array_equal(tas.read(), EXPECTED, strict=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(100))
@given(data=st.data(), points=st.booleans(), stored=st.sampled_from(["plain", "chunks"]))
def test_any_selection(tmp_path: Path, data: st.DataObject, points: bool, stored: str) -> None:
    folder = tmp_path / stored
    if not folder.exists():
        folder.mkdir()
        master_of(folder, lambda _: stored)
    key = data.draw((point_keys if points else outer_keys)(EXPECTED.shape))
    expected = pointwise(EXPECTED, key) if points else outer(EXPECTED, key)
    found = reader(folder / "m.nca").read(key, points=points)
    np.testing.assert_array_equal(found, expected, strict=True)


def test_files_of_several_kinds(tmp_path: Path) -> None:
    kinds = list(STORED)
    tas = reader(master_of(tmp_path, lambda number: kinds[number * 7 % 11 % 5]))
    np.testing.assert_array_equal(tas.read(), EXPECTED, strict=True)


class Swapped:
    """A format of another package: what classic files hold, with the byte order reversed."""

    name = "swapped"
    marks: Collection[str] = ()

    def sniff(self, start: bytes, names: Collection[str]) -> bool:
        return start.startswith(b"CDF")

    async def read(self, source: Source, options: OpenOptions) -> Hierarchy:
        hierarchy = await registry.read_hierarchy(source, options, after=self)
        tas = hierarchy.root.variables["tas"]
        assert isinstance(tas.array, FileStrides)
        little = tas.array.dtype.newbyteorder()
        array = replace(tas.array, dtype=little)
        variables = hierarchy.root.variables | {"tas": replace(tas, dtype=little, array=array)}
        return replace(hierarchy, root=replace(hierarchy.root, variables=variables))


def test_formats_that_do_not_say_what_they_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tas = reader(master_of(tmp_path, lambda _: "classic"))
    rows = Swapped(), *FORMATS
    monkeypatch.setattr(registry, "formats", lambda: rows)
    np.testing.assert_array_equal(tas.read(), EXPECTED.byteswap(), strict=True)


def test_other_units(tmp_path: Path) -> None:
    master = master_of(tmp_path, lambda _: "packed")
    for number in range(0, COUNT, 2):
        write(tmp_path / f"{number:02}.nc", number, "packed", "degC")
    expected = EXPECTED.copy()
    expected[::2] += np.float32(273.15)
    np.testing.assert_allclose(reader(master).read(), expected, rtol=1e-6)


def test_a_fragment_that_is_gone(tmp_path: Path) -> None:
    master = master_of(tmp_path, lambda _: "packed")
    (tmp_path / "17.nc").unlink()
    with pytest.raises(DatasetNotFoundError, match=r"17\.nc.*fragment \(17, 0, 0\)"):
        reader(master).read()
    np.testing.assert_array_equal(reader(master).read((slice(0, 17), 0, 0)), EXPECTED[:17, 0, 0])


@pytest.mark.parametrize("stored", ["packed", "chunks"])
def test_a_chunk_that_is_damaged(tmp_path: Path, stored: str) -> None:
    master = master_of(tmp_path, lambda _: stored)
    path = tmp_path / "23.nc"
    with h5py.File(path) as file:
        at = file["tas"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[at + 2 : at + 10] = b"damaged!"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"tas chunk .*fragment \(23, 0, 0\)"):
        reader(master).read()


def test_a_fragment_of_another_shape(tmp_path: Path) -> None:
    master = master_of(tmp_path, lambda _: "plain")
    with h5py.File(tmp_path / "11.nc", "w") as file:
        file["tas"] = np.zeros((2, *SHAPE), "f4")
    with pytest.raises(FormatError, match=r"shape .*fragment \(11, 0, 0\)"):
        reader(master).read()


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    master = master_of(tmp_path, lambda _: "contiguous")
    path = tmp_path / "29.nc"
    with h5py.File(path) as file:
        at = file["tas"].id.get_offset()
    path.write_bytes(path.read_bytes()[: at + 40])
    with pytest.raises(NCZarrError, match=r"fragment \(29, 0, 0\)"):
        reader(master).read()
