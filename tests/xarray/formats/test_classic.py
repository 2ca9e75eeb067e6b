"""Classic netCDF files: netCDF-C, scipy and what was written say what must come out."""

from __future__ import annotations

import mmap
import struct
import tracemalloc
import unicodedata
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nczarr_fsspec.errors import DatasetNotFoundError, FormatError, NCZarrError
from nczarr_fsspec.ranges.source import HEAD_BYTES
from nczarr_xarray import open_hierarchy
from nczarr_xarray.dataset.dataset import attribute_value, dimension_names
from nczarr_xarray.formats.classic import read_hierarchy
from nczarr_xarray.model import FileStrides, Group, Hierarchy, Variable, bytes_of
from tests.support.builders.h5drive import Driven, drive
from tests.support.corpora import classic_corpus as corpus
from tests.support.corpora.classic_corpus import Att, Classic, Lies, Var, write
from tests.support.examples import examples
from tests.support.marks import each_once, slow_cases_but

Buffer = bytes | memoryview


def run(data: Buffer) -> Driven:
    return drive(read_hierarchy("x.nc", len(data)), data)


def parse(data: Buffer) -> Hierarchy:
    found = run(data).result
    assert isinstance(found, Hierarchy)
    return found


def elements(variable: Variable, data: Buffer) -> np.ndarray[Any, Any]:
    """All elements by numpy's own arithmetic; it refuses what is not inside `data`."""
    array = variable.array
    assert isinstance(array, FileStrides), variable
    assert array.shape == variable.shape
    assert array.dtype == variable.dtype
    assert array.start is not None
    if not np.prod(array.shape):
        return np.empty(array.shape, array.dtype)
    return np.ndarray(array.shape, array.dtype, data, array.start, array.strides)


def same_bytes(found: Any, wanted: Any, what: str) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape, what
    assert found.dtype.newbyteorder("=") == wanted.dtype.newbyteorder("="), what
    native = found.dtype.newbyteorder("=")
    assert found.astype(native).tobytes() == wanted.astype(native).tobytes(), what


def same_attributes(found: dict[str, Any], wanted: Any, what: str) -> None:
    names = wanted.ncattrs()
    assert list(found) == names, what
    for name in names:
        ours, theirs = attribute_value(found[name]), wanted.getncattr(name)
        assert type(ours) is type(theirs), (what, name)
        if isinstance(theirs, str):
            assert ours == theirs, (what, name)
        else:
            same_bytes(ours, theirs, f"{what}: {name}")


def check_against_netcdf(path: Path) -> Hierarchy:
    """Everything that netCDF4 reads of a file, we read; the order is the same."""
    data = path.read_bytes()
    found = parse(data)
    assert not found.problems
    root = found.root
    with netCDF4.Dataset(path) as wanted:
        wanted.set_auto_maskandscale(False)
        wanted.set_auto_chartostring(False)
        assert corpus.MODELS[int(found.generation[-1])] == wanted.data_model
        assert [(d.name, d.size, d.unlimited) for d in root.dimensions.values()] == [
            (d.name, d.size, d.isunlimited()) for d in wanted.dimensions.values()
        ]
        same_attributes(root.attributes, wanted, "file")
        assert list(root.variables) == list(wanted.variables)
        for name, variable in root.variables.items():
            other = wanted[name]
            assert variable.error is None
            assert tuple(d.name for d in variable.dimensions) == other.dimensions
            assert variable.dtype.newbyteorder("=") == other.dtype
            assert variable.dtype.itemsize == 1 or variable.dtype.byteorder == ">"
            same_attributes(variable.attributes, other, name)
            same_bytes(elements(variable, data), other[...], name)
    return found


# -- what others wrote -------------------------------------------------------------------------


QUICK = {content for content, _ in corpus.CORPUS if content != "huge header"}


