"""``report``: runs -> one page with their scores, settings, learning curves, errors and a map."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from socialx.core.disk import atomic_write
from socialx.core.errors import Argument, SettingsError
from socialx.core.help import END, SPLIT, START, Help, with_help
from socialx.core.progress import Callback, subscribe
from socialx.files.store.time_axis import Time
from socialx.scoring.attention_sums import AttentionWeights
from socialx.scoring.metrics import Breakdown
from socialx.scoring.results import Evaluation, Explanation, ModelScores, published
from socialx.scoring.scoring_pass import run_metrics
from socialx.settings.conflicts import sensor_tables
from socialx.settings.layers import ConfigLayers, flat, run_settings
from socialx.settings.schema import Settings
from socialx.tasks.explain import explanation_of
from socialx.tasks.memory import when_memory_runs_out
from socialx.tasks.outputs import CARD, PAGE, check_outputs
from socialx.tasks.report.contents import Day, Ends, ForecastRecorder, RunRecord, RunReport, telling_days
from socialx.tasks.report.page import model_card, page
from socialx.tasks.scored_split import ScoredSplit, scored_split
from socialx.tasks.train import Run, names_of
from socialx.training.run_folder import TRAINED, TrainedRun, folder_of

MINUTES_AHEAD = 30  # of the forecasts that are compared with a day
LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,39}")
LEVEL = 0.9  # of the intervals around them
DIVIDED = ("horizon", "hour", "weekday")  # by what the page divides errors


@with_help
def report(
    runs: Annotated[str | Path | Run | Sequence[str | Path | Run], Help("run folders", "RUN...")],
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    output: str | Path | None = None,
    card: Annotated[str | None, Help("also write README.md into RUN, a model card: mit, unknown", "LICENCE")] = None,
    split: Annotated[str, SPLIT] = "test",
    start: Annotated[Time | None, START] = None,
    end: Annotated[Time | None, END] = None,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Any,
) -> RunReport:
    """Scores of runs and reference forecasts, settings, learning curves, and where the best run errs.

    output: write it as one HTML page, which needs no network and no other file; an older one is replaced.  A card is
    of one run, with the licence of its weights by the identifier of hubs.  The other arguments are those of
    ``evaluate``.

    Every run forecasts the split once; beside published results, a run that reads past days does so a second time, with
    what was known when training ended.

    Raises SettingsError where no run is named, a card is asked for of several, or they have different windows.
    """
    with subscribe(progress):
        if not runs:
            raise SettingsError("report", "no run", "name a run folder")
        names, layers = names_of(runs), ConfigLayers.from_call(settings, {**sections, "data": data})
        readme = _readme(names, card)
        check_outputs((output, PAGE), (readme, CARD), layers=layers, runs=names)
        scored = scored_split(names, layers, split, start, end)
        found = _report(scored)
        if output is not None:
            with atomic_write(Path(output)) as temporary:
                temporary.write_text(page(found), encoding="utf-8")
        if readme is not None:
            tied = sensor_tables(scored.experiment.settings)
            with atomic_write(readme) as temporary:
                temporary.write_text(model_card(found, str(card), tied), encoding="utf-8")
        return found


def _report(scored: ScoredSplit) -> RunReport:
    """One pass of every model over the windows -> what the page shows."""
    dataset, protocol, minutes = scored.data, scored.protocol, scored.data.store.step_minutes
    step = max(1, min(dataset.horizon, round(MINUTES_AHEAD / minutes)))  # of the horizon
    rows = dataset.forecast_rows(scored.split, scored.places)[0] + step - 1
    dataset.note_clock(("hour",))
    spans = telling_days(dataset.target_source, rows)
    scores: dict[str, ModelScores] = {}
    errors: dict[str, Breakdown] = {}
    explained: list[tuple[Explanation, ForecastRecorder]] = []
    with when_memory_runs_out(scored.experiment):
        for name, model in {**scored.baselines(), **scored.models()}.items():
            sums, sums_by, weights = scored.scores(), scored.errors(), AttentionWeights(model)
            shown = ForecastRecorder(step, spans, _ends(scored, name))
            with weights.in_some_of(len(scored.loader)):
                run_metrics(
                    model, scored.loader, scored.experiment.precision, sums, sums_by, shown, name=f"report {name}"
                )
            scores[name], errors[name] = ModelScores.of(sums.compute(), protocol), sums_by.compute()
            if name in scored.experiments:
                explained.append((explanation_of(name, scored, errors[name], weights.compute()), shown))
        results = published(protocol, scored.split)
        frozen = scored.with_known_days(frozen=bool(results))
    best, shown = min(explained, key=lambda pair: math.inf if pair[0].mae is None else pair[0].mae)
    seconds = dataset.store.seconds[rows]
    days = tuple(
        Day(step * minutes, seconds[span], truth, forecast, (band[0], band[1]) if band else None)
        for span, (truth, forecast, *band) in zip(spans, shown.compute(), strict=True)
    )
    by = {name: {what: each[what] for what in DIVIDED} for name, each in errors.items()}
    return RunReport(
        evaluation=Evaluation(scored.split, protocol, scores, results, climatology_days=frozen, by=by),
        runs=tuple(_record(run, scored.trained[name].epoch) for name, run in scored.runs.items()),
        defaults=flat(Settings()),
        explanation=best,
        sensors=dataset.sensors.ids,
        days=days,
    )


def _ends(scored: ScoredSplit, name: str) -> Ends | None:
    """The ends of the intervals around the forecasts of a run; None of what has no such intervals."""
    if name not in scored.runs or not scored.runs[name].intervals.exists():
        return None
    intervals = scored.intervals(name)
    return partial(intervals.around, level=LEVEL) if intervals.widest >= LEVEL else None


def _readme(names: Sequence[str], card: str | None) -> Path | None:
    """Where a model card goes; SettingsError for several runs, and for what is no identifier of a licence."""
    if card is None:
        return None
    if len(names) != 1:
        raise SettingsError(Argument("card", card), "it is of one run", "name one run folder")
    if not LICENCE.fullmatch(card):
        raise SettingsError(Argument("card", card), "no identifier of a licence", "for example mit, or unknown")
    folder = folder_of(Path(names[0])).path
    if folder.parent == TRAINED:
        raise SettingsError(Argument("card", card), f"{names[0]} comes with the package", "name a run of your own")
    return folder / "README.md"


def _record(run: TrainedRun, epoch: int | None) -> RunRecord:
    """What a run folder says of its training."""
    origins = run.read_json("settings_sources.json") if (run.path / "settings_sources.json").exists() else {}
    settings = flat(run_settings(run.settings, run.own).settings)
    return RunRecord(str(run.named), settings, {k: str(v) for k, v in origins.items()}, tuple(run.rows()), epoch)
