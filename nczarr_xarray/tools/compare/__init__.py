"""Do two datasets hold the same? Comparison of structure and values, in bounded memory."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import NCZarrError, StoreError, URLError
from nczarr_fsspec.text import counted, did_you_mean
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.export.contents import chunk_lengths
from nczarr_xarray.export.form.chunk_shapes import repeats
from nczarr_xarray.export.progress import Progress, check_callback
from nczarr_xarray.model import Variable, box_of, grid_of, position_of
from nczarr_xarray.tools.compare.report import DECODING, SHOWN, Comparison, Difference, Tally
from nczarr_xarray.tools.compare.structure import (
    Outline,
    attribute_object,
    differences,
    notes,
    readable_variables,
    unreadable,
)
from nczarr_xarray.tools.compare.values import (
    EXACT,
    Tolerance,
    as_text,
    decoded_text,
    differing,
    differing_decoded,
    is_decoded,
    spelled,
    variable_type,
)

if TYPE_CHECKING:
    from fsspec.callbacks import Callback

__all__ = ["Comparison", "Difference", "compare"]

#: Bytes of the values that are read at a time of one dataset, unless one chunk has more.
READ_BYTES = 1 << 26
#: Bytes of a block of a sample.
SAMPLE_BYTES = 1 << 22
#: Bytes that a text or a sequence is taken to have.
_OBJECT_BYTES = 64


def compare(
    a: Any,
    b: Any,
    *,
    variables: Collection[str] | None = None,
    sample: int | None = None,
    tolerance: float | str = 0,
    encoding: bool = False,
    callback: Callback | None = None,
) -> Comparison:
    """Compare two datasets: structure, attributes with types, and values, all to the last bit.

    Values are compared as they are stored and, where types or attributes would unpack them in
    another way, as CF's rules decode them.

    Formats, chunks, codecs, byte order and the order of objects are no differences. Memory is
    bounded, whatever the sizes of the datasets are.

    Parameters
    ----------
    a, b
        Whatever `open_hierarchy` takes, or what it returned, which stays open.
    variables
        Paths of the variables to compare, or a single one, with what belongs to them; None for
        everything.
    sample
        Number of blocks of each variable to compare, always the same ones; None for all.
    tolerance
        How much numbers may differ: ``0.01``, or ``"1%"`` of their magnitude.
    encoding
        Whether chunks, codecs and byte order are compared as well.
    callback
        A callback of fsspec that gets the progress (`fsspec.callbacks`).

    Returns
    -------
    Comparison
        `equal` says whether the datasets are equal; ``print`` shows the report.

    Raises
    ------
    NCZarrError
        If a dataset cannot be opened, or an option has no meaning.
    """
    check_callback(callback)
    began = time.perf_counter()
    allowed = Tolerance.of(tolerance)
    if sample is not None and not (isinstance(sample, Integral) and sample > 0):
        raise URLError("sample", f"{sample!r} is no number of blocks; write 1 or more")
    with ExitStack() as stack:
        one, other = sides = [_opened(target, stack) for target in (a, b)]
        only = _paths_of(variables, sides)
        errors = [unreadable(side) for side in sides]
        failed = [path for found in errors for path in found]
        outlines = [Outline.of(side, only, storage=encoding).without(failed) for side in sides]
        structure = list(differences(*outlines))
        tally = Tally(structure)
        divided = list(_divided(one, other, only, sample))
        unlike = {found.object for found in structure}
        progress = Progress("compare", shown=False, unit=" blocks", callback=callback)
        counts = [blocks.count for _, blocks in divided]
        progress.expect(sum(counts if sample is None else (min(sample, n) for n in counts)))
        parts = (
            Part(pair, blocks.part(number))
            for pair, blocks in divided
            for number in blocks.numbers(sample)
        )
        for part, values in _read(one, other, parts, tally):
            progress.advance()
            stored, mask = _differing(part, values, allowed, unlike)
            if mask.any():
                tally.differ(part.path, int(mask.sum()), _shown(part, stored, mask, values))
        progress.advance(progress.total - progress.done)  # of what cannot be read
        for side, found in zip(sides, errors, strict=True):
            own = [error for path, error in found.items() if only is None or path in only]
            for trouble in (*side.hierarchy.left_out(only), *own):
                tally.trouble(trouble)
            if not side.holds():
                reason = "was changed while it was compared: compare it again"
                tally.trouble(StoreError(side.store.url, reason))
        said = notes(*outlines)
        if sample is not None:
            said = [*said, f"of each variable, {counted(sample, 'block')} at most"]
        seconds = time.perf_counter() - began
        return tally.result(one.store.url, other.store.url, said, seconds)


def _opened(target: Any, stack: ExitStack) -> Opened:
    """Return an open dataset whose text keeps its bytes; `stack` closes it if it is opened here."""
    if isinstance(target, Opened):
        return replace(target, exact=True)
    return replace(stack.enter_context(open_hierarchy(target)), exact=True)


def _paths_of(variables: Collection[str] | None, sides: Sequence[Opened]) -> frozenset[str] | None:
    """Return paths of variables, which may have been given without the first slash.

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
    there = {v.path for side in sides for v in side.hierarchy.root.all_variables()}
    wanted = frozenset(f"/{name.lstrip('/')}" for name in variables)
    for path in sorted(wanted - there):
        hint = did_you_mean(path, there) or "; the path of its group stands before its name"
        raise URLError(path, f"no such variable{hint}")
    return wanted


