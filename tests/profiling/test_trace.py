"""A kernel trace of known truth gives that truth: busy time, idle time by cause, syncs, copies, and what is missing."""

import gzip
import itertools
import json
import re
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity

from socialx.core.errors import SettingsError
from socialx.profiling import collector
from socialx.profiling.measure import Lengths, measure, with_trace
from socialx.profiling.profile import Profile, missed_limits, number_names, parse_limits
from socialx.profiling.sections import LoaderFacts, Phases, Sync, Throughput, Top, Window
from socialx.profiling.trace import MARK, WINDOW, Trace, read_operators, read_trace, short_name
from socialx.training.loop import run_steps
from tests.commands import refuses
from tests.networks import CPU, learner, loader
from tests.profiling.test_fluctuation import parts_of

Json = dict[str, Any]
GPU = torch.device("cuda", 0)
SMS = 100


def event(cat: str, name: str, begin: float, us: float, **args: object) -> Json:
    return {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": us, "tid": 1, "args": args}


def kernel(begin: float, us: float, correlation: int = 0, blocks: int = 100, name: str = "k", **args: object) -> Json:
    grid = {"grid": [blocks, 1, 1], "block": [128, 1, 1]}
    return event("kernel", name, begin, us, **{"correlation": correlation, **grid, **args})


def copy(begin: float, us: float, name: str, correlation: int = 0, size: int = 1000) -> Json:
    return event("gpu_memcpy", name, begin, us, bytes=size, correlation=correlation)


def call(begin: float, us: float, correlation: int = 0, name: str = "cudaLaunchKernel") -> Json:
    return event("cuda_runtime", name, begin, us, correlation=correlation)


def window(begin: float, us: float) -> Json:
    return event("user_annotation", WINDOW, begin, us)


def mark(at: float, phase: str) -> Json:
    return event("user_annotation", MARK + phase, at, 0)


def causes(trace: Trace) -> dict[str, float]:
    """The causes that have a share of the span."""
    assert sum(trace.span.values()) == pytest.approx(1)
    return {cause: share for cause, share in trace.span.items() if share}


# A step of 100 us: 60 us of kernels, one of them on half of the SMs, launched early enough but for the last.
STEP = [
    window(0, 90),
    *(call(0, 2, 1), call(2, 2, 2), call(70, 5, 3)),
    *(kernel(10, 20, 1), kernel(40, 20, 2, blocks=50), kernel(80, 20, 3, name="last", blocks=1000)),
]


def test_a_step_of_known_truth() -> None:
    trace = read_trace(STEP, steps=2, sms=SMS)
    assert (trace.wall_us, trace.gpu_busy) == (100, pytest.approx(0.6))
    assert trace.sm_efficiency == pytest.approx((20 + 20 / 2 + 20) / 100)
    # 0-10 waits for the launch at 0, 30-40 has its kernel queued since 2, 60-80 is launched at 70
    assert causes(trace) == pytest.approx({"kernel": 0.6, "queued": 0.2, "launch": 0.2})
    assert (trace.kernels.per_step, trace.kernels.us_p50, trace.kernels.tiny_share) == (1.5, 20, 0)
    assert trace.kernels.launches_per_step == 1.5
    assert trace.kernels.top == [Top("k", pytest.approx(2 / 3), 20, 1), Top("last", pytest.approx(1 / 3), 10, 0.5)]
    assert (trace.sync.per_step, trace.copy.h2d_bytes_per_step, set(trace.why)) == (0.0, 0.0, {"copy.pageable"})


def test_what_is_outside_the_window_does_not_count() -> None:
    warmup = [call(-50, 3, 9), kernel(-40, 30, 9, name="warm-up"), call(-5, 2, name="cudaDeviceSynchronize")]
    after = [call(90, 20, name="cudaDeviceSynchronize"), call(115, 1, name="cudaStreamSynchronize")]
    assert read_trace([*warmup, *STEP, *after], 2, SMS) == read_trace(STEP, 2, SMS)


def test_overlapping_streams_are_busy_once() -> None:
    events = [window(0, 10), kernel(0, 60, blocks=80), kernel(20, 60, blocks=80), kernel(30, 10, blocks=30)]
    trace = read_trace([*events, copy(70, 30, "Memcpy HtoD (Pinned -> Device)")], 1, SMS)
    assert (trace.gpu_busy, trace.sm_efficiency) == (1, pytest.approx((20 * 0.8 + 40 * 1.0 + 20 * 0.8) / 100))
    assert causes(trace) == pytest.approx({"kernel": 0.8, "copy": 0.2})


SYNCS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
GAP = [call(0, 2, 1), kernel(0, 30, 1), call(60, 5, 2), kernel(70, 30, 2)]


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        *(([window(0, 90), *GAP, call(5, 30, name=name)], "sync") for name in SYNCS),
        ([window(0, 90), *GAP, call(3, 9, name=SYNCS[0])], "launch"),  # it ends before the gap
        ([window(0, 90), *GAP, call(66, 34, name=SYNCS[0])], "launch"),  # it begins after the launch
        # The host ends late.
        ([window(0, 100), call(0, 2, 1), kernel(0, 60, 1)], "launch"),
        ([window(0, 100), call(0, 2, 1), kernel(0, 60, 1), call(50, 40, name=SYNCS[0])], "sync"),
    ],
)
def test_a_gap_is_the_waits_that_was_under_way_or_the_launchs(events: list[Json], cause: str) -> None:
    trace = read_trace(events, 1, SMS)
    assert causes(trace) == pytest.approx({"kernel": 0.6, cause: 0.4})
    assert trace.sync.per_step == sum(each["name"] in SYNCS for each in events)


