"""The CDL printer against ncdump, on models, and ``nczarr dump`` on datasets."""

from __future__ import annotations

import math
import re
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nczarr_fsspec.errors import FormatError, NCZarrError, URLError
from nczarr_xarray.cli import cdl
from nczarr_xarray.cli.dump import dataset_name, select, write_cdl
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.model import (
    NC_DTYPES,
    Attribute,
    ChunkedArray,
    Dimension,
    EnumType,
    Group,
    Variable,
    join,
)
from tests.support.corpora.cdl_models import (
    NAMES,
    Data,
    Reads,
    assert_as_ncdump,
    elements,
    hidden_dimensions,
    lively_model,
    model_of,
    models,
    printed,
)
from tests.support.corpora.samples import DATA as VECTORS
from tests.support.examples import examples
from tests.support.oracles.nc_adapter import ncdump, run_ncdump, run_ncgen, write_netcdf


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[*HealthCheck])
@given(models())
def test_any_model_is_printed_as_ncdump_prints_it(model: tuple[Group, Data]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        assert_as_ncdump(*model, Path(directory))


# --------------------------------------------------------------- what ncdump taught us

FILL = 9.969209968386869e36
SINGLE, DOUBLE = 2.0**-23, 2.0**-52
COUNT = [[[[*range(2)]] * 2] * 3] * 2


@pytest.mark.parametrize(
    "model",
    [
        # what is near enough to a fill value
        model_of("float", [FILL, FILL * (1 + 1e-7), FILL * (1 + 1e-6), np.inf, np.nan]),
        model_of("double", [FILL, 9.96921e36, FILL * (1 + 1e-14), -np.inf, -0.0]),
        model_of("float", [1, 1 + SINGLE, 1 + 2 * SINGLE, 1 - SINGLE / 2, 1 - SINGLE], 1),
        model_of("float", [1, 1 - SINGLE, 1 - 2 * SINGLE, 1 + SINGLE], 1 - SINGLE),
        model_of("double", [1, 1 - DOUBLE, 1 - 2 * DOUBLE, 1 + DOUBLE], 1 - DOUBLE),
        model_of("float", [0, -0.0, 1e-45, 1e-40], 0),
        model_of("float", [np.nan, -np.nan, np.inf, 1], np.nan),
        model_of("double", [np.nan, np.inf, -np.inf, 1e308], np.inf),
        model_of("float", [np.nan, np.inf, -np.inf, 1], -np.inf),
        # byte and ubyte have no default fill value
        model_of("byte", [-127, -128, 127]),
        model_of("byte", [-127, -128, 127], -127),
        model_of("ubyte", [255, 254, 0]),
        model_of("uint64", [2**64 - 1, 2**64 - 2, 0]),
        model_of("string", ["a", "", "_", "\v\t\n", "é\x01\x7f\\\"'"]),
        model_of("char", list(b"a\\n\nb\n\0\0")),
        model_of("char", [list("ab\n"), list("\n\n\n"), list("\0\0c")]),
        model_of("char", b"f", "f"),
        # what C_format does, and what it does not
        model_of("float", [1, 2.5, FILL, np.nan, np.inf], C_format="%8.3f"),
        model_of("double", [1, 2.5, 1e10], C_format="about %-+10.2le m"),
        model_of("int", [-1, 2, -2147483647], C_format="%05d"),
        model_of("int64", [-1, 2, -9223372036854775806], C_format="%05lld"),
        model_of("uint64", [2**64 - 1, 2], C_format="<%-8lX>"),
        model_of("ubyte", [255, 16, 0], C_format="%4x"),
        model_of("float", [1, 2.5], FORTRAN_format="F8.1"),
        # braces around unlimited dimensions other than the first
        *(model_of("int", COUNT, unlimited=names) for names in ("a", "b", "cd", "abcd", "ad")),
        model_of("char", [[list("ab")] * 2] * 3, unlimited="bc"),
        model_of("string", [[["x" * 50] * 2] * 2] * 3, unlimited="bc"),
        model_of("char", np.zeros((0, 3), "S1"), unlimited="a"),
        # the end of a row at the edge of the page: one or two characters stay, more do not
        *(
            model_of("int64", [[10**k, *[11] * 17, last]] * 2, unlimited=names)
            for k in range(5, 11)
            for last in (1, 11, 111)
            for names in ("", "b")
        ),
        *(model_of("int", [10**k, *[1] * 30]) for k in range(6)),
    ],
)
def test_is_printed_as_ncdump_prints_it(model: tuple[Group, Data], tmp_path: Path) -> None:
    assert_as_ncdump(*model, tmp_path)


@pytest.mark.parametrize(
    "template",
    ["%s", "%n", "%d", "%", "%%", "", "%*d", "%.2f %.2f", "%9999f", "%#g", "%Lf", "%f\n", "%f\0x"],
)
def test_unsuitable_c_format_is_ignored(template: str) -> None:
    root, data = model_of("float", [0.5, 2.0], C_format=template)
    expected = " v = 0.500000, 2.000000 ;" if template == "%f\0x" else " v = 0.5, 2 ;"
    assert expected in printed(root, data).split("\n")


def test_hidden_dimensions_are_named_as_ncdump_names_them(tmp_path: Path) -> None:
    root = hidden_dimensions()
    text = printed(root, {})
    assert "(/1\\ g/i/\\1, " in text  # which i does not declare but see
    assert_as_ncdump(root, {}, tmp_path)


def test_dimension_out_of_sight_is_named_by_its_path() -> None:
    dim = Dimension("y", 2, group="/other")
    root = Group(variables={"v": Variable("v", "/", (dim,), "int", np.dtype("i4"))})
    assert "\tint v(/other/y) ;" in printed(root, {}).split("\n")


#: Words of CDL that may be names of anything; `\\int` and the like have no spelling.
WORDS = ("data", "dimensions", "variables", "types", "group", "Data", "inf", "x1e5", "units")
#: ncdump leaves the one as it is, and ncgen knows the other as an escape only.
MISREAD = set("%?")
READABLE = st.sampled_from(WORDS) | NAMES.filter(lambda n: not MISREAD & set(n) and n != "_")


@st.composite
def named_models(draw: st.DrawFn) -> tuple[Group, Data]:
    """A variable of each type and an enum, all names and values drawn."""
    dims, *names = draw(st.lists(READABLE, min_size=16, max_size=16, unique_by=str.lower))
    dim = Dimension(dims, 3)
    # to ncgen a point is in type.member, and a member is not to be called as a variable
    plain = READABLE.filter(lambda name: "." not in name).map("k_{}".format)
    members = draw(st.lists(plain, min_size=1, max_size=12, unique_by=str.lower))
    enum = EnumType(names.pop(), dict(zip(members, range(0, 3000, 250), strict=False)), "short")
    root = Group(dimensions={dims: dim}, types={enum.name: enum})
    root.groups[names[-1]] = child = Group(f"/{names.pop()}")
    group, data = root, {}
    for nc_type in (*NC_DTYPES, "enum"):
        name, kind = names.pop(), "short" if nc_type == "enum" else nc_type
        some = draw(st.lists(elements(kind), min_size=3, max_size=3))
        if nc_type == "enum":
            some = draw(st.lists(st.sampled_from([*enum.members.values()]), min_size=3, max_size=3))
        if kind in ("float", "double"):  # of which CDL has 7 or 15 digits, and no -0
            some = draw(st.lists(st.integers(1, 9999).map(lambda i: i / 8), min_size=3, max_size=3))
        found = {
            word: Attribute(word, "char", "m") for word in draw(st.lists(READABLE, max_size=2))
        }
        variable = Variable(name, group.path, (dim,), kind, NC_DTYPES[kind], found)
        variable.enum = enum if nc_type == "enum" else None
        group.variables[name] = variable
        data[variable.path] = np.empty(3, variable.dtype)
        data[variable.path][:] = some
        group = child
    return root, data


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[*HealthCheck])
@given(named_models())
def test_what_is_printed_is_what_ncgen_reads(model: tuple[Group, Data]) -> None:
    text = printed(*model)
    with tempfile.TemporaryDirectory() as directory:
        assume(run_ncgen(text, f"{directory}/model.nc"))  # 4.9.0 crashes on some enums in groups
        assert dumped(f"{directory}/model.nc").split("\n") == text.split("\n")


