"""Masters: where they are written, and what they say of variables that are fragments."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote

import numpy as np

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.destination import FilePlace
from nczarr_fsspec.errors import ConflictError, ExportError
from nczarr_fsspec.places.address import is_absolute
from nczarr_fsspec.places.names import names_url
from nczarr_fsspec.places.url import CONTROL
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_xarray.export.cfa.content import Content, Member, in_one_chunk, whole
from nczarr_xarray.export.form.attributes import encode_attribute
from nczarr_xarray.export.form.storage import netcdf_type
from nczarr_xarray.export.options import FragmentFormat
from nczarr_xarray.formats.cf import PACKING, packing_attributes, read_as, stated_numbers, text_in
from nczarr_xarray.formats.cfa.decode import WRITABLE
from nczarr_xarray.formats.cfa.dialect import DATA_CONVENTIONS, Encoded, Term, WritableDialect
from nczarr_xarray.formats.nczarr.attributes import as_flags
from nczarr_xarray.formats.registry import OpenOptions
from nczarr_xarray.model import NC_DTYPES, Attribute, Dimension, Fragments, Group, Variable, join

_PACKED = (*PACKING, "missing_value", "valid_min", "valid_max", "valid_range", "actual_range")
#: The conventions that CFA extends, where a dataset says nothing of any.
_CF = "CF-1.8"
#: Says in a fragment how the aggregation unpacks it.
_NOTE = "aggregation_packing"


def dialect_called(version: str, url: str) -> WritableDialect:
    """Return the dialect that is written as a version of the convention.

    Raises
    ------
    ExportError
        If there is none.
    """
    for dialect in WRITABLE:
        if dialect.name == version:
            return dialect
    known = ", ".join(sorted(dialect.name for dialect in WRITABLE))
    raise ExportError(url, f"cannot be written as CFA version {version!r}; write one of {known}")


def escaped(path: str) -> str:
    """Return a path as addresses have it: escaped where it must be, as others undo no escapes."""
    return quote(os.fsencode(path), safe="/!&'()+,:;=@")


def address_of(
    place: MasterPlace, target: str, dialect: WritableDialect, *, relative: bool | None
) -> str:
    """Return how a master names a file.

    Parameters
    ----------
    target
        Absolute path or URL of the file.
    relative
        Whether the address is relative to the folder of the master, for a file below that. None
        for what is best with this dialect.

    Raises
    ------
    ExportError
        If the name has control characters and is not encoded: no reader takes such an address.
    """
    plain = dialect.plain_addresses
    key = target.removeprefix(place.folder)
    inside = key not in (target, "")
    is_path = not names_url(target)
    encoded = escaped(target)
    # where there is another file of the encoded name, that would be read
    as_it_is = plain or not is_path or (encoded != target and os.path.lexists(encoded))
    if inside and (relative or (relative is None and not plain)):
        found = key if as_it_is else escaped(key)
        found = f"./{found}" if is_path and is_absolute(found) else found
    else:
        found = target if as_it_is else f"file://{encoded}"
    if CONTROL.search(found):
        raise ExportError(
            target,
            "has control characters in its name, which addresses of cfa_version="
            f"{dialect.name!r} cannot have",
        )
    return found


def held_dimensions(
    dimensions: Iterable[Dimension], data: Iterable[Variable]
) -> dict[str, Dimension]:
    """Return dimensions as a master has them, by path.

    One that the master has no data along cannot be unlimited: its length would be lost.

    Parameters
    ----------
    data
        Variables whose data the master holds.
    """
    used = {d.path for v in data if 0 not in v.shape for d in v.dimensions}
    return {d.path: replace(d, unlimited=d.unlimited and d.path in used) for d in dimensions}


def as_fragments(variable: Variable, dialect: WritableDialect) -> Variable:
    """Return a variable as its fragments have it.

    Where fragments are unpacked before they are aggregated, they hold packed numbers as such, and
    the aggregation says how they are packed. So every program reads the same values, those that
    unpack no fragments too, and the aggregation keeps its packing. A note remains for people.
    """
    packing = packing_attributes(variable)
    if dialect.keeps_packing or not packing:
        return variable
    said = " ".join(f"{name}: {_shown(attribute)}" for name, attribute in packing.items())
    attributes = {k: a for k, a in variable.attributes.items() if k not in packing}
    attributes[_NOTE] = Attribute(_NOTE, "char", said)
    return replace(variable, attributes=attributes)


def _shown(attribute: Attribute) -> str:
    value = attribute.value
    return " ".join(map(repr, value.tolist())) if isinstance(value, np.ndarray) else str(value)


def unpacked(variable: Variable) -> Variable:
    """Return a variable as an aggregation has it whose fragments are unpacked first.

    Its numbers are those that packed ones stand for, so that what speaks of packed ones is left
    out.
    """
    packing = packing_attributes(variable)
    if not packing:
        return variable
    dtype = read_as(variable)
    packing.pop("_Unsigned", None)
    attributes = {k: a for k, a in variable.attributes.items() if k not in _PACKED}
    attributes.pop("_FillValue", None)
    marks = stated_numbers(variable)
    before = dtype
    own = [np.asarray(attribute.value).dtype for attribute in packing.values()]
    if "add_offset" in packing and [one.kind for one in own] != ["f", "f"]:
        own.append(np.dtype(np.float64))  # as xarray does: a sum may need more digits
    dtype = np.result_type(dtype, *own)
    nc_type = netcdf_type(dtype)
    assert nc_type is not None  # numbers that netCDF has become others that it has
    missing = None
    if dtype.kind == "f":  # without a fill value, netCDF's default is missing among packed numbers
        missing = np.array([np.nan])
    elif marks:
        missing = np.array(marks[:1]).astype(before, casting="unsafe")
    if missing is not None:
        attributes["_FillValue"] = Attribute("_FillValue", nc_type, missing.astype(dtype))
    return replace(variable, nc_type=nc_type, dtype=NC_DTYPES[nc_type], attributes=attributes)


def without_enum(variable: Variable) -> Variable:
    """Return a variable with attributes of its own; what is an enum becomes numbers with flags."""
    if variable.enum is None:
        return replace(variable, attributes=dict(variable.attributes))
    return replace(variable, attributes=as_flags(variable), enum=None)


def whole_master(
    root: Group,
    held: Iterable[Member],
    tables: Iterable[tuple[Variable, Fragments]],
    dialect: WritableDialect,
) -> Content:
    """Return all that a master holds.

    Parameters
    ----------
    root
        The groups with their dimensions and attributes.
    held
        What it holds besides aggregations.
    tables
        The aggregations, as the data are, with their fragments.
    """
    held = [*held]
    declared = [dimension for group in root.walk() for dimension in group.dimensions.values()]
    dimensions = held_dimensions(declared, [member.variable for member in held])
    everything = []
    for member in held:
        own = tuple(dimensions.get(d.path, d) for d in member.variable.dimensions)
        everything.append(member._replace(variable=replace(member.variable, dimensions=own)))
    for variable, fragments in tables:
        everything += aggregation(without_enum(variable), fragments, dialect)
    groups = {group.path: group.attributes for group in root.walk() if group.path != "/"}
    return Content(root.attributes, everything, [*dimensions.values()], groups)


def aggregation(
    variable: Variable,
    fragments: Fragments,
    dialect: WritableDialect,
    others: Sequence[tuple[Variable, Fragments]] = (),
) -> list[Member]:
    """Return what a master has of a variable: a scalar, and the variables of its table.

    Parameters
    ----------
    variable
        As the aggregation is, with the dimensions of its data.
    others
        Aggregations that the master has already: what tables have in common is held once.
    """
    dimensions = tuple((d.name, d.size) for d in variable.dimensions)
    found = (
        other.name
        for other, theirs in others
        if (other.group, other.dimensions) == (variable.group, variable.dimensions)
        and fragments.is_beside(theirs)
    )
    encoded: Encoded = dialect.encode(variable.name, dimensions, fragments, next(found, ""))
    attributes = dict(variable.attributes)
    for name, value in encoded.attributes.items():
        attributes[name] = encode_attribute(name, value)
    scalar = replace(
        variable,
        dimensions=(),
        attributes=attributes,
        array=whole(variable, ()),
        dtype=NC_DTYPES[str(variable.nc_type)],
        padding=None,
    )
    return [Member(scalar), *(_term(term, variable.group) for term in encoded.terms)]


def _term(term: Term, owner: str) -> Member:
    """Return a variable of a table, which is in the group of its owner or below that."""
    above, _, name = term.path.strip("/").rpartition("/")
    group = join(owner, above) if above else owner
    values = np.asarray(term.values)
    nc_type = "string" if values.dtype.kind in "OSU" else netcdf_type(values.dtype)
    dimensions = tuple(Dimension(short, size, group=group) for short, size in term.dimensions)
    attributes: dict[str, Attribute] = {
        key: encode_attribute(key, value) for key, value in term.attributes.items()
    }
    variable = Variable(name, group, dimensions, nc_type, values.dtype, attributes)
    return in_one_chunk(variable, values)


def conventions(
    attributes: Mapping[str, Attribute], dialect: WritableDialect
) -> dict[str, Attribute]:
    """Return the attributes of a dataset, with the conventions that a master follows.

    Those that the data follow are noted, if they are others.
    """
    words = (text_in(attributes, "Conventions") or "").replace(",", " ").split()
    wanted = dialect.conventions.replace(",", " ").split()
    kinds = {word.partition("-")[0] for word in wanted} | {"CFA"}
    kept = [word for word in words if word.partition("-")[0] not in kinds]
    if not any(word.startswith("CF-") for word in (*kept, *wanted)):
        kept.insert(0, _CF)  # readers look for both
    text = " ".join([*wanted, *kept] if "CF" in kinds else [*kept, *wanted])
    found = {**attributes, "Conventions": Attribute("Conventions", "char", text)}
    if text_in(attributes, "Conventions") != text:
        own = attributes.get("Conventions") or Attribute("Conventions", "char", "")
        found[DATA_CONVENTIONS] = replace(own, name=DATA_CONVENTIONS)
    return found


def plain_conventions(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Return the attributes of a master as a fragment has them, which is no aggregation."""
    found = dict(attributes)
    words = (text_in(found, "Conventions") or "").replace(",", " ").split()
    kept = " ".join(word for word in words if not word.startswith("CFA"))
    found.pop("Conventions", None)
    if kept:
        found["Conventions"] = Attribute("Conventions", "char", kept)
    return found


