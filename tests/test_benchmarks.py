"""The GPU benchmark survives its rows: what crashes or has no time is a row that says why."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import ROWS, ask, cells, markdown
from socialx.settings.layers import ConfigLayers
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


@pytest.mark.slow
def test_the_gpu_programs_need_nothing_that_the_machine_lacks() -> None:
    code = """
import sys
import benchmarks.gpu, socialx.tasks.profile, socialx.model.xlstm.package
from tests.gpu import test_commands, test_loaders, test_memory, test_profile, test_steps
print(*sorted({name.partition(".")[0] for name, module in sys.modules.items()
               if "site-packages" in (file := getattr(module, "__file__", None) or "") and "setuptools" not in file}))
"""
    assert set(python(code).split()) <= {*IMAGE.split(), *PACKAGES.split()}


def bench(output: Path, *arguments: str) -> tuple[dict[str, dict[str, Any]], str]:
    """What the benchmark wrote: its rows and its tables."""
    done = subprocess.run([*GPU, "--smoke", "--output", str(output), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((output / "smoke.json").read_text()), (output / "smoke.md").read_text()


@pytest.mark.slow
def test_every_row_has_a_question_and_settings_that_can_be_set() -> None:
    printed = subprocess.run([*GPU, "--plan"], capture_output=True, text=True, check=True).stdout
    for row in ROWS:
        assert f"{row.name} " in printed
        assert row.question.endswith("?")
        assert row.question in printed
        ConfigLayers(preset=row.preset).over(row.settings).load()
    assert "'kernels'" in subprocess.run([*GPU, "--only", "kernels"], capture_output=True, text=True).stderr
    assert "not reached" in markdown("a card", {})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rows_are_measured_or_say_why_not_and_later_calls_keep_them(tmp_path: Path) -> None:
    rows, tables = bench(tmp_path, "--only", "tf32", "largest-batch")
    assert rows["tf32"]["found"]["environment"]["precision"] == "32-true"
    assert rows["largest-batch"]["found"]["batch"] == 16
    assert all(row["found"]["throughput"]["windows_per_s"] > 0 and not row["why"] for row in rows.values())
    assert "| tf32 | 4 |" in tables
    assert "| fp16 | not measured: " in tables
    later, _ = bench(tmp_path, "--only", "fp16")
    assert {name: later[name] for name in rows} == rows
    assert later["fp16"]["found"]["environment"]["precision"] == "16-mixed"
    last, _ = bench(tmp_path, "--only", "tf32", "--minutes", "0")
    assert last == later  # no time is no reason to forget


@pytest.mark.slow
def test_a_row_that_takes_too_long_is_stopped_and_one_that_fails_says_why(tmp_path: Path) -> None:
    row = next(each for each in ROWS if each.name == "tf32")
    late = ask(row, tmp_path / "none.h5", True, 0.1)
    assert (late["found"], late["why"]) == (None, "stopped after 0 s")
    failed = ask(row, tmp_path / "none.h5", True, 60)
    assert failed["why"].startswith("SocialxError: ")
    assert "none.h5" in failed["why"]
    assert cells(failed)[0] == f"not measured: {failed['why']}"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_patches_are_compared_and_what_is_measured_is_kept(tmp_path: Path) -> None:
    data, output, runs = small_file(tmp_path), tmp_path / "patches.json", tmp_path / "runs"
    command = [sys.executable, "-m", "benchmarks.encoders", "--data", str(data), "--output", str(output)]
    tiny = ["model.width=8", "model.mlp_width=8", "trainer.max_epochs=1", "pooling.neighbours=3"]

    def rows(patches: str) -> dict[tuple[str, int], dict[str, Any]]:
        words = [*command, "--runs", str(runs), "--patch", patches, *tiny]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (found,) = json.loads(output.read_text()).values()
        assert done.stdout.count("\n| mlp |") + done.stdout.count("\n| xlstm |") == len(found)
        return {(row["encoder"], row["patch"]): row for row in found}

    first = rows("6")
    assert set(first) == {("mlp", 6), ("xlstm", 6)}
    shutil.rmtree(runs)
    later = rows("12,6")
    assert (set(later), {key: later[key] for key in first}) == ({*first, ("mlp", 12), ("xlstm", 12)}, first)
    assert [row["tokens"] for row in later.values()] == [2, 2, 1, 1]
    assert len(list((runs / "patches").iterdir())) == 2  # nothing was trained again
    assert all(len(row["by_epoch"]) == 1 and row["mae"]["all"] > 0 for row in later.values())
