"""Packing a directory tree into a zip archive as netCDF-C lays it out.

Everything is below one directory, which comes first; every directory comes before what is in it;
nothing is compressed; zip64 only where an archive needs it. Source: archives that netCDF-C 4.8.0
to 4.10.1 wrote, and PKWARE APPNOTE 6.3.10.
"""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.keystore import is_safe_name
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_fsspec.stores.zip import RemoteZipStore, ZipStore
from nczarr_fsspec.stores.zipformat import (
    LOCAL_HEADER,
    Archive,
    Member,
    check_readable,
    data_offset,
)

_BLOCK = 1024 * 1024
_FILE = (stat.S_IFREG | 0o666) << 16
_FOLDER = (stat.S_IFDIR | 0o777) << 16
_UNIX = 3
#: bits 1 and 2 say how a method was used, such as whether LZMA data end with a mark
_METHOD_OPTIONS = 0x6


def pack(
    tree: str,
    archive: str,
    name: str | None,
    *,
    base: ZipStore | RemoteZipStore | None,
    removed: Callable[[str], bool],
    stay: Collection[str] = (),
    private: str = "",
) -> None:
    """Write a zip archive of the files in a directory tree.

    The order of members is that of their keys, and their time is always the
    same: equal content makes equal archives.

    Parameters
    ----------
    tree, archive
        Paths; `archive` must not exist, and is gone after an error.
    name
        The directory in the archive: netCDF-C's is the archive's file name
        without its last extension. None: everything is at the top, where readers
        of Zarr look.
    base
        An archive whose members are taken over, as they are stored, where
        `tree` has no file for the key and it is not `removed`. What is beside
        the dataset there stays where it is.
    removed
        Whether a key of `base` is left out.
    stay
        Keys of `base` that stay where they are in the archive, too.
    private
        The beginning of keys of files that are left out; "" if there are none.

    Raises
    ------
    StoreError
        If a file cannot be read, the archive cannot be written, or the
        directory of `base` is damaged.
    """
    if name is not None and not is_safe_name(name):
        raise StoreError(archive, f"{name!r} cannot be the name of a directory in an archive")
    old = Archive("", {}) if base is None else base.archive
    keys: dict[str, str | Member] = {
        key: member for key, member in old.members.items() if key not in stay and not removed(key)
    }
    for key in DirectoryWriter(tree).keys_below(""):
        if not (private and key.startswith(private)):
            keys[key] = os.path.join(tree, key)
    paths = {key if name is None else f"{name}/{key}": keys[key] for key in sorted(keys)}
    beside = old.others | {f"{old.directory}{key}": old.members[key] for key in stay}
    if clashes := sorted(beside.keys() & paths.keys()):
        some = ", ".join(clashes[:5])
        raise StoreError(archive, f"has other files where the dataset is to be written: {some}")
    paths |= {path: beside[path] for path in sorted(beside)}
    try:
        with Path(archive).open("xb") as file:
            try:
                with zipfile.ZipFile(file, "w") as target:
                    _fill(target, name, paths, base)
                file.flush()
                os.fsync(file.fileno())  # renaming it may replace the only copy
            except BaseException:
                with suppress(OSError):
                    Path(archive).unlink()
                raise
    except StoreError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name that UTF-8 cannot hold
        cause = getattr(error, "strerror", None) or error
        raise StoreError(archive, f"cannot be written: {cause}") from error


def _fill(
    target: zipfile.ZipFile,
    name: str | None,
    paths: Mapping[str, str | Member],
    base: ZipStore | RemoteZipStore | None,
) -> None:
    """Write members at `paths`: files, or members of `base`; the directory `name` comes first."""
    folders: set[str] = set()

    def add_folder(path: str) -> None:
        if path and path not in folders:
            folders.add(path)
            if "/" in path:
                add_folder(path.rpartition("/")[0])
            target.mkdir(_entry(f"{path}/", _FOLDER))

    if name is not None:
        add_folder(name)
    for path, source in paths.items():
        add_folder(path.rpartition("/")[0])
        entry = _entry(path, _FILE)
        if isinstance(source, str):
            _add(target, entry, _file_content(entry, source))
        elif base is not None:
            _add(target, entry, _member_content(entry, path, source, base))


def _entry(path: str, attributes: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(path)  # of 1980, the first time that zip knows
    entry.CRC = 0
    entry.create_system = _UNIX
    entry.external_attr = attributes
    return entry


def _add(target: zipfile.ZipFile, entry: zipfile.ZipInfo, content: Iterator[bytes]) -> None:
    """Append a member as it is stored; `content` completes `entry` before it yields."""
    first = next(content)
    file = target.fp
    assert file is not None
    entry.header_offset = file.tell()
    file.write(entry.FileHeader())
    file.write(first)
    for block in content:
        file.write(block)
    target.filelist.append(entry)
    target.start_dir = file.tell()


def _file_content(entry: zipfile.ZipInfo, path: str) -> Iterator[bytes]:
    """Yield blocks of a file, after its size and CRC are set; a long one is read twice."""
    try:
        with Path(path).open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            block = file.read(min(_BLOCK, size))
            crc = zlib.crc32(block)
            if len(block) < size:
                while block := file.read(_BLOCK):
                    crc = zlib.crc32(block, crc)
                file.seek(0)
                block = file.read(_BLOCK)
            entry.CRC, entry.file_size, entry.compress_size = crc, size, size
            left = size - len(block)
            yield block
            while left > 0:
                block = file.read(min(_BLOCK, left))
                if not block:
                    raise StoreError(path, "has become shorter while it was packed")
                left -= len(block)
                yield block
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(path, f"cannot be read: {error.strerror or error}") from error


def _member_content(
    entry: zipfile.ZipInfo, path: str, member: Member, base: ZipStore | RemoteZipStore
) -> Iterator[bytes]:
    """Yield blocks of a member of another archive, after `entry` is set to what it is there."""
    name = f"{base.url}: member {path!r}"
    check_readable(name, member)
    entry.compress_type, entry.flag_bits = member.method, member.flags & _METHOD_OPTIONS
    entry.CRC, entry.file_size = member.crc, member.size
    entry.compress_size = member.compressed_size
    header = base.run(base.read(member.offset, member.offset + LOCAL_HEADER.size))
    start = member.offset + data_offset(name, member, header)
    stop = start + member.compressed_size
    while True:
        block = base.run(base.read(start, min(start + _BLOCK, stop)))
        start += len(block)
        yield block
        if start == stop:
            return
        if not block:
            raise StoreError(name, "is truncated")
