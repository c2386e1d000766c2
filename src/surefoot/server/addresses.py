"""Which addresses are public, and which ones a name has.

The rule is our own table over ``ipaddress``, whose table of special ranges grew between Python
releases. An IPv6 address that carries an IPv4 address is as public as that one.
"""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

# https://www.iana.org/assignments/iana-ipv4-special-registry, and what a cloud gives its machines.
NOT_PUBLIC_V4 = tuple(
    ip_network(one)
    for one in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's wire server: it answers that cloud's machines alone
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
# https://www.iana.org/assignments/iana-ipv6-unicast-address-assignments: all that is given out.
UNICAST_V6 = ip_network("2000::/3")
NOT_PUBLIC_V6 = tuple(ip_network(one) for one in ("2001::/23", "2001:db8::/32", "3fff::/20"))
NAT64 = ip_network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Return whether an address belongs to a host that anybody on the Internet could reach."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv6Address):
        carried = _carried(found)
        if carried is None:
            listed = any(found in network for network in NOT_PUBLIC_V6)
            return found in UNICAST_V6 and found.is_global and not listed
        found = carried
    return found.is_global and not any(found in network for network in NOT_PUBLIC_V4)


async def look_up(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a name, in the order to try them.

    Raises:
        OSError: it has none.
        UnicodeError: it cannot be a name.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


def _carried(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that a mapped, a translated or a 6to4 address leads to."""
    if address in NAT64:
        return IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour
