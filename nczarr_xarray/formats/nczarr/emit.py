"""The model as the JSON documents of NCZarr or pure Zarr 2, and documents that exist, changed.

Nothing is checked here: call `limits.problems` first, which lists what cannot be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.nczarr import spellings, values
from nczarr_xarray.formats.nczarr.attributes import HIDDEN, as_flags
from nczarr_xarray.formats.nczarr.jsontext import JSON, dumps, is_standard, loads
from nczarr_xarray.formats.nczarr.limits import consistently_named
from nczarr_xarray.formats.nczarr.spellings import COMPAT, Profile
from nczarr_xarray.model import Attribute, Dimension, Group, Variable

#: Type code of NCZarr's own keys in the map of attribute types, from 4.9.3 on.
_INTERNAL = "|J0"


def documents(root: Group, profile: Profile, writer: str) -> dict[str, bytes]:
    """Return every metadata document of a hierarchy, in the order in which to write them.

    Parameters
    ----------
    root
        The root group.
    writer
        Text of ``_NCProperties``. netCDF-C 4.9.0, 4.9.1 and 4.10.1 take any.

    Returns
    -------
    dict
        Bytes by key: arrays, then groups from the leaves up. The last object is
        the one by which readers recognise a dataset.
    """
    found: dict[str, bytes] = {}
    plain = replace(profile, array_dimensions=False)
    groups = list(root.walk())
    for group in groups:
        named = consistently_named(group)
        for name, variable in group.variables.items():
            found |= array_documents(variable, profile if name in named else plain)
    for group in reversed(groups):
        found |= group_documents(group, profile, writer if group is root else None)
    return found


def array_documents(variable: Variable, profile: Profile) -> dict[str, bytes]:
    """Return ``.zattrs`` and ``.zarray`` of a variable, by key.

    Parameters
    ----------
    variable
        Its `array` is a `ChunkedArray` of the variable's shape; a scalar has
        none, and NCZarr stores it with one element along no dimension.
    """
    array: Any = variable.array
    spelling = profile.spelling
    scalar = not variable.dimensions
    lengths = (1,) if scalar and spelling is not None else None
    filters, compressor = values.codecs(array, profile)
    zarray: dict[str, JSON] = {
        "zarr_format": values.integer(2),
        "shape": [values.integer(n) for n in lengths or array.shape],
        "dtype": values.dtype_code(array, variable.nc_type, profile),
        "chunks": [values.integer(n) for n in lengths or array.chunk_shape],
        "fill_value": values.fill_value(array, profile),
        "order": array.order,
        "compressor": compressor,
        "filters": filters,
    }
    if array.separator != ".":
        zarray["dimension_separator"] = array.separator
    attributes = _attributes(variable)
    zattrs = {name: values.attribute_value(a, profile) for name, a in attributes.items()}
    files: dict[str, dict[str, JSON]] = {".zattrs": zattrs, ".zarray": zarray}
    if profile.array_dimensions:
        names: list[JSON] = [dim.name for dim in variable.dimensions]
        files[".zattrs"]["_ARRAY_DIMENSIONS"] = names or (["_scalar_"] if spelling else [])
    if spelling is not None:
        files[spelling.array_file][spelling.array] = _array_structure(variable, profile)
    _put_types(files[".zattrs"], attributes, profile)
    return _encoded(variable.path, files)


def group_documents(group: Group, profile: Profile, writer: str | None) -> dict[str, bytes]:
    """Return ``.zattrs`` and ``.zgroup`` of a group by key; the one with the structure is last.

    Parameters
    ----------
    writer
        Text of ``_NCProperties`` for the root of NCZarr, None for other groups.
        Pure Zarr gets none: it would mean that netCDF-C wrote the dataset, which
        stores text in pure Zarr in its own way.
    """
    spelling = profile.spelling
    last = ".zgroup" if spelling is None else spelling.group_file
    attributes = dict(group.attributes)
    if writer is not None and spelling is not None:
        attributes["_NCProperties"] = Attribute("_NCProperties", "char", writer)
    zattrs = {name: values.attribute_value(a, profile) for name, a in attributes.items()}
    files: dict[str, dict[str, JSON]] = {
        ".zgroup": {"zarr_format": values.integer(2)},
        ".zattrs": zattrs,
    }
    if spelling is not None:
        files[last][spelling.group] = {
            spelling.dimensions: {d.name: dimension_value(d) for d in group.dimensions.values()},
            spelling.arrays: list(group.variables),
            "groups": list(group.groups),
        }
        if writer is not None:
            files[last][spelling.superblock] = {"version": "2.0.0"}
    _put_types(files[".zattrs"], attributes, profile)
    return _encoded(group.path, {file: files[file] for file in sorted(files, key=last.__eq__)})


def consolidate(documents: Mapping[str, bytes]) -> bytes:
    """Return the ``.zmetadata`` of these documents.

    Raises
    ------
    FormatError
        If one of them is not JSON.
    """
    metadata = {key: loads(data, key) for key, data in documents.items()}
    return dumps({"metadata": metadata, "zarr_consolidated_format": values.integer(1)}).encode()


def dimension_value(dimension: Dimension) -> JSON:
    """Return the entry of a dimension in NCZarr's list."""
    size = values.integer(dimension.size)
    return {"size": size, "unlimited": values.integer(1)} if dimension.unlimited else size


