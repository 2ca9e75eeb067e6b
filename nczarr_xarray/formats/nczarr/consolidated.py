"""Consolidated metadata, ``.zmetadata``, and the check that they are up to date.

netCDF-C does not rewrite ``.zmetadata`` when it updates a dataset, and reads it
without a check. So it is compared with the root objects before it is used, and each array's own
``.zarray`` is compared when its data are read (`nczarr_xarray.dataset.open`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.keystore import Listing
from nczarr_xarray.formats.nczarr import spellings
from nczarr_xarray.formats.nczarr.jsontext import JSON, Number, loads, same

KEY = ".zmetadata"
#: Documents that every dataset of Zarr 2 may have.
_FILES = frozenset({*spellings.GROUP_FILES, *spellings.ARRAY_FILES})


@dataclass(frozen=True, slots=True)
class Consolidated:
    """All metadata documents of a dataset by key, and the children of each prefix.

    A member that is no document is replaced by its error.
    """

    documents: Mapping[str, JSON]
    tree: Mapping[str, frozenset[str]]

    @classmethod
    def parse(cls, document: JSON) -> Consolidated:
        """Parse ``.zmetadata``.

        Raises
        ------
        FormatError
            If it is not consolidated metadata of Zarr 2.
        """
        if not isinstance(document, dict):
            raise FormatError(KEY, "is not a JSON object")
        if document.get("zarr_consolidated_format") != Number(1):
            raise FormatError(KEY, "zarr_consolidated_format is not 1")
        metadata = document.get("metadata")
        if not isinstance(metadata, dict) or not metadata:
            raise FormatError(KEY, "'metadata' is not an object with members")
        documents: dict[str, JSON] = {}
        tree: dict[str, set[str]] = {}
        for name, value in metadata.items():
            key = name.lstrip("/")
            if key.count("/") > spellings.MAX_DEPTH:
                raise FormatError(KEY, f"the key {key:.80}... is nested too deeply")
            if not isinstance(value, dict):
                value = FormatError(f"{KEY} {key}", "is not a JSON object")
                if "/" not in key:
                    raise value
            documents[key] = value
            parts = key.split("/")
            for i, part in enumerate(parts):
                tree.setdefault("/".join(parts[:i]), set()).add(part)
        return cls(documents, {prefix: frozenset(names) for prefix, names in tree.items()})

    def children(self, prefix: str) -> frozenset[str]:
        """Return the names directly below `prefix`."""
        return self.tree.get(prefix, frozenset())

    def check(self, root: Mapping[str, JSON], listing: Listing, *, trusted: bool) -> None:
        """Compare the document with the root objects themselves.

        Parameters
        ----------
        root
            The root documents as the store holds them.
        listing
            Names below the root, None where the store cannot list.
        trusted
            Whether the user trusts it: then only a loss of NCZarr's structure is refused.

        Raises
        ------
        FormatError
            If it does not describe the dataset.
        """
        if spellings.detect(root) and not spellings.detect(self.documents):
            raise FormatError(KEY, "lacks the NCZarr keys of .zgroup (written by another tool?)")
        if trusted:
            return
        for file in spellings.GROUP_FILES:
            # a store may hold nothing but .zmetadata and chunks
            if file in root and not same(root[file], self.documents.get(file)):
                raise FormatError(KEY, f"is stale: {file} has changed since it was written")
        if isinstance(listing, frozenset):
            there = {name for name in listing if not name.startswith(".")}
            named = {name for name in self.children("") if not name.startswith(".")}
            if there != named:
                names = ", ".join(sorted(there ^ named)[:5])
                raise FormatError(KEY, f"is stale: it and the store differ in {names}")


def only_copies(
    data: bytes, documents: Mapping[str, bytes], broken: Collection[str] = ()
) -> list[str]:
    """Return the documents that only ``.zmetadata`` has, though their node has others.

    Parameters
    ----------
    data
        ``.zmetadata`` as it is stored; damaged one has none.
    documents
        All documents of the dataset.
    broken
        Paths of arrays that cannot be read by their own documents.
    """
    try:
        known = Consolidated.parse(loads(data, KEY)).documents
    except FormatError:
        return []
    nodes = {key.rpartition("/")[0] for key in documents}
    found = []
    for key, document in known.items():
        node, _, name = key.rpartition("/")
        if document and node in nodes and name in _FILES:
            lost = node in broken and not _is(document, documents.get(key, b""))
            if lost or key not in documents:
                found.append(key)
    return sorted(found)


def _is(document: JSON, data: bytes) -> bool:
    """Tell whether an object has the content of a document."""
    try:
        return same(document, loads(data, KEY))
    except FormatError:
        return False


def lost_copies(keys: Collection[str]) -> str:
    """Return the reason why metadata cannot be written that would end the only copies of some."""
    return (
        f"{', '.join(keys)}: only {KEY} has this, and it would be lost: write it under its own "
        "key, or remove it there (nczarr validate says more)"
    )
