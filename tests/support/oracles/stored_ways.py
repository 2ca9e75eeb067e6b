"""What is done with the datasets of `stored_forms`, and whether what comes out is what went in.

A `Way` makes another dataset of one. `judge` reads both with readers that are not ours and says of
each variable and attribute whether it is equal, or what was announced of it: by a `LossWarning`
that names it, or by an error of ours that does. Everything else is a defect.
"""

from __future__ import annotations

import io
import math
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import xarray as xr

import nczarr_xarray  # noqa: F401 - registers the accessor
from nczarr_fsspec.errors import LossWarning, NCZarrError, NCZarrWarning
from nczarr_xarray.cli.main import main
from tests.support.corpora.stored_forms import SIZE, SOURCES, Form, Reading, read

Outcome = str
#: From best to worst; those from `different` on are defects.
OUTCOMES = ("equal", "announced", "refused", "untrue", "different", "crash")
DEFECTS = OUTCOMES[3:]


# -- ways ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Said:
    """What was said while a way was gone: warnings of losses, others, and the error."""

    losses: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str = ""
    crash: str = ""


class _RefusedError(Exception):
    """A command has returned an error."""


Values = Callable[[np.ndarray], np.ndarray]
#: Takes a source, a folder, and what writes a second source whose coordinate goes on.
Again = Callable[[Path], None]
Go = Callable[[Path, Path, Again], Any]


def _same(values: np.ndarray) -> np.ndarray:
    return values


def _twice(values: np.ndarray) -> np.ndarray:
    return np.concatenate([values, values])


def _reversed(values: np.ndarray) -> np.ndarray:
    return values[::-1]


@dataclass(frozen=True, slots=True)
class Way:
    """From a dataset to another one.

    Parameters
    ----------
    go
        Takes the source, a folder, and what makes a second source there; returns the target.
    engine
        Of xarray, which reads the target.
    sources
        Names of the sources that can go it.
    values
        What values of the source are to become.
    untyped
        Whether the target lacks types, so that numbers get others that hold them.
    """

    go: Go
    engine: str
    sources: Collection[str] = tuple(SOURCES)
    values: Values = _same
    untyped: bool = False


def _command(*words: object) -> None:
    text = io.StringIO()
    with redirect_stderr(text), redirect_stdout(io.StringIO()):
        status = main([str(word) for word in words])
    lines = [line for line in text.getvalue().splitlines() if line]
    if lines:
        raise _RefusedError("\n".join(lines))
    assert status in (0, 1)


def _tree(path: Path) -> str:
    return f"file://{path}#mode=nczarr,file"


def _copy(name: str, *options: str) -> Go:
    def go(source: Path, folder: Path, again: Again) -> Any:
        target = folder / name
        _command("copy", source, target, *options)
        return _tree(target) if name.endswith(".nczarr") else target

    return go


def _opened(source: Path) -> xr.Dataset:
    with xr.open_dataset(source, engine="nczarr", decode_times=False) as dataset:
        return dataset.load()


def _to_nczarr(name: str) -> Go:
    def go(source: Path, folder: Path, again: Again) -> Any:
        target = folder / name
        mode = "zarr" if name.endswith(".zarr") else "nczarr"
        _opened(source).nczarr.to_nczarr(f"file://{target}#mode={mode},file")
        return _tree(target) if mode == "nczarr" else target

    return go


def _append(source: Path, folder: Path, again: Again) -> Any:
    target = folder / "result.nczarr"
    _command("copy", source, target)
    again(folder / f"second{source.suffix}")
    _opened(folder / f"second{source.suffix}").nczarr.to_nczarr(target, append_dim="x")
    return _tree(target)


def _region(source: Path, folder: Path, again: Again) -> Any:
    target = folder / "result.nczarr"
    _command("copy", source, target)
    dataset = _opened(source).drop_vars("x").isel(x=slice(None, None, -1))
    dataset.nczarr.to_nczarr(target, region={"x": slice(0, SIZE)})
    return _tree(target)


def _to_cfa(source: Path, folder: Path, again: Again) -> Any:
    target = folder / "result.nca"
    _opened(source).nczarr.to_cfa(target)
    return target


def _aggregate(source: Path, folder: Path, again: Again) -> Any:
    second = folder / f"second{source.suffix}"
    again(second)
    target = folder / "result.nca"
    _command("aggregate", source, second, "-o", target, "--dim", "x")
    return target


def _upgrade(source: Path, folder: Path, again: Again) -> Any:
    target = folder / "result.nczarr"
    shutil.copytree(source, target)
    _command("upgrade", target)
    return _tree(target)


def _refs(source: Path, folder: Path, again: Again) -> Any:
    target = folder / "result.json"
    _command("refs", source, target)
    return target


