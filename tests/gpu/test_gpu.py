"""What only a CUDA device can show: the same numbers as on a CPU, and a step that never waits for the device."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from socialx.batch import Batch, Example
from socialx.data.loaders import ChunkLoader, Loader, Loading, ResidentLoader, WorkerLoader
from socialx.data.order import Order, Share
from socialx.data.series import Series
from socialx.data.source import Arrays
from socialx.data.windows import split_windows
from socialx.errors import Fallback
from socialx.model.xlstm.encoder import SharedEncoder
from socialx.precision import Precision, resolve_precision
from socialx.profiling.collector import WARMUP_STEPS, sync_sites, trace_steps
from socialx.profiling.measure import Lengths, measure
from socialx.profiling.profile import LoaderFacts
from socialx.profiling.trace import Sync
from socialx.scoring.references import CopyLast, HistoricalAverage
from socialx.training.capture import CapturedStep
from socialx.training.learner import Learner
from socialx.training.loop import Progress, fit, load_progress, run_steps
from socialx.training.run_folder import RunFolder
from tests.attention import check_attention
from tests.commands import small_file, socialx
from tests.networks import CPU, batch, example, forecaster, scores_of, speeds

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)
on_both = pytest.mark.parametrize("impl", ["fused", "triton"])
in_every_precision = pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed"])


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@contextmanager
def refused_waits() -> Iterator[None]:
    """Whatever waits for the device raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def series(device: torch.device) -> Series:
    values, valid, seconds = speeds(600, 5)
    return Series(Arrays(values[..., None], valid[..., None], seconds), 12, 12, device)


def resident(part: str = "train", batch_size: int = 100, shuffle: bool = True) -> ResidentLoader:
    _, _, seconds = speeds(600, 5)
    windows = split_windows(seconds, 5, 12, 12, "canonical")
    return ResidentLoader(series(CUDA), Order(windows.part(part), batch_size, shuffle))


def learner(precision: str = "32-true", dropout: float = 0.1, impl: str = "triton", **options: object) -> Learner:
    choices = {"learning_rate": 3e-3, "weight_decay": 1e-3, "total_steps": 60, "gradient_clip_val": 5.0, **options}
    model = forecaster(width=32, dropout=dropout, social=2, impl=impl)
    return Learner(model, Precision(precision, CUDA), **choices)  # type: ignore[arg-type]


def test_forecast_and_gradients_equal_the_cpus() -> None:
    results = []
    for device in (CPU, CUDA):
        model, b = forecaster(social=2).double().to(device), batch().to(device)
        b = Batch(*(t.double() if t.is_floating_point() else t for t in b))
        forecast = model(b)
        forecast.square().mean().backward()
        results.append([forecast.cpu(), *(p.grad.cpu() for p in model.parameters() if p.grad is not None)])
    for on_cpu, on_cuda in zip(*results, strict=True):
        torch.testing.assert_close(on_cuda, on_cpu, rtol=1e-9, atol=1e-11)


def test_batches_equal_the_cpus() -> None:
    def cut(made: Series, start: int) -> tuple[Tensor, ...]:
        starts = torch.tensor([start], device=made.device)
        return (*made.window(starts), *made.target(starts))

    for start in (0, 17, 300):
        on_cpu, on_cuda = (cut(series(device), start) for device in (CPU, CUDA))
        assert all(torch.equal(a.nan_to_num(), b.cpu().nan_to_num()) for a, b in zip(on_cpu, on_cuda, strict=True))


@on_both
@in_every_precision
def test_a_step_never_waits(precision: str, impl: str) -> None:
    made = learner(precision, impl=impl, accumulate_grad_batches=2)
    data = resident()
    run_steps(made, data.epoch(0), lambda loss, batches: False)
    batches = data.epoch(1)
    with refused_waits():
        run_steps(made, batches, lambda loss, batches: False)


@on_both
@in_every_precision
def test_it_learns_in_every_precision(precision: str, impl: str) -> None:
    made, e = learner(precision, impl=impl), example().to(CUDA)
    losses = [made.step([e]).item() for _ in range(40)]
    assert sum(losses[-5:]) < 0.75 * sum(losses[:5])


