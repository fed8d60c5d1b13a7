"""A profile on a terminal: the verdict, a step by cause, the change to make, findings, and rates."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from socialx.core.errors import counted
from socialx.dataset import GIB
from socialx.drawing.terminal import bar, number, percent
from socialx.profiling.analysis import group_means
from socialx.profiling.profile import Finding, Gain, Profile
from socialx.profiling.rules import WARN
from socialx.profiling.trace import short_name

WIDTH = 100
FLAT_PP = 10  # percentage points: a busy share that swings less is told without a chart
CELLS, NAME = 60, 44  # characters of the busy curve, and of a name
BLOCKS, ASCII = "▁▂▃▄▅▆▇█", " .:-=+*#"
NEEDS_A_CARD = "kernels, SM efficiency, host syncs, copies and NVML need a CUDA device"
IDLE = {  # the parts of the time without a kernel, and those of the parts
    "late": "host late",
    "queued": "between kernels",
    "unasked": "nothing asked for",
    "input": "  waiting for input",
    "sync": "  waiting for the device",
    "hooks": "  between steps",
    "copy": "only copies",
    "unknown": "not known",
}
COLOURS = {"critical": "red", "warn": "yellow", "info": "cyan"}


def print_profile(profile: Profile, console: Console | None = None) -> None:
    """Print the whole profile, at most 100 columns wide; console: None for standard output."""
    out = console or Console()
    out.width = min(out.width, WIDTH)
    _verdict(profile, out)
    for rank, finding in enumerate(profile.findings, 1):
        _finding(rank, finding, out)
    out.print()
    _busy(profile, out)
    _rates(profile, out)
    if profile.kernels:
        _trace(profile, out)
    elif profile.operators:
        _top("operator", profile.operators["top"], out)
    reasons = missing_reasons(profile)
    if reasons.pop("no CUDA device", None):
        _line(f"not measured: {NEEDS_A_CARD}", out)
    for reason, keys in reasons.items():
        if profile.window["clock"] == "device" or "operators" not in keys:
            _line(f"not measured: {', '.join(keys)} ({reason})", out)


def phase_rows(profile: Profile) -> list[tuple[str, str, float, float]]:
    """Return the parts of a step: key in ``shares``, name, share of the window, ms per step.

    A training step is divided into computing and waiting, or into kernels and pauses, where known.
    """
    shares, step_ms = dict(profile.shares), 1e3 * profile.step_s
    names = {"input": "waiting for input", "transfer": "copy to device", "hooks": "between steps"}
    waiting = profile.number("host.waiting")
    if shares["kernel"] is not None:
        names = {"kernel": "kernels running", "bubble": "no kernel running", **names}
    elif waiting < WARN:
        names = {"span": "training step", **names}
    else:  # waiting lies inside of it, as a bubble between kernels does
        names = {"kernel": "training step, computing", "bubble": "training step, waiting", **names}
        shares |= {"kernel": shares["span"] - waiting, "bubble": waiting}
    return [(key, name, shares[key], step_ms * shares[key]) for key, name in names.items()]


def step_after(profile: Profile) -> tuple[str, float, float] | None:
    """Return a row for a step's windows after the advised change: name, share of the present time, milliseconds."""
    change = profile.change
    if change is None or not change.times:
        return None
    name = "without that cause" if change.trial is None else "with the change, tried"
    return name, 1 / change.times, 1e3 * profile.step_s / change.times


def idle_rows(profile: Profile) -> list[tuple[str, float, float]]:
    """Return the time without a kernel by cause: name, share of the window, ms per step; zeros are left out."""
    idle = profile.idle
    if idle is None or not idle["whole"]:
        return []
    names = {"whole": "no kernel, all phases", **IDLE}
    return [(name, idle[part], 1e3 * profile.step_s * idle[part]) for part, name in names.items() if idle[part]]


def busy_machine(profile: Profile) -> str:
    """Return a warning that programs outside took many cores, or an empty text."""
    return f"{profile.others.capitalize()}: measure again when they have ended." if profile.others else ""


def missing_reasons(profile: Profile) -> dict[str, list[str]]:
    """Return reasons for missing measurements, each with the names of these measurements."""
    reasons: dict[str, list[str]] = {}
    for key, reason in profile.why.items():
        reasons.setdefault(reason, []).append(key)
    return reasons


