"""Write a master: what it holds, and its tables in the spelling of a dialect."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal
from urllib.parse import quote

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.url import is_url
from nczarr_xarray.aggregation.combine import Aggregated
from nczarr_xarray.export.cfa.cfa_task import CfaTask
from nczarr_xarray.export.cfa.claim import Claim
from nczarr_xarray.export.cfa.content import Content, Member
from nczarr_xarray.export.cfa.existing_master import referred_keys
from nczarr_xarray.export.cfa.master import (
    aggregation,
    conventions,
    dialect_called,
    keeps_packing,
    unpacked,
)
from nczarr_xarray.export.cfa.master_place import MasterPlace
from nczarr_xarray.export.classic_types import classic_values, classic_variable
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.formats.nczarr.enums import as_flags
from nczarr_xarray.model import NC_DTYPES, Attribute, ChunkedArray, Dimension, Variable


@dataclass(frozen=True, slots=True)
class MasterWriter:
    """Writes one master.

    Parameters
    ----------
    place
        Where.
    kind
        What it is if it is a file.
    """

    place: MasterPlace
    kind: Literal["netCDF3", "netCDF4"]

    @classmethod
    def find(
        cls,
        target: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None,
        format: str | None = None,  # noqa: A002 - as `to_cfa` calls it
    ) -> MasterWriter:
        """Find out where to write, and what.

        Raises
        ------
        ExportError
            If there is no such format.
        NCZarrError
            If nothing can be written there.
        """
        place = MasterPlace.find(target, storage_options)
        if format not in (None, "CFA3", "CFA4"):
            raise ExportError(place.url, f"format is {format!r}; it is 'CFA3' or 'CFA4'")
        return cls(place, "netCDF3" if format == "CFA3" else "netCDF4")

    def address_of(self, target: str, version: str, *, relative: bool | None) -> str:
        """Return how the master names a file.

        Parameters
        ----------
        version
            Of the convention: addresses are URIs, but for CFA-0.4.
        relative
            Whether that is relative to its folder, for a file below that. None for what is best:
            S3netCDF4 looks for relative ones in the working directory, so those of CFA-0.4 are
            absolute.
        """
        folder, plain = self.place.file.folder, version.startswith("0.4")
        key = target.removeprefix(folder)
        inside = key not in (target, "")
        is_path = not is_url(target) or os.path.lexists(target)
        if inside and (relative or (relative is None and not plain)):
            return quote(key) if is_path and not plain else key
        return f"file://{quote(target)}" if is_path and not plain else target

    def write(self, found: Aggregated, version: str, *, replaces: bool) -> None:
        """Write the master in one step.

        Raises
        ------
        ExportError
            If the dialect cannot say what there is.
        StoreError
            If the store fails; what was there stays.
        """
        dialect = dialect_called(version, self.place.url)
        dimensions = self._dimensions(found)
        members: list[Member] = []
        keeps = found.packing == "after" or (found.packing == "equal" and keeps_packing(dialect))
        for variable in found.variables():
            own = tuple(dimensions[d.path] for d in variable.dimensions)
            variable = replace(plain(variable), dimensions=own)
            table = found.tables.get(variable.path)
            if table is None:
                members.append(held(variable, found.values[variable.path]))
            else:
                members += aggregation(variable if keeps else unpacked(variable), table, dialect)
        attributes = conventions(found.hierarchy.root.attributes, dialect)
        self._check_names(members)
        if self.kind == "netCDF3":
            members = [self._classic(member) for member in members]
        content = Content(attributes, members, list(dimensions.values()), group_attributes(found))
        referred = partial(referred_keys, self.place)
        claim = Claim.begin(self.place, referred)
        task = CfaTask(self.place, self.kind, claim, referred, [], content, replaces)
        with Progress("aggregate", shown=False, unit=" files") as progress:
            task.run(progress)

    def _classic(self, member: Member) -> Member:
        """Return what a classic master holds of a variable; raise if it cannot."""
        variable, values = member.variable, member.values
        if variable.nc_type == "string":
            reason = f"{variable.path} is text, which classic netCDF lacks: write format='CFA4'"
            raise ExportError(self.place.url, reason)
        try:
            stored = classic_variable(variable)
        except ValueError as error:
            raise ExportError(self.place.url, f"{variable.path}: {error}") from None
        assert isinstance(stored.array, ChunkedArray)
        stored = replace(stored, array=replace(stored.array, dtype=stored.dtype))
        return Member(stored, None if values is None else classic_values(values, variable, stored))

    def _check_names(self, members: list[Member]) -> None:
        """Raise if a variable of a table has the name of another variable."""
        seen: set[str] = set()
        for member in members:
            path = member.variable.path
            if path in seen:
                raise ExportError(
                    self.place.url, f"would hold {path} twice: give the variable another name"
                )
            seen.add(path)

    def _dimensions(self, found: Aggregated) -> dict[str, Dimension]:
        """Return the dimensions of the master, by path.

        One that it holds no data along cannot be unlimited: its length would be lost.
        """
        used = {
            dimension.path
            for variable in found.variables()
            if variable.path in found.values and 0 not in variable.shape
            for dimension in variable.dimensions
        }
        return {
            d.path: replace(d, unlimited=d.unlimited and d.path in used)
            for group in found.hierarchy.root.walk()
            for d in group.dimensions.values()
        }


def group_attributes(found: Aggregated) -> dict[str, dict[str, Attribute]]:
    """Return the attributes of groups below the root."""
    groups = (group for group in found.hierarchy.root.walk() if group.path != "/")
    return {group.path: group.attributes for group in groups}


def plain(variable: Variable) -> Variable:
    """Return a variable that masters hold, with its own attributes: enums are plain numbers."""
    if variable.enum is None:
        return replace(variable, attributes=dict(variable.attributes))
    return replace(variable, attributes=as_flags(variable), enum=None)


def held(variable: Variable, values: np.ndarray) -> Member:
    """Return a variable that the master holds."""
    dtype = NC_DTYPES[str(variable.nc_type)]
    if variable.nc_type == "string":
        longest = max((len(str(text).encode()) for text in values.ravel().tolist()), default=1)
        dtype = np.dtype(f"S{max(1, longest)}")
    chunks = tuple(max(1, size) for size in values.shape)
    array = ChunkedArray(variable.path.strip("/"), values.shape, chunks, dtype)
    held = values if variable.nc_type == "string" else np.asarray(values, dtype)
    dtype = NC_DTYPES[str(variable.nc_type)]
    return Member(replace(variable, array=array, dtype=dtype), held)
