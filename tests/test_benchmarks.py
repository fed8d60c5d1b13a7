"""The GPU benchmark survives its parts: what crashes or has no time is a row that says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import python

ROOT = Path(__file__).parents[1]
GPU = [sys.executable, str(ROOT / "benchmarks/gpu.py")]


# What a CUDA image with PyTorch has, and what make gpu-packages adds.
IMAGE = """
    torch torchgen functorch triton numpy pandas h5py matplotlib safetensors rich typer yaml dateutil six pytz
    annotated_doc shellingham pygments packaging typing_extensions sympy mpmath jinja2 filelock psutil
    pytest _pytest py pluggy iniconfig hypothesis xdist execnet _distutils_hack
"""
PACKAGES = "pydantic pydantic_core annotated_types typing_inspection xlstm"


def test_the_gpu_programs_need_nothing_that_the_machine_lacks() -> None:
    code = """
import sys, runpy
sys.argv = ["x", "loader", "{}", "--smoke"]
sys.path.insert(0, "benchmarks")
import gpu_parts, tests.gpu.test_gpu
print(*sorted({name.partition(".")[0] for name, module in sys.modules.items()
               if "site-packages" in (file := getattr(module, "__file__", None) or "") and "setuptools" not in file}))
"""
    assert set(python(code).split()) <= {*IMAGE.split(), *PACKAGES.split()}


def bench(output: Path, *arguments: str, **environment: str) -> tuple[list[dict[str, object]], str]:
    """What the benchmark wrote: its record and its tables."""
    command = [*GPU, "--smoke", "--output", str(output), *arguments]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((output / "cpu-smoke.json").read_text()), (output / "cpu-smoke.md").read_text()


def test_the_plan_names_every_part_and_fits_its_calls() -> None:
    done = subprocess.run([*GPU, "--plan"], capture_output=True, text=True, check=True).stdout
    for call in ("right", "fast", "learns"):
        assert f"\n{call}: " in f"\n{done}"
    for part in (
        "parity: E=128 bf16 triton",
        "training: triton compiled graph bf16",
        "kernel: mlstm_backward of mlstm",
        "training: triton graph bf16, sum and norm apart",
        "training: triton graph bf16, attention by dense sums",
        "pooling: attention by dense sums",
    ):
        assert part in done


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_part_is_measured_or_says_why_not(tmp_path: Path) -> None:
    faults = {"SOCIALX_BENCH_FAULT_PARITY": "abort", "SOCIALX_BENCH_FAULT_LOADER": "CompilationError"}
    record, tables = bench(tmp_path, "--call", "right", "fast", "--minutes", "4", **faults)
    rows = {(row["call"], row["part"], row["row"]): row for row in record}
    assert all(row["rows"] or row["why"] for row in record)
    assert "exit -6" in str(rows["right", "parity", "E=128 bf16 fused"]["why"])
    assert "CompilationError: as asked (exit 1)" in str(rows["fast", "loader", "loader"]["why"])
    assert "CUDA" in str(rows["fast", "training", "triton graph bf16"]["why"])
    assert rows["fast", "encoder", "fused, E=128 B=64 bf16"]["rows"]
    assert rows["fast", "training", "triton graph bf16, sum and norm apart"]["rows"]
    assert rows["fast", "pooling", "attention by dense sums"]["rows"]
    assert rows["learns", "learning", "bf16-mixed, seed 0"]["why"] == "not reached"
    for _, part, row in rows:
        assert part == "machine" or f"| {row} |" in tables
    # A later call keeps what it does not run, and has no time for what it does.
    again, _ = bench(tmp_path, "--call", "learns", "--minutes", "0.15")
    kept = {(row["call"], row["part"], row["row"]): row for row in again}
    assert (
        kept["fast", "encoder", "fused, E=128 B=64 bf16"]["rows"]
        == rows["fast", "encoder", "fused, E=128 B=64 bf16"]["rows"]
    )
    assert kept["learns", "learning", "bf16-mixed, seed 0"]["why"] == "no --data"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_launch_of_the_sweep_compiles_and_the_defaults_count_least() -> None:
    """What would count less than a default spills, on that card or on an older one."""
    code = """
from benchmarks.compile_report import sweep, tried
rows, chosen = list(sweep()), {}
for row in rows:
    asked = row["asked"]
    assert all(row[key] == value for key, value in asked["options"].items() if key in row), row
    least = chosen.setdefault(asked["kernel"] + asked["cell"], row["slots"])
    if row["slots"] < least and not row["spill_stores"]:
        assert tried(**asked, arch=80)["spill_stores"], row
print(len(rows), len(chosen))
"""
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "50 8\n"
