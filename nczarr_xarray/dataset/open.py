"""Open a dataset: where the pure formats meet a store, or one file.

`open_hierarchy` answers what a format asks for from a store or a file, and returns an
`nczarr_xarray.dataset.dataset.Opened`, of which xarray, the command line and tests are views.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from nczarr_fsspec.errors import (
    AccessDeniedError,
    DatasetNotFoundError,
    FormatError,
    NCZarrError,
    PageError,
    RedirectError,
    StoreError,
)
from nczarr_fsspec.keystore import KeyStore, RemoteStore
from nczarr_fsspec.places.url import is_url
from nczarr_fsspec.ranges.source import ByteSource
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.targets import as_references, place_of
from nczarr_xarray.formats.cfa.dialect import is_master
from nczarr_xarray.formats.registry import EVERYTHING, OpenOptions, Source, read_hierarchy
from nczarr_xarray.formats.rounds import Answer
from nczarr_xarray.model import Hierarchy

if TYPE_CHECKING:
    from nczarr_fsspec.address_policy import Allow
    from nczarr_fsspec.changes.consistent_reading import Reading
    from nczarr_fsspec.changes.journal import State

T = TypeVar("T")
OpenTree: TypeAlias = Callable[[KeyStore, frozenset[str], OpenOptions, Any], T]
OpenFile: TypeAlias = Callable[[ByteSource, OpenOptions, Any], T]

#: How often a dataset is read that changes meanwhile, each time.
ATTEMPTS = 50


def open_hierarchy(
    target: Any,
    *,
    group: str | None = None,
    tree: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    consolidated: bool | None = None,
    anonymous_dimension_prefix: str = "_Anonymous_Dim_",
    index_cache: str | os.PathLike[str] | None = None,
    replace: Mapping[str, str] | None = None,
    allow: Allow = None,
    use_zarr_fill_value_as_mask: bool | None = None,
) -> Opened:
    """Open a dataset and read its metadata.

    Parameters
    ----------
    target
        A path, URL, file or store, as for ``xarray.open_dataset(..., engine="nczarr")``.
    group
        Path of the wanted group; None for the root.
    tree
        Whether the groups below it are wanted, too.
    storage_options
        Options of the target's filesystem (fsspec).
    consolidated
        True: ``.zmetadata`` must exist, and is used without a check. False: it
        is not used. None: it is used if it saves round trips and agrees with
        the root objects, and each variable is checked when it is read.
    anonymous_dimension_prefix
        Unnamed dimensions of Zarr 2 are called this plus their length.
    index_cache
        Folder in which the metadata of a remote classic or HDF5 file are kept for
        other processes when it is closed; made if it is not there.
    replace, allow
        Of an aggregation: see `nczarr_fsspec.address_policy.AddressPolicy.of`.
    use_zarr_fill_value_as_mask
        Whether the fill values of pure Zarr 2 stand for ``_FillValue``; None if they are likely to.

    Returns
    -------
    Opened
        The open dataset, with its metadata as `hierarchy`; close it, or use it in ``with``.

    Raises
    ------
    DatasetNotFoundError
        If there is no dataset, or no such group.
    FormatError, StoreError, URLError
        If the root or the wanted group cannot be read or understood.
    """
    return open_with(
        target,
        OpenOptions(
            group=group,
            tree=tree,
            storage_options=storage_options,
            consolidated=consolidated,
            anonymous_dimension_prefix=anonymous_dimension_prefix,
            index_cache=index_cache,
            replace=replace,
            allow=allow,
            use_zarr_fill_value_as_mask=use_zarr_fill_value_as_mask,
        ),
    )


def open_with(target: Any, options: OpenOptions) -> Opened:
    """Do what `open_hierarchy` does, with what is asked for as one object."""
    return open_either(target, options, open_keys, open_file)


def open_either(target: Any, options: OpenOptions, of_tree: OpenTree[T], of_file: OpenFile[T]) -> T:
    """Find out whether there is a tree or a file at `target`, and open it as such.

    Parameters
    ----------
    of_tree
        Opens a tree, as `open_keys`; raises `DatasetNotFoundError` if there is none.
    of_file
        Opens a file, as `open_file`.

    Raises
    ------
    NCZarrError
        If there is neither, or what `of_tree` or `of_file` raise.
    """
    try:
        if (keys := as_references(target, target, options)) is not None:  # what kerchunk returned
            return of_tree(keys, frozenset(), options, target)
        place = place_of(target, options.storage_options)
        contents = place.open(options.folder)
        data = contents.data
        if (keys := as_references(target, data, options)) is not None:
            return of_tree(keys, place.mode, options, target)
        if isinstance(data, ByteSource):
            return of_file(data, options, target)
        try:
            return of_tree(data, place.mode, options, target)
        except (DatasetNotFoundError, AccessDeniedError, PageError) as error:
            # a URL need not tell by its name whether it is that of a tree or of one file
            if contents.as_file is None or isinstance(error, RedirectError):
                raise
            file = _instead_of_tree(contents.as_file, error, options)
        if (keys := as_references(target, file, options)) is not None:
            return of_tree(keys, place.mode, options, target)
        return of_file(file, options, target)
    except (StoreError, FormatError) as error:
        hint = _hint(target)
        if not hint:
            raise
        raise type(error)(error.object, f"{error.reason}; {hint}") from error.__cause__


def _instead_of_tree(
    as_file: Callable[[], ByteSource], no_tree: NCZarrError, options: OpenOptions
) -> ByteSource:
    """Open as a file what is no tree; if it is neither, say so."""
    try:
        return as_file()
    except StoreError as other:
        if options.path or isinstance(no_tree, PageError):
            raise no_tree from None
        if other.reason == no_tree.reason:  # which then is about the target, whatever it is
            raise type(no_tree)(other.object, other.reason) from None
        reason = f"{other.reason}; as a tree: {no_tree.reason}"
        raise type(no_tree)(no_tree.object, reason) from None


def _hint(target: object) -> str:
    """Return what to do about a URL that is the page of a dataset on a known kind of server."""
    if not isinstance(target, str) or not is_url(target):
        return ""  # (importing fails where no more files can be opened)
    from nczarr_fsspec.places.names import hint

    return hint(target)


@contextmanager
def closed_on_error(data: KeyStore | ByteSource) -> Iterator[None]:
    """Close a store or a file if what is done meanwhile fails, and name it in the error."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, FormatError):
            error.found_in(data.url)
        data.close()
        raise


