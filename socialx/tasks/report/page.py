"""Runs as an HTML page in a single file that works offline, and a run as a model card.

A card is the README.md that a model hub shows with a run folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from socialx.core.errors import counted
from socialx.drawing.canvas import DAYS, HOUR, day
from socialx.drawing.map import plane_locations, round_length
from socialx.drawing.page import COLOURS, NBSP, Line, clock_axes, environment, files, inline, render, setting
from socialx.drawing.terminal import DASH, duration, is_known, lead_text, lead_times, number, unit_suffix
from socialx.files.store.published import SCORED_MINUTES
from socialx.scoring.metrics import Scores, mae_values
from socialx.scoring.results import Explanation, SensorErrors
from socialx.scoring.tables import OURS, key_text, ladder_rows, mape_notes, protocol_lines, verdicts
from socialx.tasks.report.contents import LEVEL, Day, RunReport
from socialx.training.run_folder import EpochRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDER = Path(__file__).parent
STYLES = files("page.css", "run_page.css", folder=FOLDER)
RUNS = (
    Line("C1", 3),
    Line("C3", dashes=(8, 4)),
    Line("C4", dashes=(2, 5)),
    Line("C5", dashes=(12, 4, 2, 4)),
    Line("C3", dashes=(4, 4)),
    Line("C4", dashes=(16, 4)),
)  # more runs have no line
REFERENCES = (Line("C2", dashes=(6, 4)), Line("C2", dashes=(1, 5)))
TRAINING, VALIDATION, BEST = Line("C2", dashes=(6, 4)), Line("C1", 3), Line("C3", 1.5)
OBSERVED, FORECAST, INTERVAL = Line("Ink", 1.25), Line("C1", 2.25), Line("Area", 8)
INTERVALS = f"{100 * LEVEL:g} % prediction interval"
LEARNING = {"training MAE": TRAINING, "validation MAE": VALIDATION, "best epoch, whose weights are used": BEST}
USUAL_STEPS = (15, 30, 45, 60)  # minutes with a label
HOURS = range(0, 25, 6)  # with a label
WIDE, HIGHEST, MARGIN = 640, 520, 14  # of the map, in its own units
LEVELS = 9  # of the colours of the map
TELLING = 0.005  # the share of errors at either end that does not stretch these colours
LEAST_POINTS = 3  # of a chart: what has fewer is told in numbers alone
FULL_SIZE = 250  # sensors on the map: the dots of more are smaller
SECTIONS = ("data", "model", "pooling")  # whose settings tell what the model of a card is
PATHS = ("data.path", "data.extra_data", "pooling.distances")  # of the machine that trained


class Curves(NamedTuple):
    """A picture with a heading and a remark."""

    heading: str
    remark: str
    picture: Markup | None


def page(report: RunReport) -> str:
    """Return the whole document."""
    evaluation, best, runs = report.evaluation, report.explanation.run, [run.name for run in report.runs]
    band = report.days[0].band
    last = {name: Path(name).name for name in evaluation}  # the last part of a path, where no other has the same
    alone = [name for name in runs if list(last.values()).count(last[name]) == 1]
    short = {name: last[name] if name in alone else name for name in evaluation}
    drawn = [best, *(name for name in runs if name != best)]
    lines = dict([*zip(drawn, RUNS, strict=False), *zip(report.references, REFERENCES, strict=False)])
    first, *others = (run.settings for run in report.runs)
    differing = {key for key in report.defaults if any(run.get(key) != first.get(key) for run in others)}
    defaults = report.defaults.items()
    changed = [key for key, value in defaults if any(run.settings.get(key) != value for run in report.runs)]
    protocol = evaluation.protocol
    parts = {
        "title": f"socialx report {short[best]}",
        "report": report,
        "runs": [short[name] for name in runs],
        "short": short,
        "lead": _lead(report, short),
        "reported": lead_times(protocol.horizon, protocol.step_minutes),
        "scores": {target: _scores(report, target) for target in protocol.targets},
        "ladder": ladder_rows(evaluation, short) if evaluation.published else [],
        "published_at": [f"{minutes}{NBSP}min" for minutes in SCORED_MINUTES],
        "ours": OURS,
        "protocol_lines": [*protocol_lines(protocol), *mape_notes(evaluation)],
        "differing": differing,
        "changed": sorted(changed, key=lambda key: key not in differing),
        "unchanged": [(key, setting(value)) for key, value in defaults if key not in changed],
        "learning": _learning(report, short),
        "learning_legend": LEARNING,
        "lines": {short[name]: line for name, line in lines.items()},
        "errors": _errors(report, lines, short),
        "error_tables": _error_tables(report, short),
        "days": _days(report),
        "telling_day": day(int(report.days[0].seconds[0])),
        "zone": protocol.clock.name,
        "day_legend": {"observed": OBSERVED, "forecast": FORECAST, **({INTERVALS: INTERVAL} if band else {})},
        "map": error_map(report.explanation),
    }
    return render("run_page.html.j2", parts, STYLES, folder=FOLDER)


def _lead(report: RunReport, short: Mapping[str, str]) -> str:
    """Return the verdict about the best run; short: run name -> name on the page, here and below."""
    best, runs = report.explanation.run, report.runs
    verdict = next((line for line in verdicts(report.evaluation) if line.startswith(f"{best}: ")), None)
    several = f"The best of {len(runs)} runs. " if len(runs) > 1 else ""
    return several + (verdict.replace(best, short[best], 1) + "." if verdict else "")


def _scores(report: RunReport, target: str) -> dict[str, dict[str, Scores]]:
    """Return scores for a target by model, the best first, then by lead time."""
    protocol, models = report.evaluation.protocol, report.evaluation.distinct_models
    maes = {name: model.overall(target).mae for name, model in models.items()}
    order = sorted(models, key=lambda name: maes[name] if math.isfinite(maes[name]) else math.inf)
    shown = lead_times(protocol.horizon, protocol.step_minutes)
    when = {minutes: "all steps" if minutes is None else lead_text(minutes).replace(" ", NBSP) for minutes in shown}
    tables = {name: models[name].by_minutes(target) for name in order}
    return {name: {when[minutes]: table[minutes] for minutes in shown} for name, table in tables.items()}


def _learning(report: RunReport, short: Mapping[str, str]) -> list[Curves]:
    """Return pictures with training and validation MAE by epoch, a picture per run, all on the same scale."""
    runs, unit = [run for run in report.runs if run.epochs], report.evaluation.protocol.unit
    maes = [mae for run in runs for row in run.epochs for mae in (row.train_mae, row.validation_mae) if is_known(mae)]
    if not maes:
        return []
    room = 0.05 * (max(maes) - min(maes)) or 1.0
    limits = min(maes) - room, max(maes) + room
    drawn = []
    for run in runs:
        epochs, best = run.epochs, next((row for row in run.epochs if row.epoch == run.best_epoch), None)
        remark = f"{counted(len(epochs), 'epoch')} in {duration(sum(row.seconds for row in epochs))}"
        if best:
            remark += f"; best epoch {best.epoch}, validation MAE {number(best.validation_mae, digits=4)} {unit}"

        def draw(axes: Axes, epochs: Sequence[EpochRow] = epochs, best: EpochRow | None = best) -> None:
            if best:
                axes.axvline(best.epoch, **BEST.style)
            places = [row.epoch for row in epochs]
            for name, line in (("train_mae", TRAINING), ("validation_mae", VALIDATION)):
                values = np.array([getattr(row, name) for row in epochs], float)
                axes.plot(places, values, marker="o", markersize=3, **line.style)
            axes.set(title=f"MAE, {unit}", xlabel="epoch", ylim=limits)
            axes.xaxis.get_major_locator().set_params(integer=True, nbins=8)  # type: ignore[call-arg]

        name = short[run.name]
        picture = inline(f"Learning curves of {name}", remark, draw) if len(epochs) >= LEAST_POINTS else None
        drawn.append(Curves(name, remark, picture))
    return drawn


def _errors(report: RunReport, lines: Mapping[str, Line], short: Mapping[str, str]) -> list[Curves]:
    """Return charts with MAE by horizon, hour and weekday for runs and the best baselines, sparse charts left out."""
    protocol, by = report.evaluation.protocol, report.evaluation.by
    last = protocol.horizon * protocol.step_minutes
    labelled = [minutes for minutes in USUAL_STEPS if minutes % protocol.step_minutes == 0]
    usual = {"xticks": labelled} if last == USUAL_STEPS[-1] else {}
    days = (*DAYS, "hol.")[: max(len(tables["weekday"]) for tables in by.values())]
    at_days = {"xticks": np.arange(0.5, len(days)), "xticklabels": days}
    charts: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("horizon", "By horizon", {"xlabel": "minutes ahead", "xlim": (0, last), **usual}),
        ("hour", "By hour of the day", {"xlabel": "hour that is forecast", "xlim": (0, 24), "xticks": HOURS}),
        ("weekday", "By weekday", {"xlim": (0, len(days)), **at_days}),
    )
    rows = {division: {name: by[name][division] for name in lines} for division, _, _ in charts}
    maes = [row.mae for tables in rows.values() for table in tables.values() for row in table if is_known(row.mae)]
    drawn = []
    for division, heading, x in charts:
        ranges, points = [], 0
        for name, table in rows[division].items():
            values = [row.mae for row in table if is_known(row.mae)]
            points = max(points, len(values) if 2 * len(values) >= len(table) else 0)
            span = f"{min(values):.2f} to {max(values):.2f} {protocol.unit}" if values else "no valid target"
            ranges.append(f"{short[name]}: {span}")
        if points < LEAST_POINTS:
            continue

        def draw(axes: Axes, division: str = division, x: Mapping[str, Any] = x) -> None:
            for name, table in list(rows[division].items())[::-1]:  # the best run on top
                places = [row.key if division == "horizon" else index + 0.5 for index, row in enumerate(table)]
                axes.plot(places, mae_values(table), marker="o", markersize=3, **lines[name].style)
            axes.set(title=f"MAE, {protocol.unit}", ylim=(0, 1.05 * max(maes, default=1.0)), **x)

        drawn.append(Curves(heading, "", inline(f"MAE {heading.lower()}", "; ".join(ranges), draw)))
    return drawn


def _error_tables(report: RunReport, short: Mapping[str, str]) -> list[tuple[str, list[str], list[Any]]]:
    """Return the numbers behind the charts: name, heads, and rows with a key and an MAE per model."""
    names = [*(run.name for run in report.runs), *report.references]
    by = [report.evaluation.by[name] for name in names]
    tables = {division: list(zip(*(errors[division] for errors in by), strict=True)) for division in by[0]}
    return [
        (
            division,
            [division, *(short[name] for name in names)],
            [(key_text(division, row[0].key), [number(errors.mae, digits=3) for errors in row]) for row in rows],
        )
        for division, rows in tables.items()
    ]


def _days(report: RunReport) -> list[tuple[str, list[Curves]]]:
    """Return pictures of forecast and truth on the chosen days for the worst, the median and the best sensor."""
    unit = report.explanation.unit
    scored = [sensor for sensor in report.explanation.sensors if sensor.mae is not None]
    chosen = {"the worst": scored[:1]}
    if len(scored) > 2:
        chosen |= {"the median": [scored[len(scored) // 2]], "the best": [scored[-1]]}
    drawn = []
    for word, sensor in ((word, sensor) for word, sensors in chosen.items() for sensor in sensors):
        column, pictures = report.sensors.index(sensor.id), []
        parts = [(shown.truth, shown.forecast, *(shown.band or ())) for shown in report.days]
        all_lines = [[part[:, column] for part in of_day] for of_day in parts]
        values = np.concatenate([line for lines in all_lines for line in lines])
        for shown, lines in zip(report.days, all_lines, strict=True):
            truth, forecast, *_ = lines
            errors = np.abs(truth - forecast)[np.isfinite(truth)]
            remark = f"MAE on this day {errors.mean():.2f} {unit}" if len(errors) else "no reading on this day"

            def draw(
                axes: Axes, shown: Day = shown, lines: Sequence[np.ndarray] = lines, values: np.ndarray = values
            ) -> None:
                left = clock_axes(axes, shown.seconds, values, unit)
                hours = left + (shown.seconds - shown.seconds[0]) / HOUR
                if shown.band:
                    axes.fill_between(hours, lines[2], lines[3], color=COLOURS["Area"], linewidth=0)
                for heights, line in zip(lines, (OBSERVED, FORECAST), strict=False):
                    axes.plot(hours, heights, **line.style)

            date = day(int(shown.seconds[0]))
            picture = inline(f"{sensor.id} on {date}", remark, draw, (300, 150)) if len(errors) else None
            pictures.append(Curves("", f"{date}: {remark}", picture))
        drawn.append((f"{sensor.id}, {word}: MAE {number(sensor.mae, digits=2)} {unit}", pictures))
    return drawn


def error_map(explanation: Explanation) -> dict[str, Any]:
    """Return what the template needs to draw a map with the errors of a run's sensors.

    dots: location, colour level and text, the best first, so that the worst are drawn on top. bar: length in km and in
    percent of the width, None without locations. ends: texts at the ends of the colour scale.
    """
    sensors, unit = explanation.sensors, explanation.unit
    places, height, unit_per_km, note = _places(sensors)
    maes = [sensor.mae for sensor in sensors if sensor.mae is not None]
    low, high = np.quantile(maes, [TELLING, 1 - TELLING]) if maes else (0.0, 1.0)
    high = high if high > low else low + 1
    dots = []
    for sensor, location in zip(sensors, places, strict=True):
        level = "n"  # no value
        if sensor.mae is not None:
            level = str(max(0, min(LEVELS - 1, math.floor(LEVELS * (sensor.mae - low) / (high - low)))))
        if location is not None:
            dots.append((*location, level, f"{sensor.id}, MAE {number(sensor.mae, digits=2)} {unit}"))
    digits = max(0, 2 - math.floor(math.log10(max(high, 1e-6))))
    ends = (f"\u2264{NBSP}{low:.{digits}f}", f"\u2265{NBSP}{high:.{digits}f}{NBSP}{unit}")
    km = None if unit_per_km is None else round_length(WIDE / 4 / unit_per_km)
    return {
        "dots": dots[::-1],
        "dot_size": min(1.0, (FULL_SIZE / len(sensors)) ** 0.5),
        "size": (WIDE, height),
        "levels": LEVELS,
        "bar": None if km is None or unit_per_km is None else (km, 100 * km * unit_per_km / WIDE),
        "note": note,
        "ends": ends if maes else (DASH, DASH),
    }


def _places(sensors: Sequence[SensorErrors]) -> tuple[list[tuple[int, int] | None], int, float | None, str]:
    """Return locations on the map [sensors], the map height, map units per km, and a note about absent sensors.

    Without any location the sensors stand in rows, and map units per km are None.
    """
    xy, placed, far = plane_locations(np.array([(sensor.latitude, sensor.longitude) for sensor in sensors], float))
    if not placed.any():
        across = min(len(sensors), max(8, math.ceil(math.sqrt(2 * len(sensors)))))
        step = (WIDE - 2 * MARGIN) // across
        first = MARGIN + step // 2
        points = [(first + step * (k % across), first + step * (k // across)) for k in range(len(sensors))]
        return [*points], points[-1][1] + first, None, "No sensor has a position: they stand in rows, the worst first."
    low, high = np.nanmin(xy, axis=0), np.nanmax(xy, axis=0)
    across_km, up_km = np.maximum(high - low, 0.5)
    scale = min((WIDE - 2 * MARGIN) / across_km, (HIGHEST - 2 * MARGIN) / up_km)
    height = math.ceil(scale * up_km + 2 * MARGIN)
    corner = np.array([(WIDE - scale * across_km) / 2, height - MARGIN])
    places = np.rint(corner + scale * (xy - low) * (1, -1)).tolist()
    counts = {"without a position": int((~placed).sum()), "far away": int(far.sum())}
    lost = " and ".join(f"{count} {phrase}" for phrase, count in counts.items() if count)
    drawn = [(int(x), int(y)) if math.isfinite(x) else None for x, y in places]
    return drawn, height, scale, f"Not on the map: {lost}." if lost else ""


def model_card(report: RunReport, licence: str, tied: bool) -> str:
    """Return the model card for the single run in a report, in Markdown with metadata for hubs at the head.

    licence: for the weights, by a hub's identifier such as ``mit``. tied: whether the run forecasts one sensor network.
    """
    (run,) = report.runs
    evaluation, protocol, name = report.evaluation, report.evaluation.protocol, Path(run.name).resolve().name
    target, unit = next(iter(protocol.targets.items()))
    shown = lead_times(protocol.horizon, protocol.step_minutes)
    rows = []
    for label, model in evaluation.distinct_models.items():
        scores = model.by_minutes(target)
        maes = (number(scores[minutes].mae, 3) for minutes in shown)
        rows.append([name if label == run.name else label, *maes])
    value = round(evaluation[run.name].overall(target).mae, 4)
    mae = {"type": "mae", "name": f"MAE{unit_suffix(unit)}", "value": value}
    data = {"name": protocol.dataset, "type": protocol.dataset, "split": evaluation.split}
    result = {"task": {"type": "time-series-forecasting"}, "dataset": data, "metrics": [mae]}
    changed = [
        (key, value)
        for key, value in run.settings.items()
        if key.split(".")[0] in SECTIONS and key not in PATHS and value != report.defaults[key]
    ]
    lines = protocol_lines(protocol)
    view = {
        "licence": licence,
        "index": Markup(json.dumps([{"name": name, "results": [result]}])),  # JSON is YAML  # noqa: S704
        "name": name,
        "protocol": protocol,
        "trained": protocol.trained[run.name],
        "target": target,
        "unit": unit_suffix(unit).strip(),
        "split": evaluation.split,
        "head": ["model", *("all steps" if minutes is None else lead_text(minutes) for minutes in shown)],
        "rows": rows,
        "verdicts": [line.replace(run.name, name, 1) for line in verdicts(evaluation)],  # each begins with it
        "protocol_lines": [*lines[:-1], lines[-1].replace(run.name, name, 1)],
        "changed": changed,
        "tied": tied,
    }
    return environment(FOLDER).get_template("model_card.md.j2").render(view)
