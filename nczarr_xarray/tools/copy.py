"""``copy``: a dataset in another form, of any kind of `nczarr_xarray.export.copy.request.KINDS`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace as replaced
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.address_policy import Allow
from nczarr_fsspec.errors import LossWarning, UsageError
from nczarr_fsspec.places.names import is_within
from nczarr_fsspec.text import parse_size
from nczarr_xarray.codecs.registry import keywords
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.export.copy.request import CopyRequest, find_kind, refuse_options
from nczarr_xarray.export.copy.selection import Quantization, Selection
from nczarr_xarray.export.options import CopyOptions

if TYPE_CHECKING:
    from nczarr_xarray.dataset.dataset import Opened
    from nczarr_xarray.model import CodecConfig, Group
    from nczarr_xarray.tools.compare import Comparison


def copy(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - as the command calls it
    overwrite: bool = False,
    variables: Sequence[str] = (),
    slices: Mapping[str, slice] | None = None,
    quantize: Mapping[str, tuple[str, int]] | None = None,
    fixed: bool = False,
    memory: int | str | None = None,
    max_object_size: int | str | None = None,
    verify: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    replace: Mapping[str, str] | None = None,
    allow: Allow = None,
    progress: bool = False,
    tell: Callable[[str], object] = print,
    **options: Any,
) -> Comparison | None:
    """Copy a dataset, as ``nczarr copy`` does.

    Parameters
    ----------
    source, target
        Paths or URLs. The name of the target says what is written, unless `format` does.
    format
        ``"NCZarr"``, ``"Zarr2"``, ``"Zarr3"``, ``"NETCDF4"``, ``"NETCDF3_CLASSIC"``, …, ``"CFA"``.
    overwrite
        Replace a dataset at `target`.
    variables
        Names of variables to copy, with what they need; () for all.
    slices
        Parts of dimensions, by name.
    quantize
        How variables are rounded, by name: the mode and its digits, ``("BitRound", 8)``.
    fixed
        Make unlimited dimensions fixed ones.
    memory
        Bytes that the copy may take, ``"2GB"``; the plan is told first.
    max_object_size
        Bytes of the largest fragment of an aggregation.
    verify
        Read the copy again and compare it with the source.
    storage_options, target_options
        Options of the filesystems of source and target (fsspec).
    replace, allow
        As of `xarray.open_dataset` with ``engine="nczarr"``.
    progress
        Show a progress bar.
    tell
        Takes the lines of the plan.
    **options
        Fields of `nczarr_xarray.export.options.CopyOptions`, as far as the kind of the target has
        them: ``chunks={"time": 100}``, ``optimize=True``, ``compress="zstd:9"``, ``shards=``,
        ``workers=``, ``scheduler=``, ``resume=``, ``consolidated=``, ``portable=``, ``compat=``,
        ``cfa_version=``, ``subarray_shape={"time": 120}``, ``subarray_path=``.

    Returns
    -------
    Comparison or None
        With `verify`, what differs from the source besides what the copy has announced.

    Raises
    ------
    UsageError
        If an option is not for this kind of target, or the source lacks what is named.
    DatasetExistsError
        If there is something at `target` that must not be replaced.
    NCZarrError
        If the source cannot be read, or the target not be written.

    Warns
    -----
    LossWarning
        If the target cannot hold something as it is.
    """
    source, target = os.fsdecode(source), os.fsdecode(target)
    kind, word = find_kind(target, format)
    if isinstance(options.get("compress"), str):
        options["compress"] = codecs_called(options["compress"])
    given = CopyOptions(
        fixed=fixed, memory=_size(memory), max_object_size=_size(max_object_size), **options
    )
    refuse_options(kind, given)
    if is_within(target, source):
        raise UsageError(target, f"is within {source}: choose a place outside of it")
    wanted = Selection(
        tuple(f"/{name.strip('/')}" for name in variables),
        slices or {},
        {f"/{name.strip('/')}": Quantization(*how) for name, how in (quantize or {}).items()},
        fixed,
    )
    opening = {"storage_options": storage_options, "replace": replace, "allow": allow}
    request = CopyRequest(
        source,
        target,
        word,
        opening,
        wanted,
        target_options=target_options,
        overwrite=overwrite,
        shown=progress,
        tell=tell,
        options=given,
    )
    with _announced() as lost:
        kind.copy(request)
    return _compared(request, kind.says, lost) if verify else None


def codecs_called(text: str) -> tuple[CodecConfig, ...]:
    """Return the codecs of ``NAME[:LEVEL]``: a compressor behind byte shuffling; none of "none".

    Raises
    ------
    UsageError
        If there is no such compressor, or it has no such level.
    """
    if text == "none":
        return ()
    words = {id_: word for id_, word in keywords().items() if word.level == "level"}
    name, _, level = text.partition(":")
    name = next((id_ for id_, word in words.items() if word.name == name), name)
    if name not in words:
        raise UsageError("--compress", f"{name!r} is none of {', '.join(words)}, none")
    levels = words[name].levels
    if not (level or "4").isdecimal() or int(level or 4) not in levels:
        reason = f"the level of {name} is from {levels[0]} to {levels[-1]}"
        raise UsageError("--compress", reason)
    return ({"id": "shuffle", "elementsize": 0}, {"id": name, "level": int(level or 4)})


def _size(given: int | str | None) -> int | None:
    return parse_size(given) if isinstance(given, str) else given


@contextmanager
def _announced() -> Iterator[set[str]]:
    """Collect the names of what warnings say is lost, while they are shown as ever."""
    lost: set[str] = set()
    show = warnings.showwarning

    def keep(message: Warning | str, *rest: Any, **others: Any) -> None:
        if isinstance(message, LossWarning):
            lost.update(message.names)
        show(message, *rest, **others)

    warnings.showwarning = keep
    try:
        yield lost
    finally:
        warnings.showwarning = show


def _compared(request: CopyRequest, own: Collection[str], lost: Collection[str]) -> Comparison:
    """Compare a copy with its source.

    A classic copy is compared with what classic netCDF is to hold of the source, an aggregation
    with integers in place of enums.

    Parameters
    ----------
    own
        Global attributes that the copy has to have for its kind, whatever the source has.
    lost
        What the copy has announced to be lost, as of `LossWarning`: it is no difference.
    """
    from nczarr_xarray.export.copy.classic import as_classic
    from nczarr_xarray.export.form.lacking import Lacking, as_netcdf_names, suited
    from nczarr_xarray.tools.compare import compare

    wanted, word = request.selection, request.format
    there = {**request.opening, "storage_options": request.target_options}
    with open_hierarchy(request.source, **request.opening) as opened:
        source = wanted.of(suited(opened, word, wanted.variables))
        source = as_netcdf_names(source, word)
        original = source
        if word.startswith("NETCDF3"):
            lacking = Lacking(netcdf4=True)  # which was told while copying
            source = as_classic(source, request.target, lacking, word)
        with open_hierarchy(request.target, **there) as target:
            sides = source, target
            if word == "CFA":
                sides = _with_flags(source), _with_flags(target)
            comparison = compare(*(_without(side, own) for side in sides))
            if original is not source and (paths := _retyped(original, source)):
                # what is stored has become another number; a reader is to get the same
                again = compare(original, target, variables=paths)
                found = [one for one in again.differences if one.property == "decoded value"]
                comparison = replaced(comparison, differences=(*comparison.differences, *found))
            return comparison.without(lost)


def _retyped(one: Opened, other: Opened) -> list[str]:
    """Return the paths of variables of numbers that have another type in `other`."""
    types = {v.path: v.nc_type for v in other.hierarchy.root.all_variables()}
    variables = one.hierarchy.root.all_variables()
    return [v.path for v in variables if v.dtype.kind in "iu" and types.get(v.path) != v.nc_type]


def _without(opened: Opened, names: Collection[str]) -> Opened:
    """Return an open dataset without some global attributes."""
    root = opened.hierarchy.root
    kept = {name: one for name, one in root.attributes.items() if name not in names}
    changed = replaced(opened.hierarchy, root=replaced(root, attributes=kept))
    return replaced(opened, hierarchy=changed)


def _with_flags(opened: Opened) -> Opened:
    """Return an open dataset with integers with flags in place of enums."""
    from nczarr_xarray.export.cfa.master import without_enum
    from nczarr_xarray.export.form.lacking import rebuilt

    used = [variable.enum for variable in opened.hierarchy.root.all_variables()]

    def changed(group: Group) -> Group:
        types = {name: enum for name, enum in group.types.items() if enum not in used}
        variables = {name: without_enum(variable) for name, variable in group.variables.items()}
        return replaced(group, types=types, variables=variables)

    root = rebuilt(opened.hierarchy.root, changed)
    return replaced(opened, hierarchy=replaced(opened.hierarchy, root=root))