def _verdict(p: Profile, out: Console) -> None:
    """Print the verdict, a step by cause as bars, and the change with the largest gain."""
    if p.verdict:
        _line(f"{p.verdict}  {p.summary}", out, style="bold")
    table = _table(out, f"{p.window['clock']} time", "share", "ms/step")
    table.add_column(no_wrap=True)
    after = step_after(p)
    for name, share, ms in (row[1:] for row in phase_rows(p)):
        table.add_row(name, percent(share), number(ms, 2), bar(share))
    for name, share, ms in idle_rows(p):
        table.add_row(name, percent(share), number(ms, 2))
    if after:
        table.add_section()
        table.add_row(after[0], percent(after[1]), number(after[2], 2), bar(after[1]))
    out.print(table)
    if p.change:
        change = settings_text(p.change.patch) or p.change.advice
        _line(f"{change}, {p.change.gain}" if change else p.change.gain, out, "change  ")
    if text := busy_machine(p):
        _line(text, out)
    machine = [str(p.environment[key]) for key in ("device_name", "precision") if p.environment.get(key)]
    w = p.window
    window = f"{w['steps']} steps in {w['seconds']:.2f} s after {w['warmup_steps']} warm-up steps"
    _line(", ".join([window, f"{w['clock']} clock", *machine]), out)


def _busy(p: Profile, out: Console) -> None:
    """Print a curve of the busy share (time in copies and steps) over the window; nothing for a nearly flat share."""
    f, t = p.fluctuation, p.timeline
    if f is None or t is None or f["swing_pp"] < FLAT_PP:
        return
    shares = f"mean {f['mean']:.0%}  p5 {f['p5']:.0%}  p95 {f['p95']:.0%}"
    _line(f"in steps  {shares}  swing {f['swing_pp']:.0f} percentage points", out)
    group, means = group_means(np.array(t["busy"]), min(CELLS, out.width - 24))
    marks = BLOCKS if out.is_terminal and out.encoding.startswith("utf") else ASCII
    curve = "".join(marks[min(len(marks) - 1, int(mean * len(marks)))] for mean in means)
    _line(f"  |{curve}|  {group * t['bin_s']:.2g} s per cell", out)
    if f["period_s"] is not None:
        cause = f" = {f['cause']}" if f["cause"] else ""
        steps = f"{f['steps_per_period']:.1f} steps{cause}"
        _line(f"  repeats every {f['period_s']:.2f} s = {steps}, strength {f['strength']:.2f}", out)


def _rates(p: Profile, out: Console) -> None:
    get, t, step = p.value, p.throughput, p.step_ms
    parts = [f"windows/s {t['windows_per_s']:,.1f}", f"step p50 {step['p50']:.1f} ms  p95 {step['p95']:.1f} ms"]
    if p.machine and (rate := p.rate("flops")) is not None:
        best = percent(rate / p.machine["matmul_flops_per_s"])
        parts.append(f"steps compute {rate / 1e9:,.1f} GFLOP/s = {best} of a matrix product")
    if p.machine and (rate := p.rate("bytes")) is not None:
        best = percent(rate / p.machine["copy_bytes_per_s"])
        parts.append(f"steps move {rate / 1e9:,.1f} GB/s = {best} of a copy")
    if (used := get("host.cores_used")) is not None:
        others = get("host.others_used")
        others = "" if others is None else f", {others:.1f} by other programs"
        threads = counted(get("host.threads"), "thread")
        parts.append(f"{threads}, {used:.1f} of {get('host.cores')} cores used{others}")
    if p.memory:
        peak, capacity = p.memory["peak_bytes"], p.memory["capacity_bytes"]
        parts.append(f"peak memory {peak / GIB:.2f} of {capacity / GIB:.1f} GiB")
    making_s, supply = get("loader.making_s"), get("loader.supply")
    if making_s is not None and supply is not None:
        maker = "worker" if get("loader.num_workers") else "loader"
        parts.append(f"the {maker} needs {1e3 * making_s:.1f} ms a batch, supply {supply:.2f}")
    if p.device:
        mean, least, most = (p.device[f"utilisation_{name}"] for name in ("mean", "min", "max"))
        parts.append(f"NVML utilisation mean {mean:.0%} ({least:.0%} to {most:.0%})")
    if p.overhead:
        share = f"{p.overhead['share']:.3%}" if p.overhead["share"] >= 1e-5 else "<0.001%"
        parts.append(f"the clock costs {p.overhead['us_per_step']:.1f} us a step, {share}")
    line = ""  # as many parts beside each other as fit
    for part in parts:
        if line and len(line) + 3 + len(part) > out.width:
            _line(line, out)
            line = part
        else:
            line = f"{line}   {part}" if line else part
    _line(line, out)


