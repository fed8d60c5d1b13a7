"""The Triton kernels are the fused forward: same parameters, same numbers, same gradients, in Triton's interpreter.

Triton reads TRITON_INTERPRET when a kernel is decorated, so it is set before anything here imports one; nothing else
in the tests asks for the kernels.  They are compiled, not interpreted, in a process of its own.  The interpreter's
bf16 products are wrong (seen in 3.6), so bf16 runs on a device alone (tests/gpu/test_gpu.py).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.errors import TritonError
from triton.runtime.interpreter import GridExecutor

from socialx.core.errors import SettingsError
from socialx.model.xlstm import encoder as encoder_module
from socialx.model.xlstm.encoder import SharedEncoder
from socialx.model.xlstm.exact import LayerFunctions, encode
from socialx.model.xlstm.operations import LAYERS
from socialx.model.xlstm.weights import stack_weights
from tests import encoders
from tests.encoders import gradients, relative, worst
from tests.meters import saved_bytes
from tests.networks import batch, forecaster

ROOT = Path(__file__).parents[2]
LONGEST = 64
# The norm after an mLSTM undoes any scale of its output: with one step the gradients of q, k and i are differences of
# far larger numbers.  A gradient that all but cancels is compared with this share of the largest of all.
FLOOR = 1e-2


pytestmark = pytest.mark.usefixtures("one_thread")


def make(backend: str, width: int, slstm_at: list[int], blocks: int, heads: int, **options: Any) -> SharedEncoder:
    options = {"dtype": torch.float32, "lookback": LONGEST, **options}
    return encoders.make(width, blocks, slstm_at, heads, backend=backend, **options)


def sequences(count: int, steps: int, width: int) -> Tensor:
    return torch.randn(count, steps, width, generator=torch.Generator().manual_seed(1)).requires_grad_()


def run(
    encoder: SharedEncoder, x: Tensor, dtype: torch.dtype = torch.float32, low: torch.dtype | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    x, encoder = x.detach().to(dtype).requires_grad_(), encoder.to(dtype)
    with torch.autocast("cpu", dtype=low, enabled=low is not None):
        y = encoder(x)
    y = y.to(dtype)
    return y.detach().double(), {name: g.double() for name, g in gradients(y, x, encoder).items()}


def compare(
    width: int,
    slstm_at: list[int],
    blocks: int,
    heads: int,
    steps: int,
    count: int,
    low: torch.dtype | None = None,
    scale: float = 0.3,
) -> None:
    """The kernels' errors against the package in float64 are about those of the fused forward.

    A reciprocal is the square of an inverse root there, which rounds once more.
    """
    x = sequences(count, steps, width)
    shape = (width, slstm_at, blocks, heads)
    exact, exact_gradients = run(make("reference", *shape, scale=scale), x, torch.float64)
    errors = {}
    for backend in ("fused", "triton"):
        y, found = run(make(backend, *shape, scale=scale), x, low=low)
        errors[backend] = relative(y, exact), worst(found, exact_gradients, FLOOR)
    for ours, fused, least in zip(errors["triton"], errors["fused"], (4e-6, 2e-4), strict=True):
        assert ours <= max(3 * fused, least), errors


FEW = [  # width, sLSTM blocks, blocks, heads, steps, sequences
    (64, [1], 2, 4, 6, 3),
    (128, [0], 1, 2, 5, 3),
    (32, [], 1, 2, 24, 2),
    (64, [0], 2, 4, 1, 1),
    (64, [], 1, 8, 3, 2),  # as many heads as there may be: the gates fill two tiles
    (32, [], 1, 2, 2, 17),  # gates and sequences that fill no tile
]
MANY = [  # many sequences or many steps: the interpreter's time grows with their product
    (64, [0, 2], 3, 4, 4, 17, True),  # True: in float16, too
    (128, [0], 1, 8, 3, 33, False),
    (64, [], 1, 1, 5, 17, True),
    (128, [], 1, 2, 24, 3, False),
    (256, [1], 2, 4, 3, 17, False),
    (64, [1], 2, 4, 64, 2, False),
    (128, [1], 2, 2, 12, 5, True),
    (64, [1], 2, 4, 37, 3, True),
]


@pytest.mark.parametrize("low", [None, pytest.param(torch.float16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", FEW)
def test_outputs_and_all_gradients(shape: tuple[int, list[int], int, int, int, int], low: torch.dtype | None) -> None:
    compare(*shape, low=low, scale=0.3 if low is None else 0.1)


@pytest.mark.slow
@pytest.mark.timeout(600)  # Triton's interpreter, beside other work
@pytest.mark.parametrize(
    ("shape", "low"), [(shape, low) for *shape, half in MANY for low in (None, torch.float16) if half or low is None]
)
def test_more_shapes(shape: list[Any], low: torch.dtype | None) -> None:
    compare(*shape, low=low, scale=0.3 if low is None else 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("slstm_at", [[], [0], [1]])
def test_every_step_of_the_output(slstm_at: list[int]) -> None:
    encoder, x = make("triton", 64, slstm_at, 2, 4), sequences(2, 4, 64)
    ours = encode(stack_weights(encoder.stack), x, last_only=False, layers=LAYERS)
    fused = encode(stack_weights(encoder.stack), x, last_only=False)
    torch.testing.assert_close(ours, fused, rtol=1e-4, atol=1e-5)
    assert worst(gradients(ours, x, encoder.stack), gradients(fused, x, encoder.stack), FLOOR) < 1e-4


@pytest.mark.parametrize("shift", [-100.0, 100.0])
@pytest.mark.parametrize("gate", ["igate", "fgate"])
def test_extreme_gates_stay_finite(gate: str, shift: float) -> None:
    results = []
    for backend in ("fused", "triton"):
        encoder = make(backend, 64, [1], 2, 4, scale=0.1)
        with torch.no_grad():
            getattr(encoder.stack.blocks[0].xlstm.mlstm_cell, gate).bias.add_(shift)
            bias = encoder.stack.blocks[1].xlstm.slstm_cell._bias_.view(4, -1)
            bias[0 if gate == "igate" else 1].add_(shift)
        results.append(run(encoder, sequences(2, 4, 64)))
    (fused, fused_gradients), (ours, our_gradients) = results
    assert all(torch.isfinite(g).all() for g in our_gradients.values())
    assert relative(ours, fused) < 1e-4
    assert worst(our_gradients, fused_gradients, FLOOR) < 1e-3


def test_dropout_is_drawn_in_training_alone() -> None:
    """Evaluation drops nothing; training draws new masks, which the generator's state repeats."""
    encoder, x = make("triton", 64, [0], 1, 4, dropout=0.5, scale=0.1), sequences(2, 3, 64)
    without = make("fused", 64, [0], 1, 4, scale=0.1)
    torch.testing.assert_close(encoder.eval()(x), without(x), rtol=1e-4, atol=1e-5)
    torch.manual_seed(0)
    first, second = encoder.train()(x), encoder(x)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(first, encoder(x))


