"""Which credentials, region and endpoint an S3 URL is opened with.

The order is netCDF-C's (``ds3util.c``). Reading the
files of the AWS tools and producing the credentials is left to botocore, which s3fs uses
anyway: so ``#`` comments, ``AWS_SHARED_CREDENTIALS_FILE``, session tokens, single sign-on and
roles work as they do for the AWS tools, where netCDF-C has a parser of its own that fails on
them. It also means that no secret passes through this package: a chosen profile is handed on by
its name. (On a cluster every worker needs the same profiles or environment.)
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

from fsspec.config import conf as fsspec_config

from nczarr_fsspec.errors import URLError
from nczarr_fsspec.places.rc import Entry, load_rc, lookup
from nczarr_fsspec.places.url import NetCDFURL
from nczarr_fsspec.transport.policy import (
    COOKIES_OPTION,
    CREDENTIALS_OPTION,
    NETRC_OPTION,
    TIMEOUT_OPTION,
    most_connections,
)

S3_EXTRA = "S3 needs the package s3fs: pip install 'nczarr-xarray[s3]'"

Profiles = Mapping[str, Mapping[str, Any]]

#: options of s3fs with which a caller decides about credentials
_GIVEN_CREDENTIALS = frozenset(
    {"anon", "key", "secret", "token", "username", "password", "profile", "session"}
)
#: keys that show that a profile has credentials, and not a region only
_PROFILE_CREDENTIALS = frozenset(
    {"aws_access_key_id", "credential_process", "credential_source", "login_session"}
    | {"role_arn", "sso_session", "sso_start_url", "web_identity_token_file"}
)
#: variables by which a container says that it has a role
_CONTAINER_CREDENTIALS = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
AMAZON = re.compile(r"https://s3(?!-fips|\.dualstack)[^:]*\.amazonaws\.com(\.cn)?")


def storage_options(
    url: NetCDFURL,
    given: Mapping[str, Any] | None = None,
    keys: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments with which ``fsspec.core.url_to_fs`` opens the base of `url`.

    Options that are `given` are kept. An S3 URL also gets credentials (`choose_profile`,
    `credentials`), region (`choose_region`) and endpoint. An HTTP URL gets the header for its user
    and password, and what rc files say (`http_options`). In a chain these go where fsspec looks
    for them, under the protocol of the last link. fsspec's own configuration (``FSSPEC_S3_KEY``
    and so on) counts as given, except that an endpoint spelled in the URL is stronger.

    Parameters
    ----------
    url
        A parsed URL; one that is neither S3 nor HTTP gets back what was given.
    given
        Storage options of the caller.
    keys
        Credentials for the service, if there are some that are for it alone.

    Raises
    ------
    URLError
        If a profile is named that does not exist, a profile file cannot be parsed, or an option
        is of the wrong kind.
    ImportError
        If `url` is in S3 and s3fs is not installed.
    """
    options = dict(given or {})
    if url.bucket is None and url.target_protocol not in ("http", "https"):
        return options
    add = partial(_add_s3, keys=keys or {}) if url.bucket is not None else http_options
    if url.base.startswith(f"{url.target_protocol}://"):
        return add(url, options)
    below = add(url, options.get(url.target_protocol) or {})
    return options | ({url.target_protocol: below} if below else {})


def choose_profile(
    url: NetCDFURL, entries: Sequence[Entry], env: Mapping[str, str], profiles: Profiles
) -> str | None:
    """Return the name of the AWS profile that the caller asked for; None if there is none.

    The first of ``#aws.profile=``, ``AWS.PROFILE`` in an rc file, and the variable
    ``AWS_PROFILE``. The name ``no`` means anonymous and stands in no file.

    Parameters
    ----------
    entries
        Settings of the rc files, see `load_rc`.
    env
        The environment.
    profiles
        ``{name: {key: value}}`` of the AWS files.

    Raises
    ------
    URLError
        If there is no such profile. (netCDF-C then goes on without credentials, or, for the
        variable, with another profile; the AWS tools fail.)
    """
    for source, name in (
        ("#aws.profile", url.options.get("aws.profile")),
        ("AWS.PROFILE in an rc file", lookup(entries, "AWS.PROFILE", url)),
        ("environment variable AWS_PROFILE", env.get("AWS_PROFILE")),
    ):
        if name and name != "no" and name not in profiles:
            known = ", ".join(sorted(profiles)) or "none"
            raise URLError(source, f"there is no AWS profile {name!r}; known profiles: {known}")
        if name:
            return name
    return None


