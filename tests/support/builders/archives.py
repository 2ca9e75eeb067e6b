"""Keys of every odd spelling, and zip archives of them, whole and damaged."""

from __future__ import annotations

import io
import random
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

#: names as netCDF allows them: spaces, URL and glob characters, other scripts
DATASET = {
    ".zgroup": b'{"zarr_format": 2}',
    ".zattrs": b"{}",
    "v/.zarray": b"{...}",
    "v/0.0": bytes(range(256)) * 5,
    "v/0.1": b"",
    "g1/.zgroup": b'{"zarr_format": 2}',
    "g1/a b#c/0": b"space and hash",
    "g1/50%/0": b"percent",
    "g1/50%25/0": b"percent twenty-five",
    "g1/q?x=1&y/0": b"query",
    "g1/back\\slash/0": b"backslash",
    "g1/star*[0]/0": b"glob",
    "g1/tempé_温度/0": b"non-ASCII",
    "g1/++;,@:$'/0": b"reserved",
}


HOSTILE = ["", "/", "/etc/passwd", "..", "../x", "v/../v/0.0", "v//0.0", "./v", "v/", "v/0.0\0"]


METHODS = {
    "stored": zipfile.ZIP_STORED,
    "deflate": zipfile.ZIP_DEFLATED,
    "bzip2": zipfile.ZIP_BZIP2,
    "lzma": zipfile.ZIP_LZMA,
}


NOISE = random.Random(1).randbytes(200_000)


def make_zip(
    members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED, prefix: str = ""
) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(prefix + name, content)
    return buffer.getvalue()


def patched(archive: bytes, name: str, **fields: int) -> bytes:
    """`archive` with fields of the central directory entry of `name` replaced."""
    layout = {"flags": (8, "H"), "method": (10, "H"), "crc": (16, "I"), "compressed": (20, "I"),
              "size": (24, "I"), "offset": (42, "I")}  # fmt: skip
    content = bytearray(archive)
    at = -1
    while True:
        at = content.index(b"PK\x01\x02", at + 1)
        length = struct.unpack_from("<H", content, at + 28)[0]
        if content[at + 46 : at + 46 + length] == name.encode():
            break
    for field, value in fields.items():
        offset, code = layout[field]
        struct.pack_into("<" + code, content, at + offset, value)
    return bytes(content)


def write_zip(path: Path, prefix: str = "", method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for key, content in DATASET.items():
            archive.writestr(prefix + key, content)
    return path
