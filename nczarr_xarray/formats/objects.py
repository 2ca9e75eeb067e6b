"""Read rounds of a tree: what a format awaits of its objects (of one file: `rounds`)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from nczarr_fsspec.keystore import Listing, Object


@dataclass(frozen=True, slots=True)
class ReadRound:
    """A read round: objects to read and prefixes to list, all in one go."""

    keys: tuple[str, ...]
    prefixes: tuple[str, ...] = ()

    def __await__(self) -> Generator[ReadRound, Answer, Answer]:
        return (yield self)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answers of the store in the order of the `ReadRound`: None where there is nothing.

    A listing of None means that the store cannot list.
    """

    objects: Sequence[Object]
    listings: Sequence[Listing] = ()
