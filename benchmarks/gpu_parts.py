"""What one process of ``benchmarks/gpu.py`` measures: parts of the plan as they are asked for, a row of JSON per line.

    echo '["encoder", {"impl": "fused", "compiled": false, ...}]' | python benchmarks/gpu_parts.py [--smoke]

What a part raises ends the process: an error of CUDA leaves nothing that could go on.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import platform
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from socialx.data.network import Network
from socialx.data.normaliser import Moments, Normaliser
from socialx.data.order import Order
from socialx.data.series import Series
from socialx.data.source import Arrays
from socialx.data.windows import split_windows
from socialx.errors import Fallback, in_short
from socialx.model.forecaster import Forecaster, Tokens
from socialx.model.plain import SharedLstm, Stid
from socialx.model.pooling import DotAttention, Geometry, Max, Mean, MlpAttention, SocialLayer, WeightedMean
from socialx.model.xlstm import exact
from socialx.model.xlstm.encoder import SharedEncoder
from socialx.precision import Precision
from socialx.profiling import work
from socialx.profiling.collector import trace_steps
from socialx.profiling.measure import Lengths, Training, device_section, measure
from socialx.profiling.profile import part
from socialx.training.device import sampling
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
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CUDA = DEVICE.type == "cuda"
EXACT = torch.device("cpu") if SMOKE else DEVICE  # where the package computes in float64


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

    def encoder(self, impl: str) -> nn.Module:
        """Of x [S,T,E] -> [S,E].  impl: of SharedEncoder, or "package cuda" and "package triton", or "nn.LSTM".

        Every parameter is moved a little: the package starts its recurrent kernels and gate weights at zero.
        """
        torch.manual_seed(0)
        if impl == "nn.LSTM":
            return LastStep(self.width, self.blocks).to(DEVICE)
        of_package = "reference" if impl.startswith("package") else impl
        made = SharedEncoder(self.width, self.blocks, self.slstm_at, HEADS, self.history, impl=of_package)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        for layer in (block.xlstm for block in made.stack.blocks if impl.startswith("package")):
            if impl == "package cuda" and hasattr(layer, "slstm_cell"):
                layer.slstm_cell = package_cuda(layer.slstm_cell)
            if impl == "package triton" and hasattr(layer, "mlstm_cell"):
                layer.mlstm_cell.backend_fn = package_triton(self.precision)
        return made.to(DEVICE)

    def input(self) -> Tensor:
        """x [S,T,E], always the same."""
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(self.sequences, self.history, self.width, generator=generator)
        return x.to(DEVICE).requires_grad_()


class LastStep(nn.Module):
    """torch's LSTM, cuDNN's on a card: x [S,T,E] -> [S,E]."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]


def package_cuda(vanilla: Any, compiled: bool = True) -> nn.Module:
    """The package's sLSTM cell in CUDA with the parameters of its vanilla one; nvcc compiles it, or it cannot run."""
    if compiled and (not CUDA or torch.utils.cpp_extension.CUDA_HOME is None):
        raise RuntimeError("no CUDA device, or no CUDA toolkit that could compile it")
    cell: Any = import_module("xlstm.blocks.slstm.cell")
    config = replace(vanilla.config, backend="cuda", internal_input_shape="SBNGH")
    try:
        made = cell.sLSTMCell_cuda(config, skip_backend_init=not compiled)
    except RuntimeError as error:  # all that nvcc has said
        raise RuntimeError(next((line for line in str(error).splitlines() if "error:" in line), str(error))) from None
    kernel, bias = vanilla._recurrent_kernel_, vanilla._bias_
    with torch.no_grad():
        made._recurrent_kernel_.copy_(made._recurrent_kernel_ext2int(vanilla._recurrent_kernel_int2ext(kernel)))
        made._bias_.copy_(made._bias_ext2int(vanilla._bias_int2ext(bias)))
    return made


