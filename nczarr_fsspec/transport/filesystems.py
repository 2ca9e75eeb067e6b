"""What a filesystem of fsspec is, and how its errors become ours."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from fsspec import AbstractFileSystem
from fsspec.archive import AbstractArchiveFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from nczarr_fsspec.errors import AccessDeniedError, DatasetNotFoundError, StoreError, URLError
from nczarr_fsspec.forks import may_share_position
from nczarr_fsspec.places.url import redact
from nczarr_fsspec.transport.policy import ATTEMPTS, TIMEOUT_OPTION
from nczarr_fsspec.transport.request import TransientError

if TYPE_CHECKING:
    from fsspec.implementations.cached import CachingFileSystem

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
#: what other people's filesystems raise when a connection goes
_BROKEN = (ConnectionError, TimeoutError, EOFError)
_SECRET_OPTION = re.compile("secret|token|passw|key|auth|cred|sas|connection", re.IGNORECASE)
#: why a request is tried again, if `renewed` says so
EXPIRED = "the credentials have expired"
#: how S3 says that keys were good for a while only; an answer to HEAD has its status alone
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "400"})
#: how S3 says that it does not know the key, or that the secret is not the one of the key
_WRONG_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"})
#: what to say where access is denied, by protocol
_LOGINS = {
    "s3": (
        "; choose credentials (AWS_PROFILE, #aws.profile=NAME or storage_options), or for "
        'public data none: storage_options={"anon": True}; where readers pay, '
        '{"requester_pays": True}; S3 says so of missing objects, too, to those who may not list '
        "the bucket"
    ),
    "gs": (
        "; log in (gcloud auth application-default login) or give storage_options={"
        '"token": …}, for public data {"token": "anon"}; where readers pay, '
        '{"requester_pays": True}'
    ),
    "abfs": (
        '; give storage_options={"account_name": …} with "credential", "account_key" or '
        '"sas_token", for public data with "anon": True'
    ),
}

_S3 = "'nczarr-xarray[s3]'"
_REMOTE = "'nczarr-xarray[remote]'"
#: For all other protocols, fsspec itself names the package; of SFTP and HDFS, not how to get it.
_INSTALL = {
    **dict.fromkeys(("http", "https"), _REMOTE),
    **dict.fromkeys(("s3", "s3a", "gs3"), _S3),
    **dict.fromkeys(("gs", "gcs"), "'nczarr-xarray[gcs]'"),
    **dict.fromkeys(("abfs", "abfss", "az"), "'nczarr-xarray[azure]'"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    "hdfs": "pyarrow",
}

# ---- kinds

Kind: TypeAlias = Literal["local", "memory", "s3", "http", "other"]


def is_async(fs: AbstractFileSystem) -> bool:
    """Tell whether `fs` can be awaited."""
    # not fs.async_impl, for fsspec's caches claim what their target says
    return isinstance(fs, AsyncFileSystem)


def protocols(fs: AbstractFileSystem) -> tuple[str, ...]:
    """Return the names that `fs` has in URLs."""
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def kind_of(fs: AbstractFileSystem) -> Kind:
    """Return what `fs` is of the filesystems that are treated apart; ``"other"`` for the rest."""
    if isinstance(fs, LocalFileSystem):
        return "local"
    if isinstance(fs, MemoryFileSystem):
        return "memory"
    if hasattr(type(fs), "_call_s3"):  # s3fs's, or made from it
        return "s3"
    return "http" if "https" in protocols(fs) and is_async(fs) else "other"


def is_in_front(fs: AbstractFileSystem) -> bool:
    """Tell whether `fs` is a cache or an archive, which has other files below it."""
    return isinstance(fs, (ChainedFileSystem, AbstractArchiveFileSystem))


def renames(fs: AbstractFileSystem) -> bool:
    """Tell whether `fs` renames a file in one step, as protocols for files do."""
    if is_async(fs):  # sshfs; object stores copy each file
        own = getattr(type(fs), "_mv_file", None) is not getattr(AsyncFileSystem, "_mv_file", None)
        return hasattr(fs, "_mv") and not own
    return type(fs).mv is not AbstractFileSystem.mv and "webdav" not in protocols(fs)


def arguments(fs: AbstractFileSystem) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what `fs` was made with."""
    return tuple(fs.storage_args), dict(fs.storage_options)


