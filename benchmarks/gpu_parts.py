"""What one process of ``benchmarks/gpu.py`` measures: one part of the plan, a row of JSON per line on standard output.

    python benchmarks/gpu_parts.py PART '{"width": 128, ...}' [--smoke]

A part may crash, run out of memory or out of time: its process ends, and the others do not notice.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from socialx.data import geo
from socialx.data.loaders import ResidentLoader
from socialx.data.normaliser import Moments, Normaliser
from socialx.data.order import Order
from socialx.data.series import Series
from socialx.data.source import Arrays
from socialx.data.windows import split_windows
from socialx.errors import Fallback
from socialx.model.forecaster import Forecaster, Tokens
from socialx.model.pooling import DotAttention, Geometry, Max, Mean, MlpAttention, SocialLayer, WeightedMean
from socialx.model.xlstm import exact
from socialx.model.xlstm.encoder import SharedEncoder
from socialx.precision import Precision
from socialx.profiling.collector import trace_steps
from socialx.profiling.measure import Lengths, measure
from socialx.profiling.profile import LoaderFacts
from socialx.training.learner import Learner

HISTORY, HORIZON, HEADS = 12, 12, 4
ROUNDS, ROUND_MS = 5, 40.0
CHECKED = 512  # sequences of a timed case that are compared with the package in float64
NAMES = {"fp32": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Bytes that a step must move per token and unit of width, forward and backward, in 16-bit activations with everything
# between two matrix products in one pass and recomputed: docs/performance.md counts them.
BOUND = {"mlstm": 118, "slstm": 210, "last mlstm": 66, "last slstm": 117}
POOLINGS = {
    "attention": DotAttention,
    "attention_mlp": MlpAttention,
    "mean": Mean,
    "weighted_mean": WeightedMean,
    "max": Max,
}

SMOKE = "--smoke" in sys.argv
DEVICE = torch.device("cpu" if SMOKE or not torch.cuda.is_available() else "cuda")
CUDA = DEVICE.type == "cuda"


@dataclass(frozen=True)
class Case:
    """An encoder and the batch that it reads."""

    width: int
    precision: str
    sensors: int = 207
    windows: int = 64
    blocks: int = 4
    slstm_at: tuple[int, ...] = (1, 3)
    history: int = HISTORY

    @property
    def sequences(self) -> int:
        return self.windows * self.sensors

    def bound_bytes(self) -> float:
        """The least that forward and backward can move."""
        kinds = ["slstm" if block in self.slstm_at else "mlstm" for block in range(self.blocks)]
        kinds[-1] = f"last {kinds[-1]}"
        scale = 2 if self.precision == "fp32" else 1
        return scale * sum(BOUND[kind] for kind in kinds) * self.width * self.sequences * self.history

    def encoder(self, impl: str) -> SharedEncoder:
        """Every parameter is moved a little: the package starts its recurrent kernels and gate weights at zero."""
        torch.manual_seed(0)
        made = SharedEncoder(self.width, self.blocks, self.slstm_at, HEADS, self.history, impl=impl)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return made.to(DEVICE)

    def input(self) -> Tensor:
        """x [S,T,E], always the same."""
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(self.sequences, self.history, self.width, generator=generator)
        return x.to(DEVICE).requires_grad_()


def spent_ms(run: Callable[[], object], times: int = 1) -> float:
    """Device milliseconds per call."""
    if not CUDA:
        began = time.perf_counter()
        for _ in range(times):
            run()
        return 1e3 * (time.perf_counter() - began) / times
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / times


def median_ms(run: Callable[[], object]) -> tuple[float, float]:
    """Median and least milliseconds per call, of rounds of about ROUND_MS after one that warms up."""
    first = spent_ms(run)
    times = 1 if SMOKE else max(1, min(50, round(ROUND_MS / max(first, 1e-3))))
    rounds = [spent_ms(run, times) for _ in range(1 if SMOKE else ROUNDS)]
    return statistics.median(rounds), min(rounds)


def installed(package: str) -> str | None:
    """Its version, None where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def in_short(error: BaseException) -> str:
    """The first line of what went wrong."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:160]


# ---------------------------------------------------------------------------------------------------------- machine


def machine() -> Iterator[dict[str, Any]]:
    """What it is, and its two ceilings as measured: bytes copied, and multiplied matrices."""
    facts: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if CUDA else "cpu-smoke",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        **{package: installed(package) for package in ("triton", "xlstm")},
    }
    if CUDA:
        properties = torch.cuda.get_device_properties(DEVICE)
        facts |= {"sms": properties.multi_processor_count, "memory_gib": round(properties.total_memory / 2**30, 1)}
    size = 2**20 if SMOKE else 2**30
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    facts["copy_gb_per_s"] = round(2 * size / median_ms(lambda: target.copy_(source))[0] / 1e6, 1)
    side = 64 if SMOKE else 8192
    a, b = (torch.randn(side, side, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    facts["bf16_tflop_per_s"] = round(2 * side**3 / median_ms(lambda: a @ b)[0] / 1e9, 2)
    yield facts


# ---------------------------------------------------------------------------------------------------------- numbers


def forward_backward(
    encoder: SharedEncoder, forward: Callable[[Tensor], Tensor], x: Tensor, precision: Precision
) -> list[Tensor]:
    """Output [S,E], then the gradients of x and of every parameter."""
    with precision.autocast():
        y = forward(x)
    y = y.to(torch.promote_types(y.dtype, torch.float32))
    weights = torch.linspace(-1, 1, y.shape[1], dtype=y.dtype, device=y.device)
    return [y.detach(), *torch.autograd.grad((weights * y).sum(), [x, *encoder.parameters()])]


def truth(case: Case, x: Tensor) -> list[Tensor]:
    """``forward_backward`` of the package in float64."""
    exact = case.encoder("reference").double()
    return forward_backward(exact, exact, x.detach().double().requires_grad_(), Precision("32-true", DEVICE))


def worst(ours: list[Tensor], exact: list[Tensor]) -> float:
    """max|a-b| / max|b| of the worst tensor; one that is zero but for rounding against a thousandth of the largest."""
    floor = 1e-3 * max(float(b.abs().max()) for b in exact)
    return max(
        float((a.double() - b).abs().max()) / max(float(b.abs().max()), floor) for a, b in zip(ours, exact, strict=True)
    )


def parity(impl: str, **case: Any) -> Iterator[dict[str, Any]]:
    """Errors of output and all gradients against the package in float64, and whether a second run has the same bits.

    What torch leaves uninitialised is filled with NaN: an element that nothing writes would show.
    """
    of = as_case(case)
    # TF32 products are what training uses; the errors of the formulas show without.
    torch.set_float32_matmul_precision("highest")
    x = of.input()
    exact = truth(of, x)
    torch.use_deterministic_algorithms(True, warn_only=True)
    encoder = of.encoder(impl)
    runs = [forward_backward(encoder, encoder, x, Precision(NAMES[of.precision], DEVICE)) for _ in range(2)]
    yield {
        "output": worst(runs[0][:1], exact[:1]),
        "gradient": worst(runs[0][1:], exact[1:]),
        "same_bits": all(torch.equal(a, b) for a, b in zip(*runs, strict=True)),
    }


def as_case(found: dict[str, Any]) -> Case:
    return Case(**{**found, "slstm_at": tuple(found.get("slstm_at", (1, 3)))})


def memcheck() -> Iterator[dict[str, Any]]:
    """A few sequences through every kernel; run below compute-sanitizer, which watches."""
    for width, precision in ((64, "bf16"), (128, "fp32")):
        case = Case(width, precision, 17, 1)
        encoder, x = case.encoder("triton"), case.input()
        forward_backward(encoder, encoder, x, Precision(NAMES[precision], DEVICE))
    if CUDA:
        torch.cuda.synchronize()
    yield {"ran": True}


# ---------------------------------------------------------------------------------------------------------- encoder


def captured(run: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
    """The same call as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        out = run()

    def replay() -> list[Tensor]:
        graph.replay()
        return out

    return replay


