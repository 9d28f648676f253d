"""The configuration: read, overridden, checked, and settled from old names; nothing here imports torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ascent import config
from ascent.config import renamed
from ascent.config.trainer_fields import trainer_fields
from ascent.errors import InputError

# Trainer settings are checked against the installed TRL, which takes long to import on a busy machine.
pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]

FIELD = {  # a configuration as it circulates
    "learning_rate": 1e-5,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_generations": 8,
    "max_completion_length": 1024,
    "beta": 0.04,
    "use_vllm": True,
    "vllm_device": "npu:0",
    "vllm_gpu_memory_utilization": 0.45,
    "vllm_max_model_len": 8192,
    "max_steps": 1000,
    "logging_steps": 10,
    "save_strategy": "steps",
    "save_steps": 100,
    "torch_dtype": "bfloat16",
}


def write(tmp_path: Path, content: dict[str, Any] | str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


def refusal(tmp_path: Path, content: dict[str, Any] | str, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        config.load(write(tmp_path, content), overrides)
    return str(caught.value)


def test_a_configuration_from_the_field_is_taken_and_each_change_is_told(tmp_path: Path) -> None:
    settled, notes = config.load(write(tmp_path, {"model": {"path": "m"}, "trainer": FIELD}))
    assert settled.rollout.engine == "vllm"
    assert settled.rollout.max_model_len == 8192
    assert settled.memory.engine_share == 0.45
    assert settled.model.dtype == "bfloat16"
    assert settled.trainer["learning_rate"] == 1e-5
    assert set(settled.trainer) == {
        *("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_generations"),
        *("max_completion_length", "beta", "max_steps", "logging_steps", "save_strategy", "save_steps"),
    }
    told = "\n".join(notes)
    assert "trainer.vllm_device='npu:0' is ignored (gone since TRL 0.18" in told
    assert "trainer.vllm_max_model_len is now rollout.max_model_len" in told
    assert "trainer.torch_dtype is now model.dtype (since transformers 4.56)" in told
    assert len(notes) == 3


def test_the_resolved_configuration_is_a_configuration(tmp_path: Path) -> None:
    first, _ = config.load(write(tmp_path, {"model": {"path": "m", "lora": {"r": 4}}, "trainer": FIELD}))
    second, notes = config.load(write(tmp_path, first.to_yaml()))
    assert second == first
    assert notes == []


def test_unknown_keys_are_refused_with_place_and_nearest_name(tmp_path: Path) -> None:
    text = "model:\n  path: m\nrolout:\n  engine: vllm\ntrainer:\n  learnin_rate: 0.1\ntasks:\n  trian: x\n"
    message = refusal(tmp_path, text)
    assert "run.yaml:3: rolout: unknown key; did you mean 'rollout'?" in message
    assert "run.yaml:6: trainer.learnin_rate: unknown setting; did you mean 'learning_rate'?" in message
    assert "run.yaml:8: tasks.trian: unknown key; did you mean 'train'?" in message
    assert "3 problems" in message


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("trainer.max_steps=many", "argument trainer.max_steps=many: trainer.max_steps: expected int, got 'many'"),
        ("trainer.beta=true", "trainer.beta: expected float or int, got True"),
        ("sandbox.slots=0", "sandbox.slots: should be greater than or equal to 1, got 0"),
        ("rollout.engine=sglang", "rollout.engine: should be 'vllm' or 'transformers', got 'sglang'"),
        ("trainer.output_dir=x", "trainer.output_dir is set by the run directory"),
        ("rollout.staleness=1", "rollout.staleness=1 means something only with rollout.mode=server"),
        ("rollout.adapter=true", "rollout.adapter=True means something only with rollout.mode=server"),
        ("rollout.replicas=2", "rollout.replicas=2 means something only with rollout.mode=server"),
        ("trainer.vllm_server_port=8000", "name the service in rollout.server"),
        ("memory.offload=everything", "memory.offload: should be 'none', 'optimizer' or 'all', got 'everything'"),
        ("memory.trainer_gb=0", "memory.trainer_gb: should be greater than 0, got 0"),
        ("max_steps", "argument 'max_steps': expected section.key=value"),
        ("trainer=3", "trainer: should be a valid dictionary"),
    ],
)
def test_wrong_values_say_what_was_expected(tmp_path: Path, override: str, expected: str) -> None:
    assert expected in refusal(tmp_path, {"model": {"path": "m"}}, override)


def test_a_run_that_samples_on_servers(tmp_path: Path) -> None:
    server = {"mode": "server"}
    settled, _ = config.load(
        write(tmp_path, {"model": {"path": "m"}, "rollout": {**server, "staleness": 1, "replicas": 2}})
    )
    assert (settled.rollout.staleness, settled.rollout.replicas) == (1, 2)
    trl = {"vllm_mode": "server", "vllm_server_base_url": "http://127.0.0.1:8000"}
    settled, _ = config.load(write(tmp_path, {"model": {"path": "m"}, "trainer": trl}))
    assert (settled.rollout.mode, settled.rollout.server) == ("server", "http://127.0.0.1:8000")
    message = refusal(tmp_path, {"model": {"path": "m"}, "rollout": {**server, "engine": "transformers"}})
    assert "contradicts rollout.engine=transformers" in message
    for key, value in (("offload", "optimizer"), ("engine_sleep", True)):
        message = refusal(tmp_path, {"model": {"path": "m"}, "rollout": server, "memory": {key: value}})
        assert f"memory.{key}={value!r} makes room on a device that trainer and engine share" in message
    message = refusal(tmp_path, {"model": {"path": "m"}, "rollout": {**server, "adapter": True, "server": "s"}})
    assert "rollout.adapter=True needs model.lora, and a service with adapters" in message
    asleep = {"rollout": {"engine": "transformers"}, "memory": {"engine_sleep": True}}
    assert "which only vLLM has" in refusal(tmp_path, {"model": {"path": "m"}, **asleep})
    message = refusal(tmp_path, {"model": {"path": "m"}, "rollout": {**server, "server": "s", "replicas": 2}})
    assert "rollout.replicas=2 is for a service that the run starts itself" in message


def test_contradictions_name_both_keys(tmp_path: Path) -> None:
    message = refusal(
        tmp_path,
        {"model": {"path": "m"}, "rollout": {"max_model_len": 100}, "trainer": {"vllm_max_model_length": 200}},
    )
    assert "rollout.max_model_len=100 contradicts trainer.vllm_max_model_length=200" in message
    message = refusal(tmp_path, {"model": {"path": "m", "dtype": "float32"}, "trainer": {"torch_dtype": "bfloat16"}})
    assert "model.dtype='float32' contradicts trainer.torch_dtype='bfloat16'" in message
    every = "tracking.eval_every=5"
    message = refusal(tmp_path, {"model": {"path": "m"}}, every, "tracking.evaluate=false")
    assert "tracking.eval_every=5 contradicts tracking.evaluate=false" in message
    message = refusal(tmp_path, {"model": {"path": "m"}}, every, "trainer.plain=true")
    assert "tracking.eval_every=5 contradicts trainer.plain=true" in message


def test_numbers_in_scientific_notation_are_numbers(tmp_path: Path) -> None:
    loaded, _ = config.load(
        write(tmp_path, "model: {path: m}\ntrainer: {learning_rate: 1e-5}\n"), ["trainer.beta=4e-2"]
    )
    assert loaded.trainer == {"learning_rate": 1e-5, "beta": 0.04}


WORDS: dict[str, tuple[str, Any]] = {  # as they are written, and what the setting gets
    "trainer.save_strategy": ("no", "no"),
    "trainer.eval_strategy": ("no", "no"),
    "trainer.run_name": ("12:30", "12:30"),
    "trainer.report_to": ("none", "none"),
    "trainer.hub_model_id": ("2024-01-01", "2024-01-01"),
    "trainer.lr_scheduler_type": ("off", "off"),
    "trainer.log_level": ("0x10", "0x10"),
    "trainer.scale_rewards": ("false", False),
    "trainer.include_num_input_tokens_seen": ("no", "no"),
    "trainer.disable_tqdm": ("Yes", True),
    "trainer.bf16": ("off", False),
    "trainer.learning_rate": ("'1e-5'", 1e-5),
    "trainer.beta": (".5e-3", 0.0005),
    "trainer.max_grad_norm": ("inf", float("inf")),
    "trainer.max_steps": ("1e3", 1000),
    "trainer.seed": ("010", 10),
    "trainer.num_iterations": ("0x10", 16),
    "trainer.save_steps": ("1_000", 1000),
    "trainer.num_generations": ("'8'", 8),
    "trainer.min_p": ("null", None),
    "trainer.lr_scheduler_kwargs": (
        "{a: no, b: 12:30, c: 1e-5, d: true}",
        {"a": "no", "b": "12:30", "c": 1e-5, "d": True},
    ),
    "model.revision": ("1234567", "1234567"),
    "model.attn_implementation": ("1e10", "1e10"),
    "tasks.train": ("007", "007"),
    "tasks.held_out": ("0x10", 16),
    "tasks.seed": ("1e1", 10),
    "reward.tests_weight": ("'0.5'", 0.5),
    "sandbox.slots": ("2.0", 2),
    "sandbox.packages": ("[on, off]", ["on", "off"]),
    "rollout.prefix_caching": ("OFF", False),
    "rollout.enforce_eager": ("~", None),
    "rollout.max_model_len": ("1e3", 1000),
    "tracking.folder": ("true", "true"),
    "tracking.name": ("2024-01-01", "2024-01-01"),
    "tracking.evaluate": ("'no'", False),
}


def setting(loaded: config.RunConfig, key: str) -> Any:
    section, name = key.split(".")
    return loaded.trainer[name] if section == "trainer" else getattr(getattr(loaded, section), name)


def test_words_mean_what_their_setting_takes(tmp_path: Path) -> None:
    """In a file, as an argument, and in the resolved file, which other readers of YAML take for the same."""
    sections: dict[str, list[str]] = {"model": ["path: m"]}
    for key, (text, _) in WORDS.items():
        section, name = key.split(".")
        sections.setdefault(section, []).append(f"{name}: {text}")
    file = "".join(f"{name}:\n" + "".join(f"  {line}\n" for line in lines) for name, lines in sections.items())
    from_file, _ = config.load(write(tmp_path, file))
    from_arguments, _ = config.load(
        write(tmp_path, "model: {path: m}"), [f"{key}={text}" for key, (text, _) in WORDS.items()]
    )
    for key, (_, wanted) in WORDS.items():
        for loaded in (from_file, from_arguments):
            value = setting(loaded, key)
            assert (type(value), value) == (type(wanted), wanted), key
    resolved = from_file.to_yaml()
    assert config.load(write(tmp_path, resolved))[0] == from_file
    assert yaml.safe_load(resolved) == from_file.model_dump(mode="json")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("trainer.run_name=exp: 1", "exp: 1"),
        ("trainer.run_name=a=b", "a=b"),
        ("trainer.hub_token=@token", "@token"),
        ("trainer.hub_token=*token", "*token"),
        ("tracking.name=#5", "#5"),
        ("tracking.name=[a", "[a"),
        ("tracking.name='a: b'", "a: b"),
        ("tracking.name=", None),
    ],
)
def test_text_on_the_command_line_needs_no_quotes(tmp_path: Path, override: str, value: str | None) -> None:
    loaded, _ = config.load(write(tmp_path, {"model": {"path": "m"}}), [override])
    assert setting(loaded, override.partition("=")[0]) == value


def test_old_names_and_trl_s_take_words_too(tmp_path: Path) -> None:
    overrides = ["trainer.use_vllm=no", "trainer.vllm_enable_prefix_caching=off", "trainer.vllm_max_model_len=1e3"]
    loaded, _ = config.load(write(tmp_path, {"model": {"path": "m"}}), overrides)
    rollout = loaded.rollout
    assert (rollout.engine, rollout.prefix_caching, rollout.max_model_len) == ("transformers", False, 1000)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("trainer.max_steps=yes", "trainer.max_steps: expected int, got 'yes'"),
        ("trainer.max_steps=8.5", "trainer.max_steps: expected int, got 8.5"),
        ("trainer.bf16=12:30", "trainer.bf16: expected bool or null, got '12:30'"),
        ("sandbox.slots=true", "sandbox.slots: expected int or null, got True"),
        ("tracking.eval_samples=true", "tracking.eval_samples: expected int, got True"),
        ("reward.tests_weight=.inf", "reward.tests_weight: should be a finite number, got inf"),
        ("trainer.max_steps=[", "argument trainer.max_steps=[: the value is not valid YAML"),
        ("tasks=[", "argument tasks=[: the value is not valid YAML"),
    ],
)
def test_words_that_a_setting_can_t_take(tmp_path: Path, override: str, expected: str) -> None:
    assert expected in refusal(tmp_path, {"model": {"path": "m"}}, override)


def test_some_part_of_the_reward_must_pay(tmp_path: Path) -> None:
    weights = {"compile_weight": 0, "tests_weight": 0}
    loaded, _ = config.load(write(tmp_path, {"model": {"path": "m"}, "reward": {**weights, "all_tests_weight": 1}}))
    assert loaded.reward.all_tests_weight == 1
    assert "are all 0: every completion would score 0" in refusal(tmp_path, {"model": {"path": "m"}, "reward": weights})


def test_a_resumed_run_may_change_how_it_runs_but_not_what_it_is(tmp_path: Path) -> None:
    path = write(tmp_path, {"model": {"path": "m"}})
    changed, _ = config.load_for_resume(path, ["trainer.max_steps=9", "sandbox.slots=2"])
    assert changed.trainer == {"max_steps": 9}
    with pytest.raises(InputError, match="can't change its tasks when it is resumed"):
        config.load_for_resume(path, ["tasks.train=other.jsonl"])


def test_files_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tasks.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    loaded, _ = config.load(write(tmp_path, {"model": {"path": "owner/name"}, "tasks": {"train": "tasks.jsonl"}}))
    assert loaded.tasks.train == str(tmp_path / "tasks.jsonl")
    assert loaded.model.path == "owner/name"


def test_repeated_keys_are_refused(tmp_path: Path) -> None:
    assert "run.yaml:4: trainer.beta is given twice (first at" in refusal(
        tmp_path, "model: {path: m}\ntrainer:\n  beta: 1.0\n  beta: 2.0\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: {path: m}\ntrainer: {2: 3}\n", "run.yaml:2: 2 is no name of a setting"),
        ("model: {path: m}\nnull: 3\n", "run.yaml: None is no name of a setting"),
        ("- a\n", "expected a mapping of sections, got list"),
        ("a: [", "not valid YAML"),
        ("", "model is required"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(tmp_path, text)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.yaml: no such file"):
        config.load(tmp_path / "absent.yaml")


def test_every_new_name_in_the_table_of_old_names_exists() -> None:
    for entry in renamed.RENAMED:
        assert entry.old not in trainer_fields() or entry.old in {
            "use_transformers_paged",
            "vllm_importance_sampling_cap",
        }, f"{entry.old} is a setting of the installed TRL"
        if entry.new is None:
            continue
        section, key = entry.new.split(".")
        known = trainer_fields() if section == "trainer" else config._known_keys([section])
        assert key in known, entry


def test_trainer_fields_are_those_of_the_class() -> None:
    import dataclasses

    from ascent import GRPOConfig

    read, real = set(trainer_fields()), {field.name for field in dataclasses.fields(GRPOConfig)}
    assert real <= read
    assert not {name for name in read - real if not name.startswith("_")} - {"framework"}


def test_reading_a_configuration_imports_no_torch(tmp_path: Path) -> None:
    path = write(tmp_path, {"model": {"path": "m"}, "trainer": {"beta": 0.1}})
    code = (
        "import sys; from pathlib import Path; from ascent import config; config.load(Path(sys.argv[1])); "
        "assert not {'torch', 'transformers', 'trl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=280)


def test_examples_are_valid() -> None:
    for example in (Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"):
        config.load(example)


def test_every_key_is_documented() -> None:
    import pydantic

    page = (Path(__file__).resolve().parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")

    def keys(section: Any, prefix: str = "") -> list[str]:
        found = []
        for name, field in section.model_fields.items():
            inner = [t for t in (field.annotation, *getattr(field.annotation, "__args__", ())) if isinstance(t, type)]
            nested = [t for t in inner if issubclass(t, pydantic.BaseModel)]
            found += keys(nested[0], f"{prefix}{name}.") if nested else [f"{prefix}{name}"]
        return found

    missing = [key for key in keys(config.RunConfig) if f"`{key}`" not in page]
    assert not missing


def test_an_unknown_transport_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    content = "model: {path: m}\nrollout:\n  mode: server\n  transport: hcll\n"
    told = refusal(tmp_path, content)
    assert "run.yaml:4: rollout.transport: should be 'auto', 'hccl', 'nccl', 'npu_ipc', " in told
    assert told.endswith(", got 'hcll'; did you mean 'hccl'?")
    assert "'shm' or 'http', got '3'" in refusal(tmp_path, content, "rollout.transport=3")
