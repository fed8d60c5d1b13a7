"""Several networks in one training: batches of each in turn, and a model that is set to the network of each batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from torch import Tensor, nn

from socialx.core.batch import TrainingBatch
from socialx.data.loaders import Loader


class InterleavedLoader(Loader):
    """Batches of several loaders in a random order, each as often as it has batches.

    use: called with the number of the network before each of its batches, and with 0 at the end.  names: of the
    networks.
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
        """The batches of one epoch, from ``first_batch`` on."""
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
    """The name and the loader of each network, which the model is set to meanwhile; a plain loader is of one."""
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
    """A function that sets a model to network 0, its own, or to that of one of the others, which are built alike.

    All that a model has of its network are buffers: neighbours, mean and deviation.  Weights stay.
    """
    states: list[list[dict[str, Tensor | None]]] = []

    def use(network: int) -> None:
        if not states:  # as they are when training begins
            states.extend(
                [{**module._buffers} for module in network_model.modules()] for network_model in (model, *others)
            )
        for module, buffers in zip(model.modules(), states[network], strict=True):
            for name, tensor in buffers.items():
                setattr(module, name, tensor)

    return use
