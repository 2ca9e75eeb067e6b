"""Open a dataset: where the pure formats meet a store, or one file.

`open_hierarchy` answers what a format asks for from a store or a file, and returns an
`nczarr_xarray.dataset.dataset.Opened`, of which xarray, the command line and tests are views. What
a user may name is found out here, too: stores of zarr-python and references of kerchunk are more
than `nczarr_fsspec.place.Place` knows.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from nczarr_fsspec.errors import (
    AccessDeniedError,
    ChangedError,
    DatasetNotFoundError,
    FormatError,
    NCZarrError,
    PageError,
    RedirectError,
    StoreError,
    on_error,
)
from nczarr_fsspec.keystore import KeyStore, LocalStore, RemoteStore
from nczarr_fsspec.place import Place
from nczarr_fsspec.places.names import says_file
from nczarr_fsspec.places.url import is_url
from nczarr_fsspec.ranges.local import open_local
from nczarr_fsspec.ranges.source import ByteSource, RemoteBytes
from nczarr_fsspec.transport.policy import RequestLimits
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile, answered
from nczarr_xarray.formats.cfa.dialect import is_master
from nczarr_xarray.formats.registry import EVERYTHING, OpenOptions, Source, read_hierarchy
from nczarr_xarray.formats.rounds import Answer
from nczarr_xarray.model import Hierarchy

if TYPE_CHECKING:
    from nczarr_fsspec.address_policy import AddressPolicy, Allow
    from nczarr_fsspec.changes.consistent_reading import Reading
    from nczarr_fsspec.destination import Destination
    from nczarr_fsspec.stores.references import File, Origin

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
    given = dict(locals())
    return open_with(given.pop("target"), OpenOptions(**given))


def open_with(target: Any, options: OpenOptions) -> Opened:
    """Do what `open_hierarchy` does, with what is asked for as one object."""
    return open_either(target, options, open_keys, open_file)


def open_either(target: Any, options: OpenOptions, of_tree: OpenTree[T], of_file: OpenFile[T]) -> T:
    """Find out whether there is a tree or a file at `target`, and open it as such.

    A remote file that is replaced meanwhile, such as a master, is opened anew.

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
    anew = ATTEMPTS if isinstance(target, (str, os.PathLike)) else 0
    while True:
        try:
            # what kerchunk returned
            if (keys := as_references(target, target, options)) is not None:
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
            if anew and isinstance(error, ChangedError):
                anew -= 1
                continue
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
        # about the target, whatever it is; or nobody meant a tree
        if other.reason == no_tree.reason or says_file(no_tree.object, frozenset()):
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
                pending = reading.state.pending
                for variable in hierarchy.root.all_variables() if pending else ():
                    # chunks that are not all there are not read
                    variable.error = variable.error or pending.get(variable.path.strip("/"))
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

    def answer(wanted: Any) -> Answer:
        found = Answer(*reading.answer(wanted.keys, wanted.prefixes))
        source.data = reading.state.store
        return found

    return answered(read_hierarchy(source, options), answer)


def always_changing(attempts: int) -> str:
    """Return the error for a dataset that changed during each attempt to read it."""
    return (
        f"was changed by its writers during each of {attempts} attempts to read it; try again "
        "when they write less often"
    )


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


# -- targets --------------------------------------------------------------------------------------
# What a user may name, to be read or to be written.


def place_of(target: Any, storage_options: Mapping[str, Any] | None) -> Place:
    """Parse what a user names, to be read.

    Parameters
    ----------
    target
        Whatever `nczarr_fsspec.place.Place.of` takes, or a zarr-python Store.
    storage_options
        As there.
    """
    if is_zarr_store(target):
        from nczarr_xarray.zarr.adopted import adopt

        return Place(contents=adopt(target))
    return Place.of(target, storage_options)


def find_destination(target: Any, storage_options: Mapping[str, Any] | None) -> Destination:
    """Find out where to write.

    Parameters
    ----------
    target
        Whatever `nczarr_fsspec.destination.open_destination` takes, or a zarr-python Store.
    storage_options
        Options of the target's filesystem (fsspec).
    """
    from nczarr_fsspec.destination import open_destination

    if is_zarr_store(target):
        from nczarr_xarray.zarr.adopted import adopt_for_writing

        target = adopt_for_writing(target)
    return open_destination(target, storage_options)