@pytest.mark.parametrize(("content", "version"), slow_cases_but(corpus.CORPUS, *QUICK))
def test_files_of_netcdf_c(content: str, version: int, tmp_path: Path) -> None:
    path = tmp_path / "x.nc"
    corpus.make(content, version, path)
    assert check_against_netcdf(path).generation == f"CDF-{version}"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("types", [corpus.CLASSIC_TYPES, ("byte",), ("short",), ("double",)])
@pytest.mark.parametrize("records", [None, 0, 1, 4])
def test_files_of_scipy(
    version: int, types: tuple[str, ...], records: int | None, tmp_path: Path
) -> None:
    scipy = pytest.importorskip("scipy.io")
    path = tmp_path / "x.nc"
    with scipy.netcdf_file(path, "w", version=version) as dataset:
        dataset.title = "by scipy"
        dataset.numbers = np.array([1.5, 2.5], ">f4")
        dataset.createDimension("time", None)
        dataset.createDimension("x", 3)
        for nc_type in types:
            dtype = np.dtype(corpus.TYPES[nc_type][1])
            # not both: scipy puts scalars where the second record will be
            name, dims, shape = (
                ("scalar", (), ()) if records is None else ("series", ("time", "x"), (records, 3))
            )
            variable = dataset.createVariable(f"line_{nc_type}", dtype, ("x",))
            variable[:] = corpus.sample(nc_type, (3,))
            variable = dataset.createVariable(f"{name}_{nc_type}", dtype, dims)
            variable.units = "m"
            if dims:
                variable[:] = corpus.sample(nc_type, shape)
            else:
                variable.data[...] = corpus.sample(nc_type, shape)
    data = path.read_bytes()
    found = parse(data)
    assert found.generation == f"CDF-{version}"
    assert found.root.attributes["title"].value == "by scipy"
    assert found.root.dimensions["time"].size == (records or 0)
    with scipy.netcdf_file(path, mmap=False) as wanted:
        assert set(found.root.variables) == set(wanted.variables)
        for name, variable in found.root.variables.items():
            other = wanted.variables[name]
            assert tuple(d.name for d in variable.dimensions) == other.dimensions
            same_bytes(elements(variable, data), other.data, name)
    if records == 0 and len(types) > 1:  # all record variables begin at one place
        with pytest.raises(OSError, match="Unknown file format"):
            netCDF4.Dataset(path)
    else:
        check_against_netcdf(path)


def test_a_file_that_scipy_spoils(tmp_path: Path) -> None:
    scipy = pytest.importorskip("scipy.io")
    path = tmp_path / "x.nc"
    with scipy.netcdf_file(path, "w") as dataset:
        dataset.createDimension("time", None)
        dataset.createVariable("scalar", ">i4", ()).data[...] = 1
        dataset.createVariable("line", ">i4", ("time",))[:] = [1, 2, 3]
        dataset.createVariable("series", ">i4", ("time",))[:] = [4, 5, 6]
    with pytest.raises(OSError, match="Unknown file format"):
        netCDF4.Dataset(path)
    for variable in parse(path.read_bytes()).root.variables.values():
        assert variable.error is not None
        assert "shares bytes" in variable.error.reason


