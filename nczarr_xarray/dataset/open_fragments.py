"""Open the datasets that the fragments of aggregations are in."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from nczarr_fsspec.errors import AccessDeniedError, FormatError, NCZarrError, RedirectError
from nczarr_fsspec.place import find_beside, find_remote_file
from nczarr_fsspec.places.names import ZIP
from nczarr_fsspec.places.rc import has_secret_for_all, left_out_here, load_rc
from nczarr_fsspec.places.url import redact
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.ranges.source import ByteSource, Known
from nczarr_fsspec.stores.mapping import MappingStore
from nczarr_fsspec.transport.policy import ADDRESSED_OPTION
from nczarr_xarray.dataset.alike_files import alike
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.fragment_opener import Opening
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.dataset.targets import place_of
from nczarr_xarray.formats.alike import MetadataPattern
from nczarr_xarray.formats.cfa.decode import find
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.formats.opendap import is_dap
from nczarr_xarray.formats.opendap import read_hierarchy as read_dap

#: The number of a variable, instead of its name. (Python refuses to read thousands of digits.)
_NUMBER = re.compile(r"#\d{1,18}")


@dataclass(frozen=True, slots=True)
class DatasetsOfFragments:
    """Opens variables of datasets, as `nczarr_xarray.dataset.fragment_opener.Opener` says.

    Parameters
    ----------
    open_with
        `nczarr_xarray.dataset.open.open_with`, which opens aggregations by this class in turn.
    """

    open_with: Callable[[Any, OpenOptions], Opened]

    def open(
        self,
        target: str,
        storage_options: Mapping[str, Any] | None,
        path: str,
        *,
        depth: int,
        entire: bool,
    ) -> Opening:
        if is_dap(target):
            return _variable_of(_open_dap(target, storage_options), path)
        options = options_for(path, storage_options, entire=entire)
        options = replace(options, depth=depth)
        try:
            opened = self.open_with(target, options)
        except NCZarrError as error:
            if isinstance(error, RedirectError) or not _answers_dap(target, storage_options):
                raise
            opened = _open_dap(target, storage_options)
        with opened:  # what is read opens it again
            return _variable_of(opened, path)

    def find(
        self, target: str, storage_options: Mapping[str, Any] | None, path: str, *, entire: bool
    ) -> RemoteVariable | None:
        found = None if is_dap(target) else find_remote_file(target, storage_options)
        if found is None:
            return None
        return RemoteVariable(*found, options_for(path, None, entire=entire), path)


async def open_begun(source: RemoteFileBytes, options: OpenOptions) -> Opened | None:
    """Open a remote file whose first bytes are there (`RemoteFileBytes.begin`), on its loop.

    Returns
    -------
    None if it is of a kind that `DatasetsOfFragments.open_with` opens: an archive, an aggregation,
    the page that a server makes of a directory.

    Raises
    ------
    NCZarrError
        As `open_with`.
    """
    if bytes(source.head[:4]) in ZIP or source.head.lstrip().startswith(b"<"):
        return None
    file = DataFile(source)
    opened = Opened(file, await file.hierarchy_remote(options))
    return None if find(opened.hierarchy) else opened


@dataclass(frozen=True, slots=True)
class RemoteVariable:
    """A variable of a remote file: `nczarr_xarray.dataset.fragment_opener.RemoteFragment`."""

    source: RemoteFileBytes
    known: Known | None
    options: OpenOptions
    path: str

    def beside(self, name: str) -> RemoteVariable | None:
        found = find_beside(self.source, name)
        return None if found is None else replace(self, source=found[0], known=found[1])

    async def open(self, pattern: Callable[[], MetadataPattern | None]) -> Opening | None:
        source = self.source
        await source.begin(self.known)
        like = pattern()
        if like is not None and like.fits(bytes(source.head[: like.stop]), source.size):
            return alike(DataFile(source), like)
        opened = await open_begun(source, self.options)
        return None if opened is None else _variable_of(opened, self.path)


def _answers_dap(target: str, storage_options: Mapping[str, Any] | None) -> bool:
    """Ask a server of HTTP whether it describes a dataset as those of OPeNDAP do."""
    if not target.startswith(("http://", "https://")) or "#" in target:
        return False
    try:
        found = place_of(f"{target}.dds#mode=bytes", storage_options).open().data
    except NCZarrError:
        return False
    with closing(found):
        return isinstance(found, ByteSource) and bytes(found.head).startswith(b"Dataset")


def _open_dap(url: str, storage_options: Mapping[str, Any] | None) -> Opened:
    """Open a dataset of an OPeNDAP server, whose variables read themselves.

    Raises
    ------
    AccessDeniedError
        If netCDF-C, which asks the server, would tell it what rc files have for no host, and only
        a dataset names the server; or if it would follow an rc file of the working directory.
    """
    if keys := left_out_here():
        raise AccessDeniedError(
            redact(url),
            "is of an OPeNDAP server, which netCDF-C asks, and that would follow "
            f"{', '.join(sorted(keys))} of the working directory, which may be a folder of "
            "somebody else: put these lines into ~/.ncrc, or name the file by NCRCENV_RC",
        )
    if (storage_options or {}).get(ADDRESSED_OPTION) and has_secret_for_all(load_rc()):
        raise AccessDeniedError(
            redact(url),
            "is of an OPeNDAP server that only a dataset names, and netCDF-C sends it what .ncrc "
            "or .dodsrc says without a URL: write [https://host] before these lines",
        )
    return Opened(MappingStore({}), read_dap(url))


def options_for(
    path: str, storage_options: Mapping[str, Any] | None, *, entire: bool
) -> OpenOptions:
    """Return how to open a dataset of which one variable is wanted."""
    group, _, name = path.strip("/").rpartition("/")
    only = None if entire or name.startswith("#") else name
    return OpenOptions(group=group or None, tree=False, storage_options=storage_options, only=only)


def _variable_of(opened: Opened, path: str) -> Opening:
    """Return the variable at a path; `FormatError` if there is none."""
    group, _, name = path.strip("/").rpartition("/")
    holder = opened.hierarchy.root.find(group)
    variables = {} if holder is None else holder.variables
    variable = variables.get(name)
    if variable is None and _NUMBER.fullmatch(name):
        variable = next(itertools.islice(variables.values(), int(name[1:]), None), None)
    if variable is None:
        raise FormatError(opened.store.url, f"has no variable {path!r}")
    return Opening(opened.reader(variable), variable)
