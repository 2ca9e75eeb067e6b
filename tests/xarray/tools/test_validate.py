"""`nczarr_xarray.validate`: every kind of finding is provoked, and sound datasets have none."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

import nczarr_xarray.tools.checks.chunks
from nczarr_fsspec.changes.journal import INCOMPLETE, JOURNAL, STAGED, WRITERS, Incomplete, Journal
from nczarr_fsspec.changes.leftovers import partial_path
from nczarr_fsspec.changes.resumption import WORK
from nczarr_fsspec.stores.ownership import AT_WORK, Owner
from nczarr_xarray import (
    DatasetNotFoundError,
    NCZarrError,
    aggregate,
    recover,
    to_nczarr,
    validate,
)
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.model import FileChunks
from nczarr_xarray.tools.checks import Finding
from nczarr_xarray.tools.checks.subject import MOST_CHUNKS, Subject
from nczarr_xarray.tools.validate import fixable, repair
from tests.support.builders.trees import read_tree, write_tree
from tests.support.corpora.samples import CONSOLIDATED, DATA, NCZARR, Objects, vector
from tests.support.faults.damage import mutate
from tests.support.marks import slow_but
from tests.support.servers.httpserver import Server

#: A process that has certainly ended: no system has such a number.
DEAD = replace(Owner.here(), pid=2**22 + 1, started="")
CHANGE = "0123456789abcdef"
PAGE = Path(__file__).parents[3] / "docs" / "checking.md"


def codes(target: Any, **options: Any) -> set[str]:
    return {finding.code for finding in validate(target, **options)}


def without(found: tuple[Finding, ...]) -> list[Finding]:
    return [finding for finding in found if finding.is_fault]


def edited(objects: Objects, key: str, **members: Any) -> Objects:
    """The objects with other members of one document; None removes a member."""
    document = json.loads(objects[key])
    for name, value in members.items():
        document[name] = value
        if value is None:
            del document[name]
    return {**objects, key: json.dumps(document).encode()}


def structure(**members: Any) -> Objects:
    """The sample whose array ``t`` has another structure of NCZarr."""
    own = {"dimension_references": ["/time"], "storage": "chunked", **members}
    return edited(NCZARR, "t/.zattrs", _nczarr_array=own)


def longer() -> Objects:
    """The sample whose chunks of ``x`` are as long as the variable."""
    metadata = NCZARR["x/.zarray"].replace(b'"chunks": [3]', b'"chunks": [2]')
    return {**NCZARR, "x/.zarray": metadata, "x/0": bytes(24), "x/1": bytes(24)}


def typed(values: dict[str, Any], types: dict[str, str]) -> Objects:
    """The sample with attributes of ``t``."""
    return edited(NCZARR, "t/.zattrs", **values, _nczarr_attr={"types": types})


def journal(owner: Owner) -> Objects:
    """The sample with a change that is valid: another ``x``."""
    change = Journal(CHANGE, owner, ("x/0",))
    new = NCZARR["x/0"][::-1]
    return {**NCZARR, JOURNAL: change.dump(), change.staged_key("x/0"): new}


def lock(owner: Owner) -> Objects:
    document = {"owner": owner.document, "boxes": None}
    return {**NCZARR, f"{WRITERS}/{CHANGE}": json.dumps(document).encode()}


#: What provokes each kind of finding in a tree, by its code.
TREES: dict[str, Callable[[], Objects]] = {
    "unreadable": lambda: {**NCZARR, ".zattrs": b"{"},
    "incomplete": lambda: {**NCZARR, INCOMPLETE: Incomplete(DEAD, {"t": 9}).dump()},
    "journal-damaged": lambda: {**NCZARR, JOURNAL: journal(DEAD)[JOURNAL][:40]},
    "leftover-journal": lambda: journal(DEAD),
    "leftover-lock": lambda: lock(DEAD),
    "leftover-staged": lambda: {**NCZARR, f"{STAGED}/{CHANGE}/x/0": b"new"},
    "leftover-work": lambda: {**NCZARR, f"{WORK}/plan": b"", f"{WORK}/between/x/0": b"plain"},
    "writer": lambda: lock(replace(DEAD, host="elsewhere")),
    "left-out": lambda: {k: v for k, v in NCZARR.items() if not k.startswith("emptygrp/")},
    "dimension-rank": lambda: structure(dimension_references=["/time", "/x"]),
    "dimension-missing": lambda: structure(dimension_references=["/nowhere"]),
    "dimension-length": lambda: structure(dimension_references=["/x"]),
    "dimension-names": lambda: {**NCZARR, "t/.zattrs": b'{"_ARRAY_DIMENSIONS": ["x"]}'},
    "root": lambda: edited(NCZARR, ".zattrs", _nczarr_superblock=None),
    "metadata": lambda: edited(NCZARR, "t/.zarray", dtype="<q9"),
    "netcdf-c": lambda: edited(NCZARR, "t/.zarray", order=None),
    "attribute-type": lambda: typed({"a": 1}, {"a": "<i4", "b": "<i4"}),
    "array-dimensions": lambda: edited(NCZARR, "t/.zattrs", _ARRAY_DIMENSIONS=["x"]),
    "dialect": lambda: {**NCZARR, "x/.zarray": NCZARR["x/.zarray"].replace(b"9.96921e+36", b"NaN")},
    "consolidated-damaged": lambda: {**CONSOLIDATED, ".zmetadata": b"[]"},
    "consolidated-stale": lambda: edited(CONSOLIDATED, "x/.zattrs", units="m"),
    "consolidated-only": lambda: {**CONSOLIDATED, "x/.zarray": b"{"},
    "foreign": lambda: {**NCZARR, "t/.zattrs.~1~": b"{}"},
    "unlisted": lambda: {**NCZARR, "more/.zarray": NCZARR["x/.zarray"]},
    "chunk-missing": lambda: dict(NCZARR),
    "chunk-outside": lambda: {**NCZARR, "t/2": NCZARR["t/1"], "t/0.0": NCZARR["t/0"]},
    "chunk-longer": longer,
    "chunk-oversized": lambda: {**NCZARR, "t/0": bytes(100_000)},
    "chunk-undecodable": lambda: {**zlib_tree(), "t/0": b"no zlib"},
    "compat": lambda: dict(NCZARR),
}


def zlib_tree() -> Objects:
    import zlib

    objects = edited(NCZARR, "t/.zarray", compressor={"id": "zlib", "level": 1})
    return {**objects, **{key: zlib.compress(NCZARR[key]) for key in ("t/0", "t/1")}}


#: Those that are provoked by the tests below.
OTHERS = {
    *("leftover-sibling", "leftover-claim", "leftover-temporary", "not-listed", "chunk-unreadable"),
    *(
        "extent",
        "index",
        "not-examined",
        "unsupported",
        "fragment-changed",
        "fragment-missing",
        "fragment-misfit",
        "fragment-denied",
        "fragment-new",
        "unlike-attribute",  # of nczarr check, as the next one
        "unlike-coordinate",
    ),
}


@pytest.mark.filterwarnings("ignore:x. chunks have:nczarr_xarray.NCZarrWarning")
@pytest.mark.parametrize("code", TREES)
def test_kind_is_found_in_a_tree(code: str) -> None:
    assert code in codes(TREES[code](), data=True)


def test_page_lists_the_kinds_that_are_tested() -> None:
    text = PAGE.read_text(encoding="utf-8")
    cells = re.findall(r"^\| ((?:`[a-z-]+`[,;]? )+)\|", text, re.MULTILINE)
    listed = [code for cell in cells for code in re.findall(r"`([a-z0-9-]+)`", cell)]
    assert TREES.keys() | OTHERS <= set(listed)
    assert len(listed) == len(set(listed))


ABORTED = {"quantize-nczarr+file-4.9.0", "quantize-zarr+file-4.9.2"}


@pytest.mark.parametrize("path", sorted(DATA.glob("*.zip")), ids=lambda path: path.stem)
def test_what_netcdf_c_wrote_is_sound(path: Path) -> None:
    found = without(validate(path, data=True))
    if path.stem in ABORTED:  # netCDF-C crashed: chunks without an array
        assert {finding.code for finding in found} & {"foreign", "metadata", "dimension-rank"}
    else:
        assert found == []


@pytest.mark.parametrize("objects", [zlib_tree(), dict(CONSOLIDATED)], ids=["zlib", "consolidated"])
def test_samples_are_sound(objects: Objects) -> None:
    assert without(validate(objects, data=True)) == []


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("filters", []),
        ("order", "F"),
        ("dtype", "|i4"),
        ("compressor", {"id": "zlib"}),
        ("compressor", {"id": "lz4"}),
    ],
)
def test_what_netcdf_c_cannot_cope_with(member: str, value: Any) -> None:
    objects = edited(NCZARR, "tx/.zarray", **{member: value})
    assert "netcdf-c" in {f.code for f in validate(objects) if f.is_fault}


@pytest.mark.parametrize("lost", [".zgroup", ".zattrs", "both", "zarr.json"])
def test_a_root_whose_documents_are_lost(tmp_path: Path, lost: str) -> None:
    """What is left opens, but is not the dataset that it was."""
    if lost == "zarr.json":
        for path in ("x", "x/g"):
            zarr.open_group(tmp_path / path, mode="w", zarr_format=3)
    else:
        write_tree(tmp_path / "x", NCZARR)
    assert "root" not in codes(tmp_path / "x")
    for name in (".zgroup", ".zattrs") if lost == "both" else (lost,):
        (tmp_path / "x" / name).unlink()
    assert "root" in {finding.code for finding in without(validate(tmp_path / "x"))}


def test_an_array_whose_attributes_are_lost() -> None:
    """It has no dimensions any more, and is read with anonymous ones."""
    objects = {key: value for key, value in NCZARR.items() if key != "t/.zattrs"}
    (found,) = without(validate(objects))
    assert (found.code, found.severity, found.path) == ("dimension-rank", "warning", "/t")


@pytest.mark.parametrize("key", [".zattrs", "t/.zarray", "t/.zattrs"])
def test_remains_of_an_older_document(key: str) -> None:
    """netCDF-C leaves them where it rewrites an object, and then fails to open the dataset."""
    found = without(validate({**NCZARR, key: NCZARR[key] + b"}}"}))
    assert [(f.code, f.severity, f.path) for f in found] == [("netcdf-c", "warning", key)]
    assert without(validate({**NCZARR, key: NCZARR[key] + b" \n"})) == []


def test_pure_zarr_need_not_be_for_netcdf_c() -> None:
    objects = edited(vector("dims-zarr+file-4.9.0"), "x/.zarray", filters=[])
    (found,) = [f for f in validate(objects) if f.code == "netcdf-c"]
    assert found.severity == "note"


def test_attribute_of_internal_type_and_empty_one_without() -> None:
    objects = typed({"a": 1, "b": []}, {"a": "|J0"})
    texts = [f.text for f in validate(objects) if f.code == "attribute-type"]
    assert len(texts) == 2
    assert "|J0" in texts[0]
    assert "empty" in texts[1]


def test_shape_that_is_no_list_of_lengths() -> None:
    objects = {
        **structure(dimension_references=["/time", "/x"]),
        "t/.zarray": edited(NCZARR, "t/.zarray", shape=[True])["t/.zarray"],
    }
    (found,) = [f for f in validate(objects) if f.code == "dimension-rank"]
    assert "shape [true]" in found.text


def test_undecodable_chunks_are_all_named() -> None:
    objects = {**zlib_tree(), "t/0": b"no", "t/1": b"neither"}
    found = [f for f in validate(objects, data=True) if f.code == "chunk-undecodable"]
    assert [f.path for f in found] == ["t/0", "t/1"]
    assert validate(objects)  # and without data there are only notes
    assert without(validate(objects)) == []


def test_nothing_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError):
        validate(tmp_path / "nothing")


def test_chunks_that_are_decoded_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    read_many = Opened.read_many

    def counted(self: Opened, wanted: Any) -> Any:
        found = read_many(self, wanted)
        sizes.append(sum(values.nbytes for values in found if isinstance(values, np.ndarray)))
        return found

    monkeypatch.setattr(Opened, "read_many", counted)
    monkeypatch.setattr(nczarr_xarray.tools.checks.chunks, "BATCH_BYTES", 1000)
    values = xr.Dataset({"v": (("y", "x"), np.ones((50, 60)))})
    target: Objects = {}
    to_nczarr(values, target, encoding={"v": {"chunks": (5, 6)}})
    assert without(validate(target, data=True)) == []
    assert sum(sizes) == 50 * 60 * 8
    assert max(sizes) < 1000 + 5 * 6 * 8


@pytest.mark.filterwarnings("ignore:.* chunks have:nczarr_xarray.NCZarrWarning")
@pytest.mark.parametrize("seed", slow_but(range(600), *range(40)))
def test_damage_gives_findings_or_one_clear_error(seed: int) -> None:
    rng = random.Random(seed)
    bases = (NCZARR, CONSOLIDATED, vector("strings-nczarr+file-4.9.2"), zlib_tree())
    objects, _ = mutate(rng.choice(bases), rng)
    try:
        assert all(finding.text for finding in validate(objects, data=True))
    except NCZarrError as error:
        assert error.object


# -- directories -------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The sample as a directory tree."""
    return write_tree(tmp_path / "x.nczarr", NCZARR)


