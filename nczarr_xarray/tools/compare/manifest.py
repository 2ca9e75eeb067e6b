"""Manifests of digests: what a dataset is to be, without the dataset.

A manifest is JSON. It holds the structure of a dataset as facts and, for each variable, the SHA-256
of every block of its values in the form of `canonical`. Digests do not depend on the format, the
chunks, the codecs or the byte order of what they were made of.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nczarr_fsspec.changes.leftovers import remove_leftovers, replacing
from nczarr_fsspec.errors import FormatError, StoreError
from nczarr_xarray.tools.compare.blocks import Blocks
from nczarr_xarray.tools.compare.structure import PROPERTIES, Facts, Outline
from nczarr_xarray.tools.compare.values import canonical

_FORMAT = "nczarr digests, version 1"


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests of one variable.

    Parameters
    ----------
    blocks
        The division of its values.
    values
        Hexadecimal SHA-256 of each block, by number.
    """

    blocks: Blocks
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known of a dataset by its digests.

    Parameters
    ----------
    source
        Where the dataset was.
    outline
        Its structure.
    variables
        The digests, by path of the variable.
    """

    source: str
    outline: Outline
    variables: Mapping[str, Digests]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file, which is there as a whole or not at all.

        Raises
        ------
        StoreError
            If it cannot be written.
        """
        document = {
            "format": _FORMAT,
            "source": self.source,
            "pure_zarr": self.outline.pure,
            "structure": self.outline.facts,
            "variables": {
                path: {
                    "shape": of_one.blocks.shape,
                    "block_shape": of_one.blocks.lengths,
                    "sha256": of_one.values,
                }
                for path, of_one in self.variables.items()
            },
        }
        try:
            real = os.path.realpath(path)
            remove_leftovers(real)
            with replacing(real) as new, open(new, "x", encoding="ascii") as file:
                json.dump(document, file, indent=1)
        except OSError as error:
            reason = f"cannot be written: {error.strerror or error}"
            raise StoreError(os.fspath(path), reason) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Manifest:
        """Read a file that `write` wrote.

        Raises
        ------
        StoreError, FormatError
            If it cannot be read, or is no manifest.
        """
        name = os.fspath(path)
        try:
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
            return _manifest(document)
        except OSError as error:
            raise StoreError(name, f"cannot be read: {error.strerror or error}") from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            reason = f"is no manifest of digests ({error}); nczarr copy --digests writes one"
            raise FormatError(name, reason) from error


def digest(values: np.ndarray) -> str:
    """Return the digest of a block of values."""
    return hashlib.sha256(canonical(values)).hexdigest()


def _manifest(document: Any) -> Manifest:
    """Return the manifest that a document states; raise whatever shows that it does not."""
    if document["format"] != _FORMAT:
        raise ValueError(f"its format is not {_FORMAT!r}")
    outline = Outline(_checked_facts(document["structure"]), pure=bool(document["pure_zarr"]))
    stated = dict(document["variables"])
    variables = {str(path): _digests(one) for path, one in stated.items()}
    return Manifest(str(document["source"]), outline, variables)


def _checked_facts(stated: Any) -> Facts:
    """Return the structure that a document states."""
    facts = {str(name): dict(one) for name, one in dict(stated).items()}
    for name, one in facts.items():
        texts = all(isinstance(text, str) for text in one.values())
        if PROPERTIES.get(name.partition(" ")[0]) != frozenset(one) - {"json"} or not texts:
            raise ValueError(f"{name!r} has not the properties of such an object")
    return facts


def _digests(stated: Any) -> Digests:
    """Return the digests that a document states for a variable."""
    shape, lengths = (tuple(stated[key]) for key in ("shape", "block_shape"))
    values = tuple(map(str, stated["sha256"]))
    if not all(type(n) is int and n >= 0 for n in shape) or not all(
        type(n) is int and n >= 1 for n in lengths
    ):
        raise ValueError("a shape is no list of lengths")
    blocks = Blocks(shape, lengths)
    if len(shape) != len(lengths) or blocks.count != len(values):
        raise ValueError("there is not one digest for each block")
    return Digests(blocks, values)
