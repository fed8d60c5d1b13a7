"""Scores as tables for a terminal or a page: runs, baselines and published results, with the protocol below."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from socialx.core.errors import counted, sample
from socialx.drawing.terminal import DASH, IMPUTED, TextTable, lead_times, number, percent, print_line, unit_suffix
from socialx.files.store.published import SCORED_MINUTES
from socialx.scoring.difference import LEAST_DAYS, Difference
from socialx.scoring.drift import LEAST_OF_SENSOR, LEVEL, WEEK, Drift
from socialx.scoring.intervals import BrierScore, Coverage
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
    out = console or Console()
    for table in tables(evaluation):
        table.print(out)
    lines = [*protocol_lines(evaluation.protocol), *mape_notes(evaluation), *verdicts(evaluation)]
    lines += silent_verdicts(evaluation)
    if evaluation.difference and evaluation.difference.start:
        lines.append(fine_tuning_verdict(evaluation.difference))
    for line in (*lines, *(line for name, drift in evaluation.drift.items() for line in drift_lines(name, drift))):
        print_line(out, line)


def tables(evaluation: Evaluation) -> Iterator[TextTable]:
    """Yield a table per target and kind of score, the errors in groups, and whatever else was scored."""
    protocol, shown = evaluation.protocol, evaluation.distinct_models
    for target in protocol.targets:
        title = f"{evaluation.split} windows"
        title = title if len(protocol.targets) == 1 else f"{target}, {title}"
        yield score_table(shown, target, protocol, title)
        if evaluation.mean:
            heading = f"{title}, scores of {len(protocol.trained)} runs"
            yield score_table(evaluation.over_runs, target, protocol, heading)
        if evaluation.climatology_days:
            heading = f"{title}, climatology of the days before each day"
            yield score_table(evaluation.climatology_days, target, protocol, heading)
        if evaluation.silent:
            yield score_table(evaluation.silent, target, protocol, f"{title}, some sensors without a reading")
        if evaluation.coverage:
            covered = {name: targets[target] for name, targets in evaluation.coverage.items()}
            yield coverage_table(covered, target, protocol, f"{title}, prediction intervals")
        if evaluation.brier:
            yield brier_table(evaluation.brier, protocol, title)
    yield from (error_table(evaluation, by) for by in next(iter(evaluation.by.values()), {}))
    yield from (rule_table(name, rules, evaluation) for name, rules in evaluation.protocols.items())
    if evaluation.difference:
        yield difference_table(evaluation.difference, protocol)
    yield from (drift_table(name, drift, protocol) for name, drift in evaluation.drift.items())
    if evaluation.published:
        yield ladder(ladder_rows(evaluation))


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
    shown = lead_times(protocol.horizon, protocol.step_minutes)
    for minutes, text in list(shown.items())[:-1]:
        name = min(references, key=lambda reference: references[reference][minutes].mae)
        mae, least = run[minutes].mae, references[name][minutes].mae
        if least < mae:
            where.append(f"{text} ({mae:.4g}, {name} {least:.4g})")
    return ", ".join(where)


def score_table(rows: Mapping[str, ModelScores], target: str, protocol: ScoringProtocol, title: str) -> TextTable:
    """Return MAE, RMSE, MAPE and R2 per model at the reported lead times, and over all steps."""
    unit, cells = unit_suffix(protocol.targets[target]), []
    overall = [model.overall(target) for model in rows.values()]
    alike = len(rows) > 1 and len({scores.count for scores in overall}) == 1  # of the same readings
    least = min(scores.mae for scores in overall) if alike else math.nan
    for name, model in rows.items():
        scores = model.by_minutes(target)
        name += " (best)" if scores[None].mae == least else ""
        for minutes, text in lead_times(protocol.horizon, protocol.step_minutes).items():
            s = scores[minutes]
            cells.append((name, text, number(s.mae, 4), number(s.rmse, 4), number(s.mape, 3), number(s.r2, 4)))
            name = ""
    return TextTable(title, ("model", "at", f"MAE{unit}", f"RMSE{unit}", "MAPE %", "R2"), cells)


def coverage_table(
    rows: Mapping[str, Sequence[Coverage]], target: str, protocol: ScoringProtocol, title: str
) -> TextTable:
    """Return the coverage and mean width of each model's intervals, at the reported lead times and over all steps."""
    cells, shown = [], lead_times(protocol.horizon, protocol.step_minutes)
    for name, coverage in rows.items():
        for row in (row for row in coverage if row.minutes in shown):
            level = f"{row.level:.0%}" if row.minutes == next(iter(shown)) else ""
            cells.append((name, level, shown[row.minutes], percent(row.share), number(row.width, 2)))
            name = ""
    width = f"mean width{unit_suffix(protocol.targets[target])}"
    return TextTable(title, ("model", "interval", "at", "covered", width), cells)


