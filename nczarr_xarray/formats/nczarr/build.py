"""The documents of a walk to the netCDF data model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_xarray.formats.nczarr import spellings
from nczarr_xarray.formats.nczarr.attributes import MARK, decode_attributes, restore
from nczarr_xarray.formats.nczarr.documents import Nodes, first
from nczarr_xarray.formats.nczarr.jsontext import JSON
from nczarr_xarray.formats.nczarr.zarray import default_chunk_nbytes, parse_array
from nczarr_xarray.model import (
    NC_DEFAULT_FILL,
    AmbiguousNameError,
    Attribute,
    ChunkedArray,
    Dimension,
    Group,
    HarmlessError,
    Hierarchy,
    Variable,
    text_of,
)

# -- implied dimensions ----------------------------------------------------------------------------
# Those that no group declares: names and lengths follow from the variables.


class ImpliedDimensions:
    """Collects the dimensions that the variables of one dataset imply.

    A name stands for the length that its group declares, or that most variables have; where others
    have another one (sizes of one image, in OME-Zarr), that is part of the name: ``x_512``.

    Parameters
    ----------
    dropped
        Names of variables that do not matter, as nobody will see them.
    """

    def __init__(self, dropped: Collection[str] = ()) -> None:
        self._dropped = dropped
        self._votes: dict[int, dict[str, Counter[int]]] = {}
        self._uses: list[tuple[Variable, list[tuple[Group, str, int]]]] = []

    def use(self, variable: Variable, lengths: list[tuple[Group, str, int]]) -> None:
        """Note the dimensions of `variable`, each as (group that it belongs to, name, length)."""
        self._uses.append((variable, lengths))
        dropped = variable.name in self._dropped
        for group, name, length in lengths:
            votes = self._votes.setdefault(id(group), {})
            if name in group.dimensions and name not in votes:
                continue  # declared, so that the variables do not decide
            counts = votes.setdefault(name, Counter())
            # coordinates break a tie, else the first variable does
            counts[length] += 0 if dropped else 3 if name == variable.name else 2
            size, _ = counts.most_common(1)[0]
            group.dimensions[name] = Dimension(name, size, size == 0, group.path)

    def settle(self) -> list[AmbiguousNameError]:
        """Give every variable its dimensions; return the groups where some are called otherwise."""
        others: dict[tuple[int, str, int], Dimension] = {}
        renamed: dict[str, dict[str, None]] = {}
        for variable, lengths in self._uses:
            for group, name, length in lengths:
                dimension = group.dimensions[name]
                if dimension.size != length:
                    key = id(group), name, length
                    dimension = others[key] = others.get(key) or _renamed(group, name, length)
                    if variable.name not in self._dropped:
                        renamed.setdefault(group.path, {})[repr(dimension.name)] = None
                variable.dimensions += (dimension,)
        return [
            AmbiguousNameError(
                path,
                "variables have one name for dimensions of different lengths: those that fewer "
                f"have are called {first([*names])}; drop_variables= leaves a name to the others",
            )
            for path, names in renamed.items()
        ]


def _renamed(group: Group, name: str, length: int) -> Dimension:
    """Declare the dimension of variables that have another length than `name` stands for."""
    other = f"{name}_{length}"
    while other in group.dimensions or other in group.variables:
        other += "_"
    group.dimensions[other] = Dimension(other, length, length == 0, group.path)
    return group.dimensions[other]


def are_names(names: JSON, shape: tuple[int, ...]) -> bool:
    """Tell whether a list has a name for each dimension of a shape."""
    listed = isinstance(names, list) and len(names) == len(shape)
    return listed and all(isinstance(name, str) for name in names)


#: Attributes that say that numbers were packed, so that a default fill value is meant as one.
_PACKING = frozenset({"scale_factor", "add_offset"})
#: netCDF-C's marks of a scalar in ``_ARRAY_DIMENSIONS``: 4.8.1-4.9.0, 4.9.1 and later.
SCALAR_MARKS: tuple[list[str], ...] = ([], ["_scalar_"])


# -- hierarchy -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of dimensions in pure Zarr.

    Parameters
    ----------
    anonymous_prefix
        An unnamed dimension is called this plus its length:
        ``_Anonymous_Dim_`` (4.9.3 and later), ``_zdim_`` (4.9.0-4.9.2),
        ``.zdim_`` (4.8.1), ``.zdim`` (4.8.0).
    array_dimensions
        Whether ``_ARRAY_DIMENSIONS`` is used; netCDF-C's ``mode=noxarray`` ignores it.
    dropped
        Names of variables that do not matter where others contradict them.
    """

    anonymous_prefix: str = "_Anonymous_Dim_"
    array_dimensions: bool = True
    dropped: frozenset[str] = frozenset()


