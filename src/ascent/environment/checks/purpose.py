"""What a machine is to be used for: the same setting is right for one use and wrong for another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Purpose:
    """What the caller knows of the run. None: not known, then a finding is a warning where it could be an error.

    ``need_free_bytes`` is device memory that must be free on every visible device. ``trainer_devices`` and
    ``server_devices`` are indices into the enumeration, of a run with a separate server.
    """

    sleep_mode: bool | None = None
    weight_updates: bool | None = None
    graph_mode: bool | None = None
    server_mode: bool | None = None
    need_free_bytes: int | None = None
    trainer_devices: tuple[int, ...] = ()
    server_devices: tuple[int, ...] = ()
