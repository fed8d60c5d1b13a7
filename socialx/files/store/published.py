"""Facts about published data sets: metadata, addresses, md5, and published scores.

The scores are MAE in mph at 15, 30 and 60 minutes under the canonical protocol: 12 steps in and out, windows split
70/10/20, missing observations masked, errors over the whole test split at each horizon.

Reliability: the addresses are untested here. The md5 values for the CSVs are quoted by others from Zenodo record
5146275; METR-LA.csv, rebuilt from another copy, matches, and PEMS-BAY.csv is unchecked. The md5 values for
graph_sensor_locations*.csv come from copies whose SHA-256 several projects pin for exactly these addresses.
PEMS-BAY-META.csv has the address from an older record version, where others found the file, and lacks an md5: only the
content is checked, as a locations table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

SCORED_MINUTES = (15, 30, 60)
RERUN = "re-run: Torch-MTS logs, one protocol for all, seed 233"

_RECORD, _OLDER = "https://zenodo.org/records/5146275/files", "https://zenodo.org/records/4264005/files"
_DCRNN = "https://raw.githubusercontent.com/liyaguang/DCRNN/master/data/sensor_graph"
_LA, _BAY, _META = "graph_sensor_locations.csv", "graph_sensor_locations_bay.csv", "PEMS-BAY-META.csv"


@dataclass(frozen=True)
class PublishedFile:
    """A published file; md5 is None where unknown."""

    name: str
    md5: str | None
    url: str


class PublishedScore(NamedTuple):
    """Another model's MAE at 15, 30 and 60 minutes, and the source: ``published: ...`` or ``re-run: ...``."""

    model: str
    mae: tuple[float, float, float]
    source: str


@dataclass(frozen=True)
class PublishedDataset:
    """A published data set: names, metadata that the files omit, file addresses, and published scores."""

    name: str  # as in ``socialx convert NAME``
    aliases: tuple[str, ...]
    dataset_name: str
    feature_set: str
    static: bool  # the canonical file has lanes, length and direction
    sensors: int
    ids: range  # the ids of its sensors lie in it; with their number this tells it from other networks
    skips: tuple[str, str] | None  # its neighbouring rows that are more than a step apart
    test_windows: int  # of the canonical split with 12 + 12 steps
    files: tuple[PublishedFile, ...]
    scores: tuple[PublishedScore, ...]
    units: str = "mph"
    missing: float | None = 0.0
    timezone: str = "America/Los_Angeles"
    step_s: int = 300


DATASETS = {
    dataset.name: dataset
    for dataset in (
        PublishedDataset(
            name="metr-la",
            aliases=("metrla", "la"),
            dataset_name="metr_la",
            feature_set="metr_la_v1",
            static=False,
            sensors=207,
            ids=range(716328, 774204 + 1),
            skips=None,
            test_windows=6_850,
            files=(
                PublishedFile("METR-LA.csv", "d3adaa79856bf610f25558fc242c7190", f"{_RECORD}/METR-LA.csv"),
                PublishedFile(_LA, "ecf7246e5aaddd5d971ef5886b9a8ae4", f"{_DCRNN}/{_LA}"),
            ),
            scores=(
                PublishedScore("MLP per sensor", (3.11, 3.81, 4.93), RERUN),
                PublishedScore("shared LSTM", (3.06, 3.76, 4.86), RERUN),
                PublishedScore("GCLSTM", (2.84, 3.25, 3.81), RERUN),
                PublishedScore("AGCRN", (2.88, 3.27, 3.68), RERUN),
                PublishedScore("STGCN", (2.80, 3.17, 3.60), RERUN),
                PublishedScore("STID", (2.81, 3.17, 3.55), RERUN),
                PublishedScore("DCRNN", (2.72, 3.12, 3.59), RERUN),
                PublishedScore("GMAN", (2.84, 3.11, 3.46), RERUN),
                PublishedScore("Graph WaveNet", (2.68, 3.06, 3.50), RERUN),
                PublishedScore("MTGNN", (2.67, 3.04, 3.49), RERUN),
                PublishedScore("MegaCRN", (2.62, 3.01, 3.48), RERUN),
                PublishedScore("STAEformer", (2.65, 2.96, 3.35), RERUN),
                PublishedScore("HimNet", (2.61, 2.96, 3.38), RERUN),
                PublishedScore("MegaCRN", (2.52, 2.93, 3.38), "published: the paper, which no re-run reaches"),
                PublishedScore("D2STGNN", (2.56, 2.91, 3.35), "re-run: Reliability-First-STGNN-Benchmark, 3 seeds"),
            ),
        ),
        PublishedDataset(
            name="pems-bay",
            aliases=("pemsbay", "bay"),
            dataset_name="pems_bay",
            feature_set="pems_bay_v1",
            static=True,
            sensors=325,
            ids=range(400001, 414694 + 1),
            skips=("2017-03-12 01:55:00", "2017-03-12 03:00:00"),  # clocks were put forward
            test_windows=10_419,
            files=(  # what has no md5 is last: a second run refuses it, and keeps the files before it
                PublishedFile("PEMS-BAY.csv", "c8dea58987a5882e946217c22fdb8256", f"{_RECORD}/PEMS-BAY.csv"),
                PublishedFile(_BAY, "b4132fda15443d68dd05b376bb6735c5", f"{_DCRNN}/{_BAY}"),
                PublishedFile(_META, None, f"{_OLDER}/{_META}"),
            ),
            scores=(
                PublishedScore("MLP per sensor", (1.46, 2.00, 2.76), RERUN),
                PublishedScore("shared LSTM", (1.44, 1.97, 2.70), RERUN),
                PublishedScore("GCLSTM", (1.37, 1.73, 2.13), RERUN),
                PublishedScore("AGCRN", (1.40, 1.73, 2.01), RERUN),
                PublishedScore("STGCN", (1.36, 1.69, 1.99), RERUN),
                PublishedScore("DCRNN", (1.32, 1.65, 1.96), RERUN),
                PublishedScore("Graph WaveNet", (1.30, 1.64, 1.96), RERUN),
                PublishedScore("MTGNN", (1.32, 1.64, 1.94), RERUN),
                PublishedScore("STID", (1.31, 1.63, 1.91), RERUN),
                PublishedScore("GMAN", (1.35, 1.63, 1.87), RERUN),
                PublishedScore("MegaCRN", (1.28, 1.60, 1.89), RERUN),
                PublishedScore("STAEformer", (1.30, 1.60, 1.85), RERUN),
                PublishedScore("HimNet", (1.27, 1.58, 1.86), RERUN),
                PublishedScore("D2STGNN", (1.24, 1.55, 1.85), "published: the paper"),
            ),
        ),
    )
}


def dataset(name: str) -> PublishedDataset | None:
    """Return the data set for a user's ``name``, ignoring case and with ``_`` or ``-``; None for any other name."""
    plain = name.strip().lower().replace("_", "-")
    return next((facts for facts in DATASETS.values() if plain in (facts.name, *facts.aliases)), None)
