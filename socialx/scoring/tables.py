"""Scores as terminal tables: runs, baselines and published results, with the protocol below."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from socialx.core.errors import counted, sample
from socialx.drawing.terminal import (
    IMPUTED,
    lead_times,
    number,
    number_table,
    print_line,
    print_table,
    step_name,
    unit_suffix,
)
from socialx.files.store.published import SCORED_MINUTES
from socialx.scoring.difference import LEAST_DAYS, Difference
from socialx.scoring.drift import LEAST_OF_SENSOR, LEVEL, WEEK, Drift
from socialx.scoring.intervals import Coverage
from socialx.scoring.metrics import NEARLY_ZERO, ErrorRow, Scores
from socialx.scoring.protocol import ScoringProtocol, missing_rule, other_missing
from socialx.scoring.published_rules import CANONICAL, RuleErrors
from socialx.scoring.references import REFERENCES
from socialx.scoring.results import FROZEN, Evaluation, ModelScores

WORST = 10  # sensors that are named
DRIFT_DAYS = 14  # that are shown, the last ones

OURS = "scored now"  # the source of our rows among published ones


def print_evaluation(evaluation: Evaluation, console: Console | None = None) -> None:
    """Print a table per target, whatever else was scored, published results if any, and the protocol."""
    out, protocol = console or Console(), evaluation.protocol
    for target in protocol.targets:
        title = f"{evaluation.split} windows"
        title = title if len(protocol.targets) == 1 else f"{target}, {title}"
        print_scores(evaluation.distinct_models, target, protocol, title, out)
        if evaluation.climatology_days:
            heading = f"{title}, climatology of the days before each day"
            print_scores(evaluation.climatology_days, target, protocol, heading, out)
        if evaluation.silent:
            print_scores(evaluation.silent, target, protocol, f"{title}, some sensors without a reading", out)
        if evaluation.coverage:
            covered = {name: targets[target] for name, targets in evaluation.coverage.items()}
            print_coverage(covered, protocol, protocol.targets[target], f"{title}, prediction intervals", out)
    for by in next(iter(evaluation.by.values()), {}):
        errors = {name: tables[by] for name, tables in evaluation.by.items() if name in evaluation.distinct_models}
        print_errors(errors, by, evaluation, out)
    for name, rules in evaluation.protocols.items():
        print_rules(name, rules, evaluation, out)
    if evaluation.difference:
        print_difference(evaluation.difference, protocol, out)
    for name, drift in evaluation.drift.items():
        print_drift(name, drift, protocol, out)
    if evaluation.published:
        print_ladder(ladder_rows(evaluation), out)
    print_protocol(protocol, out)
    lines = [*mape_notes(evaluation), *verdicts(evaluation), *silent_verdicts(evaluation)]
    if evaluation.difference and evaluation.difference.start:
        lines.append(fine_tuning_verdict(evaluation.difference))
    for line in (*lines, *(line for name, drift in evaluation.drift.items() for line in drift_lines(name, drift))):
        print_line(out, line)


def mape_notes(evaluation: Evaluation) -> list[str]:
    """Return a line for each target with observations that MAPE leaves out, and the number of such observations."""
    lines = []
    first = next(iter(evaluation.distinct_models.values()))
    for target in first.targets:
        scores = first.overall(target)
        if left_out := scores.undivided:
            share = f"{left_out:,} of {scores.count:,} readings ({100 * left_out / scores.count:.2g} %)"
            lines.append(f"MAPE of {target} leaves out {share}, which are 0 or below {NEARLY_ZERO:g} of the mean")
    return lines


def verdicts(evaluation: Evaluation) -> list[str]:
    """Return a line per run and target: the overall MAE compared with the best baseline.

    A run with the lower overall MAE may be worse at 15, 30 or 60 minutes: the line says where.
    """
    protocol, lines = evaluation.protocol, []
    for target, unit in protocol.targets.items():
        scores = {name: model.by_minutes(target) for name, model in evaluation.distinct_models.items()}
        references = {name: rows for name, rows in scores.items() if name in REFERENCES}
        maes = {name: rows[None].mae for name, rows in references.items() if rows[None].mae > 0}
        if not maes:
            continue
        best = min(maes, key=lambda name: maes[name])
        suffix = "" if len(protocol.targets) == 1 else f" of {target}"
        for name in (run for run in scores if run not in REFERENCES and math.isfinite(scores[run][None].mae)):
            mae = scores[name][None].mae
            gain = 1 - mae / maes[best]
            than = f"{100 * abs(gain):.1f} % {'better' if gain > 0 else 'worse'} than the best baseline"
            line = f"{name}: MAE{suffix} {mae:.4g}{unit_suffix(unit)} over all steps, {than} ({best}, {maes[best]:.4g})"
            where = worse_steps(scores[name], references, protocol) if gain > 0 else ""
            lines.append(f"{line}; worse at {where}" if where else line)
    return lines


def silent_verdicts(evaluation: Evaluation) -> list[str]:
    """Return a line per run and share of silent sensors: the rise of the first target's MAE over all sensors."""
    pairs = ((run, name) for run in evaluation.models for name in evaluation.silent if name.startswith(f"{run}, "))
    rises = {
        name: evaluation.silent[name].overall().mae / evaluation.models[run].overall().mae - 1
        for run, name in pairs
        if name.endswith("silent")
    }
    return [f"{name}: MAE {100 * rise:+.1f} % over all sensors" for name, rise in rises.items()]


