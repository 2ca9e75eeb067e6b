"""An open dataset: its metadata, also as users see them, and readers of its variables."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from nczarr_fsspec.concurrency import gather_or_cancel
from nczarr_fsspec.errors import FormatError, NCZarrError, StoreError
from nczarr_fsspec.keystore import KeyStore
from nczarr_xarray.dataset.file import DataFile, loop_of
from nczarr_xarray.model import Attribute, Group, Hierarchy, Variable, bytes_of, nearness, readable

if TYPE_CHECKING:
    from nczarr_fsspec.changes.consistent_reading import Reading
    from nczarr_xarray.chunks.pieces import Index
    from nczarr_xarray.dataset.variable import VariableReader


T = TypeVar("T")


@dataclass(slots=True)
class Opened:
    """An open dataset. A context manager; closing it releases the store.

    Attributes
    ----------
    store
        Where the chunks are.
    hierarchy
        The metadata.
    exact
        See `VariableReader`.
    reading
        How the metadata of objects with keys were read.
    """

    store: KeyStore | DataFile
    hierarchy: Hierarchy
    exact: bool = False
    reading: Reading | None = None

    @property
    def file(self) -> DataFile:
        """The file of a dataset that is one."""
        assert isinstance(self.store, DataFile)
        return self.store

    @property
    def keys(self) -> KeyStore:
        """The store of a dataset that is made of objects with keys, not one file."""
        assert isinstance(self.store, KeyStore)
        return self.store

    def holds(self) -> bool:
        """Tell whether it is all as it was when it was opened (see `Reading.holds`)."""
        return self.reading is None or self.reading.holds()

    def refuse_changed(self) -> None:
        """Raise `StoreError` if the dataset is not what was opened any more, as far as that shows.

        A file need not be asked: all reads of it are of one version.
        """
        store, reading = self.store, self.reading
        if isinstance(store, DataFile):
            return
        store.check_place()
        from nczarr_fsspec.changes.consistent_reading import look

        if not store.steady and reading is not None and look(store) != reading.mark:
            reason = "was changed while it was copied: copy it again, to have one state of it"
            raise StoreError(store.url, reason)

    def state(self) -> str | None:
        """Return what tells its state, data included, from all others; None if nothing does.

        Of trees that are neither local nor archives, nothing but the stamp does that every
        change by this package leaves in the root.
        """
        arrays = (variable.array for variable in self.hierarchy.root.all_variables())
        if any(array is not None and array.elsewhere for array in arrays):
            return None
        store = self.store
        if isinstance(store, DataFile):
            validator = store.source.validator
            return f"{store.source.size} {validator}" if validator else None
        from nczarr_fsspec.changes.consistent_reading import is_stamped, look
        from nczarr_fsspec.changes.journal import base_of

        store = base_of(store)
        if store.elsewhere:
            return None
        contents = store.contents()
        if contents is not None:
            return contents
        mark = look(store)
        return repr(mark) if isinstance(mark.root, bytes) and is_stamped(mark.root) else None

    def reader(self, variable: Variable) -> VariableReader:
        """Return a reader of one variable (cheap; it may outlive this object)."""
        # those that read metadata only do without the engine
        from nczarr_xarray.dataset.variable import VariableReader

        hierarchy, reading, array = self.hierarchy, self.reading, variable.array
        trusted = bool(hierarchy.consolidated) and not hierarchy.unchecked
        as_opened = None
        if reading is not None and reading.mark is not None and array is not None:
            from nczarr_xarray.dataset.replaced_arrays import AsOpened

            documents = reading.objects if hierarchy.documents is None else hierarchy.documents
            unchecked = hierarchy.unchecked
            as_opened = AsOpened(
                reading.mark, array.described, documents, unchecked=unchecked, trusted=trusted
            )
        return VariableReader(self.store, variable, as_opened, trusted=trusted, exact=self.exact)

    def read(self, variable: Variable, key: tuple[Index, ...] | None = None) -> np.ndarray:
        """Read an orthogonal selection of `variable`; all of it for None."""
        return self.reader(variable).read(key)

    def read_many(
        self, wanted: Iterable[tuple[Variable, tuple[Index, ...] | None]]
    ) -> list[np.ndarray | NCZarrError]:
        """Read selections of several variables, a remote store's requests overlapping.

        Errors stand in the place of values. `holds` says afterwards whether the
        dataset was changed meanwhile.
        """
        readers = [(self.reader(variable), key) for variable, key in wanted]
        remote = loop_of(self.store)
        if remote is not None and readers:
            reads = [reader.read_remote(key) for reader, key in readers]
            return remote.run(
                gather_caught(reads) if self.reading is None else self._watched(reads)
            )
        results: list[np.ndarray | NCZarrError] = []
        for reader, key in readers:
            try:
                results.append(reader.read(key))
            except (FormatError, StoreError) as error:
                results.append(error)
        return results

    async def _watched(self, reads: list[Coroutine[Any, Any, T]]) -> list[T | NCZarrError]:
        assert self.reading is not None
        results: list[T | NCZarrError]
        results, _ = await gather_or_cancel(gather_caught(reads), self.reading.watch())
        return results

    def close(self) -> None:
        """Release the store."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def gather_caught(
    coroutines: list[Coroutine[Any, Any, T]],
) -> list[T | NCZarrError]:
    """Run coroutines at the same time; return their results, with errors in their places."""
    import asyncio

    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, NCZarrError):
            raise result
    return results  # type: ignore[return-value]  # only NCZarrErrors are left


