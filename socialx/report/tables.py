"""Results as tables for a terminal.  Numbers come in finished; only their digits are decided here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from socialx.data.inspect import Report
from socialx.training.metrics import Scores


def print_scores(
    rows: Mapping[str, Sequence[Scores]], step_minutes: int, unit: str, part: str, console: Console | None = None
) -> None:
    """MAE, RMSE, MAPE and R2 of every model at 15, 30 and 60 minutes and over the whole horizon.

    rows: name -> P + 1 scores, the last over all steps.  Horizons beyond P are left out.
    """
    horizon = len(next(iter(rows.values()))) - 1
    table = Table(title=f"{part} windows", title_justify="left", show_edge=False)
    table.add_column("model", overflow="fold")
    for head in ("at", f"MAE {unit}", f"RMSE {unit}", "MAPE %", "R2"):
        table.add_column(head, no_wrap=True, justify="right")
    for name, scores in rows.items():
        for step in reported_steps(horizon, step_minutes):
            table.add_row(name, f"{step * step_minutes} min", *_cells(scores[step - 1]))
            name = ""
        table.add_row("", f"all {horizon} steps", *_cells(scores[-1]), end_section=True)
    (console or Console()).print(table)


def reported_steps(horizon: int, step_minutes: int) -> list[int]:
    """The steps that are 15, 30 and 60 minutes ahead, as far as they exist; else the last one."""
    steps = [minutes // step_minutes for minutes in (15, 30, 60) if minutes % step_minutes == 0]
    return [step for step in steps if 0 < step <= horizon] or [horizon]


def _cells(s: Scores) -> list[str]:
    digits = ((s.mae, 4), (s.rmse, 4), (s.mape, 3), (s.r2, 4))
    return ["-" if math.isnan(value) else f"{value:.{places}f}" for value, places in digits]


def print_stamp(stamp: Mapping[str, Any], console: Console | None = None) -> None:
    """The protocol stamp in a few lines: what a comparison with these numbers must agree on."""
    w, scaler = stamp["windows"], stamp["scaler"]
    lines = [
        f"{stamp['dataset']} {stamp['feature']} ({stamp['unit']}), {stamp['sensors']} sensors, every "
        f"{stamp['step_minutes']} min, checksum {stamp['checksum'][:12]}{', imputed' if stamp['imputed'] else ''}",
        f"{stamp['split']} split: {w['train']} / {w['validation']} / {w['test']} windows of {stamp['history']} + "
        f"{stamp['horizon']} steps, {stamp['windows_across_gaps']} across a time gap",
        f"missing: {stamp['missing']}; averaged over {stamp['averaging']}",
        f"scaler mean {scaler['mean']:.4f} std {scaler['std']:.4f}; seed {stamp['seed']}; {stamp['precision']}; "
        f"socialx {stamp['socialx']} {stamp['commit'] or ''}".rstrip(),
    ]
    if "trained_on" in stamp:
        trained = stamp["trained_on"]
        lines.append(
            f"weights of epoch {trained['epoch']}" if trained["epoch"] else "weights before the first epoch ended"
        )
        if trained["checksum"] != stamp["checksum"]:
            lines[-1] += (
                f", trained on OTHER data ({trained['checksum'][:12]}): they may have seen some of these windows"
            )
    out = console or Console()
    for line in lines:
        out.print(line, highlight=False, markup=False, soft_wrap=True)


def print_profile(profile: Mapping[str, Any], console: Console | None = None) -> None:
    """Where the time of a step went, the rates, and what could not be measured."""
    out = console or Console()
    window = profile["window"]
    out.print(
        f"{window['steps']} steps in {window['seconds']:.2f} s after {window['warmup_steps']} warm-up steps, "
        f"{window['clock']} clock",
        highlight=False,
    )
    names = {
        "span": "training step",
        "input": "waiting for input",
        "transfer": "copy to device",
        "hooks": "between steps",
    }
    table = Table(show_edge=False)
    table.add_column(f"{window['clock']} time", no_wrap=True)
    for head in ("share", "ms/step", ""):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for phase, name in names.items():
        share = profile["shares"][phase]
        table.add_row(name, f"{share:6.1%}", f"{profile['ms_per_step'][phase]:.2f}", bar(share))
    out.print(table)
    step, rate = profile["step_ms"], profile["throughput"]["windows_per_s"]
    out.print(f"windows/s {rate:,.1f}   step p50 {step['p50']:.1f} ms   p95 {step['p95']:.1f} ms", highlight=False)
    if profile["device"]:
        d = profile["device"]
        out.print(
            f"NVML utilisation mean {d['utilisation_mean']:.0%} (lowest {d['utilisation_min']:.0%}, highest "
            f"{d['utilisation_max']:.0%}), memory {d['used_bytes_max'] / 2**30:.1f} GiB",
            highlight=False,
        )
    if profile["memory"]:
        m = profile["memory"]
        peak, capacity = m["peak_bytes"] / 2**30, m["capacity_bytes"] / 2**30
        out.print(f"peak memory {peak:.1f} of {capacity:.1f} GiB", highlight=False)
    reasons: dict[str, list[str]] = {}
    for key, reason in profile["why"].items():
        reasons.setdefault(reason, []).append(key)
    for reason, keys in reasons.items():
        out.print(f"not measured: {', '.join(keys)} ({reason})", highlight=False, markup=False, soft_wrap=True)


def bar(share: float, width: int = 30) -> str:
    """A share as a bar; plain ASCII."""
    return "#" * round(share * width)


def print_report(report: Report, console: Console | None = None) -> None:
    """What a file holds, a line per question that people ask of it."""
    r = report
    missing = "not finite" if r.missing is None else f"not finite or {r.missing:g}"
    worst = ", ".join(f"{sensor} {share:.1%}" for sensor, share in r.worst_sensors.items() if share) or "none"
    gaps = f"{r.gaps} gaps" + (f", the largest {r.largest_gap_minutes:g} min" if r.gaps else "")
    lost = len(r.without_position)
    facts = {
        "file": r.path,
        "data": f"{r.dataset}, {r.feature} in {r.unit}{', zeros filled in by its writer' if r.imputed else ''}",
        "sensors": f"{r.sensors}, {'all' if not lost else r.sensors - lost} with a position",
        "rows": f"{r.rows:,}, every {r.step_minutes} min, {r.first_stamp} .. {r.last_stamp} {r.timezone or ''}",
        "time axis": f"{gaps}, {r.duplicates} duplicates",
        "missing": f"{r.missing_share:.1%} ({missing}); zeros {r.zero_share:.1%}",
        "worst sensors": worst,
        "outages": f"{r.all_missing_rows} rows without any reading, the longest run {r.longest_outage_steps} rows",
        "checksum": r.checksum,
    }
    table = Table(show_header=False, show_edge=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value.rstrip())
    (console or Console()).print(table, highlight=False, markup=False)
