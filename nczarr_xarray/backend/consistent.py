"""Values that are all of one state of a dataset, while others write to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import xarray as xr

from nczarr_fsspec.changes.journal import STATE_KEYS
from nczarr_fsspec.changes.moment import Mark, look
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.keystore import KeyStore
from nczarr_xarray.dataset.open import ATTEMPTS, always_changing
from nczarr_xarray.dataset.targets import open_target

#: The mark of what has no objects of a tree.
NOTHING = Mark(None, (None,) * len(STATE_KEYS))

T = TypeVar("T", xr.Dataset, xr.DataArray)


def state(target: Any, storage_options: Mapping[str, Any] | None = None) -> str:
    """Tell the state of a dataset: a text that is another one after every change of it.

    What was read between two calls that return the same is all of one state.
    Changes made with this package count, of whatever they are (values, appends,
    variables, a new dataset in place of the old one). Other programs change
    datasets piece by piece, which cannot be told.

    Parameters
    ----------
    target, storage_options
        As for `xarray.open_dataset` with this engine. Of one classic or HDF5 file
        it is the state of the file, as far as that can be told.

    Raises
    ------
    StoreError
        If it cannot be looked at.
    """
    return _look(target, storage_options)[1]


def load_dataset(
    target: Any,
    select: Callable[[xr.Dataset], T] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> T | xr.Dataset:
    """Open a dataset, load it and close it, with all values of one state of it.

    It is `xarray.load_dataset`, done again if the dataset was changed meanwhile.

    Parameters
    ----------
    target, storage_options
        As for `state`.
    select
        Takes the dataset and returns what is to be loaded of it; by default everything.
    options
        As for `xarray.open_dataset`.

    Raises
    ------
    NCZarrError
        If it cannot be read; `StoreError` too if it was changed during every attempt.
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
    resolved = open_target(target, storage_options)
    source = resolved.data
    try:
        found: object
        if not isinstance(source, KeyStore):
            found = source.validator
        else:
            found = source.contents() if source.steady else look(source)
            if found == NOTHING and resolved.as_file is not None:
                with suppress(StoreError):  # it need not be a file either
                    found = resolved.as_file().validator
        return source.url, hashlib.sha256(repr(found).encode()).hexdigest()[:32]
    finally:
        source.close()
