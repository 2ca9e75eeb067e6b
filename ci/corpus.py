#!/usr/bin/env python3
"""Read every dataset below a folder with us and with others, and compare all of it.

    python ci/corpus.py FOLDER

Files are known by their content: classic netCDF, HDF5 (netCDF-4 among it), Zarr
directories and archives. Each is read whole by ``engine="nczarr"`` and by the readers
that know its format: ``engine="netcdf4"`` and ``"h5netcdf"``, h5py, scipy,
zarr-python. Every reading happens in a process with limits of time and memory, so
that one that crashes is one that failed. Groups, dimensions, attributes with their
types, dtypes, encoding and values (of large variables the corners) are compared, as
they are stored and as xarray decodes them.

Every dataset is copied, too, with ``nczarr copy --verify`` to netCDF-4 and to Zarr 2, and the
copies are read by ``engine="netcdf4"`` and ``"zarr"``: these are to get what another reader gets
of the source, but for what the copy has announced to be lost.

A difference is *the other's* if a third reader agrees with us, or the other fails;
*documented* if docs/differences.md says so; *announced* if the copy has warned of it; else it is
*ours*. The table counts the
files of each folder in FOLDER by the worst of their differences. 1 is returned if
any is ours.
"""

from __future__ import annotations

import argparse
import collections
import functools
import os
import pickle
import re
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.recfunctions import repack_fields

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "ci")]

import workers  # noqa: E402 - the path comes first

from tests.support.oracles import readings  # noqa: E402
from tests.support.oracles.readings import (  # noqa: E402
    RAW,
    Difference,
    Failed,
    GroupReading,
    Reading,
    VariableReading,
)

HDF5 = b"\x89HDF\r\n\x1a\n"
#: Where the signature of HDF5 may be.
PLACES = (0, 512, 1024, 2048, 4096, 8192)
#: What the root of a Zarr tree has.
TREE = (".zgroup", ".zarray", ".zmetadata", "zarr.json")

Read = Callable[[str], Reading]


def _xarray(engine: str, **options: Any) -> Read:
    return functools.partial(readings.by_xarray, engine=engine, **options)


def plain(values: np.ndarray) -> np.ndarray:
    """Return values in the byte order of the machine, structures without padding."""
    values = readings.native(values)
    return values if values.dtype.names is None else repack_fields(values)


def decoded(path: str, engine: str) -> Reading:
    """Return what an engine reads; times as numbers, if xarray cannot decode them."""
    try:
        return readings.by_xarray(path, engine=engine)
    except ValueError as error:
        if "unable to decode time" not in str(error):
            raise
        return readings.by_xarray(path, engine=engine, decode_times=False)


def _decoded(engine: str) -> Read:
    return functools.partial(decoded, engine=engine)


_h5netcdf = _xarray("h5netcdf", phony_dims="sort", **RAW)


def without_attributes(reading: Reading) -> Reading:
    """Return a reading that is asked for values only: h5netcdf has attributes of one file."""
    for group in reading.values():
        group.attrs = None
        for variable in group.variables.values():
            variable.attrs = None
    return reading


class LostError(Exception):
    """A copy is not made, or is not verified."""


def of_copy(path: str, engine: str) -> Reading:
    """Return what another reader gets of a copy, without what was announced to be lost."""
    from nczarr_fsspec.errors import LossWarning
    from nczarr_xarray import copy

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        target = os.path.join(folder, "copy.nc" if engine == "netcdf4" else "copy.zarr")
        word = "NETCDF4" if engine == "netcdf4" else "Zarr2"
        comparison = copy(path, target, format=word, verify=True)
        if comparison is None or not comparison.equal:
            raise LostError("\n".join(comparison.lines() if comparison else ())[-WIDTH:])
        losses = (one.message for one in told if isinstance(one.message, LossWarning))
        lost = {name for loss in losses for name in loss.names}
        reading = decoded(target, engine)
    return without(reading, lost)


def without(reading: Reading, lost: Collection[str]) -> Reading:
    """Return a reading that does not tell what is known to be lost."""
    for path, group in reading.items():
        group.encoding = None
        for name, variable in group.variables.items():
            variable.encoding = variable.dims = None
            full = f"{path.rstrip('/')}/{name}"
            if any(re.match(rf"{re.escape(full)}(:|$)", one) for one in lost):
                variable.values = variable.dtype = variable.attrs = None
            elif isinstance(variable.values, np.ndarray):
                variable.values, variable.dtype = plain(variable.values), None
    return reading


