"""netCDF-C as adversary: what either side writes, the other one reads, after changes too.

A case is made by hypothesis: a content, the release that it is written for, and changes. netCDF-C
writes the content, as a netCDF-4 file and as NCZarr, and we read it. We write it, netCDF-C and
ncdump read it. Then both append to it and overwrite parts of it, and must still agree.
`ci/fuzz_adversary.py` runs as many cases as one likes, the tests some hundred.
"""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray as xr
from hypothesis import strategies as st

from nczarr_xarray import to_nczarr, validate
from nczarr_xarray.cli.main import main
from tests.support.builders.ncwriter import NUMERIC, ramp
from tests.support.corpora.random_contents import FILTERS, Content, Var, attributes, contents
from tests.support.oracles.described import convert, described, different, url_of
from tests.support.oracles.nc_adapter import run_ncdump, run_ncgen

#: What each case counts as.
Labels = list[tuple[str, str]]
#: Prints a dataset as text: the argument is its URL or path.
Printer = Callable[[str], str]


class DifferentError(AssertionError):
    """Two programs say different things of one dataset."""


@dataclass
class Case:
    """What is written, for whom, and how it is changed then.

    Parameters
    ----------
    compat
        The release that `to_nczarr` is told to write for.
    changes
        In order: ``("region", path, slices)`` or ``("append", dimension, count)``.
    """

    content: Content
    compat: str
    changes: list[tuple[str, str, Any]] = field(default_factory=list)


# -- making ------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any content for any release, with up to three changes."""
    compat = draw(st.sampled_from(["4.9.3", "4.9.2", "4.8.1"]))
    case = Case(for_release(draw(contents()), compat), compat)
    if compat == "4.9.3" and draw(st.booleans()):
        _add_records(draw, case.content)
    sizes = {"": {name: size or 3 for name, size in case.content.dims.items()}}
    variables = {name: ("", var) for name, var in case.content.variables.items()}
    for path, group in case.content.groups.items():
        sizes[path] = {name: size or 3 for name, size in group.dims.items()}
        variables |= {f"{path}/{name}": (path, var) for name, var in group.variables.items()}
    # new values of indexes are refused: in a region they are labels, which must be those there
    able = sorted(
        name
        for name, (_, var) in variables.items()
        if _is_number(var) and var.dims != (name.rpartition("/")[2],) and var.written == 1.0
    )
    growing = sorted(name for name in case.content.dims if _grows(case, name))
    for _ in range(draw(st.integers(1, 3)) if able else 0):
        if bool(growing) and draw(st.booleans()):
            name = str(draw(st.sampled_from(growing)))
            count = draw(st.integers(1, 4))
            sizes[""][name] += count
            case.changes.append(("append", name, count))
        else:
            name = str(draw(st.sampled_from(able)))
            above, var = variables[name]
            visible = sizes[""] | sizes[above]
            region = []
            for dim in var.dims:
                first = draw(st.integers(0, visible[dim] - 1))
                region.append(slice(first, draw(st.integers(first + 1, visible[dim]))))
            case.changes.append(("region", name, tuple(region)))
    return case


def _add_records(draw: st.DrawFn, content: Content) -> None:
    """Add a dimension that grows and what has it: of random contents few can be appended to."""
    if {"records", "r0", "r1"} & {*content.dims, *content.variables, *content.groups}:
        return
    fixed = sorted(name for name, size in content.dims.items() if size is not None)
    content.dims["records"] = None
    for number in range(draw(st.integers(1, 2))):
        others = draw(st.lists(st.sampled_from(fixed), max_size=2, unique=True)) if fixed else []
        dims = tuple(draw(st.permutations(["records", *others])))
        lengths = tuple(draw(st.integers(1, content.dims[name] or 4)) for name in dims)
        options = {"chunksizes": lengths, **draw(st.sampled_from(FILTERS))}
        kind = draw(st.sampled_from(NUMERIC))
        content.variables[f"r{number}"] = Var(kind, dims, options, 1.0, draw(attributes))


