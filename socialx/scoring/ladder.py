"""The published results that a score may stand among: those of the same data under the same protocol."""

from __future__ import annotations

from socialx.files.published import DATASETS, PublishedScore
from socialx.scoring.protocol import ScoringProtocol


def published(protocol: ScoringProtocol, part: str) -> tuple[PublishedScore, ...]:
    """The results that scores under this protocol may be compared with; none where protocol or data are others."""
    dataset = next((d for d in DATASETS.values() if d.dataset_name == protocol.dataset), None)
    same = part == "test" and protocol.period is None
    same = same and protocol.split == "canonical" and protocol.targets == {"avg_speed": "mph"}
    same = same and (protocol.history, protocol.horizon, protocol.step_minutes) == (12, 12, 5)
    same = same and protocol.missing["avg_speed"] == 0  # a reading of 0 is none
    if not same or protocol.imputed or dataset is None:
        return ()
    whole = (protocol.sensors, protocol.windows["test"]) == (dataset.sensors, dataset.test_windows)
    return dataset.scores if whole else ()