#: Readers of each format, ours first; "decoded" is compared with "decoded".
READERS: dict[str, dict[str, Read]] = {
    "classic": {
        "ours": _xarray("nczarr", **RAW),
        "ours, decoded": _decoded("nczarr"),
        "netcdf4": _xarray("netcdf4", **RAW),
        "netcdf4, decoded": _decoded("netcdf4"),
        "scipy": functools.partial(readings.of_one, "scipy"),
        "copy, netcdf4": functools.partial(of_copy, engine="netcdf4"),
        "copy, zarr": functools.partial(of_copy, engine="zarr"),
    },
    "HDF5": {
        "ours": _xarray("nczarr", **RAW),
        "ours, decoded": _decoded("nczarr"),
        "netcdf4": _xarray("netcdf4", **RAW),
        "netcdf4, decoded": _decoded("netcdf4"),
        "h5netcdf": lambda path: without_attributes(_h5netcdf(path)),
        "h5py": functools.partial(readings.by_h5py, attributes=True),
        "copy, netcdf4": functools.partial(of_copy, engine="netcdf4"),
        "copy, zarr": functools.partial(of_copy, engine="zarr"),
    },
    "Zarr": {
        "ours": _xarray("nczarr", **RAW),
        "zarr": readings.by_zarr,
        "zarr, decoded": _decoded("zarr"),
        "copy, netcdf4": functools.partial(of_copy, engine="netcdf4"),
        "copy, zarr": functools.partial(of_copy, engine="zarr"),
    },
}
#: What a reader is to get of a copy: what this one gets of the source.
TRUTH = ("netcdf4, decoded", "zarr, decoded")
#: Readers that define what we return, down to types; the others are asked for values.
EXACT = ("netcdf4", "netcdf4, decoded")

#: Differences of docs/differences.md: its heading, the kind, and what is found (ours / theirs).
DOCUMENTED: tuple[tuple[str, str, str], ...] = (
    ("Opaque types and complex numbers", r"variables", r"\[.+\] / \[\]"),
    ("Groups of files in the classic model", r"groups", r"/ \['/'\]$"),
    ("Opaque types and complex numbers", r"values", r"^\|V\d.* / datetime64"),
    ("One bad variable or attribute", r"values", r"is not UTF-8( \(in .*\))? / "),
    ("Single values of variable length", r"shape", r"^\(\) / \(\d+,\)$"),
    ("Single values of variable length", r"values", r"^object \(\) \[array"),
    ("Files that netCDF-C does not open", r"values", r"has a null dataspace.* / "),
    ("Filters", r"encoding (blosc|compression_opts)", r""),
    ("Filters", r"encoding complevel", r"^\d / 0$"),
    ("Opaque types and complex numbers", r"encoding unlimited_dims", r"/ set\(\)$"),
    ("Text within other types", r"(encoding )?dtype|values", r"S(?!1\b)\d.* / .*S1\b"),
    ("Opaque types and complex numbers", r"copy", r"are not copied to netCDF"),
    ("Aggregations", r"copy", r"there is no such file or directory \(fragment"),
    ("What nczarr copy refuses", r"copy", r"not one that netCDF allows|Zarr( 2)? has no type for"),
    ("What nczarr copy refuses", r"copy", r"libhdf5 does not have it either|a null dataspace"),
    ("Data in other files", r"groups", r"\['/', .+\] / \['/', .+\]"),
    ("Data in other files", r"values", r"^\w+Error.*(beside this one|which is not there) / "),
)


@dataclass
class Item:
    """One dataset: where it is, its format, and the folder it is counted for."""

    path: Path
    format: str
    group: str


@dataclass
class Verdict:
    """What was found of one dataset: differences by class, with the reader."""

    item: Item
    refused: bool = False
    found: dict[str, list[tuple[str, str]]] = field(
        default_factory=lambda: collections.defaultdict(list)
    )

    @property
    def outcome(self) -> str:
        """The worst that was found."""
        worst = [
            name for name in ("ours", "documented", "theirs", "announced") if self.found.get(name)
        ]
        return worst[0] if worst else "refused by all" if self.refused else "right"