def package_triton(precision: str) -> Callable[..., Tensor]:
    """The mLSTM cell by mlstm_kernels, in chunks of 16 steps: ImportError where the package is not there."""
    module: Any = import_module("mlstm_kernels.torch.backend_module")
    run = module.mLSTMBackend(
        module.mLSTMBackendConfig(
            chunkwise_kernel=f"chunkwise--{'triton_xl_chunk' if CUDA and not SMOKE else 'native_autograd'}",
            mode="train_with_padding",
            chunk_size=16,
            return_last_states=False,
            autocast_kernel_dtype=str(TYPES[precision]).removeprefix("torch."),
        )
    )

    def cell(
        queries: Tensor, keys: Tensor, values: Tensor, igate_preact: Tensor, fgate_preact: Tensor, **_: Any
    ) -> Any:
        return run(q=queries, k=keys, v=values, i=igate_preact.squeeze(-1), f=fgate_preact.squeeze(-1))

    return cell


def products_as_in_training() -> None:
    """What ``socialx.build`` sets for a training on a card."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


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


# ---------------------------------------------------------------------------------------------------------- machine


def machine() -> Iterator[dict[str, Any]]:
    """What it is, and its two ceilings as measured: bytes copied, and multiplied matrices."""
    facts: dict[str, Any] = {
        "device": "smoke" if SMOKE else torch.cuda.get_device_name(),
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
    encoder: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor, precision: Precision
) -> list[Tensor]:
    """Output [S,E], then the gradients of x and of every parameter."""
    with precision.autocast():
        y = forward(x)
    y = y.to(torch.promote_types(y.dtype, torch.float32))
    weights = torch.linspace(-1, 1, y.shape[1], dtype=y.dtype, device=y.device)
    return [y.detach(), *torch.autograd.grad((weights * y).sum(), [x, *encoder.parameters()])]


def truth(case: Case, x: Tensor) -> list[Tensor]:
    """``forward_backward`` of the package in float64."""
    exact, x = case.encoder("reference").to(EXACT).double(), x.detach().to(EXACT).double().requires_grad_()
    return forward_backward(exact, exact, x, Precision("32-true", EXACT))


def worst(ours: list[Tensor], exact: list[Tensor]) -> float:
    """max|a-b| / max|b| of the worst tensor; one that is zero but for rounding against a thousandth of the largest."""
    floor = 1e-3 * max(float(b.abs().max()) for b in exact)
    return max(
        float((a.to(b) - b).abs().max()) / max(float(b.abs().max()), floor) for a, b in zip(ours, exact, strict=True)
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
        encoder, x = case.encoder("fused" if SMOKE else "triton"), case.input()
        forward_backward(encoder, encoder, x, Precision(NAMES[precision], DEVICE))
    if CUDA:
        torch.cuda.synchronize()
    yield {"ran": True}


# ---------------------------------------------------------------------------------------------------------- encoder


def captured(run: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
    """The same call as a CUDA graph; as it is on a CPU."""
    if not CUDA:
        return run
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
    products_as_in_training()
    of = as_case(case)
    x, module = of.input(), of.encoder(impl)
    few = x.detach()[:CHECKED].clone().requires_grad_()
    exact = None if impl == "nn.LSTM" else truth(of, few)[:2]
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
    error = exact and worst([t[:CHECKED] for t in out[:2]], exact)
    del out
    run = captured(run) if graph else run
    ms, least = median_ms(run)
    row: dict[str, Any] = {
        "error": error,
        "peak_gib": peak,
        "ms": ms,
        "least_ms": least,
        "windows_per_s": 1e3 * of.windows / ms,
        "bound_gb_per_s": exact and of.bound_bytes() / ms / 1e6,
    }
    yield row
    if traced:
        trace = trace_steps(run, 3, DEVICE)
        yield row | {
            "kernels_per_step": trace.kernels and trace.kernels["per_step"],
            "syncs_per_step": trace.sync and trace.sync["per_step"],
            "gpu_busy": trace.gpu_busy,
            "sm_efficiency": trace.sm_efficiency,
            "top": trace.kernels and trace.kernels["top"],
        }


# ------------------------------------------------------------------------------------------------- training step


def leave_out(what: str, model: nn.Module) -> None:
    """Several operations of torch again where the model has one: "add_norm" of the encoder, "attention" of pooling."""
    for module in model.modules():
        if what == "add_norm" and isinstance(module, SharedEncoder) and module._layers is not None:
            module._layers = module._layers._replace(add_norm=exact.add_norm)
        if what == "attention" and isinstance(module, DotAttention):
            module.attend_fused = module.attend_dense  # type: ignore[method-assign]


def made_learner(case: Case, impl: str, compile: str, cuda_graph: bool, without: str) -> Learner:
    """The default model of the toolkit over a network of random places; impl "lstm" or "stid": that plain model."""
    rng = np.random.default_rng(0)
    width, sensors, moments = case.width, case.sensors, [Moments(58.6, 12.8)]
    torch.manual_seed(0)
    network = Network(sensors, HISTORY, HORIZON, 288, tuple(moments), tuple(moments))
    model: nn.Module
    if impl == "lstm":
        model = SharedLstm(network, width, case.blocks, 0.1)
    elif impl == "stid":
        model = Stid(network, width, 0.1)
    else:
        near = geo.nearest(rng.uniform(0, 30, (sensors, 2)), 32)
        encoder = SharedEncoder(width, case.blocks, case.slstm_at, HEADS, HISTORY, 0.1, impl)
        social = [SocialLayer(width, DotAttention(width, Geometry(4, near)), 0.1) for _ in range(2)]
        tokens = Tokens(width, sensors, HISTORY, 288)
        model = Forecaster(tokens, encoder, social, HORIZON, Normaliser(moments, moments))
    leave_out(without, model)
    options: dict[str, Any] = {"learning_rate": 2e-3, "weight_decay": 3e-4, "total_steps": 1000}
    chosen = Precision(NAMES[case.precision], DEVICE)
    return Learner(model, chosen, gradient_clip_val=5.0, compile=compile, cuda_graph=cuda_graph, **options)


def resident(case: Case) -> ResidentLoader:
    """Batches of a random series as long as METR-LA."""
    rows = 100 if SMOKE else 34_272
    rng = np.random.default_rng(0)
    values = rng.normal(58, 10, (rows, case.sensors)).astype(np.float32)
    values[rng.random(values.shape) < 0.08] = 0
    seconds = 1_330_560_000 + 300 * np.arange(rows, dtype=np.int64)
    series = Series(Arrays(values[..., None], (values != 0)[..., None], seconds), HISTORY, HORIZON, DEVICE)
    starts = split_windows(seconds, 5, HISTORY, HORIZON, "canonical").part("train")
    return ResidentLoader(series, Order(starts, case.windows, shuffle=True))


def step_bytes(case: Case) -> float | None:
    """Bytes that the kernels of a step move, where results/step_bytes.json has counted them for this size."""
    path = Path(__file__).parent / "results" / "step_bytes.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    size = (case.windows, case.sensors, case.width)
    return found["bytes"] if size == tuple(map(found.get, ("windows", "sensors", "width"))) else None


@contextmanager
def watched(found: dict[str, Any]) -> Iterator[None]:
    """Put into ``found`` how busy the device was until the block ends: NVML's samples, and GPM's shares of the time."""
    before = tried(gpm_sample)
    with sampling(DEVICE) as samples:
        yield
    after = tried(gpm_sample)
    missing = [sample for sample in (before, after) if "why" in sample]
    summary = device_section(samples)
    found["nvml"] = summary or {"why": samples.why}
    found["gpm"] = missing[0] if missing else tried(lambda: gpm_shares(before["sample"], after["sample"]))


def tried(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a call finds, or why it does not: NVML, ctypes and a torch without CUDA raise errors of their own."""
    try:
        return run()
    except Exception as error:  # noqa: BLE001
        return {"why": in_short(error)}


