"""The protocol of a score, made up."""

from dataclasses import replace
from typing import Any

from socialx.data.scaler import MeanStd
from socialx.scoring.protocol import ScoringProtocol

MOMENTS = {"avg_speed": MeanStd(58.6, 12.8)}


def protocol(**changes: Any) -> ScoringProtocol:
    """Of the test split of METR-LA as it is published, but for ``changes``."""
    published = ScoringProtocol(
        dataset="metr_la",
        checksum="0" * 64,
        network="0" * 12,
        sensors=207,
        inputs={"avg_speed": "mph"},
        targets={"avg_speed": "mph"},
        step_minutes=5,
        lookback=12,
        horizon=12,
        split_method="canonical",
        windows={"train": 23_974, "validation": 3_425, "test": 6_850},
        windows_across_gaps=0,
        missing={"avg_speed": 0.0},
        imputed=False,
        distances=None,
        scaler=MOMENTS,
        seed=0,
        precision="32-true",
        socialx="0.1.0",
        commit=None,
    )
    return replace(published, **changes)
