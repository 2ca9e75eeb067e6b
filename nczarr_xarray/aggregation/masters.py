"""Masters in the terms of `combine`: those that are there, and what one to be written holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import ExportError, NCZarrError
from nczarr_fsspec.places.names import LocalFile
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.from_references import (
    addresses_of,
    aggregated_references,
    references_of,
)
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.fragment_datasets import FragmentDatasets
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.export.cfa.content import Content, Member, in_one_chunk
from nczarr_xarray.export.cfa.existing_master import held_values
from nczarr_xarray.export.cfa.master import (
    MasterPlace,
    aggregation,
    conventions,
    held_dimensions,
    unpacked,
    without_enum,
)
from nczarr_xarray.formats.cf import packing_of
from nczarr_xarray.formats.cfa.dialect import WritableDialect, aggregated
from nczarr_xarray.formats.registry import OpenOptions
from nczarr_xarray.model import FragmentArray, Fragments, Variable

# -- replaced ------------------------------------------------------------------------------------
# What a master is written in place of: nothing that it is made of, or that would be lost.


@dataclass(frozen=True, slots=True)
class Replaced:
    """What is where a master is to be written.

    Parameters
    ----------
    place
        Where that is.
    """

    place: MasterPlace

    def refuse(self, files: Iterable[str]) -> None:
        """Raise `ExportError` if the master is one of some files, or one is a group of it."""
        if self._is_among(files):
            raise ExportError(
                self.place.url, "is the master itself, and cannot be one of its files"
            )

    def refuse_below(self, target: str, opened: Opened, options: OpenOptions) -> None:
        """Raise `ExportError` if a dataset names the master, or if one that it names does.

        Parameters
        ----------
        target, options
            The dataset, and how it was opened.
        """
        named = _named(target, opened, options)
        if not named or not self.place.exists():
            return
        seen: set[str] = set()
        while named:
            if self._is_among(named):
                raise ExportError(
                    self.place.url,
                    f"is the master itself, and holds data of {target}, which would be lost: "
                    "write the master under another name",
                )
            seen |= named.keys()
            below = [_named_there(where, policy) for where, policy in named.items()]
            every = (pair for one in below for pair in one.items())
            named = {where: policy for where, policy in every if where not in seen}

    def _is_among(self, files: Iterable[str]) -> bool:
        master = self.place.folder + self.place.name
        here = LocalFile.of(master)  # (a local file may have several names: links, URLs)
        return any(
            file == master
            or file.startswith(f"{master}/")
            or (here is not None and here.holds(LocalFile.of(file)))
            for file in files
        )


def _named_there(where: str, policy: AddressPolicy) -> dict[str, AddressPolicy]:
    """Return what `_named` does, of a dataset that another one names."""
    options = OpenOptions(storage_options=policy.options(where))
    try:
        opened = open_with(where, options)
    except NCZarrError:  # what cannot be opened names nothing
        return {}
    with opened:
        return _named(where, opened, options)


def _named(target: str, opened: Opened, options: OpenOptions) -> dict[str, AddressPolicy]:
    """Return what a dataset names that may be opened, with the policy that says so."""
    named: dict[str, AddressPolicy] = {}
    for _, array in aggregated(opened.hierarchy):
        if isinstance(array.opener, FragmentDatasets):
            others = (place.address for one in array.fragments.others.values() for place in one)
            addresses = {*array.fragments.addresses.tolist(), *others}
            named |= _resolved(array.opener.policy, addresses)
    return named | _resolved(options.policy(target), addresses_of(opened))


def _resolved(policy: AddressPolicy, addresses: Iterable[str | None]) -> dict[str, AddressPolicy]:
    resolved: dict[str, AddressPolicy] = {}
    for address in addresses:
        if address:
            with suppress(NCZarrError):  # what must not be opened is not read
                resolved[policy.resolve(address)] = policy
    return resolved


# -- masters -------------------------------------------------------------------------------------


#: Fragments that are asked at a time whether they are packed.
_THREADS = 32


def read_aggregation(url: str, opened: Opened) -> Aggregated:
    """Read a master that is open: its tables, and all else that it holds.

    Raises
    ------
    ExportError
        If there is no aggregation variable, or one that cannot be read.
    NCZarrError
        If values cannot be read.
    """
    values = {variable.path: held for variable, held in held_values(url, opened)}
    arrays = {variable.path: array for variable, array in aggregated(opened.hierarchy)}
    if not arrays:
        raise ExportError(url, "has no aggregation variable; it is no aggregation")
    return Aggregated(
        replace(opened.hierarchy, problems=()),
        values,
        {path: array.fragments for path, array in arrays.items()},
        "equal" if any(array.packing for array in arrays.values()) else "after",
    )


def read_master(
    target: str,
    options: OpenOptions,
    policy: AddressPolicy,
    replaced: Replaced | None,
    dialect: WritableDialect | None,
) -> Aggregated:
    """Read an aggregation, or references as one of variables of files.

    Parameters
    ----------
    options
        How to open it.
    policy
        What the addresses in it mean.
    replaced
        What it may not name, if anything.
    dialect
        As what it is written; None as references.

    Raises
    ------
    ExportError
        If values would become others, because the dialect unpacks fragments and its own does not,
        or the other way round.
    NCZarrError
        As `read_aggregation`, and as `aggregated_references`.
    """
    with open_with(target, options) as opened:
        if replaced is not None:
            replaced.refuse_below(target, opened, options)
        keys = references_of(opened)
        if keys is not None:
            return aggregated_references(opened, keys, policy)
        if dialect is not None:
            _check_packing(target, opened, dialect)
        return read_aggregation(target, opened)


def _check_packing(url: str, opened: Opened, dialect: WritableDialect) -> None:
    """Raise if packed values would become others; opens fragments only where there may be some."""
    for variable, array in aggregated(opened.hierarchy):
        unpacks = array.packing is None
        is_scaled = packing_of(variable).keys() - {"_Unsigned"}
        if unpacks != dialect.keeps_packing or not is_scaled or array.fragments.values is not None:
            continue
        addresses = array.fragments.addresses.tolist()
        numbers = [number for number, one in enumerate(addresses) if one is not None]
        with WaitingThreads(_THREADS, thread_name_prefix="nczarr-fragment") as pool:
            packed = [*pool.map(partial(_packed, array), numbers)]
        if unpacks in packed:
            position = array.fragments.position(numbers[packed.index(unpacks)])
            raise ExportError(
                url,
                f"packs {variable.path}, and fragment {position} is {'' if unpacks else 'not '}"
                f"packed, which version {dialect.name!r} cannot say: write the data anew, as "
                "nczarr copy --format CFA does",
            )


def _packed(array: FragmentArray, number: int) -> bool:
    """Tell whether a fragment says how it is packed."""
    assert isinstance(array.opener, FragmentDatasets)
    *others, last = array.fragments.places(number)
    for place in others:
        with suppress(NCZarrError):
            return bool(packing_of(array.opener.open(place).variable))
    return bool(packing_of(array.opener.open(last).variable))


def content(
    found: Aggregated,
    dialect: WritableDialect,
    place: MasterPlace,
    sources: Sequence[str] | None = None,
) -> Content:
    """Return what a master holds of an aggregation.

    Parameters
    ----------
    place
        Where it is written.
    sources
        As of `Record`; None for those that it has.

    Raises
    ------
    ExportError
        If the dialect cannot say what there is.
    """
    found.check_dimensions(v for v in found.variables() if v.path in found.tables)
    root = found.hierarchy.root
    data = [v for v in found.variables() if v.path in found.values]
    dimensions = held_dimensions((d for g in root.walk() for d in g.dimensions.values()), data)
    members: list[Member] = []
    others: list[tuple[Variable, Fragments]] = []
    where = place.policy.place
    keeps = found.packing == "after" or (found.packing == "equal" and dialect.keeps_packing)
    for variable in found.variables():
        held = tuple(dimensions[d.path] for d in variable.dimensions)
        variable = replace(without_enum(unmarked(variable)), dimensions=held)
        table = found.tables.get(variable.path)
        if table is None:
            members.append(in_one_chunk(variable, found.values[variable.path]))
        else:
            if table.record is not None:
                told = table.record.sources if sources is None else (*sources,)
                record = replace(table.record, place=where, sources=told)
                table = replace(table, record=record)
            own = variable if keeps else unpacked(variable)
            members += aggregation(own, table, dialect, others)
            others.append((own, table))
    attributes = conventions(root.attributes, dialect)
    return Content(attributes, members, list(dimensions.values()), found.group_attributes())


def unmarked(variable: Variable) -> Variable:
    """Return a variable whose strings are not marked as text, as bytes of pure Zarr are."""
    if variable.nc_type != "string":
        return variable
    attributes = {k: attribute for k, attribute in variable.attributes.items() if k != "_Encoding"}
    return replace(variable, attributes=attributes)