def _attributes(variable: Variable) -> Mapping[str, Attribute]:
    """Return the attributes of a variable as they are stored.

    ``_nczarr_maxstrlen`` must agree with the dtype, because netCDF-C cuts text by it. Enums become
    flags, because NCZarr has none.
    """
    if variable.enum is not None:
        return as_flags(variable)
    attributes, array = dict(variable.attributes), variable.array
    if variable.nc_type != "string" or array is None or array.dtype.kind != "S":
        return attributes
    name = "_nczarr_maxstrlen"
    if name in attributes:
        length = np.array([array.dtype.itemsize], np.int32)
        attributes[name] = Attribute(name, "int", length)
    return attributes


def _array_structure(variable: Variable, profile: Profile) -> JSON:
    assert profile.spelling is not None
    scalar = not variable.dimensions
    references: list[JSON] = [dim.path for dim in variable.dimensions]
    structure: dict[str, JSON] = {profile.spelling.references: references}
    if profile.generation == "G2A":
        mark: dict[str, JSON] = {"scalar": values.integer(1)} if scalar else {}
        return structure | mark | {"storage": "chunked"}
    return structure | {"storage": "scalar" if scalar else "chunked"}


def _put_types(
    zattrs: dict[str, JSON], attributes: Mapping[str, Attribute], profile: Profile
) -> None:
    """Complete a ``.zattrs`` of NCZarr with the types of `attributes` and of NCZarr's own keys."""
    spelling = profile.spelling
    if spelling is None:
        return
    types = {name: values.attribute_code(a.type, spelling.char) for name, a in attributes.items()}
    if profile.generation == "G2A":
        own = {spelling.group, spelling.array, spelling.superblock} & zattrs.keys()
        types |= dict.fromkeys((*sorted(own), spelling.attributes), _INTERNAL)
    zattrs[spelling.attributes] = {"types": types}


def _encoded(path: str, files: Mapping[str, JSON]) -> dict[str, bytes]:
    prefix = f"{path.strip('/')}/".lstrip("/")
    return {f"{prefix}{file}": dumps(document).encode() for file, document in files.items()}


# -- documents that exist ----------------------------------------------------------------------


_COPY = "copy the dataset first (nczarr copy) and change the copy"