def test_checkpointing_draws_the_same_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place draws in the same way, one mask of bytes, whether a block ends in a sum or in a sum and norm."""
    encoder, x, drawn = make("triton", 32, [1], 2, 2, dropout=0.3, scale=0.1).train(), sequences(2, 3, 32), []
    real = Tensor.bernoulli_
    monkeypatch.setattr(Tensor, "bernoulli_", lambda t, p: drawn.append((t.dtype, tuple(t.shape))) or real(t, p))
    found = []
    for encoder.activation_checkpointing in (False, True):
        drawn.clear()
        torch.manual_seed(0)
        y = encoder(x)
        found.append(([*drawn], gradients(y, x, encoder)))
    (plain, plain_gradients), (again, gradients_again) = found
    assert len(plain) == 2  # of the mLSTM and of the sLSTM; the package gives its feed-forward part no dropout
    assert again == plain
    assert worst(gradients_again, plain_gradients, FLOOR) < 1e-5


@pytest.mark.slow
def test_is_one_graph_for_a_compiler() -> None:
    encoder, x = make("triton", 64, [1], 2, 4), sequences(2, 3, 64)
    compiled = torch.compile(encoder, fullgraph=True, dynamic=False, backend="aot_eager")
    (ours, ours_gradients), eager = run(compiled, x), run(encoder, x)
    torch.testing.assert_close(ours, eager[0], rtol=1e-5, atol=1e-6)
    renamed = {name.removeprefix("_orig_mod."): gradient for name, gradient in ours_gradients.items()}
    assert worst(renamed, eager[1], FLOOR) < 1e-5


def test_what_the_kernels_cannot_run_is_said() -> None:
    with pytest.raises(ValueError, match=r"cannot run \(block 0: heads of 24 channels: needs 16, 32, 64, 128\)"):
        SharedEncoder(48, 1, [0], 2, 12, backend="triton")
    with pytest.raises(ValueError, match=r"cannot run \(a lookback of 65 is longer than 64 steps\)\.\n  try: use "):
        SharedEncoder(64, 1, [], 4, 65, backend="triton")


CPU, CARD = torch.device("cpu"), torch.device("cuda")
SPILLS = "Triton kernels are off: sLSTM heads of 64 channels spill in float32: a mixed precision has the kernels"


@pytest.mark.parametrize(
    ("width", "slstm_at", "device", "expected"),
    [
        (64, [1], CPU, ("fused", "")),
        (64, [1], CARD, ("triton", "")),
        (128, [1], CARD, ("triton", "")),
        (256, [1], CARD, ("fused", SPILLS)),  # torch runs wide scans in float32
        (256, [], CARD, ("triton", "")),
    ],
)
def test_auto_is_triton_where_it_is_fast(
    width: int, slstm_at: list[int], device: torch.device, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    encoder = SharedEncoder(width, 2, slstm_at, 4, 12)
    assert encoder.choice(device) == expected
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: True)
    assert encoder.choice(CARD) == ("triton", "")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "is_autocast_enabled", lambda device: False)
        assert encoder.double().choice(CARD) == ("fused", "Triton kernels are off: float64 parameters")


def test_triton_is_what_it_is_told_to_be_or_an_error() -> None:
    encoder = SharedEncoder(64, 2, [1], 4, 12, backend="triton")
    assert encoder.choice(CARD) == ("triton", "")
    with pytest.raises(ValueError, match=r"backend triton cannot run \(float64 parameters\)\.\n  try: use model="):
        encoder.double().choice(CARD)


def test_off_cuda_the_kernels_run_in_the_interpreter_or_not_at_all() -> None:
    encoder = SharedEncoder(64, 2, [1], 4, 12, backend="triton")
    assert encoder.choice(CPU) == ("triton", "")
    encoder._interpreted = False
    assert encoder.choice(CPU) == ("fused", "")


@pytest.mark.parametrize("patch", [1, 4, 12])
def test_a_forecaster_of_any_patch_is_the_same_on_the_kernels(patch: int) -> None:
    ours, plain = (forecaster(width=32, backend=backend, patch=patch) for backend in ("triton", "fused"))
    assert ours.encoder.choice(CPU) == ("triton", "")
    torch.testing.assert_close(ours(batch()), plain(batch()), rtol=1e-4, atol=1e-4)


def test_the_model_of_the_gpu_tests_runs_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    encoder = forecaster(width=32, social=2).encoder
    assert isinstance(encoder, SharedEncoder)
    assert encoder.choice(CARD) == ("triton", "")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels are tried on few sequences: the interpreter takes a second for some."""
    monkeypatch.setattr(encoder_module, "TRIED", 3)


