"""Some runs as one HTML page that needs no network and no other file, and one run as a model card.

A card is the README.md that a model hub shows beside the files of a run folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from socialx.drawing import terminal
from socialx.drawing.canvas import DAYS, HOUR, day
from socialx.drawing.map import on_plane, round_length
from socialx.drawing.page import (
    COLOURS,
    DASH,
    NBSP,
    Line,
    clock_axes,
    environment,
    files,
    inline,
    known,
    number,
    render,
    setting,
)
from socialx.drawing.terminal import ahead, duration, of_unit, reported_minutes
from socialx.files.store.published import SCORED_MINUTES
from socialx.scoring.metrics import Scores, mae_values
from socialx.scoring.results import Explanation, SensorErrors
from socialx.scoring.tables import OURS, key_text, ladder_rows, mape_notes, protocol_lines, verdicts
from socialx.tasks.report.contents import Day, RunReport
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
READING, FORECAST, INTERVAL = Line("Ink", 1.25), Line("C1", 2.25), Line("Area", 8)
LEARNING = {"training MAE": TRAINING, "validation MAE": VALIDATION, "best epoch, whose weights are used": BEST}
USUAL_STEPS = (15, 30, 45, 60)  # minutes with a label
HOURS = range(0, 25, 6)  # with a label
WIDE, HIGHEST, MARGIN = 640, 520, 14  # of the map, in its own units
LEVELS = 9  # of the colours of the map
TELLING = 0.005  # the share of errors at either end that does not stretch these colours
FULL_SIZE = 250  # sensors on the map: the dots of more are smaller
SECTIONS = ("data", "model", "pooling")  # whose settings tell what the model of a card is
PATHS = ("data.path", "data.extra_data", "pooling.distances")  # of the machine that trained


class Curves(NamedTuple):
    """A picture with a heading and a remark."""

    heading: str
    remark: str
    picture: Markup


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
    differing = {key for key in report.defaults if any(each.get(key) != first.get(key) for each in others)}
    defaults = report.defaults.items()
    changed = [key for key, value in defaults if any(run.settings.get(key) != value for run in report.runs)]
    protocol = evaluation.protocol
    parts = {
        "title": f"socialx report {short[best]}",
        "report": report,
        "runs": [short[name] for name in runs],
        "short": short,
        "lead": _lead(report, short),
        "reported": reported_minutes(protocol.horizon, protocol.step_minutes),
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
        "day_legend": {"reading": READING, "forecast": FORECAST, **({"interval": INTERVAL} if band else {})},
        "map": error_map(report.explanation),
    }
    return render("run_page.html.j2", parts, STYLES, folder=FOLDER)


def _lead(report: RunReport, short: Mapping[str, str]) -> str:
    """The verdict about the best run."""
    best, runs = report.explanation.run, report.runs
    verdict = next((line for line in verdicts(report.evaluation) if line.startswith(f"{best} is ")), None)
    several = f"The best of {len(runs)} runs. " if len(runs) > 1 else ""
    return several + (verdict.replace(best, short[best], 1) + "." if verdict else "")


def _scores(report: RunReport, target: str) -> dict[str, dict[str, Scores]]:
    """Of each model, the best first, what there is to print of a target: when -> scores."""
    protocol, models = report.evaluation.protocol, report.evaluation.distinct_models
    maes = {name: model.overall(target).mae for name, model in models.items()}
    order = sorted(models, key=lambda name: maes[name] if math.isfinite(maes[name]) else math.inf)
    shown = reported_minutes(protocol.horizon, protocol.step_minutes)
    when = {each: "all steps" if each is None else ahead(each).replace(" ", NBSP) for each in shown}
    tables = {name: models[name].by_minutes(target) for name in order}
    return {name: {when[each]: table[each] for each in shown} for name, table in tables.items()}


def _learning(report: RunReport, short: Mapping[str, str]) -> list[Curves]:
    """Training and validation MAE of each epoch, a picture for each run, all on one scale."""
    runs, unit = [run for run in report.runs if run.epochs], report.evaluation.protocol.unit
    maes = [mae for run in runs for row in run.epochs for mae in (row.train_mae, row.validation_mae) if known(mae)]
    if not maes:
        return []
    room = 0.05 * (max(maes) - min(maes)) or 1.0
    limits = min(maes) - room, max(maes) + room
    drawn = []
    for run in runs:
        epochs, best = run.epochs, next((row for row in run.epochs if row.epoch == run.best_epoch), None)
        remark = f"{len(epochs)} epochs in {duration(sum(row.seconds for row in epochs))}"
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
        drawn.append(Curves(name, remark, inline(f"Learning curves of {name}", remark, draw)))
    return drawn


def _errors(report: RunReport, lines: Mapping[str, Line], short: Mapping[str, str]) -> list[Curves]:
    """MAE by horizon, by hour of the day and by weekday, of the runs and the best references."""
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
    rows = {what: {name: by[name][what] for name in lines} for what, _, _ in charts}
    maes = [row.mae for tables in rows.values() for table in tables.values() for row in table if known(row.mae)]
    drawn = []
    for what, heading, x in charts:
        ranges = []
        for name, table in rows[what].items():
            values = [row.mae for row in table if known(row.mae)]
            span = f"{min(values):.2f} to {max(values):.2f} {protocol.unit}" if values else "no valid target"
            ranges.append(f"{short[name]}: {span}")

        def draw(axes: Axes, what: str = what, x: Mapping[str, Any] = x) -> None:
            for name, table in list(rows[what].items())[::-1]:  # the best run on top
                places = [row.key if what == "horizon" else place + 0.5 for place, row in enumerate(table)]
                axes.plot(places, mae_values(table), marker="o", markersize=3, **lines[name].style)
            axes.set(title=f"MAE, {protocol.unit}", ylim=(0, 1.05 * max(maes, default=1.0)), **x)

        drawn.append(Curves(heading, "", inline(f"MAE {heading.lower()}", "; ".join(ranges), draw)))
    return drawn


def _error_tables(report: RunReport, short: Mapping[str, str]) -> list[tuple[str, list[str], list[Any]]]:
    """The numbers of these pictures: by what, heads, and rows of a key and the MAE of each model."""
    names = [*(run.name for run in report.runs), *report.references]
    by = [report.evaluation.by[name] for name in names]
    tables = {what: list(zip(*(each[what] for each in by), strict=True)) for what in by[0]}
    return [
        (
            what,
            [what, *(short[name] for name in names)],
            [(key_text(what, row[0].key), [number(each.mae, digits=3) for each in row]) for row in rows],
        )
        for what, rows in tables.items()
    ]


def _days(report: RunReport) -> list[tuple[str, list[Curves]]]:
    """The worst, the median and the best sensor with its forecast and truth on each of the chosen days."""
    unit = report.explanation.unit
    scored = [sensor for sensor in report.explanation.sensors if sensor.mae is not None]
    chosen = {"the worst": scored[:1]}
    if len(scored) > 2:
        chosen |= {"the median": [scored[len(scored) // 2]], "the best": [scored[-1]]}
    drawn = []
    for word, sensor in ((word, sensor) for word, sensors in chosen.items() for sensor in sensors):
        column, pictures = report.sensors.index(sensor.id), []
        for shown in report.days:
            parts = (shown.truth, shown.forecast, *(shown.band or ()))
            truth, forecast, *_ = lines = [part[:, column] for part in parts]
            errors = np.abs(truth - forecast)[np.isfinite(truth)]
            remark = f"MAE on this day {errors.mean():.2f} {unit}" if len(errors) else "no reading on this day"

            def draw(axes: Axes, shown: Day = shown, lines: Sequence[np.ndarray] = lines) -> None:
                left = clock_axes(axes, shown.seconds, np.concatenate(lines), unit)
                hours = left + (shown.seconds - shown.seconds[0]) / HOUR
                if shown.band:
                    axes.fill_between(hours, lines[2], lines[3], color=COLOURS["Area"], linewidth=0)
                for values, line in zip(lines, (READING, FORECAST), strict=False):
                    axes.plot(hours, values, **line.style)

            date = day(int(shown.seconds[0]))
            picture = inline(f"{sensor.id} on {date}", remark, draw, (300, 150))
            pictures.append(Curves("", f"{date}: {remark}", picture))
        drawn.append((f"{sensor.id}, {word}: MAE {number(sensor.mae, digits=2)} {unit}", pictures))
    return drawn


def error_map(explanation: Explanation) -> dict[str, Any]:
    """What the template shows of a map of the sensors of a run, where they stand.

    dots: place, level of the colour and what is said of it, the best first, so that the worst are drawn on top.  bar:
    length in km, and in percent of the width; None without positions.  ends: of the colour scale.
    """
    sensors, unit = explanation.sensors, explanation.unit
    places, height, unit_per_km, note = _places(sensors)
    maes = [sensor.mae for sensor in sensors if sensor.mae is not None]
    low, high = np.quantile(maes, [TELLING, 1 - TELLING]) if maes else (0.0, 1.0)
    high = high if high > low else low + 1
    dots = []
    for sensor, place in zip(sensors, places, strict=True):
        level = "n"  # no value
        if sensor.mae is not None:
            level = str(max(0, min(LEVELS - 1, math.floor(LEVELS * (sensor.mae - low) / (high - low)))))
        if place is not None:
            dots.append((*place, level, f"{sensor.id}, MAE {number(sensor.mae, digits=2)} {unit}"))
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
    """Where each sensor is drawn, the height of the map, how many of its units a km is, and a note on who is missing.

    Without any position the sensors stand in rows, and a km has no length.
    """
    xy, placed, far = on_plane(np.array([(sensor.latitude, sensor.longitude) for sensor in sensors], float))
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
    lost = " and ".join(f"{count} {what}" for what, count in counts.items() if count)
    drawn = [(int(x), int(y)) if math.isfinite(x) else None for x, y in places]
    return drawn, height, scale, f"Not on the map: {lost}." if lost else ""


def model_card(report: RunReport, licence: str, tied: bool) -> str:
    """The card of the one run of a report, in Markdown, with the metadata that hubs read at its head.

    licence: of the weights, by the identifier of hubs, such as ``mit``.  tied: whether it forecasts its network alone.
    """
    (run,) = report.runs
    evaluation, protocol, name = report.evaluation, report.evaluation.protocol, Path(run.name).resolve().name
    target, unit = next(iter(protocol.targets.items()))
    shown = reported_minutes(protocol.horizon, protocol.step_minutes)
    rows = []
    for label, model in evaluation.distinct_models.items():
        scores = model.by_minutes(target)
        maes = (terminal.number(scores[minutes].mae, 3) for minutes in shown)
        rows.append([name if label == run.name else label, *maes])
    mae = {"type": "mae", "name": f"MAE{of_unit(unit)}", "value": round(evaluation[run.name].overall(target).mae, 4)}
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
        "unit": of_unit(unit).strip(),
        "split": evaluation.split,
        "head": ["model", *("all steps" if minutes is None else ahead(minutes) for minutes in shown)],
        "rows": rows,
        "verdicts": [line.replace(run.name, name, 1) for line in verdicts(evaluation)],  # each begins with it
        "protocol_lines": [*lines[:-1], lines[-1].replace(run.name, name, 1)],
        "changed": changed,
        "tied": tied,
    }
    return environment(FOLDER).get_template("model_card.md.j2").render(view)
