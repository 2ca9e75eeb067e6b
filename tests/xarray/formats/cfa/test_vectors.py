"""Masters of all dialects, as the tools wrote them, against what these read from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.formats.cfa.dialect import aggregated
from nczarr_xarray.model import FragmentArray, FragmentMapping, FragmentPlace

DATA = Path(__file__).parents[3] / "data" / "cfa-vectors"


def _expected(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path.parent / "expected.json").read_text())
    own: dict[str, Any] = document if "data" in document else document.get(path.name, {})
    return own


MASTERS = {
    str(path.relative_to(DATA)): _expected(path)
    for path in sorted(DATA.rglob("*.nca"))
    if (path.parent / "expected.json").exists()
}


def table_of(path: Path) -> FragmentArray:
    with open_hierarchy(path) as opened:
        assert not opened.hierarchy.problems
        errors = [v.error for g in opened.hierarchy.root.walk() for v in g.variables.values()]
        assert not any(errors), errors
        ((variable, array),) = aggregated(opened.hierarchy)
    assert variable.shape == array.shape
    return array


def assembled(array: FragmentArray, folder: Path) -> np.ndarray:
    """Put the data together as the table says, by the netCDF library alone."""
    fragments = array.fragments
    result = np.full(array.shape, array.fill, array.dtype)
    for number in range(fragments.count):
        place = tuple(slice(*bounds) for bounds in fragments.extent(number))
        if fragments.addresses[number] is None:
            continue
        if fragments.values is not None:
            result[place] = fragments.values[number]
            continue
        where = [one for one in fragments.places(number) if (folder / one.address).exists()]
        file = folder / where[0].address if where[0].address else None
        assert file is not None
        with netCDF4.Dataset(str(file)) as dataset:
            dataset.set_auto_maskandscale(False)
            name = where[0].name
            if name.startswith("#"):
                name = list(dataset.variables)[int(name[1:])]
            variable = dataset[name]
            data = variable[:]
            units = variable.units
        result[place] = mapped(data, fragments.mappings.get(number), array, units)
    return result


def mapped(
    data: np.ndarray, mapping: FragmentMapping | None, array: FragmentArray, units: str
) -> np.ndarray:
    mapping = mapping or FragmentMapping()
    if mapping.part is not None:
        data = data[
            np.ix_(*[np.arange(n)[p] for n, p in zip(data.shape, _keys(mapping), strict=True)])
        ]
    data = np.flip(data, mapping.reverse)
    if mapping.axes is not None:
        data = data.transpose(np.argsort([axis for axis in mapping.axes if axis is not None]))
    if (mapping.units or units) == "degC" and array.units == "K":
        data = data + np.float32(273.15)
    return data


def _keys(mapping: FragmentMapping) -> list[slice | list[int]]:
    assert mapping.part is not None
    return [part if isinstance(part, slice) else list(part) for part in mapping.part]


@pytest.mark.parametrize("case", [case for case, own in MASTERS.items() if own])
def test_equals_what_was_written(case: str) -> None:
    expected = MASTERS[case]
    array = table_of(DATA / case)
    wanted = np.array(expected.get("spec_expected", expected["data"]), array.dtype)
    assert list(array.shape) == expected["shape"]
    assert array.dtype == np.dtype(expected["dtype"])
    found = assembled(array, (DATA / case).parent)
    np.testing.assert_array_equal(found.reshape(-1), wanted)


def test_every_master_with_values_is_compared() -> None:
    assert len([case for case, own in MASTERS.items() if own]) == 25


def test_exclusive_ends_are_those_of_the_inclusive_master() -> None:
    folder = DATA / "cf3131_cfa04"
    one, other = table_of(folder / "agg_exclusive.nca"), table_of(folder / "agg_base.nca")
    assert [one.fragments.extent(n) for n in range(2)] == [
        other.fragments.extent(n) for n in range(2)
    ]
    assert one.fragments.addresses.tolist() == other.fragments.addresses.tolist()


def test_a_partition_that_is_not_listed_is_missing_and_keeps_its_place() -> None:
    array = table_of(DATA / "cf3131_cfa04" / "agg_missing_partition.nca")
    assert array.fragments.addresses.tolist() == [None, "g1.nc"]
    assert array.fragments.extent(0) == ((0, 4), (0, 6), (0, 10))
    assert not array.warning


def test_what_lies_between_partitions_is_said() -> None:
    array = table_of(DATA / "seed01_lossy_cfa3" / "m.nca")
    assert array.warning == "no fragment holds lat 49:50; these data are missing"


def test_missing_and_own_fragments_of_062() -> None:
    folder = DATA / "cf3162_cfa062"
    missing, own = table_of(folder / "agg_missing.nca"), table_of(folder / "agg_shared.nca")
    assert missing.fragments.addresses.tolist() == ["f00.nc", "f01.nc", "f10.nc", None]
    assert own.fragments.places(3) == (FragmentPlace("", "tas_in", "nc"),)


def test_versions_of_062_are_tried_in_their_order() -> None:
    array = table_of(DATA / "cf3162_cfa062" / "agg_versions.nca")
    assert [place.address for place in array.fragments.places(1)] == ["nowhere/f01.nc", "f01.nc"]


def test_an_alias_is_kept_as_the_master_states_it() -> None:
    array = table_of(DATA / "seed01_s3_alias" / "x.nca")
    assert array.fragments.addresses[7] == "s3://minio/test/run/x/x_tas_[7].nc"
