"""Several processes that train one model: each computes its share of every batch, and all take the same step.

``torchrun`` starts them and says in the environment which one each is.  Gradients are summed in one flat tensor per
optimizer step, not in buckets during the backward pass: the whole model is a few megabytes, and a step is then the same
with several batches accumulated, with checkpointing and with parameters that a batch does not use.
"""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from socialx.data.order import Share
from socialx.errors import Command, Fallback, SocialxError

PATH_BYTES = 4096
STORE = "socialx: port of the first process"
CONNECT_S = 300.0
OUTLIVE_S = 10.0  # a process without a word stays so long: the launcher ends it sooner, when the one that speaks ended
LAUNCHED = "LAUNCHED_BY_SOCIALX"  # in the environment of processes whose launcher says which of them has ended


class ElsewhereError(SocialxError):
    """Another process failed and says why: this one ends without a word, after it."""

    def lines(self, *_: object) -> list[str]:
        """None."""
        return []


class LostError(SocialxError):
    """Another process ended without a word, and this is the first one."""

    def going_on(self, run: Path, ranks: Ranks) -> SocialxError:
        """The same with the command that goes on."""
        again = (ranks.resuming(run), " goes on after the last whole epoch")
        return SocialxError("training", self.messages[0].what, again)


@dataclass(frozen=True)
class Ranks:
    """This process among ``world``.

    restarts: how often those of this machine were started again.  job: of torchrun, empty where it has no name of its
    own.
    """

    rank: int = 0
    world: int = 1
    restarts: int = 0
    job: str = ""
    machines: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and prints."""
        return self.rank == 0

    @property
    def share(self) -> Share:
        """Its windows of every batch."""
        return Share(self.rank, self.world)

    def resuming(self, run: Path) -> Command:
        """The command that goes on with a run; torchrun is what starts it on several machines."""
        devices = self.world if self.world > 1 and self.machines == 1 else None
        return Command("train", resume=run, devices=devices)

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.world > 1:
            with self._together():
                dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return flag if self.world == 1 else bool(self.sum_(torch.tensor(int(flag))).item())

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum what every process found for its windows; all parameters have a gradient in the same processes."""
        if self.world == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = self.sum_(torch.cat([gradient.flatten() for gradient in gradients]))
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def of_first(self, tensors: Iterable[Tensor]) -> None:
        """Give these tensors the values that they have in the first process."""
        if self.world > 1:
            with self._together(), torch.no_grad():
                for tensor in tensors:
                    dist.broadcast(tensor, 0)

    def wait(self) -> None:
        """Until all processes are here."""
        self.any(False)

    def number_of_first(self, number: int) -> int:
        """The number that the first process has."""
        content = torch.tensor(number)
        self.of_first([content])
        return int(content.item())

    def text_of_first(self, text: str) -> str:
        """The text that the first process has."""
        content = torch.zeros(PATH_BYTES, dtype=torch.uint8)
        written = os.fsencode(text)[:PATH_BYTES]
        content[: len(written)] = torch.tensor(list(written), dtype=torch.uint8)
        self.of_first([content])
        return os.fsdecode(bytes(content.tolist()).rstrip(b"\0"))

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """The tensor of every process, in their order; all have the same shape, on the host."""
        if self.world == 1:
            return [tensor]
        found = [torch.empty_like(tensor) for _ in range(self.world)]
        with self._together():
            dist.all_gather(found, tensor)
        return found

    def fail(self, error: SocialxError) -> NoReturn:
        """Raise an error that every process has found: only the first one says it."""
        raise error if self.first else ElsewhereError("another process", "failed")

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Work that all do before training: where it fails in any, all end, and one of them says why."""
        error: SocialxError | None = None
        try:
            yield
        except SocialxError as raised:
            error = raised
        failed = [int(each) for each in self.gathered(torch.tensor(int(error is not None)))]
        if error is not None and failed.index(1) == self.rank:
            raise error
        if any(failed):
            raise ElsewhereError("another process", "failed")

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError:  # what gloo and NCCL raise where a process has ended
            if not self.first or os.environ.get(LAUNCHED):
                raise ElsewhereError("another process", "ended") from None
            found = f"one of the {self.world} processes has ended"
            raise LostError("training", found, "what it printed says why") from None


ALONE = Ranks()


def in_environment() -> Ranks:
    """This process as ``torchrun`` has named it; alone where it was started otherwise."""
    if "RANK" not in os.environ:
        return ALONE

    def number(name: str, default: int) -> int:
        return int(os.environ.get(name, default))

    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    restarts, machines = number("TORCHELASTIC_RESTART_COUNT", 0), number("GROUP_WORLD_SIZE", 1)
    return Ranks(number("RANK", 0), number("WORLD_SIZE", 1), restarts, "" if job == "none" else job, machines)


def _connect(ranks: Ranks) -> None:
    """Bring all processes together in a store of their own: that of torchrun keeps what earlier starts wrote."""
    try:
        shared, _, _ = next(rendezvous("env://"))
        store = _new_store(shared) if ranks.first else _store_of_first(shared)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        # Its functions keep the group that there is when they are imported, as torch._dynamo does later.  The threads
        # of gloo would outlive the training, and sometimes abort the process when it ends.
        import_module("torch.distributed.nn")
        dist.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.world)
    except (RuntimeError, ValueError, OSError) as error:
        found = f"{ranks.world} processes do not reach each other ({str(error).splitlines()[0][:100]})"
        raise SocialxError("training", found, "start all of them with torchrun") from None


def _new_store(shared: dist.Store) -> dist.Store:
    store = dist.TCPStore(os.environ["MASTER_ADDR"], 0, None, is_master=True, wait_for_workers=False)
    shared.set(STORE, str(store.port))
    return store


def _store_of_first(shared: dist.Store) -> dist.Store:
    """The store of the first process; the one of an earlier start has ended with its process."""
    end = time.monotonic() + CONNECT_S
    while True:
        port = int(shared.get(STORE))
        try:
            with socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=CONNECT_S / 10):
                pass
            return dist.TCPStore(os.environ["MASTER_ADDR"], port, None, is_master=False)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@contextmanager
def joined() -> Iterator[Ranks]:
    """All processes of this training, connected until the block ends; those after the first give no warnings."""
    ranks = in_environment()
    if ranks.world == 1:
        yield ranks
        return
    _connect(ranks)
    try:
        with warnings.catch_warnings(), ExitStack() as stack:
            stack.callback(dist.destroy_process_group)
            if not ranks.first:
                warnings.simplefilter("ignore", Fallback)
            yield ranks
    except ElsewhereError:
        time.sleep(OUTLIVE_S)  # a launcher ends all when the first one ends, and the one that failed may still speak
        raise
