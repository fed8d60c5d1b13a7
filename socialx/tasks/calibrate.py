"""``calibrate``: a run -> the prediction intervals of its forecasts, in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from socialx.core.errors import Command, SocialxError
from socialx.core.help import RUN, with_help
from socialx.core.progress import Callback, subscribe
from socialx.scoring.intervals import ConformalIntervals, calibrated
from socialx.settings.layers import ConfigLayers
from socialx.settings.schema import Settings
from socialx.tasks.memory import when_memory_runs_out
from socialx.tasks.train import Run
from socialx.tasks.trained_model import load_trained
from socialx.training.run_folder import TRAINED, folder_of, old_run, open_run


@with_help
def calibrate(
    run: Annotated[str | Path | Run, RUN],
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Any,
) -> ConformalIntervals:
    """Measure the errors of a run on the validation split, and write its prediction intervals into its folder.

    ``train`` does this at its end; runs that go to other data are calibrated with this.  data: another
    file than the run's own, whose validation split is used.  ``predict`` and ``evaluate`` read what is written.
    """
    with subscribe(progress):
        path = Path(str(run))
        folder = folder_of(path)
        if folder.path.parent == TRAINED:
            own = Command("train", **{"data.path": "FILE.h5", "model.zero_shot": True})
            raise SocialxError(path, "it comes with socialx, and nothing is written there", f"train your own: {own}")
        with old_run(folder):  # nobody trains in it meanwhile
            of_run = open_run(path)
            experiment, trained = load_trained(of_run, ConfigLayers.from_call(settings, {**sections, "data": data}))
            if experiment.protocol.step_minutes != of_run.protocol.step_minutes:
                steps = f"a step of {experiment.protocol.step_minutes} min, and the run {of_run.protocol.step_minutes}"
                raise SocialxError(experiment.data.store.path, f"it has {steps}", "name a file of that step")
            dataset, size, precision = experiment.data, experiment.settings.loader.batch_size, experiment.precision
            with when_memory_runs_out(experiment):
                found = calibrated(experiment.model, dataset, size, precision, experiment.protocol, trained.weights)
            folder.write_intervals(found)
        return found
