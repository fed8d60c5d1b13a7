"""A trace -> device activity. All functions are pure over Chrome trace events, without torch.

torch.profiler writes events (``export_chrome_trace``) as dicts with ``cat``, ``name``, ``ts`` and ``dur`` in us:

    kernel                     ran on the device; args: grid, correlation
    gpu_memcpy, gpu_memset     ran on the device; args: bytes, correlation; named "Memcpy HtoD (Pageable -> Device)"
    cuda_runtime, cuda_driver  a host call; args: correlation, the same number as in the launched work
    cpu_op                     a torch operator on a CPU; a caller lasts as long as all called operators
    user_annotation            a socialx ``record_function``: WINDOW around the steps, MARK + phase at marks

Kernels in a replayed CUDA graph carry the correlation of a single ``cudaGraphLaunch``. None is *not measured*, with the
reason in ``why``; 0.0 is a measurement.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from socialx.profiling.analysis import PHASES, length_before
from socialx.profiling.sections import Copy, Kernels, Sync, Top

WINDOW = "socialx.window"
MARK = "socialx.mark."
TINY_US = 10.0  # below this, a launch takes the host about as long as the kernel takes the device
LOST = 0.01  # share of launches without a kernel above which the trace is not believed
DEVICE, HOST, OURS = ("kernel", "gpu_memcpy", "gpu_memset"), ("cuda_runtime", "cuda_driver"), "user_annotation"
LAUNCH = re.compile(r"cu(da)?(Launch\w*Kernel|GraphLaunch)")
SYNC = re.compile(r"cu(da)?(Stream|Device|Event|Ctx)Synchronize")
CAUSES = ("kernel", "copy", "sync", "launch", "queued", "unknown")  # of Trace.phases
Interval = tuple[float, float]


class Event(NamedTuple):
    """A trace event. begin, end: us. correlation: None where absent."""

    cat: str
    name: str
    begin: float
    end: float
    thread: str
    correlation: int | None
    args: Mapping[str, Any]

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Event:
        """Return an Event for a Chrome trace event with a duration."""
        args, begin = raw.get("args") or {}, float(raw["ts"])
        correlation = args.get("correlation") or None
        return cls(raw["cat"], raw.get("name", ""), begin, begin + raw["dur"], str(raw.get("tid")), correlation, args)


@dataclass(frozen=True)
class Trace:
    """Device activity during ``steps`` steps in ``wall_us``, from the first step to the end of the last.

    gpu_busy: union of kernels and copies over wall. sm_efficiency: mean share of SMs with a block, sum(dur x min(1,
    blocks / SMs)) / wall, at most 1 where kernels overlap. phases: shares of device time per phase, with the sum 1 in
    each:

        kernel   at least a kernel ran
        copy     only copies ran
        sync     idle: the next launch was late, because the host waited for the device
        launch   idle: the next launch was late, because the host is slow
        queued   idle after the next launch: the device's pause between two kernels
        unknown  idle, without a launch time in the trace

    kernels, sync, copy: sections of a profile.
    """

    steps: int
    wall_us: float | None = None
    gpu_busy: float | None = None
    sm_efficiency: float | None = None
    phases: dict[str, dict[str, float]] = field(default_factory=dict)
    kernels: Kernels | None = None
    sync: Sync | None = None
    copy: Copy | None = None
    why: dict[str, str] = field(default_factory=dict)

    @property
    def span(self) -> dict[str, float] | None:
        """Return the shares of device time by cause within training steps alone, or None where unmeasured."""
        return self.phases.get("span")

    @classmethod
    def missing(cls, steps: int, reason: str) -> Trace:
        """Return a trace without measurements, with ``reason`` for every metric."""
        return cls(steps, why=dict.fromkeys(("gpu_busy", "sm_efficiency", "span", "kernels", "sync", "copy"), reason))


def read_trace(events: Iterable[Mapping[str, Any]], steps: int, sms: int | None) -> Trace:
    """Return a Trace for the ``traceEvents`` in a Chrome trace over ``steps`` steps.

    sms: multiprocessors, or None. Without WINDOW the window is the whole trace; without marks all is phase ``span``.
    """
    seen = [Event.parse(event) for event in events if "dur" in event and event.get("cat") in (*DEVICE, *HOST, OURS)]
    window = max((e for e in seen if e.name == WINDOW), default=None, key=lambda e: e.begin)
    if window:
        seen = [e for e in seen if e.begin >= window.begin]
    work = sorted((e for e in seen if e.cat in DEVICE), key=lambda e: e.begin)
    kernels = [e for e in work if e.cat == "kernel"]
    if not any(e.end > e.begin for e in kernels):
        return Trace.missing(steps, "the trace has no kernel")
    begin = window.begin if window else min(e.begin for e in seen)
    # The device was idle when the window opened, and the steps end when their last kernel does.
    last_work = max(e.end for e in work)
    end = max(window.end, last_work) if window else max(e.end for e in seen)
    host_end = window.end if window else end
    calls = sorted((e for e in seen if e.cat in HOST and e.begin < host_end), key=lambda e: e.begin)
    launches: dict[int | None, Event] = {call.correlation: call for call in calls if call.correlation is not None}
    if reason := _lost(calls, work):
        return Trace.missing(steps, reason)

    why = {} if calls else dict.fromkeys(("sync", "kernels.launches_per_step"), "the trace has no CUDA call")
    wall, busy = end - begin, union((e.begin, e.end) for e in work)
    waits = _waits(calls, work, launches)
    marks = sorted((e for e in seen if e.name.startswith(MARK)), key=lambda e: e.begin)
    tiles = {"kernel": union((e.begin, e.end) for e in kernels), **_idle(work, launches, waits, begin, end)}
    return Trace(
        steps,
        wall,
        length(busy) / wall,
        _sm_efficiency(kernels, sms, wall, why),
        _shares(tiles, busy, _phases(marks, work, launches, begin, end), why),
        _kernels(kernels, calls, work, steps),
        Sync(len(waits) / steps) if calls else None,
        _copy(work, steps, why),
        why,
    )


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals in any order, as disjoint intervals in order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """Return the summed length of intervals (begin, end); an overlap counts twice."""
    return sum(end - begin for begin, end in intervals)


def overlap(some: Sequence[Interval], others: Sequence[Interval]) -> float:
    """Return the length of the intersection between two lists of intervals, each list disjoint and in order."""
    begin, end = np.array(others, float).reshape(-1, 2).T
    return float(np.diff(length_before(begin, end, np.array(some, float).reshape(-1, 2))).sum())


def _lost(calls: Sequence[Event], work: Sequence[Event]) -> str | None:
    """Return the reason to reject a trace in which CUPTI dropped kernels (pytorch issue 192021), else None."""
    ran = {e.correlation for e in work}
    if None in ran:
        return None
    launched = [c for c in calls if c.cat == "cuda_runtime" and LAUNCH.match(c.name) and "Graph" not in c.name]
    lost = sum(call.correlation not in ran for call in launched)
    if lost <= LOST * len(launched):
        return None
    return f"the profiler lost the kernels of {lost} of {len(launched)} launches"


def _waits(calls: Sequence[Event], work: Sequence[Event], launches: Mapping[int | None, Event]) -> list[Event]:
    """Return host calls that waited: synchronisations, and copies to the host that blocked until done.

    A copy and an immediate synchronisation in the same thread, as in ``.item()``, count as a single wait.
    """
    copies = [(e, launches.get(e.correlation)) for e in work if e.cat == "gpu_memcpy" and "DtoH" in e.name]
    blocking = {e.correlation for e, call in copies if call and not LAUNCH.match(call.name) and call.end >= e.end}
    following: dict[str, Event] = {}  # by thread
    waits = []
    for call in reversed(calls):
        after = following.get(call.thread)
        synced = after is not None and SYNC.match(after.name)
        if SYNC.match(call.name) or (call.correlation in blocking and not synced):
            waits.append(call)
        following[call.thread] = call
    return waits[::-1]


def _idle(
    work: Sequence[Event], launches: Mapping[int | None, Event], waits: Sequence[Event], begin: float, end: float
) -> dict[str, list[Interval]]:
    """Return idle intervals in us on all streams, by cause (see ``Trace``), between the window's begin and end.

    The host causes a gap if the launch behind the gap began after the device had become idle.
    """
    idle = np.maximum.accumulate([begin, *(e.end for e in work)])  # since when, before each piece of work and at last
    busy = np.array([*(e.begin for e in work), end])
    calls = (launches.get(e.correlation) for e in work)
    launched = np.array([*(call.begin if call else math.nan for call in calls), end])  # the host ends the window itself
    waited = np.array([(-math.inf, -math.inf), *union((call.begin, call.end) for call in waits)])
    last = np.searchsorted(waited[:, 0], launched) - 1  # the last wait that began before the launch
    conditions = [np.isnan(launched), launched <= idle, waited[last, 1] > idle]
    causes = np.select(conditions, ["unknown", "queued", "sync"], "launch")

    def gaps(cause: str) -> list[Interval]:
        mask = (causes == cause) & (busy > idle)
        return list(zip(idle[mask].tolist(), busy[mask].tolist(), strict=True))

    return {cause: gaps(cause) for cause in ("sync", "launch", "queued", "unknown")}


def _phases(
    marks: Sequence[Event], work: Sequence[Event], launches: Mapping[int | None, Event], begin: float, end: float
) -> dict[str, list[Interval]]:
    """Return phase -> intervals of device time in us, from mark to mark; without marks the window is one ``span``.

    The device reaches a mark like an event in a stream: after the host made the mark, and after all earlier launches
    finished. While the device is idle, a phase is therefore the host's activity.
    """
    if not marks:
        return {"span": [(begin, end)]}
    calls = sorted((launches.get(e.correlation, e).begin, e.end) for e in work)
    done = np.maximum.accumulate([begin, *(ended for _, ended in calls)])
    made = [mark.begin for mark in marks]
    edges = np.maximum(made, done[np.searchsorted([launched for launched, _ in calls], made)]).tolist()
    phases: dict[str, list[Interval]] = {phase: [] for phase in PHASES.values()}
    for mark, since, until in zip(marks, edges, [*edges[1:], end], strict=True):
        phases[PHASES[mark.name.removeprefix(MARK)]].append((since, until))
    return phases


def _shares(
    tiles: Mapping[str, list[Interval]], busy: list[Interval], phases: Mapping[str, list[Interval]], why: dict[str, str]
) -> dict[str, dict[str, float]]:
    """Return phase -> cause -> share of that phase's device time; why: receives the reason if no step was traced.

    tiles: cause -> intervals that together fill the window, without copies; busy: intervals with any device work.
    """
    shares = {}
    for phase, intervals in phases.items():
        if whole := length(intervals):
            us = {name: overlap(others, intervals) for name, others in tiles.items()}
            us["copy"] = max(0.0, overlap(busy, intervals) - us["kernel"])
            shares[phase] = {name: us[name] / whole for name in CAUSES}
    if "span" not in shares:
        why["span"] = "the trace has no training step"
    return shares


def _sm_efficiency(kernels: Sequence[Event], sms: int | None, wall: float, why: dict[str, str]) -> float | None:
    """Return the mean share of busy SMs over ``wall`` us, or None with the reason added to ``why``."""
    if not sms:
        why["sm_efficiency"] = "the device's number of SMs is not known"
        return None
    if not all(kernel.args.get("grid") for kernel in kernels):
        why["sm_efficiency"] = "the trace has kernels without a grid"
        return None
    shares = [min(1.0, math.prod(kernel.args["grid"]) / sms) for kernel in kernels]
    begins = [(kernel.begin, share) for kernel, share in zip(kernels, shares, strict=True)]
    ends = [(kernel.end, -share) for kernel, share in zip(kernels, shares, strict=True)]
    at, changes = np.array(sorted(begins + ends)).T
    return float(np.clip(np.cumsum(changes[:-1]), 0, 1) @ np.diff(at)) / wall


def _kernels(kernels: Sequence[Event], calls: Sequence[Event], work: Sequence[Event], steps: int) -> Kernels:
    """Return the section ``kernels``, per step."""
    durations = [e.end - e.begin for e in kernels]
    calls_us = list(zip((e.name for e in kernels), durations, strict=True))
    ran = {e.correlation for e in work}  # a driver call counts where it launched, not where a runtime call made it
    launching = [c for c in calls if LAUNCH.match(c.name) and (c.cat == "cuda_runtime" or c.correlation in ran)]
    return Kernels(
        per_step=len(kernels) / steps,
        us_p50=float(np.median(durations)),
        tiny_share=sum(us for us in durations if us < TINY_US) / sum(durations),
        launches_per_step=len(launching) / steps if calls else None,
        traced_steps=steps,
        top=[replace(entry, name=short_name(entry.name)) for entry in _longest(calls_us, steps, 5)],
    )


def _longest(calls: Sequence[tuple[str, float]], steps: int, most: int) -> list[Top]:
    """Return the ``most`` names with the most time in (name, us) pairs."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, us in calls:
        by_name[name].append(us)
    total = sum(us for _, us in calls)
    largest = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:most]
    return [Top(name, sum(us) / total, sum(us) / steps, len(us) / steps) for name, us in largest]


