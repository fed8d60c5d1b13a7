"""socialx: traffic forecasting with one shared xLSTM encoder and learned social pooling.

    import socialx

    run = socialx.train("metr_la.h5", model={"width": 64}, trainer={"max_epochs": 5}, run_dir="runs/a")
    socialx.evaluate([run], baselines=True)["runs/a"].at(minutes=15).mae
    socialx.predict(run).to_csv("next_hour.csv")

Every command of the command line is a function here; ``compare`` and ``sweep`` are options of profile there, and
``report_runs`` is report.  Names are
imported when they are first used, so that ``import socialx`` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from socialx.errors import Fallback, GateError, SettingsError, SocialxError
    from socialx.files.store import open_store
    from socialx.forecast import Forecast
    from socialx.options import load_settings
    from socialx.serving.server import serve
    from socialx.settings import Settings
    from socialx.tasks import (
        Run,
        append,
        backfill,
        calibrate,
        compare,
        convert,
        doctor,
        download,
        evaluate,
        explain,
        export,
        inspect,
        load_run,
        predict,
        profile,
        report_runs,
        sweep,
        train,
    )

_WHERE = {
    "socialx.errors": ("Fallback", "GateError", "SettingsError", "SocialxError"),
    "socialx.files.store": ("open_store",),
    "socialx.forecast": ("Forecast",),
    "socialx.options": ("load_settings",),
    "socialx.serving.server": ("serve",),
    "socialx.settings": ("Settings",),
    "socialx.tasks": (
        *("Run", "append", "backfill", "calibrate", "compare", "convert", "doctor", "download", "evaluate", "explain"),
        *("export", "inspect", "load_run", "predict", "profile", "report_runs", "sweep", "train"),
    ),
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names}
__all__ = [
    "Fallback",
    "Forecast",
    "GateError",
    "Run",
    "Settings",
    "SettingsError",
    "SocialxError",
    "__version__",
    "append",
    "backfill",
    "calibrate",
    "compare",
    "convert",
    "doctor",
    "download",
    "evaluate",
    "explain",
    "export",
    "inspect",
    "load_run",
    "load_settings",
    "open_store",
    "predict",
    "profile",
    "report_runs",
    "serve",
    "sweep",
    "train",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'socialx' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
