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

    def goes(self, source: str, way: str) -> bool:
        """Tell whether a source that goes a way has such defects."""
        return source in self.sources and any(fnmatchcase(way, one) for one in self.ways)

    def has(self, source: str, way: str, key: str) -> bool:
        """Tell whether something is one of these defects."""
        return self.goes(source, way) and any(fnmatchcase(key, one) for one in self.keys)


_NEW = ("to_nczarr*", "to_cfa")

KNOWN: tuple[Known, ...] = (
    Known(
        "xarray's engine zarr takes every False for missing if it is the fill value; ours does not",
        ("Zarr 2",),
        _NEW,
        ("bool_equal", "bool_hidden"),
    ),
)
