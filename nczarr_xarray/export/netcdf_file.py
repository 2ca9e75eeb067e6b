"""Our data model as a netCDF file, through the library that netCDF4-python brings."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from nczarr_fsspec.changes.leftovers import remove_leftovers, replacing
from nczarr_fsspec.destination import FilePlace, open_file_place
from nczarr_fsspec.errors import DatasetExistsError, FormatError, StoreError
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_fsspec.text import format_size
from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.contents import Contents, StoredSource
from nczarr_xarray.export.form.lacking import COMPRESSORS, UNUSED, Lacking
from nczarr_xarray.export.form.stored import netcdf_text, stored_as
from nczarr_xarray.export.memory import room
from nczarr_xarray.export.netcdf_variables import declare, need_netcdf4, new_file, put
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.export.rechunk import Rechunking, boxes
from nczarr_xarray.export.steps import one_pass
from nczarr_xarray.formats.nczarr.limits import NAME
from nczarr_xarray.model import (
    Group,
    Variable,
    described,
    readable,
)

# -- file target ---------------------------------------------------------------------------------
# One file as a target: it is made whole on this machine, and appears in one step.


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Where one file is written.

    A file of this machine is made beside its place, and renamed. A remote one is made in the
    folder for temporary files, and uploaded when it is complete: there must be room for all of it.

    Parameters
    ----------
    place
        The place.
    overwrite
        Whether a file that is there is replaced.
    """

    place: FilePlace
    overwrite: bool

    @classmethod
    def find(
        cls, target: str, storage_options: Mapping[str, Any] | None, *, overwrite: bool
    ) -> FileTarget:
        """Find out where to write; errors as `nczarr_fsspec.destination.open_file_place`.

        Raises
        ------
        DatasetExistsError
            If there is something that must not be overwritten.
        """
        found = cls(open_file_place(target, storage_options), overwrite)
        found.check()
        return found

    @property
    def url(self) -> str:
        """How messages name the file."""
        return self.place.url

    def check(self) -> None:
        """Raise `DatasetExistsError` if there is something that must not be overwritten."""
        if not self.overwrite and self.place.exists():
            raise DatasetExistsError(self.url, "is there already; overwrite=True replaces it")

    def write(self, fill: Callable[[str], None]) -> None:
        """Write the file; an old one stays until the new one is complete.

        Parameters
        ----------
        fill
            Makes the file, given the path of one that does not exist.

        Raises
        ------
        DatasetExistsError
            If something has come there meanwhile that must not be overwritten.
        StoreError
            If it cannot be written.
        """

        def fill_and_check(path: str) -> None:
            fill(path)
            self.check()

        store = self.place.store
        if not isinstance(store, DirectoryWriter):
            try:
                store.put_file(self.place.name, fill_and_check)
            except OSError as error:  # of the temporary file: a disk is full, a folder is missing
                if isinstance(error, StoreError):
                    raise
                raise StoreError(self.url, f"cannot be made: {error}") from error
            return
        path = os.path.realpath(os.path.join(store.path, self.place.name))
        remove_leftovers(path)
        try:
            with replacing(path) as new:
                fill_and_check(new)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            reason = error.strerror or error
            raise StoreError(self.url, f"cannot be put into place: {reason}") from error


# -- netcdf file ---------------------------------------------------------------------------------


