"""Exports that are killed, and what readers see afterwards; each in a process of its own.

A case is run by `run_case`: a scenario at a target, ended by ``SIGKILL`` at a
moment of choice. `ci/stress_export.py` runs many, the tests a few.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import nczarr_fsspec.changes.create
from nczarr_fsspec.changes.journal import JOURNAL
from nczarr_fsspec.errors import DatasetNotFoundError, IncompleteExportError
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_fsspec.stores.write_fsspec import FsspecWriter
from nczarr_xarray import recover, to_nczarr

#: What is counted in a process that is to be killed, by where it is looked up.
POINTS: tuple[tuple[Any, str], ...] = (
    *itertools.product(
        (DirectoryWriter, FsspecWriter), ("put", "create", "delete", "move", "keys_below")
    ),
    (DirectoryWriter, "put_range"),
    *((os, name) for name in ("replace", "rename", "link", "unlink", "rmdir")),
    (FsspecWriter, "upload"),
    (FsspecWriter, "_copy"),
    (nczarr_fsspec.changes.create, "exchange"),
    (shutil, "rmtree"),
)
#: Seconds that any one process may take.
PATIENCE = 120
CHUNKS = {"a": {"chunks": (2, 3), "zlib": True}}


@dataclass(frozen=True)
class Target:
    """Where to write: a path or URL, and the options of its filesystem."""

    url: str
    options: Mapping[str, Any] | None = None

    def write(self, obj: Any, mode: Any = None, **options: Any) -> Any:
        """Export to it."""
        return to_nczarr(obj, self.url, mode, storage_options=self.options, **options)

    def recover(self) -> None:
        """Take all writers for dead."""
        recover(self.url, self.options)


def sample(rows: int, offset: int = 0) -> xr.Dataset:
    """A dataset without fill values among its data; `offset` is in all of them."""
    cells = (offset + 1 + np.arange(rows * 5, dtype="i4")).reshape(rows, 5)
    return xr.Dataset(
        {"a": (("t", "x"), cells, {"long_name": f"a {offset}"}), "b": ("x", offset + np.ones(5))},
        {"t": ("t", 100 * offset + np.arange(rows))},
        {"title": f"dataset {offset}", "number": offset},
    )


def _plain(target: Target) -> None:
    target.write(sample(5), "w", encoding=CHUNKS, unlimited_dims=["t"])


def _consolidated(target: Target) -> None:
    target.write(sample(5), "w", encoding=CHUNKS, unlimited_dims=["t"], consolidated=True)


def _new(target: Target) -> None:
    target.write(sample(12, 1), encoding=CHUNKS)


def _new_dask(target: Target) -> None:
    target.write(sample(12, 1).chunk(t=4, x=-1), encoding=CHUNKS, consolidated=True)


def _bigger(target: Target) -> None:
    target.write(sample(14, 1), "w", encoding=CHUNKS)


def _smaller(target: Target) -> None:
    target.write(sample(2, 1), "w", encoding=CHUNKS)


def _different(target: Target) -> None:
    child = xr.Dataset({"d": ("y", np.arange(7.0))}, attrs={"level": 1})
    top = xr.Dataset({"c": (("y", "z"), np.ones((7, 9)))}, attrs={"title": "other"})
    tree = xr.DataTree.from_dict({"/": top, "/g": child, "/g/h": child})
    target.write(tree, "w", encoding={"/": {"c": {"chunks": (2, 2)}}})


def _over_dask(target: Target) -> None:
    target.write(sample(14, 1).chunk(t=2, x=-1), "w", encoding=CHUNKS, consolidated=True)


def _replace_variable(target: Target) -> None:
    changed = sample(5, 1)[["b"]].drop_vars("t", errors="ignore")
    changed["b"] = (changed.b * 2).astype("f4").assign_attrs(units="m")
    changed["e"] = ("x", np.arange(1, 6))
    target.write(
        changed.assign_attrs(title="changed", more=1.5), "a", encoding={"b": {"chunks": (2,)}}
    )


def _append(target: Target) -> None:
    more = sample(4, 1)[["a", "t"]].drop_attrs()
    target.write(more.assign_attrs(title="longer"), append_dim="t")


def _cells(rows: int) -> xr.Dataset:
    return sample(rows, 1)[["a"]].drop_vars("t").drop_attrs()


def _aligned(target: Target) -> None:
    target.write(_cells(4), region={"t": slice(0, 4)})


def _unaligned(target: Target) -> None:
    target.write(_cells(3), region={"t": slice(1, 4), "x": slice(0, 5)})


def _add_group(target: Target) -> None:
    target.write(sample(3, 1).rename(t="u", x="y"), "a", group="/g/h", encoding=CHUNKS)


def _template(target: Target, mode: str = "w-") -> None:
    whole = sample(8, 1)
    lazy = whole.assign(a=whole["a"].chunk(t=4, x=-1))
    target.write(lazy, mode, encoding=CHUNKS, compute=False)
    for first in (0, 4):
        part = whole.isel(t=slice(first, first + 4))
        target.write(part[["a"]].drop_vars("t"), region={"t": slice(first, first + 4)})


def _template_over(target: Target) -> None:
    _template(target, "w")


@dataclass(frozen=True)
class Scenario:
    """What is there before, and what is done to it when the process is killed."""

    change: Callable[[Target], None]
    before: Callable[[Target], None] | None = None
    kinds: frozenset[str] = frozenset({"directory", "zip", "s3", "foreign"})


_ONE_FILE = frozenset({"directory", "s3"})
SCENARIOS: dict[str, Scenario] = {
    "new": Scenario(_new),
    "new with dask": Scenario(_new_dask),
    "template and regions": Scenario(_template, None, _ONE_FILE),
    "bigger": Scenario(_bigger, _plain),
    "smaller": Scenario(_smaller, _consolidated),
    "different tree": Scenario(_different, _plain),
    "over with dask": Scenario(_over_dask, _consolidated),
    "variable replaced": Scenario(_replace_variable, _plain),
    "append": Scenario(_append, _plain),
    "append consolidated": Scenario(_append, _consolidated),
    "aligned region": Scenario(_aligned, _plain),
    "unaligned region": Scenario(_unaligned, _consolidated),
    "group added": Scenario(_add_group, _consolidated),
}


# -- in processes of their own -------------------------------------------------


@cache
def prepared_context() -> Any:
    """Return what makes processes that have imported everything when they begin."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "tests.support.preloaded"])
    return context


