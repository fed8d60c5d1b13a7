"""``export``: a run -> a file that forecasts without socialx."""

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
from typing import Any

from torch import nn
from torch.export import ExportedProgram
from torch.onnx import ONNXProgram

import socialx
from socialx.build import Problem
from socialx.disk import replacing
from socialx.errors import Argument, SettingsError, SocialxError
from socialx.files.exports import FORMATS, ONNX_BYTES, as_onnx, write_onnx, write_safetensors, write_torch
from socialx.files.store import NOT_NEGATIVE
from socialx.model.standalone import INPUTS, OUTPUT, Standalone, traced
from socialx.options import Layers
from socialx.precision import is_out_of_memory
from socialx.progress import Callback, listening, work
from socialx.scoring.protocol import ScoringProtocol
from socialx.settings import Settings
from socialx.tasks.outputs import check_outputs
from socialx.tasks.trained import load_trained
from socialx.tasks.training import Run
from socialx.training.run_folder import open_run

# What an exported model computes in; whoever loads it chooses the device.
FIXED = {"trainer.device": "cpu", "trainer.precision": "32-true", "model.impl": "fused"}


@dataclass(frozen=True)
class Export:
    """An exported model: where it is, torch, onnx or safetensors, its size, and what the file says of itself."""

    path: Path
    format: str
    bytes: int
    about: dict[str, Any]

    def summary(self) -> str:
        """One line: the format, what it forecasts, and the size."""
        a = self.about
        targets = ", ".join(f"{name} ({unit})" for name, unit in a["targets"].items())
        steps = f"{a['horizon']} steps of {a['step_minutes']} min from {a['history']}"
        return f"{self.format}, {targets} of {len(a['sensors']):,} sensors, {steps}, {self.bytes / 1e6:.1f} MB"


def export(
    run: str | Path | Run,
    output: str | Path,
    *,
    format: str | None = None,
    overwrite: bool = False,
    data: str | Path | Mapping[str, Any] | None = None,
    settings: Settings | Layers | None = None,
    progress: Callback | None = None,
    **sections: Mapping[str, Any],
) -> Export:
    """Write the model of a run as a file that needs no socialx: a torch program, ONNX, or its weights.

    format: torch, onnx or safetensors, by default by the suffix of ``output``: .pt2, .onnx or .safetensors.  data: a
    file of the run's network, by default the run's own; a run without weights per sensor can be exported for another
    network.  The first two compute what ``predict`` computes, in float32, for any number of windows; docs/export.md
    says what they take.  Raises SettingsError for an unknown format, and SocialxError for an output that exists, a
    package that is missing, and a model that cannot be exported.
    """
    with listening(progress):
        path = run.path if isinstance(run, Run) else Path(run)
        output = Path(output)
        kind = _format(output, format)
        layers = Layers.of(settings, sections, data=data)
        check_outputs((output, None), layers=layers, runs=[path], overwrite=overwrite)
        if kind == "onnx":
            _check_packages(output)
        _refuse_fixed(layers)
        with work("export", 3, "steps") as bar:
            problem, _ = load_trained(path, layers.over(FIXED), split=False)
            about = _about(problem, open_run(path).protocol())
            bar.advance()
            graph = None if kind == "safetensors" else _graph(problem, kind, path)
            bar.advance()
            with replacing(output) as temporary:
                _write(temporary, graph, problem.model, json.dumps(about))
            bar.advance()
        return Export(output, kind, output.stat().st_size, about)


def _format(output: Path, format: str | None) -> str:
    """The format that is asked for, or that of the suffix."""
    if format is not None:
        if format not in FORMATS:
            raise SettingsError(Argument("format", format), "no format of an export", f"choose {', '.join(FORMATS)}")
        return format
    for name, suffix in FORMATS.items():
        if output.suffix.lower() == suffix:
            return name
    remedy = (f"name it {', '.join(FORMATS.values())}, or add ", Argument("format"))
    raise SettingsError(output, f"no format ends in {output.suffix!r}", remedy)


def _check_packages(output: Path) -> None:
    """Refuse ONNX where what torch writes it with is not there."""
    for name in ("onnx", "onnxscript"):
        try:
            import_module(name)
        except ImportError:
            install = "pip install 'socialx[onnx]', or write .pt2"
            raise SocialxError(output, f"writing ONNX needs the package {name}", install) from None


def _refuse_fixed(layers: Layers) -> None:
    """Refuse settings of this call that would have no effect on what is written."""
    said = {key for key, value in layers.given.items() if value is not None}
    said |= {text.partition("=")[0].strip() for text in layers.sets}
    for key in sorted(said & set(FIXED)):
        raise SettingsError(key, f"an export is made with {FIXED[key]}", "leave it out")


def _about(problem: Problem, trained: ScoringProtocol) -> dict[str, Any]:
    """What the file says of itself; trained: the protocol of the run."""
    d = problem.data
    return {
        "schema": "socialx.export/1",
        "socialx": socialx.__version__,
        "dataset": d.store.dataset_name,
        "sensors": list(d.sensors.ids),
        "inputs": {name: d.stores[name].unit for name in d.inputs},
        "missing": {name: d.stores[name].missing for name in d.inputs},
        "targets": {name: d.stores[name].unit for name in d.targets},
        "step_minutes": d.store.step_minutes,
        "history": d.history,
        "horizon": d.horizon,
        "timezone": d.store.timezone,
        "protocol": trained.as_dict(),
    }


def _graph(problem: Problem, kind: str, run: Path) -> ExportedProgram | ONNXProgram:
    """The model and what is around it as a graph of torch or ONNX."""
    d, model = problem.data, problem.model
    tensors = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    if kind == "onnx" and tensors > ONNX_BYTES:
        found = f"its tensors are {tensors / (1 << 30):.1f} GiB, and one ONNX file takes {ONNX_BYTES / (1 << 30):.1f}"
        raise SocialxError(run, found, "export it as .pt2")
    missing = [d.stores[name].missing for name in d.inputs]
    bounded = [name in NOT_NEGATIVE for name in d.targets]
    try:
        with _quietly():
            program = traced(Standalone(model, d.network, d.store.step_minutes, missing, bounded))
            return as_onnx(program, INPUTS, OUTPUT) if kind == "onnx" else program
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:160]
        remedy = "export its weights as .safetensors"
        raise SocialxError(run, f"cannot be exported as {kind} ({reason})", remedy) from error


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


def _write(path: Path, graph: ExportedProgram | ONNXProgram | None, model: nn.Module, about: str) -> None:
    """Write a graph, or the weights where there is none."""
    if graph is None:
        write_safetensors(path, dict(model.named_parameters()) | dict(model.named_buffers()), about)
    elif isinstance(graph, ExportedProgram):
        write_torch(path, graph, about)
    else:
        write_onnx(path, graph, about)
