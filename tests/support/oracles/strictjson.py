"""JSON as its standard has it, and no more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: Of documents that hold one of these, the dataset is NCZarr, not pure Zarr.
NCZARR = (b'"_nczarr_', b'"_NCZARR_')


def strict(data: bytes | str) -> Any:
    """Parse a document (ValueError if a browser would not)."""

    def refuse(word: str) -> Any:
        raise ValueError(f"the bare word {word}")

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError(f"a name stands twice among {[name for name, _ in pairs]}")
        return found

    return json.loads(data, parse_constant=refuse, object_pairs_hook=members)


def check_pure(documents: Mapping[str, bytes]) -> None:
    """Assert that all documents are strict JSON, if they are of pure Zarr."""
    if any(word in data for data in documents.values() for word in NCZARR):
        return
    for key, data in documents.items():
        try:
            strict(data)
        except ValueError as error:
            raise AssertionError(f"{key} is no JSON: {error}: {data!r:.300}") from error
