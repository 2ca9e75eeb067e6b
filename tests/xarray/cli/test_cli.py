"""The command line itself: arguments, exit statuses, errors in one line, a light start."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.changes.journal import PRIVATE
from nczarr_fsspec.stores.ownership import Owner
from nczarr_xarray import __version__
from nczarr_xarray.cli.arguments import add_arguments
from nczarr_xarray.cli.main import COMMANDS, Parser, build_parser, main
from tests.support.corpora.samples import DATA as VECTORS
from tests.support.servers.ports import free_port

DATASET = VECTORS / "types-nczarr+file-4.10.1.zip"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"nczarr {__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["info", "--help"], ["dump", "--help"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith("usage: nczarr")


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["info"], ["dump", "x", "y"], ["info", "-o", "anon", "x"]]
)
def test_wrong_arguments_end_with_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("nczarr: ")
    assert message.endswith(" --help\n")
    assert message.count("\n") == 1


def test_a_misspelt_command_is_answered_with_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["inof", "x.nc"])
    assert "; did you mean info; see nczarr --help\n" in capsys.readouterr().err


def test_storage_options_are_json_or_text() -> None:
    parser = Parser()
    add_arguments(parser)
    text = ["-o", "anon=true", "-o", 'kw={"a": 1}', "-o", "key=a=b", "-o", "empty=", "x"]
    assert dict(parser.parse_args(text).options) == {
        "anon": True,
        "kw": {"a": 1},
        "key": "a=b",
        "empty": "",
    }


def test_storage_options_may_be_spelled_as_in_python() -> None:
    parser = Parser()
    add_arguments(parser)
    text = ["-o", "anon=False", "-o", "ssl=True", "-o", "profile=None", "-o", 'key="True"', "x"]
    expected = {"anon": False, "ssl": True, "profile": None, "key": "True"}
    assert dict(parser.parse_args(text).options) == expected


def test_storage_options_reach_the_filesystem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", "-o", "nonsense=1", str(DATASET)]) == 1
    assert "storage_options" in capsys.readouterr().err
    cache = json.dumps({"cache_storage": str(tmp_path / "cache")})
    target = f"simplecache::file://{DATASET}"
    assert main(["info", "-o", f"simplecache={cache}", target]) == 0
    assert list((tmp_path / "cache").iterdir())


def test_option_in_wrong_form_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["info", "-o", "secret", "x"])
    assert "secret" not in capsys.readouterr().err


def test_option_of_another_command_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["info", "x", "-O", "secret=hidden", "s3://me:hidden@h/x"])
    said = capsys.readouterr().err
    assert "unrecognized arguments: -O secret=***" in said
    assert "hidden" not in said


@pytest.mark.parametrize("command", ["info", "dump"])
def test_error_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "no\x1b[31mthing\n"
    assert main([command, str(tmp_path / name)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"nczarr: {tmp_path}/no\\x1b[31mthing\\n: there is no such file or directory\n"
    )


def test_missing_package_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert main(["info", "https://127.0.0.1:1/x"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("nczarr: ")
    assert err.count("\n") == 1


def test_closed_pipe_is_quiet() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "nczarr_xarray", "dump", str(DATASET)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=120)
    assert err == b""
    assert process.returncode == 141


#: Every command that prints, with {0} for a dataset and {1} for a netCDF-4 file.
PRINTING = [
    "--help",
    "--version",
    "info {0}",
    "info --help",
    "dump {0}",
    "dump -h {0}",
    "refs {1}",
    "compare {0} {0}",
    "compare --json {0} {1}",
    "doctor {0}",
    "doctor --json {0}",
    "validate {1}",
    "validate --json {1}",
    "upgrade --dry-run {2}",
    "trace -- nczarr info {0}",
    pytest.param("demo --output {2}", marks=pytest.mark.slow),
]


@pytest.mark.skipif(os.name == "nt", reason="Windows says it in another way")
@pytest.mark.parametrize("arguments", PRINTING)
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(
    arguments: str, places: tuple[Path, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As of `nczarr ... | head -0`: the pipe is closed before anything is printed."""
    shutil.copytree(NC, tmp_path / "tree")
    words = arguments.format(DATASET, places[3], tmp_path / "tree").split()
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        assert main(words) == 141
    said = capfd.readouterr()
    assert said.out == ""
    if words[0] == "trace":  # which says what it found where messages go
        assert said.err.startswith("requests ")
    else:
        assert said.err == ""


