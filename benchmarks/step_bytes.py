"""What a preset's training step moves through the memory of a GPU, counted launch by launch on tensors without data.

    python benchmarks/step_bytes.py [--preset xlstm-small] [--windows 16] [--sensors 207] [--patch 6]

Every operation of torch counts as one launch with what it reads and writes, one over lists of tensors too, unless their
strides differ.  Autocast follows the CPU's rules, because tensors of CUDA need a build with CUDA.  Dropout, attention
and layer norms run as CUDA has them.  A cache may save some of these bytes, and nothing here is a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.common import RESULTS, parser, write
from socialx.core.batch import Batch, Target, TrainingBatch
from socialx.core.precision import Precision
from socialx.data import geo
from socialx.data.scaler import DataSpec, MeanStd
from socialx.model.forecaster import Forecaster
from socialx.model.pooling import DotAttention
from socialx.settings.layers import PRESETS
from socialx.settings.schema import ModelSettings, PoolingSettings, TrainerSettings
from socialx.training.cuda_graph import CastTogether
from socialx.training.learner import Learner

STEPS = 12  # history and horizon
SMALL = 2_000_000  # bytes: a kernel that moves fewer is a small one
OVERWRITES = ("copy_", "fill_", "zero_", "bernoulli_", "random_")  # operations that do not read what they write
PARTS = {"mm": "products", "attention": "attention", "layer_norm": "layer norms", "dropout": "dropout"}


class Traffic(TorchDispatchMode):
    """Bytes and calls of what runs below it, by part and kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.calls: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        out = func(*args, **(kwargs or {}))
        moved = 0 if "empty" in name else of_torch(func, args, kwargs or {}, out)
        if moved:
            self.bytes[part_of(name, moved), name] += moved
            self.calls[part_of(name, moved), name] += launches(name, args)
        return out

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


def launches(name: str, args: tuple[Any, ...]) -> int:
    """1, or for lists whose tensors differ in strides as many as there are tensors."""
    lists = [each for each in args if name.startswith("_foreach") and isinstance(each, list)]
    same = all(len({t.stride() for t in tensors}) == 1 for tensors in zip(*lists, strict=False))
    return 1 if same else len(lists[0])


def part_of(name: str, moved: int) -> str:
    """The part of the step that an operation of torch belongs to."""
    if moved < SMALL:
        return "small"
    return next((part for word, part in PARTS.items() if word in name), "pointwise and sums")


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Tensors without data, the choices of a model on CUDA, and CUDA's dropout, attention, norms and gradient norm."""
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
        stack.enter_context(mock.patch("torch.nn.utils.clip_grad._has_foreach_support", return_value=True))
        stack.enter_context(mock.patch.object(DotAttention, "attend_dense", DotAttention.attend_fused))
        stack.enter_context(mock.patch.multiple(F, dropout=dropout, layer_norm=layer_norm))
        stack.enter_context(mock.patch.object(F, "scaled_dot_product_attention", attend))
        yield


def learner(windows: int, sensors: int, preset: str = "xlstm-small", patch: int = 6) -> Learner:
    """The learner of a preset's step, with all sequences at once."""
    settings = PRESETS[preset]
    near = geo.nearest_neighbours(np.random.default_rng(0).uniform(0, 30, (sensors, 2)), settings["pooling.neighbours"])
    moments = (MeanStd(58.6, 12.8),)
    network = DataSpec(sensors, STEPS, STEPS, 288, moments, moments, (0,), lambda: near)
    sizes: dict[str, Any] = {name: settings[f"model.{name}"] for name in ("width", "blocks", "slstm_at", "dropout")}
    pooling = PoolingSettings(adaptive_adjacency_rank=settings["pooling.adaptive_adjacency_rank"])
    model = Forecaster(network, ModelSettings(patch=patch, encoder_batch=windows * sensors, **sizes), pooling)
    trainer = TrainerSettings(learning_rate=1e-3, weight_decay=1e-3, lr_warmup_steps=0)
    with mock.patch.object(model, "to", return_value=model):  # parameters without data cannot be moved
        made = Learner(model, network, Precision("bf16-mixed", torch.device("cpu")), trainer)
    made._forecast = CastTogether(model, torch.bfloat16)  # as in recorded steps
    return made


def example(windows: int, sensors: int) -> TrainingBatch:
    """A batch of zeros."""
    values, calendar = torch.zeros(windows, STEPS, sensors, 1), torch.zeros(windows, 2 * STEPS, dtype=torch.int64)
    latest, valid = torch.zeros(windows, sensors, 1), torch.zeros_like(values, dtype=torch.bool)
    climatology = torch.zeros(windows, 2 * STEPS, sensors, 1)
    batch = Batch(values, valid, latest, latest.clone(), calendar, calendar.clone(), climatology, climatology.clone())
    return TrainingBatch(batch, Target(values, valid))


def counted(windows: int, sensors: int, preset: str = "xlstm-small", patch: int = 6) -> Traffic:
    """The meter of the second step; the first one makes the optimizer's state."""
    with as_on_cuda():
        made, given = learner(windows, sensors, preset, patch), example(windows, sensors)
        made.step([given])
        with Traffic() as found:
            made.step([given])
    return found


def main() -> None:
    arguments = parser(__doc__, windows=16, sensors=207, patch=6, output=RESULTS / "step_bytes.json")
    arguments.add_argument("--preset", choices=["xlstm-small", "xlstm-large"], default="xlstm-small")
    given = arguments.parse_args()
    step = {name: getattr(given, name) for name in ("windows", "sensors", "preset", "patch")}
    found = counted(**step)
    parts, total = found.by_part(), found.bytes.total()
    for part, moved in parts.items():
        calls = sum(number for (of, _), number in found.calls.items() if of == part)
        print(f"{part:20s} {moved / 1e9:7.2f} GB  {calls:4d} launches")
    print(f"{'step':20s} {total / 1e9:7.2f} GB  {found.calls.total():4d} launches")
    write(given.output, {**step, "launches": found.calls.total(), "bytes": total, "parts": parts})


if __name__ == "__main__":
    main()
