"""netCDF4-python as the oracle of `nczarr_xarray.netcdf4`: everything both say is compared."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

#: What switches decoding off, each for itself.
SWITCHES = ("set_auto_mask", "set_auto_scale", "set_auto_maskandscale", "set_always_mask")


def difference(theirs: Any, ours: Any) -> str:
    """Say in what two values of one kind differ, to the bit; "" if in nothing."""
    if theirs is np.ma.masked or ours is np.ma.masked:
        return "" if theirs is ours else f"masked: {theirs!r}, {ours!r}"
    if type(theirs) is not type(ours):
        return f"type: {type(theirs)}, {type(ours)}"
    if not isinstance(theirs, np.ndarray):
        both = np.asarray(theirs), np.asarray(ours)
        same = np.array_equal(*both, equal_nan=both[0].dtype.kind == "f")
        return "" if same else f"value: {theirs!r}, {ours!r}"
    if theirs.dtype != ours.dtype or theirs.shape != ours.shape:
        return f"form: {theirs.dtype} {theirs.shape}, {ours.dtype} {ours.shape}"
    if isinstance(theirs, np.ma.MaskedArray):
        if not np.array_equal(np.ma.getmaskarray(theirs), np.ma.getmaskarray(ours)):
            return f"mask: {theirs!r}, {ours!r}"
        if difference(np.asarray(theirs.fill_value), np.asarray(ours.fill_value)):
            return f"fill value: {theirs.fill_value!r}, {ours.fill_value!r}"
        theirs, ours = theirs.data, ours.data
    if theirs.dtype.kind == "O":
        pairs = zip(theirs.ravel().tolist(), ours.ravel().tolist(), strict=True)
        return next(filter(None, (difference(*pair) for pair in pairs)), "")
    if theirs.dtype.names:
        found = (difference(theirs[name], ours[name]) for name in theirs.dtype.names)
        return next(filter(None, found), "")
    equal = np.array_equal(theirs, ours, equal_nan=theirs.dtype.kind in "fc")
    return "" if equal else f"values: {theirs!r}, {ours!r}"


def keys(shape: tuple[int, ...], draw: random.Random) -> Iterator[tuple[Any, ...]]:
    """Yield everything, and some selections of netCDF4-python's kinds."""
    yield (Ellipsis,)
    for _ in range(3):
        yield tuple(_key(length, draw) if length else slice(None) for length in shape)


def _key(length: int, draw: random.Random) -> Any:
    return draw.choice(
        [
            draw.randrange(-length, length),
            slice(draw.randrange(length), None, draw.choice([1, 2, 3])),
            slice(None, None, -1),
            sorted(draw.sample(range(length), draw.randrange(1, min(length, 4) + 1))),
            np.array([draw.random() < 0.5 for _ in range(length)]),
            slice(None),
        ]
    )


def compare(theirs: Any, ours: Any, draw: random.Random) -> list[str]:
    """Return all that two open datasets, or groups of them, say differently."""
    found: list[str] = []
    path = theirs.path
    for members in ("dimensions", "variables", "groups", "enumtypes", "cmptypes", "vltypes"):
        there, here = sorted(getattr(theirs, members)), sorted(getattr(ours, members))
        found += [f"{path}: {members}: {there}, {here}"] if there != here else []
    for name, one in {**theirs.cmptypes, **theirs.vltypes}.items():
        other: Any = {**ours.cmptypes, **ours.vltypes}.get(name)
        found += [f"{path} {name}: {one}, {other}"] if one.dtype != other.dtype else []
    if theirs.data_model != ours.data_model:
        found.append(f"{path}: {theirs.data_model}, {ours.data_model}")
    found += _attributes(theirs, ours, path)
    for name, dimension in theirs.dimensions.items():
        other = ours.dimensions[name]
        one, two = ((len(d), d.size, d.isunlimited(), d.name) for d in (dimension, other))
        if one != two:
            found.append(f"{path} {name}: {one}, {two}")
    for name, variable in theirs.variables.items():
        found += _variables(variable, ours.variables[name], f"{path} {name}", draw)
    for name, group in theirs.groups.items():
        found += compare(group, ours.groups[name], draw)
    return found


def _attributes(theirs: Any, ours: Any, where: str) -> list[str]:
    if sorted(theirs.ncattrs()) != sorted(ours.ncattrs()):
        return [f"{where}: {theirs.ncattrs()}, {ours.ncattrs()}"]
    told = (
        (name, difference(theirs.getncattr(name), ours.getncattr(name)))
        for name in theirs.ncattrs()
    )
    return [f"{where}:{name}: {what}" for name, what in told if what]


def _variables(theirs: Any, ours: Any, where: str, draw: random.Random) -> list[str]:
    found = _attributes(theirs, ours, where)
    if getattr(theirs.datatype, "name", "") != getattr(ours.datatype, "name", ""):
        found.append(f"{where}: {theirs.datatype}, {ours.datatype}")
    for name in ("dtype", "dimensions", "shape", "ndim", "size", "name"):
        if getattr(theirs, name) != getattr(ours, name):
            found.append(f"{where}.{name}: {getattr(theirs, name)}, {getattr(ours, name)}")
    for key in keys(theirs.shape, draw):
        if told := read_both(theirs, ours, key):
            found.append(f"{where}{key}: {told}")
    for switch in SWITCHES:
        for variable in (theirs, ours):
            getattr(variable, switch)(False)
        if told := read_both(theirs, ours, (Ellipsis,)):
            found.append(f"{where} {switch}: {told}")
        for variable in (theirs, ours):
            getattr(variable, switch)(True)
    return found


def read_both(theirs: Any, ours: Any, key: tuple[Any, ...]) -> str:
    """Say in what a selection differs; errors of both are none."""
    values, errors = [], []
    for variable in (theirs, ours):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                values.append(variable[key])
        except (IndexError, TypeError, ValueError) as error:
            errors.append(repr(error))
    if errors:
        return f"{errors}" if values else ""
    return difference(*values)
