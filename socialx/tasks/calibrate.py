"""``calibrate``: a run -> the prediction intervals of its forecasts, in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from socialx.core.errors import Command, SocialxError
from socialx.core.help import RUN, with_help
from socialx.core.progress import Callback, listening
from socialx.scoring.intervals import Intervals, calibrated
from socialx.settings.layers import Layers
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
    settings: Settings | Layers | None = None,
    progress: Callback | None = None,
    **sections: Any,
) -> Intervals:
    """Measure the errors of a run on the validation part, and write its prediction intervals into its folder.

    ``train`` does this at its end; runs that go to other data are calibrated with this.  data: another
    file than the run's own, whose validation part is used.  ``predict`` and ``evaluate`` read what is written.
    """
    with listening(progress):
        path = Path(str(run))
        folder = folder_of(path)
        if folder.path.parent == TRAINED:
            own = Command("train", **{"data.path": "FILE.h5", "model.zero_shot": True})
            raise SocialxError(path, "it comes with socialx, and nothing is written there", f"train your own: {own}")
        with old_run(folder):  # nobody trains in it meanwhile
            of_run = open_run(path)
            problem, trained = load_trained(of_run, Layers.of(settings, {**sections, "data": data}))
            if problem.protocol.step_minutes != of_run.protocol.step_minutes:
                steps = f"a step of {problem.protocol.step_minutes} min, and the run {of_run.protocol.step_minutes}"
                raise SocialxError(problem.data.store.path, f"it has {steps}", "name a file of that step")
            dataset, size, precision = problem.data, problem.settings.loader.batch_size, problem.precision
            with when_memory_runs_out(problem):
                found = calibrated(problem.model, dataset, size, precision, problem.protocol, trained.weights)
            folder.write_intervals(found)
        return found
