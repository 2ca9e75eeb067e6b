"""The file of cookies, which several processes have."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from multidict import CIMultiDict
from yarl import URL

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.transport.request_options import Cookies

HEAD = b"# Netscape HTTP Cookie File\n"
LINE = b"a.org\tFALSE\t/\tFALSE\t4000000000\tname\tvalue\n"


def set_by(host: str, *cookies: str) -> SimpleNamespace:
    """An answer of aiohttp's."""
    headers = CIMultiDict([("Set-Cookie", text) for text in cookies])
    return SimpleNamespace(headers=headers, url=URL(f"https://{host}/x"))


def kept(file: Path) -> set[str]:
    """What another program reads there."""
    hosts = ("a.org", "b.org")
    found = [Cookies(file=str(file)).header(URL(f"https://{host}/")) for host in hosts]
    return {text for one in found if one for text in one.split("; ")}


def test_what_other_processes_have_written_stays(tmp_path: Path) -> None:
    file = tmp_path / "cookies"
    one, other = Cookies(file=str(file)), Cookies(file=str(file))
    one.learn(set_by("a.org", "x=1", "y=1"), secure=True)
    other.learn(set_by("b.org", "z=1"), secure=True)
    assert kept(file) == {"x=1", "y=1", "z=1"}
    one.learn(set_by("a.org", "x=2", "y=; Max-Age=0"), secure=True)
    assert kept(file) == {"x=2", "z=1"}
    other.learn(set_by("b.org", "z=1; Max-Age=600"), secure=True)
    assert kept(file) == {"x=2", "z=1"}
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["cookies"]


def test_what_is_known_is_not_written_again(tmp_path: Path) -> None:
    file = tmp_path / "cookies"
    cookies = Cookies(file=str(file))
    cookies.learn(set_by("a.org", "x=1"), secure=True)
    file.unlink()
    cookies.learn(set_by("a.org", "x=1"), secure=True)
    assert not file.exists()


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    file = tmp_path / "cookies"
    file.symlink_to(tmp_path / "real" / "file")
    Cookies(file=str(file)).learn(set_by("a.org", "x=1"), secure=True)
    assert file.is_symlink()
    assert kept(tmp_path / "real" / "file") == {"x=1"}


def test_links_with_names_that_can_be_guessed_are_not_followed(tmp_path: Path) -> None:
    victim, file = tmp_path / "victim", tmp_path / "cookies"
    victim.write_text("mine")
    (tmp_path / f"cookies.{os.getpid()}").symlink_to(victim)
    Cookies(file=str(file)).learn(set_by("a.org", "x=1"), secure=True)
    assert victim.read_text() == "mine"
    assert kept(file) == {"x=1"}


def test_what_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "replace", fail)
    Cookies(file=str(tmp_path / "cookies")).learn(set_by("a.org", "x=1"), secure=True)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "damaged",
    [
        HEAD + LINE[:-2] + b"\xdd",  # found by fuzzing: http.cookiejar fails while it fails
        HEAD + LINE + LINE[:-2] + b"\xdd",
        HEAD[:9] + b"\xff" + LINE,
        HEAD + b"\xff" * 9000,
        HEAD + LINE[:20],
        HEAD + LINE.replace(b"4000000000", b"soon"),
        LINE,
        b"\0",
    ],
)
@pytest.mark.filterwarnings("ignore:http.cookiejar bug:UserWarning")
def test_what_is_no_file_of_cookies_is_an_error_and_stays(tmp_path: Path, damaged: bytes) -> None:
    file = tmp_path / "cookies"
    file.write_bytes(damaged)
    with pytest.raises(StoreError, match=r"(cannot be read|is no file of cookies) \(storage") as e:
        Cookies(file=str(file)).header(URL("http://a.org/"))
    assert "value" not in str(e.value)
    Cookies(file=str(tmp_path / "none")).learn(set_by("a.org", "x=1"), secure=True)
    assert file.read_bytes() == damaged


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "cookies"
    file.write_bytes(HEAD + LINE)
    assert Cookies(file=str(file)).header(URL("http://a.org/")) == "name=value"
