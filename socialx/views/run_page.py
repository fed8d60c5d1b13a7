"""Some runs as one HTML page that needs no network and no other file: what ``run_page.html.j2`` shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from socialx.files.published import SCORED_MINUTES
from socialx.scoring.days import Day
from socialx.scoring.results import ModelScores
from socialx.views.canvas import DAYS, HOUR, day
from socialx.views.page import NBSP, files, known, number, percent, render, setting
from socialx.views.page_picture import COLOURS, Line, clock_axes, inline
from socialx.views.run_map import error_map
from socialx.views.run_report import RunReport
from socialx.views.score_tables import OURS, ladder_rows, protocol_lines, reported_steps, undivided, verdicts
from socialx.views.terminal import ahead, duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = files("page.css", "run_page.css")
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
LISTED = 10  # sensors in a table
USUAL_STEPS = (15, 30, 45, 60)  # minutes with a label
HOURS = range(0, 25, 6)  # with a label
Points = Sequence[tuple[float, float | None]]


class Curves(NamedTuple):
    """A picture with a heading and a remark."""

    heading: str
    remark: str
    picture: Markup


def page(report: RunReport) -> str:
    """Return the whole document."""
    view = RunView(report)
    title = f"socialx report {view.short[report.explanation.run]}"
    parts = {"title": title, "report": report, "view": view, "map": error_map(report.explanation)}
    return render("run_page.html.j2", parts, STYLES)


@dataclass(frozen=True)
class RunView:
    """What the template asks of a report: names to print, tables as rows of texts, and pictures."""

    report: RunReport

    @cached_property
    def short(self) -> dict[str, str]:
        """Of each run and reference a name to print: the last part of the path where no other has the same."""
        last = {name: Path(name).name for name in self.report.evaluation}
        counts = list(last.values())
        runs = {run.name for run in self.report.runs}
        return {name: short if name in runs and counts.count(short) == 1 else name for name, short in last.items()}

    @cached_property
    def lines(self) -> dict[str, Line]:
        """Each run and reference that is drawn: the best run first, then the others as named."""
        best = self.report.explanation.run
        runs = [best, *(run.name for run in self.report.runs if run.name != best)]
        drawn = [*zip(runs, RUNS, strict=False), *zip(self.report.references, REFERENCES, strict=False)]
        return dict(drawn)

    @property
    def legend(self) -> dict[str, Line]:
        """The lines by the names to print."""
        return {self.short[name]: line for name, line in self.lines.items()}

    @property
    def lead(self) -> str:
        """The verdict about the best run."""
        best, runs = self.report.explanation.run, self.report.runs
        verdict = next((line for line in verdicts(self.report.evaluation) if line.startswith(f"{best} is ")), None)
        several = f"The best of {len(runs)} runs. " if len(runs) > 1 else ""
        return several + (verdict.replace(best, self.short[best], 1) + "." if verdict else "")

    def tiles(self) -> list[tuple[int, dict[str, float]]]:
        """The minutes of each reported step, and the MAE there of the best run and of the references."""
        protocol, names = self.report.evaluation.protocol, (self.report.explanation.run, *self.report.references)
        steps = reported_steps(protocol.horizon, protocol.step_minutes)
        return [(step * protocol.step_minutes, {name: self._mae(name, step) for name in names}) for step in steps]

    def scores(self) -> list[dict[str, Any]]:
        """A table of MAE and one of the other measures for each target, the best model first."""
        evaluation = self.report.evaluation
        protocol = evaluation.protocol
        steps = reported_steps(protocol.horizon, protocol.step_minutes)
        heads = [*(ahead(step * protocol.step_minutes).replace(" ", NBSP) for step in steps), "all steps"]
        tables = []
        for target, unit in protocol.targets.items():
            models = {name: model.targets[target] for name, model in evaluation.distinct.items()}
            maes = {name: model.overall.mae for name, model in models.items()}
            order = sorted(models, key=lambda name: maes[name] if math.isfinite(maes[name]) else math.inf)
            rows, others = [], []
            for name in order:
                scored = [*(models[name].by_step[step - 1] for step in steps), models[name].overall]
                rows.append((self.short[name], *(number(each.mae, digits=4) for each in scored)))
                for at, each in zip(heads, scored, strict=True):
                    measures = (number(each.rmse, digits=4), number(each.mape, digits=3), number(each.r2, digits=4))
                    others.append((f"{self.short[name]}, {at}", *measures, f"{each.count:,}"))
            of = "" if len(protocol.targets) == 1 else f" of {target}"
            tables.append({"of": of, "unit": unit, "heads": heads, "rows": rows, "others": others})
        return tables

    @property
    def ladder_heads(self) -> list[str]:
        """The heads of the ladder."""
        return ["MAE", *(f"{minutes}{NBSP}min" for minutes in SCORED_MINUTES), "from"]

    def ladder(self) -> list[tuple[str, list[str], str, bool]]:
        """All runs and references among published results, if there are any: name, MAE, source, whether it is ours."""
        evaluation = self.report.evaluation
        if not evaluation.published:
            return []
        return [(*row, row[2] == OURS) for row in ladder_rows(evaluation, self.short)]

    def protocol(self) -> list[str]:
        """The lines of the protocol, and what the MAPE leaves out."""
        return [*protocol_lines(self.report.evaluation.protocol), *undivided(self.report.evaluation)]

    @cached_property
    def differing(self) -> set[str]:
        """The settings in which the runs differ."""
        first, *others = (run.settings for run in self.report.runs)
        return {key for key in self.report.defaults if any(each.get(key) != first.get(key) for each in others)}

    @cached_property
    def changed(self) -> list[str]:
        """The settings that are not the default in some run, those in which the runs differ first."""
        runs, defaults = self.report.runs, self.report.defaults
        keys = [key for key in defaults if any(run.settings.get(key) != defaults[key] for run in runs)]
        return sorted(keys, key=lambda key: key not in self.differing)

    @cached_property
    def unchanged(self) -> list[tuple[str, str]]:
        """All other settings with their value."""
        return [(key, setting(value)) for key, value in self.report.defaults.items() if key not in self.changed]

    @property
    def run_names(self) -> list[str]:
        """Names of the runs to print."""
        return [self.short[run.name] for run in self.report.runs]

    def learning(self) -> list[Curves]:
        """Training and validation MAE of each epoch, a picture for each run, all on one scale."""
        runs, unit = [run for run in self.report.runs if run.epochs], self.report.evaluation.protocol.unit
        maes = [mae for run in runs for row in run.epochs for mae in (row.train_mae, row.validation_mae) if known(mae)]
        if not maes:
            return []
        room = 0.05 * (max(maes) - min(maes)) or 1.0
        drawn = []
        for run in runs:
            epochs, best = run.epochs, next((row for row in run.epochs if row.epoch == run.best_epoch), None)
            remark = f"{len(epochs)} epochs in {duration(sum(row.seconds for row in epochs))}"
            if best:
                remark += f"; best epoch {best.epoch}, validation MAE {number(best.validation_mae, digits=4)} {unit}"

            def draw(axes: Axes, epochs: Sequence[Any] = epochs, best: Any = best) -> None:
                if best:
                    axes.axvline(best.epoch, **BEST.style)
                places = [row.epoch for row in epochs]
                axes.plot(places, [row.train_mae for row in epochs], marker="o", markersize=3, **TRAINING.style)
                axes.plot(places, [row.validation_mae for row in epochs], marker="o", markersize=3, **VALIDATION.style)
                axes.set(title=f"MAE, {unit}", xlabel="epoch", ylim=(min(maes) - room, max(maes) + room))
                axes.xaxis.get_major_locator().set_params(integer=True, nbins=8)  # type: ignore[call-arg]

            name = self.short[run.name]
            drawn.append(Curves(name, remark, inline(f"Learning curves of {name}", remark, draw)))
        return drawn

    @property
    def learning_legend(self) -> dict[str, Line]:
        """What the lines of the learning curves are."""
        return {"training MAE": TRAINING, "validation MAE": VALIDATION, "best epoch, whose weights are used": BEST}

    def errors(self) -> list[Curves]:
        """MAE by horizon, by hour of the day and by weekday, of the runs and the best references."""
        protocol = self.report.evaluation.protocol
        minutes = [protocol.step_minutes * (k + 1) for k in range(protocol.horizon)]
        by_step = {name: [(at, self._mae(name, k + 1)) for k, at in enumerate(minutes)] for name in self.lines}
        by_hour = {name: [(row.key + 0.5, row.mae) for row in self.report.by_hour[name]] for name in self.lines}
        days = (*DAYS, "hol.")[: max(len(rows) for rows in self.report.by_weekday.values())]
        by_day = {name: [(row.key + 0.5, row.mae) for row in self.report.by_weekday[name]] for name in self.lines}
        usual = [at for at in USUAL_STEPS if at in minutes] if minutes[-1] == USUAL_STEPS[-1] else None
        charts: tuple[tuple[str, Mapping[str, Points], dict[str, Any]], ...] = (
            ("By horizon", by_step, {"xlabel": "minutes ahead", "xlim": (0, minutes[-1]), "xticks": usual}),
            ("By hour of the day", by_hour, {"xlabel": "hour that is forecast", "xlim": (0, 24), "xticks": HOURS}),
            ("By weekday", by_day, {"xlim": (0, len(days)), "xticks": np.arange(0.5, len(days)), "xticklabels": days}),
        )
        maes = [mae for _, lines, _ in charts for points in lines.values() for _, mae in points if known(mae)]
        drawn = []
        for heading, lines, x in charts:
            ranges = []
            for name, points in lines.items():
                values = [mae for _, mae in points if known(mae)]
                span = f"{min(values):.2f} to {max(values):.2f} {protocol.unit}" if values else "no valid target"
                ranges.append(f"{self.short[name]}: {span}")

            def draw(axes: Axes, lines: Mapping[str, Points] = lines, x: dict[str, Any] = x) -> None:
                for name, points in list(lines.items())[::-1]:  # the best run on top
                    places, values = zip(*points, strict=True)
                    axes.plot(places, np.array(values, float), marker="o", markersize=3, **self.lines[name].style)
                named = {key: value for key, value in x.items() if value is not None}
                axes.set(title=f"MAE, {protocol.unit}", ylim=(0, 1.05 * max(maes, default=1.0)), **named)

            drawn.append(Curves(heading, "", inline(f"MAE {heading.lower()}", "; ".join(ranges), draw)))
        return drawn

    def error_tables(self) -> list[tuple[str, list[str], list[tuple[str, ...]]]]:
        """The numbers of the pictures of errors: title, heads and rows."""
        protocol, report = self.report.evaluation.protocol, self.report
        names = [*(run.name for run in report.runs), *report.references]
        by_step = [[self._mae(name, k + 1) for name in names] for k in range(protocol.horizon)]
        by_hour, by_day = (
            [[row.mae for row in rows] for rows in zip(*(errors[name] for name in names), strict=True)]
            for errors in (report.by_hour, report.by_weekday)
        )
        tables = (
            ("horizon", [f"{protocol.step_minutes * (k + 1)} min" for k in range(protocol.horizon)], by_step),
            ("hour", [f"{hour:02}:00" for hour in range(24)], by_hour),
            ("weekday", (*DAYS, "holiday")[: len(by_day)], by_day),
        )
        return [
            (
                f"MAE by {what}",
                [what, *(self.short[name] for name in names)],
                [(key, *(number(mae, digits=3) for mae in maes)) for key, maes in zip(keys, rows, strict=True)],
            )
            for what, keys, rows in tables
        ]

    def sensors(self) -> list[tuple[str, list[Curves]]]:
        """The worst, the median and the best sensor with its forecast and truth on each of the chosen days."""
        explanation, unit = self.report.explanation, self.report.explanation.unit
        scored = [sensor for sensor in explanation.sensors if sensor.mae is not None]
        chosen = {"the worst": scored[:1]}
        if len(scored) > 2:
            chosen |= {"the median": [scored[len(scored) // 2]], "the best": [scored[-1]]}
        drawn = []
        for word, sensor in ((word, sensor) for word, sensors in chosen.items() for sensor in sensors):
            column, pictures = self.report.sensors.index(sensor.id), []
            for shown in self.report.days:
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

    @property
    def telling_day(self) -> str:
        """The date of the first of the days."""
        return day(int(self.report.days[0].seconds[0]))

    @property
    def day_legend(self) -> dict[str, Line]:
        """What the lines of the days are."""
        lines = {"reading": READING, "forecast": FORECAST}
        return lines | ({"interval": INTERVAL} if self.report.days[0].band else {})

    def extremes(self) -> dict[str, list[tuple[str, str, str]]]:
        """Rows of the worst and of the best sensors."""
        scored = [sensor for sensor in self.report.explanation.sensors if sensor.mae is not None]
        rows = [(sensor.id, number(sensor.mae, digits=2), f"{sensor.count:,}") for sensor in scored]
        return {"worst": rows[:LISTED], "best": rows[::-1][:LISTED]}

    def heads_of_layers(self) -> list[tuple[str, ...]]:
        """How far each head of each social layer reaches, a row each."""
        return [
            (
                f"{layer.name}, head {place}",
                number(head.radius_km, digits=2),
                number(head.softness_km, digits=2),
                percent(head.null_key),
                number(head.distance_km, digits=2),
            )
            for layer in self.report.explanation.layers
            for place, head in enumerate(layer.heads, start=1)
        ]

    def _mae(self, name: str, step: int) -> float:
        """The MAE of the first target at a step of the horizon."""
        model: ModelScores = self.report.evaluation[name]
        return next(iter(model.targets.values())).by_step[step - 1].mae
