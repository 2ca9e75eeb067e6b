"""A dataset of an OPeNDAP server, through the netCDF library: what fragments may be."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from nczarr_fsspec.errors import StoreError, UnsupportedError
from nczarr_fsspec.places.url import redact
from nczarr_xarray.chunks.pieces import BoundingBox
from nczarr_xarray.model import (
    NC_DTYPES,
    Attribute,
    Dimension,
    Group,
    Hierarchy,
    LibraryArray,
    Variable,
    join,
)

_IS_DAP = re.compile(r"(?i)(dods|dap4)://|https?://[^#]*#(.*[=,&])?dap[24]\b")
#: the netCDF library is used by one thread at a time
_lock = threading.RLock()


def is_dap(target: str) -> bool:
    """Tell whether a URL names OPeNDAP as its protocol."""
    return _IS_DAP.match(target) is not None


@dataclass(frozen=True, slots=True)
class DapArray(LibraryArray):
    """A variable of an OPeNDAP server.

    Parameters
    ----------
    url
        Of the dataset, with its secrets.
    dtype
        Of the values; objects are text.
    """

    url: str
    dtype: np.dtype

    def selections(self, store: Any) -> DapReader:
        return DapReader(self)


class DapReader:
    """Reads selections of a `DapArray`."""

    has_readers = False

    def __init__(self, array: DapArray) -> None:
        self._array = array

    def read(self, key: tuple[Any, ...], *, points: bool) -> np.ndarray:
        """Read a selection: its bounding box is read, and the selection taken from it.

        Raises
        ------
        StoreError
            If the server cannot be asked, or does not answer.
        """
        array = self._array
        box = BoundingBox(key, array.shape)
        if not box.size:
            return box.take(np.empty(box.shape, array.dtype), points=points)
        with _opened(array.url) as file:
            values = np.asarray(file[array.path][box.slices])
        return box.take(values, points=points)


def read_hierarchy(url: str) -> Hierarchy:
    """Read the metadata of a dataset.

    Raises
    ------
    StoreError
        If the server cannot be asked, or does not answer.
    UnsupportedError
        If netCDF4 is not installed.
    """
    with _opened(url) as file:
        return Hierarchy(_group(file, "/", url), "opendap")


@contextmanager
def _opened(url: str) -> Iterator[Any]:
    try:
        import netCDF4
    except ImportError:
        raise UnsupportedError(
            redact(url), "is on an OPeNDAP server, which needs netCDF4: pip install netCDF4"
        ) from None
    with _lock:
        try:
            with netCDF4.Dataset(url) as file:
                file.set_auto_mask(False)
                file.set_auto_scale(False)
                file.set_auto_chartostring(False)
                yield file
        except (OSError, RuntimeError, IndexError) as error:
            raise StoreError(redact(url), f"cannot be read by OPeNDAP: {error}") from error


def _group(holder: Any, path: str, url: str) -> Group:
    """Return a group of the netCDF library as the model has it, with those below."""
    group = Group(path, attributes=_attributes(holder))
    for name, dimension in holder.dimensions.items():
        group.dimensions[name] = Dimension(name, len(dimension), dimension.isunlimited(), path)
    for name, own in holder.variables.items():
        dtype = np.dtype(object) if own.dtype is str else np.dtype(own.dtype)
        dimensions = tuple(
            Dimension(d.name, len(d), d.isunlimited(), d.group().path) for d in own.get_dims()
        )
        variable = Variable(name, path, dimensions, _nc_type(dtype), dtype, _attributes(own))
        variable.array = DapArray(join(path, name), variable.shape, url, dtype)
        group.variables[name] = variable
    for name, child in holder.groups.items():
        group.groups[name] = _group(child, join(path, name), url)
    return group


def _attributes(holder: Any) -> dict[str, Attribute]:
    found = {}
    for name in holder.ncattrs():
        value = holder.getncattr(name)
        if isinstance(value, str):
            found[name] = Attribute(name, "char", value)
        elif isinstance(value, list):
            found[name] = Attribute(name, "string", tuple(value))
        else:
            array = np.atleast_1d(value)
            found[name] = Attribute(name, _nc_type(array.dtype) or "double", array)
    return found


def _nc_type(dtype: np.dtype) -> str | None:
    native = dtype.newbyteorder("=")
    return next((name for name, known in NC_DTYPES.items() if known == native), None)
