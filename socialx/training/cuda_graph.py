"""Training steps as CUDA graphs, one per shape: the host hands over a batch and launches once.

Small models are bound by launches: 600 to 3,000 kernels at about 5 us each (docs/performance.md).  The device work of a
step is recorded once and replayed, and examples are copied into the buffers that the recording reads.  For a series on
the device the recording gathers the windows, and only row numbers are copied.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call

from socialx.core.batch import Batch, Target, TrainingBatch
from socialx.core.errors import Argument, fall_back, in_short
from socialx.core.precision import is_out_of_memory
from socialx.dataset.loaders import Selection

Example = TrainingBatch | Selection
Work = Callable[[Sequence[Example]], Tensor]
WARMUP = 3  # real steps before a recording, in which libraries, optimizer and scaler allocate


class CapturedStep:
    """A step on a group of examples, recorded once per shape after a few ordinary steps.

    work: the whole device work of a step, without host values, because a replay repeats the recorded values.  ``work``
    reads the same buffers before the recording too, because other strides would make a compiled model compile again,
    which a recording cannot hold.  record: makes the recording.  recover: restores the host side after a half-recorded
    step.  After a failed recording ``CapturedStep`` warns once, and nothing is recorded again.
    """

    def __init__(self, work: Work, record: CudaRecorder, recover: Callable[[], None] = lambda: None) -> None:
        self._work, self._record, self._recover = work, record, recover
        self._shapes: dict[Any, _Shape] = {}

    def __call__(self, examples: Sequence[Example]) -> Tensor:
        """Run a step on ``examples``, by replay where recorded; return a copy of ``work``'s result, on the device."""
        shapes = tuple(map(_shapes, examples))
        if self._record.failed and (shapes not in self._shapes or self._shapes[shapes].recording is None):
            return self._work(examples)
        if shapes not in self._shapes:
            self._shapes[shapes] = _Shape([_buffer(example) for example in examples])
        shape = self._shapes[shapes]
        for buffer, example in zip(shape.buffers, examples, strict=True):
            for into, tensor in zip(_tensors(buffer), _tensors(example), strict=True):
                into.copy_(tensor, non_blocking=True)
        shape.taken += 1
        if shape.taken <= WARMUP:
            return self._record.run_on_side_stream(lambda: self._work(shape.buffers))
        if shape.recording is None:
            try:
                shape.recording = self._record(lambda: self._work(shape.buffers))
            except RuntimeError as error:  # CUDA cannot record some operation of the step
                if is_out_of_memory(error):
                    raise
                self._record.failed = True
                self._shapes.clear()  # recordings read the tensors that recover replaces
                self._recover()
                problem = f"{Argument('trainer.cuda_graph')} is off: a step cannot be recorded ({in_short(error)})"
                fall_back("train.graph-off", "", problem)
                return self._work(shape.buffers)
        replay, result = shape.recording
        replay()
        return result.clone()


@dataclass
class _Shape:
    """The buffers for groups of one shape, the number of steps taken, and the recording."""

    buffers: list[Example]
    taken: int = 0
    recording: tuple[Callable[[], None], Tensor] | None = None


def _tensors(example: Example) -> tuple[Tensor, ...]:
    return (example.rows,) if isinstance(example, Selection) else (*example.batch, *example.target)


def _shapes(example: Example) -> tuple[Any, ...]:
    """Return the key under which recordings are kept: tensor shapes, and for a ``Selection`` the series in memory."""
    series = example.series if isinstance(example, Selection) else None
    return series, *(tuple(tensor.shape) for tensor in _tensors(example))


def _buffer(example: Example) -> Example:
    """Return an empty example of the same shapes, to copy later examples into."""
    if isinstance(example, Selection):
        return replace(example, rows=torch.empty_like(example.rows), full=False)
    alike = partial(torch.empty_like, memory_format=torch.contiguous_format)
    batch, target = (map(alike, part) for part in example)
    return TrainingBatch(Batch(*batch), Target(*target))


class CastTogether:
    """A model under autocast that casts its weights in one launch, not in one each, and their gradients in another.

    The first batch shows which weights nothing but a cast reads.  Recorded steps repeat their operations, so that this
    holds for all later batches; other steps may differ, and wait for the host more than for launches.
    """

    def __init__(self, model: nn.Module, low: torch.dtype) -> None:
        self._model, self._low, self._weights = model, low, dict[str, nn.Parameter]()

    def __call__(self, batch: Batch) -> Tensor:
        """Return the forecast [B,P,N,G]."""
        casts = _Cast.apply(self._low, *self._weights.values()) if self._weights else ()
        forecast: Tensor = functional_call(self._model, dict(zip(self._weights, casts, strict=True)), (batch,))
        self._weights = self._weights or self._cast_weights(forecast)
        return forecast

    def _cast_weights(self, forecast: Tensor) -> dict[str, nn.Parameter]:
        """Return the weights that only casts read, in the graph of ``forecast``, by name."""
        readers: defaultdict[Any, set[str]] = defaultdict(set)
        nodes: list[Any] = [forecast.grad_fn]
        while nodes:
            node = nodes.pop()
            followers = {follower for follower, _ in node.next_functions if follower}
            nodes += followers - set(readers)
            for follower in followers:
                readers[follower].add(node.name())
        trained = {name: tensor for name, tensor in self._model.named_parameters() if tensor.requires_grad}
        return {name: w for name, w in trained.items() if readers[get_gradient_edge(w).node] == {"ToCopyBackward0"}}


class _Cast(torch.autograd.Function):
    """Casts of many tensors to a type, and of the gradients back to float32."""

    @staticmethod
    def forward(ctx: Any, low: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        copies = [torch.empty_like(tensor, dtype=low) for tensor in tensors]
        torch._foreach_copy_(copies, tensors)
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_Cast.forward(ctx, torch.float32, *(grad.contiguous() for grad in gradients))  # of equal strides


class CudaRecorder:
    """The stream and memory pool that all recordings of a process share, because recordings never run concurrently.

    The steps before a recording run on the same stream: gradient buffers belong to the stream that allocated them, and
    the caching allocator keeps free blocks per stream.
    """

    def __init__(self) -> None:
        self._pool: Any = None
        self._side: torch.cuda.Stream | None = None
        self.failed = False  # of what a failed recording left open no other can be made

    def run_on_side_stream(self, work: Callable[[], Tensor]) -> Tensor:
        """Run ``work`` unrecorded on the stream for recordings, to warm up, and return the result."""
        side, main = self._stream(), torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            result = work()
        main.wait_stream(side)
        result.record_stream(main)
        return result

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Record ``work``, and return a function that replays the recording and the tensor for the result.

        Other threads keep running, so a loader may allocate memory.  torch restores neither stream nor random generator
        after a failed recording, which would break the next dropout, so both are restored here.  What such a recording
        allocated stays with its pool.
        """
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        main, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        before = generator.clone_state()
        gc.collect()  # autograd objects in a cycle would draw the recording onto their stream
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream(), capture_error_mode="thread_local"):
                result = work()
        except BaseException:
            torch.cuda.set_stream(main)
            generator.graphsafe_set_state(before)
            torch.cuda.synchronize()
            raise
        return graph.replay, result

    def _stream(self) -> torch.cuda.Stream:
        self._side = self._side or torch.cuda.Stream()
        return self._side
