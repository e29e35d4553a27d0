"""How far inside an address lies: what a foreign URL must not lead to unseen."""

from __future__ import annotations

import ipaddress
from enum import IntEnum
from functools import cache
from pathlib import Path

_HOSTS = Path("/etc/hosts")

# Where clouds keep a machine's credentials, link-local addresses apart: AWS and Google over IPv6,
# Alibaba, Azure, Oracle.
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    )
)
# RFC 6052 and 8215: an IPv4 address in the last four bytes, to be translated.
_TRANSLATED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")))


class Reach(IntEnum):
    """The further inside, the higher. Nothing of media stands at `NEVER`: link-local addresses, the
    metadata of clouds, multicast.
    """

    PUBLIC = 0
    PRIVATE = 1
    HERE = 2
    NEVER = 3

    @property
    def words(self) -> str:
        return ("a public", "a private", "this machine's own", "a link-local")[self] + " address"


def reach_of(address: str) -> Reach:
    """Of an address of IPv4 or IPv6, also of one IPv4 within IPv6. Raises ValueError."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.is_loopback or found.is_unspecified:
        return Reach.HERE
    if isinstance(found, ipaddress.IPv6Address) and (inner := _inner(found)) is not None:
        return reach_of(str(inner))
    if found in _METADATA or found.is_link_local or found.is_multicast:
        return Reach.NEVER
    return Reach.PUBLIC if found.is_global else Reach.PRIVATE


def is_known_here(host: str) -> bool:
    """Whether it is no name of the public DNS, whose owner may let it lead to this machine."""
    name = host.rstrip(".").lower()
    return "." not in name or name.endswith(".localhost") or name in _names_of_this_machine()


def _inner(found: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if any(found in network for network in _TRANSLATED):
        return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)


@cache
def _names_of_this_machine() -> frozenset[str]:
    try:
        lines = _HOSTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(name.lower() for line in lines for name in line.partition("#")[0].split()[1:])
