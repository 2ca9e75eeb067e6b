"""What a selection of an aggregation wants of each fragment, and its values: pure arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.chunks.pieces import BoundingBox, Division
from nczarr_xarray.chunks.plan import Plan
from nczarr_xarray.dataset.units import Convert, conversion
from nczarr_xarray.formats.cf import (
    missing_in,
    missing_numbers,
    packing_attributes,
    packing_of,
    read_as,
    stated_marks,
    stated_numbers,
    taken_for_missing,
    text_in,
)
from nczarr_xarray.model import (
    FragmentArray,
    FragmentMapping,
    Variable,
    borders,
    described,
    mapped,
    text_of,
)

_AS_IT_IS = FragmentMapping()


class Share(NamedTuple):
    """What one selection wants of a fragment.

    Attributes
    ----------
    key
        Per dimension of the aggregation, what is wanted, relative to the begin of the fragment.
    points
        As of `nczarr_xarray.model.Selections.read`.
    result
        The values of the selection, ...
    target
        and where these go there, as a key of numpy.
    """

    key: tuple[Any, ...]
    points: bool
    result: np.ndarray
    target: tuple[Any, ...]


class Part(NamedTuple):
    """What selections want of one fragment.

    Attributes
    ----------
    number
        Of the fragment.
    shape
        Of its part of the aggregation.
    shares
        One of each selection.
    """

    number: int
    shape: tuple[int, ...]
    shares: list[Share]


class FragmentGrid:
    """The grid of fragments of an aggregation, with what lies between them.

    Attributes
    ----------
    edges
        Per dimension, where each fragment, and each gap, begins.
    """

    def __init__(self, array: FragmentArray) -> None:
        self._fragments = array.fragments
        self.edges: list[Division] = []
        #: per dimension, for the fragment at an edge: what it adds to the number, and its length;
        #: a gap makes the number negative
        self._offsets: list[list[int]] = []
        self._lengths: list[list[int]] = []
        bounds = zip(array.fragments.starts, array.fragments.stops, array.shape, strict=True)
        stride = count = array.fragments.count
        for starts, stops, length in bounds:
            stride //= max(1, len(starts))
            edges = borders(starts, stops, length)
            edges = edges[edges < max(1, length)]
            numbers = np.full(len(edges), -1)
            numbers[np.searchsorted(edges, starts)] = np.arange(len(starts))
            self.edges.append(edges)
            self._offsets.append(np.where(numbers < 0, -1 - count, numbers * stride).tolist())
            self._lengths.append((stops - starts)[numbers].tolist() if len(starts) else [])

    def parts(
        self, plan: Plan, result: np.ndarray, *, points: bool
    ) -> Iterator[tuple[tuple[Any, ...], Part | None]]:
        """Yield where parts go in the result, and the parts; None for what is missing."""
        addresses, axes = self._fragments.addresses, plan.axes
        for position, key, target in plan.tasks():
            number = sum(map(getitem, self._offsets, position))
            if number < 0 or addresses[number] is None:
                yield target, None
                continue
            shape = tuple(map(getitem, self._lengths, position))
            if axes is not None:
                key = tuple(key[axes.index(axis)] for axis in range(len(key)))
            if np.ndarray in map(type, key):
                key = tuple(i if isinstance(i, slice) else i.reshape(-1) for i in key)
            yield target, Part(number, shape, [Share(key, points, result, target)])


# -- values --------------------------------------------------------------------------------------


class FragmentRequest(NamedTuple):
    """What to read of a fragment.

    Attributes
    ----------
    key, points
        As of `nczarr_xarray.model.Selections.read`.
    values
        Makes values of the aggregation of elements that were read, one by one.
    arranged
        Puts what was read in the order of the aggregation.
    """

    key: tuple[Any, ...]
    points: bool
    values: Callable[[np.ndarray], np.ndarray]
    arranged: Callable[[np.ndarray], np.ndarray]

    @property
    def wanted(self) -> tuple[tuple[Any, ...], bool]:
        """What `VariableReader.read_jointly` takes."""
        return self.key, self.points

    def finish(self, data: np.ndarray) -> np.ndarray:
        """Return the part of the aggregation, from what was read of the fragment."""
        return self.values(self.arranged(data))


def as_it_is(data: np.ndarray) -> np.ndarray:
    """Return what was read of a fragment whose dimensions are in the order of the aggregation."""
    return data


@dataclass(frozen=True, slots=True)
class FragmentReading:
    """How a fragment is read.

    Parameters
    ----------
    wanted
        The shape of the fragment's part of the aggregation.
    axes
        Per dimension of the fragment, the one of the aggregation that it is; None for one of
        length 1 that the aggregation does not have.
    steps
        Per dimension of the fragment, the positions in it, in the order of the aggregation;
        None where they are all, in the same order.
    """

    array: FragmentArray
    variable: Variable
    mapping: FragmentMapping
    wanted: tuple[int, ...]
    axes: tuple[int | None, ...]
    steps: tuple[Sequence[int] | None, ...]

    def check(self) -> None:
        """Raise an error if values of the fragment cannot become those of the aggregation.

        Raises
        ------
        NCZarrError
            If they are of another kind, or of units that cannot be converted.
        """
        self._values(np.zeros(0, self.variable.dtype))

    def request(self, key: tuple[Any, ...], *, points: bool) -> FragmentRequest:
        """Return what to read for `key`, in terms of the aggregation, relative to the fragment."""
        ndim = len(self.array.shape)
        if self.axes == tuple(range(ndim)) and all(steps is None for steps in self.steps):
            return FragmentRequest(key, points, self._values, as_it_is)
        if not points:
            index = tuple(map(self._index, self.axes, self.steps, [key] * len(self.axes)))
            return FragmentRequest(index, False, self._values, self._arranged)
        box = BoundingBox(key, self.wanted)
        index = self.request(box.slices, points=False).key

        def arranged(data: np.ndarray) -> np.ndarray:
            return box.take(self._arranged(data), points=True)

        return FragmentRequest(index, False, self._values, arranged)

    def _index(
        self, axis: int | None, steps: Sequence[int] | None, key: tuple[Any, ...]
    ) -> slice | np.ndarray:
        """Return the index of one dimension of the fragment."""
        if axis is None:
            return slice(0, 1)
        index: slice | np.ndarray = key[axis]
        if steps is None:
            return index
        if isinstance(index, slice) and isinstance(steps, range):
            chosen = steps[index]
            stop = chosen.stop if chosen.stop >= 0 else None
            return slice(chosen.start, stop, chosen.step) if chosen else slice(0, 0)
        picked: np.ndarray = np.asarray(steps)[index]
        return picked

    def _arranged(self, data: np.ndarray) -> np.ndarray:
        """Put the dimensions of what was read of the fragment in the order of the aggregation."""
        kept = [at for at, axis in enumerate(self.axes) if axis is not None]
        data = data.reshape([data.shape[at] for at in kept])
        axes = [axis for axis in self.axes if axis is not None]
        data = data.transpose(np.argsort(axes))
        lacking = tuple(axis for axis in range(len(self.array.shape)) if axis not in axes)
        return np.expand_dims(data, lacking)

    def _values(self, data: np.ndarray) -> np.ndarray:
        """Return values of the aggregation: unpacked, of its units and type."""
        array, variable = self.array, self.variable
        packing, wanted = packing_of(variable), dict(array.packing or {})
        convert = _conversion(array, self.mapping, variable)
        marks = stated_marks(variable)
        is_plain = convert is None and packing == wanted
        missing = None
        if data.dtype.kind in "iuf":
            marked = missing_numbers(variable.nc_type, stated_numbers(variable))
            missing = missing_in(data, marked)
        if not is_plain:
            if packing:
                is_last = convert is None and not wanted
                dtype = _single_or_double(variable) if is_last else np.dtype(np.float64)
                data = _unpacked(data, variable, packing, dtype)
            if convert is not None:
                data = self._converted(data, missing, convert)
            if packing and wanted:
                data = _packed(data, array, wanted)
        are_stored = is_plain or (convert is None and {*packing, *wanted} == {"_Unsigned"})
        if missing is not None and are_stored and not marks and not array.marks:
            # netCDF's default stays what it is where nobody says that it is missing
            missing = None if self._stays(data[missing][:1]) else missing
        data = self._cast(data, missing)
        if missing is not None:
            data[missing] = array.fill
        if marks:  # or the aggregation says what is missing there
            others = [mark for mark in array.marks if not (is_plain and mark in marks)]
            reason = taken_for_missing(data, missing, others)
            if reason is not None:
                raise FormatError(variable.path, reason)
        return data

    def _converted(
        self, data: np.ndarray, missing: np.ndarray | None, convert: Convert
    ) -> np.ndarray:
        """Return values in the units of the aggregation; what is missing has none."""
        if missing is not None:
            known = data[~missing]
            if not known.size:
                return data
            data = np.where(missing, known[0], data)
        try:
            return convert(data)
        except ValueError as error:
            raise FormatError(self.variable.path, str(error)) from None

    def _stays(self, data: np.ndarray) -> bool:
        """Tell whether the aggregation holds numbers as they are."""
        dtype, read_as = self.array.dtype.newbyteorder("="), self.array.read_as
        stored = dtype if data.dtype == dtype or read_as is None else read_as
        with np.errstate(invalid="ignore", over="ignore"):
            return bool(_holds(data.astype(stored), data).all())

    def _cast(self, data: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
        """Return values as they are stored in the aggregation, which must hold them exactly."""
        dtype = self.array.dtype.newbyteorder("=")
        if data.dtype == dtype:
            return data.copy() if missing is not None else data
        if dtype.kind == "O" and data.dtype.kind in "SU" and self.variable.nc_type == "string":
            # text of limited length, as pure Zarr has it
            return mapped(lambda one: text_of(one) if isinstance(one, bytes) else one, data)
        if dtype.kind not in "iufb" or data.dtype.kind not in "iufb":
            raise FormatError(
                self.variable.path,
                f"holds {described(data.dtype)}, and the aggregation {described(dtype)}",
            )
        stored = dtype if self.array.read_as is None else self.array.read_as
        with np.errstate(invalid="ignore", over="ignore"):
            cast = data.astype(stored)
            if not np.can_cast(data.dtype, stored, "safe"):
                held = _holds(cast, data)
                if not (held if missing is None else held | missing).all():
                    raise FormatError(
                        self.variable.path,
                        f"has {described(data.dtype)} values that are no {described(dtype)}, "
                        "which the aggregation holds",
                    )
        return cast.astype(dtype, copy=False)


def _holds(cast: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Tell which numbers another type holds; real ones may lose digits."""
    held: np.ndarray
    if cast.dtype.kind == "f":
        held = np.isfinite(cast) | ~np.isfinite(data)
    else:  # numbers of one sign come back as themselves after they have become those of the other
        held = (cast.astype(data.dtype) == data) & ((cast < 0) == (data < 0))
    return held