def replay(*extra: Json) -> Trace:
    """One launch of a graph of three kernels, 10 us apart."""
    nodes = [kernel(at, 20, 7, **{"graph id": 3, "graph node id": at}) for at in (20, 50, 80)]
    return read_trace([window(0, 30), *nodes, *extra], 1, SMS)


def test_the_kernels_of_a_replayed_graph_have_one_launch() -> None:
    trace = replay(call(0, 15, 7, "cudaGraphLaunch"))
    assert (causes(trace), trace.kernels.launches_per_step) == (pytest.approx({"kernel": 0.6, "queued": 0.4}), 1)


def test_without_its_launch_the_cause_of_a_gap_is_unknown() -> None:
    trace = replay()
    assert causes(trace) == pytest.approx({"kernel": 0.6, "unknown": 0.4})
    assert trace.kernels.launches_per_step is None
    assert trace.sync is None
    reason = "the trace has no CUDA call"
    assert {key for key, why in trace.why.items() if why == reason} == {"sync", "kernels.launches_per_step"}


def test_item_is_one_wait_and_a_copy_that_returns_early_is_none() -> None:
    def waits(*events: Json) -> float:
        return read_trace([window(0, 100), kernel(0, 50, 1), call(0, 2, 1), *events], 1, SMS).sync.per_step

    out = copy(50, 2, "Memcpy DtoH (Device -> Pageable)", 2)
    assert waits(out, call(5, 50, 2, "cudaMemcpyAsync"), call(56, 1, 3, SYNCS[0])) == 1
    assert (waits(out, call(5, 50, 2, "cudaMemcpyAsync")), waits(out, call(5, 3, 2, "cudaMemcpyAsync"))) == (1, 0)
    two = (call(5, 50, 2, "cudaMemcpyAsync"), call(57, 2, 4), kernel(60, 5, 4), call(70, 1, 5, SYNCS[1]))
    assert waits(out, *two) == 2


def test_a_driver_call_inside_a_runtime_call_is_not_a_second_launch() -> None:
    inner = event("cuda_driver", "cuLaunchKernelEx", 0.5, 1, correlation=99)
    triton = event("cuda_driver", "cuLaunchKernel", 20, 1, correlation=4)
    assert read_trace([*STEP, inner, triton, kernel(32, 5, 4)], 1, SMS).kernels.launches_per_step == 4


