"""How vLLM's weight-transfer API differs between releases: the only place that knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from ascent.rollout.engine import WeightSyncError

OLDEST = Version("0.22")


@dataclass(frozen=True, slots=True)
class UpdateApi:
    """What holds for one release of vLLM. The numbers are the releases in which a change appeared."""

    engine_owns_update: bool  # 0.25: the engine starts and finishes an update; before, the worker does
    reports_cache_reset: bool  # 0.26: /reset_prefix_cache answers {"success": bool}
    takes_weight_version: bool  # 0.27: /finish_weight_update takes {"weight_version": str}
    stateful_trainer: bool  # 0.28: the static `trainer_send_weights` is gone; packed settings are the initialisation's

    def start_body(self) -> dict[str, Any]:
        """The body of `/start_weight_update`; before 0.25 an empty one is refused."""
        return {} if self.engine_owns_update else {"is_checkpoint_format": True}

    def finish_body(self, version: int) -> dict[str, Any]:
        """The body of `/finish_weight_update`."""
        return {"weight_version": str(version)} if self.takes_weight_version else {}


def update_api(vllm_version: str) -> UpdateApi:
    """The interface of a release, such as "0.31.0". Raises WeightSyncError for what is no version, or too old."""
    try:
        version = Version(vllm_version)
    except InvalidVersion as error:
        raise WeightSyncError(f"the server reports vLLM {vllm_version!r}, which is not a version") from error
    if version.release < OLDEST.release:
        raise WeightSyncError(f"the server runs vLLM {vllm_version}; its weights can be updated from {OLDEST} on")
    release = version.release[:2]
    return UpdateApi(
        engine_owns_update=release >= (0, 25),
        reports_cache_reset=release >= (0, 26),
        takes_weight_version=release >= (0, 27),
        stateful_trainer=release >= (0, 28),
    )