def trained(precision: str, **options: Any) -> list[torch.Tensor]:
    """Losses and weights after 18 steps on groups of two batches and of one."""
    made, data, losses = learner(precision, 0.0, accumulate_grad_batches=2, **options), resident(), []

    def keep(loss: torch.Tensor, batches: int) -> bool:
        losses.append(loss)
        return False

    for epoch in range(6):
        run_steps(made, data.epoch(epoch), keep)
    return [torch.stack(losses), *(p.detach() for p in made.model.parameters())]


@pytest.mark.filterwarnings("error::socialx.errors.Fallback")
@pytest.mark.parametrize("compile", ["off", "default"])
@pytest.mark.parametrize("cuda_graph", [False, True])
@in_every_precision
@on_both
def test_recorded_and_compiled_steps_are_the_step(precision: str, cuda_graph: bool, compile: str, impl: str) -> None:
    # Adam turns the rounding of a gradient near zero into a step of the learning rate: half types wander further.
    rtol, atol = (1e-3, 2e-3) if precision == "32-true" else (5e-2, 5e-2)
    fast = trained(precision, compile=compile, cuda_graph=cuda_graph, impl=impl)
    for ours, plain in zip(fast, trained(precision, impl="fused"), strict=True):
        torch.testing.assert_close(ours, plain, rtol=rtol, atol=atol)


def test_a_recorded_step_draws_new_dropout_masks() -> None:
    made, e = learner(cuda_graph=True, learning_rate=1e-9), example().to(CUDA)
    losses = {made.step([e]).item() for _ in range(12)}
    assert len(losses) > 10


@in_every_precision
def test_a_recorded_step_never_waits(precision: str) -> None:
    made, e = learner(precision, cuda_graph=True), example().to(CUDA)
    for _ in range(6):
        made.step([e])
    with refused_waits():
        for _ in range(3):
            made.step([e])


