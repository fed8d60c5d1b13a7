"""The encoder and the whole training step on one GPU: is it right, how fast is it, does it learn.  ``make bench-gpu``

    python benchmarks/gpu.py --plan                       # what would run, in which order, and for how long at most
    python benchmarks/gpu.py [--call right fast learns] [--minutes 9.5] [--data metr_la.h5] [--output DIR]

Needs no network.  Every part is a process of its own with a time limit (benchmarks/gpu_parts.py): one that crashes
costs its own rows alone.  <device>.json and <device>.md are written after every row, the most important rows first, and
what did not run is there as "not measured" with the reason.  Parts of the first call run side by side; parts that are
timed run alone.  ``--smoke`` takes every path that a machine without a GPU has, at a size that proves nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CALLS = ("right", "fast", "learns")
AT_ONCE = 6  # parts that are not timed
COMMON = {"width": 128, "precision": "bf16"}
VARIANTS = {  # implementation, compiled, CUDA graph
    "package": ("reference", False, False),
    "fused": ("fused", False, False),
    "triton": ("triton", False, False),
    "triton graph": ("triton", False, True),
    "triton compiled": ("triton", True, False),
    "triton compiled graph": ("triton", True, True),
    "fused graph": ("fused", False, True),
    "fused compiled": ("fused", True, False),
}
STEPS = [  # implementation, compile, CUDA graph, precision
    ("triton", "off", False, "bf16"),
    ("triton", "off", True, "bf16"),
    ("triton", "default", True, "bf16"),
    ("triton", "default", False, "bf16"),
    ("triton", "off", True, "fp16"),
    ("triton", "off", True, "fp32"),
    ("fused", "off", True, "bf16"),
    ("fused", "off", False, "bf16"),
    ("reference", "off", False, "bf16"),
]
WITHOUT = {  # what a row of the training step leaves to several operations of torch
    "add_norm": "sum and norm apart",
    "attention": "attention by dense sums",
}
FREE = None  # no bound on the registers of a thread
# Kernel, cell, channels of a head, and launch options beside those that are the defaults by what the compiler counts.
SWEEP: list[tuple[str, str, int, list[dict[str, int | None]]]] = [
    (
        "mlstm_backward",
        "mlstm",
        64,
        [
            {"num_warps": 4, "maxnreg": FREE},
            *({"num_warps": warps, "maxnreg": most} for warps in (1, 2) for most in (80, 96, 128, 168)),
            *({"num_warps": 4, "maxnreg": most} for most in (80, 96)),
            {"ROWS": 32, "num_warps": 4, "maxnreg": 128},
        ],
    ),
    (
        "conv_backward",
        "mlstm",
        64,
        [
            {"num_warps": 4, "maxnreg": FREE},
            *({"num_warps": warps, "maxnreg": most} for warps, most in itertools.product((2, 4), (96, 128))),
            {"num_warps": 2, "maxnreg": FREE},
            {"W": 16, "num_warps": 1, "maxnreg": FREE},
        ],
    ),
    (
        "slstm_backward",
        "slstm",
        32,
        [
            {"num_warps": 4, "maxnreg": FREE},
            *({"num_warps": 4, "maxnreg": most} for most in (72, 80, 96)),
            {"num_warps": 8, "maxnreg": 80},
        ],
    ),
    (
        "conv_forward",
        "mlstm",
        64,
        [
            {"ROWS": 16, "num_warps": 2},
            *({"ROWS": rows, "num_warps": 8, "maxnreg": most} for rows in (64, 128) for most in (80, FREE)),
            {"ROWS": 64, "num_warps": 4, "maxnreg": 80},
            {"ROWS": 16, "W": 16, "num_warps": 1},
        ],
    ),
    (
        "mlstm_forward",
        "mlstm",
        64,
        [
            {"num_warps": 4},
            *({"num_warps": 1, "maxnreg": most} for most in (64, 96, FREE)),
            {"ROWS": 32, "num_warps": 4},
        ],
    ),
    (
        "slstm_forward",
        "slstm",
        32,
        [*({"num_warps": 4, "maxnreg": most} for most in (64, 80, FREE)), {"N": 32, "num_warps": 8, "maxnreg": 64}],
    ),
    ("conv_forward", "slstm", 32, [{"ROWS": 64, "num_warps": 4}]),
    ("conv_backward", "slstm", 32, [{"num_warps": 4, "maxnreg": 64}]),
]


@dataclass
class Part:
    """One process: a row of the table, what it is asked, and for how many seconds at most."""

    call: str
    part: str
    row: str
    options: dict[str, Any]
    limit_s: float
    timed: bool = True
    sanitizer: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    why: str = "not reached"
    seconds: float = 0.0


def plan(smoke: bool, data: Path | None, runs: Path) -> list[Part]:
    """All parts, the most important ones of a call first."""
    parts = [Part("right", "machine", "machine", {}, 90)]
    for width, precision, impl in itertools.product((128, 64, 256), ("bf16", "fp32", "fp16"), ("triton", "fused")):
        case = {"width": width, "precision": precision, "sensors": 23, "windows": 8}
        parts.append(Part("right", "parity", f"E={width} {precision} {impl}", {"impl": impl, **case}, 150, timed=False))
    for steps, precision in itertools.product((5, 24), ("fp32", "bf16")):
        case = {"width": 64, "precision": precision, "sensors": 13, "windows": 3, "blocks": 2, "slstm_at": [0]}
        options = {"impl": "triton", "history": steps, **case}
        parts.append(Part("right", "parity", f"E=64 T={steps} {precision} triton", options, 150, timed=False))
    for tool in ("memcheck", "racecheck"):
        parts.append(Part("right", "memcheck", f"compute-sanitizer {tool}", {}, 120, timed=False, sanitizer=tool))
    parts.append(Part("fast", "machine", "machine", {}, 90))
    parts += [_encoder(name, COMMON, name.startswith("triton")) for name in VARIANTS]
    for impl, compile, graph, precision in STEPS:
        row = f"{impl}{' compiled' if compile != 'off' else ''}{' graph' if graph else ''} {precision}"
        options = {"impl": impl, "compile": compile, "cuda_graph": graph, "precision": precision, "traced": True}
        parts.append(Part("fast", "training", row, options, 150 if compile != "off" else 60))
        if (impl, compile, graph, precision) == STEPS[1]:
            for what, name in WITHOUT.items():
                parts.append(Part("fast", "training", f"{row}, {name}", options | {"without": what}, 60))
    parts.append(Part("fast", "loader", "loader", {}, 45))
    for kernel, cell, width, options_ in SWEEP:
        asked = {"name": kernel, "cell": cell, "width": width, "precision": "bf16", "options": options_}
        parts.append(Part("fast", "kernel", f"{kernel} of {cell}", asked, 60))
    for kind, dense in [("attention", True), ("attention", False), ("mean", True), ("mean", False)]:
        row = f"{kind} {'dense' if dense else 'gathered'}"
        parts.append(Part("fast", "pooling", row, {"kind": kind, "dense": dense}, 30))
    parts += [Part("fast", "pooling", kind, {"kind": kind, "dense": False}, 30) for kind in ("attention_mlp", "max")]
    options = {"kind": "attention", "dense": True, "without": "attention"}
    parts.append(Part("fast", "pooling", WITHOUT["attention"], options, 30))
    for width, windows in ((64, 64), (256, 64), (128, 16), (128, 256)):
        parts += [
            _encoder(name, {"width": width, "precision": "bf16", "windows": windows}, False)
            for name in ("triton", "triton graph", "fused")
        ]
    parts.append(Part("learns", "machine", "machine", {}, 90))
    asked = {"data": data and str(data.resolve()), "runs": str(runs), "epochs": 1 if smoke else 30}
    faster = ["trainer.cuda_graph=true"]
    for seed, precision in ((0, "bf16-mixed"), (1, "bf16-mixed"), (2, "bf16-mixed"), (0, "32-true")):
        options = asked | {"seed": seed, "precision": precision, "options": faster}
        parts.append(Part("learns", "learning", f"{precision}, seed {seed}", options, 420))
    return _small(parts) if smoke else parts


def _small(parts: list[Part]) -> list[Part]:
    """The first two parts of each kind and those without something, at a size that a CPU does at once."""
    kinds = [(part.call, part.part) for part in parts]
    few = [p for place, p in enumerate(parts) if kinds[:place].count(kinds[place]) < 2 or "without" in p.options]
    for part in few:
        if part.part in ("parity", "encoder"):
            impl = "fused" if part.options["impl"] == "triton" else part.options["impl"]
            small = {"width": 16, "precision": "fp32", "sensors": 3, "windows": 2, "blocks": 2, "slstm_at": [1]}
            part.options |= small | {"impl": impl}
        elif part.part == "training":
            part.options |= {
                "impl": "fused",
                "cuda_graph": part.options["cuda_graph"] and "without" not in part.options,
            }
        elif part.part == "learning":
            part.options |= {"options": [], "precision": "32-true"}
    return few


def _encoder(name: str, case: dict[str, Any], traced: bool) -> Part:
    impl, compiled, graph = VARIANTS[name]
    shape = f"E={case['width']} B={case.get('windows', 64)} {case['precision']}"
    options = {"impl": impl, "compiled": compiled, "graph": graph, "traced": traced, **case}
    return Part("fast", "encoder", f"{name}, {shape}", options, 180 if compiled else 75)


# ------------------------------------------------------------------------------------------------------------- running


class Bench:
    """Runs parts until the deadline, and writes what is known after every row."""

    def __init__(self, parts: list[Part], calls: Sequence[str], minutes: float, output: Path, smoke: bool) -> None:
        self.parts, self.calls, self.output, self.smoke = parts, calls, output, smoke
        self.deadline = time.monotonic() + 60 * minutes
        self.device = ""

    def run(self) -> None:
        """The parts of its calls: neighbours that are not timed side by side, every other one alone."""
        chosen = [part for part in self.parts if part.call in self.calls]
        for timed, some in itertools.groupby(chosen, lambda part: part.timed):
            with ThreadPoolExecutor(1 if timed else AT_ONCE) as pool:
                list(pool.map(self.one, some))

    def one(self, part: Part) -> None:
        """Run one part; whatever becomes of it, its row says so."""
        left = self.deadline - time.monotonic()
        if part.options.get("data", "") is None:
            part.why = "no --data"
        elif left < 5:
            part.why = "out of time"
        else:
            self._one(part, min(part.limit_s, left))
        if part.part == "machine" and part.rows and not self.device:
            self.device = str(part.rows[-1]["device"])
            self._remember()
        self.write()
        print(f"{part.call}  {part.part}  {part.row}: {_said(part)}", flush=True)

    def _one(self, part: Part, limit_s: float) -> None:
        command = [sys.executable, str(HERE / "gpu_parts.py"), part.part, json.dumps(part.options)]
        command += ["--smoke"] if self.smoke else []
        environment = {**os.environ, "PYTHONPATH": f"{HERE.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        if part.sanitizer:
            tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
            if tool is None:
                part.why = "compute-sanitizer is not installed"
                return
            command = [tool, "--tool", part.sanitizer, "--error-exitcode", "9", *command]
            environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        began = time.monotonic()
        with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complained:
            process = subprocess.Popen(command, stdout=said, stderr=complained, env=environment)
            try:
                code: int | str = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = f"stopped after {limit_s:.0f} s"
            part.seconds = time.monotonic() - began
            said.seek(0)
            complained.seek(0)
            part.rows = [json.loads(line) for line in said if line.startswith("{") and line.endswith("}\n")]
            last = next((line.strip() for line in reversed(complained.readlines()) if line.strip()), "")
            part.why = "" if code == 0 else f"{last[:160]} ({code if isinstance(code, str) else f'exit {code}'})"

    @property
    def name(self) -> str:
        """Of the files, without their ending."""
        return (self.device or "device").lower().replace(" ", "-")

    def _remember(self) -> None:
        """The rows that an earlier call has measured on this device, of the parts that this one does not run."""
        for folder in (HERE / "results", self.output):
            path = folder / f"{self.name}.json"
            known = json.loads(path.read_text()) if path.exists() else []
            before = {(row["call"], row["part"], row["row"]): row for row in known}
            for part in self.parts:
                found = before.get((part.call, part.part, part.row))
                if found is not None and part.call not in self.calls:
                    part.rows, part.why, part.seconds = found["rows"], found["why"], found["seconds"]

    def write(self) -> None:
        """Both files, as far as they are known."""
        self.output.mkdir(parents=True, exist_ok=True)
        record = [{**vars(part), "options": _without_paths(part.options)} for part in self.parts]
        (self.output / f"{self.name}.json").write_text(json.dumps(record, indent=1) + "\n")
        (self.output / f"{self.name}.md").write_text(markdown(self.parts))


def _without_paths(options: dict[str, Any]) -> dict[str, Any]:
    """What a part was asked, without the folders of this machine."""
    return {key: value for key, value in options.items() if key not in ("data", "runs")}


def _said(part: Part) -> str:
    """One line about a part."""
    if not part.rows:
        return f"not measured: {part.why}"
    row = part.rows[-1]
    shown = {key: value for key, value in row.items() if isinstance(value, (int, float, str))}
    facts = ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in shown.items()
    )
    return f"{facts}{f'; then {part.why}' if part.why else ''} ({part.seconds:.0f} s)"


# -------------------------------------------------------------------------------------------------------------- tables


def number(value: Any, digits: int = 1) -> str:
    """A number with so many digits, a dash where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def markdown(parts: list[Part]) -> str:
    """Every part of the plan as a row of a table."""
    facts = next((part.rows[-1] for part in parts if part.part == "machine" and part.rows), {})
    lines = [f"# {facts.get('device', 'No device answered')}", ""]
    lines += [f"Written by `make bench-gpu`: {', '.join(f'{key} {value}' for key, value in facts.items())}.", ""]
    for title, name, head, cells in TABLES:
        lines += [f"## {title}", "", f"| | {' | '.join(head)} |", f"|---|{'---:|' * len(head)}"]
        for part in (part for part in parts if part.part == name):
            found = cells(part.rows[-1], facts) if part.rows else [f"not measured: {part.why}", *[""] * (len(head) - 1)]
            lines.append(f"| {part.row} | {' | '.join(found)} |")
        lines.append("")
    lines += ["## Kernels alone, B = 64, N = 207, bf16", "", "| | launch options | us | GB/s |", "|---|---|---:|---:|"]
    for part in (part for part in parts if part.part == "kernel"):
        for row in part.rows:
            options = ", ".join(f"{key} {value}" for key, value in row["options"].items()) or "as they are"
            found = (
                [number(row["us"]), number(row["gb_per_s"], 0)] if "us" in row else [f"not measured: {row['why']}", ""]
            )
            lines.append(f"| {part.row} | {options} | {' | '.join(found)} |")
        if part.why:
            lines.append(f"| {part.row} | the rest | not measured: {part.why} | |")
    return "\n".join(lines) + "\n"