def broken_by(fault: Exception) -> Callable[..., Any]:
    def broken(*arguments: object) -> Any:
        raise fault

    return broken


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (OSError("no C compiler\nmore"), "no C compiler"),
        (TritonError("out of resource: shared memory"), "out of resource: shared memory"),
        (
            RuntimeError("Failed to find C compiler. Please specify via CC environment variable"),
            "there is no C compiler: apt install gcc python3-dev",
        ),
        (
            subprocess.CalledProcessError(1, ["/usr/bin/gcc", "main.c", "-O3", "-shared"]),
            "the C compiler fails, as it does without Python.h: apt install gcc python3-dev",
        ),
    ],
)
def test_kernels_that_cannot_run_are_not_chosen(fault: Exception, said: str) -> None:
    encoder = SharedEncoder(64, 2, [1], 4, 4, backend="triton")
    here = next(encoder.parameters())
    encoder._layers = LAYERS._replace(mlstm=broken_by(fault))
    reason = encoder._failure(here)
    assert reason == f"a trial run failed ({said})"
    encoder.backend = "auto"
    encoder._trials[torch.float32] = reason
    assert encoder.choice(torch.device("cuda")) == ("fused", f"Triton kernels are off: {reason}")
    encoder.backend = "triton"
    with pytest.raises(SettingsError, match=r"backend triton cannot run \(a trial run failed"):  # a line of a command
        encoder.choice(torch.device("cuda"))


