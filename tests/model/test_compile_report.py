"""What is counted of a compiled kernel: instructions as they are issued, and the warps that fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys

os.environ["TRITON_INTERPRET"] = "1"  # see test_kernels.py: the import below decorates the kernels

from pathlib import Path

import pytest

from benchmarks.compile_report import issued, trips, warps_that_fit

ROOT = Path(__file__).parents[2]

STRAIGHT = """
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_9:
        /*0010*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR16+0x4008], RZ ;
        /*0020*/              @!P0 BRA `(.L_x_9) ;
"""
LOOP = (
    """
.L_x_0:
        /*0030*/                   IADD3 R0, R0, 0x1, RZ ;
        /*0040*/               @P1 BRA `(.L_x_1) ;
"""
    + 20 * "        /*0050*/                   FADD R2, R2, R3 ;\n"
    + """
.L_x_1:
        /*0060*/                   BRA.U !UP0, `(.L_x_0) ;
"""
)
END = """
        /*0070*/                   EXIT ;
.L_x_7:
        /*0080*/                   BRA `(.L_x_7);
        /*0090*/                   NOP;
        /*00a0*/                   NOP;
"""


def test_a_loop_counts_as_often_as_it_runs_and_waits_and_padding_do_not() -> None:
    assert issued(STRAIGHT + END, 1) == issued(STRAIGHT + END, 12) == 4
    assert issued(STRAIGHT + LOOP + END, 1) == 4 + 23
    assert issued(STRAIGHT + LOOP + END, 12) == 4 + 12 * 23
    leaves_inside = LOOP.replace("BRA.U !UP0,", "@!P0 EXIT ;\n        /*0065*/ BRA")
    assert issued(STRAIGHT + leaves_inside + END.replace("EXIT", "NOP"), 12) == 4 + 12 * 24
    with pytest.raises(ValueError, match="2 loops"):
        issued(STRAIGHT + LOOP + LOOP.replace("x_0", "x_3").replace("x_1", "x_4") + END, 12)


def test_every_kernel_has_its_trips() -> None:
    shape = {"T": 12, "H": 4, "D": 64, "W": 32, "TURNS": 4}
    names = ("conv_forward", "conv_backward", "mlstm_forward", "mlstm_backward", "slstm_forward", "add_norm_backward")
    assert [trips(name, shape) for name in names] == [8, 12, 1, 1, 12, 4]


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "arch", "fit"),
    [  # by the rules of NVIDIA's occupancy calculator
        (32, 0, 4, 90, 64),
        (33, 0, 4, 90, 48),
        (64, 0, 4, 90, 32),
        (128, 0, 4, 90, 16),
        (168, 0, 4, 90, 12),
        (255, 0, 4, 90, 8),
        (96, 0, 8, 90, 16),
        (32, 0, 1, 90, 32),  # 32 programs
        (32, 100 * 1024, 4, 90, 8),
        (32, 100 * 1024, 4, 80, 4),
    ],
)
def test_warps_that_fit(registers: int, shared: int, warps: int, arch: int, fit: int) -> None:
    assert warps_that_fit(registers, shared, warps, arch) == fit


def compile_report(folder: Path, *options: str) -> list[dict[str, int]]:
    """Compiled by ptxas for cards that are not here; the interpreter is off in that process."""
    command = [sys.executable, str(ROOT / "benchmarks/compile_report.py"), "--output", str(folder / "report")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "0"}
    done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, int]] = json.loads((folder / "report.json").read_text())
    return rows


SLOTS = {  # for one sequence, at most: what a width of 128 runs, in heads of 64 channels and of 32
    ("mlstm", "conv_forward", 64): 6_300,
    ("mlstm", "mlstm_forward", 64): 6_500,
    ("mlstm", "mlstm_backward", 64): 34_000,
    ("mlstm", "conv_backward", 64): 14_200,
    ("slstm", "conv_forward", 32): 2_200,
    ("slstm", "slstm_forward", 32): 10_400,
    ("slstm", "slstm_backward", 32): 26_500,
    ("slstm", "conv_backward", 32): 3_100,
    ("add_norm", "add_norm_forward", 32): 1_200,
    ("add_norm", "add_norm_backward", 32): 2_100,
}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, int]]:
    """Heads of 32 channels in bf16, for lookbacks of 11, 12 and 13 steps."""
    options = ("--arch", "90", "--dtype", "bf16", "--width", "32", "--steps", "11", "12", "13")
    return compile_report(tmp_path_factory.mktemp("narrow"), *options)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_they_compile_for_a_card_without_spills_and_in_few_instructions(
    narrow: list[dict[str, int]], tmp_path: Path
) -> None:
    rows = [row for row in narrow if row["steps"] == 12]
    rows += compile_report(tmp_path, "--arch", "90", "--dtype", "bf16", "--width", "64")
    assert len(rows) == 20  # convolution and cell of both kinds, and what is around them; forward and backward
    wide_scan = [row for row in rows if row["kernel"].startswith("slstm") and row["width"] == 64]  # of a width of 256
    assert all(row["spill_stores"] == row["spill_loads"] == 0 for row in rows if row not in wide_scan), rows
    assert all(row["spill_stores"] <= 460 for row in wide_scan), wide_scan
    found = {(row["operation"], row["kernel"], row["width"]): row for row in rows}
    for kernel, most in SLOTS.items():
        assert found[kernel]["slots"] <= most, found[kernel]
        assert found[kernel]["warps_per_sm"] >= 12, found[kernel]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_compiler_unrolls_no_loop(narrow: list[dict[str, int]]) -> None:
    """One step more adds as much as the step before: else a loop would run fewer times than it is counted."""
    by_kernel: dict[tuple[int, int], list[int]] = {}
    for row in narrow:
        by_kernel.setdefault((row["operation"], row["kernel"]), []).append(row["instructions"])
    assert len(by_kernel) == 10
    for kernel, (less, now, more) in by_kernel.items():
        assert abs(more - 2 * now + less) < 0.05 * now, kernel


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_they_compile_for_three_generations_and_all_types(tmp_path: Path) -> None:
    rows = compile_report(tmp_path, "--arch", "80", "--dtype", "bf16", "--width", "16")
    rows += compile_report(tmp_path, "--arch", "80", "90", "--dtype", "fp16", "--width", "32")
    assert len(rows) == 30
    assert all(row["spill_stores"] == row["spill_loads"] == 0 for row in rows), rows
    assert len(compile_report(tmp_path, "--arch", "100", "--dtype", "bf16", "--width", "32")) == 10
    # Float32, wide heads and the longest history compile; what they spill is in benchmarks/results.
    assert len(compile_report(tmp_path, "--arch", "90", "--dtype", "fp32", "--width", "16")) == 10
    assert len(compile_report(tmp_path, "--arch", "90", "--dtype", "bf16", "--width", "64", "--steps", "64")) == 10
