"""What the compiler makes of every Triton kernel, without a GPU: registers, spills and shared memory.

    python benchmarks/compile_report.py [--arch 80 90] [--dtype bf16 fp16 fp32] [--width 16 32 64 128] [--steps 12 64]

The operations run on meta tensors, each launch is recorded instead of made, and ptxas compiles what was recorded.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from socialx.model.xlstm import cells, convolution, operations

KERNELS = {
    convolution: ("conv_forward", "conv_backward"),
    cells: ("mlstm_forward", "mlstm_backward", "slstm_forward", "slstm_backward"),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SEQUENCES, HEADS = 1000, 4
RESULT = Path(__file__).parent / "results" / "kernels_compile"


class Launch(NamedTuple):
    """A kernel, its grid and its arguments by name; tensors are meta tensors."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]


class Recorder:
    """Stands for a kernel: keeps its launches."""

    def __init__(self, kernel: Any, launches: list[Launch]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: Any) -> Any:
        def launch(*arguments: Any, **keywords: Any) -> None:
            named = dict(zip(self.kernel.arg_names, arguments, strict=False))
            self.launches.append(Launch(self.kernel, grid, named | keywords))

        return launch


def launches(
    operation: str, width: int, steps: int, dtype: torch.dtype, last: bool = False, sequences: int = SEQUENCES
) -> list[Launch]:
    """What a forward and backward of the operation launches."""
    made: list[Launch] = []
    channels = HEADS * width

    def meta(*shape: int, of: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(*shape, dtype=of, device="meta")

    with ExitStack() as recorders:
        for module, names in KERNELS.items():
            recorded = {name: Recorder(getattr(module, name), made) for name in names}
            recorders.enter_context(mock.patch.multiple(module, **recorded))
        wide = torch.float32
        if operation == "mlstm":
            u = meta(steps, sequences, channels if last else 2 * channels)
            z = meta(1, sequences, channels) if last else None
            table = meta(15 + 4 * HEADS, channels, of=wide)
            forward, backward = operations.mlstm._init_fn, operations.mlstm_backward._init_fn
            h, *kept = forward(u, z, table, meta(2 * HEADS, of=wide), HEADS, 1e-5)
            backward(h, u, z, table, *kept, 1e-5)
        else:
            weights = (
                meta(6, channels, of=wide),
                meta(HEADS, 4 * width, 2 * width, of=wide),
                meta(HEADS, 4 * width, width, of=wide),
                meta(4 * channels, of=wide),
            )
            keep = meta(1 if last else steps, sequences, channels, of=torch.bool)
            forward, backward = operations.slstm._init_fn, operations.slstm_backward._init_fn
            y, *kept = forward(meta(steps, sequences, channels), *weights, keep, HEADS, 1e-5, 1.1, last)
            backward(y, *weights, keep, *kept, 1e-5, 1.1)
    return made


def compiled(kernel: Any, arguments: dict[str, Any], arch: int) -> dict[str, Any]:
    """Registers, bytes spilled and bytes of shared memory of one launch."""
    options = {name: arguments[name] for name in ("num_warps", "num_stages", "maxnreg") if name in arguments}
    signature, constants, attributes = {}, {}, {}
    for position, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + triton.runtime.jit.type_canonicalisation_dict[str(value.dtype)[6:]]
            attributes[(position,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "i32" if isinstance(value, int) else "fp32"
    source = ASTSource(kernel, signature, constants, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(made.asm["ptx"])
        file.flush()
        name = re.search(r"\.target (\w+)", made.asm["ptx"])[1]
        ptxas = triton.knobs.nvidia.ptxas_blackwell if arch >= 100 else triton.knobs.nvidia.ptxas
        command = [ptxas.path, "-v", f"--gpu-name={name}", file.name, "-o", "/dev/null"]
        log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    return {
        "registers": int(re.search(r"Used (\d+) registers", log)[1]),
        "spill_stores": int(spills[1]),
        "spill_loads": int(spills[2]),
        "shared": made.metadata.shared,
        **options,
    }


def report(widths: list[int], archs: list[int], dtypes: list[str], steps: list[int]) -> Iterator[dict[str, Any]]:
    """A row per launch of a forward and backward of both cells."""
    for width, dtype, length, operation in itertools.product(widths, dtypes, steps, ("mlstm", "slstm")):
        for kernel, _, arguments in launches(operation, width, length, DTYPES[dtype]):
            for arch in archs:
                shape = {"operation": operation, "kernel": kernel.__name__, "width": width, "steps": length}
                yield {**shape, "dtype": dtype, "arch": arch, **compiled(kernel, arguments, arch)}


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a table."""
    lines = [
        "# What ptxas makes of the kernels",
        "",
        f"Written by `python benchmarks/compile_report.py` with triton {triton.__version__}; no GPU is needed. Width "
        "is that of a head, spills are bytes stored and loaded per thread.",
        "",
        "| cell | kernel | width | T | type | sm | warps | registers | spills | shared bytes |",
        "|---|---|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r['operation']} | {r['kernel']} | {r['width']} | {r['steps']} | {r['dtype']} | {r['arch']} "
        f"| {r['num_warps']} | {r['registers']} | {r['spill_stores']} + {r['spill_loads']} | {r['shared']} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, nargs="+", default=[80, 90])
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES))
    parser.add_argument("--width", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--steps", type=int, nargs="+", default=[12])
    parser.add_argument("--output", type=Path, default=RESULT, help="without its ending")
    options = parser.parse_args()
    rows = []
    for row in report(options.width, options.arch, options.dtype, options.steps):
        rows.append(row)
        print(row, flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    options.output.with_suffix(".md").write_text(markdown(rows))


if __name__ == "__main__":
    main()
