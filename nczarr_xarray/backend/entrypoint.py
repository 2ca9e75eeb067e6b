"""The xarray backend ``engine="nczarr"``.

xarray imports this module of every installed plugin when it lists its engines,
so it imports nothing that is not there already.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from xarray.backends.common import BackendEntrypoint

if TYPE_CHECKING:
    from xarray import Dataset, DataTree

    from nczarr_fsspec.address_policy import Allow

#: Arguments of other engines, and what they may be besides None: nothing else is done here.
_OF_OTHERS: dict[str, tuple[Any, ...]] = {
    "phony_dims": ("sort",),  # the names that netCDF-C gives
    "decode_vlen_strings": (True,),
    "format": ("NETCDF4",),
    "lock": (False, True),
    "mode": ("r",),
    **dict.fromkeys(("autoclose", "auto_complex", "invalid_netcdf"), (False,)),
    **dict.fromkeys(("clobber", "diskless", "persist", "mmap"), (False,)),
    **dict.fromkeys(("driver", "driver_kwds", "open_kwargs"), ()),
    **dict.fromkeys(("chunk_store", "synchronizer", "zarr_format", "zarr_version"), ()),
}
_OPENING = (
    "group",
    "storage_options",
    "consolidated",
    "use_zarr_fill_value_as_mask",
    "anonymous_dimension_prefix",
    "index_cache",
    "replace",
    "allow",
)


class NCZarrBackendEntrypoint(BackendEntrypoint):
    """Open NCZarr of every netCDF-C release, Zarr 2 and 3, classic and HDF5 files.

    The options of `open_dataset` are those of `open_datatree` and `open_groups`, too.
    """

    description = "Open NCZarr, Zarr, netCDF and HDF5, on disk or remote, in Xarray"
    url = "https://docs.unidata.ucar.edu/nug/current/nczarr_head.html"
    supports_groups: ClassVar[bool] = True

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Tell whether a target is NCZarr beyond doubt: by its fragment, suffix or root keys.

        While `nczarr_xarray.prefer` holds, also whether it is remote netCDF or in S3.
        """
        if not isinstance(filename_or_obj, (str, os.PathLike)):
            return False
        target = os.fspath(filename_or_obj)
        return is_ours(target) or (bool(_asked_before) and is_remote_netcdf(target))

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: Any = True,
        decode_times: Any = True,
        concat_characters: Any = True,
        decode_coords: Any = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: Any = None,
        decode_timedelta: Any = None,
        group: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        consolidated: bool | None = None,
        use_zarr_fill_value_as_mask: bool | None = None,
        anonymous_dimension_prefix: str = "_Anonymous_Dim_",
        index_cache: str | os.PathLike[str] | None = None,
        replace: Mapping[str, str] | None = None,
        allow: Allow = None,
        **others: Any,
    ) -> Dataset:
        """Open one group as a Dataset.

        Parameters that are missing below are those of `xarray.open_dataset`, with the same meaning.

        Parameters
        ----------
        filename_or_obj : path, URL, file object, mapping or Store
            What to open.
        group : str, optional
            Path of the group to open.
        storage_options : dict, optional
            Options of the fsspec filesystem. Two are for local targets, too: ``follow_symlinks``,
            whether symbolic links may lead out of a tree (default: they are refused), and
            ``max_metadata``, the bytes that one object of metadata may have (default: 16 MiB).
        consolidated : bool, optional
            True: the dataset must have ``.zmetadata``, which is trusted. False: it
            is not looked at. None (default): it is used for remote stores if it
            agrees with the root objects, and each variable's own metadata is
            compared with it when the variable is first read.
        use_zarr_fill_value_as_mask : bool, optional
            Whether ``fill_value`` of pure Zarr 2 stands for ``_FillValue``. None
            (default): it does if netCDF-C did not write the dataset, and the value is
            neither zarr's default (0, empty) nor, for integers that are not packed,
            netCDF's default. In NCZarr and Zarr 3 it never does.
        anonymous_dimension_prefix : str
            Unnamed dimensions of Zarr 2 are called this plus their length. The
            default is that of netCDF-C 4.9.3 and later; earlier releases used
            ``_zdim_`` (4.9.0-4.9.2), ``.zdim_`` (4.8.1) and ``.zdim`` (4.8.0).
        index_cache : path, optional
            Folder in which the metadata of remote classic and HDF5 files are kept, so
            that other processes open them with one conditional request. (This process
            remembers them by itself.)
        replace : dict, optional
            Of an aggregation or of references: what the addresses of its fragments begin with, and
            what they begin with instead, ``{"/old/folder": "https://server/new"}``.
        allow : list, dict or bool, optional
            Of an aggregation or of references: what the addresses of fragments may begin with,
            besides those that it may name anyway (see ``docs/aggregations.md``); a dict has the
            storage options for each, True allows everything.
        **others
            Arguments of other engines for netCDF and Zarr, such as ``phony_dims="sort"`` and
            ``lock=False``, if they ask for nothing else than what is done here.

        Raises
        ------
        DatasetNotFoundError
            If there is no dataset, or no such group.
        FormatError, StoreError, URLError
            If the root or the wanted group cannot be read or understood. (A variable that cannot
            be read raises when it is used.)
        """
        given = dict(locals())
        for name in ("self", "filename_or_obj", "others"):
            del given[name]
        (dataset,) = _open(filename_or_obj, tree=False, **given, **others).values()
        return dataset

    open_dataset_parameters: ClassVar[tuple[str, ...] | None] = tuple(
        signature(open_dataset).parameters
    )[1:-1]

    def open_groups_as_dict(self, filename_or_obj: Any, **options: Any) -> dict[str, Dataset]:
        """Open a group and every group below it, by path (options as `open_dataset`)."""
        return _open(filename_or_obj, tree=True, **options)

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> DataTree:
        """Open every group as one tree (options as `open_dataset`).

        Raises
        ------
        FormatError
            If a group redefines a dimension of its parent with another length.
        """
        from nczarr_xarray.backend.data_store import as_tree

        return as_tree(self.open_groups_as_dict(filename_or_obj, **options))


