"""Some runs as one HTML page that needs no network and no other file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from socialx.files.published import SCORED_MINUTES
from socialx.report.canvas import DAY, DAYS, HOUR, day
from socialx.report.page import (
    DASH,
    NBSP,
    Axis,
    Html,
    between,
    curve,
    details,
    document,
    from_zero,
    joined,
    known,
    number,
    percent,
    plot,
    section,
    setting,
    style,
    table,
    tag,
)
from socialx.report.run_map import map_data, map_section
from socialx.report.run_report import RunRecord, RunReport
from socialx.report.scores import OURS, ladder_rows, protocol_lines, reported_steps, verdicts
from socialx.report.tables import duration
from socialx.scoring.days import Day
from socialx.scoring.results import ErrorOf, ModelScores, SensorErrors

CSS, SCRIPT = style("page.css", "run_page.css"), style("run_page.js")
DRAWN = 6  # lines of runs in one plot; there are as many looks
REFERENCES = 2  # of which lines are drawn
LISTED = 10  # sensors in a table
USUAL_STEPS = (15, 30, 45, 60)  # minutes with a label
Points = Sequence[tuple[float, float | None]]


def page(report: RunReport) -> str:
    """Return the whole document."""
    title, data = f"socialx report {_short(report)[report.explanation.run]}", map_data(report)
    before = [part(report) for part in (_header, _scores, _settings, _learning, _errors, _days)]
    return document(title, CSS, [*before, map_section(report, data), _layers(report)], SCRIPT, data)


def _short(report: RunReport) -> dict[str, str]:
    """Of each run and reference a name to print: the last part of the path where no other has the same."""
    last = {name: Path(name).name for name in report.evaluation}
    counts = list(last.values())
    runs = {run.name for run in report.runs}
    return {name: short if name in runs and counts.count(short) == 1 else name for name, short in last.items()}


def _looks(report: RunReport) -> dict[str, str]:
    """The look of the line of each run and reference that is drawn: the best run first, then the others as named."""
    best = report.explanation.run
    runs = [best, *(run.name for run in report.runs if run.name != best)][:DRAWN]
    own = {name: f"run{place}" for place, name in enumerate(runs)}
    return own | {name: f"reference{place}" for place, name in enumerate(report.references[:REFERENCES])}


def _legend(names: Mapping[str, str]) -> Html:
    """What the lines are: their look and their name."""
    box = {"class_": "sample", "viewBox": "0 0 32 8", "aria_hidden": "true"}
    return tag(
        "ul",
        *(tag("li", tag("svg", tag("path", d="M0 4H32", class_=look), **box), said) for look, said in names.items()),
        class_="legend",
    )


def _header(report: RunReport) -> Html:
    """The verdict, and the MAE of the best run and the references at the reported steps."""
    best, scores, protocol = report.explanation.run, report.evaluation, report.evaluation.protocol
    short, unit, step_minutes = _short(report), protocol.unit, protocol.step_minutes
    said = next((line for line in verdicts(scores) if line.startswith(f"{best} is ")), None)
    lead = said and said.replace(best, short[best], 1) + "."
    several = f"The best of {len(report.runs)} runs. " if len(report.runs) > 1 else ""
    tiles = []
    for step in reported_steps(protocol.horizon, step_minutes):
        rows = [(name, _at(scores[name], step)) for name in (best, *report.references)]
        others = [
            part for name, mae in rows[1:] for part in (tag("dt", name), tag("dd", number(mae, digits=2) or DASH))
        ]
        value = tag("p", tag("b", number(rows[0][1], digits=2) or DASH), f"{NBSP}{unit}")
        tiles.append(tag("article", tag("h2", f"{step * step_minutes} minutes ahead"), value, tag("dl", *others)))
    where = f"{protocol.dataset}, {protocol.sensors:,} sensors, {scores.part} part"
    heading = f"{short[best]}: MAE {number(report.explanation.mae, digits=2) or DASH}{NBSP}{unit}"
    parts = (tag("p", f"socialx report: {where}", class_="note"), tag("h1", heading))
    return tag("header", *parts, tag("p", several, lead, class_="lead"), tag("div", *tiles, class_="tiles"))


def _at(model: ModelScores, step: int) -> float:
    """The MAE of the first target at a step of the horizon."""
    return next(iter(model.targets.values())).by_step[step - 1].mae


def _scores(report: RunReport) -> Html | None:
    """MAE of all runs and references, the best first, the other measures, published results, and the protocol."""
    found, short = report.evaluation, _short(report)
    protocol = found.protocol
    steps = reported_steps(protocol.horizon, protocol.step_minutes)
    heads = [*(f"{step * protocol.step_minutes}{NBSP}min" for step in steps), "all steps"]
    parts: list[Html | None] = []
    for target, unit in protocol.targets.items():
        models = {name: model.targets[target] for name, model in found.items()}
        order = sorted(models, key=lambda name: _last(models[name].overall.mae))
        rows, others = [], []
        for name in order:
            all_scores = [*(models[name].by_step[step - 1] for step in steps), models[name].overall]
            best = name == order[0] and len(order) > 1
            rows.append(
                (
                    joined(tag("b", short[name]), " (best)") if best else short[name],
                    *(number(s.mae, digits=4) for s in all_scores),
                )
            )
            for at, s in zip(heads, all_scores, strict=True):
                values = (number(s.rmse, digits=4), number(s.mape, digits=3), number(s.r2, digits=4), f"{s.count:,}")
                others.append((f"{short[name]}, {at}", *values))
        of = "" if len(protocol.targets) == 1 else f" of {target}"
        parts.append(_wide(f"MAE{of}, {unit}", table([f"MAE{of}, {unit}", *heads], rows)))
        measures = _wide(f"Other measures{of}", table(["model", f"RMSE {unit}", "MAPE %", "R2", "forecasts"], others))
        parts.append(details(f"RMSE, MAPE and R2{of}", measures))
    parts.append(_ladder(report))
    lines = tag("ul", *(tag("li", line) for line in protocol_lines(protocol)), class_="note")
    return section("Scores", *parts, tag("h3", "Protocol"), lines)


def _ladder(report: RunReport) -> Html | None:
    """All runs and references among published results."""
    found, short = report.evaluation, _short(report)
    if not found.published:
        return None
    ours = {short[name]: next(iter(model.targets.values())) for name, model in found.items()}
    rows = []
    for name, mae, source in ladder_rows(ours, found.published, found.protocol.step_minutes):
        rows.append((tag("b", name) if source == OURS else name, *mae, source))
    listed = table(["MAE", *(f"{minutes}{NBSP}min" for minutes in SCORED_MINUTES), "from"], rows, 1)
    return details("Among published results under the same protocol", _wide("Published results, MAE", listed))


def _last(mae: float) -> float:
    return mae if math.isfinite(mae) else math.inf


def _wide(title: str, content: Html | None) -> Html | None:
    """A table that is moved sideways where it is wider than the page."""
    return tag("div", content, class_="wide", tabindex=0, role="region", aria_label=title) if content else None


def _settings(report: RunReport) -> Html | None:
    """The settings that are not the default, or not the same in all runs, and all others behind a line."""
    runs, defaults = report.runs, report.defaults
    own = [key for key in defaults if any(run.settings.get(key) != defaults[key] for run in runs)]
    differ = {key for key in own if any(run.settings.get(key) != runs[0].settings.get(key) for run in runs)}
    own.sort(key=lambda key: key not in differ)
    short = _short(report)
    heads = ["setting", "default", *(short[run.name] for run in runs)]
    rows = [(_key(key, key in differ), setting(defaults[key]), *(_valued(run, key) for run in runs)) for key in own]
    note = "The word under a value says where it came from."
    note += f" Settings in which the runs differ come first: {len(differ)}." if len(runs) > 1 else ""
    rest = [(tag("code", key), setting(value)) for key, value in defaults.items() if key not in own]
    others = details(f"Settings left at their default: {len(rest)}", table(["setting", "value"], rest, 1))
    changed = _wide("Settings that are not the default", table(heads, rows, len(heads) - 1, "settings"))
    shown = details(f"Settings that are not the default: {len(own)}", tag("p", note, class_="note"), changed)
    return section("Settings", shown, others)


def _key(key: str, differs: bool) -> Html:
    return joined(tag("code", key), tag("b", " differs") if differs else None)


def _valued(run: RunRecord, key: str) -> Html:
    origin = run.origins.get(key)
    return joined(setting(run.settings.get(key)), tag("small", origin) if origin else None)


def _learning(report: RunReport) -> Html | None:
    """Training and validation MAE of each epoch, a plot for each run, all on one scale."""
    runs, unit, short = [run for run in report.runs if run.epochs], report.evaluation.protocol.unit, _short(report)
    values = [mae for run in runs for row in run.epochs for mae in (row.train_mae, row.validation_mae) if known(mae)]
    if not values:
        return None
    y = between(4, min(values), max(values), unit)
    drawn = []
    for run in runs:
        last = run.epochs[-1].epoch
        x = Axis(0 if last < 2 else 1, max(last, 1), {n: str(n) for n in _epochs_named(last)}, "epoch")
        train = [(row.epoch, row.train_mae) for row in run.epochs]
        validation = [(row.epoch, row.validation_mae) for row in run.epochs]
        best = next((row for row in run.epochs if row.epoch == run.best_epoch), None)
        mark = f"M{1000 * x.share(best.epoch):.0f} 0V100" if best else ""
        paths = {"mark": mark, "train": _line(x, y, train), "validation": _line(x, y, validation)}
        seconds = sum(row.seconds for row in run.epochs)
        said = f"{len(run.epochs)} epochs in {duration(seconds)}"
        if best:
            said += f"; best epoch {best.epoch}, validation MAE {number(best.validation_mae, digits=4) or DASH} {unit}"
        drawn.append(
            tag(
                "div",
                tag("h3", short[run.name]),
                tag("p", said, class_="note"),
                plot(f"Learning curves of {short[run.name]}", said, paths, x, y),
            )
        )
    names = {"train": "training MAE", "validation": "validation MAE", "mark": "best epoch, whose weights are used"}
    return section("Learning curves", _legend(names), tag("div", *drawn, class_="pair"))


def _epochs_named(last: int) -> list[int]:
    """Some epochs with a label, the last one among them."""
    step = max(1, math.ceil(last / 8))
    return sorted({last, *(n for n in range(step, last + 1, step) if last - n >= step)} | ({1} if step <= 2 else set()))


def _line(x: Axis, y: Axis, points: Points) -> str:
    """A line with a dot at each point."""
    dots = (f"M{1000 * x.share(at):.0f} {100 - 100 * y.share(value):.1f}h0" for at, value in points if known(value))
    return curve(x, y, points) + "".join(dots)


def _errors(report: RunReport) -> Html | None:
    """MAE by horizon, by hour of the day and by weekday, of the runs and the best references."""
    looks, short, protocol = _looks(report), _short(report), report.evaluation.protocol
    minutes = [protocol.step_minutes * (k + 1) for k in range(protocol.horizon)]
    by_step = {name: [(at, _at(report.evaluation[name], k + 1)) for k, at in enumerate(minutes)] for name in looks}
    by_hour = {name: [(row.key + 0.5, row.mae) for row in report.by_hour[name]] for name in looks}
    by_weekday = {name: [(row.key + 0.5, row.mae) for row in report.by_weekday[name]] for name in looks}
    every = [mae for table in (by_step, by_hour, by_weekday) for points in table.values() for _, mae in points]
    y = from_zero(4, max(filter(known, every), default=1.0), protocol.unit)
    named = [at for at in USUAL_STEPS if at in minutes] if minutes[-1] == USUAL_STEPS[-1] else []
    ahead = (
        Axis(0, minutes[-1], {at: str(at) for at in named}, "minutes ahead")
        if named
        else from_zero(4, minutes[-1], "minutes ahead", minutes[-1])
    )
    charts: tuple[tuple[str, Mapping[str, Points], Axis], ...] = (
        ("By horizon", by_step, ahead),
        ("By hour of the day", by_hour, Axis(0, 24, {at: f"{at}" for at in range(0, 25, 6)}, "hour that is forecast")),
        ("By weekday", by_weekday, Axis(0, 7, {at + 0.5: name for at, name in enumerate(DAYS)}, "")),
    )
    drawn = []
    for title, lines, x in charts:
        said = "; ".join(f"{short[name]}: {_range(points, protocol.unit)}" for name, points in lines.items())
        paths = {looks[name]: _line(x, y, points) for name, points in list(lines.items())[::-1]}
        drawn.append(tag("div", tag("h3", title), plot(f"MAE {title.lower()}", said, paths, x, y)))
    left = len(report.runs) - min(len(report.runs), DRAWN)
    more = f"{left} runs are not drawn." if left else None
    legend = _legend({look: short[name] for name, look in looks.items()})
    return section(
        "Where the errors are",
        legend,
        tag("p", more, class_="note"),
        tag("div", *drawn, class_="three"),
        _error_tables(report, minutes),
    )


def _range(points: Points, unit: str) -> str:
    values = [mae for _, mae in points if known(mae)]
    return f"{min(values):.2f} to {max(values):.2f} {unit}" if values else "no valid target"


def _error_tables(report: RunReport, minutes: Sequence[int]) -> Html | None:
    """The numbers of the plots."""
    short = _short(report)
    names = [*(run.name for run in report.runs), *report.references]
    heads = [short[name] for name in names]

    def rows(first: Sequence[str], columns: Sequence[Sequence[float | None]]) -> list[tuple[object, ...]]:
        return [(said, *(number(column[k], digits=3) for column in columns)) for k, said in enumerate(first)]

    def maes(by: Mapping[str, Sequence[ErrorOf]]) -> list[list[float | None]]:
        return [[row.mae for row in by[name]] for name in names]

    steps = [[_at(report.evaluation[name], k + 1) for k in range(len(minutes))] for name in names]
    tables = (
        ("MAE by horizon", "horizon", rows([f"{at} min" for at in minutes], steps)),
        ("MAE by hour", "hour", rows([f"{hour:02}:00" for hour in range(24)], maes(report.by_hour))),
        ("MAE by weekday", "weekday", rows(DAYS, maes(report.by_weekday))),
    )
    return details(
        "The same in numbers", *(_wide(title, table([first, *heads], lines)) for title, first, lines in tables)
    )


def _days(report: RunReport) -> Html | None:
    """Forecast and truth of the worst, the median and the best sensor on the chosen days; more sensors as tables."""
    found, place = report.explanation, {name: column for column, name in enumerate(report.sensors)}
    scored = [sensor for sensor in found.sensors if sensor.mae is not None]
    if not scored:
        return None
    chosen = {"the worst": scored[0], "the median": scored[len(scored) // 2], "the best": scored[-1]}
    drawn = []
    for word, sensor in chosen.items() if len(scored) > 2 else [("the worst", scored[0])]:
        plots = [_day_plot(each, place[sensor.id], sensor.id, found.unit) for each in report.days]
        title = tag("h3", f"{sensor.id}, {word}: MAE {number(sensor.mae, digits=2)} {found.unit}")
        drawn.append(tag("div", title, tag("div", *plots, class_="pair"), class_="days"))
    first = report.days[0]
    note = (
        f"Forecasts of {_short(report)[found.run]} that were made {first.minutes_ahead} minutes before. "
        f"{_date(first)} is the day of the {found.part} part on which readings vary most."
    )
    names = {"truth": "reading", "forecast": "forecast"} | ({"band": "interval"} if first.band else {})
    worst = _wide("Sensors with the largest MAE", _sensor_table("worst", scored[:LISTED], found.unit))
    best = _wide("Sensors with the smallest MAE", _sensor_table("best", scored[::-1][:LISTED], found.unit))
    lists = details("The worst and the best sensors", tag("div", worst, best, class_="pair"))
    return section("Forecast and truth", tag("p", note, class_="note"), _legend(names), *drawn, lists)


def _date(shown: Day) -> str:
    return day(int(shown.seconds[0]))


def _day_plot(shown: Day, column: int, sensor: str, unit: str) -> Html:
    """One sensor on one day."""
    hours = ((shown.seconds % DAY) / HOUR).tolist()
    ticks = {float(at): f"{at:02}:00" for at in range(2, 24, 4) if hours[0] <= at <= hours[-1]}
    x = Axis(hours[0], max(hours[-1], hours[0] + 1), ticks, "")
    truth, forecast, *band = (part[:, column] for part in (shown.truth, shown.forecast, *(shown.band or ())))
    values = np.concatenate([truth, forecast, *band])
    known_values = values[np.isfinite(values)]
    y = between(4, min(0.0, float(known_values.min())), float(known_values.max()), unit)
    paths = {"band": _band(x, y, hours, band)} if band else {}
    for look, line in (("truth", truth), ("forecast", forecast)):
        paths[look] = curve(x, y, list(zip(hours, line.tolist(), strict=True)))
    errors = np.abs(truth - forecast)[np.isfinite(truth)]
    said = f"MAE on this day {errors.mean():.2f} {unit}" if len(errors) else "no reading on this day"
    drawn = plot(f"{sensor} on {_date(shown)}", said, paths, x, y)
    return tag("div", tag("p", f"{_date(shown)}: {said}", class_="note"), drawn)


def _band(x: Axis, y: Axis, hours: Sequence[float], ends: Sequence[np.ndarray]) -> str:
    """The area between two lines."""
    lower, upper = (list(zip(hours, end.tolist(), strict=True)) for end in ends)
    return f"{curve(x, y, lower)}L{curve(x, y, upper[::-1])[1:]}Z"


def _sensor_table(word: str, sensors: Sequence[SensorErrors], unit: str) -> Html | None:
    rows = [(sensor.id, number(sensor.mae, digits=2), f"{sensor.count:,}") for sensor in sensors]
    return table([f"{word} sensors", f"MAE {unit}", "forecasts"], rows)


def _layers(report: RunReport) -> Html | None:
    """How far each head of each social layer reaches."""
    found = report.explanation
    if not found.layers:
        return section("Social pooling", tag("p", f"No pooling: {found.no_pooling}."))
    rows = []
    for layer in found.layers:
        for place, head in enumerate(layer.heads, start=1):
            numbers = (
                number(head.radius_km, digits=2),
                number(head.softness_km, digits=2),
                percent(head.null_key),
                number(head.distance_km, digits=2),
            )
            rows.append((f"{layer.name}, head {place}", *numbers))
    kind = "trained" if any(layer.trained for layer in found.layers) else "fixed"
    note = (
        f"The radii are {kind}. The gate of a head is one half at its radius. Within the softness around it, the gate "
        "falls from 0.73 to 0.27. The null key takes the weight that goes to no neighbour. The mean distance is that "
        f"of all weight given to up to {found.layers[0].neighbours} neighbours."
    )
    heads = ("layer and head", "radius km", "softness km", "null key", "mean distance km")
    return section("Social pooling", tag("p", note, class_="note"), _wide("Radii of the heads", table(heads, rows)))
