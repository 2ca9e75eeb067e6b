"""netCDF URLs: ``scheme://[user:password@]host[:port]/path[?query][#fragment]``.

The fragment tells what lies at the URL (``#mode=nczarr,zip``). The grammar is netCDF-C's
(``NC_infermodel`` and ``ds3util.c`` of 4.9 to 4.10) as meant, not as its bugs have it. What
differs, on purpose:

- every bare word that is a mode counts as one (netCDF-C knows some, and reads ``#zarr`` as
  ``nczarr``); an unknown word or key is an error instead of being ignored;
- ``noxarray`` suppresses ``_ARRAY_DIMENSIONS`` and no more (netCDF-C 4.8.1 and 4.9.1 onward drop
  all NCZarr keys with it, and so the dimension names);
- fragments are percent-decoded. Paths are not, as in netCDF-C, but for an HTTP URL that is
  turned into an S3 bucket and key (and, where there is no such file, for what ``Path.as_uri``
  makes: `nczarr_fsspec.places.names.local_path`);
- ``?`` has a meaning in HTTP and S3 URLs only; netCDF-C cuts a local path there.

This module is pure: it opens nothing and reads nothing but the working directory's name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from urllib.parse import unquote

from nczarr_fsspec.errors import URLError

MODES = frozenset(
    {"nczarr", "zarr", "xarray", "noxarray", "consolidated", "v2"}
    | {"bytes", "file", "zip", "s3", "gs3"}
)
#: ``log`` and ``show`` are debugging switches of netCDF-C; they are accepted and mean nothing here
OPTIONS = frozenset({"aws.profile", "aws.region", "log", "show"})

_DIALECTS = frozenset({"nczarr", "zarr", "xarray", "noxarray"})
_IMPLIED = {"zarr": {"nczarr"}, "xarray": {"zarr", "nczarr"}, "noxarray": {"nczarr"}}
_MACROS = {"s3": {"s3", "nczarr"}, "gs3": {"gs3", "nczarr"}}
_DAP = "DAP is a protocol of its own; open it with engine='netcdf4' or engine='pydap'"
_UNSERVED = (
    dict.fromkeys(("dap2", "dap4"), _DAP)
    | dict.fromkeys(
        ("netcdf-3", "classic", "netcdf-4", "enhanced"),
        "whether a file is classic or HDF5 is seen from its content; leave the mode out",
    )
    | dict.fromkeys((f"udf{n}" for n in range(10)), "user-defined formats exist in netCDF-C only")
)

# A scheme has two letters at least: "C:\x" and "C://x" are Windows paths.
_IS_URL = re.compile(r"(?i)file:/|[a-z][a-z0-9+.\-]+(?:://|::)")
# What netCDF-C takes for a fragment, too: words in brackets before the URL.
_BRACKETS = re.compile(r"(?i)((?:\[[^\[\]]*\])+)(?=[a-z][a-z0-9+.\-]+:)")
# "::" links a chain, except inside an IPv6 address.
_CHAIN_LINK = re.compile(r"(?i)(?<!\[)::(?![0-9a-f:.]{0,45}(?:%[^\[\]/?#]{0,45})?\])")
_SCHEME = re.compile(r"(?i)[a-z][a-z0-9+.\-]+(?=:)")
_HIERARCHY = re.compile(r"//(?P<authority>[^/?]*)(?P<path>[^?]*)(?:\?(?P<query>.*))?")
_AUTHORITY = re.compile(
    r"(?i)(?:(?P<userinfo>.*)@)?(?P<host>\[[0-9a-f:.]+\]|[^:@\[\]]+)(?::(?P<port>[0-9]{1,5}))?"
)
CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_AMAZON = re.compile(
    r"(?:(?P<bucket>.+)\.)?(?P<service>s3(?:-fips|-accelerate)?(?:\.dualstack)?"
    r"(?:[.\-](?P<region>[a-z]{2,4}(?:-[a-z]+)+-\d+))?\.amazonaws\.com(?:\.cn)?)"
)
_GOOGLE = "storage.googleapis.com"
_IP_ADDRESS = re.compile(r"\[.*\]|\d+(?:\.\d+){3}")

_SECRET_NAME = re.compile(
    r"(?i)amz|goog|sig|token|key|secret|passw|pwd|auth|credential|session|policy|code|access"
    r"|jwt|bearer|ticket|macaroon"
)
_NAMED_VALUE = re.compile(r"(?<=[?&;#])([^=&;#?\s]+)=((?:(?!::)[^&;#\s])*)")
# letters with digits that a query has without a name; not "raw", "2024" or OPeNDAP's "t[0:9]"
_TOKEN = re.compile(
    r"(?<=[?&])(?=[^&#\s]*\d)(?=[^&#\s]*[A-Za-z])[\w.+/~%\-]{6,}"
    r"(?:={1,2}(?=[&#\s]|$)|(?![\w.+/~%\-=\[]))"
)
# (what GitHub's URLs have there is no secret: github://org:repository@branch/path)
_USERINFO = re.compile(r"(?<=://)(?<!github://)[^/?#\s]*@")
# what people type: a password holding "/", "?" or "#" that should have been percent-encoded; no
# password goes on into the next link of a chain
_LOOSE_USERINFO = re.compile(
    r"(?<=://)(?<!github://)[^/?#@:\[\s]*:(?!\d*(?:[/?#]|$))"
    r"(?:(?!:?:[a-z][a-z0-9+.\-]+://)[^@\s]){0,1000}@"
)


@dataclass(frozen=True, slots=True)
class NetCDFURL:
    """One parsed URL. Neither `text` nor the ``repr`` holds a password, token or signature.

    Attributes
    ----------
    text : str
        The URL as given with its secrets masked, for messages.
    protocol, target_protocol : str
        fsspec protocols of `base`, the outermost and the innermost of a chain, else the same one:
        ``"file"``, ``"https"``, ``"s3"``, ...
    base : str
        What fsspec opens: without fragment, ``file`` made absolute, HTTP without user and
        password (they are in `userinfo`), S3 in any spelling as ``s3://bucket/key`` or
        ``gs3://bucket/key``. May hold a signed query, so it is not for messages.
    path : str
        Path part of the URL, or of the last link of a chain: for ``file`` a local path, for S3
        ``bucket/key``.
    query : str
        What follows ``?`` in an HTTP URL.
    mode : frozenset of str
        Modes after macros, implications and negations (`expand_modes`); with ``s3`` or ``gs3``
        wherever `bucket` is set.
    options : mapping of str to str
        The other keys of the fragment in lower case, see `OPTIONS`.
    bucket, key : str or None, str
        S3 bucket, and key without outer slashes, of the URL or the last link of a chain.
    region : str or None
        ``aws.region`` of the fragment, else the region that the host names.
    endpoint : str or None
        ``https://host[:port]`` of the S3 service; None where the URL names a bucket alone.
    userinfo : str
        ``user:password`` of an HTTP URL, percent-decoded.
    """

    text: str
    protocol: str
    target_protocol: str
    base: str = field(repr=False)
    path: str
    query: str = field(default="", repr=False)
    mode: frozenset[str] = frozenset()
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    bucket: str | None = None
    key: str = ""
    region: str | None = None
    endpoint: str | None = None
    userinfo: str = field(default="", repr=False)


def is_url(text: str) -> bool:
    """Tell whether `text` begins like a URL: ``scheme://``, ``file:/``, fsspec's ``a::b``."""
    return _IS_URL.match(text) is not None