@dataclass
class Kill:
    """When to kill: at the `call`-th call that is counted, before or after it; or after a time.

    With neither the process is not killed, and counts the calls.
    """

    call: int | None = None
    after: bool = False
    seconds: float | None = None


@dataclass
class Run:
    """What became of a process."""

    result: Any = None
    error: str | None = None
    killed: str | None = None
    seconds: float = 0.0
    calls: int = 0


def in_process(function: Callable[..., Any], *args: Any, kill: Kill | None = None) -> Run:
    """Run a function of a module in a new process."""
    ours, theirs = prepared_context().Pipe(duplex=False)
    process = prepared_context().Process(target=_child, args=(theirs, kill, function, args))
    process.start()
    theirs.close()
    run = Run()
    seconds = None if kill is None else kill.seconds
    try:
        if not ours.poll(PATIENCE):
            raise AssertionError(f"{function.__name__}{args} hangs")
        ours.recv()  # it begins
        if seconds is not None and not ours.poll(seconds):
            os.kill(process.pid, signal.SIGKILL)
            run.killed = "by time"
        while True:
            if not ours.poll(PATIENCE):
                raise AssertionError(f"{function.__name__}{args} hangs")
            found = ours.recv()
            if isinstance(found, Run):
                run = found
                break
            run.killed = found  # what it was about to do
    except EOFError:
        if run.killed is None:
            run.error = "crash"
    finally:
        ours.close()
        if process.is_alive() and run.killed is None and run.error is None and run.seconds == 0:
            process.kill()
        process.join()
    return run


def _child(pipe: Connection, kill: Kill | None, function: Callable[..., Any], args: Any) -> None:
    warnings.simplefilter("ignore")
    calls = _Calls(pipe, kill or Kill())
    if kill is not None:
        for owner, name in POINTS:
            calls.watch(owner, name)
    pipe.send("begins")
    began = time.perf_counter()
    run = Run()
    try:
        run.result = function(*args)
    except Exception as error:  # noqa: BLE001 - the parent looks at it
        run.error = f"{type(error).__name__}: {error}"
    run.seconds, run.calls = time.perf_counter() - began, calls.number
    pipe.send(run)
    pipe.close()
    sys.stdout.flush()
    os._exit(0)  # no threads and no connections are waited for


@dataclass
class _Calls:
    pipe: Connection
    kill: Kill
    number: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def watch(self, owner: Any, name: str) -> None:
        """Count the calls of a function or method."""
        original = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.lock:
                self.number += 1
                number = self.number
            label = f"{getattr(owner, '__name__', owner)}.{name}"
            if number == self.kill.call and not self.kill.after:
                self.end(f"before {label}")
            try:
                return original(*args, **kwargs)
            finally:
                if number == self.kill.call:
                    self.end(f"after {label}")

        setattr(owner, name, counted)

    def end(self, where: str) -> None:
        """Kill this very process."""
        self.pipe.send(where)
        os.kill(os.getpid(), signal.SIGKILL)