def for_release(content: Content, compat: str) -> Content:
    """Leave out what a release cannot hold (docs/write.md)."""
    if compat == "4.9.3":
        return content
    old = compat == "4.8.1"
    variables = {}
    for name, var in content.variables.items():
        if old and (var.kind == "str" or not var.dims):
            continue
        chosen = {"chunksizes", "fill_value"} & var.options.keys()
        options = {k: v for k, v in var.options.items() if k in chosen} if old else var.options
        options = {key: value for key, value in options.items() if key != "endian"}
        if "chunksizes" in options:  # of dimensions that grow they may be longer
            options["chunksizes"] = tuple(min(n, 3) for n in options["chunksizes"])
        kind = var.kind.lstrip(">")
        variables[name] = replace(
            var, kind=kind, options=options, attributes=_attributes(var.attributes, old)
        )
    return Content(
        {name: size or 3 for name, size in content.dims.items()},
        variables,
        _attributes(content.attributes, old),
        {name: for_release(group, compat) for name, group in content.groups.items()},
    )


def _attributes(attributes: dict[str, Any], old: bool) -> dict[str, Any]:
    return {
        name: value
        for name, value in attributes.items()
        # netCDF4-python makes a string, not a char, of text that is not ASCII
        if not (
            old and (isinstance(value, list) or (isinstance(value, str) and not value.isascii()))
        )
    }


def _is_number(var: Var) -> bool:
    return bool(var.dims) and var.kind not in ("S1", "str")


def _has_filters(content: Content) -> bool:
    own = any(
        {"compression", "fletcher32"} & var.options.keys() for var in content.variables.values()
    )
    return own or any(map(_has_filters, content.groups.values()))


def _grows(case: Case, name: str) -> bool:
    """Whether records can be appended by both: all that has them is of the root, and numbers."""
    users = [var for var in case.content.variables.values() if name in var.dims]
    content = case.content

    def alone(var: Var) -> bool:
        records = [dim for dim in var.dims if content.dims.get(dim, 1) is None]
        return _is_number(var) and records == [name] and var.written == 1.0

    below = any(
        name in var.dims and name not in group.dims
        for group in content.groups.values()
        for var in group.variables.values()
    )
    return content.dims[name] is None and bool(users) and not below and all(map(alone, users))


# -- changing ----------------------------------------------------------------------------


def change_theirs(path: str, case: Case) -> Iterator[tuple[xr.Dataset, dict[str, Any]]]:
    """Change the file by netCDF-C, and yield what `to_nczarr` is to be given for the same."""
    for number, (what, name, how) in enumerate(case.changes):
        with netCDF4.Dataset(path, "a") as dataset:
            dataset.set_auto_maskandscale(False)
            if what == "region":
                variable = dataset[name]
                dims = variable.dimensions
                if any(part.stop > n for part, n in zip(how, variable.shape, strict=True)):
                    continue  # another variable wrote fewer records
                new = _numbers([part.stop - part.start for part in how], variable, number)
                variable[how] = new
                above, _, short = name.rpartition("/")
                made = {short: (dims, new)}
                options = {"region": dict(zip(dims, how, strict=True)), "group": above or None}
            else:
                made, options = {}, {"append_dim": name}
                start = len(dataset.dimensions[name])
                for key, variable in dataset.variables.items():
                    if name in variable.dimensions:
                        sizes = [
                            how if dim == name else len(dataset.dimensions[dim])
                            for dim in variable.dimensions
                        ]
                        new = _numbers(sizes, variable, number)
                        variable[
                            tuple(
                                slice(start, start + how) if dim == name else slice(None)
                                for dim in variable.dimensions
                            )
                        ] = new
                        made[key] = (variable.dimensions, new)
        yield xr.Dataset(made), options


def _numbers(shape: list[int], variable: Any, number: int) -> np.ndarray[Any, Any]:
    new = (ramp(tuple(shape), "i4") + 11 * number + 5) % 100
    return np.asarray(new).astype(variable.dtype.newbyteorder("="))


# -- checking ----------------------------------------------------------------------------


