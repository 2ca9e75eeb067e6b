"""What a reader promises about damaged classic and HDF5 files."""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import xarray as xr

from nczarr_fsspec.errors import NCZarrError, NCZarrWarning
from nczarr_fsspec.ranges.local import MemoryBytes
from nczarr_fsspec.ranges.source import Limits, RemoteBytes
from nczarr_fsspec.transport.request import Extent
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.formats.hdf5 import binary
from nczarr_xarray.formats.hdf5.through_h5py import H5pyArray
from nczarr_xarray.formats.rounds import Read
from nczarr_xarray.model import FileChunks, FileStrides, Variable
from tests.support.builders.h5drive import drive
from tests.support.corpora import classic_corpus, hdf5_corpus
from tests.support.faults.filedamage import Anatomy, Damage, Span

#: Larger files are left out: damage would mostly hit data.
LARGEST = 100_000
#: Bytes of a variable that is not read as a whole.
LARGE = 8_000_000
#: Ways to a file.
WAYS = ("memory", "object", "path", "remote")

Values = dict[str, np.ndarray[Any, Any] | NCZarrError]


@dataclass(frozen=True, slots=True)
class Good:
    """A file before any damage.

    Parameters
    ----------
    data
        The whole file.
    values
        What it holds.
    extents
        Which bytes are the data of which variable.
    virtual
        Variables that may show the data of others.
    anatomy
        Where damage is worth while.
    """

    data: bytes
    values: Values
    extents: dict[str, list[Span]]
    virtual: frozenset[str]
    anatomy: Anatomy

    def holding(self, spans: Sequence[Span]) -> set[str]:
        """The variables (several names may mean one) whose data all the bytes are."""
        return {
            path
            for path, extents in self.extents.items()
            if all(
                any(start <= low and high <= stop for start, stop in extents) for low, high in spans
            )
        }

    def guarded(self, spans: Sequence[Span]) -> bool:
        """Whether all the bytes are in structures with checksums."""
        return all(
            any(start <= low and high <= stop for start, stop in self.anatomy.sealed)
            for low, high in spans
        )


# -- files -------------------------------------------------------------------------------------


def write_corpus(directory: Path, pattern: str = "*") -> None:
    """Write small files of all kinds, as ``<name>.nc``, with names that match a pattern."""
    for content, version in classic_corpus.CORPUS:
        if content not in ("huge header", "everything"):
            name = f"cdf{version} {content}".replace(" ", "_")
            classic_corpus.make(content, version, directory / f"{name}.nc")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in hdf5_corpus.CASES:
            hdf5_corpus.write(name, directory)
    _write_indexes(directory / "indexes.nc")
    _write_virtual(directory / "virtual_strided.nc", directory / "virtual_source.h5")
    for path in directory.iterdir():
        wanted = path.suffix == ".nc" and path.match(f"{pattern}.nc")
        if path.suffix == ".nc" and (not wanted or path.stat().st_size > LARGEST):
            path.unlink()


def _write_indexes(path: Path) -> None:
    """Chunk indexes with all of their parts, over chunks of a few bytes."""
    with h5py.File(path, "w", libver="latest") as f:
        for name, options in (("plain", {}), ("zipped", {"compression": "gzip"})):
            data = np.arange(1100, dtype="u1")
            f.create_dataset(f"{name}_paged", data=data, chunks=(1,))
            f.create_dataset(
                f"{name}_long", data=data[:400], chunks=(1,), maxshape=(None,), **options
            )
            f.create_dataset(
                f"{name}_wide",
                data=data[:900].reshape(30, 30),
                chunks=(1, 2),
                maxshape=(None, None),
                **options,
            )


def _write_virtual(path: Path, other: Path) -> None:
    """Virtual datasets of several kinds of selections: what libhdf5 is left to read."""
    with h5py.File(other, "w") as f:
        f["far"] = np.arange(24.0).reshape(4, 6)
    with h5py.File(path, "w", libver="latest") as f:
        source = f.create_dataset("source", (4, 6), "i4", maxshape=(None, 6), chunks=(2, 3))
        source[...] = np.arange(24).reshape(4, 6)
        strided = h5py.VirtualLayout((8, 3), "i4")
        strided[::2] = h5py.VirtualSource(source)[:, ::2]
        strided[1::2] = h5py.VirtualSource(source)[:, 1::2]
        f.create_virtual_dataset("strided", strided, fillvalue=-1)
        growing = h5py.VirtualLayout((4, 6), "i4", maxshape=(None, 6))
        view = h5py.VirtualSource(source)
        growing[: h5py.h5s.UNLIMITED] = view[: h5py.h5s.UNLIMITED]
        f.create_virtual_dataset("growing", growing)
        far = h5py.VirtualLayout((4, 12), "f8")
        for column in range(2):
            far[:, 6 * column : 6 * column + 6] = h5py.VirtualSource(other.name, "far", (4, 6))
        f.create_virtual_dataset("far", far)
        of_virtual = h5py.VirtualLayout((8, 3), "i4")
        of_virtual[:] = h5py.VirtualSource(f["strided"])
        f.create_virtual_dataset("of_virtual", of_virtual)


