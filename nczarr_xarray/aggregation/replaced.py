"""What a master is written in place of: nothing that it is made of, or that would be lost."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.errors import ExportError, NCZarrError
from nczarr_fsspec.places.names import LocalFile
from nczarr_xarray.aggregation.from_references import addresses_of
from nczarr_xarray.dataset.fragment_datasets import FragmentDatasets
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.export.cfa.master_place import MasterPlace
from nczarr_xarray.formats.cfa.variables import aggregated
from nczarr_xarray.formats.open_options import OpenOptions


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
        found = _named(target, opened, options)
        if not found or not self.place.exists():
            return
        seen: set[str] = set()
        while found:
            if self._is_among(found):
                raise ExportError(
                    self.place.url,
                    f"is the master itself, and holds data of {target}, which would be lost: "
                    "write the master under another name",
                )
            seen |= found.keys()
            below = [_named_there(where, policy) for where, policy in found.items()]
            every = (pair for one in below for pair in one.items())
            found = {where: policy for where, policy in every if where not in seen}

    def _is_among(self, files: Iterable[str]) -> bool:
        master = self.place.file.folder + self.place.file.name
        own = LocalFile.of(master)  # (a local file may have several names: links, URLs)
        return any(
            file == master
            or file.startswith(f"{master}/")
            or (own is not None and own.holds(LocalFile.of(file)))
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
    found: dict[str, AddressPolicy] = {}
    for _, array in aggregated(opened.hierarchy):
        if isinstance(array.opener, FragmentDatasets):
            others = (place.address for one in array.fragments.others.values() for place in one)
            addresses = {*array.fragments.addresses.tolist(), *others}
            found |= _resolved(array.opener.policy, addresses)
    return found | _resolved(options.policy(target), addresses_of(opened))


def _resolved(policy: AddressPolicy, addresses: Iterable[str | None]) -> dict[str, AddressPolicy]:
    found: dict[str, AddressPolicy] = {}
    for address in addresses:
        if address:
            with suppress(NCZarrError):  # what must not be opened is not read
                found[policy.resolve(address)] = policy
    return found