def check(case: Case, releases: Mapping[str, Printer] | None = None) -> Labels:
    """Run a case.

    Parameters
    ----------
    releases
        Programs of the release that `Case.compat` names, which read what we wrote, by name.

    Raises
    ------
    DifferentError
        If anything differs.
    """
    labels: Labels = [("written for", case.compat)]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what xarray thinks of the content
        source, ours = f"{folder}/x.nc", f"{folder}/y"
        theirs = f"{folder}/theirs"
        for place in (source, url_of(theirs)):
            with netCDF4.Dataset(place, "w") as dataset:
                case.content(dataset)
        # what it does not read as it was written: text that looks like JSON, digits of fill values
        mine, meant = _copied(theirs, folder), described(source)
        own = {key: value for key, value in mine.items() if value != meant.get(key)}
        read = described(url_of(theirs))
        read = {key: value for key, value in read.items() if key in own or key not in mine}
        _same("our copy of its NCZarr", *map(_without_negative_zero, (own, read)))
        labels.append(("read by us", "NCZarr of netCDF-C"))
        convert(source, ours, "--compat", case.compat)
        for change, options in change_theirs(source, case):
            to_nczarr(change, ours, **options)
            labels.append(("change", "append" if "append_dim" in options else "region"))
        truth = described(source)
        _same("our copy of ours", _copied(ours, folder), truth)
        labels.append(("read by us", "NCZarr of ours"))
        findings = [f for f in validate(ours, data=True) if f.severity == "error"]
        if findings:
            raise DifferentError(f"validate: {findings}")
        if case.compat == "4.9.3":
            _same("netCDF-C of ours", described(url_of(ours)), truth)
            labels.append(("read by others", "netCDF-C of ours"))
        # wheels of old releases have no filters for NCZarr
        readers = {} if releases is None or _has_filters(case.content) else releases
        for name, printed in readers.items():
            text = printed(source)
            if "ERROR" in text:
                labels.append(("read by others", f"{name} does not read the netCDF-4 file"))
                continue
            one, other = _lines(printed(url_of(ours))), _lines(text)
            if one != other:
                apart = [*(f"- {x}" for x in one if x not in other)]
                apart += [f"+ {x}" for x in other if x not in one]
                raise DifferentError(f"{name}: ours -, the file's +:\n" + "\n".join(apart))
            labels.append(("read by others", f"{name} of ours"))
        labels += _cdl(source, folder)
    return labels


def _copied(path: str, folder: str) -> dict[str, Any]:
    """What netCDF-C says of the netCDF-4 file that ``nczarr copy`` makes."""
    back = f"{folder}/back.nc"
    if main(["copy", "--overwrite", path, back]):
        raise DifferentError(f"nczarr copy {path} fails")
    return described(back)


def _without_negative_zero(found: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes with one zero: netCDF-C takes the ``-0`` that it wrote for an integer."""

    def one_zero(value: Any) -> Any:
        pair = value if isinstance(value, tuple) and len(value) == 2 else ("", None)
        if pair[0] not in ("float", "double") or not isinstance(pair[1], bytes):
            return value
        numbers = np.frombuffer(value[1], "f4" if value[0] == "float" else "f8")
        return value[0], (numbers + 0.0).tobytes()

    return {key: one_zero(value) for key, value in found.items()}


def _same(what: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    found = different(ours, theirs)
    if found:
        raise DifferentError(f"{what}: {found}")


def _lines(text: str) -> list[str]:
    """Lines of ncdump without the file's name, in an order that does not depend on the format."""
    first, *lines = text.replace("string ", "").splitlines()
    return sorted([first] * first.startswith("ERROR") + lines)


def by_ncdump(*arguments: str) -> str:
    """What ncdump prints; ERROR and why, if it fails on what newer releases of HDF5 wrote."""
    done = run_ncdump(*arguments)
    return f"ERROR {done.stderr}" if done.returncode else done.stdout


def _cdl(source: str, folder: str) -> Labels:
    """Compare our CDL of a file with ncdump's, and what ncgen makes of it with the file."""
    with io.StringIO() as text, redirect_stdout(text):
        main(["dump", source])
        ours = text.getvalue()
    theirs = by_ncdump(source)
    if theirs.startswith("ERROR"):
        return [("CDL", "ncdump does not read the netCDF-4 file")]
    if ours != theirs:
        raise DifferentError("the CDL differs from ncdump's")
    made = f"{folder}/made/x.nc"
    Path(made).parent.mkdir()
    if not run_ncgen(ours, made):
        return [("CDL", "as ncdump's; ncgen crashes")]
    if by_ncdump(made) != ours:
        return [("CDL", "as ncdump's; ncgen makes something else of it")]
    return [("CDL", "as ncdump's, and ncgen's file is the same")]
