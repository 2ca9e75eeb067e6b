"""The groups of an HDF5 file that netCDF sees, and in which order.

Source: netCDF-C 4.10.1, read and observed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import dataclass

from nczarr_xarray.formats.hdf5.binary import Frame
from nczarr_xarray.formats.hdf5.dimensions import is_scale, list_lengths, read_classes
from nczarr_xarray.formats.hdf5.objects import H5Dataset, H5Group, OtherLayout
from nczarr_xarray.model import is_below, join


@dataclass(frozen=True, slots=True)
class Node:
    """A group at its path, with its datasets."""

    path: str
    group: H5Group
    datasets: list[H5Dataset]


async def read_nodes(frame: Frame, tree: Awaitable[H5Group]) -> list[Node]:
    """Return all groups of a tree, parents first, and the classes of their datasets with them."""
    nodes = []
    pending = [("/", await tree)]
    while pending:
        path, group = pending.pop()
        members = group.members.values()
        nodes.append(Node(path, group, [m for m in members if isinstance(m, H5Dataset)]))
        below = [(join(path, m.name), m) for m in members if isinstance(m, H5Group)]
        pending.extend(reversed(below))
    await read_classes(frame, [dataset for node in nodes for dataset in node.datasets])
    return nodes


def children_first(nodes: list[Node]) -> Iterator[Node]:
    """Yield the groups in the order in which netCDF-C looks for dimensions: children first."""
    pending: list[Node] = []
    for node in nodes:
        while pending and not is_below(node.path, pending[-1].path):
            yield pending.pop()
        pending.append(node)
    yield from reversed(pending)


def depends_on_all(nodes: list[Node]) -> bool:
    """Tell whether groups that were not read may change the dimensions of those that were.

    The length of an unlimited dimension is that of its longest variable in any
    group, and phony dimensions are numbered through the whole file. Also, the
    sources of virtual datasets may be anywhere.
    """
    for dataset in (dataset for node in nodes for dataset in node.datasets):
        if isinstance(dataset.layout, OtherLayout) and dataset.layout.mappings is not None:
            return True
        if is_scale(dataset):
            if None in dataset.space.maxshape[:1] or len(dataset.space.shape or ()) > 1:
                return True
        elif dataset.space.shape and "_Netcdf4Coordinates" not in dataset.attributes:
            lengths = list_lengths(dataset)
            if not lengths or 0 in lengths:
                return True
    return False
