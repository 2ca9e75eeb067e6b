"""Where redirects of an HTTP server may lead."""

from __future__ import annotations

from collections.abc import Sequence

from yarl import URL

from nczarr_fsspec.places.hosts import is_metadata_service, is_private


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
