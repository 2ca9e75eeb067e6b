"""How the variables of a dataset were stored where they were read: ``ds.nczarr``, printed.

Most of it is in ``encoding``, as far as it is about what is in memory. The rest is in the metadata
of the dataset, if that can be opened by its name alone. No data are read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import xarray as xr

from nczarr_fsspec.errors import NCZarrError, URLError
from nczarr_fsspec.places.url import is_url
from nczarr_fsspec.text import aligned, counted, format_size
from nczarr_fsspec.transport.policy import TIMEOUT_OPTION
from nczarr_xarray.backend.compat import PreferredChunks
from nczarr_xarray.codecs.registry import compressions
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.formats.registry import GENERATIONS
from nczarr_xarray.model import FragmentArray, Fragments, Variable, grid_of
from nczarr_xarray.tools.html import Markup, chunk_grid_svg, report, table
from nczarr_xarray.tools.survey import StorageSize, survey

# -- located -------------------------------------------------------------------------------------
# Where variables are in the dataset that they come from, and how many bytes they take there.


#: Names, or paths below some group, and shapes.
Wanted: TypeAlias = Sequence[tuple[str, tuple[int, ...]]]
#: Seconds for each request, where a dataset is only looked at to be printed.
_PATIENCE = 10


class Located(NamedTuple):
    """What a dataset says of variables that come from it.

    Attributes
    ----------
    format
        In words.
    places
        Path and bytes of each variable that was found, by its name; None for bytes that the
        metadata do not tell.
    tables
        The fragments of aggregations, by path.
    """

    format: str
    places: Mapping[str, tuple[str, StorageSize | None]]
    tables: Mapping[str, Fragments]


def is_address(source: str) -> bool:
    """Tell whether ``encoding["source"]`` says where a dataset is, as ``"mapping"`` does not."""
    return is_url(source) or os.path.isabs(source)


def locate(source: str, wanted: Wanted) -> Located | None:
    """Look at the metadata of a dataset; None if it cannot be opened by its name alone."""
    if not is_address(source):
        return None
    remote = is_url(source) and not source.startswith("file:")
    options = {TIMEOUT_OPTION: _PATIENCE} if remote else None
    try:
        with open_hierarchy(source, storage_options=options) as opened:
            variables = [*opened.hierarchy.root.all_variables()]
            paths = _paths(variables, wanted)
            found = survey(opened, frozenset(paths.values()))
            generation = opened.hierarchy.generation
    except (NCZarrError, ImportError):
        return None
    stored = {facts.path: facts.stored for facts in found.facts}
    places = {name: (path, stored.get(path)) for name, path in paths.items()}
    tables = {v.path: v.array.fragments for v in variables if isinstance(v.array, FragmentArray)}
    return Located(GENERATIONS.get(generation, generation), places, tables)


def _paths(there: Iterable[Variable], wanted: Wanted) -> dict[str, str]:
    """Return the paths of variables by name: below the group that has most of them."""
    by_name: dict[str, list[Variable]] = {}
    for variable in there:
        by_name.setdefault(variable.name, []).append(variable)
    found: dict[str, dict[str, str]] = {}
    for name, shape in wanted:
        end = f"/{name.lstrip('/')}"
        for variable in by_name.get(end.rpartition("/")[2], ()):
            if variable.path.endswith(end) and variable.shape == shape:
                found.setdefault(variable.path.removesuffix(end), {})[name] = variable.path
    best = min(found, key=lambda group: (-len(found[group]), len(group)), default="")
    return found.get(best, {})


# -- storage -------------------------------------------------------------------------------------


_LABELS = ("variable", "shape", "chunks", "codecs", "plain", "stored")
#: A variable that is not as it was read: with more than was stored there, or otherwise.
Change: TypeAlias = Literal["joined", "changed"]


@dataclass(frozen=True, slots=True)
class StoredVariable:
    """How one variable was stored.

    Parameters
    ----------
    name
        With the group, in a tree.
    source
        The dataset that it was read from; ``""`` if it was not read.
    dimensions
        Names.
    shape, chunks
        Of what is stored; no `chunks` if it is contiguous, or if that is not known.
    codecs
        In words.
    itemsize
        Bytes of an element; None if it has no fixed size.
    lengths
        Of the fragments of an aggregation, along each dimension; else None.
    change
        What has become of it since it was read: then `shape` is what it is now, and nothing is
        stored so.
    """

    name: str
    source: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...] | None
    codecs: str
    itemsize: int | None
    lengths: tuple[tuple[int, ...], ...] | None = None
    change: Change | None = None

    @classmethod
    def of(cls, name: str, variable: xr.Variable) -> StoredVariable:
        """Look at the encoding of a variable."""
        encoding = variable.encoding
        shape = tuple(encoding.get("original_shape", variable.shape))
        source, names = str(encoding.get("source", "")), tuple(map(str, variable.dims))
        read = shape[:-1] if variable.dtype.kind in "SUO" and variable.shape != shape else shape
        if source and variable.shape != read:
            change: Change = "joined" if variable.size > math.prod(read) else "changed"
            size = _itemsize(variable.dtype)
            return cls(name, source, names, variable.shape, None, "", size, change=change)
        chunks = encoding.get("chunksizes")
        return cls(
            name,
            source,
            names,
            shape,
            None if chunks is None or len(chunks) != len(shape) else tuple(chunks),
            _codecs(encoding),
            _itemsize(encoding.get("dtype", variable.dtype)),
            _lengths(encoding.get("preferred_chunks"), shape),
        )

    @property
    def nbytes(self) -> int | None:
        """Before codecs; None if its elements have no fixed size."""
        return None if self.itemsize is None else math.prod(self.shape) * self.itemsize

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of fragments or chunks along each dimension; () if there are none."""
        if self.lengths is not None:
            return tuple(map(len, self.lengths))
        if self.chunks is None:
            return ()
        return grid_of(self.shape, tuple(max(1, chunk) for chunk in self.chunks))

    def fragments(self, stored: Fragments | None) -> str:
        """Say how many fragments there are, how large they are, and their chunks in words."""
        assert self.lengths is not None
        text = counted(math.prod(self.grid), "fragment")
        lacking = 0 if stored is None else sum(one is None for one in stored.addresses.tolist())
        text += f" ({lacking:,} missing)" if lacking else ""
        least, most = (tuple(end(along, default=0) for along in self.lengths) for end in (min, max))
        if self.itemsize is not None:
            low, high = (math.prod(shape) * self.itemsize for shape in (least, most))
            text += f", {_between(format_size(low), format_size(high))}"
        if self.chunks is not None:
            few, many = (math.prod(grid_of(one, self.chunks)) for one in (least, most))
            text += f", {_between(f'{few:,}', counted(many, 'chunk'))} each"
        return text

    def cells(self, located: Located | None) -> tuple[str, ...]:
        """Return a row of the table, with what the dataset itself says."""
        same = len(self.dimensions) == len(self.shape)
        names = self.dimensions if same else ("",) * len(self.shape)
        sides = (f"{name} {n:,}".strip() for name, n in zip(names, self.shape, strict=True))
        chunks = "one piece" if self.source and self.change is None else ""
        if self.lengths is not None:
            tables = {} if located is None else located.tables
            chunks = self.fragments(tables.get(f"/{self.name.lstrip('/')}"))
        elif self.chunks:
            lengths = " × ".join(f"{length:,}" for length in self.chunks)
            chunks = f"{math.prod(self.grid):,} of {lengths}"
        path, stored = self.name, None
        size = "?" if self.source and self.change is None else ""
        if located is not None:
            path, stored = located.places.get(self.name, (self.name, None))
        if self.source and stored is not None:  # about, if not all of its chunks were looked at
            size = ("≈ " if stored.count is None else "") + format_size(stored.nbytes)
        return (
            self.name if path == f"/{self.name}" else path,
            " × ".join(sides) or "scalar",
            chunks,
            self.codecs,
            "?" if self.nbytes is None else format_size(self.nbytes),
            size,
        )

    def drawing(self) -> str:
        """Draw the fragments or chunks as SVG; ``""`` if there are none."""
        return chunk_grid_svg(self.shape, self.grid) if self.grid and all(self.shape) else ""