def dumped(path: str) -> str:
    pieces: list[str] = []
    with open_hierarchy(path) as opened:
        write_cdl("model", opened.hierarchy.root, pieces.append, replace(opened, exact=True).read)
    return "".join(pieces)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("size", [1, 5, 19])
def test_enums_are_printed_as_ncdump_prints_them(count: int, size: int, tmp_path: Path) -> None:
    enum = EnumType("kind t", {f"m{'x' * size}_{i}": 7**i % 101 for i in range(count)}, "int")
    inner = EnumType("inner", {"é": -1, "b": 2}, "byte", "/g")
    with netCDF4.Dataset(tmp_path / "model.nc", "w") as file:
        file.createDimension("x", 50)
        file.createGroup("g")
        for one in (enum, inner):
            place = file[one.group] if one.group != "/" else file
            kind = place.createEnumType(NC_DTYPES[one.nc_type], one.name, dict(one.members))
            fill = [*one.members.values()][-1]
            values = np.resize([*one.members.values()], 50)
            place.createVariable("filled", kind, ("x",), fill_value=fill)[:] = values
            place.createVariable("unfilled", kind, ("x",), fill_value=False)[:] = values
    path = str(tmp_path / "model.nc")
    assert dumped(path).split("\n") == ncdump(path).split("\n")


