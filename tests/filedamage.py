"""Small classic and HDF5 files, what can be done to them, and what a reader promises then."""

from __future__ import annotations

import asyncio
import math
import os
import random
import re
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from nczarr_fsspec.errors import NCZarrError, NCZarrWarning
from nczarr_fsspec.ranges.local import MemoryBytes
from nczarr_fsspec.ranges.source import Extent, Limits, RemoteBytes
from nczarr_xarray.formats.waves import waves
from nczarr_xarray.model import FileChunks, FileStrides, Variable
from nczarr_xarray.reader import Opened, open_hierarchy
from tests import classic_corpus, hdf5_corpus

#: Larger files are left out: damage would mostly hit data.
LARGEST = 100_000
#: Elements of a variable that is not read as a whole.
LARGE = 1_000_000
#: Where structures of HDF5 begin.
SIGNATURES = re.compile(
    rb"\x89HDF|OHDR|OCHK|TREE|SNOD|HEAP|GCOL|FRHP|FHDB|FHIB|BTHD|BTIN|BTLF|FAHD|FADB|EAHD|EAIB|EASB|EADB|SMTB|SMLI"
)

Values = dict[str, np.ndarray[Any, Any] | NCZarrError]


class Damage(NamedTuple):
    """A damaged file: what is there, what was done, and which bytes `[start, stop)` differ.

    Parameters
    ----------
    inside
        Bounds of the changes, if bytes kept their places.
    cut
        Whether only the end is missing.
    """

    data: bytes
    steps: tuple[str, ...]
    inside: tuple[int, int] | None
    cut: bool


# -- files -------------------------------------------------------------------------------------


def write_corpus(directory: Path) -> None:
    """Write small files of all kinds, as ``<name>.nc``."""
    for content, version in classic_corpus.CORPUS:
        if content not in ("huge header", "everything"):
            name = f"cdf{version} {content}".replace(" ", "_")
            classic_corpus.make(content, version, directory / f"{name}.nc")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in hdf5_corpus.CASES:
            hdf5_corpus.write(name, directory)
    for path in directory.iterdir():
        if path.suffix != ".nc" or path.stat().st_size > LARGEST:
            path.unlink()


# -- damage ------------------------------------------------------------------------------------

_NUMBERS = (
    0, 1, 2, 3, 7, 8, 64, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 8, 2**32 - 1, 2**40,
    2**62, 2**63 - 1, 2**63, 2**64 - 9, 2**64 - 1,
)  # fmt: skip


def _position(data: bytes, rng: random.Random) -> int:
    """Where structure is more likely than data."""
    choice = rng.random()
    if choice < 0.5 and data[:3] != b"CDF":
        places = [match.start() for match in SIGNATURES.finditer(data)]
        start = rng.choice(places) if places else 0
        return min(len(data) - 1, start + int(rng.expovariate(1 / 60)))
    if choice < 0.9:
        return rng.randrange(min(len(data), 4096))
    return rng.randrange(len(data))


def mutate(data: bytes, rng: random.Random) -> Damage:
    """Change a file in one to three ways."""
    if rng.random() < 0.12:
        stop = rng.randrange(len(data)) if rng.random() < 0.7 else _position(data, rng)
        return Damage(data[:stop], (f"cut at {stop}",), None, cut=True)
    changed = bytearray(data)
    steps = []
    low, high, moved = len(data), 0, False
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = _position(bytes(changed), rng)
        kind = rng.choice(
            ("bit", "byte", "number", "number", "number", "copy", "zero", "insert", "delete")
        )
        piece = b""
        length = 1
        if kind == "bit":
            piece = bytes([changed[at] ^ (1 << rng.randrange(8))])
        elif kind == "byte":
            piece = rng.randbytes(1)
        elif kind == "number":
            length = rng.choice((1, 2, 4, 8))
            if data[:3] == b"CDF":
                at -= at % 4
            number = rng.choice(_NUMBERS) + rng.choice((-1, 0, 0, 0, 1))
            order: Any = "big" if data[:3] == b"CDF" else "little"
            piece = (number % (1 << 8 * length)).to_bytes(length, order)
        elif kind == "copy":
            length = rng.choice((4, 8, 16, 64, 256))
            start = _position(bytes(changed), rng)
            piece = bytes(changed[start : start + length])
        elif kind == "zero":
            length = rng.choice((4, 8, 16, 64, 256))
            piece = bytes(length)
        elif kind == "insert":
            length, piece, moved = 0, rng.randbytes(rng.choice((1, 4, 8))), True
        else:
            length, moved = rng.choice((1, 4, 8)), True
        piece = piece[: len(changed) - at] if kind not in ("insert", "delete") else piece
        stop = at + (length if kind == "delete" else 0 if kind == "insert" else len(piece))
        changed[at:stop] = piece
        low, high = min(low, at), max(high, stop)
        steps.append(f"{kind} at {at}: {piece[:16].hex()}{'...' if len(piece) > 16 else ''}")
    return Damage(bytes(changed), tuple(steps), None if moved else (low, high), cut=False)


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


