"""The plan: cards, phases, verdicts, advice and layouts."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from ascent.cli import main
from ascent.errors import InputError
from ascent.memory import Batch, Engine, Layout, Penalty, Plan, Settings, Trained, card, cards, plan
from ascent.memory.advice import advice
from ascent.memory.asked import asked
from ascent.memory.cards import GIB
from ascent.memory.layouts import layouts
from ascent.memory.passes import in_two
from ascent.memory.phases import ERRORS, TERMS
from ascent.memory.picture import bars, svg, verdict_line
from ascent.memory.recommended import recommended
from ascent.memory.report import report

SEVEN = "Qwen/Qwen2.5-7B-Instruct"
LORA = Settings(Trained(dtype="bfloat16", lora=16), Batch(accumulation=8), Engine(share=0.45))


def made(settings: Settings = LORA, model: str = SEVEN, device: str = "910B3") -> Plan:
    return plan(model, device, settings)


def test_the_arithmetic_of_a_64_gb_card() -> None:
    """7B in bfloat16: all weights with AdamW don't fit one card by far, LoRA does, and so do 8 cards."""
    full = made(replace(LORA, trained=Trained(), engine=Engine(share=0.45)))
    assert full.verdict == "no"
    parameters = full.model.parameters
    step = full.phase("optimizer step").terms
    assert step["weights"] + step["gradients"] + step["optimizer"] == 16 * parameters  # float32, Adam's two moments
    assert full.lower > 100 * GIB > full.card.usable
    assert full.engine.total == pytest.approx(0.45 * full.card.usable, abs=10)  # 27.4 GiB, not 20 to 24
    assert made().verdict == "fits"
    eight = replace(full.settings, layout=Layout(8, 8), engine=Engine(share=0.35))
    assert made(eight).verdict == "fits"


def test_every_phase_adds_up_and_has_known_terms() -> None:
    for settings in (LORA, replace(LORA, trained=Trained(reference=True)), replace(LORA, layout=Layout(4, 4))):
        found = made(settings)
        assert [phase.name for phase in found.phases] == [
            "start",
            "sampling",
            "log-probabilities",
            "training",
            "optimizer step",
            "weight update",
        ]
        for phase in found.phases:
            assert set(phase.terms) <= set(TERMS) == set(ERRORS)
            assert phase.total == sum(phase.terms.values())
            assert phase.bound(0) <= phase.total <= phase.bound(1)
            assert all(size > 0 for size in phase.terms.values())


@pytest.mark.parametrize(
    ("changed", "smaller"),
    [
        ({"trained": Trained(dtype="bfloat16", lora=16, checkpointing=True)}, {"checkpointing": False}),
        ({"trained": Trained(dtype="bfloat16", lora=16)}, {"reference": True, "lora": None}),
        ({"trained": Trained(dtype="bfloat16", lora=4)}, {"lora": 64}),
        ({"trained": Trained(dtype="bfloat16", lora=4)}, {"fused_attention": False}),
        ({"trained": Trained(optimizer="sgd")}, {"optimizer": "adamw_torch_fused"}),
    ],
)
def test_what_needs_less_is_planned_as_less(changed: dict[str, Trained], smaller: dict[str, object]) -> None:
    less = replace(LORA, **changed)  # type: ignore[arg-type]
    more = replace(less, trained=replace(less.trained, **smaller))  # type: ignore[arg-type]
    assert made(less).peak.total < made(more).peak.total


def test_nothing_is_scored_apart_where_each_step_trains_on_whole_generations() -> None:
    without = replace(LORA, trained=replace(LORA.trained, scores=False))
    assert "log-probabilities" not in [phase.name for phase in made(without).phases]
    reference = replace(without, trained=replace(without.trained, reference=True))
    assert made(reference).phase("log-probabilities").total > 0


def test_sleep_and_offload_give_room_where_they_act() -> None:
    awake, asleep = made(), made(replace(LORA, engine=replace(LORA.engine, sleeps=True)))
    assert asleep.phase("training").total < awake.phase("training").total - 20 * GIB
    assert asleep.phase("sampling").total == awake.phase("sampling").total
    full = Settings(Trained(dtype="bfloat16"), LORA.batch, LORA.engine)
    away = replace(full, trained=replace(full.trained, offload="optimizer"))
    freed = made(full).phase("sampling").total - made(away).phase("sampling").total
    assert freed == made(full).phase("sampling").terms["optimizer"]
    assert made(full).phase("training").total == made(away).phase("training").total


