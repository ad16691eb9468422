"""Addresses that a webhook may be aimed at, so that nobody reaches through us what only we can."""

import socket
from collections.abc import Mapping
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address


class Reach(Enum):
    """How near an address may be."""

    PUBLIC = "public"
    LOOPBACK = "loopback"
    PRIVATE = "private"


_ALLOWED: Mapping[Reach, frozenset[str]] = {
    Reach.PUBLIC: frozenset(),
    Reach.LOOPBACK: frozenset({"loopback"}),
    # Never link-local: clouds give out their credentials at 169.254.169.254.
    Reach.PRIVATE: frozenset({"loopback", "private"}),
}


def refused(address: Address, allowed: Reach) -> str | None:
    """Why no connection may go to this address; None if it may."""
    kind = _kind(_destination(address))
    if kind is None or kind in _ALLOWED[allowed]:
        return None
    return f"{address} is a {kind} address"


def literal(host: str) -> Address | None:
    """The address that a host spells out, if it does; `127.1` and `0x7f000001` do, too."""
    if host.rstrip(".").lower().split(".")[-1] == "localhost":
        return IPv4Address("127.0.0.1")
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


_NAT64 = IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = IPv6Network("2000::/3")


def _destination(address: Address) -> Address:
    """Where packets to an address end up that only wraps another one."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address


def _kind(address: Address) -> str | None:
    """What is special about an address; None if it belongs to the public internet."""
    if address.is_unspecified:
        return "unspecified"
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if address.is_multicast:
        return "multicast"
    if address.is_reserved:
        return "reserved"
    # Python takes the old site-local addresses, and whatever it does not know, for global.
    unicast = isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST
    return None if address.is_global and unicast else "private"
