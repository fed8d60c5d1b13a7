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
from socialx.drawing.terminal import DASH, bar, is_known, number, percent
from socialx.profiling.analysis import PARTS, group_means
from socialx.profiling.profile import Finding, Profile
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
    table = text_table(out, "quantity", "measured")
    table.add_column("remark", overflow="fold")
    for row in rate_rows(profile):
        table.add_row(*row)
    out.print(table)
    most = out.width - 24
    for site in profile.sync.sites if profile.sync else ():  # the end of a path says more than its beginning
        print_wrapped(f"waits for the device: {site if len(site) <= most else f'...{site[3 - most :]}'}", out)
    if longest := profile.kernels or profile.operators:
        _top("kernel" if profile.kernels else "operator", longest.top, out)
        print_wrapped(operator_waiting(profile), out)
    reasons = missing_reasons(profile)
    if reasons.pop("no CUDA device", None):
        print_wrapped(f"not measured: {NEEDS_A_CARD}", out)
    for reason, keys in reasons.items():
        if profile.on_device or "operators" not in keys:
            print_wrapped(f"not measured: {', '.join(keys)} ({reason})", out)


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
    name = "same windows, at best" if change.trial is None else "same windows, tried"
    return name, 1 / change.times, 1e3 * profile.step_s / change.times


def detail_rows(profile: Profile) -> list[tuple[str, float, float]]:
    """Return the parts in an eager training step, and the time without a kernel by cause, without zeros.

    A row: name, share of the window, ms per step.
    """
    shares = [(f"training step: {part}", getattr(profile.shares, part) or 0.0) for part in PARTS.values()]
    shares += [] if profile.idle is None else [(name, getattr(profile.idle, part)) for part, name in IDLE.items()]
    return [(name, share, 1e3 * profile.step_s * share) for name, share in shares if share]


def busy_words(profile: Profile) -> list[str]:
    """Return sentences on the busy share (time in copies and steps) over the window; none for a nearly flat share."""
    seen = profile.fluctuation
    if not profile.timeline.busy or seen.swing_pp < FLAT_PP:
        return []
    mean, low, high = map(percent, (seen.mean, seen.p5, seen.p95))
    lines = [f"Mean {mean}; nine of ten parts of {number(seen.bin_s, unit=' s')} are between {low} and {high}."]
    if is_known(seen.period_s):
        steps = number(seen.steps_per_period, unit=" steps") if is_known(seen.steps_per_period) else None
        parts = (number(seen.period_s, unit=" s"), steps, seen.cause)
        lines.append(f"It repeats every {' = '.join(part for part in parts if part)}.")
    return lines


def rate_rows(p: Profile) -> list[tuple[str, str, str]]:
    """Return a row per measured quantity: name, value, remark."""
    host, speed, times, loader = p.host, p.throughput, p.step_ms, p.loader
    rows = [
        ("windows/s", number(speed.windows_per_s), f"{number(1 / p.step_s)} steps/s"),
        ("sensor-timesteps/s", _scaled(speed.sensor_steps_per_s), "readings of one sensor in one window"),
        ("median step (p50)", number(times.p50, unit=" ms"), f"p95 {number(times.p95, unit=' ms')}"),
        ("GPU busy", percent(p.gpu_busy), f"SM efficiency {percent(p.sm_efficiency)}"),
        ("cores used", number(host.cores_used), f"of {host.cores}, with {counted(host.threads, 'thread')}"),
        ("cores of other programs", number(host.others_used, digits=1), "used by them meanwhile"),
        ("supply of batches", number(loader.supply), "offered for every one that is wanted"),
    ]
    if loader.making_s is not None:
        maker = "worker" if loader.num_workers else "loader"
        rows.append(("making a batch", number(1e3 * loader.making_s, unit=" ms"), f"by the {maker}"))
    if k := p.kernels:
        waits = f"{number(k.launches_per_step)} launches, {number(p.sync.per_step if p.sync else None)} syncs"
        traced = f"in {k.traced_steps} traced steps, each {number(k.slowdown, 2)}x as long"
        tiny = f"{percent(k.tiny_share)} of their time is in kernels below 10 us"
        rows += [
            ("kernels per step", number(k.per_step), f"{waits}, {traced}"),
            ("a kernel", f"{k.us_p50:.1f} us", tiny),
        ]
    if p.copy and p.copy.h2d_bytes_per_step:
        pinned = ", memory not pinned" if p.copy.pageable else ""
        rows.append(("copied from the host", f"{_scaled(p.copy.h2d_bytes_per_step, 1024)}B", f"per step{pinned}"))
    if d := p.device:
        span = f"from {d.utilisation_min:.0%} to {d.utilisation_max:.0%}, share of the time with any kernel"
        rows.append(("NVML utilisation", percent(d.utilisation_mean), span))
    if p.memory:
        peak, most = p.memory.peak_bytes, p.memory.capacity_bytes
        share = f"{percent(peak / most)} of {_scaled(most, 1024)}B" if most else DASH
        rows.append(("peak memory", f"{_scaled(peak, 1024)}B", share))
    return [row for row in rows if row[1] != DASH]


def _scaled(value: float | None, base: int = 1000) -> str:
    """Return a number in thousands (k, M, G; ``base`` 1000) or in steps of 1,024 (Ki, Mi, Gi)."""
    if not is_known(value):
        return DASH
    power = next((p for p in range(5) if abs(value) < 0.9995 * base ** (p + 1)), 5)
    return number(value / base**power, unit=f" {'kMGTP'[power - 1 : power]}{'i' * (base > 1000 and power > 0)}")


