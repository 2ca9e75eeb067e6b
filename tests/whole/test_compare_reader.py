"""`nczarr compare` compares what a reader gets: planted losses that stored elements do not show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import netCDF4
import numpy as np
import pytest
import zarr

from nczarr_xarray import compare
from nczarr_xarray.cli.main import main
from tests.support.builders.unchecked_fill import UNCHECKED, name_fill_values


def _write(path: Path, attributes: dict[str, Any], kind: str = "i2") -> Path:
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 4)
        variable = file.createVariable("v", kind, ("x",))
        variable.set_auto_maskandscale(False)
        for name, value in attributes.items():
            # netCDF-C takes more kinds of a _FillValue by another name
            variable.setncattr(name if name != "_FillValue" else UNCHECKED, value)
        variable[:] = np.array([1, -1, -2, 3]).astype(kind)
    name_fill_values(path)
    return path


PACKED = {"_FillValue": np.array([-1, -2], "i2"), "scale_factor": 0.1, "add_offset": 5.0}
#: What is changed, and which values a reader gets otherwise.
LOSSES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "fill": ({"_FillValue": None}, [1, 2]),
    "second fill": ({"_FillValue": np.int16(-1)}, [2]),
    "scale": ({"scale_factor": None}, [0, 3]),
    "offset": ({"add_offset": 4.0}, [0, 3]),
    "sign": ({"_Unsigned": "true", "_FillValue": None}, [1, 2]),
    "missing value": ({"missing_value": np.int16(3)}, [3]),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_of_a_reader(loss: str, tmp_path: Path) -> None:
    change, places = LOSSES[loss]
    lost = {name: value for name, value in {**PACKED, **change}.items() if value is not None}
    report = compare(_write(tmp_path / "a.nc", PACKED), _write(tmp_path / "b.nc", lost))
    assert not report.equal
    found = [one.index for one in report.differences if one.property == "decoded value"]
    assert found == [(place,) for place in places]
    assert report.differing == {"/v": len(places)}


def test_the_same_in_other_words_is_decoded_alike(tmp_path: Path) -> None:
    a = {"_FillValue": np.int16(-1), "missing_value": np.int16(-2), "scale_factor": 0.1}
    b = {"_FillValue": np.array([-1, -2], "i2"), "scale_factor": np.float64(0.1)}
    report = compare(_write(tmp_path / "a.nc", a), _write(tmp_path / "b.nc", b))
    assert [one for one in report.differences if one.object == "variable /v"] == []
    assert {one.object for one in report.differences} == {
        "attribute /v:_FillValue",
        "attribute /v:missing_value",
    }


def test_values_of_another_type_are_compared(tmp_path: Path) -> None:
    a, b = _write(tmp_path / "a.nc", {}), _write(tmp_path / "b.nc", {}, "i4")
    assert [one.property for one in compare(a, b).differences] == ["type"]
    with netCDF4.Dataset(b, "a") as file:
        file["v"][2] = 7
    report = compare(a, b)
    assert [str(one) for one in report.differences][1:] == ["variable /v[2]: -2 | 7"]


ATTRIBUTES: dict[str, tuple[Any, Any]] = {
    "object": ({"a": 1}, '{"a": 1}'),
    "one": ([1], 1),
    "text of one": (["a"], "a"),
    "null": (None, "null"),
    "true": (True, 1),
    "big": (2**70, float(2**70)),
    "nested": ([[1, 2], [3]], "[[1,2],[3]]"),
    "mixed": ([1, "a"], '[1,"a"]'),
    "members": ({"a": 1, "b": None}, {"a": 1}),
}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_json(name: str, version: Literal[2, 3], tmp_path: Path) -> None:
    kept, lost = ATTRIBUTES[name]

    def write(path: Path, value: Any) -> Path:
        root = zarr.create_group(path, zarr_format=version, attributes={"n": value})
        names: Any = {"dimension_names": ["x"]} if version == 3 else {}
        root.create_array("v", data=np.arange(3), attributes={"n": value}, **names)
        return path

    a = write(tmp_path / "a", kept)
    assert compare(a, write(tmp_path / "same", kept)).equal
    report = compare(a, write(tmp_path / "b", lost))
    assert {one.object for one in report.differences} == {"attribute /:n", "attribute /v:n"}


def test_the_order_of_members_is_no_difference(tmp_path: Path) -> None:
    for name, value in (("a", {"x": 1, "y": [2]}), ("b", {"y": [2], "x": 1})):
        zarr.create_group(tmp_path / name, zarr_format=2, attributes={"n": value})
        assert json.loads((tmp_path / name / ".zattrs").read_text())["n"] == value
    assert compare(tmp_path / "a", tmp_path / "b").equal


def test_what_the_copy_announced_is_not_called_different(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "a.zarr", tmp_path / "b.nc"
    root = zarr.create_group(source, zarr_format=2, attributes={"axes": {"x": [1, None]}})
    marks: Any = {"_ARRAY_DIMENSIONS": ["x"], "_FillValue": [-1, -2], "true": True}
    root.create_array("v", data=np.array([1, -1, -2], "i2"), attributes=marks)
    assert main(["copy", str(source), str(target), "--verify"]) == 1
    output = capsys.readouterr()
    for name in ("/:axes", "/v:true"):
        assert name in output.err
    assert "only in" not in output.out
    assert "different" not in output.out


def test_what_was_lost_without_a_word_is_called_different(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _write(tmp_path / "a.nc", PACKED)
    monkeypatch.setattr("nczarr_xarray.export.form.lacking.marks_of", lambda _: [np.int16(-1)])
    assert main(["copy", str(source), str(tmp_path / "b.nc"), "--verify"]) == 1
    output = capsys.readouterr()
    assert output.err == ""
    assert "variable /v[2]: missing | 4.8\n" in output.out


def test_numbers_of_a_type_that_classic_files_lack_stay_what_a_reader_gets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _write(tmp_path / "a.nc", {"_Unsigned": "false"}, "u1")
    target = tmp_path / "b.nc"
    main(["copy", str(source), str(target), "--verify", "--format", "NETCDF3_CLASSIC"])
    with netCDF4.Dataset(target) as file:
        assert file["v"].dtype == np.dtype("i1")  # the same bits, which need no mark
    assert capsys.readouterr().out == ""