@pytest.mark.parametrize(("source", "pageable"), [("Pageable", True), ("Pinned", False), ("Unknown", None)])
def test_copies_from_the_host(source: str, pageable: bool | None) -> None:
    copies = [copy(at, 2, f"Memcpy HtoD ({source} -> Device)", size=3000) for at in (31, 34)]
    trace = read_trace([*STEP, *copies, copy(37, 1, "Memcpy DtoD (Device -> Device)")], 2, SMS)
    assert trace.copy.h2d_bytes_per_step == 3000
    assert trace.copy.pageable is pageable
    assert ("copy.pageable" in trace.why) == (pageable is None)


def without(events: list[Json], *names: str) -> list[Json]:
    return [{**e, "args": {key: value for key, value in e["args"].items() if key not in names}} for e in events]


def test_what_the_trace_lacks_is_none_with_a_reason() -> None:
    bare = read_trace(without(STEP, "grid"), 1, SMS)
    assert bare.sm_efficiency is None
    assert "sm_efficiency" in bare.why
    assert bare.gpu_busy == read_trace(STEP[1:], 1, SMS).gpu_busy == pytest.approx(0.6)  # without a window it is all
    assert "number of SMs" in read_trace(STEP, 1, None).why["sm_efficiency"]
    assert causes(read_trace(without(STEP, "correlation"), 1, SMS)) == pytest.approx({"kernel": 0.6, "unknown": 0.4})
    copies = without([copy(31, 2, "Memcpy HtoD (Pinned -> Device)")], "bytes")
    assert read_trace([*STEP, *copies], 1, SMS).copy.h2d_bytes_per_step is None
    nothing = read_trace([*STEP, mark(0, "fetch"), mark(95, "compute"), mark(95, "done")], 1, SMS)
    assert nothing.span is None
    assert "no training step" in nothing.why["span"]


@pytest.mark.parametrize("events", [[], [window(0, 10)], [call(0, 1)], [kernel(0, 0)]])
def test_a_trace_without_kernels_measures_nothing(events: list[Json]) -> None:
    trace = read_trace(events, 8, SMS)
    assert trace == Trace.missing(8, trace.why["span"])
    assert "no kernel" in trace.why["span"]
    assert set(trace.why) == {"gpu_busy", "sm_efficiency", "span", "kernels", "sync", "copy"}


def test_a_trace_that_lost_kernels_is_not_believed() -> None:
    assert "1 of 3 launches" in read_trace([e for e in STEP if e["name"] != "last"], 1, SMS).why["gpu_busy"]


def test_marks_take_the_time_at_which_the_device_reaches_them() -> None:
    # The host marks far ahead of the device: the batch's kernel (10 us) is input, the step's (70 us) are its span.
    marks = [mark(0, "fetch"), mark(2, "copy"), mark(3, "compute"), mark(6, "done"), mark(7, "fetch")]
    calls = [call(1, 1, 1), call(4, 1, 2), call(5, 1, 3)]
    events = [window(0, 9), *marks, *calls, kernel(10, 10, 1), kernel(30, 40, 2), kernel(80, 30, 3)]
    assert causes(read_trace(events, 1, SMS)) == pytest.approx({"kernel": 70 / 90, "queued": 20 / 90})


SPANS = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 40), st.integers(1, 200)), min_size=1, max_size=12)


@given(SPANS)
def test_busy_is_what_counting_every_microsecond_gives(spans: list[tuple[int, int, int]]) -> None:
    trace = read_trace([window(0, 200), *(kernel(begin, us, blocks=blocks) for begin, us, blocks in spans)], 1, SMS)
    if not any(us for _, us, _ in spans):
        assert trace.gpu_busy is None
        return
    loads = [sum(min(1, n / SMS) for begin, us, n in spans if begin <= at < begin + us) for at in range(200)]
    assert trace.gpu_busy == pytest.approx(sum(load > 0 for load in loads) / 200)
    assert trace.sm_efficiency == pytest.approx(sum(min(1, load) for load in loads) / 200)
    assert trace.sm_efficiency <= trace.gpu_busy + 1e-9


