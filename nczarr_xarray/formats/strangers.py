"""Warnings about what is opened as a hierarchy: objects that are no nodes, and no root."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nczarr_fsspec.errors import DatasetNotFoundError, FormatError
from nczarr_fsspec.keystore import Listing
from nczarr_xarray.model import HarmlessError

#: Objects that make a group or an array, by Zarr's version.
_NODES = {2: frozenset({".zgroup", ".zarray"}), 3: frozenset({"zarr.json"})}
_NETCDF = (".nc", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf5", ".he5")
_ICECHUNK = frozenset({"snapshots", "transactions"})
_SHOWN = 5


def no_metadata(where: str, names: Iterable[str]) -> DatasetNotFoundError:
    """Return the error for a folder that is no dataset, with what to do about its `names`."""
    names = set(names)
    name = where.lower()
    files = sorted(name for name in names if name.lower().endswith(_NETCDF))
    hint = ""
    if names >= _ICECHUNK:
        hint = (
            "; this may be a repository of Icechunk: open it with icechunk, and give the store of "
            "a session, such as repository.readonly_session('main').store"
        )
    elif files and name.endswith(".zip"):
        hint = f"; it holds netCDF files ({first(files)}): open zip://{files[0]}::{where}"
    elif name.endswith(_NETCDF):
        hint = "; if this is one netCDF file, leave the mode out, or write #mode=bytes"
    elif files:
        hint = (
            f"; it holds netCDF files ({first(files)}): name one of them, or make one dataset "
            "of them with `nczarr aggregate`"
        )
    reason = f"no Zarr metadata found (.zgroup, .zattrs, .nczarr, .zmetadata, zarr.json){hint}"
    return DatasetNotFoundError(where, reason)


def about_strangers(
    where: str, listings: Iterable[tuple[str, Listing]], zarr_format: int
) -> Iterator[FormatError]:
    """Yield errors that name what was left out of a hierarchy: objects that are no nodes of it.

    Parameters
    ----------
    where
        Names the dataset.
    listings
        Path of each such member of a group, and the names below it. A member without names
        below it is a file, and ignored.
    zarr_format
        Version of the hierarchy.
    """
    other = 5 - zarr_format
    foreign: list[str] = []
    bare: list[str] = []
    for path, names in listings:
        if isinstance(names, frozenset) and names:
            (bare if _NODES[other].isdisjoint(names) else foreign).append(f"'/{path}'")
    if foreign:
        yield FormatError(
            where,
            f"{_some(foreign)} left out, of Zarr {other} inside of Zarr {zarr_format}: "
            "open what is there by its own path",
        )
    if bare:
        expected = " or ".join(sorted(_NODES[zarr_format], reverse=True))
        yield FormatError(
            where,
            f"{_some(bare)} left out, without {expected}: if groups or arrays are in there, "
            "open them by their own path",
        )


def only_groups(where: str, names: Iterable[str]) -> HarmlessError:
    """Return the warning for a folder of datasets that is opened as if it were one."""
    return HarmlessError(
        where,
        "has no variables and no metadata of its own, only the groups "
        f"{first([repr(name) for name in names])}: open one of them by its own path, or all "
        "with xr.open_groups",
    )


def _some(paths: list[str]) -> str:
    return f"{first(paths)} {'is' if len(paths) == 1 else 'are'}"


def first(names: list[str]) -> str:
    """Return the first names of a list for a message, and how many more there are."""
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