# so that help and completion show the options, which are passed on as they are
_SHOWN = [*signature(NCZarrBackendEntrypoint.open_dataset).parameters.values()][:-1]
for _method in (
    NCZarrBackendEntrypoint.open_dataset,
    NCZarrBackendEntrypoint.open_groups_as_dict,
    NCZarrBackendEntrypoint.open_datatree,
):
    _method.__signature__ = signature(_method).replace(  # type: ignore[union-attr]
        parameters=_SHOWN
    )


def _open(target: Any, *, tree: bool, **arguments: Any) -> dict[str, Dataset]:
    from nczarr_xarray.import_hooks import preload

    preload(target)
    from nczarr_fsspec.errors import NCZarrError

    try:
        from nczarr_xarray.backend.data_store import open_groups
        from nczarr_xarray.formats.registry import OpenOptions

        _leave_out_of_others(arguments)
        given = {name: arguments.pop(name) for name in _OPENING if name in arguments}
        return open_groups(target, OpenOptions(tree=tree, **given), **arguments)
    except (NCZarrError, ImportError) as error:
        # the message says all; a hundred lines of our calls above it would hide the user's own
        logging.getLogger(__name__).debug("cannot be opened", exc_info=True)
        raise error.with_traceback(None)  # noqa: B904 - it is the same error, with its cause


def is_ours(target: str) -> bool:
    """Tell whether a path or URL is one that only this engine reads right.

    True for a URL whose fragment names the mode ``nczarr``, ``zarr`` or ``bytes``, for the
    suffixes ``.nczarr`` and ``.nca``, and for a local tree or zip whose root carries NCZarr
    keys. Everything else is left to other engines. No network is touched.
    """
    from nczarr_fsspec.errors import NCZarrError

    if "://" in target:
        from nczarr_fsspec.places.url import parse_url

        path, _, fragment = target.partition("#")
        try:
            if fragment and parse_url(target).mode & {"nczarr", "zarr", "bytes"}:
                return True
        except NCZarrError:
            return False
        return bool(re.search(r"\.(nczarr|nca)/?$", path.partition("?")[0]))
    if not Path(target).exists():
        return False
    if target.rstrip("/").endswith((".nczarr", ".nca")):
        return True
    if not Path(target).is_dir():
        with Path(target).open("rb") as file:
            if file.read(2) != b"PK":
                return False
    from nczarr_fsspec.place import open_keystore
    from nczarr_xarray.formats.nczarr import spellings
    from nczarr_xarray.formats.nczarr.jsontext import loads

    try:
        store = open_keystore(target)
        try:
            files = {file for file, _ in spellings.SUPERBLOCK.values()}
            objects = zip(files, store.get_many(list(files)), strict=True)
            root = {file: loads(data, file) for file, data in objects if isinstance(data, bytes)}
            return spellings.detect(root) is not None
        finally:
            store.close()
    except NCZarrError:
        return False