@dataclass(frozen=True, slots=True)
class Storage:
    """How the variables of a dataset, an array or a tree were stored."""

    variables: tuple[StoredVariable, ...]
    tables: Mapping[str, Fragments] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        obj: xr.Dataset | xr.DataArray | xr.DataTree,
        tables: Mapping[str, Fragments] | None = None,
    ) -> Storage:
        """Look at the encoding of all variables.

        Parameters
        ----------
        tables
            As of `Located`, of an aggregation that is in memory.
        """
        found = tuple(StoredVariable.of(name, variable) for name, variable in _variables(obj))
        return cls(found, tables or {})

    @property
    def source(self) -> str:
        """The dataset that all variables come from which were read.

        Raises
        ------
        URLError
            If there is none, or more than one, or one that has no address.
        """
        for one in self.variables:
            if one.change == "joined":
                found = f"comes from several datasets, {one.source} among them; name one"
                raise URLError("xarray's object", found)
        sources = sorted({variable.source for variable in self.variables} - {""})
        for source in sources:
            if not is_address(source):
                found = (
                    f"was read from {source!r}, which is no address; name what it was opened from"
                )
                raise URLError("xarray's object", found)
        if not sources:
            raise URLError("xarray's object", "was not read from a stored dataset; name one")
        if len(sources) > 1:
            found = f"comes from {len(sources)} datasets, {sources[0]} among them; name one"
            raise URLError("xarray's object", found)
        return sources[0]

    def as_text(self) -> str:
        """Return a table of the variables for each dataset."""
        lines = []
        for heading, rows in self._tables():
            lines += [heading, *aligned([_LABELS, *(cells for _, cells in rows)])]
        return "\n".join(lines) or "no variables"

    def as_html(self) -> str:
        """Return the same tables with the chunk grids drawn."""
        head = *_LABELS, "grid"
        parts = [
            report(heading, table(head, [(*cells, Markup(one.drawing())) for one, cells in rows]))
            for heading, rows in self._tables()
        ]
        return "".join(parts) or report("no variables")

    def _tables(self) -> Iterator[tuple[str, list[tuple[StoredVariable, tuple[str, ...]]]]]:
        """Yield a heading for each dataset, and its variables with their cells."""
        # what was not read comes last
        found: dict[tuple[str, Change | None], list[StoredVariable]] = {}
        for variable in self.variables:
            found.setdefault((variable.source, variable.change), []).append(variable)
        for (source, change), variables in sorted(
            found.items(), key=lambda item: (not item[0][0], item[0][1] is not None)
        ):
            located = None
            if change is not None:
                heading = f"in memory, {_CHANGES[change]} {source}"
            elif source:
                located = locate(source, [(v.name, v.shape) for v in variables])
                heading = f"{'stored in' if is_address(source) else 'read from'} {source}"
                if located is not None:
                    heading += f": {located.format}"
                elif self.tables:
                    located = Located("", {}, self.tables)
            else:
                heading = "in memory, not read from a dataset"
                if len(found) > 1 and any(v.itemsize is None for v in variables):
                    heading += ", or text (xarray drops its encoding)"
            yield heading, [(v, v.cells(located)) for v in variables]


