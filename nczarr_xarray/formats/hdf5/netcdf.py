"""The netCDF-4 data model of an HDF5 file.

Source: netCDF-C 4.10.1 and netCDF4-python, observed (tests/xarray/formats/test_hdf5_corpus.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter

from nczarr_fsspec.errors import FormatError, NCZarrError, UnsupportedError
from nczarr_xarray.formats.hdf5.attributes import (
    HIDDEN,
    H5Attribute,
    Sequences,
    c_text,
    count_of,
    decode_attribute,
    read_heap_values,
)
from nczarr_xarray.formats.hdf5.binary import Frame
from nczarr_xarray.formats.hdf5.datasets import H5Dataset, H5NamedType, OtherLayout
from nczarr_xarray.formats.hdf5.dimensions import (
    Attached,
    Dimensions,
    References,
    Scale,
    decode_list,
    is_scale,
    is_variable,
    list_lengths,
    reference_size,
)
from nczarr_xarray.formats.hdf5.header import read_superblock
from nczarr_xarray.formats.hdf5.messages import Dataspace
from nczarr_xarray.formats.hdf5.netcdf_storage import (
    Node,
    array_of,
    children_first,
    depends_on_all,
    padding_of,
    read_nodes,
)
from nczarr_xarray.formats.hdf5.netcdf_types import TypeNames, ValueType, value_type
from nczarr_xarray.formats.hdf5.tree import read_tree
from nczarr_xarray.formats.rounds import caught, together
from nczarr_xarray.model import (
    Attribute,
    Dimension,
    EnumType,
    Group,
    HarmlessError,
    Hierarchy,
    NamedType,
    UndecodableError,
    Variable,
    join,
)

_log = logging.getLogger(__name__)
#: The prefix of a variable that has the name of a dimension but is not its coordinate.
NON_COORDINATE = "_nc4_non_coord_"
_FAR_SOURCES = (
    "is a virtual dataset whose extent follows from its sources, which is found out for local "
    "files only: copy it here, with the files of its sources"
)
#: Attributes without which values cannot be decoded.
_DECODING = frozenset(
    {"scale_factor", "add_offset", "_FillValue", "missing_value", "units", "calendar", "_Unsigned"}
)
_AS_STORED = "decode_cf=False reads the stored values"
_NOT_ALL = "Chunks that were stored with it raise when they are read"


class _MissingFilterError(HarmlessError, UnsupportedError):
    """A filter that cannot be undone here; a chunk need not have it."""


async def read_hierarchy(
    url: str,
    size: int,
    group: str = "",
    tree: bool = True,
    extent: Callable[[str], tuple[int, ...]] | None = None,
    only: str | None = None,
    notes: list[tuple[int, int]] | None = None,
    head: bytes = b"",
) -> Hierarchy:
    """Read the metadata of an HDF5 file as netCDF-4.

    Parameters
    ----------
    url, size
        URL of the file for messages, and its size in bytes.
    group
        Path of the group wanted; groups on other branches may be left out.
    tree
        Whether the groups below it are wanted too.
    extent
        Returns the shape of a virtual dataset, given its path; only libhdf5 knows the extent of its
        sources. None if it cannot be found.
    only
        The only variable of the group that is wanted, whatever its dimensions are called, and
        without those of the length that others may give them.
    notes
        Gets positions and lengths of all that the metadata depend on, behind the superblock.
    head
        The first bytes of the file, if they are at hand.

    Returns
    -------
    Hierarchy
        Its `generation` is ``"hdf5"``. A problem of one variable is its
        `Variable.error`, problems of attributes are in `problems`.

    Raises
    ------
    DatasetNotFoundError
        If there is no such group.
    FormatError
        If the file is no HDF5 file, or the group cannot be read.
    """
    frame, address = await read_superblock(url, size, head)
    if notes is not None:
        frame = replace(frame, notes=notes)
    names = () if only is None else (only, f"{NON_COORDINATE}{only}")
    nodes = await read_nodes(frame, read_tree(frame, address, group, tree, names))
    partly = only is None and any(not node.group.loaded for node in nodes)
    if partly and depends_on_all(nodes):
        nodes = await read_nodes(frame, read_tree(frame, address))
    loaded = [node for node in nodes if node.group.loaded]
    frame = replace(frame, head=b"")  # arrays keep it
    builder = _Builder(frame, loaded, extent, named=only is None)
    if frame.missing:
        reason = f"is truncated: {frame.missing} bytes are missing; what is there can be read"
        builder.problems.append(FormatError(url, reason))
    await builder.read_heap()
    return builder.hierarchy()


@dataclass(slots=True)
class _Builder:
    """Makes the model of the groups of a walk."""

    frame: Frame
    nodes: list[Node]
    extent: Callable[[str], tuple[int, ...]] | None
    named: bool = True  # whether dimensions are needed
    problems: list[NCZarrError] = field(default_factory=list)
    hidden: list[NCZarrError] = field(default_factory=list)
    names: TypeNames = field(default_factory=TypeNames)
    #: by path of the group and name
    declared: dict[str, dict[str, EnumType | NamedType]] = field(default_factory=dict)
    #: by identity of the attribute: its elements, if they are in the heap
    heap: dict[int, list[bytes] | FormatError] = field(default_factory=dict)
    #: by address of the dataset: its fill value, if that is in the heap
    fill_texts: dict[int, str] = field(default_factory=dict)
    #: by address of the dataset: the error of a virtual one with a wrong description
    broken: dict[int, NCZarrError] = field(default_factory=dict)
    #: by address of the dataset: the scales of its dimensions
    attached: dict[int, Attached] = field(default_factory=dict)

    async def read_heap(self) -> None:
        """Read everything in global heaps that is needed to open the file, in one round."""
        wanted: list[tuple[Sequences, Callable[[list[bytes] | FormatError], None]]] = []
        references = References()
        for node in self.nodes:
            for dataset in node.datasets:
                if is_scale(dataset):
                    references.add(dataset, self.frame.offset_size)
        for node in self.nodes:
            holders = [(node.path, node.group.attributes)]
            for dataset in node.datasets:
                path = join(node.path, dataset.name)
                holders.append((path, dataset.attributes))
                if self.named and any(list_lengths(dataset)):
                    attached = references.attached(dataset)
                    if attached is not None:
                        self.attached[dataset.address] = attached
                    elif dataset.address not in self.attached:
                        attribute = dataset.attributes["DIMENSION_LIST"]
                        size = reference_size(dataset)
                        scales = Sequences(attribute.data, count_of(attribute), size)
                        wanted.append((scales, partial(self._attach, dataset)))
                # of text whose fill value is visible where a dimension is longer
                fill = dataset.fill if dataset.type.text else None
                if fill is not None and None in dataset.space.maxshape:
                    wanted.append((Sequences(fill, 1), partial(self._keep_fill, dataset)))
            texts = [
                (attribute, path)
                for path, named in holders
                for attribute in named.values()
                if attribute.type.text and attribute.name not in HIDDEN
            ]
            for attribute, path in texts:
                try:
                    text = Sequences(attribute.data, count_of(attribute))
                    wanted.append((text, partial(self.heap.__setitem__, id(attribute))))
                except FormatError as error:
                    self.heap[id(attribute)] = FormatError(path, error.reason)
        await together([self._resolve(wanted), self._check_virtual()])

    async def _check_virtual(self) -> None:
        """Check the descriptions of virtual datasets before libhdf5 reads them."""
        datasets = [(join(node.path, d.name), d) for node in self.nodes for d in node.datasets]
        virtual = [one for one in datasets if isinstance(one[1].layout, OtherLayout)]
        if not virtual:
            return
        from nczarr_xarray.formats.hdf5.through_h5py import check_mappings

        root = self.nodes[0].group
        found = await together(
            caught(check_mappings(self.frame, root, dataset, path)) for path, dataset in virtual
        )
        for (path, dataset), unlimited in zip(virtual, found, strict=True):
            if isinstance(unlimited, NCZarrError):
                self.broken[dataset.address] = unlimited
            elif unlimited:
                self._stretch(dataset, path)

    def _stretch(self, dataset: H5Dataset, path: str) -> None:
        """Give a virtual dataset the extent that its sources have."""
        if self.extent is None:
            self.broken[dataset.address] = UnsupportedError(path, _FAR_SOURCES)
            return
        try:
            shape = self.extent(path)
        except NCZarrError as error:
            self.broken[dataset.address] = error
        else:
            dataset.space = Dataspace(shape, dataset.space.maxshape)

    async def _resolve(
        self, wanted: list[tuple[Sequences, Callable[[list[bytes] | FormatError], None]]]
    ) -> None:
        """Read elements of variable length, and hand them to what takes them."""
        if wanted:
            found = await read_heap_values(self.frame, [one for one, _ in wanted])
            for (_, take), elements in zip(wanted, found, strict=True):
                take(elements)

    def _attach(self, dataset: H5Dataset, elements: list[bytes] | FormatError) -> None:
        if isinstance(elements, list):
            size = reference_size(dataset)
            self.attached[dataset.address] = decode_list(elements, size, self.frame.offset_size)
        else:
            self.problems.append(elements)

    def _keep_fill(self, dataset: H5Dataset, elements: list[bytes] | FormatError) -> None:
        if isinstance(elements, list):
            self.fill_texts[dataset.address] = c_text(elements[0])

    def hierarchy(self) -> Hierarchy:
        """Return the model of everything that was read."""
        types = self.value_types()
        dimensions, scales = self.dimensions(types)
        made: dict[int, Dimension] = {}
        groups: dict[str, Group] = {}
        for node in self.nodes:
            group = groups[node.path] = Group(node.path)
            if node.path != "/":
                groups[node.path.rpartition("/")[0] or "/"].groups[group.name] = group
            for scale in sorted(dimensions.groups.get(node.path, ()), key=attrgetter("number")):
                made[id(scale)] = group.dimensions[scale.name] = scale.dimension()
        for node in self.nodes:
            group = groups[node.path]
            self.problems.extend(node.group.problems)
            for member in node.group.members.values():
                if isinstance(member, NCZarrError):
                    self.problems.append(member)
            group.attributes, _ = self.attributes(node.group.attributes, node.path)
            for dataset in node.datasets:
                value = types.get((node.path, dataset.name))
                if value is None or not is_variable(dataset):
                    continue
                used = tuple(made[id(s)] for s in scales[node.path, dataset.name])
                variable = self.variable(group, dataset, value, used)
                if variable.name in group.variables:  # netCDF4-python does so, too
                    reason = "is there twice; the last one is taken"
                    self.problems.append(FormatError(variable.path, reason))
                group.variables[variable.name] = variable
            for name, one in self.declared.get(node.path, {}).items():
                if isinstance(one, EnumType):
                    group.types[name] = one
                else:
                    group.named_types[name] = one
        # the text of the library that wrote the file
        attribute = self.nodes[0].group.attributes.get("_NCProperties")
        writer = None
        if attribute is not None and attribute.type.kind == "string":
            writer = c_text(bytes(attribute.data))
        problems, hidden = tuple(self.problems), tuple(self.hidden)
        strict = "_nc3_strict" in self.nodes[0].group.attributes
        return Hierarchy(
            groups["/"], "hdf5", writer, problems=problems, hidden=hidden, classic_model=strict
        )

    def value_types(self) -> dict[tuple[str, str], ValueType]:
        """Return how to read the datasets that netCDF shows, by group and name."""
        for node in self.nodes:
            for member in node.group.members.values():
                if isinstance(member, H5NamedType):
                    named = self.names.add(member.type, member.name, node.path)
                    if named is not None:
                        self.declared.setdefault(node.path, {})[named.name] = named
        types = {}
        for node in self.nodes:
            for dataset in node.datasets:
                named = self.names.note(dataset.type)
                if named is not None:  # one without a name is declared here, too
                    self.declared.setdefault(named.group, {}).setdefault(named.name, named)
                value = value_type(dataset.type, named if isinstance(named, EnumType) else None)
                if value is not None:
                    if isinstance(named, NamedType):
                        value = replace(value, named=named)
                    types[node.path, dataset.name] = value
                else:
                    self.hide(join(node.path, dataset.name), dataset.type.kind)
        return types

    def hide(self, path: str, kind: str) -> None:
        """Leave out an object that netCDF does not show."""
        self.hidden.append(FormatError(path, f"netCDF has no type for its {kind}"))
        _log.debug("%s: %s is left out", self.frame.url, self.hidden[-1])

    def dimensions(
        self, types: Mapping[tuple[str, str], ValueType]
    ) -> tuple[Dimensions, dict[tuple[str, str], list[Scale]]]:
        """Return all dimensions, and those of each variable by group and name."""
        dimensions = Dimensions()
        for node in self.nodes:
            for dataset in node.datasets:
                dimensions.add(node.path, dataset)
        used = {}
        for node in children_first(self.nodes):
            for dataset in node.datasets:
                key = node.path, dataset.name
                if key in types and is_variable(dataset):
                    attached = self.attached.get(dataset.address)
                    used[key] = dimensions.of(node.path, dataset, attached)
        return dimensions, used

    def variable(
        self,
        group: Group,
        dataset: H5Dataset,
        value: ValueType,
        dimensions: tuple[Dimension, ...],
    ) -> Variable:
        """Return one variable; a problem with it becomes its `Variable.error`."""
        name = dataset.name
        if len(name) > len(NON_COORDINATE):
            name = name.removeprefix(NON_COORDINATE)
        variable = Variable(name, group.path, dimensions, value.nc_type, value.dtype)
        variable.enum, variable.named_type = value.enum, value.named
        path, h5_path = variable.path, join(group.path, dataset.name)
        needed = _DECODING if value.nc_type else frozenset()
        variable.attributes, lost = self.attributes(dataset.attributes, path, needed)
        for attribute, problem in dataset.problems:
            decodes = attribute in needed if attribute else needed
            (lost if decodes else self.problems).append(problem)
        try:
            if dataset.address in self.broken:
                raise self.broken[dataset.address].with_traceback(None)
            array = array_of(self.frame, dataset, value, path, h5_path)
            for dimension, length in zip(dimensions, array.shape, strict=True):
                if length != dimension.size and not dimension.unlimited:
                    reason = f"has length {length} along {dimension.path!r}, not {dimension.size}"
                    raise FormatError(path, reason)
            if array.shape != variable.shape:
                text = self.fill_texts.get(dataset.address)
                variable.padding = padding_of(dataset, value, text, path)
            variable.array = array
            for config in array.codecs:
                if config["id"] == "hdf5-missing":
                    reason = f"{config['reason']}. {_NOT_ALL}"
                    self.problems.append(_MissingFilterError(path, reason))
            if lost:
                reasons = "; ".join(str(error).removeprefix(f"{path}: ") for error in lost)
                raise UndecodableError(path, f"cannot be decoded ({reasons}); {_AS_STORED}")
        except NCZarrError as error:
            variable.error = error
        return variable

    def attributes(
        self,
        attributes: Mapping[str, H5Attribute],
        path: str,
        needed: frozenset[str] = frozenset(),
    ) -> tuple[dict[str, Attribute], list[NCZarrError]]:
        """Return those attributes of one object that netCDF shows, and why `needed` ones lack."""
        shown: dict[str, Attribute] = {}
        lost: list[NCZarrError] = []
        for name, attribute in attributes.items():
            if name in HIDDEN:
                continue
            heap, type_ = self.heap.get(id(attribute)), attribute.type
            problem: NCZarrError
            try:
                if isinstance(heap, FormatError):
                    raise heap
                decoded = decode_attribute(attribute, heap, self.names)
            except FormatError as error:
                problem = FormatError(path, f"attribute {name!r}: {error.reason}")
            else:
                if decoded is not None:
                    shown[name] = decoded
                    continue
                number = type_.kind in ("integer", "float")
                kind = f"{type_.kind} type of {type_.size} bytes" if number else type_.kind
                reason = f"attribute {name!r} is left out: netCDF has no {kind} in such a format"
                problem = UnsupportedError(path, reason)
                if not number and name not in needed:
                    self.hide(f"{path}:{name}", type_.kind)
                    continue
            (lost if name in needed else self.problems).append(problem)
        return shown, lost
