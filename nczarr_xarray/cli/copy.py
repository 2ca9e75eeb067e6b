"""``nczarr copy``: a dataset in another form, of any kind of `export.copy.request.KINDS`."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING

from nczarr_fsspec.errors import URLError, UsageError
from nczarr_fsspec.text import parse_size
from nczarr_xarray.cli.arguments import (
    ByName,
    add_addresses,
    add_option,
    add_progress,
    opening,
    shows_progress,
    succeed,
)
from nczarr_xarray.cli.compare import show
from nczarr_xarray.cli.main import NewParser, Parser, in_terms_of_options
from nczarr_xarray.export.copy.request import FORMATS
from nczarr_xarray.formats.cfa.dialect import VERSIONS
from nczarr_xarray.formats.nczarr.spellings import COMPAT

if TYPE_CHECKING:
    from nczarr_xarray.model import CodecConfig


def add_selection(parser: Parser) -> None:
    """Add the arguments."""
    parser.repeated(
        "--var",
        "NAME",
        "copy this variable, with its coordinates and whatever else it names, and nothing "
        "else; in a group: group/name",
        default=[],
    )
    parser.add_argument(
        "--slice",
        action=ByName,
        type=_slice,
        default={},
        metavar="DIM=START:STOP[:STEP]",
        help="copy a part of a dimension, by positions as in Python: they count from 0, STOP is "
        "not copied, negative ones count from the end; --slice time=-12: copies the last twelve "
        "(may be repeated)",
    )
    parser.add_argument(
        "--quantize",
        action=ByName,
        type=_quantization,
        default={},
        metavar="VAR=[MODE:]DIGITS",
        help="round values, as nc_def_var_quantize does: significant decimal digits for the modes "
        "BitGroom (the default) and GranularBitRound, bits for BitRound (may be repeated)",
    )
    parser.flag(
        "--fixed", "make unlimited dimensions fixed ones, which every release and format has"
    )


def _slice(text: str) -> list[tuple[str, slice]]:
    name, _, numbers = text.rpartition("=")
    parts = numbers.split(":")
    try:
        start, stop, step = (int(part) if part else None for part in (*parts, "")[:3])
    except ValueError:
        parts = []
    if not name or len(parts) not in (2, 3) or (step is not None and step < 1):
        reason = f"{text!r} is not DIM=START:STOP[:STEP], of whole numbers, with a STEP from 1 on"
        raise argparse.ArgumentTypeError(reason)
    return [(name, slice(start, stop, step))]


def _quantization(text: str) -> list[tuple[str, tuple[str, int]]]:
    from nczarr_xarray.codecs.quantize import QUANTIZE_ATTRIBUTES

    name, _, how = text.rpartition("=")
    mode, colon, digits = how.rpartition(":")
    mode = mode if colon else "BitGroom"
    if not name or mode not in QUANTIZE_ATTRIBUTES or not digits.isdecimal():
        modes = ", ".join(QUANTIZE_ATTRIBUTES)
        raise argparse.ArgumentTypeError(
            f"{text!r} is not VAR=[MODE:]DIGITS, with a MODE of {modes}"
        )
    return [(f"/{name.strip('/')}", (mode, int(digits)))]


def add_copy(new: NewParser) -> None:
    """Make the parser of ``nczarr copy``."""
    parser = new(
        examples=[
            "nczarr copy run.nc run.nczarr",
            "nczarr copy run.nczarr last.nc --var tas --slice time=-12:",
            "nczarr copy run.nc run.zip --compress zstd:9 --chunks time=100 --verify",
            "nczarr copy run.nc run.nca --subarray-shape time=120",
        ],
        description="Copy a dataset of NCZarr or Zarr, a classic netCDF or an HDF5 file. --format "
        "says what is written; without it a destination that ends in .nc becomes a netCDF-4 file, "
        "one that ends in .nca an aggregation with its fragments beside it, one with #mode=zarr "
        "pure Zarr 2, any other NCZarr.",
    )
    parser.add_argument("source", metavar="SRC", help="a path or URL")
    parser.add_argument(
        "target", metavar="DST", help="a path or URL, e.g. x.zip, x.nc or s3://bucket/x"
    )
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        type=_format,
        choices=FORMATS,
        help=f"what is written: {', '.join(FORMATS)}",
    )
    parser.flag("--overwrite", "replace a dataset at DST")
    parser.add_argument(
        "--compat",
        choices=tuple(COMPAT),
        help="the netCDF-C release that must be able to read it (default: 4.9.3)",
    )
    parser.flag(
        "--portable",
        "write pure Zarr with only what every reader of Zarr 2 has: zlib or blosc, no filters",
    )
    add_selection(parser)
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--optimize",
        action="store_true",
        help="choose chunks that suit maps and series alike, as `nczarr doctor` proposes",
    )
    shape.add_argument(
        "--chunks",
        action=ByName,
        type=_chunks,
        metavar="DIM=N,...",
        help="chunk lengths by dimension; those that are not named become whole",
    )
    parser.flag(
        "--cmip7",
        "netCDF-4: make chunks as long as CMIP7 wants them: time and its bounds in one, the data "
        "in chunks of 4 MiB and more",
    )
    parser.add_argument(
        "--compress",
        type=_codecs,
        metavar="NAME[:LEVEL]",
        help="zlib, zstd or bz2, with byte shuffling, or none; else as in SRC (netCDF-4: zlib)",
    )
    parser.add_argument(
        "--shards",
        action=ByName,
        type=_chunks,
        metavar="DIM=N,...",
        help="Zarr 3: lengths of shards, objects of many chunks; those not named become whole",
    )
    parser.add_argument(
        "--memory",
        type=_size,
        metavar="SIZE",
        help="memory that the copy may take in all, e.g. 2GB: prints the plan first, and changes "
        "chunks in two passes where one would decode much again and again",
    )
    cluster = parser.add_mutually_exclusive_group()
    cluster.add_argument(
        "--workers",
        type=_number,
        metavar="N",
        help="copy with N processes of this machine (needs dask.distributed)",
    )
    cluster.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="copy with the workers of a cluster of dask.distributed, e.g. tcp://host:8786",
    )
    parser.flag(
        "--resume",
        "continue this copy where it was interrupted, and keep what is done if it is "
        "interrupted again",
    )
    parser.flag("--consolidated", "write all metadata in one object as well")
    add_progress(parser)
    parser.add_argument(
        "--cfa-version",
        choices=VERSIONS,
        help="the convention of an aggregation (default: 1.13)",
    )
    parser.add_argument(
        "--max-object-size",
        type=_size,
        metavar="SIZE",
        help="bytes of the largest fragment of an aggregation, e.g. 50MB (the default)",
    )
    parser.add_argument(
        "--subarray-shape",
        action=ByName,
        type=_chunks,
        metavar="DIM=N,...",
        help="lengths of the fragments of an aggregation, instead of --max-object-size; "
        "dimensions that are not named are not divided",
    )
    parser.add_argument(
        "--subarray-path",
        metavar="FOLDER",
        help="the folder of the fragments of an aggregation, below that of DST (default: DST "
        "without .nca)",
    )
    parser.flag("--verify", "read the copy again and compare it with SRC, as nczarr compare does")
    add_addresses(parser)
    add_option(parser, "-o", "source_options", "storage option of SRC")
    add_option(parser, "-O", "target_options", "storage option of DST")
    parser.set_defaults(run=run)


def _format(text: str) -> str:
    """Return the word for a format, in the case that it has."""
    return {word.lower(): word for word in FORMATS}.get(text.lower(), text)


def run(args: argparse.Namespace) -> int:
    """Copy; return 1 if the copy is compared, and differs (errors are raised)."""
    from nczarr_xarray.export.options import CopyOptions
    from nczarr_xarray.tools.copy import copy

    options = {one.name: getattr(args, one.name) for one in fields(CopyOptions)}
    with in_terms_of_options():
        comparison = copy(
            args.source,
            args.target,
            format=args.format,
            overwrite=args.overwrite,
            variables=args.var,
            slices=args.slice,
            quantize=args.quantize,
            verify=args.verify,
            **opening(args, args.source_options),
            target_options=args.target_options or None,
            progress=shows_progress(args),
            **options,
        )
    if comparison is None:
        return 0
    if comparison.equal:
        succeed(args, comparison.result)
        return 0
    show(comparison)
    return 1


def _number(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes, from 1 on")
    return int(text)


def _chunks(text: str) -> list[tuple[str, int]]:
    chunks = []
    for part in text.split(","):
        name, equals, length = part.partition("=")
        if not (name and equals and length.isdecimal() and int(length) > 0):
            raise argparse.ArgumentTypeError(f"{part!r} is not DIM=N")
        chunks.append((name, int(length)))
    return chunks


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except URLError as error:
        raise argparse.ArgumentTypeError(error.reason) from None


def _codecs(text: str) -> tuple[CodecConfig, ...]:
    from nczarr_xarray.tools.copy import codecs_called

    try:
        return codecs_called(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.reason) from None