def is_zarr_store(target: Any) -> bool:
    """Tell whether a target is a Store of zarr-python, which is imported if there is one."""
    if "zarr" not in sys.modules:
        return False
    from zarr.abc.store import Store

    return isinstance(target, Store)


# -- references -----------------------------------------------------------------------------------
# Kerchunk references that a target turns out to be, opened as the keys of a dataset.


#: Addresses, and files of addresses, that are looked at to find out where most files are.
_MOST_LOOKED_AT = 64
#: A folder behind a network that may be one of these.
_FOLDER_NAME = re.compile(r"\.(parq|parquet)/?\Z", re.IGNORECASE)


def as_references(target: object, data: object, options: OpenOptions) -> KeyStore | None:
    """Return the keys of a set of references; None if it is something else.

    Parameters
    ----------
    target
        What the caller opens.
    data
        What is there; or the target itself, if it is a mapping that kerchunk has made.

    Raises
    ------
    FormatError, StoreError
        If these are no references that can be read. What is there is closed then.
    """
    if not isinstance(data, (ByteSource, KeyStore, Mapping)) or not are_references(data):
        return None
    limits = RequestLimits.take(dict(options.storage_options or {}), "storage_options")
    with nullcontext() if isinstance(data, Mapping) else on_error(data.close):
        store = open_references(data, options.policy(target, data))
    if limits.max_metadata is not None:
        store.max_metadata = limits.max_metadata
    return store


def are_references(data: ByteSource | KeyStore | Mapping[Any, Any]) -> bool:
    """Tell from what is there whether it is a set of references, as far as that costs little.

    A folder behind a network has to be called ``.parq`` or ``.parquet``: else every tree would
    have to be asked first.
    """
    if isinstance(data, ByteSource):
        # as JSON begins that none of our formats is
        start = bytes(data.head).lstrip(b"\xef\xbb\xbf \t\r\n")
        return start[:1] == b"{" and start[1:].lstrip()[:1] == b'"'
    if isinstance(data, Mapping):  # of references, not of bytes
        from nczarr_fsspec.stores.referenceformat import is_version_0

        return isinstance(data.get("refs"), Mapping) or is_version_0(data)
    if not isinstance(data, LocalStore) and not _FOLDER_NAME.search(data.url):
        return False
    (metadata,) = data.get_many([".zmetadata"])
    return isinstance(metadata, bytes) and b'"record_size"' in metadata


@dataclass(frozen=True, slots=True)
class FilesOfReferences:
    """Opens the files that references name, as far as they may.

    Parameters
    ----------
    policy
        What addresses mean, and which ones may be opened.
    """

    policy: AddressPolicy

    def open(self, address: str) -> File:
        """Open a file; see `nczarr_fsspec.stores.references.Opener`."""
        target = self.policy.resolve(address)
        if not is_url(target):
            return open_local(target)
        return Place.of(target, self.policy.options(target)).open_unasked()

    @property
    def moves(self) -> bool:
        return self.policy.moves

    def is_remote(self, address: str) -> bool:
        """Tell whether a file has to be waited for."""
        try:
            return is_url(self.policy.resolve(address))
        except NCZarrError:
            return False  # it will be an error anyway


def open_references(origin: Origin, policy: AddressPolicy) -> KeyStore:
    """Return the keys of a set of references.

    Parameters
    ----------
    origin
        A file of JSON, a folder of Parquet, or what JSON would say.
    policy
        What addresses mean, and which ones may be opened.

    Raises
    ------
    FormatError
        If these are no references.
    StoreError
        If they cannot be read.
    """
    from nczarr_fsspec.stores.references import LocalReferences, RemoteReferences

    opener = FilesOfReferences(policy)
    if isinstance(origin, (RemoteBytes, RemoteStore)):
        return RemoteReferences(origin, opener)
    here = LocalReferences(origin, opener)
    if any(map(opener.is_remote, islice(here.addresses(), _MOST_LOOKED_AT))):
        return here.as_remote()
    return here
