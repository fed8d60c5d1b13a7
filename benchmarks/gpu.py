"""The encoder and the whole training step on one GPU: numbers first checked, then timed.  ``make bench-gpu``

    python benchmarks/gpu.py [--minutes 7.5] [--output benchmarks/results]

Needs no network and no data: the series has METR-LA's shape.  It writes <device>.json and <device>.md after every
part, the important cases first, and stops in time: what did not fit is "not measured".  Times are medians of
interleaved rounds between device events; kernels and syncs are counted afterwards, because a trace slows its process.
``--smoke`` takes every path that a machine without a GPU has, at a size that proves nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from socialx.data import geo
from socialx.data.loaders import ResidentLoader
from socialx.data.normaliser import Moments, Normaliser
from socialx.data.series import Series
from socialx.data.source import Arrays
from socialx.data.windows import split_windows
from socialx.errors import Fallback
from socialx.model.forecaster import Forecaster, Tokens
from socialx.model.pooling import DotAttention, Geometry, SocialLayer
from socialx.model.xlstm.encoder import SharedEncoder
from socialx.precision import Precision
from socialx.profiling.collector import trace_steps
from socialx.profiling.measure import measure
from socialx.training.learner import Learner

HISTORY, HORIZON, HEADS = 12, 12, 4
ROUNDS, ROUND_MS = 5, 40.0
CHECKED = 512  # sequences of a timed case that are compared with the package in float64
NAMES = {"fp32": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
# Variant -> implementation, compiled, captured.
VARIANTS = {
    "package": ("reference", False, False),
    "fused": ("fused", False, False),
    "fused compiled": ("fused", True, False),
    "fused graph": ("fused", False, True),
    "triton": ("triton", False, False),
    "triton graph": ("triton", False, True),
}
# Bytes that a step must move per token and unit of width, forward and backward, in 16-bit activations with everything
# between two matrix products in one pass and recomputed: docs/performance.md counts them.
BOUND = {"mlstm": 118, "slstm": 210, "last mlstm": 66, "last slstm": 117}


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

    def encoder(self, impl: str, device: torch.device) -> SharedEncoder:
        """Every parameter is moved a little: the package starts its recurrent kernels and gate weights at zero."""
        torch.manual_seed(0)
        made = SharedEncoder(self.width, self.blocks, self.slstm_at, HEADS, self.history, impl=impl)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return made.to(device)


class Bench:
    """A device, a deadline, and the record that is written after every part."""

    def __init__(self, device: torch.device, minutes: float, output: Path, smoke: bool) -> None:
        self.device, self.smoke, self.cuda = device, smoke, device.type == "cuda"
        self.began, self.deadline = time.monotonic(), time.monotonic() + 60 * minutes
        self.record: dict[str, Any] = {"machine": {}, "parity": [], "encoder": [], "training": []}
        self.output = output

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def add(self, part: str, row: dict[str, Any]) -> None:
        """Keep a row, and write everything: a run that is cut off leaves what it has."""
        self.record[part].append(row)
        self.write()

    def write(self) -> None:
        """Both files, as far as they are known."""
        self.record["seconds"] = round(time.monotonic() - self.began, 1)
        name = str(self.record["machine"].get("device", "device")).lower().replace(" ", "-")
        self.output.mkdir(parents=True, exist_ok=True)
        (self.output / f"{name}.json").write_text(json.dumps(self.record, indent=1) + "\n")
        (self.output / f"{name}.md").write_text(markdown(self.record))

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def spent_ms(self, run: Callable[[], object], times: int = 1) -> float:
        """Device milliseconds per call."""
        if not self.cuda:
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

    def in_turns(self, runs: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Milliseconds per call in every round, none where memory runs out; a round of each takes about ROUND_MS."""
        spent: dict[str, list[float]] = {name: [] for name in runs}
        times: dict[str, int] = {}
        for turn in range(2 if self.smoke else 1 + ROUNDS):
            for name, run in runs.items():
                if turn and name not in times:
                    continue
                try:
                    ms = self.spent_ms(run, times.get(name, 1))
                except torch.OutOfMemoryError:  # the graphs of the other variants keep their memory
                    times.pop(name, None)
                    spent[name].clear()
                    continue
                if turn:
                    spent[name].append(ms)
                else:  # only tells how many calls make a round
                    times[name] = 1 if self.smoke else max(1, min(50, round(ROUND_MS / max(ms, 1e-3))))
        return spent

    def machine(self) -> None:
        """What it is, and its two ceilings as measured: bytes copied, and multiplied matrices."""
        facts: dict[str, Any] = {
            "device": torch.cuda.get_device_name() if self.cuda else "cpu-smoke",
            "torch": torch.__version__,
            "python": platform.python_version(),
            **{package: _version(package) for package in ("triton", "xlstm")},
        }
        if self.cuda:
            properties = torch.cuda.get_device_properties(self.device)
            facts |= {"sms": properties.multi_processor_count, "memory_gib": round(properties.total_memory / 2**30, 1)}
        size = 2**20 if self.smoke else 2**30
        source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        copy_ms = statistics.median(self.in_turns({"copy": lambda: target.copy_(source)})["copy"])
        facts["copy_gb_per_s"] = round(2 * size / copy_ms / 1e6, 1)
        side = 64 if self.smoke else 8192
        a, b = (torch.randn(side, side, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        product_ms = statistics.median(self.in_turns({"product": lambda: a @ b})["product"])
        facts["bf16_tflop_per_s"] = round(2 * side**3 / product_ms / 1e9, 2)
        self.record["machine"] = facts


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# ---------------------------------------------------------------------------------------------------------- encoder


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
    exact = case.encoder("reference", x.device).double()
    return forward_backward(exact, exact, x.detach().double().requires_grad_(), Precision("32-true", x.device))


def worst(ours: list[Tensor], exact: list[Tensor]) -> float:
    """max|a-b| / max|b| of the worst tensor; one that is zero but for rounding against a thousandth of the largest."""
    floor = 1e-3 * max(float(b.abs().max()) for b in exact)
    return max(
        float((a.double() - b).abs().max()) / max(float(b.abs().max()), floor) for a, b in zip(ours, exact, strict=True)
    )


def captured(run: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
    """The same call as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()

    def replay() -> list[Tensor]:
        graph.replay()
        return out

    return replay


def variant(bench: Bench, case: Case, name: str, x: Tensor) -> Callable[[], list[Tensor]]:
    """A closure that does one forward and backward; raises RuntimeError or ValueError where it cannot be had."""
    impl, compiled, graph = VARIANTS[name]
    if graph and not bench.cuda:
        raise RuntimeError("no CUDA device")
    encoder = case.encoder(impl, bench.device)
    forward = torch.compile(encoder, dynamic=False, fullgraph=True) if compiled else encoder
    precision = Precision(NAMES[case.precision], bench.device)

    def run() -> list[Tensor]:
        return forward_backward(encoder, forward, x, precision)

    run()  # compiles, and raises what it raises
    return captured(run) if graph else run


def parity(bench: Bench) -> None:
    """Outputs and all gradients against the package in float64, before anything is timed."""
    grid: list[Case] = []
    for width, precision in itertools.product([64, 128, 256], NAMES):
        grid.append(Case(width, precision, 23, 8))
    # Every other length costs a compilation of all kernels: the wide grid is `make test-gpu`.
    grid += [Case(64, precision, 13, 3, 2, (0,), history) for history in (5, 24) for precision in ("fp32", "bf16")]
    for case in grid[: 2 if bench.smoke else None]:
        # TF32 products are what training uses; the errors of the formulas show without.
        torch.set_float32_matmul_precision("highest")
        x = torch.randn(case.sequences, case.history, case.width, device=bench.device, requires_grad=True)
        exact = truth(case, x)
        row: dict[str, Any] = {**asdict(case), "error": {}}
        for impl in ("reference", "fused", "triton"):
            try:
                encoder = case.encoder(impl, bench.device)
                ours = forward_backward(encoder, encoder, x, Precision(NAMES[case.precision], bench.device))
                row["error"][impl] = {"output": worst(ours[:1], exact[:1]), "gradient": worst(ours[1:], exact[1:])}
            except (RuntimeError, ValueError) as error:
                row["error"][impl] = in_short(error)
        bench.add("parity", row)
    torch.set_float32_matmul_precision("high")


def cases() -> list[Case]:
    """The whole grid, the ones that matter most first."""
    grid = [
        Case(width, precision, sensors, windows)
        for precision, sensors, windows, width in itertools.product(NAMES, [207, 325], [16, 64, 256], [64, 128, 256])
    ]

    def rank(case: Case) -> tuple[int, ...]:
        unusual = (case.precision != "bf16") + (case.sensors != 207) + (case.windows != 64)
        return (unusual, [128, 64, 256].index(case.width), list(NAMES).index(case.precision))

    return sorted(grid, key=rank)


def time_encoder(bench: Bench, case: Case) -> None:
    """All variants of one case in turns."""
    torch.manual_seed(1)
    x = torch.randn(case.sequences, case.history, case.width, device=bench.device, requires_grad=True)
    common = case.precision == "bf16" and case.sensors == 207 and case.windows == 64
    row: dict[str, Any] = {**asdict(case), "bound_bytes": case.bound_bytes(), "variants": {}}
    few = x.detach()[:CHECKED].clone().requires_grad_()
    exact = truth(case, few)
    runs: dict[str, Callable[[], list[Tensor]]] = {}
    for name, (_, compiled, _) in VARIANTS.items():
        if compiled and not common:  # a compilation takes longer than all other variants of a case
            row["variants"][name] = {"why": "compiled for the three common cases only"}
            continue
        try:
            runs[name] = variant(bench, case, name, x)
            before = torch.cuda.memory_allocated() if bench.cuda else 0
            if bench.cuda:
                torch.cuda.reset_peak_memory_stats()
            out = runs[name]()
            bench.synchronize()
            row["variants"][name] = {
                "error": worst([t[:CHECKED] for t in out[:2]], exact[:2]),
                # A graph's memory is its own pool, taken when it was captured.
                "peak_gib": None if not bench.cuda or VARIANTS[name][2] else _gib(before),
            }
            del out
        except (RuntimeError, ValueError) as error:
            runs.pop(name, None)
            row["variants"][name] = {"why": in_short(error)}
        if bench.cuda:
            torch.cuda.empty_cache()
    for name, spent in bench.in_turns(runs).items():
        if not spent:
            row["variants"][name]["why"] = "out of memory beside the other variants"
            continue
        ms = statistics.median(spent)
        gb_per_s = case.bound_bytes() / ms / 1e6
        row["variants"][name] |= {
            "ms": ms,
            "least_ms": min(spent),
            "windows_per_s": 1e3 * case.windows / ms,
            "bound_gb_per_s": gb_per_s,
            "of_bound": gb_per_s / bench.record["machine"]["copy_gb_per_s"],
        }
    bench.add("encoder", row)


def _gib(before: int) -> float:
    return round((torch.cuda.max_memory_allocated() - before) / 2**30, 3)


def in_short(error: BaseException) -> str:
    """The first line of what went wrong."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:160]


def trace_encoder(bench: Bench, row: dict[str, Any]) -> None:
    """Kernels and syncs of the variants of a timed case, into its row."""
    case = Case(**{**{key: row[key] for key in asdict(Case(64, "bf16"))}, "slstm_at": tuple(row["slstm_at"])})
    x = torch.randn(case.sequences, case.history, case.width, device=bench.device, requires_grad=True)
    for name, measured in row["variants"].items():
        if "ms" in measured and bench.left() > 10:
            trace = trace_steps(variant(bench, case, name, x), 3, bench.device)
            measured["kernels_per_step"] = trace.kernels and trace.kernels.per_step
            measured["syncs_per_step"] = trace.sync and trace.sync.per_step
            measured["gpu_busy"], measured["sm_efficiency"] = trace.gpu_busy, trace.sm_efficiency


# ------------------------------------------------------------------------------------------------- training step


def learner(bench: Bench, impl: str, compile: str, cuda_graph: bool, sensors: int) -> Learner:
    """The default model of the toolkit over a network of random places."""
    rng = np.random.default_rng(0)
    width, blocks, slstm_at = (16, 2, [1]) if bench.smoke else (128, 4, [1, 3])
    xy = rng.uniform(0, 30, (sensors, 2))
    near = geo.nearest(xy, 32)
    torch.manual_seed(0)
    encoder = SharedEncoder(width, blocks, slstm_at, HEADS, HISTORY, 0.1, impl)
    social = [SocialLayer(width, DotAttention(width, Geometry(4, near)), 0.1) for _ in range(2)]
    moments = [Moments(58.6, 12.8)]
    tokens = Tokens(width, sensors, HISTORY, 288)
    model: nn.Module = Forecaster(tokens, encoder, social, HORIZON, Normaliser(moments, moments))
    options: dict[str, Any] = {"learning_rate": 2e-3, "weight_decay": 3e-4, "total_steps": 1000}
    precision = Precision("32-true" if bench.smoke else "bf16-mixed", bench.device)
    return Learner(model, precision, gradient_clip_val=5.0, compile=compile, cuda_graph=cuda_graph, **options)


def resident(bench: Bench, sensors: int) -> ResidentLoader:
    """Batches of 64 windows of a random series as long as METR-LA."""
    rows = 400 if bench.smoke else 34_272
    rng = np.random.default_rng(0)
    values = rng.normal(58, 10, (rows, sensors)).astype(np.float32)
    values[rng.random(values.shape) < 0.08] = 0
    seconds = 1_330_560_000 + 300 * np.arange(rows, dtype=np.int64)
    valid = (values != 0)[..., None]
    series = Series(Arrays(values[..., None], valid, seconds), HISTORY, HORIZON, bench.device)
    starts = split_windows(seconds, 5, HISTORY, HORIZON, "canonical").part("train")
    return ResidentLoader(series, starts, 4 if bench.smoke else 64, shuffle=True)


TRAINING = [
    ("reference", "off", False),
    *itertools.product(["fused", "triton"], ["off"], [False, True]),
    *itertools.product(["fused", "triton"], ["default"], [False, True]),  # last: compilations take long
]


def training(bench: Bench) -> None:
    """Time the step that ``train`` takes, from the resident loader on."""
    sensors = 5 if bench.smoke else 207
    data = resident(bench, sensors)
    examples = itertools.cycle(itertools.islice(data.epoch(0), 20))
    loader_ms = statistics.median(bench.in_turns({"loader": lambda: next(examples)})["loader"])
    for impl, compile, cuda_graph in TRAINING:
        row: dict[str, Any] = {"impl": impl, "compile": compile, "cuda_graph": cuda_graph, "loader_ms": loader_ms}
        bench.add("training", {**row, **steps_of(bench, row, sensors, data, traced=False)})


def steps_of(bench: Bench, row: dict[str, Any], sensors: int, data: ResidentLoader, traced: bool) -> dict[str, Any]:
    """A profile of training steps, or why there is none."""
    steps = 2 if bench.smoke else 10 if traced else 60
    try:
        if bench.left() < (60 if row["compile"] != "off" else 15):
            raise RuntimeError("out of time")
        with warnings.catch_warnings():
            warnings.simplefilter("error", Fallback)
            made = learner(bench, row["impl"], row["compile"], row["cuda_graph"], sensors)
            trace = 8 if traced else 0
            return measure(made, data, steps, max(5, steps // 4), 50, trace_steps=trace).as_dict()
    except (RuntimeError, ValueError, Fallback) as error:
        return {"why_not": in_short(error)}


def trace_training(bench: Bench) -> None:
    """Kernels, syncs and how busy the device is, into the rows that were timed."""
    sensors = 5 if bench.smoke else 207
    data = resident(bench, sensors)
    for row in bench.record["training"]:
        if "step_ms" in row:
            traced = steps_of(bench, row, sensors, data, traced=True)
            row["trace"] = {key: traced.get(key) for key in ("gpu_busy", "sm_efficiency", "kernels", "sync", "why_not")}
            bench.write()


# ------------------------------------------------------------------------------------------------------- tables


def number(value: Any, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def markdown(record: dict[str, Any]) -> str:
    """The record as tables."""
    facts = ", ".join(f"{key} {value}" for key, value in record["machine"].items())
    lines = [f"# {record['machine'].get('device')}", "", f"Written by `make bench-gpu`: {facts}.", ""]
    lines += ["## Errors against the package in float64", ""]
    lines += ["| precision | implementation | worst output | worst gradient | cases |", "|---|---|---:|---:|---:|"]
    for precision, impl in itertools.product(NAMES, ("reference", "fused", "triton")):
        found = [row["error"].get(impl) for row in record["parity"] if row["precision"] == precision]
        errors = [error for error in found if isinstance(error, dict)]
        if errors:
            worst_of = [f"{max(error[key] for error in errors):.1e}" for key in ("output", "gradient")]
            lines.append(f"| {precision} | {impl} | {worst_of[0]} | {worst_of[1]} | {len(errors)} of {len(found)} |")
        elif found:
            lines.append(f"| {precision} | {impl} | not measured: {found[0]} | | 0 of {len(found)} |")
    lines += ["", "## Encoder, forward and backward", ""]
    lines += [
        "| E | blocks | N | B | precision | variant | ms | windows/s | of the bound | GiB | error | kernels | syncs |",
        "|---:|---|---:|---:|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in record["encoder"]:
        shape = f"{row['blocks']} {list(row['slstm_at'])} | {row['sensors']} | {row['windows']} | {row['precision']}"
        for name, v in row["variants"].items():
            if "ms" not in v:
                lines.append(f"| {row['width']} | {shape} | {name} | not measured: {v['why']} | | | | | | |")
                continue
            lines.append(
                f"| {row['width']} | {shape} | {name} | {number(v['ms'], 2)} | {number(v['windows_per_s'], 0)} "
                f"| {100 * v['of_bound']:.0f} % | {number(v['peak_gib'], 2)} | {v['error']:.1e} "
                f"| {number(v.get('kernels_per_step'), 0)} | {number(v.get('syncs_per_step'), 0)} |"
            )
    lines += ["", "## Whole training step, E = 128, 4 blocks, 2 social layers, B = 64, N = 207, bf16", ""]
    lines += [
        "| implementation | compile | graph | ms | windows/s | input | gpu_busy | sm_efficiency | kernels | syncs |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in record["training"]:
        key = f"{row['impl']} | {row['compile']} | {'yes' if row['cuda_graph'] else 'no'}"
        if "step_ms" not in row:
            lines.append(f"| {key} | not measured: {row['why_not']} | | | | | | |")
            continue
        trace = row.get("trace", {})
        kernels, sync = trace.get("kernels") or {}, trace.get("sync") or {}
        lines.append(
            f"| {key} | {number(row['step_ms']['p50'], 2)} | {number(row['throughput']['windows_per_s'], 0)} "
            f"| {100 * row['shares']['input']:.1f} % | {number(trace.get('gpu_busy'), 2)} "
            f"| {number(trace.get('sm_efficiency'), 2)} | {number(kernels.get('per_step'), 0)} "
            f"| {number(sync.get('per_step'), 0)} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=7.5)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        raise SystemExit("no CUDA device: make bench-cpu measures the CPU, --smoke only takes the paths")
    bench = Bench(torch.device("cpu" if options.smoke else "cuda"), options.minutes, options.output, options.smoke)
    if bench.cuda:
        torch.set_float32_matmul_precision("high")
    bench.machine()
    parity(bench)
    todo = [Case(16, "fp32", 3, 2, 2, (1,))] if options.smoke else cases()
    for case in todo[:3]:  # the common ones
        time_encoder(bench, case)
    training(bench)
    for case in todo[3:]:
        if bench.left() > 100:
            time_encoder(bench, case)
    # A traced process stays slower: nothing is timed from here on.
    trace_training(bench)
    for row in bench.record["encoder"][:3]:
        trace_encoder(bench, row)
    bench.write()
    print(markdown(bench.record))


if __name__ == "__main__":
    main()
