"""The datasets that fragments are in: which may be opened, how, and which ones are open."""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.errors import AccessDeniedError, FormatError, NCZarrError, RedirectError
from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.place import Place, find_beside, find_remote_file
from nczarr_fsspec.places.names import ZIP
from nczarr_fsspec.places.rc import has_secret_for_all, left_out_here, load_rc
from nczarr_fsspec.places.url import is_url, redact
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.ranges.source import HEAD_BYTES, ByteSource, Known
from nczarr_fsspec.stores.mapping import MappingStore
from nczarr_fsspec.text import printable
from nczarr_fsspec.transport.policy import ADDRESSED_OPTION
from nczarr_fsspec.transport.request import UNKNOWN, Stamp
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile, stamp_of
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.cfa.decode import find
from nczarr_xarray.formats.opendap import is_dap
from nczarr_xarray.formats.opendap import read_hierarchy as read_dap
from nczarr_xarray.formats.registry import OpenOptions
from nczarr_xarray.model import Array, FragmentArray, FragmentPlace, Variable

if TYPE_CHECKING:
    from nczarr_xarray.dataset.alike_files import AlikeVariable

K = TypeVar("K")
V = TypeVar("V")

#: Fragments whose metadata are remembered, for one aggregation.
REMEMBERED = 2048
#: A name in a folder that means nothing but itself.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\-]*")
#: The number of a variable, instead of its name. (Python refuses to read thousands of digits.)
_NUMBER = re.compile(r"#\d{1,18}")
#: Aggregations whose fragments are aggregations, at most.
_DEEPEST = 8


class Opening(NamedTuple):
    """A fragment variable that was found.

    Attributes
    ----------
    reader
        Reads selections of it.
    variable
        Its metadata.
    alike
        Whether these are those of another file, which has the same.
    """

    reader: VariableReader
    variable: Variable
    alike: bool = False


@dataclass(frozen=True, slots=True)
class RemoteFragment:
    """A variable of a remote file, which is opened on its loop, with others at a time."""

    source: RemoteFileBytes
    known: Known | None
    options: OpenOptions
    path: str
    stamp: Stamp = UNKNOWN

    @classmethod
    def find(
        cls, target: str, storage_options: Mapping[str, Any] | None, path: str, *, entire: bool
    ) -> RemoteFragment | None:
        """Find a variable in a remote file; None if the target is of another kind.

        Parameters
        ----------
        path, entire
            As of `open_fragment`.
        """
        file = None if is_dap(target) else find_remote_file(target, storage_options)
        return None if file is None else cls(*file, options_for(path, None, entire=entire), path)

    def beside(self, name: str) -> RemoteFragment | None:
        """Return the same variable of another file in the folder, with the same options.

        Parameters
        ----------
        name
            Of the file; nothing in it is encoded in a URL.

        Returns
        -------
        None if that has to be found by `find`.
        """
        file = find_beside(self.source, name)
        return None if file is None else replace(self, source=file[0], known=file[1])

    async def open(self, alike: Callable[[], AlikeVariable | None]) -> Opening | None:
        """Open the variable; None if the file is of a kind that `open_fragment` opens.

        Parameters
        ----------
        alike
            Returns what other files have: where this one has the same, its metadata need not be
            parsed. Called once the first bytes of the file are there.

        Raises
        ------
        NCZarrError
            As `open_fragment`.
        """
        await self.source.begin(self.known)
        self.stamp.check(self.source.stamp, self.source.url)
        like = alike()
        opening = None if like is None else like.open(DataFile(self.source))
        if opening is not None:
            return opening
        opened = await open_begun(self.source, self.options)
        return None if opened is None else _variable_of(opened, self.path)


class TooDeepError(FormatError):
    """Aggregations are in each other, maybe in a circle; other places are not tried then."""


