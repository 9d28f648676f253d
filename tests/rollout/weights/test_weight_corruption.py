"""Every fault on the way of the weights is noticed, no clean delivery is called wrong: a real engine and worker.

Faults are drawn by seed and put at three places: before the model's loader (as a transport would), inside it, and after
it, where packed weights can only be asked what they compute.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascent.rollout.engine import Canary, WeightMismatchError, WeightSyncError

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]
CHUNK = 1 << 15  # several chunks even for a tiny policy


class Run:
    """A trainer's model, a server in this process, and the delivery between them."""

    def __init__(self, folder: Path, dtype: str) -> None:
        import torch
        from tests.rollout.weights.in_process import InProcessServer
        from transformers import AutoModelForCausalLM

        from ascent.rollout.weights.delivery import WeightDelivery
        from ascent.rollout.weights.transports.shm import ShmTransport

        self.server = InProcessServer(folder, dtype)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.dtype = getattr(torch, dtype)
        self.delivery = WeightDelivery(ShmTransport(dtype, chunk_bytes=CHUNK), dtype)
        self.version = 0
        self.random = random.Random(0)
        self.before: dict[str, Any] = {}

    def train(self, scale: float = 1e-3) -> None:
        """Change all weights a little."""
        import torch

        self.version += 1
        self.before = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        generator = torch.Generator().manual_seed(self.version)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)

    def canary(self) -> Canary:
        import copy

        import torch

        policy = copy.deepcopy(self.model).to(self.dtype)
        vocabulary = self.model.config.vocab_size
        sequences = tuple(tuple(self.random.randrange(vocabulary) for _ in range(12)) for _ in range(3))
        logps = []
        for sequence in sequences:
            ids = torch.tensor([sequence])
            with torch.no_grad():
                scores = policy(ids).logits[0, :-1].float().log_softmax(-1)
            logps.append(tuple(scores.gather(1, ids[0, 1:, None])[:, 0].tolist()))
        return Canary(sequences, tuple(logps), str(self.dtype).removeprefix("torch."))

    def deliver(self, canary: Canary | None = None) -> Any:
        return self.delivery.deliver([self.server], self.model.named_parameters(), self.version, canary)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((True, "float32"), id="tied-float32"),
        pytest.param((False, "bfloat16"), id="untied-bfloat16"),
        pytest.param((False, "float32"), id="untied-float32", marks=pytest.mark.slow),
        pytest.param((True, "bfloat16"), id="tied-bfloat16", marks=pytest.mark.slow),
    ],
)
def run(request: pytest.FixtureRequest, tiny_policy: Callable[..., Path]) -> Iterator[Run]:
    tied, dtype = request.param
    made = Run(tiny_policy(tied=tied, dtype=dtype), dtype)
    yield made
    made.server.close()


Named = tuple[str, Any]
Change = Callable[[Iterable[Named]], list[Named]]


def change_stream(draw: random.Random, run: Run, *, bits: bool) -> tuple[str, Change]:
    """A fault in the stream of weights: what it is, and what makes it."""
    import torch

    target = draw.choice([name for name, _ in run.model.named_parameters()])
    attention = f"model.layers.{draw.randrange(run.model.config.num_hidden_layers)}.self_attn"
    first, second = (f"{attention}.{part}.weight" for part in draw.sample(["q_proj", "k_proj", "v_proj"], 2))
    place, bit = draw.random(), draw.randrange(8)

    def at_target(change: Callable[[Any], Any]) -> Change:
        return lambda weights: [(name, change(tensor) if name == target else tensor) for name, tensor in weights]

    def flip(tensor: Any) -> Any:
        raw = tensor.clone().view(-1).view(torch.uint8)
        raw[int(place * raw.numel())] ^= 1 << bit
        return raw.view(tensor.dtype).view(tensor.shape)

    def nan(tensor: Any) -> Any:
        changed = tensor.clone()
        changed.view(-1)[int(place * changed.numel())] = float("nan")
        return changed

    renamed = {first: second, second: first}
    kinds: dict[str, Change] = {
        f"NaN in {target}": at_target(nan),
        f"{target} a row off": at_target(lambda tensor: tensor.roll(1, 0)),
        f"{target} as it was a step ago": at_target(lambda tensor: run.before[target].to(tensor.dtype)),
        f"{target} left out": lambda weights: [each for each in weights if each[0] != target],
        f"{first} and {second} swapped": lambda weights: [(renamed.get(name, name), t) for name, t in weights],
    }
    if bits:
        kinds[f"a bit of {target} flipped"] = at_target(flip)
    what = draw.choice(list(kinds))
    return what, kinds[what]


def before_the_loader(draw: random.Random, run: Run, patch: pytest.MonkeyPatch) -> str:
    """As a transport would corrupt the weights."""
    from ascent.rollout.in_vllm.shm_receiver import ShmWeightTransferEngine

    what, change = change_stream(draw, run, bits=True)
    whole = ShmWeightTransferEngine.receive_weights
    patch.setattr(
        ShmWeightTransferEngine,
        "receive_weights",
        lambda engine, info: whole(engine, info, lambda weights: engine.model.load_weights(change(weights))),
    )
    return what


