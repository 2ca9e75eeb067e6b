"""Values that are all of one state of a dataset, while others write to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar, overload

import xarray as xr

from nczarr_fsspec.changes.consistent_reading import Mark, look
from nczarr_fsspec.changes.journal import STATE_KEYS
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.keystore import KeyStore
from nczarr_xarray.dataset.open import ATTEMPTS, always_changing, place_of

#: The mark of what has no objects of a tree.
NOTHING = Mark(None, (None,) * len(STATE_KEYS))

T = TypeVar("T", xr.Dataset, xr.DataArray)


def state(target: Any, storage_options: Mapping[str, Any] | None = None) -> str:
    """Return the state of a dataset, a text that is different after every change.

    Data that were read between two calls with equal results are all of one state.
    All changes by this package count (values, appends, variables, a new dataset in
    place of the old one). Other programs change datasets piece by piece; their
    changes cannot be noticed.

    Parameters
    ----------
    target, storage_options
        As for `xarray.open_dataset` with this engine. Of one classic or HDF5 file
        the result is the state of the file, as far as its time or entity tag shows it.

    Raises
    ------
    StoreError
        If the dataset cannot be read.
    """
    return _look(target, storage_options)[1]


@overload
def load_dataset(
    target: Any,
    select: None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> xr.Dataset: ...


@overload
def load_dataset(
    target: Any,
    select: Callable[[xr.Dataset], T],
    *,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> T: ...


def load_dataset(
    target: Any,
    select: Callable[[xr.Dataset], T] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> T | xr.Dataset:
    """Open a dataset, load it and close it, with all values of one state of it.

    Do as `xarray.load_dataset`, and load again if the dataset was changed meanwhile.

    Parameters
    ----------
    target, storage_options
        As for `state`.
    select
        A function from the dataset to the part of it that is loaded; by default everything.
    options
        As for `xarray.open_dataset`.

    Raises
    ------
    NCZarrError
        If the dataset cannot be read. `StoreError` also if it was changed during every attempt.
    """
    for _ in range(ATTEMPTS):
        before = _look(target, storage_options)
        failure = None
        try:
            with xr.open_dataset(
                target, engine="nczarr", storage_options=storage_options, **options
            ) as dataset:
                loaded = (dataset if select is None else select(dataset)).load()
        except Exception as error:  # noqa: BLE001 - it may come of the change
            failure = error
        if _look(target, storage_options) == before:
            if failure is not None:
                raise failure
            return loaded
    raise StoreError(before[0], always_changing(ATTEMPTS))


def _look(target: Any, storage_options: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return how messages name a dataset, and the text for its state."""
    contents = place_of(target, storage_options).open()
    source = contents.data
    try:
        found: object
        if not isinstance(source, KeyStore):
            found = source.validator
        else:
            found = source.contents() if source.steady else look(source)
            if found == NOTHING and contents.as_file is not None:
                with suppress(StoreError):  # it need not be a file either
                    found = contents.as_file().validator
        return source.url, hashlib.sha256(repr(found).encode()).hexdigest()[:32]
    finally:
        source.close()
