"""xarray's datasets as the netCDF data model: CF encoding, types, dimensions, storage."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import xarray as xr

from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.text import did_you_mean
from nczarr_xarray.backend.compat import dataarray_to_dataset, named_as_stored
from nczarr_xarray.export.contents import Contents, Item
from nczarr_xarray.export.form.attributes import encode_attribute
from nczarr_xarray.export.form.encode import Options, encoded
from nczarr_xarray.export.form.lacking import EQUAL_MARK, Lacking
from nczarr_xarray.export.form.numbers import becomes_missing, leave_out
from nczarr_xarray.export.form.rounding import asked_rounding
from nczarr_xarray.export.form.storage import (
    QUANTIZE_KEYS,
    StorageRequest,
    netcdf_type,
    note_text,
    storage,
)
from nczarr_xarray.export.form.text import decoded, longest_text, text_type
from nczarr_xarray.formats.nczarr.spellings import Profile
from nczarr_xarray.formats.nczarr.values import fill_attribute
from nczarr_xarray.model import Attribute, Dimension, EnumType, Group, Variable, bytes_of, join


class Exporter:
    """Collects datasets into `Contents`, and every problem that is found with them.

    Parameters
    ----------
    profile
        The format to write.
    root
        See `Contents`.
    align
        Whether dask's blocks will be moved to borders of chunks.
    """

    def __init__(self, profile: Profile, root: Group | None = None, *, align: bool = False) -> None:
        self.profile = profile
        self.align = align
        self.contents = Contents(root or Group())
        self.problems: list[str] = []
        self.lacking = Lacking(netcdf4=False, json=profile.spelling is None)

    def check(self, url: str) -> None:
        """Raise `ExportError` for what cannot be stored; warn of what changes its form."""
        if self.problems:
            found = dict.fromkeys(self.problems)
            raise ExportError(url, "cannot be exported as it is; nothing was written", found)
        self.lacking.tell(url)

    def add(self, path: str, dataset: xr.Dataset, options: Options) -> None:
        """Add a dataset as the group at `path`."""
        group = self.contents.group(path)
        unlimited = self.unlimited(path, dataset, options)
        for name in options.encoding:
            if name not in dataset.variables:
                hint = did_you_mean(str(name), map(str, dataset.variables))
                reason = f"encoding is given for {name!r}: no such variable{hint}"
                self.problems.append(f"{path}: {reason}")
            elif not isinstance(options.encoding[name], Mapping):
                self.problems.append(
                    f"{path}: the encoding of {name!r} is {options.encoding[name]!r:.60}; it must "
                    "be castable to a dict"
                )
        for name in dataset.variables:
            if not (name is None or isinstance(name, str)):  # xarray has a name for None
                self.problems.append(f"{path}: the name {name!r} is not text")
                return
        form = encoded(path, dataset, options, unlimited)
        self.problems += form.problems
        for name, value in form.attributes.items():
            self.attribute(group, group.path, name, value)
        values = named_as_stored(dataset).variables
        for name, source in form.variables.items():
            explicit = name in options.encoding
            came = not (explicit or options.encoded)
            if came and becomes_missing(source, values[name], source.attrs):
                self.lacking.note(EQUAL_MARK, join(group.path, str(name)))
            given = options.encoding.get(name, source.encoding)
            try:
                if isinstance(given, Mapping):
                    self.variable(group, str(name), source, given, explicit, unlimited)
                    told = form.types.get(name)
                    self.enum(group, str(name), source.dtype if told is None else told)
            except ValueError as error:
                self.problems.append(f"{join(group.path, str(name))}: {error}")

    def unlimited(self, path: str, dataset: xr.Dataset, options: Options) -> frozenset[Hashable]:
        grows = self.profile.generation == "G2A"
        if options.unlimited is None:
            found = dataset.encoding.get("unlimited_dims") or ()
            names = {found} if isinstance(found, str) else set(found)
            return frozenset(names) if grows else frozenset()
        given = options.unlimited
        names = {given} if isinstance(given, str) else set(given)
        for name in sorted(map(str, names - set(dataset.dims))):
            self.problems.append(f"{path}: unlimited_dims names {name!r}: no such dimension")
        if names and not grows and self.profile.generation != "v2":
            self.problems.append(f"{path}: unlimited dimensions need compat='4.9.3'")
        return frozenset(names)

    def attribute(self, owner: Group | Variable, where: str, name: Hashable, value: Any) -> None:
        """Add an attribute to a group or a variable."""
        if not isinstance(name, str):
            self.problems.append(f"{where}: the attribute name {name!r} is not text")
            return
        strings = self.profile.generation != "G2U"
        try:
            owner.attributes[name] = made = encode_attribute(name, value, strings=strings)
            self.lacking.note_json(made, f"{where}:{name}")
        except ValueError as error:
            self.problems.append(f"{where}: attribute {name!r} {error}")

    def variable(
        self,
        group: Group,
        name: str,
        source: xr.Variable,
        encoding: Mapping[str, Any],
        explicit: bool,
        unlimited: frozenset[Hashable],
    ) -> None:
        path = join(group.path, name)
        wanted = text_type(encoding.get("dtype"))
        if source.dtype.kind == "S" and wanted == "string":
            source = decoded(source)
        nc_type = netcdf_type(source.dtype)
        if explicit and wanted not in (None, nc_type):
            raise ValueError(
                f"would be {nc_type or source.dtype}, and the dtype of its encoding is "
                f"{encoding['dtype']!r}: convert it with astype"
            )
        if nc_type is None:
            raise ValueError(f"is of type {source.dtype}, which netCDF does not have")
        dimensions = tuple(
            self.dimension(group, dimension, size, dimension in unlimited)
            for dimension, size in zip(source.dims, source.shape, strict=True)
        )
        attributes = dict(source.attrs)
        if "_nczarr_maxstrlen" in attributes and nc_type == "string":
            encoding = {"_nczarr_maxstrlen": attributes["_nczarr_maxstrlen"], **encoding}
        fill = attributes.pop("_FillValue", None)
        if np.ndim(fill) == 1 and np.size(fill) == 1:  # as netCDF stores it
            fill = np.asarray(fill)[0]
        try:
            rounding = asked_rounding(source.dtype, encoding, attributes, fill)
        except ValueError as error:
            if explicit:
                raise
            encoding = leave_out(path, encoding, QUANTIZE_KEYS, error)
            rounding = None
        request = StorageRequest(
            path=path.strip("/"),
            dims=source.dims,
            shape=source.shape,
            unlimited=tuple(d.unlimited for d in dimensions),
            dtype=source.dtype,
            encoding=encoding,
            explicit=explicit,
            blocks=source.chunks,
            fill=fill,
            text_length=_room(source, fill) if nc_type == "string" else 0,
            align=self.align,
        )
        array = storage(request, self.profile)
        dtype = array.dtype if nc_type != "string" else np.dtype(object)
        variable = Variable(name, group.path, dimensions, nc_type, dtype, array=array)
        if fill is not None:  # the first one, as netCDF-4 files have it
            variable.attributes["_FillValue"] = fill_attribute(nc_type, fill)
        for attribute, value in attributes.items():
            self.attribute(variable, path, attribute, value)
        note_text(variable, self.profile)
        group.variables[name] = variable
        asked = request.chunks_are_asked_for
        self.contents.items.append(Item(variable, source, rounding, asked))

    def enum(self, group: Group, name: str, dtype: Any) -> None:
        """Give an added variable the enum that xarray notes in its dtype."""
        variable = group.variables[name]
        told: Mapping[str, Any] = getattr(dtype, "metadata", None) or {}
        members = told.get("enum")
        if not isinstance(members, Mapping) or variable.dtype.kind not in "iu":
            return
        type_name = str(told.get("enum_name") or f"{name}_t")
        variable.enum = EnumType(type_name, dict(members), str(variable.nc_type), group.path)
        self.lacking.note_enum(variable)

    def dimension(self, group: Group, name: Hashable, size: int, unlimited: bool) -> Dimension:
        """Return the dimension that `name` means in `group`: an existing one, or a new one."""
        if not isinstance(name, str):
            raise ValueError(f"the dimension name {name!r} is not text")  # noqa: TRY004
        where, short = group.path, name
        if name.startswith("/"):  # how a dataset names one that another of its name hides
            where, _, short = name.rpartition("/")
            where = where or "/"
        found = self.nearest(where, short)
        if found is not None and found.size == size:
            return found
        if found is not None and found.group == where:
            raise ValueError(f"has length {size} along {found.path}, which has length {found.size}")
        new = Dimension(short, size, unlimited, where)
        self.contents.group(where).dimensions[short] = new
        return new

    def nearest(self, where: str, name: str) -> Dimension | None:
        """Return the dimension called `name` that is visible from the group at `where`."""
        while True:
            known = self.contents.group(where).dimensions.get(name)
            if known is not None or where == "/":
                return known
            where = where.rpartition("/")[0] or "/"


def group_attributes(
    profile: Profile, path: str, attributes: Mapping[Any, Any], url: str
) -> dict[str, Attribute]:
    """Return attributes for an existing group; errors and warnings as of `Exporter.check`."""
    exporter, node = Exporter(profile), Group()
    for name, value in attributes.items():
        exporter.attribute(node, path, name, value)
    exporter.check(url)
    return node.attributes


def _room(source: xr.Variable, fill: Any) -> int:
    """Return the number of bytes of the longest text, which may be that of the fill value."""
    longest = longest_text(source)
    return max(longest, len(bytes_of(fill))) if isinstance(fill, str) else longest


# -- what is given, by group -----------------------------------------------------------------------


Exportable: TypeAlias = "xr.Dataset | xr.DataArray | xr.DataTree"


def asked_groups(
    obj: Exportable,
    target: Any,
    group: str | None,
    encoding: Mapping[Any, Any] | None,
    unlimited_dims: Any,
    *,
    write_inherited_coords: bool = False,
) -> tuple[dict[str, tuple[xr.Dataset, Options]], str]:
    """Return the datasets to write by absolute path, and the group that all of them are in."""
    if not (group is None or isinstance(group, str)):
        raise ExportError("group", f"must be a string or None, not {group!r:.80}")
    if not (encoding is None or isinstance(encoding, Mapping)):
        raise ExportError("encoding", f"must be a dict of dicts, not {type(encoding).__name__}")
    if not (unlimited_dims is None or isinstance(unlimited_dims, Iterable)):
        raise ExportError(
            "unlimited_dims", f"must be names of dimensions, not {unlimited_dims!r:.80}"
        )
    path = "/" + "/".join(filter(None, (group or "").split("/")))
    groups = _groups(obj, path, write_inherited_coords=write_inherited_coords)
    tree = isinstance(obj, xr.DataTree)
    given = {"encoding": encoding, "unlimited_dims": unlimited_dims} if tree else {}
    for argument, option in given.items():
        for name in option if isinstance(option, Mapping) else ():
            if _joined(path, str(name)) not in groups:
                raise ExportError(
                    str(target),
                    f"unexpected {argument} group {name!r}: the tree has {sorted(groups)}",
                )
    asked = {
        where: (one, _asked(where, one, encoding or {}, unlimited_dims, path if tree else None))
        for where, one in groups.items()
    }
    return asked, path


def _groups(obj: Exportable, path: str, *, write_inherited_coords: bool) -> dict[str, xr.Dataset]:
    if isinstance(obj, xr.DataArray):
        return {path: dataarray_to_dataset(obj)}
    if isinstance(obj, xr.Dataset):
        return {path: obj}
    if not isinstance(obj, xr.DataTree):
        raise TypeError(f"{type(obj).__name__} is no Dataset, DataArray or DataTree")
    found = {}
    for node in obj.subtree:
        relative = node.relative_to(obj)
        inherit = write_inherited_coords or node is obj
        found[_joined(path, relative)] = node.to_dataset(inherit=inherit)
    return found


def _joined(path: str, relative: str) -> str:
    relative = relative.strip("/")
    return path if relative in ("", ".") else f"{path.rstrip('/')}/{relative}"


def _asked(
    path: str, dataset: xr.Dataset, encoding: Mapping[Any, Any], unlimited: Any, top: str | None
) -> Options:
    """Return the options for the group at `path`; a tree, which has a `top`, has them by group."""
    if top is None:
        return Options(encoding, unlimited)

    def of_group(mapping: Mapping[Any, Any]) -> Any:
        return {_joined(top, str(name)): value for name, value in mapping.items()}.get(path)

    own = of_group(unlimited) if isinstance(unlimited, Mapping) else unlimited
    if own is not None and not isinstance(unlimited, Mapping):
        own = {own} if isinstance(own, str) else set(own)
        own &= {str(name) for name in dataset.dims}  # a group may have only some
    return Options(of_group(encoding) or {}, own)