def brier_table(rows: Mapping[str, Sequence[BrierScore]], protocol: ScoringProtocol, title: str) -> TextTable:
    """Return the Brier scores for models and the past frequency, at the reported lead times and over all steps."""
    cells, shown = [], lead_times(protocol.horizon, protocol.step_minutes)
    for name, scores in rows.items():
        for row in (row for row in scores if row.minutes in shown):
            cells.append((name, shown[row.minutes], number(row.score, 4), number(row.past, 4)))
            name = ""
    title += f", probability below {next(iter(rows.values()))[0].below:g}{unit_suffix(protocol.unit)}"
    text = (
        "past frequency: share of earlier observations below it at the time of the week, of the days that a run knows"
    )
    return TextTable(title, ("model", "at", "Brier score", "past frequency"), cells, below=[text])


def key_text(by: str, key: Any) -> str:
    """Return the printed key of an error row, such as ``15 min``; by: the grouping, one of ``BY``."""
    return {"horizon": f"{key} min", "hour": f"{key:02}:00" if by == "hour" else ""}.get(by, str(key))


def error_table(evaluation: Evaluation, by: str) -> TextTable:
    """Return the MAE per model and valid group of ``by``, such as hour; of sensors, the ten worst in the last model."""
    protocol, shown = evaluation.protocol, evaluation.distinct_models
    rows: dict[str, Sequence[ErrorRow]] = {name: groups[by] for name, groups in evaluation.by.items() if name in shown}
    last = list(rows.values())[-1]
    order = [index for index, row in enumerate(last) if row.count]
    unit = f" in{unit_suffix(protocol.unit)}" if unit_suffix(protocol.unit) else ""
    word = "lead time" if by == "horizon" else by
    title = f"{evaluation.split} windows, {next(iter(protocol.targets))}, MAE{unit} by {word}"
    if by == "sensor":
        order = sorted(order, key=lambda index: -(last[index].mae or 0))[:WORST]
        title += f", the {len(order)} worst of {len(last)}" if len(order) < len(last) else ", the worst first"
    cells = [
        (key_text(by, last[i].key), *(number(errors[i].mae, 4) for errors in rows.values()), f"{last[i].count:,}")
        for i in order
    ]
    return TextTable(title, (word, *rows, "forecasts"), cells, long=1 + len(rows))


