"""The examples in README.md and docs/ run and print what the pages say."""

from __future__ import annotations

import ast
import gc
import inspect
import re
import shlex
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import nczarr_xarray
from nczarr_xarray.backend.entrypoint import NCZarrBackendEntrypoint
from nczarr_xarray.cli.demo import DATASET
from nczarr_xarray.cli.main import COMMANDS as OFFERED
from nczarr_xarray.cli.main import build_parser, main
from tests.support.builders.trees import read_tree
from tests.support.servers.httpserver import Server
from tests.support.zarrsettings import kept_settings

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
#: Stand for any web server on the pages, the second for one that wants a password; here servers
#: of our own take their places.
EXAMPLE_SERVER = re.compile(r"https://(me:secret@)?(data|private)\.example")
BLOCK = re.compile(
    r"(?P<skip><!-- not run: .+? -->\n)?^```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
#: Pages whose examples take seconds.
SLOW = {f"docs/{name}.md" for name in ("convert", "neighbours", "options", "tour", "write")}
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def examples(text: str) -> str:
    """The code blocks of a text."""
    return "\n".join(match["code"] for match in BLOCK.finditer(text))


def blocks(page: str, language: str) -> list[tuple[str, str, bool]]:
    """Where each code block of a page is, its code, and whether it can run here."""
    return [
        (
            f"{page}:{PAGES[page].count(chr(10), 0, match.start('code')) + 1}",
            match["code"],
            not match["skip"],
        )
        for match in BLOCK.finditer(PAGES[page])
        if match["language"] == language
    ]


def _marks(page: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if page in SLOW else []


COMMAND = re.compile(r"^\$ (nczarr .*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
COMMANDS = [
    pytest.param(page, command, expected, marks=_marks(page))
    for page in PAGES
    for _, text, _ in blocks(page, "console")
    for command, expected in COMMAND.findall(text)
]


@pytest.fixture(scope="module")
def netcdf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo dataset as a netCDF-4 file."""
    path = tmp_path_factory.mktemp("netcdf") / "ocean.nc"
    assert main(["copy", str(DATASET), str(path)]) == 0
    return path


@pytest.fixture
def directory(tmp_path: Path, netcdf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with nothing but ``ocean.nc``."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(netcdf, tmp_path)
    return tmp_path


@pytest.fixture
def servers(
    tmp_path_factory: pytest.TempPathFactory, netcdf: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Server]]:
    """Web servers with the demo dataset as a tree, a zip and a file; a netrc for the second."""
    content = read_tree(DATASET, "/ocean.nczarr/")
    folder = tmp_path_factory.mktemp("served")
    archive = shutil.make_archive(str(folder / "a"), "zip", DATASET)
    content |= {"/ocean.zip": Path(archive).read_bytes(), "/ocean.nc": netcdf.read_bytes()}
    (folder / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (folder / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(folder / "netrc"))
    with Server(content) as data, Server(content, password="me:secret") as private:
        yield {"data": data, "private": private}


@pytest.fixture
def namespace() -> Iterator[dict[str, object]]:
    """Names for examples; what these leave behind in this process is undone."""
    names: dict[str, object] = {}
    with kept_settings():
        yield names
    with warnings.catch_warnings():
        # examples leave files open, as users do, of which xarray's tests have xarray warn
        warnings.simplefilter("ignore", RuntimeWarning)
        names.clear()
        gc.collect()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=_marks(page))
        for page in PAGES
        if any(runs for _, _, runs in blocks(page, "python"))
    ],
)
def test_python_examples_run(
    page: str, directory: Path, servers: dict[str, Server], namespace: dict[str, object]
) -> None:
    def address(example: re.Match[str]) -> str:
        return f"http://{example[1] or ''}" + servers[example[2]].url.removeprefix("http://")

    for place, code, runs in blocks(page, "python"):
        compiled = compile(EXAMPLE_SERVER.sub(address, code), place, "exec")
        if runs:
            exec(compiled, namespace)
    assert isinstance(namespace.get("ds", xr.Dataset()), xr.Dataset)  # tools make others


@pytest.mark.parametrize(("page", "command", "expected"), COMMANDS)
def test_commands_print_what_the_page_says(
    page: str,
    command: str,
    expected: str,
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if ".parq" in command:
        pytest.importorskip("pyarrow")
    monkeypatch.setenv("COLUMNS", "120")  # tables are as wide as the terminal
    shutil.copytree(DATASET, "ocean.nczarr")
    assert main(shlex.split(command)[1:]) == 0
    printed = re.sub(" +$", "", capsys.readouterr().out, flags=re.MULTILINE)
    wanted = re.escape(expected.strip()).replace(re.escape("..."), "(?s:.*?)")
    assert re.fullmatch(wanted, printed.strip()), f"{page} should show:\n{printed}"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    here = (ROOT / page).parent
    missing = [link for link in LINK.findall(PAGES[page]) if not (here / link).exists()]
    assert missing == []


def exists(name: str) -> bool:
    """Tell whether a dotted name is one of the code: a module, or what is in one."""
    parts, found = name.split("."), None
    for count in range(len(parts), 0, -1):
        with suppress(ModuleNotFoundError):
            found = import_module(".".join(parts[:count]))
            for part in parts[count:]:
                found = getattr(found, part, None)
            return found is not None
    return False


@pytest.mark.parametrize("page", PAGES)
def test_files_and_names_of_the_code_exist(page: str) -> None:
    text = PAGES[page]
    paths = re.findall(r"`((?:nczarr_xarray|nczarr_fsspec|tests|bench|ci)/[\w./]+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    named = re.findall(r"`(\w+)`(?: of `\w+`)? in `([\w/]+\.py)`", text)
    missing = [
        f"{name} in {path}"
        for name, path in named
        if not re.search(rf"\b{name}\b", (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert missing == []
    dotted = re.findall(r"`(nczarr_(?:xarray|fsspec)(?:\.\w+){2,})`", text)
    assert [name for name in dotted if not exists(name)] == []
    loggers = (ROOT / name.replace(".", "/") for name in re.findall(r"logger `([\w.]+)`", text))
    assert [str(p) for p in loggers if not (p.is_dir() or p.with_suffix(".py").exists())] == []


def test_messages_on_the_page_of_problems_are_those_of_the_code() -> None:
    """Backticks in a first column hold parts of messages, with … for what differs each time."""
    foreign = {"unrecognized engine", "'Dataset' object has no attribute 'nczarr'"}  # xarray's
    files = [
        file
        for package in ("nczarr_xarray", "nczarr_fsspec")
        for file in (ROOT / package).rglob("*.py")
    ]
    texts = [
        node.value
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    rows = re.findall(r"^\| ([^|]*`[^|]*) \|", PAGES["docs/problems.md"], flags=re.MULTILINE)
    parts = [part for row in rows for part in re.findall(r"`([^`]+)`", row)]
    missing = [
        piece
        for part in parts
        for piece in part.split("…")
        if not any(piece in text for text in texts) and not piece.startswith(tuple(foreign))
    ]
    assert len(parts) > 30
    assert missing == []


FUNCTIONS = [
    NCZarrBackendEntrypoint.open_dataset,
    *(f for n in nczarr_xarray.__all__ if inspect.isfunction(f := getattr(nczarr_xarray, n))),
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_every_option_has_an_example_on_the_page_of_options(function: Callable[..., Any]) -> None:
    text, shown = PAGES["docs/options.md"], examples(PAGES["docs/options.md"])
    positional = {"self", "filename_or_obj", "options", "a", "b"}  # or stand for those of xarray
    given = {"obj", "objects", "target", "targets", "source", "output"}  # without their names
    missing = [
        name
        for name in inspect.signature(function).parameters
        if name not in positional
        and not (re.search(rf"\b{name}=", shown) or (name in given and f"`{name}`" in text))
    ]
    assert missing == []


@pytest.mark.parametrize("name", OFFERED)
def test_every_option_of_a_command_has_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    top, *sections = re.split(r"^## ", PAGES["docs/cli.md"], flags=re.MULTILINE)
    section = next(section for section in sections if section.startswith(f"{name}\n"))
    links = {f"docs/{link}" for link in LINK.findall(section)}
    text = "".join([top, section, *(PAGES[link] for link in sorted(links & PAGES.keys()))])
    with pytest.raises(SystemExit):
        build_parser([name]).parse_args([name, "--help"])
    options, _, _ = capsys.readouterr().out.partition("\nexamples:\n")
    shown = examples(text)

    def is_in(part: str, option: str) -> bool:
        return re.search(rf"(?<![\w-]){option}(?![\w-])", part) is not None

    # a line of the help has all spellings of an option: "-o FILE, --output FILE"
    spellings = [
        re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", line)
        for line in re.findall(r"^  (-.*?)(?:  .*)?$", options, flags=re.MULTILINE)
        if "--help" not in line
    ]
    assert [option for one in spellings for option in one if not is_in(text, option)] == []
    assert [one for one in spellings if not any(is_in(shown, option) for option in one)] == []
