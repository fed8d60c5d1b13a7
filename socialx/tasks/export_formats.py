"""Writers for exported models: a torch program, ONNX, or weights as safetensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor
from torch.export import ExportedProgram

FORMATS = {"torch": ".pt2", "onnx": ".onnx", "safetensors": ".safetensors"}  # name -> suffix
ABOUT = "socialx"  # metadata key in exported files
OPSET = 18
BOOL = 9  # onnx.TensorProto.BOOL
ONNX_BYTES = 3 << 29  # torch writes the weights of a larger model into a second file


def write_torch(path: Path, program: ExportedProgram, about: str) -> None:
    """Write a program for ``torch.export.load``.  about: text for the extra file ``socialx.json``."""
    with path.open("wb") as file:
        torch.export.save(program, file, extra_files={f"{ABOUT}.json": about})


def as_onnx(program: ExportedProgram, inputs: Sequence[str], output: str) -> torch.onnx.ONNXProgram:
    """Return the program in ONNX with ``batch`` as the first dimension.  inputs, output: tensor names.

    Needs the packages onnx and onnxscript.  Raises RuntimeError where ONNX lacks an operation.
    """
    op: Any = import_module("onnxscript").opset18

    def log_sigmoid(x: Any) -> Any:
        """Avoid log(sigmoid), which onnxruntime computes as -inf from -18 downwards."""
        return op.Neg(op.Softplus(op.Neg(x)))

    def cummax(x: Any, dim: int) -> Any:
        """Replace an operation that ONNX lacks: the cumulative maximum over the last dimension."""
        if dim not in (-1, len(x.shape) - 1):
            raise RuntimeError(f"cummax over dimension {dim}, not over the last one")
        last = op.Shape(x, start=-1)
        square = op.Expand(op.Constant(value_int=1), op.Concat(last, last, axis=0))
        not_later = op.Cast(op.Trilu(square, upper=0), to=BOOL)
        pairs = op.Where(not_later, op.Unsqueeze(x, op.Constant(value_ints=[-2])), op.Constant(value_float=-math.inf))
        top = op.ReduceMax(pairs, op.Constant(value_ints=[-1]), keepdims=0)
        return top, op.ArgMax(pairs, axis=-1, keepdims=0)

    # ONNX versions of torch operations that torch translates badly or not at all.
    aten = torch.ops.aten
    operations: dict[Callable, Callable] = {aten.log_sigmoid.default: log_sigmoid, aten.cummax.default: cummax}
    exported = torch.onnx.export(
        program,
        dynamo=True,
        opset_version=OPSET,
        input_names=list(inputs),
        output_names=[output],
        dynamic_shapes={name: {0: "batch"} for name in inputs},
        custom_translation_table=operations,
        verbose=False,
    )
    if exported is None:  # only if torch gets an output path
        raise RuntimeError("torch made no ONNX program")
    return exported


def write_onnx(path: Path, program: torch.onnx.ONNXProgram, about: str) -> None:
    """Write one ONNX file.  about: text for the metadata key ``socialx``."""
    program.model.metadata_props[ABOUT] = about
    program.save(path)


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], about: str) -> None:
    """Write named tensors.  about: text for the metadata key ``socialx``."""
    path.write_bytes(save({name: tensor.detach().clone() for name, tensor in tensors.items()}, {ABOUT: about}))
