"""What one training step moves through the memory of a GPU, counted kernel by kernel on tensors without data.

    python benchmarks/step_bytes.py [--windows 64] [--sensors 207] [--width 128] [--patch 1]

Every operation of torch counts with what it reads and writes.  An operation of our own counts with its launches, which
are recorded, and with its operations of torch; a launch counts each storage once.  Autocast follows the CPU's rules,
because tensors of CUDA need a build with CUDA.  Dropout, attention and layer norms run as CUDA has them.  A cache may
save some of these bytes, and nothing here is a time.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"  # nothing is compiled

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.common import RESULTS, parser, write
from benchmarks.compile_report import Launch, recorded
from socialx.core.batch import Batch, Target, TrainingBatch
from socialx.core.precision import Precision
from socialx.data import geo
from socialx.data.scaler import MeanStd, StandardScaler
from socialx.model.forecaster import Forecaster, Tokens
from socialx.model.pooling import DotAttention, Geometry, SocialLayer
from socialx.model.xlstm.encoder import SharedEncoder
from socialx.training.learner import Learner

STEPS, BLOCKS, HEADS = 12, 4, 4  # history and horizon; of the encoder
SMALL = 2_000_000  # bytes: a kernel that moves fewer is a small one
OVERWRITES = ("copy_", "fill_", "zero_", "bernoulli_", "random_")  # operations that do not read what they write
PARTS = {"mm": "products", "attention": "attention", "layer_norm": "layer norms", "dropout": "dropout"}


class Traffic(TorchDispatchMode):
    """Bytes and calls of what runs below it, by part and kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.calls: Counter[tuple[str, str]] = Counter()
        self._within = ""  # the operation of our own that runs now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if func.namespace == "socialx":
            self._within = name.removesuffix("_backward")
            with recorded(self._launched), self:
                out = OPDEFS[func._schema.name]._init_fn(*args, **(kwargs or {}))
            self._within = ""
            return out
        out = func(*args, **(kwargs or {}))
        moved = 0 if "empty" in name else of_torch(func, args, kwargs or {}, out)
        if moved:
            self._count(self._within or part_of(name, moved), name, moved)
        return out

    def _launched(self, launch: Launch) -> None:
        self._count(self._within, launch.kernel.__name__, of_launch(launch))

    def _count(self, part: str, kernel: str, moved: int) -> None:
        self.bytes[part, kernel] += moved
        self.calls[part, kernel] += 1

    def by_part(self) -> dict[str, int]:
        """Bytes of each part, the largest first."""
        sums: Counter[str] = Counter()
        for (part, _), moved in self.bytes.items():
            sums[part] += moved
        return dict(sums.most_common())


def size(t: Tensor) -> int:
    """Bytes of a tensor; what is repeated counts once."""
    shape = [length for length, stride in zip(t.shape, t.stride(), strict=True) if stride]
    return int(np.prod(shape, dtype=np.int64)) * t.element_size()


