from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.errors import DatasetNotFoundError, FormatError, NCZarrWarning
from nczarr_fsspec.stores.mapping import MappingStore
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.fragment_datasets import Opening
from nczarr_xarray.dataset.fragments import AggregationReaders, FragmentReader
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.registry import OpenOptions
from nczarr_xarray.model import (
    NC_DTYPES,
    Attribute,
    Dimension,
    FragmentArray,
    FragmentMapping,
    FragmentPlace,
    Fragments,
    Group,
    Hierarchy,
    Variable,
)
from tests.support.builders.keys import outer, outer_keys, point_keys, pointwise

FILL = -9.0


#: Names of variables in memory look like local paths.
POLICY = AddressPolicy.of("/d/m.nca")


@dataclass
class Held:
    """Variables in memory, as fragments."""

    data: dict[str, np.ndarray[Any, Any]]
    attributes: dict[str, dict[str, Attribute]]

    def variable(self, name: str) -> Opening:
        if name not in self.data:
            raise DatasetNotFoundError(name, "there is no such file or directory")
        data = self.data[name]
        dimensions = tuple(Dimension(f"d{i}", n) for i, n in enumerate(data.shape))
        attributes = self.attributes.get(name, {})
        nc_type = next(name for name, dtype in NC_DTYPES.items() if dtype == data.dtype)
        variable = Variable(name, "/", dimensions, nc_type, data.dtype, attributes)
        return Opening(cast("VariableReader", Read(data)), variable)

    def open_with(self, target: str, options: OpenOptions) -> Opened:
        reader, variable, _ = self.variable(target.removeprefix("/d/"))
        root = Group(variables={"v": variable})
        return HeldDataset(MappingStore({}), Hierarchy(root, "v2"), of=reader)

    def datasets(self, depth: int = 0) -> AggregationReaders:
        return AggregationReaders(self.variable, self.open_with, POLICY, depth)

    def reader(self, array: FragmentArray) -> FragmentReader:
        return self.datasets().selections(array)


@dataclass
class HeldDataset(Opened):
    """A dataset of one variable in memory."""

    of: VariableReader | None = None

    def reader(self, variable: Variable) -> VariableReader:
        assert self.of is not None
        return self.of


@dataclass
class Read:
    data: np.ndarray[Any, Any]
    store: MappingStore = field(default_factory=lambda: MappingStore({}))

    def read_jointly(
        self, wanted: list[tuple[tuple[Any, ...], bool]]
    ) -> list[np.ndarray[Any, Any]]:
        return [
            pointwise(self.data, key) if points else outer(self.data, key) for key, points in wanted
        ]