WORK = st.tuples(st.integers(0, 300), st.integers(1, 40), st.integers(0, 300), st.booleans(), st.booleans())
WAITS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=6)


@given(st.lists(WORK, min_size=1, max_size=15), WAITS, st.lists(st.integers(0, 300), max_size=12))
def test_the_span_is_tiled(work: list[tuple[int, int, int, bool, bool]], waits: list[Any], marks: list[int]) -> None:
    phases = itertools.cycle(("fetch", "copy", "compute", "done"))
    events = [window(0, 300), kernel(0, 5), *(mark(at, next(phases)) for at in sorted(marks))]
    events += [call(begin, us, name=SYNCS[0]) for begin, us in waits]
    for number, (begin, us, ahead, known, copies) in enumerate(work, 1):
        events.append(copy(begin, us, "Memset (Device)", number) if copies else kernel(begin, us, number))
        events += [call(max(0, begin - ahead), 2, number, "cudaMemsetAsync")] if known else []
    trace = read_trace(events, 3, SMS)
    if trace.span is None:
        assert "no training step" in trace.why["span"]
        return
    assert all(share >= 0 for share in trace.span.values())
    assert sum(trace.span.values()) == pytest.approx(1)


def test_names_are_shortened() -> None:
    fill = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
    short = "vectorized_elementwise_kernel<4, FillFunctor<float>, array<char*, 1ul> >"
    assert short_name(f"{fill}(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)", 99) == short
    assert short_name(fill) == f"{short[:57]}..."
    assert short_name("(anonymous namespace)::softmax(float (*)(int))") == "softmax"
    assert short_name("triton_red_fused_add_0d1d2de") == "triton_red_fused_add_0d1d2de"
    assert short_name("(odd)") == "(odd)"


# The collector


def test_a_real_trace_of_a_cpu_has_our_marks_and_no_kernel(capfd: pytest.CaptureFixture[str]) -> None:
    made, batches, clock = learner(), loader(batch_size=40).epoch(0), collector.TraceClock()
    events, said = collector.record(lambda: run_steps(made, batches, lambda *_: True, clock), 3, CPU)
    assert made.steps == 3 + collector.WARMUP_STEPS
    inside = next(e for e in events if e.get("name") == WINDOW)
    end = inside["ts"] + inside["dur"]
    names = [e["name"] for e in events if e.get("name", "").startswith(MARK) and inside["ts"] <= e["ts"] < end]
    assert [name.removeprefix(MARK) for name in names] == [
        "fetch",
        "copy",
        *["compute"] * 2,
        "backward",
        "update",
        "done",
        "fetch",
    ] * 3
    assert (trace := read_trace(events, 3, None)) == Trace.missing(3, trace.why["span"])
    assert "no kernel" in trace.why["span"]
    print("still here", file=sys.stderr)
    assert capfd.readouterr().err == "still here\n"
    assert not [line for line in said if "profiler" not in line]


def test_what_the_steps_raise_is_raised_and_the_profiler_is_stopped() -> None:
    def broken() -> None:
        raise MemoryError("of the step")

    with pytest.raises(MemoryError, match="of the step"):
        collector.record(broken, 1, CPU)
    assert collector.record(lambda: None, 1, CPU)[0]  # a profiler that still ran would refuse a second one


def traced(
    monkeypatch: pytest.MonkeyPatch, record: Callable[..., tuple[list[Json], list[str]]], cupti: bool = True
) -> Trace:
    activities = {ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cupti else [])}
    monkeypatch.setattr(collector, "supported_activities", lambda: activities)
    monkeypatch.setattr(collector, "record", record)
    properties = types.SimpleNamespace(multi_processor_count=SMS)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    return collector.trace_steps(lambda: None, 2, GPU)


