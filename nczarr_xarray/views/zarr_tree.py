"""A hierarchy as the keys of a pure Zarr 2 tree, without reading anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_fsspec.keystore import ZARR_METADATA, is_safe_name
from nczarr_xarray.dataset.dataset import attribute_value, dimension_names, shown_name
from nczarr_xarray.formats.nczarr.emit import array_documents, group_documents
from nczarr_xarray.formats.nczarr.jsontext import dumps
from nczarr_xarray.formats.nczarr.spellings import VIRTUAL
from nczarr_xarray.model import Attribute, Group, Hierarchy, Variable, readable
from nczarr_xarray.views.file_arrays import ArrayView, renamed, view_of


class Tree:
    """The keys of a view, its documents, and the arrays that have the chunks.

    Parameters
    ----------
    hierarchy
        Variables and groups that Zarr cannot have are left out.
    scattered
        See `view_of`.

    Attributes
    ----------
    problems : list of NCZarrError
        What was left out, and why.
    """

    def __init__(self, hierarchy: Hierarchy, *, scattered: bool) -> None:
        self.problems: list[NCZarrError] = []
        #: by path, without outer slashes
        self.groups: dict[str, Group] = {}
        self.arrays: dict[str, ArrayView] = {}
        self._members: dict[str, list[str]] = {}
        #: what the variables of a group call dimensions, by path of the group
        self._names: dict[str, dict[str, str]] = {}
        self._documents: dict[str, bytes] = {}
        self._consolidated: bytes | None = None
        pending = [("", hierarchy.root)]
        while pending:
            path, group = pending.pop()
            self.groups[path] = group
            members = self._members[path] = []
            for variable in group.variables.values():
                if (view := self._view(variable, scattered)) is not None:
                    members.append(variable.name)
                    self.arrays[variable.path.strip("/")] = view
            for name, below in group.groups.items():
                if self._fits(below.path, name) and name not in group.variables:
                    members.append(name)
                    pending.append((below.path.strip("/"), below))

    def leave_out(self, path: str) -> None:
        """Leave out the array at a path."""
        del self.arrays[path]
        group, _, name = path.rpartition("/")
        self._members[group].remove(name)
        for file in (".zarray", ".zattrs"):
            self._documents.pop(f"{path}/{file}", None)
        self._consolidated = None

    def document(self, key: str) -> bytes | None:
        """Return a metadata object; None if there is none of this name."""
        if key == ".zmetadata":
            if self._consolidated is None:
                self._consolidated = _consolidated(self.documents())
            return self._consolidated
        if key not in self._documents:
            path, _, name = key.rpartition("/")
            if name not in ZARR_METADATA:
                return None
            if path in self.arrays:
                self._documents |= self._array_documents(path)
            elif path in self.groups:
                attributes = in_json(self.groups[path].attributes)
                group = replace(self.groups[path], attributes=attributes)
                self._documents |= group_documents(group, VIRTUAL, None)
        return self._documents.get(key)

    def documents(self) -> Mapping[str, bytes]:
        """Return all metadata objects by key, without the consolidated one."""
        for path in (*self.groups, *self.arrays):
            self.document(f"{path}/.zattrs".lstrip("/"))
        return self._documents

    def find(self, key: str) -> bytes | tuple[ArrayView, int] | None:
        """Return a metadata object, or array and number of the chunk that `key` may name."""
        document = self.document(key)
        if document is not None:
            return document
        path, _, name = key.rpartition("/")
        view = self.arrays.get(path)
        number = None if view is None else view.number(name)
        return None if view is None or number is None else (view, number)

    def members(self, path: str) -> list[str]:
        """Return the names below a group or an array (without chunks); empty if there is none."""
        if path in self.arrays:
            return [".zarray", ".zattrs"]
        if path in self.groups:
            root = [] if path else [".zmetadata"]
            return [".zattrs", ".zgroup", *root, *self._members[path]]
        return []

    def _view(self, variable: Variable, scattered: bool) -> ArrayView | None:
        if not self._fits(variable.path, variable.name):
            return None
        try:
            return view_of(variable, scattered=scattered)
        except NCZarrError as error:
            self.problems.append(error)
            return None

    def _fits(self, path: str, name: str) -> bool:
        # zarr-python turns a backslash into a slash
        fits = is_safe_name(name) and name not in ZARR_METADATA and "\\" not in name
        fits = fits and readable(name) == name
        if not fits:
            self.problems.append(FormatError(path, f"{name!r} cannot be a name in Zarr"))
        return fits

    def _array_documents(self, path: str) -> dict[str, bytes]:
        view = self.arrays[path]
        variable = view.variable
        group = self.groups[variable.group.strip("/")]
        names = self._names.get(group.path)
        if names is None:
            names = self._names[group.path] = dimension_names(group.path, group.variables.values())
        dimensions = tuple(names[dimension.path] for dimension in variable.dimensions)
        shown = renamed(view, dimensions)
        shown.attributes = in_json(variable.attributes)
        shown.enum = None  # netCDF4-python does not show the names, either
        return array_documents(shown, VIRTUAL)


def in_json(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Return the attributes that JSON has a form for: all but structures."""
    found = map(_shown, attributes.values())
    return {attribute.name: attribute for attribute in found if attribute.type != "compound"}


def _shown(attribute: Attribute) -> Attribute:
    """Return an attribute for readers of JSON, with the text of `attribute_value`."""
    value = attribute.value
    if isinstance(value, str):
        value = attribute_value(attribute)
    elif isinstance(value, tuple):
        value = tuple(map(readable, value))
    return Attribute(shown_name(attribute.name), attribute.type, value, json=attribute.json)


def _consolidated(documents: Mapping[str, bytes]) -> bytes:
    """Return ``.zmetadata``, made of the texts of the documents."""
    members = b",\n".join(dumps(key).encode() + b": " + documents[key] for key in sorted(documents))
    return b'{"metadata": {\n' + members + b'\n}, "zarr_consolidated_format": 1}'
