"""What answers of HTTP say: each is checked to be what was asked for, of one version.

Source: RFC 9110 (conditions, ranges, redirects, retries); observed behaviour of nginx, Apache, S3,
rclone and Python's ``http.server``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from yarl import URL

from nczarr_fsspec.errors import AccessDeniedError, DatasetNotFoundError, StoreError, too_large
from nczarr_fsspec.places.hosts import is_metadata_service, is_private
from nczarr_fsspec.transport.bodies import (
    ContentRange,
    Part,
    Response,
    at_most,
    content_range,
    cut_from_parts,
    encoding_of,
    exactly,
    multipart_boundary,
    multipart_parts,
    pieces,
    unsatisfied_size,
    up_to,
)
from nczarr_fsspec.transport.policy import Clock
from nczarr_fsspec.transport.recording import MISSING
from nczarr_fsspec.transport.request import (
    END,
    Answer,
    FileVersion,
    Request,
    TransientError,
    changed,
    moment,
)

#: answers after which another try may succeed
TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
#: those of them that mean "too many requests"
BUSY = frozenset({429, 503})
REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: what to say where a proxy wants credentials
PROXY_LOGIN = "; write user:password@ before the host of the proxy"
_HINTS = {
    401: "; it got no credentials, or refuses those that it got: check the storage_options logins "
    "and netrc, or user:password@ before the host",
    403: "; access is denied (some servers say so of files that do not exist, too)",
    407: PROXY_LOGIN,
}
_DIGEST = (
    "; it wants HTTP Digest: storage_options={'client_kwargs': {'middlewares': "
    "(aiohttp.DigestAuthMiddleware(user, password),)}}"
)
_HIDDEN = (
    "; many servers hide all names that begin with a dot, which the metadata of Zarr 2 have: ask "
    "that they be shown, or put the dataset there as a zip archive (nczarr copy)"
)
#: how refusing several ranges looks; a server that ignores them says 200
_ONE_RANGE = frozenset({200, 400, 416, 501})
#: how servers say that they do not understand ``bytes=-N``
_NO_SUFFIX = frozenset({400, 501})
#: headers of object stores, all of which answer one range at a time
_OBJECT_STORES = ("x-amz-request-id", "x-goog-generation", "x-ms-request-id")


async def read_answer(response: Response, clock: Clock, request: Request) -> Answer | None:
    """Return the answer to `request`, checked; None if there is no such key.

    Raises
    ------
    TransientError
        If it is worth another try.
    DatasetNotFoundError
        If there is no such file, and the way to this one file was asked for.
    StoreError
        If it is not what was asked for, or about another version.
    """
    answer = await _read(response, clock, request)
    return None if answer is None else answer._replace(sent=response.headers.get("Date", ""))


async def _read(response: Response, clock: Clock, request: Request) -> Answer | None:
    status, several = response.status, len(request.extents or ()) > 1
    if status in MISSING and request.server is None:
        return None
    if status in MISSING and request.version is not None:
        raise DatasetNotFoundError(request.shown, f"the file has disappeared ({_said(response)})")
    if status == 304 and request.unless is not None:
        return Answer((), request.unless)
    if several and status in _ONE_RANGE:
        response.close()  # not a whole file for a few of its bytes
        return _refused(request)
    if status == 206 and several:
        return await _several(response, clock, request)
    is_part = status == 206
    if status == 200 and request.ranged:  # as `rclone serve s3` answers with what it states
        stated = content_range(response.headers.get("Content-Range"))
        is_part = stated is not None and response.content_length == stated.stop - stated.start
    if is_part and request.ranged:
        return await _part(response, clock, request)
    if status == 200:
        return await _whole(response, clock, request)
    if status == 416 and request.ranged:
        return _beyond(response, request)
    if status in _NO_SUFFIX and request.tail:
        return _refused(request)
    raise failure(request.shown, response)


def _refused(request: Request) -> Answer:
    """Return the answer of a server that cannot send what is asked for in this way."""
    return Answer([None] * max(1, len(request.extents or ())), request.version or FileVersion())


def _agreed(response: Response, size: int | None, request: Request) -> FileVersion:
    """Return the version that the answer is about.

    Raises
    ------
    StoreError
        If another one was asked for.
    """
    found = FileVersion.of(response.headers, size)
    return found if request.version is None else request.version.agreeing(found, request.shown)


async def _whole(response: Response, clock: Clock, request: Request) -> Answer:
    """Return the answer 200: the file from its beginning, whatever range was asked for."""
    length = None if encoding_of(response) else response.content_length
    tail, shown = request.tail, request.shown
    divides = response.headers.get("Accept-Ranges", "").strip().lower() == "bytes"
    if tail and (length is None or length > tail):
        server = request.server
        if divides or server is None or (length or 0) > server.max_whole:
            response.close()  # not the whole file for its end
            return Answer([None], FileVersion.of(response.headers, length))
    version = _agreed(response, length, request)
    nothing = request.extents is not None and not request.extents
    if nothing and (length is not None or request.server is None):
        response.close()
        return Answer((), version)
    if request.server is not None:
        download = partial(_download, response, clock, request, version)
        body = await request.server.keep(download, response.close, clock)
        version = version._replace(size=len(body))
    elif request.extents and request.extents[0].stop < min(length or END, END):
        body = await up_to(response, clock, shown, request.extents[0].stop - 1)
        if len(body) < request.extents[0].stop:
            _check_length(body, length)
    else:
        body = await at_most(response, clock, shown, request.most)
        _check_length(body, length)
    if request.extents is None:
        return Answer([body[-tail:] if tail else body], version)
    view = memoryview(body)
    return Answer([view[start:stop] for start, stop in request.extents], version)


async def _download(
    response: Response, clock: Clock, request: Request, version: FileVersion
) -> bytes:
    """Return all of a file that the server sent though it was asked for a part."""
    assert request.server is not None
    most = request.server.max_whole
    length = None if encoding_of(response) else response.content_length
    if (length or 0) <= most:
        body = await up_to(response, clock, request.shown, most)
        if len(body) <= most:
            _check_length(body, version.size if length is None and version.size >= 0 else length)
            return body
    held = "" if length is None else f" of {length} bytes"
    raise StoreError(
        request.shown,
        f"the server does not serve byte ranges, and the file{held} is larger than the "
        f"{most} bytes that are kept in memory (storage option max_whole); "
        "download it, or put simplecache:: before the URL",
    )


def _check_length(body: bytes, length: int | None) -> None:
    if length is not None and len(body) != length:
        raise TransientError(f"the body has {len(body)} of {length} bytes")


async def _part(response: Response, clock: Clock, request: Request) -> Answer:
    """Return an answer that has a part: the range that was asked for, and all of it."""
    shown, server, tail = request.shown, request.server, request.tail
    stated = _stated(response, shown)
    version = _agreed(response, stated and stated.size, request)
    start, stop = request.extents[0] if request.extents else (0, END)
    if server is not None and request.version is None:
        if any(name in response.headers for name in _OBJECT_STORES):
            server.ranges = 1
        if stated is None and start == 0 and not tail:  # a proxy may lose it
            begin = await up_to(response, clock, shown, stop)
            return Answer([begin[:stop]], version)
    if stated is None:  # then only the length can tell
        count = stop - start
        if tail or stop == END or response.content_length not in (None, count):
            raise StoreError(shown, "the server sent a byte range without saying which")
    else:
        if tail and stated.size is None:
            response.close()  # the end of what?
            return Answer([None], version)
        size = stated.stop if stated.size is None else stated.size
        if tail:
            start = max(0, size - tail)
        if stated[:2] != (start, min(stop, size)):
            sent, asked = f"{stated.start}-{stated.stop - 1}", f"{start}-{min(stop, size) - 1}"
            raise StoreError(shown, f"the server sent bytes {sent}, asked for {asked}")
        count = stated.stop - start
        if stop == END and request.most is not None and count > request.most:
            raise too_large(shown, request.most)
    body = exactly(pieces(response, clock, shown), count)
    data = await (body if server is None else server.timed(body))
    return Answer([data], version)


async def _several(response: Response, clock: Clock, request: Request) -> Answer:
    """Return the answer 206 to a request for several extents: those of them that it has."""
    assert request.extents is not None
    wanted = sum(stop - start for start, stop in request.extents)
    most = 2 * wanted + (1 << 20)  # headers, and gaps that the server filled
    stated = content_range(response.headers.get("Content-Range"))
    mark = multipart_boundary(response.headers.get("Content-Type", ""))
    found: list[Part] | None = None
    if encoding_of(response):
        pass
    elif mark is not None:
        found = multipart_parts(await up_to(response, clock, request.shown, most), mark)
    elif stated is not None and stated.stop - stated.start <= most:
        body = exactly(pieces(response, clock, request.shown), stated.stop - stated.start)
        found = [(stated, await body)]
    if not found:
        response.close()
        return _refused(request)
    version = request.version or FileVersion()
    for part, _ in found:
        version = version.agreeing(FileVersion.of(response.headers, part.size), request.shown)
    return Answer([cut_from_parts(found, extent) for extent in request.extents], version)


def _beyond(response: Response, request: Request) -> Answer:
    """Return the answer 416: there are no such bytes, as in a slice."""
    size = unsatisfied_size(response.headers.get("Content-Range"))
    if request.version is not None and size not in (None, request.version.size):
        raise changed(request.shown, f"it had {request.version.size} bytes and has {size}")
    if request.server is not None and (size or request.version is not None):
        raise failure(request.shown, response)
    return Answer([b""], FileVersion.of(response.headers, size))


def _stated(response: Response, shown: str) -> ContentRange | None:
    """Return which range an answer for one says it is; None if it does not say."""
    if encoding_of(response):
        raise StoreError(shown, "the server compressed a byte range, which cannot be undone")
    if response.headers.get("Content-Type", "").lower().startswith("multipart/byteranges"):
        raise StoreError(shown, "the server sent several byte ranges, asked for one")
    header = response.headers.get("Content-Range")
    stated = content_range(header)
    if stated is None and header is not None:
        raise StoreError(shown, f"the server sent no possible byte range: {header[:60]!r}")
    return stated


# ---- refusals


def failure(shown: str, response: Response) -> StoreError | TransientError:
    """Return what to raise for an answer that is of no use."""
    status, said = response.status, _said(response)
    if status in TRANSIENT:
        wait = retry_after(response.headers.get("Retry-After"))
        return TransientError(said, wait, busy=status in BUSY)
    if status in MISSING:
        return DatasetNotFoundError(shown, f"there is no such file ({said})")
    if status in REDIRECTS:
        return StoreError(shown, f"{said}: there are too many redirects, or one to nowhere")
    login = response.headers.get("WWW-Authenticate", "").lower()
    hidden = status == 403 and response.url.name.startswith(".")
    digest = status == 401 and login.startswith("digest")
    said += _HIDDEN if hidden else _DIGEST if digest else _HINTS.get(status, "")
    if status in (400, 401, 403) and "***" in shown:
        said += "; a signature or token in the URL may have expired"
    if status not in (401, 403):
        return StoreError(shown, said)
    said += redirected(shown, response.url)
    return AccessDeniedError(shown, said)


def _said(response: Response) -> str:
    return f"HTTP status {response.status} {response.reason or ''}".rstrip()


def redirected(shown: str, target: URL) -> str:
    """Say why a server may have had no credentials: it is not the one that the user named."""
    try:
        first = URL(shown).origin()
    except ValueError:
        return ""
    if same_origin(target, first):
        return ""
    if target.scheme == "https" and (first.scheme, first.host) == ("http", target.host):
        return "; it was redirected to https, where no credentials go: write https:// in the URL"
    named = target.host if target.host != first.host else target.origin()
    return (
        f"; the request was redirected to {named}, which gets only credentials that were given for "
        "this host: by the storage options logins or netrc"
    )


def retry_after(header: str | None) -> float:
    """Return the seconds to wait that ``Retry-After`` states in either form, or 0."""
    if header is None:
        return 0.0
    if header.strip().isdecimal():
        return float(header)
    until = moment(header)
    return 0.0 if until is None else max(0.0, until.timestamp() - time.time())


def same_origin(one: URL, other: URL) -> bool:
    """Tell whether scheme, host and port are the same; yarl has no port where none is written.

    Raises
    ------
    ValueError
        If one has no host.
    """
    first, second = one.origin(), other.origin()
    return (first.scheme, first.host, first.port) == (second.scheme, second.host, second.port)


def refusal(first: URL, target: URL, origins: Sequence[str] | None) -> str | None:
    """Return why a redirect must not be followed; None if it may.

    Parameters
    ----------
    first, target
        The URL that was asked for, and where it leads.
    origins
        The storage option ``redirects``; None for all but the metadata services of clouds.

    Raises
    ------
    ValueError
        If `target` has no host.
    """
    host, origin = target.host or "", str(target.origin())
    if same_origin(first, target):
        return None
    if is_metadata_service(host) and not is_metadata_service(first.host or ""):
        return f"its server redirects to {host}, a metadata service: clouds hand out secrets there"
    if origins is None or origin in origins:
        return None
    if f"{target.scheme}://" in origins and not is_private(host):
        return None
    return (
        "its server redirects to another host; if this is to be read, open the dataset that "
        f"names it with allow=['{origin}/']"
    )
