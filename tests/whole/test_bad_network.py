"""Datasets are read and written through a network that fails: right, or an error; old, or new."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import NCZarrError, StoreError
from nczarr_fsspec.transport import policy
from nczarr_xarray import to_nczarr
from tests.support.badnetwork import Faults, Network, network
from tests.support.httpserver import Server
from tests.support.killing import SCENARIOS, Target, ours
from tests.support.marks import SLOW, slow_but
from tests.support.s3server import S3Server

#: how the three kinds of datasets are called
KINDS = {"tree": "t#mode=nczarr", "zip": "z.zip", "file": "h.nc"}
#: what a network may do of which nobody has to wait for the end
MIXES = {
    "late": Faults(delay=0.001, jitter=0.005),
    "refused": Faults(refused=0.5),
    "broken": Faults(refused=0.1, reset=0.05, lost=0.05, cut=0.1),
    "all": Faults(refused=0.1, reset=0.05, lost=0.05, cut=0.05, stopped=0.01, silent=0.01),
}
#: seconds, of which a busy machine needs some
LIMITS = {"connect": 2, "first_byte": 3, "whole": 60}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "FIRST_WAIT", 0.0)
    monkeypatch.setattr(policy, "WINDOW", 3.0)


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
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {f"/{path.relative_to(folder)}": path.read_bytes() for path in found}


@pytest.fixture
def over_http(files: dict[str, bytes]) -> Iterator[tuple[Network, str, dict[str, Any]]]:
    with Server(dict(files), etag='"1"') as server, network(server.url) as net:
        yield net, net.endpoint, {"timeout": LIMITS}


@pytest.fixture
def over_s3(
    files: dict[str, bytes], s3_server: S3Server
) -> Iterator[tuple[Network, str, dict[str, Any]]]:
    import s3fs

    fs = s3fs.S3FileSystem(**s3_server.signed())
    for name, data in files.items():
        fs.pipe_file(f"{s3_server.private}/bad-network{name}", data)
    with network(s3_server.endpoint) as net:
        options = {**s3_server.signed(), "endpoint_url": net.endpoint, "timeout": LIMITS}
        yield net, f"s3://{s3_server.private}/bad-network", options


@pytest.fixture
def way(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


WAYS = ["over_http", pytest.param("over_s3", marks=[SLOW, pytest.mark.servers])]


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
        xr.testing.assert_equal(loaded(f"{root}/{KINDS[kind]}", options), dataset)
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
    options = {**options, "timeout": {"connect": 1, "first_byte": 1}}
    with xr.open_dataset(url, engine="nczarr", storage_options=options) as found:
        net.part(accepting=accepting)
        with pytest.raises(StoreError, match=r"\(tried 2 times\)") as caught:
            found["a"].load()
        assert KINDS[kind].partition("#")[0] in caught.value.object
        net.heal()
        patient = {**options, "timeout": LIMITS}
        xr.testing.assert_equal(loaded(url, patient), dataset)
        xr.testing.assert_equal(found.load(), dataset)


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
        options = {**signed, "endpoint_url": net.endpoint, "timeout": LIMITS}
        through = Target(direct.url, options)
        net.faults = MIXES[mix]
        try:
            scenario.change(through)
        except NCZarrError as error:
            assert tmp_path.name in str(error)
            assert ours(direct) in (old, new, "incomplete" if scenario.before is None else old)
            net.faults = Faults()
            if ours(direct) != new:
                scenario.change(through)
        net.faults = Faults()
        assert net.happened
        assert ours(through) == new
