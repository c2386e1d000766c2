"""Which addresses are public: every special range, at its first, last and middle address."""

import asyncio
from ipaddress import ip_address, ip_network

import pytest

from surefoot.server.addresses import is_public, look_up

SPECIAL_V4 = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
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
]
SPECIAL_V6 = [
    "::/128",
    "::1/128",
    "::/96",
    "64:ff9b:1::/48",
    "100::/64",
    "2001::/32",
    "2001:2::/48",
    "2001:10::/28",
    "2001:20::/28",
    "2001:db8::/32",
    "3fff::/20",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
]
PUBLIC_V4 = ["1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "126.255.255.255"]
PUBLIC_V4 += ["128.0.0.0", "169.253.255.255", "172.15.255.255", "172.32.0.0", "192.167.255.255"]
PUBLIC_V4 += ["168.63.129.15", "168.63.129.17", "198.17.255.255", "198.20.0.0", "223.255.255.255"]
PUBLIC_V6 = ["2000::1", "2606:4700:4700::1111", "2a00:1450:4001:80b::200e"]


def edges(network):
    first, last = int(network[0]), int(network[-1])
    return {str(type(network[0])(one)) for one in (first, (first + last) // 2, last)}


@pytest.mark.parametrize("network", SPECIAL_V4 + SPECIAL_V6)
def test_no_address_of_a_special_range_is_public(network):
    assert [one for one in edges(ip_network(network)) if is_public(one)] == []


@pytest.mark.parametrize("address", PUBLIC_V4 + PUBLIC_V6)
def test_an_address_beside_them_is_public(address):
    assert is_public(address)


def carriers(address):
    """The IPv6 addresses that lead to an IPv4 address."""
    bits = int(ip_address(address))
    yield f"::ffff:{address}"
    yield str(ip_address((0x64FF9B << 96) | bits))
    yield str(ip_address((0x2002 << 112) | (bits << 80) | 1))


@pytest.mark.parametrize("network", SPECIAL_V4)
def test_an_ipv6_address_is_no_more_public_than_what_it_carries(network):
    for address in edges(ip_network(network)):
        assert [one for one in carriers(address) if is_public(one)] == []
    for address in PUBLIC_V4:
        assert all(is_public(one) for one in carriers(address))


@pytest.mark.parametrize("text", ["", "localhost", "1.2.3", "8.8.8.8 ", "fe80::1%eth0", "::1%1"])
def test_what_is_no_plain_address_is_not_public(text):
    assert not is_public(text)


def test_a_name_is_looked_up_to_addresses_in_every_spelling_of_numbers():
    for host in ("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1"):
        assert asyncio.run(look_up(host, 80)) == ["127.0.0.1"]
    assert asyncio.run(look_up("::1", 443)) == ["::1"]
    with pytest.raises(UnicodeError):
        asyncio.run(look_up("a" * 70 + ".example", 80))