def is_plain(value: Any) -> bool:
    """Tell whether `value` is made of texts, numbers and the like, the same in every process."""
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    return value is None or isinstance(value, (str, bytes, int, float, os.PathLike))


def holds_open_file(value: Any) -> bool:
    """Tell whether `value`, a filesystem or an argument of one, has a file open for its caller."""
    if isinstance(value, AbstractFileSystem):
        return holds_open_file(arguments(value))
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(holds_open_file, value))
    return may_share_position(value)


# ---- paths


def describe(fs: AbstractFileSystem, path: str) -> str:
    """Return the URL of `path`, without secrets."""
    return redact(fs.unstrip_protocol(path))


def join(root: str, key: str) -> str:
    """Return the path of `key` below `root`."""
    return f"{root.rstrip('/')}/{key}" if root else key


def names_below(path: str, found: Iterable[str]) -> frozenset[str]:
    """Return the names directly below `path`, without the marker of the prefix itself."""
    whole = (name.strip("/") for name in found)
    return frozenset(name.rsplit("/", 1)[-1] for name in whole if name != path.strip("/"))


# ---- errors


def without_secrets(fs: AbstractFileSystem, error: Exception) -> str:
    """Return what `error` says, without URLs' secrets and those among the options of `fs`."""
    text = str(error) or "no message"
    cause = getattr(error.__cause__ or error, "kwargs", {}).get("error")  # where botocore has it
    if cause is not None and str(cause) not in text:
        text += f" ({type(cause).__name__}: {cause})"
    text = redact(text)
    for name, value in arguments(fs)[1].items():
        if isinstance(value, str) and value and _SECRET_OPTION.search(name):
            text = text.replace(value, "***")
    return f"{type(error).__name__}: {text}"


def keys_number(fs: AbstractFileSystem) -> int:
    """Return the number of the credentials in use, if a function renews them; else 0."""
    renewing = getattr(getattr(fs, "session", None), "renewing", None)
    return 0 if renewing is None else int(renewing.number)


def renewed(fs: AbstractFileSystem, error: Exception, number: int) -> bool:
    """Tell whether S3 refused keys that have expired, and a function returns others.

    Parameters
    ----------
    number
        What `keys_number` was before the request.
    """
    renewing = getattr(getattr(fs, "session", None), "renewing", None)  # of `RenewedSession`
    if renewing is None or s3_code(error) not in _EXPIRED:
        return False
    return bool(renewing.expired(number))


def wants_credentials(fs: AbstractFileSystem, error: Exception) -> bool:
    """Tell whether S3 refused for want of credentials, or there are none."""
    return kind_of(fs) == "s3" and (_is_denied(error) or "Credentials" in type(error).__name__)


def _is_denied(error: Exception) -> bool:
    """Tell whether access is denied; S3, Google and Azure each say so in ways of their own."""
    if isinstance(error, PermissionError) or status_of(error) in ("401", "403"):
        return True
    return str(error).startswith("Forbidden: ")


def status_of(error: Exception) -> str:
    """Return the status or error code of the answer that led to `error`; empty if unknown."""
    code = s3_code(error)
    for name in ("status_code", "status", "code"):  # of the last, aiohttp warns
        code = code or str(getattr(error, name, None) or "")
    return code


def how_to_log_in(fs: AbstractFileSystem, error: Exception, missing: str = "") -> str:
    """Return what messages say of credentials for `fs`; empty for other kinds.

    Parameters
    ----------
    missing
        What to say instead if they are not simply wrong.
    """
    if s3_code(error) in _WRONG_KEYS:
        return "; the key or the secret is wrong: correct AWS_PROFILE or storage_options"
    kind = (
        "s3"
        if kind_of(fs) == "s3"
        else next((name for name in protocols(fs) if name in _LOGINS), "")
    )
    return missing or _LOGINS.get(kind, "")


def fail(fs: AbstractFileSystem, path: str, error: Exception) -> NoReturn:
    """Raise `error`, which `fs` raised about `path`, as one of ours and without secrets."""
    if isinstance(error, (StoreError, URLError)):
        raise error
    reason = f"cannot be read: {without_secrets(fs, error)}"
    denied = _is_denied(error)
    if denied or wants_credentials(fs, error):
        reason += how_to_log_in(fs, error)
    kind = AccessDeniedError if denied else StoreError
    raise kind(describe(fs, path), reason) from None


