"""Certificates for tests, made by openssl: an authority, a server's, and a client's."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSWORD = "hunter22"


@dataclass(frozen=True)
class Certificates:
    """Where they are.

    Attributes
    ----------
    authority : str
        Has signed the others.
    server : str
        For 127.0.0.1 and the hosts of `Archive`, with its key.
    client, key : str
        Of the user, and the key, which has a password.
    """

    authority: str
    server: str
    client: str
    key: str

    def tls(self, wants: ssl.VerifyMode = ssl.CERT_NONE) -> ssl.SSLContext:
        """Return what a server speaks that wants a certificate or not."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server)
        context.load_verify_locations(self.authority)
        context.verify_mode = wants
        return context


def make_certificates(folder: Path) -> Certificates:
    """Make them in `folder`; skip the test where there is no openssl."""
    if shutil.which("openssl") is None:
        if os.environ.get("CI"):
            pytest.fail("no openssl")
        pytest.skip("no openssl")

    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "99")
    # since 3.13 Python wants the extensions that RFC 5280 demands
    uses = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    paths = ("-keyout", "ca.key", "-out", "ca.pem")
    run(*new, "-x509", "-nodes", *paths, "-subj", "/CN=authority", *uses)
    hosts = "DNS:localhost,DNS:data.test,DNS:login.test,DNS:store.test"
    names = f"subjectAltName=IP:127.0.0.1,{hosts}"
    (folder / "names").write_text(f"{names}\nauthorityKeyIdentifier=keyid\n")
    for name, secret in (("server", ()), ("client", ("-passout", f"pass:{PASSWORD}"))):
        request = (*new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        run(*(word for word in request if word not in ("-days", "99")), *(secret or ("-nodes",)))
        sign = ("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key")
        run(*sign, "-CAcreateserial", "-days", "99", "-extfile", "names", "-out", f"{name}.pem")
    both = (folder / "server.pem").read_text() + (folder / "server.key").read_text()
    (folder / "both.pem").write_text(both)
    return Certificates(
        *(str(folder / name) for name in ("ca.pem", "both.pem", "client.pem", "client.key"))
    )
