"""What others reached on the two data sets that everybody scores: MAE in mph at 15, 30 and 60 minutes.

Under the canonical protocol of this tool: 12 steps in and out, windows split 70/10/20, missing readings masked, errors
over the whole test set at each horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MINUTES = (15, 30, 60)
RERUN = "Torch-MTS logs, one protocol for all, seed 233"


class Rung(NamedTuple):
    """One published result: MAE at 15, 30, 60 minutes, and where it was published."""

    mae: tuple[float, float, float]
    source: str


PUBLISHED: dict[str, dict[str, Rung]] = {
    "metr_la": {
        "MLP per sensor": Rung((3.11, 3.81, 4.93), RERUN),
        "shared LSTM": Rung((3.06, 3.76, 4.86), RERUN),
        "GCLSTM": Rung((2.84, 3.25, 3.81), RERUN),
        "AGCRN": Rung((2.88, 3.27, 3.68), RERUN),
        "STGCN": Rung((2.80, 3.17, 3.60), RERUN),
        "STID": Rung((2.81, 3.17, 3.55), RERUN),
        "DCRNN": Rung((2.72, 3.12, 3.59), RERUN),
        "GMAN": Rung((2.84, 3.11, 3.46), RERUN),
        "Graph WaveNet": Rung((2.68, 3.06, 3.50), RERUN),
        "MTGNN": Rung((2.67, 3.04, 3.49), RERUN),
        "MegaCRN": Rung((2.62, 3.01, 3.48), RERUN),
        "STAEformer": Rung((2.65, 2.96, 3.35), RERUN),
        "HimNet": Rung((2.61, 2.96, 3.38), RERUN),
        "D2STGNN": Rung((2.56, 2.90, 3.35), "its paper"),
    },
    "pems_bay": {
        "MLP per sensor": Rung((1.46, 2.00, 2.76), RERUN),
        "shared LSTM": Rung((1.44, 1.97, 2.70), RERUN),
        "GCLSTM": Rung((1.37, 1.73, 2.13), RERUN),
        "AGCRN": Rung((1.40, 1.73, 2.01), RERUN),
        "STGCN": Rung((1.36, 1.69, 1.99), RERUN),
        "DCRNN": Rung((1.32, 1.65, 1.96), RERUN),
        "Graph WaveNet": Rung((1.30, 1.64, 1.96), RERUN),
        "MTGNN": Rung((1.32, 1.64, 1.94), RERUN),
        "STID": Rung((1.31, 1.63, 1.91), RERUN),
        "GMAN": Rung((1.35, 1.63, 1.87), RERUN),
        "MegaCRN": Rung((1.28, 1.60, 1.89), RERUN),
        "STAEformer": Rung((1.30, 1.60, 1.85), RERUN),
        "HimNet": Rung((1.27, 1.58, 1.86), RERUN),
        "D2STGNN": Rung((1.24, 1.55, 1.85), "its paper"),
    },
}
# What a result must have been scored on to stand among them: the whole data set, cut as they cut it.
TEST_WINDOWS = {"metr_la": (207, 6_850), "pems_bay": (325, 10_419)}


def published(stamp: Mapping[str, Any], part: str) -> dict[str, Rung]:
    """The results that scores with this stamp may be compared with; none where the protocol or the data are others."""
    scored = (stamp["sensors"], stamp["windows"]["test"])
    same = part == "test" and stamp["split"] == "canonical" and stamp["targets"] == {"avg_speed": "mph"}
    same = same and (stamp["history"], stamp["horizon"], stamp["step_minutes"]) == (12, 12, 5)
    same = same and stamp["missing"]["avg_speed"] == 0  # a reading of 0 is none
    if not same or stamp["imputed"] or TEST_WINDOWS.get(stamp["dataset"]) != scored:
        return {}
    return PUBLISHED[stamp["dataset"]]