def fine_tuning_verdict(difference: Difference) -> str:
    """Return whether fine-tuning one run from the other is significantly better, over all steps."""
    whole, start = difference.rows[-1], difference.start
    run = difference.first if start == difference.second else difference.second
    if not whole.differs:
        return f"fine-tuning {run} from {start}: no significant difference (the 95 % interval holds 0)"
    smaller = ((whole.difference or 0.0) < 0) == (run == difference.second)
    return f"fine-tuning {run} from {start}: the MAE of all steps is significantly {'smaller' if smaller else 'larger'}"


def worse_steps(
    run: Mapping[int | None, Scores], references: Mapping[str, Mapping[int | None, Scores]], protocol: ScoringProtocol
) -> str:
    """Return the reported lead times at which a baseline beats a run, as a text with both MAEs; empty if none.

    run: lead time in minutes (None: over all steps) -> scores. references: baseline name -> the same for the baseline.
    """
    where = []
    for minutes in lead_times(protocol.horizon, protocol.step_minutes)[:-1]:
        name = min(references, key=lambda reference: references[reference][minutes].mae)
        mae, least = run[minutes].mae, references[name][minutes].mae
        if least < mae:
            where.append(f"{step_name(minutes)} ({mae:.4g}, {name} {least:.4g})")
    return ", ".join(where)


def print_scores(
    rows: Mapping[str, ModelScores], target: str, protocol: ScoringProtocol, title: str, out: Console
) -> None:
    """Print MAE, RMSE, MAPE and R2 per model at 15, 30 and 60 minutes, if within the horizon, and over all steps."""
    unit = unit_suffix(protocol.targets[target])
    table = Table(title=title, title_justify="left", show_edge=False)
    table.add_column("model", overflow="fold")
    for head in ("at", f"MAE{unit}", f"RMSE{unit}", "MAPE %", "R2"):
        table.add_column(head, no_wrap=True, justify="right")
    overall = [model.overall(target) for model in rows.values()]
    alike = len(rows) > 1 and len({scores.count for scores in overall}) == 1  # of the same readings
    least = min(scores.mae for scores in overall) if alike else math.nan
    for name, model in rows.items():
        scores = model.by_minutes(target)
        name += " (best)" if scores[None].mae == least else ""
        for minutes in lead_times(protocol.horizon, protocol.step_minutes):
            at = step_name(minutes, protocol.horizon)
            table.add_row(name, at, *_cells(scores[minutes]), end_section=minutes is None)
            name = ""
    out.print(table)