# -- where it is written ---------------------------------------------------------------------------


_TREES = re.compile(r"\.(nczarr|zarr|zip)\Z", re.IGNORECASE)
#: What needs no quoting in a URL, and is no wildcard.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]")
#: Names that are told apart by a random word.
_APART = re.compile(r"\.[0-9a-f]{8}\.(nc|zarr)\Z")
#: End of the name of a claim, see `nczarr_xarray.export.cfa.task`.
_CLAIM = ".writing"
#: Attribute of fragments: for which master they were written.
OWNER = "aggregation_master"
SUFFIXES: dict[FragmentFormat, str] = {"netCDF3": ".nc", "netCDF4": ".nc", "NCZarr": ".zarr"}


@dataclass(frozen=True)
class MasterPlace(FilePlace):
    """Where a master, a file or a tree, is written, and its fragments beside it.

    Attributes
    ----------
    below
        The folder of new fragments, below that of the master; "" for `stem`.
    """

    below: str = ""

    def with_fragments(self, path: str | os.PathLike[str] | None) -> MasterPlace:
        """Return the place with another folder of new fragments; None leaves it.

        Raises
        ------
        ExportError
            If that is not below the folder of the master.
        """
        if path is None:
            return self
        text = os.fsdecode(path).rstrip("/")
        key = text.removeprefix(f"file://{self.folder}").removeprefix(self.folder)
        if not _is_below(key) or _UNSAFE.search(key.replace("/", "")):
            reason = f"cannot have its fragments in {text!r}: name a folder below {self.folder}"
            advice = "with letters, digits, '.', '_' and '-' only"
            raise ExportError(self.url, f"{reason}, {advice}")
        return replace(self, below=key)

    @property
    def is_tree(self) -> bool:
        """Whether the master is NCZarr or Zarr."""
        words = {"nczarr", "zarr", "zip"}
        return bool(self.mode & words) or _TREES.search(self.name) is not None

    @property
    def policy(self) -> AddressPolicy:
        """What the addresses in the master mean."""
        return OpenOptions(storage_options=self.storage_options).policy(self.target)

    @property
    def stem(self) -> str:
        """Name of the folder of fragments, and begin of their names; safe in every address."""
        stem = self.name.rpartition(".")[0]
        # a name without a suffix is that of the master itself
        return _UNSAFE.sub("_", stem if stem.strip(".") else f"{self.name}_fragments")

    @property
    def name_in_fragments(self) -> str:
        """How fragments name the master that they were written for: ASCII in every case."""
        return quote(os.fsencode(self.name))

    def exists(self) -> bool:
        """Tell whether there is anything where the master is written."""
        return super().exists() or (self.is_tree and bool(self.store.keys_below(self.name)))

    @property
    def swaps(self) -> bool:
        """Whether a master is put only in place of the version that was read."""
        return not self.is_tree and self.store.swaps

    def put(self, data: bytes, *, replaces: bool, version: str = "") -> None:
        """Put a master that is a file, in one step.

        Parameters
        ----------
        version
            Of the master that it was made of, where the place `swaps`.

        Raises
        ------
        DatasetExistsError
            If there is one that must not be replaced.
        ConflictError
            If another version is there now.
        """
        self.remove_abandoned()
        if version:
            if not self.store.replace(self.name, data, version):
                reason = "was changed by another writer meanwhile, and stays so; try again"
                raise ConflictError(self.url, reason)
        elif replaces:
            self.store.put(self.name, data)
        elif not self.store.create(self.name, data):
            raise self.already_there

    @property
    def fragments(self) -> str:
        """The folder of new fragments."""
        return self.below or self.stem

    def names_in(self, folder: str) -> set[str]:
        """Return the names in a folder below that of the master."""
        start = len(folder) + 1
        return {key[start:].partition("/")[0] for key in self.store.keys_below(folder)}

    @property
    def claim_name(self) -> str:
        """Name, in the folder `stem`, of the object that keeps other writers out."""
        return f".{self.name}{_CLAIM}"

    def names(self, kind: FragmentFormat, *, replaces: bool = False) -> Names:
        """Return what names new fragments, while this writer has its claim.

        Masters of other names may have the same folder. A writer of one may have chosen names
        already of which nothing is there yet: then names are told apart in any case. So they are
        once fragments have been replaced. A name that was given up must not come back: readers who
        opened the master that had it would read new values as old ones.

        Parameters
        ----------
        replaces
            Whether there are fragments that the new ones replace.
        """
        taken, beside = self.names_in(self.fragments), self.names_in(self.stem)
        claims = {name for name in beside if name.startswith(".") and name.endswith(_CLAIM)}
        apart = replaces or claims - {self.claim_name} or any(map(_APART.search, taken))
        return Names(self.fragments, self.stem, kind, taken, apart=bool(apart))

    def key_of(self, address: str) -> str | None:
        """Return the key of a file that may be a fragment of ours by its name, or else None."""
        folder = self.folder
        for start in (folder, f"file://{escaped(folder)}", "./"):
            address = address.removeprefix(start)
        key = address.rstrip("/")
        above, _, name = key.rpartition("/")
        ours = _is_below(above) and name.startswith((f"{self.stem}.", f"{self.stem}_"))
        return key if ours else None

    def remove_abandoned(self, writer: str = "") -> bool:
        """Remove files that were never completed: beside the master, and among its fragments.

        They are those of processes of this machine that have ended, whatever they wrote.

        Parameters
        ----------
        writer
            The identity of another process that has ended.

        Returns
        -------
        bool
            Whether there were any.
        """
        if not isinstance(self.store, DirectoryWriter):
            return False
        found = [*self.store.temporaries(deep=False)]
        for folder in {self.stem, self.fragments}:
            found += self.store.temporaries(folder)
        left = [key for key, owner in found if owner.identity == writer or owner.is_dead()]
        self.store.delete(left)
        return bool(left)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove fragments."""
        gone: list[str] = []
        for key in keys:
            below = self.store.keys_below(key) if key.endswith(SUFFIXES["NCZarr"]) else []
            gone += below or [key]
        self.store.delete(gone)


def _is_below(folder: str) -> bool:
    """Tell whether the key of a folder is below the folder of the master."""
    return not {"", ".", ".."} & {*folder.split("/")}


def has_name(key: str, stem: str, variable: str, rank: int) -> bool:
    """Tell whether `Names` gives such a name to fragments of a variable of some dimensions."""
    stem, variable = re.escape(stem), re.escape(_UNSAFE.sub("_", variable.strip("/")))
    numbers = rf"\.{variable}(\.missing)?(\.\d+){{{rank}}}|_{variable}_\[\d+\]"
    name = rf"{stem}({numbers})(\.[0-9a-f]{{8}})?\.(nc|zarr)"
    return re.fullmatch(name, key.rpartition("/")[2]) is not None


@dataclass(slots=True)
class Names:
    """Gives fragments names that nothing has yet.

    Parameters
    ----------
    folder
        Where they are.
    stem
        Begin of all names.
    kind
        What the fragments are.
    taken
        Names that are in the folder.
    apart
        Whether a random word is in all names.
    """

    folder: str
    stem: str
    kind: FragmentFormat
    taken: set[str]
    apart: bool
    #: those of fragments of missing data, without the word
    _missing: dict[str, str] = field(default_factory=dict)

    def keys(self, path: str, first: tuple[int, ...], grid: tuple[int, ...]) -> list[str]:
        """Return keys for fragments of a variable.

        Names that others have, such as those that the present master refers to, are told apart
        by a random word.

        Parameters
        ----------
        path
            Of the variable.
        first
            Place of the first fragment in the grid of the aggregation.
        grid
            Fragments along each dimension.
        """
        begin = self._begin(path)
        return self._free(
            [
                ".".join([begin, *(str(a + b) for a, b in zip(first, position, strict=True))])
                for position in np.ndindex(grid)
            ]
        )

    def missing(self, path: str, shape: tuple[int, ...]) -> str:
        """Return the key of the fragment of missing data of a shape: all of a writer share it."""
        name = ".".join([self._begin(path), "missing", *map(str, shape)])
        known = name + SUFFIXES[self.kind]
        if known not in self._missing:
            (self._missing[known],) = self._free([name])
        return self._missing[known]

    def _begin(self, path: str) -> str:
        return f"{self.stem}.{_UNSAFE.sub('_', path.strip('/'))}"

    def _free(self, names: list[str]) -> list[str]:
        suffix = SUFFIXES[self.kind]
        if self.apart or any(name + suffix in self.taken for name in names):
            word = uuid.uuid4().hex[:8]
            names = [f"{name}.{word}" for name in names]
        names = [name + suffix for name in names]
        self.taken |= set(names)
        return [f"{self.folder}/{name}" for name in names]