class FragmentDatasets:
    """Opens the fragments of one master. Picklable and safe in threads.

    Parameters
    ----------
    own
        Opens variables of the master itself.
    open_with
        `nczarr_xarray.dataset.open.open_with`, which opens other datasets, aggregations among them.
    policy
        What addresses mean, and which ones may be opened.
    depth
        How many aggregations the master is in.

    Attributes
    ----------
    under_way
        As of `nczarr_xarray.model.FragmentOpener`.
    """

    under_way: int | None = None

    def __init__(
        self,
        own: Callable[[str], Opening],
        open_with: Callable[[Any, OpenOptions], Opened],
        policy: AddressPolicy,
        depth: int,
    ) -> None:
        self._own = own
        self._open_with = open_with
        self.policy = policy
        self._depth = depth
        self._begin()

    def _begin(self) -> None:
        self._lock = ProcessLock()
        self._known: OrderedDict[tuple[str, str, bool], Opening] = OrderedDict()
        #: by address: what to open
        self._targets: dict[str, str] = {}
        #: by address of a folder: its path or URL if all in it may be opened; else ""
        self._folders: dict[str, str] = {}
        #: by address of a folder, and variable: one of its remote files, if all may be opened so
        self._likes: dict[tuple[str, str, bool], RemoteFragment] = {}

    def open(self, place: FragmentPlace, *, entire: bool = False) -> Opening:
        """Open the variable that a fragment is.

        Parameters
        ----------
        entire
            As of `open_fragment`.

        Raises
        ------
        NCZarrError
            If it cannot be opened, or must not be.
        """
        opening = self.known(place, entire=entire)
        if opening is None:
            opening = self._open(place, entire=entire) if place.address else self._own(place.name)
            self.keep(place, opening, entire=entire)
        return opening

    def _open(self, place: FragmentPlace, *, entire: bool) -> Opening:
        where, depth = self.resolved(place.address), self._depth + 1
        options, name = self.policy.options(where), place.name
        return open_fragment(
            self._open_with, where, options, name, depth=depth, entire=entire, stamp=place.stamp
        )

    def first(self, array: FragmentArray) -> FragmentPlace | None:
        """Return the place of the first fragment; None if there is none."""
        addresses = array.fragments.addresses
        number = next((number for number, one in enumerate(addresses) if one), None)
        if number is None or array.fragments.values is not None:
            return None
        return array.fragments.places(number)[0]

    def sample(self, array: FragmentArray) -> Array | None:
        place = self.first(array)
        if place is None or self.path(place.address) is None or array.fragments.mappings:
            return None
        try:
            # it is not kept: what is read of it is what it holds then
            opening = self._open(place, entire=False)
        except NCZarrError:
            return None
        opening.reader.store.close()
        variable = opening.variable
        return variable.array if len(variable.shape) == len(array.shape) else None

    def known(self, place: FragmentPlace, *, entire: bool) -> Opening | None:
        """Return what was opened before; what was opened entirely serves both."""
        with self._lock:
            for kind in (True,) if entire else (True, False):
                key = place.address, place.name, kind
                opening = self._known.get(key)
                if opening is not None:
                    self._known.move_to_end(key)
                    return opening
        return None

    def keep(self, place: FragmentPlace, opening: Opening, *, entire: bool) -> None:
        """Remember what was opened."""
        most = REMEMBERED
        if self.under_way is not None:
            # of each remote file, its first bytes are: an eighth of what may be under way
            most = max(1, min(REMEMBERED, self.under_way // 8 // HEAD_BYTES))
        with self._lock:
            self._known[place.address, place.name, entire] = opening
            while len(self._known) > most:
                self._known.popitem(last=False)

    def find(self, place: FragmentPlace, *, entire: bool) -> RemoteFragment | None:
        """Find a fragment that is in a remote file; None for all others.

        Parameters
        ----------
        entire
            As of `open_fragment`.

        Raises
        ------
        NCZarrError
            If it must not be opened.
        """
        if not place.address:
            return None
        folder, name, is_plain = split_address(place.address)
        key = folder, place.name, entire
        like = self._likes.get(key) if is_plain else None
        fragment = None if like is None else like.beside(name)
        if fragment is not None:
            return replace(fragment, stamp=place.stamp)
        where = self.resolved(place.address)
        if not is_url(where):
            return None
        fragment = RemoteFragment.find(where, self.policy.options(where), place.name, entire=entire)
        is_like = fragment is not None and is_plain and where.endswith(f"/{name}")
        if fragment is not None and is_like and self.policy.is_even_below(where):
            remember(self._likes, key, fragment)
        return None if fragment is None else replace(fragment, stamp=place.stamp)

    def is_remote(self, place: FragmentPlace) -> bool:
        """Tell whether waiting for a fragment is dear; False for one that must not be opened."""
        try:
            return bool(place.address) and is_url(self.resolved(place.address))
        except NCZarrError:
            return False

    def path(self, address: str) -> str | None:
        """Return the path of a fragment of this machine that may be opened."""
        try:
            where = self.resolved(address) if address else ""
        except NCZarrError:
            return None
        return where if where and not is_url(where) else None

    def name(self, error: NCZarrError, place: FragmentPlace) -> None:
        """Name the dataset of a fragment in an error: the variable alone says little."""
        if place.address:
            where = place.address
            with suppress(NCZarrError):
                where = self.resolved(place.address)
            error.found_in(printable(redact(where)))

    def resolved(self, address: str) -> str:
        folder, name, is_plain = split_address(address)
        path = self._folders.get(folder) if is_plain else None
        if path:
            return path + name
        target = self._targets.get(address)
        if target is not None:
            return target
        if self._depth >= _DEEPEST:
            raise TooDeepError(
                address, f"is in {_DEEPEST} aggregations, each in the next one: a circle?"
            )
        target = self.policy.resolve(address)
        remember(self._targets, address, target)
        as_it_stands = is_plain and "%" not in folder and "#" not in folder
        if as_it_stands and path is None and target.endswith(f"/{name}"):
            policy = self.policy
            even = policy.is_even_below(target) if is_url(target) else policy.allows_local
            remember(self._folders, folder, target.removesuffix(name) if even else "")
        return target

    def __getstate__(self) -> dict[str, Any]:
        volatile = ("_lock", "_known", "_targets", "_folders", "_likes")
        return {name: value for name, value in self.__dict__.items() if name not in volatile}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


def split_address(address: str) -> tuple[str, str, bool]:
    """Return folder and name, and whether the name means nothing but itself."""
    start = address.rfind("/") + 1
    name = address[start:]
    return address[:start], name, _PLAIN_NAME.fullmatch(name) is not None


def remember(known: dict[K, V], key: K, value: V) -> None:
    """Note a value; forget all others if there are `REMEMBERED` of them."""
    if len(known) >= REMEMBERED:
        known.clear()
    known[key] = value


# -- opening -------------------------------------------------------------------------------------


def open_fragment(
    open_with: Callable[[Any, OpenOptions], Opened],
    target: str,
    storage_options: Mapping[str, Any] | None,
    path: str,
    *,
    depth: int,
    entire: bool,
    stamp: Stamp = UNKNOWN,
) -> Opening:
    """Open a variable of a dataset.

    Parameters
    ----------
    open_with
        As of `FragmentDatasets`.
    path
        Of the variable, with its group.
    depth
        How many aggregations the dataset is in.
    entire
        Whether to read all metadata of its group; without, the variable may be shorter than its
        unlimited dimension, and the names of its dimensions need not be known.
    stamp
        Of the version that is meant.

    Raises
    ------
    NCZarrError
        If there is no such dataset, it is another version, or it has no such variable.
    """
    if is_dap(target):
        return _variable_of(_open_dap(target, storage_options), path)
    options = replace(options_for(path, storage_options, entire=entire), depth=depth)
    try:
        opened = open_with(target, options)
    except NCZarrError as error:
        if isinstance(error, RedirectError) or not _answers_dap(target, storage_options):
            raise
        opened = _open_dap(target, storage_options)
    with opened:  # what is read opens it again
        stamp.check(stamp_of(opened.store), opened.store.url)
        return _variable_of(opened, path)


async def open_begun(source: RemoteFileBytes, options: OpenOptions) -> Opened | None:
    """Open a remote file whose first bytes are there (`RemoteFileBytes.begin`), on its loop.

    Returns
    -------
    None if it is of a kind that `open_fragment` opens: an archive, an aggregation, the page that a
    server makes of a directory.

    Raises
    ------
    NCZarrError
        As `open_fragment`.
    """
    if bytes(source.head[:4]) in ZIP or source.head.lstrip().startswith(b"<"):
        return None
    file = DataFile(source)
    opened = Opened(file, await file.hierarchy_remote(options))
    return None if find(opened.hierarchy) else opened


def _answers_dap(target: str, storage_options: Mapping[str, Any] | None) -> bool:
    """Ask a server of HTTP whether it describes a dataset as those of OPeNDAP do."""
    if not target.startswith(("http://", "https://")) or "#" in target:
        return False
    try:
        data = Place.of(f"{target}.dds#mode=bytes", storage_options).open().data
    except NCZarrError:
        return False
    with closing(data):
        return isinstance(data, ByteSource) and bytes(data.head).startswith(b"Dataset")


def _open_dap(url: str, storage_options: Mapping[str, Any] | None) -> Opened:
    """Open a dataset of an OPeNDAP server, whose variables read themselves.

    Raises
    ------
    AccessDeniedError
        If netCDF-C, which asks the server, would tell it what rc files have for no host, and only
        a dataset names the server; or if it would follow an rc file of the working directory.
    """
    if keys := left_out_here():
        raise AccessDeniedError(
            redact(url),
            "is of an OPeNDAP server, which netCDF-C asks, and that would follow "
            f"{', '.join(sorted(keys))} of the working directory, which may be a folder of "
            "somebody else: put these lines into ~/.ncrc, or name the file by NCRCENV_RC",
        )
    if (storage_options or {}).get(ADDRESSED_OPTION) and has_secret_for_all(load_rc()):
        raise AccessDeniedError(
            redact(url),
            "is of an OPeNDAP server that only a dataset names, and netCDF-C sends it what .ncrc "
            "or .dodsrc says without a URL: write [https://host] before these lines",
        )
    return Opened(MappingStore({}), read_dap(url))


def options_for(
    path: str, storage_options: Mapping[str, Any] | None, *, entire: bool
) -> OpenOptions:
    """Return how to open a dataset of which one variable is wanted."""
    group, _, name = path.strip("/").rpartition("/")
    only = None if entire or name.startswith("#") else name
    return OpenOptions(group=group or None, tree=False, storage_options=storage_options, only=only)


def _variable_of(opened: Opened, path: str) -> Opening:
    """Return the variable at a path; `FormatError` if there is none."""
    group, _, name = path.strip("/").rpartition("/")
    holder = opened.hierarchy.root.find(group)
    variables = {} if holder is None else holder.variables
    variable = variables.get(name)
    if variable is None and _NUMBER.fullmatch(name):
        variable = next(itertools.islice(variables.values(), int(name[1:]), None), None)
    if variable is None:
        raise FormatError(opened.store.url, f"has no variable {path!r}")
    return Opening(opened.reader(variable), variable)