def is_remote_netcdf(target: str) -> bool:
    """Tell whether a URL names a netCDF or HDF5 file, or something in S3 that is not ``.zarr``.

    False for addresses of OPeNDAP and of catalogues. No network is touched.
    """
    place = target.partition("#")[0].partition("?")[0].rstrip("/")
    ours = r"(?!file:).*://.*\.(nc|nc4|cdf|h5|hdf5|he5)$|s3://(?!.*\.zarr$)"
    if not re.match(ours, place, re.IGNORECASE):
        return False
    from nczarr_fsspec.places.names import hint
    from nczarr_xarray.formats.opendap import is_dap

    return not is_dap(target) and not hint(target)


#: Engines of xarray that are asked before this one, and their `guess_can_open`; empty if this one
#: is not preferred.
_asked_before: dict[Any, Callable[..., bool]] = {}


def prefer(preferred: bool = True) -> ExitStack:
    """Let this engine open remote netCDF, S3 URLs and masters where no ``engine=`` is given.

    xarray asks its own engines first, and ``netcdf4`` claims every URL. From now on they say no to
    what this engine says yes to: to what it reads alone, as ever, to a URL that ends in ``.nc``,
    ``.nc4``, ``.cdf``, ``.h5``, ``.hdf5`` or ``.he5``, and to an ``s3://`` URL that does not end
    in ``.zarr``. Local netCDF files and OPeNDAP stay with the engines that they have.

    The same is done for a whole process, such as a worker of dask, by the environment variable
    ``NCZARR_PREFER=1``.

    Parameters
    ----------
    preferred
        Whether this engine is preferred from now on.

    Returns
    -------
    contextlib.ExitStack
        A context manager at whose end, or ``close()``, all is again as it was before.

    Examples
    --------
    >>> nczarr_xarray.prefer()
    >>> xr.open_dataset("https://server/file.nc")
    """
    from xarray import backends

    before = bool(_asked_before)
    engines: tuple[Any, ...] = (
        backends.NetCDF4BackendEntrypoint,
        backends.H5netcdfBackendEntrypoint,
        backends.ScipyBackendEntrypoint,
    )
    if preferred and not before:
        for engine in engines:
            _asked_before[engine] = engine.guess_can_open
            engine.guess_can_open = _but_ours(engine.guess_can_open)
    while _asked_before and not preferred:
        engine, guess = _asked_before.popitem()
        engine.guess_can_open = guess
    undo = ExitStack()
    undo.callback(prefer, before)
    return undo


def _but_ours(guess: Callable[..., bool]) -> Callable[..., bool]:
    """Return a `guess_can_open` that says no to what is this engine's."""

    @wraps(guess)
    def guess_can_open(self: BackendEntrypoint, filename_or_obj: Any) -> bool:
        ours = NCZarrBackendEntrypoint().guess_can_open(filename_or_obj)
        return not ours and guess(self, filename_or_obj)

    return guess_can_open


def _leave_out_of_others(arguments: dict[str, Any]) -> None:
    """Take out arguments of other engines that ask for nothing else than what is done here."""
    from nczarr_fsspec.errors import URLError

    own = signature(NCZarrBackendEntrypoint.open_dataset).parameters
    for name in sorted(arguments.keys() - own.keys()):
        if name not in _OF_OTHERS:
            raise TypeError(f"engine 'nczarr' takes no argument {name!r}")
        value = arguments.pop(name)
        if value is not None and value not in _OF_OTHERS[name]:
            reason = f"{value!r:.40} has no meaning for engine 'nczarr'; leave the argument out"
            raise URLError(f"{name}=", reason)


if os.environ.get("NCZARR_PREFER", "0") not in ("", "0"):
    prefer()
