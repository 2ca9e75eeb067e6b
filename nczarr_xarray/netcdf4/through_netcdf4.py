"""Files of netCDF's own formats are written by netCDF4-python, remote ones in a temporary file."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import closing, suppress
from functools import cache, partial
from typing import Any

from nczarr_fsspec.destination import FilePlace
from nczarr_fsspec.errors import NCZarrError, on_error
from nczarr_fsspec.places.names import TREES, says_file
from nczarr_fsspec.places.url import is_url, parse_url
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.formats.cfa.dialect import aggregated
from nczarr_xarray.formats.registry import OpenOptions


def writes_tree(filename: Any, kind: str) -> bool:
    """Tell whether a new dataset is a tree of objects, not one of netCDF's own files.

    `kind`, the argument `format`, says it, or a mode word of a URL, or the name: ``.nc`` and the
    like are files, other URLs trees; of local paths ``.nczarr``, ``.zarr``, ``.zip`` and
    directories are trees.
    """
    if kind in ("NCZARR", "ZARR"):
        return True
    if not isinstance(filename, (str, os.PathLike)):
        return True  # a mapping, or a store
    name = os.fsdecode(filename)
    if is_url(name):
        url = parse_url(name)
        return bool(url.mode & TREES) or not says_file(url.path, url.mode)
    return os.path.isdir(name) or name.lower().endswith((".nczarr", ".zarr", ".zip"))


def changes_aggregation(filename: Any, mode: str, storage_options: Any = None) -> bool:
    """Tell whether a file is to be changed that is the master of an aggregation."""
    if mode not in ("a", "r+", "as"):
        return False
    options = OpenOptions(storage_options=storage_options)
    with suppress(NCZarrError, OSError), open_with(filename, options) as opened:
        return any(True for _ in aggregated(opened.hierarchy))
    return False


def open_to_write(filename: Any, mode: str, *given: Any, **arguments: Any) -> Any:
    """Open a file to write it; return a ``netCDF4.Dataset``.

    Parameters
    ----------
    filename
        A local path, or a URL where objects can be put.
    mode
        ``"w"``, ``"x"``, ``"a"`` or ``"r+"``.
    **arguments
        Others of ``netCDF4.Dataset``, and `storage_options` of a URL.

    Raises
    ------
    NotImplementedError
        If netCDF4-python is not installed.
    """
    netCDF4 = netcdf4_python(filename)  # noqa: N806
    options = arguments.pop("storage_options", None)
    version = arguments.pop("cfa_version", None)  # which says nothing of a file that is none
    if version not in (None, "0.4") and arguments.get("format", "").startswith("NETCDF3"):
        raise ValueError(f"{filename}: cfa_version={version!r} needs netCDF-4")
    if not (isinstance(filename, (str, os.PathLike)) and is_url(os.fsdecode(filename))):
        return netCDF4.Dataset(filename, mode, *given, **arguments)
    return _remote_file(netCDF4.Dataset)(os.fsdecode(filename), mode, options, **arguments)


def netcdf4_python(filename: Any) -> Any:
    """Return the module netCDF4, or raise `NotImplementedError` naming the file that needs it."""
    try:
        import netCDF4
    except ImportError as error:
        raise NotImplementedError(
            f"{filename}: netCDF files are written by netCDF4-python: pip install netCDF4; for "
            "NCZarr, which needs none, choose a name that ends in .nczarr or .zip"
        ) from error
    return netCDF4


@cache
def _remote_file(dataset: Any) -> Any:
    """Return the class of datasets in temporary files, made of netCDF4-python's."""

    class RemoteFile(dataset):  # type: ignore[misc]
        """A dataset of netCDF4-python in a temporary file, which `close` puts to its URL.

        An exception in ``with`` leaves what is there.
        """

        __slots__ = ("_place", "_url")

        def __init__(self, url: str, mode: str, options: Any, **arguments: Any) -> None:
            place = FilePlace.find(url, options, "mode='w' replaces it")
            folder = tempfile.mkdtemp(prefix="nczarr-")
            path = os.path.join(folder, os.path.basename(place.name) or "dataset.nc")
            if mode == "w" and not arguments.get("clobber", True):
                mode = "x"
            with on_error(lambda: shutil.rmtree(folder, ignore_errors=True)):
                _prepare(place, path, mode)
                super().__init__(path, "w" if mode == "x" else mode, **arguments)
            RemoteFile._place.__set__(self, place)  # what is assigned would be an attribute
            RemoteFile._url.__set__(self, url)
            atexit.register(self.close)  # netCDF4-python stores what a program has not closed

        def filepath(self, encoding: str | None = None) -> str:
            """Return the URL."""
            return str(self._url)

        def close(self) -> None:
            """Put the file to its URL."""
            self._end(put=True)

        def __exit__(self, kind: object, *_: object) -> None:
            self._end(put=kind is None)

        def _end(self, *, put: bool) -> None:
            atexit.unregister(self.close)
            path = super().filepath()
            try:
                super().close()
                if put:
                    self._place.write(partial(shutil.copyfile, path), overwrite=True)
            finally:
                shutil.rmtree(os.path.dirname(path), ignore_errors=True)
                self._place.store.close()

    return RemoteFile


def _prepare(place: Any, path: str, mode: str) -> None:
    """Copy the object at a place that is to be changed; raise if one is there that must not be."""
    if mode == "w" or not place.exists():
        return
    if mode == "x":
        raise place.already_there
    with closing(place.store.reader()) as reader, open(path, "wb") as file:
        file.write(reader.get_one(place.name))
