"""``nczarr compare`` and ``nczarr copy --verify``: what they print, and their exit status."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_xarray import URLError, compare, open_hierarchy, to_nczarr, trace
from nczarr_xarray.cli.main import main
from tests.support.builders.trees import read_tree
from tests.support.servers.httpserver import Server

DATASET = xr.Dataset(
    {"v": (("x", "y"), np.arange(600.0).reshape(20, 30)), "name": ((), "héllo")},
    attrs={"title": "one"},
)


def written(path: Path, *, chunks: tuple[int, int] = (5, 7), dataset: xr.Dataset = DATASET) -> str:
    to_nczarr(dataset, path, encoding={"v": {"chunksizes": chunks}})
    return str(path)


def changed(path: Path) -> str:
    dataset = DATASET.copy(deep=True)
    dataset["v"][3, 4] = -1
    dataset["v"][19] += 1
    return written(path, dataset=dataset)


def test_other_chunks_and_formats_are_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = written(tmp_path / "a"), written(tmp_path / "b.zip", chunks=(20, 1))
    assert main(["copy", b, str(tmp_path / "c.nc")]) == 0
    for other in (b, str(tmp_path / "c.nc")):
        assert main(["compare", a, other]) == 0
        *sides, result = capsys.readouterr().out.splitlines()
        assert sides == [f"A: {a}", f"B: {other}"]
        assert re.fullmatch(r"equal: 2 variables, [\d.]+ kB, [\d.]+ s", result)
        assert main(["compare", a, other, "--quiet"]) == 0
        assert capsys.readouterr() == ("", "")


def test_encodings_are_differences_only_if_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = written(tmp_path / "a"), written(tmp_path / "b", chunks=(20, 1))
    assert main(["compare", a, b, "--encoding"]) == 1
    assert "storage /v: chunks: (5, 7) | (20, 1)\n" in capsys.readouterr().out


def test_the_first_differences_and_their_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = written(tmp_path / "a"), changed(tmp_path / "b")
    assert main(["compare", a, b]) == 1
    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines[:2] == ["variable /v[3, 4]: 94.0 | -1.0", "variable /v[19, 0]: 570.0 | 571.0"]
    assert lines[5] == "variable /v: 31 differing values"
    assert lines[6].startswith("different: 2 variables, ")
    found = compare(a, b)._repr_html_()
    assert found.startswith("<div><p><b>different: 2 variables, ")
    assert '<td style="text-align:left">570.0</td>' in found
    assert "<p>variable /v: 31 differing values</p>" in found


def test_json_is_the_whole_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = written(tmp_path / "a"), changed(tmp_path / "b")
    assert main(["compare", a, b, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads(json.dumps(compare(a, b).as_json()))
    assert report["differing"] == {"/v": 31}
    assert report["differences"][0] == {
        "object": "variable /v", "property": "value", "index": [3, 4], "a": "94.0", "b": "-1.0"
    }  # fmt: skip


def test_tolerance_and_variables(tmp_path: Path) -> None:
    a, b = written(tmp_path / "a"), changed(tmp_path / "b")
    assert main(["compare", a, b, "--tolerance", "1"]) == 1
    assert main(["compare", a, b, "--tolerance", "95"]) == 0
    assert main(["compare", a, b, "--var", "name"]) == 0
    assert main(["compare", a, b, "--var", "name", "--var", "v"]) == 1


def test_members_of_enums_have_no_tolerance(tmp_path: Path) -> None:
    for name, values in (("a", [0, 1]), ("b", [1, 1])):
        with netCDF4.Dataset(tmp_path / name, "w") as file:
            file.createDimension("x", 2)
            sky = file.createEnumType("u1", "sky", {"clear": 0, "cloudy": 1})
            file.createVariable("v", sky, ("x",))[:] = values
    found = compare(tmp_path / "a", tmp_path / "b", tolerance=1)
    assert found.differing == {"/v": 1}


def test_a_sample_reads_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nczarr_xarray.tools.compare.SAMPLE_BYTES", 8)
    a, b = written(tmp_path / "a"), written(tmp_path / "b")
    found = compare(a, b, variables=["v"], sample=3)
    assert found.equal
    assert 3 <= found.values <= 3 * 5 * 7


def test_a_variable_may_be_named_without_a_list(tmp_path: Path) -> None:
    a = written(tmp_path / "a")
    assert compare(a, a, variables="name").values == compare(a, a, variables=["/name"]).values
    assert compare(a, a, variables="/v").values == compare(a, a, variables=["v"]).values
    with pytest.raises(URLError, match="/vw: no such variable"):
        compare(a, a, variables="vw")
    with pytest.raises(URLError, match="sample: '3' is no number of blocks"):
        compare(a, a, sample="3")  # type: ignore[arg-type]  # as of a command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{a}", "nothing"], "nothing: there is no such"),
        (["{a}", "{b}", "--var", "w"], "w: No such variable"),
        (["{a}", "{b}", "--sample", "0"], "sample: 0 is no number of blocks"),
        (["{a}", "{b}", "--tolerance", "much"], "tolerance: 'much' is not one"),
    ],
)
def test_trouble_is_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    names = {name: written(tmp_path / name) for name in "ab"}
    assert main(["compare", *(argument.format(**names) for argument in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_a_chunk_that_cannot_be_read_is_trouble(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = written(tmp_path / "a"), changed(tmp_path / "b")
    (tmp_path / "b" / "v" / "0.0").write_bytes(b"no chunk")
    assert main(["compare", a, b]) == 2
    out = capsys.readouterr().out
    assert "not compared: v/0.0" in out
    assert "not comparable as a whole: 1 variable, 8 B, " in out


def test_remote_datasets_are_compared_by_requests_that_go_out_together(tmp_path: Path) -> None:
    local = str(tmp_path / "a")
    to_nczarr(xr.Dataset({f"v{i}": ("x", np.arange(9.0) + i) for i in range(60)}), local)
    files = read_tree(Path(local), "/a/")
    with Server(files) as server, open_hierarchy(f"{server.url}/a#mode=nczarr") as remote:
        with trace() as found:
            assert compare(remote, local).equal
        chunks = [record for record in found.records if "/v" in record.url]
        assert len(chunks) == 60
        assert found.summary.rounds < len(chunks) / 4


def test_open_datasets_are_left_open(tmp_path: Path) -> None:
    with open_hierarchy(written(tmp_path / "a")) as a:
        assert compare(a, a).equal
        assert compare(a, written(tmp_path / "b")).equal
        assert a.read(a.hierarchy.root.variables["name"]) == "héllo"


def test_variables_that_are_nowhere_are_refused(tmp_path: Path) -> None:
    a = written(tmp_path / "a")
    nowhere: list[Collection[str]] = [["w"], ["/v", "/g/v"], "nam", []]
    for wanted in nowhere:
        reason = "no such variable" if wanted else "none are named"
        with pytest.raises(URLError, match=reason):
            compare(a, a, variables=wanted)


def test_a_misspelled_variable_is_guessed(tmp_path: Path) -> None:
    a = written(tmp_path / "a")
    with pytest.raises(URLError, match="/nam: no such variable; did you mean /name"):
        compare(a, a, variables=["nam"])


# -- verified copies -------------------------------------------------------------------------------


def test_a_verified_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, target = written(tmp_path / "a"), str(tmp_path / "c.nc")
    assert main(["copy", a, target, "--verify", "--fixed"]) == 0
    assert capsys.readouterr().out == ""


def test_a_copy_that_differs_says_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nczarr_xarray.export import netcdf_file

    a = written(tmp_path / "a")
    monkeypatch.setattr(netcdf_file, "write_attributes", lambda *_: None)
    assert main(["copy", a, str(tmp_path / "c.nc"), "--verify"]) == 1
    assert 'attribute /:title: only in A: type char, value "one"\n' in capsys.readouterr().out
