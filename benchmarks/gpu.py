"""The training step on one GPU: how many windows a second, how busy is the card, and what changes that.

    make bench-gpu                                         # or: python benchmarks/gpu.py [--data metr_la.h5]
    python benchmarks/gpu.py --plan                        # the rows and their questions
    python benchmarks/gpu.py --only large large-compiled   # these rows; the others stay in the results

One call, planned for nine minutes, without a network.  Every row is a profile of a preset, ``xlstm-large`` unless the
row names another, with its own loader, as ``socialx profile`` makes it, in a process of its own: a row that crashes it,
that takes too long or that would fall back to another way is "not measured", with the reason.  <device>.json and
<device>.md are written after every row. Without --data the readings are made, as many as METR-LA has.  ``--smoke``
takes every row at a size that proves nothing, on a CPU too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import socialx
from benchmarks.common import METR_LA, RESULTS, head, known, line, make_network, parser, write
from socialx.core.errors import FallbackWarning, in_short
from socialx.settings.layers import ConfigLayers


@dataclass(frozen=True)
class Row:
    """A row of the results: its name, what it answers, what it changes of a preset, and the most seconds it takes."""

    name: str
    question: str
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: int = 60
    preset: str = "xlstm-large"


TRUE = {"trainer.precision": "32-true"}
HALF = {"trainer.precision": "16-mixed"}
LARGEST = "largest-batch"
PLAIN, COMPILED, EAGER = {"trainer.compile": "off"}, {"trainer.compile": "default"}, {"trainer.cuda_graph": "off"}
PATCH, BATCH = {"model.patch": 1}, {"loader.batch_size": 64}
SHARDS = {"loader.mode": "sharded", "loader.shard_gb": 0.01}
SHIPPED = "xlstm-small"
ROWS = (
    Row("shipped", "How fast is the preset of the shipped run, with two tokens, recorded?", PLAIN, preset=SHIPPED),
    Row("shipped-eager", "And without the recording?", PLAIN | EAGER, preset=SHIPPED),
    Row("shipped-compiled", "What does --compile default bring it?", COMPILED, 120, SHIPPED),
    Row("shipped-batch-64", "What do four times the windows cost?", PLAIN | BATCH, preset=SHIPPED),
    Row("shipped-patch-1", "And a step in a token?", PLAIN | PATCH, preset=SHIPPED),
    Row("shipped-patch-1-compiled", "What does --compile default bring twelve tokens?", COMPILED | PATCH, 150, SHIPPED),
    Row("fp16", "Is float16 with a gradient scaler as fast as bfloat16?", HALF, preset=SHIPPED),
    Row("workers", "What do batches of worker processes cost?", {"loader.mode": "workers"}, preset=SHIPPED),
    Row("shards", "What does reading the series in shards cost?", SHARDS, preset=SHIPPED),
    Row("large", "How fast is the large preset, and how busy is the card?", PLAIN, 120),
    Row("large-compiled", "What does --compile default bring it?", COMPILED, 180),
    Row("no-graph", "What does recording its step as a CUDA graph bring?", PLAIN | EAGER),
    Row("tf32", "What do half types bring against float32 with TF32 products?", TRUE),
    Row("fp32", "And against exact float32 products?", TRUE | {"trainer.float32_matmul_precision": "highest"}),
    Row(LARGEST, "Which is the largest batch that fits, and how fast is it?", seconds=120),
    Row("package", "What does the encoder of the xlstm package cost?", {"model.backend": "reference"} | EAGER),
    Row("batch-64-compiled", "What do compilation and batch bring together?", COMPILED | BATCH, 150, SHIPPED),
    Row("autotuned", "What does --compile max-autotune bring?", {"trainer.compile": "max-autotune"}, 240),
)
TINY = {"model.width": 16, "model.blocks": 2, "model.slstm_at": "1", "pooling.neighbours": 3, "loader.batch_size": 4}
SMOKE = TINY | {"profile.steps": 3, "profile.warmup_steps": 1}
KEPT = "step_ms throughput shares gpu_busy sm_efficiency bubble idle sync copy memory device kernels loader"


def measure(data: str, smoke: bool, name: str) -> None:
    """Print what a row finds as a line of JSON; the largest batch: a line for every batch that fits."""
    row = next(each for each in ROWS if each.name == name)
    layers = ConfigLayers(preset=row.preset).over(row.settings | {"profile.trials": False, "data.path": data})
    if not smoke and not torch.cuda.is_available():
        sys.exit("no CUDA device")
    if smoke:
        layers = layers.over(SMOKE)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    warnings.simplefilter("error", FallbackWarning)  # a row is what it says, or it is not there
    changes: list[dict[str, Any]] = [{}]
    if name == LARGEST:
        layers = layers.over({"profile.steps": 2 if smoke else 20, "profile.trace_steps": 0})
        changes = [{"loader.batch_size": 2**power} for power in (range(3, 5) if smoke else range(7, 15))]
    for change in changes:
        try:
            found = socialx.profile(settings=layers.over(change))
        except Exception as error:  # noqa: BLE001  whatever it is, its first line is the reason
            sys.exit(f"{type(error).__name__}: {in_short(error)}")
        facts = found.as_dict()
        kept = {key: facts[key] for key in KEPT.split()} | {"why": found.why, "environment": found.environment}
        kept["environment"].pop("command")  # names folders of the machine
        print(json.dumps({"batch": found.settings["loader"]["batch_size"], **kept}), file=answers, flush=True)


def ask(row: Row, data: Path, smoke: bool, most_s: float) -> dict[str, Any]:
    """A row in a process of its own -> what it found last, and why there is no more of it."""
    code = "import sys; from benchmarks.gpu import measure; measure(sys.argv[1], sys.argv[2] == 'smoke', sys.argv[3])"
    command = [sys.executable, "-c", code, str(data), "smoke" if smoke else "", row.name]
    root = str(Path(__file__).parents[1])
    path = {"PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    began, late = time.monotonic(), ""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complained:
        process = subprocess.Popen(
            command, stdout=said, stderr=complained, env=os.environ | path, start_new_session=True, text=True
        )
        try:
            process.wait(most_s)
        except subprocess.TimeoutExpired:
            late = f"stopped after {most_s:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the compilers that it has started
            process.wait()
        said.seek(0)
        complained.seek(0)
        lines = [each for each in said.read().splitlines() if each.endswith("}")]
        last = next((each.strip() for each in reversed(complained.readlines()) if each.strip()), "")
    why = late or (f"{last[:200]} (exit {process.returncode})" if process.returncode else "")
    found = json.loads(lines[-1]) if lines else None
    return {"settings": row.settings, "seconds": time.monotonic() - began, "found": found, "why": why}


def markdown(device: str, rows: dict[str, dict[str, Any]]) -> str:
    """The rows with their questions, and what was found."""
    columns = ("batch", "windows/s", "step ms", "busy", "SMs busy", "NVML", "kernels a step", "waits", "peak GiB")
    busy = "Busy is the share of the time in which a kernel runs, SMs busy the same of the multiprocessors."
    lines = [f"# {device}", "", f"Written by `make bench-gpu`. {busy} NVML is what the driver says.", ""]
    lines += [head("row", *columns), *(line([row.name, *cells(rows.get(row.name))]) for row in ROWS)]
    lines += ["", "| row | question | changes |", "|---|---|---|"]
    typed = {row.name: {"preset": row.preset, **row.settings} for row in ROWS}
    changes = {name: ", ".join(f"{key}={value}" for key, value in each.items()) for name, each in typed.items()}
    lines += [line([row.name, row.question, changes[row.name]]) for row in ROWS]
    return "\n".join(lines) + "\n"


def cells(row: dict[str, Any] | None) -> list[str]:
    """The columns of a row, or why there are none."""
    found = row and row["found"]
    if row is None or found is None:
        return [f"not measured: {row['why'] if row else 'not reached'}", *[""] * 8]

    def part(section: str, key: str, form: str, scale: float = 1.0) -> str:
        value = (found[section] or {}).get(key) if key else found[section]
        return "-" if value is None else format(scale * value, form)

    return [
        str(found["batch"]),
        part("throughput", "windows_per_s", ",.0f"),
        part("step_ms", "p50", ".2f"),
        part("gpu_busy", "", ".0%"),
        part("sm_efficiency", "", ".0%"),
        part("device", "utilisation_mean", ".0f"),
        part("kernels", "per_step", ",.0f"),
        part("sync", "per_step", ".1f"),
        part("memory", "peak_bytes", ".2f", 2**-30),
    ]


def main() -> None:
    arguments = parser(__doc__, minutes=9.5, output=RESULTS, plan=False, smoke=False)
    arguments.add_argument("--only", nargs="+", choices=[row.name for row in ROWS], metavar="ROW", default=[])
    arguments.add_argument("--data", type=Path, help=f"{METR_LA}; not set: readings that are made")
    given = arguments.parse_args()
    if given.plan:
        print("\n".join(f"{row.name:24} {row.question}" for row in ROWS))
        return
    deadline = time.monotonic() + 60 * given.minutes
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    device = "smoke" if given.smoke else torch.cuda.get_device_name() if torch.cuda.is_available() else "no device"
    name = device.lower().replace(" ", "-")
    rows: dict[str, dict[str, Any]] = known(given.output / f"{name}.json")
    with tempfile.TemporaryDirectory() as folder:
        data = given.data or Path(folder) / "made.h5"
        if given.data is None:
            make_network(data, *((3000, 6) if given.smoke else (34_272, 207)))
        for row in (row for row in ROWS if not given.only or row.name in given.only):
            most_s = min(row.seconds, deadline - time.monotonic())
            if most_s < 5:
                print(f"{row.name:24} not reached: out of time", flush=True)
                continue
            rows[row.name] = ask(row, data, given.smoke, most_s)
            print(f"{row.name:24} {' | '.join(filter(None, cells(rows[row.name])))}", flush=True)
            write(given.output / f"{name}.json", rows)
            (given.output / f"{name}.md").write_text(markdown(device, rows))


if __name__ == "__main__":
    main()
