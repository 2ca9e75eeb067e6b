"""Conversions of stored elements that are not values yet: text, sequences, structures.

The values are those of netCDF4-python, if it has any: text and sequences are
objects, structures have the layout of C on this machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.codecs.libhdf5 import convert_numbers
from nczarr_xarray.formats.hdf5.binary import Frame
from nczarr_xarray.formats.hdf5.heaps import resolve_vlen
from nczarr_xarray.formats.hdf5.netcdf_types import bits_of, is_plain, stored_dtype, value_dtype
from nczarr_xarray.formats.hdf5.objects import Datatype
from nczarr_xarray.formats.rounds import together

#: The first two bits of a continuation byte in UTF-8.
_CONTINUES, _MASK = 0x80, 0xC0


@dataclass(frozen=True, slots=True)
class Values:
    """`nczarr_xarray.model.Conversion` of text, and of every type that numpy does not have.

    Parameters
    ----------
    path
        Path of the variable, for messages.
    frame
        Frame of the file.
    type
        Type of the elements.
    errors
        As in `decode_texts`.

    Raises
    ------
    FormatError
        If they are damaged.
    """

    path: str
    frame: Frame
    type: Datatype
    errors: str = "strict"

    def exact(self) -> Values:
        """See `nczarr_xarray.model.Conversion`."""
        return replace(self, errors="surrogateescape")

    @property
    def needs_libhdf5(self) -> bool:
        """Whether there are floats that numpy lacks."""
        return _has_odd_floats(self.type)

    async def __call__(self, stored: np.ndarray) -> np.ndarray:
        """Return values; global heaps are read in one round, nested sequences in more."""
        if self.type.kind == "string":  # (in structures it remains bytes)
            texts = decode_texts(stored.ravel().tolist(), self.path, self.errors)
            return _objects(texts).reshape(stored.shape)
        return await self._convert(stored, self.type)

    async def _convert(self, stored: np.ndarray, type_: Datatype) -> np.ndarray:
        if type_.kind == "array":  # numpy has its elements already, also of arrays of arrays
            assert type_.base is not None
            return await self._convert(stored, type_.base)
        dtype = value_dtype(type_)
        assert dtype is not None  # or there would be no variable
        if is_plain(type_):
            return stored.astype(dtype)
        if type_.kind == "compound":
            return await self._structures(stored, type_, dtype)
        if type_.kind == "vlen":
            return (await self._sequences(stored.ravel(), type_)).reshape(stored.shape)
        if type_.kind == "integer":
            return bits_of(type_).values(stored)
        try:
            return convert_numbers(stored, type_.encoded, dtype)
        except FormatError as error:
            raise FormatError(self.path, error.reason) from None

    async def _structures(self, stored: np.ndarray, type_: Datatype, dtype: np.dtype) -> np.ndarray:
        values = np.empty(stored.shape, dtype)
        # an array field adds its dimensions to the result of numpy
        fields = await together(
            self._convert(stored[member.name], member.type) for member in type_.members
        )
        for member, field in zip(type_.members, fields, strict=True):
            values[member.name] = field
        return values

    async def _sequences(self, stored: np.ndarray, type_: Datatype) -> np.ndarray:
        base = type_.base
        assert base is not None
        size = 1 if type_.text else base.size
        found = await resolve_vlen(self.frame, stored.tobytes(), stored.size, size)
        if type_.text:
            return _objects(decode_texts(found, self.path, self.errors))
        # the elements of all sequences at once
        elements = np.frombuffer(b"".join(found), stored_dtype(base))
        values = await self._convert(elements, base)
        ends = np.cumsum([0, *(len(one) // size for one in found)]).tolist()
        return _objects([values[a:b] for a, b in itertools.pairwise(ends)])


def _has_odd_floats(type_: Datatype) -> bool:
    """Tell whether a type has a part that `convert_numbers` must convert."""
    if type_.kind == "compound":
        return any(_has_odd_floats(member.type) for member in type_.members)
    if type_.base is not None and type_.kind in ("array", "vlen"):
        return not type_.text and _has_odd_floats(type_.base)
    return type_.kind == "float" and not is_plain(type_)


def decode_texts(texts: Sequence[bytes], what: str, errors: str = "strict") -> list[str]:
    """Return the texts of a variable, each of which ends at its first NUL.

    Parameters
    ----------
    what
        The variable, for the message.
    errors
        What to do with text that is not UTF-8, in the words of `bytes.decode`.

    Raises
    ------
    FormatError
        If one of them is not UTF-8, and that is an error.
    """
    everything = b"".join(texts)
    if b"\0" in everything:
        texts = [text.partition(b"\0")[0] for text in texts]
        everything = b"".join(texts)
    ends = np.cumsum([0, *map(len, texts)])
    try:
        whole = everything.decode()
    except UnicodeDecodeError:
        whole = ""
    if len(whole) < len(everything):  # some character has several bytes, or the text is not UTF-8
        characters = (np.frombuffer(everything, np.uint8) & _MASK) != _CONTINUES
        starts = ends[:-1][ends[:-1] < ends[1:]]
        if not whole or not characters[starts].all():
            return [decoded(text, what, errors) for text in texts]
        ends = np.concatenate([[0], np.cumsum(characters)])[ends]
    bounds = ends.tolist()
    return [whole[start:stop] for start, stop in itertools.pairwise(bounds)]


def decoded(text: bytes, what: str, errors: str) -> str:
    """Return a text; parameters and errors as of `decode_texts`."""
    try:
        return text.decode("utf-8", errors)
    except UnicodeDecodeError:
        raise FormatError(what, f"{text[:60]!r} is not UTF-8") from None


def _objects(values: Sequence[Any]) -> np.ndarray:
    """Return an array of Python objects, even if these are arrays of equal length."""
    objects = np.empty(len(values), dtype=object)
    for position, value in enumerate(values):
        objects[position] = value
    return objects