def encoder(impl: str, compiled: bool, graph: bool, traced: bool = False, **case: Any) -> Iterator[dict[str, Any]]:
    """Milliseconds of forward and backward of one variant, its error and memory; with a trace its kernels and syncs."""
    torch.set_float32_matmul_precision("high")
    of = as_case(case)
    if graph and not CUDA:
        raise RuntimeError("no CUDA device")
    x, module = of.input(), of.encoder(impl)
    few = x.detach()[:CHECKED].clone().requires_grad_()
    exact = truth(of, few)[:2]
    forward = torch.compile(module, dynamic=False, fullgraph=True) if compiled else module
    precision = Precision(NAMES[of.precision], DEVICE)

    def run() -> list[Tensor]:
        return forward_backward(module, forward, x, precision)

    out = run()  # compiles, and raises what it raises
    before = torch.cuda.memory_allocated() if CUDA else 0
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
        out = run()
        torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30 if CUDA else None
    error = worst([t[:CHECKED] for t in out[:2]], exact)
    del out
    run = captured(run) if graph else run
    ms, least = median_ms(run)
    row: dict[str, Any] = {
        "error": error,
        "peak_gib": peak,
        "ms": ms,
        "least_ms": least,
        "windows_per_s": 1e3 * of.windows / ms,
        "bound_gb_per_s": of.bound_bytes() / ms / 1e6,
    }
    yield row
    if traced:
        trace = trace_steps(run, 3, DEVICE)
        yield row | {
            "kernels_per_step": trace.kernels and trace.kernels.per_step,
            "syncs_per_step": trace.sync and trace.sync.per_step,
            "gpu_busy": trace.gpu_busy,
            "sm_efficiency": trace.sm_efficiency,
            "top": trace.kernels and [asdict(kernel) for kernel in trace.kernels.top],
        }