def needs_names(array: FragmentArray) -> bool:
    """Tell whether only names show in which order a fragment has its dimensions.

    Lengths show it unless two dimensions of an aggregation have fragments of the same length.
    """
    if not array.dimensions:
        return False
    bounds = zip(array.fragments.starts, array.fragments.stops, strict=True)
    lengths = [set((stops - starts).tolist()) - {1} for starts, stops in bounds]
    return any(not one.isdisjoint(other) for one, other in itertools.combinations(lengths, 2))


def reading_of(array: FragmentArray, number: int, variable: Variable) -> FragmentReading:
    """Find out how a fragment is read.

    Raises
    ------
    FormatError
        If the fragment has another shape than its part of the aggregation, or its dimensions in
        another order.
    """
    mapping = array.fragments.mappings.get(number, _AS_IT_IS)
    wanted = tuple(stop - start for start, stop in array.fragments.extent(number))
    steps: list[Sequence[int] | None] = [None] * len(variable.shape)
    lengths = list(variable.shape)

    def wrong() -> FormatError:
        return FormatError(
            variable.path,
            f"has the shape {variable.shape}, and its part of the aggregation {wanted}",
        )

    if mapping.part is not None:
        if len(mapping.part) != len(lengths):
            raise wrong()
        for axis, part in enumerate(mapping.part):
            chosen = range(lengths[axis])[part] if isinstance(part, slice) else part
            first = part.start or 0 if isinstance(part, slice) else max(part, default=0)
            if first >= max(1, lengths[axis]):  # which slices do not mind
                raise wrong()
            steps[axis], lengths[axis] = chosen, len(chosen)
    for axis in mapping.reverse:
        if axis >= len(lengths):
            raise wrong()
        positions = steps[axis]
        steps[axis] = (range(lengths[axis]) if positions is None else positions)[::-1]
    axes = _axes(mapping, lengths, wanted)
    if axes is None:
        raise wrong()
    if mapping.axes is None:
        _check_order(array, variable, lengths, axes)
    return FragmentReading(array, variable, mapping, wanted, axes, tuple(steps))


