"""Addresses of THREDDS and other servers of OPeNDAP, and where the files behind them are.

Source: the services of THREDDS 5 as its user's guide names them; URLs of Hyrax.
"""

from __future__ import annotations

import re

from nczarr_fsspec.places.url import is_url, redact, split_chain

_DODS = re.compile(r"(?P<root>https?://[^?#]*?)/(?:dodsC|dap4)/(?P<path>[^?#]+)", re.IGNORECASE)
_CATALOG = re.compile(r"https?://[^?#]*/catalog(?:\.html|\.xml|/)", re.IGNORECASE)
_OPENDAP = re.compile(r"https?://[^?#]*(?:opendap|/dap/|/hyrax/)", re.IGNORECASE)
#: what a request by OPeNDAP ends in, behind the name of the file
_ANSWERS = re.compile(
    r"\.(?:dods|dds|das|ascii|asc|html|info|ver|dmr|dap)(?:\.xml)?$", re.IGNORECASE
)


def hint(target: object) -> str:
    """Return what to open in place of `target`, which could not be; empty if that is not known."""
    if not isinstance(target, str) or not is_url(target):
        return ""
    place, _, fragment = target.partition("#")
    chain, link = split_chain(place)
    if (dods := _DODS.match(link)) is not None:
        path = _ANSWERS.sub("", dods["path"])
        mode = f"#{fragment}" if fragment else ""
        there = redact(f"{chain}{dods['root']}/fileServer/{path}{mode}")
        return (
            "this is how a THREDDS server names it for OPeNDAP; the file itself, if there is one, "
            f"is read from {there}, and OPeNDAP by engine='netcdf4'"
        )
    if _CATALOG.match(link) is not None:
        return (
            "this may be a catalogue of a THREDDS server: open one of its datasets, by the URL "
            "that its page has for HTTPServer (…/fileServer/…)"
        )
    if _OPENDAP.match(link) is not None:
        return "this may be a server of OPeNDAP, which engine='netcdf4' reads"
    return ""
