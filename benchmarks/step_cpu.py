"""The whole training step on one CPU thread: against its lower bound, compiled, and against an older commit.

    OMP_NUM_THREADS=1 python benchmarks/step_cpu.py --data metr_la.h5 [--against a4ca2c5] [--rounds 5] [--steps 6]

Steps of ``--size medium`` and ``--size small`` take turns in processes of their own, one of which
works at a time.  The lower bound counts the operations of all matrix products, divided by the rate of a large product,
and the bytes that must move (docs/performance.md), divided by the rate of a copy; nothing overlaps.  --against: blocks
of steps of ``socialx profile`` in a copy of that commit and in this one take turns, eager and compiled.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from socialx import build
from socialx.data.loaders import Loader
from socialx.environment import cpu_field
from socialx.model.attention import WORK
from socialx.model.xlstm.exact import _Scan
from socialx.settings_layers import Layers
from socialx.tasks.training import make_learner
from socialx.training.learner import Learner

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "step_cpu.json"
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "compiled": {"trainer.compile": "default"},
    "compiled, bf16-mixed": {"trainer.compile": "default", "trainer.precision": "bf16-mixed"},
}
KINDS = {
    "matrix products": ("mm", "addmm", "bmm", "baddbmm"),
    "sums": ("sum", "cumsum", "cummax", "amax", "mean"),
    "softmax": ("softmax", "_softmax", "_softmax_backward_data"),
    "norms": ("native_layer_norm", "native_layer_norm_backward"),
    "copies": ("clone", "copy_", "cat", "stack", "constant_pad_nd", "new_zeros", "zeros_like", "zero_", "fill_"),
}
BYTES = {"mlstm": 118, "last slstm": 117}  # a token and unit of width in 16 bits: medium has these two blocks


def learner_of(size: str, data: Path, **given: Any) -> tuple[Learner, Loader]:
    """What the toolkit trains for the settings of a size."""
    problem = build.build(Layers(size=size).over({"data.path": data, **given}).load().settings)
    train = problem.data.loader("train", problem.settings.loader.batch_size, shuffle=True)
    return make_learner(problem, len(train)), train


class Operations(TorchDispatchMode):
    """The operations that torch was asked for, and the CPU seconds of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.seconds: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        began = time.thread_time()
        out = func(*args, **(kwargs or {}))
        self.seconds[kind_of(str(func.overloadpacket).removeprefix("aten."))] += time.thread_time() - began
        return out


def kind_of(operation: str) -> str:
    """The kind of an operation of torch, by its name."""
    return next((kind for kind, names in KINDS.items() if operation in names), "pointwise and others")


def parts(data: Path, steps: int = 5) -> dict[str, dict[str, float]]:
    """CPU milliseconds of a step by kind of operation, and of the scan of the sLSTM alone, forward and backward."""
    found = {}
    for size in ("medium", "small"):
        learner, train = learner_of(size, data)
        batches = [batch for batch, _ in zip(train.epoch(0), range(steps), strict=False)]
        learner.step([batches[0]])
        scan = Timed(_Scan)
        began = time.thread_time()
        with scan:
            for batch in batches:
                learner.step([batch])
        row = {"step": time.thread_time() - began, "scan of the sLSTM": scan.seconds}
        with Operations() as operations:
            for batch in batches:
                learner.step([batch])
        row |= dict(operations.seconds.most_common())
        found[size] = {name: 1e3 * seconds / steps for name, seconds in row.items()}
        found[size]["operations"] = operations.count / steps
    return found