def open_file(
    source: ByteSource,
    options: OpenOptions,
    master: Any = None,
) -> Opened:
    """Open one file as `open_with` does; close it if that fails.

    Parameters
    ----------
    master
        What the caller opens, by which relative addresses in an aggregation are understood.

    Raises
    ------
    FormatError
        If the file is of no known format.
    """
    file = DataFile(source, options.folder)
    with closed_on_error(source):
        opened = Opened(file, file.hierarchy(options))
        return _with_aggregations(opened, options, file.hierarchy, master)


def open_keys(
    store: KeyStore,
    mode: frozenset[str] = frozenset(),
    options: OpenOptions = EVERYTHING,
    master: Any = None,
) -> Opened:
    """Open a store's dataset as `open_with` does; close the store if that fails.

    The metadata are read as of one moment, with all changes that are valid. They are read anew
    if the dataset changes meanwhile, until it does not or has only got other data.

    Parameters
    ----------
    mode
        The mode words of the target's fragment.
    master
        As of `open_file`.
    """
    from nczarr_fsspec.changes.consistent_reading import Reading

    before = None
    with closed_on_error(store):
        for _ in range(ATTEMPTS):
            reading = Reading(store)
            hierarchy, failure = None, None
            try:
                hierarchy = _read_tree(reading, mode, options)
            except NCZarrError as error:  # which may come of the change
                failure = error
            if reading.holds() or (before is not None and reading.agrees(before)):
                if hierarchy is None:
                    assert failure is not None
                    raise failure
                _hold_back(hierarchy, reading.state)
                opened = Opened(reading.state.store, hierarchy, reading=reading)
                if isinstance(opened.store, RemoteStore):
                    opened.store.seen = time.monotonic()
                read = partial(_read_tree, reading, mode)
                return _with_aggregations(opened, options, read, master)
            before = reading
        raise StoreError(store.url, always_changing(ATTEMPTS))


def _read_tree(reading: Reading, mode: frozenset[str], options: OpenOptions) -> Hierarchy:
    """Answer what a format asks for from the store."""
    source = Source(reading.store.url, reading.store, mode)
    parsing = read_hierarchy(source, options)
    try:
        wanted = parsing.send(None)
        while True:
            answer = Answer(*reading.answer(wanted.keys, wanted.prefixes))
            source.data = reading.state.store
            wanted = parsing.send(answer)
    except StopIteration as stop:
        hierarchy: Hierarchy = stop.value
        return hierarchy
    finally:
        parsing.close()


def always_changing(attempts: int) -> str:
    """Return the error for a dataset that changed during each attempt to read it."""
    return (
        f"was changed by its writers during each of {attempts} attempts to read it; try again "
        "when they write less often"
    )


def _hold_back(hierarchy: Hierarchy, state: State) -> None:
    """Keep arrays whose chunks are not all there from being read."""
    for variable in hierarchy.root.all_variables() if state.pending else ():
        variable.error = variable.error or state.pending.get(variable.path.strip("/"))


def _with_aggregations(
    opened: Opened,
    options: OpenOptions,
    read: Callable[[OpenOptions], Hierarchy],
    master: Any,
) -> Opened:
    """Return an open dataset with the data of fragments; most datasets have none."""
    if not is_master(opened.hierarchy):
        return opened
    from nczarr_xarray.dataset.fragments import with_aggregations

    return with_aggregations(opened, options, read, open_with, master)
