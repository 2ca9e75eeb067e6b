"""CFA-0.4, piece by piece: its JSON, read in parts, and how partitions are mapped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.cfa import cfa04_json
from nczarr_xarray.formats.cfa.cfa04_json import (
    Mappings,
    Part,
    listed_part,
    read_table,
    spelled_part,
)
from nczarr_xarray.model import Dimension, FragmentMapping

values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
keys = st.sampled_from(["Partitions", "pmshape", "base", "", "\n"])


def unwanted(partitions: list[Any]) -> None:
    raise AssertionError(partitions)


class TestTable:
    @given(
        table=st.dictionaries(keys, values, max_size=4),
        partitions=st.lists(values, max_size=9),
        indent=st.sampled_from([None, 0, 2]),
        separators=st.sampled_from([None, (",", ":"), (" ,\r\n", "\t: ")]),
        together=st.integers(1, 10),
        around=st.sampled_from(["", " ", "\n\t\r "]),
    )
    def test_it_is_what_json_reads(
        self,
        table: dict[str, Any],
        partitions: list[Any],
        indent: int | None,
        separators: Any,
        together: int,
        around: str,
    ) -> None:
        table = {**table, "Partitions": partitions}
        text = around + json.dumps(table, indent=indent, separators=separators) + around
        taken: list[list[Any]] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cfa04_json, "PARTITIONS_AT_A_TIME", together)
            found = read_table(text, taken.append)
        assert found == {**table, "Partitions": []}
        assert [one for some in taken for one in some] == partitions
        assert all(len(some) <= together for some in taken)
        assert all(len(some) == together for some in taken[:-1])

    @pytest.mark.parametrize("text", ["[1, 2]", "5", ' "x" ', "null", "{}", " { } ", '{"a": []}'])
    def test_documents_without_partitions(self, text: str) -> None:
        assert read_table(text, unwanted) == json.loads(text)

    @pytest.mark.parametrize("value", [None, 5, "x", {"a": [1]}])
    def test_partitions_that_are_no_list(self, value: Any) -> None:
        assert read_table(json.dumps({"Partitions": value}), unwanted) == {"Partitions": value}

    def test_control_characters_in_text(self) -> None:
        assert read_table('{"a": "\n\t"}', unwanted) == {"a": "\n\t"}

    @pytest.mark.parametrize(
        ("text", "message", "at"),
        [
            ("{1: 2}", "Expecting property name", 1),
            ("{", "Expecting property name", 1),
            ('{"a": 1, }', "Expecting property name", 9),
            ('{"a" 1}', "Expecting one of ':'", 4),
            ('{"a", 1}', "Expecting one of ':'", 4),
            ('{"a": 1: 2}', "Expecting one of ',}'", 7),
            ('{"a": 1]', "Expecting one of ',}'", 7),
            ('{"a": 1', "Expecting one of ',}'", 7),
            ('{"Partitions": [1 2]}', "Expecting ',' or ']'", 17),
            ('{"Partitions": [1: 2]}', "Expecting ',' or ']'", 17),
            ('{"Partitions": [1}', "Expecting ',' or ']'", 17),
            ('{"Partitions": [1', "Expecting ',' or ']'", 17),
            ('{"Partitions": [1, ]}', "Expecting value", 19),
            ('{"Partitions": [', "Expecting value", 16),
            ('{"Partitions": []} x', "Extra data", 19),
            ("{} }", "Extra data", 3),
            ('{"a":}', "Expecting value", 5),
            ("[1, 2", "Expecting ',' delimiter", 5),
        ],
    )
    def test_what_is_wrong_and_where(self, text: str, message: str, at: int) -> None:
        with pytest.raises(json.JSONDecodeError) as caught:
            read_table(text, lambda _: None)
        assert (caught.value.msg, caught.value.pos, caught.value.doc) == (message, at, text)


def wrong(number: int, reason: str) -> FormatError:
    return FormatError("v", f"partition {number} {reason}")


def mapped(*partitions: dict[str, Any]) -> dict[int, FragmentMapping]:
    dimensions = [Dimension("time", 4), Dimension("lat", 3)]
    return Mappings(dimensions).of(list(partitions), wrong)


class TestMappings:
    @pytest.mark.parametrize(
        ("partition", "mapping"),
        [
            ({"part": "[(0, 2), [0, 4, 2]]"}, FragmentMapping(part=((0, 2), slice(0, 5, 2)))),
            ({"part": [[0, 2], [0, 4, 2]]}, FragmentMapping(part=((0, 2), slice(0, 5, 2)))),
            ({"reverse": ["lat"]}, FragmentMapping(reverse=(1,))),
            ({"reverse": "lat time"}, FragmentMapping(reverse=(0, 1))),
            ({"flip": ["time"]}, FragmentMapping(reverse=(0,))),
            ({"flip": ["time"], "reverse": ["lat"]}, FragmentMapping(reverse=(1,))),
            ({"pdimensions": ["lat", "time"]}, FragmentMapping(axes=(1, 0))),
            ({"pdimensions": "lat time"}, FragmentMapping(axes=(1, 0))),
            (
                {"pdimensions": ["z", "lat", "time"], "reverse": ["lat", "z"]},
                FragmentMapping(axes=(None, 1, 0), reverse=(0, 1)),
            ),
            ({"punits": "K"}, FragmentMapping(units="K")),
            ({"pcalendar": "noleap"}, FragmentMapping(calendar="noleap")),
        ],
    )
    def test_understood(self, partition: dict[str, Any], mapping: FragmentMapping) -> None:
        assert mapped({}, partition, {}) == {1: mapping}

    @pytest.mark.parametrize(
        "partition",
        [
            {},
            {"part": None, "reverse": None, "punits": None},
            {"part": "[]"},
            {"reverse": []},
            {"pdimensions": ["time", "lat"]},
            {"other": 5},
        ],
    )
    def test_taken_as_they_are(self, partition: dict[str, Any]) -> None:
        assert mapped(partition, {"other": 1}) == {}

    def test_equal_mappings_are_one_object(self) -> None:
        found = mapped({"part": "[(0,)]"}, {"punits": "K"}, {"part": "[(0,)]"})
        assert list(found) == [0, 1, 2]
        assert found[0] is found[2]
        assert found[0] != found[1]

    @pytest.mark.parametrize(
        ("partition", "reason"),
        [
            ({"part": 5}, "has the part 5, which cannot be understood"),
            ({"part": "[0, 1"}, "has the part '[0, 1', which cannot be understood"),
            ({"reverse": 5}, "has reverse 5, not names of dimensions"),
            ({"flip": [5]}, "has flip [5], not names of dimensions"),
            ({"pdimensions": {"a": 1}}, "has pdimensions {'a': 1}, not names of dimensions"),
            ({"pdimensions": "x x"}, "has pdimensions ['x', 'x'], not names of dimensions"),
            ({"punits": 5}, "has punits 5, not text"),
            ({"pcalendar": ["x"]}, "has pcalendar ['x'], not text"),
            (
                {"reverse": ["z"]},
                "reverses ['z'], and has the dimensions ['time', 'lat']",
            ),
        ],
    )
    def test_refused(self, partition: dict[str, Any], reason: str) -> None:
        with pytest.raises(FormatError) as caught:
            mapped({}, {"punits": "K"}, partition)
        assert (caught.value.object, caught.value.reason) == ("v", f"partition 2 {reason}")


class TestParts:
    @pytest.mark.parametrize(
        ("text", "part"),
        [
            ("[]", ()),
            ("()", ()),
            (" [ ] ", ()),
            ("[[0, 9]]", (slice(0, 10, 1),)),
            ("[[0, 9, 3]]", (slice(0, 10, 3),)),
            ("([9, 1, -2],)", (slice(9, 0, -2),)),
            ("[[9, 0, -3]]", (slice(9, None, -3),)),
            ("[(1, 3, 4)]", ((1, 3, 4),)),
            ("[(5,)]", ((5,),)),
            ("[()]", ((),)),
            ("[( )]", ((),)),
            ("((0,), [1, 2, 1] , (7, 8))", ((0,), slice(1, 3, 1), (7, 8))),
            (f"[({'9' * 18},)]", (((10**18) - 1,),)),
        ],
    )
    def test_as_python_spells_them(self, text: str, part: Part) -> None:
        assert spelled_part(text) == part

    @pytest.mark.parametrize(
        "text",
        ["", "[", "x", "[)", "(]", "[5]", "[[0]]", "[[]]", "[[0, 1, 2, 3]]", "[[0, 1, 0]]",
         "[[-1, 5, 1]]", "[[5, -1, -1]]", "[(-1,)]", "[(1 2)]", "[(1,,2)]", "[(1,2)(3,)]",
         "[(1,2);]", "[(,)]", "[(--1,)]", f"[({'9' * 19},)]", "[(x,)]", "[[0, 1, 1],, (1,)]"],
    )  # fmt: skip
    def test_misspelt(self, text: str) -> None:
        assert spelled_part(text) is None

    @pytest.mark.parametrize(
        ("value", "part"),
        [
            ([], ()),
            ([[0, 9, 3]], (slice(0, 10, 3),)),
            ([[0, 9]], ((0, 9),)),
            ([[4]], ((4,),)),
            ([[1, 2, 3, 4], []], ((1, 2, 3, 4), ())),
            ([[(1 << 62) - 1]], (((1 << 62) - 1,),)),
        ],
    )
    def test_as_json_has_them(self, value: Any, part: Part) -> None:
        assert listed_part(value) == part

    @pytest.mark.parametrize(
        "value",
        [None, 5, {}, [5], [None], [["1"]], [[1.0]], [[True]], [[-1]], [[0, 1, 0]], [[1 << 62]],
         [[0, -(1 << 62), 1]], [[-1, 2, 1]], [[0], 5]],
    )  # fmt: skip
    def test_not_as_json_has_them(self, value: Any) -> None:
        assert listed_part(value) is None