def corpus(directory: str | os.PathLike[str]) -> list[Path]:
    """The files that `write_corpus` wrote."""
    return sorted(Path(directory).glob("*.nc"))


@cache
def families(directory: str | os.PathLike[str]) -> dict[str, list[Path]]:
    """The corpus by likeness: some files differ in one attribute, say."""
    found: dict[str, list[Path]] = {}
    for path in corpus(directory):
        name = path.stem[:3] if path.stem.startswith("cdf") else path.stem
        for many in ("h5_reserved", "h5_attribute", "h5_odd"):
            name = many if name.startswith(many) else name
        found.setdefault(name, []).append(path)
    return found


@cache
def good(path: Path) -> Good:
    """A file of the corpus before any damage."""
    data = path.read_bytes()
    structures: set[Span] = set()
    sealed: set[bytes] = set()
    find = DataFile.extent_of  # what all metadata are read by

    def noted(self: DataFile, read: Read) -> Any:
        extent = find(self, read)
        if isinstance(extent, Extent) and extent.stop > extent.start:
            structures.add((extent.start, extent.stop))
        return extent

    def sealing(block: bytes | memoryview, *rest: Any) -> None:
        sealed.add(bytes(block))

    with mock.patch.object(DataFile, "extent_of", noted), verifying(sealing):
        values = read_all(data)
    assert not isinstance(values, NCZarrError), f"{path}: {values}"
    places = [(at, at + len(block)) for block in sealed for at in _occurrences(data, block)]
    anatomy = Anatomy(tuple(sorted(structures)), tuple(sorted(places)))
    return Good(data, values, *_extents(data), anatomy)


def _occurrences(data: bytes, block: bytes) -> Iterator[int]:
    at = data.find(block)
    while at >= 0:
        yield at
        at = data.find(block, at + 1)


@contextlib.contextmanager
def verifying(verify: Any) -> Iterator[None]:
    """Have another function look at checksums of HDF5's metadata: one that knows better."""
    with contextlib.ExitStack() as stack:
        for name, module in sorted(sys.modules.items()):
            ours = name.startswith("nczarr_xarray.formats.hdf5.") and module is not binary
            if ours and getattr(module, "verify", None) is binary.verify:
                stack.enter_context(mock.patch.object(module, "verify", verify))
        yield


