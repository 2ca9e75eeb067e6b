"""Zarr v3, through zarr-python: its codecs, sharding and data types are zarr's business.

The hierarchy is read by ourselves (one read round per depth, bad arrays reported one
by one); zarr-python parses each array's metadata and reads its chunks (`array.py`).

The metadata of all nodes may stand once more in the ``zarr.json`` of a group above
them (*consolidated*). The nodes' own rule where the store can be listed, unless there
are none: some writers keep nothing but the consolidated ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from nczarr_fsspec.errors import DatasetNotFoundError, FormatError, NCZarrError, StoreError
from nczarr_fsspec.keystore import KeyStore, Object, is_safe_name
from nczarr_xarray.formats.nczarr.attributes import MARK, decode_attributes, restore
from nczarr_xarray.formats.nczarr.build import ImpliedDimensions, Naming, are_names
from nczarr_xarray.formats.nczarr.documents import WalkOptions, about_strangers, key_of, only_groups
from nczarr_xarray.formats.nczarr.jsontext import JSON, dumps, loads
from nczarr_xarray.formats.nczarr.spellings import MAX_DEPTH
from nczarr_xarray.formats.nczarr.walk import single_array
from nczarr_xarray.formats.zarr3.array import FILE, Zarr3Array, describe, fill_value, plain
from nczarr_xarray.model import NC_TYPES, Attribute, Group, HarmlessError, Hierarchy, Variable

Document: TypeAlias = dict[str, JSON] | NCZarrError | None


def read_hierarchy(store: KeyStore, naming: Naming, options: WalkOptions) -> Hierarchy:
    """Read the hierarchy at a group, and below it for a tree.

    Parameters
    ----------
    naming
        What dimensions without names are called.
    options
        For Zarr 2. Consolidated metadata that are left open are used if the store cannot be listed,
        or if no node at all has its own.

    Raises
    ------
    NCZarrError
        If the wanted group cannot be read.
    """
    return _Reading(store, naming, options, ImpliedDimensions(naming.dropped)).run()


@dataclass(slots=True)
class _Reading:
    store: KeyStore
    naming: Naming
    options: WalkOptions
    implied: ImpliedDimensions
    root: Group = field(default_factory=Group)
    problems: list[NCZarrError] = field(default_factory=list)
    #: The consolidated metadata by path.
    consolidated: dict[str, JSON] = field(default_factory=dict)
    #: All metadata by path, where they are read from the consolidated ones.
    known: dict[str, JSON] | None = None
    #: Groups whose children were read, by path.
    descended: dict[str, Group] = field(default_factory=dict)
    #: Paths of what is below them and is no node.
    strangers: list[str] = field(default_factory=list)
    #: Names of the arrays that NCZarr's lists have, by path of the group.
    listed: dict[str, list[str]] = field(default_factory=dict)

    def run(self) -> Hierarchy:
        wanted, tree = self.options.group, self.options.tree
        parts = wanted.split("/") if wanted else []
        paths = ["/".join(parts[:i]) for i in range(len(parts) + 1)]
        own = dict(zip(paths, self.documents(paths), strict=True))
        for path, document in own.items():
            self.consolidated |= _consolidated(path, document)
        if self.must_use_consolidated(own):
            own = self.switch(own)
        level = self.descend([self.enter(own)])
        top = self.root.find(wanted)
        assert top is not None
        unused = self.known is None and self.options.consolidated is None
        named = unused and any(_parent(path) == wanted for path in self.consolidated)
        if named and not (top.variables or top.groups):
            self.switch(own)
            level = self.descend([top])
        for _ in range(MAX_DEPTH):
            if not (tree and level):
                break
            level = self.descend(level)
        else:
            self.problems.append(FormatError(level[0].path, "is nested too deeply: left out"))
        if not (tree or wanted or own[""] or top.variables) and top.groups:
            self.problems.append(only_groups(self.store.url, top.groups))
        self.report_missing()
        self.report_strangers()
        self.problems += self.implied.settle()
        return Hierarchy(self.root, "v3", None, self.known is not None, tuple(self.problems))

    # -- consolidated metadata -------------------------------------------------

    def must_use_consolidated(self, own: Mapping[str, Document]) -> bool:
        """Tell whether the consolidated metadata must be used, from the groups' own documents."""
        if self.options.consolidated and not self.consolidated:
            lacks = "has no consolidated metadata; "
            if self.options.required:
                raise DatasetNotFoundError(self.store.url, f"{lacks}open with consolidated=False")
            self.problems.append(HarmlessError(FILE, f"{lacks}each node's own are read instead"))
        if self.options.consolidated is not None or not self.consolidated:
            return bool(self.options.consolidated and self.consolidated)
        if any(document is None and path in self.consolidated for path, document in own.items()):
            return True
        (listing,) = self.store.list_many([""])
        return listing is None

    def switch(self, own: Mapping[str, Document]) -> dict[str, Document]:
        """Read consolidated metadata from now on; return the documents of the groups in `own`."""
        found = {path: document for path, document in own.items() if isinstance(document, dict)}
        self.known = {**self.consolidated, **found}
        # what is below a group that has no metadata is in no group
        above = {_parent(path) for path in self.consolidated}
        self.strangers = sorted(above - self.known.keys() - {""})
        return dict(zip(own, self.documents(list(own)), strict=True))

    def report_missing(self) -> None:
        """Report the nodes that are named and have no metadata."""
        missing = [path for path in self.consolidated if self.is_missing(path)]
        if missing and self.known is None:
            some = ", ".join(f"'/{path}'" for path in missing[:5])
            more = " ..." if missing[5:] else ""
            reason = f"the consolidated metadata name {some}{more} without a {FILE}: left out; "
            reason += "consolidated=True takes them from there"
            self.problems.append(FormatError(FILE, reason))
        for path, group in self.descended.items():
            for name in self.listed.get(path, ()):
                key = f"{path}/{name}".lstrip("/")
                if self.is_missing(key):
                    reason = "is missing, though its group lists it"
                    error = FormatError(f"{key}/{FILE}", reason)
                    group.variables[name] = self.variable(group, name, key, error)

    def is_missing(self, path: str) -> bool:
        """Tell whether the node at `path` was not found in the group in which it must be."""
        above, _, name = path.rpartition("/")
        group = self.descended.get(above)
        return group is not None and name not in group.variables and name not in group.groups

    def report_strangers(self) -> None:
        """Report what lies in groups and was left out."""
        others = [path for path in self.strangers if path not in self.consolidated]
        if self.known is None:
            listings = self.store.list_many(others)
        else:
            listings = [*map(frozenset, self.children(others))]
        self.problems += about_strangers(self.store.url, zip(others, listings, strict=True), 3)

    # -- reading ---------------------------------------------------------------

    def documents(self, paths: list[str]) -> list[Document]:
        if self.known is not None:
            return [
                _object(self.known[path], f"{path}/{FILE}") if path in self.known else None
                for path in paths
            ]
        keys = [key_of(path, FILE) for path in paths]
        return [
            _parsed(key, data) for key, data in zip(keys, self.store.get_many(keys), strict=True)
        ]

    def children(self, paths: list[str]) -> list[list[str]]:
        if self.known is not None:
            below = [path.rpartition("/") for path in self.known]
            return [
                [name for parent, _, name in below if parent == path and is_safe_name(name)]
                for path in paths
            ]
        found = []
        for path, listing in zip(paths, self.store.list_many(paths), strict=True):
            if isinstance(listing, StoreError):
                raise listing
            if listing is None:
                raise StoreError(
                    self.store.url,
                    f"the children of group '/{path}' cannot be found: the store cannot be listed "
                    "and its zarr.json has no consolidated metadata: write these where the data "
                    "are (zarr.consolidate_metadata)",
                )
            found.append(sorted(n for n in listing if is_safe_name(n) and n != FILE))
        return found

    # -- groups ----------------------------------------------------------------

    def enter(self, documents: Mapping[str, Document]) -> Group:
        """Make the groups from the root to the wanted one, which is returned."""
        group = self.root
        wanted = [*documents][-1]
        for path, document in documents.items():
            if isinstance(document, NCZarrError):
                raise document
            if document is None and path == wanted != "":
                raise DatasetNotFoundError(self.store.url, f"no group '/{path}'")
            # a group above without metadata: the nodes below it have some
            document = document or {"node_type": "group", "zarr_format": "3"}
            if not path and (version := document.get("zarr_format")) != "3":
                reason = f"zarr_format is {dumps(version):.80}, not 3 (a draft of Zarr 3?)"
                raise FormatError(
                    FILE, f"{reason}: read it with what wrote it, and write Zarr 2 or 3"
                )
            if document.get("node_type") == "array":
                if path:
                    raise DatasetNotFoundError(self.store.url, f"'/{path}' is an array, no group")
                raise single_array(self.store.url)
            if document.get("node_type") != "group":
                kind = dumps(document.get("node_type"))
                raise FormatError(f"{path}/{FILE}".lstrip("/"), f"node_type is {kind:.80}")
            above, group = group, self.group(path, document)
            if path:
                above.groups[group.name] = group
            else:
                self.root = group
        return group

    def descend(self, groups: list[Group]) -> list[Group]:
        """Read the children of `groups`; return the child groups."""
        paths = [group.path.strip("/") for group in groups]
        self.descended.update(zip(paths, groups, strict=True))
        members = [
            (group, name)
            for group, names in zip(groups, self.children(paths), strict=True)
            for name in names
        ]
        keys = [f"{group.path}/{name}".strip("/") for group, name in members]
        below = []
        for (group, name), key, document in zip(members, keys, self.documents(keys), strict=True):
            if document is None:
                if not name.startswith("."):
                    self.strangers.append(key)
            elif isinstance(document, NCZarrError) or document.get("node_type") != "group":
                group.variables[name] = self.variable(group, name, key, document)
            elif name not in group.groups:
                group.groups[name] = self.group(key, document)
                below.append(group.groups[name])
        return below

    def group(self, path: str, document: Mapping[str, JSON]) -> Group:
        where = f"{path}/{FILE}".lstrip("/")
        values = self.stated(document, where)
        attributes, problems = decode_attributes(values, {}, where, netcdf=False)
        self.problems += problems
        lists = values.get("_nczarr_group")
        names = lists.get("arrays") if isinstance(lists, dict) else None
        if isinstance(names, list):
            self.listed[path] = [n for n in names if isinstance(n, str) and is_safe_name(n)]
        if "_nczarr_superblock" in values:
            reason = "is NCZarr in a form for Zarr 3 that netCDF-C never released: read as plain "
            reason += "Zarr 3, without NCZarr's types of attributes and text"
            self.problems.append(FormatError(where, reason))
        return Group(f"/{path}", attributes=attributes)

    def stated(self, document: Mapping[str, JSON], where: str) -> Mapping[str, JSON]:
        """Return the attributes of a node as stored; none, and a problem, if they are no object."""
        attributes = document.get("attributes")
        if isinstance(attributes, dict):
            return attributes
        if attributes is not None:
            self.problems.append(FormatError(where, "'attributes' is not a JSON object: left out"))
        return {}

    # -- arrays ----------------------------------------------------------------

    def variable(
        self, group: Group, name: str, path: str, document: dict[str, JSON] | NCZarrError
    ) -> Variable:
        variable = Variable(name, group.path, (), None, np.dtype(object))
        try:
            if isinstance(document, NCZarrError):
                raise document
            # attributes are read here, so that one of them spoils no array
            metadata = plain({**document, "attributes": {}}, f"{path}/{FILE}")
            array = describe(self.store, path, metadata)
            variable.dtype = array.dtype
            text = array.dtype.kind in "OSU" and metadata["data_type"] != "variable_length_bytes"
            variable.nc_type = "string" if text else NC_TYPES.get(array.dtype.str[1:])
            variable.attributes = self.attributes(document, array, variable.nc_type)
            if MARK in variable.attributes:
                restore(variable, self.root.find)
            self.implied.use(variable, self.dimensions(group, document, array))
            variable.array = array
        except NCZarrError as error:
            variable.error = error
        return variable

    def attributes(
        self, document: Mapping[str, JSON], array: Zarr3Array, nc_type: str | None
    ) -> dict[str, Attribute]:
        where = f"{array.path}/{FILE}"
        values = dict(self.stated(document, where))
        try:
            if "_FillValue" in values:
                values["_FillValue"] = fill_value(values["_FillValue"], array.dtype)
        except ValueError as error:
            fill = dumps(values.pop("_FillValue"))
            reason = f"attribute '_FillValue' is left out: {fill:.80} is no element ({error})"
            self.problems.append(FormatError(where, reason))
        attributes, problems = decode_attributes(values, {}, where, netcdf=False, fill_type=nc_type)
        self.problems += problems
        return attributes

    def dimensions(
        self, group: Group, document: Mapping[str, JSON], array: Zarr3Array
    ) -> list[tuple[Group, str, int]]:
        names = document.get("dimension_names")
        if not names:  # some writers (GDAL) put those of Zarr 2 into Zarr 3
            attributes = document.get("attributes")
            names = attributes.get("_ARRAY_DIMENSIONS") if isinstance(attributes, dict) else None
            if not (self.naming.array_dimensions and are_names(names, array.shape)):
                names = [None] * len(array.shape)
        if not isinstance(names, list) or not are_names([n or "" for n in names], array.shape):
            reason = f"dimension_names {names!r:.80} do not match shape {list(array.shape)}"
            raise FormatError(f"{array.path}/{FILE}", reason)
        prefix = self.naming.anonymous_prefix
        return [
            (group, str(name), size) if name else (self.root, f"{prefix}{size}", size)
            for name, size in zip(names, array.shape, strict=True)
        ]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _parsed(key: str, data: Object) -> Document:
    if data is None or isinstance(data, StoreError):
        return data
    try:
        return _object(loads(data, key), key)
    except FormatError as error:
        return error


def _object(document: JSON, key: str) -> dict[str, JSON] | FormatError:
    return document if isinstance(document, dict) else FormatError(key, "is not a JSON object")


def _consolidated(path: str, document: Document) -> dict[str, JSON]:
    """Return what a group's ``zarr.json`` says of the nodes below the group, by path."""
    inline = document.get("consolidated_metadata") if isinstance(document, dict) else None
    metadata = inline.get("metadata") if isinstance(inline, dict) else None
    if not isinstance(metadata, dict):
        return {}
    # keys are paths of nodes, relative to the group; some writers name the objects instead
    below = ((key.strip("/").removesuffix(f"/{FILE}"), value) for key, value in metadata.items())
    prefix = f"{path}/" if path else ""
    return {f"{prefix}{key}": value for key, value in below if key and key != FILE}