def window_facts(p: Profile) -> list[str]:
    """Return texts for the measured steps, the clock, the device, the precision and torch."""
    window, about = p.window, p.environment
    steps = f"{window.steps:,} steps in {number(window.seconds, unit=' s')} after {window.warmup_steps:,} warm-up steps"
    torch = f"torch {about['torch']}" if about.get("torch") else None
    where = (about.get("device_name") or about.get("device"), about.get("precision"), torch)
    return [str(fact) for fact in (steps, f"{window.clock} clock", *where) if fact]


def busy_machine(profile: Profile) -> str:
    """Return a warning that programs outside took many cores, or an empty text."""
    return f"{profile.others.capitalize()}. Stop them and profile again." if profile.others else ""


def operator_waiting(profile: Profile) -> str:
    """Return a sentence on waiting inside the operators' times; empty where short."""
    waiting = (profile.operators and profile.operators.waiting) or 0.0
    slept = f"In {percent(waiting)} of the traced steps the process slept or lacked a core"
    return f"{slept}; the operators' times contain that time." if waiting >= WARN else ""


def missing_reasons(profile: Profile) -> dict[str, list[str]]:
    """Return reasons for missing measurements, each with the names of these measurements."""
    reasons: dict[str, list[str]] = {}
    for key, reason in profile.why.items():
        reasons.setdefault(reason, []).append(key)
    return reasons


def _verdict(p: Profile, out: Console) -> None:
    """Print the verdict, a step by cause as bars, and the change with the largest gain."""
    if p.verdict:
        print_wrapped(f"{p.verdict}  {p.summary}", out, style="bold")
    table = text_table(out, f"{p.window.clock} time", "share", "ms/step")
    table.add_column(no_wrap=True)
    after = step_after(p)
    for name, share, ms in (row[1:] for row in phase_rows(p)):
        table.add_row(name, percent(share), number(ms, 2), bar(share))
    for name, share, ms in detail_rows(p):
        table.add_row(name, percent(share), number(ms, 2))
    if after:
        table.add_section()
        table.add_row(after[0], percent(after[1]), number(after[2], 2), bar(after[1]))
    out.print(table)
    if p.change:
        print_wrapped(f"{settings_text(p.change.patch)}, {p.change.gain}", out, "change  ")
    if text := busy_machine(p):
        print_wrapped(text, out)
    print_wrapped(", ".join(window_facts(p)), out)


def _busy(p: Profile, out: Console) -> None:
    """Print a curve of the busy share over the window, with words; nothing for a nearly flat share."""
    if not (words := busy_words(p)):
        return
    print_wrapped(" ".join(words), out, "in steps  ")
    group, means = group_means(np.array(p.timeline.busy), min(CELLS, out.width - 24))
    marks = BLOCKS if out.is_terminal and out.encoding.startswith("utf") else ASCII
    curve = "".join(marks[min(len(marks) - 1, int(mean * len(marks)))] for mean in means)
    print_wrapped(f"  |{curve}|  {group * p.timeline.bin_s:.2g} s per cell", out)


def text_table(out: Console, first: str, *numbers: str) -> Table:
    """Return a table with the column ``first`` for names and the columns ``numbers``, ruled on a terminal alone."""
    table = Table(show_edge=False) if out.is_terminal else Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for head in numbers:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def _top(kind: str, tops: list[Top], out: Console) -> None:
    table = text_table(out, kind, "share", "us/step", "calls/step")
    for top in tops[:5]:
        name = short_name(top.name.removeprefix("aten::"), NAME)
        table.add_row(escape(name), percent(top.share), number(top.us_per_step, digits=1), number(top.per_step))
    out.print(table)


def _finding(rank: int, f: Finding, out: Console) -> None:
    head = Text(f"{rank}  ")
    head.append(f.severity, COLOURS[f.severity])
    head.append(f"  {f.rule}")
    out.print()
    out.print(head)
    print_wrapped(f.evidence, out, "   ")
    if f.patch:
        print_wrapped(", ".join(part for part in (settings_text(f.patch), f.gain) if part), out, "   set  ")
    for settings in f.instead:
        print_wrapped(settings_text(settings), out, "   or   ")
    if f.advice:
        print_wrapped(f.advice, out, "   why  " if f.patch and not f.advice.startswith("it waits") else "   see  ")
    if f.will_not_help:
        print_wrapped(f.will_not_help, out, "   not  ")


def settings_text(changes: Mapping[str, Any]) -> str:
    """Return changed settings (key -> value) in words: ``loader.mode = on_device, loader.batch_size = 32``."""
    return ", ".join(f"{key} = {word(value)}" for key, value in changes.items())


def word(value: Any) -> str:
    """Return a setting's value as a command line has it."""
    return str(value).lower() if isinstance(value, bool) else "not set" if value is None else str(value)


def print_wrapped(text: str, out: Console, before: str = "", style: str | None = None) -> None:
    """Print a text in a style, wrapped at words to the terminal, with ``before`` in front of the first line."""
    width = max(20, out.width - 1)
    rest = " " * len(before)
    for line in textwrap.wrap(text, width, initial_indent=before, subsequent_indent=rest):
        out.print(line, highlight=False, markup=False, soft_wrap=True, style=style)
