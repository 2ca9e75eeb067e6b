"""Views of the data model as xarray objects: data stores and datasets."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, overload

import numpy as np
import xarray as xr

from nczarr_fsspec.errors import (
    ChangedError,
    DatasetNotFoundError,
    FormatError,
    NCZarrError,
    NCZarrWarning,
    StoreError,
    caller_level,
)
from nczarr_fsspec.keystore import KeyStore
from nczarr_xarray.backend.compat import (
    VLEN_STRING,
    AbstractDataStore,
    Index,
    LazilyIndexedArray,
    StoreBackendEntrypoint,
    load_asynchronously,
)
from nczarr_xarray.backend.encoding import is_odd, odd_packing, variable_encoding
from nczarr_xarray.backend.lazy_array import NCZarrArray
from nczarr_xarray.dataset.dataset import (
    Opened,
    attribute_value,
    dimension_names,
    shown_attributes,
    shown_name,
)
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.open import (
    ATTEMPTS,
    always_changing,
    open_either,
    open_file,
    open_keys,
    place_of,
)
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.registry import OpenOptions
from nczarr_xarray.formats.rounds import collection_paused
from nczarr_xarray.model import (
    Dimension,
    Group,
    UndecodableError,
    Variable,
    bytes_of,
    element_of,
)


def open_groups(
    target: Any,
    options: OpenOptions,
    drop_variables: str | Iterable[str] | None = None,
    **decoding: Any,
) -> dict[str, xr.Dataset]:
    """Open a group, and all below it for a tree, as datasets by path relative to it.

    `drop_variables` and `decoding` as for `xarray.open_dataset`.
    """
    dropped = {drop_variables} if isinstance(drop_variables, str) else set(drop_variables or ())
    options = replace(options, dropped=frozenset(dropped))
    before = None
    for _ in range(ATTEMPTS):
        is_open = isinstance(target, Opened)
        opened = target if is_open else open_either(target, options, open_keys, open_file)
        with ExitStack() as cleanup:
            cleanup.callback(opened.close)
            top = opened.hierarchy.root.find(options.path)
            if (
                top is None
            ):  # of what was open before; `open_keys` and `open_file` raise by themselves
                raise DatasetNotFoundError(opened.store.url, f"has no group {options.group!r}")
            stores = [
                NCZarrDataStore(opened, member, dropped, decoding)
                for member in (top.walk() if options.tree else [top])
            ]
            if not _load_what_opening_touches(opened, stores) and not is_open:
                continue
            if not (opened.holds() or (before is not None and _agree(stores, before))):
                before = stores
                continue
            for problem in opened.hierarchy.problems:
                _warn(str(problem))
            with collection_paused():
                datasets = {
                    shown_name(_relative(store.group.path, top.path)): store.open_dataset()
                    for store in stores
                }
            if opened.reading is not None:
                opened.reading.forget()
            cleanup.pop_all()
        return datasets
    raise StoreError(opened.store.url, always_changing(ATTEMPTS))


def open_group(opened: Opened, group: Group, **decoding: Any) -> xr.Dataset:
    """Return one group of an open dataset; `decoding` as for `xarray.open_dataset`.

    Coordinates are not read, so that changing a part of a dataset costs what that part costs.
    """
    return NCZarrDataStore(opened, group, set(), decoding).open_dataset()


def as_tree(datasets: dict[str, xr.Dataset]) -> xr.DataTree:
    """Join the groups of one dataset.

    Raises
    ------
    FormatError
        If a group and its parent use one dimension name for different lengths.
    """
    try:
        tree = xr.DataTree.from_dict(datasets)
    except ValueError as error:
        for dataset in datasets.values():
            dataset.close()
        raise FormatError(
            next(iter(datasets.values())).encoding.get("source", "dataset"),
            f"cannot be one DataTree ({error}); xarray.open_groups opens every group by itself",
        ) from error
    for path, dataset in datasets.items():
        tree[path].set_close(dataset.close)
    return tree


class NCZarrDataStore(AbstractDataStore):
    """One group, in the form that xarray's decoding needs.

    Parameters
    ----------
    opened
        The dataset.
    group
        One of its groups.
    dropped
        Names of variables to leave out. They are not read, but others are decoded by them.
    decoding
        Arguments of xarray that say how values are decoded.
    """

    def __init__(
        self,
        opened: Opened,
        group: Group,
        dropped: set[str],
        decoding: Mapping[str, Any],
    ) -> None:
        self.opened = opened
        self.group = group
        hierarchy = opened.hierarchy
        self.as_json = hierarchy.generation in ("v2", "v3") and hierarchy.writer is None
        named = {shown_name(name): variable for name, variable in group.variables.items()}
        self.variables = {n: v for n, v in named.items() if n not in dropped}
        self.dropped = dropped
        self.decoding = decoding
        self.names = dimension_names(group.path, self.variables.values())
        self.loaded: dict[str, np.ndarray] = {}
        self.errors: dict[str, NCZarrError] = {}
        self.readers: dict[str, VariableReader] = {}
        #: those of the dataset that is being opened: what fails meanwhile is noted
        self.arrays: dict[str, NCZarrArray] | None = None
        for name, given in [*self.variables.items()]:
            self.variables[name] = variable = self.decodable(name, given)
            self.readers[name] = reader = opened.reader(variable)
            try:
                reader.prepare()
            except NCZarrError as error:
                self.fail(name, error)

    def decodes(self, name: str, option: str) -> bool:
        """Tell whether an option of decoding holds for a variable."""
        given = self.decoding.get(option)
        return given.get(name) is not False if isinstance(given, Mapping) else given is not False

    def decodable(self, name: str, variable: Variable) -> Variable:
        """Return a variable with the error that concerns its decoding, if it is to be decoded."""
        scaled = self.decodes(name, "mask_and_scale")
        if isinstance(variable.error, UndecodableError):
            if scaled or self.decodes(name, "decode_times"):
                return variable
            _warn(str(variable.error))
            return replace(variable, error=None)
        attributes = dict(variable.attributes)
        odd = [attributes.pop(a.name) for a in odd_packing(variable)]
        if not (scaled and odd):
            return variable
        shown = f"attribute {odd[0].name!r} ({attribute_value(odd[0])!r:.80})"
        reason = f"{shown} is not what CF has there; decode_cf=False reads the stored values"
        error = variable.error or UndecodableError(variable.path, reason)
        return replace(variable, attributes=attributes, error=error)

    def fail(self, name: str, error: NCZarrError) -> None:
        """Note a variable that cannot be read; it raises when it is touched."""
        if name in self.errors:
            return
        self.errors[name] = error
        variable = self.variables[name]
        # xarray would look into objects to see whether they are dates
        dtype = np.dtype("f8") if variable.dtype.kind == "O" else variable.dtype
        self.variables[name] = variable = replace(variable, error=error, dtype=dtype)
        self.readers[name] = self.opened.reader(variable)

    def touched(self) -> Iterator[tuple[str, Variable]]:
        """Yield the readable variables that xarray reads to open the group, by name.

        It makes indexes of some, and of text it wants to know the longest.
        """
        for name, variable in self.variables.items():
            indexed = self.dimensions_of(variable) == (name,)
            text = variable.dtype.kind == "O" and element_of(variable.dtype) is None
            if name not in self.errors and (indexed or text):
                yield name, variable

    def open_dataset(self) -> xr.Dataset:
        """Decode the group to a Dataset, and warn of variables that cannot be read."""
        arrays: dict[str, NCZarrArray] = {}
        self.arrays = arrays
        try:
            dataset = self.decoded()
        except (AttributeError, TypeError, ValueError):
            if not self.set_aside():
                raise
            dataset = self.decoded()
        finally:
            self.arrays = None
        for name, array in arrays.items():
            array.failed = None
            array.reader = self.readers[name]
        for name, error in self.errors.items():
            path = self.variables[name].path
            _warn(f"variable {path!r} cannot be read and raises when it is used: {error}")
        for variable in dataset.variables.values():
            load_asynchronously(variable)
        for name in self.errors:
            if name in dataset.coords and dataset[name].dims == (name,):
                # without an index of its own xarray would load it to make one
                index = {name: UnreadableIndex(self.errors[name])}
                variable = dataset.variables[name]
                dataset = dataset.assign_coords(xr.Coordinates({name: variable}, index))
        dataset.set_close(self.close)
        return dataset

    def decoded(self) -> xr.Dataset:
        """Let xarray decode the group; it is the one to drop variables (see `get_variables`)."""
        entrypoint = StoreBackendEntrypoint()
        return entrypoint.open_dataset(self, drop_variables=self.dropped, **self.decoding)

    def set_aside(self) -> bool:
        """Leave out attributes that xarray cannot decode, and tell whether there are any.

        A single one would keep the whole dataset from opening.
        """
        found = False
        for name, variable in self.variables.items():
            attributes = dict(variable.attributes)
            odd = [attribute for attribute in attributes.values() if is_odd(attribute)]
            for attribute in odd:
                del attributes[attribute.name]
                names = attribute.value
                if attribute.name == "coordinates" and isinstance(names, tuple):
                    text = replace(attribute, type="char", value=" ".join(names))  # as CF has them
                    attributes[text.name] = text
                    continue
                shown = f"{attribute.name!r} ({attribute_value(attribute)!r:.80})"
                _warn(
                    f"variable {variable.path!r}: attribute {shown} is not what CF has there, and "
                    "is left out; open with decode_cf=False to see it"
                )
            if odd:
                self.variables[name] = replace(variable, attributes=attributes)
                found = True
        return found

    def dimensions_of(self, variable: Variable) -> tuple[str, ...]:
        """Return the dimensions of `variable` as the dataset calls them."""
        return tuple(self.names[dimension.path] for dimension in variable.dimensions)

    def get_variables(self) -> dict[str, xr.Variable]:
        """Return the variables, with those to be dropped.

        xarray decodes by them, too: bounds have the units of their coordinate, and characters are
        not joined along a dimension of other variables.
        """
        sizes = self.get_dimensions()
        found = {}
        for member in self.group.variables.values():
            name = shown_name(member.name)
            if name in self.dropped:
                found[name] = self.unread(member)
            else:
                found[name] = self.variable(name, self.variables[name], sizes)
        return found

    def unread(self, variable: Variable) -> xr.Variable:
        """Return a variable that will be dropped: nothing finds out whether it can be read."""
        names = [self.names.get(d.path, d.path) for d in variable.dimensions]
        data = LazilyIndexedArray(NCZarrArray(self.opened.reader(variable)))
        return xr.Variable(names, data, shown_attributes(variable))

    def variable(self, name: str, variable: Variable, sizes: Mapping[str, int]) -> xr.Variable:
        if variable.error is not None and not variable.dimensions and name in sizes:
            # the variable of a dimension must lie along it
            size = sizes[name]
            variable = replace(variable, dimensions=(Dimension(name, size, group=""),))
            names: tuple[str, ...] = (name,)
            self.readers[name] = self.opened.reader(variable)
        else:
            names = self.dimensions_of(variable)
        data: Any = self.loaded.get(name)
        if data is None:
            array = NCZarrArray(self.readers[name])
            if self.arrays is not None:  # xarray looks at the first and the last time
                self.arrays[name] = array
                array.failed = partial(self.fail, name)
            data = LazilyIndexedArray(array)
        elif len(set(names)) < len(names) and variable.nc_type == "string":
            data = data.astype(str)  # as xarray would, which fails where dimensions are equal
        elif data.dtype.kind == "O" and variable.nc_type == "string":
            # in bare objects, xarray would look for dates
            data = LazilyIndexedArray(data.astype(VLEN_STRING))
        elif data.dtype.kind != "O":
            # of a bare array, xarray asks whether it is dask's, and imports dask.array for that
            data = LazilyIndexedArray(data)
        attributes = shown_attributes(variable, as_json=self.as_json)
        if variable.nc_type == "string" and data.dtype.kind in "OU":
            attributes.pop("_Encoding", None)  # by which xarray would decode bytes
        fill = attributes.get("_FillValue")
        # xarray compares decoded text with it, but characters while they are bytes
        char = variable.dtype.itemsize == 1 and bool(variable.dimensions)
        if variable.dtype.kind == "S" and isinstance(fill, str):
            fill = fill if "_Encoding" in attributes and not char else bytes_of(fill)
        if variable.dtype.kind == "S" and isinstance(fill, bytes):
            empty = b"\0" if variable.nc_type == "char" else b""  # a char is never nothing
            attributes["_FillValue"] = np.bytes_(fill or empty)
        classic = self.opened.hierarchy.generation.startswith("CDF-")
        encoding = variable_encoding(variable, names, self.opened.store.url, classic=classic)
        if "least_significant_digit" in attributes:  # an argument of netCDF4's createVariable
            encoding["least_significant_digit"] = attributes.pop("least_significant_digit")
        return xr.Variable(names, data, attributes, encoding)

    def get_attrs(self) -> dict[str, Any]:
        return shown_attributes(self.group, as_json=self.as_json)

    def get_dimensions(self) -> dict[str, int]:
        return {
            self.names[dimension.path]: dimension.size
            for variable in self.variables.values()
            for dimension in variable.dimensions
        }

    def get_encoding(self) -> dict[str, Any]:
        unlimited = {shown_name(d.name) for d in self.group.dimensions.values() if d.unlimited}
        return {"unlimited_dims": unlimited, "source": self.opened.store.url}

    def close(self) -> None:
        self.opened.close()


class UnreadableIndex(Index):
    """The index of a coordinate that cannot be read: any use of its labels raises the reason."""

    def __init__(self, error: NCZarrError) -> None:
        self.error = error

    def sel(self, labels: dict[Any, Any], **options: Any) -> Any:
        raise self.error.with_traceback(None)

    def join(self, other: Index, how: str = "inner") -> Any:
        raise self.error.with_traceback(None)

    def to_pandas_index(self) -> Any:
        raise self.error.with_traceback(None)

    @classmethod
    def concat(cls, indexes: Sequence[Any], *_: Any, **__: Any) -> Any:
        raise indexes[0].error.with_traceback(None)

    def isel(self, indexers: Mapping[Any, Any]) -> None:
        """Return None, so that xarray indexes the coordinate, whose index is no more."""

    def equals(self, other: Index, **options: Any) -> bool:
        # of another dataset, the labels may be others; a copy has another error
        return isinstance(other, UnreadableIndex) and str(self.error) == str(other.error)


def _load_what_opening_touches(opened: Opened, stores: list[NCZarrDataStore]) -> bool:
    """Load what xarray reads while it opens a dataset, for all groups in one read round.

    xarray would read these variables one by one, and one that cannot be read
    would keep the whole dataset from opening.

    Returns
    -------
    bool
        False if there is another file at its place by now, such as a master that has grown.
    """
    file, is_current = opened.store, True
    if isinstance(file, DataFile):  # to be opened again without a request for them
        opened = replace(opened, store=file.remembering())
    wanted = [(store, *named) for store in stores for named in store.touched()]
    values = opened.read_many([(variable, None) for _, _, variable in wanted])
    for (store, name, _), value in zip(wanted, values, strict=True):
        if isinstance(value, NCZarrError):
            store.fail(name, value)
            is_current &= not (isinstance(value, ChangedError) and value.object == file.url)
        else:
            store.loaded[name] = value
    if isinstance(file, DataFile):
        file.save()
    return is_current


def _agree(stores: list[NCZarrDataStore], before: list[NCZarrDataStore]) -> bool:
    """Tell whether an earlier opening found the same metadata and values of coordinates."""
    one, other = stores[0].opened.reading, before[0].opened.reading
    return (
        one is not None
        and other is not None
        and one.agrees(other)
        and all(_same_values(s.loaded, b.loaded) for s, b in zip(stores, before, strict=True))
    )


def _same_values(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].tolist() == other[name].tolist()
        if one[name].dtype.kind == "O"
        else one[name].tobytes() == other[name].tobytes()
        for name in one
    )


def _relative(path: str, top: str) -> str:
    """Return the path of a group below `top`, the way xarray's own engines spell it."""
    if top == "/":
        return path
    return path[len(top) :].strip("/") or "."


