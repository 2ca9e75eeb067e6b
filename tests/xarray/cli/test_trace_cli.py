"""``nczarr trace``, against a server in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nczarr_fsspec.ranges.index_memory import memory
from nczarr_xarray.cli.main import main
from tests.support.builders.remotefiles import write_file
from tests.support.servers.httpserver import Server


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_file(tmp_path_factory.mktemp("traced") / "h5.nc").read_bytes()


@pytest.fixture
def server(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.chdir(tmp_path)
    memory.clear()
    with Server({"/h5.nc": data}) as server:
        yield server


def requests(path: str | Path) -> list[Any]:
    """Read a document, and return what it has of requests."""
    document = json.loads(Path(path).read_text())
    assert (document["format"], document["version"]) == ("nczarr-trace", 1)
    found: list[Any] = document["requests"]
    return found


def test_a_command_is_traced(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"{server.url}/h5.nc"
    files = ["--html", "t.html", "--json", "t.json"]
    assert main(["trace", *files, "--", "nczarr", "info", url]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(url)
    assert "read rounds" in printed.err
    found = requests("t.json")
    assert len(found) == len(server.requests) > 0
    assert f"Trace of {len(found)} requests" in Path("t.html").read_text()


def test_a_script_is_traced_with_its_arguments(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("script.py").write_text(
        "import sys\nimport xarray as xr\n"
        "assert __name__ == '__main__'\n"
        "print(float(xr.open_dataset(sys.argv[1], engine='nczarr')[sys.argv[2]][3]))\n"
        "sys.exit(7)\n"
    )
    before = list(sys.argv), list(sys.path)
    command = ["python3.11", "script.py", f"{server.url}/h5.nc", "x"]
    assert main(["trace", "--json", "t.json", "--", *command]) == 7
    assert float(capsys.readouterr().out) == pytest.approx(0.12)
    assert len(requests("t.json")) == len(server.requests)
    assert (sys.argv, sys.path) == before


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["-c", "import sys; print(sys.argv[1], end='')", "a"], 0, "a"),
        (["-m", "nczarr_xarray", "--version"], 0, "nczarr"),
        (["-c", "import sys; sys.exit('no more')"], 1, "no more"),
        (["-c", "1 / 0"], 1, "ZeroDivisionError"),
        (["-c", "raise KeyboardInterrupt"], 130, "read rounds"),
        (["none.py"], 1, "none.py"),
    ],
)
def test_the_status_is_that_of_the_program(
    arguments: list[str],
    status: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    file = tmp_path / "t.json"
    assert main(["trace", "--json", str(file), "--", "python", *arguments]) == status
    assert said in "".join(capsys.readouterr())
    assert requests(file) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "needs a command"),
        (["--", "bash", "-c", "ls"], "only nczarr ... and python ..."),
        (["--", "python"], "give a script"),
        (["--", "python", "-X", "dev"], "give a script"),
        (["--", "python", "-m"], "-m: is followed by"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", *arguments]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


def test_a_trace_that_could_not_be_written_is_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = ["python", "-c", "print('it runs')"]
    assert main(["trace", "--json", f"{tmp_path}/none/t.json", "--", *program]) == 2
    printed = capsys.readouterr()
    assert "there is no such folder" in printed.err
    assert printed.out == ""
