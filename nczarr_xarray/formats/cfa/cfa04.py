"""CFA-0.4: one attribute of JSON that lists the partitions, in the dialects of four writers.

S3netCDF4 0.1 says ``cf_dimensions`` for ``cfa_dimensions``. S3netCDF4 2.1 has formats of its own.
cf-python adds ``base``, ``part``, ``pdimensions``, ``reverse``, ``punits`` and ``pcalendar``, and
lists in ``pmdimensions`` only what is divided, in any order. The examples in the specification
differ from its text: ends of locations are exclusive, ``data`` is said for ``subarray``, ``flip``
for ``reverse``, and the format is said of the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain, islice
from operator import itemgetter
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.places.url import is_url
from nczarr_xarray.formats.cf import Scoped, packing_of
from nczarr_xarray.formats.cfa import cfa04_json
from nczarr_xarray.formats.cfa.borders import grid_of
from nczarr_xarray.formats.cfa.cfa04_json import Mappings, read_table
from nczarr_xarray.formats.cfa.dialect import (
    DIMENSIONS_ATTRIBUTES,
    MOST_TEXT,
    Decoded,
    Encoded,
    array_of,
    column,
    dimensions_of,
    listed_dimensions,
    names_in_group,
)
from nczarr_xarray.model import Dimension, FragmentMapping, Fragments, Variable

_ATTRIBUTES = frozenset({"cf_role", "cfa_array", *DIMENSIONS_ATTRIBUTES})
_MOST = 1 << 62


class Cfa04:
    """Reads and writes CFA-0.4."""

    name = "0.4"
    conventions = "CFA-0.4"
    text_terms: frozenset[str] = frozenset()
    plain_addresses = True
    keeps_packing = True
    keeps_versions = False

    def recognizes(self, variable: Variable) -> bool:
        """Tell an aggregation variable by its attribute ``cfa_array``."""
        return "cfa_array" in variable.attributes

    def terms(self, scoped: Scoped) -> Mapping[str, Variable]:
        """Return nothing: all is in the attribute."""
        return {}

    def decode(self, scoped: Scoped, values: Mapping[str, np.ndarray]) -> Decoded:
        """Make a table of fragments of the attribute ``cfa_array``."""
        attribute, listed = listed_dimensions(scoped)
        dimensions = scoped.variable.dimensions
        if attribute:
            dimensions = dimensions_of(scoped, attribute, listed)
        try:
            fragments, gaps = _Table(scoped, dimensions, listed).fragments()
        except RecursionError:
            raise scoped.error("has an attribute cfa_array that is nested too deeply") from None
        array = array_of(scoped, dimensions, fragments, packing_of(scoped.variable), gaps)
        return Decoded(dimensions, array, _ATTRIBUTES)

    def encode(
        self,
        name: str,
        dimensions: tuple[tuple[str, int], ...],
        fragments: Fragments,
        beside: str = "",
    ) -> Encoded:
        """Spell a table of fragments so that the original, its successor and cf-python read it."""
        return cfa04_json.encode(name, dimensions, fragments)


class _Table:
    """The JSON of one variable.

    What it says is read by columns: what is done for each partition is the cost of a long table.

    Parameters
    ----------
    scoped
        The variable.
    dimensions
        Of the aggregated data.
    listed
        Their names as an attribute has them, if one does.
    """

    def __init__(
        self, scoped: Scoped, dimensions: tuple[Dimension, ...], listed: list[str]
    ) -> None:
        self.scoped = scoped
        self.dimensions = dimensions
        self.listed = listed
        self.path = scoped.variable.path
        self.mapper = Mappings(dimensions)
        #: the partitions that are looked at, and how many were before
        self.some: list[dict[str, Any]] = []
        self.before = 0
        #: the columns, in parts
        self.indices: list[np.ndarray] = []
        self.locations: list[np.ndarray] = []
        self.addresses: list[str | None] = []
        self.names: list[str] = []
        self.formats: list[str | None] = []
        self.mappings: dict[int, FragmentMapping] = {}
        #: the first partition without a location, and how long the first one is that says so
        self.everywhere: int | None = None
        self.sample: tuple[int, list[Any]] | None = None
        try:
            table = read_table(scoped.text("cfa_array") or "", self.take)
        except ValueError as error:
            if isinstance(error, FormatError):
                raise
            raise self.error(f"is not valid JSON ({error})") from None
        self.table: dict[str, Any] = self.expect(table, dict, "is")
        self.expect(self.table.get("Partitions", []), list, "has Partitions that are")

    def error(self, reason: str) -> FormatError:
        """Return an error of the attribute."""
        return FormatError(self.path, f"has an attribute cfa_array that {reason}")

    def wrong(self, at: int, reason: str) -> FormatError:
        """Return an error of one of the partitions that are looked at."""
        index = self.some[at].get("index")
        return FormatError(self.path, f"{_called(self.before + at, index)} {reason}")

    def named(self, number: int) -> str:
        """Return what a partition is called in errors, when all were looked at."""
        return _called(number, self.indices[0][number].tolist())

    def expect(self, value: Any, kind: type, what: str) -> Any:
        """Return a value that must have a certain type."""
        if type(value) is not kind:
            raise self.error(f"{what} {value!r:.60}, not a {kind.__name__}")
        return value

    def take(self, some: list[Any]) -> None:
        """Add partitions to the columns."""
        if not set(map(type, some)) <= {dict}:
            raise self.error("has Partitions that are not all objects")
        self.some = some
        stored = self.subarrays()
        self.indices.append(self.index())
        self.locations.append(self.location())
        if self.sample is None:
            self.sample = self.shape(stored)
        self.places(stored)
        for at, mapping in self.mapper.of(some, self.wrong).items():
            self.mappings[self.before + at] = mapping
        self.before += len(some)
        self.some = []

    def fragments(self) -> tuple[Fragments, str]:
        """Return the table of fragments, and what data are in none."""
        shape, axes = self.matrix()
        index = self.whole_index(shape, axes)
        bounds = self.bounds(shape)
        grid = grid_of(self.scoped, self.dimensions, shape, index, bounds, self.named)
        numbers = grid.places
        mappings = {int(numbers[row]): mapping for row, mapping in self.mappings.items()}
        every = np.empty(grid.total, object)
        every[numbers] = self.based()
        above = self.strings([self.table.get("format")], "format", self.error)[0]
        formats = [(above if kind is None else kind) or "" for kind in self.formats]
        names = self.names
        if self.scoped.group is not self.scoped.root:
            theirs = names_in_group(self.scoped, names)
            columns = zip(names, theirs, formats, self.addresses, strict=True)
            # "NETCDF4" is S3netCDF4 2's word for what others call "netCDF"
            names = [b if kind[:6] == "NETCDF" and file else a for a, b, kind, file in columns]
        fragments = Fragments(
            grid.starts,
            grid.stops,
            every,
            grid.spread(names),
            grid.spread(formats),
            mappings=mappings,
        )
        nowhere = 0
        if None in self.addresses:
            pairs = zip(self.addresses, self.names, strict=True)
            nowhere = sum(address is None and bool(name) for address, name in pairs)
        gaps = f"{nowhere} fragments are in no file" if nowhere else ""
        return fragments, "; ".join(filter(None, (grid.gaps, gaps)))

    def matrix(self) -> tuple[list[int], list[int]]:
        """Return the shape of the matrix of partitions, and the dimensions that `index` has."""
        names = self.expect(self.table.get("pmdimensions", []), list, "has pmdimensions that are")
        alone = [1] * len(names)
        own = self.expect(self.table.get("pmshape", alone), list, "has a pmshape that is")
        known = [dimension.name for dimension in self.dimensions]
        axes: list[int] = []
        for name in names:
            spelled = self.listed if name in self.listed else known
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

    def index(self) -> np.ndarray:
        """Return the places of partitions in the matrix as they are stated, if they are."""
        rows = _column(self.some, "index")
        if set(map(type, rows)) <= {type(None)}:
            return np.zeros((len(rows), 0), np.int64)
        return self.integers(rows, len(rows[0]) if type(rows[0]) is list else 1, "an index")

    def whole_index(self, shape: list[int], axes: list[int]) -> np.ndarray:
        """Return the places of partitions in the matrix, with all dimensions."""
        before = 0
        for at, some in enumerate(self.indices):
            if some.shape[1] != len(axes):
                stated = some.shape[1] or any(length != 1 for length in shape)
                if stated:  # an only partition need not say where it is
                    index = some[0].tolist() or None
                    reason = f"has an index {index}, not {len(axes)} small integers"
                    raise FormatError(self.path, f"{_called(before, index)} {reason}")
                self.indices[at] = np.zeros((len(some), len(axes)), np.int64)
            before += len(some)
        self.indices = [np.concatenate([np.zeros((0, len(axes)), np.int64), *self.indices])]
        whole = np.zeros((before, len(shape)), np.int64)
        whole[:, axes] = self.indices[0]
        return whole

    def location(self) -> np.ndarray:
        """Return begin and end of partitions per dimension, as they are stated."""
        ndim = len(self.dimensions)
        rows: list[Any] = _column(self.some, "location")
        if None in rows:
            if self.everywhere is None:
                self.everywhere = self.before + rows.index(None)
            rows = [[[0, 0]] * ndim if row is None else row for row in rows]
        if not (set(map(type, rows)) <= {list} and set(map(len, rows)) <= {ndim}):
            for at, row in enumerate(rows):
                if type(row) is not list or len(row) != ndim:
                    raise self.wrong(at, f"has the location {row!r:.60}, not one of {ndim} pairs")
        pairs = list(chain.from_iterable(rows))
        flat = self.integers(pairs, 2, "a location that has a part", max(1, ndim))
        return flat.reshape(len(rows), ndim, 2)

    def bounds(self, shape: list[int]) -> np.ndarray:
        """Return begin and exclusive end of partitions per dimension."""
        sizes = np.array([dimension.size for dimension in self.dimensions], np.int64)
        if self.everywhere is not None:
            if self.before > 1 or any(length != 1 for length in shape):
                raise FormatError(self.path, f"{self.named(self.everywhere)} has the location None")
            return np.stack([np.zeros_like(sizes), sizes], axis=-1)[None]
        bounds = np.concatenate([np.zeros((0, len(sizes), 2), np.int64), *self.locations])
        exclusive = bool((bounds[..., 1] == sizes).any())
        if not exclusive and self.sample is not None:
            row, lengths = self.sample
            exclusive = sorted((bounds[row, :, 1] - bounds[row, :, 0]).tolist()) == sorted(lengths)
        if not exclusive:
            bounds[..., 1] += 1
        return bounds

    def shape(self, stored: list[dict[str, Any]]) -> tuple[int, list[Any]] | None:
        """Return the shape of the first fragment that is whole, with the number of it."""
        for at, (partition, one) in enumerate(zip(self.some, stored, strict=True)):
            shape = one.get("shape")
            if (
                type(shape) is list
                and 0 < len(shape) == len(self.dimensions)
                and set(map(type, shape)) == {int}
                and "part" not in partition
            ):
                return self.before + at, shape
        return None

    def integers(self, rows: list[Any], length: int, what: str, each: int = 1) -> np.ndarray:
        """Return rows of integers as an array; there are `each` of them for a partition."""
        proper = set(map(type, rows)) <= {list} and set(map(len, rows)) <= {length}
        flat = list(chain.from_iterable(rows)) if proper else []
        if not (proper and set(map(type, flat)) <= {int} and _fit(flat)):
            for at, row in enumerate(rows):
                if not (
                    type(row) is list
                    and len(row) == length
                    and all(type(n) is int for n in row)
                    and _fit(row)
                ):
                    reason = f"has {what} {row!r:.60}, not {length} small integers"
                    raise self.wrong(at // each, reason)
        return np.array(flat, np.int64).reshape(len(rows), length)

    def subarrays(self) -> list[dict[str, Any]]:
        """Return what partitions say of their files; {} of those that say nothing."""
        subarrays = _column(self.some, "subarray")
        if set(map(type, subarrays)) <= {dict}:
            return subarrays
        for at, one in enumerate(self.some):
            stored = one.get("subarray", one.get("data"))
            if stored is not None and type(stored) is not dict:
                raise self.wrong(at, f"has the subarray {stored!r:.60}, not an object")
            subarrays[at] = stored or {}
        return subarrays

    def places(self, stored: list[dict[str, Any]]) -> None:
        """Add the addresses, names and formats of partitions."""
        files = self.strings(_column(stored, "file"), "file", self.wrong)
        names = self.strings(_column(stored, "ncvar"), "ncvar", self.wrong)
        formats = _column(stored, "format")
        if None in formats:
            pairs = zip(formats, self.some, strict=True)
            formats = [one.get("format") if own is None else own for own, one in pairs]
        self.formats += column(self.strings(formats, "format", self.wrong)).tolist()
        if not (all(files) and all(names)):
            for at, (file, name) in enumerate(zip(files, names, strict=True)):
                if not file:
                    found = self.own(name, stored[at])
                    files[at] = None if found is None else ""
                    names[at] = name if found is None else found.path.lstrip("/")
                elif not name:
                    number = stored[at].get("varid")
                    if type(number) is not int or not 0 <= number < _MOST:
                        kind = f", whose format is {formats[at]!r:.20}" if formats[at] else ""
                        reason = f"has no name of a variable in {file!r:.200}{kind}"
                        raise self.wrong(at, reason)
                    names[at] = f"#{number}"
        self.addresses += files
        self.names += column([name or "" for name in names]).tolist()

    def own(self, name: str | None, stored: dict[str, Any]) -> Variable | None:
        """Find the variable of the master that a partition without a file is, if there is one."""
        number = stored.get("varid")
        variable = self.scoped.sibling(name) if name else None
        if not name and type(number) is int and 0 <= number < _MOST:
            variable = next(islice(self.scoped.root.variables.values(), number, None), None)
        return None if variable is self.scoped.variable else variable

    def strings(self, values: list[Any], what: str, error: Callable[..., FormatError]) -> list[Any]:
        """Return texts that may be absent."""
        if not set(map(type, values)) <= {str, type(None)}:
            at = next(n for n, v in enumerate(values) if not isinstance(v, (str, type(None))))
            reason = f"has the {what} {values[at]!r:.60}, not text"
            raise error(at, reason) if self.some else error(reason)
        return values

    def based(self) -> list[str | None]:
        """Put the folder that the table states before relative addresses."""
        base = self.table.get("base")
        addresses = self.addresses
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


def _called(number: int, index: Any) -> str:
    return f"partition {number} of cfa_array (index {index!r:.60})"


def _column(rows: list[dict[str, Any]], key: str) -> list[Any]:
    """Return what objects say under a key."""
    try:
        return list(map(itemgetter(key), rows))
    except KeyError:
        return [row.get(key) for row in rows]


def _fit(numbers: list[int]) -> bool:
    return not numbers or (min(numbers) > -_MOST and max(numbers) < _MOST)
