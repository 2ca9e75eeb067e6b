"""What each dialect says in ways of its own, in masters of every format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nczarr_fsspec.errors import ExportError, FormatError
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.formats.cfa.cf113 import Cf113
from nczarr_xarray.formats.cfa.cfa04 import Cfa04
from nczarr_xarray.formats.cfa.cfa062 import Cfa062
from nczarr_xarray.formats.cfa.decode import decode, find
from nczarr_xarray.formats.cfa.dialect import Encoded, Term, aggregated
from nczarr_xarray.model import (
    Dimension,
    FragmentArray,
    FragmentMapping,
    FragmentPlace,
    Fragments,
    Group,
    Hierarchy,
)
from tests.support.builders.aggregations import (
    Lengths,
    grid_is_sound,
    held,
    master_of,
    read,
    variable_of,
)

TIMES = (("time", 4),)


def read_04(partitions: Any, lengths: Lengths = TIMES, **own: Any) -> FragmentArray:
    names = [name for name, _ in lengths]
    document = {"pmdimensions": names[:1], "pmshape": [len(partitions)], **own}
    text = json.dumps({**document, "Partitions": partitions})
    encoded = Encoded({"cf_dimensions": " ".join(names), "cfa_array": text})
    return read(*master_of("tas", lengths, encoded))


def half(at: int, file: str | None = "f.nc", **own: Any) -> dict[str, Any]:
    stored = {} if file is None else {"file": file, "ncvar": "tas"}
    return {"index": [at], "location": [[2 * at, 2 * at + 1]], "subarray": stored, **own}


class TestCfa04:
    @pytest.mark.parametrize(
        ("base", "file", "address"),
        [
            (None, "f.nc", "f.nc"),
            ("", "f.nc", "f.nc"),
            ("../archive/", "f.nc", "../archive/f.nc"),
            ("/data/archive", "d/f.nc", "/data/archive/d/f.nc"),
            ("http://archive/files", "f.nc", "http://archive/files/f.nc"),
            ("/data", "/elsewhere/f.nc", "/elsewhere/f.nc"),
            ("/data", "s3://alias/bucket/f.nc", "s3://alias/bucket/f.nc"),
        ],
    )
    def test_base(self, base: str | None, file: str, address: str) -> None:
        array = read_04([half(0, file), half(1, file)], base=base)
        assert array.fragments.addresses.tolist() == [address, address]

    def test_the_third_example_of_the_specification(self) -> None:
        lengths = (("time", 48), ("lat", 64), ("lon", 128))
        whole = [[0, 64], [0, 128]]
        first = {"file": "/home/david/test1.nc", "shape": [12, 64, 128], "ncvar": "tas"}
        second = {"file": "/home/david/test2.nc", "shape": [36, 64, 128], "ncvar": "tas2"}
        array = read_04(
            [
                {"index": [0], "data": first, "location": [[0, 12], *whole], "format": "netCDF"},
                {"index": [1], "data": second, "location": [[12, 48], *whole], "format": "netCDF"},
            ],
            lengths,
        )
        rest = ((0, 64), (0, 128))
        assert held(array) == {
            ((0, 12), *rest): ((FragmentPlace("/home/david/test1.nc", "tas", "netCDF"),), None),
            ((12, 48), *rest): ((FragmentPlace("/home/david/test2.nc", "tas2", "netCDF"),), None),
        }

    def test_the_fourth_example_of_the_specification(self) -> None:
        names = {"time": 48, "lat": 64, "lon": 128}
        partitions = [
            {
                "index": [0],
                "punits": "K @ 273.15",
                "pdimensions": ["lon", "time", "lat"],
                "flip": ["time"],
                "data": {"shape": [128, 12, 64], "ncvar": "cfa_45sdf83745"},
                "location": [[0, 12], [0, 64], [0, 128]],
                "format": "netCDF",
            }
        ]
        text = json.dumps({"pmdimensions": ["time"], "pmshape": [2], "Partitions": partitions})
        dimensions = {name: Dimension(name, length) for name, length in names.items()}
        attributes = {
            "cf_role": "cfa_variable",
            "cfa_dimensions": "time lat lon",
            "cfa_array": text,
        }
        private = variable_of("cfa_45sdf83745", (), np.dtype("f4"), {"cf_role": "cfa_private"})
        variables = {
            "tas": variable_of("tas", (), np.dtype("f4"), attributes),
            private.name: private,
        }
        hierarchy = Hierarchy(Group("/", dimensions, {}, variables), "hdf5")
        decoded = decode(hierarchy, find(hierarchy), {})
        assert list(decoded.root.variables) == ["tas"]
        assert not decoded.root.variables["tas"].attributes
        ((_, array),) = aggregated(decoded)
        assert array.fragments.places(0) == (FragmentPlace("", "cfa_45sdf83745", "netCDF"),)
        assert array.fragments.mappings == {
            0: FragmentMapping(reverse=(1,), axes=(2, 0, 1), units="K @ 273.15")
        }
        assert array.fragments.addresses.tolist() == ["", None]

    def test_shapes_say_that_ends_are_exclusive_where_no_end_does(self) -> None:
        stored = {"file": "f.nc", "ncvar": "tas", "shape": [2]}
        array = read_04([half(0, location=[[0, 2]], subarray=stored)], pmshape=[2])
        assert array.fragments.extent(0) == ((0, 2),)

    def test_a_partition_without_a_file_is_missing(self) -> None:
        array = read_04([half(0, None), half(1)])
        assert array.fragments.addresses.tolist() == [None, "f.nc"]
        assert not array.warning

    @pytest.mark.parametrize("file", [{}, {"file": ""}, {"file": None}])
    def test_a_variable_of_the_master_that_is_not_there_is_warned_of(
        self, file: dict[str, Any]
    ) -> None:
        array = read_04([half(0, subarray={"ncvar": "gone", **file}), half(1)])
        assert array.fragments.addresses.tolist() == [None, "f.nc"]
        assert array.warning == "1 fragments are in no file; these data are missing"

    def test_a_variable_of_the_master_may_be_numbered(self) -> None:
        names = {"cfa_dimensions": "time", "cf_role": "cfa_variable"}
        partitions = [{"subarray": {"varid": 1}}]
        own = variable_of("tas", (), np.dtype("f4"), {**names, "cfa_array": json.dumps(
            {"Partitions": partitions})})  # fmt: skip
        other = variable_of("other", (), np.dtype("f4"), {})
        root = Group("/", {"time": Dimension("time", 4)}, {}, {"tas": own, "other": other})
        array = read(Hierarchy(root, "hdf5"), {})
        assert array.fragments.places(0) == (FragmentPlace("", "other"),)
        assert array.fragments.extent(0) == ((0, 4),)

    @pytest.mark.parametrize(
        ("part", "expected"),
        [
            ("[[2, 5, 1]]", (slice(2, 6, 1),)),
            ("[(1, 3, 4, 7)]", ((1, 3, 4, 7),)),
            ("[(1,)]", ((1,),)),
            ("[[5, 1, -4]]", (slice(5, 0, -4),)),
            ("[[4, 0, -2]]", (slice(4, None, -2),)),
            ("([0, 0, 1],)", (slice(0, 1, 1),)),
            ([[0, 11, 2]], (slice(0, 12, 2),)),
            ([[1, 3]], ((1, 3),)),
            ("[]", None),
        ],
    )
    def test_part(self, part: Any, expected: Any) -> None:
        array = read_04([half(0, part=part), half(1)])
        mapping = array.fragments.mappings.get(0)
        assert (mapping and mapping.part) == expected

    @pytest.mark.parametrize(
        "part",
        [
            *([["12"]], [[1.0]], [[True]], [[None]], [1], [{"1": 2}], ["12"], {}, 5),
            *(
                [[1 << 62]],
                [[-1]],
                [[0, 1, 0]],
                [[-1, 5, 1]],
                "[[0, 1, 0]]",
                "[(-1,)]",
                "[(1]",
                "[",
            ),
        ],
    )
    def test_a_part_that_is_none(self, part: Any) -> None:
        with pytest.raises(FormatError, match=r"has the part .* which cannot be understood"):
            read_04([half(0, part=part), half(1)])

    def test_a_dimension_of_length_one_that_the_data_lack(self) -> None:
        array = read_04([half(0, pdimensions=["height", "time"], reverse=["height"])])
        assert array.fragments.mappings[0] == FragmentMapping(axes=(None, 0), reverse=(0,))

    def test_a_matrix_without_dimensions(self) -> None:
        array = read_04(
            [{"subarray": {"file": "f.nc", "ncvar": "tas"}}], pmdimensions=[], pmshape=[]
        )
        assert array.fragments.grid == (1,)
        assert array.fragments.extent(0) == ((0, 4),)

    def test_a_scalar(self) -> None:
        stored = {"file": "f.nc", "ncvar": "tas", "shape": [], "format": "netCDF"}
        array = read_04([{"index": [], "location": [], "subarray": stored}], (), pmshape=[])
        assert array.shape == ()
        assert array.fragments.grid == ()
        assert array.fragments.places(0) == (FragmentPlace("f.nc", "tas", "netCDF"),)

    def test_packing_and_fill(self) -> None:
        document = {
            "pmdimensions": ["time"],
            "pmshape": [2],
            "Partitions": [half(0), half(1)],
        }
        encoded = Encoded({"cfa_dimensions": "time", "cfa_array": json.dumps(document)})
        attributes = {"scale_factor": np.float32(0.5), "units": "K", "missing_value": np.int16(7)}
        array = read(*master_of("tas", TIMES, encoded, "i2", **attributes))
        assert array.packing == {"scale_factor": 0.5}
        assert array.fill == 7
        assert array.fill.dtype == np.int16
        assert array.units == "K"


class TestCfa05:
    LENGTHS = (("time", 4), ("lat", 3))

    def master(self, **changed: np.ndarray) -> tuple[Hierarchy, dict[str, np.ndarray]]:
        location = np.zeros((2, 2, 2, 2), np.int32)
        for i in range(2):
            for j in range(2):
                location[i, j] = [[2 * i, 2 * i + 2], [2 * j, 2 + j]]
        files = np.array([["f00", "f01"], ["f10", ""]], object)
        values: dict[str, np.ndarray] = {
            "location": location,
            "file": files,
            "ncvar": np.array([["tas"] * 2] * 2, object),
            "format": np.array([["NETCDF4"] * 2] * 2, object),
            "pmdimensions": np.array("time, lat", object),
            **changed,
        }
        dimensions = {name: Dimension(name, length) for name, length in self.LENGTHS}
        group = Group("/cfa_tas")
        for name, value in values.items():
            own = tuple(
                Dimension(f"{name}{n}", k, group="/cfa_tas") for n, k in enumerate(value.shape)
            )
            group.dimensions.update({one.name: one for one in own})
            variable = variable_of(name, own, np.dtype(value.dtype), {})
            variable.group = "/cfa_tas"
            group.variables[name] = variable
        attributes = {
            "cf_role": "cfa_variable",
            "cfa_dimensions": "time lat",
            "cfa_group": "cfa_tas",
        }
        own_variable = variable_of("tas", (), np.dtype("f4"), attributes)
        root = Group("/", dimensions, {}, {"tas": own_variable}, {"cfa_tas": group})
        return Hierarchy(root, "hdf5"), {f"/cfa_tas/{name}": own for name, own in values.items()}

    def test_an_empty_file_is_a_missing_fragment(self) -> None:
        array = read(*self.master())
        assert array.fragments.addresses.tolist() == ["f00", "f01", "f10", None]
        assert array.fragments.extent(3) == ((2, 4), (2, 3))
        assert array.fragments.formats.tolist() == ["NETCDF4"] * 4
        assert array.packing == {}

    def test_the_group_is_not_shown(self) -> None:
        hierarchy, values = self.master()
        decoded = decode(hierarchy, find(hierarchy), values)
        assert list(decoded.root.variables) == ["tas"]
        assert not decoded.root.groups

    def test_partitions_that_were_not_written(self) -> None:
        hierarchy, values = self.master()
        location = values["/cfa_tas/location"].copy()
        location[0, :] = location[:, 1] = netCDF4.default_fillvals["i4"]
        files = np.array([["", ""], ["f10", ""]], object)
        array = read(hierarchy, {
            **values, "/cfa_tas/location": location, "/cfa_tas/file": files})  # fmt: skip
        assert held(array) == {((2, 4), (0, 2)): ((FragmentPlace("f10", "tas", "NETCDF4"),), None)}

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("location", np.zeros((2, 2, 3), np.int32), "locations of the shape"),
            ("location", np.zeros((2, 2, 2, 2), np.float32), "locations of the shape"),
            ("location", np.zeros((2, 2, 2, 2), np.int32), "partition .* of /cfa_tas/location"),
            ("location", np.full((2, 2, 2, 2), 2**31 - 1, np.int32), "partition .*location"),
            ("file", np.array(["f"] * 3, object), "file of the shape"),
            ("ncvar", np.array([[""] * 2] * 2, object), "has no ncvar"),
            ("pmdimensions", np.array("lat, lat", object), "pmdimensions"),
            ("pmdimensions", np.array("time, lon", object), "pmdimensions"),
            ("pmdimensions", np.array("time", object), "a matrix of 2 dimensions"),
        ],
    )
    def test_damage(self, name: str, value: np.ndarray, message: str) -> None:
        hierarchy, values = self.master()
        with pytest.raises(FormatError, match=message) as caught:
            read(hierarchy, {**values, f"/cfa_tas/{name}": value})
        assert caught.value.object == "/tas"

    @pytest.mark.parametrize("name", ["location", "file", "ncvar"])
    def test_what_a_group_must_have(self, name: str) -> None:
        hierarchy, values = self.master()
        del hierarchy.root.groups["cfa_tas"].variables[name]
        with pytest.raises(FormatError, match=f"needs {name} in the group /cfa_tas"):
            read(hierarchy, values)

    def test_what_a_group_may_lack(self) -> None:
        """Without formats nothing is said of them; without names the matrix has all dimensions."""
        hierarchy, values = self.master()
        for name in ("format", "pmdimensions"):
            del hierarchy.root.groups["cfa_tas"].variables[name]
        array = read(hierarchy, values)
        assert array.fragments.addresses.tolist() == ["f00", "f01", "f10", None]
        assert array.fragments.extent(2) == ((2, 4), (0, 2))
        assert array.fragments.formats.tolist() == [""] * 4

    @given(data=st.data())
    def test_any_damage(self, data: st.DataObject) -> None:
        hierarchy, values = self.master()
        name = data.draw(st.sampled_from(["location", "file", "ncvar", "format", "pmdimensions"]))
        shape = tuple(data.draw(st.lists(st.integers(0, 3), max_size=4)))
        if data.draw(st.booleans()):
            shape = values[f"/cfa_tas/{name}"].shape
        dtype = data.draw(st.sampled_from(["i1", "i8", "u8", "f4", "S1", "O"]))
        numbers = data.draw(arrays(np.int64, shape, elements=st.integers(-1, 4)))
        value = numbers.astype(str).astype(object) if dtype == "O" else numbers.astype(dtype)
        try:
            array = read(hierarchy, {**values, f"/cfa_tas/{name}": value})
        except FormatError as error:
            assert error.object in {"/tas", f"/cfa_tas/{name}"}
        else:
            grid_is_sound(array)

    def test_a_group_that_is_not_there(self) -> None:
        hierarchy, values = self.master()
        hierarchy.root.groups.clear()
        with pytest.raises(FormatError, match="'cfa_tas' in cfa_group"):
            read(hierarchy, values)


def two(first: Any, second: Any) -> Fragments:
    addresses = np.empty(2, object)
    addresses[:] = [first, second]
    names = np.full(2, "tas", object)
    starts, stops = (np.array([0, 2]),), (np.array([2, 4]),)
    return Fragments(starts, stops, addresses, names, np.full(2, "", object))


def renamed(encoded: Encoded, words: dict[str, str], more: str = "") -> Encoded:
    said = encoded.attributes["aggregated_data"]
    for old, new in words.items():
        said = said.replace(f"{old}: ", f"{new}: ")
    return Encoded({**encoded.attributes, "aggregated_data": f"{said}{more}"}, encoded.terms)


class TestCfa062:
    def test_keywords_in_any_case_and_others(self) -> None:
        encoded = renamed(
            Cfa062().encode("tas", TIMES, two("a", "b")),
            {"location": "Location", "file": "FILE", "address": "aDDress"},
            " tracking_id: gone",
        )
        array = read(*master_of("tas", TIMES, encoded))
        assert array.fragments.addresses.tolist() == ["a", "b"]
        assert array.fragments.formats.tolist() == ["nc", "nc"]

    def test_a_missing_file_with_the_name_of_the_variable_itself_is_missing(self) -> None:
        own = Cfa062().encode("tas", TIMES, two("a", "b"))
        location, file, kind, address = own.terms
        empty = file._replace(values=np.array(["a", ""], object))
        terms = (location, empty, kind, address)
        array = read(*master_of("tas", TIMES, Encoded(own.attributes, terms)))
        assert address.values.shape == ()
        assert array.fragments.addresses.tolist() == ["a", None]

    def test_substitutions(self) -> None:
        own = Cfa062().encode("tas", TIMES, two("${base}a${end}", "${other}b"))
        location, file, *rest = own.terms
        said = {"substitutions": "${base}: https://h/${end} ${end}: .nc"}
        terms = (location, file._replace(attributes=said), *rest)
        array = read(*master_of("tas", TIMES, Encoded(own.attributes, terms)))
        assert array.fragments.addresses.tolist() == ["https://h/${end}a.nc", "${other}b"]

    @pytest.mark.parametrize("said", ["${base}:", "base: x", "${a}: x ${b}", "${a} x"])
    def test_substitutions_that_cannot_be_understood(self, said: str) -> None:
        own = Cfa062().encode("tas", TIMES, two("a", "b"))
        location, file, *rest = own.terms
        terms = (location, file._replace(attributes={"substitutions": said}), *rest)
        with pytest.raises(FormatError, match="has the substitutions") as caught:
            read(*master_of("tas", TIMES, Encoded(own.attributes, terms)))
        assert caught.value.object == "/cfa_file_tas"

    def test_a_fragment_in_the_group_of_the_terms(self) -> None:
        """As in the third example of the specification."""
        sizes = np.array([[2, 2]], np.int32)
        values = {
            "location": sizes,
            "file": np.array(["", ""], object),
            "address": np.array(["temp1", "temp2"], object),
            "temp1": np.zeros(2, "f4"),
            "temp2": np.zeros(2, "f4"),
        }
        group = Group("/aggregation")
        for name, value in values.items():
            variable = variable_of(name, (), np.dtype(value.dtype), {})
            variable.group = group.path
            group.variables[name] = variable
        attributes = {
            "aggregated_dimensions": "time",
            "aggregated_data": "location: /aggregation/location file: /aggregation/file "
            "address: /aggregation/address",
        }
        root = Group("/", {"time": Dimension("time", 4)}, {}, {}, {"aggregation": group})
        root.variables["tas"] = variable_of("tas", (), np.dtype("f4"), attributes)
        own = {f"/aggregation/{name}": value for name, value in values.items()}
        array = read(Hierarchy(root, "hdf5"), own)
        assert array.fragments.addresses.tolist() == ["", ""]
        assert array.fragments.names.tolist() == ["aggregation/temp1", "aggregation/temp2"]

    def test_what_no_fragment_holds_is_a_fragment_that_is_missing(self) -> None:
        fragments = two("a", "b")
        encoded = Cfa062().encode("tas", (("time", 6),), fragments)
        array = read(*master_of("tas", (("time", 6),), encoded))
        assert array.fragments.addresses.tolist() == ["a", "b", None]
        assert array.fragments.extent(2) == ((4, 6),)

    def test_a_file_without_the_address_of_a_variable(self) -> None:
        encoded = Cfa062().encode("tas", TIMES, two("a", "b"))
        terms = [
            replace_values(term, np.where(term.values == "tas", "", term.values))
            if term.values.dtype == object and (term.values == "tas").any()
            else term
            for term in encoded.terms
        ]
        with pytest.raises(FormatError, match=r"/tas: has no address of a variable in 'a' \(fragm"):
            read(*master_of("tas", TIMES, Encoded(encoded.attributes, tuple(terms))))


def replace_values(term: Term, values: np.ndarray) -> Term:
    return term._replace(values=values.astype(object))


class TestCf113:
    @pytest.mark.parametrize(
        "words", [{}, {"map": "shape", "uris": "location", "identifiers": "address"}]
    )
    def test_keywords_before_the_release(self, words: dict[str, str]) -> None:
        encoded = renamed(Cf113().encode("tas", TIMES, two("a", "b")), words)
        array = read(*master_of("tas", TIMES, encoded))
        assert array.dialect == "1.13"
        assert array.fragments.addresses.tolist() == ["a", "b"]
        assert array.fragments.names.strides == (0,)

    def test_value_before_the_release(self) -> None:
        own = replace(two("", None), values=np.array([5.0, 0], "f4"))
        encoded = renamed(
            Cf113().encode("tas", TIMES, own), {"map": "shape", "unique_values": "value"}
        )
        array = read(*master_of("tas", TIMES, encoded))
        assert held(array) == {((0, 2),): 5.0}

    def test_a_uri_that_is_missing_is_warned_of(self) -> None:
        own = Cf113().encode("tas", TIMES, two("a", "b"))
        sizes, uris, identifiers = own.terms
        terms = (sizes, uris._replace(values=np.array(["a", ""], object)), identifiers)
        array = read(*master_of("tas", TIMES, Encoded(own.attributes, terms)))
        assert array.fragments.addresses.tolist() == ["a", None]
        assert array.warning == "1 fragments have no URI; these data are missing"

    @pytest.mark.parametrize(
        ("fragments", "lengths", "message"),
        [
            (two("a", None), TIMES, r"fragment \(1,\) is missing, which CF-1.13"),
            (two("", "b"), TIMES, r"fragment \(0,\) is in the same dataset, which CF-1.13"),
            (two("a", "b"), (("time", 5),), "data that no fragment holds"),
        ],
    )
    def test_what_it_cannot_say(self, fragments: Fragments, lengths: Lengths, message: str) -> None:
        with pytest.raises(ExportError, match=message):
            Cf113().encode("tas", lengths, fragments)

    def test_values_that_do_not_fit(self) -> None:
        terms = (
            Term("m", (("m0", 1), ("m1", 1)), np.array([[4]], np.int32)),
            Term("u", (("u0", 1),), np.array([0.5])),
        )
        attributes = {"aggregated_dimensions": "time", "aggregated_data": "map: m unique_values: u"}
        with pytest.raises(FormatError, match="no int16"):
            read(*master_of("tas", TIMES, Encoded(attributes, terms), "i2"))

    def test_a_uri_without_an_identifier(self) -> None:
        sizes, uris, _ = Cf113().encode("tas", TIMES, two("a", "b")).terms
        names = Term("own", uris.dimensions, np.array(["tas", ""], object))
        attributes = {
            "aggregated_dimensions": "time",
            "aggregated_data": f"map: {sizes.path} uris: {uris.path} identifiers: own",
        }
        with pytest.raises(FormatError, match=r"has no identifier .* in 'b' \(fragment 1\)"):
            read(*master_of("tas", TIMES, Encoded(attributes, (sizes, uris, names))))

    @pytest.mark.parametrize("count", [1, 3])
    def test_more_or_fewer_uris_than_fragments(self, count: int) -> None:
        sizes, _, names = Cf113().encode("tas", TIMES, two("a", "b")).terms
        uris = Term("files", (("n", count),), np.array(["a", "b", "c"][:count], object))
        attributes = {
            "aggregated_dimensions": "time",
            "aggregated_data": f"map: {sizes.path} uris: files identifiers: {names.path}",
        }
        with pytest.raises(FormatError, match=rf"/files: has the shape \({count},\), and /tas the"):
            read(*master_of("tas", TIMES, Encoded(attributes, (sizes, uris, names))))

    @pytest.mark.parametrize(
        ("values", "dtype", "attributes", "expected"),
        [
            (np.array([-127, 5], "i1"), "i1", {}, [-127, 5]),  # of bytes all values are data
            (np.array([-127, 5], "i1"), "i1", {"missing_value": np.int8(5)}, [-127, None]),
            (np.array([-32767, 5], "i2"), "i2", {}, [None, 5]),
            (np.array([b"x", b"y"], "S1"), "S1", {"missing_value": "y"}, [b"x", None]),
            (np.array([np.nan, 5], "f4"), "f4", {"_FillValue": np.float32("nan")}, [None, 5]),
        ],
    )
    def test_values_that_are_missing(
        self, values: np.ndarray, dtype: str, attributes: Any, expected: list[Any]
    ) -> None:
        array = read(*self.of_values(values, dtype, attributes))
        found = held(array)
        assert [found.get(((2 * at, 2 * at + 2),)) for at in range(2)] == expected

    def of_values(
        self, values: np.ndarray, dtype: str, attributes: Any
    ) -> tuple[Hierarchy, dict[str, np.ndarray]]:
        terms = (
            Term("m", (("m0", 1), ("m1", 2)), np.array([[2, 2]], np.int32)),
            Term("u", (("u0", 2),), values, attributes),
        )
        own = {"aggregated_dimensions": "time", "aggregated_data": "map: m unique_values: u"}
        return master_of("tas", TIMES, Encoded(own, terms), dtype)

    def test_values_of_another_kind(self) -> None:
        hierarchy, values = self.of_values(np.array([b"x", b"y"], "S1"), "f4", {})
        with pytest.raises(FormatError, match=r"/u: holds \|S1, and /tas float32"):
            read(hierarchy, values)

    def test_a_term_that_cannot_be_read(self) -> None:
        hierarchy, values = self.of_values(np.array([1, 2], "f4"), "f4", {})
        error = FormatError("/u", "is damaged")
        read_values: dict[str, Any] = {**values, "/u": error}
        with pytest.raises(FormatError, match="/u: is damaged"):
            read(hierarchy, read_values)


def test_variables_of_04_that_have_a_number_instead_of_a_name() -> None:
    own = two("a", "")
    own.names[:] = ["#3", "tas"]
    encoded = Cfa04().encode("tas", TIMES, own)
    stored = [one["subarray"] for one in json.loads(encoded.attributes["cfa_array"])["Partitions"]]
    assert stored == [
        {"shape": [2], "varid": 3, "file": "a", "format": "netCDF"},
        {"shape": [2], "ncvar": "tas", "format": "netCDF"},
    ]
    assert read(*master_of("tas", TIMES, encoded)).fragments.names.tolist() == ["#3", "tas"]


def test_the_union_form_of_04() -> None:
    encoded = Cfa04().encode("tas", (("time", 6),), two("/d/a.nc", "s3://alias/b.nc"))
    assert encoded.attributes["cf_role"] == "cfa_variable"
    assert encoded.attributes["cf_dimensions"] == encoded.attributes["cfa_dimensions"] == "time"
    assert json.loads(encoded.attributes["cfa_array"]) == {
        "Partitions": [
            {
                "index": [at],
                "location": [[2 * at, 2 * at + 1]],
                "subarray": {"shape": [2], "ncvar": "tas", "file": file, "format": "netCDF"},
            }
            for at, file in enumerate(["/d/a.nc", "s3://alias/b.nc"])
        ],
        "pmdimensions": ["time"],
        "pmshape": [2],
    }
    beside = Cfa04().encode("tas", (("time", 6),), two("a.nc", "b.nc"))
    assert json.loads(beside.attributes["cfa_array"])["base"] == ""


def test_a_format_that_04_has_no_word_for() -> None:
    own = two("a", "b")
    own.formats[1] = "PP"
    with pytest.raises(ExportError, match=r"fragment \(1,\) has the format 'PP'"):
        Cfa04().encode("tas", TIMES, own)


FRAGMENTS = ["f0.nc", "f1_longer.nc"]


def one_value() -> Fragments:
    one = np.full(1, "tas", object)
    return Fragments((), (), np.full(1, "f0.nc", object), one, np.full(1, "", object))


def encoded_by(dialect: Any) -> Encoded:
    encoded: Encoded = dialect.encode("tas", TIMES, two(*FRAGMENTS))
    return encoded


def write_netcdf(path: str, kind: str, encoded: Encoded) -> None:
    """Write a master by the netCDF library; text is char in classic files, as CF has it."""
    classic = kind.startswith("NETCDF3")
    with netCDF4.Dataset(path, "w", format=kind) as dataset:
        dataset.createDimension("time", 4)
        tas = dataset.createVariable("tas", "f4", ())
        tas.setncatts(encoded.attributes)
        for term in encoded.terms:
            values, dimensions = term.values, list(term.dimensions)
            if values.dtype == object and classic:
                longest = max(len(text) for text in values.reshape(-1).tolist())
                values = netCDF4.stringtochar(values.astype(f"S{longest}"))
                dimensions.append((f"strlen_{longest}", longest))
            for name, length in dimensions:
                if name not in dataset.dimensions:
                    dataset.createDimension(name, length)
            own = str if values.dtype == object else values.dtype
            variable = dataset.createVariable(term.path, own, [name for name, _ in dimensions])
            variable.setncatts({k: v for k, v in term.attributes.items() if k != "_FillValue"})
            variable[...] = values


@pytest.mark.parametrize("dialect", [Cfa04(), Cfa062(), Cf113()], ids=lambda one: one.name)
@pytest.mark.parametrize("kind", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA", "NETCDF4", "NCZarr"])
def test_masters_of_netcdf(tmp_path: Path, kind: str, dialect: Any) -> None:
    target = str(tmp_path / "m.nca")
    own = "NETCDF4"
    if kind == "NCZarr":
        target = f"file://{tmp_path}/m.zarr#mode=nczarr,file"
    else:
        own = kind
    write_netcdf(target, own, encoded_by(dialect))
    with open_hierarchy(target) as opened:
        ((variable, array),) = aggregated(opened.hierarchy)
        assert list(opened.hierarchy.root.variables) == ["tas"]
    assert [dimension.name for dimension in variable.dimensions] == ["time"]
    assert array.fragments.addresses.tolist() == FRAGMENTS
    assert array.fragments.names.tolist() == ["tas", "tas"]
    assert array.fragments.extent(1) == ((2, 4),)


@pytest.mark.parametrize("dialect", [Cfa04(), Cfa062(), Cf113()], ids=lambda one: one.name)
@pytest.mark.parametrize("kind", ["NETCDF3_CLASSIC", "NETCDF4", "NCZarr"])
def test_masters_of_one_value(tmp_path: Path, kind: str, dialect: Any) -> None:
    is_tree = kind == "NCZarr"
    target = f"file://{tmp_path}/m.zarr#mode=nczarr,file" if is_tree else str(tmp_path / "m.nca")
    write_netcdf(target, "NETCDF4" if is_tree else kind, dialect.encode("tas", (), one_value()))
    with open_hierarchy(target) as opened:
        assert [v.error for v in opened.hierarchy.root.variables.values()] == [None]
        ((_, array),) = aggregated(opened.hierarchy)
    assert array.shape == ()
    assert array.fragments.addresses.tolist() == ["f0.nc"]
    assert array.fragments.names.tolist() == ["tas"]


@pytest.mark.parametrize("dialect", [Cfa04(), Cfa062(), Cf113()], ids=lambda one: one.name)
@pytest.mark.parametrize("version", [2, 3])
def test_masters_of_zarr(tmp_path: Path, version: int, dialect: Any) -> None:
    encoded = encoded_by(dialect)
    dataset = xr.Dataset(coords={"time": np.arange(4.0)})
    dataset["tas"] = xr.Variable((), np.float32(0), encoded.attributes)
    for term in encoded.terms:
        values = term.values
        if values.dtype == object and version == 2:
            values = values.astype("U")
        dataset[term.path] = xr.Variable([name for name, _ in term.dimensions], values)
    dataset.to_zarr(tmp_path / "m.zarr", zarr_format=version, consolidated=False)
    assert zarr.open_group(tmp_path / "m.zarr", mode="r").metadata.zarr_format == version
    with open_hierarchy(tmp_path / "m.zarr") as opened:
        ((_, array),) = aggregated(opened.hierarchy)
    assert array.fragments.addresses.tolist() == FRAGMENTS
    assert array.fragments.extent(1) == ((2, 4),)


@pytest.mark.parametrize("dialect", [Cfa04(), Cfa062(), Cf113()], ids=lambda one: one.name)
def test_a_name_with_a_blank_is_refused(dialect: Any) -> None:
    with pytest.raises(ExportError, match="needs the name 'the time' without blanks"):
        dialect.encode("tas", (("the time", 4),), two("a", "b"))
    if dialect.name != "0.4":
        with pytest.raises(ExportError, match="needs the name 't as' without blanks"):
            dialect.encode("t as", TIMES, two("a", "b"))


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_fragments_of_s3netcdf4_have_the_group_of_the_aggregation(
    tmp_path: Path, version: str
) -> None:
    """As `_s3netCDF4.pyx` of version 2 writes them: ``ncvar`` states no group."""
    for n in range(2):
        with netCDF4.Dataset(tmp_path / f"m.g1.tas.{n}.nc", "w") as file:
            group = file.createGroup("g1")
            group.createDimension("time", 2)
            group.createVariable("tas", "f8", ("time",))[:] = [2 * n, 2 * n + 1]
    files = [str(tmp_path / f"m.g1.tas.{n}.nc") for n in range(2)]
    with netCDF4.Dataset(tmp_path / "m.nca", "w") as file:
        file.Conventions = f"CFA-{version}"
        group = file.createGroup("g1")
        group.createDimension("time", 4)
        tas = group.createVariable("tas", "f8", ())
        tas.setncatts({"cf_role": "cfa_variable", "cfa_dimensions": "time"})
        if version == "0.4":
            stored = [{"ncvar": "tas", "file": f, "format": "NETCDF4", "shape": [2]} for f in files]
            partitions = [{**half(n), "subarray": one} for n, one in enumerate(stored)]
            tas.cfa_array = json.dumps(
                {"pmdimensions": ["time"], "pmshape": [2], "Partitions": partitions}
            )
        else:
            tas.cfa_group = "cfa_tas"
            table = group.createGroup("cfa_tas")
            for name, length in {"time": 2, "ndimensions": 1, "bounds": 2}.items():
                table.createDimension(name, length)
            location = table.createVariable("location", "i4", ("time", "ndimensions", "bounds"))
            location[:] = [[[0, 2]], [[2, 4]]]
            for name, texts in {"ncvar": ["tas"] * 2, "file": files}.items():
                table.createVariable(name, str, ("time",))[:] = np.array(texts, object)
    for options in ({"group": "g1"}, {"group": "/g1", "chunks": {}}):
        with xr.open_dataset(tmp_path / "m.nca", engine="nczarr", **options) as found:
            assert found["tas"].values.tolist() == [0, 1, 2, 3]
