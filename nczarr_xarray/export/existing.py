"""An existing dataset that is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import xarray as xr

from nczarr_fsspec.changes.consistent_reading import same_documents
from nczarr_fsspec.destination import Destination
from nczarr_fsspec.errors import (
    DatasetNotFoundError,
    ExportError,
    FormatError,
    IncompleteExportError,
    StoreError,
)
from nczarr_xarray.backend.data_store import open_group
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.open import are_references, closed_on_error, open_keys
from nczarr_xarray.export.contents import Contents
from nczarr_xarray.formats.nczarr import emit, spellings
from nczarr_xarray.formats.nczarr.documents import KEY as CONSOLIDATED
from nczarr_xarray.formats.nczarr.documents import lost_copies, only_copies
from nczarr_xarray.formats.nczarr.emit import consolidate
from nczarr_xarray.formats.nczarr.spellings import Profile
from nczarr_xarray.formats.registry import OpenOptions, check_is_zarr
from nczarr_xarray.model import ChunkedArray, Group, Variable, is_below

#: Of groups and arrays.
_FILES = (".zgroup", ".zarray", ".zattrs")


class Existing:
    """The metadata of a dataset, and changes to its documents.

    Attributes
    ----------
    opened
        The dataset in its present state.
    profile
        The format in which it is written.
    pending
        Paths of arrays of which chunks are still missing.
    changed
        New content of documents, by key.
    """

    def __init__(self, target: Destination, opened: Opened) -> None:
        self.target = target
        self.opened = opened
        self.pending = _release(opened)
        self.changed: dict[str, bytes] = {}
        assert opened.reading is not None
        found = opened.reading.objects
        self._documents = {key: data for key, data in found.items() if isinstance(data, bytes)}
        self._asked = {key for key, data in found.items() if not isinstance(data, StoreError)}
        self.read(["", *([".nczarr"] if opened.hierarchy.generation == "G1" else [])])
        root = self.documents(spellings.GROUP_FILES, "")
        if opened.hierarchy.generation == "G1":
            root[".nczarr"] = b"{}"
        if opened.hierarchy.generation == "v3":
            root["zarr.json"] = b"{}"
        self.profile: Profile = emit.generation_profile(root, self.url)

    @property
    def url(self) -> str:
        """How messages name the dataset."""
        return self.target.url

    @classmethod
    def open(cls, target: Destination) -> Existing | None:
        """Open the dataset at a target; return None if there is none.

        Raises
        ------
        NCZarrError
            If the dataset cannot be read or changed.
        """
        store = target.reader()
        if store is None:
            return None
        if are_references(store):
            store.close()
            reason = (
                "are kerchunk references, and what they refer to is in other files: copy them with "
                "nczarr copy and change the copy, or replace them with mode='w'"
            )
            raise ExportError(target.url, reason)
        try:
            opened = open_keys(store, options=OpenOptions(consolidated=False))
        except DatasetNotFoundError:
            return None
        with closed_on_error(store):
            check_is_zarr(opened.hierarchy, store.url)
            return cls(target, opened)

    def group(self, path: str) -> Group | None:
        """Return the group at `path`, unchanged."""
        return self.opened.hierarchy.root.find(path)

    def array(self, variable: Variable) -> ChunkedArray:
        """Return the chunk grid of a variable (raise its error if the variable cannot be read)."""
        if not isinstance(variable.array, ChunkedArray):
            raise variable.error or FormatError(variable.path, "is not an array of Zarr 2")
        return variable.array

    def skeleton(self, without: str | None) -> Group:
        """Return the groups with only their dimensions, except those below `without`."""
        contents = Contents()
        for group in self.opened.hierarchy.root.walk():
            if without is None or not is_below(group.path, without):
                contents.group(group.path).dimensions.update(group.dimensions)
        return contents.root

    def dataset(self, path: str) -> xr.Dataset:
        """Return the group at `path` for xarray."""
        group = self.group(path)
        if group is None:
            raise DatasetNotFoundError(self.target.url, f"no group {path!r}")
        variables = {name: self._decodable(v) for name, v in group.variables.items()}
        return open_group(self.opened, replace(group, variables=variables))

    def _decodable(self, variable: Variable) -> Variable:
        """Return a variable whose missing chunks are numbers, which times of all calendars can be.

        xarray decodes the ends of times to learn their type. It cannot do so where all of them are
        missing, except in the standard calendar, or where they are netCDF's own fill values.
        """
        array = variable.array
        if variable.path.strip("/") not in self.pending or variable.dtype.kind not in "iuf":
            return variable
        assert isinstance(array, ChunkedArray)
        missing = variable.attributes.get("_FillValue")
        number = 0 if missing is None or np.all(missing.value != 0) else 1
        return replace(variable, array=replace(array, fill=variable.dtype.type(number)))

    def agrees(self, before: Existing, arrays: Iterable[str] | None) -> bool:
        """Tell whether an earlier reading found the same metadata.

        Parameters
        ----------
        arrays
            Look only at the arrays at these paths and at the groups that they are in.
        """
        if arrays is None:
            one, other = self.opened.reading, before.opened.reading
            return one is not None and other is not None and one.agrees(other)
        groups = {""}
        for path in (arrays := list(arrays)):
            while path := path.rpartition("/")[0]:
                groups.add(path)
        return all(
            same_documents(self.group_documents(path), before.group_documents(path))
            for path in groups
        ) and all(
            same_documents(self.array_documents(path), before.array_documents(path))
            for path in arrays
        )

    # -- documents -------------------------------------------------------------

    def read(self, paths: Iterable[str]) -> None:
        """Fetch the documents of groups and arrays at the same time."""
        keys = [f"{path}/{file}" if path else file for path in paths for file in _FILES]
        keys = [key for key in keys if key not in self._asked]
        self._asked.update(keys)
        for key, data in zip(keys, self.opened.keys.get_many(keys), strict=True):
            if isinstance(data, StoreError):
                raise data
            if data is not None:
                self._documents[key] = data

    def documents(self, files: Iterable[str], path: str) -> dict[str, bytes]:
        """Return the documents of one node, with all changes so far."""
        keys = [f"{path}/{file}" if path else file for file in files]
        found = ((key, self.changed.get(key, self._documents.get(key))) for key in keys)
        return {key: data for key, data in found if data is not None}

    def group_documents(self, path: str) -> dict[str, bytes]:
        """Return the documents of the group at a path without leading slash."""
        self.read([path])
        return self.documents(spellings.GROUP_FILES, path)

    def array_documents(self, path: str) -> dict[str, bytes]:
        """Return the documents of the array at a path without leading slash."""
        self.read([path])
        return self.documents(spellings.ARRAY_FILES, path)

    def change(self, documents: Mapping[str, bytes]) -> None:
        """Note documents that change."""
        self.changed.update(documents)

    def final_documents(self, removed: Iterable[str], *, consolidated: bool) -> dict[str, bytes]:
        """Return all documents that change, groups last.

        ``.zmetadata`` is among them where it exists or is asked for.

        The root's documents are always among them: see `nczarr_fsspec.changes.edit`.
        """
        root = self.group_documents("")
        found = dict(sorted(self.changed.items(), key=lambda item: -item[0].count("/")))
        for key, data in root.items():
            found[key] = found.pop(key, data)
        (old,) = self.opened.keys.get_many([CONSOLIDATED])
        everything = {}
        if consolidated or isinstance(old, bytes):
            everything = self._everything(removed)
        if isinstance(old, bytes):
            replaced = {key.rpartition("/")[0] for key in self.changed}
            if lost := only_copies(old, everything, self._broken - replaced):
                raise ExportError(self.url, lost_copies(lost))
        if self.profile.spelling is None:  # pure Zarr, for which strict parsers exist
            found, everything = (
                {key: emit.standard(data, key) for key, data in documents.items()}
                for documents in (found, everything)
            )
        if everything:
            found[CONSOLIDATED] = consolidate(everything)
        return found

    @property
    def _broken(self) -> set[str]:
        """Paths of the arrays that cannot be read."""
        variables = self.opened.hierarchy.root.all_variables()
        return {v.path.strip("/") for v in variables if v.error is not None}

    def _everything(self, removed: Iterable[str]) -> dict[str, bytes]:
        gone = set(removed) - self.changed.keys()
        paths = []
        for group in self.opened.hierarchy.root.walk():
            paths.append(group.path.strip("/"))
            paths += [variable.path.strip("/") for variable in group.variables.values()]
        self.read(paths)
        old = {k: data for path in paths for k, data in self.documents(_FILES, path).items()}
        return {k: data for k, data in {**old, **self.changed}.items() if k not in gone}


def _release(opened: Opened) -> frozenset[str]:
    """Clear the errors of arrays with missing chunks; return the paths of these arrays."""
    found = []
    for variable in opened.hierarchy.root.all_variables():
        if isinstance(variable.error, IncompleteExportError):
            variable.error = None
            found.append(variable.path.strip("/"))
    return frozenset(found)
