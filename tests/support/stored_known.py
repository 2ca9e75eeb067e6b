"""The defects of tests/whole/test_stored_forms.py that are known, in one table."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple


class Known(NamedTuple):
    """A class of defects.

    Attributes
    ----------
    reason
        What is wrong.
    sources
        Names of sources.
    ways, keys
        Patterns of the names of ways, and of variables (``kind_fill_packing``) or attributes.
    """

    reason: str
    sources: tuple[str, ...]
    ways: tuple[str, ...]
    keys: tuple[str, ...]

    def has(self, source: str, way: str, key: str) -> bool:
        """Tell whether something is one of these defects."""
        return (
            source in self.sources
            and any(fnmatchcase(way, one) for one in self.ways)
            and any(fnmatchcase(key, one) for one in self.keys)
        )


_CLASSIC = ("CDF-1", "CDF-2", "CDF-5")
_TYPED = ("netCDF-4", *_CLASSIC, "NCZarr")
_NEW = ("to_nczarr*", "to_cfa")
_JSON = ("big*", "bools", "empty_object", "mixed", "nested", "null", "object*", "ragged", "true")
#: Sources that have uint8, which ``_Unsigned`` makes signed.
_BYTES = ("netCDF-4", "CDF-5", "NCZarr")

KNOWN: tuple[Known, ...] = (
    Known(
        "fragments are unpacked by other arithmetic than xarray's: the last bit of float32",
        _TYPED,
        ("aggregate",),
        ("i2_*_both",),
    ),
    Known(
        "char with a number as _FillValue ends in AttributeError",
        _TYPED,
        ("aggregate",),
        ("char_number", "char_byte"),
    ),
    Known(
        "char with a number as _FillValue loses it",
        ("netCDF-4", "CDF-2", "CDF-5"),
        ("refs",),
        ("char_number", "char_byte"),
    ),
    Known(
        "bytes of Zarr 2 lose their _FillValue",
        ("Zarr 2",),
        ("upgrade", "append", "region"),
        ("bytes_equal", "bytes_hidden"),
    ),
    Known(
        "JSON becomes text or numbers without a word",
        ("Zarr 2", "Zarr 3"),
        ("aggregate",),
        tuple(f"*:{name}" for name in _JSON),
    ),
    Known(
        "bool loses its _FillValue",
        ("Zarr 2",),
        _NEW,
        ("bool_equal", "bool_hidden"),
    ),
    Known(
        "the master has the cast of a _FillValue that no element can have, and cannot be read",
        (*_TYPED, "Zarr 2", "Zarr 3"),
        ("aggregate",),
        ("*_impossible", "*_nan"),
    ),
    Known(
        "missing_value beside _Unsigned, which xarray does not compare, masks in the result",
        (*_TYPED, "Zarr 2", "Zarr 3"),
        (*_NEW, "aggregate"),
        ("*_missing_unsigned", "*_missing_signed"),
    ),
    Known(
        "several fill values beside _Unsigned end in TypeError, as in xarray",
        (*_TYPED, "Zarr 2"),
        (*_NEW, "append", "region"),
        ("*_several_unsigned", "*_several_signed"),
    ),
    Known(
        "the second fill value of _Unsigned numbers becomes the first, one in double is lost",
        (*_TYPED, "Zarr 2"),
        ("aggregate",),
        ("*_several_unsigned", "*_several_signed", "*_wider_signed"),
    ),
    Known(
        "numbers that xarray cannot decode get the sign that _Unsigned says",
        ("Zarr 3",),
        ("aggregate",),
        ("u1_equal_signed",),
    ),
    Known(
        "a _FillValue of shape (1, 1) is lost without a word",
        ("HDF5", "Zarr 2"),
        (*_NEW, "aggregate", "refs"),
        ("*_square",),
    ),
    Known(
        "a _FillValue of shape (1, 1) is said to be one that no element can have",
        ("Zarr 2",),
        ("copy → CDF-*",),
        ("*_square",),
    ),
    Known(
        "JSON has no NaN: numbers become text",
        ("netCDF-4", "CDF-2", "CDF-5", "NCZarr", "HDF5"),
        ("refs",),
        ("*:specials", "*:nan"),
    ),
    Known(
        "JSON of groups that becomes numbers of another type is not announced",
        ("Zarr 2", "Zarr 3"),
        ("copy → CDF-2",),
        (":true", ":bools"),
    ),
)
