"""How soon does evaluate --drift find a broken detector, how often does it err, and does it see a run grow old?

    python benchmarks/drift.py runs/small --data metr_la.h5
    python benchmarks/drift.py runs/first_weeks --data metr_la.h5 --grown-old 42

The first command breaks 21 sensors on each of some days of the test split, in a copy of the file: five repeat their
last reading, five read 0.8 and five 1.609 times what they should, and three pairs have exchanged their ids.  It scores
that day alone.  The second one trains a run on the first days of the file, unless it is there, and has it forecast all
weeks after them. Both write into benchmarks/results/drift.json.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import socialx
from benchmarks.common import RESULTS, known, parser, write
from socialx.data.calendar import DAY_S
from socialx.files.store.layout import FEATURES, ROWS_ATTR, SECONDS, TIMESTAMPS
from socialx.files.store.store import open_store
from socialx.files.store.time_axis import as_text

RESULT = RESULTS / "drift.json"
DAYS = 6  # of the test split, on which detectors break


def main() -> None:
    arguments = parser(__doc__, data=True)
    arguments.add_argument("run", type=Path)
    arguments.add_argument("--grown-old", type=int, metavar="DAYS", help="forecast all that follows these days")
    given = arguments.parse_args()
    found = known(RESULT)
    if given.grown_old:
        found["grown old"] = grown_old(given.run, given.data, given.grown_old)
    else:
        found.setdefault("faults", {})[given.data.stem] = faults(given.run, given.data)
    write(RESULT, found)
    print(json.dumps(found, indent=1))


def faults(run: Path, data: Path) -> dict[str, Any]:
    """The share of broken sensors that are found on the day on which they break, and alarms on an untouched file."""
    parts = ("validation", "test")
    untouched = {part: socialx.evaluate(run, data, split=part, drift=True).drift[str(run)] for part in parts}
    most = max(day.count for day in untouched["test"].days)
    days = [day.date for day in untouched["test"].days if day.count > 0.9 * most]
    chosen = [days[place] for place in np.linspace(1, len(days) - 2, DAYS).round().astype(int)]
    alarms = {
        part: {
            "days": len(drift.days),
            "sensors": sorted({(name, day.date) for day in drift.days for name in day.worse}),
            "network": drift.since,
        }
        for part, drift in untouched.items()
    }
    caught: dict[str, list[bool]] = {}
    for number, date in enumerate(chosen):
        with tempfile.TemporaryDirectory() as folder:
            broken = Path(folder) / data.name
            shutil.copy(data, broken)
            kinds = break_sensors(broken, date, np.random.default_rng(number))
            end = as_text(int(np.datetime64(date, "s").astype(int)) + DAY_S)
            drift = socialx.evaluate(run, broken, start=date, end=end, drift=True).drift[str(run)]
        for kind, sensors in kinds.items():
            caught.setdefault(kind, []).extend(name in {**drift.sensors, **drift.stuck} for name in sensors)
    return {
        "run": str(run),
        "days": chosen,
        "found on the first day": {kind: [sum(each), len(each)] for kind, each in caught.items()},
        "alarms on the untouched file": alarms,
    }


def break_sensors(path: Path, date: str, chance: np.random.Generator) -> dict[str, list[str]]:
    """Break sensors of a file from a day on -> their ids by what was done to them."""
    store = open_store(path)
    first = int(np.searchsorted(store.seconds, np.datetime64(date, "s").astype(int)))
    order = chance.permutation(len(store.sensors.ids))
    stuck, slow, fast, exchanged = order[:5], order[5:10], order[10:15], order[15:21]
    with h5py.File(path, "r+") as file:
        values = file[FEATURES][:, :, store.feature_index]
        before, after = values[:first], values[first:].copy()
        for sensor in stuck:
            after[:, sensor] = before[store.is_reading(before[:, sensor]), sensor][-1]
        after[:, slow] *= 0.8
        after[:, fast] *= 1.609
        after[:, exchanged] = after[:, exchanged[[1, 0, 3, 2, 5, 4]]]
        file[FEATURES][first:, :, store.feature_index] = after
    named = {"repeats a reading": stuck, "0.8 times": slow, "1.609 times": fast, "exchanged ids": exchanged}
    return {kind: [store.sensors.ids[sensor] for sensor in sensors] for kind, sensors in named.items()}


def grown_old(run: Path, data: Path, days: int) -> dict[str, Any]:
    """The verdict of each week on a run, from the end of its days on."""
    store = open_store(data)
    first, last, weeks = int(store.seconds[0]) // DAY_S + days, int(store.seconds[-1]) // DAY_S, []
    if not (run / "intervals.safetensors").exists():
        beginning = run.with_suffix(".h5")
        shutil.copy(data, beginning)
        with h5py.File(beginning, "r+") as file:
            rows = int(np.searchsorted(store.seconds, first * DAY_S))
            for name in (FEATURES, TIMESTAMPS, SECONDS):
                file[name].resize(rows, axis=0)
            file.attrs[ROWS_ATTR] = np.int64(rows)
        socialx.train(beginning, preset="mlp-small", patch=1, run_dir=run, overwrite=True)
    for day in range(first, last - 5, 7):
        start, end = as_text(day * DAY_S), as_text(min((day + 7) * DAY_S, int(store.seconds[-1])))
        evaluation = socialx.evaluate(run, data, split="all", start=start, end=end, drift=True)
        drift = evaluation.drift[str(run)]
        weeks.append(
            {
                "from": start[:10],
                "mae": round(evaluation[run].overall().mae, 3),
                "covered": [drift.low, drift.covered, drift.high],
                "since": drift.since,
                "sensors": len(drift.sensors),
            }
        )
    return {"run": str(run), "weeks": weeks}


if __name__ == "__main__":
    main()
