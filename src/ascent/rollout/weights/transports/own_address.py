"""Where servers reach this machine."""

from __future__ import annotations

import fcntl
import socket
import struct
from urllib.parse import urlsplit

from ascent.errors import InputError

_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux


def on_the_way_to(url: str) -> str:
    """This machine's address on the way to a server; nothing is sent. Raises OSError where there is no way."""
    parts = urlsplit(url)
    family, kind, _, _, address = socket.getaddrinfo(
        parts.hostname or "127.0.0.1", parts.port or 80, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as way:
        way.connect(address)
        return str(way.getsockname()[0])


def of_interface(name: str) -> str:
    """The IPv4 address of a network interface, such as `eth0`. Raises InputError for one that has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            known = ", ".join(each for _, each in socket.if_nameindex())
            raise InputError(
                f"cluster.interface={name}: {error.strerror}", f"This machine's interfaces: {known}."
            ) from error
    return socket.inet_ntoa(answer[20:24])
