"""Labels and names of files, as those of an aggregation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.formats.cf import LOCATING
from nczarr_xarray.model import Attribute, Dimension, Group, Hierarchy, Variable

# -- labels --------------------------------------------------------------------------------------
# Labels that are characters: text with a dimension more, its length, which files need not share.
#
# Files are combined with their texts. What a master holds are characters again.


def text_dimensions(variables: Iterable[Variable]) -> dict[str, tuple[Dimension, ...]]:
    """Return the dimensions of texts, by path of the variable that has their characters.

    The last one of characters is a length where nothing else has it.
    """
    texts: dict[str, tuple[Dimension, ...]] = {}
    lengths, others = dict[str, str](), set[str]()
    for variable in variables:
        others.add(variable.path)  # the coordinate of a dimension
        dimensions = variable.dimensions
        if variable.nc_type == "char" and dimensions:
            *before, last = dimensions
            texts[variable.path], lengths[variable.path] = tuple(before), last.path
            dimensions = texts[variable.path]
        others |= {dimension.path for dimension in dimensions}
    return {path: texts[path] for path, length in lengths.items() if length not in others}


def joined(characters: np.ndarray) -> np.ndarray:
    """Return texts, of characters along the last dimension."""
    *shape, length = characters.shape
    texts = np.zeros((*shape, max(1, length)), "S1")
    texts[..., :length] = characters
    return texts.view(f"S{max(1, length)}")[..., 0]


def with_characters(
    hierarchy: Hierarchy, values: Mapping[str, np.ndarray]
) -> tuple[Hierarchy, dict[str, np.ndarray]]:
    """Return what a master holds with characters instead of texts, in dimensions that fit them.

    Raises
    ------
    ExportError
        If another variable has the dimension of texts that are longer.
    """
    variables = [*hierarchy.root.all_variables()]
    texts = {
        one.path: one
        for one in variables
        if one.path in values and values[one.path].ndim < len(one.dimensions)
    }
    sizes: dict[str, int] = {}
    for path, variable in texts.items():
        last = variable.dimensions[-1]
        itemsize = values[path].dtype.itemsize
        sizes[last.path] = max(itemsize, sizes.get(last.path, last.size))
    for variable in variables:
        changed = next(
            (d for d in variable.dimensions if sizes.get(d.path, d.size) != d.size), None
        )
        if changed is not None and variable.path not in texts:
            raise ExportError(
                variable.path,
                f"has the dimension {changed.path}, the length of text that is longer in some "
                "files: only coordinates are made as long as the longest text",
            )

    def sized(dimension: Dimension) -> Dimension:
        return replace(dimension, size=sizes.get(dimension.path, dimension.size))

    def group(own: Group) -> Group:
        return replace(
            own,
            dimensions={name: sized(one) for name, one in own.dimensions.items()},
            variables={
                name: replace(one, dimensions=tuple(map(sized, one.dimensions)))
                for name, one in own.variables.items()
            },
            groups={name: group(one) for name, one in own.groups.items()},
        )

    characters = dict(values)
    for path, variable in texts.items():
        size = sizes[variable.dimensions[-1].path]
        characters[path] = values[path].astype(f"S{size}")[..., np.newaxis].view("S1")
    return replace(hierarchy, root=group(hierarchy.root)), characters


# -- names ---------------------------------------------------------------------------------------
# Files that call a variable or a dimension otherwise, by the names that the aggregation has.


#: Attributes that name variables or dimensions.
_NAMING = frozenset({*LOCATING, "ancillary_variables", "cell_measures", "cell_methods"})
_WORD = re.compile(r"[^\s:]+")


def with_names(target: str, hierarchy: Hierarchy, rename: Mapping[str, str]) -> Hierarchy:
    """Return the metadata of a file with other names of variables and dimensions, in any group.

    Parameters
    ----------
    rename
        The new names by the old ones. What has none of these keeps its name.

    Raises
    ------
    ExportError
        If two of a group would have one name.
    """

    def renamed(name: str) -> str:
        return rename.get(name, name)

    def dimension(own: Dimension) -> Dimension:
        return replace(own, name=renamed(own.name))

    def attribute(own: Attribute) -> Attribute:
        if own.name not in _NAMING or not isinstance(own.value, str):
            return own
        return replace(own, value=_WORD.sub(lambda match: renamed(match[0]), own.value))

    def variable(own: Variable) -> Variable:
        attributes = {name: attribute(one) for name, one in own.attributes.items()}
        dimensions = tuple(map(dimension, own.dimensions))
        return replace(own, name=renamed(own.name), dimensions=dimensions, attributes=attributes)

    def group(own: Group) -> Group:
        for names in (own.variables, own.dimensions):
            new = [*map(renamed, names)]
            twice = next((name for name in new if new.count(name) > 1), None)
            if twice is not None:
                raise ExportError(target, f"would have two of the name {twice!r} in {own.path}")
        return replace(
            own,
            dimensions={renamed(name): dimension(one) for name, one in own.dimensions.items()},
            variables={renamed(name): variable(one) for name, one in own.variables.items()},
            groups={name: group(one) for name, one in own.groups.items()},
        )

    return replace(hierarchy, root=group(hierarchy.root))