def credentials(name: str | None, env: Mapping[str, str], profiles: Profiles) -> dict[str, Any]:
    """Return the options of s3fs that say where credentials come from.

    The first of: the profile `name`; ``AWS_ACCESS_KEY_ID`` with ``AWS_SECRET_ACCESS_KEY``; the
    profile ``default``; the role of a container, if the environment announces one; anonymous.
    A profile without credentials (with a region only, say) is anonymous if named, and passed
    over if it is the default.

    The AWS tools would then ask the metadata service of an EC2 machine. This package sends
    anonymous requests instead, as netCDF-C does: public data need no keys, and on other machines
    that question takes seconds. The storage option ``anon=False`` uses the role of such a machine.

    Returns
    -------
    dict
        ``{"profile": name}``, ``{"anon": True}``, or ``{}``: botocore finds them by itself.
    """
    profile = profiles.get(name or "default", {})
    if name:
        return {"profile": name} if _PROFILE_CREDENTIALS & profile.keys() else {"anon": True}
    if env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"):
        return {}
    if _PROFILE_CREDENTIALS & profile.keys():
        return {"profile": "default"}
    return {} if any(map(env.get, _CONTAINER_CREDENTIALS)) else {"anon": True}


def choose_region(
    url: NetCDFURL, entries: Sequence[Entry], env: Mapping[str, str], profile: Mapping[str, Any]
) -> str:
    """Return the region to sign requests for.

    The first of ``#aws.region=``, the region in the host of the URL, ``AWS.REGION`` in an rc
    file, ``region`` (or netCDF-C's ``aws_region``) of the profile, ``AWS_REGION``,
    ``AWS_DEFAULT_REGION``, and ``us-east-1``.
    """
    return (
        url.region
        or lookup(entries, "AWS.REGION", url)
        or profile.get("region")
        or profile.get("aws_region")
        or env.get("AWS_REGION")
        or env.get("AWS_DEFAULT_REGION")
        or "us-east-1"
    )