def is_absent(error: Exception, path: str) -> bool:
    """Tell whether `error` says that there is no file at a path.

    fsspec's own zip filesystem says so by a KeyError, before 2026.9. One that does not name the
    file is about something else, such as an answer that is not as expected: it may be there.
    """
    if isinstance(error, KeyError):
        name = path.strip("/").rpartition("/")[2]
        return any(name in str(part) for part in error.args)
    # fsspec's own FTP filesystem says so of every failure
    of_ftp = type(error.__cause__).__module__ == "ftplib"
    return isinstance(error, _ABSENT) and not (of_ftp and str(error.__cause__)[:3] != "550")


def is_broken(error: Exception) -> bool:
    """Tell whether a connection is gone, or a server may answer another time."""
    errors = error, error.__cause__
    # of FTP: statuses from 400 to 499
    return any(isinstance(one, _BROKEN) or type(one).__name__ == "error_temp" for one in errors)


def check_bucket(fs: AbstractFileSystem, path: str, error: Exception) -> None:
    """Raise `DatasetNotFoundError` if `error` says that there is no such bucket in S3."""
    if s3_code(error) == "NoSuchBucket":
        raise DatasetNotFoundError(describe(fs, path), "there is no such bucket") from None


def s3_code(error: Exception) -> str:
    """Return the error code of S3's answer that led to `error`, such as ``"NoSuchBucket"``."""
    response = getattr(error.__cause__ or error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def is_beyond(error: Exception) -> bool:
    """Tell whether a range begins behind the end, in S3's words, Google's or Azure's."""
    return status_of(error) in ("InvalidRange", "416")


@asynccontextmanager
async def within(left: float) -> AsyncIterator[None]:
    """Raise `TransientError` if this takes more than `left` seconds."""
    clock = asyncio.timeout(None if left == math.inf else left)
    try:
        async with clock:
            yield
    except TimeoutError:
        if not clock.expired():
            raise
        raise TransientError(
            f"the request took too long (storage option {TIMEOUT_OPTION})", cost=ATTEMPTS
        ) from None


def missing_package(protocol: str | None, error: ImportError, shown: str = "") -> ImportError:
    """Turn fsspec's error about a missing package into one that says what to install.

    Parameters
    ----------
    protocol
        The one whose package is missing: the innermost of a chain.
    shown
        Names the target.
    """
    reason = f"{shown}: {error}" if shown else str(error)
    install = _INSTALL.get(protocol or "")
    if install is not None and "pip install" not in reason:
        reason = f"{reason}: pip install {install}"
    return ImportError(reason)


# ---- caches


def checked(fs: AbstractFileSystem, method: str, path: str, **options: Any) -> Any:
    """Call `method` of a filesystem, which may be a cache.

    If a cache fails, it forgets what it has of the file: it would keep half of that, or holes, for
    the next read.

    Raises
    ------
    ConnectionError
        If a cache says that there is no such file, and there is.
    """
    from fsspec.implementations.cached import CachingFileSystem

    try:
        return getattr(fs, method)(path, **options)
    except Exception as error:
        if isinstance(fs, CachingFileSystem):
            with suppress(Exception):
                _forget(fs, path)
            if isinstance(error, FileNotFoundError):
                _ask_below(fs, path)
        raise


def _forget(fs: CachingFileSystem, path: str) -> None:
    from fsspec.implementations.cached import SimpleCacheFileSystem

    if not isinstance(fs, SimpleCacheFileSystem):
        fs.pop_from_cache(path)
        return
    kept = fs._check_file(path)
    if kept and os.path.dirname(kept) == fs.storage[-1]:  # it only reads in the other folders
        os.remove(kept)


def _ask_below(fs: CachingFileSystem, path: str) -> None:
    """Raise what keeps a cache from a file, which it took for absent.

    Most filesystems answer ``exists`` with False if anything fails. Data that are absent would
    read as fill values.
    """
    from fsspec.implementations.cached import CachingFileSystem

    while isinstance(fs, CachingFileSystem):
        fs = fs.fs
    fs.cat_file(path, start=0, end=1)
    raise ConnectionError("a cache took it for absent") from None
