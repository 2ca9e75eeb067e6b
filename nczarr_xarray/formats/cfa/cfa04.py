"""CFA-0.4: one attribute of JSON that lists the partitions, in the dialects of four writers.

S3netCDF4 0.1 says ``cf_dimensions`` for ``cfa_dimensions``. S3netCDF4 2.1 has formats of its own.
cf-python adds ``base``, ``part``, ``pdimensions``, ``reverse``, ``punits`` and ``pcalendar``, and
lists in ``pmdimensions`` only what is divided, in any order. The examples in the specification
differ from its text: ends of locations are exclusive, ``data`` is said for ``subarray``, ``flip``
for ``reverse``, and the format is said of the partition.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain, islice
from operator import itemgetter
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.url import is_url
from nczarr_xarray.formats.cfa import cfa04_write
from nczarr_xarray.formats.cfa.dialect import Decoded, Encoded, Owner
from nczarr_xarray.formats.cfa.mapping04 import Mappings
from nczarr_xarray.formats.cfa.matrix import grid_of
from nczarr_xarray.formats.cfa.table import (
    MOST_TEXT,
    array_of,
    column,
    dimensions_of,
    packing_of,
)
from nczarr_xarray.model import Dimension, Fragments, Variable

#: Names of attributes that list the dimensions, in the order in which they are tried.
_DIMENSIONS = ("cfa_dimensions", "cf_dimensions")
_ATTRIBUTES = frozenset({"cf_role", "cfa_array", *_DIMENSIONS})
_MOST = 1 << 62


class Cfa04:
    """Reads and writes CFA-0.4."""

    name = "0.4"
    conventions = "CFA-0.4"

    def recognizes(self, variable: Variable) -> bool:
        """Tell an aggregation variable by its attribute ``cfa_array``."""
        return "cfa_array" in variable.attributes

    def terms(self, owner: Owner) -> Mapping[str, Variable]:
        """Return nothing: all is in the attribute."""
        return {}

    def decode(self, owner: Owner, values: Mapping[str, np.ndarray]) -> Decoded:
        """Make a table of fragments of the attribute ``cfa_array``."""
        dimensions = _dimensions(owner)
        try:
            fragments, gaps = _Table(owner, dimensions).fragments()
        except RecursionError:
            raise FormatError(
                owner.variable.path, "has an attribute cfa_array that is nested too deeply"
            ) from None
        array = array_of(owner, dimensions, fragments, packing_of(owner.variable), gaps)
        return Decoded(dimensions, array, _ATTRIBUTES)

    def encode(
        self, name: str, dimensions: tuple[tuple[str, int], ...], fragments: Fragments
    ) -> Encoded:
        """Spell a table of fragments so that the original, its successor and cf-python read it."""
        return cfa04_write.encode(name, dimensions, fragments)


def _dimensions(owner: Owner) -> tuple[Dimension, ...]:
    for attribute in _DIMENSIONS:
        names = owner.text(attribute)
        if names is not None:
            return dimensions_of(owner, attribute, names.split())
    return owner.variable.dimensions


class _Table:
    """The JSON of one variable.

    What it says is read by columns: what is done for each partition is the cost of a long table.
    """

    def __init__(self, owner: Owner, dimensions: tuple[Dimension, ...]) -> None:
        self.owner = owner
        self.dimensions = dimensions
        self.path = owner.variable.path
        text = owner.text("cfa_array")
        try:
            table = json.loads(text or "", strict=False)
        except ValueError as error:
            raise self.error(f"is not valid JSON ({error})") from None
        self.table: dict[str, Any] = self.expect(table, dict, "is")
        self.partitions: list[dict[str, Any]] = self.expect(
            self.table.get("Partitions", []), list, "has Partitions that are"
        )
        if not set(map(type, self.partitions)) <= {dict}:
            raise self.error("has Partitions that are not all objects")

    def error(self, reason: str) -> FormatError:
        """Return an error of the attribute."""
        return FormatError(self.path, f"has an attribute cfa_array that {reason}")

    def wrong(self, number: int, reason: str) -> FormatError:
        """Return an error of one partition."""
        return FormatError(self.path, f"{self.named(number)} {reason}")

    def named(self, number: int) -> str:
        """Return what a partition is called in errors."""
        index = self.partitions[number].get("index")
        return f"partition {number} of cfa_array (index {index!r:.60})"

    def expect(self, value: Any, kind: type, what: str) -> Any:
        """Return a value that must have a certain type."""
        if type(value) is not kind:
            raise self.error(f"{what} {value!r:.60}, not a {kind.__name__}")
        return value

    def fragments(self) -> tuple[Fragments, str]:
        """Return the table of fragments, and what data are in none."""
        shape, axes = self.matrix()
        stored = self.subarrays()
        index = self.index(shape, axes)
        bounds = self.bounds(stored, shape)
        grid = grid_of(self.owner, self.dimensions, shape, index, bounds, self.named)
        addresses, names, formats = self.places(stored)
        found = Mappings(self.dimensions, self.wrong).of(self.partitions)
        numbers = grid.places
        mappings = {int(numbers[row]): mapping for row, mapping in found.items()}
        every = np.empty(grid.total, object)
        every[numbers] = addresses
        fragments = Fragments(
            grid.starts,
            grid.stops,
            every,
            _spread(names, numbers, grid.total),
            _spread(formats, numbers, grid.total),
            mappings=mappings,
        )
        nowhere = sum(
            address is None and bool(name) for address, name in zip(addresses, names, strict=True)
        )
        said = f"{nowhere} fragments are in no file" if nowhere else ""
        return fragments, "; ".join(filter(None, (grid.gaps, said)))

    def matrix(self) -> tuple[list[int], list[int]]:
        """Return the shape of the matrix of partitions, and the dimensions that `index` has."""
        names = self.expect(self.table.get("pmdimensions", []), list, "has pmdimensions that are")
        alone = [1] * len(names)
        own = self.expect(self.table.get("pmshape", alone), list, "has a pmshape that is")
        known = [dimension.name for dimension in self.dimensions]
        given = (
            self.owner.text("cfa_dimensions") or self.owner.text("cf_dimensions") or ""
        ).split()
        axes: list[int] = []
        for name in names:
            spelled = given if name in given else known
            if name not in spelled or spelled.index(name) in axes:
                raise self.error(f"has pmdimensions with {name!r:.60}, not a dimension of the data")
            axes.append(spelled.index(name))
        if len(own) != len(axes) or not all(type(n) is int and 0 <= n < _MOST for n in own):
            raise self.error(
                f"has the pmshape {own!r:.60}, which is not one length for each of {names!r:.60}"
            )
        shape = [1] * len(known)
        for axis, length in zip(axes, own, strict=True):
            shape[axis] = length
        return shape, axes

    def index(self, shape: list[int], axes: list[int]) -> np.ndarray:
        """Return the places of partitions in the matrix, with all dimensions."""
        if all(length == 1 for length in shape):  # an only partition need not say where it is
            rows = [one.get("index") or [0] * len(axes) for one in self.partitions]
        else:
            rows = _column(self.partitions, "index")
        flat = self.integers(rows, len(axes), "an index")
        whole = np.zeros((len(rows), len(shape)), np.int64)
        whole[:, axes] = flat
        return whole

    def bounds(self, stored: list[dict[str, Any]], shape: list[int]) -> np.ndarray:
        """Return begin and exclusive end of partitions per dimension."""
        ndim = len(self.dimensions)
        sizes = [dimension.size for dimension in self.dimensions]
        whole = [[0, size - 1] for size in sizes]
        alone = all(length == 1 for length in shape)
        rows: list[Any] = _column(self.partitions, "location", whole if alone else None)
        if not (set(map(type, rows)) <= {list} and set(map(len, rows)) <= {ndim}):
            for number, row in enumerate(rows):
                if type(row) is not list or len(row) != ndim:
                    said = f"has the location {row!r:.60}, not one of {ndim} pairs"
                    raise self.wrong(number, said)
        pairs = list(chain.from_iterable(rows))
        flat = self.integers(
            pairs, 2, "a location that has a part", lambda pair: pair // max(1, ndim)
        )
        found = flat.reshape(len(rows), ndim, 2)
        if not _is_exclusive(found, sizes, self.partitions, stored):
            found[..., 1] += 1
        return found

    def integers(self, rows: list[Any], length: int, what: str, owner: Any = int) -> np.ndarray:
        """Return rows of integers as an array; `owner` tells the partition of a row."""
        proper = set(map(type, rows)) <= {list} and set(map(len, rows)) <= {length}
        flat = list(chain.from_iterable(rows)) if proper else []
        if not (proper and set(map(type, flat)) <= {int} and _fit(flat)):
            for number, row in enumerate(rows):
                if not (
                    type(row) is list
                    and len(row) == length
                    and all(type(n) is int for n in row)
                    and _fit(row)
                ):
                    raise self.wrong(
                        owner(number), f"has {what} {row!r:.60}, not {length} small integers"
                    )
        return np.array(flat, np.int64).reshape(len(rows), length)

    def subarrays(self) -> list[dict[str, Any]]:
        """Return what partitions say of their files; {} of those that say nothing."""
        found = _column(self.partitions, "subarray")
        if set(map(type, found)) <= {dict}:
            return found
        for number, one in enumerate(self.partitions):
            stored = one.get("subarray", one.get("data"))
            if stored is not None and type(stored) is not dict:
                raise self.wrong(number, f"has the subarray {stored!r:.60}, not an object")
            found[number] = stored or {}
        return found

    def places(self, stored: list[dict[str, Any]]) -> tuple[list[Any], list[Any], list[Any]]:
        """Return addresses, names and formats of the partitions."""
        files = self.strings(_column(stored, "file"), "file")
        names = self.strings(_column(stored, "ncvar"), "ncvar")
        formats = self.strings(self.formats(stored), "format")
        addresses = self.based(files)
        if all(files) and all(names):
            return addresses, list(names), [kind or "" for kind in formats]
        addresses = [file or None for file in addresses]
        for number, (file, name) in enumerate(zip(files, names, strict=True)):
            if file and name:
                continue
            if not file:  # then it is a variable of the master, if there is one
                found = self.own(name, stored[number])
                if found is not None:
                    addresses[number], names[number] = "", found.path.lstrip("/")
                continue
            number_of = stored[number].get("varid")
            if type(number_of) is not int or not 0 <= number_of < _MOST:
                kind = f", whose format is {formats[number]!r:.20}" if formats[number] else ""
                raise self.wrong(number, f"has no name of a variable in {file!r:.200}{kind}")
            names[number] = f"#{number_of}"
        return addresses, [name or "" for name in names], [kind or "" for kind in formats]

    def own(self, name: str | None, stored: dict[str, Any]) -> Variable | None:
        """Find the variable of the master that a partition without a file is, if there is one."""
        number = stored.get("varid")
        found = self.owner.sibling(name) if name else None
        if not name and type(number) is int and number >= 0:
            found = next(islice(self.owner.root.variables.values(), number, None), None)
        return None if found is self.owner.variable else found

    def formats(self, stored: list[dict[str, Any]]) -> list[Any]:
        """Return the formats of the files: said of the file, the partition, or the table."""
        found = _column(stored, "format")
        if None not in found:
            return found
        above = self.table.get("format")
        return [
            partition.get("format", above) if own is None else own
            for own, partition in zip(found, self.partitions, strict=True)
        ]

    def strings(self, values: list[Any], what: str) -> list[str | None]:
        """Return texts that may be absent."""
        if not set(map(type, values)) <= {str, type(None)}:
            number = next(n for n, v in enumerate(values) if not isinstance(v, (str, type(None))))
            raise self.wrong(number, f"has the {what} {values[number]!r:.60}, not text")
        return values

    def based(self, addresses: list[str | None]) -> list[str | None]:
        """Put the folder that the table states before relative addresses."""
        base = self.table.get("base")
        if base is None or base == "":
            return addresses
        if type(base) is not str:
            raise self.error(f"has the base {base!r:.60}, not text")
        if len(base) * len(addresses) > MOST_TEXT:
            raise self.error(f"has a base of {len(base)} characters, for {len(addresses)} files")
        folder = base.rstrip("/")
        return [
            one if not one or one.startswith("/") or is_url(one) else f"{folder}/{one}"
            for one in addresses
        ]


def _column(rows: list[dict[str, Any]], key: str, absent: Any = None) -> list[Any]:
    """Return what objects say under a key."""
    try:
        return list(map(itemgetter(key), rows))
    except KeyError:
        return [row.get(key, absent) for row in rows]


def _fit(numbers: list[int]) -> bool:
    return not numbers or (min(numbers) > -_MOST and max(numbers) < _MOST)


def _is_exclusive(
    bounds: np.ndarray,
    sizes: list[int],
    partitions: list[dict[str, Any]],
    stored: list[dict[str, Any]],
) -> bool:
    """Tell whether ends are exclusive: one is the length of the dimension, or shapes say so."""
    if bool((bounds[..., 1] == np.array(sizes, np.int64)).any()):
        return True
    for row, (partition, one) in enumerate(zip(partitions, stored, strict=True)):
        shape = one.get("shape")
        if type(shape) is list and len(shape) == len(sizes) and "part" not in partition:
            lengths = sorted((bounds[row, :, 1] - bounds[row, :, 0]).tolist())
            return all(type(n) is int for n in shape) and bool(shape) and lengths == sorted(shape)
    return False


def _spread(values: list[Any], numbers: np.ndarray, count: int) -> np.ndarray:
    """Return a column of all fragments, given the values of those that are listed."""
    listed = column(values)
    if listed.strides == (0,) or not len(listed):
        return np.broadcast_to(np.array("", object) if not len(listed) else listed[0:1], (count,))
    result = np.full(count, "", object)
    result[numbers] = listed
    return result
