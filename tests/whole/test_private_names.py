"""Tests use what a module, a class or a function offers, not what it keeps to itself.

A name that begins with `_` belongs to the module or the class that defines it. A test that uses
such a name fails whenever the code is arranged in another way, although nothing that users see
has changed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("nczarr_fsspec", "nczarr_xarray")
#: Names that begin with `_` and are public all the same: attributes of netCDF, and others.
PUBLIC = {
    *("_ARRAY_DIMENSIONS", "_Encoding", "_FillValue", "_Unsigned", "_exit", "_replace"),
    "_repr_html_",
    # methods of filesystems, which fsspec's own documentation has
    *("_cat_file", "_find", "_strip_protocol"),
}
#: What tests use all the same, and why.
USED = {
    "_check_writable": "zarr-python's stores have it, for those that are built on them",
    "_data_array": "iris reads variables of netCDF4-python by it, and so those of ours",
    "_data": "xarray does not tell otherwise whether a variable is still lazy",
    "_in_memory": "the same",
    "_credentials": "no other way shows which secrets botocore signs with",
    "_request_signer": "the same",
    "_get_bytes": "the same, and its test suite calls it",
    "_get_bytes_sync": "the same",
    "_get_json": "the same",
    "_get_json_sync": "the same",
    "_get_many": "the same",
    "_group": "VirtualiZarr shows the manifests of a store nowhere else",
    "_inlined": "the same, for chunks that are in a manifest",
    "_grpid": "netCDF4-python's number of a group, for functions of netCDF-C that it lacks",
    "_varid": "the same, of a variable",
    "_netCDF4": "the module whose file has netCDF-C in it",
    "_registry": "filesystems of fsspec that a test registers must go with the test",
    "_request": "all requests of aiohttp pass it",
    "_session": "fsspec's connections over HTTP, which a test must be able to lose",
}


def is_private(name: str) -> bool:
    return re.fullmatch(r"_[a-zA-Z]\w*", name) is not None


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a module defines, in its classes and of its objects, too."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


def used(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield the names of others that a test uses: the line, the name, and whether of an object."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name):
                yield node.lineno, name, True
            case ast.Import(names=names):
                for alias in names:
                    yield from ((node.lineno, word, False) for word in alias.name.split("."))
            case ast.ImportFrom(module=module, names=names):
                for word in (*(module or "").split("."), *(alias.name for alias in names)):
                    yield node.lineno, word, False
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), args=args):
                if called in ("setattr", "delattr", "getattr", "hasattr", "object", "patch"):
                    texts = [one.value for one in args if isinstance(one, ast.Constant)]
                    for text in texts:
                        yield from ((node.lineno, word, True) for word in str(text).split("."))
            case _:
                pass


def trees(*folders: str) -> dict[str, ast.AST]:
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_bytes()) for path in paths}


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """Where tests use which private names that no test defines."""
    tests = trees("tests")
    ours = {name for tree in trees(*PACKAGES).values() for name in defined(tree)}
    of_tests = {name for tree in tests.values() for name in defined(tree)} - ours
    places: dict[str, list[str]] = {}
    for path, tree in tests.items():
        here = set(defined(tree))
        for line, name, of_object in used(tree):
            own = of_object and (name in here or name in of_tests)
            if is_private(name) and name not in PUBLIC and not own:
                places.setdefault(name, []).append(f"{path}:{line}")
    return places


def test_private_names(found: dict[str, list[str]]) -> None:
    unknown = {name: places for name, places in found.items() if name not in USED}
    assert not unknown, "test through what is public, or say in USED why not"


def test_the_list_is_current_and_short(found: dict[str, list[str]]) -> None:
    assert set(USED) <= set(found)
    assert len(USED) < 30