# ------------------------------------------------------------------------------------------------- training step


def leave_out(what: str, model: nn.Module) -> None:
    """Several operations of torch again where the model has one: "add_norm" of the encoder, "attention" of pooling."""
    for module in model.modules():
        if what == "add_norm" and isinstance(module, SharedEncoder) and module._layers is not None:
            module._layers = module._layers._replace(add_norm=exact.add_norm)
        if what == "attention" and isinstance(module, DotAttention):
            module.attend_fused = module.attend_dense  # type: ignore[method-assign]


def made_learner(impl: str, compile: str, cuda_graph: bool, precision: str, sensors: int, without: str = "") -> Learner:
    """The default model of the toolkit over a network of random places."""
    rng = np.random.default_rng(0)
    width, blocks, slstm_at = (16, 2, [1]) if SMOKE else (128, 4, [1, 3])
    near = geo.nearest(rng.uniform(0, 30, (sensors, 2)), 32)
    torch.manual_seed(0)
    encoder = SharedEncoder(width, blocks, slstm_at, HEADS, HISTORY, 0.1, impl)
    social = [SocialLayer(width, DotAttention(width, Geometry(4, near)), 0.1) for _ in range(2)]
    moments = [Moments(58.6, 12.8)]
    tokens = Tokens(width, sensors, HISTORY, 288)
    model: nn.Module = Forecaster(tokens, encoder, social, HORIZON, Normaliser(moments, moments))
    leave_out(without, model)
    options: dict[str, Any] = {"learning_rate": 2e-3, "weight_decay": 3e-4, "total_steps": 1000}
    chosen = Precision("32-true" if SMOKE else NAMES[precision], DEVICE)
    return Learner(model, chosen, gradient_clip_val=5.0, compile=compile, cuda_graph=cuda_graph, **options)


def resident(sensors: int) -> ResidentLoader:
    """Batches of 64 windows of a random series as long as METR-LA."""
    rows = 400 if SMOKE else 34_272
    rng = np.random.default_rng(0)
    values = rng.normal(58, 10, (rows, sensors)).astype(np.float32)
    values[rng.random(values.shape) < 0.08] = 0
    seconds = 1_330_560_000 + 300 * np.arange(rows, dtype=np.int64)
    series = Series(Arrays(values[..., None], (values != 0)[..., None], seconds), HISTORY, HORIZON, DEVICE)
    starts = split_windows(seconds, 5, HISTORY, HORIZON, "canonical").part("train")
    return ResidentLoader(series, Order(starts, 4 if SMOKE else 64, shuffle=True))