@pytest.mark.parametrize(
    ("settings", "coloured"),
    [
        ({}, True),
        ({"NO_COLOR": ""}, True),  # as no-color.org has it
        ({"NO_COLOR": "0"}, False),
        ({"TERM": "dumb"}, False),
        (None, False),  # no terminal
    ],
)
def test_colours_are_for_terminals(
    settings: dict[str, str] | None, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pty", reason="Windows has no such terminals")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in ({"TERM": "xterm"} | (settings or {})).items():
        monkeypatch.setenv(name, value)
    ours, theirs = os.pipe() if settings is None else os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as shown:
        with os.fdopen(theirs, "w") as printed:
            monkeypatch.setattr(sys, "stdout", printed)
            assert main(["info", str(DATASET)]) == 0
            text = shown.read(1 << 16)  # before the terminal is closed, which may lose it
    assert b"types" in text
    assert (b"\x1b[" in text) == coloured


def test_module_runs_as_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nczarr_xarray", "dump", "-h", str(DATASET)],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert main(["dump", "-h", str(DATASET)]) == 0
    assert done.stdout == capsys.readouterr().out


def test_every_command_has_a_summary() -> None:
    assert {"info", "dump", "demo"} <= set(build_parser([]).format_help().split())


# -- whatever is wrong is told in one line -----------------------------------------------

NC = Path(__file__).parents[3] / "nczarr_xarray" / "demo_data" / "ocean_climate.nczarr"

#: Arguments (with a file in {0} and an empty folder in {1}), status, words of the message.
MISTAKES = [
    ("info {1}/no", 1, "there is no such file"),
    ("info {0}", 1, "x.txt"),
    ("dump {1}/no", 1, "there is no such file"),
    ("dump -v nope {2}", 2, "nope: No such variable"),
    ("dump -v nope,lat {2}", 2, "nope: No such variable"),
    ("dump -v , {2}", 2, "-v: No such variable"),
    ("dump -v ltt {2}", 2, "did you mean lat?"),
    ("copy {2} {1}/y --chunks lta=1", 2, "no dimension is called 'lta'"),
    ("copy {2} {1}/y --chunks lta=1", 2, "did you mean lat?"),
    ("copy {1}/no {1}/y", 1, "there is no such file"),
    ("copy {1}/no {1}/y.nc", 1, "there is no such file"),
    ("copy {2} {0}", 1, "is a file"),
    ("copy {2} {0}/y", 1, "x.txt"),
    ("copy {2} {0}/y.zip", 1, "x.txt"),
    ("copy {2} {0}/y.nc", 1, "x.txt"),
    ("copy {2} {1}/y.nc --consolidated", 2, "--consolidated"),
    ("copy {2} nope://y", 1, "nope"),
    ("copy {2} {1}/y.icechunk", 2, "does not write: use VirtualiZarr"),
    ("copy {2} {1}/y.PARQ/", 2, "does not write: use `nczarr aggregate -o`"),
    ("copy {2} file://{1}/y.json", 2, "does not write: use `nczarr aggregate -o`"),
    ("refs {3} {1}/y.icechunk", 2, "y.icechunk: is named as a repository of Icechunk"),
    ("refs {1}/no", 1, "there is no such file"),
    ("refs {2}", 1, "is a tree of Zarr already"),
    ("doctor {3} --var vv", 2, "there are: /v; did you mean /v?"),
    ("refs {3} {1}/no/f.json", 1, "no/f.json: No such file or directory"),
    ("refs {3} {1}", 1, "Is a directory"),
    ("refs {3} {0}/f.json", 1, "f.json: Not a directory"),
    ("refs {3} /dev/full", 1, "/dev/full: No space left on device"),
    ("demo --output {0}", 1, "x.txt: File exists"),
    ("demo --output {0}/y", 1, "Not a directory"),
]


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, Path, Path]:
    """A text file, an empty folder, a dataset, and a netCDF-4 file."""
    (tmp_path / "x.txt").write_text("no dataset")
    (tmp_path / "empty").mkdir()
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 2)
        file.createVariable("v", "i4", ("x",))[:] = [1, 2]
    return tmp_path / "x.txt", tmp_path / "empty", NC, tmp_path / "x.nc"


