"""The encoder and the whole training step on one GPU: how fast is it, is it right, does it learn.  ``make bench-gpu``

    python benchmarks/gpu.py --plan                       # the rows of each call in order, and their planned seconds
    python benchmarks/gpu.py [--call fast right learns] [--only PART|ROW ...] [--data metr_la.h5] [--output DIR]

Needs no network.  Each of the three calls is planned to fit into nine minutes, its most important rows first.  One
process works off the neighbouring rows of a part (benchmarks/gpu_parts.py); a row that crashes it or takes too long is
"not measured" with the reason, and the next row gets a new process.  <device>.json and <device>.md are written after
every row.  A later call keeps the rows that they have, in benchmarks/results or DIR, and measures the others.
``--smoke`` takes every path at a size that proves nothing, on a CPU too.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).parent
CALLS = ("fast", "right", "learns")
CALL_S = 540  # planned for a call, at most
AT_ONCE = 5  # processes of parts that are not timed
# Planned seconds, none of them measured on a card.  Importing takes 2 s on one core, then comes the device's context.
START = 8
# A forward and a backward pass have 10 kernels, which one core compiles in 8 s; later processes find them on disk.
KERNELS = 8
ALONE = 3  # a kernel alone: 0.6 s of a core, and 7 rounds of 40 ms
INDUCTOR, NVCC = 100, 100  # a step by Inductor without a cache, seven sources by nvcc
TRACE, EPOCH = 8, 4  # ten steps and reading their trace; 375 steps
MAKE = 6  # the model, its data or input, the steps of a row and what is counted beside them
LEARNING = {"bf16-mixed": 5, "32-true": 8.5}  # an epoch with its validation
COMMON = {"width": 128, "precision": "bf16"}
VARIANTS = {  # name: implementation, compiled, CUDA graph
    "triton graph": ("triton", False, True),
    "package": ("reference", False, False),
    "package, its Triton kernels": ("package triton", False, False),
    "triton": ("triton", False, False),
    "fused": ("fused", False, False),
    "nn.LSTM, as many layers": ("nn.LSTM", False, False),
    "package, its CUDA kernels": ("package cuda", False, False),
    "fused graph": ("fused", False, True),
    "triton compiled graph": ("triton", True, True),
    "triton compiled": ("triton", True, False),
}
WITHOUT = {  # what a row of the training step leaves to several operations of torch
    "add_norm": "sum and norm apart",
    "attention": "attention by dense sums",
}
KERNELS_ALONE = (  # kernel, cell, channels of a head
    ("mlstm_backward", "mlstm", 64),
    ("conv_backward", "mlstm", 64),
    ("slstm_backward", "slstm", 32),
    ("conv_forward", "mlstm", 64),
    ("mlstm_forward", "mlstm", 64),
    ("slstm_forward", "slstm", 32),
    ("conv_forward", "slstm", 32),
    ("conv_backward", "slstm", 32),
)


@dataclass
class Part:
    """A row of the table: the call and part that it belongs to, what is asked, and the planned seconds."""

    call: str
    part: str
    row: str
    options: dict[str, Any]
    planned_s: float
    timed: bool = True
    sanitizer: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    why: str = "not reached"
    seconds: float = 0.0

    @property
    def measured(self) -> bool:
        """Whether nothing is left to measure."""
        return bool(self.rows) and not self.why

    @property
    def asked(self) -> dict[str, Any]:
        """The options without the folders of this machine."""
        return {key: value for key, value in self.options.items() if key not in ("data", "runs")}


def plan(smoke: bool, data: Path | None, runs: Path) -> list[Part]:
    """All parts, the most important ones of a call first."""
    parts = [Part("every call", "machine", "machine", {}, 3), *_fast(), *_right()]
    asked = {"data": data and str(data.resolve()), "runs": str(runs.resolve()), "epochs": 1 if smoke else 20}
    for seed, precision in ((0, "bf16-mixed"), (1, "bf16-mixed"), (2, "bf16-mixed"), (0, "32-true")):
        options = asked | {"seed": seed, "precision": precision, "options": ["trainer.cuda_graph=true"]}
        seconds = KERNELS + asked["epochs"] * LEARNING[precision]
        parts.append(Part("learns", "learning", f"{precision}, seed {seed}", options, seconds))
    return _small(parts) if smoke else parts


def _fast() -> Iterator[Part]:
    """The recorded step and how busy it keeps the card, the encoder beside the package's, then what explains them."""
    yield _training("triton", graph=True, epoch=True, traced=True, more_s=KERNELS)
    slow = {"package": 6, "package, its Triton kernels": 2 + KERNELS, "package, its CUDA kernels": NVCC}
    for name in itertools.islice(VARIANTS, 7):
        yield _encoder("fast", name, COMMON, name == "triton graph", slow.get(name, 0))
    yield _training("triton", epoch=True, traced=True)
    for without in WITHOUT:
        yield _training("triton", graph=True, without=without)
    yield _training("fused", graph=True)
    yield _training("fused")
    yield _training("lstm")
    yield _training("stid", graph=True)
    yield _training("reference", steps=20, more_s=14)
    for kernel, cell, width in KERNELS_ALONE:
        asked = {"name": kernel, "cell": cell, "width": width, "precision": "bf16"}
        yield Part("fast", "kernel", f"{kernel} of {cell}", asked, ALONE)
    yield Part("fast", "loader", "loader", {}, MAKE)
    yield _training("triton", compile="default", graph=True, traced=True, more_s=INDUCTOR)


