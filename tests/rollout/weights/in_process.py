"""One vLLM engine in the test's process, behind the calls that a server answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ascent.rollout.in_vllm.plugin import SHM_BACKEND, WORKER_EXTENSION
from ascent.rollout.weights.control import ServerCallError


class InProcessServer:
    """A ControlPlane over an engine of this process. `after_finish` is run when an update was finished."""

    def __init__(
        self, folder: Path, dtype: str, *, extension: bool = True, backend: str = SHM_BACKEND, **arguments: Any
    ) -> None:
        from ascent.rollout.engines.colocated import _unchanged_process
        from ascent.rollout.platform import engine_kind

        assert engine_kind() == "cpu"  # it also sets what vLLM reads from the environment
        from vllm import EngineArgs
        from vllm.config import WeightTransferConfig
        from vllm.v1.engine.llm_engine import LLMEngine

        with _unchanged_process():
            self.engine = LLMEngine.from_engine_args(
                EngineArgs(
                    model=str(folder),
                    dtype=dtype,  # type: ignore[arg-type]
                    max_model_len=64,
                    max_num_seqs=8,
                    enforce_eager=True,
                    kv_cache_memory_bytes=16 * 2**20,
                    weight_transfer_config=WeightTransferConfig(backend=backend),
                    worker_extension_cls=WORKER_EXTENSION if extension else "",
                    use_tqdm_on_load=False,
                    **arguments,
                )
            )
        self.calls: list[str] = []
        self.after_finish: Callable[[], None] = _nothing
        self._requests = 0
        self._one_caller = threading.Lock()

    @property
    def url(self) -> str:
        return "in-process"

    @property
    def vllm_version(self) -> str:
        import vllm

        return vllm.__version__

    @property
    def model(self) -> Any:
        return self.engine.model_executor.driver_worker.model_runner.model

    def post(self, route: str, body: Mapping[str, Any], *, timeout: float) -> Any:
        self.calls.append(route)
        try:
            with self._one_caller:
                return self._answer(route, body)
        except (RuntimeError, ValueError, AttributeError, NotImplementedError) as error:
            raise ServerCallError(f"{route}: {error}", 500) from error

    def get(self, route: str, *, timeout: float) -> Any:
        raise ServerCallError(f"no route {route}", 404)

    def _answer(self, route: str, body: Mapping[str, Any]) -> Any:
        rpc = self.engine.collective_rpc
        if route == "/collective_rpc":
            return {"results": rpc(body["method"], args=tuple(body["args"]))}
        if route == "/update_weights":
            return rpc("update_weights", args=(body["update_info"],))
        if route == "/start_weight_update":
            return rpc("start_weight_update")
        if route == "/finish_weight_update":
            rpc("finish_weight_update")
            return self.after_finish()
        if route == "/reset_prefix_cache":
            return {"success": self.engine.reset_prefix_cache()}
        if route == "/inference/v1/generate":
            return self._generate(body)
        raise ServerCallError(f"no route {route}", 404)

    def _generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        from vllm import SamplingParams

        self._requests += 1
        prompt: Any = {"prompt_token_ids": list(body["token_ids"])}
        self.engine.add_request(str(self._requests), prompt, SamplingParams(**body["sampling_params"]))
        while True:
            outputs: list[Any] = list(self.engine.step())
            for output in outputs:
                if output.finished:
                    return {
                        "prompt_logprobs": [
                            None
                            if at is None
                            else {str(token): {"logprob": entry.logprob} for token, entry in at.items()}
                            for at in output.prompt_logprobs
                        ]
                    }

    def close(self) -> None:
        self.engine.engine_core.shutdown()


def _nothing() -> None: ...
