"""Dimensions, as netCDF4-python has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nczarr_xarray.netcdf4.defining import Declares


class Dimension:
    """A named length.

    Attributes
    ----------
    name : str
        Its name.
    size : int
        Its present length.
    """

    __slots__ = ("__weakref__", "_group", "_name", "_size", "_unlimited")

    def __init__(self, grp: Declares, name: str, size: int | None = None) -> None:
        self._group = grp
        self._name = name
        self._unlimited = not size
        self._size = size or 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        return self._size

    def group(self) -> Declares:
        """Return the group that declares it."""
        return self._group

    def isunlimited(self) -> bool:
        """Tell whether it can grow."""
        return self._unlimited

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        kind = " (unlimited)" if self._unlimited else ""
        return f"{repr(type(self))!r}{kind}: name = {self._name!r}, size = {self._size}"
