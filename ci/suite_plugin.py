"""A pytest plugin of `ci/suites.py`: what netCDF4-python is asked for goes through this package.

With ``NCZARR_SUITES=read`` the values and attributes of each file that a test opens for reading
are ours; netCDF-C keeps the rest, such as the types. With ``NCZARR_SUITES=write`` each file that a
test opens for reading is a copy of it that we have written. With "interface" and "nczarr" the tests
import `nczarr_xarray.netcdf4` in place of netCDF4; with "nczarr" every file of netCDF-4 that they
make is a directory of NCZarr. What came of each test is written as
JSON lines to the file that ``NCZARR_SUITES_LOG`` names.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import netCDF4
import numpy as np
import pytest

from nczarr_xarray import open_hierarchy
from nczarr_xarray.cli.main import main
from nczarr_xarray.model import bytes_of, readable
from nczarr_xarray.netcdf4 import dataset as interface

HOW = os.environ.get("NCZARR_SUITES", "")
LOG = os.environ.get("NCZARR_SUITES_LOG", os.devnull)
REAL = netCDF4.Dataset
#: What a file is called by netCDF4-python and by `nczarr copy`.
FORMATS = {
    "NETCDF3_CLASSIC": "NETCDF3_CLASSIC",
    "NETCDF3_64BIT_OFFSET": "NETCDF3_64BIT_OFFSET",
    "NETCDF3_64BIT_DATA": "NETCDF3_64BIT_DATA",
}


class Count:
    """How often this package was asked since the test began."""

    ours = 0


class Variable(netCDF4.Variable):
    """netCDF4-python's variable, whose values and attributes are read by this package."""

    __slots__ = ("_opened", "_variable")

    def __init__(self, opened: Any, variable: Any, *arguments: Any, **options: Any) -> None:
        Variable._opened.__set__(self, opened)  # its own __setattr__ makes attributes of netCDF
        Variable._variable.__set__(self, variable)
        super().__init__(*arguments, **options)

    def _get(self, start: Any, count: Any, stride: Any) -> Any:
        variable = self._variable
        Count.ours += 1
        squeeze = any(number == -1 for number in count)
        numbers = [abs(number) for number in count]
        key = tuple(
            at + step * np.arange(number)
            for at, number, step in zip(start, numbers, stride, strict=True)
        )
        if not variable.dimensions:
            key = ()
        data = np.asarray(self._opened.read(variable, key))
        if data.dtype == object:
            data = self._objects(data)
        elif data.dtype.names:
            data = data.astype(self.dtype)  # which may have gaps between its members
        if not self.dimensions:
            return data.reshape(1)[0]
        return np.squeeze(data) if squeeze else data

    def _objects(self, data: Any) -> Any:
        encoding = getattr(self, "_Encoding", "utf-8")
        out = np.empty(data.shape, object)
        for at, value in np.ndenumerate(data):
            text = isinstance(value, str)
            out[at] = bytes_of(value).decode(encoding) if text else value
        return out

    def ncattrs(self) -> Any:
        return list(self._variable.attributes)

    def getncattr(self, name: str, encoding: str = "utf-8") -> Any:
        return value_of(self._variable.attributes, name, encoding)


class Dataset(REAL):  # type: ignore[misc,valid-type]
    """netCDF4-python's dataset; one that is opened for reading has our variables."""

    __slots__ = ("_ours",)

    def __init__(self, filename: Any, mode: str = "r", **options: Any) -> None:
        Dataset._ours.__set__(self, None)  # its own __setattr__ makes attributes of netCDF
        super().__init__(filename, mode, **options)
        memory = options.get("memory")
        plain = isinstance(filename, (str, os.PathLike)) and os.path.isfile(filename)
        # (netCDF-C has no complex numbers: what netCDF4-python makes of two is left to it)
        plain = plain and not options.get("auto_complex")
        if mode in ("r", "rs") and (memory is not None or plain):
            Count.ours += 1
            target = io.BytesIO(bytes(memory)) if memory is not None else os.fspath(filename)
            opened = open_hierarchy(target)
            Dataset._ours.__set__(self, opened)
            adopt(self, opened.hierarchy.root, opened)

    def ncattrs(self) -> Any:
        return super().ncattrs() if self._ours is None else list(self._root.attributes)

    def getncattr(self, name: str, encoding: str = "utf-8") -> Any:
        if self._ours is None:
            return super().getncattr(name, encoding)
        return value_of(self._root.attributes, name, encoding)

    @property
    def _root(self) -> Any:
        return self._ours.hierarchy.root