def test_a_profiler_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> tuple[list[Json], list[str]]:
        with collector._quiet([]):
            raise RuntimeError("no luck\nC++ stack")

    def refused(*_: object) -> tuple[list[Json], list[str]]:
        return [], ["WARNING:2026-01-01 1:1 init.cpp:178] failed with error CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"]

    assert traced(monkeypatch, fails).why["gpu_busy"].endswith(" failed: no luck")
    assert re.search(r"no kernel \(.*_PRIVILEGES \(35\)\)$", traced(monkeypatch, refused).why["gpu_busy"])
    assert "without CUPTI" in traced(monkeypatch, fails, cupti=False).why["sync"]
    assert traced(monkeypatch, lambda *_: (STEP, [])) == read_trace(STEP, 2, SMS)
    assert collector.trace_operators(lambda: None, 1)[0] == []
    monkeypatch.setattr(collector, "record", fails)
    assert collector.trace_operators(lambda: None, 1)[1].endswith(" failed: no luck")
    assert collector.trace_steps(lambda: pytest.fail("it was run"), 8, CPU) == Trace.missing(8, "no CUDA device")


def test_the_lines_that_wait_are_found_once_and_the_mode_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = [1]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def step() -> None:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)

    line = step.__code__.co_firstlineno + 1
    assert (collector.sync_sites(step), modes) == ([f"{Path(__file__)}:{line}"], [1, "warn", 1])


# Operators of a CPU


def operator(name: str, begin: float, us: float, thread: int = 1) -> Json:
    return {**event("cpu_op", name, begin, us), "tid": thread}


def test_an_operator_counts_without_those_that_it_calls() -> None:
    found = read_operators(
        [
            window(0, 200),
            *(operator("linear", 10, 100), operator("t", 15, 5), operator("addmm", 30, 60), operator("copy_", 40, 20)),
            *(operator("linear", 120, 52), operator("addmm", 121, 50)),
            *(operator("copy_", 10, 30, thread=2), operator("before the window", -50, 40)),
        ],
        steps=2,
    )
    # linear 35 + 2, t 5, addmm 40 + 50, copy_ 20 + 30 us
    assert {each.name: (each.us_per_step, each.per_step) for each in found} == {
        "addmm": (45, 1),
        "copy_": (25, 1),
        "linear": (18.5, 1),
        "t": (2.5, 0.5),
    }
    assert [each.share for each in found] == pytest.approx([90 / 182, 50 / 182, 37 / 182, 5 / 182])


@pytest.mark.parametrize("events", [[], [window(0, 9)], [operator("zero", 1, 0)], [{"ph": "M", "name": "process"}]])
def test_a_trace_without_operators_has_none(events: list[Json]) -> None:
    assert read_operators(events, 2) == []


def test_the_operators_of_real_steps_are_found_and_the_trace_is_kept(tmp_path: Path) -> None:
    made, batches = learner(), loader(batch_size=40).epoch(0)
    kept = [tmp_path / "trace.json.gz", tmp_path / "trace.json"]
    for path in kept:
        found, _ = collector.trace_operators(lambda: run_steps(made, batches, lambda *_: True), 1, path)
        assert any("mm" in each.name for each in found)
        shares = [each.share for each in found]
        assert sum(shares) <= 1 + 1e-9
        assert shares == sorted(shares, reverse=True)
    contents = [gzip.decompress(kept[0].read_bytes()), kept[1].read_bytes()]
    assert all(json.loads(content)["traceEvents"] for content in contents)
    assert sorted(tmp_path.iterdir()) == sorted(kept)


# The profile


@cache
def measured() -> Profile:
    """Two steps on this CPU, under the clock alone."""
    return measure(learner(), loader(batch_size=200), Lengths(2, 0, 9, 0, trials=False), LoaderFacts("on_device", 3))


def profile(events: list[Json], sites: list[str]) -> Profile:
    """A measured profile of one step: input 20, transfer 0, span 60, hooks 0 us, with what a trace adds."""
    parts = parts_of([(20e-6, 0.0, 60e-6, 0.0)])
    window = Window(1, parts.wall, 0, "host")
    clock = replace(measured(), window=window, shares=Phases(**parts.shares), operators=None, why={})
    return with_trace(clock, read_trace(events, 1, SMS), sites)