def _extents(data: bytes) -> tuple[dict[str, list[Span]], frozenset[str]]:
    """Find the data of all variables of a good file, and those that have none of their own."""
    opened = open_hierarchy(MemoryBytes(data, "memory"))
    found: dict[str, list[Span]] = {}
    virtual = set()
    for group in opened.hierarchy.root.walk():
        for variable in group.variables.values():
            array = variable.array
            if isinstance(array, H5pyArray):
                virtual.add(variable.path)
            if 0 in variable.shape:
                continue
            if isinstance(array, FileStrides) and array.start is not None and not array.inline:
                rows = array.shape[0] if array.shape else 1
                row = array.dtype.itemsize * math.prod(array.shape[1:])
                stride = array.strides[0] if array.shape else 0
                found[variable.path] = [
                    (array.start + n * stride, array.start + n * stride + row) for n in range(rows)
                ]
            elif isinstance(array, FileChunks):
                grid = (-(-n // c) for n, c in zip(array.shape, array.chunk_shape, strict=True))
                table = drive(array.index.locate(np.arange(math.prod(grid))), data).result
                found[variable.path] = [
                    (int(start), int(start + size))
                    for start, size in zip(table.start, table.size, strict=True)
                    if start >= 0
                ]
    return found, frozenset(virtual)


# -- sources -----------------------------------------------------------------------------------


class RemoteMemory(RemoteBytes):
    """A file in memory behind an event loop."""

    def __init__(self, data: bytes) -> None:
        self.url, self.size, self.validator = "memory", len(data), ""
        self.head = data[:512]
        self.data = data

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        from fsspec.asyn import get_loop

        loop: asyncio.AbstractEventLoop = get_loop()
        return loop

    @property
    def limits(self) -> Limits:
        return Limits(ranges=3)

    async def fetch(self, extents: Sequence[Extent]) -> list[bytes | memoryview]:
        stop = 0
        for extent in extents:
            assert stop <= extent.start < extent.stop <= self.size, extents
            stop = extent.stop
        return [self.data[extent.start : extent.stop] for extent in extents]


def target(data: bytes, way: str = "memory", path: Path | None = None) -> Any:
    """Something to open that holds `data`; the way ``"path"`` writes them to `path`."""
    if way == "remote":
        return RemoteMemory(data)
    if way == "object":
        return io.BytesIO(data)
    if way == "path":
        assert path is not None
        path.write_bytes(data)
        return os.fspath(path)
    return MemoryBytes(data, "memory")


# -- promises ----------------------------------------------------------------------------------


def read_all(data: bytes, *, way: str = "memory", path: Path | None = None) -> Values | NCZarrError:
    """Every variable by path, or why not; anything but an error of ours gets out."""
    values: Values = {}
    try:
        with open_hierarchy(target(data, way, path)) as opened:
            for group in opened.hierarchy.root.walk():
                for variable in group.variables.values():
                    values[variable.path] = _read(opened, variable)
    except NCZarrError as error:
        assert error.object
        assert error.reason
        return error
    return values


def _read(opened: Opened, variable: Variable) -> np.ndarray[Any, Any] | NCZarrError:
    key = (slice(None),) * len(variable.shape)
    shape = variable.shape
    try:
        if math.prod(shape) * variable.dtype.itemsize > LARGE:
            # what is said to be large takes long: its last corner
            key = tuple(slice(max(0, size - 1), None) for size in shape)
            shape = tuple(min(size, 1) for size in shape)
        data = opened.read(variable, key)
    except NCZarrError as error:
        assert error.object
        assert error.reason
        return error
    assert data.shape == shape, variable
    if data.dtype.kind != "O":
        assert data.dtype == variable.dtype.newbyteorder("="), variable
    return data


def check(good: Good, after: Values | NCZarrError, damage: Damage, *, seals: bool = True) -> None:
    """Fail if a variable reads differently although the damage can be known.

    A file that lacks its end holds the same values, some of them or none; one whose data of one
    variable were changed, the same in all others. Where there are checksums, changed metadata
    are found out. What another changed number in the metadata means, nobody knows.

    Parameters
    ----------
    seals
        Whether checksums were looked at.
    """
    spans = damage.changed
    if not damage.cut and spans is None:
        return
    hit = good.holding(spans) if spans is not None else set()
    if hit:
        assert not isinstance(after, NCZarrError), after
        assert set(after) == set(good.values)
    known = damage.cut or (
        spans is not None and seals and not damage.repaired and good.guarded(spans)
    )
    if not (hit or known) or isinstance(after, NCZarrError):
        return
    for path, value in good.values.items():
        found = after.get(path)
        if path in hit or path in good.virtual or isinstance(value, NCZarrError):
            continue
        if known and (found is None or isinstance(found, NCZarrError)):
            continue
        assert found is not None, path
        assert not isinstance(found, NCZarrError), (path, found)
        if known:  # the variable that made an unlimited dimension longer may be lost
            box: tuple[Any, ...] = tuple(map(slice, found.shape))
            value = value[(*box, ...)]
        assert _same(found, value), (path, found, value)


def _same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind == "O":  # text, or arrays
        pairs = zip(one.ravel().tolist(), other.ravel().tolist(), strict=True)
        return all(np.array_equal(a, b) for a, b in pairs)
    if one.dtype.kind == "V":  # with gaps, maybe
        return repr(one.tolist()) == repr(other.tolist())
    return one.tobytes() == other.tobytes()


def open_with_xarray(data: bytes, *, way: str = "memory", path: Path | None = None) -> None:
    """All groups, looked at in every way that must not raise, if the root is not refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NCZarrWarning)
        try:
            groups = xr.open_groups(target(data, way, path), engine="nczarr")
        except NCZarrError:
            return
        except (ValueError, OverflowError, TypeError) as error:
            # as with other engines: of units, scale factors, calendars that are none
            if "nczarr_" in _last(error):
                raise
            return
    for dataset in groups.values():
        repr(dataset)
        for variable in dataset.variables.values():
            try:
                large = variable.nbytes > LARGE
                (variable[(-1,) * variable.ndim] if large else variable.copy()).load()
            except NCZarrError:
                pass
            except Exception as error:
                # xarray may find out only here that the attributes are nonsense
                trace = error.__traceback__
                while trace is not None:
                    if "nczarr_" in trace.tb_frame.f_code.co_filename:
                        raise
                    trace = trace.tb_next
        dataset.close()


def _last(error: BaseException) -> str:
    """File of the function that raised."""
    trace = error.__traceback__
    name = ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        trace = trace.tb_next
    return name