_CHANGES = {
    "joined": "joined from several datasets or extended; a part comes from",
    "changed": "changed since it was read from",
}


def _variables(obj: xr.Dataset | xr.DataArray | xr.DataTree) -> Iterator[tuple[str, xr.Variable]]:
    if isinstance(obj, xr.DataArray):
        yield str(obj.name or "values"), obj.variable
        yield from ((str(name), coordinate.variable) for name, coordinate in obj.coords.items())
    elif isinstance(obj, xr.Dataset):
        yield from ((str(name), variable) for name, variable in obj.variables.items())
    else:
        for group in obj.subtree:
            own = group.to_dataset(inherit=False)
            for name, variable in own.variables.items():
                yield f"{group.path.rstrip('/')}/{name}", variable


def _lengths(preferred: Any, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """Return the lengths of fragments along each dimension; None if it is no aggregation."""
    if not isinstance(preferred, PreferredChunks) or len(preferred) != len(shape):
        return None
    return tuple(
        length
        if isinstance(length, tuple)
        else tuple(min(length, size - start) for start in range(0, size, max(1, length)))
        for length, size in zip(preferred.values(), shape, strict=True)
    )


def _between(least: str, most: str) -> str:
    """Return what two amounts have between them: ``1 … 12 MB``."""
    number, _, unit = least.partition(" ")
    if least == most.partition(" ")[0] or least == most:
        return most
    return f"{number if most.endswith(f' {unit}') else least} … {most}"


def _itemsize(dtype: Any) -> int | None:
    """Return the bytes of an element; None if they have no fixed size, as text has not."""
    try:
        found = np.dtype(dtype)
    except TypeError:  # a dtype of pandas
        return None
    return None if found.kind in "OTU" else found.itemsize or None


def _codecs(encoding: Mapping[str, Any]) -> str:
    """Return the codecs in words: ``shuffle, zlib 4``."""
    found = ["shuffle"] if encoding.get("shuffle") else []
    compressor = encoding.get("compressor")
    if isinstance(compressor, Mapping):
        level = compressor.get("level", compressor.get("clevel", ""))
        found.append(f"{compressor.get('id')} {compressor.get('cname', '')} {level}")
    else:
        level = encoding.get("complevel") or ""
        found += [f"{name} {level}" for name in compressions() if encoding.get(name)]
    found += ["fletcher32"] if encoding.get("fletcher32") else []
    return ", ".join(" ".join(text.split()) for text in found)
