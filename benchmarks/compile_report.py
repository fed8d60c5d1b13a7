"""What the compiler makes of every Triton kernel, without a GPU: instructions, registers, spills, warps that fit.

    python benchmarks/compile_report.py [--arch 80 90] [--dtype bf16 fp16 fp32] [--width 16 32 64 128] [--steps 12 64]

The operations run on meta tensors, each launch is recorded instead of made, ptxas compiles what was recorded, and
nvdisasm, which comes with Triton, shows the instructions.  They are counted as they are issued: a loop counts as often
as it runs, and what a condition skips counts as if it ran.  Nothing here is a time.
"""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.common import RESULTS, head, line, parser, write
from socialx.model.xlstm import cell_kernels as cells
from socialx.model.xlstm import convolution_kernels as convolution
from socialx.model.xlstm import operations
from socialx.model.xlstm import residual_kernels as residual

KERNELS = {
    convolution: ("conv_forward", "conv_backward"),
    cells: ("mlstm_forward", "mlstm_backward", "slstm_forward", "slstm_backward"),
    residual: ("add_norm_forward", "add_norm_backward"),
}
OPERATIONS = ("mlstm", "slstm", "add_norm")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
HEADS, SEQUENCES = 4, 64 * 207  # of the benchmark's step
WARPS, BLOCKS, REGISTERS = 64, 32, 65_536  # of a multiprocessor, sm_80 to sm_100
SHARED = {80: 164 * 1024, 90: 228 * 1024, 100: 228 * 1024}  # bytes; a program takes 1 KiB more than it asks for
ENOUGH = 32  # warps of a multiprocessor: with 8 warps each, its 4 schedulers may issue one of a warp every 8 cycles
WAIT = 16  # instructions of a loop, at most, that only waits