def gpm_sample() -> dict[str, Any]:
    """The card's own counters as they are now: cards from Hopper on have them."""
    nvml: Any = import_module("pynvml")
    nvml.nvmlInit()
    card = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(DEVICE).uuid}")
    return {"sample": nvml.nvmlGpmSampleGet(card, nvml.nvmlGpmSampleAlloc())}


def gpm_shares(before: Any, after: Any) -> dict[str, Any]:
    """What the multiprocessors did between two samples: shares of the time and of the warps, and of the bandwidth."""
    nvml: Any = import_module("pynvml")
    shares = {"sm": 2, "warps": 3, "dram": 10}  # NVML_GPM_METRIC_SM_UTIL, _SM_OCCUPANCY and _DRAM_BW_UTIL
    asked = nvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(shares)
    asked.sample1, asked.sample2 = before, after
    for metric, number in zip(asked.metrics, shares.values(), strict=False):
        metric.metricId = number
    nvml.nvmlGpmMetricsGet(asked)
    return {name: metric.value / 100 for name, metric in zip(shares, asked.metrics, strict=False)}


def training(
    impl: str,
    compile: str,
    cuda_graph: bool,
    precision: str,
    steps: int = 80,
    epoch: bool = False,
    traced: bool = False,
    without: str = "",
) -> Iterator[dict[str, Any]]:
    """The profile of the step that ``train`` takes, from the resident loader on.

    epoch: how busy the device was in the steps of an epoch of METR-LA's length, too.  bound_gb_per_s: the bytes that
    the encoder must move, over the time of the whole step; moved_gb_per_s: those that the step's kernels move.
    """
    products_as_in_training()
    case = Case(16, "fp32", 5, 4, 2, (1,)) if SMOKE else Case(128, precision)
    data = resident(case)
    facts = part("loader", mode="resident", batches_per_epoch=len(data))
    with warnings.catch_warnings():
        warnings.simplefilter("error", Fallback)  # a row is what it says, or it is not there
        learner = made_learner(case, impl, compile, cuda_graph, without)
        lengths = Lengths(steps, 5, 50, trace_steps=0, trials=False)
        row = measure(learner, data, lengths, facts).as_dict()
        per_s = 1e6 * row["step_ms"]["p50"]
        if impl not in ("lstm", "stid"):
            row |= {"bound_gb_per_s": case.bound_bytes() / per_s}
        if (impl, compile, precision, without) == ("triton", "off", "bf16", ""):
            row |= {"moved_gb_per_s": (moved := step_bytes(case)) and moved / per_s}
        yield row
        if epoch:
            of_epoch: dict[str, Any] = {"steps": len(data)}
            with watched(of_epoch):
                ms = spent_ms(lambda: Training(learner, data, 50).take(len(data)))
            row |= {"epoch": of_epoch | {"seconds": ms / 1e3}}
            yield row
        if traced:
            found = measure(learner, data, replace(lengths, steps=min(steps, 10), trace_steps=8), facts).as_dict()
            keys = ("gpu_busy", "sm_efficiency", "kernels", "sync", "bubble", "idle")
            yield row | {key: found.get(key) for key in keys}