@pytest.mark.filterwarnings("ignore:Duplicate dimension names:UserWarning")
@pytest.mark.parametrize("version", [1, 2, 5])
@pytest.mark.parametrize("content", ["everything", "unwritten", "zero records", "names"])
@pytest.mark.parametrize("decode", [False, True])
def test_the_same_in_xarray(content: str, version: int, decode: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.nc"
    corpus.make(content, version, path)
    with (
        xr.open_dataset(path, engine="nczarr", decode_cf=decode) as found,
        xr.open_dataset(path, engine="netcdf4", decode_cf=decode) as wanted,
    ):
        xr.testing.assert_identical(found, wanted)
        assert found.encoding == wanted.encoding
        assert list(found.variables) == list(wanted.variables)
        for name, variable in wanted.variables.items():
            assert found.variables[name].encoding == variable.encoding
            assert found.variables[name].dtype == variable.dtype


# -- any file ----------------------------------------------------------------------------------

_names = st.text(
    st.characters(categories=["L", "N"], include_characters="_"), min_size=1, max_size=9
).filter(lambda name: unicodedata.is_normalized("NFC", name))


@st.composite
def _attributes(draw: st.DrawFn, version: int) -> tuple[Att, ...]:
    found = []
    for name in draw(st.lists(_names, max_size=3, unique=True)):
        nc_type = draw(st.sampled_from(corpus.types_of(version)))
        if nc_type == "char":
            value: Any = draw(st.text(max_size=9)).encode()
        else:
            value = corpus.sample(nc_type, (draw(st.integers(0, 5)),), draw(st.integers(0, 99)))
        found.append(Att(name, nc_type, value))
    return tuple(found)


@st.composite
def _files(draw: st.DrawFn) -> Classic:
    version = draw(st.sampled_from([1, 2, 5]))
    dims: list[tuple[str, int | None]] = [
        (name, draw(st.integers(1, 5))) for name in draw(st.lists(_names, max_size=4, unique=True))
    ]
    record = draw(st.integers(0, len(dims))) if draw(st.booleans()) else None
    if record is not None and record < len(dims):
        dims[record] = (dims[record][0], None)
    else:
        record = None
    fixed = [number for number in range(len(dims)) if number != record]
    file = Classic(
        version,
        tuple(dims),
        draw(_attributes(version)),
        records=draw(st.integers(0, 4)) if record is not None else 0,
    )
    variables = []
    for seed, name in enumerate(draw(st.lists(_names, max_size=5, unique=True))):
        chosen = tuple(draw(st.lists(st.sampled_from(fixed), max_size=3))) if fixed else ()
        if record is not None and draw(st.booleans()):
            chosen = (record, *chosen)
        var = Var(name, draw(st.sampled_from(corpus.types_of(version))), chosen)
        data = corpus.sample(var.type, file.shape(var), seed)
        variables.append(Var(name, var.type, chosen, data, draw(_attributes(version))))
    return Classic(version, tuple(dims), file.attributes, tuple(variables), file.records)


_lies = st.builds(
    Lies,
    records=st.sampled_from([None, -1]),
    vsize=st.sampled_from([lambda size: size, lambda size: 0, lambda size: 2**32 - 1]),
    absent=st.booleans(),
    gap=st.sampled_from([0, 4, 100]),
    tail=st.booleans(),
)


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(_files(), _lies)
def test_any_file(tmp_path: Path, file: Classic, lies: Lies) -> None:
    data = write(file, lies)
    found = parse(data)
    assert not found.problems
    streamed = lies.records == -1
    lost = False
    if streamed and not any(map(file.is_record, file.variables)):
        lost = any(size is None for _, size in file.dims)  # nothing tells their number
    elif streamed and not lies.tail and any(map(file.is_record, file.variables)):
        lost = len(data) != len(write(file))  # the last record is not there as a whole
    if not lost:
        for var in file.variables:
            variable = found.root.variables[var.name]
            assert variable.nc_type == var.type
            same_bytes(elements(variable, data), var.data, var.name)
    if not streamed:  # netCDF-C takes -1 for a number
        path = tmp_path / "x.nc"
        path.write_bytes(data)
        check_against_netcdf(path)


# -- what the specification says, and what files say that it does not ----------------------------


@pytest.mark.parametrize("version", [1, 2, 5])
@pytest.mark.parametrize("nc_type", ["short", "double"])
@pytest.mark.parametrize("others", [0, 1])
def test_the_size_of_the_file_tells_the_records(version: int, nc_type: str, others: int) -> None:
    names = ["v", *(f"w{number}" for number in range(others))]
    data = corpus.sample(nc_type, (5, 3))
    file = Classic(
        version,
        (("t", None), ("x", 3)),
        variables=tuple(Var(name, nc_type, (0, 1), data) for name in names),
        records=5,
    )
    whole = write(file, Lies(records=-1))
    found = parse(whole)
    assert found.root.dimensions["t"].size == 5
    same_bytes(elements(found.root.variables["v"], whole), data, "v")
    for cut in (whole[:-1], whole + b"\0"):  # an unfinished record does not count
        count = parse(cut).root.dimensions["t"].size
        assert count == (4 if len(cut) < len(whole) else 5)
    begin = found.root.variables["v"].array.start  # type: ignore[union-attr]
    assert parse(whole[:begin]).root.dimensions["t"].size == 0


@pytest.mark.parametrize("version", [1, 2, 5])
def test_no_record_variables_and_no_number_of_records(version: int) -> None:
    found = parse(write(Classic(version, (("t", None),)), Lies(records=-1)))
    assert found.root.dimensions["t"].size == 0


BASE = Classic(
    2,
    (("t", None), ("x", 3)),
    (Att("title", "char", b"base"),),
    (
        Var("fixed", "double", (1,), [1.0, 2.0, 3.0]),
        Var("v", "short", (0, 1), np.arange(6).reshape(2, 3)),
        Var("w", "byte", (0,), [7, 8]),
    ),
    records=2,
)


def values(data: Buffer) -> dict[str, np.ndarray[Any, Any]]:
    return {
        name: elements(variable, data)
        for name, variable in parse(data).root.variables.items()
        if variable.error is None
    }


def test_what_a_truncated_file_still_has_can_be_read() -> None:
    whole = write(BASE)
    cut = whole[:-30]
    found = parse(cut)
    (problem,) = found.problems
    assert "ends at byte" in problem.reason
    assert "/fixed, /v, /w" in problem.reason
    assert problem.object == "x.nc"
    assert all(variable.error is None for variable in found.root.variables.values())
    (problem,) = parse(whole[:-4]).problems
    assert "/w do" in problem.reason
    found = parse(whole[:-4])
    same_bytes(
        elements(found.root.variables["v"], whole[:-4]),
        np.arange(6, dtype=">i2").reshape(2, 3),
        "v",
    )
    with pytest.raises(ValueError, match="strides is incompatible"):  # numpy's own words
        elements(found.root.variables["w"], whole[:-4])
    assert not parse(whole[:-3]).problems  # only padding is gone


@pytest.mark.parametrize("version", [1, 2, 5])
def test_a_header_that_is_cut_off_is_refused(version: int) -> None:
    file = Classic(version, BASE.dims, BASE.attributes, BASE.variables, BASE.records)
    data = write(file)
    end = parse(data).root.variables["fixed"].array.start  # type: ignore[union-attr]
    for stop in range(end):
        with pytest.raises(FormatError, match=r"truncated\?|no classic netCDF file") as caught:
            parse(data[:stop])
        assert caught.value.object == "x.nc"


@pytest.mark.parametrize(
    ("lies", "bad"),
    [
        (Lies(begin={"fixed": 8}), {"fixed"}),
        (Lies(begin={"w": 0}), {"v", "w"}),  # their records begin in the header
        (Lies(begin={"fixed": 2**63 - 4}), {"fixed"}),
    ],
)
def test_variables_in_impossible_places(lies: Lies, bad: set[str]) -> None:
    data = write(BASE, lies)
    found = parse(data)
    refused = {name for name, v in found.root.variables.items() if v.error is not None}
    assert refused == bad
    good = values(write(BASE))
    for name in refused:
        variable = found.root.variables[name]
        assert variable.array is None
        assert variable.error is not None
        assert variable.error.object == f"/{name}"
    for name, found_values in values(data).items():
        same_bytes(found_values, good[name], name)


def test_variables_that_share_bytes() -> None:
    places = {name: v.array.start for name, v in parse(write(BASE)).root.variables.items()}  # type: ignore[union-attr]
    for name, at, bad in (
        ("w", places["v"] + 4, {"v", "w"}),
        ("fixed", places["v"] - 20, {"fixed", "v", "w"}),
        ("v", places["w"] + 4, set()),  # in another order
        ("w", places["v"] + 12, {"v", "w"}),  # where the next record of v is
    ):
        found = parse(write(BASE, Lies(begin={name: at})))
        refused = {name for name, v in found.root.variables.items() if v.error is not None}
        assert refused == bad, name


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (Classic(1, (("x", 1), ("x", 2))), "two dimensions are called 'x'"),
        (Classic(1, (("t", None), ("u", None))), "'t' and 'u' both have length 0"),
        (Classic(1, (("", 1),)), "a name is empty"),
        (Classic(5, (("x", -1),)), "-1 is no length"),
        (Classic(1, (("x", 1),), (), (Var("v", "int"), Var("v", "int"))), "two variables are"),
    ],
)
def test_refused(file: Classic, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        parse(write(file))


def test_refused_variables() -> None:
    dims = (("x", 2), ("t", None))
    for dimensions in ((0, 1), (1, 1)):
        with pytest.raises(FormatError, match="record dimension in another place"):
            parse(write(Classic(1, dims, (), (Var("v", "int", dimensions),), 2)))
    with pytest.raises(FormatError, match="65 dimensions"):
        parse(corpus.header(Classic(1, dims, (), (Var("v", "int", (0,) * 65),)), {"v": 0}))
    data = write(Classic(1, (("x", 2),), (), (Var("v", "int", (0,)),)))
    entry = b"v\0\0\0" + struct.pack(">I", 1)
    assert entry in data
    with pytest.raises(FormatError, match="dimension number 7, the file has 1"):
        parse(data.replace(entry + bytes(4), entry + struct.pack(">I", 7)))
    for number in (0, 12, 2**32 - 1):
        with pytest.raises(FormatError, match=f"'fixed' has type {number}"):
            parse(write(BASE, Lies(types={"fixed": number})))


@pytest.mark.parametrize("version", [1, 2])
def test_later_types_in_older_versions(version: int, tmp_path: Path) -> None:
    # the specification gives them to CDF-5 only; netCDF-C reads them everywhere
    variables = tuple(Var(t, t, (0,), corpus.sample(t, (3,))) for t in corpus.ALL_TYPES)
    path = tmp_path / "x.nc"
    path.write_bytes(write(Classic(version, (("x", 3),), (), variables)))
    check_against_netcdf(path)


def test_names_and_text_that_are_not_utf_8() -> None:
    found = parse(
        write(
            Classic(
                1,
                (("x\udce4", 1), ("a\0b", 2)),
                (Att("latin", "char", b"5 \xb0C"), Att("nul", "char", b"a\0b\0")),
            )
        )
    ).root
    assert list(found.dimensions) == ["x\udce4", "a"]  # netCDF-C ends names at a NUL
    assert [*dimension_names("/", [variable_along(found)])] == ["/x\udce4"]
    assert dimension_names("/", [variable_along(found)])["/x\udce4"] == "x\\xe4"
    assert bytes_of(str(found.attributes["latin"].value)) == b"5 \xb0C"
    assert found.attributes["nul"].value == "a\0b\0"
    # what netCDF4-python makes of them
    assert attribute_value(found.attributes["latin"]) == "5 \ufffdC"
    assert attribute_value(found.attributes["nul"]) == "ab"


def variable_along(group: Group) -> Variable:
    return Variable("v", "/", (next(iter(group.dimensions.values())),), "int", np.dtype("i4"))


def test_the_first_of_two_attributes_counts(tmp_path: Path) -> None:
    data = write(Classic(1, (), (Att("a", "int", [1]), Att("a", "int", [2]))))
    found = parse(data)
    assert found.root.attributes["a"].value == [1]
    (problem,) = found.problems
    assert "a second attribute 'a'" in problem.reason
    (tmp_path / "x.nc").write_bytes(data)
    with netCDF4.Dataset(tmp_path / "x.nc") as wanted:
        assert wanted.a == 1


# -- requests ------------------------------------------------------------------------------------


def test_one_round_for_a_small_header(tmp_path: Path) -> None:
    corpus.make("everything", 5, tmp_path / "x.nc")
    data = (tmp_path / "x.nc").read_bytes()
    assert run(data).reads == [[(0, len(data))]]


def large(attribute: int, variables: int) -> Classic:
    """A header with one long attribute and many variables."""
    return Classic(
        2,
        (("x", 1),),
        (Att("history", "char", b"h" * attribute),),
        tuple(
            Var(f"v{n}", "int", (0,), [n], (Att("a", "char", b"-" * 900),))
            for n in range(variables)
        ),
    )


@pytest.mark.parametrize(
    ("attribute", "variables", "most"),
    [
        (0, 60, 1),
        (0, 1000, 2),  # the first variable says where the data begin: the header ends there
        (1_000_000, 0, 2),  # the length of the attribute is known
        (1_000_000, 1000, 3),
        (60_000, 10_000, 6),  # 9 MiB
    ],
)
def test_rounds_of_a_large_header(attribute: int, variables: int, most: int) -> None:
    data = write(large(attribute, variables))
    found = run(data)
    assert len(found.result.root.variables) == variables
    assert found.rounds <= most
    check_reads(found, len(data))


def check_reads(found: Driven, size: int) -> None:
    """Each round goes on where the last ended."""
    at = 0
    for reads in found.reads:
        ((start, length),) = reads
        assert start == at
        at += length
    assert found.reads[0] == [(0, min(size, HEAD_BYTES))]


def test_a_round_per_doubling_if_nothing_tells_the_end() -> None:
    # records come first in the header, their data come last in the file
    file = Classic(
        2,
        (("t", None), ("x", 100_000)),
        (),
        tuple(
            Var(
                f"v{n}",
                "int",
                (n < 1000,) if n == 1001 else (0,),
                None,
                (Att("a", "char", b"-" * 900),),
            )
            for n in range(1000)
        )
        + tuple(Var(f"f{n}", "double", (1,)) for n in range(30)),
    )
    data = write(file)
    found = run(data)
    check_reads(found, len(data))
    assert found.rounds <= 5
    assert sum(length for _, length in found.flat) <= 2 * 1024 * 1024


# -- large files ---------------------------------------------------------------------------------


def sparse(path: Path, head: bytes, size: int, pieces: dict[int, bytes]) -> None:
    with path.open("wb") as out:
        out.write(head)
        out.truncate(size)
        for at, piece in pieces.items():
            out.seek(at)
            out.write(piece)


def compare_corners(path: Path) -> None:
    """The last elements of all variables, as netCDF4 reads them."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        found = parse(view)
        assert not found.problems
        with netCDF4.Dataset(path) as wanted:
            wanted.set_auto_maskandscale(False)
            for name, variable in found.root.variables.items():
                data = elements(variable, view)
                assert data.shape == wanted[name].shape
                corner = tuple(slice(-2, None) for _ in data.shape)
                assert np.any(data[corner])
                same_bytes(data[corner], wanted[name][corner], name)
                del data
        view.release()


@pytest.mark.parametrize("version", [2, 5])
def test_offsets_beyond_4_gib(version: int, tmp_path: Path) -> None:
    length = 3 << 28  # 3 GiB of int
    file = Classic(
        version,
        (("x", length), ("t", None), ("y", 2)),
        (),
        (
            Var("a", "int", (0,)),
            Var("b", "int", (0,)),
            Var("r", "short", (1, 2)),
            Var("s", "byte", (1,)),
        ),
        records=3,
    )
    start = len(corpus.header(file, dict.fromkeys("abrs", 0)))
    begins = {"a": start, "b": start + 4 * length, "r": start + 8 * length}
    begins["s"] = begins["r"] + 4
    sparse(
        tmp_path / "x.nc",
        corpus.header(file, begins),
        begins["r"] + 24,
        {
            begins["b"] - 4: b"\1\2\3\4",
            begins["r"] - 4: b"\5\6\7\x08",
            begins["r"]: bytes(range(24)),
        },
    )
    compare_corners(tmp_path / "x.nc")


@pytest.mark.parametrize("version", [1, 2, 5])
def test_a_variable_of_more_than_4_gib(version: int, tmp_path: Path) -> None:
    # the last variable may be that long also in CDF-1; its vsize cannot say so
    path = tmp_path / "x.nc"
    with netCDF4.Dataset(path, "w", format=corpus.MODELS[version]) as dataset:
        dataset.set_fill_off()
        dataset.createDimension("x", 70_000)
        dataset.createDimension("y", 70_000)
        dataset.createVariable("small", "i4", ("x",))[-2:] = [3, 4]
        dataset.createVariable("v", "i2", ("x", "y"))[-1, -2:] = [1, 2]
    if version < 5:
        with path.open("rb") as file:
            assert b"\xff\xff\xff\xff" in file.read(400)
    compare_corners(path)


# -- lies ----------------------------------------------------------------------------------------


def sane(data: bytes) -> None:
    """Refused, or a hierarchy that contradicts neither itself nor the file's size."""
    try:
        found = parse(data)
    except NCZarrError as error:
        assert error.object
        assert error.reason
        return
    for variable in found.root.variables.values():
        assert (variable.error is None) == (variable.array is not None)
        if isinstance(variable.array, FileStrides):
            assert variable.array.shape == variable.shape
            assert len(variable.array.strides) == len(variable.shape)
            assert variable.array.start is not None
            end = variable.array.start + sum(
                max(0, size - 1) * stride
                for size, stride in zip(variable.shape, variable.array.strides, strict=True)
            )
            inside = end + variable.dtype.itemsize <= len(data)
            assert inside or found.problems or 0 in variable.shape


@pytest.mark.parametrize(
    ("lie", "version"),
    each_once([2**8 - 1, 2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1], [1, 2, 5]),
)
def test_numbers_that_lie_cost_nothing(version: int, lie: int) -> None:
    file = Classic(version, BASE.dims, BASE.attributes, BASE.variables, BASE.records)
    data = write(file)
    end = parse(data).root.variables["fixed"].array.start  # type: ignore[union-attr]
    tracemalloc.start()
    try:
        for width in (4, 8):
            for at in range(4, end - width + 1, 4):
                number = (lie % (1 << 8 * width)).to_bytes(width, "big")
                sane(data[:at] + number + data[at + width :])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_changed_bytes(data: st.DataObject) -> None:
    changed = bytearray(write(data.draw(_files())))
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(4, len(changed) - 1))] = data.draw(st.integers(0, 255))
    sane(bytes(changed))


