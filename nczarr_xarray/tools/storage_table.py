"""How the variables of a dataset were stored where they were read: ``ds.nczarr``, printed.

Most of it is in ``encoding``. The rest is in the metadata of the dataset, if that can be opened by
its name alone. No data are read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import xarray as xr

from nczarr_fsspec.errors import NCZarrError, URLError
from nczarr_fsspec.places.url import is_url
from nczarr_fsspec.text import aligned, format_size
from nczarr_fsspec.transport.policy import TIMEOUT_OPTION
from nczarr_xarray.codecs.registry import compressions
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.formats.registry import GENERATIONS
from nczarr_xarray.model import Variable
from nczarr_xarray.tools.survey import StorageSize, survey

# -- chunk grid svg ------------------------------------------------------------------------------
# A chunk grid as a picture: the box that an array is, with the borders of its chunks.


#: In pixels: the longest side, the least of any, and the least between two lines.
_SIDE, _LEAST, _BETWEEN = 90, 8.0, 3.0
#: How far a step back goes to the right and up, and the room for a number, in pixels.
_OBLIQUE, _MARGIN = 0.4, 14


def chunk_grid_svg(shape: Sequence[int], grid: Sequence[int]) -> str:
    """Draw the last three dimensions of a chunk grid as SVG.

    Parameters
    ----------
    shape
        Of the array, none of it zero.
    grid
        The number of chunks along each dimension.
    """
    depth, height, width = (1, 1, 1, *shape)[-3:]
    layers, rows, columns = (1, 1, 1, *grid)[-3:]
    scale = _SIDE / max(depth, height, width)
    wide, high = max(_LEAST, width * scale), max(_LEAST, height * scale)
    back = max(_LEAST, depth * scale * _OBLIQUE) if len(shape) > 2 else 0.0
    across, down = _borders(columns, wide), _borders(rows, high)
    lines = [
        *(f"M0 {back + high * at:.1f}h{wide:.1f}" for at in down),
        *(f"M{wide * at:.1f} {back:.1f}v{high:.1f}" for at in across),
    ]
    if back:
        slope = f"l{back:.1f} {-back:.1f}"
        lines += [
            *(f"M{wide * at:.1f} {back:.1f}{slope}" for at in across),
            *(f"M{wide:.1f} {back + high * at:.1f}{slope}" for at in down),
            *(
                f"M{back * at:.1f} {back - back * at:.1f}h{wide:.1f}v{high:.1f}"
                for at in _borders(layers, back)
            ),
        ]
    outline = f"M0 {back:.1f}l{back:.1f} {-back:.1f}h{wide:.1f}v{high:.1f}l{-back:.1f} {back:.1f}"
    size = f"{wide + back + 5 * _MARGIN:.0f}", f"{high + back + _MARGIN:.0f}"
    return (  # pages that scale pictures need the box; without it they cut them
        f'<svg width="{size[0]}" height="{size[1]}" viewBox="0 0 {" ".join(size)}" font-size="11">'
        f'<path d="{outline}h{-wide:.1f}z" fill="#e3edf9"/>'
        f'<path d="{"".join(lines)}" stroke="#5b6b7b" fill="none"/>'
        f"{''.join(_numbers(shape, wide, high, back))}</svg>"
    )


def _numbers(shape: Sequence[int], wide: float, high: float, back: float) -> Iterator[str]:
    """Yield the lengths of the dimensions beside the box."""
    places = [
        (0, back + high + _MARGIN - 2),
        (wide + back + 3, high / 2 + 4),
        (wide + back / 2 + 3, back / 2 + high + 8),
    ]
    for length, (x, y) in zip(reversed(shape), places, strict=False):
        yield f'<text x="{x:.0f}" y="{y:.0f}" fill="currentColor">{length:,}</text>'


def _borders(count: int, length: float) -> list[float]:
    """Return where the borders of `count` chunks are between 0 and 1, or as many as fit."""
    shown = min(count, max(1, int(length / _BETWEEN)))
    return [number / shown for number in range(shown + 1)]


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
    """

    format: str
    places: Mapping[str, tuple[str, StorageSize | None]]


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
            paths = _paths(opened.hierarchy.root.all_variables(), wanted)
            found = survey(opened, frozenset(paths.values()))
            generation = opened.hierarchy.generation
    except (NCZarrError, ImportError):
        return None
    stored = {facts.path: facts.stored for facts in found.facts}
    places = {name: (path, stored.get(path)) for name, path in paths.items()}
    return Located(GENERATIONS.get(generation, generation), places)


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
_UNKNOWN = "source unknown: not read from a dataset, or text (xarray drops its encoding)"


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
    nbytes
        Before codecs; None if its elements have no fixed size.
    """

    name: str
    source: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...] | None
    codecs: str
    nbytes: int | None

    @classmethod
    def of(cls, name: str, variable: xr.Variable) -> StoredVariable:
        """Look at the encoding of a variable."""
        encoding = variable.encoding
        shape = tuple(encoding.get("original_shape", variable.shape))
        chunks = encoding.get("chunksizes")
        size = _itemsize(encoding.get("dtype", variable.dtype))
        return cls(
            name,
            str(encoding.get("source", "")),
            tuple(map(str, variable.dims)),
            shape,
            None if chunks is None or len(chunks) != len(shape) else tuple(chunks),
            _codecs(encoding),
            None if size is None else math.prod(shape) * size,
        )

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of chunks along each dimension; none if there are no chunks."""
        if self.chunks is None:
            return ()
        return tuple(
            -(-n // max(1, chunk)) for n, chunk in zip(self.shape, self.chunks, strict=True)
        )

    def cells(self, located: Located | None) -> tuple[str, ...]:
        """Return a row of the table, with what the dataset itself says."""
        same = len(self.dimensions) == len(self.shape)
        names = self.dimensions if same else ("",) * len(self.shape)
        sides = (f"{name} {n:,}".strip() for name, n in zip(names, self.shape, strict=True))
        chunks = "one piece" if self.source else ""
        if self.chunks:
            lengths = " × ".join(f"{length:,}" for length in self.chunks)
            chunks = f"{math.prod(self.grid):,} of {lengths}"
        path, stored, size = self.name, None, "?" if self.source else ""
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
        """Draw the chunk grid as SVG; ``""`` if there are no chunks."""
        return chunk_grid_svg(self.shape, self.grid) if self.chunks and all(self.shape) else ""


@dataclass(frozen=True, slots=True)
class Storage:
    """How the variables of a dataset, an array or a tree were stored."""

    variables: tuple[StoredVariable, ...]

    @classmethod
    def of(cls, obj: xr.Dataset | xr.DataArray | xr.DataTree) -> Storage:
        """Look at the encoding of all variables."""
        return cls(tuple(StoredVariable.of(name, variable) for name, variable in _variables(obj)))

    @property
    def source(self) -> str:
        """The dataset that all variables come from which were read.

        Raises
        ------
        URLError
            If there is none, or more than one, or one that has no address.
        """
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
        parts = []
        head = "".join(f"<th>{label}</th>" for label in (*_LABELS, "chunk grid"))
        for heading, rows in self._tables():
            body = "".join(
                f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}"
                f"<td>{variable.drawing()}</td></tr>"
                for variable, cells in rows
            )
            parts.append(
                f"<p>{escape(heading)}</p>"
                f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            )
        return "".join(parts) or "<p>no variables</p>"

    def _tables(self) -> Iterator[tuple[str, list[tuple[StoredVariable, tuple[str, ...]]]]]:
        """Yield a heading for each dataset, and its variables with their cells."""
        # what is not known comes last
        found: dict[str, list[StoredVariable]] = {}
        for variable in self.variables:
            found.setdefault(variable.source, []).append(variable)
        for source, variables in sorted(found.items(), key=lambda item: not item[0]):
            located, heading = None, _UNKNOWN
            if source:
                located = locate(source, [(v.name, v.shape) for v in variables])
                heading = f"stored in {source}"
            if located is not None:
                heading += f": {located.format}"
            yield heading, [(v, v.cells(located)) for v in variables]


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