def _parity_cells(row: dict[str, Any], _: dict[str, Any]) -> list[str]:
    return [f"{row['output']:.1e}", f"{row['gradient']:.1e}", "yes" if row["same_bits"] else "**no**"]


def _check_cells(row: dict[str, Any], _: dict[str, Any]) -> list[str]:
    return ["nothing found"]


def _ms_cells(row: dict[str, Any], _: dict[str, Any]) -> list[str]:
    return [number(row["ms"], 3)]


def _pooling_cells(row: dict[str, Any], _: dict[str, Any]) -> list[str]:
    return [number(row["ms"], 3), "yes" if row["same_bits"] else "**no**"]


def _encoder_cells(row: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    bound = 100 * row["bound_gb_per_s"] / facts["copy_gb_per_s"] if "copy_gb_per_s" in facts else None
    counts = (row.get("kernels_per_step"), row.get("syncs_per_step"))
    return [
        number(row["ms"], 2),
        number(row["windows_per_s"], 0),
        f"{number(bound, 0)} %",
        number(row["peak_gib"], 2),
        f"{row['error']:.1e}",
        *(number(count, 0) for count in counts),
        number(row.get("gpu_busy"), 2),
    ]


def _training_cells(row: dict[str, Any], _: dict[str, Any]) -> list[str]:
    kernels, sync, memory = (row.get(key) or {} for key in ("kernels", "sync", "memory"))
    return [
        number(row["step_ms"]["p50"], 2),
        number(row["throughput"]["windows_per_s"], 0),
        f"{100 * row['shares']['input']:.1f} %",
        number(memory.get("peak_bytes", 0) / 2**30, 2),
        number(row.get("gpu_busy"), 2),
        number(row.get("sm_efficiency"), 2),
        number(kernels.get("per_step"), 0),
        number(sync.get("per_step"), 0),
    ]


def _learning_cells(row: dict[str, Any], _: dict[str, Any]) -> list[str]:
    mae = row.get("mae", {})
    return [
        str(row["epochs"]),
        number(row["seconds"], 0),
        number(row.get("windows_per_s"), 0),
        number(row.get("validation_mae"), 3),
        *(number(mae.get(at), 3) for at in ("15", "30", "60")),
    ]


TABLES = [
    ("Errors against the package in float64", "parity", ["output", "gradient", "same bits twice"], _parity_cells),
    ("Memory checks of every kernel", "memcheck", ["found"], _check_cells),
    (
        "Encoder, forward and backward, N = 207, 4 blocks, sLSTM at [1, 3]",
        "encoder",
        ["ms", "windows/s", "of the bound", "GiB", "error", "kernels", "syncs", "gpu_busy"],
        _encoder_cells,
    ),
    (
        "Whole training step, E = 128, 4 blocks, 2 social layers, B = 64, N = 207",
        "training",
        ["ms", "windows/s", "input", "peak GiB", "gpu_busy", "sm_efficiency", "kernels", "syncs"],
        _training_cells,
    ),
    ("Loader, a batch of 64 windows", "loader", ["ms"], _ms_cells),
    (
        "Pooling alone, forward and backward, E = 128, 32 neighbours, bf16",
        "pooling",
        ["ms", "same bits twice"],
        _pooling_cells,
    ),
    (
        "METR-LA, --size large",
        "learning",
        ["epochs", "seconds", "windows/s", "validation", "15 min", "30 min", "60 min"],
        _learning_cells,
    ),
]


def lines_of(parts: list[Part]) -> Iterator[str]:
    """The plan as text."""
    for call in CALLS:
        some = [part for part in parts if part.call == call]
        most = sum(part.limit_s / (1 if part.timed else AT_ONCE) for part in some)
        yield f"{call}: {len(some)} parts, at most {most / 60:.0f} minutes"
        for part in some:
            yield f"  {part.limit_s:4.0f} s  {'alone' if part.timed else 'beside others'}  {part.part}: {part.row}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--call", nargs="+", choices=CALLS, default=list(CALLS), help="is it right, how fast, does it learn"
    )
    parser.add_argument("--minutes", type=float, default=9.5, help="of all parts together")
    parser.add_argument("--data", type=Path, help="METR-LA as socialx convert writes it, for the last call")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--plan", action="store_true", help="print what would run")
    parser.add_argument("--smoke", action="store_true", help="on a machine without a GPU")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as runs:
        parts = plan(options.smoke, options.data, Path(runs))
        if options.plan:
            print("\n".join(lines_of(parts)))
            return
        bench = Bench(parts, options.call, options.minutes, options.output, options.smoke)
        bench.run()
    bench.write()
    print(markdown(parts))


if __name__ == "__main__":
    main()