def test_kernel_and_bubble_divide_the_span_of_the_clock() -> None:
    made = profile(STEP, [])
    shares = made.shares
    assert (shares.kernel, shares.kernel + shares.bubble) == (pytest.approx(0.75 * 0.6), pytest.approx(shares.span))
    assert shares.input + shares.transfer + shares.hooks + shares.kernel + shares.bubble == pytest.approx(1)
    assert sum(asdict(made.bubble).values()) == pytest.approx(shares.bubble)
    assert (made.gpu_busy, made.kernels.slowdown) == (pytest.approx(0.6), pytest.approx(100 / 80))
    assert (made.sync, set(made.why)) == (Sync(0.0), {"copy.pageable"})


# Two steps of 200 us in all, 85 of them with a kernel.  The host waits for the first one's end, then makes a batch.
SLOW_HOST = [
    window(0, 200),
    *(mark(0, "fetch"), mark(10, "copy"), mark(12, "compute"), mark(72, "done"), mark(110, "fetch")),
    *(mark(150, "copy"), mark(152, "compute"), mark(156, "done"), mark(157, "fetch")),
    *(call(14, 1, 1), call(16, 1, 2), call(70, 1, 3), call(155, 1, 4)),
    *(kernel(20, 20, 1), kernel(45, 15, 2), kernel(80, 20, 3), kernel(160, 30, 4)),
]
SHARES = Phases(60 / 200, 4 / 200, 126 / 200, 10 / 200)  # what a clock says of them


def idle_us(events: list[Json], shares: Phases = SHARES) -> dict[str, float]:
    """Microseconds of 200 without a kernel, those that are not 0."""
    idle = with_trace(replace(measured(), shares=shares), read_trace(events, 2, SMS), []).idle
    assert idle.late + idle.queued + idle.unasked + idle.copy + idle.unknown == pytest.approx(idle.whole)
    assert idle.input + idle.sync + idle.hooks == pytest.approx(idle.unasked)
    return {name: pytest.approx(200 * share) for name, share in asdict(idle).items() if share > 1e-9}


def test_the_time_without_a_kernel_is_the_hosts_the_devices_or_nobodys() -> None:
    wait = call(73, 28, name=SYNCS[1])
    # Late: 10-20, and 60-80 launched at 70.  Queued: 40-45, launched at 16.  The host waits for the device until 101,
    # which costs 100-110 and, after the batch of 110-150, 150-160.
    assert idle_us([*SLOW_HOST, wait]) == {
        **{"whole": 115, "late": 10 + 20, "queued": 5, "unasked": 80},
        **{"input": 10 + 40 + 10, "sync": 10 + 10},
    }
    # Scaled by the clock: all of the input was idle, and of the span's 126 us 8 + 20 late, 5 queued and 8 waited for.
    assert idle_us([*SLOW_HOST, wait], Phases(0.37, 0.0, 0.63, 0.0)) == {
        **{"whole": 74 + 41, "late": 28, "queued": 5, "unasked": 74 + 8, "input": 74, "sync": 8}
    }
    # Without the wait the host was busy between the steps, and launched late what came then.
    assert idle_us(SLOW_HOST) == {
        **{"whole": 115, "late": 10 + 20 + 10, "queued": 5, "unasked": 70},
        **{"input": 10 + 40 + 10, "hooks": 10},
    }


def test_a_graph_has_nothing_late_and_copies_are_no_kernels() -> None:
    nodes = [kernel(at, 20, 7) for at in (20, 50, 80)]
    copied = copy(170, 20, "Memcpy HtoD (Pinned -> Device)", 9)
    marks = [mark(0, "compute"), mark(2, "done")]
    whole = Phases(0.0, 0.0, 0.5, 0.5)  # the span ends with the last kernel, at 100
    events = [window(0, 200), *marks, *nodes, copied, call(0, 1, 7, "cudaGraphLaunch"), call(150, 1, 9)]
    assert idle_us(events, whole) == {"whole": 140, "queued": 40, "unasked": 80, "hooks": 80, "copy": 20}


