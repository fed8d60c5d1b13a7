"""``report``: runs -> a page with scores, settings, learning curves, errors and a map."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Unpack

from socialx.core.disk import atomic_write
from socialx.core.errors import Argument, SettingsError
from socialx.core.help import END, SPLIT, START, Help, Output, with_help
from socialx.core.outputs import CARD, PAGE, check_outputs
from socialx.core.progress import Callback, subscribe
from socialx.files.store.time_axis import Time
from socialx.scoring.attention_sums import AttentionWeights
from socialx.scoring.metrics import Breakdown
from socialx.scoring.results import Evaluation, Explanation, ModelScores, published_scores
from socialx.scoring.scoring_pass import run_metrics
from socialx.settings.arguments import SettingsArguments
from socialx.settings.conflicts import sensor_tables
from socialx.settings.layers import ConfigLayers, flat, run_settings
from socialx.settings.schema import Settings
from socialx.tasks.explain import make_explanation
from socialx.tasks.memory import when_memory_runs_out
from socialx.tasks.report.contents import LEVEL, Day, Ends, ForecastRecorder, RunRecord, RunReport, telling_days
from socialx.tasks.report.page import model_card, page
from socialx.tasks.scored_split import Part, ScoredSplit, load_scored_split
from socialx.tasks.train import Run, run_names
from socialx.training.run_folder import TRAINED, TrainedRun, find_run_folder

MINUTES_AHEAD = 30  # of the forecasts that are compared with a day
LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,39}")
DIVIDED = ("horizon", "hour", "weekday")  # by what the page divides errors


@with_help
def report(
    runs: Annotated[str | Path | Run | Sequence[str | Path | Run], Help("run folders", "RUN...")],
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    output: str | Path | None = None,
    card: Annotated[str | None, Output("also write README.md into RUN, a model card: mit, unknown", "LICENCE")] = None,
    split: Annotated[str, SPLIT] = "test",
    start: Annotated[Time | None, START] = None,
    end: Annotated[Time | None, END] = None,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Unpack[SettingsArguments],
) -> RunReport:
    """Return scores for runs and baselines, settings, learning curves, and the errors of the best run.

    output: also write an HTML page, a single file that works offline; an older file is replaced. card: the licence for
    the weights, by a hub's identifier. Further arguments as in ``evaluate``.

    Every run forecasts the split once. Next to published results, a run with a climatology forecasts the split again
    with the climatology from training.

    Raises SettingsError without a run, for a card with several runs, or for runs with different windows.
    """
    with subscribe(progress):
        if not runs:
            raise SettingsError("report.no-run", "report", "no run", "name a run folder")
        names, layers = run_names(runs), ConfigLayers.from_call(settings, {**sections, "data": data}, task=report)
        readme = _readme(names, card)
        check_outputs((output, PAGE), (readme, CARD))
        scored = load_scored_split(names, layers, Part(split, start, end))
        result = _report(scored)
        if output is not None:
            with atomic_write(Path(output)) as temporary:
                temporary.write_text(page(result), encoding="utf-8")
        if readme is not None:
            tied = sensor_tables(scored.experiment.settings)
            with atomic_write(readme) as temporary:
                temporary.write_text(model_card(result, str(card), tied), encoding="utf-8")
        return result


def _report(scored: ScoredSplit) -> RunReport:
    """Pass every model over the windows once, and return the contents of the page."""
    dataset, protocol, minutes = scored.data, scored.protocol, scored.data.store.step_minutes
    step = max(1, min(dataset.horizon, round(MINUTES_AHEAD / minutes)))  # of the horizon
    rows = scored.rows[0] + step - 1
    dataset.note_clock(("hour",))
    spans = telling_days(dataset.target_source, rows)
    scores: dict[str, ModelScores] = {}
    errors: dict[str, Breakdown] = {}
    explained: list[tuple[Explanation, ForecastRecorder]] = []
    with when_memory_runs_out(scored.experiment):
        for name, model in {**scored.baselines(), **scored.models()}.items():
            sums, sums_by, weights = scored.scores(), scored.errors(), AttentionWeights(model)
            shown = ForecastRecorder(step, spans, _ends(scored, name))
            with weights.sample_batches(len(scored.loader)):
                run_metrics(
                    model, scored.loader, scored.experiment.precision, sums, sums_by, shown, name=f"report {name}"
                )
            scores[name], errors[name] = ModelScores.from_scores(sums.compute(), protocol), sums_by.compute()
            if name in scored.experiments:
                explained.append((make_explanation(name, scored, errors[name], weights.compute()), shown))
        results = published_scores(protocol, scored.split)
        frozen = scored.score_climatology_days(frozen=bool(results))
    best, shown = min(explained, key=lambda pair: math.inf if pair[0].mae is None else pair[0].mae)
    seconds = dataset.store.clock.local(dataset.store.seconds[rows])
    days = tuple(
        Day(step * minutes, seconds[span], truth, forecast, (band[0], band[1]) if band else None)
        for span, (truth, forecast, *band) in zip(spans, shown.compute(), strict=True)
    )
    by = {name: {division: tables[division] for division in DIVIDED} for name, tables in errors.items()}
    return RunReport(
        evaluation=Evaluation(scored.split, protocol, scores, results, climatology_days=frozen, by=by),
        runs=tuple(_record(one.run, one.trained.epoch) for one in scored.opened.values()),
        defaults=flat(Settings()),
        explanation=best,
        sensors=dataset.sensors.ids,
        days=days,
    )


def _ends(scored: ScoredSplit, name: str) -> Ends | None:
    """Return a function for the interval ends around a run's forecasts, or None without intervals."""
    if name not in scored.opened or not (scored.opened[name].run.path / "intervals.safetensors").exists():
        return None
    intervals = scored.intervals(name)
    return partial(intervals.apply, level=LEVEL) if intervals.widest_level >= LEVEL else None


def _readme(names: Sequence[str], card: str | None) -> Path | None:
    """Return the path for a model card in the run folder, None without ``card`` (licence); SettingsError if invalid."""
    if card is None:
        return None
    if len(names) != 1:
        raise SettingsError(
            "report.one-run", "", f"{Argument('card')} is of one run, and {len(names)} are named", "name one run folder"
        )
    if not LICENCE.fullmatch(card):
        raise SettingsError(
            "report.licence", Argument("card", card), "no identifier of a licence", "for example mit, or unknown"
        )
    folder = find_run_folder(Path(names[0])).path
    if folder.parent == TRAINED:
        raise SettingsError(
            "report.shipped", Argument("card", card), f"{names[0]} comes with the package", "name a run of your own"
        )
    return folder / "README.md"


def _record(run: TrainedRun, epoch: int | None) -> RunRecord:
    """Return the record of a training from a run folder."""
    origins = run.read_json("settings_sources.json") if (run.path / "settings_sources.json").exists() else {}
    settings = flat(run_settings(run.settings, run.values).settings)
    return RunRecord(str(run.named), settings, {k: str(v) for k, v in origins.items()}, tuple(run.rows()), epoch)