def _axes(
    mapping: FragmentMapping, lengths: list[int], wanted: tuple[int, ...]
) -> tuple[int | None, ...] | None:
    """Return which dimension of the aggregation each one of a fragment is; None if none fits."""
    if mapping.axes is not None:
        lacking = [n for axis, n in enumerate(wanted) if axis not in mapping.axes]
        expected = [1 if axis is None else wanted[axis] for axis in mapping.axes]
        fits = expected == lengths and all(length == 1 for length in lacking)
        return mapping.axes if fits else None
    if tuple(lengths) == wanted:
        return tuple(range(len(wanted)))
    # dimensions of length 1 may be absent, on either side
    if [n for n in lengths if n != 1] != [n for n in wanted if n != 1]:
        return None
    long = iter([axis for axis, length in enumerate(wanted) if length != 1])
    return tuple(None if length == 1 else next(long) for length in lengths)


def _check_order(
    array: FragmentArray, variable: Variable, lengths: list[int], axes: tuple[int | None, ...]
) -> None:
    """Raise if a fragment has the dimensions of the aggregation by name, in another order.

    Names that are others do not matter: which dimension is which follows from the order.
    """
    if not array.dimensions:
        return
    pairs = [
        (dimension.name, array.dimensions[axis], length)
        for dimension, axis, length in zip(variable.dimensions, axes, lengths, strict=True)
        if axis is not None
    ]
    names, wanted = [one for one, *_ in pairs], [other for _, other, _ in pairs]
    if sorted(names) == sorted(wanted) and any(a != b and n != 1 for a, b, n in pairs):
        raise FormatError(
            variable.path,
            f"has the dimensions {', '.join(names)}, and the aggregation {', '.join(wanted)}: only "
            "pdimensions of CFA-0.4 can say that they are in another order; transpose the fragment",
        )