def inside_the_loader(draw: random.Random, run: Run, patch: pytest.MonkeyPatch) -> str:
    """After the weights were seen to arrive. A low bit of a packed weight can't be seen there (docs/weights.md)."""
    what, change = change_stream(draw, run, bits=False)
    kind = type(run.server.model)
    whole = kind.load_weights
    patch.setattr(kind, "load_weights", lambda model, weights: whole(model, change(weights)))
    return what


def after_the_loader(draw: random.Random, run: Run, patch: pytest.MonkeyPatch) -> str:
    """In the model that was loaded."""
    from ascent.rollout.in_vllm import tied_head

    model = run.server.model
    embedding = model.model.embed_tokens
    padding = embedding.shard_indices.num_org_elements
    norm = draw.choice([name for name, _ in model.named_parameters() if "norm" in name])
    row, column = draw.randrange(padding), draw.randrange(embedding.weight.shape[1])

    def dirty() -> None:
        embedding.weight.data[padding, column] = 1e-3

    def scaled() -> None:
        model.get_parameter(norm).data[column] *= 1.01

    def moved() -> None:
        embedding.weight.data[row, column] += 1e-2

    kinds: dict[str, Callable[[], None]] = {"padding row": dirty, f"value of {norm}": scaled, "embedding": moved}
    if run.model.config.tie_word_embeddings and tied_head.is_packed(model):
        kinds["stale head"] = lambda: None
    what = draw.choice(list(kinds))
    if what == "stale head":
        patch.setattr(tied_head, "pack_again", lambda model: None)
    patch.setattr(run.server, "after_finish", kinds[what])
    return what


def noticed(run: Run) -> WeightMismatchError | None:
    try:
        run.deliver()
    except WeightMismatchError as error:
        return error
    return None


PLACES = (before_the_loader, inside_the_loader, after_the_loader)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 150), marks=pytest.mark.slow)], ids=["few", "many"])
def test_faults_are_noticed_and_sending_again_mends_them(
    run: Run, place: Callable[..., str], seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.deliver()
    for seed in seeds:
        run.train(scale=1e-2)  # every parameter changes, in bfloat16 too
        with monkeypatch.context() as patch:
            what = place(random.Random(seed), run, patch)
            found = noticed(run)
        assert found is not None, f"seed {seed}: not noticed: {what}"
        assert found.parameters, what
        if "model.layers" in what:
            assert found.parameters[0].split(".")[2] == what.split("model.layers.")[1][0], (what, found)
        run.deliver()


@pytest.mark.parametrize("steps", [20, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_no_false_alarm(run: Run, steps: int) -> None:
    for _ in range(steps):
        run.train(scale=10 ** run.random.uniform(-6, -2))
        report = run.deliver(run.canary())
        assert not report.failed
        assert not report.unseen


def test_wrong_log_probabilities_are_noticed_though_all_weights_are_right(run: Run) -> None:
    for _ in range(2):
        run.train()
        run.deliver(run.canary())
    right = run.canary()
    wrong = tuple(tuple(logp - 0.5 for logp in logps) for logps in right.logps)
    with pytest.raises(WeightMismatchError, match=r"log-probabilities of known sequences differ by .* though every"):
        run.deliver(replace(right, logps=wrong))
    run.deliver(right)


def test_weights_that_are_not_finite_are_the_trainers_fault(run: Run) -> None:
    import torch

    weight = run.model.model.layers[1].mlp.up_proj.weight
    with torch.no_grad():
        value = float(weight[3, 5])
        weight[3, 5] = float("inf")
        with pytest.raises(
            WeightSyncError, match=r"trainer's own weights are not finite: model\.layers\.1\.mlp\.up_proj"
        ):
            run.deliver()
        weight[3, 5] = value
    run.deliver()


def test_an_update_that_broke_off_leaves_nothing_behind(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers hold back what came in until they are complete; the next update must not find it."""
    from ascent.rollout.in_vllm.shm_receiver import ShmWeightTransferEngine

    whole = ShmWeightTransferEngine.receive_weights
    for broken in range(1, 4):
        run.train(scale=1e-2)
        received = 0

        def break_off(engine: Any, info: Any, broken: int = broken) -> None:
            nonlocal received
            received += 1
            if received > broken:
                raise RuntimeError("the memory is gone")
            whole(engine, info)

        with monkeypatch.context() as patch:
            patch.setattr(ShmWeightTransferEngine, "receive_weights", break_off)
            with pytest.raises(WeightSyncError, match=r"no server got the weights: in-process: .*the memory is gone"):
                run.deliver()
        run.train(scale=1e-2)
        run.deliver(run.canary())


def test_without_verification_nothing_is_asked_of_the_worker(run: Run) -> None:
    from ascent.rollout.weights.delivery import WeightDelivery
    from ascent.rollout.weights.transports.shm import ShmTransport

    plain = WeightDelivery(
        ShmTransport(str(run.dtype).removeprefix("torch."), chunk_bytes=CHUNK), "float32", verify=False
    )
    run.train()
    run.server.calls.clear()
    plain.deliver([run.server], run.model.named_parameters(), run.version)
    assert "/collective_rpc" not in run.server.calls
    run.deliver(run.canary())
