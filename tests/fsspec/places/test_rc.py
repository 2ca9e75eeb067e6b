from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.errors import NCZarrWarning
from nczarr_fsspec.places.rc import Entry, load_rc, lookup, parse_rc
from nczarr_fsspec.places.url import parse_url


def found(text: str, url: str, key: str = "AWS.PROFILE") -> str | None:
    return lookup(parse_rc(text), key, parse_url(url))


def test_parse() -> None:
    text = """
    # comment=no
    AWS.PROFILE = lab one\t
    [https://h.org:8080/a/b/]HTTP.CREDENTIALS.PASSWORD=x=y#z
    [https://me:pw@H.org]AWS.REGION=eu1\r
    """
    assert parse_rc(text) == [
        Entry("AWS.PROFILE", "lab one"),
        Entry("HTTP.CREDENTIALS.PASSWORD", "x=y#z", "h.org:8080", "/a/b", "https"),
        Entry("AWS.REGION", "eu1", "h.org", "", "https"),
    ]


def test_malformed_lines_are_named_by_number_not_quoted(caplog: pytest.LogCaptureFixture) -> None:
    text = "[https://h.org SECRET=1\nSECRET\n[nothing]SECRET=2\n=SECRET\nAWS.REGION=ok"
    assert parse_rc(text, "my.rc") == [Entry("AWS.REGION", "ok")]
    lines = [record.getMessage() for record in caplog.records]
    assert [line[:13] for line in lines] == [f"my.rc, line {n}" for n in (1, 2, 3, 4)]
    assert "SECRET" not in caplog.text


def test_value_is_not_in_the_repr() -> None:
    assert "hunter2" not in repr(parse_rc("HTTP.CREDENTIALS.PASSWORD=hunter2"))


@pytest.mark.parametrize(
    ("text", "url", "value"),
    [
        ("AWS.PROFILE=a", "s3://b/k", "a"),
        ("AWS.PROFILE=a\nAWS.PROFILE=b", "s3://b/k", "b"),
        ("aws.profile=a", "s3://b/k", None),
        ("AWS.REGION=a", "s3://b/k", None),
        ("[https://h.org]AWS.PROFILE=a", "https://h.org/x", "a"),
        ("[https://h.org]AWS.PROFILE=a", "https://H.org/x", "a"),
        ("[https://h.org]AWS.PROFILE=a", "https://u:p@h.org/x?q=1", "a"),
        ("[https://h.org]AWS.PROFILE=a", "zip://in::https://h.org/x.zip", "a"),
        ("[https://h.org]AWS.PROFILE=a", "https://h.org:8080/x", None),
        ("[https://h.org]AWS.PROFILE=a", "https://h.org:443/x", "a"),
        ("[https://h.org:443]AWS.PROFILE=a", "https://h.org/x", "a"),
        ("[https://h.org:80]AWS.PROFILE=a", "https://h.org/x", None),
        ("[http://h.org:80]AWS.PROFILE=a", "http://h.org/b/k#mode=s3", "a"),
        ("[https://h.org]AWS.PROFILE=a", "https://www.h.org/x", None),
        ("[https://h.org]AWS.PROFILE=a", "memory://h.org/x", None),
        ("[https://h.org/x]AWS.PROFILE=a", "https://h.org/x/y", "a"),
        ("[https://h.org/x]AWS.PROFILE=a", "https://h.org/xy", None),
        ("[https://h.org]AWS.PROFILE=a\nAWS.PROFILE=b", "https://h.org/x", "a"),
        ("[https://h.org/x]AWS.PROFILE=a\n[https://h.org]AWS.PROFILE=b", "https://h.org/x", "a"),
        ("[https://h.org]AWS.PROFILE=a\nAWS.PROFILE=b", "https://g.org/x", "b"),
        # one S3 place in any spelling
        ("[s3://b]AWS.PROFILE=a", "s3://b/k", "a"),
        ("[s3://b/k]AWS.PROFILE=a", "https://b.s3.eu-west-1.amazonaws.com/k", "a"),
        ("[s3://b/k]AWS.PROFILE=a", "s3://b/kk", None),
        ("[https://s3.amazonaws.com/b]AWS.PROFILE=a", "s3://b/k", "a"),
        ("[https://b.s3.amazonaws.com]AWS.PROFILE=a", "https://s3.amazonaws.com/b/k", "a"),
        ("[https://s3.eu-west-1.amazonaws.com]AWS.PROFILE=a", "s3://b/k", None),
        ("[https://s3.eu-west-1.amazonaws.com]AWS.PROFILE=a", "s3://b/k#aws.region=eu-west-1", "a"),
        ("[http://127.0.0.1:8333]AWS.PROFILE=a", "http://127.0.0.1:8333/b/k#s3", "a"),
        ("[http://127.0.0.1:8333/c]AWS.PROFILE=a", "http://127.0.0.1:8333/b/k#s3", None),
        ("[https://storage.googleapis.com]AWS.PROFILE=a", "gs3://b/k", "a"),
        ("[https://b.storage.googleapis.com]AWS.PROFILE=a", "gs3://b/k", "a"),
        ("[https://s3.amazonaws.com]AWS.PROFILE=a", "gs3://b/k", None),
    ],
)
def test_lookup(text: str, url: str, value: str | None) -> None:
    assert found(text, url) == value


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.chdir(work)
    return home, work


