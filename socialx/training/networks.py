"""Several sensor networks in one training: interleaved batches, and a model that switches networks per batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from torch import Tensor, nn

from socialx.core.batch import TrainingBatch
from socialx.dataset.loaders import Loader


class InterleavedLoader(Loader):
    """Batches from several loaders in random order, in proportion to the loader lengths.

    use: a function called with the network number before each batch, and with 0 at the end.  names: the network names.
    """

    def __init__(
        self, loaders: Sequence[Loader], use: Callable[[int], None], seed: int, names: Sequence[str] = ()
    ) -> None:
        self.loaders, self.use, self.seed, self.names = loaders, use, seed, names
        self.num_windows = sum(loader.num_windows for loader in loaders)
        self.batch_size, self.shard = loaders[0].batch_size, loaders[0].shard
        self.making_s: deque[float] = loaders[0].making_s

    def __len__(self) -> int:
        return sum(map(len, self.loaders))

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[TrainingBatch]:
        """Yield the batches of epoch ``number`` from ``first_batch`` on; the order depends on seed and ``number``."""
        turns = np.repeat(np.arange(len(self.loaders)), list(map(len, self.loaders)))
        np.random.default_rng([self.seed, number]).shuffle(turns)
        taken = np.bincount(turns[:first_batch], minlength=len(self.loaders))
        batches = [loader.epoch(number, int(first)) for loader, first in zip(self.loaders, taken, strict=True)]
        try:
            for network in turns[first_batch:].tolist():
                self.use(network)
                yield next(batches[network])
        finally:
            self.use(0)


def per_network(loader: Loader) -> Iterator[tuple[str, Loader]]:
    """Yield (name, loader) per sensor network, with the model set to the network; a plain loader once, without name."""
    if not isinstance(loader, InterleavedLoader):
        yield "", loader
        return
    try:
        for network, name in enumerate(loader.names):
            loader.use(network)
            yield name, loader.loaders[network]
    finally:
        loader.use(0)


def network_switcher(model: nn.Module, others: Sequence[nn.Module]) -> Callable[[int], None]:
    """Return a function that gives ``model`` the buffers (neighbours, scaler) of network i.

    0 is the network of ``model``, i of ``others[i - 1]``.  All share one architecture, and ``model`` keeps its weights.
    """
    states: list[list[dict[str, Tensor | None]]] = []

    def use(network: int) -> None:
        if not states:  # as they are when training begins
            states.extend([{**module._buffers} for module in other.modules()] for other in (model, *others))
        for module, buffers in zip(model.modules(), states[network], strict=True):
            for name, tensor in buffers.items():
                setattr(module, name, tensor)

    return use
