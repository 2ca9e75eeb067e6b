"""Writing an aggregation: fragments first, then the master; and one writer at a time."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import xarray as xr

from nczarr_fsspec.changes.edit import OVER
from nczarr_fsspec.changes.recovery import Succession
from nczarr_fsspec.errors import ConflictError, NCZarrError, StoreError, on_error
from nczarr_fsspec.stores.ownership import AT_WORK, Owner, parse_json
from nczarr_xarray.export.cfa.content import Content, file_bytes, items
from nczarr_xarray.export.cfa.existing_master import referred_keys
from nczarr_xarray.export.cfa.fragment_writer import Flow, note_versions
from nczarr_xarray.export.cfa.master import MasterPlace
from nczarr_xarray.export.chunk_writer import IN_FLIGHT_BYTES
from nczarr_xarray.export.options import FileKind, WriteOptions
from nczarr_xarray.export.parallel import compute, not_shared, write_blocks
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.export.write_target import decide
from nczarr_xarray.export.write_task import plan_contents

#: Fragments that are made and sent at a time, to a store that does not answer at once.
AT_A_TIME = 16

#: A variable, the number of one of its fragments, where the data of that begin, and these.
Block: TypeAlias = "tuple[Flow, int, tuple[int, ...], np.ndarray]"


class Draft(NamedTuple):
    """An aggregation that is to be written.

    Attributes
    ----------
    kind
        What a master is that is a file.
    master
        Returns what is put when the fragments are there.
    flows
        What becomes fragments.
    old
        Keys of fragments that are not needed afterwards.
    put
        Keys of fragments that have been put already.
    version
        Of the present master, of which the new one is made: `ExistingMaster.version`.
    """

    kind: FileKind
    master: Callable[[], Content]
    flows: Sequence[Flow] = ()
    old: Sequence[str] = ()
    put: Sequence[str] = ()
    version: str = ""

    @property
    def new(self) -> list[str]:
        """Keys of fragments that are not those of the present master."""
        return [*self.put, *(key for flow in self.flows for key in flow.new)]


@dataclass(slots=True)
class CfaTask:
    """The writing of an aggregation.

    Attributes
    ----------
    place
        Where it is written.
    claim
        Keeps other writers out.
    draft
        What is written.
    replaces
        Whether there may be a master already.
    before
        A function to call before the master is put; if it raises, nothing stays.
    template
        Whether dask's arrays are missing data for now.
    content
        What `Draft.master` returns before fragments are written.
    """

    place: MasterPlace
    claim: Claim
    draft: Draft
    replaces: bool
    before: Callable[[], None] | None = None
    template: bool = False
    content: Content | None = None
    _committing: bool = False

    @classmethod
    def plan(
        cls,
        place: MasterPlace,
        draft: Callable[[], Draft],
        *,
        replaces: bool,
        before: Callable[[], None] | None = None,
        template: bool = False,
    ) -> CfaTask:
        """Plan the writing of a new aggregation, or of one that changes.

        Parameters
        ----------
        draft
            Is called when other writers are kept out: it may read the present master.

        Raises
        ------
        ConflictError
            If another writer is at work.
        DatasetExistsError
            If there is something that must not be replaced.
        NCZarrError
            Of `draft`; if the master would hold two variables of one name.
        """
        if not replaces:
            place.must_be_new()
        claim = Claim.begin(place)
        with on_error(claim.release):
            if not replaces:
                place.must_be_new()
            found = draft()
            content = found.master()
            content.check_names(place.url)
        return cls(place, claim, found, replaces, before, template, content)

    def run(self, progress: Progress) -> None:
        """Write everything; if that fails, the old aggregation stays, and nothing else."""
        with on_error(self._give_up):
            place, draft = self.place, self.draft
            for flow in draft.flows:
                flow.writer.lasts = self.claim.is_there
            self.claim.note(draft.new, draft.old)
            # made before the data are written: it may find out that it is impossible
            content = self.content or draft.master()
            data = None if place.is_tree else file_bytes(content, draft.kind, place.url)
            write_flows([flow for flow in draft.flows if not flow.divided.item.is_lazy], progress)
            self._write_lazy(progress)
            if any(flow.missing or flow.keeps_versions for flow in draft.flows):
                for flow in draft.flows:
                    flow.put_missing()
                note_versions(place, draft.flows)
                content = draft.master()
                data = data and file_bytes(content, draft.kind, place.url)
            if self.before is not None:
                self.before()
            self.claim.check()
            if data is None:
                self._put_tree(content, progress)
            else:
                self._committing = True
                place.put(data, replaces=self.replaces, version=draft.version)
        self._clean_up()

    def _clean_up(self) -> None:
        """Remove what the new master does not need; what fails here is left to the next writer."""
        try:
            self.place.remove(sorted({*self.draft.old} - {*self.draft.new}))
            self.claim.release()
        except StoreError as error:
            raise StoreError(
                self.place.url,
                "is written and can be read, but what it does not need any more could not be "
                f"removed; the next writer removes it, or nczarr_xarray.recover: {error}",
            ) from error
        finally:
            self.claim.forget()

    def _give_up(self) -> None:
        # dask's threads finish the blocks that they have begun
        for flow in self.draft.flows:
            flow.writer.shut()
        with self.claim.ending(), suppress(NCZarrError):  # what failed before is the error
            if not self.claim.is_there():
                return  # what is there now may be another writer's, by the same names
            if self._committing:  # the store may have done it, and then failed to say so
                clear_claim(self.place)
            else:
                self.place.remove(self.draft.new)
                self.claim.release()

    def _write_lazy(self, progress: Progress) -> None:
        """Write the fragments of dask's arrays, each where its block is computed."""
        lazy = [flow for flow in self.draft.flows if flow.divided.item.is_lazy]
        if self.template:
            for flow in lazy:
                flow.missing.update(range(len(flow.writer.keys)))
            return
        if not lazy:
            return
        writes = []
        for flow in lazy:
            lengths = tuple(tuple(np.diff(edges).tolist()) for edges in flow.divided.blocks)
            data = flow.divided.item.lazy_data.rechunk(lengths)
            path = flow.divided.item.variable.path
            writes.append((path, write_blocks(path, data, flow.writer, counted=True)))
        written = compute(writes, map(_nbytes, lazy), progress)
        there, found = self.place.names_in(lazy[0].writer.keys[0].rpartition("/")[0]), 0
        for flow in lazy:
            names = [key.rpartition("/")[2] for key in flow.writer.keys]
            flow.missing.update(n for n, name in enumerate(names) if name not in there)
            found += len(names) - len(flow.missing)
        wanted = sum(int(np.sum(numbers)) for _, numbers in written)
        if found < wanted:
            said = f"{wanted - found} of {wanted} fragments that were written are not there"
            raise not_shared(self.place.url, said)

    def _put_tree(self, content: Content, progress: Progress) -> None:
        self.place.remove_abandoned()
        mode = "w" if self.replaces else "w-"
        options = WriteOptions(mode=mode, storage_options=self.place.storage_options)
        target, profile, options = decide(self.place.target, options)
        content = content.fitted()
        contents = replace(content.contents(), items=[*items(content)])
        task = plan_contents(contents, target, profile, options)
        self._committing = True
        task.run(progress)