@pytest.mark.parametrize("low", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("width", "steps", "slstm_at"), [(64, 12, [1]), (128, 5, [0, 1]), (256, 12, [1]), (64, 64, [])]
)
def test_the_kernels_equal_the_package(width: int, steps: int, slstm_at: list[int], low: torch.dtype | None) -> None:
    """Errors against the package in float64 are about those of the fused forward."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(67, steps, width, dtype=torch.float64, generator=generator).to(CUDA)
    results = {}
    for impl, dtype in (("reference", torch.float64), ("fused", torch.float32), ("triton", torch.float32)):
        torch.manual_seed(0)
        encoder = SharedEncoder(width, 2, slstm_at, 4, steps, impl=impl)
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        encoder, inputs = encoder.to(CUDA, dtype), x.detach().to(dtype).requires_grad_()
        with torch.autocast("cuda", dtype=low, enabled=low is not None and dtype == torch.float32):
            y = encoder(inputs)
        y = y.to(dtype)
        gradients = torch.autograd.grad(y.square().sum(), [inputs, *encoder.parameters()])
        results[impl] = [y.detach().double(), *(gradient.double() for gradient in gradients)]

    floor = 1e-2 * max(float(exact.abs().max()) for exact in results["reference"])

    def error(impl: str) -> float:
        pairs = zip(results[impl], results["reference"], strict=True)
        return max(float((ours - exact).abs().max()) / max(float(exact.abs().max()), floor) for ours, exact in pairs)

    assert error("triton") <= max(3 * error("fused"), 5e-5)


@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("low", [None, torch.float16, torch.bfloat16])
def test_attention_in_one_operation_trains_the_radius(low: torch.dtype | None, scale: float) -> None:
    check_attention(CUDA, low, scale)


@pytest.mark.parametrize("low", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [((12, 207), 128), ((3, 5), 96)])
def test_the_sum_and_norm_between_layers(rows: tuple[int, int], width: int, low: torch.dtype) -> None:
    add_norm = import_module("socialx.model.xlstm.operations").add_norm
    generator = torch.Generator().manual_seed(1)
    x, y, *weights = (torch.randn(*rows, width, generator=generator).to(CUDA) for _ in range(4))
    scale, found = torch.randn(width, generator=generator).to(CUDA), []
    for dtype, out_type in ((torch.float64, torch.float64), (torch.float32, low)):
        leaves = [t.to(of).requires_grad_() for t, of in ((x, dtype), (y.to(low), out_type), (scale, dtype))]
        if dtype == torch.float64:
            total = leaves[0] + leaves[1]
            out = torch.nn.functional.layer_norm(total, (width,), leaves[2])
        else:
            total, out = add_norm(*leaves, 1e-5, low)
        loss = (total * weights[0]).double().sum() + (out * weights[1]).double().sum()
        found.append([total.detach(), out.detach(), *torch.autograd.grad(loss, leaves)])
    most = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[low]
    for truth, ours in zip(*found, strict=True):
        assert float((ours.double() - truth).abs().max() / truth.abs().max()) < most


def test_auto_takes_the_kernels_and_says_why_not() -> None:
    assert SharedEncoder(64, 1, [0], 4, 12).choice(CUDA) == ("triton", "")
    impl, reason = SharedEncoder(48, 1, [0], 2, 12).choice(CUDA)
    assert impl == "fused"
    assert "heads of 24 channels" in reason


@pytest.mark.parametrize("mode", ["chunk", "workers"])
@pytest.mark.parametrize("workers", [0, 2])
def test_all_modes_serve_the_same_batches(mode: str, workers: int) -> None:
    values, valid, seconds = speeds(3600, 5)
    source = Arrays(values[..., None], valid[..., None], seconds)
    order = Order(np.arange(3000), batch_size=48, shuffle=True, seed=2, chunk=700, share=Share(1, 2))

    def part(rows: slice) -> Series:
        return Series(source, 12, 12, CPU, rows=slice(rows.start, min(rows.stop, 3600)), pinned=mode == "chunk")

    expected = ResidentLoader(Series(source, 12, 12, CUDA), order)
    if mode == "chunk":
        loader: Loader = ChunkLoader(part, 24, CUDA, order)
    else:
        loader = WorkerLoader(part, 24, CUDA, Loading(workers=workers), 1 << 20, order)
    for epoch in range(2):
        for one, other in zip(expected.epoch(epoch), loader.epoch(epoch), strict=True):
            moved = other.to(CUDA)
            pairs = zip((*one.batch, *one.target), (*moved.batch, *moved.target), strict=True)
            assert all(torch.equal(a.nan_to_num(-1.0), b.nan_to_num(-1.0)) and b.is_cuda for a, b in pairs)


def test_a_recording_that_fails_leaves_random_numbers_usable() -> None:
    made, e = learner(cuda_graph=True), example().to(CUDA)
    plain, reads = made._on_device, []

    def reading(examples: Sequence[Example]) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            reads.append(examples[0].batch.history.sum().item())  # which no capture allows
        return plain(examples)

    made._device_step = CapturedStep(reading, made._drop_gradients)
    with pytest.warns(Fallback, match=r"trainer\.cuda_graph: no step can be recorded"):
        losses = [made.step([e]).item() for _ in range(8)]
    assert np.isfinite(losses).all()
    assert torch.isfinite(torch.nn.functional.dropout(torch.ones(9, device=CUDA))).all()


def test_auto_is_a_mixed_precision() -> None:
    assert resolve_precision("auto", CUDA).name in ("bf16-mixed", "16-mixed")


def test_scores_of_the_baselines_equal_the_cpus() -> None:
    values, valid, seconds = speeds(600, 5)
    for model in (
        CopyLast(12, True, [50.0]),
        CopyLast(12, False, [50.0]),
        HistoricalAverage([(values[..., None], valid[..., None], seconds)], (5, 1), 5),
    ):
        maes = []
        for device in (CPU, CUDA):
            data = ResidentLoader(series(device), Order(resident("test").starts, 16))
            maes.append(scores_of(model.to(device), data, Precision("32-true", device)).overall.mae)
        assert maes[1] == pytest.approx(maes[0], rel=1e-9)


def test_the_profile_reads_the_devices_clock() -> None:
    data = resident()
    lengths = Lengths(steps=20, warmup_steps=3, log_every_n_steps=5, trace_steps=0)
    profile = measure(learner(), data, lengths, LoaderFacts("resident", len(data)))
    assert profile.window.clock == "device"
    measured = [share for share in vars(profile.shares).values() if share is not None]
    assert sum(measured) == pytest.approx(1)
    assert all(share >= 0 for share in measured)
    assert profile.memory is not None
    assert profile.memory.peak_bytes > 0
    assert profile.why["gpu_busy"] == "trace_steps is 0"


def test_the_profile_says_how_busy_the_device_was() -> None:
    # 51 batches per epoch, so that no epoch begins in the traced steps, and the loss is read in none of them.
    data = resident(batch_size=8)
    lengths = Lengths(steps=10, warmup_steps=3, log_every_n_steps=1000, trials=False)
    profile = measure(learner(), data, lengths, LoaderFacts("resident", len(data)))
    assert profile.gpu_busy is not None, profile.why
    shares, kernels, bubble = profile.shares, profile.kernels, profile.bubble
    assert 0 < profile.gpu_busy <= 1
    assert profile.sm_efficiency is not None, profile.why
    assert 0 < profile.sm_efficiency <= profile.gpu_busy
    assert shares.kernel is not None
    assert shares.bubble is not None
    assert bubble is not None
    assert kernels is not None
    assert shares.kernel + shares.bubble == pytest.approx(shares.span)
    assert sum(bubble.values()) == pytest.approx(shares.bubble)
    assert kernels.per_step > 0
    assert kernels.launches_per_step is not None
    assert 0 < kernels.launches_per_step <= 2 * kernels.per_step
    assert kernels.traced_steps == 8
    assert 0.5 < kernels.slowdown < 10
    assert len(kernels.top) == 5
    assert profile.sync == Sync(per_step=0.0, by_call={}, sites=[])


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
        assert trace.sync is not None
        assert trace.copy is not None
        assert trace.kernels.per_step >= 9
        assert trace.kernels.top[0].share > 0.5
        assert trace.sync.per_step >= 1
        assert trace.copy.pageable is True
        assert trace.copy.h2d_bytes_per_step == pytest.approx(4 << 20, rel=0.01)
        assert trace.gpu_busy is not None
        assert 0.1 < trace.gpu_busy <= 1


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
    assert trace.kernels.graph_launches_per_step == 1
    assert trace.span is not None
    assert sum(trace.span.values()) == pytest.approx(1)
    assert trace.span["unknown"] == 0


def test_the_line_that_waits_is_named() -> None:
    x = torch.ones(3, device=CUDA)
    sites = sync_sites(lambda: x.sum().item())
    assert [Path(site.rpartition(":")[0]).name for site in sites] == ["test_gpu.py"]
    assert torch.cuda.get_sync_debug_mode() == 0


def test_a_run_resumes(tmp_path: Path) -> None:
    def go(made: Learner, path: Path, epochs: int, progress: Progress | None = None) -> Progress:
        run = RunFolder(path)
        limits = {"horizon": 12, "max_epochs": epochs, "patience": 9}
        return fit(made, resident(), resident("validation"), run, **limits, progress=progress)

    made = learner()
    go(made, tmp_path / "run", 1)
    resumed = learner()
    progress = load_progress(resumed, RunFolder(tmp_path / "run"))
    assert progress.epoch == 1
    assert resumed.steps == made.steps
    go(resumed, tmp_path / "run", 2, progress)
    assert (tmp_path / "run/metrics.jsonl").read_text().count("\n") == 2


def step_of(chunk: int | None, checkpointing: bool, dropout: float = 0.0) -> tuple[int, list[Tensor]]:
    """Bytes at the peak of one forward and backward of 4096 sequences in fp64, and all gradients."""
    torch.manual_seed(0)
    encoder = SharedEncoder(64, 4, [1, 3], 4, 12, dropout, chunk=chunk, checkpointing=checkpointing)
    encoder.double().to(CUDA).train()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4096, 12, 64, generator=generator, dtype=torch.float64).to(CUDA).requires_grad_()
    for _ in range(2):  # the first makes the workspaces of the libraries, which stay
        encoder.zero_grad(set_to_none=True)
        x.grad = None
        gc.collect()
        torch.cuda.reset_peak_memory_stats(CUDA)
        before = torch.cuda.memory_allocated(CUDA)
        torch.manual_seed(2)
        encoder(x).square().sum().backward()
        peak = torch.cuda.max_memory_allocated(CUDA) - before
    return peak, [x.grad.cpu(), *(p.grad.cpu() for p in encoder.parameters() if p.grad is not None)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("chunk", "checkpointing", "share"), [(512, False, 0.4), (None, True, 0.6), (2048, True, 0.4)], ids=str
)
def test_recomputing_needs_less_memory_for_the_same_gradients(
    chunk: int | None, checkpointing: bool, share: float
) -> None:
    whole, truth = step_of(None, False)
    peak, gradients = step_of(chunk, checkpointing)
    assert peak < share * whole
    for found, expected in zip(gradients, truth, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8 * float(expected.abs().max()))


def test_the_recomputation_draws_the_same_dropout() -> None:
    _, truth = step_of(None, False, dropout=0.3)
    _, gradients = step_of(None, True, dropout=0.3)
    for found, expected in zip(gradients, truth, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8 * float(expected.abs().max()))


@in_every_precision
def test_recomputing_never_waits(precision: str) -> None:
    made, e = learner(precision), example().to(CUDA)
    made.model.encoder.chunk, made.model.encoder.checkpointing = 8, True  # type: ignore[assignment, union-attr]
    made.step([e])
    with refused_waits():
        made.step([e])


@pytest.mark.parametrize(("chunk", "checkpointing"), [(None, True), (16, True), (16, False)])
def test_recomputing_without_dropout_can_be_captured(chunk: int | None, checkpointing: bool) -> None:
    torch.manual_seed(0)
    encoder = SharedEncoder(64, 2, [1], 4, 12, chunk=chunk, checkpointing=checkpointing).to(CUDA).train()
    x = torch.randn(64, 12, 64, device=CUDA)

    def step() -> None:
        encoder(x).square().sum().backward()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    encoder.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    captured = [p.grad.clone() for p in encoder.parameters() if p.grad is not None]
    encoder.zero_grad(set_to_none=True)
    step()
    expected = [p.grad for p in encoder.parameters() if p.grad is not None]
    assert len(captured) == len(expected) > 0
    for found, truth in zip(captured, expected, strict=True):
        torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-5)


@contextmanager
def room_for(bytes_: int) -> Iterator[None]:
    """Let this process have so many bytes of the card more than it holds."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(CUDA).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(CUDA) + bytes_) / total, CUDA)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, CUDA)