def test_a_missing_trace_leaves_the_span_whole() -> None:
    made = profile([], [])
    sections = ("gpu_busy", "sm_efficiency", "bubble", "idle", "kernels", "sync", "copy")
    assert all(getattr(made, section) is None for section in sections)
    assert set(made.why) == {"shares.kernel", "shares.bubble", *sections}
    assert all("no kernel" in why for why in made.why.values())


# What is required of it


def test_requirements_are_met_or_said() -> None:
    made = replace(profile(STEP, []), throughput=Throughput(123.456))
    text = "gpu_busy>=0.5, sm_efficiency >= 0.5 ,sync.per_step<=0,shares.input<=.25,kernels.per_step<=1e3"
    assert missed_limits(made, parse_limits(text)) == []
    lines = missed_limits(made, parse_limits("gpu_busy>=0.8,throughput.windows_per_s>=200,step_ms.p50<=0"))
    names = ["gpu_busy", "throughput.windows_per_s", "step_ms.p50"]
    assert [line.where for line in lines if line.code == "profile.missed"] == names
    assert [line.problem for line in lines[:2]] == ["0.6, required >= 0.8", "123.5, required >= 200"]
    with pytest.raises(SettingsError, match=r"did you mean throughput\.windows_per_s"):
        parse_limits("windows_per_s>=200")


def test_what_was_not_measured_is_not_met() -> None:
    names = ("gpu_busy", "shares.kernel", "sync.per_step", "kernels.launches_per_step")
    for name in (*names, "ms_per_step.bubble", "copy.h2d_bytes_per_step", "device.utilisation_mean"):
        (line,) = missed_limits(measured(), parse_limits(f"{name}<=0"))
        assert (line.code, line.where) == ("profile.unmeasured", name)
        assert "(no CUDA device" in line.problem
        assert line.problem.endswith("required <= 0")


def test_every_number_can_be_required_and_has_its_place_or_a_reason() -> None:
    """In a profile with a number in every place for one, and in one of a CPU."""
    parts: dict[str, Any] = dict.fromkeys(("gpu_busy", "sm_efficiency", "recompiles"), 7)
    for name, hint in get_type_hints(Profile).items():
        kind, *_ = get_args(hint) or (hint,)
        if is_dataclass(kind):
            parts[name] = kind(**dict.fromkeys((each.name for each in fields(kind)), 0.5))
    made, names = Profile(**parts), number_names()
    assert len(names) == len(set(names)) > 60
    assert not {"loader", "loader.mode", "copy.pageable", "timeline.busy", "findings", "environment"} & set(names)
    for name in names:
        value: Any = made.as_dict()
        for key in name.split("."):
            value = value[key]
        assert value == made.value(name) == (500 if name.startswith("ms_per_step") else 0.5 if "." in name else 7)
        assert missed_limits(made, parse_limits(f"{name}>={value},{name}<={value}")) == []
        assert len(missed_limits(made, parse_limits(f"{name}>={value + 1},{name}<={value / 2}"))) == 2
    lines = missed_limits(measured(), parse_limits(",".join(f"{name}<=0" for name in names)))
    assert {name for name in names if measured().value(name) is None} <= {line.where for line in lines}
    assert [line.where for line in lines if "(None)" in str(line)] == []


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("gpu_busy", "profile.limit-form", "in quotes"),
        ("gpu_busy>0.8", "profile.limit-form", "in quotes"),
        ("gpu_busy>=high", "profile.limit-form", "in quotes"),
        ("", "profile.limit-form", "in quotes"),
        ("gpu_buzy>=0.8", "profile.limit", " gpu_busy?"),
        ("gpu_busy>=0.8,nonsense<=1", "profile.limit", "choose from these"),
    ],
)
def test_a_requirement_that_is_not_understood_is_refused(text: str, code: str, words: str) -> None:
    with refuses(code, SettingsError) as caught:
        parse_limits(text)
    assert words in str(caught.value)
