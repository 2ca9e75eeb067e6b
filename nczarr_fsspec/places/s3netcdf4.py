"""S3netCDF4's configuration: aliases of S3 services, and what is kept of their files.

The file is JSON, in version 8 (``~/.s3nc4.json``) or 9 (``~/.s3nc.json``). In ``s3://minio/b/key``
the first name is an alias if the configuration has it (exactly; S3netCDF4 also took parts of it),
else it is a bucket as ever.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from nczarr_fsspec.errors import URLError
from nczarr_fsspec.places.url import NetCDFURL
from nczarr_fsspec.text import parse_size

#: the storage option that stands for the configuration of this machine
CONFIG_OPTION = "s3nc"
#: the variable that names the file
CONFIG_VARIABLE = "S3_NC_CONFIG"

_FILES = (".s3nc.json", ".s3nc4.json")
_VERSIONS = ("8", "9")
#: strings as they are, and commas behind which there is nothing
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])')
_ENDPOINT = re.compile(r"(?i)https?://(?:\[[0-9a-f:.]+\]|[^/?#@:\[\]]+)(?::[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Host:
    """An S3 service with an alias. The ``repr`` has no keys.

    Attributes
    ----------
    alias : str
        Without ``s3://``.
    endpoint : str
        ``http://host[:port]``.
    key, secret : str
        Credentials; ``""`` for anonymous requests.
    """

    alias: str
    endpoint: str
    key: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)

    def options(self) -> dict[str, Any]:
        """Return the credentials as options of s3fs."""
        return {"key": self.key, "secret": self.secret} if self.key else {"anon": True}


@dataclass(frozen=True, slots=True)
class Config:
    """What S3netCDF4's configuration says.

    Attributes
    ----------
    hosts : mapping of str to Host
        By alias.
    cache_location : str
        Folder for whole files that are kept; ``""`` if there is none.
    max_cache_size : int or None
        Bytes that these may take.
    max_object_size_for_memory : int or None
        Bytes of a file that may be kept in memory.
    max_object_size : int or None
        Bytes of a fragment that is written.
    """

    hosts: Mapping[str, Host] = field(default_factory=dict, hash=False)
    cache_location: str = ""
    max_cache_size: int | None = None
    max_object_size_for_memory: int | None = None
    max_object_size: int | None = None

    def expanded(self, url: NetCDFURL) -> tuple[NetCDFURL, dict[str, Any]]:
        """Return where an S3 URL leads if it begins with an alias, and credentials for there.

        Raises
        ------
        URLError
            If it names no bucket besides.
        """
        host = self.hosts.get(url.bucket or "")
        if host is None:
            return url, {}
        bucket, _, key = url.key.partition("/")
        if not bucket:
            raise URLError(url.text, f"names no bucket; write s3://{host.alias}/BUCKET/KEY")
        path = f"{bucket}/{key}" if key else bucket
        base = f"{url.base.removesuffix(url.path)}{path}"
        options = {} if url.options.get("aws.profile") else host.options()
        url = replace(url, base=base, path=path, bucket=bucket, key=key, endpoint=host.endpoint)
        return url, options


#: a configuration, the mapping or the file that it is made of, False for none, None for the usual
Configuration: TypeAlias = "Config | Mapping[str, Any] | str | os.PathLike[str] | bool | None"


def configuration(given: Configuration = None) -> Config:
    """Return the configuration that is `given`, else that of this machine.

    The latter is the file that ``S3_NC_CONFIG`` names, else ``~/.s3nc.json``, else
    ``~/.s3nc4.json``, else an empty one.

    Parameters
    ----------
    given
        The storage option ``s3nc``.

    Raises
    ------
    URLError
        If a file is named that cannot be read, or what is there cannot be understood. Messages
        never show keys.
    """
    if isinstance(given, Config):
        return given
    if isinstance(given, Mapping):
        return _config(given, f"storage option {CONFIG_OPTION}")
    if given is False:
        return Config()
    if isinstance(given, (str, os.PathLike)):
        named: str | os.PathLike[str] | None = given
    elif given is None:
        named = os.environ.get(CONFIG_VARIABLE)
    else:
        raise URLError(
            CONFIG_OPTION,
            f"must be a file, a mapping, a Config or False, not {type(given).__name__}",
        )
    if named:
        path = Path(named).expanduser()
        found = _load(path)
        if found is None:
            raise URLError(str(path), "there is no such configuration of S3netCDF4")
        return found
    home = os.environ.get("HOME") or Path.home()
    loaded = (_load(Path(home, name)) for name in _FILES)
    return next((config for config in loaded if config is not None), None) or Config()


def located(url: NetCDFURL, given: Configuration = None) -> tuple[NetCDFURL, dict[str, Any]]:
    """Do what `Config.expanded` does with a `configuration`, which is read only if need be."""
    if url.bucket is None or url.endpoint is not None or url.target_protocol != "s3":
        return url, {}
    return configuration(given).expanded(url)


def parse_config(text: str, name: str) -> Config:
    """Parse a configuration file; commas behind the last of several things are left out.

    Raises
    ------
    URLError
        Naming the file and what is wrong in it, without keys.
    """
    problem = ""
    data: Any = None
    try:
        data = json.loads(_TRAILING_COMMA.sub(lambda found: found[1] or "", text))
    except json.JSONDecodeError as error:
        problem = f"is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
    except (ValueError, RecursionError):
        problem = "has numbers or a depth that no configuration has"
    if problem:  # outside of the handler, whose error holds the text with its keys
        raise URLError(name, problem)
    if not isinstance(data, dict):
        raise URLError(name, 'is not a configuration of S3netCDF4: {"version": ..., ...}')
    return _config(data, name)


def _load(path: Path) -> Config | None:
    try:
        status = path.stat()
        return _read(str(path), status.st_mtime_ns, status.st_size, status.st_ino)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
    raise URLError(str(path), f"cannot be read: {reason}")


@lru_cache(maxsize=8)
def _read(path: str, *_: int) -> Config:
    """Read a file again only if it is another one."""
    return parse_config(Path(path).read_text("utf-8"), path)


def _config(data: Mapping[str, Any], name: str) -> Config:
    version = str(data.get("version", _VERSIONS[-1]))
    if version not in _VERSIONS:
        raise URLError(name, f"version {version!r} is not known; there are {', '.join(_VERSIONS)}")
    hosts: dict[str, Host] = {}
    entries = data.get("hosts") or {}
    if not isinstance(entries, Mapping):
        raise URLError(name, "hosts is not a mapping of names to hosts")
    for title, entry in entries.items():
        host = entry if isinstance(entry, Host) else _host(entry, title, name)
        if host.alias in hosts:
            raise URLError(name, f"the alias {host.alias!r} is given twice")
        hosts[host.alias] = host
    sizes = {
        option: parse_size(data[option], f"{name}: {option}")
        for option in ("max_cache_size", "max_object_size_for_memory", "max_object_size")
        if data.get(option) is not None
    }
    location = data.get("cache_location") or ""
    if not isinstance(location, (str, os.PathLike)):
        raise URLError(name, "cache_location is not the name of a folder")
    location = os.path.expanduser(os.fspath(location))
    return Config(hosts, location, **sizes)


def _host(entry: Any, title: str, name: str) -> Host:
    where = f"host {title!r}"
    if not isinstance(entry, Mapping):
        raise URLError(name, f"{where} is not a mapping")
    credentials = entry.get("credentials") or {}
    if not isinstance(credentials, Mapping):
        raise URLError(name, f"{where}: credentials is not a mapping")
    keys = {**entry, **credentials}
    texts = {
        option: keys.get(option) or ""
        for option in ("alias", "url", "accessKey", "secretKey", "api")
    }
    wrong = [option for option, text in texts.items() if not isinstance(text, str)]
    if wrong:
        raise URLError(name, f"{where}: {wrong[0]} is not text")
    alias = (texts["alias"] or title).strip().removeprefix("s3://").strip("/")
    endpoint = texts["url"].strip().rstrip("/")
    if endpoint and "://" not in endpoint:
        endpoint = f"http://{endpoint}"  # as S3netCDF4 has it
    if not alias or "/" in alias:
        raise URLError(name, f"{where}: its alias is not one name, s3://NAME")
    if not _ENDPOINT.fullmatch(endpoint):
        raise URLError(name, f"{where}: its url is not http://host[:port] or https://host[:port]")
    if texts["api"].lower() not in ("", "s3v4"):
        raise URLError(name, f"{where}: api {texts['api']!r} is not served here; S3v4 is")
    if bool(texts["accessKey"]) != bool(texts["secretKey"]):
        raise URLError(name, f"{where}: has one of accessKey and secretKey; both are needed")
    return Host(alias, endpoint, texts["accessKey"], texts["secretKey"])