#: Characters of a difference that are printed.
WIDTH = 300

OUTCOMES = ("right", "announced", "theirs", "documented", "refused by all", "ours")


# -- finding ------------------------------------------------------------------------------------


def find(root: Path) -> Iterator[Item]:
    """Every dataset below a folder, by content."""
    for folder, folders, names in os.walk(root):
        at = Path(folder)
        group = at.relative_to(root).parts[0] if at != root else "."
        if any(name in TREE for name in names):
            folders.clear()  # all below is part of it
            yield Item(at, "Zarr", group)
            continue
        for name in sorted(names):
            path = at / name
            format_ = format_of(path)
            if format_ is not None:
                yield Item(path, format_, group if at != root else name)
        folders.sort()


def format_of(path: Path) -> str | None:
    """Return the format of a file; None if it is none of ours."""
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(8)
        if head[:3] == b"CDF" and head[3:4] in (b"\1", b"\2", b"\5"):
            return "classic"
        if head[:4] == b"PK\3\4":
            try:
                with zipfile.ZipFile(path) as archive:
                    tops = {n.rpartition("/")[2] for n in archive.namelist()[:2000]}
            except (zipfile.BadZipFile, OSError, NotImplementedError):
                return None
            return "Zarr" if tops & set(TREE) else None
        for place in PLACES:
            file.seek(place)
            if file.read(8) == HDF5:
                return "HDF5"
    return None


# -- reading ------------------------------------------------------------------------------------


def read(
    items: list[Item], folder: str, name: str, limits: workers.Limits, number: int
) -> workers.Labels:
    """Read one dataset with one reader; what it says is left in `folder`."""
    warnings.simplefilter("ignore")
    item = items[number]
    try:
        found = pickle.dumps(READERS[item.format][name](os.fspath(item.path)))
    except workers.HangError:
        found = pickle.dumps(Failed(f"takes longer than {limits.seconds} s"))
    except Exception as error:  # noqa: BLE001 - any failure is a result, as are h5py's references
        found = pickle.dumps(Failed(f"{type(error).__name__}: {error}"))
    Path(folder, f"{number} {name}").write_bytes(found)
    return []


def read_all(items: list[Item], folder: str, jobs: int, limits: workers.Limits) -> None:
    """Read all datasets with all readers that know them."""
    for name in dict.fromkeys(name for readers in READERS.values() for name in readers):
        mine = [
            number
            for number, item in enumerate(items)
            if name in READERS[item.format] and not Path(folder, f"{number} {name}").exists()
        ]
        chosen = [items[n] for n in mine]
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            case = functools.partial(read, chosen, scratch, name, limits)
            print(f"{name}: {len(mine)} datasets", flush=True)
            workers.run_all(case, range(len(mine)), jobs, limits)
            for position, number in enumerate(mine):
                result = Path(scratch, f"{position} {name}")
                if result.exists():
                    result.rename(Path(folder, f"{number} {name}"))


def load(folder: str, number: int, name: str) -> Reading | Failed:
    """Return what a reader reported; a process that crashed has reported nothing."""
    path = Path(folder, f"{number} {name}")
    if not path.exists():
        return Failed("the process crashed or took too long")
    found: Reading | Failed = pickle.loads(path.read_bytes())  # noqa: S301 - our own
    return found


# -- judging ------------------------------------------------------------------------------------


