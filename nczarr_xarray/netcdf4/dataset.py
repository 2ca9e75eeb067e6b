"""Datasets and groups, as netCDF4-python has them."""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter, getitem
from pathlib import Path
from typing import Any, Self

import numpy as np

from nczarr_fsspec.errors import NCZarrError, URLError, on_error
from nczarr_xarray.dataset.dataset import shown_name
from nczarr_xarray.model import Dimension as StoredDimension
from nczarr_xarray.model import Group as StoredGroup
from nczarr_xarray.netcdf4.attributes import BeyondClassicError, ReadOnlyError
from nczarr_xarray.netcdf4.defining import Declares
from nczarr_xarray.netcdf4.open_file import OpenFile, StoredElements
from nczarr_xarray.netcdf4.types import CLASSIC, CompoundType, EnumType, VLType, named, type_of
from nczarr_xarray.netcdf4.variable import Dimension, Variable

#: The class for several files, which `multifile` makes known here.
OF_SEVERAL_FILES: list[Callable[..., Any]] = []


class LikeNetCDF4(type):
    """The class of classes of which the objects of netCDF4-python with that name are instances.

    So `Dataset` may return one for what netCDF4-python writes.
    """

    def __call__(cls, *args: Any, **named: Any) -> Any:
        """Return a dataset: of several files, of netCDF4-python if that writes it, or of `cls`."""
        if cls is Dataset and (args or "filename" in named):
            return _dataset(*args, **named)
        return super().__call__(*args, **named)

    def __instancecheck__(cls, instance: Any) -> bool:
        if super().__instancecheck__(instance):
            return True
        theirs = getattr(sys.modules.get("netCDF4"), cls.__name__, None)
        return theirs is not None and isinstance(instance, theirs)