_FILES = ("netCDF-4", "HDF5", "CDF-1", "CDF-2", "CDF-5")
WAYS: dict[str, Way] = {
    "copy → NCZarr": Way(_copy("result.nczarr"), "netcdf4"),
    "copy → Zarr 2": Way(_copy("result.zarr", "--format", "Zarr2"), "zarr"),
    "copy → Zarr 3": Way(_copy("result.zarr", "--format", "Zarr3"), "zarr"),
    "copy → netCDF-4": Way(_copy("result.nc"), "netcdf4"),
    "copy → CDF-2": Way(
        _copy("result.nc", "--format", "NETCDF3_64BIT_OFFSET"), "netcdf4", untyped=True
    ),
    "copy → CDF-5": Way(_copy("result.nc", "--format", "NETCDF3_64BIT_DATA"), "netcdf4"),
    "copy → .nca": Way(_copy("result.nca"), "nczarr"),
    "to_nczarr": Way(_to_nczarr("result.nczarr"), "netcdf4"),
    "to_nczarr, Zarr 2": Way(_to_nczarr("result.zarr"), "zarr"),
    "append": Way(_append, "netcdf4", values=_twice),
    "region": Way(_region, "netcdf4", values=_reversed),
    "to_cfa": Way(_to_cfa, "nczarr"),
    "aggregate": Way(_aggregate, "nczarr", values=_twice),
    "upgrade": Way(_upgrade, "netcdf4", ("NCZarr", "Zarr 2")),
    "refs": Way(_refs, "kerchunk", _FILES),
}


def ways_of(source: str) -> list[str]:
    """Return the names of the ways that a source goes; those of CDF-1 are those of CDF-2."""
    names = [name for name, way in WAYS.items() if source in way.sources]
    return names[::4] if source == "CDF-1" else names


def forms_of(source: str, way: str) -> list[Form]:
    """Return the forms of a source that go a way.

    Numbers that classic files cannot hold are refused one by one: a few of them stand for all.
    """
    chosen = SOURCES[source].forms
    if way == "copy → CDF-2":
        wide = ("u4", "i8", "u8")
        return [form for form in chosen if form.kind not in wide or form.fill == "absent"]
    return chosen


def read_source(name: str, path: Path) -> Reading:
    """Read a source with a reader that is not ours.

    netCDF-C takes some text of its own trees for other JSON: it is asked for the same as a file.
    """
    return read(path, {"HDF5": "h5netcdf"}.get(name, "zarr" if name[:4] == "Zarr" else "netcdf4"))


@contextmanager
def _recorded(said: Said) -> Iterator[None]:
    """Keep warnings, those of commands too, with all names that they have."""

    def keep(message: Warning | str, category: type[Warning], *_: object) -> None:
        if issubclass(category, NCZarrWarning):
            (said.losses if issubclass(category, LossWarning) else said.notes).append(str(message))

    @contextmanager
    def reported() -> Iterator[list[Warning]]:
        yield []

    with (
        warnings.catch_warnings(),
        mock.patch("nczarr_xarray.cli.main.reported_warnings", reported),
        mock.patch("nczarr_xarray.export.form.lacking.SHOWN", 10**6),
    ):
        warnings.simplefilter("always")
        warnings.showwarning = keep  # type: ignore[assignment]
        yield


def gone(way: Way, source: Path, folder: Path, again: Again) -> tuple[Any, Said]:
    """Go a way; return the target, or None, and what was said."""
    said = Said()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with _recorded(said):
        try:
            return way.go(source, folder, again), said
        except (_RefusedError, NCZarrError) as error:
            said.error = str(error)
        except Exception as error:  # noqa: BLE001 - what users would see as a traceback
            said.crash = f"{type(error).__name__}: {error}"
    return None, said


# -- judging ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a variable, or of an attribute (``attributes:name``, ``:name``)."""

    outcome: Outcome
    text: str = ""


def judge(
    source: str, way: str, chosen: Sequence[Form], attributes: Collection[str], folder: Path
) -> dict[str, Verdict]:
    """Return what becomes of each variable and each attribute of a source on a way.

    If the whole cannot go it, the variables and attributes that the error names are left out, or
    each half is tried.
    """
    found: dict[str, Verdict] = {}
    _judge(source, way, list(chosen), list(attributes), folder, found)
    return found


