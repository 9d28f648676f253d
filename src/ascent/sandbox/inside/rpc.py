"""Calls between a tester, which runs test code, and the process that runs the program. Values travel as
data; what isn't data travels as a handle, a number that means an object at its owner's side. Messages: a
length, then JSON text.

Tester to program: ["names", [...]], ["call", object, args, kwargs], ["get", object, name], ["set", object,
name, value], ["op", name, object, ...]. Program to tester: ["v", value, args or None], ["r", [type names],
message], and ["k", number, args, kwargs] to call back a function of the test.
"""

from __future__ import annotations

import os
import struct

from ascent.sandbox.inside.values import MalformedError, decode, encode

_LENGTH = struct.Struct("<I")
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LARGEST = 64 << 20
_read, _write = os.read, os.write


class EndedError(BaseException):
    """The other process is gone."""


class TamperedError(BaseException):
    """The other process says what no honest one would."""


def send(fd: int, text: str) -> None:
    """Raises EndedError."""
    payload = text.encode("utf-8", "backslashreplace")
    data = memoryview(_LENGTH.pack(len(payload)) + payload)
    try:
        while data:
            data = data[_write(fd, data) :]
    except OSError as error:
        raise EndedError from error


def receive(fd: int) -> bytes:
    """Raises EndedError and TamperedError."""
    (size,) = _LENGTH.unpack(_exactly(fd, _LENGTH.size))
    if size > LARGEST:
        raise TamperedError(f"a message of {size} bytes")
    return _exactly(fd, size)