class Dataset(Declares, metaclass=LikeNetCDF4):
    """A dataset: groups of dimensions, variables and attributes. Use it in ``with``, or close it.

    Parameters
    ----------
    filename
        A path, a URL or anything else that ``xarray.open_dataset(..., engine="nczarr")`` takes. The
        files of a list are joined by `MFDataset`.
    mode
        ``"r"`` reads.
    memory
        Bytes of a file, which `filename` then only names.
    storage_options, replace, allow, consolidated, index_cache
        As of `nczarr_xarray.open_hierarchy`.
    memory_limit
        Bytes of chunks or fragments that may stay in memory while something is written; 256 MiB if
        left out. Texts count, but stay until `sync`.
    cfa_version, max_object_size, subarray_shape
        Of aggregations (``format="CFA4"`` or ``"CFA3"``), as of `nczarr_xarray.to_cfa`.
    clobber, format, diskless, persist, keepweakref, encoding, parallel, comm, info, auto_complex
        As of netCDF4-python. What has no meaning for reading is not looked at; `parallel` and
        `auto_complex` raise `NotImplementedError`.

    Attributes
    ----------
    groups, variables, dimensions : dict
        What the root group declares, by name.
    cmptypes, vltypes, enumtypes : dict
        The user-defined types of the root group, by name.
    data_model, file_format, disk_format : str
        netCDF's names of the format.
    name, path : str
        Of the group; ``"/"``.
    parent : Dataset or None
        The group above.

    Raises
    ------
    FileNotFoundError
        If there is no dataset.
    OSError, ValueError
        If it cannot be read, or not understood.
    """

    __slots__ = (
        "__weakref__",
        "_attributes",
        "_file",
        "_name",
        "_ncstring_attrs",
        "cmptypes",
        "data_model",
        "dimensions",
        "disk_format",
        "enumtypes",
        "file_format",
        "groups",
        "keepweakref",
        "parent",
        "path",
        "variables",
        "vltypes",
    )

    def __init__(
        self,
        filename: Any,
        mode: str = "r",
        clobber: bool = True,
        format: str = "NETCDF4",  # noqa: A002 - netCDF4-python's
        diskless: bool = False,
        persist: bool = False,
        keepweakref: bool = False,
        memory: Any = None,
        encoding: str | None = None,
        parallel: bool = False,
        comm: Any = None,
        info: Any = None,
        auto_complex: bool = False,
        **options: Any,
    ) -> None:
        if parallel:
            raise NotImplementedError("parallel access by MPI is not there: use dask, or threads")
        if auto_complex:
            raise NotImplementedError("auto_complex is not there: complex numbers are structures")
        target = filename if memory is None else bytes(memory)
        file = OpenFile(target, filename, mode if clobber or mode != "w" else "x", format, options)
        with on_error(lambda: file.close(save=False)):  # a part of it is never stored
            self._begin(file, None, file.root, keepweakref)
            if file.writer is not None:
                file.writer.begin(self)

    def _begin(
        self, file: OpenFile, parent: Dataset | None, stored: StoredGroup, keepweakref: bool
    ) -> None:
        """Make the object of a group, with all below it."""
        self._file = file
        self._name = shown_name(stored.name)
        self._attributes = dict(stored.attributes)
        self._ncstring_attrs = parent is not None and parent._ncstring_attrs  # noqa: SLF001
        self.keepweakref = keepweakref
        self.parent = parent
        self.path = shown_name(stored.path)
        self.data_model = self.file_format = file.data_model
        self.disk_format = file.disk_format
        self.enumtypes = {shown_name(n): EnumType.of(one) for n, one in stored.types.items()}
        made = {shown_name(name): named(one) for name, one in stored.named_types.items()}
        self.cmptypes = {n: one for n, one in made.items() if isinstance(one, CompoundType)}
        self.vltypes = {n: one for n, one in made.items() if isinstance(one, VLType)}
        self.dimensions: dict[str, Dimension] = {}
        for dimension in stored.dimensions.values():
            self.dimensions[shown_name(dimension.name)] = self._dimension(dimension)
        self.variables: dict[str, Variable] = {}
        for variable in stored.variables.values():
            if file.writer is not None and variable.error is not None:
                raise variable.error
            name = shown_name(variable.name)
            along = tuple(self._dimension(one) for one in variable.dimensions)
            self.variables[name] = Variable(
                self,
                name,
                type_of(variable, native=file.disk_format == "NETCDF3"),
                along,
                dict(variable.attributes),
                StoredElements(file.opened, variable)
                if file.writer is None
                else file.writer.change(variable, along),
                variable.enum,
            )
        self.groups: dict[str, Group] = {}
        for child in stored.groups.values():
            self.add_group(child)

    def add_group(self, stored: StoredGroup) -> None:
        """Make the object of a group in this one, with all below it."""
        group = Group.__new__(Group)
        group._begin(self._file, self, stored, self.keepweakref)  # noqa: SLF001 - it is a dataset
        self.groups[group.name] = group

    def _dimension(self, stored: StoredDimension) -> Dimension:
        """Return the object of a stored dimension; of another branch, no group declares it here."""
        found = self._file.dimensions.get(stored.path)
        if found is None:
            found = Dimension(self, shown_name(stored.name), stored.size)
            found._unlimited, found._size = stored.unlimited, stored.size  # noqa: SLF001
            self._file.dimensions[stored.path] = found
        return found

    name = property(attrgetter("_name"))

    # -- reading ----------------------------------------------------------------------------------

    def __getitem__(self, elem: str) -> Any:
        """Return the variable or the group at a path below this one."""
        folder, last = posixpath.split(posixpath.normpath(elem))
        group: Dataset = self
        for name in filter(None, folder.split("/")):
            group = group.groups[name]
        for members in (group.groups, group.variables):
            if last in members:
                return members[last]
        raise IndexError(f"{last} not found in {group.path}")

    #: so that programs take one for a dataset, not for a list of datasets, as wrf-python does
    __iter__ = None

    def __contains__(self, key: object) -> bool:
        raise TypeError(
            "Dataset does not support membership operations. Perhaps try 'varname in "
            "dataset.variables' or 'dimname in dataset.dimensions'."
        )

    def load(self, names: Iterable[str]) -> dict[str, Any]:
        """Read several variables, those of a remote dataset in one round of requests.

        Parameters
        ----------
        names
            Of variables, or paths below this group.

        Returns
        -------
        dict
            What ``self[name][...]`` returns, by name.

        Raises
        ------
        NCZarrError
            If one cannot be read.
        """
        variables = {name: self[name] for name in names}
        if self._file.writer is not None:
            return {name: one[...] for name, one in variables.items()}
        stored = [(one._elements.variable, None) for one in variables.values()]  # noqa: SLF001
        loaded = dict(zip(variables, self._file.opened.read_many(stored), strict=True))
        for name, data in loaded.items():
            if isinstance(data, NCZarrError):
                raise data
            everything = (slice(None),) * variables[name].ndim
            loaded[name] = variables[name]._decoded(data, everything)  # noqa: SLF001
        return loaded

    def get_variables_by_attributes(self, **kwargs: Any) -> list[Variable]:
        """Return the variables of the group whose attributes are as given.

        Parameters
        ----------
        **kwargs
            By name the value, or a function that tells of a value (None for none) whether it is
            wanted.
        """

        def agrees(variable: Variable, name: str, wanted: Any) -> bool:
            if callable(wanted):
                return bool(wanted(getattr(variable, name, None)))
            return hasattr(variable, name) and bool(np.all(getattr(variable, name) == wanted))

        return [
            variable
            for variable in self.variables.values()
            if kwargs and all(agrees(variable, name, value) for name, value in kwargs.items())
        ]

    def tocdl(
        self, coordvars: bool = False, data: bool = False, outfile: str | None = None
    ) -> str | None:
        """Return the dataset as CDL, the text of ``ncdump``.

        Parameters
        ----------
        coordvars, data
            Whether there are the values of coordinates, or of all variables.
        outfile
            The path of a file to write instead.

        Notes
        -----
        netCDF's own files on this machine are printed by ``ncdump -s`` of netCDF-C, if that and
        netCDF4-python are installed: with what it tells of storage.
        """
        text = self._file.cdl(coordinates=coordvars, data=data)
        if outfile is None:
            return text
        Path(outfile).write_text(text)
        return None

    @staticmethod
    def fromcdl(
        cdlfilename: Any,
        ncfilename: Any = None,
        mode: str = "a",
        format: str = "NETCDF4",  # noqa: A002 - netCDF4-python's
    ) -> Any:
        """Make a netCDF file of CDL by ``ncgen``, as netCDF4-python does, and open it."""
        from nczarr_xarray.netcdf4.through_netcdf4 import netcdf4_python

        return netcdf4_python(cdlfilename).Dataset.fromcdl(cdlfilename, ncfilename, mode, format)

    def filepath(self, encoding: str | None = None) -> str:
        """Return the path or URL that was opened."""
        return self._file.path

    def isopen(self) -> bool:
        """Tell whether the dataset is open."""
        return not self._file.closed

    # -- switches of all variables ----------------------------------------------------------------

    def _each(self, switch: str, value: bool) -> None:
        for member in (*self.variables.values(), *self.groups.values()):
            getattr(member, switch)(value)

    def set_auto_maskandscale(self, value: bool) -> None:
        """Switch masking and scaling of all variables on or off, those of groups below, too."""
        self._each("set_auto_maskandscale", value)

    def set_auto_mask(self, value: bool) -> None:
        """Switch masking of all variables on or off."""
        self._each("set_auto_mask", value)

    def set_auto_scale(self, value: bool) -> None:
        """Switch scaling of all variables on or off."""
        self._each("set_auto_scale", value)

    def set_always_mask(self, value: bool) -> None:
        """Switch on or off that arrays of all variables are always masked arrays."""
        self._each("set_always_mask", value)

    def set_auto_chartostring(self, value: bool) -> None:
        """Switch on or off that characters with ``_Encoding`` are texts."""
        self._each("set_auto_chartostring", value)

    def set_ncstring_attrs(self, value: bool) -> None:
        """Switch on or off that attributes of one text are NC_STRING."""
        self._ncstring_attrs = bool(value)
        self._each("set_ncstring_attrs", value)

    # -- the end ----------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make valid what was written: readers see this state from now on."""
        self._file.sync()

    def close(self) -> None:
        """Make valid what was written, and release the dataset."""
        self._file.close(save=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self._file.close(save=kind is None)
        finally:
            self._file.close(save=False)

    def __reduce__(self) -> Any:
        if self.parent is not None:
            return getitem, (self.parent, self._name)
        file = self._file
        if file.writer is not None:
            raise URLError(file.path, "is being written: another process cannot have a part of it")
        if hasattr(file.target, "read"):
            raise URLError(file.path, "is a file object, which another process cannot open")
        return partial(Dataset, file.target, **file.options), ()

    @property
    def _classic(self) -> bool:  # type: ignore[override]
        return self.data_model == "NETCDF4_CLASSIC"

    def _change(self, kind: str = "char") -> None:
        if self._file.closed:
            raise RuntimeError(f"NetCDF: Not a valid ID: {self._file.path} is closed")
        if self._file.writer is None:
            raise ReadOnlyError(f"NetCDF: Write to read only: {self._file.path} was opened to read")
        if self._classic and kind not in CLASSIC:
            raise BeyondClassicError(
                "NetCDF: Attempting netcdf-4 operation on strict nc3 netcdf-4 file: "
                f"{kind} needs format='NETCDF4'"
            )

    def __repr__(self) -> str:
        lines = [repr(type(self))]
        if self.path == "/":
            lines.append(
                f"root group ({self.data_model} data model, file format {self.disk_format}):"
            )
        else:
            lines.append(f"group {self.path}:")
        lines += [f"    {name}: {self.getncattr(name)!s}" for name in self.ncattrs()]
        dimensions = [f"{name}({len(one)})" for name, one in self.dimensions.items()]
        variables = [
            f"{one.dtype} {name}({', '.join(one.dimensions)})"
            for name, one in self.variables.items()
        ]
        lines.append(f"    dimensions(sizes): {', '.join(dimensions)}")
        lines.append(f"    variables(dimensions): {', '.join(variables)}")
        lines.append(f"    groups: {', '.join(self.groups)}")
        return "\n".join(lines)


def _dataset(filename: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
    """Return what `Dataset` returns for its arguments."""
    if isinstance(filename, (list, tuple)):
        (several,) = OF_SEVERAL_FILES
        return several(filename, **named)
    if mode not in ("r", "rs"):
        from nczarr_xarray.netcdf4 import through_netcdf4 as files

        kind = args[1] if len(args) > 1 else named.get("format", "NETCDF4")
        ours = kind.startswith("CFA") or files.writes_tree(filename, kind)
        if not (ours or files.changes_aggregation(filename, mode, named.get("storage_options"))):
            return files.open_to_write(filename, mode, *args, **named)
    return type.__call__(Dataset, filename, mode, *args, **named)


class Group(Dataset):
    """A group of a dataset; `Dataset.createGroup` makes one."""

    __slots__ = ()

    def __new__(cls, parent: Dataset | None = None, name: str = "", **_: Any) -> Any:
        """Return a new group of `parent`."""
        return object.__new__(cls) if parent is None else parent.createGroup(name)

    def __init__(self, parent: Dataset, name: str) -> None:
        """Do nothing: `Dataset.createGroup` has made it."""

    def close(self) -> None:
        """Raise `OSError`: only datasets are closed."""
        raise OSError("cannot close a `Group` (only applies to Dataset)")