def objects(values: list[Any]) -> np.ndarray[Any, Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def attribute(name: str, value: Any) -> Attribute:
    if isinstance(value, str):
        return Attribute(name, "char", value)
    return Attribute(name, "double", np.atleast_1d(np.asarray(value)))


def table(
    bounds: list[list[tuple[int, int]]], addresses: list[str | None], **others: Any
) -> Fragments:
    return Fragments(
        tuple(np.array([start for start, _ in axis], dtype=np.int64) for axis in bounds),
        tuple(np.array([stop for _, stop in axis], dtype=np.int64) for axis in bounds),
        objects(addresses),
        np.broadcast_to(objects(["v"]), (len(addresses),)),
        np.broadcast_to(objects([""]), (len(addresses),)),
        **others,
    )


@st.composite
def aggregations(draw: st.DrawFn) -> tuple[FragmentArray, np.ndarray[Any, Any], Held]:
    """An aggregation, what its data are, and its fragments."""
    ndim = draw(st.integers(1, 3))
    bounds: list[list[tuple[int, int]]] = []
    shape = []
    for _ in range(ndim):
        at, axis = 0, []
        for _ in range(draw(st.integers(1, 4))):
            at += draw(st.sampled_from([0, 0, 0, 1, 2]))
            length = draw(st.integers(1, 3))
            axis.append((at, at + length))
            at += length
        bounds.append(axis)
        shape.append(at + draw(st.sampled_from([0, 0, 1])))
    whole = np.full(shape, FILL)
    held = Held({}, {})
    addresses: list[str | None] = []
    mappings = {}
    grid = tuple(map(len, bounds))
    for number, position in enumerate(np.ndindex(grid)):
        if draw(st.integers(0, 4)) == 0:
            addresses.append(None)
            continue
        where = tuple(slice(*axis[at]) for axis, at in zip(bounds, position, strict=True))
        own = np.arange(whole[where].size, dtype=float).reshape(whole[where].shape)
        own += 100 * number
        whole[where] = own
        addresses.append(str(number))
        stored, mapping = draw(stored_as(own))
        held.data[str(number)] = stored
        if mapping is not None:
            mappings[number] = mapping
    fragments = table(bounds, addresses, mappings=mappings)
    return FragmentArray("/v", tuple(shape), np.dtype("f8"), fragments, FILL), whole, held


@st.composite
def stored_as(
    draw: st.DrawFn, data: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], FragmentMapping | None]:
    """Data in another form, and what makes the first form of it."""
    kind = draw(st.sampled_from(["same", "short", "mapped"]))
    if kind == "same":
        return data, None
    if kind == "short":
        return data.reshape([n for n in data.shape if n != 1]), None
    axes = tuple(draw(st.permutations(range(data.ndim))))
    data = data.transpose(axes)
    reverse = tuple(draw(st.sets(st.integers(0, data.ndim - 1))))
    for axis in reverse:
        data = np.flip(data, axis)
    part: list[slice | tuple[int, ...]] = []
    for axis in range(data.ndim):
        length = data.shape[axis]
        if draw(st.booleans()):
            room = np.full((*data.shape[:axis], 2 * length + 1, *data.shape[axis + 1 :]), 7e7)
            room[(*[slice(None)] * axis, slice(1, None, 2))] = data
            part.append(slice(1, 2 * length, 2))
            data = room
        else:
            order = draw(st.permutations(range(length)))
            part.append(tuple(int(i) for i in np.argsort(order)))
            data = np.take(data, order, axis)
    return data, FragmentMapping(tuple(part), reverse, axes)


class TestSelections:
    @given(st.data())
    def test_orthogonal(self, data: st.DataObject) -> None:
        array, whole, held = data.draw(aggregations())
        key = data.draw(outer_keys(whole.shape))
        found = held.reader(array).read(key, points=False)
        np.testing.assert_array_equal(found, outer(whole, key), strict=True)

    @given(st.data())
    def test_points(self, data: st.DataObject) -> None:
        array, whole, held = data.draw(aggregations())
        key = data.draw(point_keys(whole.shape))
        found = held.reader(array).read(key, points=True)
        np.testing.assert_array_equal(found, pointwise(whole, key), strict=True)


def one(data: Any, attributes: dict[str, Any] | None = None, **array: Any) -> Callable[[], Any]:
    """Read an aggregation of one fragment."""
    data = np.asarray(data)
    named = {name: attribute(name, value) for name, value in (attributes or {}).items()}
    held = Held({"a": data}, {"a": named})
    fragments = table([[(0, n)] for n in data.shape], ["a"])
    given = {"dtype": np.dtype("f4"), "fill": np.float32(FILL), **array}
    whole = FragmentArray("/v", data.shape, fragments=fragments, **given)
    key = (slice(None),) * data.ndim
    return lambda: held.reader(whole).read(key, points=False)


