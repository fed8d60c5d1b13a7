"""A trained model as a file that other programs read: a program of torch, ONNX, or its weights as safetensors."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor
from torch.export import ExportedProgram

FORMATS = {"torch": ".pt2", "onnx": ".onnx", "safetensors": ".safetensors"}  # name -> suffix
ABOUT = "socialx"  # where a file says what it holds
OPSET = 18
ONNX_BYTES = 3 << 29  # torch writes the weights of a larger model into a second file


def write_torch(path: Path, program: ExportedProgram, about: str) -> None:
    """Write a program for ``torch.export.load``; about: a text in its extra file ``socialx.json``."""
    with path.open("wb") as file:
        torch.export.save(program, file, extra_files={f"{ABOUT}.json": about})


def as_onnx(program: ExportedProgram, inputs: Sequence[str], output: str) -> torch.onnx.ONNXProgram:
    """The program in ONNX, its first dimension being ``batch``; inputs and output: their names.

    Needs the packages onnx and onnxscript.  RuntimeError where ONNX lacks an operation.
    """
    with _quietly():
        made = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=[output],
            dynamic_shapes={name: {0: "batch"} for name in inputs},
            verbose=False,
        )
    if made is None:  # only where torch is given a path to write to
        raise RuntimeError("torch made no ONNX program")
    return made


def write_onnx(path: Path, program: torch.onnx.ONNXProgram, about: str) -> None:
    """Write one ONNX file; about: a text in its metadata as ``socialx``."""
    program.model.metadata_props[ABOUT] = about
    program.save(path)


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], about: str) -> None:
    """Write named tensors; about: a text in its metadata as ``socialx``."""
    path.write_bytes(save({name: tensor.detach().clone() for name, tensor in tensors.items()}, {ABOUT: about}))


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch tells the authors of its exporter: packages that it skips, and its own deprecated calls."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
