"""Runs as an HTML page in a single file that works offline, and a run as a model card.

A card is the README.md that a model hub shows with a run folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from socialx.core.errors import counted
from socialx.drawing.canvas import DAY, HOUR, day, value_limits
from socialx.drawing.map import round_length
from socialx.drawing.page import NBSP, Line, chart, environment, files, render, setting
from socialx.drawing.terminal import DASH, duration, is_known, lead_times, number, unit_suffix
from socialx.scoring.explanation import division, error_map
from socialx.scoring.metrics import Scores, mae_values
from socialx.scoring.references import MEANINGS
from socialx.scoring.results import Explanation
from socialx.scoring.tables import error_table, ladder, ladder_rows, mape_notes, protocol_lines, verdicts, worse_steps
from socialx.tasks.report.contents import LEVEL, RunReport

FOLDER = Path(__file__).parent
STYLES = files("page.css", "run_page.css", folder=FOLDER)
RUNS: tuple[Line, ...] = (Line("C1", 3), Line("C3", dashes=(8, 4)), Line("C4", dashes=(2, 5)))
RUNS += (Line("C5", dashes=(12, 4, 2, 4)), Line("C3", dashes=(4, 4)), Line("C4", dashes=(16, 4)))  # more have no line
REFERENCES = (Line("C2", dashes=(6, 4)), Line("C2", dashes=(1, 5)), Line("C2", dashes=(10, 3, 1, 3)))
TRAINING, VALIDATION, BEST = Line("C2", dashes=(6, 4)), Line("C1", 3), Line("C3", 1.5)
OBSERVED, FORECAST, INTERVAL = Line("Ink", 1.25), Line("C1", 2.25), Line("Area", 8)
INTERVALS = f"{100 * LEVEL:g} % prediction interval"
LEARNING = {"training MAE": TRAINING, "validation MAE": VALIDATION, "best epoch, whose weights are used": BEST}
WIDE, HIGHEST, MARGIN = 640, 420, 14  # of the map, in its own units
LEVELS = 9  # of the colours of the map
MOST_TICKS = 8  # epochs with a label
LEAST_POINTS = 3  # of a chart: what has fewer is told in numbers alone
FULL_SIZE = 250  # sensors on the map: the dots of more are smaller
NAMED, LETTERS, PHONE = 40, 12, 300  # sensors with their id, pixels of its letters, and of the map on a telephone
SECTIONS = ("data", "model", "pooling")  # whose settings tell what the model of a card is
PATHS = ("data.path", "data.extra_data", "pooling.distances")  # of the machine that trained
Curves = tuple[str, str, Markup | None]  # a heading, a remark and a picture


def page(report: RunReport) -> str:
    """Return the whole document."""
    last = {name: Path(name).name for name in report.evaluation}  # the last part of a path, where no other has the same
    report = report.with_names(
        {run.name: last[run.name] for run in report.runs if list(last.values()).count(last[run.name]) == 1}
    )
    evaluation, best, runs = report.evaluation, report.explanation.run, [run.name for run in report.runs]
    band = report.days[0].band
    drawn = [best, *(name for name in runs if name != best)]
    lines = dict([*zip(drawn, RUNS, strict=False), *zip(report.references, REFERENCES, strict=False)])
    first, *others = (run.settings for run in report.runs)
    differing = {key for key in report.defaults if any(run.get(key) != first.get(key) for run in others)}
    defaults = report.defaults.items()
    changed = [key for key, value in defaults if any(run.settings.get(key) != value for run in report.runs)]
    protocol, baselines = evaluation.protocol, {name: evaluation[name].by_minutes() for name in report.references}
    parts = {
        "title": f"socialx report {best}",
        "report": report,
        "runs": runs,
        "worse": worse_steps(evaluation[best].by_minutes(), baselines, protocol),
        "reported": lead_times(protocol.horizon, protocol.step_minutes),
        "scores": {target: _scores(report, target) for target in protocol.targets},
        "ladder": [ladder(ladder_rows(evaluation))] if evaluation.published else [],
        "protocol_lines": [*protocol_lines(protocol), *mape_notes(evaluation)],
        "differing": differing,
        "changed": sorted(changed, key=lambda key: key not in differing),
        "unchanged": [(key, setting(value)) for key, value in defaults if key not in changed],
        "learning": _learning(report),
        "learning_legend": LEARNING,
        "meanings": {name: text for name, text in MEANINGS.items() if name in report.references},
        "lines": lines,
        "errors": _errors(report, lines),
        "error_tables": [error_table(evaluation, by) for by in next(iter(evaluation.by.values()), {})],
        "days": _days(report),
        "telling_day": day(int(report.days[0].seconds[0])),
        "day_legend": {"observed": OBSERVED, "forecast": FORECAST, **({INTERVALS: INTERVAL} if band else {})},
        "map": _map(report.explanation),
    }
    return render("run_page.html.j2", parts, STYLES, folder=FOLDER)


def _scores(report: RunReport, target: str) -> dict[str, dict[str, Scores]]:
    """Return scores for a target by model, the best first, then by lead time."""
    protocol, models = report.evaluation.protocol, report.evaluation.distinct_models
    maes = {name: model.overall(target).mae for name, model in models.items()}
    order = sorted(models, key=lambda name: maes[name] if math.isfinite(maes[name]) else math.inf)
    lead = lead_times(protocol.horizon, protocol.step_minutes)
    scores = {name: models[name].by_minutes(target) for name in order}
    return {name: {text.replace(" ", NBSP, 1): rows[at] for at, text in lead.items()} for name, rows in scores.items()}


def _learning(report: RunReport) -> list[Curves]:
    """Return pictures with training and validation MAE by epoch, a picture per run, all on the same scale."""
    runs, unit = [run for run in report.runs if run.epochs], report.evaluation.protocol.unit
    maes = [mae for run in runs for row in run.epochs for mae in (row.train_mae, row.validation_mae) if is_known(mae)]
    if not maes:
        return []
    limits, drawn = value_limits(np.array(maes)), []
    for run in runs:
        epochs, best = run.epochs, next((row for row in run.epochs if row.epoch == run.best_epoch), None)
        remark = f"{counted(len(epochs), 'epoch')} in {duration(sum(row.seconds for row in epochs))}"
        places = [row.epoch for row in epochs]
        lines = [
            (places, np.array([row.validation_mae for row in epochs], float), VALIDATION),
            (places, [row.train_mae for row in epochs], TRAINING),
        ]
        if best:
            remark += f"; best epoch {best.epoch}, validation MAE {number(best.validation_mae, digits=4)} {unit}"
            lines.append(([best.epoch] * 2, limits, BEST))
        name, ticks = run.name, places[:: -(-len(places) // MOST_TICKS)]
        axes: dict[str, Any] = {"title": f"MAE, {unit}", "xlabel": "epoch", "ylim": limits, "xticks": ticks}
        several = len(epochs) >= LEAST_POINTS
        heading = name if len(report.runs) > 1 else ""
        drawn.append((heading, remark, chart(f"Learning curves of {name}", remark, lines, **axes) if several else None))
    return drawn


def _errors(report: RunReport, lines: Mapping[str, Line]) -> list[Curves]:
    """Return charts with MAE by horizon, hour and weekday for runs and the best baselines, sparse charts left out."""
    protocol, by = report.evaluation.protocol, report.evaluation.by
    drawn: list[Curves] = []
    maes = {group: {name: mae_values(by[name][group]) for name in lines} for group in next(iter(by.values()), {})}
    most = max(
        (value for group in maes.values() for values in group.values() for value in values if value > 0), default=1
    )
    for group, values in maes.items():
        finite = {name: line[np.isfinite(line)] for name, line in values.items()}
        if not any(len(line) >= LEAST_POINTS and 2 * len(line) >= len(values[name]) for name, line in finite.items()):
            continue
        spans = {
            name: f"{min(line):.2f} to {max(line):.2f} {protocol.unit}" if len(line) else "no valid target"
            for name, line in finite.items()
        }
        ranges = [f"{name}: {span}" for name, span in spans.items()]
        heading, places, below = division(group, by[next(iter(lines))][group], protocol)
        curves = [(places, line, lines[name]) for name, line in values.items()]
        axes = {"title": f"MAE, {protocol.unit}", "ylim": (0, 1.05 * most), **below}
        drawn.append((heading, "", chart(f"MAE by {group}", "; ".join(ranges), curves, **axes)))
    return drawn


def _days(report: RunReport) -> list[tuple[str, list[Curves]]]:
    """Return pictures of forecast and truth on the chosen days for the worst, the median and the best sensor."""
    unit, zone = report.explanation.unit, report.evaluation.protocol.clock.name
    scored = [sensor for sensor in report.explanation.sensors if sensor.mae is not None]
    words, drawn = ("the worst", "the median", "the best")[: 3 if len(scored) > 2 else 1], []
    for word, sensor in zip(words, [*scored[:1], *scored[len(scored) // 2 :][:1], *scored[-1:]], strict=False):
        column, pictures = report.sensors.index(sensor.id), []
        all_lines = [[part[:, column] for part in (day.truth, day.forecast, *(day.band or ()))] for day in report.days]
        limits = value_limits(np.concatenate([line for lines in all_lines for line in lines]))
        for shown, (truth, forecast, *band) in zip(report.days, all_lines, strict=True):
            errors, date = np.abs(truth - forecast)[np.isfinite(truth)], day(int(shown.seconds[0]))
            remark = f"MAE on this day {errors.mean():.2f} {unit}" if len(errors) else "no observation on this day"
            hours = (shown.seconds[0] % DAY + shown.seconds - shown.seconds[0]) / HOUR
            left, right = hours[0], max(hours[-1], hours[0] + 0.1)
            ticks = [hour for hour in range(2, 24, 4) if left <= hour <= right]
            axes = {"title": unit, "xlim": (left, right), "ylim": limits, "xticks": ticks}
            axes |= {"xticklabels": [f"{hour:02}:00" for hour in ticks]}
            axes["xlabel"] = f"local time, {zone}" if zone else "time as in the file"
            lines, area = [(hours, forecast, FORECAST), (hours, truth, OBSERVED)], (hours, *band) if band else None
            picture = chart(f"{sensor.id} on {date}", remark, lines, area, (300, 150), **axes) if len(errors) else None
            pictures.append(("", f"{date}: {remark}", picture))
        drawn.append((f"{sensor.id}, {word}: MAE {number(sensor.mae, digits=2)} {unit}", pictures))
    return drawn


def _map(explanation: Explanation) -> dict[str, Any]:
    """Return what the template needs to draw a map with the errors of a run's sensors.

    dots: location, colour level and text, the worst last, so that they are drawn on top; empty without locations. ids:
    height of the letters, and where the ids of the worst sensors stand, for a wide and a narrow screen. bar: length in
    km and in percent of the width. ends: texts at the ends of the colour scale.
    """
    shown, unit = error_map(explanation), explanation.unit
    xy, notes = shown.locations()
    view = {"notes": notes, "levels": LEVELS, "dot_size": min(1.0, (FULL_SIZE / len(xy)) ** 0.5), "dots": []}
    if np.isnan(xy).all():
        return view
    low, high = shown.colours["vmin"], shown.colours["vmax"]
    least, most = np.nanmin(xy, axis=0), np.nanmax(xy, axis=0)
    across, up = np.maximum(most - least, np.maximum((most - least)[::-1] / 3, 0.5))  # km
    scale = min((WIDE - 2 * MARGIN) / across, (HIGHEST - 2 * MARGIN) / up)
    width, height = (math.ceil(scale * length + 2 * MARGIN) for length in (across, up))
    places = np.rint(np.array([width, height]) / 2 + scale * (xy - (least + most) / 2) * (1, -1))
    levels = np.floor(LEVELS * (shown.values - low) / (high - low)).clip(0, LEVELS - 1)
    silent = np.flatnonzero(np.isnan(shown.values))
    view["dots"] = [
        (*places[i].astype(int), f"{levels[i]:.0f}".replace("nan", "n"), f"{shown.ids[i]}, MAE {mae} {unit}")
        for i in [*silent, *shown.worst[::-1]]
        if np.isfinite(xy[i]).all()
        for mae in (number(explanation.sensors[i].mae, digits=2),)
    ]
    named = [(*places[i], shown.ids[i]) for i in shown.worst if np.isfinite(xy[i]).all()]
    digits, km = max(0, 2 - math.floor(math.log10(max(high, 1e-6)))), round_length(width / 3 / scale)
    phone = math.ceil(LETTERS * max(1, width / PHONE))
    ends = (f"\u2264{NBSP}{low:.{digits}f}", f"\u2265{NBSP}{high:.{digits}f}{NBSP}{unit}")
    return view | {
        "size": (width, height),
        "ids": [(letters, _ids(named, width, height, letters)) for letters in (LETTERS, phone)],
        "bar": (km, 100 * km * scale / width),
        "ends": ends if len(shown.worst) else (DASH, DASH),
    }


def _ids(dots: Sequence[tuple[int, int, str]], width: int, height: int, letters: int) -> list[tuple[int, int, str]]:
    """Return text places for the ids of the first dots, without any id over a dot or a second id."""
    taken, placed = [(x - letters / 2, y - letters / 2, x + letters / 2, y + letters / 2) for x, y, _ in dots], []
    for x, y, name in dots[:NAMED]:
        wide, gap, low = 0.62 * letters * len(name), 0.75 * letters, y + letters / 2
        middle = min(max(x - wide / 2, 0), width - wide)
        for left, base in ((x + gap, low), (x - gap - wide, low), (middle, y - gap), (middle, y + gap + letters)):
            box = (left, base - letters, left + wide, base)
            inside = left >= 0 and box[1] >= 0 and box[2] <= width and base <= height
            if inside and all(box[2] <= a or c <= left or base <= b or d <= box[1] for a, b, c, d in taken):
                taken.append(box)
                placed.append((round(left), round(base - letters / 8), name))
                break
    return placed


def model_card(report: RunReport, licence: str, tied: bool) -> str:
    """Return the model card for the single run in a report, in Markdown with metadata for hubs at the head.

    licence: for the weights, by a hub's identifier such as ``mit``. tied: whether the run forecasts one sensor network.
    """
    report = report.with_names({run.name: Path(run.name).resolve().name for run in report.runs})
    (run,), evaluation, protocol = report.runs, report.evaluation, report.evaluation.protocol
    target, unit = next(iter(protocol.targets.items()))
    shown = lead_times(protocol.horizon, protocol.step_minutes)
    rows = []
    for label, model in evaluation.distinct_models.items():
        scores = model.by_minutes(target)
        rows.append([label, *(number(scores[minutes].mae, 3) for minutes in shown)])
    value = round(evaluation[run.name].overall(target).mae, 4)
    mae = {"type": "mae", "name": f"MAE{unit_suffix(unit)}", "value": value}
    data = {"name": protocol.dataset, "type": protocol.dataset, "split": evaluation.split}
    result = {"task": {"type": "time-series-forecasting"}, "dataset": data, "metrics": [mae]}
    changed = [
        (key, value)
        for key, value in run.settings.items()
        if key.split(".")[0] in SECTIONS and key not in PATHS and value != report.defaults[key]
    ]
    view = {
        "licence": licence,
        "index": Markup(json.dumps([{"name": run.name, "results": [result]}])),  # JSON is YAML  # noqa: S704
        "name": run.name,
        "protocol": protocol,
        "trained": protocol.trained[run.name],
        "target": target,
        "unit": unit_suffix(unit).strip(),
        "split": evaluation.split,
        "head": ["model", *shown.values()],
        "rows": rows,
        "verdicts": verdicts(evaluation),
        "protocol_lines": protocol_lines(protocol),
        "changed": changed,
        "tied": tied,
    }
    return environment(FOLDER).get_template("model_card.md.j2").render(view)