def judge(item: Item, said: dict[str, Reading | Failed]) -> Verdict:
    """Classify what readers say otherwise than we."""
    verdict = Verdict(item)
    copies = [name for name in said if name.startswith("copy")]
    others = [name for name in said if not name.startswith(("ours", "copy", "zarr, decoded"))]
    opened = [name for name in others if not isinstance(said[name], Failed)]
    ours = said["ours"]
    if isinstance(ours, Failed):
        if opened:
            kind = documented(Difference("/", "file", str(ours), "opens"))
            verdict.found[kind or "ours"].append((opened[0], f"refused: {ours}"))
        verdict.refused = not opened
        return verdict
    decoded = said.get("ours, decoded", ours)
    truth = next((said[name] for name in TRUTH if name in said), Failed("nobody"))
    for name in copies:
        for kind, text in judge_copy(truth, said[name], decoded):
            verdict.found[kind].append((name, text))
    aggregated = any(is_aggregation(said[name]) for name in opened)
    for name in others:
        theirs = said[name]
        if isinstance(theirs, Failed):
            fails = name.endswith("decoded") and isinstance(decoded, Failed)
            if not fails:  # xarray decodes what neither can
                verdict.found["theirs"].append((name, f"refuses: {theirs}"))
            continue
        mine = decoded if name.endswith("decoded") else ours
        if isinstance(mine, Failed):
            verdict.found["ours"].append((name, f"refused: {mine}"))
            continue
        for difference in compare(name, mine, theirs):
            if aggregated:
                verdict.found["documented"].append((name, str(difference)))
                continue
            verdict.found[classify(difference, name, ours, said)].append((name, str(difference)))
    return verdict


def is_aggregation(reading: Reading | Failed) -> bool:
    """Whether a reader returns the instructions of CFA, rather than what they aggregate."""
    return not isinstance(reading, Failed) and any(
        "aggregated_dimensions" in (variable.attrs or ())
        for group in reading.values()
        for variable in group.variables.values()
    )


def judge_copy(
    truth: Reading | Failed, copy: Reading | Failed, ours: Reading | Failed
) -> Iterator[tuple[str, str]]:
    """Yield what another reader gets otherwise of a copy than of its source, and what is lost."""
    if isinstance(copy, Failed):
        kind = documented(Difference("/", "copy", str(copy), ""))
        yield kind or ("ours" if copy.startswith("LostError") else "theirs"), str(copy)
        return
    blank = [name for group in copy.values() for name, v in group.variables.items() if not told(v)]
    if blank:
        yield "announced", f"of the copy: {', '.join(blank)}"
    if isinstance(truth, Failed):
        return
    # (of what it lacks in the copy, the copy's reading says nothing)
    for difference in readings.differences(readings.as_objects(truth), copy, exact=False):
        if re.match(r"\w+(Error|Exception): ", difference.ours):
            continue  # it cannot read that of the source
        if difference.what == "values" and (
            in_single(difference.where, truth, copy)
            # whose fault it is that we read something else is judged already
            or (not isinstance(ours, Failed) and agrees(difference.where, ours, copy))
        ):
            continue
        if difference.what in ("values", "shape") or difference.what.startswith("attribute "):
            yield "ours", f"of the copy: {difference}"


def told(variable: VariableReading) -> bool:
    """Whether a copy's reading tells of a variable; see `without`."""
    return variable.values is not None or variable.attrs is not None


def in_single(where: str, truth: Reading, copy: Reading) -> bool:
    """Whether values differ by being unpacked in double precision: JSON has no other numbers."""
    one, other = (found(reading, where) for reading in (truth, copy))
    assert one is not None
    assert other is not None
    a, b = one.values, other.values
    if not all(isinstance(v, np.ndarray) for v in (a, b)) or (a.dtype, b.dtype) != ("f4", "f8"):
        return False
    offset = np.max(np.abs((one.encoding or {}).get("add_offset", 0)))
    largest = np.max(np.abs(a[np.isfinite(a)]), initial=0) + 2 * offset
    tolerance = 4 * np.finfo("f4").eps * float(largest)
    return a.shape == b.shape and np.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True)


def found(reading: Reading, where: str) -> VariableReading | None:
    """Return what a reader says of the variable at a path."""
    group, _, name = where.rpartition("/")
    return reading.get(group or "/", GroupReading()).variables.get(name)


def compare(name: str, ours: Reading, theirs: Reading) -> Iterator[Difference]:
    """Return what differs from a reader whose results define ours."""
    if name in EXACT:
        yield from readings.differences(ours, theirs)
        return
    truth = {
        path: GroupReading(
            variables={
                n: VariableReading(v.values, shape=v.shape) for n, v in group.variables.items()
            }
        )
        for path, group in theirs.items()
    }
    readings.fit(truth, ours)
    ours = readings.as_objects(ours)
    for group in (*truth.values(), *ours.values()):
        for variable in group.variables.values():
            variable.encoding = None
            if isinstance(variable.values, np.ndarray):
                variable.values = plain(variable.values)
    for difference in readings.differences(ours, truth, exact=False):
        if difference.what in ("values", "shape"):  # names and groups are netCDF's matter
            yield difference


