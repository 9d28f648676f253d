"""Messages between the judge and its slots: a JSON header, then raw bytes. Both ends are trusted; the raw
bytes are not, and are never looked into here."""

from __future__ import annotations

import _socket
import array
import json
import os
import struct

_SIZES = struct.Struct("<II")
_FDS_AT_MOST = 4
_SOL_SOCKET, _SCM_RIGHTS = 1, 1

Part = bytes | bytearray | memoryview


class ClosedError(Exception):
    """The other end is gone."""


def open_socket(fd: int) -> _socket.socket:
    """A socket object for an inherited descriptor, without the cost of the `socket` module."""
    return _socket.socket(fileno=fd)


def send(sock: _socket.socket, header: dict[str, object], *parts: Part, fds: tuple[int, ...] = ()) -> None:
    """Raises ClosedError when the other end is gone."""
    text = json.dumps(header).encode()
    sizes = _SIZES.pack(len(text), sum(len(part) for part in parts))
    rights = [(_SOL_SOCKET, _SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []
    try:
        first = sizes + text
        sent = sock.sendmsg([first], rights)
        sock.sendall(first[sent:])
        for part in parts:
            sock.sendall(part)
    except OSError as error:
        raise ClosedError(str(error)) from error


def receive(sock: _socket.socket) -> tuple[dict, bytearray, list[int]]:
    """One message: header, raw bytes, descriptors. Raises ClosedError at the end of the stream and on
    time-outs."""
    sizes, fds = _first(sock)
    header_size, size = _SIZES.unpack(sizes)
    header = json.loads(bytes(_exactly(sock, bytearray(header_size))))
    return header, _exactly(sock, bytearray(size)), fds


def _first(sock: _socket.socket) -> tuple[bytes, list[int]]:
    data, fds = b"", array.array("i")
    while len(data) < _SIZES.size:
        try:
            more, rights, _, _ = sock.recvmsg(_SIZES.size - len(data), _socket.CMSG_SPACE(_FDS_AT_MOST * fds.itemsize))
        except OSError as error:
            raise ClosedError(str(error) or "timed out") from error
        for _, _, ancillary in rights:
            fds.frombytes(ancillary[: len(ancillary) // fds.itemsize * fds.itemsize])
        if not more:
            for fd in fds:
                os.close(fd)
            raise ClosedError("end of stream")
        data += more
    return data, list(fds)


def _exactly(sock: _socket.socket, into: bytearray) -> bytearray:
    view = memoryview(into)
    at = 0
    while at < len(into):
        try:
            got = sock.recv_into(view[at:])
        except OSError as error:
            raise ClosedError(str(error) or "timed out") from error
        if not got:
            raise ClosedError("end of stream")
        at += got
    return into