def test_shared_prompts_and_budgets_make_passes_smaller() -> None:
    def taken(**changed: object) -> int:
        settings = replace(LORA, batch=replace(LORA.batch, **changed))  # type: ignore[arg-type]
        terms = made(settings).phase("training").terms
        return terms["activations"] + terms.get("logits", 0)

    whole = taken(budget=None, shared_prompt=False)
    assert taken(budget=4096, shared_prompt=False) < 0.75 * whole
    long = {"prompt": 2048, "completion": 256, "budget": None}
    assert taken(**long) < 0.8 * taken(**long, shared_prompt=False)  # 8 completions of one prompt
    assert taken(budget=8 * 1536) <= whole


def test_engine_takes_its_share_and_says_what_it_holds() -> None:
    found = made()
    engine = found.engine
    assert engine.total == pytest.approx(0.45 * found.card.usable, abs=10)
    assert engine.kv_tokens == engine.kv_cache // found.model.kv_bytes_per_token()
    short = made(replace(LORA, engine=Engine(share=0.1)))
    assert short.verdict == "no"
    assert short.engine.short > 0
    assert "the engine's share is" in verdict_line(short)
    exact = made(replace(LORA, engine=Engine(kv_cache=2**30)))
    assert exact.engine.kv_cache == 2**30


def test_servers_have_a_device_of_their_own() -> None:
    settings = Settings(
        Trained(),
        LORA.batch,
        Engine(place="server", tensor_parallel=2, replicas=2),
        Layout(trainers=4, shards=4, servers=4),
    )
    found = made(settings)
    assert {term for phase in found.phases for term in phase.terms} & {"engine weights", "KV cache"} == set()
    assert {phase.name for phase in found.server_phases} == {"sampling", "weight update"}
    assert found.server_phases[0].total == pytest.approx(0.9 * found.card.usable, rel=1e-6)  # context and all
    assert found.engine.weights == pytest.approx(found.model.parameters, rel=0.001)  # two bytes, on two devices


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (replace(LORA, layout=Layout(8, 3)), "in 3 pieces over 8 training devices"),
        (replace(LORA, layout=Layout(4, 1, servers=2)), "2 devices for servers, but the engine is in the training"),
        (replace(LORA, engine=Engine(tensor_parallel=4)), "with an engine in the training process"),
        (
            replace(LORA, engine=Engine(place="server", tensor_parallel=5), layout=Layout(1, 1, 5)),
            "28 attention heads",
        ),
        (replace(LORA, engine=Engine(place="server", replicas=2), layout=Layout(1, 1, 3)), "3 devices for 2 servers"),
        (
            replace(LORA, engine=Engine(place="server"), layout=Layout(1, 1, 1), trained=Trained(offload="optimizer")),
            "makes room for an engine on the trainer's device",
        ),
        (replace(LORA, engine=Engine(share=1.5)), "memory.engine_share=1.5"),
        (replace(LORA, trained=Trained(dtype="int4")), "model.dtype=int4"),
        (replace(LORA, trained=Trained(lora=10**6)), "model.lora.r=1000000"),
        (replace(LORA, batch=Batch(completion=0)), "completion tokens: 0"),
        (replace(LORA, batch=Batch(completion=2**30)), "expected at most"),
        (replace(LORA, trained=replace(LORA.trained, cap=2**40)), "memory.trainer_gb=1024"),
    ],
)
def test_contradictions_are_refused(settings: Settings, said: str) -> None:
    with pytest.raises(InputError) as refused:
        made(settings)
    assert said in str(refused.value)


# ---- cards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("910B3", "Ascend 910B3"),
        ("Ascend910B3", "Ascend 910B3"),
        ("910b4-1", "Ascend 910B4-1"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 40GB"),
        ("A100", "NVIDIA A100 80GB"),
        ("rtx 4090", "NVIDIA GeForce RTX 4090"),
    ],
)
def test_cards_are_known_by_what_drivers_and_people_call_them(said: str, name: str) -> None:
    assert card(said).name == name


def test_cards_are_sane() -> None:
    for each in cards().values():
        assert each.reserve < each.usable <= each.capacity
        assert each.trains or each.why


def test_cards_by_hand() -> None:
    assert card("npu:64GB").usable == pytest.approx(card("910B3").usable, rel=0.01)
    assert card("cuda:24GiB").kind == "cuda"
    assert card("16G").capacity == 16 * GIB
    for wrong in ("npu:0GB", "9999999GB"):
        with pytest.raises(InputError, match="expected the memory of one device"):
            card(wrong)
    with pytest.raises(InputError, match="no card of that name is known"):
        card("voodoo2")