class TestValues:
    def test_missing_values_become_those_of_the_aggregation(self) -> None:
        read = one([1.0, -1.0, 1e20], {"_FillValue": 1e20, "missing_value": -1.0})
        assert read().tolist() == [1.0, FILL, FILL]

    def test_nan_may_be_missing(self) -> None:
        assert one([1.0, np.nan], {"_FillValue": np.nan})().tolist() == [1.0, FILL]

    def test_what_was_never_written_is_missing(self) -> None:
        assert one([1.0, 9.969209968386869e36], marks=(FILL,))().tolist() == [1.0, FILL]

    @pytest.mark.parametrize("kind", ["i4", "u2", "f8"])
    def test_netcdfs_default_stays_if_nobody_says_that_it_is_missing(self, kind: str) -> None:
        dtype = np.dtype(kind)
        given: dict[str, Any] = {"dtype": dtype, "fill": dtype.type(7)}
        assert one(np.array([1, 65535], "u2"), **given)().tolist() == [1, 65535]

    def test_netcdfs_default_that_does_not_fit_is_that_of_the_aggregation(self) -> None:
        given: dict[str, Any] = {"dtype": np.dtype("i4"), "fill": np.int32(7)}
        assert one(np.array([1, 4294967295], "u4"), **given)().tolist() == [1, 7]

    @pytest.mark.parametrize("value", [0, 0.0])
    def test_data_are_not_taken_for_missing(self, value: float) -> None:
        kind = np.asarray(value).dtype
        given = {"dtype": kind, "fill": kind.type(value), "marks": (value,)}
        own = np.array([0, 7, 5], kind)
        assert one(own, {"_FillValue": kind.type(value)}, **given)().tolist() == [0, 7, 5]
        assert one(own, **given)().tolist() == [0, 7, 5]
        with pytest.raises(FormatError, match=r"data that are 0.*, which stands for missing"):
            one(own, {"_FillValue": kind.type(7)}, **given)()
        assert one(own[1:], {"_FillValue": kind.type(7)}, **given)().tolist() == [0, 5]

    def test_packed_fragments_are_unpacked(self) -> None:
        read = one(
            np.array([1, 2, -1], "i2"), {"scale_factor": 0.5, "add_offset": 1.0, "_FillValue": -1}
        )
        assert read().tolist() == [1.5, 2.0, FILL]

    def test_unsigned(self) -> None:
        assert one(np.array([1, -1], "i1"), {"_Unsigned": "true"})().tolist() == [1.0, 255.0]

    def test_packed_as_the_variable_is(self) -> None:
        read = one(
            np.array([1, 2], "i2"),
            {"scale_factor": 0.5},
            packing={"scale_factor": [0.5]},
            dtype=np.dtype("i2"),
            fill=np.int16(-9),
        )
        assert read().tolist() == [1, 2]

    def test_packed_otherwise_than_the_variable(self) -> None:
        packing = {"scale_factor": [0.5], "add_offset": [10.0]}
        read = one(
            np.array([0, 4, -1], "i2"),
            {"scale_factor": 0.25, "add_offset": 10.0, "_FillValue": -1},
            packing=packing,
            dtype=np.dtype("i2"),
            fill=np.int16(-9),
        )
        assert read().tolist() == [0, 2, -9]

    def test_packed_as_the_variable_is_in_other_units(self) -> None:
        packing = {"scale_factor": [0.5], "add_offset": [10.0]}
        attributes = {"scale_factor": 0.5, "add_offset": 10.0, "units": "km"}
        read = one(
            np.array([0, 4], "i4"), attributes, packing=packing, dtype=np.dtype("i4"), units="m"
        )
        assert read().tolist() == [19980, 23980]  # 10 km and 12 km

    @pytest.mark.parametrize(
        ("own", "values", "wanted"),
        [("i1", [-1, 5], "u1"), ("u1", [250, 5], "i1"), ("u8", [2**63 + 5], "i8")],
    )
    def test_numbers_of_the_other_sign(self, own: str, values: list[int], wanted: str) -> None:
        with pytest.raises(FormatError, match="values that are no"):
            one(np.array(values, own), dtype=np.dtype(wanted), fill=0)()

    def test_numbers_that_are_read_with_the_other_sign(self) -> None:
        wanted: Any = {"dtype": np.dtype("i1"), "fill": np.int8(-9), "read_as": np.dtype("u1")}
        assert one(np.array([250, 5], "u1"), **wanted)().tolist() == [-6, 5]
        assert one(np.array([-6, 5], "i1"), {"_Unsigned": "true"}, **wanted)().tolist() == [-6, 5]
        with pytest.raises(FormatError, match="int16 values that are no"):
            one(np.array([-6, 5], "i2"), **wanted)()

    def test_numbers_that_are_too_large(self) -> None:
        with pytest.raises(FormatError, match="float64 values that are no float32"):
            one([1e300])()
        assert one([np.inf, np.nan])().tolist()[0] == np.inf

    @pytest.mark.parametrize(
        ("own", "wanted", "fits"),
        [
            ("360_day", "noleap", False),
            ("noleap", None, False),
            (None, "noleap", False),
            ("365_day", "noleap", True),
            ("gregorian", None, True),
            ("proleptic_gregorian", "standard", True),
        ],
    )
    def test_calendars(self, own: str | None, wanted: str | None, fits: bool) -> None:
        units = "days since 2000-01-01"
        said = {"units": units} if own is None else {"units": units, "calendar": own}
        read = one([1.0, 2.0], said, units=units, calendar=wanted)
        if fits:
            assert read().tolist() == [1.0, 2.0]
        else:
            with pytest.raises(FormatError, match="noleap"):
                read()

    def test_calendars_before_they_are_the_same(self) -> None:
        said = {"units": "days since 2000-01-01", "calendar": "proleptic_gregorian"}
        wanted: Any = {"units": "days since 1999-01-01", "calendar": "standard"}
        assert one([-152384.0], said, **wanted)().tolist() == [-152019]  # 1582-10-15
        with pytest.raises(FormatError, match=r"times before 1582-10-15.*fragment \(0,\) of /v"):
            one([-152385.0], said, **wanted)()
        missing = one([-152385.0, 0.0], {**said, "_FillValue": [-152385.0]}, **wanted)
        assert missing().tolist() == [-9, 365]

    @pytest.mark.parametrize("calendar", ["noleap", "365_day", "360_day", "all_leap"])
    def test_the_year_0_is_not_the_year_1(self, calendar: str) -> None:
        said = {"units": "days since 0000-01-01", "calendar": calendar}
        read = one([365.0, 730.0], said, units="days since 0001-01-01", calendar=calendar)
        length = {"360_day": 360, "all_leap": 366}.get(calendar, 365)
        assert read().tolist() == [365 - length, 730 - length]

    def test_a_part_that_begins_behind_the_end(self) -> None:
        held = Held({"a": np.arange(4.0)}, {})
        mappings = {0: FragmentMapping(part=(slice(5, None, -1),))}
        array = FragmentArray(
            "/v", (4,), np.dtype("f8"), table([[(0, 4)]], ["a"], mappings=mappings)
        )
        with pytest.raises(FormatError, match="has the shape"):
            held.reader(array).read((slice(None),), points=False)

    @pytest.mark.parametrize(
        ("attributes", "expected"),
        [({"add_offset": 1.0}, [2.5, 3.0]), ({"scale_factor": 2.0}, [3.0, 4.0])],
    )
    def test_floats_that_are_packed(self, attributes: dict[str, Any], expected: Any) -> None:
        assert one(np.array([1.5, 2.0], "f4"), attributes)().tolist() == expected

    def test_packed_by_an_offset_alone(self) -> None:
        wanted: Any = {"packing": {"add_offset": [10.0]}, "dtype": np.dtype("i2"), "fill": -9}
        read = one(np.array([6.0, 4.5], "f4"), {"scale_factor": 2.0}, **wanted)
        assert read().tolist() == [2, -1]  # 12 and 9

    @pytest.mark.parametrize(
        "mapping",
        [
            FragmentMapping(part=(slice(None), slice(None))),
            FragmentMapping(part=()),
            FragmentMapping(reverse=(1,)),
        ],
    )
    def test_a_mapping_for_other_dimensions(self, mapping: FragmentMapping) -> None:
        held = Held({"a": np.arange(4.0)}, {})
        fragments = table([[(0, 4)]], ["a"], mappings={0: mapping})
        array = FragmentArray("/v", (4,), np.dtype("f8"), fragments)
        with pytest.raises(FormatError, match=r"has the shape \(4,\), and its part of the aggreg"):
            held.reader(array).read((slice(None),), points=False)

    def test_a_dimension_of_length_1_that_the_aggregation_lacks(self) -> None:
        held = Held({"a": np.arange(4.0).reshape(1, 4)}, {})
        array = FragmentArray("/v", (4,), np.dtype("f8"), table([[(0, 4)]], ["a"]))
        reader = held.reader(array)
        assert reader.read((slice(1, 3),), points=False).tolist() == [1, 2]
        assert reader.read((np.array([3, 0]),), points=True).tolist() == [3, 0]

    @pytest.mark.parametrize(
        ("own", "wanted", "values", "expected"),
        [
            ("degC", "K", [0.0, 1.5], [273.15, 274.65]),
            ("kelvin", "K", [1.0, 2.0], [1.0, 2.0]),
            ("days since 2000-01-02", "hours since 2000-01-01", [0.0, 1.0], [24.0, 48.0]),
        ],
    )
    def test_units(self, own: str, wanted: str, values: list[float], expected: list[float]) -> None:
        read = one(values, {"units": own}, units=wanted)
        assert read().tolist() == np.array(expected, "f4").tolist()

    def test_units_that_do_not_fit(self) -> None:
        with pytest.raises(FormatError, match=r"cannot be converted.*fragment \(0,\) of /v"):
            one([1.0], {"units": "m"}, units="K")()

    def test_another_type_with_the_same_values(self) -> None:
        read = one(np.array([1.0, 2.0]), dtype=np.dtype("i4"), fill=np.int32(-9))
        assert read().tolist() == [1, 2]

    def test_another_type_with_other_values(self) -> None:
        with pytest.raises(FormatError, match=r"has float64 values that are no int32"):
            one(np.array([1.5]), dtype=np.dtype("i4"), fill=np.int32(-9))()

    def test_text_is_no_number(self) -> None:
        with pytest.raises(FormatError, match="holds"):
            one(np.array([b"a"]))()

    def test_another_shape(self) -> None:
        held = Held({"a": np.zeros((2, 3))}, {})
        array = FragmentArray("/v", (3, 2), np.dtype("f8"), table([[(0, 3)], [(0, 2)]], ["a"]))
        with pytest.raises(FormatError, match=r"has the shape \(2, 3\).*\(3, 2\).*fragment"):
            held.reader(array).read((0, 0), points=False)