def _add_s3(url: NetCDFURL, given: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    configured = fsspec_config.get(url.target_protocol, {})
    for option in ("client_kwargs", "config_kwargs"):
        if not isinstance(given.get(option) or {}, Mapping):
            raise URLError(option, f"is a mapping, not {type(given[option]).__name__}")
    known = {**configured, **given}
    given_client = given.get("client_kwargs") or {}
    client = {**configured.get("client_kwargs", {}), **given_client}
    config = {**configured.get("config_kwargs", {}), **(given.get("config_kwargs") or {})}
    entries, env, profiles = load_rc(), os.environ, read_profiles()

    added: dict[str, Any] = {}
    source = known.pop(CREDENTIALS_OPTION, None)
    if source is not None:
        from nczarr_fsspec.transport.s3client import session_of

        given = {name: value for name, value in given.items() if name != CREDENTIALS_OPTION}
        known["session"] = given["session"] = session_of(source)
    name = known.get("profile")
    if keys and _GIVEN_CREDENTIALS.isdisjoint(given) and "aws_access_key_id" not in given_client:
        added = dict(keys)
    elif _GIVEN_CREDENTIALS.isdisjoint(known) and "aws_access_key_id" not in client:
        name = choose_profile(url, entries, env, profiles)
        added = credentials(name, env, profiles)
    if "region_name" not in {**client, **config}:
        profile = profiles.get(name or "default", {})
        client["region_name"] = choose_region(url, entries, env, profile)
    if url.endpoint and "endpoint_url" not in {**given, **given_client}:
        client.pop("endpoint_url", None)
        if AMAZON.fullmatch(url.endpoint):  # botocore knows it, and follows a bucket's redirect
            added["endpoint_url"] = None
            config.setdefault("ignore_configured_endpoint_urls", True)
        else:
            added["endpoint_url"] = url.endpoint
            config.setdefault("s3", {"addressing_style": "path"})
    # botocore keeps 10 connections unless told, and would queue what is sent at once
    size = config.setdefault("max_pool_connections", most_connections())
    if not isinstance(size, int):
        raise URLError("max_pool_connections", f"is a number of connections, not {size!r}")
    return {**added, **given, "client_kwargs": client, "config_kwargs": config}


def read_profiles() -> Profiles:
    """Read the files of the AWS tools, again only if they are others: every fragment asks."""
    return _profiles_of(file_states())


@lru_cache(maxsize=4)
def _profiles_of(_: tuple[FileState, ...]) -> Profiles:
    try:
        from botocore.exceptions import ConfigParseError
        from botocore.session import Session
    except ImportError as error:
        raise ImportError(S3_EXTRA) from error
    try:
        profiles: Profiles = Session(include_builtin_handlers=False).full_config["profiles"]
        return profiles
    except ConfigParseError as error:
        path = error.kwargs["path"]
    # outside the handler: the parser's message quotes lines, which may hold keys
    raise URLError(path, "is not a valid AWS configuration file ([name], then key = value lines)")


#: path, time, size and inode of a file
FileState: TypeAlias = tuple[str, int, int, int]

#: variables that name the files of the AWS tools, and where these are by default
_FILES = (
    ("AWS_CONFIG_FILE", "~/.aws/config"),
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
)


def file_states() -> tuple[FileState, ...]:
    """Return the states of the files with profiles."""
    named = (os.environ.get(variable) or default for variable, default in _FILES)
    return tuple(map(file_state, map(os.path.expanduser, named)))


def credentials_state() -> int:
    """Return a number that changes with the files with profiles and the variables ``AWS_*``."""
    variables = (pair for pair in os.environ.items() if pair[0].startswith("AWS_"))
    return hash((file_states(), frozenset(variables)))


def file_state(path: str) -> FileState:
    """Return what changes with a file; zeros if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return path, 0, 0, 0
    return path, status.st_mtime_ns, status.st_size, status.st_ino


#: storage options, and the keys that say them where the caller does not
_OPTIONS = {
    NETRC_OPTION: ("HTTP.NETRC",),
    COOKIES_OPTION: (
        *("HTTP.COOKIEJAR", "HTTP.COOKIE_JAR"),
        *("HTTP.COOKIEFILE", "HTTP.COOKIE_FILE"),
    ),
    "proxy": ("HTTP.PROXY.SERVER", "HTTP.PROXY_SERVER"),
}
#: what options have to be, if they are given
_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "headers": ("a mapping of names to texts", (Mapping, list, tuple)),
    "client_kwargs": ("a mapping", (Mapping,)),
    NETRC_OPTION: ("a path, True or False", (str, os.PathLike, bool)),
    COOKIES_OPTION: ("a path", (str, os.PathLike)),
}
_TIMEOUTS = {"whole": "HTTP.TIMEOUT", "connect": "HTTP.CONNECTTIMEOUT"}


def http_options(url: NetCDFURL, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with which fsspec opens an HTTP URL; what is `given` is stronger.

    Raises
    ------
    URLError
        If an option is of the wrong kind, or an rc file has a timeout that is no number.
    """
    options = dict(given)
    for name, (what, kinds) in _KINDS.items():
        if not isinstance(given.get(name), (*kinds, type(None))):
            raise URLError(name, f"is {what}, not {type(given[name]).__name__}")
    if type(given.get("auth")) in (str, tuple, list):
        raise URLError("auth", 'is an aiohttp.BasicAuth; for a pair, logins={"https://host": pair}')
    headers = dict(given.get("headers") or {})
    said = "auth" in given or any(str(name).lower() == "authorization" for name in headers)
    if url.userinfo and not said:
        token = base64.b64encode(url.userinfo.encode(errors="surrogateescape")).decode()
        headers["Authorization"] = f"Basic {token}"
    # of a chain, the rest is opened by fsspec itself, which knows none of this
    entries = load_rc() if url.protocol in (url.target_protocol, "bytes") else []
    if entries:
        for option, keys in _OPTIONS.items():
            found = next(filter(None, (lookup(entries, key, url) for key in keys)), None)
            if found is not None:
                options.setdefault(option, found)
        agent = lookup(entries, "HTTP.USERAGENT", url)
        named = {*headers, *((given.get("client_kwargs") or {}).get("headers") or {})}
        if agent and "user-agent" not in map(str.lower, named):
            headers["User-Agent"] = agent
        limits = {name: lookup(entries, key, url) for name, key in _TIMEOUTS.items()}
        seconds = {name: _seconds(_TIMEOUTS[name], text) for name, text in limits.items() if text}
        if seconds:
            options.setdefault(TIMEOUT_OPTION, seconds)
    return options | {"headers": headers} if headers else options


def _seconds(key: str, text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise URLError(f"{key} in an rc file", f"is a number of seconds, not {text!r}")
    return seconds or None