# -- presentation ---------------------------------------------------------------------------------
# What names and attributes of the model are to users, and to programs that read JSON.


#: Attributes that decoding needs as netCDF has them.
_DECODING = frozenset(
    {"_FillValue", "missing_value", "scale_factor", "add_offset", "units", "calendar", "dtype"}
    | {"coordinates", "_Unsigned", "_Encoding", "least_significant_digit"}
)


def shown_name(name: str) -> str:
    """Return a name, or a path, for users: bytes that are not UTF-8 are escaped."""
    return readable(name, "backslashreplace")


def dimension_names(group: str, variables: Iterable[Variable]) -> dict[str, str]:
    """Return what a dataset of the group at `group` calls each dimension, by path.

    The short name goes to the nearest dimension that has it; another one of the
    same name, farther up or in another branch, goes by its full path.
    """
    used = {d.path: d for variable in variables for d in variable.dimensions}
    names: dict[str, str] = {}
    taken: set[str] = set()
    for path, dimension in sorted(used.items(), key=lambda u: (*nearness(u[1].group, group), u[0])):
        names[path] = shown_name(path if dimension.name in taken else dimension.name)
        taken.add(dimension.name)
    return names


def attribute_value(attribute: Attribute) -> Any:
    """Return what netCDF4-python returns: str, list of str, a numpy scalar, or a 1-D array."""
    value = attribute.value
    if isinstance(value, str):
        return readable(value).replace("\0", "")
    if isinstance(value, tuple):
        texts = list(map(readable, value))
        return texts[0] if len(texts) == 1 else texts
    if isinstance(value, np.ndarray):
        if value.size == 1 and value.dtype.names is None:
            return value[0]
        value = value.copy()  # what users change is theirs; the model may be remembered
        return value[0] if value.size == 1 else value
    return value


def shown_attributes(owner: Group | Variable, *, as_json: bool = False) -> dict[str, Any]:
    """Return attributes as netCDF4-python returns them, by name.

    Parameters
    ----------
    as_json
        Whether what netCDF lacks is shown as JSON has it, as with xarray's engine "zarr".
    """
    shown = {
        shown_name(a.name): json.loads(a.json)
        if as_json and a.json is not None and a.name not in _DECODING
        else attribute_value(a)
        for a in owner.attributes.values()
    }
    fill = owner.attributes.get("_FillValue")
    if fill is not None and isinstance(fill.value, str):  # of which NULs and all bytes count
        shown["_FillValue"] = bytes_of(fill.value)
    return shown
