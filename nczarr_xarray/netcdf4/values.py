"""How stored elements become the values that netCDF4-python returns, and back.

Pure functions of attributes and arrays. What is the same for all reads of a variable is found out
once, in a `Decoding`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ma

from nczarr_xarray.netcdf4.types import EnumType, VLType, default_fillvals

_TRUE = ("true", "True")


@dataclass(frozen=True, slots=True)
class Switches:
    """What ``set_auto_*`` of a variable switches on and off."""

    mask: bool = True
    scale: bool = True
    always_mask: bool = True
    chartostring: bool = True


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the elements of one variable become values.

    Attributes
    ----------
    masks
        Whether values are masked.
    unsigned
        The dtype that ``_Unsigned`` means; None if it means nothing.
    missing
        What ``missing_value`` names, as elements.
    fill
        The mark of missing data; None if there is none.
    states_fill
        Whether `fill` is that of ``_FillValue``.
    shown_fill
        The fill value of masked arrays where nothing is equal to a mark.
    low, high
        The bounds of valid values; None for none.
    always_mask
        Whether arrays without masked values are masked arrays, too.
    scale, offset
        Of ``scale_factor`` and ``add_offset``; None if values are not scaled.
    """

    masks: bool
    unsigned: np.dtype | None = None
    missing: tuple[Any, ...] = ()
    fill: Any = None
    states_fill: bool = False
    shown_fill: Any = None
    low: Any = None
    high: Any = None
    always_mask: bool = True
    scale: Any = None
    offset: Any = None

    @classmethod
    def of(
        cls, attributes: Mapping[str, Any], datatype: Any, switches: Switches, *, filled: bool
    ) -> Decoding:
        """Find out how elements of a type are decoded.

        Parameters
        ----------
        attributes
            Values by name, as netCDF4-python returns them.
        datatype
            As of `Variable`.
        filled
            Whether elements that were not written have a fill value.
        """
        plain = isinstance(datatype, np.dtype)
        dtype = np.dtype(datatype if plain else object if datatype.dtype is str else datatype.dtype)
        unsigned = None
        if switches.scale and attributes.get("_Unsigned") in _TRUE and dtype.kind == "i":
            unsigned = np.dtype(f"{dtype.byteorder}u{dtype.itemsize}")
        scale = offset = None
        if switches.scale:
            scale, offset = _packing(attributes)
            if not (plain or (isinstance(datatype, VLType) and datatype.dtype is not str)):
                scale = offset = None
        if not (switches.mask and (plain or isinstance(datatype, EnumType))):
            return cls(False, unsigned, scale=scale, offset=offset)

        def elements(name: str) -> Any:
            value = _safely(attributes, name, dtype)
            return value if value is None or unsigned is None else value.view(unsigned)

        missing = elements("missing_value")
        fill = stated = elements("_FillValue")
        usual = default_fillvals[dtype.str[1:]]
        is_byte = dtype.str[1:] in ("u1", "i1")
        if stated is None and (filled or not is_byte):
            fill = np.array(usual, dtype)
        shown = stated
        if shown is None:
            shown = usual if is_byte else np.array(usual, dtype)
        low = high = None
        limits = elements("valid_range")
        if limits is not None and limits.size == 2:
            low, high = limits
        else:
            low, high = elements("valid_min"), elements("valid_max")
        if dtype.kind == "S":
            low = high = None
        marks = () if missing is None else tuple(np.atleast_1d(missing))
        return cls(
            True, unsigned, marks, fill, stated is not None, shown, low, high,
            switches.always_mask, scale, offset,
        )  # fmt: skip

    def __call__(self, data: Any) -> Any:
        """Return the values of elements: an array, or what one element is."""
        if self.unsigned is not None:
            data = data.view(f"{data.dtype.byteorder}{self.unsigned.str[1:]}")
        if self.masks:
            data = self._masked(data)
        scale, offset = self.scale, self.offset
        if scale is not None and offset is not None:
            if offset != 0.0 or scale != 1.0:
                return data * scale + offset
            return data.astype(scale.dtype)  # as netCDF4-python does
        if scale is not None and scale != 1.0:
            return data * scale
        if offset is not None and offset != 0.0:
            return data + offset
        return data

    def _masked(self, data: Any) -> Any:
        mask = None
        shown = None
        for mark in self.missing:
            equal = _equal(data, mark)
            if equal.any():
                mask = equal if mask is None else mask | equal
                shown = self.missing[0]
        if self.fill is not None:
            equal = _equal(data, self.fill)
            if equal.any() or (self.states_fill and _is_nan(self.fill)):
                mask = equal if mask is None else mask | equal
                shown = self.fill if shown is None else shown
        with np.errstate(invalid="ignore"):
            if self.low is not None:
                mask = (data < self.low) if mask is None else mask | (data < self.low)
            if self.high is not None:
                mask = (data > self.high) if mask is None else mask | (data > self.high)
        if mask is not None and mask.any():
            values = ma.masked_array(
                data, mask=mask, fill_value=self.shown_fill if shown is None else shown
            )
            # of one element: the constant, which others compare with
            return values[()] if values.shape == () and values.mask.all() else values
        return ma.masked_array(data) if self.always_mask else np.asarray(data)