def classify(
    difference: Difference, name: str, ours: Reading, said: dict[str, Reading | Failed]
) -> str:
    """Whose a difference is."""
    if documented(difference):
        return "documented"
    if "values" in difference.what and not difference.ours.startswith(("FormatError", "Unsup")):
        for other, reading in said.items():
            if other.startswith(("ours", name.partition(",")[0])) or isinstance(reading, Failed):
                continue
            if agrees(difference.where, ours, reading):
                return "theirs"
    if difference.what == "attributes" and _same_names(difference.where, ours, said.get("h5py")):
        return "theirs"
    if difference.what == "values" and re.match(r"\w+(Error|Exception): ", difference.theirs):
        return "theirs"
    return "ours"


def agrees(where: str, ours: Reading, other: Reading) -> bool:
    """Whether another reader has our values of a variable."""
    mine, theirs = (found(reading, where) for reading in (readings.as_objects(ours), other))
    if mine is None or theirs is None or theirs.values is None:
        return False
    if isinstance(mine.values, Failed) or isinstance(theirs.values, Failed):
        return False
    return readings.same(plain(mine.values), plain(theirs.values))


def _same_names(where: str, ours: Reading, other: Reading | Failed | None) -> bool:
    """Whether another reader lists our attributes of a variable."""
    if other is None or isinstance(other, Failed):
        return False
    mine, theirs = (found(reading, where) for reading in (ours, other))
    if mine is None or theirs is None or theirs.attrs is None:
        return False
    return set(mine.attrs or ()) == set(theirs.attrs)


def documented(difference: Difference) -> str | None:
    """Return the class of a difference that docs/differences.md lists."""
    text = f"{difference.ours} / {difference.theirs}"
    for _, what, pattern in DOCUMENTED:
        if re.fullmatch(what, difference.what) and re.search(pattern, text):
            return "documented"
    return None


# -- reporting ----------------------------------------------------------------------------------


def table(verdicts: list[Verdict]) -> Iterator[str]:
    """Yield the lines of a table in Markdown: files by outcome; right folders share one."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for verdict in verdicts:
        counts[verdict.item.group][verdict.outcome] += 1
    yield "| | files | right | other outcomes |"
    yield "|---|---:|---:|---|"
    names = sorted(counts, key=str.lower)
    right = [name for name in names if set(counts[name]) == {"right"}]
    rows = {", ".join(right): right} if right else {}
    rows |= {name: [name] for name in names if name not in right} | {"all": names}
    for title, group in rows.items():
        row = sum((counts[name] for name in group), collections.Counter())
        others = (f"{row[outcome]} {outcome}" for outcome in OUTCOMES[1:] if row[outcome])
        yield f"| {title} | {row.total()} | {row['right']} | {', '.join(others)} |"


def main() -> int:
    """Run the command line; 1 if a difference is ours."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=int, default=120, help="for a reading (%(default)s)")
    parser.add_argument("--gigabytes", type=int, default=6, help="for a process (%(default)s)")
    parser.add_argument("--keep", help="folder that exists: readings stay there, to go on with")
    parser.add_argument("--all", action="store_true", help="print the differences of others, too")
    args = parser.parse_args()
    items = list(find(args.folder))
    limits = workers.Limits(args.gigabytes << 30, args.seconds)
    verdicts = []
    with tempfile.TemporaryDirectory() as fresh:
        scratch = args.keep or fresh
        read_all(items, scratch, args.jobs, limits)
        for number, item in enumerate(items):
            said = {name: load(scratch, number, name) for name in READERS[item.format]}
            verdicts.append(judge(item, said))
    shown = ("ours", "documented", "theirs", "announced") if args.all else ("ours",)
    for kind in shown:
        for verdict in verdicts:
            for name, text in verdict.found.get(kind, ())[:10]:
                print(f"{kind}: {verdict.item.path}: {name}: {text[:WIDTH]}")
    print(*table(verdicts), sep="\n")
    return any(verdict.outcome == "ours" for verdict in verdicts)


if __name__ == "__main__":
    sys.exit(main())
