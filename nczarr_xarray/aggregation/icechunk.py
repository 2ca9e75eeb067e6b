"""Writing an aggregation as virtual references of Icechunk, into the store of a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.errors import DatasetExistsError, ExportError
from nczarr_fsspec.places.names import names_url
from nczarr_fsspec.stores.referenceformat import inline_bytes
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.kerchunk import combined_references

if TYPE_CHECKING:
    from icechunk import IcechunkStore
    from typing_extensions import TypeIs

#: How messages name it.
_SHOWN = "store of Icechunk"


def is_icechunk(target: object) -> TypeIs[IcechunkStore]:
    """Tell whether a target is the store of a session of Icechunk."""
    return hasattr(target, "set_virtual_refs")


def write_icechunk(
    found: Aggregated,
    store: IcechunkStore,
    resolve: Callable[[str], str],
    options: Callable[[str], Mapping[str, Any] | None],
) -> None:
    """Write an aggregation into the store of a session, which the caller commits.

    Parameters
    ----------
    found, resolve, options
        As of `combined_references`.
    store
        An ``IcechunkStore`` without data.

    Raises
    ------
    DatasetExistsError
        If the store has data.
    ExportError
        Naming the variable or file that does not fit, or a file that is in no virtual chunk
        container of the repository.
    NCZarrError
        If a file cannot be read, or the store cannot be written.
    """
    import icechunk

    from nczarr_xarray.zarr.adopted import ZarrWriter

    writer = ZarrWriter(store)
    if writer.keys_below(""):
        reason = "has data: write into a new branch, or a repository, without any"
        raise DatasetExistsError(_SHOWN, reason)
    now = datetime.now(UTC) + timedelta(seconds=1)  # files changed later are refused by readers
    is_old = icechunk.__version__.startswith("1.")
    regular = f"which Icechunk {icechunk.__version__} cannot have: use Icechunk 2" if is_old else ""
    references = combined_references(found, resolve, options, _SHOWN, regular=regular, zarr3=True)
    virtual: dict[str, list[Any]] = {}
    for key, value in references.items():
        if isinstance(value, str):
            writer.put(key, inline_bytes(value))
            continue
        path, _, place = key.rpartition("/c/")
        index = [int(word) for word in place.split("/")]
        address, offset, length = value
        url = address if names_url(address) else Path(address).as_uri()
        chunk = icechunk.VirtualChunkSpec(index, url, offset, length, None, now)
        virtual.setdefault(path, []).append(chunk)
    for path, chunks in virtual.items():
        refused = store.set_virtual_refs(path, chunks, validate_containers=True)
        if refused:
            url = next(chunk.location for chunk in chunks if tuple(chunk.index) == refused[0])
            reason = f"of /{path} is in no virtual chunk container of the repository: add one with "
            raise ExportError(url, f"{reason}RepositoryConfig.set_virtual_chunk_container")
