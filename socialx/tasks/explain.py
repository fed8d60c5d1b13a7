"""``explain``: errors of a run, and attention weights in its social layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np

from socialx.core.errors import Message
from socialx.core.help import END, RUN, SPLIT, START, Output, with_help
from socialx.core.outputs import MAP, PICTURE, check_outputs
from socialx.core.progress import Callback, note, subscribe
from socialx.drawing.map import sensor_places
from socialx.files.store.time_axis import Time
from socialx.scoring.attention_sums import AttentionWeights, LayerWeights, sensor_errors
from socialx.scoring.explanation import plot_explanation, write_explanation
from socialx.scoring.metrics import Breakdown
from socialx.scoring.references import ZEROS_COPIED
from socialx.scoring.results import Explanation, ReferenceErrors
from socialx.scoring.scoring_pass import refuse_overflow, run_metrics
from socialx.settings.arguments import SettingsArguments
from socialx.settings.kinds import POOLINGS, find_model
from socialx.settings.layers import ConfigLayers
from socialx.settings.schema import Settings
from socialx.tasks.memory import when_memory_runs_out
from socialx.tasks.scored_split import Part, ScoredSplit, load_scored_split
from socialx.tasks.train import Run


@with_help
def explain(
    run: Annotated[str | Path | Run, RUN],
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    split: Annotated[str, SPLIT] = "test",
    start: Annotated[Time | None, START] = None,
    end: Annotated[Time | None, END] = None,
    plot: Annotated[
        str | Path | None, Output("draw it, with a map of the attention weights, .png, .svg or .pdf", "FILE")
    ] = None,
    geojson: Annotated[
        str | Path | None, Output("write the sensors and lines to their neighbours for a map", "FILE")
    ] = None,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Unpack[SettingsArguments],
) -> Explanation:
    """Break down the errors of a run by horizon, hour, weekday and sensor, and average its attention weights.

    The result includes two baselines for comparison.  Attention weights are means over 8 batches of the split.  data,
    settings, sections: as in ``evaluate``.  Raises SettingsError and SocialxError as ``evaluate`` does.
    """
    with subscribe(progress):
        name, layers = str(run), ConfigLayers.from_call(settings, {**sections, "data": data}, task=explain)
        check_outputs((plot, PICTURE), (geojson, MAP))
        scored = load_scored_split([name], layers, Part(split, start, end))
        dataset, precision, model = scored.data, scored.experiment.precision, scored.experiment.model
        dataset.note_clock(("hour",))
        locations = None if geojson is None else sensor_places(dataset.sensors, dataset.store.path)
        with when_memory_runs_out(scored.experiment):
            baselines = {key: forecast for key, forecast in scored.baselines().items() if key != ZEROS_COPIED}
            errors, weights = scored.errors(), AttentionWeights(model)
            with weights.sample_batches(len(scored.loader)):
                run_metrics(model, scored.loader, precision, errors, name=f"explain {name}")
            references = {}
            for baseline, forecaster in baselines.items():
                running = scored.errors()
                run_metrics(forecaster, scored.loader, precision, running, name=f"score {baseline}")
                rows = running.compute()
                references[baseline] = ReferenceErrors(rows["all"][0].mae, rows["horizon"], rows["hour"])
        explanation = make_explanation(name, scored, errors.compute(), weights.compute(), references)
        if geojson is not None and locations is not None:
            write_explanation(explanation, locations, Path(geojson))
            note(Message("explain.map", "", f"wrote {geojson}: {len(locations)} of {len(dataset.sensors.ids)} sensors"))
        if plot is not None:
            plot_explanation(explanation, Path(plot))
            note(Message("explain.picture", "", f"drew {plot}"))
        return explanation


def make_explanation(
    run: str,
    scored: ScoredSplit,
    errors: Breakdown,
    layers: list[LayerWeights],
    references: Mapping[str, ReferenceErrors] | None = None,
) -> Explanation:
    """Return errors and attention weights as an Explanation.  Raises SocialxError for non-finite values."""
    data, settings, (total,) = scored.data, scored.experiments[run].settings, errors["all"]
    first, last = map(data.store.clock.text, scored.span)
    refuse_overflow(run, np.array([row.mae if row.count else 0.0 for row in errors["sensor"]], float))
    for layer in layers:
        refuse_overflow(run, np.zeros(0) if layer.weights is None else layer.weights)
    no_pooling = None
    if not layers and find_model(settings.model.kind).social:
        no_pooling = f"pooling.kind {settings.pooling.kind}: {POOLINGS[settings.pooling.kind].description}"
    elif not layers:
        no_pooling = f"model.kind {settings.model.kind}: a model without social pooling"
    return Explanation(
        run=run,
        split=scored.split,
        target=data.targets[0],
        unit=data.store.unit,
        mae=total.mae,
        count=total.count,
        by_horizon=errors["horizon"],
        by_hour=errors["hour"],
        by_weekday=tuple(replace(row, key=day) for day, row in enumerate(errors["weekday"])),
        sensors=sensor_errors(data.sensors, errors["sensor"], layers),
        layers=tuple(layer.layer for layer in layers),
        no_pooling=no_pooling,
        protocol=scored.experiments[run].protocol.with_trained({run: scored.trained[run]}, scored.period),
        references=references or {},
        times=(first, last),
    )