def of_torch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Bytes that an operation of torch reads and writes; 0 for a view."""
    names = [argument.name for argument in func._schema.arguments]
    named, moved, storages = dict(zip(names, args, strict=False)) | kwargs, 0, set()
    wrote = False
    for argument in func._schema.arguments:
        writes = argument.alias_info is not None and argument.alias_info.is_write
        overwrites = argument.is_out or (writes and func._schema.name.endswith(OVERWRITES))
        for t in tree_leaves(named.get(argument.name)):
            if isinstance(t, Tensor):
                moved += size(t) * (not overwrites) + size(t) * writes
                storages.add(t.untyped_storage()._cdata)
                wrote |= writes
    made = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.untyped_storage()._cdata not in storages]
    return moved + sum(map(size, made)) if made or wrote else 0


def of_launch(launch: Launch) -> int:
    """Bytes that a launch reads and writes: each storage once, of the widest of its tensors."""
    storages: dict[int, int] = {}
    given = launch.arguments
    for name, t in given.items():
        if isinstance(t, Tensor):
            moved = size(t)
            if name in ("x", "d_x") and given.get("X", 0) > given.get("H", 0) * given.get("D", 0):
                moved = moved * given["H"] * given["D"] // given["X"]  # a convolution leaves the output gates alone
            key = t.untyped_storage()._cdata
            storages[key] = max(storages.get(key, 0), moved)
    return sum(storages.values())


def part_of(name: str, moved: int) -> str:
    """The part of the step that an operation of torch belongs to."""
    if moved < SMALL:
        return "small"
    return next((part for word, part in PARTS.items() if word in name), "pointwise and sums")


@contextmanager
def as_on_cuda(backend: str) -> Iterator[None]:
    """Tensors without data, the choices of a model on CUDA, and CUDA's dropout, attention and norms."""
    norm = F.layer_norm

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return torch.native_dropout(x, p, True)[0] if training and p else x

    def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> Tensor:
        bias = bias.expand(len(query), -1, -1, -1)
        attention = torch.ops.aten._scaled_dot_product_efficient_attention
        return attention(query, key, value, bias, True, scale=scale)[0]

    def layer_norm(x: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
        return norm(x.float(), *arguments, **keywords)

    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(mock.patch.object(SharedEncoder, "choice", return_value=(backend, "")))
        stack.enter_context(mock.patch.object(DotAttention, "attend_dense", DotAttention.attend_fused))
        stack.enter_context(mock.patch.multiple(F, dropout=dropout, layer_norm=layer_norm))
        stack.enter_context(mock.patch.object(F, "scaled_dot_product_attention", attend))
        yield


def learner(backend: str, windows: int, sensors: int, width: int, patch: int = 1) -> Learner:
    """The learner of a step of four blocks with a step in a token, with two social layers over all pairs."""
    near = geo.nearest_neighbours(np.random.default_rng(0).uniform(0, 10, (sensors, 2)), None)
    social = [SocialLayer(width, DotAttention(width, Geometry(HEADS, near)), 0.1) for _ in range(2)]
    encoder = SharedEncoder(width, BLOCKS, [1, 3], HEADS, STEPS // patch, 0.1, backend, encoder_batch=windows * sensors)
    moments = [MeanStd(58.6, 12.8)]
    tokens = Tokens(width, sensors, STEPS, 288, patch=patch)
    model = Forecaster(tokens, encoder, social, STEPS, StandardScaler(moments, moments))
    options: dict[str, Any] = {"learning_rate": 1e-3, "weight_decay": 1e-3, "total_steps": 10, "gradient_clip_val": 5.0}
    with mock.patch.object(model, "to", return_value=model):  # parameters without data cannot be moved
        return Learner(model, Precision("bf16-mixed", torch.device("cpu")), **options)


def example(windows: int, sensors: int) -> TrainingBatch:
    """A batch of zeros."""
    values, calendar = torch.zeros(windows, STEPS, sensors, 1), torch.zeros(windows, 2 * STEPS, dtype=torch.int64)
    latest, valid = torch.zeros(windows, sensors, 1), torch.zeros_like(values, dtype=torch.bool)
    climatology = torch.zeros(windows, 2 * STEPS, sensors, 0)
    batch = Batch(values, valid, latest, latest.clone(), calendar, calendar.clone(), climatology, climatology.clone())
    return TrainingBatch(batch, Target(values, valid))


def counted(backend: str, windows: int, sensors: int, width: int, meter: Any = Traffic, patch: int = 1) -> Any:
    """The meter of the second step; the first one makes the optimizer's state."""
    with as_on_cuda(backend):
        made, given = learner(backend, windows, sensors, width, patch), example(windows, sensors)
        made.step([given])
        with meter() as found:
            made.step([given])
    return found


def main() -> None:
    arguments = parser(__doc__)
    for name, number in (("windows", 64), ("sensors", 207), ("width", 128), ("patch", 1)):
        arguments.add_argument(f"--{name}", type=int, default=number)
    arguments.add_argument("--output", type=Path, default=RESULTS / "step_bytes.json")
    given = arguments.parse_args()
    found = counted("triton", given.windows, given.sensors, given.width, patch=given.patch)
    parts, total = found.by_part(), sum(found.bytes.values())
    for part, moved in parts.items():
        calls = sum(number for (of, _), number in found.calls.items() if of == part)
        print(f"{part:20s} {moved / 1e9:7.2f} GB  {calls:4d} kernels")
    print(f"{'step':20s} {total / 1e9:7.2f} GB  {found.calls.total():4d} kernels")
    step = {name: getattr(given, name) for name in ("windows", "sensors", "width", "patch")}
    write(given.output, {**step, "bytes": total, "parts": parts})


if __name__ == "__main__":
    main()