def without_brackets(text: str) -> str:
    """Return a URL with words in brackets before it, ``[mode=nczarr]file:...``, with a fragment."""
    found = _BRACKETS.match(text)
    if found is None:
        return text
    words = found[1][1:-1].replace("][", "&")
    return f"{text[found.end() :]}{'&' if '#' in text else '#'}{words}"


def parse_url(text: str) -> NetCDFURL:
    """Parse a netCDF URL or any URL of fsspec, chained ones included.

    S3 is a URL with scheme ``s3`` or ``gs3``, an HTTP URL with one of these as a mode, and, as
    in netCDF-C, an HTTP URL on a host of Amazon's S3 service or on ``storage.googleapis.com``.
    The last only without user and query: a presigned URL is good for plain HTTP alone.

    Raises
    ------
    URLError
        If `text` is no URL, or its fragment, host or port cannot be understood.
    """
    url = _parsed(without_brackets(text.strip(" ")))
    # which file that is depends on the working directory
    return _local(url) if url.target_protocol == "file" else url


@lru_cache(maxsize=64)
def _parsed(text: str) -> NetCDFURL:
    """Do as `parse_url` does, but for what is local; each step to a file asks for the same URL."""
    shown = redact(text)
    if not is_url(text):
        raise URLError(repr(shown), "is not a URL (scheme://...)")
    if CONTROL.search(text):
        raise URLError(repr(shown), "contains control characters")
    location, _, fragment = text.partition("#")
    mode, options = _parse_fragment(fragment, shown)

    chain, link = split_chain(location)
    scheme = _scheme(link)
    path = _SCHEME.sub("", link, count=1).removeprefix(":").removeprefix("//")
    url = NetCDFURL(shown, scheme, scheme, link, path, mode=mode, options=options)
    if scheme in ("dods", "dap4"):
        raise URLError(shown, _DAP)
    if scheme in ("http", "https", "s3", "s3a", "gs3"):
        url = _hosted(url)
    elif mode & {"s3", "gs3"}:
        raise URLError(shown, "modes s3 and gs3 need an s3://, gs3://, http:// or https:// URL")
    protocol = _scheme(chain) if chain else url.target_protocol
    return replace(url, protocol=protocol, base=chain + url.base)


