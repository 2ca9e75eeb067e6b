"""What a selection of an aggregation wants of each fragment: pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from nczarr_xarray.chunks.pieces import Division
from nczarr_xarray.chunks.plan import ChunkTask, Plan
from nczarr_xarray.model import FragmentArray


class Part(NamedTuple):
    """What a selection wants of one fragment.

    Attributes
    ----------
    number
        Of the fragment.
    shape
        Of its part of the aggregation.
    key
        Per dimension of the aggregation, what is wanted, relative to the begin of the fragment.
    target
        Where it goes in the result, as a key of numpy.
    """

    number: int
    shape: tuple[int, ...]
    key: tuple[Any, ...]
    target: tuple[Any, ...]


class FragmentGrid:
    """The grid of fragments of an aggregation, with what lies between them.

    Attributes
    ----------
    edges
        Per dimension, where each fragment, and each gap, begins.
    """

    def __init__(self, array: FragmentArray) -> None:
        self._fragments = array.fragments
        self.edges: list[Division] = []
        #: per dimension: the fragment that begins at an edge, or -1
        self._numbers: list[list[int]] = []
        #: per dimension: the lengths of the fragments
        self._lengths: list[list[int]] = []
        bounds = zip(array.fragments.starts, array.fragments.stops, array.shape, strict=True)
        for starts, stops, length in bounds:
            edges = np.unique(np.concatenate(([0], starts, stops[stops < length])))
            numbers = np.full(len(edges), -1)
            numbers[np.searchsorted(edges, starts)] = np.arange(len(starts))
            self.edges.append(edges)
            self._numbers.append(numbers.tolist())
            self._lengths.append((stops - starts).tolist())

    def parts(self, plan: Plan) -> Iterator[tuple[tuple[Any, ...], Part | None]]:
        """Yield where parts go in the result, and the parts; None for what is missing."""
        for task in plan.tasks():
            yield task.target, self._part(task, plan.axes)

    def _part(self, task: ChunkTask, axes: tuple[int, ...] | None) -> Part | None:
        number = 0
        shape = []
        for at, numbers, lengths in zip(task.position, self._numbers, self._lengths, strict=True):
            own = numbers[at]
            if own < 0:
                return None
            number = number * len(lengths) + own
            shape.append(lengths[own])
        if self._fragments.addresses[number] is None:
            return None
        key = task.source
        if axes is not None:
            key = tuple(key[axes.index(axis)] for axis in range(len(key)))
        if np.ndarray in map(type, key):
            key = tuple(i if isinstance(i, slice) else i.reshape(-1) for i in key)
        return Part(number, tuple(shape), key, task.target)