def _table(out: Console, first: str, *numbers: str) -> Table:
    """Return a table with the column ``first`` for names and the columns ``numbers``, ruled on a terminal alone."""
    table = Table(show_edge=False) if out.is_terminal else Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for head in numbers:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def _trace(p: Profile, out: Console) -> None:
    """Print results from traced steps: busy share, causes of idle time, and the longest kernels."""
    k = p.kernels
    if k is None:
        return
    lines = [
        f"GPU busy {_share(p.gpu_busy)}   SM efficiency {_share(p.sm_efficiency)}   in "
        f"{k['traced_steps']} traced steps, each {k['slowdown']:.2f}x as long",
        f"per step: {k['per_step']:,.0f} kernels, {_count(k['launches_per_step'])} launches, "
        f"{_count(p.value('sync.per_step'))} syncs",
        f"a kernel takes {k['us_p50']:.1f} us (median); {k['tiny_share']:.1%} of their time is in kernels below 10 us",
    ]
    if copied := p.value("copy.h2d_bytes_per_step"):
        pinned = ", memory not pinned" if p.value("copy.pageable") else ""
        lines.append(f"copied from the host: {copied / 2**20:,.3f} MiB per step{pinned}")
    most = out.width - 24
    for site in p.value("sync.sites") or ():  # the end of a path says more than its beginning
        lines.append(f"waits for the device: {site if len(site) <= most else f'...{site[3 - most :]}'}")
    for line in lines:
        _line(line, out)
    _top("kernel", k["top"], out)


def _top(kind: str, tops: list[dict[str, Any]], out: Console) -> None:
    table = _table(out, kind, "share", "us/step", "calls/step")
    for top in tops[:5]:
        name = short_name(top["name"].removeprefix("aten::"), NAME)
        table.add_row(escape(name), f"{top['share']:.1%}", f"{top['us_per_step']:,.1f}", _count(top["per_step"]))
    out.print(table)


def _finding(rank: int, f: Finding, out: Console) -> None:
    head = Text(f"{rank}  ")
    head.append(f.severity, COLOURS[f.severity])
    head.append(f"  {f.rule}")
    out.print()
    out.print(head)
    _line(f.evidence, out, "   ")
    if f.patch:
        _line(", ".join(part for part in (settings_text(f.patch), f.gain) if part), out, "   set  ")
    for settings in f.instead:
        _line(settings_text(settings), out, "   or   ")
    if f.advice:
        _line(f.advice, out, "   why  " if f.patch and not f.advice.startswith("it waits") else "   see  ")
    if f.will_not_help:
        _line(f.will_not_help, out, "   not  ")


def settings_text(changes: Mapping[str, Any]) -> str:
    """Return changed settings (key -> value) in words: ``loader.mode = on_device, loader.batch_size = 32``."""
    return ", ".join(f"{key} = {_word(value)}" for key, value in changes.items())


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "not set" if value is None else str(value)


def print_comparison(
    gain: Gain,
    rounds: int,
    rows: Mapping[str, tuple[float, float]],
    changes: Mapping[str, Any],
    console: Console | None = None,
) -> None:
    """Print rates (rows) and changed settings, each as (here, there), and the gain there over ``rounds`` rounds."""
    out = console or Console()
    table = _table(out, "", "these", "the others")
    for name, (here, there) in rows.items():
        table.add_row(name, *(f"{value:.1%}" if "share" in name else f"{value:,.1f}" for value in (here, there)))
    out.print(table)
    for key, (here, there) in changes.items():
        _line(f"{key}: {_word(here)} -> {_word(there)}", out)
    if not changes:
        _line("no setting differs", out)
    _line(f"the others: {gain}, 99 % interval over {rounds} rounds of new processes", out)


def _line(text: str, out: Console, before: str = "", style: str | None = None) -> None:
    """Print a text in a style, wrapped at words to the terminal, with ``before`` in front of the first line."""
    width = max(20, out.width - 1)
    rest = " " * len(before)
    for line in textwrap.wrap(text, width, initial_indent=before, subsequent_indent=rest):
        out.print(line, highlight=False, markup=False, soft_wrap=True, style=style)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _count(value: float | None) -> str:
    """Return a count per step, without digits after the point if large or whole."""
    return "-" if value is None else f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"