def _differing(
    part: Part, values: Sequence[np.ndarray], allowed: Tolerance, unlike: AbstractSet[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Tell, for each element, whether it is stored otherwise, and whether it differs in any way.

    `unlike` has the objects of the structure that differ: if none of them decodes the variable,
    elements that are stored alike are decoded alike.
    """
    a, b = part.variables
    one, other = values
    if variable_type(a) == variable_type(b):
        # the numbers of an enum stand for names
        stored = differing(one, other, allowed if a.enum is None else EXACT)
        if unlike.isdisjoint(attribute_object(part.path, name) for name in DECODING):
            return stored, stored
    else:
        stored = np.zeros(one.shape, bool)
    if not all(map(is_decoded, part.variables)):
        return stored, stored
    return stored, stored | differing_decoded((a, b), (one, other), allowed)


def _shown(
    part: Part, stored: np.ndarray, mask: np.ndarray, values: Sequence[np.ndarray]
) -> list[Difference]:
    """Return the first differing values of a part, decoded if they are stored alike."""
    found = []
    for flat in np.flatnonzero(mask)[:SHOWN].tolist():
        place = np.unravel_index(flat, mask.shape)
        index = tuple(int(at) + s.start for at, s in zip(place, part.part, strict=True))
        ones = [one.reshape(-1)[flat : flat + 1] for one in values]
        if stored.reshape(-1)[flat]:
            a, b = (spelled(one)[0] for one in ones)
        else:
            a, b = map(decoded_text, part.variables, ones)
        what = "value" if stored.reshape(-1)[flat] else "decoded value"
        found.append(Difference(f"variable {part.path}", what, index, a, b))
    return found


# -- blocks --------------------------------------------------------------------------------------


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
        return sum(repeats(shape, tried, grid) for grid in grids)

    while math.prod(lengths) * itemsize > limit and any(choices):
        axis = min((axis for axis, choice in enumerate(choices) if choice), key=cost)
        lengths[axis] = choices[axis].pop()
    for axis in reversed(range(len(lengths))):
        times = limit // (math.prod(lengths) * itemsize)
        lengths[axis] = min(shape[axis], lengths[axis] * max(1, times))
    return tuple(lengths)


class Part(NamedTuple):
    """A block of a variable, which each dataset has as a variable of its own.

    Parameters
    ----------
    variables
        One for each dataset.
    part
        One slice per dimension.
    """

    variables: tuple[Variable, Variable]
    part: tuple[slice, ...]

    @property
    def path(self) -> str:
        """Of the variable."""
        return self.variables[0].path

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(s.stop - s.start for s in self.part)


def _divided(
    a: Opened, b: Opened, only: Collection[str] | None, sample: int | None
) -> Iterator[tuple[tuple[Variable, Variable], Blocks]]:
    """Yield the variables of one shape that both datasets have, divided into blocks.

    They are of one type, or both of what CF decodes.
    """
    of_b = readable_variables(b.hierarchy.root)
    most = READ_BYTES if sample is None else SAMPLE_BYTES
    for path, variable in readable_variables(a.hierarchy.root).items():
        other = of_b.get(path)
        if other is None or (only is not None and path not in only):
            continue
        alike = variable_type(other) == variable_type(variable)
        if other.shape != variable.shape or not (alike or all(map(is_decoded, (variable, other)))):
            continue
        grids = [chunk_lengths(v.array, len(v.shape)) for v in (variable, other)]
        lengths = block_lengths(variable.shape, _itemsize(variable), grids, most)
        yield (variable, other), Blocks(variable.shape, lengths)


def _itemsize(variable: Variable) -> int:
    """Return the bytes that an element takes in memory, about."""
    least = _OBJECT_BYTES if variable.dtype.hasobject else 1
    return max(least, variable.dtype.itemsize)


def _read(
    a: Opened, b: Opened, parts: Iterable[Part], tally: Tally
) -> Iterator[tuple[Part, list[np.ndarray]]]:
    """Yield parts with their values of each dataset; what cannot be read is noted and left out.

    What is far away is read by many requests at once, and both datasets at the same time.
    """
    with WaitingThreads(1, "nczarr-compare") as pool:
        for batch in _batches(parts):
            of_a, of_b = ([(p.variables[i], p.part) for p in batch] for i in range(2))
            reading = pool.submit(b.read_many, of_b)
            for part, *found in zip(batch, a.read_many(of_a), reading.result(), strict=True):
                values = []
                for variable, one in zip(part.variables, found, strict=True):
                    if isinstance(one, NCZarrError):
                        tally.trouble(one)
                    else:
                        values.append(as_text(variable, np.asarray(one)))
                if len(values) == len(found):
                    tally.compared[part.path] += part.size
                    tally.nbytes += values[0].nbytes
                    yield part, values


def _batches(parts: Iterable[Part]) -> Iterator[list[Part]]:
    batch: list[Part] = []
    total = 0
    for part in parts:
        nbytes = part.size * _itemsize(part.variables[0])
        if batch and total + nbytes > READ_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(part)
        total += nbytes
    if batch:
        yield batch
