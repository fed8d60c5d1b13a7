"""What is counted of a compiled kernel: instructions as they are issued, and the warps that fit."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # see test_kernels.py: the import below decorates the kernels

from pathlib import Path

import pytest

from benchmarks.compile_report import issued, trips, warps_that_fit
from tests.model.test_kernels import compile_report

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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_compiler_unrolls_no_loop(tmp_path: Path) -> None:
    """One step more adds as much as the step before: else a loop would run fewer times than it is counted."""
    rows = compile_report(tmp_path, "--arch", "90", "--dtype", "bf16", "--width", "32", "--steps", "11", "12", "13")
    by_kernel: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        by_kernel.setdefault((row["operation"], row["kernel"]), []).append(row["instructions"])
    assert len(by_kernel) == 10
    for kernel, (less, now, more) in by_kernel.items():
        assert abs(more - 2 * now + less) < 0.05 * now, kernel