def loader() -> Iterator[dict[str, Any]]:
    """Milliseconds of a batch, each of other windows than the last."""
    data = resident(Case(16, "fp32", 5, 4) if SMOKE else Case(128, "bf16"))
    batches = itertools.chain.from_iterable(data.epoch(number) for number in itertools.count())
    ms, least = median_ms(lambda: next(batches))
    yield {"ms": ms, "least_ms": least}


# ------------------------------------------------------------------------------------- kernels and pooling alone


def kernel(name: str, cell: str, width: int, precision: str) -> Iterator[dict[str, Any]]:
    """One kernel on the arguments that the default step gives it; width: of a head.

    A call is timed alone, 20 in a CUDA graph over 3 sets of arguments, so that none stays in the cache.
    """
    dtype, sequences = TYPES["fp32" if SMOKE else precision], 5 if SMOKE else 64 * 207
    found = import_module("compile_report").launches(cell, width, HISTORY, dtype, sequences=sequences)
    launch = next(launch for launch in found if launch.kernel.__name__ == name)
    ms = kernel_ms(*launch)
    yield {"us": 1e3 * ms, "gb_per_s": bytes_of(launch.arguments) / ms / 1e6}


def kernel_ms(jit: Any, grid: tuple[int, ...], arguments: dict[str, Any]) -> float:
    """Milliseconds of a launch with arguments of random numbers; those that share a storage share it here."""

    def filled() -> dict[str, Any]:
        storages: dict[int, Tensor] = {}
        made = dict(arguments)
        for name, value in arguments.items():
            if torch.is_tensor(value):
                storage = value.untyped_storage()
                if storage._cdata not in storages:
                    random = torch.randn(storage.nbytes() // value.element_size(), device=DEVICE)
                    storages[storage._cdata] = random.to(value.dtype)
                made[name] = storages[storage._cdata].as_strided(value.shape, value.stride(), value.storage_offset())
        return made

    sets, times = [filled() for _ in range(1 if SMOKE else 3)], 1 if SMOKE else 20

    def calls() -> list[Tensor]:
        for number in range(times):
            jit[grid](**sets[number % len(sets)])
        return []

    calls()
    return median_ms(captured(calls))[0] / times


def bytes_of(arguments: dict[str, Any]) -> int:
    """Bytes that a kernel reads or writes: those of a storage once, and H*D of the X numbers in a row of x and d_x."""
    moved: dict[int, int] = {}
    for name, value in arguments.items():
        if torch.is_tensor(value):
            count = value.numel() * value.element_size()
            if name in ("x", "d_x") and value.shape[-1] == arguments["X"]:
                count = count * arguments["H"] * arguments["D"] // arguments["X"]
            storage = value.untyped_storage()
            moved[storage._cdata] = min(moved.get(storage._cdata, 0) + count, storage.nbytes())
    return sum(moved.values())


def pooling(kind: str, dense: bool, without: str = "") -> Iterator[dict[str, Any]]:
    """Forward and backward of one layer of pooling alone, 64 windows of 207 sensors with 32 neighbours, width 128."""
    products_as_in_training()
    windows, sensors, width = (2, 9, 16) if SMOKE else (64, 207, 128)
    near = geo.nearest(np.random.default_rng(0).uniform(0, 30, (sensors, 2)), min(32, sensors - 1))
    torch.manual_seed(0)
    made = POOLINGS[kind](width, Geometry(4, near)).to(DEVICE)
    made.geometry.prefers_dense = lambda: dense  # type: ignore[method-assign]
    if isinstance(made, DotAttention):
        made.fastest = lambda device: made.attend_fused if dense else made.attend_gathered  # type: ignore[method-assign]
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
    """A training on real data by the toolkit's own settings -> its epochs, then its scores on the test part.

    The run folder stays in ``runs`` without the state that only resuming reads.
    """
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
    row: dict[str, Any] = {}
    began, folder = time.monotonic(), Path(runs) / f"{precision}-{seed}"
    with watched(row):
        run = socialx.train(settings=layers.over(given), run_dir=folder, overwrite=True)
    row |= {"epochs": len(run.epochs), "seconds": time.monotonic() - began}
    row |= {"each_epoch": [asdict(each) for each in run.epochs]}
    if run.best is not None:
        row |= {"validation_mae": run.best.validation_mae, "windows_per_s": run.epochs[-1].windows_per_s}
    yield row
    scores = socialx.evaluate([run])[run]
    yield row | {"mae": {str(at): scores.at(at).mae for at in (15, 30, 60)}, "all": scores.overall().mae}
    (folder / "last.pt").unlink(missing_ok=True)


PARTS: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
    part.__name__: part for part in (machine, parity, memcheck, encoder, training, loader, kernel, pooling, learning)
}


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    if not CUDA and not SMOKE:
        raise SystemExit("no CUDA device")
    if SMOKE:
        work.MATRIX["cuda"], work.COPY_BYTES["cuda"] = work.MATRIX["cpu"], work.COPY_BYTES["cpu"]
    for line in sys.stdin:
        name, options = json.loads(line)
        if os.environ.get(f"SOCIALX_BENCH_FAULT_{name.upper()}") == "abort":  # for the test of the plan
            os.abort()
        try:
            for row in PARTS[name](**options):
                print(json.dumps(row), file=answers, flush=True)
        except Exception as error:  # noqa: BLE001  whatever it is, its first line is the reason
            traceback.print_exc()
            raise SystemExit(f"{type(error).__name__}: {in_short(error)}") from None
        print("done", file=answers, flush=True)
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
        gc.collect()
        if CUDA:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
