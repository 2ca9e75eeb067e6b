"""Datasets are read and written through a network that fails: right, or an error; old, or new."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3fs
import xarray as xr

from nczarr_fsspec.errors import (
    DatasetNotFoundError,
    IncompleteExportError,
    NCZarrError,
    StoreError,
)
from nczarr_fsspec.transport import policy
from nczarr_xarray import to_nczarr
from nczarr_xarray.cli.main import main
from tests.support.builders.trees import read_tree, write_tree
from tests.support.faults.killing import SCENARIOS, Target, ours
from tests.support.marks import SLOW, slow_but
from tests.support.servers.badnetwork import Faults, Network, in_the_end, network
from tests.support.servers.httpserver import Server
from tests.support.servers.realservers import nginx
from tests.support.servers.s3server import S3Server

#: how the three kinds of datasets are called
KINDS = {"tree": "t#mode=nczarr", "zip": "z.zip", "file": "h.nc"}
#: what a network may do of which nobody has to wait for the end
MIXES = {
    "late": Faults(delay=0.001, jitter=0.005),
    "refused": Faults(refused=0.5),
    "broken": Faults(refused=0.1, reset=0.05, lost=0.05, cut=0.1),
    "all": Faults(refused=0.1, reset=0.05, lost=0.05, cut=0.05, stopped=0.01, silent=0.01),
}
#: seconds, where some answers never come: a busy machine may need more, so there may be an error
LIMITS = {"connect": 2, "first_byte": 3, "whole": 60}
#: where nothing is waited for in vain: a machine may be so busy that it takes as long as that
PATIENT = {"connect": 60, "first_byte": 60, "whole": 600}
#: where nothing comes at all, and what comes before and after may take several tries
SHORT = {"connect": 1, "first_byte": 1}


pytestmark = pytest.mark.usefixtures("no_waiting")


@contextmanager
def limits_of(mix: str) -> Iterator[dict[str, float]]:
    """The storage option timeout; meanwhile bodies that stop are given up as fast as answers."""
    if mix != "all":
        yield {**PATIENT}
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "WINDOW", 3.0)
        yield {**LIMITS}


@pytest.fixture(scope="module")
def dataset() -> xr.Dataset:
    rng = np.random.default_rng(0)
    cells = rng.integers(1, 1 << 30, (40, 500), dtype="i4")
    return xr.Dataset({"a": (("t", "x"), cells), "b": ("x", rng.normal(size=500))})


@pytest.fixture(scope="module")
def files(dataset: xr.Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("files")
    encoding: Any = {"a": {"chunks": (4, 250)}}
    to_nczarr(dataset, folder / "t", encoding=encoding)
    to_nczarr(dataset, folder / "z.zip", encoding=encoding)
    dataset.to_netcdf(folder / "h.nc", encoding={"a": {"chunksizes": (4, 250), "zlib": True}})
    return read_tree(folder, "/")


@pytest.fixture
def over_http(files: dict[str, bytes]) -> Iterator[tuple[Network, str, dict[str, Any]]]:
    with Server(dict(files), etag='"1"') as server, network(server.url) as net:
        yield net, net.endpoint, {}


@pytest.fixture
def over_s3(
    files: dict[str, bytes], s3_server: S3Server
) -> Iterator[tuple[Network, str, dict[str, Any]]]:
    fs = s3fs.S3FileSystem(**s3_server.signed())
    for name, data in files.items():
        fs.pipe_file(f"{s3_server.private}/bad-network{name}", data)
    with network(s3_server.endpoint) as net:
        options = {**s3_server.signed(), "endpoint_url": net.endpoint}
        yield net, f"s3://{s3_server.private}/bad-network", options


@pytest.fixture
def over_nginx(
    files: dict[str, bytes], tmp_path: Path
) -> Iterator[tuple[Network, str, dict[str, Any]]]:
    """A server that others have made: it keeps connections, and has conditional answers."""
    root, folder = tmp_path / "root", tmp_path / "nginx"
    folder.mkdir()
    write_tree(root, {name.lstrip("/"): data for name, data in files.items()})
    with nginx(root, folder) as server, network(server.plain) as net:
        yield net, net.endpoint, {}


@pytest.fixture
def way(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


WAYS = [
    "over_http",
    *(pytest.param(way, marks=[SLOW, pytest.mark.servers]) for way in ("over_s3", "over_nginx")),
]


def loaded(url: str, options: dict[str, Any]) -> xr.Dataset:
    with xr.open_dataset(url, engine="nczarr", storage_options=options) as found:
        return found.load()


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("mix", slow_but(MIXES, "broken", "refused"))
@pytest.mark.parametrize("kind", KINDS)
def test_reading(kind: str, mix: str, way: Any, dataset: xr.Dataset) -> None:
    """Whatever happens to some requests, they are tried again, and the values are right."""
    net, root, options = way
    net.start_again(len(mix), MIXES[mix])
    try:
        with limits_of(mix) as limits:
            found = loaded(f"{root}/{KINDS[kind]}", {**options, "timeout": limits})
        xr.testing.assert_equal(found, dataset)
    except StoreError as error:  # where six tries in a row were struck
        assert "(tried " in str(error)
        assert KINDS[kind].partition("#")[0] in error.object
        assert mix != "late"


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("accepting", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_reading_in_a_partition(kind: str, accepting: bool, way: Any, dataset: xr.Dataset) -> None:
    """The error comes in time and names the object; after it is healed, the dataset goes on."""
    net, root, options = way
    url = f"{root}/{KINDS[kind]}"
    short, patient = ({**options, "timeout": limits} for limits in (SHORT, PATIENT))
    with in_the_end(lambda: xr.open_dataset(url, engine="nczarr", storage_options=short)) as found:
        net.part(accepting=accepting)
        with pytest.raises(StoreError, match=r"\(tried 2 times\)") as caught:
            found["a"].load()
        assert KINDS[kind].partition("#")[0] in caught.value.object
        net.heal()
        xr.testing.assert_equal(loaded(url, patient), dataset)
        xr.testing.assert_equal(in_the_end(found.load), dataset)


WRITTEN = ("new", "append", "unaligned region", "smaller")


@pytest.mark.parametrize("seed", slow_but(range(6), 0))
@pytest.mark.parametrize("name", slow_but(WRITTEN, "append"))
@pytest.mark.parametrize("mix", slow_but(["broken", "all"], "broken"))
def test_writing(mix: str, name: str, seed: int, s3_server: S3Server, tmp_path: Path) -> None:
    """It is new, or there is an error and it is old or new; then the same process goes on."""
    scenario = SCENARIOS[name]
    signed = s3_server.signed()
    clean, direct = (
        Target(f"s3://{s3_server.private}/bad/{tmp_path.name}/{name}", signed)
        for name in ("clean", "direct")
    )
    for target in (clean, direct):
        if scenario.before is not None:
            scenario.before(target)
    old = ours(direct)
    scenario.change(clean)
    new = ours(clean)
    with network(s3_server.endpoint, seed) as net:
        options = {**signed, "endpoint_url": net.endpoint}
        patient = Target(direct.url, {**options, "timeout": PATIENT})
        net.faults = MIXES[mix]
        try:
            with limits_of(mix) as limits:
                scenario.change(Target(direct.url, {**options, "timeout": limits}))
        except NCZarrError as error:
            assert tmp_path.name in str(error)
            assert ours(direct) in (old, new, "incomplete" if scenario.before is None else old)
            net.faults = Faults()
            if ours(direct) != new:
                scenario.change(patient)
        net.faults = Faults()
        assert net.happened
        assert ours(patient) == new


class Copying:
    """A copy of a dataset to S3, through a network.

    Parameters
    ----------
    server
        The server.
    folder
        Where the source is, and the name of the place in S3.
    """

    def __init__(self, server: S3Server, folder: Path, dataset: xr.Dataset) -> None:
        self.source, self.name = folder / "source", folder.name
        self.signed = server.signed()
        self.url = f"s3://{server.private}/copied/{folder.name}/new"
        self.dataset = dataset
        self._fs = s3fs.S3FileSystem(**self.signed)
        encoding: Any = {"a": {"chunks": (4, 250), "zlib": True}}
        to_nczarr(dataset, self.source, encoding=encoding)

    def run(self, net: Network, *options: str, timeout: Mapping[str, float] = PATIENT) -> Any:
        """Copy through the network."""
        place: Any = {**self.signed, "endpoint_url": net.endpoint, "timeout": timeout}
        given = [f"-O{name}={json.dumps(value)}" for name, value in place.items()]
        return main(["copy", str(self.source), self.url, *options, *given])

    def objects(self) -> list[str]:
        """What is there, under whatever name."""
        self._fs.invalidate_cache()
        return list(self._fs.find(self.url.rpartition("/")[0]))

    def found(self) -> xr.Dataset:
        """What readers see without the network."""
        return loaded(self.url, self.signed)


@pytest.fixture
def copying(
    s3_server: S3Server, tmp_path: Path, dataset: xr.Dataset
) -> Iterator[tuple[Copying, Network]]:
    with network(s3_server.endpoint) as net:
        yield Copying(s3_server, tmp_path, dataset), net


def check_copied(copying: Copying, net: Network) -> None:
    """Compare a copy with its source, and its objects with those of one that nothing disturbed."""
    xr.testing.assert_identical(copying.found(), loaded(str(copying.source), {}))
    objects = copying.objects()
    net.start_again(0, Faults())
    assert copying.run(net, "--overwrite") == 0
    assert objects == copying.objects()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mix", "options"), [*zip(MIXES, itertools.cycle([(), ("--resume",)]), strict=False)]
)
def test_copying(
    mix: str,
    options: tuple[str, ...],
    copying: tuple[Copying, Network],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is there as a whole, or there is an error and nothing is; then the same command works.

    A case takes 10 to 60 s, most of which is waiting: docs/durability.md has numbers of more.
    """
    copy, net = copying
    net.start_again(0, MIXES[mix])
    with limits_of(mix) as limits:
        failed = copy.run(net, *options, timeout=limits)
    if failed:
        assert copy.name in capsys.readouterr().err
        assert mix != "late"
        net.faults = Faults()
        if not is_there(copy):
            assert copy.run(net, *options) == 0
    assert net.requests > 30
    assert net.happened or mix == "late"
    check_copied(copy, net)


