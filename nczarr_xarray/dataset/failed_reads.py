"""What is said of a read that failed: which dataset it is about, and whether that has changed.

Whether bytes are damaged is found out by what decodes them (`nczarr_xarray.chunks.decoder`), and
whether chunks are missing or gone by `nczarr_fsspec.stores.missing_chunks`. Here it is found out,
once a read has failed, whether the dataset is still the one that was opened, which explains either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from nczarr_fsspec.errors import FormatError, NCZarrError, StoreError
from nczarr_fsspec.keystore import KeyStore, LocalStore
from nczarr_fsspec.stores.missing_chunks import CHANGED

if TYPE_CHECKING:
    from nczarr_xarray.dataset.variable import VariableReader


@contextmanager
def explained(reader: VariableReader) -> Iterator[None]:
    """Explain the errors of a read, and see at its end that the dataset is the one that was opened.

    Else its missing chunks would be fill values of another one that has taken its place.
    """
    try:
        yield
        store = reader.store
        if isinstance(store, LocalStore):
            if reader.as_opened is None:
                store.check_place()
            else:
                reader.as_opened.check(store)
    except (FormatError, StoreError) as error:
        explain(reader, error)
        raise
    except MemoryError as error:
        reason = f"the selection does not fit into memory ({error}): read a part"
        raise FormatError(reader.path, reason) from None


def explain(reader: VariableReader, error: NCZarrError) -> None:
    """Add to an error which dataset it is about, and if that has changed since its opening."""
    error.found_in(reader.store.url)
    known = reader.error is not None or error.reason.endswith(CHANGED)
    if not known and isinstance(reader.store, KeyStore) and _has_changed(reader, reader.store):
        error.reason += f"; {CHANGED}"


def _has_changed(reader: VariableReader, store: KeyStore) -> bool:
    try:
        store.check_place()
    except StoreError:  # which is all that tells two trees of Zarr 3 apart
        return True
    if reader.as_opened is None:
        return False
    from nczarr_fsspec.changes.consistent_reading import look

    with suppress(StoreError):
        now, before = look(store), reader.as_opened.mark
        # a root that is not there any more may only be out of reach, as the rest is
        return now != before and not (now.root is None and before.root is not None)
    return False
