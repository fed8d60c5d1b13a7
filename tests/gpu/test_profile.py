"""What a profile measures on CUDA."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from socialx.profiling import trials
from socialx.profiling.analysis import PARTS, PHASES
from socialx.profiling.collector import WARMUP_STEPS, sync_sites, trace_steps
from socialx.profiling.measure import Lengths, measure
from socialx.profiling.sections import LoaderFacts, Sync
from socialx.profiling.trials import try_settings
from tests.gpu.device import CUDA, PSEUDO, learner, needs_card, on_device

pytestmark = pytest.mark.gpu


def test_the_profile_reads_the_devices_clock() -> None:
    data = on_device()
    lengths = Lengths(steps=20, warmup_steps=3, log_every_n_steps=5, trace_steps=0, trials=not PSEUDO)
    profile = measure(learner(), data, lengths, LoaderFacts("on_device", len(data)))
    assert profile.window.clock == "device"
    measured = [share for share in asdict(profile.shares).values() if share is not None]
    assert sum(asdict(profile.shares)[name] for name in set(PHASES.values())) == pytest.approx(1)
    assert sum(asdict(profile.shares)[name] for name in PARTS.values()) == pytest.approx(profile.shares.span)
    assert all(share >= 0 for share in measured)
    assert profile.memory.peak_bytes > 0
    assert profile.why["gpu_busy"] == "trace_steps is 0"


def test_a_larger_batch_of_recorded_steps_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both batches are recorded before they are timed."""
    monkeypatch.setattr(trials, "BLOCK_S", 1e-9)
    made, example = learner(cuda_graph=True), next(on_device().selections(0))
    (tried,) = try_settings(made, example, lambda: None)
    assert (tried.setting, tried.value) == ("loader.batch_size", 4 * example.rows.shape[1])
    assert tried.gain > 0
    shapes = made._device_step._shapes.values()  # type: ignore[attr-defined]
    assert [shape.recording is not None for shape in shapes] == [True, True]


@needs_card
def test_the_profile_says_how_busy_the_device_was() -> None:
    # 51 batches per epoch, so that no epoch begins in the traced steps, and the loss is read in none of them.
    data = on_device(batch_size=8)
    lengths = Lengths(steps=10, warmup_steps=3, log_every_n_steps=1000, trials=False)
    profile = measure(learner(), data, lengths, LoaderFacts("on_device", len(data)))
    assert profile.gpu_busy is not None, profile.why
    shares, kernels, bubble = profile.shares, profile.kernels, profile.bubble
    assert 0 < profile.sm_efficiency <= profile.gpu_busy <= 1
    assert shares.kernel + shares.bubble == pytest.approx(shares.span)
    assert sum(asdict(bubble).values()) == pytest.approx(shares.bubble)
    assert shares.bubble - 1e-9 <= profile.idle.whole <= 1 - shares.kernel + 1e-9
    assert profile.idle.unknown < 0.05
    assert kernels.per_step > 0
    assert 0 < kernels.launches_per_step <= 2 * kernels.per_step
    assert kernels.traced_steps == 8
    assert 0.5 < kernels.slowdown < 10
    assert (len(kernels.top), profile.sync) == (5, Sync(0.0))


@needs_card
def test_a_trace_counts_what_a_step_does() -> None:
    x, pageable, read = torch.randn(2048, 2048, device=CUDA), torch.ones(1 << 20), []

    def step() -> None:
        product = x
        for _ in range(8):
            product = product @ x
        pageable.to(CUDA)
        read.append(product.sum().item())

    for _ in range(2):  # a second profiler in the same process sees as much as the first
        read.clear()
        trace = trace_steps(step, 5, CUDA)
        assert len(read) == 5 + WARMUP_STEPS
        assert trace.kernels is not None, trace.why
        assert trace.kernels.per_step >= 9
        assert trace.kernels.top[0].share > 0.5
        assert trace.sync.per_step >= 1
        assert trace.copy.pageable is True
        assert trace.copy.h2d_bytes_per_step == pytest.approx(4 << 20, rel=0.01)
        assert 0.1 < trace.gpu_busy <= 1


@needs_card
def test_a_replayed_graph_is_one_launch_of_many_kernels() -> None:
    x = torch.randn(256, 256, device=CUDA)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):  # cuBLAS is ready before the capture
        x @ x
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        product = x
        for _ in range(20):
            product = product @ x
    trace = trace_steps(graph.replay, 5, CUDA)
    assert trace.kernels is not None, trace.why
    assert trace.kernels.per_step >= 20
    assert 1 <= trace.kernels.launches_per_step <= 3  # a replay may also set seed and offset of the generator
    assert (sum(trace.span.values()), trace.span["unknown"]) == (pytest.approx(1), 0)


def test_the_line_that_waits_is_named() -> None:
    x = torch.ones(3, device=CUDA)
    sites = sync_sites(lambda: x.sum().item())
    assert [Path(site.rpartition(":")[0]).name for site in sites] == ["test_profile.py"]
    assert torch.cuda.get_sync_debug_mode() == 0
