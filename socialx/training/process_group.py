"""Several processes that train one model: each computes its share of every batch, and all take the same step.

``torchrun`` starts them and says in the environment which one each is.  Gradients are summed in one flat tensor per
optimizer step, not in buckets during the backward pass: the whole model is a few megabytes, and a step is then the same
with several batches accumulated, with checkpointing and with parameters that a batch does not use.
"""

from __future__ import annotations

import json
import os
import socket
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from socialx.core.errors import Command, FallbackWarning, SocialxError, in_short
from socialx.core.progress import Callback, subscribe
from socialx.data.loaders import RankShare

RANK_SEED = 1_000_033  # between the seeds of two processes
STORE = "socialx: port of the first process"
CONNECT_S = 300.0
OUTLIVE_S = 10.0  # a process without a word stays so long: the launcher ends it sooner, when the one that speaks ended
LAUNCHED = "LAUNCHED_BY_SOCIALX"  # in the environment of processes whose launcher says which of them has ended


class RemoteRankError(SocialxError):
    """Another process failed and says why: this one ends without a word, after it."""

    def lines(self, *_: object) -> list[str]:
        """None."""
        return []


class RankDiedError(SocialxError):
    """Another process ended without a word, and this is the first one."""


@dataclass(frozen=True)
class ProcessGroup:
    """This process, number ``rank`` of the ``world_size`` that train one model; one process alone exchanges nothing.

    restarts: how often the launcher started all of them again.  job: its name at the launcher, empty where it has none.
    """

    rank: int = 0
    world_size: int = 1
    restarts: int = 0
    job: str = ""
    machines: int = 1

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is the one that writes and prints."""
        return self.rank == 0

    @property
    def share(self) -> RankShare:
        """Its windows of every batch."""
        return RankShare(self.rank, self.world_size)

    def resume_command(self, run: Path) -> Command:
        """The command that goes on with a run; torchrun is what starts it on several machines."""
        devices = self.world_size if self.world_size > 1 and self.machines == 1 else None
        return Command("train", resume=run, devices=devices)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.world_size > 1:
            with self._collective():
                dist.all_reduce(tensor)
        return tensor

    def any_rank(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return flag if self.world_size == 1 else bool(self.all_reduce(torch.tensor(int(flag))).item())

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum what every process found for its windows; all parameters have a gradient in the same processes."""
        if self.world_size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = self.all_reduce(torch.cat([gradient.flatten() for gradient in gradients]))
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give these tensors the values that they have in the first process."""
        if self.world_size > 1:
            with self._collective(), torch.no_grad():
                for tensor in tensors:
                    dist.broadcast(tensor, 0)

    def broadcast_object(self, value: Any) -> Any:
        """The value, which JSON can hold, that the first process has."""
        if self.world_size == 1:
            return value
        text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        length = torch.tensor(len(text))
        self.broadcast([length])
        text = text if self.is_rank_zero else torch.zeros(int(length), dtype=torch.uint8)
        self.broadcast([text])
        return json.loads(bytes(text.tolist()))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensor of every process, in their order; all have the same shape, on the host."""
        if self.world_size == 1:
            return [tensor]
        tensors = [torch.empty_like(tensor) for _ in range(self.world_size)]
        with self._collective():
            dist.all_gather(tensors, tensor)
        return tensors

    def fail(self, error: SocialxError) -> NoReturn:
        """Raise an error that every process has found: only the first one says it."""
        raise error if self.is_rank_zero else RemoteRankError("another process", "failed")

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Work that all do before training: where it fails in any, all end, and one of them says why."""
        if self.world_size == 1:
            yield
            return
        error: SocialxError | None = None
        try:
            yield
        except SocialxError as raised:
            error = raised
        failed = [int(flag) for flag in self.all_gather(torch.tensor(int(error is not None)))]
        if error is not None and failed.index(1) == self.rank:
            raise error
        if any(failed):
            raise RemoteRankError("another process", "failed")

    def seed(self, seed: int) -> None:
        """Let each process draw its own dropout; the first one draws as it would alone."""
        if self.rank:
            torch.manual_seed(seed + RANK_SEED * self.rank)

    @contextmanager
    def train_together(self, run: Path) -> Iterator[None]:
        """The steps that all take together: the block ends when all have ended it, and the first one has written.

        Raises SocialxError with the command that goes on with the run where another process ended without a word.
        """
        try:
            yield
            self.any_rank(False)
        except RankDiedError as error:
            again = f"{self.resume_command(run)} goes on after the last whole epoch"
            raise SocialxError("training", error.messages[0].what, again) from None

    @contextmanager
    def _collective(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError:  # what gloo and NCCL raise where a process has ended
            if not self.is_rank_zero or os.environ.get(LAUNCHED):
                raise RemoteRankError("another process", "ended") from None
            ended = f"one of the {self.world_size} processes has ended"
            raise RankDiedError("training", f"{ended}, and its own output says why") from None


SINGLE = ProcessGroup()


def group_from_env() -> ProcessGroup:
    """This process as ``torchrun`` has named it; alone where it was started otherwise."""
    if "RANK" not in os.environ:
        return SINGLE

    def number(name: str, default: int) -> int:
        return int(os.environ.get(name, default))

    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    restarts, machines = number("TORCHELASTIC_RESTART_COUNT", 0), number("GROUP_WORLD_SIZE", 1)
    return ProcessGroup(number("RANK", 0), number("WORLD_SIZE", 1), restarts, "" if job == "none" else job, machines)


@contextmanager
def init_process_group(progress: Callback | None = None) -> Iterator[ProcessGroup]:
    """All processes of this training, connected until the block ends.

    progress: is told of every event of the block by the first process alone, which also gives the warnings.  Raises
    SocialxError where the processes do not reach each other.
    """
    group = group_from_env()
    if group.world_size == 1:
        with subscribe(progress):
            yield group
        return
    _connect(group)
    try:
        with warnings.catch_warnings(), ExitStack() as stack:
            stack.callback(dist.destroy_process_group)
            if not group.is_rank_zero:
                warnings.simplefilter("ignore", FallbackWarning)
            stack.enter_context(subscribe(progress if group.is_rank_zero else lambda event: None))
            yield replace(group, restarts=int(group.any_rank(group.restarts > 0)))
    except RemoteRankError:
        time.sleep(OUTLIVE_S)  # a launcher ends all when the first one ends, and the one that failed may still speak
        raise


def _connect(group: ProcessGroup) -> None:
    """Bring all processes together in a store of their own: that of torchrun keeps what earlier starts wrote."""
    try:
        shared, _, _ = next(rendezvous("env://"))
        store = _make_store(shared, group.is_rank_zero)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        # Its functions keep the group that there is when they are imported, as torch._dynamo does later.  The threads
        # of gloo would outlive the training, and sometimes abort the process when it ends.
        import_module("torch.distributed.nn")
        dist.init_process_group(backend, store=store, rank=group.rank, world_size=group.world_size)
    except (RuntimeError, ValueError, OSError) as error:
        unreached = f"{group.world_size} processes do not reach each other ({in_short(error, 100)})"
        raise SocialxError("training", unreached, "start all of them with torchrun") from None


def _make_store(shared: dist.Store, first: bool) -> dist.Store:
    """The store of the first process, which makes it; the one of an earlier start has ended with its process."""
    if first:
        store = dist.TCPStore(os.environ["MASTER_ADDR"], 0, None, is_master=True, wait_for_workers=False)
        shared.set(STORE, str(store.port))
        return store
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
