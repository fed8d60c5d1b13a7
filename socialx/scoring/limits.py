"""Limits that scores are asked to keep, as text: ``15min=2.7,60min=3.5`` or ``all=3``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from socialx.errors import Argument, Message, SettingsError
from socialx.scoring.references import REFERENCES
from socialx.scoring.results import Evaluation

ARGUMENT = "max_mae"


class Limit(NamedTuple):
    """The largest MAE of the first target so many minutes ahead; None: over all steps."""

    minutes: int | None
    mae: float


def parse(text: str) -> list[Limit]:
    """``60min=3.5,all=3`` -> limits.  Raises SettingsError for any other text."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(?:(\d{1,6})\s*min|all)\s*=\s*(\d+(?:\.\d*)?|\.\d+)\s*", part)
        if not match:
            remedy = f"for example {Argument(ARGUMENT, '60min=3.5')}"
            raise SettingsError(Argument(ARGUMENT, text), f"{part!a} is not MINUTESmin=NUMBER or all=NUMBER", remedy)
        found.append(Limit(int(match[1]) if match[1] else None, float(match[2])))
    return found


def failed(found: Evaluation, limits: Sequence[Limit]) -> list[Message]:
    """A message for each limit that a run or a file of forecasts does not keep.

    Raises SettingsError for minutes that are no step.
    """
    lines = []
    for name in (name for name in found if name not in REFERENCES):
        for minutes, most in limits:
            at = "all steps" if minutes is None else f"{minutes} min"
            try:
                mae = found[name].overall().mae if minutes is None else found[name].at(minutes).mae
            except SettingsError as error:
                (said,) = error.messages
                raise SettingsError(Argument(ARGUMENT, f"{minutes}min={most:g}"), said.what, said.remedy) from None
            if not mae <= most:
                lines.append(Message(name, f"MAE {mae:.4f} {found.protocol.unit} at {at}", f"required <= {most:g}"))
    return lines
