"""The GPU benchmark survives its parts: what crashes or has no time is a row that says why."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import Bench, Part, Server
from tests.commands import python, small_file

ROOT = Path(__file__).parents[1]
GPU = [sys.executable, str(ROOT / "benchmarks/gpu.py")]


# What a CUDA image with PyTorch has, and what make gpu-packages adds.
IMAGE = """
    torch torchgen functorch triton numpy pandas h5py matplotlib safetensors rich typer yaml dateutil six pytz
    annotated_doc shellingham pygments packaging typing_extensions sympy mpmath jinja2 filelock psutil
    pytest _pytest py pluggy iniconfig hypothesis xdist execnet _distutils_hack
"""
PACKAGES = "pydantic pydantic_core annotated_types typing_inspection xlstm mlstm_kernels pynvml"


def test_the_gpu_programs_need_nothing_that_the_machine_lacks() -> None:
    code = """
import sys, runpy
sys.argv = ["x", "--smoke"]
sys.path.insert(0, "benchmarks")
import gpu_parts, mlstm_kernels.torch.backend_module
from tests.gpu import test_commands, test_kernels, test_loaders, test_memory, test_profile, test_steps
print(*sorted({name.partition(".")[0] for name, module in sys.modules.items()
               if "site-packages" in (file := getattr(module, "__file__", None) or "") and "setuptools" not in file}))
