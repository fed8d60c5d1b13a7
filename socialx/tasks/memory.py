"""Out of memory: one line that says how a step becomes smaller, with numbers got by halving."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from socialx.core.errors import Argument, SocialxError
from socialx.core.precision import is_out_of_memory
from socialx.settings.conflicts import idle_settings
from socialx.tasks.build import Experiment

# What makes a step smaller without another result, in the order in which to try it.
TRAINING = ("encoder_batch", "accumulation", "activation_checkpointing")
RESUMING = ("encoder_batch", "activation_checkpointing")  # a run goes on with its own batches
SCORING = ("encoder_batch", "batch")


@contextmanager
def when_memory_runs_out(
    experiment: Experiment, remedies: Sequence[str] = SCORING, windows: int | None = None
) -> Iterator[None]:
    """Raise SocialxError with these remedies where the device or the host runs out of memory.

    windows: of a batch, by default those of the settings.  Tensors in the frames of the work are given up.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)
        raise out_of_memory(experiment, remedies, windows or experiment.settings.loader.batch_size) from None


def out_of_memory(experiment: Experiment, remedies: Sequence[str], windows: int) -> SocialxError:
    """The error that names those of the remedies which the model has and which are not used up."""
    settings, sensors = experiment.settings, len(experiment.data.sensors.ids)
    batches, sequences = settings.trainer.accumulate_grad_batches, windows * sensors
    encoder_batch, half = (
        min(sequences, settings.model.encoder_batch or sequences),
        Argument("loader.batch_size", windows // 2),
    )
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
    smaller = f"a smaller {Argument('model.width')}, or fewer {Argument('model.blocks')}"
    what = f"out of memory with batches of {windows} windows x {sensors} sensors"
    return SocialxError(experiment.precision.device, what, f"add {', or '.join(helps)}" if helps else smaller)