def _right() -> Iterator[Part]:
    """Errors and memory checks, several processes at once, then other sizes, types and layers."""
    for width, precision, impl in itertools.product((128, 64, 256), ("bf16", "fp32", "fp16"), ("triton", "fused")):
        case = {"width": width, "precision": precision, "sensors": 23, "windows": 8}
        seconds = MAKE + (KERNELS if impl == "triton" else 0)
        options = {"impl": impl, **case}
        yield Part("right", "parity", f"E={width} {precision} {impl}", options, seconds, timed=False)
    for steps, precision in itertools.product((5, 24), ("fp32", "bf16")):
        case = {"width": 64, "precision": precision, "sensors": 13, "windows": 3, "blocks": 2, "slstm_at": [0]}
        options, row = {"impl": "triton", "history": steps, **case}, f"E=64 T={steps} {precision} triton"
        yield Part("right", "parity", row, options, MAKE + KERNELS, timed=False)
    for tool in ("memcheck", "racecheck"):
        yield Part("right", "memcheck", f"compute-sanitizer {tool}", {}, 90, timed=False, sanitizer=tool)
    for width, windows in ((64, 64), (256, 64), (128, 16), (128, 256)):
        for name in ("triton graph", "triton", "fused"):
            first = KERNELS if name == "triton graph" and width != 128 else 0
            yield _encoder("right", name, {"width": width, "precision": "bf16", "windows": windows}, False, first)
    yield _encoder("right", "fused graph", COMMON)
    yield _encoder("right", "triton compiled graph", COMMON, more_s=0.7 * INDUCTOR)
    yield _encoder("right", "triton compiled", COMMON, more_s=0.2 * INDUCTOR)
    for kind, dense in (("attention", True), ("attention", False), ("mean", True), ("mean", False)):
        row = f"{kind} {'dense' if dense else 'gathered'}"
        yield Part("right", "pooling", row, {"kind": kind, "dense": dense}, 2)
    for kind in ("attention_mlp", "max"):
        yield Part("right", "pooling", kind, {"kind": kind, "dense": False}, 2)
    options = {"kind": "attention", "dense": True, "without": "attention"}
    yield Part("right", "pooling", WITHOUT["attention"], options, 2)
    yield _training("triton", "right", "fp16", graph=True, more_s=KERNELS)
    yield _training("triton", "right", "fp32", graph=True, more_s=KERNELS)
    yield _training("triton", "right", compile="default", more_s=INDUCTOR)


def _training(
    impl: str,
    call: str = "fast",
    precision: str = "bf16",
    *,
    graph: bool = False,
    compile: str = "off",
    without: str = "",
    epoch: bool = False,
    traced: bool = False,
    steps: int = 80,
    more_s: float = 0,
) -> Part:
    row = f"{impl}{' compiled' if compile != 'off' else ''}{' graph' if graph else ''} {precision}"
    options = {"impl": impl, "compile": compile, "cuda_graph": graph, "precision": precision, "steps": steps}
    options |= {"epoch": epoch, "traced": traced, "without": without}
    seconds = MAKE + TRACE * traced + EPOCH * epoch + more_s
    return Part(call, "training", f"{row}, {WITHOUT[without]}" if without else row, options, seconds)


