"""socialx: traffic forecasting with one shared encoder, an xLSTM or an MLP, and learned social pooling.

    import socialx

    run = socialx.train("metr_la.h5", model={"width": 64}, trainer={"max_epochs": 5}, run_dir="runs/a")
    socialx.evaluate([run], baselines=True)["runs/a"].at(minutes=15).mae
    socialx.predict(run).to_csv("next_hour.csv")

Every command of the command line is a function here; ``config`` is another name of ``load_settings``, and ``compare``
is an option of profile there.  Names are imported when they are first used, so that ``import socialx`` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from socialx.core.version import __version__ as __version__

if TYPE_CHECKING:  # each once more as itself: that is how a type checker knows that it is public
    from socialx.core.errors import CheckFailedError as CheckFailedError
    from socialx.core.errors import FallbackWarning as FallbackWarning
    from socialx.core.errors import SettingsError as SettingsError
    from socialx.core.errors import SocialxError as SocialxError
    from socialx.files.sources.append import AppendResult as AppendResult
    from socialx.files.store.store import open_store as open_store
    from socialx.forecast.forecast import Forecast as Forecast
    from socialx.model.export_model import ExportModel as ExportModel
    from socialx.profiling.profile import Profile as Profile
    from socialx.scoring.intervals import ConformalIntervals as ConformalIntervals
    from socialx.scoring.results import Evaluation as Evaluation
    from socialx.scoring.results import Explanation as Explanation
    from socialx.serving.server import serve as serve
    from socialx.settings.layers import load_settings as load_settings
    from socialx.settings.schema import Settings as Settings
    from socialx.tasks.calibrate import calibrate as calibrate
    from socialx.tasks.compare import Comparison as Comparison
    from socialx.tasks.compare import compare as compare
    from socialx.tasks.data_files import Conversion as Conversion
    from socialx.tasks.data_files import Inspection as Inspection
    from socialx.tasks.data_files import append as append
    from socialx.tasks.data_files import backfill as backfill
    from socialx.tasks.data_files import convert as convert
    from socialx.tasks.data_files import download as download
    from socialx.tasks.data_files import inspect as inspect
    from socialx.tasks.doctor import DoctorResult as DoctorResult
    from socialx.tasks.doctor import doctor as doctor
    from socialx.tasks.evaluate import evaluate as evaluate
    from socialx.tasks.explain import explain as explain
    from socialx.tasks.export import export as export
    from socialx.tasks.export import load_model as load_model
    from socialx.tasks.predict import predict as predict
    from socialx.tasks.profile import profile as profile
    from socialx.tasks.report.report import report as report
    from socialx.tasks.train import Run as Run
    from socialx.tasks.train import load_run as load_run
    from socialx.tasks.train import train as train
    from socialx.tasks.training_data import open_dataset as open_dataset

# The module of each public name.
_NAMES = {
    "core.errors": "FallbackWarning CheckFailedError SettingsError SocialxError",
    "files.sources.append": "AppendResult",
    "files.store.store": "open_store",
    "forecast.forecast": "Forecast",
    "model.export_model": "ExportModel",
    "scoring.intervals": "ConformalIntervals",
    "scoring.results": "Evaluation Explanation",
    "serving.server": "serve",
    "settings.layers": "load_settings",
    "settings.schema": "Settings",
    "tasks.calibrate": "calibrate",
    "tasks.compare": "Comparison compare",
    "tasks.data_files": "Conversion Inspection append backfill convert download inspect",
    "tasks.doctor": "DoctorResult doctor",
    "tasks.evaluate": "evaluate",
    "tasks.explain": "explain",
    "tasks.export": "export load_model",
    "tasks.predict": "predict",
    "tasks.profile": "profile",
    "tasks.report.report": "report",
    "tasks.train": "Run load_run train",
    "tasks.training_data": "open_dataset",
    "profiling.profile": "Profile",
}
MODULES = {name: f"socialx.{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(["__version__", *MODULES])


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name == "config":  # as the command
        name = "load_settings"
    if name not in MODULES:
        from socialx.core.notebook import unknown_name

        raise AttributeError(unknown_name(f"module 'socialx' has no attribute {name!r}", name, __all__, "socialx"))
    return getattr(import_module(MODULES[name]), name)
