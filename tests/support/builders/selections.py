"""Random selections of variables: basic, outer and vectorised."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import xarray as xr

KINDS = ("all", "integer", "slice", "array", "mask", "points")


def a_slice(choose: random.Random, size: int) -> slice:
    """Any slice of a dimension, with ends beyond it and steps of both signs."""

    # xarray reads slice(-size - 1, None, -1) of lazy data, of any engine, as everything
    def end() -> int | None:
        return choose.choice([None, choose.randint(-size, size + 2)])

    return slice(end(), end(), choose.choice([None, 1, 2, 5, 20, -1, -2, -3]))


def indexers(choose: random.Random, sizes: dict[str, int], prefix: str = "p") -> dict[str, Any]:
    """Arguments of `isel`, by dimension.

    Parameters
    ----------
    choose
        Source of randomness.
    sizes
        Lengths of the dimensions.
    prefix
        Names of the dimensions of vectorised selections begin with it.
    """
    chosen: dict[str, Any] = {}
    points = choose.choice([(), (3,), (2, 2), (0,)])
    for name, size in sizes.items():
        kind = choose.choice(KINDS if size else ("all", "slice"))
        if kind == "integer":
            chosen[name] = choose.randint(-size, size - 1)
        elif kind == "slice":
            chosen[name] = a_slice(choose, size)
        elif kind == "array":
            count = choose.randint(0, 8)
            numbers = [choose.randint(-size, size - 1) for _ in range(count)]
            chosen[name] = np.array(numbers, dtype=np.intp)
        elif kind == "mask":
            chosen[name] = np.array([choose.random() < 0.5 for _ in range(size)])
        elif kind == "points":
            numbers = [choose.randint(-size, size - 1) for _ in range(int(np.prod(points)))]
            array = np.array(numbers, dtype=np.intp).reshape(points)
            chosen[name] = xr.DataArray(array, dims=[f"{prefix}{n}" for n in range(len(points))])
    return chosen