def generation_profile(documents_of_root: Mapping[str, bytes], where: str) -> Profile:
    """Return the profile in which an existing dataset is written.

    Parameters
    ----------
    documents_of_root
        ``.zgroup``, ``.zattrs`` and ``.nczarr``, as far as they exist.
    where
        Names the dataset in errors.

    Raises
    ------
    FormatError
        If it is of netCDF-C 4.8.0 (G1), which only this package reads, or of Zarr 3.
    """
    if "zarr.json" in documents_of_root and ".zgroup" not in documents_of_root:
        raise FormatError(where, "is Zarr 3, which is changed with zarr-python")
    root = {key: _parse(key, data) for key, data in documents_of_root.items()}
    generation = spellings.detect(root)
    if generation == "G1":
        raise FormatError(where, f"is NCZarr of netCDF-C 4.8.0: {_COPY}")
    return Profile(next((known for known in COMPAT.values() if known == generation), "v2"))


def set_shape(zarray: bytes, key: str, shape: tuple[int, ...]) -> bytes:
    """Return a ``.zarray`` with another shape (`FormatError` if the rank differs).

    Parameters
    ----------
    key
        Names the ``.zarray`` in errors.
    """
    metadata = _object(_parse(key, zarray), key)
    old = metadata.get("shape")
    if not isinstance(old, list) or len(old) != len(shape):
        raise FormatError(key, f"has shape {dumps(old):.80}, which cannot become {list(shape)}")
    metadata["shape"] = [values.integer(n) for n in shape]
    return dumps(metadata).encode()


def set_dimension(
    documents: Mapping[str, bytes], path: str, name: str, size: int
) -> dict[str, bytes]:
    """Change the length of a dimension that the group at `path` declares.

    Parameters
    ----------
    documents
        The group's objects, by key.
    path
        Path of the group, without leading slash; ``""`` is the root.

    Returns
    -------
    dict
        The object that changed; empty for pure Zarr, where only shapes tell lengths.

    Raises
    ------
    FormatError
        If the group declares no such dimension.
    """
    node = _Node(documents, path)
    structure = node.structure(spellings.GROUP)
    if structure is None:
        return {}
    dimensions = _member(structure, "dimensions", "dims", {})
    if name not in dimensions:
        raise FormatError(f"/{path}", f"has no dimension {name!r}")
    length = values.integer(size)
    if isinstance(dimensions[name], dict):
        dimensions[name]["size"] = length
    else:
        dimensions[name] = length
    return node.changed()


def add_children(
    documents: Mapping[str, bytes],
    path: str,
    *,
    dimensions: Iterable[Dimension] = (),
    arrays: Iterable[str] = (),
    groups: Iterable[str] = (),
) -> dict[str, bytes]:
    """Add names to the lists of the group at `path`; names that are there stay.

    Returns
    -------
    dict
        The object that changed, if one did; empty for pure Zarr, which has no lists.

    Raises
    ------
    FormatError
        If a dimension is unlimited and the dataset is of before netCDF-C 4.9.3,
        or exists with another length.
    """
    node = _Node(documents, path)
    structure = node.structure(spellings.GROUP)
    if structure is None:
        return {}
    old_spelling = "dims" in structure
    known = _member(structure, "dimensions", "dims", {})
    for dim in dimensions:
        if old_spelling and dim.unlimited:
            raise FormatError(
                dim.path, f"NCZarr before netCDF-C 4.9.3 has no unlimited dimensions: {_COPY}"
            )
        there = known.setdefault(dim.name, dimension_value(dim))
        # it may be spelt in another way, and one of length 0 counts as unlimited
        size, unlimited = spellings.dimension(dim.name, there, dim.path)
        if (size, unlimited) != (dim.size, dim.unlimited or not dim.size):
            raise FormatError(dim.path, f"exists already and is {dumps(there)}")
    for added, member in (
        (arrays, _member(structure, "arrays", "vars", [])),
        (groups, _member(structure, "groups", "groups", [])),
    ):
        member += [name for name in dict.fromkeys(added) if name not in member]
    return node.changed()