def other_mlstm(change: Callable[[Tensor], Tensor]) -> LayerFunctions:
    return LAYERS._replace(mlstm=lambda *given: change(LAYERS.mlstm(*given)))


def backwards_of_another(factor: float) -> Callable[[Tensor], Tensor]:
    """The same numbers with another gradient."""
    return lambda y: factor * y - (factor - 1) * y.detach()


def last_sequence_is_lost(y: Tensor) -> Tensor:
    return torch.cat([y[:, :-1], torch.zeros_like(y[:, -1:])], 1)


WRONG = {
    "another scale": other_mlstm(lambda y: 1.02 * y),
    "the last sequence of a tile": other_mlstm(last_sequence_is_lost),
    "sequences in another order": other_mlstm(lambda y: y.roll(1, 1)),
    "not a number": other_mlstm(lambda y: y / 0 * 0),
    "the gradient alone": other_mlstm(backwards_of_another(1.02)),
    "no gradient": other_mlstm(backwards_of_another(0.0)),
    "an sLSTM": LAYERS._replace(slstm=lambda *given: 1.02 * LAYERS.slstm(*given)),
    "a sum and norm": LAYERS._replace(
        add_norm=lambda norm, x, y, drop: LAYERS.add_norm(norm, x, x if y is None else 1.02 * y, drop)
    ),
}


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", WRONG)
def test_kernels_that_compute_something_else_are_not_chosen(name: str) -> None:
    encoder = make("triton", 32, [1], 2, 2, lookback=2, scale=0.1)
    encoder._layers = WRONG[name]
    assert encoder._failure(next(encoder.parameters())).startswith("a trial run has a relative error")
    with torch.no_grad():  # a forecast needs no gradients
        assert bool(encoder._failure(next(encoder.parameters()))) == ("gradient" not in name)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(("low", "scale"), [(None, 0.0), (None, 0.3), (torch.float16, 0.0), (torch.float16, 0.1)])
def test_right_kernels_are_chosen(low: torch.dtype | None, scale: float) -> None:
    encoder = make("triton", 32, [1], 2, 2, lookback=3, scale=scale, dropout=0.5).train()
    with torch.autocast("cpu", dtype=low, enabled=low is not None):
        assert encoder._failure(next(encoder.parameters())) == ""
        with torch.inference_mode():  # a forecast may be the first to ask
            assert encoder._failure(next(encoder.parameters())) == ""


@pytest.mark.usefixtures("few")
def test_weights_that_are_lost_say_nothing_of_the_kernels() -> None:
    encoder = make("triton", 64, [], 1, 4, lookback=2)
    with torch.no_grad():
        next(encoder.parameters()).fill_(torch.nan)
    assert encoder._failure(next(encoder.parameters())) == ""


@pytest.mark.usefixtures("few")
def test_a_forecast_compiles_no_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: set[str] = set()
    run = GridExecutor.__call__

    def noted(executor: Any, *arguments: Any, **named: Any) -> None:
        launched.add(executor.fn.__name__)
        run(executor, *arguments, **named)

    monkeypatch.setattr(GridExecutor, "__call__", noted)
    encoder = make("triton", 32, [1], 2, 2, lookback=2)
    with torch.inference_mode():
        assert encoder._failure(next(encoder.parameters())) == ""
    forward = launched.copy()
    assert {"mlstm_forward", "slstm_forward", "conv_forward"} <= forward
    assert not [name for name in forward if "backward" in name]
    assert encoder._failure(next(encoder.parameters())) == ""
    assert [name for name in launched - forward if "backward" in name]


