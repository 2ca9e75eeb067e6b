"""Kerchunk references that a target turns out to be."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.ranges.source import ByteSource
from nczarr_fsspec.stores.referencesigns import are_references
from nczarr_fsspec.transport.policy import RequestLimits
from nczarr_xarray.formats.open_options import OpenOptions


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
    from nczarr_fsspec.errors import on_error
    from nczarr_xarray.dataset.reference_store import open_references

    limits = RequestLimits.take(dict(options.storage_options or {}), "storage_options")
    with nullcontext() if isinstance(data, Mapping) else on_error(data.close):
        store = open_references(data, options.policy(target, data))
    if limits.max_metadata is not None:
        store.max_metadata = limits.max_metadata
    return store
