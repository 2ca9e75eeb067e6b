"""What a process imports before it does its work: sets of modules, so that a start stays short.

A module that fails here is one that all such processes would pay for. If they need it, it belongs
into the list; if not, it is imported where it is used. Of other packages those count that our own
modules import: what these import themselves depends on their releases, and on what is installed.
"""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

from nczarr_xarray.cli.main import COMMANDS, build_parser
from tests.support.marks import slow_but
from tests.support.servers.httpserver import Server

OURS = ("nczarr_xarray", "nczarr_fsspec")
ROOT = Path(__file__).parents[2]
#: Runs code, and prints the modules that it imported beyond those in `before`.
PROGRAM = """
import json, sys
before, code = set(sys.modules), compile(sys.argv.pop(1), "code", "exec")
standard_output, sys.stdout = sys.stdout, sys.stderr
try:
    exec(code, {"__name__": "__main__", "before": before})
except SystemExit as end:
    if end.code:
        raise
print(json.dumps(sorted(set(sys.modules) - before)), file=standard_output)
"""


def imported(code: str, *arguments: str) -> set[str]:
    """Return the modules that code imports: ours, and the packages of others that we name."""
    command = [sys.executable, "-c", PROGRAM, code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tops = {name: name.partition(".")[0] for name in json.loads(done.stdout)}
    mine = {name for name, top in tops.items() if top in OURS}
    return mine | (set(tops.values()) & packages())


@cache
def packages(folder: str = "") -> frozenset[str]:
    """Return the packages of others that modules of ours in a folder import, at whatever time."""
    found: set[str] = set()
    for path in (path for name in OURS for path in Path(ROOT / name / folder).rglob("*.py")):
        pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
        for node in pending:
            if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
                pending += ast.iter_child_nodes(node)
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
    tops = {name.partition(".")[0] for name in found}
    return frozenset(tops - {*OURS, *sys.stdlib_module_names})


def under(package: str, names: str) -> set[str]:
    """Return names with a package in front."""
    return {f"{package}.{name}" for name in names.split()}


def test_import_of_the_package() -> None:
    found = imported("import nczarr_xarray, nczarr_fsspec")
    assert found == {*OURS, "nczarr_xarray._version", "nczarr_xarray.import_hooks"}


@pytest.mark.parametrize("first", slow_but(["nczarr_xarray", "xarray"], "xarray"))
@pytest.mark.slow
def test_accessors_are_there_in_whatever_order(first: str) -> None:
    code = (
        f"import sys, {first}, xarray as xr, nczarr_xarray\n"
        "assert xr.Dataset().nczarr and xr.DataTree().nczarr and xr.DataArray().nczarr\n"
        "assert not [f for f in sys.meta_path if type(f).__module__.startswith('nczarr')]"
    )
    assert "nczarr_xarray.accessor" in imported(code)


@pytest.mark.slow
def test_accessors_are_there_if_an_import_failed_before() -> None:
    code = (
        "import sys, nczarr_xarray; sys.modules['numpy'] = None\n"
        "try:\n    import xarray\nexcept ImportError:\n    del sys.modules['numpy']\n"
        "import xarray; assert xarray.Dataset().nczarr"
    )
    assert "nczarr_xarray.accessor" in imported(code)


#: Imports xarray, without the plugins of others, which import what they like (kerchunk's: zarr).
XARRAY = """
import sys, importlib.metadata as md, xarray as xr
ours = [e for e in md.entry_points(group="xarray.backends") if e.name == "nczarr"]
xr.backends.plugins.entry_points = lambda group: ours
before.update(sys.modules)
"""
ENGINE = {
    "nczarr_xarray",
    "nczarr_xarray._version",
    "nczarr_xarray.accessor",
    "nczarr_xarray.import_hooks",
    "nczarr_xarray.backend",
    "nczarr_xarray.backend.entrypoint",
}


@pytest.mark.slow
def test_listing_the_engines_of_xarray() -> None:
    assert imported(XARRAY + "assert 'nczarr' in xr.backends.list_engines()") == ENGINE


#: What the command line imports whatever the command.
COMMAND = {
    *OURS,
    "nczarr_fsspec.errors",
    "nczarr_fsspec.text",
    "nczarr_xarray._version",
    "nczarr_xarray.import_hooks",
    "nczarr_xarray.cli",
    "nczarr_xarray.cli.main",
}


def test_version_of_the_command() -> None:
    assert imported("from nczarr_xarray.cli.main import main; main()", "--version") == COMMAND


#: What opening any local dataset takes, without reading its data.
OPENING = {
    *under(
        "nczarr_fsspec",
        "concurrency forks keystore local_files place places places.names places.s3netcdf4 "
        "places.url ranges ranges.local ranges.source stores text transport "
        "transport.policy transport.recording transport.request",
    ),
    *under(
        "nczarr_xarray",
        "dataset dataset.dataset dataset.file dataset.open "
        "formats formats.cf formats.cfa formats.cfa.dialect "
        "formats.registry formats.rounds "
        "model model.arrays model.fragments plugins",
    ),
    "numpy",
}
#: What decodes, whatever of it is installed; h5py does where nothing else can.
CODECS = packages("codecs") - {"h5py"}
#: What printing metadata takes.
PRINTING = under("nczarr_xarray.cli", "arguments cdl dump info")
#: What each format takes; all of ours below the first name.
FORMATS = {
    "classic": ("nczarr_xarray.formats.classic", set[str]()),
    "tree": (
        "nczarr_xarray.formats.nczarr",
        {
            *under(
                "nczarr_fsspec",
                "changes changes.consistent_reading changes.journal stores.directory "
                "stores.ownership stores.zip stores.zipformat",
            ),
        },
    ),
    "HDF5": (
        "nczarr_xarray.formats.hdf5",
        {
            "nczarr_xarray.codecs",
            *under(
                "nczarr_xarray.codecs",
                "codec compress decompress filters hdf5 libhdf5 registry shuffle",
            ),
            *CODECS,
        },
    ),
}
#: Modules of a format that few of its datasets need, and the samples do not.
SELDOM = under("nczarr_xarray.formats.hdf5", "chunkindex_arrays through_h5py")


def extra(found: set[str], kind: str) -> set[str]:
    """Return what opening a dataset has no need to import."""
    folder, others = FORMATS[kind]
    needed = {name for name in found if name.startswith(folder)} - SELDOM
    return found - OPENING - others - needed


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("samples")
    files = {"HDF5": "NETCDF4", "classic": "NETCDF3_64BIT_OFFSET", "tree": None}
    paths = {kind: str(folder / kind) for kind in files}
    for kind, form in files.items():
        target = paths[kind] if form else f"file://{paths[kind]}#mode=nczarr,file"
        options: Any = {"format": form} if form else {}
        with netCDF4.Dataset(target, "w", **options) as nc:
            nc.createDimension("x", 100)
            variable = nc.createVariable("x", "f4", ("x",), zlib=form != "NETCDF3_64BIT_OFFSET")
            variable[:] = np.arange(100)
    archive = shutil.make_archive(paths["tree"], "zip", paths["tree"])
    return {kind: [path] for kind, path in paths.items()} | {"tree": [paths["tree"], archive]}


@pytest.mark.parametrize("kind", FORMATS)
def test_commands_that_print_metadata(kind: str, samples: dict[str, list[str]]) -> None:
    code = (
        "import sys; from nczarr_xarray.cli.main import main\n"
        "for path in sys.argv[1:]:\n"
        "    assert not main(['info', path]) and not main(['dump', '-h', path])"
    )
    assert extra(imported(code, *samples[kind]) - COMMAND - PRINTING, kind) == set()


@pytest.mark.parametrize("kind", FORMATS)
def test_copies(kind: str, samples: dict[str, list[str]], tmp_path: Path) -> None:
    code = (
        "import sys; from nczarr_xarray.cli.main import main\n"
        "for number, path in enumerate(sys.argv[2:]):\n"
        "    assert not main(['copy', path, f'{sys.argv[1]}/{number}'])"
    )
    found = imported(code, str(tmp_path), *samples[kind])
    others = {name for name in found if not name.startswith(OURS)}
    assert others <= {"numpy", *CODECS}


@pytest.mark.parametrize("kind", ["HDF5", "classic"])
def test_references(kind: str, samples: dict[str, list[str]]) -> None:
    code = "import sys; from nczarr_xarray.cli.main import main; assert not main(sys.argv[1:])"
    found = imported(code, "refs", *samples[kind])
    others = {name for name in found if not name.startswith(OURS)}
    assert others <= {"numpy", *CODECS}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_module(command: str) -> None:
    parser = build_parser([command])
    with pytest.raises(SystemExit) as stopped:
        parser.parse_args([command, "--help"])
    assert stopped.value.code == 0


#: What opening local datasets with xarray takes besides: the chunk engine, for coordinates.
READING = {
    *under("nczarr_xarray.backend", "compat data_store encoding lazy_array"),
    *under(
        "nczarr_xarray.chunks",
        "cache decoder engine grid joint parts pieces plan scatter sources strides threads",
    ),
    *under("nczarr_xarray.dataset", "replaced_arrays selections variable"),
    *under("nczarr_fsspec", "concurrency errors stores.missing_chunks text"),
    "nczarr_xarray.chunks",
    *FORMATS["HDF5"][1],
}


@pytest.mark.slow
def test_first_open_with_xarray(samples: dict[str, list[str]]) -> None:
    code = f"""{XARRAY}
xr.open_dataset(sys.argv[1], engine="netcdf4").load()
before.update(sys.modules)
for path in sys.argv[1:]:
    xr.open_dataset(path, engine="nczarr").close()
"""
    found = imported(code, *samples["HDF5"], *samples["classic"], *samples["tree"])
    for kind in FORMATS:
        found = extra(found, kind)
    assert found - ENGINE - READING - {"nczarr_fsspec"} == set()


#: What one remote dataset takes besides, apart from modules of ours for transport.
REMOTE = {
    *("fsspec", "aiohttp", "multidict", "yarl", "nczarr_xarray.formats.nczarr"),
}
#: Modules of ours that HTTP has no need for.
NOT_OF_HTTP = (
    *("nczarr_fsspec.changes", "nczarr_fsspec.destination", "nczarr_fsspec.gs3"),
    *("nczarr_fsspec.transport.s3", "nczarr_fsspec.transport.s3form"),
    *("nczarr_fsspec.transport.fsspec", "nczarr_fsspec.ranges.filesystem"),
    *(
        "nczarr_fsspec.address_policy",
        "nczarr_fsspec.places.address",
        "nczarr_fsspec.ranges.whole_files",
    ),
    *("nczarr_fsspec.stores.fsspec", "nczarr_fsspec.keystore", "nczarr_fsspec.stores.zip"),
    *("nczarr_fsspec.stores.directory", "nczarr_fsspec.stores.references"),
    "nczarr_fsspec.stores.write",
)


@pytest.mark.slow
def test_first_open_over_http(samples: dict[str, list[str]]) -> None:
    (path,) = samples["classic"]
    with Server({"/x.nc": Path(path).read_bytes()}) as server:
        code = f"""{XARRAY}
xr.open_dataset(sys.argv[1], engine="netcdf4").load()
before.update(sys.modules)
xr.open_dataset("{server.url}/x.nc", engine="nczarr").close()
"""
        found = imported(code, path)
    found = extra(found, "classic") - ENGINE - READING - REMOTE
    transport = {name for name in found if name.startswith("nczarr_fsspec")}
    assert found - transport == set()
    assert not [name for name in transport if name.startswith(NOT_OF_HTTP)]


def test_a_script_for_netcdf4_python(tmp_path: Path) -> None:
    """What is at hand is read without what networks, tables of plugins and xarray need."""
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w") as nc:
        nc.createDimension("x", 3)
        nc.createVariable("v", "f4", ("x",), zlib=True)[:] = [1, 2, 3]
    found = imported(
        "import sys, nczarr_xarray.netcdf4 as n; n.Dataset(sys.argv[1])['v'][:]\n"
        "assert not {'asyncio', 'email', 'ssl', 'tempfile'} & set(sys.modules)",
        str(path),
    )
    assert "nczarr_xarray.netcdf4.dataset" in found
    assert not found & {"fsspec", "aiohttp", "xarray", "dask", "netCDF4"}
    assert not [name for name in found if "writ" in name or "zip" in name or "remote" in name]
