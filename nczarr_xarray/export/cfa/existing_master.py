"""An aggregation that is there already."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import xarray as xr

from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import DatasetNotFoundError, ExportError, NCZarrError
from nczarr_fsspec.ranges.local import MemoryBytes
from nczarr_xarray.backend.data_store import open_group
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.fragment_datasets import FragmentDatasets
from nczarr_xarray.dataset.open import open_file, open_with
from nczarr_xarray.export.cfa.content import Member
from nczarr_xarray.export.cfa.master import OWNER, SUFFIXES, MasterPlace, has_name, without_enum
from nczarr_xarray.export.form.storage import StorageProperties, netcdf_text, stored_as
from nczarr_xarray.export.options import MASTER_FORMATS, FileKind, FragmentFormat
from nczarr_xarray.formats.cfa.dialect import aggregated
from nczarr_xarray.formats.registry import OpenOptions
from nczarr_xarray.model import ChunkedArray, FragmentArray, Fragments, Group, Hierarchy, Variable

T = TypeVar("T")

#: Fragments that are asked at a time whose they are.
_THREADS = 32
#: Texts of any length: a master and fragments are written anew, as wide as is needed.
_ANY_TEXT = np.dtype(f"S{2**30}")


def _check_whole(url: str, hierarchy: Hierarchy) -> None:
    """Raise `ExportError` if a master holds what is not known, and would be lost with a change."""
    lost = [str(error) for error in (*hierarchy.hidden, *hierarchy.problems)]
    for group in hierarchy.root.walk():
        for path, attributes in (
            (group.path, group.attributes),
            *((f"{v.path}:", v.attributes) for v in group.variables.values()),
        ):
            lost += [
                f"{path}{name}: is of a compound type"
                for name, attribute in attributes.items()
                if attribute.type == "compound"
            ]
    if lost:
        reason = (
            "holds what a change would lose, because a change writes the whole master anew; write "
            "a new aggregation instead"
        )
        raise ExportError(url, reason, lost)


def held_values(url: str, opened: Opened) -> list[tuple[Variable, np.ndarray]]:
    """Read the variables of a master that are no aggregations.

    Raises
    ------
    ExportError
        If there is a variable that cannot be read.
    NCZarrError
        If values cannot be read.
    """
    variables = [*opened.hierarchy.root.all_variables()]
    for variable in variables:
        if variable.error is not None:
            raise ExportError(url, f"has a variable that cannot be read: {variable.error}")
    held = [v for v in variables if not isinstance(v.array, FragmentArray)]
    values: list[np.ndarray] = []
    for found in replace(opened, exact=True).read_many([(variable, None) for variable in held]):
        if isinstance(found, NCZarrError):
            raise found
        values.append(found)
    return [*zip(held, values, strict=True)]


class ExistingMaster:
    """A master that gets new values: an `nczarr_xarray.export.update.ExistingValues`.

    Parameters
    ----------
    place
        Where it is.
    opened
        The master in its present state.
    version
        Of that state, where the place `swaps`.
    """

    def __init__(self, place: MasterPlace, opened: Opened, version: str = "") -> None:
        self.place = place
        self.opened = opened
        self.version = version

    @classmethod
    def open(cls, place: MasterPlace) -> ExistingMaster:
        """Open a master.

        Raises
        ------
        DatasetNotFoundError
            If there is none.
        NCZarrError
            If it cannot be read.
        """
        options = OpenOptions(storage_options=place.storage_options)
        whole = place.store.get_versioned(place.name) if place.swaps else None
        if whole is not None:
            source = MemoryBytes(whole[0], place.url)
            return cls(place, open_file(source, options, place.target), whole[1])
        try:
            return cls(place, open_with(place.target, options))
        except DatasetNotFoundError:
            reason = "there is no dataset to change; write it first"
            raise DatasetNotFoundError(place.url, reason) from None

    @property
    def url(self) -> str:
        """How messages name it."""
        return self.place.url

    @property
    def kind(self) -> FileKind:
        """What the master is, if it is a file."""
        return "netCDF3" if self.opened.hierarchy.generation.startswith("CDF-") else "netCDF4"

    def kept_version(self, version: str | None, format: str | None) -> str | None:  # noqa: A002
        """Return the version of its tables, which stays when it is written anew; None without any.

        Parameters
        ----------
        version, format
            What the caller asks for.

        Raises
        ------
        ExportError
            If it would lose something, if its tables are of several versions, or the caller
            asks for another version or format.
        """
        _check_whole(self.url, self.opened.hierarchy)
        kept = {kind: name for name, kind in MASTER_FORMATS.items() if name}[self.kind]
        if format not in (None, kept):
            raise ExportError(self.url, f"is {kept}, and stays so: leave format out")
        versions = sorted({array.dialect for _, array in aggregated(self.opened.hierarchy)})
        if len(versions) > 1:
            said = " and ".join(versions)
            raise ExportError(self.url, f"mixes versions {said}, and is not changed: write it anew")
        if versions and version not in (None, *versions):
            raise ExportError(
                self.url,
                f"is an aggregation of version {versions[0]}, and stays one: leave cfa_version out",
            )
        return versions[0] if versions else None

    def fragment_format(self, array: FragmentArray) -> FragmentFormat:
        """Return what the fragments of an aggregation are, by the address of the first one."""
        first = next((a for a in array.fragments.addresses.tolist() if a), "")
        return "NCZarr" if first.rstrip("/").endswith(SUFFIXES["NCZarr"]) else self.kind

    def group(self, path: str) -> Group | None:
        """Return the group at `path`, unchanged."""
        return self.opened.hierarchy.root.find(path)

    def dataset(self, path: str) -> xr.Dataset:
        """Return the group at `path` for xarray."""
        group = self.group(path)
        assert group is not None
        return open_group(self.opened, group)

    def array(self, variable: Variable) -> ChunkedArray:
        """Return how the data of a variable are written, which can be read."""
        stored = self.storage(variable)
        dtype = stored.dtype
        if variable.nc_type == "string":
            dtype = _ANY_TEXT
        return ChunkedArray(
            variable.path.strip("/"),
            variable.shape,
            stored.chunk_shape,
            dtype.newbyteorder("=") if dtype.kind in "iuf" else dtype,
            codecs=stored.codecs,
        )

    def storage(self, variable: Variable) -> StorageProperties:
        """Return how a variable is stored; of an aggregation, how its first fragment is."""
        array = variable.array
        if not isinstance(array, FragmentArray):
            return stored_as(self.opened, variable)
        plain = StorageProperties(
            variable.dtype, tuple(max(1, n) for n in variable.shape), contiguous=True
        )
        opener = array.opener
        first = opener.first(array) if isinstance(opener, FragmentDatasets) else None
        if first is None:
            return plain
        assert isinstance(opener, FragmentDatasets)
        try:
            fragment = opener.open(first).variable
        except NCZarrError:
            return plain
        if fragment.array is None or len(fragment.shape) != len(variable.shape):
            return plain
        stored = stored_as(self.opened, fragment)
        return replace(plain, chunk_shape=stored.chunk_shape, codecs=stored.codecs)

    def members(self) -> list[Member]:
        """Read what the master holds besides aggregations; errors as of `held_values`."""
        found = []
        for variable, values in held_values(self.url, self.opened):
            held = without_enum(netcdf_text(variable))
            held = replace(held, array=self.array(held), padding=None)
            found.append(Member(held, values, not stored_as(self.opened, variable).contiguous))
        return found

    def aggregations(self) -> dict[str, tuple[Variable, FragmentArray]]:
        """Return the aggregations in it, by path."""
        return {v.path: (v, array) for v, array in aggregated(self.opened.hierarchy)}

    def keys(self) -> set[str]:
        """Return the keys of those fragments that are in the folder of the aggregation."""
        tables = (array.fragments for _, array in aggregated(self.opened.hierarchy))
        return keys_in(self.place, tables)

    @property
    def writable(self) -> MasterPlace:
        """Where it is, with the folder of new fragments: that of those that are there."""
        key = min(self.keys(), default="")
        folder = key.rpartition("/")[0]
        elsewhere = not self.place.below and folder not in ("", self.place.stem)
        return replace(self.place, below=folder) if elsewhere and self._is_ours(key) else self.place

    def removable(self, needed: set[str]) -> list[str]:
        """Return the keys of those fragments that were written for it, but of those needed.

        A name alone does not tell: a user may have called a file so, and aggregated it.
        """
        found: set[str] = set()
        for variable, array in aggregated(self.opened.hierarchy):
            keys = keys_in(self.place, [array.fragments])
            rank = len(variable.shape)
            found |= {k for k in keys if has_name(k, self.place.stem, variable.path, rank)}
        candidates = sorted(found - needed)
        with WaitingThreads(_THREADS, thread_name_prefix="nczarr-fragment") as pool:
            ours = pool.map(self._is_ours, candidates)
            return [key for key, is_ours in zip(candidates, ours, strict=True) if is_ours]

    def _is_ours(self, key: str) -> bool:
        """Tell whether a fragment says that it was written for this master."""
        options = OpenOptions(storage_options=self.place.storage_options)
        try:
            with open_with(self.place.folder + key, options) as opened:
                owner = opened.hierarchy.root.attributes.get(OWNER)
        except NCZarrError:  # it is gone, or damaged
            return False
        return owner is not None and owner.value == self.place.name_in_fragments


def keys_in(place: MasterPlace, tables: Iterable[Fragments]) -> set[str]:
    """Return the keys of those fragments of some tables that are in the folder of a master."""
    addresses: set[str | None] = set()
    for fragments in tables:
        addresses |= {*fragments.addresses.tolist()}
        for others in fragments.others.values():
            addresses |= {other.address for other in others}
    keys = (place.key_of(address) for address in addresses if address)
    return {key for key in keys if key is not None}


def referred_keys(place: MasterPlace) -> set[str] | None:
    """Return the keys of the fragments that the present master refers to.

    None is returned if it cannot be found out: then no fragment must be removed.
    """
    return _asked(place, ExistingMaster.keys, set[str]())


def removable_keys(place: MasterPlace) -> list[str]:
    """Return the keys of the fragments that go with the present master."""
    return _asked(place, lambda existing: existing.removable(set()), []) or []


def _asked(place: MasterPlace, ask: Callable[[ExistingMaster], T], nothing: T) -> T | None:
    """Ask the present master, if there is one; return None if it cannot be read."""
    try:
        existing = ExistingMaster.open(place)
        with existing.opened:
            if any(v.error for v in existing.opened.hierarchy.root.all_variables()):
                return None
            return ask(existing)
    except DatasetNotFoundError:
        return nothing
    except NCZarrError:
        return None