def values(env: dict[str, str]) -> list[str]:
    return [entry.value for entry in load_rc(env)]


def test_files_and_their_order(folders: tuple[Path, Path]) -> None:
    for folder in folders:
        for name in (".ncrc", ".daprc", ".dodsrc"):
            (folder / name).write_text(f"{K}={folder.name}/{name}")
    home, _ = folders
    expected = [f"{folder}/{name}" for folder in ("home", "work") for name in NAMES]
    assert values({"HOME": str(home)}) == expected
    assert values({"HOME": "/nowhere", "NCRCENV_HOME": str(home)}) == expected
    assert lookup(load_rc({"HOME": str(home)}), K, parse_url("s3://b/k")) == "work/.dodsrc"


@pytest.mark.parametrize("name", [".ncrc", ".daprc", ".dodsrc"])
def test_the_working_directory_is_not_trusted(folders: tuple[Path, Path], name: str) -> None:
    """It may have been downloaded: two lines would send a login by a proxy, unencrypted."""
    home, work = folders
    lines = [
        *("HTTP.PROXY.SERVER=http://evil:1", "HTTP.SSL.VALIDATE=0", "AWS.PROFILE=evil"),
        *("[https://h.org]HTTP.NETRC=.netrc", "HTTP.TIMEOUT=6", "HTTP.CONNECTTIMEOUT=5"),
        *("HTTP.USERAGENT=me", "AWS.REGION=eu1"),
    ]
    (work / name).write_text("\n".join(lines))
    told = f"AWS.PROFILE, HTTP.NETRC, HTTP.PROXY.SERVER, HTTP.SSL.VALIDATE in {name} of the working"
    with pytest.warns(NCZarrWarning, match=f"{told}.*NCRCENV_RC"):
        assert values({"HOME": str(home)}) == ["6", "5", "me", "eu1"]
    # unless it is named, or is the home directory
    for env in ({"NCRCENV_RC": name}, {"HOME": f"{home}/../work"}, {"NCRCENV_HOME": str(work)}):
        assert len(values({"HOME": str(home), **env})) == len(lines)


K = "HTTP.TIMEOUT"
NAMES = (".ncrc", ".daprc", ".dodsrc")


def test_environment_names_the_only_file_or_none(folders: tuple[Path, Path]) -> None:
    home, work = folders
    (work / ".ncrc").write_text(f"{K}=work")
    (home / "my.rc").write_text("K=mine")
    env = {"HOME": str(home), "NCRCENV_RC": str(home / "my.rc")}
    assert values(env) == ["mine"]
    assert values({**env, "NCRCENV_IGNORE": ""}) == []


def test_missing_and_unreadable_files(
    folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    home, work = folders
    assert values({"HOME": str(home)}) == []
    assert caplog.text == ""
    (work / ".daprc").mkdir()
    (work / ".dodsrc").write_bytes(b"\xff\xfe\nAWS.REGION=still read")
    with caplog.at_level(logging.WARNING):
        assert values({"HOME": str(home)}) == ["still read"]
        assert values({"NCRCENV_RC": str(home / "gone.rc")}) == []
    assert ".daprc cannot be read" in caplog.text
    assert "gone.rc, named by NCRCENV_RC, does not exist" in caplog.text


@given(st.text())
def test_any_text_parses(text: str) -> None:
    assert all(entry.key == entry.key.strip() != "" for entry in parse_rc(text))