# -- what readers see ----------------------------------------------------------

Snapshot = dict[str, Any]


def _shown(value: Any) -> Any:
    array = np.asarray(value)
    return str(array.dtype.newbyteorder("=")), array.shape, repr(array.tolist())  # nan is nan


def _group(dataset: xr.Dataset) -> Snapshot:
    found: Snapshot = {"": {k: _shown(v) for k, v in dataset.attrs.items()}}
    for name, variable in dataset.variables.items():
        attributes = {k: _shown(v) for k, v in variable.attrs.items()}
        found[str(name)] = variable.dims, _shown(variable.values), attributes
    return found


def ours(target: Target) -> Snapshot | str:
    """All of a dataset as our reader sees it; what it lacks, as a word."""
    try:
        tree = xr.open_datatree(
            target.url,
            engine="nczarr",
            backend_kwargs={"storage_options": target.options},
            mask_and_scale=False,
            decode_times=False,
        )
        return {node.path: _group(node.to_dataset(inherit=False)) for node in tree.subtree}
    except IncompleteExportError:
        return "incomplete"
    except DatasetNotFoundError:
        return "none"


def zarr(target: Target, consolidated: bool) -> Snapshot:
    """The root group as zarr-python sees it."""
    options: dict[str, Any] = {"mask_and_scale": False, "decode_times": False}
    with xr.open_dataset(target.url, engine="zarr", consolidated=consolidated, **options) as found:
        return {"/": _group(found)}


def netcdf_c(target: Target) -> Snapshot:
    """All of a dataset as netCDF-C sees it."""
    import netCDF4

    kind = "zip" if target.url.endswith(".zip") else "file"

    def seen(group: Any) -> Snapshot:
        group.set_auto_maskandscale(False)
        found: Snapshot = {"": {k: _shown(group.getncattr(k)) for k in group.ncattrs()}}
        for name, variable in group.variables.items():
            attributes = {k: _shown(variable.getncattr(k)) for k in variable.ncattrs()}
            found[name] = variable.dimensions, _shown(variable[...]), attributes
        return found

    with netCDF4.Dataset(f"file://{target.url}#mode=nczarr,{kind}") as file:
        groups = {"/": file}
        todo = [file]
        while todo:
            for child in todo.pop().groups.values():
                groups[child.path] = child
                todo.append(child)
        return {path: seen(group) for path, group in groups.items()}


def _lines(snapshot: Snapshot | str | None) -> set[str]:
    if not isinstance(snapshot, dict):
        return {str(snapshot)}
    return {f"{path} {name}: {v}" for path, found in snapshot.items() for name, v in found.items()}


def _judged(run: Run, old: Any, new: Any) -> str:
    if run.error is not None:
        return "error"
    if run.result in (None, "none", "incomplete"):
        return str(run.result)
    if run.result == {"/": {"": {}}} != old:
        return "none"  # netCDF-C takes any directory for a dataset
    return "new" if run.result == new else ("old" if run.result == old else "WRONG")


# -- cases ---------------------------------------------------------------------


def _nothing(target: Target) -> None:
    """A next writer that changes nothing."""
    target.write(xr.Dataset(), "a")


