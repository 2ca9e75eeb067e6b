"""One writer at a time: an object beside the fragments that says what is being written.

A master is replaced in one step. Before that, nothing refers to the new fragments; after that,
nothing refers to the old ones. The object names both, so that what a writer left that died can be
told from what is needed: fragments that the present master refers to.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from nczarr_fsspec.changes.recovery import read
from nczarr_fsspec.errors import ConflictError
from nczarr_fsspec.owner import AT_WORK, Owner, parse_json
from nczarr_xarray.export.cfa.existing_master import referred_keys
from nczarr_xarray.export.cfa.master_place import MasterPlace

_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to change an aggregation, until it is released.

    Parameters
    ----------
    place
        The aggregation.
    name
        Distinguishes this writer from others.
    """

    place: MasterPlace
    name: str

    @property
    def key(self) -> str:
        """The object that tells other writers."""
        return claim_key(self.place)

    @classmethod
    def begin(cls, place: MasterPlace) -> Claim:
        """Keep other writers out; clean up after one that died.

        Raises
        ------
        ConflictError
            If another writer is at work.
        StoreError
            If the store fails.
        """
        claim = cls(place, uuid.uuid4().hex)
        for _ in range(_ATTEMPTS):
            if place.store.create(claim.key, claim._document((), ())):
                AT_WORK.add(claim.name)
                return claim
            other = holder(place)
            if other is None:
                continue
            if not other.has_ended:
                raise ConflictError(
                    place.url,
                    f"is being written by {other.owner}; if that process has ended, call "
                    "nczarr_xarray.recover",
                )
            clear_claim(place)
        raise ConflictError(place.url, "is being written by others; try again")

    def note(self, new: Iterable[str], old: Iterable[str]) -> None:
        """Note in the claim which fragments will be written, and which are then not needed."""
        self.place.store.put(self.key, self._document(new, old))

    def forget(self) -> None:
        """Leave the claim to the next writer, which finds out how far this one came."""
        AT_WORK.discard(self.name)

    def release(self) -> None:
        """Remove the claim, so that other writers can begin."""
        self.forget()
        self.place.store.delete([self.key])

    def _document(self, new: Iterable[str], old: Iterable[str]) -> bytes:
        told = {"name": self.name, "owner": Owner.here().document}
        return json.dumps({**told, "new": [*new], "old": [*old]}).encode()


def claim_key(place: MasterPlace) -> str:
    """Return the key of the object that tells other writers."""
    return f"{place.stem}/.{place.file.name}.writing"


class Holder(NamedTuple):
    """What has the present claim on an aggregation."""

    owner: Owner
    has_ended: bool


def holder(place: MasterPlace) -> Holder | None:
    """Return what has the present claim; None if there is none."""
    claim = _present(place)
    if claim is None:
        return None
    owner = Owner.parse(claim.get("owner"))
    return Holder(owner, owner.has_left(str(claim.get("name"))))


def clear_claim(place: MasterPlace) -> bool:
    """Remove what a writer left that has ended; tell whether there was any.

    That is its claim, and fragments that nothing refers to.
    """
    claim = _present(place)
    if claim is None:
        return False
    present = referred_keys(place)
    if present is not None:
        named = (claim.get(part) for part in ("new", "old"))
        keys = {key for part in named if isinstance(part, list) for key in part}
        ours = {key for key in keys if isinstance(key, str) and place.key_of(key) == key}
        place.remove(sorted(ours - present))
    place.store.delete([claim_key(place)])
    return True


def _present(place: MasterPlace) -> dict[str, Any] | None:
    """Return what the present claim says; None if there is none."""
    data = read(place.store.reader(), claim_key(place))
    if data is None:
        return None
    found = parse_json(data)
    return found if isinstance(found, dict) else {}