def training(
    impl: str, compile: str, cuda_graph: bool, precision: str, traced: bool = False, without: str = ""
) -> Iterator[dict[str, Any]]:
    """The profile of the step that ``train`` takes, from the resident loader on."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    sensors = 5 if SMOKE else 207
    data = resident(sensors)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Fallback)  # a row is what it says, or it is not there
        learner = made_learner(impl, compile, cuda_graph, precision, sensors, without)
        lengths = Lengths(2 if SMOKE else 80, 5, 50, trace_steps=0, trials=False)
        profile = measure(learner, data, lengths, LoaderFacts("resident", len(data))).as_dict()
        yield profile
        if traced:
            lengths = replace(lengths, steps=2 if SMOKE else 10, trace_steps=8)
            found = measure(learner, data, lengths, LoaderFacts("resident", len(data))).as_dict()
            yield profile | {key: found.get(key) for key in ("gpu_busy", "sm_efficiency", "kernels", "sync", "bubble")}


def loader() -> Iterator[dict[str, Any]]:
    """Milliseconds of a batch, each of other windows than the last."""
    data = resident(5 if SMOKE else 207)
    batches = itertools.chain.from_iterable(data.epoch(number) for number in itertools.count())
    ms, least = median_ms(lambda: next(batches))
    yield {"ms": ms, "least_ms": least}


# ------------------------------------------------------------------------------------- kernels and pooling alone


def kernel(
    name: str, cell: str, width: int, precision: str, options: list[dict[str, int | None]]
) -> Iterator[dict[str, Any]]:
    """One kernel on the arguments that the default step gives it, with each choice of launch options.

    width: of a head.  A call is timed alone, 20 in a CUDA graph over 3 sets of arguments, so that none stays in the
    cache; bytes are those of its arguments, read or written once.
    """
    report = import_module("compile_report")
    operations = import_module("socialx.model.xlstm.operations")
    dtype = TYPES[precision]
    for choice in [{}, *options]:
        operations.LAUNCH.clear()
        operations.LAUNCH[name, cell, width, dtype.itemsize] = choice
        row: dict[str, Any] = {"options": choice}
        try:
            ms, moved = _one_kernel(report, name, cell, width, dtype)
            row |= {"us": 1e3 * ms, "gb_per_s": moved / ms / 1e6}
        except Exception as error:  # noqa: BLE001  of Triton, which has errors of its own
            row["why"] = in_short(error)
            if CUDA:
                torch.cuda.synchronize()  # raises where the context is lost
        yield row


def _one_kernel(report: Any, name: str, cell: str, width: int, dtype: torch.dtype) -> tuple[float, int]:
    """Milliseconds of a call, and the bytes of its arguments."""
    sequences = 13 if SMOKE else 64 * 207
    found = report.launches(cell, width, HISTORY, dtype, sequences=sequences)
    jit, grid, arguments = next(launch for launch in found if launch.kernel.__name__ == name)

    def filled(value: Any) -> Any:
        """Random numbers in the same strides: some arguments are views, and a kernel is told their strides."""
        if not torch.is_tensor(value):
            return value
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=DEVICE)
        return made.copy_(torch.randn(value.shape, device=DEVICE))

    sets = [{key: filled(value) for key, value in arguments.items()} for _ in range(1 if SMOKE else 3)]
    moved = sum(value.numel() * value.element_size() for value in sets[0].values() if torch.is_tensor(value))
    if not CUDA:
        raise RuntimeError("no CUDA device")

    def calls() -> list[Tensor]:
        for number in range(20):
            jit[grid](**sets[number % len(sets)])
        return []

    calls()
    return median_ms(captured(calls))[0] / 20, moved


def pooling(kind: str, dense: bool, without: str = "") -> Iterator[dict[str, Any]]:
    """Forward and backward of one layer of pooling alone, 64 windows of 207 sensors with 32 neighbours, width 128."""
    windows, sensors, width = (2, 9, 16) if SMOKE else (64, 207, 128)
    near = geo.nearest(np.random.default_rng(0).uniform(0, 30, (sensors, 2)), min(32, sensors - 1))
    torch.manual_seed(0)
    made = POOLINGS[kind](width, Geometry(4, near)).to(DEVICE)
    made.geometry.prefers_dense = lambda: dense  # type: ignore[method-assign]
    leave_out(without, made)
    state = torch.randn(windows, sensors, width, device=DEVICE, requires_grad=True)

    def run() -> tuple[Tensor, ...]:
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            pooled = made(state)
        trained = [state, *(p for p in made.parameters() if p.requires_grad)]
        found = torch.autograd.grad(pooled.float().sum(), trained, allow_unused=True)  # not every kind uses all of them
        return tuple(gradient for gradient in found if gradient is not None)

    same = all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))
    ms, least = median_ms(run)
    yield {"ms": ms, "least_ms": least, "same_bits": same}


# ---------------------------------------------------------------------------------------------------------- learning


def learning(
    data: str, runs: str, seed: int, precision: str, epochs: int, options: list[str]
) -> Iterator[dict[str, Any]]:
    """A training on real data by the toolkit's own settings -> its epochs as they come, then its scores on the test."""
    import socialx
    from socialx.settings_layers import Layers

    demo = Path(__file__).parents[1] / "examples/demo.yaml"
    layers = Layers.read([demo]) if SMOKE else Layers(size="large")
    given = {
        "data.path": Path(data),
        "trainer.seed": seed,
        "trainer.precision": precision,
        "trainer.max_epochs": epochs,
        **dict(option.split("=", 1) for option in options),
    }
    began = time.monotonic()
    folder = Path(runs) / f"{precision}-{seed}"
    run = socialx.train(settings=layers.over(given), run_dir=folder, overwrite=True)
    trained_s = time.monotonic() - began
    row: dict[str, Any] = {"epochs": len(run.epochs), "seconds": trained_s}
    if run.best is not None:
        row |= {"validation_mae": run.best.validation_mae, "windows_per_s": run.epochs[-1].windows_per_s}
    yield row
    scores = socialx.evaluate([run])[run]
    yield row | {"mae": {str(at): scores.at(at).mae for at in (15, 30, 60)}, "all": scores.overall().mae}


PARTS: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
    part.__name__: part for part in (machine, parity, memcheck, encoder, training, loader, kernel, pooling, learning)
}


def main() -> None:
    name, options = sys.argv[1], json.loads(sys.argv[2])
    sys.path.insert(0, str(Path(__file__).parent))
    if fault := os.environ.get(f"SOCIALX_BENCH_FAULT_{name.upper()}"):  # for the test of the plan
        if fault == "abort":
            os.abort()
        raise type(fault, (Exception,), {})("as asked")
    for row in PARTS[name](**options):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