def _nbytes(flow: Flow) -> int:
    """Return the bytes of the data of a variable."""
    source = flow.divided.item.source
    assert isinstance(source, xr.Variable)
    return int(source.nbytes)


def write_flows(flows: Sequence[Flow], progress: Progress) -> None:
    """Write the fragments of data that are not of dask: one thread reads, while others write.

    Those of nothing but missing data are noted.

    Raises
    ------
    NCZarrError
        If one cannot be written.
    """
    if not flows:
        return
    progress.expect(sum(map(_nbytes, flows)))
    largest = max(_nbytes(flow) // max(1, math.prod(flow.divided.grid)) for flow in flows)
    many = max(2, min(AT_A_TIME, IN_FLIGHT_BYTES // max(1, largest)))
    writer = flows[0].writer
    writer.each(
        (block for flow in flows for block in _blocks(flow)),
        _write,
        threads=min(writer.store.parallel, many),
        done=lambda block: progress.advance(block[3].nbytes),
        within=nullcontext(),
    )


def _write(block: Block) -> int:
    flow, number, first, values = block
    written = flow.writer.write(values, first)
    if not written:
        flow.missing.add(number)
    return written


def _blocks(flow: Flow) -> Iterator[Block]:
    """Yield the data of each fragment, with their position; they are read now."""
    source = flow.divided.item.source
    assert isinstance(source, xr.Variable)
    borders = flow.divided.blocks
    for number, position in enumerate(np.ndindex(flow.divided.grid)):
        pairs = [*zip(borders, position, strict=True)]
        part = tuple(slice(int(edge[at]), int(edge[at + 1])) for edge, at in pairs)
        yield flow, number, tuple(along.start for along in part), source[part].values


def swap(place: MasterPlace, draft: Callable[[], Draft]) -> None:
    """Put a master without new fragments in place of that which it is made of, without a claim.

    Of two writers that have read the same one, only the first can put its own.

    Raises
    ------
    ConflictError
        If another writer was faster.
    NCZarrError
        Of `draft`; if the master cannot be put.
    """
    found = draft()
    content = found.master()
    content.check_names(place.url)
    data = file_bytes(content, found.kind, place.url)
    place.put(data, replaces=True, version=found.version)


# -- claim -----------------------------------------------------------------------------------------
# An object beside the fragments says what is being written. A master is replaced in one step.
# Before that, nothing refers to the new fragments; after that, nothing refers to the old ones. The
# object names both, so that what a writer left that died can be told from what is needed: fragments
# that the present master refers to.


_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to change an aggregation, until it is released.

    Parameters
    ----------
    place
        The aggregation.
    name
        Distinguishes this writer from others.
    """

    place: MasterPlace
    name: str

    @property
    def key(self) -> str:
        """The object that tells other writers."""
        return claim_key(self.place)

    @classmethod
    def begin(cls, place: MasterPlace) -> Claim:
        """Keep other writers out; clean up after one that died.

        Raises
        ------
        ConflictError
            If another writer is at work.
        StoreError
            If the store fails.
        """
        claim = cls(place, uuid.uuid4().hex)
        AT_WORK.add(claim.name)
        with on_error(claim._withdraw):
            for _ in range(_ATTEMPTS):
                if place.store.create(claim.key, claim._document((), ())):
                    return claim
                present = _present(place)
                if present is not None and claim._inherit(present):
                    return claim
        claim.forget()
        raise ConflictError(place.url, "is being written by others; try again")

    def _inherit(self, present: dict[str, Any]) -> bool:
        """Take over from a writer that has ended, as the only one who does; tell whether it is so.

        Raises
        ------
        ConflictError
            If the writer, or one that takes over from it, may be at work.
        """
        store, name = self.place.store, str(present.get("name"))
        line = Succession(store, f"{self.key}.{name}.")
        at_work, number = line.end(Owner.parse(present.get("owner")), name)
        if at_work is not None:
            raise ConflictError(
                self.place.url,
                f"is being written by {at_work}; if that process has ended, call "
                "nczarr_xarray.recover",
            )
        with line.turn(number) as entered:
            now = _present(self.place) if entered else None
            first = now is not None and now.get("name") == present.get("name")
            if now is not None and first:
                _remove_unneeded(self.place, now)
                store.put(self.key, self._document((), ()))
        if entered:  # if another process was done before, it removes the rest of the line
            store.delete(_successors(self.place) if first else [line.key(number)])
        return first

    def _withdraw(self) -> None:
        with self.ending(), suppress(StoreError):
            if self.is_there():  # then the line of those that took over is no longer needed
                self.place.store.delete([self.key, *_successors(self.place)])

    def note(self, new: Iterable[str], old: Iterable[str]) -> None:
        """Note in the claim which fragments will be written, and which are then not needed.

        Raises
        ------
        StoreError
            If that fails, or the claim has been removed.
        """
        self.check()
        self.place.store.put(self.key, self._document(new, old))

    def is_there(self) -> bool:
        """Tell whether this writer still has the claim (`recover` removes it)."""
        present = _present(self.place)
        return present is not None and present.get("name") == self.name

    def check(self) -> None:
        """Raise `StoreError` if the claim has been removed."""
        if not self.is_there():
            raise StoreError(self.place.url, OVER)

    def forget(self) -> None:
        """Leave the claim to the next writer, which finds out how far this one came."""
        AT_WORK.discard(self.name)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Forget the claim when the block ends, however it does.

        Not before: another thread would take over, and what the block removes would be its work.
        """
        try:
            yield
        finally:
            self.forget()

    def release(self) -> None:
        """Remove the claim, so that other writers can begin; another writer's stays."""
        with self.ending():
            if self.is_there():
                self.place.store.delete([self.key])

    def _document(self, new: Iterable[str], old: Iterable[str]) -> bytes:
        told = {"name": self.name, "owner": Owner.here().document}
        return json.dumps({**told, "new": [*new], "old": [*old]}).encode()


def claim_key(place: MasterPlace) -> str:
    """Return the key of the object that tells other writers."""
    return f"{place.stem}/{place.claim_name}"


class Holder(NamedTuple):
    """What has the present claim on an aggregation."""

    owner: Owner
    has_ended: bool


def holder(place: MasterPlace) -> Holder | None:
    """Return what has the present claim; None if there is none."""
    claim = _present(place)
    if claim is None:
        return None
    owner = Owner.parse(claim.get("owner"))
    return Holder(owner, owner.has_left(str(claim.get("name"))))


def clear_claim(place: MasterPlace) -> bool:
    """Remove what any writer left; tell whether there was anything.

    That is its claim, and fragments that nothing refers to.
    """
    claim = _present(place)
    left = _successors(place)
    if claim is not None:
        _remove_unneeded(place, claim)
        place.store.delete([claim_key(place)])
    place.store.delete(left)
    return claim is not None or bool(left)


def _remove_unneeded(place: MasterPlace, claim: dict[str, Any]) -> None:
    """Remove what the writer with a claim has left, and the present master does not refer to.

    That are fragments, and files that were to become some.
    """
    named = (claim.get(part) for part in ("new", "old"))
    keys = {key for part in named if isinstance(part, list) for key in part}
    ours = {key for key in keys if isinstance(key, str) and place.key_of(key) == key}
    writer = Owner.parse(claim.get("owner")).identity
    for folder in {key.rpartition("/")[0] for key in ours} | {""}:
        replace(place, below=folder).remove_abandoned(writer)
    present = referred_keys(place)
    if present is None:
        return
    place.remove(sorted(ours - present))


def _successors(place: MasterPlace) -> list[str]:
    """Return the keys of all that have taken over from writers that had ended."""
    start = f"{claim_key(place)}."
    return [key for key in place.store.keys_below(place.stem) if key.startswith(start)]


def _present(place: MasterPlace) -> dict[str, Any] | None:
    """Return what the present claim says; None if there is none."""
    data = place.store.reader().get_one(claim_key(place))
    if data is None:
        return None
    found = parse_json(data)
    return found if isinstance(found, dict) else {}