class TestPlaces:
    array = FragmentArray("/v", (4,), np.dtype("f8"), table([[(0, 2), (2, 4)]], ["a", None]), FILL)
    held = Held({"a": np.array([1.0, 2.0])}, {})

    def test_one_that_is_gone(self) -> None:
        with pytest.raises(
            DatasetNotFoundError, match=r"a: .*fragment \(0,\) of /v; .*open it again; .*replace="
        ):
            Held({}, {}).reader(self.array).read((slice(None),), points=False)

    def test_another_place(self) -> None:
        others = {0: (FragmentPlace("b", "v"), FragmentPlace("a", "v"))}
        fragments = replace(self.array.fragments, addresses=objects(["c", None]), others=others)
        found = self.held.reader(replace(self.array, fragments=fragments))
        assert found.read((slice(None),), points=False).tolist() == [1.0, 2.0, FILL, FILL]

    def test_missing_with_a_warning(self) -> None:
        reader = self.held.reader(replace(self.array, warning="some data are missing"))
        assert reader.read((slice(0, 2),), points=False).tolist() == [1.0, 2.0]
        with pytest.warns(NCZarrWarning, match="/v: some data are missing"):
            assert reader.read((slice(1, 3),), points=False).tolist() == [2.0, FILL]

    def test_values_in_the_table(self) -> None:
        fragments = replace(self.array.fragments, values=np.array([3.0, 0.0]))
        found = Held({}, {}).reader(replace(self.array, fragments=fragments))
        assert found.read((slice(None),), points=False).tolist() == [3.0, 3.0, FILL, FILL]
        assert [*found.faults()] == []  # no dataset has to be there

    def test_circles_end(self) -> None:
        datasets = self.held.datasets(8)
        with pytest.raises(FormatError, match="a circle"):
            datasets.open(FragmentPlace("a", "v"))

    def test_pickle(self) -> None:
        datasets = self.held.datasets()
        again = pickle.loads(pickle.dumps(replace(self.array, opener=datasets)))
        found = again.selections(None).read((slice(None),), points=False)
        assert found.tolist() == [1.0, 2.0, FILL, FILL]


