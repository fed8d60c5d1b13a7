"""Scores as terminal tables: of runs and references, among published results, and the protocol below them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from socialx.files.published import SCORED_MINUTES, PublishedScore
from socialx.report.file_tables import IMPUTED
from socialx.report.terminal import number, numbers, print_line, print_table
from socialx.scoring.difference import Difference
from socialx.scoring.intervals import Coverage
from socialx.scoring.metrics import HorizonScores, Scores
from socialx.scoring.protocol import ScoringProtocol
from socialx.scoring.results import ErrorOf, Evaluation

WORST = 10  # sensors that are named

OURS = "scored now"  # the source of our rows among published ones


def print_evaluation(evaluation: Evaluation, console: Console | None = None) -> None:
    """A table per target, the published results where there are any, and the protocol."""
    out, step_minutes = console or Console(), evaluation.protocol.step_minutes
    for target, unit in evaluation.protocol.targets.items():
        title = (
            f"{evaluation.part} windows"
            if len(evaluation.protocol.targets) == 1
            else f"{target}, {evaluation.part} windows"
        )
        rows = {name: model.targets[target] for name, model in evaluation.models.items()}
        print_scores(rows, step_minutes, unit, title, out)
        if evaluation.online:
            rows = {f"{name}, online": model.targets[target] for name, model in evaluation.online.items()}
            print_scores(rows, step_minutes, unit, f"{title}, climatology up to the day before", out)
        if evaluation.coverage:
            covered = {name: targets[target] for name, targets in evaluation.coverage.items()}
            print_coverage(covered, step_minutes, unit, f"{title}, prediction intervals", out)
    for what in next(iter(evaluation.by.values()), {}):
        print_errors({name: tables[what] for name, tables in evaluation.by.items()}, what, evaluation, out)
    if evaluation.difference:
        print_difference(evaluation.difference, evaluation.protocol, out)
    if evaluation.published:
        first = {name: next(iter(model.targets.values())) for name, model in evaluation.models.items()}
        print_ladder(first, evaluation.published, step_minutes, out)
    print_protocol(evaluation.protocol, out)
    for line in verdicts(evaluation):
        print_line(out, line)


def verdicts(evaluation: Evaluation) -> list[str]:
    """How each run compares with the best reference by the MAE over all steps, a line each and target."""
    lines = []
    for target, unit in evaluation.protocol.targets.items():
        maes = {name: model.overall(target).mae for name, model in evaluation.models.items()}
        references = {name: mae for name, mae in maes.items() if name not in evaluation.protocol.trained and mae > 0}
        if not references:
            continue
        best = min(references, key=lambda name: references[name])
        for name in (name for name in maes if name in evaluation.protocol.trained and math.isfinite(maes[name])):
            gain = 1 - maes[name] / references[best]
            than = f"{100 * abs(gain):.1f} % {'better' if gain > 0 else 'worse'} than {best}, the best reference"
            of = "" if len(evaluation.protocol.targets) == 1 else f" of {target}"
            lines.append(
                f"{name} is {than}: MAE{of} {maes[name]:.4g}, not {references[best]:.4g} {unit} over all steps"
            )
    return lines


def print_scores(rows: Mapping[str, HorizonScores], step_minutes: int, unit: str, title: str, out: Console) -> None:
    """MAE, RMSE, MAPE and R2 of every model at 15, 30 and 60 minutes and over the whole horizon.

    Horizons beyond P are left out.
    """
    horizon = len(next(iter(rows.values())).by_step)
    table = Table(title=title, title_justify="left", show_edge=False)
    table.add_column("model", overflow="fold")
    for head in ("at", f"MAE {unit}", f"RMSE {unit}", "MAPE %", "R2"):
        table.add_column(head, no_wrap=True, justify="right")
    least = min((scores.overall.mae for scores in rows.values()), default=math.nan) if len(rows) > 1 else math.nan
    for name, scores in rows.items():
        name += " (best)" if scores.overall.mae == least else ""
        for step in reported_steps(horizon, step_minutes):
            table.add_row(name, f"{step * step_minutes} min", *_cells(scores.by_step[step - 1]))
            name = ""
        table.add_row("", f"all {horizon} steps", *_cells(scores.overall), end_section=True)
    out.print(table)


def print_coverage(
    rows: Mapping[str, Sequence[Coverage]], step_minutes: int, unit: str, title: str, out: Console
) -> None:
    """The share of readings inside the intervals and their mean width, at 15, 30 and 60 minutes and over all steps."""
    table = Table(show_edge=False)
    table.add_column("model", overflow="fold")
    for head in ("interval", "at", "covered", f"mean width {unit}"):
        table.add_column(head, no_wrap=True, justify="right")
    for name, coverage in rows.items():
        horizon = len({row.minutes for row in coverage} - {None})
        shown = [None, *(step * step_minutes for step in reported_steps(horizon, step_minutes))]
        for row in (row for row in coverage if row.minutes in shown):
            first = row.minutes == shown[1]
            at = f"all {horizon} steps" if row.minutes is None else f"{row.minutes} min"
            share = "-" if row.share is None else f"{row.share:.1%}"
            level = f"{row.level:.0%}" if first else ""
            table.add_row(escape(name), level, at, share, number(row.width, 2), end_section=row.minutes is None)
            name = ""
    print_table(out, title, table)


def print_errors(rows: Mapping[str, Sequence[ErrorOf[Any]]], what: str, evaluation: Evaluation, out: Console) -> None:
    """The MAE of each model by what its errors are divided by; of sensors the ten worst of the last model.

    What has no valid reading is left out.
    """
    protocol, last = evaluation.protocol, list(rows.values())[-1]
    order = [place for place, row in enumerate(last) if row.count]
    title = f"{evaluation.part} windows, {next(iter(protocol.targets))}, MAE in {protocol.unit} by {what}"
    if what == "sensor":
        order = sorted(order, key=lambda place: -(last[place].mae or 0))[:WORST]
        title += f", the {len(order)} worst of {len(last)}"
    table = numbers(what)
    for name in rows:
        table.add_column(escape(name), justify="right")
    table.add_column("readings", justify="right", no_wrap=True)
    for place in order:
        key = last[place].key
        text = {"horizon": f"{key} min", "hour": f"{key:02}:00" if what == "hour" else ""}.get(what, str(key))
        table.add_row(escape(text), *(number(each[place].mae, 4) for each in rows.values()), f"{last[place].count:,}")
    print_table(out, title, table)


def print_difference(difference: Difference, protocol: ScoringProtocol, out: Console) -> None:
    """By how much the MAE of the second run is larger, with the interval, at 15, 30 and 60 minutes and over all."""
    horizon = len(difference.rows) - 1
    shown = [None, *(step * protocol.step_minutes for step in reported_steps(horizon, protocol.step_minutes))]
    table = numbers("at", f"difference {protocol.unit}", "95 % from", "to", "it differs")
    for row in (row for row in difference.rows if row.minutes in shown):
        at = f"all {horizon} steps" if row.minutes is None else f"{row.minutes} min"
        signed = ("-" if value is None else f"{value:+.4f}" for value in (row.difference, row.low, row.high))
        table.add_row(at, *signed, "-" if row.differs is None else ("yes" if row.differs else "no"))
    title = f"MAE of {difference.second} - MAE of {difference.first}, bootstrap over {difference.days} days"
    print_table(out, title, table)


def print_ladder(
    rows: Mapping[str, HorizonScores],
    published: Sequence[PublishedScore],
    step_minutes: int,
    out: Console,
) -> None:
    """Our rows among the published ones, the worst first; ours in bold."""
    table = Table(title="among published results", title_justify="left", show_edge=False)
    table.add_column("model", overflow="fold")
    for minutes in SCORED_MINUTES:
        table.add_column(f"MAE {minutes} min", justify="right")
    table.add_column("from", justify="right")
    notes: dict[str, int] = {}  # many results are of one source: its name stands once, below the table
    for name, mae, source in ladder_rows(rows, published, step_minutes):
        origin = source if source == OURS else f"[{notes.setdefault(source, len(notes) + 1)}]"
        table.add_row(escape(name), *mae, escape(origin), style="bold" if source == OURS else "")
    out.print(table)
    for source, place in notes.items():
        print_line(out, f"[{place}] {source}")


def ladder_rows(
    rows: Mapping[str, HorizonScores], published: Sequence[PublishedScore], step_minutes: int
) -> list[tuple[str, list[str], str]]:
    """Name, MAE at 15, 30 and 60 minutes and source of our rows and of the published ones, the worst mean first."""
    steps = [minutes // step_minutes - 1 for minutes in SCORED_MINUTES]
    made = [(name, [scores.by_step[step].mae for step in steps], OURS) for name, scores in rows.items()]
    made = [(other.model, list(other.mae), other.source) for other in published] + made
    made.sort(key=lambda row: -sum(row[1]))
    digits = {OURS: 4}  # the others as published
    return [(name, [f"{value:.{digits.get(source, 2)}f}" for value in mae], source) for name, mae, source in made]


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


def print_protocol(protocol: ScoringProtocol, console: Console | None = None) -> None:
    """The protocol in a few lines."""
    out = console or Console()
    for line in protocol_lines(protocol):
        print_line(out, line)


def protocol_lines(protocol: ScoringProtocol) -> list[str]:
    """What a comparison with these scores must agree on."""
    w = protocol.windows
    targets = ", ".join(f"{name} ({unit})" for name, unit in protocol.targets.items())
    read = "" if protocol.inputs == protocol.targets else f" from {', '.join(protocol.inputs)}"
    normalisers = "; ".join(
        f"{name if len(protocol.normaliser) > 1 else 'normaliser'} mean {fit.mean:.4f} std {fit.std:.4f}"
        for name, fit in protocol.normaliser.items()
    )
    lines = [
        f"{protocol.dataset} {targets}{read}, {protocol.sensors} sensors, every "
        f"{protocol.step_minutes} min, checksum {protocol.checksum[:12]}{IMPUTED[protocol.imputed]}",
        f"{protocol.split} split: {w['train']} / {w['validation']} / {w['test']} windows of {protocol.history} + "
        f"{protocol.horizon} steps, {protocol.windows_across_gaps} across a time gap",
        f"missing: {_missing(protocol.missing)}; averaged over {protocol.averaging}",
        f"{normalisers}; {protocol.precision}; socialx {protocol.socialx} {protocol.commit or ''}".rstrip(),
    ]
    if (period := protocol.period) is not None:
        within = f"within {period.first_time} .. {period.last_time}"
        lines.insert(2, f"scored: the {period.windows:,} windows whose forecast lies {within}")
    for name, trained in protocol.trained.items():
        epoch = f"weights of epoch {trained.epoch}" if trained.epoch else "weights before the first epoch ended"
        lines.append(f"{name}: {epoch}, {trained.parameters:,} parameters, seed {trained.seed}")
        if trained.checksum != protocol.checksum:
            seen, between = "it may have seen some of these windows", ""
            here, then = (protocol.first_time, protocol.last_time), (trained.first_time, trained.last_time)
            if None not in (*here, *then):
                (begin, end), (first, last) = map(str, here), map(str, then)
                between = f"its data is of {first[:16]} .. {last[:16]}, this of {begin[:16]} .. {end[:16]}: "
                seen = "unseen" if last < begin or end < first else seen
            lines[-1] += f", trained on other data ({trained.checksum[:12]}): {between}{seen}"
    return lines