def test_a_type_that_another_hides_is_named_by_its_path(tmp_path: Path) -> None:
    text = """netcdf model {
types:
  byte enum t {A = 1} ;

group: g {
  types:
    byte enum t {B = 1} ;
  variables:
  \tt inner ;
  \t/t outer ;
  \t\t/t outer:a = A ;
  data:

   inner = B ;

   outer = A ;
  } // group g
}
"""
    assert run_ncgen(text, f"{tmp_path}/model.nc")
    assert dumped(f"{tmp_path}/model.nc") == text


def test_structures_and_sequences_are_in_braces(tmp_path: Path) -> None:
    """And nothing of the memory between their fields is seen."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        kind = np.dtype([("a", "i1"), ("b", "f8", (2,)), ("s", h5py.string_dtype())], align=True)
        file["c"] = np.array([(1, (2, 0.5), "q"), (-3, (4, 5), "")], kind)
        sequences = file.create_dataset("v", (2,), h5py.vlen_dtype("i2"))
        sequences[0] = [1, 2]
    lines = dumped(f"{tmp_path}/x.h5").split("\n")
    assert ' c = {1, {2, 0.5}, "q"}, {-3, {4, 5}, ""} ;' in lines
    assert " v = {1, 2}, {} ;" in lines


@pytest.mark.parametrize(
    "path",
    ["run.1.nc", "noext", ".hidden", ".hidden.nc", "1a.nc", "a b#c.nc", "a.", "q=é?.nc", "-x.nc"],
)
def test_dataset_is_named_as_ncdump_names_it(path: str, tmp_path: Path) -> None:
    write_netcdf(tmp_path / path, Group(), {})
    pieces: list[str] = []
    write_cdl(dataset_name(str(tmp_path / path)), Group(), pieces.append)
    assert "".join(pieces) == ncdump(str(tmp_path / path))


def test_dataset_of_the_working_directory_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.nczarr" / "g").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "run.nczarr")
    assert (dataset_name("."), dataset_name("g/..")) == ("run", "run")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("file:///data/run.1.file#mode=nczarr,file", "run.1"),
        ("file:/data/x.zarr/#mode=zarr,file", "x"),
        ("https://user:secret@host/a/b.nc?token=secret#bytes", "b"),
        ("https://user:secret@host", "host"),
        ("s3://bucket", "bucket"),
        ("zip::https://host/a.b.zip", "a.b"),
        ("simplecache::s3://bucket/key", "key"),
    ],
)
def test_dataset_is_named_after_its_url(url: str, expected: str) -> None:
    assert dataset_name(url) == expected


# ----------------------------------------------------------------------- streaming


@pytest.mark.parametrize("nc_type", ["short", "char", "string"])
@pytest.mark.parametrize("shape", [(3, 4, 5), (60,), (1, 60), (60, 1), ()])
@pytest.mark.parametrize("limit", [1, 64, 7 * 64, 10_000])
def test_blocks_are_small_and_the_text_the_same(
    nc_type: str, shape: tuple[int, ...], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(math.prod(shape)).reshape(shape)
    values = (values % 10).astype("U1") if nc_type in ("char", "string") else values * 1001
    root, data = model_of(nc_type, values, unlimited="bc")
    expected = printed(root, data)
    size = 64 if nc_type == "string" else data["/v"].dtype.itemsize
    monkeypatch.setattr(cdl, "READ_BYTES", limit)
    monkeypatch.setattr(cdl, "TEXT_ELEMENTS", 7)
    reads = Reads(data)
    pieces: list[str] = []
    assert write_cdl("model", root, pieces.append, reads) == []
    assert "".join(pieces) == expected
    assert all(math.prod(shape) * size <= max(limit, size) for shape in reads.shapes)


@pytest.mark.parametrize("text", [b"", b"a", b"\0" * 20 + b"b\n", b"\nab\0\0c\xe9" * 5, b"abcdefg"])
@pytest.mark.parametrize("shape", [(40,), (2, 40)])
def test_long_row_of_text_is_written_in_pieces(
    text: bytes, shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.nc"
    with netCDF4.Dataset(path, "w") as file:
        dims = [file.createDimension(f"d{axis}", length).name for axis, length in enumerate(shape)]
        variable = file.createVariable("v", "S1", dims)
        variable[:] = np.broadcast_to(np.frombuffer(text.ljust(40, b"\0"), "S1"), shape)
    monkeypatch.setattr(cdl, "READ_BYTES", 16)
    monkeypatch.setattr(cdl, "TEXT_ELEMENTS", 7)
    pieces: list[str] = []
    with open_hierarchy(path) as opened:
        write_cdl("model", opened.hierarchy.root, pieces.append, replace(opened, exact=True).read)
    assert "".join(pieces) == run_ncdump(str(path)).stdout
    data = pieces[pieces.index("data:\n") :]
    assert max(map(len, data)) <= 7 * 10 + 30  # of 7 characters, after NULs


def test_blocks_end_where_chunks_end(monkeypatch: pytest.MonkeyPatch) -> None:
    root, _ = model_of("short", np.zeros((50, 4)))
    variable = root.variables["v"]
    variable.array = ChunkedArray("v", (50, 4), (8, 4), np.dtype("i2"))
    monkeypatch.setattr(cdl, "READ_BYTES", 20 * 4 * 2)  # 20 rows
    starts = [key[0].start for key in cdl.block_keys(variable)]
    assert starts == [0, 16, 32, 48]
    monkeypatch.setattr(cdl, "READ_BYTES", 5 * 4 * 2)
    starts = [key[0].start for key in cdl.block_keys(variable)]
    assert starts == [*range(0, 50, 5)]


def test_first_block_of_an_enormous_variable_comes_at_once() -> None:
    root, _ = model_of("short", np.zeros((1, 1, 1)))
    variable = root.variables["v"]
    variable.dimensions = tuple(Dimension(name, 2**40) for name in "abc")
    first = next(cdl.block_keys(variable))
    assert first == (slice(0, 1), slice(0, 1), slice(0, cdl.READ_BYTES // 2))


# ------------------------------------------------------------------------- options


def test_header_and_variables_are_chosen_as_in_ncdump(tmp_path: Path) -> None:
    root = hidden_dimensions()
    root.variables["v0"] = Variable("v0", "/", (), "int", np.dtype("i4"))
    path = str(tmp_path / "model.nc")
    write_netcdf(path, root, {})
    pieces: list[str] = []
    write_cdl("model", root, pieces.append)
    assert "".join(pieces) == ncdump("-h", path)
    for names in ("v0", "h/v1", "/1 g/i/v1", "v0,v1", "1 g/i/v0,/1 g/h/v2", "v1,v1"):
        selected = select(root, names.split(","))
        text = printed(root, {}, selected=selected)
        assert text.split("\n") == ncdump("-v", names, path).split("\n"), names
    for names in ("nope", "g/v0", "/1 g/v0", "v0,nope", "i"):
        oracle = run_ncdump("-v", names, path)
        assert oracle.returncode == 1
        with pytest.raises(URLError) as caught:
            select(root, names.split(","))
        assert oracle.stderr.strip() == f"ncdump: {caught.value}".split("; did")[0]


def test_variable_of_the_root_can_be_named_by_its_path() -> None:
    # ncdump takes "/v" for no variable; "//v" is what it would take
    root, _ = model_of("short", [1])
    assert select(root, ["/v"]) == {"/v"}


def test_similar_name_is_suggested() -> None:
    root, _ = model_of("short", [1])
    root.variables = {"temperature": replace(root.variables["v"], name="temperature")}
    with pytest.raises(URLError, match="tempreature: No such variable; did you mean temperature"):
        select(root, ["tempreature"])


# ------------------------------------------------------------------------ datasets


@pytest.fixture
def nczarr(tmp_path: Path) -> Path:
    """A directory tree that netCDF-C wrote; ``model.nc`` beside it says the same."""
    root, data = lively_model()
    write_netcdf(tmp_path / "model.nc", root, data)
    write_netcdf(f"file://{tmp_path}/model.file#mode=nczarr,file", root, data)
    return tmp_path / "model.file"


def zipped(tree: Path, prefix: str) -> Path:
    path = tree.with_name("model.zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(tree.rglob("*")):
            if file.is_file():
                archive.write(file, prefix + file.relative_to(tree).as_posix())
    return path


def test_dump_of_nczarr_is_ncdump_of_the_same_netcdf_file(
    nczarr: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    expected = ncdump(str(nczarr.with_name("model.nc")))
    archive = zipped(nczarr, "model/")
    for target in (nczarr, f"file://{nczarr}#mode=nczarr,file", archive, f"file://{archive}"):
        assert main(["dump", str(target)]) == 0
        out, err = capfdbinary.readouterr()
        assert out.decode("utf-8", "surrogateescape").split("\n") == expected.split("\n")
        assert err == b""


@pytest.mark.parametrize("options", [["-h"], ["-v", "filled,/g 1/scalar"]])
def test_dump_options(options: list[str], nczarr: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", *options, str(nczarr)]) == 0
    assert capfd.readouterr().out == ncdump(*options, str(nczarr.with_name("model.nc")))


MINUS_ZERO = r"\t\t\S*:\S+ = .*-0\..*"
NO_FILL = r" nofill_\w+ = .*"

#: What ncdump 4.9.0 reads as NCZarr, and lines that it gets wrong (docs/differences.md).
READ_BY_NCDUMP = {
    "dims-nczarr+file-4.8.1": [],
    "endian-nczarr+file-4.8.1": [],
    "endian-nczarr+file-4.9.0": [],
    "fills-nczarr+file-4.8.1": [MINUS_ZERO, NO_FILL],
    "fills-nczarr+file-4.9.0": [MINUS_ZERO],
    "floats-nczarr+file-4.8.1": [MINUS_ZERO],
    "floats-nczarr+file-4.9.0": [MINUS_ZERO],
    "names-nczarr+file-4.9.0": [],
    "types-nczarr+file-4.8.1": [],
    "types-nczarr+file-4.9.0": [],
}


@pytest.mark.parametrize("case", READ_BY_NCDUMP)
def test_dump_is_that_of_the_release_that_wrote(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(VECTORS / f"{case}.zip") as archive:
        archive.extractall(tmp_path / "case.file")
    url = f"file://{tmp_path}/case.file#mode=nczarr,file"
    assert main(["dump", url]) == 0
    ours = capfd.readouterr().out.split("\n")
    theirs = ncdump(url).split("\n")
    different = [one for one, other in zip(ours, theirs, strict=True) if one != other]
    known = READ_BY_NCDUMP[case]
    assert [line for line in different if not any(re.fullmatch(p, line) for p in known)] == []
    assert all(any(re.fullmatch(p, line) for line in different) for p in known)


# ----------------------------------------------- what CDL has no word for, and errors


def zarr_types() -> dict[str, tuple[Any, str, str]]:
    """Values of dtypes that only Zarr has: declaration and data in CDL."""
    return {
        "flag": (np.array([True, False]), "byte flag(x) ; // Zarr type: |b1", "1, 0"),
        "half": (np.array([0.1, np.nan], "f2"), "float half(x) ; // Zarr type: <f2",
                 "0.09997559, NaNf"),
        "wave": (np.array([1 + 2j, 0.5], "c8"), "complex64 wave(x) ; // Zarr type: <c8",
                 "{1, 2}, {0.5, 0}"),
        "when": (np.array(["2000-01-01", "NaT"], "M8[s]"),
                 "string when(x) ; // Zarr type: <M8[s]", '"2000-01-01T00:00:00", _'),
        "span": (np.array([-5, "NaT"], "m8[s]"), "int64 span(x) ; // Zarr type: <m8[s]", "-5, _"),
        "raw": (np.array([b"ab", b"\0\xff"], "V2"), "opaque(2) raw(x) ; // Zarr type: |V2",
                "0X6162, 0X00FF"),
        "word": (np.array(["ü", ""], "U2"), "string word(x) ;", '"ü", _'),
        "byte": (np.array([b'q"', b""], "S2"), "string byte(x) ;", '"q\\"", _'),
    }  # fmt: skip


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
def test_types_of_zarr_alone_are_printed_in_the_style_of_cdl(
    zarr_format: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "types.zarr")
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    for name, (values, _, _) in zarr_types().items():
        names = ["x"] if zarr_format == 3 else None
        array = group.create_array(
            name, shape=(2,), dtype=values.dtype, chunks=(1,), dimension_names=names
        )
        array[...] = values
        if zarr_format == 2:
            array.attrs["_ARRAY_DIMENSIONS"] = ["x"]
    assert main(["dump", path]) == 0
    lines = capfd.readouterr().out.split("\n")
    for name, (_, declaration, data) in zarr_types().items():
        assert f"\t{declaration}" in lines
        assert f" {name} = {data} ;" in lines


def test_bad_variables_leave_the_others_readable(
    nczarr: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (nczarr / "v_int" / ".zarray").write_text("{")
    (nczarr / "v_short" / "2.0").write_bytes(b"")
    expected = ncdump(str(nczarr.with_name("model.nc")))
    assert main(["dump", str(nczarr)]) == 1
    captured = capfd.readouterr()
    ours = captured.out.split("\n")
    assert any(line.startswith("\t// v_int") and "v_int/.zarray" in line for line in ours)
    assert any(line.startswith("  // v_short/2.0: ") for line in ours)
    for wanted in ("\tushort v_ushort(t, x) ;", " v_ushort =", "  } // group g\\ 1", "}"):
        assert wanted in expected.split("\n")
        assert wanted in ours
    errors = captured.err.splitlines()
    assert len(errors) == 2
    assert errors[0].startswith("nczarr: v_int/.zarray: ")
    assert errors[1].startswith("nczarr: v_short/2.0: ")


def test_bad_variable_is_declared_in_comments() -> None:
    root, _ = model_of("int", [1, 2], units="m")
    root.variables["v"].error = error = FormatError("v/.zarray", "is odd")
    pieces: list[str] = []
    assert write_cdl("model", root, pieces.append, Reads({})) == [error]
    lines = "".join(pieces).split("\n")
    assert lines[4:] == [
        "\t// v(a): v/.zarray: is odd",
        '\t\t// v:units = "m" ;',
        "data:",
        "}",
        "",
    ]


def test_only_what_was_asked_for_counts_as_an_error(
    nczarr: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (nczarr / "v_int" / ".zarray").write_text("{")
    assert main(["dump", "-v", "v_byte", str(nczarr)]) == 0
    assert main(["dump", "-v", "v_int", str(nczarr)]) == 1
    assert capfd.readouterr().err.count("\n") == 1


def test_comment_cannot_end_early_or_command_the_terminal() -> None:
    root, _ = model_of("int", [1, 2])

    def fail(variable: Variable, key: tuple[slice, ...]) -> Any:
        raise FormatError("v/0", "is \x1b[31mred\n;}\x9b")

    pieces: list[str] = []
    errors: list[NCZarrError] = write_cdl("model", root, pieces.append, fail)
    assert [error.object for error in errors] == ["v/0"]
    assert r"  // v/0: is \x1b[31mred\n;}\x9b" in "".join(pieces).split("\n")


def test_groups_may_be_nested_deeper_than_calls() -> None:
    root = group = Group()
    for _ in range(3000):
        group.groups["g"] = group = Group(join(group.path, "g"))
    lines = printed(root, {}).splitlines()
    assert sum(line.endswith("group: g {") for line in lines) == 3000
    assert lines[-2:] == ["  } // group g", "}"]