def build(
    nodes: Nodes, naming: Naming, *, pure: bool, fill_is_mask: bool | None = None
) -> Hierarchy:
    """Make the model of everything a walk found.

    Parameters
    ----------
    pure
        Ignore NCZarr's structure (dimension references, scalar marks).
    fill_is_mask
        Whether the fill values of pure Zarr 2 stand for missing data; None if that is left to us.

    Returns
    -------
    Hierarchy
        A problem of one variable is its `Variable.error`; problems of groups
        and attributes are in `Hierarchy.problems`.
    """
    return _Builder(nodes, naming, pure, fill_is_mask).hierarchy()


@dataclass(slots=True)
class _Builder:
    nodes: Nodes
    naming: Naming
    pure: bool
    fill_is_mask: bool | None
    groups: dict[str, Group] = field(default_factory=dict)
    problems: list[NCZarrError] = field(default_factory=list)
    implied: ImpliedDimensions = field(init=False)

    def __post_init__(self) -> None:
        self.implied = ImpliedDimensions(self.naming.dropped)

    @property
    def netcdf(self) -> bool:
        """Whether netCDF-C wrote the dataset."""
        return self.nodes.generation != "v2" or self.nodes.writer is not None

    @property
    def ours(self) -> bool:
        """Whether this package wrote the dataset."""
        return "nczarr_xarray=" in (self.nodes.writer or "")

    @property
    def unswapped(self) -> bool:
        """Whether the writer stored big-endian variables in the host's order (before 4.9.3)."""
        release = spellings.release(self.nodes.writer)
        if release is None:
            return self.nodes.generation in ("G1", "G2U", "G2L")
        return release < (4, 9, 3)

    def hierarchy(self) -> Hierarchy:
        for path, node in self.nodes.groups.items():
            group = self.groups[path] = Group(f"/{path}")
            try:
                group.attributes.update(self.attributes(node.documents, path, None))
            except FormatError as error:
                self.problems.append(error)
            for name, (size, unlimited) in (node.lists.dimensions if node.lists else {}).items():
                group.dimensions[name] = Dimension(name, size, unlimited, group.path)
            if path:
                self.parent(path).groups[group.name] = group
        for path, documents in self.nodes.arrays.items():
            parent, _, name = path.rpartition("/")
            group = self.groups[parent]
            group.variables[name] = self.variable(group, name, path, documents)
        self.problems += self.implied.settle()
        return Hierarchy(
            root=self.groups[""],
            generation=self.nodes.generation,
            writer=self.nodes.writer,
            consolidated=self.nodes.consolidated is not None,
            problems=(*self.nodes.problems, *self.problems),
        )

    def parent(self, path: str) -> Group:
        """Return the group above `path`; a group of which nothing was read is made empty."""
        above, _, _ = path.rpartition("/")
        if above not in self.groups:
            group = self.groups[above] = Group(f"/{above}")
            self.parent(above).groups[group.name] = group
        return self.groups[above]

    def attributes(
        self, documents: Mapping[str, JSON], path: str, fill_type: str | None
    ) -> dict[str, Any]:
        values = documents.get(".zattrs", {})
        where = f"{path}/.zattrs".lstrip("/")
        if not isinstance(values, dict):
            raise FormatError(where, "is not a JSON object")
        types: Mapping[str, JSON] = {}
        try:
            types = spellings.attribute_types(documents, path)
        except FormatError as error:
            self.problems.append(error)
        attributes, problems = decode_attributes(
            values, types, where, netcdf=self.netcdf, ours=self.ours, fill_type=fill_type
        )
        self.problems += problems
        return attributes

    def variable(
        self, group: Group, name: str, path: str, documents: dict[str, JSON] | NCZarrError
    ) -> Variable:
        variable = Variable(name, group.path, (), None, np.dtype(object))
        try:
            if isinstance(documents, NCZarrError):
                raise documents
            variable.nc_type, array = parse_array(
                documents[".zarray"], path, netcdf=self.netcdf, unswapped=self.unswapped
            )
            array = self.defaulted(array, variable.nc_type)
            self.doubt_byte_order(array)
            variable.dtype = self.value_dtype(variable.nc_type, array)
            variable.attributes = self.attributes(documents, path, variable.nc_type)
            self.mask(variable, array)
            if MARK in variable.attributes:
                restore(variable, lambda path: self.groups.get(path.strip("/")))
            references = None if self.pure else spellings.dimension_references(documents, path)
            if references is not None and self.nodes.generation != "v2":
                variable.dimensions = self.referenced(references, array)
                rank = len(variable.dimensions)
            else:
                named = self.named(group, documents, array)
                self.implied.use(variable, named)
                rank = len(named)
            if not rank:
                array = replace(array, shape=(), chunk_shape=())
            grows = [d.unlimited for d in variable.dimensions] or [False] * rank
            variable.array = replace(array, longer=default_chunk_nbytes(array, grows))
        except NCZarrError as error:
            variable.error = error
        return variable

    def mask(self, variable: Variable, array: ChunkedArray) -> None:
        """Give a variable of pure Zarr 2 the ``_FillValue`` that its fill value stands for.

        So xarray's engine "zarr" has it. NCZarr states the attribute.
        """
        fill, asked = array.fill, self.fill_is_mask
        if self.nodes.generation != "v2" or "_FillValue" in variable.attributes or fill is None:
            return
        if asked is None:
            meant = self.nodes.writer is None and bool(fill)
            if variable.dtype.kind == "S" and "_Encoding" in variable.attributes:
                meant = False  # xarray compares it with texts, of which none is bytes
            if variable.dtype.kind in "mM" and np.isnat(fill):
                meant = False  # it is missing without an attribute, which no writer could store
            if variable.dtype.kind in "iu" and not _PACKING & variable.attributes.keys():
                # it would make floats of integers that may not have been meant to be missing
                meant = meant and fill != NC_DEFAULT_FILL.get(variable.nc_type or "")
        else:
            meant = asked
        if not meant:
            return
        attribute = Attribute("_FillValue", variable.nc_type or "", np.array([fill]))
        if isinstance(fill, bytes):
            attribute = Attribute("_FillValue", "char", text_of(fill))
        elif isinstance(fill, str):
            attribute = Attribute("_FillValue", "string", (fill,))
        elif variable.dtype.kind in "iuf":
            attribute = replace(attribute, value=np.array([fill], variable.dtype.newbyteorder("=")))
        variable.attributes["_FillValue"] = attribute

    def defaulted(self, array: ChunkedArray, nc_type: str | None) -> ChunkedArray:
        """Return the array with a default fill, which 4.8.x used but did not write (observed)."""
        release = spellings.release(self.nodes.writer)
        if array.fill is None and nc_type in NC_DEFAULT_FILL and release and release < (4, 9, 0):
            default = np.array([NC_DEFAULT_FILL[nc_type]], dtype=array.dtype)[0]
            return replace(array, fill=default)
        return array

    def doubt_byte_order(self, array: ChunkedArray) -> None:
        """Note that the byte order is doubtful: only some wheels of one snapshot swapped bytes."""
        if array.dtype.byteorder == ">" and "4.9.3-development" in (self.nodes.writer or ""):
            reason = "is declared big-endian by netCDF-C 4.9.3-development, of which some builds "
            reason += "stored little-endian data all the same: check that the values make sense"
            self.problems.append(HarmlessError(array.path, reason))

    def value_dtype(self, nc_type: str | None, array: ChunkedArray) -> np.dtype:
        """Return the dtype of what a reader gets: NC_STRING is str, Zarr's own bytes stay bytes."""
        if nc_type == "string" and array.dtype.kind == "S" and self.netcdf:
            return np.dtype(object)
        return array.dtype

    def referenced(self, references: tuple[str, ...], array: ChunkedArray) -> tuple[Dimension, ...]:
        """Return dimensions by fully qualified name; their lengths must agree with the shape."""
        if not references and array.shape in ((), (1,)):
            return ()  # a scalar, marked or not
        if len(references) != len(array.shape):
            reason = f"has {len(references)} dimension references and shape {list(array.shape)}"
            raise FormatError(array.path, reason)
        dimensions = []
        for reference, size in zip(references, array.shape, strict=True):
            path, _, name = reference.strip("/").rpartition("/")
            group = self.groups.get(path)
            dimension = group.dimensions.get(name) if group else None
            if dimension is None:
                raise FormatError(array.path, f"refers to dimension {reference!r}: there is none")
            if dimension.size != size:
                reason = f"has length {size} along {reference!r}, which has length {dimension.size}"
                raise FormatError(array.path, reason)
            dimensions.append(dimension)
        return tuple(dimensions)

    def named(
        self, group: Group, documents: Mapping[str, JSON], array: ChunkedArray
    ) -> list[tuple[Group, str, int]]:
        """Return the dimensions of pure Zarr: ``_ARRAY_DIMENSIONS``, else one per length (2.5)."""
        names: JSON = documents.get(".zattrs", {}).get("_ARRAY_DIMENSIONS")
        if array.shape == () or (array.shape == (1,) and names in SCALAR_MARKS):
            return []
        if names is None or not self.naming.array_dimensions:
            root, prefix = self.groups[""], self.naming.anonymous_prefix
            return [(root, f"{prefix}{size}", size) for size in array.shape]
        if not are_names(names, array.shape):
            reason = f"_ARRAY_DIMENSIONS {names!r:.80} are no names for shape {list(array.shape)}"
            raise FormatError(f"{array.path}/.zattrs", reason)
        return [(group, str(name), size) for name, size in zip(names, array.shape, strict=True)]
