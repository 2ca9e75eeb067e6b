"""Masters of aggregations in memory: from what a dialect writes to what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nczarr_xarray.formats.cfa.decode import decode, find
from nczarr_xarray.formats.cfa.dialect import Encoded, Term, aggregated
from nczarr_xarray.model import (
    NC_DTYPES,
    Attribute,
    Dimension,
    FragmentArray,
    Group,
    Hierarchy,
    Variable,
)

Lengths = tuple[tuple[str, int], ...]


def nc_type_of(dtype: np.dtype) -> str:
    return next(name for name, own in NC_DTYPES.items() if own == dtype)


def attribute_of(name: str, value: Any) -> Attribute:
    if isinstance(value, str):
        return Attribute(name, "char", value)
    array = np.atleast_1d(np.asarray(value))
    return Attribute(name, nc_type_of(array.dtype), array)


def variable_of(
    name: str, dimensions: tuple[Dimension, ...], dtype: np.dtype, attributes: Mapping[str, Any]
) -> Variable:
    own = {key: attribute_of(key, value) for key, value in attributes.items()}
    return Variable(name, "/", dimensions, nc_type_of(dtype), dtype, own)


def master_of(
    name: str, lengths: Lengths, encoded: Encoded, dtype: str = "f4", **attributes: Any
) -> tuple[Hierarchy, dict[str, np.ndarray]]:
    """Return a dataset with one aggregation variable, and the values of its terms by path."""
    dimensions = {key: Dimension(key, length) for key, length in lengths}
    own = {**encoded.attributes, **attributes}
    variables = {name: variable_of(name, (), np.dtype(dtype), own)}
    values = {}
    for term in encoded.terms:
        for key, length in term.dimensions:
            assert dimensions.setdefault(key, Dimension(key, length)).size == length
        assert term.values.shape == tuple(length for _, length in term.dimensions)
        term_dimensions = tuple(dimensions[key] for key, _ in term.dimensions)
        assert term.path not in variables
        variables[term.path] = variable_of(
            term.path, term_dimensions, term.values.dtype, term.attributes
        )
        values[f"/{term.path}"] = term.values
    return Hierarchy(Group("/", dimensions, {}, variables), "hdf5"), values


def read(hierarchy: Hierarchy, values: Mapping[str, np.ndarray]) -> FragmentArray:
    """Decode a master with one aggregation variable; raise its error if it has one."""
    decoded = decode(hierarchy, find(hierarchy), values)
    for variable in decoded.root.variables.values():
        if variable.error is not None:
            raise variable.error
    ((_, array),) = aggregated(decoded)
    return array


def with_chars(term: Term) -> Term:
    """Return a term whose text is char, with one dimension more."""
    if term.values.dtype != object:
        return term
    texts = [str(value).encode() for value in term.values.reshape(-1)]
    longest = max(map(len, texts), default=0) or 1
    chars = np.array(texts, f"S{longest}").reshape((*term.values.shape, 1))
    flat = chars.view("S1")
    return term._replace(dimensions=(*term.dimensions, (f"length_{longest}", longest)), values=flat)


def held(array: FragmentArray) -> dict[Any, Any]:
    """Return what a table holds, by place in the data: what is missing is left out."""
    fragments = array.fragments
    grid_is_sound(array)
    found = {}
    for number in range(fragments.count):
        if fragments.addresses[number] is None:
            continue
        own: Any = (fragments.places(number), fragments.mappings.get(number))
        if fragments.values is not None:
            own = fragments.values[number]
        found[fragments.extent(number)] = own
    return found


def grid_is_sound(array: FragmentArray) -> None:
    """Check that a table is what its class says."""
    fragments = array.fragments
    for starts, stops, length in zip(fragments.starts, fragments.stops, array.shape, strict=True):
        assert starts.dtype == stops.dtype == np.int64
        assert (starts < stops).all()
        assert (starts[1:] >= stops[:-1]).all()
        assert not len(starts) or (starts[0] >= 0 and stops[-1] <= length)
    for column in (fragments.addresses, fragments.names, fragments.formats):
        assert column.shape == (fragments.count,)
        assert column.dtype == object
    every = range(fragments.count)
    assert all(number in every for number in (*fragments.mappings, *fragments.others))