def _single_or_double(variable: Variable) -> np.dtype:
    """Return the precision in which xarray unpacks a variable: by that of its attributes."""
    packing = packing_attributes(variable)
    dtypes = [np.asarray(packing[name].value).dtype for name in packing if name != "_Unsigned"]
    is_wide = variable.dtype.kind in "iu" and variable.dtype.itemsize == 4
    single = "scale_factor" in packing and all(one == np.float32 for one in dtypes)
    return np.dtype(np.float32 if single and not (is_wide and len(dtypes) == 2) else np.float64)


def _unpacked(
    data: np.ndarray, variable: Variable, packing: Mapping[str, Any], dtype: np.dtype
) -> np.ndarray:
    """Undo the packing of a fragment, in a precision."""
    if data.dtype.kind in "iu":
        data = data.astype(read_as(variable), copy=False)
    scale, offset = packing.get("scale_factor"), packing.get("add_offset")
    if scale is None and offset is None:
        return data
    plain = data.astype(dtype)
    if scale is not None:
        plain *= scale
    if offset is not None:
        plain += offset
    return plain


def _packed(data: np.ndarray, array: FragmentArray, packing: Mapping[str, Any]) -> np.ndarray:
    """Pack values as those of the aggregation are."""
    scale, offset = packing.get("scale_factor"), packing.get("add_offset")
    if scale is None and offset is None:
        return data
    packed = (data.astype(np.float64) - (offset or 0)) / (1 if scale is None else scale)
    return np.rint(packed) if array.dtype.kind in "iu" else packed


def _conversion(
    array: FragmentArray, mapping: FragmentMapping, variable: Variable
) -> Convert | None:
    """Return what converts the units of a fragment to those of the aggregation, if it must be."""
    units = mapping.units or text_in(variable.attributes, "units")
    if array.units is None or units is None or variable.dtype.kind not in "iuf":
        return None
    calendar = mapping.calendar or text_in(variable.attributes, "calendar")
    try:
        return conversion(units, calendar, array.units, array.calendar)
    except ValueError as error:
        raise FormatError(variable.path, str(error)) from None