"""
    assert set(python(code).split()) <= {*IMAGE.split(), *PACKAGES.split()}


def bench(output: Path, *arguments: str, **environment: str) -> tuple[dict[tuple[str, str], dict[str, Any]], str]:
    """What the benchmark wrote: its record by part and row, and its tables."""
    command = [*GPU, "--smoke", "--output", str(output), *arguments]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads((output / "smoke.json").read_text())
    return {(row["part"], row["row"]): row for row in record}, (output / "smoke.md").read_text()


def test_the_plan_names_every_part_and_fits_its_calls() -> None:
    done = subprocess.run([*GPU, "--plan"], capture_output=True, text=True, check=True).stdout
    calls = re.findall(r"^(\w+): .* (\d+) of (\d+) s$", done, re.MULTILINE)
    assert [call for call, *_ in calls] == ["fast", "right", "learns"]
    assert all(int(planned) <= int(most) == 540 for _, planned, most in calls)
    for part in (
        "parity: E=128 bf16 triton",
        "training: triton compiled graph bf16",
        "kernel: mlstm_backward of mlstm",
        "training: triton graph bf16, sum and norm apart",
        "training: triton graph bf16, attention by dense sums",
        "pooling: attention by dense sums",
        "encoder: package, its CUDA kernels, E=128 B=64 bf16",
    ):
        assert part in done
    done = subprocess.run([*GPU, "--plan", "--only", "kernels"], capture_output=True, text=True)
    assert "--only kernels: --plan prints the names" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_part_is_measured_or_says_why_not(tmp_path: Path, data: Path) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text('#!/bin/sh\nshift 4\n"$@"\necho ========= ERROR SUMMARY: 1 error\nexit 9\n')
    tool.chmod(0o755)
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    on_device = shutil.which("c++") is not None  # every process of the benchmark then has the pseudo device
    if on_device:
        (tmp_path / "sitecustomize.py").write_text("import tests.pseudo_cuda.device\n")
        path["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{ROOT}"
    rows, tables = bench(tmp_path, "--minutes", "4", "--data", str(data), **path, SOCIALX_BENCH_FAULT_LOADER="abort")
    fused, package = "fused, E=128 B=64 bf16", "package, its CUDA kernels, E=128 B=64 bf16"
    assert "exit -6" in rows["loader", "loader"]["why"]
    assert rows["memcheck", "compute-sanitizer memcheck"]["why"] == "========= ERROR SUMMARY: 1 error (exit 9)"
    if not on_device:
        assert "Fallback: trainer.cuda_graph: the device is cpu" in rows["training", "triton graph bf16"]["why"]
    assert "RuntimeError: no CUDA device" in rows["encoder", package]["why"]
    without = {"loader", "memcheck"}
    recorded = [] if on_device else [("training", "triton graph bf16")]
    missing = [key for key, row in rows.items() if not row["rows"] and key[0] not in without]
    assert missing == [*recorded, ("encoder", package)]
    assert all(row["rows"] or row["why"] for row in rows.values())
    assert all("us" in measured for (part, _), row in rows.items() if part == "kernel" for measured in row["rows"])
    of_epoch = rows["training", "fused graph bf16"]["rows"][-1]["epoch"]
    assert of_epoch["nvml"].keys() == {"why"}
    assert [each["epoch"] for each in rows["learning", "bf16-mixed, seed 0"]["rows"][-1]["each_epoch"]] == [1]
    assert (tmp_path / "runs" / "32-true-0" / "metrics.csv").exists()
    for part, row in rows:
        assert part == "machine" or f"| {row} |" in tables
    # A later call keeps what was measured, of what it is asked for and of the rest.
    later, _ = bench(tmp_path, "--call", "fast", "--only", "loader", fused, **path)
    assert later["loader", "loader"]["rows"]
    kept = [key for key in rows if key[0] not in ("loader", "machine")]
    assert [later[key] for key in kept] == [rows[key] for key in kept]


@pytest.mark.parametrize("again", [False, True])
def test_a_row_that_is_measured_is_measured_again_where_that_is_asked_for(tmp_path: Path, again: bool) -> None:
    part, asked = Part("fast", "loader", "loader", {}, 1, rows=[{"ms": 1.0}], why=""), []
    server: Any = SimpleNamespace(ask=lambda part, limit_s: asked.append(part))
    Bench([part], [part], again, tmp_path, smoke=True)._one(part, server, left_s=9)
    assert asked == ([part] if again else [])


def test_a_part_that_takes_too_long_is_stopped_and_the_next_one_runs() -> None:
    late, next_one = (Part("fast", "loader", "loader", {}, 1) for _ in range(2))
    with TemporaryFile("w+") as complained:
        server = Server(True, "", complained)
        server.ask(late, 0.1)
        server.ask(next_one, 60)
        server.close()
    assert late.why == " (stopped after 0 s)"
    assert next_one.measured


def test_the_bytes_of_a_kernel_count_each_number_once() -> None:
    gpu_parts = import_module("benchmarks.gpu_parts")
    u, d_inputs = (torch.empty(12, 5, size, dtype=torch.bfloat16, device="meta") for size in (512, 64))
    arguments = {"sequences": 5, "H": 4, "D": 64, "X": 512}
    # The rows of u have the output gates, too: 256 of their 512 numbers are read.
    assert gpu_parts.bytes_of({"x": u, "out": u[..., :256], **arguments}) == 2 * 12 * 5 * 512
    assert gpu_parts.bytes_of({"x": u, **arguments}) == 2 * 12 * 5 * 256
    # Two arguments and one storage, then the second half of one.
    assert gpu_parts.bytes_of({"d_out": d_inputs, "d_values": d_inputs[..., 32:], **arguments}) == 2 * 12 * 5 * 64
    assert gpu_parts.bytes_of({"d_values": d_inputs[..., 32:], **arguments}) == 2 * 12 * 5 * 32


def test_the_packages_cell_in_cuda_takes_the_parameters_over() -> None:
    gpu_parts = import_module("benchmarks.gpu_parts")
    stack: Any = gpu_parts.Case(16, "bf16", 3, 2, 2, (1,)).encoder("reference").stack
    vanilla = stack.blocks[1].xlstm.slstm_cell
    made = gpu_parts.package_cuda(vanilla, compiled=False)
    assert made.config.backend == "cuda"
    assert torch.equal(made._recurrent_kernel_int2ext(made._recurrent_kernel_), vanilla.recurrent_kernel[:])
    assert torch.equal(made._bias_int2ext(made._bias_), vanilla.bias[:])


def test_the_cards_own_counters_become_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_parts = import_module("benchmarks.gpu_parts")
    nvml, found = ModuleType("pynvml"), {}
    samples = iter(("before", "after"))

    def metrics_of(asked: Any) -> None:
        assert (asked.version, asked.sample1, asked.sample2) == (1, "before", "after")
        for metric in asked.metrics[: asked.numMetrics]:
            metric.value = {2: 90.0, 3: 40.0, 10: 70.0}[metric.metricId]

    nvml.nvmlInit, nvml.nvmlDeviceGetHandleByUUID = lambda: None, {"GPU-abc": "card"}.__getitem__
    nvml.nvmlGpmSampleAlloc, nvml.nvmlGpmSampleGet = lambda: None, lambda card, sample: next(samples)
    nvml.NVML_GPM_METRICS_GET_VERSION, nvml.nvmlGpmMetricsGet = 1, metrics_of
    nvml.c_nvmlGpmMetricsGet_t = lambda: SimpleNamespace(metrics=[SimpleNamespace() for _ in range(5)])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="abc"))
    with gpu_parts.watched(found):
        pass
    assert found["gpm"] == pytest.approx({"sm": 0.9, "warps": 0.4, "dram": 0.7})
    with gpu_parts.watched(found):  # no more samples
        pass
    assert set(found["gpm"]) == {"why"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_patches_are_compared_and_what_is_measured_is_kept(tmp_path: Path) -> None:
    data, output, runs = small_file(tmp_path), tmp_path / "patches.json", tmp_path / "runs"
    command = [sys.executable, "-m", "benchmarks.encoders", "--data", str(data), "--output", str(output)]
    tiny = ["model.width=8", "model.mlp_width=8", "trainer.max_epochs=1", "pooling.neighbours=3"]

    def rows(patches: str) -> dict[tuple[str, int], dict[str, Any]]:
        done = subprocess.run(
            [*command, "--runs", str(runs), "--patch", patches, *tiny], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        (found,) = json.loads(output.read_text()).values()
        assert done.stdout.count("\n| mlp |") + done.stdout.count("\n| xlstm |") == len(found)
        return {(row["encoder"], row["patch"]): row for row in found}

    first = rows("6")
    assert set(first) == {("mlp", 6), ("xlstm", 6)}
    shutil.rmtree(runs)
    later = rows("12,6")
    assert set(later) == {*first, ("mlp", 12), ("xlstm", 12)}
    assert {key: later[key] for key in first} == first
    assert [row["tokens"] for row in later.values()] == [2, 2, 1, 1]
    assert len(list((runs / "patches").iterdir())) == 2  # nothing was trained again
    assert all(len(row["by_epoch"]) == 1 and row["mae"]["all"] > 0 for row in later.values())
