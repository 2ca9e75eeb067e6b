"""Decoding with libhdf5 itself: a chunk of a file in memory is written raw and read decoded."""

from __future__ import annotations

import importlib
import os
import struct
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError, UnsupportedError

#: Stands in while a file is made, as it keeps whatever parameters it is given.
_DEFLATE = 1
#: Filters that come with libhdf5.
SZIP = 4
_BUILT_IN = range(1, 7)


def only_user() -> AbstractContextManager[Any]:
    """Keep others from using libhdf5.

    netCDF4 and h5py may share one library, which is not thread-safe; xarray's
    reads of netCDF files hold this lock. They may wait for an event loop while
    they do: libhdf5 is never to be used in the thread of one.
    """
    return _ours_alone or _lock_of_xarray() or nullcontext()


def _lock_of_xarray() -> Any:
    return getattr(sys.modules.get("xarray.backends.locks"), "HDF5_LOCK", None)


#: What `only_user` is instead, in the child of a fork: see `_leave_dead_lock`.
_ours_alone: threading.Lock | None = None


def _leave_dead_lock() -> None:
    """Replace xarray's lock in the child of a fork if it is held by a thread of the parent.

    libhdf5 itself is in order, for h5py sees to it that none of its calls is cut by a fork.
    """
    global _ours_alone  # noqa: PLW0603 - one for the process
    lock = _lock_of_xarray()
    is_dead = lock is not None and not lock.acquire(blocking=False)  # `locked` may say so too late
    _ours_alone = threading.Lock() if is_dead else None
    if lock is not None and not is_dead:
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_dead_lock)


@contextmanager
def opened(image: bytes) -> Iterator[Any]:
    """Open the HDF5 file whose bytes are `image`, to be read and changed in memory."""
    import h5py

    open_image = h5py.h5f.open_file_image
    with only_user(), h5py.File(open_image(image, h5py.h5f.FILE_IMAGE_OPEN_RW)) as file:
        yield file


def lacks(filter_id: int) -> str:
    """Tell why h5py cannot undo a filter, alone or with hdf5plugin; empty if it can."""
    with only_user():
        try:
            import h5py
        except ImportError:
            return "needs h5py: pip install h5py, or 'nczarr-xarray[szip]'"
        if not h5py.h5z.filter_avail(filter_id):
            with suppress(ImportError):
                importlib.import_module("hdf5plugin")  # which makes its filters known to h5py
        if h5py.h5z.filter_avail(filter_id):
            return ""
        if filter_id in _BUILT_IN:
            return "is not in this h5py: pip install a wheel of it"
        return (
            "cannot be undone: libhdf5 does not have it either. "
            "If it is one of hdf5plugin's: pip install h5py hdf5plugin"
        )


def filter_decoder(filter_id: int, values: Sequence[int], size: int) -> Callable[[Any], Any]:
    """Return a function that undoes one filter of HDF5.

    Parameters
    ----------
    filter_id, values
        The filter and its parameters, as the pipeline of a dataset states them.
    size
        Bytes that the filter has to return.

    Raises
    ------
    FormatError
        If h5py cannot do that.
    """
    image = _image(filter_id, values, size)

    def decode(data: Any) -> Any:
        with opened(image) as file:
            dataset = file["chunk"]
            dataset.id.write_direct_chunk((0,), bytes(data))
            return dataset[...]

    return decode


def filter_encoder(
    filter_id: int, values: Sequence[int], size: int
) -> Callable[[Any], bytes | None]:
    """Return a function that applies one filter of HDF5; None of what the filter fails to encode.

    Parameters and errors are as of `filter_decoder`.
    """
    image = _image(filter_id, values, size)

    def encode(data: Any) -> bytes | None:
        with opened(image) as file:
            dataset = file["chunk"]
            dataset[...] = np.frombuffer(data, np.uint8)
            file.flush()
            skipped, stored = dataset.id.read_direct_chunk((0,))
            return None if skipped else bytes(stored)

    return encode


def _image(filter_id: int, values: Sequence[int], size: int) -> bytes:
    if reason := lacks(filter_id):
        name = "codec 'szip'" if filter_id == SZIP else f"filter {filter_id}"
        raise UnsupportedError("", f"{name} {reason}")
    with only_user():
        return _chunk_file(filter_id, tuple(values), size)


def convert_numbers(stored: np.ndarray, encoded: bytes, dtype: np.dtype) -> np.ndarray:
    """Convert numbers in a format of their own, as HDF5 does.

    Parameters
    ----------
    stored
        Their bytes (dtype ``V<n>``).
    encoded
        Their datatype, as a file states it.
    dtype
        Of the result.

    Raises
    ------
    UnsupportedError
        If h5py is not there, or HDF5 cannot convert them.
    """
    try:
        import h5py
    except ImportError:
        reason = "has numbers that take h5py to read: pip install 'nczarr-xarray[szip]'"
        raise UnsupportedError("", reason) from None
    count, size = stored.size, stored.itemsize
    # they are converted in place
    buffer = np.zeros(count * max(size, dtype.itemsize), dtype=np.uint8)
    buffer[: count * size] = np.frombuffer(stored.tobytes(), np.uint8)
    with only_user():
        try:
            # a datatype by itself has the type of its message (3) and a version before it
            source = h5py.h5t.decode(b"\x03\0" + encoded)
            h5py.h5t.convert(source, h5py.h5t.py_create(dtype), count, buffer)
        except (RuntimeError, ValueError, TypeError) as error:
            raise UnsupportedError("", f"libhdf5 cannot convert it: {error}") from None
    return buffer[: count * dtype.itemsize].view(dtype).reshape(stored.shape)


@lru_cache(maxsize=64)
def _chunk_file(filter_id: int, values: tuple[int, ...], size: int) -> bytes:
    """Return the bytes of an HDF5 file with one empty chunk of `size` bytes.

    Most filters replace their parameters by what fits the dataset when it is
    created. So it is created with a filter that does not, whose number is changed
    in the bytes of the file.
    """
    import h5py

    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((size,))
    properties.set_filter(_DEFLATE, h5py.h5z.FLAG_OPTIONAL, values)
    # the earliest version of the file format has no checksums over what is changed
    with h5py.File(
        uuid.uuid4().hex, "w", driver="core", backing_store=False, libver="earliest"
    ) as file:
        space = h5py.h5s.create_simple((size,))
        h5py.h5d.create(file.id, b"chunk", h5py.h5t.STD_U8LE, space, properties)
        file.flush()
        image: bytes = file.id.get_file_image()
    rest = struct.pack(f"<3H8s{len(values)}I", 8, 1, len(values), b"deflate", *values)
    old, new = (struct.pack("<H", number) + rest for number in (_DEFLATE, filter_id))
    if image.count(old) != 1:
        raise FormatError("", f"filter {filter_id} does not work with this version of h5py")
    return image.replace(old, new)
