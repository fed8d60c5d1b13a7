"""A profile on a terminal: every part is there, in ASCII, and no line is too long."""

import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from socialx.profiling.profile import Finding, Profile, Trial
from socialx.profiling.sections import Fluctuation, Idle, Timeline
from socialx.profiling.tables import print_profile, settings_text
from tests.profiling.test_trace import STEP, SYNCS, call, copy, kernel, measured, profile, without


def printed(made: Profile, width: int = 80) -> str:
    """The page as it is piped into a file."""
    out = Console(file=StringIO(), width=width)
    print_profile(made, out)
    text = out.file.getvalue()
    assert text.isascii(), [each for each in text if not each.isascii()]
    assert max(map(len, text.splitlines())) <= min(width, 100)
    return text


LONG_NAME = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>(Params)"


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("folder", ["/somewhere/socialx", f"/{'somewhere/' * 12}"])
def test_the_printed_profile_says_how_busy_the_device_was(folder: str, width: int) -> None:
    """A long name of a kernel is cut, and a long path."""
    more = [call(31, 2, 8, "cudaMemcpyAsync"), copy(33, 2, "Memcpy HtoD (Pageable -> Device)", 8, 123_456_789)]
    more += [kernel(36, 1, 3, name=LONG_NAME), call(37, 2, name=SYNCS[0])]
    text = printed(profile([*STEP, *more], [f"{folder}/training/loop.py:84"]), width)
    for words in (
        *("kernels running", "no kernel running", "waiting for input", "GPU busy 63.0% SM efficiency 51.0%"),
        *("3 launches, 1 syncs, in 1 traced steps", "118 MiB per step, memory not pinned", "host late"),
        *("waits for the device: ", "/training/loop.py:84", "Kernel2<cutlass_80", "kernels per step 4 "),
    ):
        assert words in " ".join(text.split())
    assert "training step" not in text


def test_the_time_without_a_kernel_is_divided() -> None:
    made = replace(profile(STEP, []), idle=Idle(0.6, 0.3, 0.1, 0.19, 0.1, 0.07, 0.02, 0.01, 0.0))
    step_ms = 1e3 * made.step_s
    wanted = {
        **{"no kernel, all phases": 60, "host late": 30, "between kernels": 10, "nothing asked for": 19},
        **{"  waiting for input": 10, "  waiting for the device": 7, "  between steps": 2, "only copies": 1},
    }
    lines = [line.rstrip() for line in printed(made).splitlines()]
    at = next(number for number, line in enumerate(lines) if line.startswith("no kernel, all"))
    for line, (name, share) in zip(lines[at:], wanted.items(), strict=False):
        assert re.fullmatch(rf"{name} +{share:.1f}% +{step_ms * share / 100:.2f}", line), line
    assert "not known" not in "\n".join(lines)
    assert "no kernel, all" not in printed(measured())