def print_coverage(
    rows: Mapping[str, Iterable[Coverage]], protocol: ScoringProtocol, unit: str, title: str, out: Console
) -> None:
    """Print the coverage and mean width of each model's intervals, at 15, 30 and 60 minutes and over all steps."""
    table = Table(show_edge=False)
    table.add_column("model", overflow="fold")
    for head in ("interval", "at", "covered", f"mean width{unit_suffix(unit)}"):
        table.add_column(head, no_wrap=True, justify="right")
    shown = lead_times(protocol.horizon, protocol.step_minutes)
    for name, coverage in rows.items():
        for row in (row for row in coverage if row.minutes in shown):
            share = "-" if row.share is None else f"{row.share:.1%}"
            level = f"{row.level:.0%}" if row.minutes == shown[0] else ""
            at = step_name(row.minutes, protocol.horizon)
            table.add_row(escape(name), level, at, share, number(row.width, 2), end_section=row.minutes is None)
            name = ""
    print_table(out, title, table)


def key_text(by: str, key: Any) -> str:
    """Return the printed key of an error row, such as ``15 min``; by: the grouping, one of ``BY``."""
    return {"horizon": f"{key} min", "hour": f"{key:02}:00" if by == "hour" else ""}.get(by, str(key))


def print_errors(rows: Mapping[str, Sequence[ErrorRow]], by: str, evaluation: Evaluation, out: Console) -> None:
    """Print the MAE per model and valid group of ``by``, such as hour; of sensors, the ten worst in the last model."""
    protocol, last = evaluation.protocol, list(rows.values())[-1]
    order = [index for index, row in enumerate(last) if row.count]
    unit = f" in{unit_suffix(protocol.unit)}" if unit_suffix(protocol.unit) else ""
    title = f"{evaluation.split} windows, {next(iter(protocol.targets))}, MAE{unit} by {by}"
    if by == "sensor":
        order = sorted(order, key=lambda index: -(last[index].mae or 0))[:WORST]
        title += f", the {len(order)} worst of {len(last)}" if len(order) < len(last) else ", the worst first"
    table = number_table(by)
    for name in rows:
        table.add_column(escape(name), justify="right")
    table.add_column("readings", justify="right", no_wrap=True)
    for index in order:
        maes = (number(errors[index].mae, 4) for errors in rows.values())
        table.add_row(escape(key_text(by, last[index].key)), *maes, f"{last[index].count:,}")
    print_table(out, title, table)


