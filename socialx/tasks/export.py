"""``export`` and ``load_model``: a run -> a file that forecasts without socialx, or a torch module."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np
from torch.export import ExportedProgram
from torch.onnx import ONNXProgram

from socialx.core.disk import atomic_write
from socialx.core.errors import Argument, SettingsError, SocialxError
from socialx.core.help import OVERWRITE, RUN, Help, Output, with_help
from socialx.core.notebook import ResultRepr
from socialx.core.outputs import MODEL, check_outputs
from socialx.core.precision import is_out_of_memory
from socialx.core.progress import Callback, subscribe, work
from socialx.core.version import __version__
from socialx.data.calendar import DAY_S, shifts
from socialx.files.store.quantities import NOT_NEGATIVE
from socialx.files.store.time_axis import as_text, clock_changes
from socialx.model.export_model import INPUTS, OUTPUT, ExportModel, FileFacts, trace_model
from socialx.scoring.protocol import ScoringProtocol
from socialx.settings.arguments import SettingsArguments
from socialx.settings.layers import ARGUMENT, SET, ConfigLayers
from socialx.settings.schema import Settings, flag_name
from socialx.tasks.build import Experiment
from socialx.tasks.export_formats import FORMATS, ONNX_BYTES, as_onnx, write_onnx, write_safetensors, write_torch
from socialx.tasks.opened import open_forecasting
from socialx.tasks.train import Run

# The settings of every exported model; the loader chooses the device.
KNOWN_DAYS = 20 * 366  # days after the data with known holidays and clock changes
FIXED = {"trainer.device": "cpu", "trainer.precision": "32-true", "model.backend": "fused"}


@dataclass(frozen=True, repr=False)
class Export(ResultRepr):
    """An exported model: path, format (torch, onnx or safetensors), size and metadata."""

    path: Path
    format: str
    bytes: int
    about: dict[str, Any]

    def headline(self) -> str:
        """Return one line: format, forecast and size."""
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
    format: Annotated[str | None, Output("its format; not set: that of its suffix", "torch|onnx|safetensors")] = None,
    overwrite: Annotated[bool, OVERWRITE] = False,
    data: str | Path | Mapping[str, Any] | None = None,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Unpack[SettingsArguments],
) -> Export:
    """Write the model of a run to a file that works without socialx: a torch program, ONNX, or weights.

    data: a file of the run's network, by default the run's own; a run without weights per sensor can be exported for
    another network.  A torch program and ONNX forecast as ``predict`` on the day of the last row, in float32, for any
    number of windows, but lean on nothing; docs/export.md lists the inputs.  Raises SettingsError for an unknown
    format, and SocialxError for an existing output, a missing package, and a model that cannot be exported.
    """
    with subscribe(progress):
        path = run.path if isinstance(run, Run) else Path(run)
        output = Path(output)
        kind = _choose_format(output, format)
        layers = ConfigLayers.from_call(settings, {**sections, "data": data}, task=export)
        check_outputs((output, MODEL), overwrite=overwrite)
        for name in ("onnx", "onnxscript") if kind == "onnx" else ():
            try:
                import_module(name)
            except ImportError:
                install = "pip install 'socialx[onnx]', or write .pt2"
                raise SocialxError("export.needs", output, f"writing ONNX needs the package {name}", install) from None
        for key in sorted(FIXED):  # settings that an export ignores
            if key in layers.values and layers.values[key].origin in (flag_name(key), SET, ARGUMENT):
                problem = f"an export uses {Argument(key, FIXED[key])}"
                raise SettingsError("export.fixed", "", problem, f"leave {Argument(key)} out")
        with work("export", 3, "steps") as bar:
            opened = open_forecasting(path, layers.over(FIXED), split=False)
            experiment = replace(opened.experiment, model=opened.at_the_end)
            about = _describe_export(experiment, opened.run.protocol)
            bar.advance()
            graph = None if kind == "safetensors" else _trace_graph(experiment, kind, path)
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
    **sections: Unpack[SettingsArguments],
) -> ExportModel:
    """Return the trained model of a run as a torch module that forecasts from arrays.

    ``batch`` turns arrays into the input of ``model``.  Calling the module takes the tensors of an exported program
    (docs/export.md).  data, settings, sections: as in ``predict``.  Raises SocialxError as ``predict`` does.
    """
    path = run.path if isinstance(run, Run) else Path(run)
    layers = ConfigLayers.from_call(settings, {**sections, "data": data}, task=load_model)
    experiment = open_forecasting(path, layers, split=False).experiment
    return export_model(experiment).to(experiment.precision.device).eval()


def _choose_format(output: Path, format: str | None) -> str:
    """Return the requested format, or the format for the suffix."""
    if format is not None:
        if format not in FORMATS:
            problem = f"{Argument('format', format)} is unknown"
            raise SettingsError("export.format", "", problem, f"choose {', '.join(FORMATS)}")
        return format
    for name, suffix in FORMATS.items():
        if output.suffix.lower() == suffix:
            return name
    remedy = f"name it {', '.join(FORMATS.values())}, or add {Argument('format')}"
    raise SettingsError("export.suffix", output, f"the suffix {output.suffix!r} belongs to no format", remedy)


def _describe_export(experiment: Experiment, trained: ScoringProtocol) -> dict[str, Any]:
    """Return the metadata of the file.  trained: the protocol of the run."""
    data = experiment.data
    local = {} if data.store.local_zone is None else {"local_zone": data.store.local_zone}
    return {
        **local,
        "schema": "socialx.export/2",
        "socialx": __version__,
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


def _trace_graph(experiment: Experiment, kind: str, run: Path) -> ExportedProgram | ONNXProgram:
    """Return the model with pre- and postprocessing as a torch or ONNX graph."""
    model = experiment.model
    tensors = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    if kind == "onnx" and tensors > ONNX_BYTES:
        large = f"the tensors take {tensors / (1 << 30):.1f} GiB, and one ONNX file holds {ONNX_BYTES / (1 << 30):.1f}"
        raise SocialxError("export.too-large", run, large, "export it as .pt2")
    try:
        with _silence_torch():
            program = trace_model(export_model(experiment))
            return as_onnx(program, INPUTS, OUTPUT) if kind == "onnx" else program
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:160]
        remedy = "export the weights as .safetensors"
        raise SocialxError("export.fails", run, f"the model cannot be exported as {kind} ({reason})", remedy) from error


def export_model(experiment: Experiment) -> ExportModel:
    """Return the model with the calendar and missing-value codes of the file."""
    data = experiment.data
    missing = [data.stores[name].missing for name in data.inputs]
    not_negative = [name in NOT_NEGATIVE for name in data.targets]
    stats = data.climatology.shared.today() if data.train_climatology_days else None
    file_days = data.calendar.day(data.store.seconds)
    days, changes = np.arange(file_days.min(), file_days.max() + KNOWN_DAYS), []
    if (zone := data.calendar.zone) is not None:
        begin = DAY_S * (int(days[0]) - 2)
        changes = [(begin, int(shifts(zone, np.array(begin))))]
        changes += [(moment, after - before) for moment, before, after in clock_changes(zone, days)]
    holidays, step_minutes = data.calendar.holidays_among(days), data.store.step_minutes
    facts = FileFacts(step_minutes, missing, not_negative, holidays, changes)
    return ExportModel(experiment.model, data.network, facts, stats)


@contextmanager
def _silence_torch() -> Iterator[None]:
    """Silence messages for authors of exporters: warnings, log lines, and a partial graph on stderr."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