def _encoder(call: str, name: str, case: dict[str, Any], traced: bool = False, more_s: float = 0) -> Part:
    impl, compiled, graph = VARIANTS[name]
    shape = f"E={case['width']} B={case.get('windows', 64)} {case['precision']}"
    options = {"impl": impl, "compiled": compiled, "graph": graph, "traced": traced, **case}
    return Part(call, "encoder", f"{name}, {shape}", options, MAKE - 1 + TRACE * traced + more_s)


def _small(parts: list[Part]) -> list[Part]:
    """The first part of every kind, at a size that a CPU does at once; kernels in Triton's interpreter."""
    few: dict[tuple[Any, ...], Part] = {}
    for part in parts:
        few.setdefault((part.part, *(part.options.get(key) for key in ("impl", "cell", "kind", "without"))), part)
    for number, part in enumerate(few.values()):
        options = part.options
        if part.part in ("parity", "encoder"):
            options |= {"width": 16, "precision": "fp32", "sensors": 3, "windows": 2, "blocks": 2, "slstm_at": [1]}
            options |= {"traced": False} if part.part == "encoder" else {}
        elif part.part == "training":  # the first one alone asks for a device
            options |= {"compile": "off", "cuda_graph": number == 1, "epoch": True, "steps": 2}
            options |= {"traced": number == 1 or options["impl"] == "reference"}
        elif part.part == "learning":
            options |= {"options": [], "precision": "32-true"}
        if options.get("impl") == "triton":
            options["impl"] = "fused"
    return list(few.values())


# ------------------------------------------------------------------------------------------------------------- running