class TestBlocks:
    """What dask reads together."""

    def blocks(self, lengths: list[list[int]], dtype: str = "f8") -> Any:
        ends = [np.cumsum(axis) for axis in lengths]
        bounds = [
            list(zip((end - axis).tolist(), end.tolist(), strict=True))
            for end, axis in zip(ends, lengths, strict=True)
        ]
        count = int(np.prod([len(axis) for axis in lengths]))
        shape = tuple(int(end[-1]) for end in ends)
        return FragmentArray("/v", shape, np.dtype(dtype), table(bounds, ["a"] * count)).blocks

    def test_small_fragments_are_joined(self) -> None:
        time, lat, lon = self.blocks([[2] * 10_000, [20], [30]], "f4")
        assert 1 < len(time) < 20
        assert (sum(time), lat, lon) == (20_000, (20,), (30,))
        assert set(time[:-1]) == {time[0]}

    def test_large_fragments_are_not(self) -> None:
        uneven = [1 << 22, 1 << 23, 1 << 22]
        assert self.blocks([uneven]) == (tuple(uneven),)

    @given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=9), max_size=3))
    def test_they_are_all_of_it(self, lengths: list[list[int]]) -> None:
        if lengths:
            assert [sum(axis) for axis in self.blocks(lengths)] == list(map(sum, lengths))