def test_a_card_that_cannot_train_is_refused() -> None:
    with pytest.raises(InputError, match="it can't train: it samples in float16"):
        made(device="310P")
    with pytest.raises(InputError, match="doesn't compute in bfloat16"):
        made(device="V100")
    half = replace(LORA, trained=Trained(dtype="float32", autocast=False, lora=8))
    assert made(half, "Qwen/Qwen2.5-0.5B-Instruct", "V100").verdict == "fits"


# ---- advice and layouts ----------------------------------------------------------------------------------------------


def test_advice_is_true_and_largest_first() -> None:
    full = made(Settings(Trained(), Batch(accumulation=4), Engine(share=0.45)))
    changes = advice(full)
    assert changes[0].setting.startswith("model.lora.r=16")
    fitting = [change for change in changes if change.fits]
    assert changes[: len(fitting)] == fitting
    gains = [change.gains for change in changes[len(fitting) :]]
    assert gains == sorted(gains, reverse=True)
    assert all(change.gains > 0 for change in changes)


def test_recommended_settings_fit() -> None:
    for model, device in ((SEVEN, "910B3"), ("Qwen/Qwen2.5-3B-Instruct", "A100-40GB"), (SEVEN, "910B4")):
        first = made(replace(LORA, engine=Engine()), model, device)
        found = recommended(first)
        if found.engine_share is None:
            assert device == "910B4"
            continue
        engine = Engine(share=found.engine_share, sequences=found.max_num_seqs, sleeps=found.sleep)
        batch = replace(LORA.batch, budget=found.max_tokens_per_batch)
        assert made(replace(LORA, engine=engine, batch=batch), model, device).verdict == "fits"


@pytest.mark.parametrize(
    ("model", "how", "verdict"),
    [
        ("Qwen/Qwen2.5-14B-Instruct", "all weights", "fits"),
        ("Qwen/Qwen2.5-32B-Instruct", "LoRA of rank 16", "fits"),
        ("Qwen/Qwen2.5-72B-Instruct", "LoRA of rank 16", "close"),
        ("Qwen/Qwen3-30B-A3B", "LoRA of rank 16", "fits"),
    ],
)
def test_eight_cards_hold_large_models(model: str, how: str, verdict: str) -> None:
    settings = Settings(batch=Batch(512, 1024, 4, 8))
    found = layouts(made(settings, model).model, card("910B3"), 8, settings)
    assert found[0].what.startswith(how)
    for choice in found:
        assert choice.plan.verdict == verdict
        assert choice.plan.settings.layout.cards == 8


def test_more_cards_hold_all_weights_of_32b() -> None:
    settings = Settings(batch=Batch(512, 1024, 4, 8))
    found = layouts(made(settings, "Qwen/Qwen2.5-32B-Instruct").model, card("910B3"), 32, settings)
    assert found[0].what.startswith("all weights")
    assert layouts(made(settings, "Qwen/Qwen2.5-72B-Instruct").model, card("910B4"), 2, settings) == []


# ---- GPRO -----------------------------------------------------------------------------------------------------------

ALL = replace(LORA, trained=Trained(), engine=Engine(place="elsewhere"))


def penalized(settings: Settings, **changed: object) -> Settings:
    penalty = replace(Penalty(searches=False), **changed)  # type: ignore[arg-type]
    return replace(settings, trained=replace(settings.trained, penalty=penalty))


@pytest.mark.parametrize(
    ("changed", "gradients"),
    [({}, 1), ({"fraction": 0.5}, 2), ({"searches": True}, 3), ({"fraction": 0.5, "searches": True}, 4)],
)
def test_a_second_gradient_is_planned_as_it_is_kept(changed: dict[str, object], gradients: int) -> None:
    """A copy of the weights and of each gradient that is kept, in float32, while passes are made."""
    found = made(penalized(ALL, **changed))
    parameters = found.model.parameters
    terms = found.phase("training").terms
    assert terms["moved weights"] == 4 * parameters
    assert terms["earlier gradients"] == 4 * parameters * gradients
    assert found.phase("training").total > made(ALL).phase("training").total + 4 * parameters * (1 + gradients - 1)
    for name in ("start", "sampling", "optimizer step", "weight update"):
        assert found.phase(name) == made(ALL).phase(name)