class Server:
    """A process that works off parts one after the other, started anew where one has ended it."""

    def __init__(self, smoke: bool, sanitizer: str, complained: IO[str]) -> None:
        self._smoke, self._sanitizer, self._complained = smoke, sanitizer, complained
        self._process: Any = None

    def ask(self, part: Part, limit_s: float) -> None:
        """Measure a part: its rows, and why there are no more of them; a process that takes too long is killed."""
        process = self._process = self._process or self._started()
        began, stopped = time.monotonic(), threading.Event()

        def stop() -> None:
            stopped.set()
            os.killpg(process.pid, signal.SIGKILL)  # with the compilers that it has started

        timer = threading.Timer(limit_s, stop)
        timer.start()
        part.rows, part.why = [], "not done"
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps([part.part, part.options]) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            if line == "done\n":
                part.why = ""
                break
            if line.startswith("{") and line.endswith("}\n"):
                part.rows.append(json.loads(line))
            else:  # a sanitizer's
                self._complained.write(line)
        timer.cancel()
        # What watches a trace stays in its process and slows launches; a sanitizer says by its exit what it has found.
        code = self.close() if part.why or self._sanitizer or part.options.get("traced") else 0
        if part.why or (self._sanitizer and code):
            part.rows = part.rows if part.why else []
            self._complained.seek(0)
            last = next((line.strip() for line in reversed(self._complained.readlines()) if line.strip()), "")
            part.why = f"{last[:160]} ({f'stopped after {limit_s:.0f} s' if stopped.is_set() else f'exit {code}'})"
        part.seconds = time.monotonic() - began

    def _started(self) -> Any:
        command = [sys.executable, str(HERE / "gpu_parts.py"), *(["--smoke"] if self._smoke else [])]
        environment = {**os.environ, "PYTHONPATH": f"{HERE.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        if self._smoke:
            environment["TRITON_INTERPRET"] = "1"
        if self._sanitizer:
            command = [sanitizer() or "", "--tool", self._sanitizer, "--error-exitcode", "9", *command]
            environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        self._complained.seek(0)
        self._complained.truncate()
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._complained}
        return subprocess.Popen(command, text=True, env=environment, start_new_session=True, **pipes)

    def close(self) -> int:
        """End the process -> its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        self._complained.writelines(process.stdout)  # until its end
        process.stdout.close()
        return int(process.wait())


def sanitizer() -> str | None:
    """Where compute-sanitizer is."""
    return shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")


def stretches(parts: list[Part]) -> Iterator[list[list[Part]]]:
    """Parts in their order -> what runs at the same time: lists of parts, for a process each."""
    for (timed, _), some in itertools.groupby(parts, lambda part: (part.timed, part.timed and part.part)):
        each = list(some)
        if timed:
            yield [each]
        else:
            plain = [part for part in each if not part.sanitizer]
            lanes = [[part] for part in each if part.sanitizer] + [plain[first::AT_ONCE] for first in range(AT_ONCE)]
            yield [lane for lane in lanes if lane]


def planned_s(parts: list[Part]) -> float:
    """Of all parts, the starts of their processes included."""

    def seconds(lane: list[Part]) -> float:
        starts = 1 + sum(bool(part.options.get("traced")) for part in lane[:-1])
        return START * starts + sum(part.planned_s for part in lane)

    return sum(max(map(seconds, lanes)) for lanes in stretches(parts))


class Bench:
    """Runs parts until the deadline, and writes what is known after every row."""

    def __init__(self, parts: list[Part], chosen: list[Part], again: bool, output: Path, smoke: bool) -> None:
        self.parts, self.chosen, self.again, self.output, self.smoke = parts, chosen, again, output, smoke
        self.device = ""

    def run(self, minutes: float) -> None:
        """The chosen parts, neighbours that are not timed side by side."""
        deadline = time.monotonic() + 60 * minutes
        for lanes in stretches(self.chosen):
            with ThreadPoolExecutor(len(lanes)) as pool:
                list(pool.map(lambda lane: self._lane(lane, deadline), lanes))

    def _lane(self, parts: list[Part], deadline: float) -> None:
        """Parts one after the other by one server; whatever becomes of a part, its row says so."""
        with tempfile.TemporaryFile("w+") as complained:
            server = Server(self.smoke, parts[0].sanitizer, complained)
            for part in parts:
                self._one(part, server, deadline - time.monotonic())
            server.close()

    def _one(self, part: Part, server: Server, left_s: float) -> None:
        if self.again or not part.measured:
            if part.options.get("data", "") is None:
                part.why = "no --data"
            elif part.sanitizer and not sanitizer():
                part.why = "compute-sanitizer is not installed"
            elif left_s < 5:
                part.why = "out of time"
            else:
                server.ask(part, min(START + 30 + 2 * part.planned_s, left_s))
        if part.part == "machine" and part.rows:
            self.device = str(part.rows[-1]["device"])
            self._remember()
        self.write()
        print(f"{part.call}  {part.part}  {part.row}: {_said(part)}", flush=True)

    @property
    def name(self) -> str:
        """Of the files, without their ending."""
        return (self.device or "device").lower().replace(" ", "-")

    def _remember(self) -> None:
        """The rows that were measured on this device before, of parts that were asked for the same."""
        for folder in (HERE / "results", self.output):
            path = folder / f"{self.name}.json"
            known = json.loads(path.read_text()) if path.exists() else []
            before = {(row["call"], row["part"], row["row"]): row for row in known}
            for part in self.parts:
                found = before.get((part.call, part.part, part.row))
                if found is not None and found["asked"] == part.asked and part.part != "machine":
                    part.rows, part.why, part.seconds = found["rows"], found["why"], found["seconds"]

    def write(self) -> None:
        """Both files, as far as they are known."""
        self.output.mkdir(parents=True, exist_ok=True)
        record = [
            {key: getattr(part, key) for key in ("call", "part", "row", "asked", "rows", "why", "seconds")}
            for part in self.parts
        ]
        (self.output / f"{self.name}.json").write_text(json.dumps(record, indent=1) + "\n")
        (self.output / f"{self.name}.md").write_text(markdown(self.parts))


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
    return "\n".join(lines) + "\n"


def _parity_cells(row: dict[str, Any], _: dict[str, Any]) -> list[str]:
    return [f"{row['output']:.1e}", f"{row['gradient']:.1e}", "yes" if row["same_bits"] else "**no**"]


def _check_cells(row: dict[str, Any], _: dict[str, Any]) -> list[str]:
    return ["nothing found"]


def _ms_cells(row: dict[str, Any], _: dict[str, Any]) -> list[str]:
    return [number(row["ms"], 3)]


def _kernel_cells(row: dict[str, Any], _: dict[str, Any]) -> list[str]:
    return [number(row["us"]), number(row["gb_per_s"], 0)]


def _pooling_cells(row: dict[str, Any], _: dict[str, Any]) -> list[str]:
    return [number(row["ms"], 3), "yes" if row["same_bits"] else "**no**"]


def _of_a_copy(gb_per_s: float | None, facts: dict[str, Any]) -> str:
    """Bytes per second as a share of those of a copy."""
    known = gb_per_s is not None and "copy_gb_per_s" in facts
    return f"{number(100 * gb_per_s / facts['copy_gb_per_s'], 0)} %" if known else "-"


def _encoder_cells(row: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    counts = (row.get("kernels_per_step"), row.get("syncs_per_step"))
    return [
        number(row["ms"], 2),
        number(row["windows_per_s"], 0),
        _of_a_copy(row["bound_gb_per_s"], facts),
        number(row["peak_gib"], 2),
        "-" if row["error"] is None else f"{row['error']:.1e}",
        *(number(count, 0) for count in counts),
        number(row.get("gpu_busy"), 2),
    ]


def _training_cells(row: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    kernels, sync, memory, epoch = (row.get(key) or {} for key in ("kernels", "sync", "memory", "epoch"))
    return [
        number(row["step_ms"]["p50"], 2),
        number(row["throughput"]["windows_per_s"], 0),
        *(_of_a_copy(row.get(key), facts) for key in ("bound_gb_per_s", "moved_gb_per_s")),
        *_busy_cells(epoch),
        f"{100 * row['shares']['input']:.1f} %",
        number(memory.get("peak_bytes", 0) / 2**30, 2),
        number(row.get("gpu_busy"), 2),
        number(row.get("sm_efficiency"), 2),
        number(kernels.get("per_step"), 0),
        number(sync.get("per_step"), 0),
    ]


def _busy_cells(row: dict[str, Any]) -> list[str]:
    """The share of a time in which any kernel ran, by NVML, and in which a multiprocessor had work, by GPM."""
    return [number((row.get("nvml") or {}).get("utilisation_mean"), 2), number((row.get("gpm") or {}).get("sm"), 2)]


def _learning_cells(row: dict[str, Any], _: dict[str, Any]) -> list[str]:
    mae = row.get("mae", {})
    return [
        str(row["epochs"]),
        number(row["seconds"], 0),
        number(row.get("windows_per_s"), 0),
        *_busy_cells(row),
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
        [
            *(
                "ms",
                "windows/s",
                "of the encoder's bound",
                "of a copy",
                "NVML, an epoch",
                "SMs active, an epoch",
                "input",
                "peak GiB",
            ),
            *("gpu_busy", "sm_efficiency", "kernels", "syncs"),
        ],
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
        ["epochs", "seconds", "windows/s", "NVML", "SMs active", "validation", "15 min", "30 min", "60 min"],
        _learning_cells,
    ),
    ("Kernels alone, B = 64, N = 207, bf16", "kernel", ["us", "GB/s"], _kernel_cells),
]


def lines_of(parts: list[Part]) -> Iterator[str]:
    """The plan as text."""
    yield f"Planned seconds, counted and not measured; {START} s for every start of a process."
    for call in CALLS:
        some = [part for part in parts if part.call in (call, "every call")]
        processes = sum(map(len, stretches(some))) + sum(bool(part.options.get("traced")) for part in some)
        yield f"{call}: {len(some)} rows, about {processes} processes, {planned_s(some):.0f} of {CALL_S} s"
        for part in some:
            yield f"  {part.planned_s:4.0f} s{'' if part.timed else ' beside others'}  {part.part}: {part.row}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--call", nargs="+", choices=CALLS, default=list(CALLS), help="how fast, is it right, does it learn"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="names of parts or rows of these calls")
    parser.add_argument("--again", action="store_true", help="measure rows that the results have, too")
    parser.add_argument("--minutes", type=float, default=9.5, help="of all parts together")
    parser.add_argument("--data", type=Path, help="METR-LA as socialx convert writes it, for the last call")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--plan", action="store_true", help="print what would run")
    parser.add_argument("--smoke", action="store_true", help="every path at a tiny size, on a CPU too")
    options = parser.parse_args()
    parts = plan(options.smoke, options.data, options.output / "runs")
    if unknown := set(options.only) - {name for part in parts for name in (part.part, part.row)}:
        parser.error(f"--only {', '.join(sorted(unknown))}: --plan prints the names")
    chosen = [part for part in parts if part.call in options.call]
    if options.only:
        chosen = [part for part in chosen if {part.part, part.row} & set(options.only)]
    machine = parts[0]
    if options.plan:
        print("\n".join(lines_of([machine, *chosen])))
        return
    bench = Bench(parts, [machine, *chosen], options.again, options.output, options.smoke)
    bench.run(options.minutes)
    print(markdown(parts))


if __name__ == "__main__":
    main()
