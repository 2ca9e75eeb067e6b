"""The JSON dialect and typed attributes: properties that hold for every value."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_xarray import FormatError
from nczarr_xarray.formats.nczarr import jsontext
from nczarr_xarray.formats.nczarr.attributes import HIDDEN, convert, decode_attributes, infer
from nczarr_xarray.formats.nczarr.jsontext import JSON, MAX_DEPTH, Number, dumps, loads
from nczarr_xarray.formats.nczarr.jsontext import same as same_content
from nczarr_xarray.model import NC_DTYPES, bytes_of, readable
from tests.support.examples import examples

# the same examples every time, in bounded time
bounded = settings(derandomize=True, deadline=None, max_examples=examples(300))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(lambda n: Number(str(n))),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda x: Number(repr(x))),
    st.sampled_from([Number(text) for text in ("-0", "1.50", "1e5", "NaN", "-Infinity", "0.1E-7")]),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(texts, inner, max_size=5)),
    max_leaves=20,
)


def plain(value: JSON) -> Any:
    """What the json module makes of the same text."""
    if isinstance(value, Number):
        return json.loads(value)
    if isinstance(value, list):
        return [plain(member) for member in value]
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    return value


def same(one: Any, other: Any) -> bool:
    """Equality in which NaN equals itself, and types count."""
    return repr(one) == repr(other)


class TestParser:
    @bounded
    @given(values)
    def test_what_is_written_is_read(self, value: JSON) -> None:
        assert same(loads(dumps(value).encode(), "k"), value)

    @bounded
    @given(values, st.booleans(), st.sampled_from([None, 1]))
    def test_agrees_with_the_json_module(self, value: JSON, escaped: bool, indent: Any) -> None:
        text = json.dumps(plain(value), ensure_ascii=escaped, indent=indent)
        assert same(plain(loads(text.encode(), "k")), json.loads(text))

    @bounded
    @given(values, st.booleans())
    def test_both_parsers_agree(self, value: JSON, escaped: bool) -> None:
        text = json.dumps(plain(value), ensure_ascii=escaped)
        slow = jsontext.Dialect(text, "'").parse()
        assert same(slow, jsontext.STANDARD.decode(text))

    @bounded
    @given(st.text("[]{}:,\"\\ntrue0.-eE+$ /'ud8", max_size=40))
    def test_any_text_is_read_or_refused(self, text: str) -> None:
        try:
            value = loads(text.encode(), "the key")
        except FormatError as error:
            assert error.object == "the key"
        else:
            assert same(loads(dumps(value).encode(), "k"), value)

    @bounded
    @given(st.binary(max_size=40))
    def test_any_bytes_are_read_or_refused(self, data: bytes) -> None:
        try:
            value = loads(data, "the key")
        except FormatError as error:
            assert error.object == "the key"
        else:
            assert isinstance(value, (type(None), bool, str, list, dict))

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ('{"a": 1,}', {"a": Number("1")}),
            ("[1,2,]", [Number("1"), Number("2")]),
            ("{a: b}", {"a": "b"}),
            ("[days, TRUE, False, nUll]", ["days", True, False, None]),
            ("[NaN,-Infinity,inf,nanf]", [Number(t) for t in ("NaN", "-Infinity", "inf", "nanf")]),
            ("[+5, .5, 1., 1-2]", [Number("+5"), Number(".5"), Number("1."), "1-2"]),
            ("[١٢]", ["١٢"]),
            (r'"it\'s"', "it's"),
            (r'["\q", "\/", "\u00e9\'"]', ["q", "/", "é'"]),
            ('"tab\there"', "tab\there"),
            ('{"a": 1, "a": 2}', {"a": Number("2")}),
            ("1.50", Number("1.50")),
            ("{}\0", {}),
            ('{"a": 1}"b": 2}}', {"a": Number("1")}),  # the end of what was there before
        ],
    )
    def test_dialect(self, text: str, value: JSON) -> None:
        assert same(loads(text.encode(), ".zattrs"), value)

    def test_apostrophe_stands_for_what_the_writer_meant(self) -> None:
        assert loads(rb'{"q\'uote": 1,}', ".zgroup") == {'q"uote': Number("1")}

    @pytest.mark.parametrize(
        "text",
        ["", " \n", "{", "[", "[1", '{"a"', '{"a":', '{"a" 1}', "[1 2]", '"open', '"\\', "}", "[,]",
         "{,}", "{1", "{,: 1}", "{[: 1}", "//", "'a'", "<html>", "{[1]: 2}", '{"a":}'],
    )  # fmt: skip
    def test_refused(self, text: str) -> None:
        with pytest.raises(FormatError, match=r"^where: is (not valid JSON|empty|a web page)"):
            loads(text.encode(), "where")

    def test_halves_of_surrogate_pairs_are_no_text(self) -> None:
        assert loads(rb'["\ud83d\ude00", "\ud800", "x\udce9y"]', "k") == ["😀", "�", "x�y"]

    @pytest.mark.parametrize("more", [b"", b" rest", rb"\u00e4"])
    def test_bytes_that_are_not_utf_8_are_kept(self, more: bytes) -> None:
        found = loads(b'["\xed\xa0\x80\xff' + more + b'",]', "k")[0]
        assert bytes_of(found) == b"\xed\xa0\x80\xff" + more.replace(rb"\u00e4", "ä".encode())
        assert readable(found).startswith("����")

    @pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}"), ("[{b:", "}]")])
    def test_depth_is_limited(self, start: str, end: str) -> None:
        levels = MAX_DEPTH // (2 if start == "[{b:" else 1)
        assert loads((start * levels + "1" + end * levels).encode(), "k")
        for count in (levels + 1, 500, 5_000, 100_000):
            for text in (start * count + "1" + end * count, start * count):
                with pytest.raises(FormatError, match=r"deep|valid"):
                    loads(text.encode(), "k")

    def test_many_brackets_side_by_side_are_not_deep(self) -> None:
        assert len(loads(b"[" + b"[{}]," * 1000 + b"[]]", "k")) == 1001

    @pytest.mark.parametrize("end", ["", ",]"])  # the fast way, and that of the dialect
    @pytest.mark.parametrize("count", [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, MAX_DEPTH + 2])
    def test_depth_is_counted_where_other_brackets_are(self, count: int, end: str) -> None:
        inner = "[" * (count - 1) + "]" * (count - 1)
        text = f"[[],{{}},{inner}{end or ']'}".encode()
        if count <= MAX_DEPTH:
            assert len(loads(text, "k")) == 3
        else:
            with pytest.raises(FormatError) as caught:
                loads(text, "k")
            assert caught.value.object == "k"
            told = "nested too deeply|Illegal trailing comma|Expecting value" if end else "nested"
            assert re.match(rf"is not valid JSON \(({told})", caught.value.reason)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            # (what only the dialect parses is told in its words)
            (r'["\ud800" 1]', "is not valid JSON (a comma was expected)"),
            (r'["\ud800": 1]', "is not valid JSON (a comma was expected)"),
            (r'["\ud800" ","]', "is not valid JSON (a comma was expected)"),
            (r'{"\ud800" 1}', "is not valid JSON (a name and a colon were expected)"),
            (r'{"\ud800"}', "is not valid JSON (a name and a colon were expected)"),
            (r'{"\ud800": 1 "b"}', "is not valid JSON (a comma was expected)"),
            (r'{"\ud800": 1 ","}', "is not valid JSON (a comma was expected)"),
            (r'{"\ud800": }', "is not valid JSON (unexpected })"),
            (r'["\ud800", ,]', "is not valid JSON (unexpected ,)"),
            (r'["\ud800"', "is not valid JSON (unexpected character or end)"),
            (r'["\ud800", /]', "is not valid JSON (unexpected character or end)"),
            ("[" * 101 + r'"\ud800"' + "]" * 101, "is not valid JSON (nested too deeply)"),
            ("[" * 200_000, "is JSON nested too deeply"),
            (" \n", "is empty, JSON was expected"),
            ("", "is empty, JSON was expected"),
            ("[1 2]", "is not valid JSON (Expecting ',' delimiter: line 1 column 4 (char 3))"),
        ],
    )
    def test_errors_say_what_is_wrong(self, text: str, reason: str) -> None:
        with pytest.raises(FormatError) as caught:
            loads(text.encode(), "v/.zattrs")
        assert (caught.value.object, caught.value.reason) == ("v/.zattrs", reason)

    def test_more_than_the_memory_has(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def parse(*_: object) -> JSON:
            raise MemoryError

        monkeypatch.setattr(jsontext, "parse_text", parse)
        with pytest.raises(FormatError) as caught:
            loads(b"[1, 2]", "k")
        assert caught.value.object == "k"
        assert caught.value.reason == "is JSON of 6 bytes, too many for the memory"

    def test_the_mark_that_editors_of_windows_write(self) -> None:
        assert loads('\ufeff{"a": 1}'.encode(), "k") == {"a": Number("1")}

    @pytest.mark.parametrize(
        ("escaped", "text"),
        [
            (r"\b\f\n\r\t\"\\\/", '\b\f\n\r\t"\\/'),
            (r"\u00E9\u0041x\u00e9", "éAxé"),
            (r"\ud83d\ude00\ud83d\ude01", "😀😁"),
            (r"\uD83D\uDE00", "😀"),
            (r"\'", "'"),
            (r"\u12", "u12"),  # not four digits: the letter stands for itself
        ],
    )
    def test_escapes(self, escaped: str, text: str) -> None:
        """As the dialect reads them, in values and in names."""
        document = f'["{escaped}",]'
        assert loads(document.encode(), ".zattrs") == [text]
        assert loads(f'{{"{escaped}": 1,}}'.encode(), ".zattrs") == {text: Number("1")}

    def test_words_are_text_and_numbers_are_not(self) -> None:
        found = loads(b"[days, 1-2, 5, NaN, .5]", "k")
        assert [type(one) for one in found] == [str, str, Number, Number, Number]

    def test_written_as_netcdf_c_writes(self) -> None:
        text = '{"a": [1,2.50,"x\\n",null], "ü": {"b": true, "c": false}}'
        assert dumps(loads(text.encode(), "k")) == text


class TestSameContent:
    @bounded
    @given(values)
    def test_what_is_read_again(self, value: JSON) -> None:
        assert same_content(value, loads(dumps(value).encode(), "k"))

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (Number("1"), Number("1.0")),
            (Number("100"), Number("1e2")),
            ([Number("-0"), {"a": Number(".5")}], [Number("0"), {"a": Number("0.50")}]),
            ({"a": None, "b": True}, {"b": True, "a": None}),
            ("x", "x"),
            (Number("1-2"), Number("1-2")),
        ],
    )
    def test_same(self, one: JSON, other: JSON) -> None:
        assert same_content(one, other) is True
        assert same_content(other, one) is True

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (Number("1"), Number("2")),
            (Number("1"), Number("1-2")),
            (Number("inff"), Number("1")),
            ([Number("1")], [Number("1"), Number("2")]),
            ([Number("1"), Number("2")], [Number("2"), Number("1")]),
            ({"a": Number("1")}, {"b": Number("1")}),
            ({"a": Number("1")}, {"a": Number("3")}),
            ({"a": Number("1")}, {"a": Number("1"), "b": None}),
            ({}, []),
            ([], None),
            ("1.0", Number("1")),
            ("x", "y"),
        ],
    )
    def test_different(self, one: JSON, other: JSON) -> None:
        assert same_content(one, other) is False
        assert same_content(other, one) is False


integer_types = sorted(name for name, dtype in NC_DTYPES.items() if dtype.kind in "iu")
type_codes: st.SearchStrategy[Any] = st.sampled_from(
    ["<i1", "|u1", ">i2", "<u2", "<i4", ">u4", "<i8", "<u8", "<f4", ">f8", ">S1", "<U1", "|S7",
     "|J0", "1", "2", "5", "11", "12", "99", "", "x", "|O", "<f2", "\0", 5, None, [], {}]
)  # fmt: skip


class TestAttributes:
    @bounded
    @given(st.sampled_from(integer_types), st.data())
    def test_integers_survive(self, nc_type: str, data: st.DataObject) -> None:
        limits = np.iinfo(NC_DTYPES[nc_type])
        elements = data.draw(st.lists(st.integers(limits.min, limits.max), min_size=1))
        for texts in (elements, list(map(str, elements))):  # 4.9 quotes some numbers
            found = convert(loads(json.dumps(texts).encode(), "k"), nc_type)
            assert isinstance(found, np.ndarray)
            assert found.dtype == NC_DTYPES[nc_type]
            assert found.tolist() == elements

    @bounded
    @given(st.sampled_from(["float", "double"]), st.data())
    def test_floats_survive_to_the_last_bit(self, nc_type: str, data: st.DataObject) -> None:
        floats = st.floats(width=32 if nc_type == "float" else 64)
        elements = data.draw(st.lists(floats, min_size=1))
        array = np.array(elements, dtype=NC_DTYPES[nc_type])
        names = {math.inf: "Infinity", -math.inf: "-Infinity"}
        quoted = [x if math.isfinite(x) else names.get(x, "NaN") for x in array.tolist()]
        for written in (array.tolist(), quoted):
            found = convert(loads(json.dumps(written).encode(), "k"), nc_type)
            assert isinstance(found, np.ndarray)
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array)

    @bounded
    @given(texts)
    def test_text_survives(self, text: str) -> None:
        document = loads(json.dumps(text).encode(), "k")
        assert convert(document, "char") == text
        assert convert(document, "string") == (text,)

    @pytest.mark.parametrize(
        "text", ["17", "1.50", "-0", "1e5", "true", "null", "NaN", '[1,"a"]', '{"a": [1,2]}', "007"]
    )
    def test_text_that_was_stored_as_json_comes_back(self, text: str) -> None:
        assert convert(loads(text.encode(), "k"), "char") == text

    @bounded
    @given(st.dictionaries(texts, values), st.data(), st.booleans())
    def test_any_value_of_any_type_is_an_attribute(
        self, attributes: dict[str, JSON], data: st.DataObject, netcdf: bool
    ) -> None:
        types = {name: data.draw(type_codes) for name in attributes}
        fill_type = data.draw(st.sampled_from([None, *NC_DTYPES]))
        found, problems = decode_attributes(
            attributes, types, "v/.zattrs", netcdf=netcdf, fill_type=fill_type
        )
        assert list(found) == [name for name in attributes if name not in HIDDEN]
        assert all(problem.object == "v/.zattrs" for problem in problems)
        for attribute in found.values():
            if attribute.type == "char":
                assert isinstance(attribute.value, str)
            elif attribute.type == "string":
                assert isinstance(attribute.value, tuple)
                assert all(isinstance(text, str) for text in attribute.value)
            else:
                assert isinstance(attribute.value, np.ndarray)
                assert attribute.value.dtype == NC_DTYPES[attribute.type]
                assert attribute.value.ndim == 1

    @bounded
    @given(st.lists(st.integers(-(2**63), 2**64), min_size=1, max_size=4))
    def test_untyped_integers_keep_their_values(self, elements: list[int]) -> None:
        attribute = infer("a", [Number(str(n)) for n in elements], netcdf=True)
        fits = {
            "int": all(-(2**31) <= n < 2**31 for n in elements),
            "uint": all(0 <= n < 2**32 for n in elements),
            "int64": all(-(2**63) <= n < 2**63 - 1 for n in elements),
            "uint64": all(0 <= n < 2**64 for n in elements),
        }
        assert attribute.type == next((name for name, fit in fits.items() if fit), "double")
        assert isinstance(attribute.value, np.ndarray)
        if attribute.type != "double":
            assert attribute.value.tolist() == elements

    @pytest.mark.parametrize(
        "text", ["128", "-129", "1e400", '"x"', "null", "[1,[2]]", "{}", '"NaN"']
    )
    def test_a_value_that_contradicts_its_type_is_reported(self, text: str) -> None:
        value = loads(text.encode(), "k")
        found, problems = decode_attributes({"a": value}, {"a": "<i1"}, "v/.zattrs", netcdf=True)
        assert repr(found["a"]) == repr(infer("a", value, netcdf=True))
        assert found["a"].type != "byte"
        assert len(problems) == 1
        assert "attribute 'a' is not of its type byte" in problems[0].reason

    def test_numbers_of_absurd_length(self) -> None:
        digits = Number("9" * 10_000)
        assert infer("a", digits, netcdf=True).type == "double"
        found, problems = decode_attributes({"a": digits}, {"a": "<i8"}, "k", netcdf=True)
        assert found["a"].type == "double"
        assert len(str(problems[0])) < 300
