"""Read the same parts of one or two datasets, many at a time within bounds."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import NCZarrError, URLError
from nczarr_fsspec.text import did_you_mean
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.model import Variable
from nczarr_xarray.tools.compare.blocks import READ_BYTES
from nczarr_xarray.tools.compare.tally import Tally
from nczarr_xarray.tools.compare.values import as_text

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


def paths_of(
    variables: Collection[str] | None, *known: Collection[str] | Opened
) -> frozenset[str] | None:
    """Return paths of variables, which may have been given without the first slash.

    Parameters
    ----------
    known
        The paths that there are, or datasets whose variables they are those of.

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
    there = {path for one in known for path in (_paths(one) if isinstance(one, Opened) else one)}
    wanted = frozenset(f"/{name.lstrip('/')}" for name in variables)
    for path in sorted(wanted - there):
        hint = did_you_mean(path, there) or "; the path of its group stands before its name"
        raise URLError(path, f"no such variable{hint}")
    return wanted


def _paths(side: Opened) -> set[str]:
    return {variable.path for variable in side.hierarchy.root.all_variables()}


def checked_sample(sample: int | None) -> int | None:
    """Return the number of blocks of a sample; raise `URLError` if it is none."""
    if sample is not None and not (isinstance(sample, Integral) and sample > 0):
        raise URLError("sample", f"{sample!r} is no number of blocks; write 1 or more")
    return sample