def _exactly(fd: int, size: int) -> bytes:
    parts = []
    while size:
        try:
            part = _read(fd, min(size, 1 << 20))
        except OSError as error:
            raise EndedError from error
        if not part:
            raise EndedError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Server:
    """The program's side."""

    def __init__(
        self,
        fd: int,
        names: dict[str, Any],
        describe: Callable[[BaseException], str],
        flush: Callable[[], None],
    ) -> None:
        self._fd, self._names, self._describe, self._flush = fd, names, describe, flush
        self._objects: list[Any] = []

    def run(self) -> None:
        """Answer until the tester is gone."""
        while True:
            try:
                request = receive(self._fd)
            except EndedError:
                return
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        try:
            reply = self._perform(*decode(request, self._resolve))
        except EndedError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the program raises is an answer
            reply = '["l", "r", ' + self._describe(error) + "]"
        self._flush()
        send(self._fd, reply)

    def _perform(self, verb: str, *operands: Any) -> str:
        if verb == "names":
            found = {name: self._names[name] for name in operands[0] if name in self._names}
            return self._value(found, None)
        if verb == "call":
            target, args, kwargs = operands
            value = target(*args, **kwargs)
            return self._value(value, args)
        if verb == "get":
            return self._value(getattr(*operands), None)
        if verb == "set":
            return self._value(setattr(*operands), None)  # type: ignore[func-returns-value]
        return self._value(_OPERATIONS[operands[0]](*operands[1:]), None)

    def _value(self, value: Any, args: Any) -> str:
        return encode(["v", value, args], self._handle)

    def _handle(self, value: Any) -> list[Any]:
        if isinstance(value, _Callback):
            return ["h", ["l", "k", value.number]]
        self._objects.append(value)
        return ["h", ["l", "o", len(self._objects) - 1]]

    def _resolve(self, payload: Any) -> Any:
        _, kind, number = payload
        return self._objects[number] if kind == "o" else _Callback(self, number)

    def call_back(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Have the tester call a function that the test passed in; serve its calls meanwhile."""
        send(self._fd, encode(["k", number, list(args), kwargs], self._handle))
        while True:
            verb, *operands = decode(receive(self._fd), self._resolve)
            if verb == "returned":
                return operands[0]
            if verb == "raised":
                raise exception_named(operands[0], operands[1])
            send(self._fd, self._perform(verb, *operands))


class _Callback:
    """A function of the test, as the program sees it."""

    def __init__(self, server: Server, number: int) -> None:
        self._server, self.number = server, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._server.call_back(self.number, args, kwargs)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "len": len,
    "bool": bool,
    "str": str,
    "repr": repr,
    "iter": iter,
    "next": lambda iterator: _next(iterator),
    "item": lambda target, key: target[key],
    "eq": lambda left, right: bool(left == right),
}


def _next(iterator: Any) -> list[Any]:
    """The next item in a list, or an empty list at the end."""
    for item in iterator:
        return [item]
    return []


def exception_named(names: Any, message: Any) -> Exception:
    """The nearest builtin exception. Those that steer loops and generators become RuntimeError: one of them,
    raised through a call, would end `all(map(...))` early and let an assert pass."""
    import builtins

    for name in names if isinstance(names, list) else []:
        kind = getattr(builtins, name, None) if isinstance(name, str) else None
        if isinstance(kind, type) and issubclass(kind, Exception):
            if issubclass(kind, (StopIteration, StopAsyncIteration)):
                break
            try:
                return kind(str(message))
            except TypeError:
                break
    return RuntimeError(f"{names}: {message}")


class Client:
    """The tester's side."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._functions: list[Callable[..., Any]] = []
        self.ended = False
        self.tampered = False

    def names(self, wanted: list[str]) -> dict[str, Any]:
        """Those of `wanted` that the program defines."""
        found = self.request("names", wanted)
        if not isinstance(found, dict) or not set(found) <= set(wanted):
            self._tampered("names that nobody asked for")
        return found

    def request(self, verb: str, *operands: Any) -> Any:
        """Ask the program; its exceptions are raised as builtin ones. Raises EndedError, TamperedError."""
        if self.ended or self.tampered:
            raise EndedError
        try:
            return self._request(verb, *operands)
        except EndedError:
            self.ended = True
            raise
        except (MalformedError, TamperedError, ValueError, IndexError) as error:
            if isinstance(error, _ProgramError):
                raise error.original from None
            self._tampered(str(error))

    def _tampered(self, why: str) -> Any:
        self.tampered = True
        raise TamperedError(why)

    def _request(self, verb: str, *operands: Any) -> Any:
        send(self._fd, encode([verb, *operands], self._handle))
        while True:
            reply = decode(receive(self._fd), self._resolve)
            if not isinstance(reply, list) or not reply:
                raise TamperedError("a reply that is none")
            if reply[0] == "k" and len(reply) == 4:
                self._call_back(*reply[1:])
            elif reply[0] == "r" and len(reply) == 2:
                raise _ProgramError(exception_named(*reply[1]))
            elif reply[0] == "v" and len(reply) == 3:
                if verb == "call" and isinstance(reply[2], list):
                    _copy_back(operands[1], reply[2])
                return reply[1]
            else:
                raise TamperedError("a reply that is none")

    def _call_back(self, number: int, args: list[Any], kwargs: dict[str, Any]) -> None:
        function = self._functions[number]
        try:
            value = function(*args, **kwargs)
            text = encode(["returned", value], self._handle)
        except Exception as error:  # noqa: BLE001 - the program may catch what the test's function raises
            text = encode(["raised", [kind.__name__ for kind in type(error).__mro__], str(error)], self._handle)
        send(self._fd, text)

    def _handle(self, value: Any) -> list[Any]:
        if isinstance(value, Handle):
            return ["h", ["l", "o", value._number]]
        if not callable(value):
            raise TypeError(f"a test can't pass an object of type {type(value).__name__} to the program")
        self._functions.append(value)
        return ["h", ["l", "k", len(self._functions) - 1]]

    def _resolve(self, payload: Any) -> Any:
        _, kind, number = payload
        if type(number) is not int or number < 0:
            raise TamperedError("a handle that is none")
        return Handle(self, number) if kind == "o" else self._functions[number]


class _ProgramError(ValueError):
    """Carries the program's own exception past the checks of the channel."""

    def __init__(self, original: Exception) -> None:
        super().__init__()
        self.original = original


def _copy_back(sent: Any, after: list[Any]) -> None:
    """What the call did to its arguments, done to those of the test."""
    for mine, new in zip(sent, after, strict=False):
        if type(mine) is not type(new):
            continue
        if isinstance(mine, list):
            mine[:] = new
        elif isinstance(mine, dict):
            mine.clear()
            mine.update(new)
        elif isinstance(mine, set):
            mine.clear()
            mine |= new


class Handle:
    """An object of the program, as test code sees it. Equal to nothing but the program's own objects."""

    __slots__ = ("_client", "_number")
    __hash__ = object.__hash__

    def __init__(self, client: Client, number: int) -> None:
        object.__setattr__(self, "_client", client)
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._client.request("call", self, list(args), kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._client.request("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._client.request("set", self, name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and self._client.request("op", "eq", self, other) is True

    def __len__(self) -> int:
        return int(self._client.request("op", "len", self))

    def __bool__(self) -> bool:
        return self._client.request("op", "bool", self) is True

    def __str__(self) -> str:
        return str(self._client.request("op", "str", self))

    def __repr__(self) -> str:
        return str(self._client.request("op", "repr", self))

    def __getitem__(self, key: Any) -> Any:
        return self._client.request("op", "item", self, key)

    def __iter__(self) -> Any:
        iterator = self._client.request("op", "iter", self)
        while True:
            item = self._client.request("op", "next", iterator) if isinstance(iterator, Handle) else []
            if not isinstance(item, list) or len(item) != 1:
                return
            yield item[0]
