"""TRL's settings on Ascent's path: each is taken, refused in words, or has no meaning, and none is lost silently."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from tests.far_engine import FarEngine
from tests.small_trainer import Memory, make_trainer

from ascent.config import trl_fields
from ascent.config.trl_fields import NOTHING_SAVED
from ascent.errors import InputError

pytestmark = pytest.mark.torch
DOCS = Path(__file__).resolve().parents[2] / "docs"
# fields that some transformers within the supported range has, and another has not
OF_SOME_VERSIONS = {
    *("warmup_ratio", "logging_dir", "dataloader_multiprocessing_context", "dataloader_in_order", "ddp_static_graph"),
    *("trackio_bucket_id", "trackio_static_space_id"),
}


def config_fields() -> dict[str, Any]:
    from ascent import GRPOConfig

    return {field.name: field.default for field in dataclasses.fields(GRPOConfig)}


def test_every_field_of_trl_s_configuration_is_in_the_table() -> None:
    missing = set(config_fields()) - set(trl_fields.FIELDS)
    assert not missing, f"TRL has {sorted(missing)}: read what they do, and enter them in ascent/config/trl_fields.py"
    gone = set(trl_fields.FIELDS) - set(config_fields()) - OF_SOME_VERSIONS
    assert not gone, f"TRL no longer has {sorted(gone)}"


def test_the_value_that_asks_for_nothing_is_trl_s_default() -> None:
    defaults = config_fields()
    for field in trl_fields.FIELDS.values():
        if field.becomes in ("REFUSED", "NOTHING", "PATH") or field.name.startswith("vllm_server_"):
            assert defaults[field.name] == field.usual, field.name


def test_the_page_of_the_documentation_is_made_from_the_table() -> None:
    page = (DOCS / "trl-fields.md").read_text(encoding="utf-8")
    assert page == trl_fields.page(), "run `python -m ascent.config.trl_fields > docs/trl-fields.md`"


REFUSED: dict[str, Any] = {
    "vllm_model_impl": "transformers",
    "vllm_tensor_parallel_size": 2,
}


@pytest.mark.parametrize("name", [field.name for field in trl_fields.FIELDS.values() if field.becomes == "REFUSED"])
def test_what_vllm_in_this_process_cant_keep_is_refused(
    tiny_policy: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    with pytest.raises(InputError, match=name):
        make_trainer(tiny_policy(), tmp_path, use_vllm=True, **{name: REFUSED[name]})
    made = make_trainer(tiny_policy(), tmp_path, engine=FarEngine(), **{name: REFUSED[name]})
    assert made.engine is not None, "with servers it has no meaning in TRL either"


@pytest.mark.parametrize(
    ("engine", "key"), [(engine, key) for engine, keys in trl_fields.REFUSED_KEYS.items() for key in keys]
)
def test_keys_that_change_what_an_engine_returns_are_refused(
    tiny_policy: Callable[..., Path], tmp_path: Path, engine: str, key: str
) -> None:
    settings: dict[str, Any] = {"engine": FarEngine()} if engine == "server" else {"use_vllm": engine == "colocate"}
    with pytest.raises(InputError, match=rf"generation_kwargs\['{key}'\]"):
        make_trainer(tiny_policy(), tmp_path, generation_kwargs={key: 2}, **settings)


def test_settings_without_meaning_are_told(
    tiny_policy: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer(tiny_policy(), tmp_path, engine=FarEngine(), vllm_group_port=5000)
    assert "vllm_group_port=5000 means nothing here" in capsys.readouterr().err
    make_trainer(tiny_policy(), tmp_path, vllm_group_port=5000)
    assert "vllm_group_port" not in capsys.readouterr().err, "in TRL it has no meaning either without vLLM"


def test_sharding_that_doesn_t_happen_is_told(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    from ascent.training.trl_path import check_settings

    args = make_trainer(tiny_policy(), tmp_path).args
    assert check_settings(args, "transformers") == []
    args.fsdp = "full_shard"
    (note,) = check_settings(args, "transformers")
    assert "every process holds the whole model" in note


def test_what_trl_refuses_with_vllm_is_refused_in_its_words(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [{"use_vllm": True}, {"engine": FarEngine()}]
    for settings in cases:
        with pytest.raises(ValueError, match="VESPO loss requires"):
            make_trainer(tiny_policy(), tmp_path, loss_type="vespo", **settings)
        with pytest.raises(ValueError, match="vllm_mode must be either"):
            make_trainer(tiny_policy(), tmp_path, vllm_mode="colocated", **settings)
    fitting = make_trainer(
        tiny_policy(), tmp_path, loss_type="vespo", vllm_importance_sampling_mode="token_mask", engine=FarEngine()
    )
    assert fitting.use_vllm


@pytest.mark.parametrize(
    "settings",
    [
        {"generation_kwargs": {"max_new_tokens": 3, "temperature": 0.5, "top_p": 0.9, "eos_token_id": 40}},
        {"generation_kwargs": {"suppress_tokens": list(range(5, 60)), "top_k": None}},
        {"generation_kwargs": {"do_sample": False, "repetition_penalty": 2.0}},
        {"cache_implementation": "static", "repetition_penalty": 1.3},
    ],
)
def test_generation_settings_sample_as_trl_does(
    tiny_policy: Callable[..., Path], tmp_path: Path, settings: dict[str, Any]
) -> None:
    histories = []
    for path in ("ours", "plain"):
        settings |= {"max_steps": 1, **NOTHING_SAVED}  # to the last bit
        trainer = make_trainer(tiny_policy(), tmp_path / path, plain=path == "plain", **settings)
        trainer.train()
        histories.append(trainer.state.log_history[0])
    compared = ("reward", "reward_std", "loss", "grad_norm", "completions/mean_length", "entropy")
    assert {name: histories[0][name] for name in compared} == {name: histories[1][name] for name in compared}


def test_cache_implementation_reaches_the_engine(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    trainer = make_trainer(tiny_policy(), tmp_path, cache_implementation="static")
    assert dict(trainer.sampling().extra) == {"cache_implementation": "static"}
    assert not make_trainer(tiny_policy(), tmp_path).sampling().extra


def test_a_greedy_completion_is_greedy_whatever_generation_kwargs_say(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    trainer = make_trainer(tiny_policy(), tmp_path, generation_kwargs={"temperature": 3.0, "do_sample": True})
    greedy = trainer.sampling(greedy=True)
    assert greedy.temperature == 0
    assert not greedy.extra


def test_without_a_longest_completion_the_context_is_the_limit(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    memory = Memory()
    settings = {"generation_kwargs": {"suppress_tokens": [1]}, "gradient_accumulation_steps": 1}
    make_trainer(tiny_policy(), tmp_path, memory, max_completion_length=None, max_steps=1, **settings).train()
    _, records, _ = memory.generations[0]
    assert {len(record.prompt_ids) + len(record.completion_ids) for record in records} == {256}


def test_vllm_s_sampling_settings_are_trl_s(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    from ascent.rollout.vllm_arguments import sampling_arguments

    kwargs = {"stop": ["\n"], "max_tokens": 5, "top_k": 7, "stop_token_ids": [9], "structured_outputs": {"regex": "b"}}
    settings: dict[str, Any] = {
        "generation_kwargs": kwargs,
        "vllm_importance_sampling_correction": False,
    }  # which these would bias
    trainer = make_trainer(tiny_policy(), tmp_path, engine=FarEngine(), **settings)
    sampling = trainer.sampling()
    assert (sampling.max_tokens, sampling.top_k, sampling.stop_token_ids) == (5, 7, (1, 9))
    arguments = sampling_arguments(sampling, 3)
    assert arguments["stop"] == ["\n"]
    assert arguments["detokenize"] is True, "vLLM looks for the strings in the text"
    assert arguments["structured_outputs"] == {"regex": "b"}
    both = make_trainer(tiny_policy(), tmp_path, engine=FarEngine(), **settings, vllm_structured_outputs_regex="a+")
    with pytest.warns(UserWarning, match="takes the place"):
        assert dict(both.sampling().extra)["structured_outputs"] == {"regex": "a+"}
    endless = make_trainer(tiny_policy(), tmp_path, engine=FarEngine(), generation_kwargs={"ignore_eos": True})
    assert endless.sampling().stop_token_ids == ()
    assert sampling_arguments(endless.sampling(), 3)["detokenize"] is False


def test_servers_may_be_named_by_host_and_port(
    tiny_policy: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ascent.training.engines import servers

    asked = []

    def connect(url: str, **_: Any) -> FarEngine:
        asked.append(url)
        return FarEngine()

    monkeypatch.setattr(servers, "connect", connect)
    place: dict[str, Any] = {"vllm_server_host": "10.0.0.5", "vllm_server_port": 9000}
    make_trainer(tiny_policy(), tmp_path, use_vllm=True, vllm_mode="server", **place)
    assert asked == ["http://10.0.0.5:9000"]


def tool(a: int) -> int:
    """
    A tool.

    Args:
        a: A number.

    Returns:
        The number.
    """
    return a


def made(folder: Path, output: Path, settings: dict[str, Any] | None = None, **arguments: Any) -> Any:
    from datasets import Dataset
    from tests.small_trainer import vowels

    from ascent import GRPOConfig, GRPOTrainer

    usual = {"per_device_train_batch_size": 4, "num_generations": 4, "bf16": False, "use_cpu": True, "max_steps": 1}
    args = GRPOConfig(str(output), **{**usual, "max_completion_length": 4, "report_to": "none", **(settings or {})})
    dataset = Dataset.from_list([{"prompt": f"def f{number}(a):"} for number in range(4)])
    return GRPOTrainer(str(folder), vowels, args, dataset, **arguments)


def test_what_only_trl_can_do_takes_its_path_with_one_warning(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        return {"prompt_ids": [[5, 6]] * len(prompts), "completion_ids": [[7, 8]] * len(prompts), "logprobs": None}

    memory = Memory()
    with pytest.warns(UserWarning, match="rollout_func: only TRL's own path") as told:
        trainer = made(tiny_policy(), tmp_path, rollout_func=rollout, recorder=memory)
    assert len([each for each in told if "TRL's own path" in str(each.message)]) == 1
    trainer.train()
    assert trainer.engine is None
    assert len(memory.steps) == 1
    continuous = {"use_transformers_continuous_batching": True}
    if Version(version("transformers")) >= Version("5.8"):  # TRL asks for it
        with pytest.warns(UserWarning, match="use_transformers_continuous_batching: only TRL's own path"):
            assert made(tiny_policy(), tmp_path, continuous).engine is None
    # TRL's own, better error: this tokenizer has no chat template
    with pytest.warns(UserWarning, match="tools"), pytest.raises(ValueError, match="chat template"):
        made(tiny_policy(), tmp_path, tools=[tool])


def test_continuous_batching_has_no_meaning_with_vllm(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    """As in TRL, where vLLM comes first; an engine that is named stays."""
    from ascent import GRPOConfig
    from ascent.training.trl_path import takes_trl_path

    args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, use_vllm=True, use_transformers_continuous_batching=True)
    assert not takes_trl_path(args, ("model",), {}, engine=FarEngine(), staleness=0, algorithm=None)
    assert not takes_trl_path(args, ("model",), {}, engine=None, staleness=0, algorithm=None)


def test_what_trl_s_path_would_lose_is_refused(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"(?s)tools: TRL's own path.*engine and staleness would not be used"):
        made(tiny_policy(), tmp_path, tools=[tool], engine=FarEngine(), staleness=1)
    with pytest.raises(InputError, match=r"plain=True: TRL's own path.*engine would not"):
        made(tiny_policy(), tmp_path, {"plain": True}, engine=FarEngine())


def test_without_arguments_the_output_folder_is_trl_s(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascent.training import arguments

    folders: list[str] = []
    monkeypatch.setattr(arguments, "GRPOConfig", folders.append)  # it can't be made without a bf16 device
    arguments.default_arguments("some/model-1")
    assert folders == ["model-1-GRPO"]


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_stream_of_prompts_is_sampled_on_servers(
    tiny_policy: Callable[..., Path], tmp_path: Path, staleness: int
) -> None:
    from datasets import IterableDataset
    from tests.small_trainer import vowels

    from ascent import GRPOConfig, GRPOTrainer

    read = []

    def rows() -> Any:
        for number in range(40):
            read.append(number)
            yield {"prompt": "a" if number % 2 else f"def f{number}(a):"}  # prompts of one token among them

    engine, memory = FarEngine(), Memory()
    args = GRPOConfig(
        str(tmp_path),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        max_steps=3,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    stream = IterableDataset.from_generator(rows)
    trainer = GRPOTrainer(str(tiny_policy()), vowels, args, stream, engine=engine, staleness=staleness, recorder=memory)
    assert not read, "what is streamed is left for the training"
    trainer.train()
    assert [len(records) for _, records, _ in memory.generations] == [4, 4, 4]
    assert all(canary.sequences and all(canary.logps) for canary in engine.canaries)


def test_prompts_of_one_token_have_a_canary(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    from datasets import Dataset
    from tests.small_trainer import vowels

    from ascent import GRPOConfig, GRPOTrainer

    engine = FarEngine()
    args = GRPOConfig(
        str(tmp_path), per_device_train_batch_size=4, num_generations=4, max_completion_length=8, max_steps=1,
        bf16=False, use_cpu=True, report_to="none", save_strategy="no",
    )  # fmt: skip
    GRPOTrainer(str(tiny_policy()), vowels, args, Dataset.from_list([{"prompt": "a"}] * 4), engine=engine).train()
    (canary,) = engine.canaries
    assert len(canary.sequences) == 4
    assert all(len(logps) == len(ids) - 1 > 0 for ids, logps in zip(canary.sequences, canary.logps, strict=True))


# A value that differs from the default, where adding one to a number or turning a switch would make none that fits.
VALUES: dict[str, Any] = {
    "accelerator_config": {"split_batches": True},
    "adam_beta1": 0.5,
    "adam_beta2": 0.5,
    "bf16": True,
    "chat_template_kwargs": {"thinking": True},
    "data_seed": 3,
    "dataloader_multiprocessing_context": "spawn",
    "dataloader_num_workers": 1,
    "dataloader_persistent_workers": False,  # True needs workers
    "dataloader_prefetch_factor": None,
    "ddp_backend": "gloo",
    "debug": "underflow_overflow",
    "epsilon_high": 0.3,
    "delta": 2.0,
    "eval_accumulation_steps": 1,
    "eval_steps": 2,
    "eval_strategy": "steps",
    "fsdp_config": {"min_num_params": 0},
    "generation_kwargs": {"top_k": 3, "repetition_penalty": 1.1},
    "generation_batch_size": 8,
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
    "hub_strategy": "end",
    "importance_sampling_level": "sequence",
    "include_for_metrics": ["loss"],
    "include_num_input_tokens_seen": "all",
    "label_names": ["labels"],
    "liger_kernel_config": {"rope": True},
    "log_completions_hub_repo": "a/b",  # refused without log_completions
    "log_level": "debug",
    "logging_strategy": "epoch",
    "loss_type": "grpo",
    "lr_scheduler_kwargs": {},
    "lr_scheduler_type": "constant",
    "max_completion_length": None,
    "max_tool_calling_iterations": 2,
    "metric_for_best_model": "loss",
    "min_p": 0.1,
    "model_init_kwargs": {"dtype": "float32"},
    "multi_objective_aggregation": "normalize_then_sum",
    "num_completions_to_print": 1,
    "num_generations": 2,
    "num_generations_eval": 2,
    "off_policy_mask_threshold": 0.5,
    "optim": "sgd",
    "optim_args": "a=1",
    "optim_target_modules": None,
    "pad_to_multiple_of": 4,
    "report_to": "none",
    "reward_weights": [2.0],
    "router_aux_loss_coef": 0.1,  # refused: no mixture of experts
    "save_strategy": "epoch",
    "scale_rewards": "none",
    "steps_per_generation": 2,
    "top_p": 0.5,
    "torch_compile_backend": None,
    "torch_compile_mode": None,
    "train_sampling_strategy": "sequential",
    "transformers_continuous_batching_config": {"max_memory_percent": 0.1},
    "vllm_importance_sampling_cap": 2.0,
    "vllm_importance_sampling_clip_max": 5.0,
    "vllm_importance_sampling_clip_min": 0.5,
    "vllm_importance_sampling_mode": "token_mask",
    "vllm_max_model_length": 64,
    "vllm_mode": "elsewhere",
    "vllm_model_impl": "transformers",
    "vllm_structured_outputs_regex": "a+",
    "cache_implementation": "static",
    "warmup_steps": 2,
}
# not tried: they reach for the network or other packages, change the whole process, or are the test's own
LEFT_OUT = {
    *("push_to_hub", "hub_always_push", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
    *("deepspeed", "parallelism_config", "fsdp", "use_liger_kernel", "full_determinism", "local_rank", "tf32"),
    *("output_dir", "use_cpu", "plain", "use_vllm", "torch_compile", "disable_tqdm", "logging_dir"),
}


def another(name: str, usual: Any) -> Any:
    if name in VALUES:
        return VALUES[name]
    if isinstance(usual, bool):
        return not usual
    if isinstance(usual, int | float):
        return usual + 1
    return "x" if name.startswith(("hub_", "run_name", "project", "length_", "resume_", "vllm_server_")) else usual


def outcome(trainer: Callable[[], Any]) -> tuple[str, Any]:
    """What became of a trainer: its arguments, or the refusal."""
    try:
        made = trainer()
    except InputError as error:
        return "refused in words", str(error)
    except Exception as error:  # noqa: BLE001 - compared
        return f"{type(error).__name__}: {error}", None
    kept = {key: value for key, value in made.args.to_dict().items() if key not in OF_ASCENT}
    return "made", (kept, getattr(made, "generation_kwargs", None))


DYNAMIC_SAMPLING = {  # changes the data: not TRL's any more
    "max_resample_factor", "max_surplus_age", "curriculum", "oversample_factor", "max_straggler_age"
}  # fmt: skip
OF_ASCENT = {"plain", "seeded_sampling", "output_dir", "model_init_kwargs", "use_vllm", *DYNAMIC_SAMPLING}
OF_ASCENT |= {"max_bad_steps", "npu_optim_level", "logging_nan_inf_filter"}  # the last by its default
# refused together with the correction, which is on by default
NARROWING = {"top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs", "vllm_structured_outputs_regex"}


@pytest.mark.slow
@pytest.mark.parametrize("vllm", [False, True])
def test_trainers_with_any_field_changed_are_made_or_refused_as_trl_s(
    tiny_policy: Callable[..., Path], tmp_path: Path, vllm: bool
) -> None:
    """One trainer for each field with another value, beside plain TRL's: both are made with the same arguments, or both
    refuse; what TRL takes and Ascent does not is in the table, and refused in words."""
    from datasets import Dataset
    from tests.small_trainer import vowels
    from trl.trainer.grpo_config import GRPOConfig as TRLConfig
    from trl.trainer.grpo_trainer import GRPOTrainer as TRLTrainer

    import ascent
    from ascent.training.trl_path import without_engine

    dataset = Dataset.from_list([{"prompt": f"def f{number}(a):"} for number in range(4)])
    usual = {
        "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "num_generations": 4, "bf16": False,
        "use_cpu": True, "report_to": "none", "max_steps": 1, "disable_tqdm": True, "use_vllm": vllm,
    }  # fmt: skip
    differences, tried = [], 0
    for name, default in config_fields().items():
        value = another(name, None if default is dataclasses.MISSING else default)
        if name in LEFT_OUT | DYNAMIC_SAMPLING:
            continue
        tried += 1
        settings = {**usual, name: value}
        arguments = {"model": str(tiny_policy()), "reward_funcs": vowels, "train_dataset": dataset}
        if settings.get("eval_strategy") or settings.get("eval_on_start"):
            arguments["eval_dataset"] = dataset

        def of_trl(settings: dict[str, Any] = settings, arguments: dict[str, Any] = arguments) -> Any:
            settings = {key: each for key, each in settings.items() if key != "seeded_sampling"}
            with without_engine():
                return TRLTrainer(args=TRLConfig(str(tmp_path), **settings), **arguments)

        def of_ascent(settings: dict[str, Any] = settings, arguments: dict[str, Any] = arguments) -> Any:
            engine = FarEngine() if vllm else None
            return ascent.GRPOTrainer(args=ascent.GRPOConfig(str(tmp_path), **settings), engine=engine, **arguments)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs, ours = outcome(of_trl), outcome(of_ascent)
        becomes = trl_fields.FIELDS[name].becomes
        if ours[0] == "refused in words" and theirs[0] == "made":
            if becomes != "REFUSED" and not (vllm and name in NARROWING):
                differences.append(f"{name}={value!r}: refused by Ascent alone: {ours[1]}")
        elif ours != theirs:
            differences.append(f"{name}={value!r}: TRL {theirs}, Ascent {ours}")
    assert tried > 130
    assert not differences, "\n".join(differences)
