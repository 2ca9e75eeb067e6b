"""Writing an aggregation: fragments where elements are written, and the master on `commit`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.chunks.plan import OuterPlan, plan_outer
from nczarr_xarray.codecs.quantize import Rounding
from nczarr_xarray.export.cfa.content import Member
from nczarr_xarray.export.cfa.gradual import GradualAggregation, NewFragment
from nczarr_xarray.export.cfa.growing_table import GrowingTable, PutFragment, understood
from nczarr_xarray.export.cfa.master import without_enum
from nczarr_xarray.export.cfa.parts import growing_lengths
from nczarr_xarray.export.options import largest_fragment
from nczarr_xarray.formats.nczarr.values import stated_fill
from nczarr_xarray.model import (
    NC_DEFAULT_FILL,
    NC_TYPES,
    ChunkedArray,
    FragmentArray,
    Group,
    Variable,
    bytes_of,
)
from nczarr_xarray.netcdf4.growing import GrowingElements, Position
from nczarr_xarray.netcdf4.indexing import Index
from nczarr_xarray.netcdf4.types import CLASSIC
from nczarr_xarray.netcdf4.variable import Dimension
from nczarr_xarray.netcdf4.writing import Writer


class MasterWriter(Writer):
    """Writes an aggregation.

    Parameters
    ----------
    target, memory
        As of `Writer`.
    most
        Bytes of the largest new fragment.
    subarray_shape
        As of `nczarr_xarray.to_cfa`.
    """

    target: GradualAggregation

    def __init__(
        self, target: GradualAggregation, memory: int | None, most: int, subarray_shape: Any
    ) -> None:
        super().__init__(target, memory)
        self.most = most
        self.subarray_shape = subarray_shape
        #: paths of variables of which chunks were asked for
        self.chunked: set[str] = set()

    # -- variables --------------------------------------------------------------------------------

    def add(
        self,
        array: ChunkedArray,
        dimensions: tuple[Dimension, ...],
        stored: Variable | None = None,
        rounding: Rounding | None = None,
        **asked: Any,
    ) -> GrowingElements:
        """Return the elements of a variable, which is a part of the dataset from now on.

        The master holds scalars, coordinates and text; all else is divided.
        """
        dtype = array.dtype
        text = dtype.kind == "S" and dtype.itemsize > 1
        nc_type = "char" if dtype.kind == "S" else NC_TYPES[dtype.str[1:]]
        if self.target.kind == "netCDF3" and (text or nc_type not in CLASSIC):
            raise TypeError(f"{array.path}: classic netCDF has no such type: write format='CFA4'")
        if asked.pop("chunked", False):
            self.chunked.add(array.path)
        name = array.path.rpartition("/")[2]
        made: GrowingElements
        if text or name in ("", *(dimension.name for dimension in dimensions)) or not dimensions:
            made = GrowingElements(self, array, dimensions, stored, rounding)
            made.leaves = False
        else:
            lengths = self._lengths(array, dimensions, stored, **asked)
            made = FragmentElements(self, array, dimensions, stored, rounding, lengths)
        self.elements.append(made)
        return made

    def change(self, stored: Variable, dimensions: tuple[Dimension, ...]) -> GrowingElements:
        """Return the elements of a variable that is stored."""
        existing, array = self.target.existing, stored.array
        assert existing is not None
        if isinstance(array, FragmentArray) and array.fragments.values is not None:
            reason = "its table holds values, not fragments; write it anew with to_cfa"
            raise ExportError(self.target.url, f"{stored.path}: {reason}")
        fill = stated_fill(stored)
        if fill is None and stored.nc_type != "string":
            fill = NC_DEFAULT_FILL[str(stored.nc_type)]
        held = replace(
            existing.array(without_enum(stored)),
            fill=bytes_of(fill) if isinstance(fill, str) else fill,
        )
        chunked = not (array is None or array.elsewhere) and array.is_chunked
        return self.add(held, dimensions, stored, chunked=chunked)

    def _lengths(
        self,
        array: ChunkedArray,
        dimensions: tuple[Dimension, ...],
        stored: Variable | None,
        subarray_shape: Any = None,
        max_object_size: int | str | None = None,
    ) -> tuple[int, ...]:
        """Return the lengths of new fragments: as asked for, like those there are, or by size."""
        shape = self.subarray_shape if subarray_shape is None else subarray_shape
        shape = shape if shape is None or isinstance(shape, Mapping) else [*shape] or None
        before = None if stored is None else stored.array
        if isinstance(before, FragmentArray) and before.fragments.count:
            shape = before.chunk_shape if shape is None else shape
        most = self.most if not max_object_size else largest_fragment(max_object_size, None)
        return growing_lengths(
            [None if one.isunlimited() else one.size for one in dimensions],
            [one.name for one in dimensions],
            [_axis(one) for one in dimensions],
            most / array.dtype.itemsize,
            shape,
        )

    # -- fragments --------------------------------------------------------------------------------

    def _put(self, chosen: Iterable[tuple[Any, Position]]) -> None:
        """Write fragments."""
        self._begin()
        root = self.model()
        variables = {v.path.strip("/"): v for v in root.all_variables()}
        dealt = [(one, position, variables[one.array.path]) for one, position in chosen]
        new = [
            one.new_fragment(position, variable, one.chunks_here[position])
            for one, position, variable in dealt
        ]
        done = self.target.put(new, root.attributes, self._held(variables))
        for (one, position, variable), put in zip(dealt, done, strict=True):
            one.note(position, put, variable)

    def _put_missing(
        self, divided: Iterable[FragmentElements], variables: Mapping[str, Variable]
    ) -> None:
        """Write fragments of missing data, one for each shape, where nothing was written."""
        lacking = [
            (one, positions, variable)
            for one in divided
            if 0 not in (variable := variables[one.array.path]).shape
            for positions in one.table.missing(variable.shape)
        ]
        new = [one.new_fragment(same[0], variable) for one, same, variable in lacking]
        done = self.target.put(new, self.model().attributes, ())
        for (one, positions, variable), put in zip(lacking, done, strict=True):
            for position in positions:
                one.table.note(position, put, variable)

    def _held(self, variables: Mapping[str, Variable]) -> list[Member]:
        """Return what the master holds, with its values."""
        members = []
        for one in self.elements:
            variable = variables[one.array.path]
            if not isinstance(one, FragmentElements) or 0 in variable.shape:
                values = one.read((slice(None),) * len(variable.shape))
                members.append(Member(variable, values, one.array.path in self.chunked))
        return members

    # -- the end ----------------------------------------------------------------------------------

    def _commit(self, root: Group, made: Mapping[str, bytes]) -> None:
        divided = [one for one in self.elements if isinstance(one, FragmentElements)]
        variables = {v.path.strip("/"): v for v in root.all_variables()}
        for one in divided:
            one.refresh(variables[one.array.path])
        self._put([(one, position) for one in divided for position in sorted(one.changed)])
        self._put_missing(divided, variables)
        shapes = [variables[one.array.path].shape for one in divided]
        tables = {
            one.array.path: one.table.table(shape)
            for one, shape in zip(divided, shapes, strict=True)
            if 0 not in shape
        }
        aggregations = [(variables[path], own) for path, own in tables.items()]
        self.target.commit(root, self._held(variables), aggregations)
        for one in divided:
            one.table.commit(variables[one.array.path], tables.get(one.array.path))


class FragmentElements(GrowingElements):
    """The elements of an aggregation: what is a chunk elsewhere is a fragment.

    Parameters
    ----------
    writer, array, dimensions, stored, rounding
        As of `GrowingElements`; the chunks of `array` are those within fragments.
    lengths
        Of fragments that are not there yet, per dimension.
    """

    writer: MasterWriter

    def __init__(
        self,
        writer: MasterWriter,
        array: ChunkedArray,
        dimensions: tuple[Dimension, ...],
        stored: Variable | None,
        rounding: Rounding | None,
        lengths: tuple[int, ...],
    ) -> None:
        super().__init__(writer, array, dimensions, stored, rounding)
        aggregated = None if stored is None else stored.array
        aggregated = aggregated if isinstance(aggregated, FragmentArray) else None
        self.kind, ours = writer.target.fragments_of(aggregated)
        self.table = GrowingTable(
            None if aggregated is None else aggregated.fragments,
            None if stored is None else understood(stored),
            self._shape(),
            lengths,
            closed=not ours,
        )

    def _plan(self, key: tuple[Index, ...]) -> OuterPlan:
        self.table.cover(self._shape())
        return plan_outer(key, self._shape(), self.table.starts)

    def _extent(self, position: Position) -> tuple[slice, ...]:
        # memory for twice as much as there is, so that what grows is seldom moved
        sizes = zip(self.table.starts, position, self.dimensions, strict=True)
        room = [
            int(starts[n]) + (1 << max(0, int(one.size - starts[n]) - 1).bit_length())
            if one.isunlimited()
            else one.size
            for starts, n, one in sizes
        ]
        return self.table.extent(position, room)

    def _chunk(self, position: Position, *, fetched: bool = True) -> np.ndarray:
        chunk = super()._chunk(position, fetched=fetched)
        wanted = tuple(own.stop - own.start for own in self._extent(position))
        if any(a < b for a, b in zip(chunk.shape, wanted, strict=True)):
            self.writer.recent.pop((self, position), None)  # it makes no room for itself
            larger = self._empty(position)
            kept = tuple(map(slice, np.minimum(chunk.shape, wanted)))
            larger[kept] = chunk[kept]
            self.writer.taken -= chunk.nbytes
            chunk = self.chunks_here[position] = larger
            self.writer.note_use(self, position)
        return chunk

    def _fetch(self, position: Position, chunk: np.ndarray) -> None:
        if position not in self.table.new:
            super()._fetch(position, chunk)
            return
        values = self.writer.target.read(self.table.new[position][0])
        chunk[tuple(map(slice, values.shape))] = values

    def forget(self, position: Position) -> None:
        """Forget a fragment that is put; what comes behind it becomes another one."""
        super().forget(position)
        grows = [dimension.isunlimited() for dimension in self.dimensions]
        self.table.end_at(position, self._shape(), grows)

    def refresh(self, variable: Variable) -> None:
        """Change the fragments that have to be written anew: see `GrowingTable.stale`."""
        for position in self.table.stale(variable, self._shape()):
            self._chunk(position)
            self.changed.add(position)

    def new_fragment(
        self, position: Position, variable: Variable, chunk: np.ndarray | None = None
    ) -> NewFragment:
        """Return a fragment as it is to be written, of a variable as it is now.

        Parameters
        ----------
        chunk
            Its values, and more; None if nothing was written in it.
        """
        extent = self.table.extent(position, self._shape())
        start, lengths = zip(*((own.start, own.stop - own.start) for own in extent), strict=True)
        if chunk is None:
            nothing = np.broadcast_to(np.zeros((), self.dtype), lengths)
            return NewFragment(variable, position, start, nothing, self.kind, False, missing=True)
        values = chunk[tuple(map(slice, lengths))]
        if values.shape != lengths:  # another variable has made the dimension longer
            fill = 0 if self.array.fill is None else self.array.fill
            missing = [(0, a - b) for a, b in zip(lengths, values.shape, strict=True)]
            values = np.pad(values, missing, constant_values=fill)
        chunked = self.array.path in self.writer.chunked
        return NewFragment(variable, position, start, values, self.kind, chunked)

    def note(self, position: Position, put: PutFragment, variable: Variable) -> None:
        """Note that a fragment in memory is put."""
        self.table.note(position, put, variable)
        self.put.add(position)
        self.changed.discard(position)


def _axis(dimension: Dimension) -> Any:
    """Return the attribute ``axis`` of the coordinate of a dimension."""
    coordinate = dimension.group().variables.get(dimension.name)
    return None if coordinate is None else getattr(coordinate, "axis", None)
