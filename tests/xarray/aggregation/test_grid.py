from __future__ import annotations

import itertools
import tracemalloc
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.aggregation.combine import Combiner
from nczarr_xarray.aggregation.grid import Arranger, check_places
from nczarr_xarray.aggregation.summary import Description, Layout, Summary, describe
from nczarr_xarray.export.form.lacking import Lacking
from nczarr_xarray.model import Dimension, Fragments, Group, Hierarchy, Variable

AXES = ("t", "y", "x")


def hierarchy_of(lengths: dict[str, int]) -> Hierarchy:
    """Return the metadata of a file with a variable of these dimensions, and coordinates."""
    dimensions = {name: Dimension(name, length) for name, length in lengths.items()}
    variables = {
        name: Variable(name, "/", (d,), "double", np.dtype("f8")) for name, d in dimensions.items()
    }
    variables["v"] = Variable("v", "/", tuple(dimensions.values()), "float", np.dtype("f4"))
    return Hierarchy(Group(dimensions=dimensions, variables=variables), "test")


def summary(target: str, coordinates: dict[str, np.ndarray]) -> Summary:
    described: Description = describe(
        target, hierarchy_of({name: len(values) for name, values in coordinates.items()})
    )
    values = tuple(coordinates[variable.name] for variable in described.wanted)
    return Summary(target, described.layout, described.sizes, values)


def table_of(files: list[Summary], first: Hierarchy, layout: Layout) -> Fragments:
    grid = Arranger(files, layout, (), True, {}, "").grid()
    check_places(grid, files, gaps=False, partly=False)
    addresses = np.empty(len(files), object)
    addresses[:] = [file.target for file in files]

    def nothing(_: Variable) -> np.ndarray:
        raise AssertionError

    combiner = Combiner(
        first, layout, files, addresses, grid, frozenset(), nothing, None, Lacking(netcdf4=True)
    )
    return combiner.aggregated().tables["/v"]


@st.composite
def tiles(draw: st.DrawFn) -> tuple[list[np.ndarray], list[list[int]], bool]:
    """Coordinates, and where they are cut; one of them at least is."""
    coordinates, cuts = [], []
    for _ in AXES:
        length = draw(st.integers(2, 6))
        values = np.cumsum(draw(st.lists(st.integers(1, 4), min_size=length, max_size=length)))
        coordinates.append(values.astype("f8")[:: draw(st.sampled_from([1, -1]))])
        cuts.append(sorted(draw(st.sets(st.integers(1, length - 1), max_size=2))))
    if not any(cuts):
        cuts[0] = [1]
    return coordinates, cuts, draw(st.booleans())


@given(tiles(), st.randoms(use_true_random=False))
def test_tiles_in_any_order_make_the_grid(
    tile: tuple[list[np.ndarray], list[list[int]], bool], random: Random
) -> None:
    coordinates, cuts, twice = tile
    # blocks of one step do not say whether they fall
    for axis, values in enumerate(coordinates):
        if len(cuts[axis]) + 1 == len(values):
            coordinates[axis] = np.sort(values)
    blocks = [np.split(values, cut) for values, cut in zip(coordinates, cuts, strict=True)]
    files = []
    for position in itertools.product(*(range(len(part)) for part in blocks)):
        own = {name: blocks[axis][position[axis]] for axis, name in enumerate(AXES)}
        files.append(summary(".".join(map(str, position)), own))
    in_order = [file.target for file in files]
    if twice:
        files.append(files[0]._replace(target="again"))
    random.shuffle(files)
    first = hierarchy_of(dict(zip(AXES, files[0].sizes, strict=True)))
    if twice:
        with pytest.raises(ExportError, match="has the same coordinates as"):
            table_of(files, first, files[0].layout)
        return
    table = table_of(files, first, files[0].layout)
    assert table.addresses.tolist() == in_order
    for axis, cut in enumerate(cuts):
        assert table.starts[axis].tolist() == [0, *cut]
        assert table.stops[axis].tolist() == [*cut, len(coordinates[axis])]


@pytest.mark.slow
def test_a_hundred_thousand_files_are_columns() -> None:
    count = 100_000
    y, x = np.arange(3.0), np.arange(4.0)
    one = summary("0.nc", {"t": np.zeros(1), "y": y, "x": x})
    order = np.random.default_rng(0).permutation(count)
    files = [Summary(f"{n}.nc", one.layout, one.sizes, (np.array([float(n)]), y, x)) for n in order]
    tracemalloc.start()
    try:
        table = table_of(files, hierarchy_of({"t": 1, "y": 3, "x": 4}), one.layout)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert table.addresses[:3].tolist() == ["0.nc", "1.nc", "2.nc"]
    assert table.names.strides == (0,)
    assert most < 100 << 20
