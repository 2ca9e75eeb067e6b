"""Read the same blocks of datasets, many at a time within bounds, and count what differs."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import NCZarrError, StoreError, URLError
from nczarr_fsspec.text import did_you_mean
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.model import Variable, box_of, grid_of, position_of
from nczarr_xarray.tools.compare.report import Comparison, Difference
from nczarr_xarray.tools.compare.structure import unreadable
from nczarr_xarray.tools.compare.values import as_text

#: Bytes of the values that are read at a time of one dataset, unless one chunk has more.
READ_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Blocks:
    """The division of a shape into equal blocks, numbered in C order.

    Parameters
    ----------
    shape, lengths
        Of the whole and of a block, per dimension.
    """

    shape: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """Blocks along each dimension."""
        return grid_of(self.shape, self.lengths)

    @property
    def count(self) -> int:
        """All blocks."""
        return math.prod(self.grid)

    def part(self, number: int) -> tuple[slice, ...]:
        """Return the place of a block."""
        return box_of(position_of(number, self.grid), self.lengths, self.shape)

    def numbers(self, sample: int | None = None) -> Sequence[int]:
        """Return the numbers of all blocks, or of a sample of so many, always the same ones."""
        if sample is None or sample >= self.count:
            return range(self.count)
        choose = random.Random(self.count)  # noqa: S311 - no secret
        chosen: set[int] = set()
        while len(chosen) < sample:
            chosen.add(choose.randrange(self.count))
        return sorted(chosen)


def block_lengths(
    shape: Sequence[int],
    itemsize: int,
    grids: Sequence[Sequence[int]],
    most: int,
) -> tuple[int, ...]:
    """Choose blocks so that the chunks of all grids are read as seldom as possible.

    Parameters
    ----------
    shape
        Of the variable.
    itemsize
        Bytes of an element.
    grids
        Chunk lengths of what is read in these blocks; 1 where any part is read equally well.
    most
        Bytes of a block. One chunk may have more: it is in memory as a whole anyway.
    """
    if 0 in shape:
        return tuple(max(1, n) for n in shape)
    limit = max(most, *(math.prod(map(min, shape, grid)) * itemsize for grid in grids))
    along = [list(column) for column in zip(*grids, strict=True)] or [[] for _ in shape]
    choices = [
        sorted({min(c, n) for c in (1, *chunks, math.lcm(*chunks))})
        for n, chunks in zip(shape, along, strict=True)
    ]
    lengths = [choice.pop() for choice in choices]

    def cost(axis: int) -> float:
        """Return how often chunks are read, all in all, if `axis` gets its next length."""
        tried = [*lengths[:axis], choices[axis][-1], *lengths[axis + 1 :]]
        return sum(math.prod(map(_readings, shape, grid, tried)) for grid in grids)

    while math.prod(lengths) * itemsize > limit and any(choices):
        axis = min((axis for axis, choice in enumerate(choices) if choice), key=cost)
        lengths[axis] = choices[axis].pop()
    for axis in reversed(range(len(lengths))):
        times = limit // (math.prod(lengths) * itemsize)
        lengths[axis] = min(shape[axis], lengths[axis] * max(1, times))
    return tuple(lengths)


def _readings(size: int, chunk: int, length: int) -> float:
    """Return into how many pieces blocks of `length` divide a chunk along one dimension."""
    chunks, blocks = -(-size // chunk), -(-size // length)
    return (chunks + blocks - -(-size // math.lcm(chunk, length))) / chunks


#: Values of a variable that are shown.
SHOWN = 5


class Tally:
    """The differences and troubles so far.

    Parameters
    ----------
    structure
        The differences of the structure.
    """

    def __init__(self, structure: Iterable[Difference]) -> None:
        self._differences = list(structure)
        self._differing: Counter[str] = Counter()
        self._shown: Counter[str] = Counter()
        self._troubles: dict[str, NCZarrError] = {}
        self._compared = 0

    def compared(self, values: int) -> None:
        """Count values that were compared."""
        self._compared += values

    def differ(self, path: str, count: int, first: Sequence[Difference]) -> None:
        """Note that values of a variable differ, and keep the first of them."""
        self._differing[path] += count
        kept = first[: SHOWN - self._shown[path]]
        self._shown[path] += len(kept)
        self._differences += kept

    def trouble(self, error: NCZarrError) -> None:
        """Note that something could not be read; the same error counts once."""
        self._troubles.setdefault(str(error), error)

    def finish(self, side: Opened, only: Collection[str] | None) -> None:
        """Note what cannot be read, and whether the dataset was changed meanwhile."""
        for problem in side.hierarchy.left_out(only):
            self.trouble(problem)
        for path, error in unreadable(side).items():
            if only is None or path in only:
                self.trouble(error)
        if not side.holds():
            reason = "was changed while it was compared: compare it again"
            self.trouble(StoreError(side.store.url, reason))

    def result(self, a: str, b: str, notes: Sequence[str] = ()) -> Comparison:
        """Return all as a report on A and B."""
        return Comparison(
            a=a,
            b=b,
            differences=tuple(self._differences),
            differing=dict(self._differing),
            values=self._compared,
            troubles=tuple(self._troubles.values()),
            notes=tuple(notes),
        )


#: Bytes that a text or a sequence is taken to have.
_OBJECT_BYTES = 64


class Part(NamedTuple):
    """A part of a variable, which each dataset has as a variable of its own.

    Parameters
    ----------
    variables
        One for each dataset.
    part
        One slice per dimension.
    """

    variables: tuple[Variable, ...]
    part: tuple[slice, ...]

    @property
    def path(self) -> str:
        """Of the variable."""
        return self.variables[0].path

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(s.stop - s.start for s in self.part)

    @property
    def nbytes(self) -> int:
        """The bytes of the values, about."""
        return self.size * itemsize(self.variables[0])


def itemsize(variable: Variable) -> int:
    """Return the bytes that an element takes in memory, about."""
    size = variable.dtype.itemsize
    return max(1, size, _OBJECT_BYTES) if variable.dtype.hasobject else max(1, size)


def read_parts(
    sides: Sequence[Opened], parts: Iterable[Part], tally: Tally
) -> Iterator[tuple[Part, list[np.ndarray]]]:
    """Yield parts with their values of each dataset; what cannot be read is noted and left out.

    What is far away is read by many requests at once, and all datasets at the same time.
    """
    with WaitingThreads(max(1, len(sides) - 1), "nczarr-compare") as pool:
        for batch in _batches(parts):
            wanted = [[(p.variables[i], p.part) for p in batch] for i in range(len(sides))]
            reading = [
                pool.submit(side.read_many, of_side)
                for side, of_side in zip(sides[1:], wanted[1:], strict=True)
            ]
            found = [sides[0].read_many(wanted[0]), *(future.result() for future in reading)]
            for part, *read in zip(batch, *found, strict=True):
                values = []
                for variable, one in zip(part.variables, read, strict=True):
                    if isinstance(one, NCZarrError):
                        tally.trouble(one)
                    else:
                        values.append(as_text(variable, np.asarray(one)))
                if len(values) == len(sides):
                    tally.compared(part.size)
                    yield part, values


def _batches(parts: Iterable[Part]) -> Iterator[list[Part]]:
    batch: list[Part] = []
    nbytes = 0
    for part in parts:
        if batch and nbytes + part.nbytes > READ_BYTES:
            yield batch
            batch, nbytes = [], 0
        batch.append(part)
        nbytes += part.nbytes
    if batch:
        yield batch


def opened(target: Any, stack: ExitStack) -> Opened:
    """Return an open dataset whose text keeps its bytes; `stack` closes it if it is opened here."""
    if isinstance(target, Opened):
        return replace(target, exact=True)
    return replace(stack.enter_context(open_hierarchy(target)), exact=True)


def paths_of(variables: Collection[str] | None, *known: Opened) -> frozenset[str] | None:
    """Return paths of variables, which may have been given without the first slash.

    Parameters
    ----------
    known
        The datasets that have them.

    Raises
    ------
    URLError
        If a variable is nowhere, or none is named: else a comparison of nothing would say that
        all is equal.
    """
    if variables is None:
        return None
    if isinstance(variables, str):
        variables = [variables]  # a text would be taken for one name a letter
    if not variables:
        raise URLError("variables", "none are named; leave it out to compare all")
    there = {v.path for one in known for v in one.hierarchy.root.all_variables()}
    wanted = frozenset(f"/{name.lstrip('/')}" for name in variables)
    for path in sorted(wanted - there):
        hint = did_you_mean(path, there) or "; the path of its group stands before its name"
        raise URLError(path, f"no such variable{hint}")
    return wanted


def checked_sample(sample: int | None) -> int | None:
    """Return the number of blocks of a sample; raise `URLError` if it is none."""
    if sample is not None and not (isinstance(sample, Integral) and sample > 0):
        raise URLError("sample", f"{sample!r} is no number of blocks; write 1 or more")
    return sample