class Launch(NamedTuple):
    """A kernel, its grid and its arguments by name; tensors are meta tensors."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]


class Recorder:
    """Stands for a kernel: hands on its launches."""

    def __init__(self, kernel: Any, take: Callable[[Launch], None]) -> None:
        self.kernel, self.take = kernel, take

    def __getitem__(self, grid: Any) -> Any:
        def launch(*arguments: Any, **keywords: Any) -> None:
            named = dict(zip(self.kernel.arg_names, arguments, strict=False))
            self.take(Launch(self.kernel, grid, named | keywords))

        return launch


@contextmanager
def recorded(take: Callable[[Launch], None]) -> Iterator[None]:
    """Every launch of a kernel is given to take instead of being made."""
    with ExitStack() as stack:
        for module, names in KERNELS.items():
            recorders = {name: Recorder(getattr(module, name), take) for name in names}
            stack.enter_context(mock.patch.multiple(module, **recorders))
        yield


def launches(
    operation: str, width: int, steps: int, dtype: torch.dtype, last: bool = False, sequences: int = SEQUENCES
) -> list[Launch]:
    """What a forward and backward of the operation launches."""
    made: list[Launch] = []
    channels = HEADS * width

    def meta(*shape: int, of: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(*shape, dtype=of, device="meta")

    with recorded(made.append):
        wide = torch.float32
        if operation == "mlstm":
            u = meta(steps, sequences, channels if last else 2 * channels)
            z = meta(1, sequences, channels) if last else None
            table = meta(15 + 4 * HEADS, channels, of=wide)
            forward, backward = operations.mlstm._init_fn, operations.mlstm_backward._init_fn
            h, *projected, gates = forward(u, z, table, HEADS, meta(2 * HEADS, of=wide), 1e-5)
            backward(u, z, table, gates, *projected, h, 1e-5)
        elif operation == "add_norm":
            x, y = (meta(steps, sequences, channels, of=of) for of in (wide, dtype))
            keep, scale = meta(*y.shape, of=torch.bool), meta(channels, of=wide)
            forward, backward = operations.add_norm._init_fn, operations.add_norm_backward._init_fn
            total, out = forward(x, y, keep, 1.1, scale, 1e-5, dtype)
            backward(total, keep, 1.1, scale, dtype, x, out, 1e-5)
        else:
            recurrent = [meta(HEADS, 4 * width, width, of=wide) for _ in range(2)]
            weights = (meta(6, channels, of=wide), *recurrent, meta(4 * channels, of=wide))
            keep = meta(1 if last else steps, sequences, channels, of=torch.bool)
            forward, backward = operations.slstm._init_fn, operations.slstm_backward._init_fn
            x = meta(steps, sequences, channels)
            y, reads, states = forward(x, HEADS, last, *weights, keep, 1e-5, 1.1)
            backward(*weights, reads, states, keep, y, 1e-5, 1.1)
    return made


def compiled(launch: Launch, arch: int) -> dict[str, Any]:
    """Registers, bytes spilled, bytes of shared memory, instructions and warps that fit, of one launch.

    instructions: of one warp; per_sequence: of all warps, for each sequence; slots: the same, in proportion more where
    fewer than ENOUGH warps fit; None where not even one program does.
    """
    kernel, grid, arguments = launch
    options = {name: arguments[name] for name in ("num_warps", "num_stages", "maxnreg") if arguments.get(name)}
    signature, constants, attributes = {}, {}, {}
    for position, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + triton.runtime.jit.type_canonicalisation_dict[str(value.dtype)[6:]]
            attributes[(position,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "i32" if isinstance(value, int) else "fp32"
    source = ASTSource(kernel, signature, constants, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        ptx.write_text(made.asm["ptx"])
        name = re.search(r"\.target (\w+)", made.asm["ptx"])[1]
        ptxas = triton.knobs.nvidia.ptxas_blackwell if arch >= 100 else triton.knobs.nvidia.ptxas
        log = _said(ptxas.path, "-v", "-lineinfo", f"--gpu-name={name}", ptx, "-o", cubin).stderr
        sass = _said(triton.knobs.nvidia.nvdisasm.path, "-c", cubin).stdout
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    registers = int(re.search(r"Used (\d+) registers", log)[1])
    shared, warps = made.metadata.shared, options["num_warps"]
    resident = warps_that_fit(registers, shared, warps, arch)
    instructions = issued(sass, trips(kernel.__name__, arguments))
    per_sequence = instructions * warps * math.prod(grid) / SEQUENCES
    return {
        "registers": registers,
        "spill_stores": int(spills[1]),
        "spill_loads": int(spills[2]),
        "shared": shared,
        "instructions": instructions,
        "per_sequence": per_sequence,
        "warps_per_sm": resident,
        "slots": per_sequence * max(1.0, ENOUGH / resident) if resident else None,
        **options,
    }


def _said(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)


def trips(kernel: str, arguments: dict[str, Any]) -> int:
    """How often the loop of a kernel runs; 1 where it has none."""
    if kernel == "conv_forward":
        return arguments["H"] * arguments["D"] // arguments["W"]
    return 1 if kernel.startswith("mlstm") else arguments["TURNS" if kernel.startswith("add_norm") else "T"]


def issued(sass: str, trips: int) -> int:
    """Instructions that one warp issues, of nvdisasm's text; the loop of a kernel runs so many trips.

    A few instructions that repeat wait for something: they count once, and what is behind the end of the kernel, where
    long waits and padding are, does not count.  ValueError for a second loop.
    """
    lines = [text for text in sass.splitlines() if re.match(r"\.L_x_\d+:|\s+/\*[0-9a-f]{4,}\*/", text)]
    end = max(number for number, text in enumerate(lines) if "EXIT" in text)
    labels: dict[str, int] = {}
    loops, count = [], 0
    for number, text in enumerate(lines):
        if text.startswith("."):
            if number > end:
                break
            labels[text.partition(":")[0]] = count
            continue
        count += 1
        back = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", text)
        if back and back[1] in labels and count - labels[back[1]] > WAIT:
            loops.append(count - labels[back[1]])
    if len(loops) > 1:
        raise ValueError(f"{len(loops)} loops: the trips of one are known")
    return count + sum((trips - 1) * loop for loop in loops)


def warps_that_fit(registers: int, shared: int, warps: int, arch: int) -> int:
    """Warps of one multiprocessor at a time, of programs of so many warps, registers a thread and shared bytes."""
    of_a_warp = 32 * -(-registers // 8) * 8
    by_registers = REGISTERS // of_a_warp // 4 * 4 // warps
    by_shared = SHARED[arch] // (shared + 1024)
    return warps * min(by_registers, by_shared, WARPS // warps, BLOCKS)


def report(widths: list[int], archs: list[int], dtypes: list[str], steps: list[int]) -> Iterator[dict[str, Any]]:
    """A row per launch of a forward and backward of both cells and of what is between them."""
    for width, dtype, length, operation in itertools.product(widths, dtypes, steps, OPERATIONS):
        for launch in launches(operation, width, length, DTYPES[dtype]):
            for arch in archs:
                shape = {"operation": operation, "kernel": launch.kernel.__name__, "width": width, "steps": length}
                yield {**shape, "dtype": dtype, "arch": arch, **compiled(launch, arch)}


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a table."""
    columns = ("cell", "kernel", "width", "T", "type", "sm", "warps", "registers", "spills", "shared", "instructions")
    lines = [
        "# What ptxas makes of the kernels",
        "",
        f"Written by `python benchmarks/compile_report.py` with triton {triton.__version__}; no GPU is needed. Width "
        "is that of a head, of which there are 4. Warps are those of a program, and *fit* says how many a "
        "multiprocessor holds. Spills are bytes stored and loaded per thread; shared memory is in bytes, too. "
        f"Instructions are those of all warps for one sequence. Slots are the instructions times {ENOUGH} / fit where "
        f"fewer than {ENOUGH} fit: launch options are compared by them. None of these is a time.",
        "",
        head(*columns, "fit", "slots"),
    ]
    keys = ("operation", "kernel", "width", "steps", "dtype", "arch", "num_warps", "registers")
    for row in rows:
        spills, slots = f"{row['spill_stores']} + {row['spill_loads']}", f"{row['slots']:,.0f}" if row["slots"] else "-"
        counted = (spills, row["shared"], f"{row['per_sequence']:,.0f}", row["warps_per_sm"], slots)
        lines.append(line([*(row[key] for key in keys), *counted]))
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--arch", type=int, nargs="+", default=[80, 90])
    arguments.add_argument("--dtype", nargs="+", default=list(DTYPES))
    arguments.add_argument("--width", type=int, nargs="+", default=[16, 32, 64, 128])
    arguments.add_argument("--steps", type=int, nargs="+", default=[12])
    arguments.add_argument("--output", type=Path, default=RESULTS / "kernels_compile", help="without its ending")
    given = arguments.parse_args()
    rows = []
    for row in report(given.width, given.arch, given.dtype, given.steps):
        rows.append(row)
        print(row, flush=True)
    write(given.output.with_suffix(".json"), rows)
    given.output.with_suffix(".md").write_text(markdown(rows))


if __name__ == "__main__":
    main()
