"""Where an aggregation is written: the names of its master and its fragments."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

import numpy as np

from nczarr_fsspec.destination import FilePlace
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_xarray.export.options import FragmentFormat, Naming

_TREES = re.compile(r"\.(nczarr|zarr|zip)\Z", re.IGNORECASE)
#: What needs no quoting in a URL, and is no wildcard.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]")
#: Names that are told apart by a random word.
_APART = re.compile(r"\.[0-9a-f]{8}\.(nc|zarr)\Z")
#: End of the name of a claim, see `nczarr_xarray.export.cfa.claim`.
_CLAIM = ".writing"
#: Attribute of fragments: for which master they were written.
OWNER = "aggregation_master"
SUFFIXES: dict[FragmentFormat, str] = {"netCDF3": ".nc", "netCDF4": ".nc", "NCZarr": ".zarr"}


class MasterPlace(FilePlace):
    """Where a master, a file or a tree, is written, and its fragments beside it."""

    __slots__ = ()

    @property
    def is_tree(self) -> bool:
        """Whether the master is NCZarr or Zarr."""
        words = {"nczarr", "zarr", "zip"}
        return bool(self.mode & words) or _TREES.search(self.name) is not None

    @property
    def stem(self) -> str:
        """Name of the folder of fragments, and begin of their names; safe in every address."""
        stem = self.name.rpartition(".")[0]
        # a name without a suffix is that of the master itself
        return _UNSAFE.sub("_", stem if stem.strip(".") else f"{self.name}_fragments")

    @property
    def name_in_fragments(self) -> str:
        """How fragments name the master that they were written for: ASCII in every case."""
        return quote(os.fsencode(self.name))

    def exists(self) -> bool:
        """Tell whether there is anything where the master is written."""
        return super().exists() or (self.is_tree and bool(self.store.keys_below(self.name)))

    def put(self, data: bytes, *, replaces: bool) -> None:
        """Put a master that is a file, in one step.

        Raises
        ------
        DatasetExistsError
            If there is one that must not be replaced.
        """
        self.remove_abandoned()
        if replaces:
            self.store.put(self.name, data)
        elif not self.store.create(self.name, data):
            raise self.already_there

    def taken(self) -> set[str]:
        """Return the names in the folder of fragments."""
        start = len(self.stem) + 1
        return {key[start:].partition("/")[0] for key in self.store.keys_below(self.stem)}

    @property
    def claim_name(self) -> str:
        """Name, in the folder of fragments, of the object that keeps other writers out."""
        return f".{self.name}{_CLAIM}"

    def names(self, kind: FragmentFormat, naming: Naming, *, replaces: bool = False) -> Names:
        """Return what names new fragments, while this writer has its claim.

        Masters of other names may have the same folder. A writer of one may have chosen names
        already of which nothing is there yet: then names are told apart in any case. So they are
        once fragments have been replaced. A name that was given up must not come back: readers who
        opened the master that had it would read new values as old ones.

        Parameters
        ----------
        replaces
            Whether there are fragments that the new ones replace.
        """
        taken = self.taken()
        claims = {name for name in taken if name.startswith(".") and name.endswith(_CLAIM)}
        apart = replaces or claims - {self.claim_name} or any(map(_APART.search, taken))
        return Names(self.stem, kind, naming, taken, apart=bool(apart))

    def key_of(self, address: str) -> str | None:
        """Return the key of a file that may be a fragment of ours by its name, or else None."""
        folder = self.folder
        for start in (folder, f"file://{quote(os.fsencode(folder))}", "./"):
            address = address.removeprefix(start)
        above, _, name = address.rstrip("/").rpartition("/")
        ours = above == self.stem and name.startswith((f"{self.stem}.", f"{self.stem}_"))
        return f"{above}/{name}" if ours else None

    def remove_abandoned(self, writer: str = "") -> bool:
        """Remove files that were never completed: beside the master, and among its fragments.

        They are those of processes of this machine that have ended, whatever they wrote.

        Parameters
        ----------
        writer
            The identity of another process that has ended.

        Returns
        -------
        bool
            Whether there were any.
        """
        if not isinstance(self.store, DirectoryWriter):
            return False
        found = [*self.store.temporaries(deep=False), *self.store.temporaries(self.stem)]
        left = [key for key, owner in found if owner.identity == writer or owner.is_dead()]
        self.store.delete(left)
        return bool(left)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove fragments."""
        gone: list[str] = []
        for key in keys:
            below = self.store.keys_below(key) if key.endswith(SUFFIXES["NCZarr"]) else []
            gone += below or [key]
        self.store.delete(gone)


def has_name(key: str, stem: str, variable: str, rank: int) -> bool:
    """Tell whether `Names` gives such a name to fragments of a variable of some dimensions."""
    stem, variable = re.escape(stem), re.escape(_UNSAFE.sub("_", variable))
    numbers = rf"\.{variable}(\.\d+){{{rank}}}|_{variable}_\[\d+\]"
    name = rf"{stem}/{stem}({numbers})(\.[0-9a-f]{{8}})?\.(nc|zarr)"
    return re.fullmatch(name, key) is not None


@dataclass(slots=True)
class Names:
    """Gives fragments names that nothing has yet.

    Parameters
    ----------
    stem
        Begin of all names.
    kind
        What the fragments are.
    naming
        How they are called.
    taken
        Names that are in the folder.
    apart
        Whether a random word is in all names.
    """

    stem: str
    kind: FragmentFormat
    naming: Naming
    taken: set[str]
    apart: bool

    def keys(self, variable: str, first: tuple[int, ...], grid: tuple[int, ...]) -> list[str]:
        """Return keys for fragments of a variable.

        Names that others have, such as those that the present master refers to, are told apart
        by a random word.

        Parameters
        ----------
        first
            Place of the first fragment in the grid of the aggregation.
        grid
            Fragments along each dimension.
        """
        suffix = SUFFIXES[self.kind]
        variable = _UNSAFE.sub("_", variable)
        names = []
        for number, position in enumerate(np.ndindex(grid)):
            if self.naming == "seed":
                names.append(f"{self.stem}_{variable}_[{number}]")
            else:
                at = [str(a + b) for a, b in zip(first, position, strict=True)]
                names.append(".".join([self.stem, variable, *at]))
        if self.apart or any(name + suffix in self.taken for name in names):
            word = uuid.uuid4().hex[:8]
            names = [f"{name}.{word}" for name in names]
        names = [name + suffix for name in names]
        self.taken |= set(names)
        return [f"{self.stem}/{name}" for name in names]
