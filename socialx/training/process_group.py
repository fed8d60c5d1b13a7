"""Several processes that train one model: each computes a shard of every batch, and all take the same step.

``torchrun`` sets the rank in the environment.  Gradients (a few megabytes) are summed in one flat tensor per optimizer
step (learner.py), the same with accumulated batches, with checkpointing and with parameters that stay unused.
"""

from __future__ import annotations

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
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from socialx.core.errors import Command, FallbackWarning, SocialxError, in_short
from socialx.core.progress import Callback, subscribe
from socialx.dataset.loaders import RankShare

RANK_SEED = 1_000_033  # between the seeds of two processes
STORE = "socialx: port of the first process"
CONNECT_S = 300.0
OUTLIVE_S = 10.0  # a silent process waits so long for the launcher to end it, after the failed process has printed
LAUNCHED = "LAUNCHED_BY_SOCIALX"  # environment variable: the launcher reports which process ended


class RemoteRankError(SocialxError):
    """Another rank failed and reports the reason; this rank exits silently."""

    def lines(self, *_: object) -> list[str]:
        """Return no lines to print, because another rank prints the reason."""
        return []


class RankDiedError(SocialxError):
    """Another rank died silently; raised on rank 0."""


@dataclass(frozen=True)
class ProcessGroup:
    """This process, ``rank`` out of ``world_size`` that train one model; communication is skipped for a single process.

    restarts: how often the launcher restarted all processes.  job: the job name at the launcher, or empty.  machines:
    how many machines the processes run on.
    """

    rank: int = 0
    world_size: int = 1
    restarts: int = 0
    job: str = ""
    machines: int = 1

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    @property
    def share(self) -> RankShare:
        """The rank and world size, by which a loader picks the windows of this rank in every batch."""
        return RankShare(self.rank, self.world_size)

    def resume_command(self, run: Path) -> Command:
        """Return the command that resumes run folder ``run`` with as many processes (several machines: by torchrun)."""
        devices = self.world_size if self.world_size > 1 and self.machines == 1 else None
        return Command("train", resume=run, devices=devices)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks in place, and return the tensor."""
        if self.world_size > 1:
            with self._collective():
                dist.all_reduce(tensor)
        return tensor

    def any_rank(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return flag if self.world_size == 1 else bool(self.all_reduce(torch.tensor(int(flag))).item())

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy the tensors of rank 0 to every rank, in place."""
        if self.world_size > 1:
            with self._collective(), torch.no_grad():
                for tensor in tensors:
                    dist.broadcast(tensor, 0)

    def broadcast_object(self, value: Any) -> Any:
        """Return the value of rank 0 on every rank."""
        values = [value]
        if self.world_size > 1:
            with self._collective():
                dist.broadcast_object_list(values, 0, device=torch.device("cpu"))
        return values[0]

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensor of every rank in order; all tensors share one shape, on the host."""
        if self.world_size == 1:
            return [tensor]
        tensors = [torch.empty_like(tensor) for _ in range(self.world_size)]
        with self._collective():
            dist.all_gather(tensors, tensor)
        return tensors

    def fail(self, error: SocialxError) -> NoReturn:
        """Raise ``error``, which every rank found, so that only rank 0 prints the text; other ranks exit silently."""
        raise error if self.is_rank_zero else RemoteRankError("rank.failed", "another process", "failed")

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Run setup on every rank: if a rank fails, all exit, and one failed rank prints the error."""
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
            raise RemoteRankError("rank.failed", "another process", "failed")

    def seed(self, seed: int) -> None:
        """Seed torch's generator for dropout with a number per rank; rank 0 stays as seeded, like a single process."""
        if self.rank:
            torch.manual_seed(seed + RANK_SEED * self.rank)

    @contextmanager
    def train_together(self, run: Path) -> Iterator[None]:
        """Run training steps on every rank, and wait at the end until rank 0 has written the run.

        Raises SocialxError with the command that resumes the run where another rank died silently.
        """
        try:
            yield
            self.any_rank(False)
        except RankDiedError as error:
            again = f"resume after the last whole epoch with {self.resume_command(run)}"
            raise SocialxError(error.code, "training", error.messages[0].problem, again) from None

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Raise a silent error, or RankDiedError on rank 0 without launcher, where communication fails in the block."""
        try:
            yield
        except RuntimeError:  # what gloo and NCCL raise where a process has ended
            if not self.is_rank_zero or os.environ.get(LAUNCHED):
                raise RemoteRankError("rank.ended", "another process", "ended") from None
            ended = f"one of the {self.world_size} processes has ended"
            raise RankDiedError("rank.ended", "training", f"{ended}, and its own output says why") from None


SINGLE = ProcessGroup()


def group_from_env() -> ProcessGroup:
    """Return the process group that ``torchrun`` describes in the environment, or a single process."""
    if "RANK" not in os.environ:
        return SINGLE

    def number(name: str, default: int) -> int:
        return int(os.environ.get(name, default))

    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    restarts, machines = number("TORCHELASTIC_RESTART_COUNT", 0), number("GROUP_WORLD_SIZE", 1)
    return ProcessGroup(number("RANK", 0), number("WORLD_SIZE", 1), restarts, "" if job == "none" else job, machines)


@contextmanager
def init_process_group(progress: Callback | None = None) -> Iterator[ProcessGroup]:
    """Connect all processes of this training until the block ends, and yield the group.

    progress: receives events, on rank 0 only; warnings too.  Raises SocialxError where the processes fail to connect.
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
        time.sleep(OUTLIVE_S)  # the launcher ends all processes when the first ends, and the failed one may still print
        raise


def _connect(group: ProcessGroup) -> None:
    """Connect all processes through a new store, because the store of torchrun keeps values from earlier starts."""
    try:
        shared, _, _ = next(rendezvous("env://"))
        store = _make_store(shared, group.is_rank_zero)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        # torch.distributed.nn keeps the group from the time of its import, which torch._dynamo does later.  Threads of
        # gloo would then outlive training, and sometimes abort the process at its end.
        import_module("torch.distributed.nn")
        dist.init_process_group(backend, store=store, rank=group.rank, world_size=group.world_size)
    except (RuntimeError, ValueError, OSError) as error:
        unreached = f"{group.world_size} processes do not reach each other ({in_short(error, 100)})"
        raise SocialxError("rank.unreached", "training", unreached, "start all processes with torchrun") from None


def _make_store(shared: dist.Store, first: bool) -> dist.Store:
    """Return a store for all ranks: rank 0 (``first``) puts the port into ``shared``, and other ranks connect there."""
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