def sibling(path: Path, owner: Owner) -> Path:
    """What a writer that is cut off leaves beside a dataset."""
    ours = Path(partial_path(str(path)))
    AT_WORK.discard(ours.name)
    here = Owner.here()
    start, _, rest = ours.name.partition(f"-{here.pid}-{here.started}-")
    partial = path.parent / f"{start}-{owner.pid}-{owner.started}-{rest}"
    partial.mkdir()
    return partial


def test_what_a_dead_writer_left_beside_it(folder: Path) -> None:
    partial = sibling(folder, DEAD)
    alive = sibling(folder, replace(Owner.here(), pid=1, started=""))
    found = validate(folder)
    assert {f.path: f.code for f in found if str(folder.parent) in f.path} == {
        str(partial): "leftover-sibling",
        str(alive): "writer",
    }
    repair(folder, found)
    assert not partial.exists()
    assert alive.exists()
    assert "leftover-sibling" not in codes(folder)


def test_temporary_files(folder: Path) -> None:
    dead, alive, away = (
        folder / "t" / f".nczarr-tmp-{owner.identity}-{CHANGE}"
        for owner in (DEAD, Owner.here(), replace(DEAD, host="elsewhere"))
    )
    for file in (dead, alive, away):
        file.write_bytes(b"part")
    found = {f.path: f for f in validate(folder) if ".nczarr-tmp-" in f.path}
    assert {path: f.code for path, f in found.items()} == {
        f"t/{dead.name}": "leftover-temporary",
        f"t/{alive.name}": "writer",
        f"t/{away.name}": "writer",
    }
    repair(folder, found.values())
    assert [file.exists() for file in (dead, alive, away)] == [False, True, True]
    assert without(validate(folder)) == []
    assert recover(folder)
    assert not alive.exists()
    assert not away.exists()
    assert not recover(folder)


