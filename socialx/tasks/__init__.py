"""One public function per command: settings in, a typed result out.  This is the Python API.

A task takes ``settings`` or sections as keywords (``model={"width": 64}``), prints nothing, and tells its progress to a
callback.  Paths may be text.  Each is imported when it is first named: ``inspect`` needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from socialx.tasks.calibration import calibrate
    from socialx.tasks.comparing import compare, sweep
    from socialx.tasks.diagnosis import doctor
    from socialx.tasks.evaluation import evaluate
    from socialx.tasks.explanation import explain
    from socialx.tasks.exporting import export
    from socialx.tasks.files import BackfillError, append, backfill, convert, download, inspect
    from socialx.tasks.prediction import predict
    from socialx.tasks.profiling import profile
    from socialx.tasks.reporting import report_runs
    from socialx.tasks.training import Run, load_run, train

_WHERE = {
    "calibration": ("calibrate",),
    "comparing": ("compare", "sweep"),
    "diagnosis": ("doctor",),
    "evaluation": ("evaluate",),
    "explanation": ("explain",),
    "exporting": ("export",),
    "files": ("BackfillError", "append", "backfill", "convert", "download", "inspect"),
    "prediction": ("predict",),
    "profiling": ("profile",),
    "reporting": ("report_runs",),
    "training": ("Run", "load_run", "train"),
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names}
__all__ = [
    "BackfillError",
    "Run",
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
    "predict",
    "profile",
    "report_runs",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'socialx.tasks' has no attribute {name!r}")
    return getattr(import_module(f"socialx.tasks.{_MODULES[name]}"), name)
