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
from socialx.data.loaders import GIB
from socialx.drawing.terminal import bar, number, percent
from socialx.profiling.analysis import group_means
from socialx.profiling.profile import Finding, Gain, Profile
from socialx.profiling.rules import WARN
from socialx.profiling.sections import Top
from socialx.profiling.trace import short_name

WIDTH = 100
FLAT_PP = 10  # percentage points: a busy share that swings less is told without a chart
CELLS, NAME = 60, 44  # characters of the busy curve, and of a name
BLOCKS, ASCII = "▁▂▃▄▅▆▇█", " .:-=+*#"
NEEDS_A_CARD = "kernels, SM efficiency, host syncs, copies and NVML need a CUDA device"
IDLE = {  # the time without a kernel, its parts, and those of the parts
    "whole": "no kernel, all phases",
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
        _top("operator", profile.operators.top, out)
    reasons = missing_reasons(profile)
    if reasons.pop("no CUDA device", None):
        _line(f"not measured: {NEEDS_A_CARD}", out)
    for reason, keys in reasons.items():
        if profile.on_device or "operators" not in keys:
            _line(f"not measured: {', '.join(keys)} ({reason})", out)


def phase_rows(profile: Profile) -> list[tuple[str, str, float, float]]:
    """Return the parts of a step: key in ``shares``, name, share of the window, ms per step.

    A training step is divided into computing and waiting, or into kernels and pauses, where known.
    """
    shares, step_ms = profile.shares, 1e3 * profile.step_s
    rows = [
        ("input", "waiting for input", shares.input),
        ("transfer", "copy to device", shares.transfer),
        ("hooks", "between steps", shares.hooks),
    ]
    waiting = profile.host.waiting or 0.0
    if shares.kernel is not None and shares.bubble is not None:
        step = [("kernel", "kernels running", shares.kernel), ("bubble", "no kernel running", shares.bubble)]
    elif waiting < WARN:
        step = [("span", "training step", shares.span)]
    else:  # waiting lies inside of it, as a bubble between kernels does
        step = [("kernel", "training step, computing", shares.span - waiting)]
        step += [("bubble", "training step, waiting", waiting)]
    return [(key, name, share, step_ms * share) for key, name, share in step + rows]


def step_after(profile: Profile) -> tuple[str, float, float] | None:
    """Return a row for a step's windows after the advised change: name, share of the present time, milliseconds."""
    change = profile.change
    if change is None or not change.times:
        return None
    name = "with the change, at best" if change.trial is None else "with the change, tried"
    return name, 1 / change.times, 1e3 * profile.step_s / change.times


def idle_rows(profile: Profile) -> list[tuple[str, float, float]]:
    """Return the time without a kernel by cause: name, share of the window, ms per step; zeros are left out."""
    idle = profile.idle
    if idle is None or not idle.whole:
        return []
    shares = [(name, getattr(idle, part)) for part, name in IDLE.items()]
    return [(name, share, 1e3 * profile.step_s * share) for name, share in shares if share]


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
    table = _table(out, f"{p.window.clock} time", "share", "ms/step")
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
        _line(f"{settings_text(p.change.patch)}, {p.change.gain}", out, "change  ")
    if text := busy_machine(p):
        _line(text, out)
    machine = [str(p.environment[key]) for key in ("device_name", "precision") if p.environment.get(key)]
    w = p.window
    window = f"{w.steps} steps in {w.seconds:.2f} s after {w.warmup_steps} warm-up steps"
    _line(", ".join([window, f"{w.clock} clock", *machine]), out)


def _busy(p: Profile, out: Console) -> None:
    """Print a curve of the busy share (time in copies and steps) over the window; nothing for a nearly flat share."""
    f, t = p.fluctuation, p.timeline
    if f.swing_pp < FLAT_PP:
        return
    shares = f"mean {f.mean:.0%}  p5 {f.p5:.0%}  p95 {f.p95:.0%}"
    _line(f"in steps  {shares}  swing {f.swing_pp:.0f} percentage points", out)
    group, means = group_means(np.array(t.busy), min(CELLS, out.width - 24))
    marks = BLOCKS if out.is_terminal and out.encoding.startswith("utf") else ASCII
    curve = "".join(marks[min(len(marks) - 1, int(mean * len(marks)))] for mean in means)
    _line(f"  |{curve}|  {group * t.bin_s:.2g} s per cell", out)
    if f.period_s is not None:
        cause = f" = {f.cause}" if f.cause else ""
        steps = f"{f.steps_per_period or 0:.1f} steps{cause}"
        _line(f"  repeats every {f.period_s:.2f} s = {steps}, strength {f.strength or 0:.2f}", out)


def _rates(p: Profile, out: Console) -> None:
    host, loader = p.host, p.loader
    parts = [f"windows/s {p.throughput.windows_per_s:,.1f}"]
    parts.append(f"step p50 {p.step_ms.p50:.1f} ms  p95 {p.step_ms.p95:.1f} ms")
    if host.cores_used is not None:
        others = "" if host.others_used is None else f", {host.others_used:.1f} by other programs"
        parts.append(f"{counted(host.threads, 'thread')}, {host.cores_used:.1f} of {host.cores} cores used{others}")
    if p.memory:
        parts.append(f"peak memory {p.memory.peak_bytes / GIB:.2f} of {p.memory.capacity_bytes / GIB:.1f} GiB")
    if loader.making_s is not None and loader.supply is not None:
        maker = "worker" if loader.num_workers else "loader"
        parts.append(f"the {maker} needs {1e3 * loader.making_s:.1f} ms a batch, supply {loader.supply:.2f}")
    if d := p.device:
        span = f"{d.utilisation_min:.0%} to {d.utilisation_max:.0%}"
        parts.append(f"NVML utilisation mean {d.utilisation_mean:.0%} ({span})")
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
    k, sync = p.kernels, p.sync
    if k is None:
        return
    lines = [
        f"GPU busy {percent(p.gpu_busy)}   SM efficiency {percent(p.sm_efficiency)}   in "
        f"{k.traced_steps} traced steps, each {number(k.slowdown, 2)}x as long",
        f"per step: {k.per_step:,.0f} kernels, {_count(k.launches_per_step)} launches, "
        f"{_count(sync.per_step if sync else None)} syncs",
        f"a kernel takes {k.us_p50:.1f} us (median); {k.tiny_share:.1%} of their time is in kernels below 10 us",
    ]
    if p.copy and p.copy.h2d_bytes_per_step:
        pinned = ", memory not pinned" if p.copy.pageable else ""
        lines.append(f"copied from the host: {p.copy.h2d_bytes_per_step / 2**20:,.3f} MiB per step{pinned}")
    most = out.width - 24
    for site in sync.sites if sync else ():  # the end of a path says more than its beginning
        lines.append(f"waits for the device: {site if len(site) <= most else f'...{site[3 - most :]}'}")
    for line in lines:
        _line(line, out)
    _top("kernel", k.top, out)


def _top(kind: str, tops: list[Top], out: Console) -> None:
    table = _table(out, kind, "share", "us/step", "calls/step")
    for top in tops[:5]:
        name = short_name(top.name.removeprefix("aten::"), NAME)
        table.add_row(escape(name), f"{top.share:.1%}", f"{top.us_per_step:,.1f}", _count(top.per_step))
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
    interval = "" if gain.low is None else ", 95 % interval"
    _line(f"the others: {gain}{interval} over {counted(rounds, 'round')} of new processes", out)


def _line(text: str, out: Console, before: str = "", style: str | None = None) -> None:
    """Print a text in a style, wrapped at words to the terminal, with ``before`` in front of the first line."""
    width = max(20, out.width - 1)
    rest = " " * len(before)
    for line in textwrap.wrap(text, width, initial_indent=before, subsequent_indent=rest):
        out.print(line, highlight=False, markup=False, soft_wrap=True, style=style)


def _count(value: float | None) -> str:
    """Return a count per step, without digits after the point if large or whole."""
    return "-" if value is None else f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"