def test_chunk_that_leads_out(folder: Path) -> None:
    (folder / "t" / "0").unlink()
    (folder / "t" / "0").symlink_to(folder.parent)
    assert "chunk-unreadable" in codes(folder, data=True)


def test_chunk_of_more_digits_than_a_number_may_have(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for key, data in {**NCZARR, "t/" + "9" * 5000: b""}.items():
            archive.writestr(key, data)
    assert "chunk-outside" in codes(tmp_path / "x.zip")


@pytest.mark.parametrize("name", ["refs.json", "refs.parq"])
def test_references(tmp_path: Path, name: str) -> None:
    if name.endswith(".parq"):
        pytest.importorskip("pyarrow")
    files = [tmp_path / f"{step}.nc" for step in range(3)]
    for step, file in enumerate(files):
        ds = xr.Dataset({"v": (("t", "x"), np.arange(5000.0)[np.newaxis])}, {"t": [step]})
        ds.to_netcdf(file, encoding={"v": {"zlib": True}})
    aggregate(files, tmp_path / name, dim="t")
    assert without(validate(tmp_path / name)) == []
    assert "chunk-missing" not in codes(tmp_path / name)
    before = files[1].stat().st_mtime_ns
    with h5py.File(files[1]) as opened:
        at = opened["v"].id.get_chunk_info(0).byte_offset
    damaged = bytearray(files[1].read_bytes())
    damaged[at : at + 10] = bytes(10)
    for time, code in ((before, "chunk-undecodable"), (before + 1, "chunk-unreadable")):
        files[1].write_bytes(damaged)
        os.utime(files[1], ns=(time, time))  # by which references know the file
        found = without(validate(tmp_path / name, data=True))
        assert [finding.code for finding in found] == [code]


def test_server_that_cannot_list() -> None:
    with Server({f"/x.nczarr/{key}": data for key, data in NCZARR.items()}) as server:
        found = validate(f"{server.url}/x.nczarr#mode=nczarr", data=True)
    assert "not-listed" in {f.code for f in found}
    assert without(found) == []


# -- files -------------------------------------------------------------------------


@pytest.fixture
def hdf5(tmp_path: Path) -> Path:
    path = tmp_path / "x.nc"
    with h5py.File(path, "w", libver="earliest") as file:
        file.create_dataset("v", data=np.arange(4000.0), chunks=(100,), compression="gzip")
    return path


def test_hdf5_file_is_sound(hdf5: Path) -> None:
    assert without(validate(hdf5, data=True)) == []


def test_chunks_are_located_once(hdf5: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Subject.open(hdf5, None)) as subject:
        assert subject.opened is not None
        array = subject.opened.hierarchy.root.variables["v"].array
        assert isinstance(array, FileChunks)
        first = list(subject.extents(array))
        assert sum(len(window.ids) for window in first) == 40
        with monkeypatch.context() as patched:
            patched.setattr(subject.opened, "store", None)  # which nothing can be read of
            assert list(subject.extents(array)) == first


def test_chunks_beyond_the_most_that_are_looked_at(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file.create_dataset("v", (MOST_CHUNKS + 5,), "i1", chunks=(1,))
    (found,) = validate(tmp_path / "x.nc")
    assert (found.severity, found.code, found.path) == ("note", "not-examined", "/v")
    assert found.text.startswith("5 of 16,777,221 chunks")


def test_hdf5_file_that_was_cut_off(hdf5: Path) -> None:
    os.truncate(hdf5, hdf5.stat().st_size - 100)
    assert codes(hdf5) & {"extent", "unreadable", "index", "metadata"}


def test_what_no_package_reads_is_a_note(hdf5: Path) -> None:
    with h5py.File(hdf5, "a") as file:
        file.attrs["r"] = np.longdouble(1)
    (found,) = validate(hdf5)
    assert (found.severity, found.code) == ("note", "unsupported")


def test_chunk_whose_codec_is_not_installed(hdf5: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(hdf5, "a") as file:
        file.create_dataset("z", data=np.arange(100, dtype="i4"), chunks=(100,), compression="szip")
    monkeypatch.setitem(sys.modules, "h5py", None)
    (known,) = validate(hdf5)
    assert (known.severity, known.code, known.path) == ("note", "unsupported", "/z")
    (unchecked,) = (f for f in validate(hdf5, data=True) if f.is_fault)
    assert (unchecked.severity, unchecked.code) == ("warning", "unsupported")
    assert "pip install" in unchecked.text
    assert unchecked.advice == known.advice


def test_index_that_is_damaged(hdf5: Path) -> None:
    data = bytearray(hdf5.read_bytes())
    at = data.rindex(b"TREE\x01")
    data[at : at + 4] = b"LEAF"
    hdf5.write_bytes(data)
    assert "index" in codes(hdf5, data=True)


def test_damaged_chunk_of_a_file(hdf5: Path) -> None:
    with h5py.File(hdf5) as file:
        place = file["v"].id.get_chunk_info(7)
    data = bytearray(hdf5.read_bytes())
    data[place.byte_offset : place.byte_offset + 4] = bytes(4)
    hdf5.write_bytes(data)
    assert codes(hdf5) == codes(hdf5, data=True) - {"chunk-undecodable"}


def test_classic_file_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "x.nc"
    data = xr.Dataset({"v": ("x", np.arange(100.0))})
    data.to_netcdf(path, engine="scipy")
    assert without(validate(path, data=True)) == []
    os.truncate(path, path.stat().st_size - 80)
    (found,) = [f for f in validate(path) if f.code == "extent"]
    assert "1 of 1" in found.text


# -- aggregations ------------------------------------------------------------------


@pytest.fixture
def master(tmp_path: Path) -> Path:
    for number in range(3):
        data = xr.Dataset({"v": ("t", np.arange(2.0))}, {"t": np.arange(2) + 2 * number})
        data.to_netcdf(tmp_path / f"{number}.nc", engine="scipy")
    path = tmp_path / "all.nca"
    aggregate([str(tmp_path / f"{number}.nc") for number in range(3)], str(path))
    return path


def test_fragments(master: Path) -> None:
    old = master.parent / "old.nca"  # has no record of what its files were
    aggregate(sorted(master.parent.glob("*.nc")), old, cfa_version="0.4")
    assert without(validate(master)) == []
    (master.parent / "1.nc").unlink()
    (found,) = without(validate(master))
    assert (found.code, found.path) == ("fragment-missing", "/v fragment (1,)")
    xr.Dataset({"v": ("t", np.arange(3.0))}).to_netcdf(master.parent / "1.nc", engine="scipy")
    assert "fragment-misfit" in codes(old)
    assert codes(master) == {"fragment-changed"}


@pytest.mark.parametrize("version", ["0.4", "0.6.2", "1.13"])
@pytest.mark.parametrize("group", [None, "g"])
def test_tables_of_a_master_that_is_a_tree_are_listed(
    tmp_path: Path, version: str, group: str | None
) -> None:
    files = [tmp_path / f"{number}.nc" for number in range(2)]
    for number, file in enumerate(files):
        xr.Dataset({"v": ("t", [1.0])}, {"t": [number]}).to_netcdf(file, group=group)
    path = tmp_path / "all.nczarr"
    aggregate(files, path, cfa_version=version)
    assert without(validate(path)) == []
    (path / "more").mkdir()
    (path / "more" / ".zarray").write_bytes(NCZARR["x/.zarray"])
    assert [(found.code, found.path) for found in without(validate(path))] == [("unlisted", "more")]


def test_fragment_that_must_not_be_opened(master: Path) -> None:
    (master.parent / "in").mkdir()
    other = master.parent / "in" / "all.nca"
    aggregate([str(master.parent / "0.nc")], str(other), dim="t")
    assert "fragment-denied" in codes(other, allow=[])
    assert "fragment-denied" not in codes(other)


@pytest.mark.parametrize("suffix", ["nca", "nczarr"])
def test_export_of_fragments_that_was_cut_off(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"m.{suffix}"
    data = xr.Dataset({"v": ("t", np.arange(400.0))}, {"t": np.arange(400)})
    data.nczarr.to_cfa(str(path), max_object_size=1000)
    kept = sorted((tmp_path / "m").iterdir())
    other = tmp_path / "m" / "m.v.9.nc"
    other.write_bytes(b"of the export that was cut off")
    mine = tmp_path / "m" / "mine.nc"
    mine.write_bytes(b"of the user")
    claim = tmp_path / "m" / f".m.{suffix}.writing"
    told = {"name": "x", "new": ["m/m.v.9.nc", "m/mine.nc", kept[0].name], "old": []}
    claim.write_text(json.dumps({**told, "owner": replace(DEAD, host="elsewhere").document}))
    assert "leftover-claim" not in codes(path)
    claim.write_text(json.dumps({**told, "owner": DEAD.document}))
    found = validate(path)
    assert "leftover-claim" in {f.code for f in found}
    repair(path, found)
    assert sorted((tmp_path / "m").iterdir()) == sorted([*kept, mine])
    assert without(validate(path)) == []


# -- putting right -----------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [code for code in TREES if code.startswith(("leftover", "consolidated-s", "consolidated-d"))],
)
def test_fix_puts_it_right_once(code: str, tmp_path: Path) -> None:
    path = write_tree(tmp_path / "x.nczarr", TREES[code]())
    found = validate(path)
    assert any(fixable(f) and f.code == code for f in found)
    repair(path, found)
    assert not any(fixable(f) for f in validate(path))
    before = read_tree(path)
    repair(path, validate(path))
    assert read_tree(path) == before


@pytest.mark.parametrize("code", [code for code in TREES if code != "leftover-journal"])
def test_fix_touches_no_data_and_nothing_foreign(code: str, tmp_path: Path) -> None:
    objects = TREES[code]()
    path = write_tree(tmp_path / "x.nczarr", objects)
    repair(path, validate(path))
    for key, data in objects.items():
        if not key.startswith((".zmetadata", ".zgroup", ".nczarr_export/")):
            assert (path / key).read_bytes() == data, key


def test_valid_change_of_a_dead_writer_is_carried_out(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "x.nczarr", journal(DEAD))
    repair(path, validate(path))
    assert (path / "x" / "0").read_bytes() == NCZARR["x/0"][::-1]


@pytest.mark.parametrize("gone", [("x/.zarray",), ("x/.zarray", "x/.zattrs", "x/0"), (".zattrs",)])
def test_only_copy_of_a_document_is_kept(gone: tuple[str, ...], tmp_path: Path) -> None:
    objects = {key: data for key, data in CONSOLIDATED.items() if key not in gone}
    path = write_tree(tmp_path / "x.nczarr", objects)
    found = validate(path)
    assert "consolidated-only" in {f.code for f in found}
    repair(path, found)
    assert (path / ".zmetadata").read_bytes() == CONSOLIDATED[".zmetadata"]


@pytest.mark.parametrize(
    ("key", "damaged"),
    [
        ("x/.zarray", CONSOLIDATED["x/.zarray"].replace(b'"dtype": "<', b'"dtype": "?')),
        ("x/.zarray", CONSOLIDATED["t/.zarray"]),
        ("x/.zattrs", b"[]"),
        ("x/.zattrs", CONSOLIDATED["x/.zattrs"].replace(b"_nczarr_array", b"_nczarr_brray")),
    ],
)
def test_damaged_document_does_not_replace_its_sound_copy(
    key: str, damaged: bytes, tmp_path: Path
) -> None:
    assert damaged != CONSOLIDATED[key]
    path = write_tree(tmp_path / "x.nczarr", {**CONSOLIDATED, key: damaged})
    found = validate(path)
    assert "consolidated-only" in {f.code for f in found}
    repair(path, found)
    assert (path / ".zmetadata").read_bytes() == CONSOLIDATED[".zmetadata"]


def test_groups_that_zarr_python_consolidated_are_sound(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=2).create_group("g")
    group.create_array("v", data=np.arange(3))
    zarr.consolidate_metadata(path, zarr_format=2)
    assert without(validate(path)) == []


def test_array_that_was_removed_makes_metadata_stale(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    table = xr.Dataset({"v": ("x", np.arange(3)), "w": ("x", np.arange(3))})
    table.to_zarr(path, zarr_format=2, consolidated=True)
    shutil.rmtree(path / "w")
    found = validate(path)
    assert "consolidated-stale" in {f.code for f in found}
    repair(path, found)
    assert without(validate(path)) == []
    assert list(xr.open_zarr(path, consolidated=True)) == ["v"]


def test_dataset_of_consolidated_metadata_and_chunks() -> None:
    names = (".zgroup", ".zattrs", ".zarray")
    objects = {k: data for k, data in CONSOLIDATED.items() if k.rpartition("/")[2] not in names}
    assert {f.code for f in validate(objects, data=True) if f.is_fault} == {"consolidated-only"}


def test_writer_at_work_is_left_alone(tmp_path: Path) -> None:
    objects = {**lock(replace(DEAD, host="elsewhere")), f"{STAGED}/{CHANGE}/x/0": b"new"}
    path = write_tree(tmp_path / "x.nczarr", objects)
    found = validate(path)
    assert not any(fixable(f) for f in found)
    repair(path, found)
    assert (path / STAGED / CHANGE / "x" / "0").exists()


# -- the command -------------------------------------------------------------------


def test_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(folder)]) == 0
    assert capsys.readouterr().out.endswith("sound\n")
    (folder / "notes.txt").write_text("mine")
    assert main(["validate", str(folder), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [f["path"] for f in found if f["severity"] == "warning"] == ["/"]
    assert main(["validate", str(folder / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err


def test_command_fixes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tree(tmp_path / "x.nczarr", TREES["consolidated-damaged"]())
    assert main(["validate", str(path)]) == 1
    assert main(["validate", str(path), "--fix"]) == 0
    assert "fixed    consolidated-damaged  .zmetadata" in capsys.readouterr().out
    assert main(["validate", str(path), "--fix"]) == 0


def test_findings_are_a_table_in_notebooks(tmp_path: Path) -> None:
    target = tmp_path / "x.nczarr"
    to_nczarr(xr.Dataset({"v": ("x", np.arange(4))}), target)
    assert validate(target)._repr_html_().startswith("<div><p><b>sound</b></p><table>")
    (target / "v" / ".zarray").write_text("<i>")
    found = validate(target)
    shown = found._repr_html_()
    assert shown.startswith(f"<div><p><b>{str(found).splitlines()[-1]}</b></p><table>")
    assert shown.count("<tr>") == 1 + len(found)
    assert "<i>" not in shown
