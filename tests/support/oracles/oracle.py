"""Compare what we read with what netCDF-C itself read back (``tests/data/vectors/*.json``).

`differences` walks both sides and yields a line for every disagreement, so that a
test can show all of them at once and hold them against a list of known ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.model import Group, Variable


def differences(opened: Opened, expected: dict[str, Any]) -> Iterator[str]:
    """Lines ``path: what: ours / oracle's`` for the whole hierarchy."""
    yield from _group(opened, opened.hierarchy.root, expected)


def _group(opened: Opened, ours: Group, oracle: dict[str, Any]) -> Iterator[str]:
    where = oracle["path"]
    dims = {d.name: (d.size, d.unlimited) for d in ours.dimensions.values()}
    theirs = {d["name"]: (d["len"], d["unlimited"]) for d in oracle["dims"]}
    if dims != theirs:
        yield f"{where}: dimensions: {dims} / {theirs}"
    yield from _attributes(where, ours, oracle)
    yield from _names(where, "variables", list(ours.variables), oracle["vars"])
    yield from _names(where, "groups", list(ours.groups), oracle["groups"])
    for var in oracle["vars"]:
        if var["name"] in ours.variables:
            yield from _variable(opened, ours.variables[var["name"]], var, where)
    for group in oracle["groups"]:
        name = group["path"].rsplit("/", 1)[-1]
        if name in ours.groups:
            yield from _group(opened, ours.groups[name], group)


def _names(where: str, what: str, ours: list[str], oracle: list[Any]) -> Iterator[str]:
    theirs = [o["name"] if "name" in o else o["path"].rsplit("/", 1)[-1] for o in oracle]
    if ours != theirs:
        yield f"{where}: {what}: {ours} / {theirs}"


def _attributes(where: str, ours: Group | Variable, oracle: dict[str, Any]) -> Iterator[str]:
    theirs = {a["name"]: a for a in oracle["attrs"]}
    if list(ours.attributes) != list(theirs):
        yield f"{where}: attributes: {list(ours.attributes)} / {list(theirs)}"
    for name, attribute in ours.attributes.items():
        if name not in theirs:
            continue
        want = theirs[name]
        if "type" not in want:
            continue  # the oracle failed on it
        if attribute.type != want["type"]:
            yield f"{where}@{name}: type: {attribute.type} / {want['type']}"
            continue
        if not _same(attribute.type, attribute.value, want["value"]):
            yield f"{where}@{name}: value: {attribute.value!r} / {want['value']!r}"


def _same(nc_type: str, ours: Any, theirs: Any) -> bool:
    if nc_type == "char":
        if isinstance(theirs, dict):
            return ours.encode() == bytes.fromhex(theirs["hex"]).rstrip(b"\0")
        return bool(ours == theirs)
    if nc_type == "string":
        return list(ours) == [t or "" for t in theirs]
    return _equal(ours.tolist(), theirs)


def _equal(ours: list[Any], theirs: list[Any]) -> bool:
    if len(ours) != len(theirs):
        return False
    for one, other in zip(ours, theirs, strict=True):
        other = float(other) if isinstance(other, str) else other
        if one != other and not (
            isinstance(other, float) and math.isnan(other) and math.isnan(one)
        ):
            return False
    return True


def _variable(opened: Opened, ours: Variable, oracle: dict[str, Any], group: str) -> Iterator[str]:
    where = f"{group.rstrip('/')}/{oracle['name']}"
    if ours.error is not None:
        if not oracle.get("error"):
            yield f"{where}: error: {ours.error} / none"
        return
    if ours.nc_type != oracle["type"]:
        yield f"{where}: type: {ours.nc_type} / {oracle['type']}"
    dims = [d.path for d in ours.dimensions]
    if dims != oracle["dims"]:
        yield f"{where}: dims: {dims} / {oracle['dims']}"
    if list(ours.shape) != oracle["shape"]:
        yield f"{where}: shape: {list(ours.shape)} / {oracle['shape']}"
    array: Any = ours.array
    if list(array.chunk_shape) != (oracle.get("chunks") or []):
        yield f"{where}: chunks: {array.chunk_shape} / {oracle.get('chunks')}"
    endian = {"<": "little", ">": "big", "=": "little", "|": None}[array.dtype.byteorder]
    if endian is not None and oracle.get("endian", endian) != endian:
        yield f"{where}: endian: {endian} / {oracle['endian']}"
    yield from _attributes(where, ours, oracle)
    yield from _fill(where, array, oracle)
    if "data" in oracle:
        yield from _data(where, opened.read(ours), oracle)


def _fill(where: str, array: Any, oracle: dict[str, Any]) -> Iterator[str]:
    fill = oracle.get("fill")
    if fill is None:
        return
    if fill["no_fill"] != (array.fill is None):
        yield f"{where}: no_fill: {array.fill!r} / {fill}"
        return
    if array.fill is not None and not _equal_values(np.array([array.fill]), fill["value"]):
        yield f"{where}: fill: {array.fill!r} / {fill['value']}"


def _data(where: str, data: np.ndarray[Any, Any], oracle: dict[str, Any]) -> Iterator[str]:
    theirs = oracle["data"]
    if not _equal_values(data, theirs):
        yield f"{where}: data: {data.ravel().tolist()[:20]} / {str(theirs)[:200]}"


def _equal_values(data: np.ndarray[Any, Any], theirs: Any) -> bool:
    if data.dtype.kind == "S":
        if isinstance(theirs, list):  # NC_STRING
            return [v.decode() for v in data.ravel().tolist()] == [t or "" for t in theirs]
        want = bytes.fromhex(theirs["hex"]) if isinstance(theirs, dict) else theirs.encode()
        return data.tobytes() == want
    if data.dtype.kind in "OU":
        return data.ravel().tolist() == [t or "" for t in theirs]
    return _equal(data.ravel().tolist(), theirs)
