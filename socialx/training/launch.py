"""Several training processes on this machine, started as ``torchrun --standalone`` starts them."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from socialx.core.errors import Command, SocialxError
from socialx.training.process_group import LAUNCHED

INTERRUPTED = 130


def launch(devices: int, words: Sequence[str]) -> int:
    """Run ``python -m socialx`` with the arguments ``words`` in ``devices`` processes, and return the exit code.

    Each process has a CUDA device, or a share of the CPUs on a machine without CUDA. A failing process prints the
    reason and ends all processes.  Raises SocialxError where a process was killed.
    """
    os.environ[LAUNCHED] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // devices)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # failures are reported below
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=devices,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.5,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "socialx", *words)
    except SignalException:
        return INTERRUPTED
    except ChildFailedError as error:
        ended_by_launcher = -signal.SIGTERM
        by_itself = {rank: failed for rank, failed in error.failures.items() if failed.exitcode != ended_by_launcher}
        rank, failure = min((by_itself or error.failures).items(), key=lambda item: item[1].timestamp)
        if failure.exitcode >= 0:  # the process has printed the reason
            return max(1, failure.exitcode)
        problem = f"process {rank} of {devices} was ended by {signal.Signals(-failure.exitcode).name}"
        resume = f"resume after the last whole epoch with {Command('train', resume='RUN', devices=devices)}"
        again = resume if "train" in words[:1] else ""
        raise SocialxError("train.killed", "training", problem, again) from None
    return 0
