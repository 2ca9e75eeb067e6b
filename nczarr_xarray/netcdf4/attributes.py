"""Attributes of datasets, groups and variables, as Python's attributes and as netCDF's."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from nczarr_xarray.dataset.dataset import attribute_value, shown_name
from nczarr_xarray.model import NC_DTYPES, NC_TYPES, Attribute, bytes_of, text_of


class ReadOnlyError(AttributeError, RuntimeError):
    """A dataset that was opened to read is to be changed."""


class BeyondClassicError(AttributeError, RuntimeError):
    """Something is to be made that the classic data model lacks, in a dataset that keeps to it."""


class HasAttributes:
    """The methods for attributes; a base of datasets, groups and variables.

    Names with an underscore in front that `__slots__` lists, and properties, are Python's own; all
    other names are netCDF's attributes.
    """

    __slots__ = ()

    _attributes: dict[str, Attribute]
    #: whether texts are NC_STRING, not characters
    _ncstring_attrs: bool
    #: whether there may be only what the classic data model has
    _classic: bool
    #: the names that are Python's own in objects of a class
    _own: ClassVar[frozenset[str]]

    def __init_subclass__(cls) -> None:
        slots = (base.__dict__.get("__slots__", ()) for base in cls.__mro__)
        cls._own = frozenset(itertools.chain.from_iterable(slots))

    def _change(self, kind: str = "char") -> None:
        """Note that something of a type changes, or of another kind; raise if it may not."""
        raise NotImplementedError

    def ncattrs(self) -> list[str]:
        """Return the names of the attributes."""
        return [shown_name(name) for name in self._attributes]

    def _attribute(self, name: str) -> Attribute:
        if name not in self._attributes:
            raise AttributeError(f"NetCDF: Attribute not found: {name!r}")
        return self._attributes[name]

    def getncattr(self, name: str, encoding: str = "utf-8") -> Any:
        """Return an attribute: text, a list of texts, a numpy scalar or an array.

        Parameters
        ----------
        encoding
            Of the bytes of characters.

        Raises
        ------
        AttributeError
            If there is none of this name.
        """
        found = self._attribute(name)
        value = found.value
        if isinstance(value, str) and name == "_FillValue":
            return bytes_of(value)  # of which NULs and all bytes count
        if encoding != "utf-8" and not isinstance(value, np.ndarray):
            texts = (value,) if isinstance(value, str) else value
            stored = (bytes_of(text).decode(encoding, "replace") for text in texts)
            other = tuple(text_of(text.encode()) for text in stored)
            found = replace(found, value=other[0] if isinstance(value, str) else other)
        return attribute_value(found)

    def setncattr(self, name: str, value: Any) -> None:
        """Set an attribute."""
        made = made_of(name, value)
        if self._ncstring_attrs and isinstance(made.value, str):
            made = Attribute(name, "string", (made.value,))
        if self._classic and made.type == "int64":
            number = made_of(name, np.asarray(made.value).astype("i4"))
            made = number if np.array_equal(number.value, made.value) else made
        self._change(made.type)
        self._attributes[name] = made

    def setncattr_string(self, name: str, value: Any) -> None:
        """Set an attribute of NC_STRING, not of characters."""
        self._change("string")
        listed = np.ravel(value).tolist()
        texts = tuple(text_of(one) if isinstance(one, bytes) else str(one) for one in listed)
        self._attributes[name] = Attribute(name, "string", texts)

    def setncatts(self, attdict: Mapping[str, Any]) -> None:
        """Set several attributes."""
        for name, value in attdict.items():
            self.setncattr(name, value)

    def delncattr(self, name: str) -> None:
        """Remove an attribute."""
        self._change()
        self._attribute(name)
        del self._attributes[name]

    def renameAttribute(self, oldname: str, newname: str) -> None:  # noqa: N802
        """Give an attribute another name; it keeps its place."""
        self._change()
        found = self._attribute(oldname)
        if newname in self._attributes:
            raise AttributeError(f"NetCDF: String match to name in use: {newname!r}")
        self._attributes[oldname] = replace(found, name=newname)
        rename(self._attributes, oldname, newname)

    def __getattr__(self, name: str) -> Any:
        if name == "__dict__":
            return {name: self.getncattr(name) for name in self.ncattrs()}
        if name.startswith("_") and (name.endswith("__") or name in self._own):
            raise AttributeError(name)
        return self.getncattr(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._own:
            object.__setattr__(self, name, value)
        elif hasattr(type(self), name):
            raise AttributeError(
                f"{name!r} is one of the reserved attributes, cannot rebind. Use setncattr instead."
            )
        else:
            self.setncattr(name, self._assigned(name, value))

    def _assigned(self, name: str, value: Any) -> Any:
        """Return what becomes of a value that is assigned as an attribute of Python."""
        return value

    def __delattr__(self, name: str) -> None:
        if name in self._own or hasattr(type(self), name):
            raise AttributeError(
                f"{name!r} is one of the reserved attributes, cannot delete. Use delncattr instead."
            )
        self.delncattr(name)


def rename(members: dict[str, Any], old: str, new: str) -> None:
    """Give a member another name; it keeps its place."""
    renamed = {new if name == old else name: member for name, member in members.items()}
    members.clear()
    members.update(renamed)


def made_of(name: str, value: Any) -> Attribute:
    """Return the attribute that netCDF4-python makes of a value.

    Raises
    ------
    TypeError, ValueError
        If netCDF has no type for it, or no shape.
    """
    array = np.asarray(value)
    if array.ndim > 1:
        raise ValueError("multi-dimensional array attributes not supported")
    listed = array.ravel().tolist()
    if array.dtype.kind in "SUO" and all(isinstance(one, (str, bytes)) for one in listed):
        texts = tuple(text_of(t) if isinstance(t, bytes) else str(t) for t in listed)
        if array.size > 1 or (array.dtype.kind != "S" and not "".join(texts).isascii()):
            return Attribute(name, "string", texts)
        return Attribute(name, "char", "".join(texts))
    nc_type = NC_TYPES.get(array.dtype.str[1:])
    if nc_type is None:
        supported = sorted({dtype.str[1:] for dtype in NC_DTYPES.values() if dtype.kind != "O"})
        raise TypeError(
            f"illegal data type for attribute {name!r}, must be one of {supported}, got "
            f"{array.dtype.str[1:]}"
        )
    return Attribute(name, nc_type, array.astype(NC_DTYPES[nc_type]).reshape(-1))