def set_attributes(
    documents: Mapping[str, bytes], path: str, attributes: Iterable[Attribute], profile: Profile
) -> dict[str, bytes]:
    """Add or replace attributes, with their types, of the group or array at `path`.

    New ones come after the user's others and before NCZarr's own.

    Raises
    ------
    FormatError
        If an attribute has the name of one of NCZarr's own.
    """
    node = _Node(documents, path)
    attributes = list(attributes)
    if not attributes:
        return {}
    zattrs = _object(node.files.setdefault(".zattrs", {}), node.key(".zattrs"))
    types = node.types(profile)
    char = profile.spelling.char if profile.spelling else ">S1"
    for attribute in attributes:
        if attribute.name in HIDDEN:
            raise FormatError(
                node.key(".zattrs"), f"{attribute.name!r} is NCZarr's own, not an attribute"
            )
        _put(zattrs, attribute.name, values.attribute_value(attribute, profile))
        if types is not None:
            _put(types, attribute.name, values.attribute_code(attribute.type, char))
    return node.changed()


def standard(data: bytes, key: str) -> bytes:
    """Return a document of pure Zarr as standard JSON; unchanged bytes if it is that already.

    Other writers leave bare NaN and infinities in documents, which browsers refuse.
    """
    if is_standard(data):
        return data
    document = _parse(key, data)
    if key.rpartition("/")[2] == ".zattrs" and isinstance(document, dict):
        document = {name: values.standard_attribute(name, v) for name, v in document.items()}
    return dumps(values.standard(document)).encode()


class _Node:
    """The parsed documents of one group or array."""

    def __init__(self, documents: Mapping[str, bytes], path: str) -> None:
        self.path = path
        self.files: dict[str, JSON] = {}
        self._before: dict[str, str] = {}
        for file in (".zgroup", ".zarray", ".zattrs"):
            key = self.key(file)
            if key in documents:
                self.files[file] = _parse(key, documents[key])
                self._before[file] = dumps(self.files[file])

    def key(self, file: str) -> str:
        return f"{self.path}/{file}" if self.path else file

    def structure(self, places: Iterable[spellings.Location]) -> dict[str, JSON] | None:
        """Return the first of NCZarr's structures at `places`, uncopied; None if there is none."""
        for file, name in places:
            document = self.files.get(file)
            found = document.get(name) if isinstance(document, dict) else None
            if found is not None:
                return _object(found, f"{self.key(file)} {name}")
        return None

    def types(self, profile: Profile) -> dict[str, JSON] | None:
        """Return the map of attribute types, made if NCZarr has none; None in pure Zarr."""
        structure = self.structure(spellings.ATTRIBUTES)
        if structure is None and profile.spelling is not None:
            structure = self.files[".zattrs"].setdefault(profile.spelling.attributes, {})
        if structure is None:
            return None
        return _object(structure.setdefault("types", {}), f"{self.key('.zattrs')} types")

    def changed(self) -> dict[str, bytes]:
        texts = {file: dumps(document) for file, document in self.files.items()}
        return {
            self.key(file): text.encode()
            for file, text in texts.items()
            if text != self._before.get(file)
        }


def _parse(key: str, data: bytes) -> JSON:
    """Return a parsed document that can be written again without loss."""
    try:
        data.decode()
    except UnicodeDecodeError:
        raise FormatError(key, f"holds bytes that are not UTF-8: {_COPY}") from None
    return loads(data, key)


def _object(value: JSON, key: str) -> dict[str, JSON]:
    if not isinstance(value, dict):
        raise FormatError(key, "is not a JSON object")
    return value


def _member(structure: dict[str, JSON], name: str, old_name: str, empty: JSON) -> JSON:
    """Return the member of either spelling; make a missing one in the spelling of the others."""
    for spelt in (name, old_name):
        if spelt in structure:
            if not isinstance(structure[spelt], type(empty)):
                raise FormatError(spelt, f"is not a JSON {type(empty).__name__}")
            return structure[spelt]
    old = "dims" in structure or "vars" in structure
    return structure.setdefault(old_name if old else name, empty)


def _put(members: dict[str, JSON], name: str, value: JSON) -> None:
    """Replace a member, or insert it before NCZarr's own members."""
    if name in members:
        members[name] = value
        return
    own = {key: members.pop(key) for key in [*members] if key in HIDDEN}
    members[name] = value
    members.update(own)
