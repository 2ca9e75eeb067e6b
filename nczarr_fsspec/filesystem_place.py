"""A path in a filesystem of fsspec: from a URL to it, and to the file that is there."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.errors import DatasetNotFoundError, StoreError, URLError
from nczarr_fsspec.extras import missing_package
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.ranges.open import MAX_WHOLE, OwnOptions, open_source, split_options
from nczarr_fsspec.ranges.source import Known, LocalBytes, RemoteBytes
from nczarr_fsspec.s3nc import CONFIG_OPTION, located
from nczarr_fsspec.target_names import names_url, says_file
from nczarr_fsspec.url import NetCDFURL, parse_url, redact

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from nczarr_fsspec.ranges.remote import RemoteFileBytes


_ABRIDGED = re.compile(r"(?i)(?<=://)\[([0-9a-f:.]*::[0-9a-f:.]*)\]")


@dataclass(frozen=True, slots=True)
class FilesystemPlace:
    """A path in a filesystem, and this package's options for reading there."""

    fs: AbstractFileSystem
    path: str
    own: OwnOptions = field(default_factory=OwnOptions)

    @property
    def identity(self) -> str:
        """A text that identifies what is here: without secrets, the same in other processes.

        ``""`` if an object of this process is part of it, such as an open file or a function.
        """
        from nczarr_fsspec.transport.filesystems import arguments, is_plain

        args, options = arguments(self.fs)
        if not is_plain((args, options)):
            return ""
        text = repr((type(self.fs).__name__, args, sorted(options.items()), self.path))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def below(self) -> FilesystemPlace:
        """Return the same place in the filesystem below those that change nothing.

        They are those that only shift the root, and `ByteRangeFileSystem`: what it does for others
        is done here anyway.
        """
        fs, path = innermost(self.fs, self.path)
        own = self.own
        if "nczarr_fsspec.ranges.filesystem" in sys.modules:  # else there can be none of these
            from nczarr_fsspec.ranges.filesystem import ByteRangeFileSystem

            if isinstance(fs, ByteRangeFileSystem):
                if own.max_whole == MAX_WHOLE:
                    own = replace(own, max_whole=fs.max_whole)
                fs, path = innermost(fs.fs, fs._strip_protocol(path))
        return FilesystemPlace(fs, path, own)

    def open_archive(self, shown: str | None) -> KeyStore:
        """Open the archive here; errors as `nczarr_fsspec.ranges.open.open_source`."""
        from nczarr_fsspec.stores.zip import open_archive
        from nczarr_fsspec.stores.zipformat import TAIL_BYTES

        own = self.own
        source = open_source(
            self.fs,
            self.path,
            shown,
            max_whole=own.max_whole,
            timeout=own.timeout,
            tail=TAIL_BYTES,
        )
        return open_archive(source)

    def open(self, shown: str | None, index_cache: Path | None) -> RemoteBytes | LocalBytes:
        """Return the file here; errors as `nczarr_fsspec.ranges.open.open_source`."""
        from nczarr_fsspec.ranges.memory import memory

        identity = self.identity
        known = memory.known(identity, index_cache) if identity else None
        own = self.own
        source = open_source(
            self.fs, self.path, shown, known=known, max_whole=own.max_whole, timeout=own.timeout
        )
        if not isinstance(source, RemoteBytes):
            return source
        source.identity = identity
        if own.keeping is None:
            return source
        memory.of(source)  # so that it is asked for the next time whether it is another version
        return own.keeping.keep(source)


def place_of_url(url: NetCDFURL, options: Mapping[str, Any] | None) -> FilesystemPlace:
    """Find the place that a URL names; errors as `open_filesystem`."""
    own, options = split_options(options, url.text.partition("#")[0])
    return FilesystemPlace(*open_filesystem(url, options), own).below()


def find_remote_file(
    target: str, storage_options: Mapping[str, Any] | None
) -> tuple[RemoteFileBytes, Known | None] | None:
    """Find the remote file that a URL names as a file, and what version of it is known.

    No request is sent: `RemoteFileBytes.begin` opens the file, with others at a time. What it
    finds may be an archive, or the page that a server makes of a directory.

    Parameters
    ----------
    target, storage_options
        As of `resolve`.

    Returns
    -------
    None if the target is local, a tree or an archive by its name, or says nothing of it.

    Raises
    ------
    URLError
        If `target` cannot be understood.
    """
    from nczarr_fsspec.ranges.remote import RemoteFileBytes
    from nczarr_fsspec.transport.filesystems import is_http, is_s3
    from nczarr_fsspec.transport.open import open_transport

    if not names_url(target):
        return None
    url = parse_url(target)
    if not says_file(url.path, url.mode) or url.protocol != url.target_protocol:
        return None
    place = place_of_url(url, storage_options)
    if not (is_http(place.fs) or is_s3(place.fs)) or place.own.keeping is not None:
        return None
    own, shown = place.own, target.partition("#")[0]
    transport = open_transport(place.fs, own.timeout)
    return _known(RemoteFileBytes(transport, place.path, redact(shown), own.max_whole), place)