def is_there(copy: Copying) -> bool:
    """Tell whether the copy is one."""
    try:
        copy.found()
    except (DatasetNotFoundError, IncompleteExportError):
        return False
    return True


def parted_at(net: Network, number: int, *, heals: bool = False) -> None:
    """Let nothing pass from the request of that number on which puts something.

    It `heals`, or not, when a request is made again: of one that came before, the answer may wait.
    """
    put = itertools.count(1)
    seen: set[str] = set()
    parted = False

    def choose(line: str) -> str:
        nonlocal parted
        if line.startswith("PUT ") and next(put) == number:
            parted = True
            net.part()
        elif parted and heals and line in seen:
            net.heal()
        seen.add(line)
        return ""

    net.choose = choose


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 30])
def test_copying_in_a_partition_that_ends(number: int, copying: tuple[Copying, Network]) -> None:
    """Whoever tries again when it has ended does not notice."""
    copy, net = copying
    parted_at(net, number, heals=True)
    assert copy.run(net, timeout={"connect": 10, "first_byte": 10}) == 0
    assert net.happened["parted"] == 1
    net.choose = lambda line: ""
    check_copied(copy, net)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "options"), [(1, ()), (10, ("--resume",)), (30, ())])
def test_copying_in_a_partition_that_stays(
    number: int,
    options: tuple[str, ...],
    copying: tuple[Copying, Network],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error comes in time, and names the object; after it is healed the same command works."""
    copy, net = copying
    parted_at(net, number)
    # a chunk of 4 kB may take a second, not the 40 that uploads have by default
    assert copy.run(net, *options, timeout={**SHORT, "rate": 4000}) == 1
    said = capsys.readouterr().err
    assert copy.name in said
    assert "tried 2 times" in said
    net.choose = lambda line: ""
    net.heal()
    assert not is_there(copy)
    assert copy.run(net, *options) == 0
    check_copied(copy, net)