def test_a_second_gradient_of_some_rows_has_smaller_passes() -> None:
    batch = Batch(micro_batch=64, group=1, shared_prompt=False)
    small, large = (
        made(penalized(replace(ALL, batch=batch), fraction=fraction, searches=True)).phase("training").terms
        for fraction in (0.25, 0.9)
    )
    assert small["activations"] < 0.4 * large["activations"]
    assert small["earlier gradients"] == large["earlier gradients"]


def test_rows_are_parted_in_whole_groups() -> None:
    def parts(fraction: float, **changed: object) -> tuple[int, int | None]:
        first, rest = in_two(replace(Batch(micro_batch=8, accumulation=4), **changed), fraction)  # type: ignore[arg-type]
        return first.micro_batch * first.accumulation, None if rest is None else rest.micro_batch * rest.accumulation

    assert parts(0.5) == (16, 16)
    assert parts(0.3) == (16, 16)  # two groups of 8
    assert parts(0.3, shared_prompt=False) == (10, 22)
    assert parts(0.5, budget=None, shared_prompt=False) == (16, 16)  # of each micro-batch
    assert parts(0.5, budget=None) == (32, None)  # one group each
    one_group = penalized(replace(ALL, batch=Batch()), fraction=0.5)
    assert made(one_group).phase("training") == made(penalized(replace(ALL, batch=Batch()))).phase("training")


def test_copies_are_of_the_weights_that_are_moved() -> None:
    def copied(settings: Settings, model: str = SEVEN) -> int:
        return made(settings, model).phase("training").terms["moved weights"]

    model = made(ALL).model
    assert copied(penalized(ALL, moves="norms")) == 4 * (2 * model.layers + 1) * model.hidden
    without = copied(penalized(ALL, moves="without_embeddings"))
    assert without == copied(penalized(ALL)) - 4 * 2 * model.vocabulary * model.hidden
    assert copied(penalized(LORA)) == 4 * model.lora_parameters(16)
    cut = penalized(replace(ALL, layout=Layout(8, 8)))
    assert copied(cut) == 4 * model.parameters // 8
    assert made(cut).phase("training").terms["earlier gradients"] == 4 * model.parameters // 8


def test_looking_for_the_radius_beside_adapters_copies_frozen_weights_in_float32() -> None:
    searching, fixed = made(penalized(LORA, searches=True)), made(penalized(LORA))
    frozen = 4 * searching.model.parameters
    assert searching.phase("training").terms["casts"] >= frozen
    assert searching.phase("training").total > fixed.phase("training").total + frozen
    assert "casts" not in fixed.phase("training").terms


def test_what_gpro_refuses_is_refused() -> None:
    with pytest.raises(InputError, match="weights in bfloat16 with GPRO"):
        made(penalized(replace(ALL, trained=Trained(dtype="bfloat16"))))
    with pytest.raises(InputError, match="norms with adapters"):
        made(penalized(LORA, moves="norms"))
    with pytest.raises(InputError, match=r"gradient_penalty_fraction=0.5 .* micro-batches stay whole"):
        made(penalized(ALL, fraction=0.5), "Qwen/Qwen3-30B-A3B")
    unbalanced = penalized(replace(ALL, trained=Trained(router_loss=False)), fraction=0.5)
    assert made(unbalanced, "Qwen/Qwen3-30B-A3B").verdict == "no"


def test_advice_for_gpro() -> None:
    found = {each.setting: each.gains for each in advice(made(penalized(ALL, searches=True, fraction=0.5)))}
    copy = 4 * made(ALL).model.parameters
    assert 1.5 * copy < found["algorithm.gradient_penalty_radius=NUMBER"] <= 2 * copy
    assert found["algorithm.gradient_penalty_parameters=norms"] == pytest.approx(copy, rel=0.01)
    assert found["algorithm.gradient_penalty_fraction=1"] == copy
    assert found["algorithm=grpo"] >= 4 * copy
    assert "model.dtype=bfloat16" not in found
    settled = {each.setting for each in advice(made(penalized(ALL, moves="norms")))}
    assert {each for each in settled if "gradient_penalty" in each} == {
        "model.lora.r=16 model.dtype=bfloat16 algorithm.gradient_penalty_parameters=all"
    }
    over_two = advice(made(penalized(replace(ALL, layout=Layout(2)), searches=True)))
    assert any("fsdp" in each.setting and "gradient_penalty_radius" in each.setting for each in over_two)