def split_chain(text: str) -> tuple[str, str]:
    """Cut a URL before the last link of a chain, ``("a::b://x::", "c://y")``."""
    links = list(_CHAIN_LINK.finditer(text))
    split = links[-1].end() if links else 0
    return text[:split], text[split:]


def expand_modes(words: Iterable[str]) -> frozenset[str]:
    """Apply implications, then negations, to mode words.

    ``zarr`` implies ``nczarr``; ``xarray`` implies ``zarr``; ``noxarray`` implies ``nczarr`` and
    removes ``xarray``; ``bytes`` is about a single file and removes all four.
    """
    mode = set(words)
    for word in tuple(mode):
        mode |= _IMPLIED.get(word, set())
    if "noxarray" in mode:
        mode.discard("xarray")
    if "bytes" in mode:
        mode -= _DIALECTS
    return frozenset(mode)


def is_secret(name: str) -> bool:
    """Tell whether the name of an option says that its value is a secret."""
    return _SECRET_NAME.search(name) is not None


def redact(text: str) -> str:
    """Return `text`, a URL or a message with URLs in it, with secrets replaced by ``***``.

    Masked are user and password, and the values of the query and the fragment whose name says
    that they are a signature, token or key (``X-Amz-*``, ``sig``, ``token``, ...), or that have no
    name and look like a token.
    """
    if "@" not in text and "=" not in text and "?" not in text:
        return text

    def mask(match: re.Match[str]) -> str:
        name = unquote(match[1])
        secret = name.lower() not in OPTIONS and is_secret(name)
        return f"{match[1]}=***" if secret else match[0]

    if "://" in text and "?" in text:
        text = _TOKEN.sub("***", text)
    return _NAMED_VALUE.sub(mask, _LOOSE_USERINFO.sub("***@", _USERINFO.sub("***@", text)))


def _fragment_words(fragment: str) -> list[tuple[str, str | None]]:
    """Split a fragment into mode words, ``(word, None)``, and the other ``(key, value)``."""
    pairs: list[tuple[str, str | None]] = []
    for part in fragment.split("&"):
        name, equals, value = (unquote(piece).strip() for piece in part.partition("="))
        name = name.lower()
        if not equals:
            pairs += [(word, None) for word in _MACROS.get(name, {name}) if word]
        elif name == "mode":
            pairs += [(word.strip().lower(), None) for word in value.split(",") if word.strip()]
        else:
            pairs.append((name, value))
    return pairs


def _parse_fragment(fragment: str, shown: str) -> tuple[frozenset[str], dict[str, str]]:
    words: set[str] = set()
    options: dict[str, str] = {}
    for name, value in _fragment_words(fragment):
        if value is None and name in MODES:
            words.add(name)
        elif name in OPTIONS:
            if options.setdefault(name, value or "") != (value or ""):
                raise URLError(shown, f"fragment key {name!r} is given twice and differently")
        elif name in MODES:
            raise URLError(shown, f"{name!r} is a mode and takes no value; write #mode={name}")
        elif value is None and name in _UNSERVED:
            raise URLError(shown, f"mode {name!r}: {_UNSERVED[name]}")
        elif "@" in fragment:  # which may be the end of a password, so it is not shown
            reason = "what follows '#' is no mode; in a password, write %23 for it"
            raise URLError(re.sub("(?<=://).*@", "***@", shown).partition("#")[0], reason)
        else:
            kind = "mode" if value is None else "key"
            known = f"modes are {', '.join(sorted(MODES))}; keys are mode, "
            known += ", ".join(sorted(OPTIONS))
            raise URLError(shown, f"unknown fragment {kind} {name!r}; {known}")
    if {"file", "zip"} <= words:
        raise URLError(shown, "modes 'file' and 'zip' exclude each other")
    return expand_modes(words), options


def _scheme(link: str) -> str:
    match = _SCHEME.match(link)
    return match[0].lower() if match else "file"


def _local(url: NetCDFURL) -> NetCDFURL:
    """Make a ``file`` URL absolute; ``file://x`` is relative to the working directory."""
    path = url.path
    if re.match(r"/[A-Za-z]:", path):  # file:///C:/x
        path = path[1:]
    if not path.strip("/") or path.startswith("//"):
        raise URLError(url.text, "write file:///absolute/path or file://relative/path")
    path = path if re.match(r"[A-Za-z]:", path) else os.path.abspath(path)
    return replace(url, base=f"{split_chain(url.base)[0]}file://{path}", path=path)


