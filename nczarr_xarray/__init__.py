"""NCZarr and Zarr for xarray: ``xr.open_dataset(target, engine="nczarr")``.

Importing this package imports nothing heavy; each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nczarr_fsspec.errors import (
        DatasetNotFoundError,
        FormatError,
        NCZarrError,
        NCZarrWarning,
        StoreError,
        URLError,
    )
    from nczarr_xarray.reader import Opened, open_hierarchy

__version__ = "0.1.0"

__all__ = [
    "DatasetNotFoundError",
    "FormatError",
    "NCZarrError",
    "NCZarrWarning",
    "Opened",
    "StoreError",
    "URLError",
    "open_hierarchy",
]

_READER = {"Opened", "open_hierarchy"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "nczarr_xarray.reader" if name in _READER else "nczarr_fsspec.errors"
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
