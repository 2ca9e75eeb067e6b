"""What there is to say of references: in how many files the chunks of a variable are."""

from __future__ import annotations

from collections.abc import Iterator

from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.stores.referenceformat import Part
from nczarr_fsspec.stores.references import LocalReferences, RemoteReferences
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.tools.finding import Finding
from nczarr_xarray.tools.survey import SAMPLE, VariableStorage, keys_of

#: Chunks that are looked at, of one variable.
_MOST = 1 << 14


def of_references(store: KeyStore | DataFile, facts: VariableStorage | None) -> Iterator[Finding]:
    """Say in how many files the chunks of a variable are, if references name them."""
    if facts is None or not isinstance(store, (LocalReferences, RemoteReferences)):
        return
    # each file of a folder behind a network is a request
    few = isinstance(store, RemoteReferences) and isinstance(store.origin, KeyStore)
    keys = keys_of(facts, SAMPLE if few else _MOST)
    found = [part for part in store.find_many(keys) if isinstance(part, Part)]
    files = len({part.address for part in found})
    some = "" if len(keys) == facts.count else f", of {len(keys):,} that were looked at"
    text = f"has {len(found):,} chunks in {files:,} files{some}; each file needs its own requests"
    yield Finding("note", "references", facts.path, text)
