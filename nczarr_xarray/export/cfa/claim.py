"""One writer at a time: an object beside the fragments that says what is being written.

A master is replaced in one step. Before that, nothing refers to the new fragments; after that,
nothing refers to the old ones. The object names both, so that what a writer left that died can be
told from what is needed: fragments that the present master refers to.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from nczarr_fsspec.changes.edit import OVER
from nczarr_fsspec.changes.recovery import Succession
from nczarr_fsspec.errors import ConflictError, StoreError, on_error
from nczarr_fsspec.stores.ownership import AT_WORK, Owner, parse_json
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
        AT_WORK.add(claim.name)
        with on_error(claim._withdraw):
            for _ in range(_ATTEMPTS):
                if place.store.create(claim.key, claim._document((), ())):
                    return claim
                present = _present(place)
                if present is not None and claim._inherit(present):
                    return claim
        claim.forget()
        raise ConflictError(place.url, "is being written by others; try again")

    def _inherit(self, present: dict[str, Any]) -> bool:
        """Take over from a writer that has ended, as the only one who does; tell whether it is so.

        Raises
        ------
        ConflictError
            If the writer, or one that takes over from it, may be at work.
        """
        store, name = self.place.store, str(present.get("name"))
        line = Succession(store, f"{self.key}.{name}.")
        at_work, number = line.end(Owner.parse(present.get("owner")), name)
        if at_work is not None:
            raise ConflictError(
                self.place.url,
                f"is being written by {at_work}; if that process has ended, call "
                "nczarr_xarray.recover",
            )
        with line.turn(number) as entered:
            now = _present(self.place) if entered else None
            first = now is not None and now.get("name") == present.get("name")
            if now is not None and first:
                _remove_unneeded(self.place, now)
                store.put(self.key, self._document((), ()))
        if entered:  # if another process was done before, it removes the rest of the line
            store.delete(_successors(self.place) if first else [line.key(number)])
        return first

    def _withdraw(self) -> None:
        with self.ending(), suppress(StoreError):
            if self.is_there():  # then the line of those that took over is no longer needed
                self.place.store.delete([self.key, *_successors(self.place)])

    def note(self, new: Iterable[str], old: Iterable[str]) -> None:
        """Note in the claim which fragments will be written, and which are then not needed.

        Raises
        ------
        StoreError
            If that fails, or the claim has been removed.
        """
        self.check()
        self.place.store.put(self.key, self._document(new, old))

    def is_there(self) -> bool:
        """Tell whether this writer still has the claim (`recover` removes it)."""
        present = _present(self.place)
        return present is not None and present.get("name") == self.name

    def check(self) -> None:
        """Raise `StoreError` if the claim has been removed."""
        if not self.is_there():
            raise StoreError(self.place.url, OVER)

    def forget(self) -> None:
        """Leave the claim to the next writer, which finds out how far this one came."""
        AT_WORK.discard(self.name)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Forget the claim when the block ends, however it does.

        Not before: another thread would take over, and what the block removes would be its work.
        """
        try:
            yield
        finally:
            self.forget()

    def release(self) -> None:
        """Remove the claim, so that other writers can begin; another writer's stays."""
        with self.ending():
            if self.is_there():
                self.place.store.delete([self.key])

    def _document(self, new: Iterable[str], old: Iterable[str]) -> bytes:
        told = {"name": self.name, "owner": Owner.here().document}
        return json.dumps({**told, "new": [*new], "old": [*old]}).encode()


def claim_key(place: MasterPlace) -> str:
    """Return the key of the object that tells other writers."""
    return f"{place.stem}/{place.claim_name}"


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
    """Remove what any writer left; tell whether there was anything.

    That is its claim, and fragments that nothing refers to.
    """
    claim = _present(place)
    left = _successors(place)
    if claim is not None:
        _remove_unneeded(place, claim)
        place.store.delete([claim_key(place)])
    place.store.delete(left)
    return claim is not None or bool(left)


def _remove_unneeded(place: MasterPlace, claim: dict[str, Any]) -> None:
    """Remove what the writer with a claim has left, and the present master does not refer to.

    That are fragments, and files that were to become some.
    """
    place.remove_abandoned(Owner.parse(claim.get("owner")).identity)
    present = referred_keys(place)
    if present is None:
        return
    named = (claim.get(part) for part in ("new", "old"))
    keys = {key for part in named if isinstance(part, list) for key in part}
    ours = {key for key in keys if isinstance(key, str) and place.key_of(key) == key}
    place.remove(sorted(ours - present))


def _successors(place: MasterPlace) -> list[str]:
    """Return the keys of all that have taken over from writers that had ended."""
    start = f"{claim_key(place)}."
    return [key for key in place.store.keys_below(place.stem) if key.startswith(start)]


def _present(place: MasterPlace) -> dict[str, Any] | None:
    """Return what the present claim says; None if there is none."""
    data = place.store.reader().get_one(claim_key(place))
    if data is None:
        return None
    found = parse_json(data)
    return found if isinstance(found, dict) else {}