@pytest.fixture
def on_a_card(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Encoders that believe to be on a card, and the trials that they make: whether with gradients."""
    tried: list[str] = []

    def failure(encoder: SharedEncoder, parameter: Tensor) -> str:
        tried.append(f"gradients {torch.is_grad_enabled()}")
        return ""

    parameter = SimpleNamespace(device=CARD, dtype=torch.float32)
    monkeypatch.setattr(encoder_module, "next", lambda _: parameter, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(SharedEncoder, "_failure", failure)
    return tried


def test_what_is_unwise_in_float32_is_not_compiled(on_a_card: list[str]) -> None:
    encoder = SharedEncoder(256, 2, [1], 4, 12)
    assert encoder.choice(CARD) == ("fused", SPILLS)
    assert on_a_card == []


def test_one_trial_serves_a_training_and_its_forecasts(on_a_card: list[str]) -> None:
    encoder = SharedEncoder(64, 2, [1], 4, 12)
    for enabled in (False, False, True, False, True):
        with torch.set_grad_enabled(enabled):
            assert encoder.choice(CARD) == ("triton", "")
    assert on_a_card == ["gradients False", "gradients True"]


@pytest.mark.parametrize(
    ("capability", "hip", "reason"),
    [
        ((7, 0), None, "compute capability 7.0: needs 8.0"),
        ((7, 5), None, "compute capability 7.5: needs 8.0"),
        ((8, 0), None, ""),
        ((8, 9), None, ""),
        ((12, 0), None, ""),
        ((9, 0), "6.4", "this torch is for AMD GPUs, and the kernels are for NVIDIA"),
    ],
)
def test_a_card_that_the_kernels_are_not_for(
    capability: tuple[int, int], hip: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda card=None: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert encoder_module._gpu_obstacle(CARD) == reason


@pytest.mark.usefixtures("few")
def test_trying_the_kernels_moves_no_random_number_and_no_gradient() -> None:
    encoder = make("triton", 64, [1], 2, 4, dropout=0.5, lookback=4).train().requires_grad_(False)
    torch.manual_seed(3)
    assert encoder._failure(next(encoder.parameters())) == ""
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(3)))
    assert all(parameter.grad is None for parameter in encoder.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("slstm_at", [(), (0,)])
def test_the_operations_keep_torchs_rules(slstm_at: tuple[int, ...]) -> None:
    """torch.library.opcheck on what the layers pass: schema, shapes without data, autograd, tracing."""
    calls: list[tuple[object, tuple[object, ...]]] = []
    name = "slstm" if slstm_at else "mlstm"
    real = getattr(torch.ops.socialx, name)

    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if getattr(func, "__name__", "").startswith(name):
                calls.append((func, args))
            return func(*args, **(kwargs or {}))

    encoder = make("triton", 64, list(slstm_at), 1, 4)
    with Seen():
        encoder(sequences(2, 3, 64))
    assert calls
    arguments = tuple(
        a.detach().requires_grad_(a.is_floating_point()) if isinstance(a, Tensor) else a for a in calls[0][1]
    )
    torch.library.opcheck(real.default, arguments)


def test_memory_for_the_backward_pass(record_property: Callable[[str, object], None]) -> None:
    """64 windows of 325 sensors in bf16 fit a card of 24 GiB."""
    with FakeTensorMode(), torch.autocast("cpu", torch.bfloat16):
        encoder = SharedEncoder(256, 6, [1, 3], 4, 12, 0.1, "triton")
        inputs = (torch.randn(count, 12, 256, requires_grad=True) for count in (64, 128))
        few, many = (saved_bytes(partial(encoder.in_chunks, x, None, rerun=False), encoder) for x in inputs)
    per_sequence = (many - few) / 64
    gib = per_sequence * 64 * 325 / 2**30
    record_property("gib", gib)
    assert 5 < gib <= 20  # 11.3