def print_rules(name: str, rules: RuleErrors, evaluation: Evaluation, out: Console) -> None:
    """Print the MAE of a forecast, named ``name``, under each averaging rule of publications, and the differences."""
    protocol = evaluation.protocol
    shown = lead_times(protocol.horizon, protocol.step_minutes)
    columns = [-1 if minutes is None else minutes // protocol.step_minutes - 1 for minutes in shown]
    heads = (step_name(minutes, protocol.horizon) for minutes in shown)
    table = number_table("rule", *heads, "difference")
    for rule, maes in rules.items():
        table.add_row(rule, *(f"{maes[column]:.3f}" for column in columns), f"{maes[-1] - rules[CANONICAL][-1]:+.3f}")
    windows = (protocol.period or protocol).windows
    number = windows if isinstance(windows, int) else windows.get(evaluation.split, sum(windows.values()))
    without = f"{evaluation.without_target:,} of {number:,} windows have no valid target"
    print_table(out, f"{name}: MAE{unit_suffix(protocol.unit)} under published rules; {without}", table)


def print_difference(difference: Difference, protocol: ScoringProtocol, out: Console) -> None:
    """Print the MAE difference between two runs with the interval, at 15, 30 and 60 minutes and over all steps."""
    shown = lead_times(protocol.horizon, protocol.step_minutes)
    table = number_table("at", f"difference{unit_suffix(protocol.unit)}", "95 % from", "to", "it differs")
    for row in (row for row in difference.rows if row.minutes in shown):
        signed = ("-" if value is None else f"{value:+.4f}" for value in (row.difference, row.low, row.high))
        differs = "-" if row.differs is None else ("yes" if row.differs else "no")
        table.add_row(step_name(row.minutes, protocol.horizon), *signed, differs)
    title = f"MAE of {difference.second} - MAE of {difference.first}, bootstrap over {difference.days} days"
    print_table(out, title, table)


def print_drift(name: str, drift: Drift, protocol: ScoringProtocol, out: Console) -> None:
    """Print the last 14 days of a run, named ``name``: MAE, coverage, and number of worse sensors."""
    inside = f"in the {LEVEL:.0%} interval"
    table = number_table("day", f"MAE{unit_suffix(protocol.unit)}", inside, "worse sensors", "readings")
    for day in drift.days[-DRIFT_DAYS:]:
        share = "-" if day.covered is None else f"{day.covered:.1%}"
        table.add_row(day.date, number(day.mae, 4), share, str(len(day.worse)), f"{day.count:,}")
    last = f", the last {DRIFT_DAYS} of {len(drift.days)} days" if len(drift.days) > DRIFT_DAYS else ""
    print_table(out, f"{name}: {LEVEL:.0%} of the readings are expected in their {LEVEL:.0%} intervals{last}", table)


def drift_lines(name: str, drift: Drift) -> list[str]:
    """Return lines on whether a run, named ``name``, keeps the promised coverage, and what helps otherwise."""
    lines = []
    if drift.stuck:
        samples = [f"{sensor} for {hours:.0f} h" for sensor, hours in drift.stuck.items()]
        many = counted(len(samples), "sensor repeats", "sensors repeat")
        lines.append(f"{many} one reading ({sample(samples)}): repair them")
    if drift.sensors:
        samples = [f"{sensor} since {date}" for sensor, date in drift.sensors.items()]
        share = f"less than {LEAST_OF_SENSOR:.0%} are in their intervals"
        many = f"{counted(len(samples), 'sensor')} ({sample(samples)})"
        lines.append(f"{name} is worse on {many}, where {share}: look at the detectors")
    week = f"of the last {min(WEEK, len(drift.days))} days"
    inside = "no reading" if drift.covered is None else f"{drift.covered:.1%} of the readings"
    if drift.low is not None:
        inside += f" ({drift.low:.1%} to {drift.high:.1%})"
    inside = f"{inside} {week} are in their {LEVEL:.0%} intervals"
    if drift.since is not None:
        lines.append(f"{name} is worse since {drift.since}: {inside}: a training that starts from its weights may help")
    elif drift.low is None:
        lines.append(f"{name}: {inside}; {LEAST_DAYS} days say whether the network is worse")
    else:
        lines.append(f"{name} is as expected{' elsewhere' if lines else ''}: {inside}")
    return lines


def print_ladder(rows: Sequence[tuple[str, list[str], str]], out: Console) -> None:
    """Print the rows from ``ladder_rows`` as a table among published results, the rows scored now in bold."""
    table = Table(title="among published results", title_justify="left", show_edge=False)
    table.add_column("model", overflow="fold")
    for minutes in SCORED_MINUTES:
        table.add_column(f"MAE {minutes} min", justify="right")
    table.add_column("from", justify="right")
    notes: dict[str, int] = {}  # many results are of one source: its name stands once, below the table
    for name, mae, source in rows:
        origin = source if source == OURS else f"[{notes.setdefault(source, len(notes) + 1)}]"
        table.add_row(escape(name), *mae, escape(origin), style="bold" if source == OURS else "")
    out.print(table)
    for source, note in notes.items():
        print_line(out, f"[{note}] {source}")


def ladder_rows(evaluation: Evaluation, short: Mapping[str, str] | None = None) -> list[tuple[str, list[str], str]]:
    """Return name, MAE at 15, 30 and 60 minutes, and source, of scored and published models, largest mean MAE first.

    Published models read only the lookback. So a run name says if the run reads past days, and a second row scores the
    run with training-day climatology. short: run name -> name to show.
    """
    ours: dict[str, ModelScores] = {}
    for name, model in evaluation.distinct_models.items():
        trained, shown = evaluation.protocol.trained.get(name), (short or {}).get(name, name)
        ours[f"{shown}, which reads past days" if trained and trained.past_days else shown] = model
        if frozen := evaluation.climatology_days.get(f"{name}, {FROZEN}"):
            ours[f"{shown}, with the {FROZEN}"] = frozen
    rows = [(other.model, list(other.mae), other.source) for other in evaluation.published]
    rows += [(name, [model.at(minutes).mae for minutes in SCORED_MINUTES], OURS) for name, model in ours.items()]
    rows.sort(key=lambda row: -sum(row[1]))
    digits = {OURS: 4}  # the others as published
    return [(name, [f"{value:.{digits.get(source, 2)}f}" for value in mae], source) for name, mae, source in rows]


def _cells(s: Scores) -> list[str]:
    digits = ((s.mae, 4), (s.rmse, 4), (s.mape, 3), (s.r2, 4))
    return ["-" if math.isnan(value) else f"{value:.{places}f}" for value, places in digits]


def print_protocol(protocol: ScoringProtocol, console: Console | None = None) -> None:
    """Print the protocol in a few lines: data, split, missing values, scaler and weights behind the scores."""
    out = console or Console()
    for line in protocol_lines(protocol):
        print_line(out, line)


def protocol_lines(protocol: ScoringProtocol) -> list[str]:
    """Return lines with the facts that comparable scores must share: data, split, missing values, scaler, weights."""
    w, left_out = protocol.windows, protocol.windows_left_out
    targets = ", ".join(f"{name} ({unit})" for name, unit in protocol.targets.items())
    inputs = "" if protocol.inputs == protocol.targets else f" from {', '.join(protocol.inputs)}"
    normalisers = "; ".join(
        f"{name if len(protocol.scaler) > 1 else 'scaler'} mean {fit.mean:.4f} std {fit.std:.4f}"
        for name, fit in protocol.scaler.items()
    )
    gapped = f" ({' / '.join(map(str, left_out.values()))} are left out)" if left_out else ""
    local = f", times of {protocol.local_zone}" if protocol.local_zone else ""
    shown = protocol.clock.stored
    lines = [
        f"{protocol.dataset} {targets}{inputs}, {counted(protocol.sensors, 'sensor')}, every "
        f"{protocol.step_minutes} min, checksum {protocol.checksum[:12]}{IMPUTED[protocol.imputed]}{local}",
        f"{protocol.split_method} split: {w['train']} / {w['validation']} / {w['test']} windows of {protocol.lookback} "
        f"+ {protocol.horizon} steps, {protocol.windows_across_gaps} across a time gap{gapped}",
        f"missing: {missing_rule(protocol.missing)}; averaged over {protocol.averaging}",
        f"{normalisers}; {protocol.precision}; socialx {protocol.socialx} {protocol.commit or ''}".rstrip(),
    ]
    if protocol.holidays:
        named = [f"{date} as {like}" for date, like in protocol.holidays.items()]
        lines.insert(3, f"holidays: {sample(named, 5)}")
    if (period := protocol.period) is not None:
        within = f"within {shown(period.first_time)} .. {shown(period.last_time)}"
        within += "".join(f" and is in {file}" for file in period.files)
        lines.insert(2, f"scored: the {period.windows:,} windows whose forecast lies {within}")
    for name, trained in protocol.trained.items():
        epoch = f"weights of epoch {trained.epoch}" if trained.epoch else "weights before the first epoch ended"
        reads = f", reads {protocol.lookback} steps and the days before the day of issue" if trained.past_days else ""
        lines.append(f"{name}: {epoch}, {trained.parameters:,} parameters, seed {trained.seed}{reads}")
        if trained.checksum != protocol.checksum:
            seen, between = "it may have seen some of these windows", ""
            span = protocol.period or protocol
            data_span, training_span = (span.first_time, span.last_time), (trained.first_time, trained.last_time)
            if None not in (*data_span, *training_span):
                (begin, end), (first, last) = map(str, data_span), map(str, training_span)
                between = f"its data is of {shown(first)[:16]} .. {shown(last)[:16]}, "
                between += f"this of {shown(begin)[:16]} .. {shown(end)[:16]}: "
                seen = "unseen" if last < begin or end < first else seen
            lines[-1] += f", trained on other data ({trained.checksum[:12]}): {between}{seen}"
        for rows in trained.seen:
            until = f"had seen these windows until {shown(rows.last_time)}" if rows.last_time else None
            lines[-1] += f"; {rows.source} {until or 'may have seen these windows'}"
        if other_missing(protocol.missing, trained.missing):
            lines[-1] += f"; in its training missing was {missing_rule(trained.missing)}"
    return lines
