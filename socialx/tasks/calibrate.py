"""``calibrate``: a run -> prediction intervals in the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Unpack

from socialx.core.errors import Command, SocialxError
from socialx.core.help import RUN, with_help
from socialx.core.progress import Callback, subscribe
from socialx.scoring.intervals import ConformalIntervals, fit_intervals
from socialx.settings.arguments import SettingsArguments
from socialx.settings.layers import ConfigLayers
from socialx.settings.schema import Settings
from socialx.tasks.memory import when_memory_runs_out
from socialx.tasks.opened import open_forecasting
from socialx.tasks.train import Run
from socialx.training.run_folder import TRAINED, find_run_folder, lock_run


@with_help
def calibrate(
    run: Annotated[str | Path | Run, RUN],
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Unpack[SettingsArguments],
) -> ConformalIntervals:
    """Measure the errors of a run on the validation split, and write prediction intervals into the run folder.

    ``train`` calibrates at its end; call ``calibrate`` before using a run on other data.  data: another file, whose
    validation split is used in place of the run's own.  Raises SocialxError for a bundled run and another time step.
    """
    with subscribe(progress):
        path = Path(str(run))
        folder = find_run_folder(path)
        if folder.path.parent == TRAINED:
            train = Command("train", **{"data.path": "FILE.h5", "model.zero_shot": True})
            raise SocialxError(
                "calibrate.shipped", path, "the run comes with socialx and is read-only", f"train your own: {train}"
            )
        with lock_run(folder):  # training is locked out
            opened = open_forecasting(
                path, ConfigLayers.from_call(settings, {**sections, "data": data}, task=calibrate)
            )
            experiment, of_run = opened.experiment, opened.run.protocol
            if experiment.protocol.step_minutes != of_run.step_minutes:
                steps = f"a step of {experiment.protocol.step_minutes} min, and the run {of_run.step_minutes}"
                raise SocialxError(
                    "calibrate.other-step",
                    experiment.data.store.path,
                    f"the file has {steps}",
                    "name a file of that step",
                )
            dataset, size, precision = experiment.data, experiment.settings.loader.batch_size, experiment.precision
            with when_memory_runs_out(experiment):
                intervals = fit_intervals(
                    experiment.model, dataset, size, precision, experiment.protocol, opened.trained.weights
                )
            folder.write_intervals(intervals)
        return intervals
