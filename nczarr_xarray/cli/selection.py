"""Arguments of ``nczarr copy`` that say what is copied: ``--var``, ``--slice``, ``--quantize``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nczarr_xarray.cli.target import ByName

if TYPE_CHECKING:
    from nczarr_xarray.export.selection import Quantization, Selection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--var",
        action="append",
        type=_path,
        default=[],
        metavar="NAME",
        help="copy this variable, with its coordinates and whatever else it names, and nothing "
        "else; in a group: group/name (may be repeated)",
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
    parser.add_argument(
        "--fixed",
        action="store_true",
        help="make unlimited dimensions fixed ones, which every release and format has",
    )


def selection(args: argparse.Namespace) -> Selection:
    """Return what is copied."""
    from nczarr_xarray.export.selection import Selection

    return Selection(tuple(args.var), args.slice, args.quantize, args.fixed)


def _path(name: str) -> str:
    return f"/{name.strip('/')}"


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


def _quantization(text: str) -> list[tuple[str, Quantization]]:
    from nczarr_xarray.codecs.quantize import QUANTIZE_ATTRIBUTES
    from nczarr_xarray.export.selection import Quantization

    name, _, how = text.rpartition("=")
    mode, colon, digits = how.rpartition(":")
    mode = mode if colon else "BitGroom"
    if not name or mode not in QUANTIZE_ATTRIBUTES or not digits.isdecimal():
        modes = ", ".join(QUANTIZE_ATTRIBUTES)
        raise argparse.ArgumentTypeError(
            f"{text!r} is not VAR=[MODE:]DIGITS, with a MODE of {modes}"
        )
    return [(_path(name), Quantization(mode, int(digits)))]