def find_beside(source: RemoteFileBytes, name: str) -> tuple[RemoteFileBytes, Known | None] | None:
    """Find another file in the folder of one that `find_remote_file` has found, with its options.

    Parameters
    ----------
    source
        Its URL ends with its name.
    name
        Of the other one; nothing in it is encoded in a URL.

    Returns
    -------
    None if it is not named as a file.
    """
    if not says_file(name, frozenset()):
        return None
    other = source.beside(name)
    return _known(other, FilesystemPlace(*other.location))


def _known(source: RemoteFileBytes, place: FilesystemPlace) -> tuple[RemoteFileBytes, Known | None]:
    """Return a file at a place, and what version of it is known."""
    from nczarr_fsspec.ranges.memory import memory

    source.identity = place.identity
    return source, memory.known(source.identity) if source.identity else None


def open_unasked(
    target: str, storage_options: Mapping[str, Any] | None
) -> LocalBytes | RemoteFileBytes:
    """Open the file at a URL. A remote one is asked nothing yet.

    Raises
    ------
    URLError
        If the URL or the options cannot be understood.
    DatasetNotFoundError, StoreError
        If there is no such file on this machine, or it cannot be read.
    """
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.memory import MemoryFileSystem

    from nczarr_fsspec.ranges.remote import RemoteFileBytes
    from nczarr_fsspec.transport.filesystems import describe
    from nczarr_fsspec.transport.open import open_transport

    place = place_of_url(parse_url(target), storage_options)
    fs, path, own = place.fs, place.path, place.own
    if isinstance(fs, (LocalFileSystem, MemoryFileSystem)):
        source = open_source(fs, path)
        assert isinstance(source, LocalBytes)
        return source
    transport = open_transport(fs, own.timeout)
    return RemoteFileBytes.unasked(transport, path, describe(fs, path), own.max_whole)


def open_filesystem(
    url: NetCDFURL, options: Mapping[str, Any] | None
) -> tuple[AbstractFileSystem, str]:
    """Find the filesystem that a URL names, and the path in it; errors as `open_keystore`."""
    from fsspec.core import url_to_fs

    from nczarr_fsspec.aws import storage_options
    from nczarr_fsspec.transport.filesystems import is_s3

    shown = url.text.partition("#")[0]
    options = dict(options or {})
    url, keys = located(url, options.pop(CONFIG_OPTION, None))
    arguments = storage_options(url, options, keys)
    try:
        fs, path = url_to_fs(_ABRIDGED.sub(_unabridged, url.base), **arguments)
    except ImportError as error:
        raise missing_package(url.target_protocol, error, shown) from None
    except (ValueError, TypeError) as error:
        raise URLError(shown, f"fsspec cannot open it: {redact(str(error))}") from None
    except Exception as error:  # noqa: BLE001 - some filesystems connect when they are made
        kind = DatasetNotFoundError if isinstance(error, FileNotFoundError) else StoreError
        first, *_ = str(error).splitlines() or [""]  # pyarrow lists where it has looked for Java
        raise kind(shown, f"cannot be opened: {type(error).__name__}: {redact(first)}") from None
    if is_s3(fs):
        from nczarr_fsspec.transport.s3client import check_options

        check_options(fs)
    return fs, path


def _unabridged(host: re.Match[str]) -> str:
    """Return an address of IPv6 without ``::``, which is a chain to fsspec."""
    try:
        groups = IPv6Address(host[1]).exploded.split(":")
    except ValueError:
        return host[0]
    return f"[{':'.join(f'{int(group, 16):x}' for group in groups)}]"


def innermost(fs: AbstractFileSystem, path: str) -> tuple[AbstractFileSystem, str]:
    """Return the filesystem below those that only shift the root, and the path in it."""
    from fsspec.implementations.dirfs import DirFileSystem

    while isinstance(fs, DirFileSystem):  # its asynchronous half needs an asynchronous target
        fs, path = fs.fs, fs._join(path)
    return fs, path
