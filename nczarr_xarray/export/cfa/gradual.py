"""Writing an aggregation fragment by fragment, as a program fills it, and its master at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import xarray as xr

from nczarr_fsspec.errors import ConflictError, ExportError, NCZarrError, on_error
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.export.cfa.content import Member, as_classic
from nczarr_xarray.export.cfa.existing_master import ExistingMaster, keys_in, removable_keys
from nczarr_xarray.export.cfa.fragment_writer import flow_of, note_versions
from nczarr_xarray.export.cfa.growing_table import PutFragment
from nczarr_xarray.export.cfa.master import (
    MasterPlace,
    Names,
    conventions,
    dialect_called,
    whole_master,
    without_enum,
)
from nczarr_xarray.export.cfa.parts import PROFILE, Divided
from nczarr_xarray.export.cfa.task import CfaTask, Claim, Draft, write_flows
from nczarr_xarray.export.contents import Item
from nczarr_xarray.export.options import CfaOptions, FileKind, FragmentFormat
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.formats.cfa.dialect import OLDEST
from nczarr_xarray.formats.registry import OpenOptions
from nczarr_xarray.model import Attribute, FragmentArray, Fragments, Group, Variable


@dataclass(frozen=True, slots=True)
class NewFragment:
    """A fragment to be written.

    Attributes
    ----------
    variable
        The aggregation, as the data are, with the `ChunkedArray` that says how they are stored.
    position
        Place in the grid of the aggregation.
    start, values
        Where it begins in the variable, and what it holds.
    kind, chunked
        What it is; whether its chunks matter without compression.
    missing
        Whether all of it is missing data, whatever the values are: all of a shape are one fragment.
    """

    variable: Variable
    position: tuple[int, ...]
    start: tuple[int, ...]
    values: np.ndarray
    kind: FragmentFormat
    chunked: bool
    missing: bool = False


class GradualAggregation:
    """An aggregation that is written, or changed, by fragments; `commit` puts the master.

    Readers see the old master until then. Of an aggregation that is given up, nothing stays.

    Parameters
    ----------
    target
        A path or URL of the master.
    mode
        ``"w"`` replaces what is there, ``"x"`` wants nothing there, ``"a"`` changes it, or begins.
    format, version
        As of `nczarr_xarray.to_cfa`; what is there keeps its own.
    storage_options
        Options of the target's filesystem (fsspec).

    Attributes
    ----------
    existing
        The master as it was committed last; None before the first commit of a new one.

    Raises
    ------
    ExportError
        If there is something that cannot be changed, or be written in this way.
    DatasetExistsError
        If there is something that must not be replaced.
    """

    #: how the model of a program is spelled that writes one
    profile = PROFILE

    def __init__(
        self,
        target: Any,
        mode: Literal["w", "x", "a"],
        *,
        format: Literal["CFA3", "CFA4"] | None = None,  # noqa: A002 - as `to_cfa` calls it
        version: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        advice = "mode='w' replaces it, mode='a' changes it"
        self.place = MasterPlace.find(target, storage_options, advice)
        request = CfaOptions(most=0, version=version, mode="w", format=format)
        request.check(self.place.url)
        self.url = self.place.url
        self.replaces = mode == "w"
        self.kind: FileKind = request.master_kind
        self.existing: ExistingMaster | None = None
        #: the keys of fragments that are put and not committed
        self._put: list[str] = []
        #: those of fragments of the aggregation that is replaced
        self._old: list[str] = []
        self._claim: Claim | None = None
        self._names: Names | None = None
        self._mark: Any = None
        if mode == "a" and self.place.exists():
            self._open()
            version = self._existing.kept_version(version, format)
            self.kind = self._existing.kind
        elif not self.replaces:
            self.place.must_be_new()
        if self.kind == "netCDF3" and self.place.is_tree:
            reason = "is named like a tree, and a CFA3 master is one file: name it .nca"
            raise ExportError(self.place.url, reason)
        self.dialect = dialect_called(version or OLDEST, self.place.url)

    @property
    def opened(self) -> Opened | None:
        """The master as it was committed last; None before the first commit of a new one."""
        return None if self.existing is None else self.existing.opened

    @property
    def _existing(self) -> ExistingMaster:
        assert self.existing is not None
        return self.existing

    def _open(self) -> None:
        """Open the master that is there now."""
        self.close()
        self._mark = self._present()
        self.existing = ExistingMaster.open(self.place)

    def _present(self) -> Any:
        """Return what tells the master that is there now from others."""
        if self.place.is_tree:
            with ExistingMaster.open(self.place).opened as opened:
                return opened.reading and dict(opened.reading.objects)
        data = self.place.store.reader().get_one(self.place.name)
        return None if data is None else hashlib.sha256(data).digest()

    def begin(self) -> tuple[Claim, Names]:
        """Keep other writers out until the next commit."""
        if self._claim is not None and self._names is not None:
            return self._claim, self._names
        claim = Claim.begin(self.place)
        with on_error(claim.release):
            if self.existing is not None:
                if self._present() != self._mark:
                    reason = "was changed by another writer just now; open it again"
                    raise ConflictError(self.place.url, reason)
            elif self.replaces:
                self._old = removable_keys(self.place)
            else:
                self.place.must_be_new()
            place = self.place if self.existing is None else self.existing.writable
            names = place.names(self.kind, replaces=bool(self._old))
        self._claim, self._names = claim, names
        return claim, names

    # -- fragments --------------------------------------------------------------------------------

    def fragments_of(self, array: FragmentArray | None) -> tuple[FragmentFormat, bool]:
        """Return what new fragments of an aggregation are, and whether its last one is ours.

        Parameters
        ----------
        array
            The aggregation that is there; None for a new one.
        """
        if array is None:
            return self.kind, True
        last = next((one for one in array.fragments.addresses[::-1].tolist() if one), None)
        ours = last is None or self.place.key_of(last) is not None
        return self._existing.fragment_format(array), ours

    def put(
        self,
        new: Sequence[NewFragment],
        attributes: Mapping[str, Attribute],
        held: Sequence[Member],
    ) -> list[PutFragment]:
        """Write fragments, several at a time where the store does not answer at once.

        Parameters
        ----------
        attributes
            Of the dataset.
        held
            Variables that the master holds: a fragment gets its part of those that it needs.

        Raises
        ------
        NCZarrError
            If one cannot be written.
        """
        if not new:
            return []
        claim, names = self.begin()
        flows = []
        for one in new:
            own = without_enum(one.variable)
            sizes = zip(one.start, one.values.shape, strict=True)
            edges = tuple(np.array([begin, begin + n]) for begin, n in sizes)
            source = xr.Variable([f"d{axis}" for axis in range(len(edges))], one.values)
            divided = Divided(Item(own, source), own, edges, one.start, one.chunked)
            named = replace(names, kind=one.kind)  # (with the same names that are taken)
            flows.append(
                flow_of(self.place, divided, named, attributes, held, self.dialect, one.position)
            )
        before = self._put
        self._put = [*before, *(key for flow in flows for key in flow.new)]
        claim.note(self._put, self._old)
        filled = [flow for flow, one in zip(flows, new, strict=True) if not one.missing]
        write_flows(filled, Progress("export", shown=False))
        there = {*before}
        for flow, one in zip(flows, new, strict=True):
            flow.missing |= {0} if one.missing else set()
            if flow.keys[0] not in there:  # once: of what was put before, the version is noted
                flow.put_missing()
            there.update(flow.keys)
        note_versions(self.place, flows)
        self._put = [*before, *(key for flow in flows for key in flow.keys)]
        tables = [flow.table(self.place, self.dialect, relative=None) for flow in flows]
        return [PutFragment(flow.keys[0], own) for flow, own in zip(flows, tables, strict=True)]

    def read(self, fragment: PutFragment) -> np.ndarray:
        """Return what a fragment holds that is put and not committed."""
        options = OpenOptions(storage_options=self.place.storage_options)
        with open_with(self.place.folder + fragment.key, options) as opened:
            variable = opened.hierarchy.root.variables[fragment.table.names[0]]
            return np.array(opened.reader(variable).exactly().read())

    # -- the end ----------------------------------------------------------------------------------

    def commit(
        self, root: Group, held: Sequence[Member], tables: Sequence[tuple[Variable, Fragments]]
    ) -> None:
        """Put the master: all becomes valid at once.

        Parameters
        ----------
        root
            The groups and dimensions.
        held
            What the master holds besides aggregations.
        tables
            The aggregations, as the data are, with all their fragments.

        Raises
        ------
        ExportError
            If the master cannot hold them; then nothing has changed.
        StoreError, ConflictError
            If it cannot be put: then the old one stays, and nothing else.
        """
        root = replace(root, attributes=conventions(root.attributes, self.dialect))
        master = whole_master(root, held, tables, self.dialect)
        master.check_names(self.place.url)
        if self.kind == "netCDF3":
            as_classic(master, self.place.url)
        claim, _ = self.begin()
        needed = keys_in(self.place, [fragments for _, fragments in tables])
        gone = {*self._old, *self._put} - needed
        if self.existing is not None:
            gone |= {*self._existing.removable(needed)}
        put = [key for key in self._put if key in needed]
        version = "" if self.existing is None else self.existing.version
        draft = Draft(self.kind, lambda: master, put=put, old=sorted(gone), version=version)
        replaces = self.replaces or self.existing is not None
        CfaTask(self.place, claim, draft, replaces).run(Progress("export", shown=False))
        self._claim = self._names = None
        self._put, self._old = [], []
        self._open()

    def abort(self) -> None:
        """Remove what was put and not committed."""
        claim, self._claim = self._claim, None
        if claim is not None:
            with claim.ending(), suppress(NCZarrError):
                if claim.is_there():  # or what is there may be another writer's, by the same names
                    self.place.remove(self._put)
                    claim.release()
        self.close()

    def close(self) -> None:
        """Release the master that is open."""
        if self.existing is not None:
            self.existing.opened.close()