def _warn(text: str) -> None:
    warnings.warn(text, NCZarrWarning, stacklevel=caller_level())


# -- one state ---------------------------------------------------------------------------------
# Values that are all of one state of a dataset, while others write to it.


T = TypeVar("T", xr.Dataset, xr.DataArray)


def state(target: Any, storage_options: Mapping[str, Any] | None = None) -> str:
    """Return the state of a dataset, a text that is different after every change.

    Data that were read between two calls with equal results are all of one state.
    All changes by this package count (values, appends, variables, a new dataset in
    place of the old one). Other programs change datasets piece by piece; their
    changes cannot be noticed.

    Parameters
    ----------
    target, storage_options
        As for `xarray.open_dataset` with this engine. Of one classic or HDF5 file
        the result is the state of the file, as far as its time or entity tag shows it.

    Raises
    ------
    StoreError
        If the dataset cannot be read.
    """
    return _look(target, storage_options)[1]


@overload
def load_dataset(
    target: Any,
    select: None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> xr.Dataset: ...


@overload
def load_dataset(
    target: Any,
    select: Callable[[xr.Dataset], T],
    *,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> T: ...


def load_dataset(
    target: Any,
    select: Callable[[xr.Dataset], T] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> T | xr.Dataset:
    """Open a dataset, load it and close it, with all values of one state of it.

    Do as `xarray.load_dataset`, and load again if the dataset was changed meanwhile.

    Parameters
    ----------
    target, storage_options
        As for `state`.
    select
        A function from the dataset to the part of it that is loaded; by default everything.
    options
        As for `xarray.open_dataset`.

    Raises
    ------
    NCZarrError
        If the dataset cannot be read. `StoreError` also if it was changed during every attempt.
    """
    for _ in range(ATTEMPTS):
        before = _look(target, storage_options)
        failure = None
        try:
            with xr.open_dataset(
                target, engine="nczarr", storage_options=storage_options, **options
            ) as dataset:
                loaded = (dataset if select is None else select(dataset)).load()
        except Exception as error:  # noqa: BLE001 - it may come of the change
            failure = error
        if _look(target, storage_options) == before:
            if failure is not None:
                raise failure
            return loaded
    raise StoreError(before[0], always_changing(ATTEMPTS))


def _look(target: Any, storage_options: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return how messages name a dataset, and the text for its state."""
    from nczarr_fsspec.changes.consistent_reading import Mark, look
    from nczarr_fsspec.changes.journal import STATE_KEYS

    contents = place_of(target, storage_options).open()
    source = contents.data
    try:
        found: object
        if not isinstance(source, KeyStore):
            found = source.validator
        else:
            found = source.contents() if source.steady else look(source)
            nothing = Mark(None, (None,) * len(STATE_KEYS))  # of what has no objects of a tree
            if found == nothing and contents.as_file is not None:
                with suppress(StoreError):  # it need not be a file either
                    found = contents.as_file().validator
        return source.url, hashlib.sha256(repr(found).encode()).hexdigest()[:32]
    finally:
        source.close()
