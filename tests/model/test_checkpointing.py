"""Recomputing in the backward pass changes no number, keeps less for it, and holds one chunk at a time."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from socialx.model.xlstm.encoder import SharedEncoder
from socialx.settings.schema import ModelSettings
from tests.encoders import LOOKBACK, gradients, loss_of, make, sequences
from tests.meters import NeverWaits, PeakBytes, saved_bytes

GIB = 2**30
IMPLEMENTATIONS = ["fused", "reference"]
CUTS = [(None, False), (7, True), (100, True)]  # chunk, recompute


def outcome(
    backend: str,
    activation_checkpointing: bool,
    encoder_batch: int | None,
    recompute: bool,
    low: torch.dtype | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Output and all gradients of a training forward with dropout, always from the same seed."""
    # In 16 bits a CPU multiplies by the scale of a mask in another order.
    dtype, dropout = (torch.float32, 0.0) if low else (torch.float64, 0.3)
    encoder = make(
        32, 3, [0, 2], dtype=dtype, backend=backend, dropout=dropout, activation_checkpointing=activation_checkpointing
    ).train()
    x = sequences(23, LOOKBACK, 32, dtype)
    torch.manual_seed(5)
    with torch.autocast("cpu", dtype=low, enabled=low is not None):
        y = encoder.in_chunks(x, encoder_batch, recompute)
    torch.manual_seed(6)  # the backward pass must not depend on where the generator stands, nor move it
    found = gradients(y, x, encoder)
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(6)))
    return y, found


@pytest.mark.parametrize("low", [None, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", IMPLEMENTATIONS)
@pytest.mark.parametrize(("encoder_batch", "recompute"), CUTS)
@pytest.mark.parametrize("activation_checkpointing", [False, True])
def test_recomputing_changes_no_bit_dropout_included(
    activation_checkpointing: bool, encoder_batch: int | None, recompute: bool, backend: str, low: torch.dtype | None
) -> None:
    expected, truth = outcome(backend, False, encoder_batch, False, low)
    y, found = outcome(backend, activation_checkpointing, encoder_batch, recompute, low)
    assert torch.equal(y, expected)
    assert all(torch.equal(found[name], truth[name]) for name in truth)


def test_dropout_was_active() -> None:
    encoder, x = make(32, 3, [0, 2], dropout=0.3, activation_checkpointing=True), sequences(23, LOOKBACK, 32)
    assert not torch.equal(encoder.train()(x), encoder.eval()(x))


@pytest.mark.slow
def test_one_chunk_is_alive_at_a_time() -> None:
    def peak(encoder_batch: int | None, recompute: bool, activation_checkpointing: bool = False) -> int:
        encoder = make(32, 4, [1, 3], dtype=torch.float32, activation_checkpointing=activation_checkpointing).train()
        x = sequences(128, LOOKBACK, 32, torch.float32)
        with PeakBytes() as bytes_:
            loss_of(encoder.in_chunks(x, encoder_batch, recompute)).backward()
        return bytes_.peak

    whole, half, eighth = (peak(encoder_batch, True) for encoder_batch in (128, 64, 16))
    assert peak(16, False) > 0.9 * whole
    assert half < 0.6 * whole
    assert eighth < 0.3 * whole
    assert peak(None, False, activation_checkpointing=True) < 0.4 * whole
    assert peak(64, True, activation_checkpointing=True) < 0.7 * half


@pytest.mark.parametrize("device_type", ["cpu", "meta"])
def test_only_a_device_with_little_memory_recomputes(device_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(SharedEncoder, "in_chunks", lambda self, x, *cut, **how: asked.append((*cut, how)))
    for encoder_batch in (None, 5):
        make(encoder_batch=encoder_batch)(torch.zeros(9, LOOKBACK, 32, device=device_type))
    on_cpu = [(384, {"rerun": False}), (5, {"rerun": False})]
    assert asked == (on_cpu if device_type == "cpu" else [(None, {"rerun": True}), (5, {"rerun": True})])


@pytest.mark.parametrize("backend", IMPLEMENTATIONS)
def test_no_state_of_the_generator_is_read(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No CUDA graph allows it."""
    monkeypatch.setattr(torch, "get_rng_state", lambda: pytest.fail("the state is read"))
    encoder = make(dropout=0.3, backend=backend, activation_checkpointing=True).train()
    loss_of(encoder.in_chunks(sequences(9, LOOKBACK, 32), 4, True)).backward()


def test_recomputing_never_waits() -> None:
    encoder = make(blocks=3, slstm_at=[1], dropout=0.1, activation_checkpointing=True).train()
    x = sequences(9, LOOKBACK, 32)
    with NeverWaits():
        loss_of(encoder.in_chunks(x, 4, True)).backward()


@pytest.mark.slow
@pytest.mark.parametrize(("encoder_batch", "activation_checkpointing"), [(None, True), (2, True), (None, False)])
def test_it_compiles_without_a_graph_break(encoder_batch: int | None, activation_checkpointing: bool) -> None:
    torch._dynamo.reset()
    options = {"dropout": 0.3, "activation_checkpointing": activation_checkpointing}
    encoder, x = make(blocks=2, slstm_at=[1], **options).train(), sequences(4, 3, 32)

    def run(x: Tensor) -> Tensor:
        return encoder.in_chunks(x, encoder_batch, True)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    results = []
    for function in (run, compiled):
        torch.manual_seed(0)
        y = function(x)
        results.append((y, gradients(y, x, encoder)))
    (ours, truth), (traced, found) = results
    torch.testing.assert_close(traced, ours, rtol=1e-12, atol=1e-12)
    for name in truth:
        torch.testing.assert_close(found[name], truth[name], rtol=1e-9, atol=1e-9)


def test_what_a_large_step_keeps_for_its_backward_pass(record_property: Callable[[str, object], None]) -> None:
    """E = 256, 6 blocks, bf16: 64 windows of PEMS-BAY's 325 sensors, from the slope between two small steps."""

    def per_step(activation_checkpointing: bool) -> float:
        torch.manual_seed(0)
        sizes = {"width": 256, "blocks": 6, "slstm_at": (1, 3), "dropout": 0.1}
        encoder = SharedEncoder(ModelSettings(**sizes, activation_checkpointing=activation_checkpointing), 12).train()

        def saved(count: int) -> int:
            x = torch.randn(count, 12, 256, requires_grad=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return saved_bytes(lambda: encoder(x), encoder)

        return (saved(32) - saved(16)) / 16 * 64 * 325 / GIB

    whole, blocks = per_step(False), per_step(True)
    record_property("saved_gib", round(whole, 2))
    record_property("saved_gib_checkpointing", round(blocks, 2))
    print(f"saved for backward: {whole:.1f} GiB, with checkpointing {blocks:.1f} GiB")
    assert whole <= 28
    assert blocks <= 2