def adopt(group: Any, ours: Any, opened: Any) -> None:
    """Put variables of ours in the place of netCDF4-python's, group by group."""
    assert list(group.dimensions) == list(ours.dimensions), "other dimensions"
    assert [len(d) for d in group.dimensions.values()] == [d.size for d in ours.dimensions.values()]
    assert set(group.variables) <= set(ours.variables), "other variables"
    for name, real in list(group.variables.items()):
        kind = real.dtype if real._vltype is None and real._cmptype is None else None
        kind = next((t for t in (real._enumtype, real._vltype, real._cmptype, kind) if t), str)
        mine = ours.variables[name]
        assert real.shape == mine.shape, f"{name} has another shape"
        dimensions = real.get_dims()
        known = {"id": real._varid, "endian": real.endian()}
        group.variables[name] = Variable(opened, mine, group, name, kind, dimensions, **known)
    for name, inner in group.groups.items():
        adopt(inner, ours.groups[name], opened)


def value_of(attributes: Any, name: str, encoding: str) -> Any:
    """Return an attribute in the form in which netCDF4-python has it."""
    if name not in attributes:
        raise AttributeError(f"NetCDF: Attribute not found: {name}")
    attribute = attributes[name]
    value = attribute.value
    if attribute.type == "string":
        texts = [value] if isinstance(value, str) else list(value)
        texts = [bytes_of(text).decode(encoding, "replace") for text in texts]
        return texts[0] if len(texts) == 1 else texts
    if isinstance(value, str):
        if name == "_FillValue":
            return bytes_of(value)
        text = readable(value) if encoding == "utf-8" else bytes_of(value).decode(encoding)
        return text.replace("\0", "")
    array = np.asarray(value)
    return array[0] if array.size == 1 else array


class Copied(REAL):  # type: ignore[misc,valid-type]
    """netCDF4-python's dataset; one that is opened for reading is a copy that we have written."""

    __slots__ = ()

    def __init__(self, filename: Any, mode: str = "r", **options: Any) -> None:
        plain = isinstance(filename, (str, os.PathLike)) and os.path.isfile(filename)
        if mode == "r" and plain and "memory" not in options:
            with REAL(filename) as file:
                kind = FORMATS.get(file.data_model, "NETCDF4")
            Count.ours += 1
            folder = tempfile.mkdtemp()
            copy = os.path.join(folder, os.path.basename(filename))
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                status = main(["copy", os.fspath(filename), copy, "--format", kind])
            if status:
                raise AssertionError(" ".join(said.getvalue().split()))
            super().__init__(copy, mode, **options)
        else:
            super().__init__(filename, mode, **options)


def count_datasets() -> None:
    """Count the datasets of the interface that tests open."""
    call = interface.LikeNetCDF4.__call__

    def counted(cls: Any, *args: Any, **named: Any) -> Any:
        Count.ours += 1
        return call(cls, *args, **named)

    interface.LikeNetCDF4.__call__ = counted  # type: ignore[method-assign]


def make_trees() -> None:
    """Have the interface make directories of NCZarr, whatever their names are."""
    dataset, remove = interface._dataset, os.remove

    def remove_any(path: Any, **options: Any) -> None:
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            remove(path, **options)

    def in_place_of_files(filename: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
        kind = args[1] if len(args) > 1 else named.get("format", "NETCDF4")
        if mode != "r" and isinstance(filename, (str, os.PathLike)) and "memory" not in named:
            path = os.path.abspath(filename)
            if mode == "w" and os.path.exists(path):  # a file, say, made for its name
                remove_any(path)
            if os.path.isdir(path) or not (os.path.exists(path) or kind.startswith("NETCDF3")):
                filename = f"file://{quote(path)}#mode=nczarr,file"
        return dataset(filename, mode, *args, **named)

    interface._dataset = in_place_of_files
    os.remove = os.unlink = remove_any  # type: ignore[assignment]


if HOW in ("interface", "nczarr"):
    count_datasets()
if HOW == "nczarr":
    make_trees()
if HOW in ("read", "write"):
    netCDF4.Dataset = Dataset if HOW == "read" else Copied  # type: ignore[misc]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Count from each test's beginning."""
    Count.ours = 0
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    """Log what came of a test, and whether this package had a part in it."""
    result = yield
    report = result.get_result()  # type: ignore[attr-defined]
    if report.when != "call" and report.outcome == "passed":
        return
    outcome, reason = report.outcome, ""
    if hasattr(report, "wasxfail"):
        outcome, reason = "expected", report.wasxfail.removeprefix("reason: ")
    elif outcome == "skipped":
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
    elif outcome == "failed":
        reason = str(call.excinfo.value).splitlines()[0] if str(call.excinfo.value) else "?"
    note(item.nodeid, outcome, reason)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Log a module whose tests cannot be imported as a failure."""
    if report.failed:
        note(report.nodeid, "failed", report.longreprtext.strip().splitlines()[-1])


def note(test: str, outcome: str, reason: str) -> None:
    """Add a line to the log."""
    line = {"test": test, "outcome": outcome, "reason": reason, "ours": Count.ours}
    with open(LOG, "a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")