# -- promises ----------------------------------------------------------------------------------


def read_all(data: bytes, *, remote: bool = False) -> Values | NCZarrError:
    """Every variable by path, or why not; anything but an error of ours gets out."""
    values: Values = {}
    try:
        opened = open_hierarchy(RemoteMemory(data) if remote else MemoryBytes(data, "memory"))
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
        if math.prod(shape) > LARGE:  # what is said to be large takes long: its last corner
            key = tuple(slice(max(0, size - 1), None) for size in shape)
            shape = tuple(min(size, 1) for size in shape)
        data = opened.read(variable, key)
    except NCZarrError as error:
        assert error.object
        assert error.reason
        return error
    assert data.shape == shape, variable
    if variable.dtype.kind != "O":
        assert data.dtype == variable.dtype.newbyteorder("="), variable
    return data


class Extents(NamedTuple):
    """Which bytes of a good file are the data of which variable."""

    variables: dict[str, list[tuple[int, int]]]

    def holding(self, low: int, high: int) -> set[str]:
        """The variables (several names may mean one) whose data all bytes `[low, high)` are."""
        return {
            path
            for path, extents in self.variables.items()
            if any(start <= low and high <= stop for start, stop in extents)
        }


def extents_of(data: bytes) -> Extents:
    """Find the data of all variables of a good file."""
    opened = open_hierarchy(MemoryBytes(data, "memory"))
    found: dict[str, list[tuple[int, int]]] = {}
    for group in opened.hierarchy.root.walk():
        for variable in group.variables.values():
            array = variable.array
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
                table = _drive(array.index.locate(np.arange(math.prod(grid))), data)
                found[variable.path] = [
                    (int(start), int(start + size))
                    for start, size in zip(table.start, table.size, strict=True)
                    if start >= 0
                ]
    return Extents(found)


def _drive(parsing: Any, data: bytes) -> Any:
    running = waves(parsing)
    try:
        wishes = next(running)
        while True:
            wishes = running.send(
                [memoryview(data)[wish.start : wish.start + wish.length] for wish in wishes]
            )
    except StopIteration as stop:
        return stop.value


def check(before: Values, after: Values | NCZarrError, damage: Damage, extents: Extents) -> None:
    """Fail if a variable reads differently although nothing of it was changed.

    A file that lacks its end holds the same values, some of them or none; one whose data of one
    variable were changed, the same in all others. What a changed number in the
    metadata means, nobody knows.
    """
    if damage.cut:
        if isinstance(after, NCZarrError):
            return
        hit = set()
    else:
        hit = extents.holding(*damage.inside) if damage.inside else set()
        if not hit:
            return
        assert not isinstance(after, NCZarrError), after
        assert set(after) == set(before)
    for path, value in before.items():
        found = after.get(path)
        if path in hit or isinstance(value, NCZarrError):
            continue
        if damage.cut and (found is None or isinstance(found, NCZarrError)):
            continue
        assert found is not None, path
        assert not isinstance(found, NCZarrError), (path, found)
        if damage.cut:  # the variable that made an unlimited dimension longer may be lost
            value = value[tuple(map(slice, found.shape))]
        np.testing.assert_array_equal(found, value, err_msg=path)


def open_with_xarray(data: bytes) -> None:
    """All groups, looked at in every way that must not raise, if the root is not refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NCZarrWarning)
        try:
            source: Any = MemoryBytes(data, "memory")
            groups = xr.open_groups(source, engine="nczarr")
        except NCZarrError:
            return
    for dataset in groups.values():
        repr(dataset)
        for variable in dataset.variables.values():
            try:
                large = math.prod(variable.shape) > LARGE
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


@cache
def good(path: Path) -> tuple[bytes, Values, Extents]:
    """A file of the corpus before any damage, and what it holds."""
    data = path.read_bytes()
    values = read_all(data)
    assert not isinstance(values, NCZarrError), f"{path}: {values}"
    return data, values, extents_of(data)


def corpus(directory: str | os.PathLike[str]) -> list[Path]:
    """The files that `write_corpus` wrote."""
    return sorted(Path(directory).iterdir())
