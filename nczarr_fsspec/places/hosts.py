"""What the name of a host tells without looking it up: whether it is of the public internet."""

from __future__ import annotations

import socket
import unicodedata
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

#: names and addresses of metadata services, which hand out the credentials of cloud machines:
#: the first part of names that a machine or its cloud knows, other names, addresses, networks
_METADATA_LABELS = frozenset({"metadata", "instance-data"})
_METADATA_NAMES = frozenset({"metadata.goog", "metadata.tencentyun.com"})
_METADATA_ADDRESSES = frozenset(map(ip_address, ("100.100.100.200", "168.63.129.16")))
_METADATA_NETWORKS = tuple(
    map(IPv6Network, ("fd00:ec2::/32", "fd20:ce::/32", "fd00:c1::/32", "fd00:42::/32"))
)
#: names below these are of a machine, a home or an institution
_PRIVATE_NAMES = (
    *(".localhost", ".local", ".localdomain", ".internal", ".intranet", ".lan"),
    *(".corp", ".home", ".home.arpa", ".private"),
)
#: the IPv6 networks whose last four bytes are an IPv4 address
_EMBEDDING = (IPv6Network("64:ff9b::/96"), IPv6Network("::/96"))


def is_private(host: str) -> bool:
    """Tell whether `host` is this machine or in a local network, as far as its name tells.

    Parameters
    ----------
    host
        Without a port: a name, which is not looked up, or an IP address in any spelling.
    """
    name = _plain(host)
    address = literal_address(name)
    if is_metadata_service(name):
        return True
    if address is not None:
        inner = _innermost(address)
        return inner.is_multicast or not inner.is_global
    return "." not in name or name.endswith(_PRIVATE_NAMES)


def is_metadata_service(host: str) -> bool:
    """Tell whether `host` may be a cloud's metadata service; parameters as `is_private`."""
    name = _plain(host)
    address = literal_address(name)
    if address is None:
        label, _, rest = name.partition(".")
        inside = not rest or f".{rest}".endswith(".internal")
        return name in _METADATA_NAMES or (inside and label in _METADATA_LABELS)
    inner = _innermost(address)
    if any(address in network for network in _METADATA_NETWORKS):
        return True
    return inner.is_link_local or inner in _METADATA_ADDRESSES


def literal_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that `host` is, also as ``127.1`` or ``0x7f000001``; None for a name."""
    host = host.strip("[]").partition("%")[0]
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def _plain(host: str) -> str:
    """Return a host as resolvers take it; there are digits and dots besides those of ASCII."""
    return unicodedata.normalize("NFKC", host).replace("\u3002", ".").lower().rstrip(".")


def _innermost(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, IPv4Address):
        return address
    teredo = address.teredo
    inner = address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)
    if inner is not None:
        return inner
    if int(address) > 1 and any(address in network for network in _EMBEDDING):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address
