"""The command that checks the machine, the settings and the data before a training: doctor."""

from __future__ import annotations

from functools import partial

from socialx.cli.command import Json, command, print_json
from socialx.cli.error_flags import write
from socialx.cli.progress_bars import Show
from socialx.errors import GateError
from socialx.settings_layers import Layers


@command("doctor")
def doctor(layers: Layers, as_json: Json = False) -> None:
    """Check what a training needs.

    It looks at the machine, packages, settings, device, precision, memory and disk, the data file, one step of the
    model, and a worker process.  Every line that is not ok says what to do next.  It exits with 3 where a line fails.
    Nothing is trained or kept.

    Example:
      socialx doctor --data metr_la.h5
    """
    import socialx
    from socialx.views.doctor_tables import print_lines

    as_typed = partial(write, "train")
    diagnosis = socialx.doctor(settings=layers, progress=Show("doctor"))
    if as_json:
        print_json(diagnosis.as_dict(as_typed))
    else:
        print_lines((line.state, line.name, line.found, line.helps(as_typed)) for line in diagnosis.lines)
    if diagnosis.failed:
        raise GateError.together(line.message for line in diagnosis.failed)
