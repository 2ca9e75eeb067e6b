"""How the variables of a dataset were stored where they were read: ``ds.nczarr``, printed.

All of it is in ``encoding``: nothing is opened and no data are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import xarray as xr

from nczarr_fsspec.sizes import format_size

_LABELS = ("variable", "shape", "chunks", "codecs", "size")
#: Compressors in netCDF's words, as far as Zarr's `compressor` does not say it.
_COMPRESSORS = ("zlib", "zstd", "bzip2", "szip", "blosc")
#: Lines of a drawn chunk grid at most, along each side; its longer side, in pixels.
_LINES, _SIDE = 24, 90


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

    def cells(self) -> tuple[str, ...]:
        """Return a row of the table."""
        same = len(self.dimensions) == len(self.shape)
        names = self.dimensions if same else ("",) * len(self.shape)
        sides = (f"{name} {n:,}".strip() for name, n in zip(names, self.shape, strict=True))
        chunks = "one piece" if self.source else ""
        if self.chunks:
            lengths = " × ".join(f"{length:,}" for length in self.chunks)
            chunks = f"{math.prod(self.grid):,} of {lengths}"
        size = "?" if self.nbytes is None else format_size(self.nbytes)
        return self.name, " × ".join(sides) or "scalar", chunks, self.codecs, size

    def drawing(self) -> str:
        """Draw the chunk grid of the last two dimensions as SVG; ``""`` if there are no chunks."""
        if not self.chunks or not all(self.shape):
            return ""
        height, width = (1, *self.shape)[-2:]
        rows, columns = (1, *self.grid)[-2:]
        scale = _SIDE / max(height, width)
        high, wide = max(8.0, height * scale), max(8.0, width * scale)
        lines = [
            *(f"M0 {high * at:.1f}H{wide:.1f}" for at in _borders(rows)),
            *(f"M{wide * at:.1f} 0V{high:.1f}" for at in _borders(columns)),
        ]
        return (
            f'<svg width="{wide:.0f}" height="{high:.0f}" viewBox="0 0 {wide:.1f} {high:.1f}">'
            f'<rect width="100%" height="100%" fill="#e3edf9"/>'
            f'<path d="{"".join(lines)}" stroke="#5b6b7b" fill="none"/></svg>'
        )


@dataclass(frozen=True, slots=True)
class Storage:
    """How the variables of a dataset, an array or a tree were stored."""

    variables: tuple[StoredVariable, ...]

    @classmethod
    def of(cls, obj: xr.Dataset | xr.DataArray | xr.DataTree) -> Storage:
        """Look at the encoding of all variables."""
        return cls(tuple(StoredVariable.of(name, variable) for name, variable in _variables(obj)))

    def by_source(self) -> dict[str, list[StoredVariable]]:
        """Return the variables by the dataset that they were read from."""
        found: dict[str, list[StoredVariable]] = {}
        for variable in self.variables:
            found.setdefault(variable.source, []).append(variable)
        return found

    def as_text(self) -> str:
        """Return a table of the variables for each dataset."""
        lines = []
        for source, variables in self.by_source().items():
            table = [_LABELS, *(variable.cells() for variable in variables)]
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            lines.append(_heading(source))
            for row in table:
                cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
                lines.append(f"  {'  '.join(cells)}".rstrip())
        return "\n".join(lines) or "no variables"

    def as_html(self) -> str:
        """Return the same tables with the chunk grids drawn."""
        parts = []
        for source, variables in self.by_source().items():
            head = "".join(f"<th>{label}</th>" for label in (*_LABELS, "chunk grid"))
            rows = (
                "".join(f"<td>{cell}</td>" for cell in (*map(escape, v.cells()), v.drawing()))
                for v in variables
            )
            body = "".join(f"<tr>{row}</tr>" for row in rows)
            parts.append(
                f"<p>{escape(_heading(source))}</p>"
                f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            )
        return "".join(parts) or "<p>no variables</p>"


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


def _heading(source: str) -> str:
    return f"stored in {source}" if source else "not read from a stored dataset"


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
        found += [f"{name} {level}" for name in _COMPRESSORS if encoding.get(name)]
    found += ["fletcher32"] if encoding.get("fletcher32") else []
    return ", ".join(" ".join(text.split()) for text in found)


def _borders(count: int) -> Iterator[float]:
    """Yield where the borders of `count` chunks are between 0 and 1, or some of them."""
    shown = min(count, _LINES)
    yield from (number / shown for number in range(shown + 1))