@dataclass
class Bench:
    """One scenario at one kind of target: what is there before and after, to be made many times.

    Parameters
    ----------
    fresh
        Gives a new `Target` where nothing is.
    """

    name: str
    kind: str
    fresh: Callable[[], Target]
    peers: bool = True
    runs: dict[str, Run] = field(default_factory=dict)
    views: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scenario = SCENARIOS[self.name]
        # the netCDF4 wheel reads neither archives nor, signed, this server
        self.peers = self.peers and self.kind not in ("s3", "zip")
        target = self.prepared()
        before = self.look(target)
        self.whole = in_process(self.scenario.change, target, kill=Kill())
        assert self.whole.error is None, self.whole.error
        after = self.look(target)
        for reader, seen in after.items():
            assert seen.error is None, (reader, seen.error)
            self.views[reader] = before[reader].result, seen.result
        self.remove(target)

    def prepared(self) -> Target:
        """A target as it is before the change."""
        target = self.fresh()
        if self.kind == "foreign":
            folder = Path(target.url)
            (folder / "a").mkdir(parents=True)
            (folder / "notes.txt").write_text("mine")
            (folder / "a" / "0.0~").write_text("backup")
            (folder / "old").mkdir()
            (folder / "old" / "0.0").write_bytes(b"chunk of nothing")
        if self.scenario.before is not None:
            made = in_process(self.scenario.before, target)
            assert made.error is None, made.error
        elif self.kind == "foreign":
            self.scenario = Scenario(_over_foreign)
        return target

    def look(self, target: Target) -> dict[str, Run]:
        """What every reader sees."""
        found = {"ours": in_process(ours, target)}
        if self.peers:
            found["netCDF-C"] = in_process(netcdf_c, target)
            found["zarr"] = in_process(zarr, target, False)
            if _is_consolidated(self.scenario):
                found["zarr consolidated"] = in_process(zarr, target, True)
        return found

    def run_case(self, kill: Kill) -> tuple[str, dict[str, str], list[str]]:
        """Kill once.

        Returns
        -------
        where, seen, complaints
            Where it was killed, what each reader saw, and what must not be.
        """
        target = self.prepared()
        run = in_process(self.scenario.change, target, kill=kill)
        where = run.killed or "not killed"
        complaints = [] if run.error is None else [f"the writer: {run.error}"]
        looked = self.look(target)
        seen = {reader: _judged(found, *self.views[reader]) for reader, found in looked.items()}
        mine = seen["ours"]
        allowed = {"new", "incomplete" if self.scenario.before is None else "old"}
        allowed |= {"none"} if self.scenario.before is None else set()
        allowed |= {"incomplete"} if "template" in self.name else set()
        if mine not in allowed:
            complaints.append(f"our reader: {mine} {looked['ours'].error}")
        for reader, what in seen.items():
            if what == "WRONG":
                now = _lines(looked[reader].result)
                old, new = map(_lines, self.views[reader])
                complaints.append(
                    f"{reader} reads what never was: not old: {sorted(now ^ old)}, "
                    f"not new: {sorted(now ^ new)}"
                )
        following = _nothing if mine == "new" else self.scenario.change
        if following is _template and mine == "incomplete":
            # a journal says that all of it is there: then any writer ends it
            following = Target.recover if _has_journal(target) else _template_over
        again = in_process(following, target)
        if again.error is not None:
            complaints.append(f"the next writer: {again.error}")
        final = in_process(ours, target)
        if final.result != self.views["ours"][1]:
            different = _lines(final.result) ^ _lines(self.views["ours"][1])
            complaints.append(f"after the next writer: {final.error} {sorted(different)}")
        complaints += self.leftovers(target)
        self.remove(target)
        return where, seen, complaints

    def leftovers(self, target: Target) -> list[str]:
        """Private objects that are still there, and foreign ones that are not."""
        if self.kind == "s3":
            keys = FsspecWriter(*_filesystem(target)).keys_below("")
            return [f"left over: {key}" for key in keys if key.startswith(".nczarr_export")]
        above = Path(target.url).parent
        files = [
            str(path.relative_to(above))
            for path in above.rglob("*")
            if path.is_file() and ".nczarr-tmp-" not in path.name
        ]
        found = [f"left over: {f}" for f in files if ".nczarr_export" in f or ".partial" in f]
        if self.kind == "foreign":
            mine = ("notes.txt", "a/0.0~", "old/0.0")
            found += [f"{name} is gone" for name in mine if not (Path(target.url) / name).exists()]
        return found

    def remove(self, target: Target) -> None:
        """Make room on this machine."""
        if self.kind != "s3":
            shutil.rmtree(Path(target.url).parent)


def _over_foreign(target: Target) -> None:
    target.write(sample(12, 1), "w", encoding=CHUNKS)


def _is_consolidated(scenario: Scenario) -> bool:
    return scenario.before is _consolidated and scenario.change is not _smaller


def _has_journal(target: Target) -> bool:
    return JOURNAL in FsspecWriter(*_filesystem(target)).keys_below("")


def _filesystem(target: Target) -> tuple[Any, str]:
    import fsspec

    fs, path = fsspec.core.url_to_fs(target.url, **(target.options or {}))
    return fs, path


def local(folder: Path, kind: str) -> Callable[[], Target]:
    """Targets below `folder`, each in a directory of its own."""
    numbers = itertools.count()

    def fresh() -> Target:
        above = folder / str(next(numbers))
        above.mkdir(parents=True)
        return Target(str(above / ("d.zip" if kind == "zip" else "d")))

    return fresh


def on_s3(bucket: str, options: Mapping[str, Any]) -> Callable[[], Target]:
    """Targets in a bucket."""
    start = f"{os.getpid()}-{time.time_ns()}"
    numbers = itertools.count()
    return lambda: Target(f"s3://{bucket}/{start}/{next(numbers)}", options)
