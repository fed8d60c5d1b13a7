"""``export`` and ``load_model``: a run -> a file that forecasts without socialx, or a module that takes arrays."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from torch.export import ExportedProgram
from torch.onnx import ONNXProgram

import socialx
from socialx.core.disk import atomic_write
from socialx.core.errors import Argument, SettingsError, SocialxError
from socialx.core.help import OVERWRITE, RUN, Help, with_help
from socialx.core.notebook import ResultRepr
from socialx.core.precision import is_out_of_memory
from socialx.core.progress import Callback, subscribe, work
from socialx.data.calendar import DAY_S, shifts
from socialx.files.store.quantities import NOT_NEGATIVE
from socialx.files.store.time_axis import as_text, clock_changes
from socialx.model.export_model import INPUTS, OUTPUT, ExportModel, trace_model
from socialx.scoring.protocol import ScoringProtocol
from socialx.settings.layers import ARGUMENT, SET, ConfigLayers
from socialx.settings.schema import Settings, flag_name
from socialx.tasks.build import Experiment
from socialx.tasks.export_formats import FORMATS, ONNX_BYTES, as_onnx, write_onnx, write_safetensors, write_torch
from socialx.tasks.outputs import check_outputs
from socialx.tasks.train import Run
from socialx.tasks.trained_model import load_trained
from socialx.training.run_folder import open_run

# What an exported model computes in; whoever loads it chooses the device.
KNOWN_DAYS = 20 * 366  # whose holidays and clock changes an exported model knows, after the data
FIXED = {"trainer.device": "cpu", "trainer.precision": "32-true", "model.backend": "fused"}


@dataclass(frozen=True, repr=False)
class Export(ResultRepr):
    """An exported model: where it is, torch, onnx or safetensors, its size, and what the file says of itself."""

    path: Path
    format: str
    bytes: int
    about: dict[str, Any]

    def headline(self) -> str:
        """One line: the format, what it forecasts, and the size."""
        about = self.about
        targets = ", ".join(f"{name} ({unit})" for name, unit in about["targets"].items())
        steps = f"{about['horizon']} steps of {about['step_minutes']} min from {about['lookback']}"
        steps += f", past days until {about['known_until']}" if about["known_until"] else ""
        return f"{self.format}, {targets} of {len(about['sensors']):,} sensors, {steps}, {self.bytes / 1e6:.1f} MB"


@with_help
def export(
    run: Annotated[str | Path | Run, RUN],
    output: Annotated[str | Path, Help("a .pt2, .onnx or .safetensors file", "OUTPUT")],
    *,
    format: Annotated[str | None, Help("its format; not set: that of its suffix", "torch|onnx|safetensors")] = None,
    overwrite: Annotated[bool, OVERWRITE] = False,
    data: str | Path | Mapping[str, Any] | None = None,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Any,
) -> Export:
    """Write the model of a run as a file that needs no socialx: a torch program, ONNX, or its weights.

    data: a file of the run's network, by default the run's own; a run without weights per sensor can be exported for
    another network.  A torch program and ONNX compute what ``predict`` computes, in float32, for any number of windows;
    docs/export.md says what they take.  Raises SettingsError for an unknown format, and SocialxError for an output that
    exists, a package that is missing, and a model that cannot be exported.
    """
    with subscribe(progress):
        path = run.path if isinstance(run, Run) else Path(run)
        output = Path(output)
        kind = _format(output, format)
        layers = ConfigLayers.from_call(settings, {**sections, "data": data})
        check_outputs((output, None), layers=layers, runs=[path], overwrite=overwrite)
        for name in ("onnx", "onnxscript") if kind == "onnx" else ():
            try:
                import_module(name)
            except ImportError:
                install = "pip install 'socialx[onnx]', or write .pt2"
                raise SocialxError(output, f"writing ONNX needs the package {name}", install) from None
        for key in sorted(FIXED):  # settings of this call that would have no effect on what is written
            if key in layers.values and layers.values[key].origin in (flag_name(key), SET, ARGUMENT):
                raise SettingsError(key, f"an export is made with {FIXED[key]}", "leave it out")
        with work("export", 3, "steps") as bar:
            of_run = open_run(path)
            experiment, _ = load_trained(of_run, layers.over(FIXED), split=False)
            about = _about(experiment, of_run.protocol)
            bar.advance()
            graph = None if kind == "safetensors" else _graph(experiment, kind, path)
            bar.advance()
            with atomic_write(output) as temporary:
                if graph is None:
                    tensors = dict(experiment.model.named_parameters()) | dict(experiment.model.named_buffers())
                    write_safetensors(temporary, tensors, json.dumps(about))
                elif isinstance(graph, ExportedProgram):
                    write_torch(temporary, graph, json.dumps(about))
                else:
                    write_onnx(temporary, graph, json.dumps(about))
            bar.advance()
        return Export(output, kind, output.stat().st_size, about)


def load_model(
    run: str | Path | Run,
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    settings: Settings | ConfigLayers | None = None,
    **sections: Any,
) -> ExportModel:
    """The trained model of a run as a torch module, ready to forecast from arrays.

    Its ``batch`` makes from arrays what its ``model`` takes; called, it takes the tensors of an exported program
    (docs/export.md).  Raises SocialxError as ``predict`` does.
    """
    path = run.path if isinstance(run, Run) else Path(run)
    experiment, _ = load_trained(path, ConfigLayers.from_call(settings, {**sections, "data": data}), split=False)
    return export_model(experiment).to(experiment.precision.device).eval()


def _format(output: Path, format: str | None) -> str:
    """The format that is asked for, or that of the suffix."""
    if format is not None:
        if format not in FORMATS:
            raise SettingsError(Argument("format", format), "no format of an export", f"choose {', '.join(FORMATS)}")
        return format
    for name, suffix in FORMATS.items():
        if output.suffix.lower() == suffix:
            return name
    remedy = f"name it {', '.join(FORMATS.values())}, or add {Argument('format')}"
    raise SettingsError(output, f"no format ends in {output.suffix!r}", remedy)


def _about(experiment: Experiment, trained: ScoringProtocol) -> dict[str, Any]:
    """What the file says of itself; trained: the protocol of the run."""
    data = experiment.data
    local = {} if data.store.local_zone is None else {"local_zone": data.store.local_zone}
    return {
        **local,
        "schema": "socialx.export/2",
        "socialx": socialx.__version__,
        "dataset": data.store.dataset_name,
        "sensors": list(data.sensors.ids),
        "inputs": {name: data.stores[name].unit for name in data.inputs},
        "missing": {name: data.stores[name].missing for name in data.inputs},
        "targets": {name: data.stores[name].unit for name in data.targets},
        "step_minutes": data.store.step_minutes,
        "lookback": data.lookback,
        "horizon": data.horizon,
        "timezone": data.store.timezone,
        "known_until": as_text(int(data.store.seconds.max())) if data.train_climatology_days else None,
        "protocol": trained.as_dict(),
    }


def _graph(experiment: Experiment, kind: str, run: Path) -> ExportedProgram | ONNXProgram:
    """The model and what is around it as a graph of torch or ONNX."""
    model = experiment.model
    tensors = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    if kind == "onnx" and tensors > ONNX_BYTES:
        large = f"its tensors are {tensors / (1 << 30):.1f} GiB, and one ONNX file takes {ONNX_BYTES / (1 << 30):.1f}"
        raise SocialxError(run, large, "export it as .pt2")
    try:
        with _quietly():
            program = trace_model(export_model(experiment))
            return as_onnx(program, INPUTS, OUTPUT) if kind == "onnx" else program
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:160]
        remedy = "export its weights as .safetensors"
        raise SocialxError(run, f"cannot be exported as {kind} ({reason})", remedy) from error


def export_model(experiment: Experiment) -> ExportModel:
    """The model of a problem with the calendar and the missing values of its file around it."""
    data = experiment.data
    missing = [data.stores[name].missing for name in data.inputs]
    not_negative = [name in NOT_NEGATIVE for name in data.targets]
    known = data.climatology_today if data.train_climatology_days else None
    own = data.calendar.day(data.store.seconds)
    days, changes = np.arange(own.min(), own.max() + KNOWN_DAYS), []
    if (zone := data.calendar.zone) is not None:
        begin = DAY_S * (int(days[0]) - 2)
        changes = [(begin, int(shifts(zone, np.array(begin))))]
        changes += [(moment, after - before) for moment, before, after in clock_changes(zone, days)]
    holidays, step_minutes = data.calendar.holidays_among(days), data.store.step_minutes
    return ExportModel(experiment.model, data.network, step_minutes, missing, not_negative, known, holidays, changes)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch tells the authors of exporters: warnings, log lines, and a half-made graph on stderr."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