def test_what_a_trace_lacks_is_left_out_or_named() -> None:
    """Without a trace the step is one; what needs a card is one line on a CPU."""
    text = printed(profile(without([e for e in STEP if e["cat"] != "cuda_runtime"], "grid"), []))
    assert "SM efficiency -" in text
    assert "- launches, - syncs" in text
    (line,) = (line for line in printed(measured(), 100).splitlines() if line.startswith("not measured"))
    assert line.endswith(" need a CUDA device")
    text = printed(profile([], []))
    assert "training step" in text
    assert "GPU busy" not in text
    assert "measured: shares.kernel, " in text


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("cells", [1, 20, 60, 61, 600])
def test_the_busy_share_is_a_curve_on_one_line(cells: int, width: int) -> None:
    busy = [float(at % 4 > 0) for at in range(cells)]
    found = Fluctuation(0.02, 0.75, 0.0, 1.0, 100.0, 0.08, 0.99, 4.0, "loader.num_workers")
    text = printed(replace(measured(), fluctuation=found, timeline=Timeline(0.02, busy, 1, [1.0])), width)
    (curve,) = re.findall(r"^  \|(.*)\|  ([\d.]+) s per cell$", text, re.MULTILINE)
    group = -(-cells // min(60, width - 24))
    assert (len(curve[0]), float(curve[1])) == (-(-cells // group), pytest.approx(0.02 * group, rel=0.05))
    words = " ".join(text.split())
    for said in ("Mean 75.0%", "0.020 s", "between 0.0% and 100.0%.", "0.080 s = 4 steps = loader.num_workers."):
        assert said in words


@pytest.mark.parametrize("width", [80, 100])
def test_findings_say_what_to_set_and_what_not(width: int) -> None:
    found = Finding(
        "loader.late", "critical", 0.5, 2.0, "50% of the time the CPU waits while the training process makes a batch",
        {"loader.mode": "on_device", "loader.pin_memory": True}, [{"loader.num_workers": None}], "it fits",
        "loader.prefetch_factor: " + "a longer queue does not help " * 9
    )  # fmt: skip
    text = printed(replace(measured(), findings=[found], verdict="INPUT-BOUND", summary="the CPU waits"), width)
    assert text.startswith("INPUT-BOUND  the CPU waits\n")
    assert f" change {settings_text(found.patch)}, at most 2.00x " in " ".join(text.split())
    assert re.search(r"\nsame windows, .* 50.0% ", text)
    assert "1  critical  loader.late" in text
    for line in (
        "   set  loader.mode = on_device, loader.pin_memory = true,",
        "   or   loader.num_workers = not set",
        "   why  it fits",
        "   not  loader.prefetch_factor: a longer queue",
    ):
        assert f"\n{line}" in text


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("first", [0, 1])
def test_the_largest_measured_gain_is_the_change(first: int, width: int) -> None:
    planted = {"loader.batch_size": 32, "trainer.threads": 1}
    larger = Trial(8.0, 7.2, 8.8, "loader.batch_size", 32, threads=1)
    batch = Finding("batch.small", "critical", 0.84, None, "32 are faster", planted, trial=larger)
    fewer = Trial(1.25, 1.2, 1.3, "trainer.threads", 1)
    threads = Finding("threads.number", "warn", 0.2, None, "1 is faster", {"trainer.threads": 1}, trial=fewer)
    findings = [batch, threads] if first == 0 else [threads, batch]
    text = " ".join(printed(replace(measured(), findings=findings, verdict="PYTHON-BOUND"), width).split())
    assert f"change {settings_text(planted)}, tried: {larger}, " in text
    assert " 1 thread " in text
    assert f"set {settings_text(threads.patch)}, tried: {fewer}" in text
    assert "at most" not in text


def test_what_no_setting_brings_has_no_gain() -> None:
    """A machine that other programs share is no setting."""
    waits = Finding("step.waits", "critical", 0.85, None, "85% of the time a step does not compute", advice="wait")
    text = printed(replace(measured(), findings=[waits], verdict="WAIT-BOUND"))
    assert "see  wait" in text
    assert not re.search(r"^change|\d ?x as|best", text, re.MULTILINE)


@pytest.mark.parametrize(("others", "busy"), [(None, False), (0.0, False), (0.4, False), (0.5, True), (1.9, True)])
def test_a_busy_machine_is_said_first(others: float | None, busy: bool) -> None:
    host = replace(measured().host, cores=2, cores_used=0.1, others_used=others)
    text = " ".join(printed(replace(measured(), host=host)).split())
    assert (f"took {others} of 2 cores" in text, f" {others} used" in text) == (busy, others is not None)


def test_a_step_that_waits_is_shown_as_its_two_parts() -> None:
    made = measured()
    span, step_ms = made.shares.span, 1e3 * made.step_s
    text = printed(replace(made, host=replace(made.host, waiting=0.2)))
    assert re.search(rf"training step, computing +{100 * (span - 0.2):.1f}% +{step_ms * (span - 0.2):.2f} ", text)
    assert re.search(rf"training step, waiting +20.0% +{step_ms * 0.2:.2f} ", text)
    assert "training step, waiting" not in printed(replace(made, host=replace(made.host, waiting=0.01)))
