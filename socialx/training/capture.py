"""A training step as one CUDA graph per shape: the host hands over a batch and one launch, whatever the step holds.

Small models are bound by launches: 700 to 3,000 kernels at about 5 us each (docs/performance.md).  The work of a step
is recorded once and replayed; examples are copied into the buffers that the recording reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from socialx.batch import Batch, Example, Target
from socialx.errors import fall_back

Work = Callable[[Sequence[Example]], Tensor]
Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
WARMUP = 3  # real steps before a recording: libraries make their workspaces, optimizer and scaler their state


class CapturedStep:
    """``work`` on a group of examples, recorded once per shape of a group after a few steps as they are.

    work: everything a step does on the device; no host value may enter or leave it, because a replay repeats the
    values of the recording.  recover: put the host's side of a half-recorded step back.  A failed recording warns, and
    from then on every step runs as it is.
    """

    def __init__(self, work: Work, recover: Callable[[], None], record: Record | None = None) -> None:
        self._work, self._recover = work, recover
        self._record: Record | None = record or _CudaRecorder()
        self._taken: dict[Any, int] = {}
        self._recorded: dict[Any, tuple[list[Example], Callable[[], None], Tensor]] = {}

    def __call__(self, examples: Sequence[Example]) -> Tensor:
        """One step -> its result on the device, a copy that the next step leaves alone."""
        shapes = tuple(tuple(tensor.shape) for example in examples for tensor in _tensors(example))
        if self._record is not None and shapes not in self._recorded:
            taken = self._taken.get(shapes, 0)
            self._taken[shapes] = taken + 1
            if taken < WARMUP:
                return _on_a_side_stream(self._work, examples)
            self._try_to_record(self._record, shapes, examples)
        if shapes not in self._recorded:
            return self._work(examples)
        buffers, replay, result = self._recorded[shapes]
        for buffer, example in zip(buffers, examples, strict=True):
            for into, tensor in zip(_tensors(buffer), _tensors(example), strict=True):
                into.copy_(tensor, non_blocking=True)
        replay()
        return result.clone()

    def _try_to_record(self, record: Record, shapes: Any, examples: Sequence[Example]) -> None:
        buffers = [_cloned(example) for example in examples]
        try:
            self._recorded[shapes] = (buffers, *record(lambda: self._work(buffers)))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # the step holds something that CUDA cannot record
            self._record = None
            self._recorded.clear()  # they read the tensors that recover replaces
            self._recover()
            fall_back("trainer.cuda_graph", f"no step can be recorded ({in_short(error)})", "going on without")


def _tensors(example: Example) -> tuple[Tensor, ...]:
    return (*example.batch, *example.target)


def _cloned(example: Example) -> Example:
    batch, target = example
    return Example(Batch(*(tensor.clone() for tensor in batch)), Target(*(tensor.clone() for tensor in target)))


def in_short(error: Exception) -> str:
    """The first line of an error that others' code raised, for a warning."""
    return next((line.strip()[:160] for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _on_a_side_stream(work: Work, examples: Sequence[Example]) -> Tensor:
    """Gradient buffers and their streams are made here, and a recording may not meet the default stream's."""
    if examples[0].batch.history.device.type != "cuda":
        return work(examples)
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        result = work(examples)
    main.wait_stream(side)
    result.record_stream(main)
    return result


class _CudaRecorder:
    """Recordings of one process share a memory pool: they never run at the same time and leave nothing behind in it."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = work()
        return graph.replay, result