def rule_table(name: str, rules: RuleErrors, evaluation: Evaluation) -> TextTable:
    """Return the MAE of a forecast, named ``name``, under each averaging rule of publications, and the differences."""
    protocol = evaluation.protocol
    shown = lead_times(protocol.horizon, protocol.step_minutes)
    columns = [-1 if minutes is None else minutes // protocol.step_minutes - 1 for minutes in shown]
    cells = [
        (rule, *(f"{maes[column]:.3f}" for column in columns), f"{maes[-1] - rules[CANONICAL][-1]:+.3f}")
        for rule, maes in rules.items()
    ]
    windows = (protocol.period or protocol).windows
    number = windows if isinstance(windows, int) else windows.get(evaluation.split, sum(windows.values()))
    without = f"{evaluation.without_target:,} of {number:,} windows have no valid target"
    title = f"{name}: MAE{unit_suffix(protocol.unit)} under published rules; {without}"
    return TextTable(title, ("rule", *shown.values(), "difference"), cells)


def difference_table(difference: Difference, protocol: ScoringProtocol) -> TextTable:
    """Return the MAE difference between two runs with the interval, at the reported lead times and over all steps."""
    cells, shown = [], lead_times(protocol.horizon, protocol.step_minutes)
    for row in (row for row in difference.rows if row.minutes in shown):
        signed = (DASH if value is None else f"{value:+.4f}" for value in (row.difference, row.low, row.high))
        cells.append((shown[row.minutes], *signed, {None: DASH, True: "yes", False: "no"}[row.differs]))
    title = f"MAE of {difference.second} - MAE of {difference.first}, bootstrap over {difference.days} days"
    heads = ("at", f"difference{unit_suffix(protocol.unit)}", "95 % from", "to", "significant at 5 %")
    return TextTable(title, heads, cells)


def drift_table(name: str, drift: Drift, protocol: ScoringProtocol) -> TextTable:
    """Return the last 14 days of a run, named ``name``: MAE, coverage, and number of worse sensors."""
    cells = [
        (day.date, number(day.mae, 4), percent(day.covered), str(len(day.worse)), f"{day.count:,}")
        for day in drift.days[-DRIFT_DAYS:]
    ]
    last = f", the last {DRIFT_DAYS} of {len(drift.days)} days" if len(drift.days) > DRIFT_DAYS else ""
    title = f"{name}: {LEVEL:.0%} of the readings are expected in their {LEVEL:.0%} intervals{last}"
    mae, inside = f"MAE{unit_suffix(protocol.unit)}", f"in the {LEVEL:.0%} interval"
    return TextTable(title, ("day", mae, inside, "worse sensors", "forecasts"), cells)


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


def ladder(rows: Sequence[tuple[str, list[str], str]]) -> TextTable:
    """Return the rows from ``ladder_rows`` as a table among published results, the rows scored now in bold."""
    notes: dict[str, int] = {}  # many results are of one source: its name stands once, below the table
    cells = [
        (name, *mae, source if source == OURS else f"[{notes.setdefault(source, len(notes) + 1)}]")
        for name, mae, source in rows
    ]
    heads = ("model", *(f"MAE {minutes} min" for minutes in SCORED_MINUTES), "from")
    ours = [name for name, _, source in rows if source == OURS]
    below = [f"[{note}] {source}" for source, note in notes.items()]
    return TextTable("among published and re-run results", heads, cells, ours, below=below)


def ladder_rows(evaluation: Evaluation) -> list[tuple[str, list[str], str]]:
    """Return name, MAE at 15, 30 and 60 minutes, and source, of scored and published models, largest mean MAE first.

    Published models read only the lookback. So a run name says if the run reads past days, and a second row scores the
    run with training-day climatology.
    """
    ours: dict[str, ModelScores] = {}
    readers = {name for name, trained in evaluation.protocol.trained.items() if trained.past_days}
    readers |= {evaluation.mean} if readers else set()
    for name, model in evaluation.distinct_models.items():
        ours[f"{name}, which reads past days" if name in readers else name] = model
        if frozen := evaluation.climatology_days.get(f"{name}, {FROZEN}"):
            ours[f"{name}, with the {FROZEN}"] = frozen
    rows = [(other.model, list(other.mae), other.source) for other in evaluation.published]
    rows += [(name, [model.at(minutes).mae for minutes in SCORED_MINUTES], OURS) for name, model in ours.items()]
    rows.sort(key=lambda row: -sum(row[1]))
    digits = {OURS: 4}  # the others as published
    return [(name, [f"{value:.{digits.get(source, 2)}f}" for value in mae], source) for name, mae, source in rows]


def protocol_lines(protocol: ScoringProtocol) -> list[str]:
    """Return lines with the facts that comparable scores must share: data, split, missing values, scaler, weights."""
    w, left_out = protocol.windows, protocol.windows_left_out
    targets = ", ".join(f"{name} ({unit})" for name, unit in protocol.targets.items())
    inputs = "" if protocol.inputs == protocol.targets else f" from {', '.join(protocol.inputs)}"
    normalisers = "; ".join(
        f"{name if len(protocol.scaler) > 1 else 'scaler'} mean {fit.mean:.4f} std {fit.std:.4f}"
        for name, fit in protocol.scaler.items()
    )
    gapped = f"{protocol.windows_across_gaps} across a time gap"
    gapped += f" ({' / '.join(map(str, left_out.values()))} are left out)" if left_out else ""
    local = f", times of {protocol.local_zone}" if protocol.local_zone else ""
    shown, rule = protocol.clock.stored, protocol.split_method.replace("canonical", "DCRNN")
    lines = [
        f"{protocol.dataset} {targets}{inputs}, {counted(protocol.sensors, 'sensor')}, every "
        f"{protocol.step_minutes} min, checksum {protocol.checksum[:12]}{IMPUTED[protocol.imputed]}{local}",
        f"{rule} split 70/10/20: {w['train']} / {w['validation']} / {w['test']} windows of "
        f"{protocol.lookback} + {protocol.horizon} steps, {gapped}",
        f"missing: {missing_rule(protocol.missing)}; masked mean over the whole split, per lead time",
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
        reads = f", reads {protocol.lookback} steps and climatology up to the day before" if trained.past_days else ""
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