def _is_nan(mark: Any) -> bool:
    return bool(getattr(mark, "dtype", np.dtype("V")).kind in "fc" and np.isnan(mark))


def _equal(data: Any, mark: Any) -> Any:
    equal = np.isnan(data) if _is_nan(mark) else data == mark
    return equal if isinstance(equal, np.ndarray) else np.asarray(equal)


def _packing(attributes: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the factor and the offset; a warning, and None, if they are no numbers."""
    scale, offset = attributes.get("scale_factor"), attributes.get("add_offset")
    try:
        for value in (scale, offset):
            if value is not None:
                float(value)
    except (TypeError, ValueError):
        warnings.warn(
            "invalid scale_factor or add_offset attribute, no unpacking done...", stacklevel=5
        )
        return None, None
    return scale, offset


def _safely(attributes: Mapping[str, Any], name: str, dtype: np.dtype) -> np.ndarray | None:
    """Return an attribute as elements; None if it is absent or would be other numbers."""
    if name not in attributes:
        return None
    given = np.array(attributes[name])
    try:
        with np.errstate(invalid="ignore", over="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            cast = given.astype(dtype)
        safe = is_same(given, cast)
    except (TypeError, ValueError):
        safe = False
    if safe:
        return cast
    warnings.warn(
        f"WARNING: {name} not used since it\ncannot be safely cast to variable data type",
        stacklevel=6,
    )
    return None


def is_same(given: np.ndarray, cast: np.ndarray) -> bool:
    """Tell whether numbers, or texts, are the same after a change of their type."""
    try:
        return bool(((given == cast) | (np.isnan(given) & np.isnan(cast))).all())
    except TypeError:
        return bool(np.asarray(given == cast).all())


def packed(
    data: Any, attributes: Mapping[str, Any], dtype: np.dtype, *, scaled: bool
) -> np.ndarray:
    """Return values as the elements that are stored: scaled, rounded, without a mask.

    Parameters
    ----------
    scaled
        Whether ``scale_factor`` and ``add_offset`` count.

    Raises
    ------
    RuntimeError
        If values are masked and ``missing_value`` has more than one element.
    """
    names = ("scale_factor", "add_offset")
    scale, offset = (attributes.get(name) if scaled else None for name in names)
    if offset is not None:
        data = data - offset
    if scale is not None:
        data = data / scale
    if (scale is not None or offset is not None) and dtype.kind in "iu":
        data = np.around(data)
    if data.dtype != dtype:
        data = data.astype(dtype)
    if not ma.isMaskedArray(data):
        return np.asarray(data)
    missing = attributes.get("missing_value")
    if missing is not None and np.all(np.isin(data.data[ma.getmaskarray(data)], missing)):
        return np.asarray(data.data)
    if missing is not None:
        if np.ndim(missing):
            raise RuntimeError(
                "cannot assign fill_value for masked array when missing_value attribute is not a "
                "scalar"
            )
        fill = missing
    else:
        fill = attributes.get("_FillValue", default_fillvals.get(dtype.str[1:]))
    mark: Any = np.array(fill).astype(dtype)
    return np.asarray(data.filled(mark))


def as_texts(data: Any) -> np.ndarray:
    """Return texts as objects.

    Raises
    ------
    TypeError
        If they are no texts, or masked.
    """
    if isinstance(data, np.ma.MaskedArray):
        raise TypeError("masked arrays cannot be assigned by VLEN str slices")
    texts = np.asarray(data, object) if isinstance(data, (str, bytes)) else np.asarray(data)
    if texts.dtype.kind not in "SUO":
        raise TypeError(
            "only numpy string, unicode or object arrays can be assigned to VLEN str var slices"
        )
    objects = texts.astype(object)
    objects.ravel()[:] = [
        t.decode() if isinstance(t, bytes) else "" if t is None else t for t in objects.ravel()
    ]
    return objects
