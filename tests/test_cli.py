"""The command line itself: arguments, exit statuses, errors in one line, a light start."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nczarr_xarray import __version__
from nczarr_xarray.cli.main import build_parser, main
from nczarr_xarray.cli.target import add_arguments

VECTORS = Path(__file__).parent / "data" / "vectors"
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
    assert "usage: nczarr" in capsys.readouterr().err


def test_start_imports_nothing_heavy_but_xarray() -> None:
    # xarray's objects get their `.nczarr` as soon as the package is imported
    code = (
        "import sys; from nczarr_xarray.cli.main import build_parser; build_parser();"
        "print(*sorted({'zarr', 'fsspec', 'dask', 'pyarrow', 'matplotlib'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_storage_options_are_json_or_text() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    text = ["-o", "anon=true", "-o", 'kw={"a": 1}', "-o", "key=a=b", "-o", "empty=", "x"]
    assert dict(parser.parse_args(text).options) == {
        "anon": True,
        "kw": {"a": 1},
        "key": "a=b",
        "empty": "",
    }


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
    assert {"info", "dump", "demo"} <= set(build_parser().format_help().split())