def write_netcdf(
    opened: Opened,
    target: FileTarget,
    progress: Progress,
    *,
    model: str,
    lacking: Lacking,
    memory: int | None,
    tell: Callable[[str], object],
) -> None:
    """Copy an open dataset to a netCDF file; an old file stays until the new one is complete.

    Parameters
    ----------
    model
        The format of the file, by the word of netCDF4. A classic one has to suit `opened`.
    lacking
        What the file holds in another form, as far as that is known already.
    memory
        Bytes that the program may take, if they are limited.
    tell
        Takes the lines of the plan then.

    Raises
    ------
    ImportError
        If netCDF4 is not installed.
    DatasetExistsError
        If there is something and it must not be overwritten.
    ExportError
        If there is too little memory for a chunk.
    FormatError
        If a variable cannot be read, or netCDF has no such type.
    StoreError
        If the file cannot be written.
    """
    need_netcdf4(target.url)
    variables = [*opened.hierarchy.root.all_variables()]
    for variable in variables:
        check(variable)
    for group in opened.hierarchy.root.walk():
        check_names(group)
    opened = replace(opened, exact=True)
    lacking.note_hidden(opened.hierarchy)
    netcdf4 = model.startswith("NETCDF4")
    used = {dimension for variable in variables for dimension in variable.dimensions}
    contents = Contents()
    for group in opened.hierarchy.root.walk():
        held = contents.group(group.path)
        held.types = group.types
        for name, dimension in group.dimensions.items():
            if dimension.unlimited and dimension.size and dimension not in used:
                lacking.note(UNUSED, dimension.path)
            else:
                held.dimensions[name] = dimension
        held.attributes = lacking.attributes(group.path, group.attributes)
        for name, variable in group.variables.items():
            held.variables[name] = lacking.variable(netcdf_text(variable))
            for config in stored_as(opened, variable).codecs if netcdf4 else ():
                row = codec(config["id"])
                if row.compressor and row.options is None:
                    lacking.note(COMPRESSORS, f"{variable.path} ({row.id})")
    lacking.tell(target.url)
    progress.expect(sum(map(_nbytes, variables)))
    plan = {v.path: _planned(opened, v, memory) for v in contents.root.all_variables()}
    if memory is not None:
        for variable in variables:
            said = one_pass(plan[variable.path].rechunking)
            tell(f"{variable.path.strip('/')}: {format_size(_nbytes(variable))}, {said}")
    # if memory is limited, parts are whole chunks: none need be kept
    chunk_cache = None if memory is None else 0
    target.write(partial(_fill, target.url, opened, contents, plan, model, chunk_cache, progress))


def _fill(
    url: str,
    opened: Opened,
    contents: Contents,
    plan: Mapping[str, Planned],
    model: str,
    chunk_cache: int | None,
    progress: Progress,
    path: str,
) -> None:
    with new_file(path, model, url) as file:
        if not model.startswith("NETCDF4"):
            file.set_fill_off()  # all values are written
        stored = partial(stored_as, opened)
        for variable, made in declare(file, contents.root, stored, chunk_cache):
            _write_values(plan[variable.path], variable, made, progress)
        opened.refuse_changed()


def check(variable: Variable) -> None:
    """Raise if a variable cannot be read, or has no form here."""
    if variable.error is not None:
        raise variable.error
    if variable.nc_type is None:
        reason = f"holds {described(variable.dtype)}, which are not copied to netCDF"
        raise FormatError(variable.path, f"{reason} (nccopy copies such netCDF-4 files)")


def check_names(group: Group) -> None:
    """Raise if something in a group has a name that netCDF does not take."""
    owners: list[Group | Variable] = [group, *group.variables.values()]
    names = [*group.groups, *group.variables, *group.dimensions, *group.types]
    for name in (*names, *(name for owner in owners for name in owner.attributes)):
        if readable(name) != name:
            reason = "is not UTF-8, as names must be in netCDF: give it another name first"
            raise FormatError(group.path, f"the name {name!r} {reason}")
        if NAME.fullmatch(name) is None:
            reason = "is not one that netCDF allows: give it another name first"
            raise FormatError(group.path, f"the name {name!r} {reason}")


class Planned(NamedTuple):
    """How the data of a variable are copied."""

    source: StoredSource
    rechunking: Rechunking


def _planned(opened: Opened, variable: Variable, memory: int | None) -> Planned:
    chunks = stored_as(opened, variable).chunk_shape
    source = StoredSource(opened.reader(variable), variable)
    nbytes = None if memory is None else room(source, chunks, memory)
    return Planned(source, source.rechunking(chunks, nbytes))


def _nbytes(variable: Variable) -> int:
    """Return the bytes of the values of a variable, texts taken for pointers as they are."""
    return math.prod(variable.shape) * variable.dtype.itemsize


def _write_values(planned: Planned, variable: Variable, made: Any, progress: Progress) -> None:
    source, rechunking = planned
    for part in boxes(rechunking.shape, rechunking.parts):
        if not math.prod(p.stop - p.start for p in part):
            continue
        values = source.read(part)
        put(made, variable, values, part)
        progress.advance(values.nbytes)
