"""Out of memory: one message with settings that make a step smaller, computed by halving."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from socialx.core.errors import Argument, SocialxError
from socialx.core.precision import is_out_of_memory
from socialx.settings.conflicts import idle_settings
from socialx.tasks.build import Experiment

# Settings that make a step smaller, in the order to try: what is computed twice takes longer.
TRAINING = ("accumulation", "encoder_batch", "activation_checkpointing")
RESUMING = ("encoder_batch", "activation_checkpointing")  # a resumed run keeps its batches
SCORING = ("encoder_batch", "batch")


@contextmanager
def when_memory_runs_out(
    experiment: Experiment, remedies: Sequence[str] = SCORING, windows: int | None = None
) -> Iterator[None]:
    """Raise SocialxError with ``remedies`` where the device or the host runs out of memory.

    windows: windows per batch, by default from the settings.  Tensors in the frames of the block are released.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)
        raise make_memory_error(experiment, remedies, windows or experiment.settings.loader.batch_size) from None


def make_memory_error(experiment: Experiment, remedies: Sequence[str], windows: int) -> SocialxError:
    """Return the error with the remedies that the model supports and has left."""
    settings, sensors = experiment.settings, len(experiment.data.sensors.ids)
    batches, sequences = settings.trainer.accumulate_grad_batches, windows * sensors
    encoder_batch = min(sequences, settings.model.encoder_batch or sequences)
    half = Argument("loader.batch_size", windows // 2)
    ways = {  # a name, whether it helps here, and what to add
        "encoder_batch": (
            encoder_batch > 1 and experiment.precision.device.type == "cuda",
            f"{Argument('model.encoder_batch', encoder_batch // 2)}",
        ),
        "batch": (windows > 1, f"{half}"),
        "accumulation": (windows > 1, f"{half} {Argument('trainer.accumulate_grad_batches', 2 * batches)}"),
        "activation_checkpointing": (
            not settings.model.activation_checkpointing,
            f"{Argument('model.activation_checkpointing', True)}",
        ),
    }
    helps = [ways[name][1] for name in remedies if ways[name][0] and f"model.{name}" not in idle_settings(settings)]
    smaller = f"use a smaller {Argument('model.width')}, or fewer {Argument('model.blocks')}"
    problem = f"the device is out of memory with batches of {windows} windows x {sensors} sensors"
    return SocialxError(
        "device.memory-in-batch",
        experiment.precision.device,
        problem,
        f"add {', or '.join(helps)}" if helps else smaller,
    )