@pytest.mark.parametrize(
    "data", [b"", b"C", b"CDF", b"CDF\3", b"CDF\4" + bytes(99), b"\x89HDF\r\n\x1a\n"]
)
def test_no_classic_file(data: bytes) -> None:
    with pytest.raises(FormatError, match="no classic netCDF file"):
        parse(data)


def test_there_are_no_groups() -> None:
    data = write(BASE)
    with pytest.raises(DatasetNotFoundError, match="no group '/g'"):
        drive(read_hierarchy("x.nc", len(data), "g"), data)


def test_zeros_are_no_header() -> None:
    for version in (b"\1", b"\5"):
        assert parse(b"CDF" + version + bytes(1000)).root.variables == {}  # as netCDF-C has it
        with pytest.raises(FormatError, match="a name is empty"):
            parse(b"CDF\1" + bytes(4) + struct.pack(">II", 10, 50) + bytes(1000))


def test_a_header_that_is_not_credible(tmp_path: Path) -> None:
    """An attribute of 128 MiB: the file is long enough, and still nothing of it is read."""
    path = tmp_path / "x.nc"
    with path.open("wb") as file:
        attribute = struct.pack(">2iI4s2i", 12, 1, 1, b"a", 2, 1 << 27)
        file.write(b"CDF\1" + struct.pack(">3i", 0, 0, 0) + attribute)
        file.truncate(1 << 28)
    with pytest.raises(
        FormatError, match="has a header of more than 64 MiB, which is not credible"
    ):
        open_hierarchy(path)