def test_layouts_for_gpro_name_what_it_needs_there() -> None:
    settings = penalized(Settings(batch=Batch(512, 1024, 4, 8)), moves="norms", searches=True)
    for devices in (8, 1):
        found = layouts(made(settings).model, card("910B3"), devices, settings)
        assert found
        for choice in found:
            words, adapters = " ".join(choice.words), choice.plan.settings.trained.lora is not None
            assert f"gradient_penalty_parameters={'all' if adapters else 'norms'}" in words
            assert ("gradient_penalty_radius=NUMBER" in words) == (choice.plan.settings.layout.shards > 1)


@pytest.mark.parametrize(
    ("given", "penalty"),
    [
        (["algorithm=gpro"], Penalty()),
        (["algorithm.name=gpro", "algorithm.gradient_penalty_radius=0.01"], Penalty(searches=False)),
        (["algorithm.name=gpro", "algorithm.gradient_penalty_fraction=0.5"], Penalty(fraction=0.5)),
        (["algorithm.name=gpro", "algorithm.gradient_penalty_parameters=norms"], Penalty("norms")),
        (["algorithm.name=gpro", "algorithm.gradient_penalty_strength=0"], None),
        ([], None),
    ],
)
def test_configurations_and_command_lines_name_the_penalty(
    given: list[str], penalty: Penalty | None, tmp_path: Path
) -> None:
    told = asked("Qwen/Qwen2.5-0.5B-Instruct", [*given, "model.dtype=float32"], device="910B3")
    assert told.plan.settings.trained.penalty == penalty
    assert ("GPRO's second gradient" in told.to_text()) == (penalty is not None)
    run = tmp_path / "config.yaml"
    run.write_text("model: {path: Qwen/Qwen2.5-0.5B-Instruct}\ntasks: {train: builtin}\n", encoding="utf-8")
    assert asked(str(run), given, device="910B3").plan.settings.trained.penalty == penalty


def test_advice_for_a_phase_is_about_that_phase() -> None:
    settings = Settings(Trained(), Batch(64, 1024, accumulation=8), Engine(kind="transformers"))
    found = made(settings)
    training = advice(found, ("training", "optimizer step"))
    assert training[0].setting.startswith("model.lora.r=16")
    gains = [each.gains for each in training]
    assert gains == sorted(gains, reverse=True)
    sampling = {each.setting for each in advice(found, ("sampling",))}
    assert "trainer.max_completion_length=512" in sampling
    assert not any("max_tokens_per_batch" in each or "checkpointing" in each for each in sampling)


# ---- what is shown ---------------------------------------------------------------------------------------------------


def test_pictures_show_every_phase_to_scale() -> None:
    found = made()
    lines = [line for line in bars(found) if "|" in line]
    assert len(lines) == len(found.phases)
    drawn = lines[0].split("|")[0].rstrip(".")[-56:]
    assert len(drawn.split()[-1]) == round(found.phases[0].total * 56 / found.card.usable)
    tree = ElementTree.fromstring(svg(found))
    widths = [float(each.get("width", 0)) for each in tree.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(widths) > sum(len(phase.terms) for phase in found.phases)


def test_report_says_the_same_to_people_and_programs() -> None:
    full = made(Settings(Trained(), Batch(), Engine(share=0.45)))
    told = report(full, ["something"])
    text, values = told.to_text(), json.loads(json.dumps(told.to_json()))
    assert values["schema"] == "ascent.plan/1"
    assert values["verdict"] == "no"
    assert "note: something" in text
    assert "does not fit: training takes" in text
    assert "what to change first" in text
    assert sum(values["phases"]["training"].values()) == full.phase("training").total


def test_a_run_directory_is_planned_as_its_configuration(tmp_path: Path) -> None:
    text = "model: {path: Qwen/Qwen2.5-0.5B-Instruct}\ntasks: {train: builtin}\ntrainer: {max_completion_length: 300}\n"
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    told = asked(str(tmp_path), device="910B3").to_text()
    assert told == asked(str(tmp_path / "config.yaml"), device="910B3").to_text()
    assert "+ 300 tokens" in told


def test_a_picture_that_can_not_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "Qwen/Qwen2.5-0.5B-Instruct", "--svg", str(tmp_path / "none" / "p.svg")]) == 2
    assert "can't be written: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["910B9", "H2000", "NVIDIA A1000", "L400", "Ascend 9100", "RTX 40900"])
def test_a_further_digit_is_another_card(name: str) -> None:
    with pytest.raises(InputError, match="no card of that name"):
        card(name)