class Timed(ExitStack):
    """The CPU seconds in the forward and backward of an autograd function, while this is open."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.seconds = 0.0
        for name in ("forward", "backward"):
            self.enter_context(mock.patch.object(function, name, staticmethod(self._timed(getattr(function, name)))))

    def _timed(self, run: Any) -> Any:
        def timed(*args: Any) -> Any:
            began = time.thread_time()
            out = run(*args)
            self.seconds += time.thread_time() - began
            return out

        return timed


def work() -> None:
    """Answer each line of standard input with the seconds of one step."""
    torch.set_num_threads(1)
    size, data, given = sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4])
    learner, train = learner_of(size, data, **given)
    batches = iter(train.epoch(0))
    examples = [next(batches) for _ in range(3)]
    for number, _ in enumerate(sys.stdin):
        began = time.perf_counter()
        learner.step([examples[number % 3]])
        print(time.perf_counter() - began, flush=True)


def in_turns(size: str, data: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a step of each variant."""
    processes = {
        name: subprocess.Popen(
            [sys.executable, __file__, "work", size, str(data), json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, given in VARIANTS.items()
    }
    spent: dict[str, list[float]] = {name: [] for name in processes}
    for turn in range(rounds + 2):  # the first two compile and fill the allocator
        for name, process in processes.items():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            seconds = float(process.stdout.readline())
            if turn > 1:
                spent[name].append(1e3 * seconds)
    for process in processes.values():
        process.communicate()
    base = statistics.median(spent["as it is"])
    return {
        name: {"ms": statistics.median(ms), "least_ms": min(ms), "ratio": base / statistics.median(ms)}
        for name, ms in spent.items()
    }


def rates() -> dict[str, float]:
    """What one thread of this machine reaches: operations of a large product, and bytes of a copy beyond the caches."""
    side = torch.randn(2048, 2048)
    source = torch.randn(1 << 26)
    target = torch.empty_like(source)
    return {
        "gflop_per_s": 2 * 2048**3 / _fastest(lambda: side @ side) / 1e9,
        "copy_gb_per_s": 8 * len(source) / _fastest(lambda: target.copy_(source)) / 1e9,
    }


def _fastest(run: Any) -> float:
    spent = []
    for _ in range(8):
        began = time.perf_counter()
        run()
        spent.append(time.perf_counter() - began)
    return min(spent)


def bound(data: Path, machine: dict[str, float]) -> dict[str, Any]:
    """The lower bound of a step of medium in milliseconds, and the operations that torch is asked for."""
    learner, train = learner_of("medium", data)
    example = next(iter(train.epoch(0)))
    learner.step([example])
    with FlopCounterMode(display=False, custom_mapping=WORK) as counter:
        learner.step([example])
    windows, _, sensors = example.batch.history.shape[:3]
    tokens, width, heads = windows * tokens_of(learner) * sensors, 64, 4
    encoder = 2 * sum(BYTES.values()) * width * tokens
    attention = 2 * 8 * 4 * windows * heads * sensors**2  # eight passes over each of two layers' weights
    products_ms = counter.get_total_flops() / machine["gflop_per_s"] / 1e6
    bytes_ms = (encoder + attention) / machine["copy_gb_per_s"] / 1e6
    operations = {name: operations_of(data, given) for name, given in VARIANTS.items() if "bf16" not in name}
    return {
        "gflop": counter.get_total_flops() / 1e9,
        "products_ms": products_ms,
        "bytes_ms": bytes_ms,
        "bound_ms": products_ms + bytes_ms,
        "operations_of_64_windows": operations,
    }


def tokens_of(learner: Learner) -> int:
    """The tokens of the history of one sensor."""
    model: Any = learner.model
    return int(model.encoder.history)


def operations_of(data: Path, given: dict[str, Any]) -> int:
    """How many operations a step of 64 windows asks torch for, those inside another one left out; views count."""
    learner, train = learner_of("medium", data, **{"loader.batch_size": 64}, **given)
    example = next(iter(train.epoch(0)))
    for _ in range(2):
        learner.step([example])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
        learner.step([example])
    return sum(
        _is_operation(each) and not (each.cpu_parent is not None and _is_operation(each.cpu_parent))
        for each in trace.events()
    )


def products(data: Path) -> dict[str, dict[str, float]]:
    """Milliseconds and GFLOP/s of the matrix products of a compiled step: those of tokens by tokens, and all others."""
    learner, train = learner_of("medium", data, **VARIANTS["compiled"])
    example = next(iter(train.epoch(0)))
    tokens = tokens_of(learner)
    for _ in range(3):
        learner.step([example])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as trace:
        learner.step([example])
    us, work = Counter[str](), Counter[str]()
    for event in trace.events():
        if event.name in ("aten::mm", "aten::bmm"):
            first, second = event.input_shapes[:2]
            name = f"{tokens} tokens by {tokens}" if (*first[1:], *second[1:]).count(tokens) > 1 else "others"
            us[name] += event.self_cpu_time_total
            work[name] += 2 * math.prod(first) * second[-1]
    return {name: {"ms": us[name] / 1e3, "gflop_per_s": work[name] / us[name] / 1e3} for name in us}


def _is_operation(event: Any) -> bool:
    return event.name.startswith(("aten::", "socialx::"))


def against(commit: str, data: Path, rounds: int, steps: int) -> dict[str, Any]:
    """Steps per second of ``socialx profile`` here and at a commit, which take turns."""
    older = ["--no-climatology", "--pair-rank", "0"]  # the model that both have
    with tempfile.TemporaryDirectory() as folder:
        command = [shutil.which("git") or "git", "-C", str(ROOT), "archive", commit]
        archive = subprocess.run(command, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        has = "climatology" in (Path(folder) / "socialx" / "settings.py").read_text()
        compiled = ["--compile", "default"]
        sides = {
            "then": (Path(folder), older if has else []),
            "then, compiled": (Path(folder), [*(older if has else []), *compiled]),
            "now": (ROOT, older),
            "now, compiled": (ROOT, [*older, *compiled]),
        }
        ms: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, (root, flags) in sides.items():
                ms[name].append(_profile(root, data, steps, flags))
    then = statistics.median(ms["then"])
    found = {name: {"ms": statistics.median(v), "ratio": then / statistics.median(v)} for name, v in ms.items()}
    return {"model": "medium, without climatology and pair bias", **found}


def _profile(root: Path, data: Path, steps: int, flags: list[str]) -> float:
    """The median milliseconds of a step."""
    code = "from socialx.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        code,
        "profile",
        "--data",
        str(data),
        "--size",
        "medium",
    ]
    command += ["--steps", str(steps), "--warmup-steps", "3", "--trace-steps", "0", "--json", *flags]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return float(json.loads(done.stdout)["step_ms"]["p50"])


def compare(record: dict[str, Any], options: argparse.Namespace, data: Path) -> None:
    """Add what ``against`` finds to the record, beside what it has of other commits."""
    found = against(options.against, data, options.rounds, options.steps)
    record["against"] = {**record.get("against", {}), options.against: found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="METR-LA as socialx convert writes it")
    parser.add_argument("--against", metavar="COMMIT", help="also compare with this commit")
    parser.add_argument("--parts", action="store_true", help="only say where the time of a step goes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only-against", action="store_true", help="keep what the file has of the rest")
    parser.add_argument("--steps", type=int, default=6, help="of a block of --against")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = options.data.resolve()
    if options.parts:
        record = json.loads(RESULT.read_text())
        record["parts"], record["products"] = parts(data), products(data)
        RESULT.write_text(json.dumps(record, indent=1) + "\n")
        print(json.dumps({name: record[name] for name in ("parts", "products")}, indent=1))
        return
    if options.only_against:
        record = json.loads(RESULT.read_text())
        compare(record, options, data)
        RESULT.write_text(json.dumps(record, indent=1) + "\n")
        return
    machine = rates()
    facts = {"cpu": cpu_field("model name"), "capability": torch.backends.cpu.get_cpu_capability(), "threads": 1}
    record: dict[str, Any] = {"machine": facts | {"torch": torch.__version__} | machine}
    record["against"] = json.loads(RESULT.read_text()).get("against", {}) if RESULT.exists() else {}
    record["bound"] = bound(data, machine)
    record["parts"], record["products"] = parts(data), products(data)
    for size in ("medium", "small"):
        record[size] = in_turns(size, data, options.rounds)
    for variant in record["medium"].values():
        variant["of_bound"] = record["bound"]["bound_ms"] / variant["ms"]
    RESULT.write_text(json.dumps(record, indent=1) + "\n")
    if options.against:
        compare(record, options, data)
    RESULT.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    work() if sys.argv[1:2] == ["work"] else main()
