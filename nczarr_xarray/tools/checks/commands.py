"""Commands of ``nczarr`` about the dataset in hand, as a shell takes them; secrets are ``***``."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import PurePath
from typing import Any
from urllib.parse import unquote

from nczarr_fsspec.errors import FormatError, UsageError
from nczarr_fsspec.places.names import from_home, names_url, says_file, says_references
from nczarr_fsspec.places.url import is_secret, parse_url, redact
from nczarr_xarray.export.copy.request import find_kind
from nczarr_xarray.export.form.lacking import as_netcdf_names, suited
from nczarr_xarray.formats.registry import NCZARR
from nczarr_xarray.tools.checks import Finding, some
from nczarr_xarray.tools.checks.subject import Subject

MASK = "***"
#: What a copy mends, by the code of the finding, and the options that it needs.
MENDED = {
    "slow-opening": ("consolidated",),
    "not-consolidated": ("consolidated",),
    "index-scattered": (),
    "index-at-end": (),
    "lost-space": (),
    "small-chunks": ("optimize",),
    "large-chunks": ("optimize",),
    "single-steps": ("optimize",),
    "divided-coordinate": ("optimize",),
    "padding": ("optimize",),
    "small-fragments": ("optimize", "compress"),
    "uncompressed": ("compress",),
    "no-shuffle": ("compress",),
    "cmip7": ("cmip7",),
}
#: Layouts, and what names of copies with them end in.
_ENDS = {"as it is": "copy", "balanced": "balanced", "whole maps": "maps"}
_PURE = {"v2": "Zarr2", "v3": "Zarr3"}
_FILES = (".nc", ".nc4", ".cdf", ".netcdf")


def command(subject: Subject, name: str, *words: str, option: str = "-o") -> str:
    """Return a command about a dataset.

    Parameters
    ----------
    words
        What follows the name of the dataset.
    option
        The flag of a storage option.
    """
    known = _options(option, subject.storage_options)
    return shlex.join(["nczarr", name, _word(_named(subject)), *words, *known])


def _named(subject: Subject) -> str:
    """Return how the user named a dataset, or else how messages do."""
    target = subject.target
    return str(target) if isinstance(target, (str, PurePath)) else subject.url


def _word(name: str) -> str:
    """Return a name without secrets, as an argument that is no option."""
    return redact(f"./{name}" if name.startswith("-") else name)


def _options(flag: str, options: Mapping[str, Any] | None) -> Iterator[str]:
    for key, value in (options or {}).items():
        text = value if isinstance(value, str) else json.dumps(value, default=lambda _: MASK)
        hidden = is_secret(key) or (not isinstance(value, str) and is_secret(text))
        yield from (flag, f"{key}={MASK if hidden else redact(text)}")


# -- copies ----------------------------------------------------------------------------------------


def copies(
    subject: Subject, found: Iterable[Finding], layouts: Mapping[str, tuple[int, ...] | None]
) -> tuple[dict[str, str], str]:
    """Return the commands that copy a dataset, by layouts, and what to say about them.

    The first mends what was found, as far as a copy can. There is none that would lose something.

    Parameters
    ----------
    layouts
        Chunks of the variable that reads are predicted of, for each layout that is proposed.
    """
    assert subject.opened is not None
    codes = {one.code for one in found if one.advice} & MENDED.keys()
    options = {option for code in codes for option in MENDED[code]}
    if codes:
        # data in one piece get chunks in any copy
        pieces = any(not facts.array.is_chunked for facts in subject.survey.facts)
        first = "balanced" if pieces or "optimize" in options else "as it is"
        layouts = {first: None, **layouts}
    if not layouts:
        return {}, "no copy would be better"
    name = _named(subject)
    word = _PURE.get(subject.generation, "NCZarr" if subject.generation in NCZARR else "NETCDF4")
    try:
        held = as_netcdf_names(suited(subject.opened, word), word).hierarchy
    except FormatError as error:
        return {}, f"no copy is proposed: {error}"
    if lost := [one.object for one in (*held.left_out(), *held.hidden)]:
        return {}, f"no copy is proposed, for it would lack {some(lost)}"
    if not name.isprintable():
        return {}, "no copy is proposed, for a terminal cannot show the name: rename it"
    return {one: _copy(subject, word, one, chunks, options) for one, chunks in layouts.items()}, ""


def _copy(
    subject: Subject, word: str, layout: str, chunks: tuple[int, ...] | None, asked: set[str]
) -> str:
    target, is_there = _target(subject, word, layout)
    words = [_word(target)]
    kind, meant = find_kind(target, word)[0], ""
    with suppress(UsageError):  # the name of something else
        meant = find_kind(target, None)[1]
    if meant != word:
        words += ["--format", word]
    if layout == "balanced":
        words.append("--optimize")
    elif chunks is not None and subject.chosen is not None:
        variable = subject.chosen.variable
        cut = zip(variable.dimensions, chunks, strict=True)
        words += ["--chunks", ",".join(f"{d.name}={n}" for d, n in cut if n < d.size)]
    if "compress" in asked:
        words += ["--compress", "zlib"]
    if "consolidated" in kind.options and (subject.is_consolidated or "consolidated" in asked):
        words.append("--consolidated")
    if "cmip7" in asked:
        words.append("--cmip7")
    allow, replace = (subject.addresses.get(key) for key in ("allow", "replace"))
    prefixes = ["*"] if allow is True else [allow] if isinstance(allow, str) else [*(allow or ())]
    words += [text for prefix in prefixes for text in ("--allow", str(prefix))]
    words += [text for move in (replace or {}).items() for text in ("--replace", "=".join(move))]
    if is_there:
        words += _options("-O", subject.storage_options)
    return command(subject, "copy", *words)


def _target(subject: Subject, word: str, layout: str) -> tuple[str, bool]:
    """Return where a copy is written, and whether it is in the filesystem of the dataset.

    It is beside the dataset, or, where nothing can be written there, in the working directory.
    """
    name = _named(subject)
    place, mark, fragment = name, "", ""
    is_remote = False
    if names_url(name):
        url = parse_url(name)
        is_remote = url.target_protocol != "file"
        place, mark, fragment = name.partition("#")
        anonymous = (subject.storage_options or {}).get("anon")
        web = url.protocol in ("http", "https") or url.protocol != url.target_protocol
        if is_remote and (web or anonymous or not url.path.partition("/")[2]):
            place, mark, fragment = os.path.basename(unquote(url.path).rstrip("/")), "", ""
            is_remote = False
    stem, end = os.path.splitext(place.rstrip("/"))
    if word == "NETCDF4":
        end = end if end.lower() in _FILES else ".nc"
    elif not fragment and (says_references(place) or says_file(place, frozenset())):
        end = ".zarr"
    for number in count(1):
        more = "" if number == 1 else f"-{number}"
        target = f"{stem or 'dataset'}-{_ENDS[layout]}{more}{end}{mark}{fragment}"
        if is_remote or mark or not os.path.lexists(from_home(target)):
            break
    return target, is_remote
