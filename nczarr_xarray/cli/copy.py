"""``nczarr copy``: a dataset in another form: NCZarr, pure Zarr or netCDF."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Collection
from contextlib import AbstractContextManager, ExitStack, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.errors import DatasetExistsError, FormatError, URLError
from nczarr_xarray.cli import verify
from nczarr_xarray.cli.target import add_addresses, add_option, opening
from nczarr_xarray.cli.text import UsageError, did_you_mean

if TYPE_CHECKING:
    from nczarr_xarray.model import CodecConfig

_NETCDF = (".nc", ".nc4", ".cdf", ".netcdf")
_MASTER = ".nca"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``copy`` command to the parsers of ``nczarr``."""
    parser = subparsers.add_parser(
        "copy",
        help="write a dataset in another form: NCZarr, pure Zarr (#mode=zarr), zip or netCDF",
        description="Copy a dataset. NCZarr, Zarr, classic and HDF5 files are read by this "
        "package and copied exactly; anything else that xarray can open is copied as xarray reads "
        "it. A destination that ends in .nc becomes a netCDF-4 file, one that ends in .nca an "
        "aggregation with its fragments beside it, any other NCZarr.",
    )
    parser.add_argument("source", metavar="SRC", help="a path or URL")
    parser.add_argument("target", metavar="DST", help="a path or URL, e.g. x.zip or x#mode=zarr")
    parser.add_argument("--overwrite", action="store_true", help="replace a dataset at DST")
    parser.add_argument(
        "--compat",
        default="4.9.3",
        choices=("4.9.3", "4.9.2", "4.8.1"),
        help="the netCDF-C release that must be able to read it (default: %(default)s)",
    )
    parser.add_argument(
        "--portable",
        action="store_true",
        help="write pure Zarr with only what every reader of Zarr 2 has: zlib or blosc, no filters",
    )
    parser.add_argument(
        "--fixed",
        action="store_true",
        help="make unlimited dimensions fixed ones, which every release and format has",
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--optimize",
        action="store_true",
        help="choose chunks that suit maps and series alike, as `nczarr doctor` proposes",
    )
    shape.add_argument(
        "--chunks",
        type=_chunks,
        metavar="DIM=N,...",
        help="chunk lengths by dimension; those that are not named become whole",
    )
    parser.add_argument(
        "--compress",
        type=_codecs,
        metavar="NAME[:LEVEL]",
        help="zlib, zstd or bz2, with byte shuffling, or none; else as in SRC",
    )
    parser.add_argument("--consolidated", action="store_true", help="write .zmetadata as well")
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="show a progress bar (default: on a terminal)",
    )
    parser.add_argument(
        "--cfa-version",
        choices=("0.4", "0.6.2", "1.13"),
        default="1.13",
        help="the convention of a destination that ends in .nca (default: %(default)s)",
    )
    parser.add_argument(
        "--max-object-size",
        metavar="SIZE",
        default=None,
        help="bytes of the largest fragment of such a destination, e.g. 50MB (the default)",
    )
    verify.add_arguments(parser)
    add_addresses(parser)
    add_option(parser, "-o", "source_options", "storage option of SRC")
    add_option(parser, "-O", "target_options", "storage option of DST")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Copy; return 1 if the copy is compared, and differs (errors are raised)."""
    from nczarr_xarray.export.progress import Progress

    shown = sys.stderr.isatty() if args.progress is None else args.progress
    aggregation = args.target.lower().endswith(_MASTER)
    if args.max_object_size and not aggregation:
        raise UsageError("--max-object-size", "is for destinations that end in .nca")
    with Progress("copy", shown=shown and not aggregation) as progress:
        try:
            if args.target.lower().endswith(_NETCDF):
                _to_netcdf(args, progress)
            elif aggregation:
                _to_cfa(args)
            else:
                _to_nczarr(args, progress)
        except DatasetExistsError as error:
            # the message in terms of the command line
            reason = error.reason.replace(", mode='a' adds to it", "")
            reason = reason.replace("mode='w'", "--overwrite")
            raise DatasetExistsError(error.object, reason) from error
    return verify.verify(args)


def _to_nczarr(args: argparse.Namespace, progress: Any) -> None:
    from nczarr_xarray.dataset.open import open_hierarchy
    from nczarr_xarray.export.copy import (
        CopyLayout,
        open_other,
        plan_copy,
        plan_import,
        with_fixed_dimensions,
    )
    from nczarr_xarray.export.write_options import WriteOptions

    if args.portable and any(c["id"] not in ("shuffle", "zlib") for c in args.compress or ()):
        raise UsageError("--compress", "not every reader of Zarr 2 has it (--portable): use zlib")
    options = WriteOptions(
        mode="w" if args.overwrite else "w-",
        compat=args.compat,
        portable=args.portable,
        consolidated=args.consolidated,
        storage_options=dict(args.target_options) or None,
    )
    layout = CopyLayout(args.chunks, args.compress, balanced=args.optimize)
    try:
        opened = open_hierarchy(args.source, **opening(args, args.source_options))
    except (URLError, FormatError):
        if not _is_other_file(args.source):
            raise
        verify.refuse(args)
        # libraries of other engines were seen to crash with several threads
        with open_other(args.source) as groups, _one_thread():
            _check_chunks(args.chunks, {str(d) for one in groups.values() for d in one.dims})
            task = plan_import(args.source, groups, args.target, options, layout, fixed=args.fixed)
            task.run(progress)
        return
    with opened:
        declared = (group.dimensions for group in opened.hierarchy.root.walk())
        _check_chunks(args.chunks, {name for dimensions in declared for name in dimensions})
        source = with_fixed_dimensions(opened) if args.fixed else opened
        plan_copy(source, args.target, options, layout).run(progress)


def _one_thread() -> AbstractContextManager[Any]:
    """Let dask, if it is installed, compute in this thread."""
    if find_spec("dask") is None:
        return nullcontext()
    import dask.config

    one: AbstractContextManager[Any] = dask.config.set(scheduler="synchronous")
    return one


def _to_netcdf(args: argparse.Namespace, progress: Any) -> None:
    from nczarr_xarray.dataset.open import open_hierarchy
    from nczarr_xarray.export.copy import with_fixed_dimensions
    from nczarr_xarray.export.netcdf_file import write_netcdf

    zarr = args.consolidated or args.portable or args.compat != "4.9.3"
    if args.chunks or args.optimize or args.compress or zarr:
        raise UsageError(
            args.target,
            "--chunks, --optimize, --compress, --consolidated, --portable and --compat are for "
            "NCZarr and Zarr",
        )
    with open_hierarchy(args.source, **opening(args, args.source_options)) as opened:
        source = with_fixed_dimensions(opened) if args.fixed else opened
        write_netcdf(source, args.target, progress, overwrite=args.overwrite)


def _to_cfa(args: argparse.Namespace) -> None:
    import xarray as xr

    from nczarr_fsspec.errors import LossWarning
    from nczarr_xarray.export.cfa.to_cfa import to_cfa

    zarr = args.consolidated or args.portable or args.compat != "4.9.3"
    if args.chunks or args.optimize or args.compress or zarr or args.fixed:
        raise UsageError(
            args.target,
            "--chunks, --optimize, --compress, --consolidated, --portable, --fixed and --compat "
            "are for NCZarr and Zarr",
        )
    with ExitStack() as stack:
        source = opening(args, args.source_options)
        groups = xr.open_groups(args.source, engine="nczarr", decode_cf=False, **source)
        for group in groups.values():
            stack.callback(group.close)
        dataset = groups.pop("/")
        if groups:
            reason = f"an aggregation has no groups: {', '.join(groups)} are left out"
            warnings.warn(f"{args.target}: {reason}", LossWarning, stacklevel=2)
        for variable in dataset.variables.values():
            if "_FillValue" not in variable.attrs:
                variable.encoding["_FillValue"] = None  # xarray gives numbers one of its own
        to_cfa(
            dataset,
            args.target,
            cfa_version=args.cfa_version,
            max_object_size=args.max_object_size,
            mode="w" if args.overwrite else "w-",
            storage_options=dict(args.target_options) or None,
            progress=sys.stderr.isatty() if args.progress is None else args.progress,
        )


def _check_chunks(chunks: dict[str, int] | None, names: Collection[str]) -> None:
    """Raise `UsageError` for lengths of dimensions that are not there."""
    for name in chunks or ():
        if name not in names:
            known = f"there are {', '.join(sorted(names))}" if names else "there is none"
            reason = f"no dimension is called {name!r}; {known}{did_you_mean(name, names)}"
            raise UsageError("--chunks", reason)


def _is_other_file(source: str) -> bool:
    """Tell whether the source is one file, which another of xarray's engines may read."""
    return os.path.isfile(source)


def _chunks(text: str) -> dict[str, int]:
    chunks = {}
    for part in text.split(","):
        name, equals, length = part.partition("=")
        if not (name and equals and length.isdecimal() and int(length) > 0):
            raise argparse.ArgumentTypeError(f"{part!r} is not DIM=N")
        chunks[name] = int(length)
    return chunks


def _codecs(text: str) -> tuple[CodecConfig, ...]:
    if text == "none":
        return ()
    from nczarr_xarray.codecs.registry import TABLE

    words = {row.id: row.netcdf for row in TABLE if row.netcdf and row.netcdf.level == "level"}
    name, _, level = text.partition(":")
    name = next((id_ for id_, word in words.items() if word.name == name), name)
    if name not in words:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(words)}, none")
    levels = words[name].levels
    if not (level or "4").isdecimal() or int(level or 4) not in levels:
        reason = f"the level of {name} is from {levels[0]} to {levels[-1]}"
        raise argparse.ArgumentTypeError(reason)
    return ({"id": "shuffle", "elementsize": 0}, {"id": name, "level": int(level or 4)})
