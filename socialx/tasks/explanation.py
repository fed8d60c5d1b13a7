"""``explain``: where a run errs, and the attention weights of its social layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from socialx.build import Problem
from socialx.data.loaders import Loader
from socialx.errors import Message
from socialx.kinds import POOLINGS, model_of
from socialx.options import Layers
from socialx.precision import when_memory_runs_out
from socialx.progress import Callback, listening, note
from socialx.report.explanation_picture import plot_explanation
from socialx.report.geojson import places, write_explanation
from socialx.scoring.attention import AttentionWeights, LayerWeights
from socialx.scoring.breakdown import HOURS, WEEKDAYS, Breakdown, RunningErrors
from socialx.scoring.evaluation import run as run_over
from socialx.scoring.protocol import Period, Trained
from socialx.scoring.references import ZEROS_COPIED, references
from socialx.scoring.results import (
    Explanation,
    ReferenceErrors,
    breakdown_rows,
    error_rows,
    layer_summary,
    sensor_errors,
)
from socialx.settings import Settings
from socialx.tasks.evaluation import check_part, out_of_memory
from socialx.tasks.outputs import MAP, PICTURE, check_outputs
from socialx.tasks.period import Time, as_text, refuse_two_periods, windows_within
from socialx.tasks.trained import load_trained, refuse_overflow
from socialx.tasks.training import Run

BATCHES_OF_WEIGHTS = 8  # spread over the part: each of them has hundreds of windows x sensors of its own


def explain(
    run: str | Path | Run,
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    part: str = "test",
    start: Time | None = None,
    end: Time | None = None,
    plot: str | Path | None = None,
    geojson: str | Path | None = None,
    settings: Settings | Layers | None = None,
    progress: Callback | None = None,
    **sections: Mapping[str, Any],
) -> Explanation:
    """Errors of a run by horizon, hour of the day, weekday and sensor, and the attention weights of its social layers.

    Also the errors of two reference forecasts.  The other arguments are those of ``evaluate``.  plot: draw it into a
    .png, .svg or .pdf.  geojson: write the sensors, and lines from their strongest neighbours, for a map.  The
    attention weights are means over 8 batches of the part.
    """
    with listening(progress):
        check_part(part)
        name, layers = str(run), Layers.of(settings, sections, data=data)
        check_outputs((plot, PICTURE), (geojson, MAP), layers=layers, runs=[name])
        refuse_two_periods(layers, start, end)
        problem, trained = load_trained(Path(name), layers)
        d, s, precision, model = problem.data, problem.settings, problem.precision, problem.model
        where = None if geojson is None else places(d.sensors, d.store.path)
        some, period = windows_within(d, part, start, end)
        loader = d.loader(part, s.loader.batch_size, some=some)
        errors = RunningErrors(s.data.horizon, len(d.sensors.ids), d.store.step_minutes, precision.device)
        weights = AttentionWeights(model)
        with when_memory_runs_out(partial(out_of_memory, problem, model, loader, part)):
            run_over(model, loader, precision, errors, name=f"explain {name}", watch=some_batches(weights, loader))
            references = _references(problem, loader)
        explanation = explanation_of(name, problem, trained, part, errors.compute(), weights.compute(), period)
        first, last = d.forecast_rows(part, some)
        times = as_text(int(d.store.seconds[first].min())), as_text(int(d.store.seconds[last].max()))
        explanation = replace(explanation, references=references, times=times)
        if geojson is not None and where is not None:
            write_explanation(explanation, where, Path(geojson))
            note(Message("", f"wrote {geojson}: {len(where)} of {len(d.sensors.ids)} sensors"))
        if plot is not None:
            plot_explanation(explanation, Path(plot))
            note(Message("", f"drew {plot}"))
        return explanation


def _references(problem: Problem, loader: Loader) -> dict[str, ReferenceErrors]:
    """The errors of copy-last and the historical average over the windows of a loader."""
    d, device, found = problem.data, problem.precision.device, {}
    for name, model in references(d).items():
        if name == ZEROS_COPIED:
            continue
        errors = RunningErrors(d.horizon, len(d.sensors.ids), d.store.step_minutes, device)
        run_over(model.to(device), loader, problem.precision, errors, name=f"score {name}")
        of = errors.compute()
        rows = {by: breakdown_rows(of, by, d.store.step_minutes, d.sensors.ids) for by in ("horizon", "hour")}
        found[name] = ReferenceErrors(error_rows([0], of.by_step.summed())[0].mae, rows["horizon"], rows["hour"])
    return found


def some_batches(weights: AttentionWeights, loader: Loader) -> Callable[[int], AbstractContextManager[None]]:
    """What ``watch`` of a pass does so that the attention weights of a few batches are added."""
    # The last batch may be padded with windows that were seen before: it is left out where there is another.
    last = max(0, len(loader) - 2)
    hooked = set(np.linspace(0, last, BATCHES_OF_WEIGHTS).round().astype(int).tolist())
    return lambda number: weights.hooked() if number in hooked else nullcontext()


def explanation_of(
    name: str,
    problem: Problem,
    trained: Trained,
    part: str,
    found: Breakdown,
    layers: list[LayerWeights],
    period: Period | None = None,
) -> Explanation:
    """The errors and weights of a pass as an explanation; SocialxError where they are not finite."""
    d, s = problem.data, problem.settings
    refuse_overflow(name, found.by_sensor.total)
    for layer in layers:
        refuse_overflow(name, np.zeros(0) if layer.weights is None else layer.weights)
    minutes = [(step + 1) * d.store.step_minutes for step in range(s.data.horizon)]
    total = error_rows([0], found.by_step.summed())[0]
    return Explanation(
        run=name,
        part=part,
        target=d.targets[0],
        unit=d.store.unit,
        mae=total.mae,
        count=total.count,
        by_horizon=error_rows(minutes, found.by_step),
        by_hour=error_rows(range(HOURS), found.by_hour),
        by_weekday=error_rows(range(WEEKDAYS), found.by_weekday),
        sensors=sensor_errors(d.sensors, error_rows(range(len(d.sensors.ids)), found.by_sensor), layers),
        layers=tuple(map(layer_summary, layers)),
        no_pooling=None if layers else _why_no_pooling(s),
        protocol=problem.protocol.with_trained({name: trained}, period),
    )


def _why_no_pooling(s: Settings) -> str:
    if model_of(s.model.kind).social:
        return f"pooling.kind {s.pooling.kind}: {POOLINGS[s.pooling.kind].what}"
    return f"model.kind {s.model.kind}: a model without social pooling"
