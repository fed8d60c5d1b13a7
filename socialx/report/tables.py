"""Results as tables for a terminal.  Numbers come in finished; only their digits are decided here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from socialx.errors import sample
from socialx.report.ladder import MINUTES, Rung

if TYPE_CHECKING:  # a table of files needs no torch, and one of scores no HDF5
    from socialx.data.backfill import Plan
    from socialx.data.inspect import Report
    from socialx.training.metrics import Scores

# What follows the name of a file's data; None: it cannot be told.
IMPUTED = {True: ", zeros filled in by its writer", False: "", None: ", perhaps with its zeros filled in by its writer"}

WORST = 10  # sensors that are named


def print_scores(
    rows: Mapping[str, Sequence[Scores]], step_minutes: int, unit: str, title: str, console: Console | None = None
) -> None:
    """MAE, RMSE, MAPE and R2 of every model at 15, 30 and 60 minutes and over the whole horizon.

    rows: name -> P + 1 scores, the last over all steps.  Horizons beyond P are left out.
    """
    horizon = len(next(iter(rows.values()))) - 1
    table = Table(title=title, title_justify="left", show_edge=False)
    table.add_column("model", overflow="fold")
    for head in ("at", f"MAE {unit}", f"RMSE {unit}", "MAPE %", "R2"):
        table.add_column(head, no_wrap=True, justify="right")
    for name, scores in rows.items():
        for step in reported_steps(horizon, step_minutes):
            table.add_row(name, f"{step * step_minutes} min", *_cells(scores[step - 1]))
            name = ""
        table.add_row("", f"all {horizon} steps", *_cells(scores[-1]), end_section=True)
    (console or Console()).print(table)


def print_ladder(
    rows: Mapping[str, Sequence[Scores]],
    published: Mapping[str, Rung],
    step_minutes: int,
    console: Console | None = None,
) -> None:
    """Our rows among the published ones, the worst first by the mean over 15, 30 and 60 minutes; ours in bold."""
    ladder: list[tuple[Sequence[float], str, str, str]] = [
        (rung.mae, name, rung.source, "") for name, rung in published.items()
    ]
    for name, scores in rows.items():
        ladder.append(([scores[minutes // step_minutes - 1].mae for minutes in MINUTES], name, "scored now", "bold"))
    table = Table(title="among published results", title_justify="left", show_edge=False)
    table.add_column("model", overflow="fold")
    for minutes in MINUTES:
        table.add_column(f"MAE {minutes} min", justify="right")
    table.add_column("from", overflow="fold")
    for mae, name, source, style in sorted(ladder, key=lambda row: -sum(row[0])):
        digits = 2 if not style else 4  # as published
        table.add_row(escape(name), *(f"{value:.{digits}f}" for value in mae), source, style=style)
    (console or Console()).print(table)


def reported_steps(horizon: int, step_minutes: int) -> list[int]:
    """The steps that are 15, 30 and 60 minutes ahead, as far as they exist; else the last one."""
    steps = [minutes // step_minutes for minutes in (15, 30, 60) if minutes % step_minutes == 0]
    return [step for step in steps if 0 < step <= horizon] or [horizon]


def _cells(s: Scores) -> list[str]:
    digits = ((s.mae, 4), (s.rmse, 4), (s.mape, 3), (s.r2, 4))
    return ["-" if math.isnan(value) else f"{value:.{places}f}" for value, places in digits]


def _missing(values: Mapping[str, float | None]) -> str:
    """The rule of every feature, once where they agree."""
    rules = {name: "not finite" if value is None else f"not finite or {value:g}" for name, value in values.items()}
    if len(set(rules.values())) == 1:
        return next(iter(rules.values()))
    return ", ".join(f"{name} {rule}" for name, rule in rules.items())


def print_stamp(stamp: Mapping[str, Any], console: Console | None = None) -> None:
    """The protocol stamp in a few lines: what a comparison with these numbers must agree on."""
    w = stamp["windows"]
    targets = ", ".join(f"{name} ({unit})" for name, unit in stamp["targets"].items())
    read = "" if stamp["inputs"] == stamp["targets"] else f" from {', '.join(stamp['inputs'])}"
    scalers = "; ".join(
        f"{name if len(stamp['scaler']) > 1 else 'scaler'} mean {fit['mean']:.4f} std {fit['std']:.4f}"
        for name, fit in stamp["scaler"].items()
    )
    lines = [
        f"{stamp['dataset']} {targets}{read}, {stamp['sensors']} sensors, every "
        f"{stamp['step_minutes']} min, checksum {stamp['checksum'][:12]}{IMPUTED[stamp['imputed']]}",
        f"{stamp['split']} split: {w['train']} / {w['validation']} / {w['test']} windows of {stamp['history']} + "
        f"{stamp['horizon']} steps, {stamp['windows_across_gaps']} across a time gap",
        f"missing: {_missing(stamp['missing'])}; averaged over {stamp['averaging']}",
        f"{scalers}; {stamp['precision']}; socialx {stamp['socialx']} {stamp['commit'] or ''}".rstrip(),
    ]
    for name, trained in stamp.get("trained", {}).items():
        epoch = f"weights of epoch {trained['epoch']}" if trained["epoch"] else "weights before the first epoch ended"
        lines.append(f"{name}: {epoch}, {trained['parameters']:,} parameters, seed {trained['seed']}")
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
    shares = profile["shares"]
    known = shares["kernel"] is not None  # then the training step is told as what it consists of
    names = {
        **({"kernel": "kernels running", "bubble": "no kernel running"} if known else {"span": "training step"}),
        "input": "waiting for input",
        "transfer": "copy to device",
        "hooks": "between steps",
    }
    table = Table(show_edge=False)
    table.add_column(f"{window['clock']} time", no_wrap=True)
    for head in ("share", "ms/step", ""):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for phase, name in names.items():
        table.add_row(name, f"{shares[phase]:6.1%}", f"{profile['ms_per_step'][phase]:.2f}", bar(shares[phase]))
    out.print(table)
    step, rate = profile["step_ms"], profile["throughput"]["windows_per_s"]
    out.print(f"windows/s {rate:,.1f}   step p50 {step['p50']:.1f} ms   p95 {step['p95']:.1f} ms", highlight=False)
    if profile["kernels"]:
        _print_trace(profile, out)
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


def _print_trace(profile: Mapping[str, Any], out: Console) -> None:
    """What the traced steps say: how busy the device was, why it was not, and with which kernels it was."""
    k, sync, copy, bubble = (profile[section] for section in ("kernels", "sync", "copy", "bubble"))
    lines = [
        f"GPU busy {_share(profile['gpu_busy'])}   SM efficiency {_share(profile['sm_efficiency'])}   in "
        f"{k['traced_steps']} traced steps, each {k['slowdown']:.2f}x as long",
        f"per step: {k['per_step']:,.0f} kernels, {_count(k['launches_per_step'])} launches, "
        f"{_count(sync and sync['per_step'])} syncs",
        f"a kernel takes {k['us_p50']:.1f} us (median); {k['tiny_share']:.1%} of their time is in kernels below 10 us",
    ]
    if bubble:
        causes = {"launch": "late launch", "sync": "host waits", "queued": "between kernels", "copy": "only copies"}
        parts = [f"{causes.get(cause, cause)} {percent(share)}" for cause, share in bubble.items() if share]
        lines += [f"no kernel running: {', '.join(parts)}"] if parts else []
    if copy["h2d_bytes_per_step"]:
        pinned = ", memory not pinned" if copy["pageable"] else ""
        lines.append(f"copied from the host: {copy['h2d_bytes_per_step'] / 2**20:,.3f} MiB per step{pinned}")
    for line in lines:
        out.print(line, highlight=False, markup=False)
    for site in sync["sites"] if sync else ():
        out.print(f"waits for the device: {site}", highlight=False, markup=False, soft_wrap=True)
    table = Table(show_edge=False)
    table.add_column("kernel", no_wrap=True, max_width=44)
    for head in ("share", "us/step", "calls/step"):
        table.add_column(head, justify="right", no_wrap=True)
    for top in k["top"]:
        table.add_row(escape(top["name"]), f"{top['share']:.1%}", f"{top['us_per_step']:,.1f}", _count(top["per_step"]))
    out.print(table)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _count(value: float | None) -> str:
    """A count per step; whole where it is large or whole."""
    return "-" if value is None else f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def print_explanation(found: Mapping[str, Any], console: Console | None = None) -> None:
    """Where a run errs, and whom its sensors listen to; found: as ``explain --json`` prints it."""
    out = console or Console()
    mae, steps = f"MAE {found['unit']}", found["by_horizon"]
    table = _numbers("at", mae, "forecasts")
    for step in reported_steps(len(steps), steps[0]["minutes"]):
        row = steps[step - 1]
        table.add_row(f"{row['minutes']} min", _number(row["mae"], 4), f"{row['count']:,}")
    table.add_row(f"all {len(steps)} steps", _number(found["mae"], 4), f"{found['count']:,}")
    _print_table(out, f"{found['run']}, {found['part']} windows, {found['target']}", table)
    hours = [(f"{row['hour']:02}:00", _number(row["mae"], 3)) for row in found["by_hour"]]
    table = _numbers(*("from", mae) * 4)
    for first in range(6):
        table.add_row(*(cell for hour in hours[first::6] for cell in hour))
    _print_table(out, "by the hour of the day that is forecast", table)
    scored = [sensor for sensor in found["sensors"] if sensor["mae"] is not None][:WORST]
    table = _numbers("sensor", mae, "forecasts", "position", "hears most", "weight", "km")
    for sensor in scored:
        place = "-" if sensor["latitude"] is None else f"{sensor['latitude']:.4f} {sensor['longitude']:.4f}"
        heard = [(escape(h["id"]), f"{h['weight']:.3f}", f"{h['km']:.1f}") for h in sensor["listens_to"][:1]]
        numbers = (_number(sensor["mae"], 3), f"{sensor['count']:,}", place)
        table.add_row(escape(sensor["id"]), *numbers, *(heard[0] if heard else ("-", "-", "-")))
    _print_table(out, f"the {len(scored)} worst of {len(found['sensors'])} sensors", table)
    if found["no_pooling"]:
        out.print(f"no pooling: {found['no_pooling']}", highlight=False, markup=False, soft_wrap=True)
        return
    _print_pooling(found["pooling"], out)


def _print_pooling(layers: Sequence[Mapping[str, Any]], out: Console) -> None:
    """What each head of each social layer listens to."""
    trained = "learned" if any(layer["trained"] for layer in layers) else "fixed"
    most = layers[0]["neighbours"]
    columns = ("layer", "head", "radius km", "softness km", "nobody", "entropy nats", "distance km")
    table = _numbers(*columns)
    for layer in layers:
        name = layer["layer"]
        for head, row in [*enumerate(layer["heads"], start=1), ("all", layer["mean"])]:
            radius, softness = (_number(row[key], 2) for key in ("radius_km", "softness_km"))
            nobody = "-" if row["nobody"] is None else f"{row['nobody']:.1%}"
            rest = (_number(row[key], 2) for key in ("entropy_nats", "distance_km"))
            table.add_row(name, str(head), radius, softness, nobody, *rest, end_section=head == "all")
            name = ""
    _print_table(out, f"what each head listens to: {trained} radii, up to {most} neighbours", table)
    if any(layer["mean"]["nobody"] is None for layer in layers):
        out.print("pooling.kind max has no weights: nothing to say of whom it listens to", highlight=False)
    else:
        evenly = math.log(most + 1)
        text = f"entropy: 0 is one neighbour alone, {evenly:.2f} is {most} neighbours and nobody alike"
        out.print(text, highlight=False, soft_wrap=True)


def _numbers(first: str, *others: str) -> Table:
    """An empty table of numbers behind a first column of names."""
    table = Table(show_edge=False)
    table.add_column(escape(first), no_wrap=True)
    for head in others:
        table.add_column(escape(head), no_wrap=True, justify="right")
    return table


def _print_table(out: Console, title: str, table: Table) -> None:
    """A table under a title that may be wider, and an empty line."""
    out.print(title, style="italic", highlight=False, markup=False, soft_wrap=True)
    out.print(table)
    out.print()


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def bar(share: float, width: int = 30) -> str:
    """A share as a bar; plain ASCII."""
    return "#" * round(share * width)


def print_report(report: Report, kind: str = "", console: Console | None = None) -> None:
    """What a file is and holds, a line per question that people ask of it."""
    table = Table(show_header=False, show_edge=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    if kind:
        table.add_row("kind", kind)
    for name, value in (_about_file(report) | _about_times(report) | _about_readings(report)).items():
        table.add_row(name, value.rstrip())
    (console or Console()).print(table, highlight=False, markup=False)


def _about_file(r: Report) -> dict[str, str]:
    lost = len(r.without_position)
    shared, far = sum(map(len, r.duplicate_positions)), len(r.outlier_sensors)
    extent = "none" if r.extent_km is None else f"{r.extent_km[0]:.1f} x {r.extent_km[1]:.1f} km"
    others = ", ".join(f"{name} {r.units[name]}" for name in r.features if name != r.feature)
    return {
        "file": r.path,
        "data": f"{r.dataset}, {r.feature} in {r.unit}{IMPUTED[r.imputed]}",
        "also": others or "no other feature",
        "sensors": f"{r.sensors}, {'all' if not lost else r.sensors - lost} with a position",
        "coordinates": f"{extent}; {shared} share a position, {far} far from all others",
    }


def _about_times(r: Report) -> dict[str, str]:
    gaps = f"{r.gaps} gaps" + (f", the largest {r.largest_gap_minutes:g} min" if r.gaps else "")
    clock = "time zone not stored" if r.timezone is None else f"time zone {r.timezone} not known here"
    if r.nonexistent_rows is not None:
        clock = f"{r.nonexistent_rows} rows in skipped hours, {r.nonexistent_rows_read} of them with a reading; "
        clock += f"{r.ambiguous_rows} in repeated hours"
    without = f", {r.failed_rows} without a time" if r.failed_rows else ""
    return {
        "rows": f"{r.rows:,}, every {r.step_minutes} min, {r.first_stamp} .. {r.last_stamp} {r.timezone or ''}",
        "time axis": f"{gaps}, {r.duplicates} duplicates, {r.irregular_steps} irregular steps{without}",
        "daylight saving": clock,
    }


def _about_readings(r: Report) -> dict[str, str]:
    missing = "not finite" if r.missing is None else f"not finite or {r.missing:g}"
    worst = [f"{sensor} {percent(share)}" for sensor, share in r.worst_sensors.items() if share]
    stuck = [f"{sensor} {hours:.1f} h" for sensor, hours in r.stuck_sensors.items()]
    longest = "none"
    if r.sensor_longest_outage is not None:
        steps = int(r.sensor_longest_outage["steps"])
        longest = f"sensor {r.sensor_longest_outage['sensor']}, {steps:,} rows ({steps * r.step_minutes / 60:.1f} h)"
        longest += f" from {r.sensor_longest_outage['first_stamp']}"
    return {
        "missing": f"{percent(r.missing_share)} ({missing}); zeros {percent(r.zero_share)}",
        "worst sensors": ", ".join(worst) or "none",
        "dead sensors": f"{len(r.dead_sensors)}: {sample(r.dead_sensors)}" if r.dead_sensors else "none",
        "stuck sensors": f"{len(stuck)}: {sample(stuck)}" if stuck else "none",
        "outages": f"{r.all_missing_rows:,} rows without any reading, the longest run {r.longest_outage_steps} rows",
        "longest outage": longest,
        "checksum": r.checksum,
    }


def percent(share: float) -> str:
    """A share with one digit; what is not nothing does not read as nothing."""
    return f"{share:.1%}" if share >= 0.0005 or share == 0 else "<0.1%"


def print_plans(plans: Sequence[Plan], console: Console | None = None) -> None:
    """What backfill would do with each file, a line per action."""
    table = Table(show_edge=False)
    table.add_column("file", overflow="fold")
    for head in ("is", "rows", "sensors", "to do"):
        table.add_column(head, justify="right" if head in ("rows", "sensors") else "left", overflow="fold")
    for plan in plans:
        todo = list(plan.actions) or ([] if plan.unplaced else ["nothing is lacking"])
        if plan.unplaced:
            todo.append(f"fails: {len(plan.unplaced)} sensors without a position ({sample(plan.unplaced)})")
        if plan.variant.rewrite and not plan.rewrite:
            todo.append("fails: needs --rewrite")
        kind = f"{plan.variant.name}: {plan.variant.what}"
        table.add_row(str(plan.path), kind, f"{plan.rows:,}", f"{plan.sensors:,}", "\n".join(todo), end_section=True)
    (console or Console()).print(table, markup=False)