def _judge(
    name: str,
    way_name: str,
    chosen: list[Form],
    attributes: list[str],
    folder: Path,
    found: dict[str, Verdict],
) -> None:
    if not chosen and not attributes:
        return
    source, way = SOURCES[name], WAYS[way_name]
    path = folder / f"source{source.suffix}"
    if path.exists():
        (shutil.rmtree if path.is_dir() else Path.unlink)(path)
    source.write(path, chosen, attributes)
    truth, by = path, name
    if name == "NCZarr":
        truth, by = folder / "truth.nc", "netCDF-4"
        truth.unlink(missing_ok=True)
        SOURCES[by].write(truth, chosen, attributes)
    before = read_source(by, truth)
    again = partial(source.write, chosen=chosen, attributes=attributes, start=SIZE)
    target, said = gone(way, path, folder / "target", again)
    if target is not None:
        found |= dict(_compared(before, read(*_openable(target, way)), way, said))
        return
    outcome, text = ("crash", said.crash) if said.crash else ("refused", said.error)
    named = [form for form in chosen if names(text, form.name)]
    stated = [one for one in attributes if _names_attribute(text, "attributes", one)]
    if len(chosen) + len(attributes) == 1 and (named or stated or outcome == "crash"):
        key = chosen[0].name if chosen else f"attributes:{attributes[0]}"
        found[key] = Verdict(outcome, text)
    elif outcome == "refused" and (named or stated):
        found |= {form.name: Verdict("refused", text) for form in named}
        found |= {f"attributes:{one}": Verdict("refused", text) for one in stated}
        chosen = [form for form in chosen if form not in named]
        _judge(name, way_name, chosen, [a for a in attributes if a not in stated], folder, found)
    elif len(chosen) + len(attributes) == 1:
        key = chosen[0].name if chosen else f"attributes:{attributes[0]}"
        found[key] = Verdict("crash", f"an error that does not name it: {text}")
    elif chosen and attributes:
        _judge(name, way_name, chosen, [], folder, found)
        _judge(name, way_name, [], attributes, folder, found)
    else:
        for half in (0, 1):
            forms_half, attributes_half = (_half(one, half) for one in (chosen, attributes))
            _judge(name, way_name, forms_half, attributes_half, folder, found)


def _half(all_of: list[Any], which: int) -> list[Any]:
    middle = (len(all_of) + 1) // 2
    return all_of[middle:] if which else all_of[:middle]


