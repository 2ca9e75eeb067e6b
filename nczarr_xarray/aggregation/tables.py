"""Tables of fragments of files whose places are known: arithmetic with columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.aggregation.grid import Before, FileGrid
from nczarr_xarray.aggregation.summary import Summary
from nczarr_xarray.formats.cfa.table import constant
from nczarr_xarray.model import Dimension, Fragments, assembled, in_a_row


@dataclass(frozen=True, slots=True)
class Tabler:
    """Makes the tables of fragments of variables.

    Parameters
    ----------
    files, addresses
        The files, and how the master names them.
    grid
        Where the files are along the dimensions.
    old
        The tables of the aggregation that the files are added to, by path of the variable.
    before
        Where the old tables are divided.
    """

    files: Sequence[Summary]
    addresses: np.ndarray
    grid: FileGrid
    old: Mapping[str, Fragments]
    before: Mapping[str, Before]
    _columns: dict[tuple[str, ...], np.ndarray] = field(default_factory=dict)

    def table(self, path: str, dimensions: Sequence[Dimension]) -> Fragments:
        """Return the table of a variable.

        Raises
        ------
        ExportError
            Naming a file whose place is taken.
        """
        paths = tuple(d.path for d in dimensions)
        starts, stops = [], []
        for dimension in dimensions:
            axis = self.grid.axes.get(dimension.path)
            starts.append(np.zeros(1, np.int64) if axis is None else axis.starts)
            stops.append(np.array([dimension.size], np.int64) if axis is None else axis.stops)
        bounds = tuple(starts), tuple(stops)
        old = self.old.get(path)
        if old is not None:
            return self._extended(old, path, paths, bounds)
        if paths not in self._columns:
            column = np.full(self._count(paths), None, object)
            # the first file counts where several are at one place
            column[self.grid.places(paths)[::-1]] = self.addresses[::-1]
            self._columns[paths] = column
        column = self._columns[paths]
        count = len(column)
        return Fragments(*bounds, column, constant(path.strip("/"), count), constant("", count))

    def _count(self, paths: tuple[str, ...]) -> int:
        return int(np.prod(self.grid.shape(paths), dtype=np.int64))

    def _extended(
        self,
        old: Fragments,
        path: str,
        paths: tuple[str, ...],
        bounds: tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]],
    ) -> Fragments:
        """Return a table with the fragments that there are, and the files."""
        if old.values is not None:
            raise ExportError(path, "has one value for each fragment instead of files")
        moved = self._moved(old, paths)
        places = self.grid.places(paths)
        there = np.array([address is not None for address in old.addresses.tolist()], bool)
        if len(self.grid.axes.keys() & set(paths)) == len(self.grid.axes):
            taken = np.flatnonzero(np.isin(places, moved[there]))
            if len(taken):
                raise ExportError(
                    self.files[int(taken[0])].target,
                    "has the same coordinates as a file that the aggregation has already",
                )
        count = len(self.files)
        new = in_a_row(self.addresses[::-1], constant(path.strip("/"), count), constant("", count))
        # the first file counts where several are at one place
        return assembled(*bounds, [(new, places[::-1]), (old, moved)])

    def _moved(self, old: Fragments, paths: tuple[str, ...]) -> np.ndarray:
        """Return the new numbers of the fragments that there are, by their old ones."""
        place = np.zeros(old.count, np.int64)
        positions = np.unravel_index(np.arange(old.count), old.grid) if old.grid else ()
        for path, length, starts, position in zip(
            paths, self.grid.shape(paths), old.starts, positions, strict=True
        ):
            place *= length
            if path in self.grid.axes:
                block = np.searchsorted(self.before[path].edges, starts)
                place += self.grid.axes[path].places[block][position]
        return place


# -- storing -------------------------------------------------------------------------------------
# Where the data of a variable of an aggregation are to be: in the master, or in files. Pure.


#: In the master: all values; or those of the first file, as others have the same. In files: as the
#: aggregation has them already; or of all files, by a new table.
Storing: TypeAlias = Literal["values", "first values", "old table", "table"]


def decide(
    path: str,
    along: Sequence[str],
    before: Literal["master", "files"] | None,
    *,
    is_coordinate: bool,
    is_small: bool,
    stays: bool,
) -> Storing:
    """Decide where the data of a variable are to be.

    Parameters
    ----------
    path
        Of the variable.
    along
        Its dimensions along which files differ.
    before
        Where an aggregation has the data before files are added to it; None without an aggregation.
    is_coordinate
        Whether it tells where data are.
    is_small
        Whether its values are known of all files.
    stays
        Whether the master holds it if it is the same in all files.

    Raises
    ------
    ExportError
        If the master holds it, and could not do so with the files.
    """
    can_be_held = not along or (is_coordinate and len(along) == 1)
    if before == "files":
        return "table" if along else "old table"
    if before == "master":
        if along and not is_small:
            raise ExportError(
                path,
                "is held by the aggregation itself, and cannot be read of the files: make it anew",
            )
        if can_be_held:
            return "values"
        raise ExportError(
            path, f"is held by the aggregation, and differs along {', '.join(along)}: make it anew"
        )
    if is_small and can_be_held:
        return "values"
    return "first values" if stays and not along else "table"