@pytest.mark.parametrize(("arguments", "status", "words"), MISTAKES)
def test_a_mistake_is_told_in_one_line(
    arguments: str,
    status: int,
    words: str,
    places: tuple[Path, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(arguments.format(*places).split(" ")) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nczarr: ")
    assert captured.err.count("\n") == 1
    assert "\\n" not in captured.err
    assert words in captured.err
    assert places[0].read_text() == "no dataset"
    assert list(places[1].iterdir()) == []


def test_an_unknown_option_leads_to_the_help_of_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["info", "x", "--chek"])
    assert capsys.readouterr().err.endswith(": --chek; see nczarr info --help\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_examples_that_can_be_parsed(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = build_parser([command])
    with pytest.raises(SystemExit):
        parser.parse_args([command, "--help"])
    _, _, examples = capsys.readouterr().out.partition("\nexamples:\n")
    assert examples
    for line in examples.splitlines():
        program, *words = shlex.split(line.partition(" > ")[0])
        assert (program, words[0]) == ("nczarr", command)
        parser.parse_args(words)


@pytest.mark.parametrize("command", ["info {}", "validate {}", "compare {} {}"])
def test_debug_prints_the_traceback_before_the_message(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.replace("{}", "https://me:secret@localhost:1/x.nc").split()
    status = main(words)
    (message,) = capsys.readouterr().err.splitlines()
    assert main([*words, "--debug"]) == status
    first, *lines, last = capsys.readouterr().err.splitlines()
    assert first == "nczarr: Traceback (most recent call last):"
    assert any("nczarr_xarray/dataset/open.py" in line for line in lines)
    assert last == message
    assert not any("secret" in line for line in lines)


def test_what_a_writer_elsewhere_left_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "o.nczarr"
    shutil.copytree(NC, target)
    lock = target / PRIVATE / "writers" / "x"
    lock.parent.mkdir(parents=True)
    owner = dataclasses.replace(Owner.here(), host="elsewhere", pid=1)
    lock.write_text(json.dumps({"owner": owner.document, "boxes": {"": []}}))
    assert main(["copy", str(NC), str(target), "--overwrite"]) == 1
    assert "if it has died on its machine, run nczarr recover\n" in capsys.readouterr().err
    for printed in (
        "what writers had left is removed\n",
        f"no writer has left anything at {target}\n",
    ):
        assert main(["recover", str(target)]) == 0
        assert capsys.readouterr().out == printed
    assert main(["validate", str(target)]) == 0


@pytest.mark.parametrize("name", ["typo", "typo.nca", "typo.zip", "typo.nc"])
def test_recover_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    target = tmp_path / name
    assert main(["recover", str(target)]) == 1
    said = capsys.readouterr().out
    assert said == f"no writer has left anything at {target}, and there is no dataset\n"
    assert list(tmp_path.iterdir()) == []


def test_recover_where_there_is_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = ["-o", f"endpoint_url=http://127.0.0.1:{free_port()}", "-o", "anon=true"]
    assert main(["recover", "s3://nobucket/x", *endpoint]) == 1
    said = capsys.readouterr().err
    assert said.startswith("nczarr: s3://nobucket/x: cannot connect")


def test_a_list_of_problems_has_a_line_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in ("a", "b\nc\x1b[31m"):
            file[name] = np.array([b"ab"], "V2")
    assert main(["copy", str(tmp_path / "x.h5"), str(tmp_path / "y")]) == 1
    first, *more = capsys.readouterr().err.splitlines()
    assert first.startswith(f"nczarr: {tmp_path / 'y'}: ")
    assert any(line.startswith("  /a: ") for line in more)
    assert any(line.startswith("  /b\\nc\\x1b[31m: ") for line in more)
    assert all(line.startswith("  /") for line in more)


def test_references_are_whole_or_as_they_were(places: tuple[Path, ...]) -> None:
    target = places[1] / "f.json"
    target.write_text("old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert main(["refs", str(places[3]), str(target)]) == 1
    assert target.read_text() == "old"
    assert [path.name for path in places[1].iterdir()] == ["f.json"]
    assert main(["refs", str(places[3]), str(target)]) == 0
    assert "v/0" in json.loads(target.read_text())["refs"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no such device")
@pytest.mark.parametrize("words", [["trace", "--html"], ["trace", "--json"], ["refs"]])
def test_a_report_that_cannot_be_written_is_named(
    words: list[str],
    tmp_path: Path,
    places: tuple[Path, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is not taken for standard output; and an old one is not lost."""

    def run(report: str) -> str:
        name = str(places[3])
        last = {"trace": ["--", "nczarr", "info", name]}.get(words[0], [])
        assert main([*words, *([] if last else [name]), report, *last]) == 1
        return capsys.readouterr().err.splitlines()[-1]

    assert run("/dev/full") == "nczarr: /dev/full: No space left on device"
    old = tmp_path / "reports" / "old"
    old.parent.mkdir()
    old.write_text("old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert run(str(old)) == f"nczarr: {old}: No space left on device"
    assert old.read_text() == "old"
    assert [*old.parent.iterdir()] == [old]


def full(*_: object) -> None:
    raise OSError(28, os.strerror(28))


@pytest.mark.parametrize(
    ("command", "redirection", "status", "words"),
    [
        pytest.param(
            "refs",
            ">/dev/full",
            1,
            "nczarr: standard output: No space left on device\n",
            marks=pytest.mark.slow,
        ),
        ("info", ">/dev/full", 1, "nczarr: standard output: No space left on device\n"),
        pytest.param("dump", "2>/dev/full >/dev/full", 1, "", marks=pytest.mark.slow),
        pytest.param("dump", ">&-", 0, "", marks=pytest.mark.slow),
        pytest.param("info", "<&- >&- 2>&-", 0, "", marks=pytest.mark.slow),
        pytest.param("refs", "| true", 141, "", marks=pytest.mark.slow),
    ],
)
def test_output_that_nobody_takes(
    command: str, redirection: str, status: int, words: str, places: tuple[Path, ...]
) -> None:
    line = f'"$0" -m nczarr_xarray {command} "$1" {redirection}; exit ${{PIPESTATUS[0]}}'
    with subprocess.Popen(
        ["bash", "-c", line, sys.executable, str(places[3])],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        encoding="utf-8",
    ) as process:
        _, err = process.communicate(timeout=120)
    if redirection == "| true":  # which may wait until all is written
        assert process.returncode in (0, 141)
    else:
        assert process.returncode == status
    assert err == words


def test_nothing_is_opened_in_the_place_of_a_closed_stream(places: tuple[Path, ...]) -> None:
    """Else what is printed would go into the file that is written."""
    target = places[1] / "y.nc"
    line = '"$0" -m nczarr_xarray copy "$1" "$2" --progress <&- >&- 2>&-'
    subprocess.run(
        ["bash", "-c", line, sys.executable, str(places[3]), str(target)], check=True, timeout=120
    )
    with netCDF4.Dataset(target) as file:
        assert file["v"][:].tolist() == [1, 2]


def test_warnings_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["v"] = np.arange(2)
        file.attrs["o"] = np.void(b"ab")
    assert main(["copy", str(tmp_path / "x.h5"), str(tmp_path / "y")]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("nczarr: warning: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("form", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA", "HDF5"])
@pytest.mark.parametrize(
    "command", [["info"], ["dump"], ["validate", "--data"], ["doctor"], ["doctor", "--json"]]
)
def test_variables_without_elements(
    tmp_path: Path, form: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a file whose records are still to come."""
    path = tmp_path / "none.nc"
    if form == "HDF5":
        with h5py.File(path, "w") as h5:
            h5.create_dataset("v", (3, 0), "f4")
            h5.create_dataset("w", (0,), h5py.string_dtype())
    else:
        with netCDF4.Dataset(path, "w", format=form) as file:
            file.createDimension("t", None)
            file.createDimension("x", 3)
            file.createVariable("v", "f4", ("t", "x"))
            file.createVariable("w", "i2", ("t",))
    assert main([*command, str(path)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "command",
    [
        ["refs", "{}", "{}"],
        ["refs", "file://{}", "{}"],
        ["trace", "--json", "{}", "--", "nczarr", "info", "{}"],
        ["trace", "--html", "{}", "--", "nczarr", "info", "file://{}#mode=bytes"],
    ],
)
def test_a_dataset_is_not_replaced_by_what_is_told_of_it(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        file.createVariable("v", "i4", ())[...] = 7
    data = path.read_bytes()
    assert main([word.replace("{}", str(path)) for word in command]) == 2
    assert "is the dataset itself" in capsys.readouterr().err
    assert path.read_bytes() == data
    assert [one.name for one in tmp_path.iterdir()] == ["a.nc"]


@pytest.mark.parametrize(
    ("command", "output", "reason"),
    [
        ("copy {} {}", ".nc", ""),
        ("copy --format NETCDF3_CLASSIC {} {}", ".nc", ""),
        ("copy {} {}", ".nczarr", ""),
        ("refs {} {}", ".json", ""),
        ("refs {} {}", ".parq", "is not UTF-8"),
        ("aggregate {} --dim x -o {}", ".nca", ""),
        ("aggregate {} --dim x -o {}", ".json", ""),
        ("aggregate {} --dim x -o {}", ".parq", "is not UTF-8"),
        ("aggregate {} --dim x -o elsewhere/{}", ".nca", ""),
    ],
)
def test_paths_need_not_be_utf8(
    tmp_path: Path,
    command: str,
    output: str,
    reason: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/\xff"))
    (folder / "elsewhere").mkdir(parents=True)
    monkeypatch.chdir(folder)
    source, result = os.fsdecode(b"a\xfe.nc"), os.fsdecode(b"b\xfd") + output
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 200)
        file.createVariable("v", "f8", ("x",))[:] = np.arange(200)
        file.createVariable("x", "f8", ("x",))[:] = np.arange(200)
    os.rename(tmp_path / "x.nc", source)
    names = iter((source, result))
    words = [word.replace("{}", next(names)) if "{}" in word else word for word in command.split()]
    assert main(words) == int(bool(reason)), capsys.readouterr().err
    assert reason in capsys.readouterr().err
    if not reason:
        with xr.open_dataset(words[-1], engine="nczarr") as dataset:
            assert dataset["v"].values.tolist() == list(range(200))