def _copy(work: Sequence[Event], steps: int, why: dict[str, str]) -> Copy:
    """Return the section ``copy``, from host to device; unmeasured facts are None with the reason added to ``why``."""
    copies = [e for e in work if e.cat == "gpu_memcpy" and "HtoD" in e.name]
    if not copies:
        why["copy.pageable"] = "nothing was copied from the host in the traced steps"
        return Copy(0.0, None)
    sizes = [e.args["bytes"] for e in copies if "bytes" in e.args]
    sources = {source[1] for e in copies if (source := re.search(r"\((\w+) ->", e.name))}
    told = bool(sources) and sources <= {"Pageable", "Pinned"}
    if len(sizes) < len(copies):
        why["copy.h2d_bytes_per_step"] = "the trace has copies without a size"
    if not told:
        why["copy.pageable"] = "the trace does not say where the copies came from"
    return Copy(sum(sizes) / steps if len(sizes) == len(copies) else None, "Pageable" in sources if told else None)


def read_operators(events: Iterable[Mapping[str, Any]], steps: int) -> list[Top]:
    """Return the CPU operators with the most time of their own, called operators excluded; [] without any.

    events: ``traceEvents`` in a Chrome trace over ``steps`` steps.
    """
    kept = [Event.parse(event) for event in events if event.get("cat") in ("cpu_op", OURS) and "dur" in event]
    begin = max((e.begin for e in kept if e.name == WINDOW), default=0.0)
    threads: dict[str, list[Event]] = defaultdict(list)
    for event in kept:
        if event.cat == "cpu_op" and event.begin >= begin:
            threads[event.thread].append(event)
    operators: list[tuple[str, float]] = []
    for calls in threads.values():
        calls.sort(key=lambda e: (e.begin, -e.end))  # outer ones before inner ones
        self_us = [e.end - e.begin for e in calls]
        outer: list[int] = []  # the operators that are not done yet, each called by the one before it
        for index, call in enumerate(calls):
            while outer and calls[outer[-1]].end <= call.begin:
                outer.pop()
            if outer:
                self_us[outer[-1]] -= call.end - call.begin
            outer.append(index)
        operators += [(call.name, max(0.0, us)) for call, us in zip(calls, self_us, strict=True)]
    return _longest(operators, steps, 8) if any(us for _, us in operators) else []


def short_name(name: str, most: int = 60) -> str:
    """Shorten ``void at::native::fill<4, at::Fill<float>>(int, float*)`` to ``fill<4, Fill<float>>``, ``most`` long."""
    short = re.sub(r"\(anonymous namespace\)::|\b\w+::", "", name.removeprefix("void "))
    if short.endswith(")"):
        depth = 0
        for at in range(len(short) - 1, 0, -1):
            depth += (short[at] == ")") - (short[at] == "(")
            if not depth:
                short = short[:at]
                break
    return short if len(short) <= most else f"{short[: most - 3]}..."