def _as_signed(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return integers of another sign as those of a type."""
    same = values.dtype.kind in "iu" and values.dtype.itemsize == dtype.itemsize
    native = values.astype(values.dtype.newbyteorder("="))
    return native.view(dtype.newbyteorder("=")) if same else values


def _openable(target: Any, way: Way) -> tuple[Any, str]:
    if way.engine == "kerchunk":
        import fsspec
        from zarr.storage import FsspecStore

        fs = fsspec.filesystem("reference", fo=str(target), asynchronous=True)
        return FsspecStore(fs, read_only=True), "zarr"
    return (str(target) if isinstance(target, str) else target), way.engine


def names(text: str, name: str) -> bool:
    """Tell whether a message names a variable."""
    return re.search(rf"(?<![\w]){re.escape(name)}(?!\w)", text) is not None


def _names_attribute(text: str, owner: str, name: str) -> bool:
    """Tell whether a message names an attribute."""
    return re.search(rf"/{owner}(:|: attribute '){re.escape(name)}(?!\w)", text) is not None


def _compared(
    before: Reading, after: Reading, way: Way, said: Said
) -> Iterator[tuple[str, Verdict]]:
    json = way.engine in ("zarr", "kerchunk")
    untyped = json or way.untyped
    for name, stored in before.stored.items():
        decoded, result = before.values[name], after.values.get(name)
        pairs = decoded, result
        if isinstance(decoded, Exception):  # what no reader decodes is to stay as it is
            pairs = stored, after.stored.get(name)
            if pairs[1] is not None and "_Unsigned" in before.decoding.get(name, {}):
                pairs = stored, _as_signed(pairs[1], stored.dtype)  # or gets the sign that it says
        if name == "x" and way.values is not _same:
            continue
        text = difference(way.values, *pairs, single=_is_single(before, name) and untyped)
        told = next((line for line in said.losses if names(line, name)), "")
        if not told and text.startswith("cannot be decoded"):  # xarray itself is the limit
            told = next((line for line in said.notes if names(line, name)), "")
        untrue = _untrue(before, after, name, told)
        yield name, Verdict("untrue", told) if untrue else _verdict(text, told)
    for key, value in before.attributes.items():
        owner, _, attribute = key.rpartition(":")
        if (owner and owner not in before.stored) or attribute in ("coordinates", "Conventions"):
            continue
        there = after.attributes.get(key, _MISSING)
        text = _attribute_difference(value, there, untyped=untyped, json=json)
        told = next((line for line in said.losses if _names_attribute(line, owner, attribute)), "")
        yield (key if owner else f":{attribute}"), _verdict(text, told)


def _verdict(difference: str, told: str) -> Verdict:
    if difference:
        return Verdict("announced", told) if told else Verdict("different", difference)
    return Verdict("equal")


def _untrue(before: Reading, after: Reading, name: str, told: str) -> bool:
    """Tell whether what was told of a loss is not so."""
    if not told:
        return False
    if "no element can have" in told:
        marks = np.ravel(before.decoding.get(name, {}).get("_FillValue", b""))
        if marks.dtype.kind != "S" and np.isin(before.stored[name], marks).any():
            return True
    fills = (one.decoding.get(name, {}).get("_FillValue", _MISSING) for one in (before, after))
    return "left out" in told and _MISSING not in (kept := list(fills)) and _same_numbers(*kept)


def _is_single(reading: Reading, name: str) -> bool:
    """Tell whether a variable is unpacked in single precision, which JSON cannot say."""
    return getattr(reading.decoding.get(name, {}).get("scale_factor"), "dtype", None) == np.float32


def difference(change: Values, before: Any, after: Any, *, single: bool = False) -> str:
    """Say how values differ from those that they are to be; nothing if they are equal."""
    if after is None:
        return "missing"
    if isinstance(after, Exception):
        return f"cannot be decoded: {type(after).__name__}: {after}"
    wanted, result = _plain(change(before)), _plain(np.asarray(after))
    if wanted.shape != result.shape:
        return f"shape {wanted.shape} → {result.shape}"
    if _equal(wanted, result):
        return ""
    if single and result.dtype.kind == "f" and np.allclose(wanted, result, 3e-7, equal_nan=True):
        return ""
    return f"{before.dtype} {wanted.tolist()} → {after.dtype} {result.tolist()}"


def _plain(values: np.ndarray) -> np.ndarray:
    """Return text of any kind as str, truth as numbers."""
    if values.dtype.kind in "OSUT":
        texts = [
            one.decode("utf-8", "surrogateescape") if isinstance(one, bytes) else one
            for one in values.astype(object).ravel().tolist()
        ]
        found = np.empty(len(texts), object)
        found[:] = [one.rstrip("\0") if isinstance(one, str) else one for one in texts]
        return found.reshape(values.shape)
    return values.astype("i1") if values.dtype.kind == "b" else values


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.kind == "O" or b.dtype.kind == "O":
        return all(
            one == other or (one != one and other != other)  # noqa: PLR0124 - NaN
            for one, other in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)
        )
    if "f" in (a.dtype.kind, b.dtype.kind):
        common = max(one.dtype for one in (a, b) if one.dtype.kind == "f")
        missing = np.isnan(a.astype(common)) & np.isnan(b.astype(common))
        exact = (a.astype(common) == b.astype(common)) & (np.signbit(a) == np.signbit(b))
        return bool((missing | exact).all())
    return a.tolist() == b.tolist()


def _same_json(a: Any, b: Any) -> bool:
    """Tell whether JSON is the same; 1 and 1.0 are, and true is not 1."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same_json(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same_json, a, b))
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _same_numbers(a: Any, b: Any) -> bool:
    try:
        return bool(np.array_equal(np.ravel(a), np.ravel(b)))
    except (TypeError, ValueError):
        return False


_MISSING = object()


def _attribute_difference(before: Any, after: Any, *, untyped: bool, json: bool) -> str:
    """Say how an attribute differs; nothing if it is equal."""
    if after is _MISSING:
        return "missing"
    if _same_attribute(before, after, untyped=untyped, json=json):
        return ""
    return f"{_shown(before)} → {_shown(after)}"


def _shown(value: Any) -> str:
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype} {value.tolist()}"
    return repr(value)


def _same_attribute(a: Any, b: Any, *, untyped: bool, json: bool) -> bool:
    numeric = (np.ndarray, np.generic)
    if not isinstance(a, numeric) and not isinstance(b, numeric):  # JSON, or text
        if isinstance(a, list) and len(a) == 1 and isinstance(b, str) and not json:
            a = a[0]  # netCDF does not tell a list of one from its element
        return _same_json(a, b)
    if isinstance(a, numeric) and isinstance(b, numeric):
        if a.dtype != b.dtype and not untyped:
            return False
    elif isinstance(a, (str, bool)) or isinstance(b, (str, bool)) or a is None or b is None:
        return False
    try:
        one, other = np.atleast_1d(np.asarray(a)), np.atleast_1d(np.asarray(b))
    except ValueError:
        return False
    if one.shape != other.shape or {one.dtype.kind, other.dtype.kind} & set("OUb"):
        return False
    if isinstance(a, np.generic | np.ndarray) and a.dtype == np.float32 and other.dtype.kind == "f":
        other = other.astype(np.float32)
    return _equal(one, other)
