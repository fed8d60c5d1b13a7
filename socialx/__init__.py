"""socialx: traffic forecasting with one shared encoder, an xLSTM or an MLP, and learned social pooling.

    import socialx

    run = socialx.train("metr_la.h5", model={"width": 64}, trainer={"max_epochs": 5}, run_dir="runs/a")
    socialx.evaluate([run], baselines=True)["runs/a"].at(minutes=15).mae
    socialx.predict(run).to_csv("next_hour.csv")

Every command of the command line is a function here, and ``config`` is ``load_settings``; ``compare`` is an option of
profile there.  Names are imported when they are first used, so that ``import socialx`` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # each once more as itself: that is how a type checker knows that it is public
    from socialx.errors import Fallback as Fallback
    from socialx.errors import GateError as GateError
    from socialx.errors import SettingsError as SettingsError
    from socialx.errors import SocialxError as SocialxError
    from socialx.files.store import open_store as open_store
    from socialx.forecast import Forecast as Forecast
    from socialx.settings import Settings as Settings
    from socialx.settings_layers import load_settings as load_settings
    from socialx.tasks.calibration import calibrate as calibrate
    from socialx.tasks.comparing import compare as compare
    from socialx.tasks.doctor_checks import doctor as doctor
    from socialx.tasks.evaluation import evaluate as evaluate
    from socialx.tasks.explanation import explain as explain
    from socialx.tasks.exporting import export as export
    from socialx.tasks.exporting import load_model as load_model
    from socialx.tasks.files import append as append
    from socialx.tasks.files import backfill as backfill
    from socialx.tasks.files import convert as convert
    from socialx.tasks.files import download as download
    from socialx.tasks.files import inspect as inspect
    from socialx.tasks.prediction import predict as predict
    from socialx.tasks.profiling import profile as profile
    from socialx.tasks.reporting import report as report
    from socialx.tasks.server import serve as serve
    from socialx.tasks.training import Run as Run
    from socialx.tasks.training import load_run as load_run
    from socialx.tasks.training import train as train

# The module of each public name.
_NAMES = {
    "errors": "Fallback GateError SettingsError SocialxError",
    "files.store": "open_store",
    "forecast": "Forecast",
    "settings_layers": "load_settings",
    "settings": "Settings",
    "tasks.calibration": "calibrate",
    "tasks.comparing": "compare",
    "tasks.doctor_checks": "doctor",
    "tasks.evaluation": "evaluate",
    "tasks.explanation": "explain",
    "tasks.exporting": "export load_model",
    "tasks.files": "append backfill convert download inspect",
    "tasks.prediction": "predict",
    "tasks.profiling": "profile",
    "tasks.reporting": "report",
    "tasks.server": "serve",
    "tasks.training": "Run load_run train",
}
MODULES = {name: f"socialx.{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(["__version__", *MODULES])


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'socialx' has no attribute {name!r}")
    return getattr(import_module(MODULES[name]), name)