def _hosted(url: NetCDFURL) -> NetCDFURL:
    """Parse a URL with a host: one for HTTP, or any spelling of a place in S3."""
    scheme = url.protocol
    parts = _HIERARCHY.fullmatch(url.base, len(scheme) + 1)
    authority = _AUTHORITY.fullmatch(parts["authority"]) if parts else None
    if parts is None or authority is None or not 0 < int(authority["port"] or 1) < 65536:
        what = "bucket" if scheme in ("s3", "gs3") else "host[:port]"
        raise URLError(url.text, f"has no valid {what}")
    host, port, userinfo = authority["host"], authority["port"], authority["userinfo"]
    path, query = parts["path"], parts["query"] or ""
    suffix = f":{port}" if port else ""

    http = scheme in ("http", "https")
    presigned = userinfo is not None or query
    s3_service = host.lower() == _GOOGLE or _AMAZON.fullmatch(host.lower())
    if http and not url.mode & {"s3", "gs3"} and (presigned or not s3_service):
        base = f"{scheme}://{host}{suffix}{path}" + (f"?{query}" if query else "")
        return replace(url, base=base, path=path, query=query, userinfo=unquote(userinfo or ""))
    if presigned:
        raise URLError(
            url.text,
            "an S3 URL has no user, password or query: name an AWS profile with #aws.profile=, "
            "and open a presigned URL without mode s3",
        )
    from_host, region, endpoint, google = _s3_host(scheme, host, suffix)
    path = unquote(path) if http else path
    bucket, _, key = f"{from_host}/{path.strip('/')}".strip("/").partition("/")
    key = key.strip("/")
    if not bucket or CONTROL.search(bucket + key):
        raise URLError(url.text, "names no S3 bucket")
    google = google or scheme == "gs3" or url.mode & {"s3", "gs3"} == {"gs3"}
    protocol = "gs3" if google else "s3"
    path = f"{bucket}/{key}" if key else bucket
    return replace(
        url,
        target_protocol=protocol,
        base=f"{protocol}://{path}",
        path=path,
        mode=url.mode | {protocol},
        bucket=bucket,
        key=key,
        region=url.options.get("aws.region") or region,
        endpoint=endpoint,
    )


def _s3_host(scheme: str, host: str, port: str) -> tuple[str, str | None, str | None, bool]:
    """Read bucket, region and endpoint from a host, and whether it is Google's; it may be a bucket.

    ===================================================  ===========  =========================
    URL                                                  region       endpoint
    ===================================================  ===========  =========================
    ``s3://B/key``, ``gs3://B/key``                      None         None
    ``https://[B.]s3[.R].amazonaws.com[/B]/key``         R or None    ``https://s3[.R].am...``
    ``https://[B.]storage.googleapis.com[/B]/key``       None         None
    ``https://[B.]s3[.R].domain.tld[/B]/key``            R or None    same without ``B.``
    ``https://other.host[:port]/B/key``                  None         as given
    ===================================================  ===========  =========================

    Bucket names may have dots, so ``s3://some.name/key`` is about bucket ``some.name`` unless
    something shows a host: a port, an IP address, a domain of Amazon or Google, or ``s3`` as
    first or second label (netCDF-C takes every name with a dot for a host). In a domain other
    than Amazon's the label after ``s3`` is a region if two more follow it (netCDF-C reads region
    ``domain`` from ``s3.domain.tld``).
    """
    given, host = host, host.lower()
    labels = host.split(".")
    amazon = _AMAZON.fullmatch(host)
    google = host == _GOOGLE or host.endswith(f".{_GOOGLE}")
    path_style = labels[0] == "s3" and len(labels) > 2
    virtual_hosted = labels[1:2] == ["s3"] and len(labels) > 3
    named = amazon or google or path_style or virtual_hosted or _IP_ADDRESS.fullmatch(host)
    if scheme in ("s3", "s3a", "gs3") and not (named or port):
        return given, None, None, False
    if amazon:
        endpoint = f"https://{amazon['service']}{port}"
        return amazon["bucket"] or "", amazon["region"], endpoint, False
    if google:
        return host.removesuffix(_GOOGLE).rstrip("."), None, None, True
    bucket = labels.pop(0) if virtual_hosted else ""
    region = labels[1] if (path_style or virtual_hosted) and len(labels) > 3 else None
    transport = "http" if scheme == "http" else "https"
    return bucket, region, f"{transport}://{'.'.join(labels)}{port}", False