def named(stderr: str) -> list[list[str]]:
    """The flags of each remedy in the line of an error."""
    (line,) = [line for line in stderr.splitlines() if line.startswith("error") and "out of memory" in line]
    return [flags.split() for flags in line.rpartition(": add ")[2].split(", or ")]


def test_out_of_memory_names_settings_that_then_train(tmp_path: Path) -> None:
    data = small_file(tmp_path, rows=400, sensors=28)
    large = ["--width", "256", "--blocks", "6", "--precision", "bf16-mixed", "--device", "cuda", "--max-epochs", "1"]
    command = ["train", "--data", data, *large]
    with room_for(3 * 2**29):  # 64 windows of 28 sensors keep more for the backward pass: 1.8 GiB fused
        result = socialx(*command, "--run-dir", tmp_path / "asked")
        assert result.exit_code == 1
        remedies = named(result.stderr)
        assert [flags[0] for flags in remedies] == ["--chunk", "--batch-size", "--checkpointing"]
        again = socialx(*command, *remedies[1], "--run-dir", tmp_path / "halved")
        assert again.exit_code == 0, again.stderr


def test_scoring_out_of_memory_names_settings_that_then_score(tmp_path: Path) -> None:
    data = small_file(tmp_path, rows=400, sensors=28)
    run = tmp_path / "run"
    shape = ["--width", "256", "--blocks", "2", "--slstm-at", "1", "--batch-size", "16", "--max-epochs", "1"]
    assert socialx("train", "--data", data, "--device", "cuda", "--run-dir", run, *shape).exit_code == 0
    score = ["evaluate", run, "--part", "train", "--device", "cuda"]
    with room_for(3 * 2**27):  # 264 x 28 sequences of 12 steps: one [T,S,2E] tensor in fp32 has 173 MiB
        result = socialx(*score, "--batch-size", "264")
        assert result.exit_code == 1, result.stdout
        assert [flags[0] for flags in named(result.stderr)] == ["--chunk", "--batch-size"]
        for windows in (132, 66, 33):  # halved as often as it takes
            again = socialx(*score, "--batch-size", windows)
            if again.exit_code == 0:
                return
        pytest.fail(again.stderr)