def test_what_does_not_fit_into_memory_is_an_error_of_ours(tmp_path: Path) -> None:
    """A dimension of a master costs nothing; neither do rows that were never written."""
    length = 1 << 50
    with netCDF4.Dataset(tmp_path / "m.nc", "w") as master:
        master.createDimension("x", length)
        master.createDimension("one", 1)
        values = master.createVariable("v", "f8", ())
        values.aggregated_dimensions = "x"
        values.aggregated_data = "map: map uris: uris identifiers: names"
        master.createVariable("map", "i8", ("one", "one"))[:] = length
        master.createVariable("uris", str, ("one",))[:] = np.array(["f.nc"], object)
        master.createVariable("names", str, ())[...] = "v"
    with netCDF4.Dataset(tmp_path / "r.nc", "w") as file:
        file.createDimension("time", None)
        file.createVariable("v", "i1", ("time",), chunksizes=(1 << 30,))
        file.createVariable("w", "i1", ("time",), chunksizes=(1 << 30,))[length - 1] = 1
    for name in ("m.nc", "r.nc"):
        with xr.open_dataset(tmp_path / name, engine="nczarr", decode_cf=False) as ds:
            assert max(ds.sizes.values()) == length
            with pytest.raises(FormatError, match=r"/v: .*does not fit"):
                ds.v.load()
