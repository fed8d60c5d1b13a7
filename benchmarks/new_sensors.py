"""How well a run forecasts sensors that are new to it: 20 % of METR-LA's sensors are held out of training.

    python benchmarks/new_sensors.py --data metr_la.h5 --with runs/small

Three draws of 41 sensors.  Each trains ``--preset mlp-small --sensor-dropout 0.2`` on the other sensors, forecasts the
test split of the whole file, and is scored on the sensors that it does not know, with 0, 1, 3 and 14 days known before
each day.  Beside it: the run that was trained with these sensors, with all days, and copying the last reading.  A
training that is complete is not repeated.  Writes benchmarks/results/new_sensors.json.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from torch import nn

from benchmarks.common import RESULTS, parser, trained, write
from socialx.data.climatology import PastDays
from socialx.files.store.layout import FEATURES, SENSOR_INFO, VDIDS
from socialx.files.store.store import open_store
from socialx.scoring.references import LAST_VALID
from socialx.scoring.scoring_pass import run_metrics
from socialx.settings.layers import ConfigLayers
from socialx.tasks.build import Experiment
from socialx.tasks.scored_split import Part, ScoredSplit, load_scored_split

SHARE, DRAWS, DAYS = 0.2, 3, (0, 1, 3, 14, None)


def main() -> None:
    arguments = parser(__doc__, data=True, runs=Path("runs/new_sensors"))
    arguments.add_argument("--with", dest="other", required=True, help="a run that was trained with all sensors")
    given = arguments.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    ids = open_store(given.data).sensors.ids
    for draw in range(DRAWS):
        held = np.sort(np.random.default_rng(draw).permutation(len(ids))[: round(SHARE * len(ids))])
        folder, file = given.runs / str(draw), given.runs / f"{draw}.h5"
        if not file.exists():
            without(given.data, file, held)
        more = {"model.patch": 1, "model.sensor_dropout": 0.2, "trainer.seed": draw, "data.path": file}
        trained(folder, ConfigLayers(preset="mlp-small").over(more))
        data = ConfigLayers.from_call(None, {"data": given.data})
        scored, alike = (load_scored_split([run], data, Part("test")) for run in (str(folder), given.other))
        (experiment,), (beside,) = scored.experiments.values(), alike.experiments.values()
        others = np.setdiff1d(np.arange(len(ids)), held)
        row = {
            "draw": draw,
            "days": {str(days): errors(scored, experiment, experiment.model, days, held) for days in DAYS},
            "trained with them": errors(alike, beside, beside.model, None, held),
            "copied": errors(scored, experiment, scored.baselines()[LAST_VALID], None, held),
            "the known sensors": errors(scored, experiment, experiment.model, None, others),
            "the known sensors, trained with all": errors(alike, beside, beside.model, None, others),
        }
        found.append(row)
        write(RESULTS / "new_sensors.json", found)
        print(json.dumps(row, indent=1), flush=True)


def without(data: Path, output: Path, held: np.ndarray) -> None:
    """A copy of a file without some of its sensors."""
    shutil.copy(data, output)
    with h5py.File(output, "r+") as file:
        for name, axis in ((FEATURES, 1), (VDIDS, 0)):
            values, attributes = np.delete(file[name][:], held, axis=axis), dict(file[name].attrs)
            ids = file[VDIDS][:][held] if name == VDIDS else []
            del file[name]
            limits = (None, *values.shape[1:])
            file.create_dataset(name, data=values, maxshape=limits, chunks=True, compression="gzip", compression_opts=1)
            file[name].attrs.update(attributes)
            for vdid in ids:
                del file[SENSOR_INFO][vdid.decode()]
        file.attrs["num_locations"] = np.int64(file[FEATURES].shape[1])


def errors(
    scored: ScoredSplit, experiment: Experiment, model: nn.Module, days: int | None, sensors: np.ndarray
) -> dict[str, Any]:
    """MAE of these sensors over all steps, of all and of each; days: known before each day, None: all."""
    question = scored.errors()
    loader = scored.data.loader("test", experiment.settings.loader.batch_size, days=PastDays((days,)))
    run_metrics(model, loader, experiment.precision, question, name=f"{days} days")
    rows = [question.compute()["sensor"][sensor] for sensor in sensors]
    count = np.array([row.count for row in rows])
    mae = np.array([row.mae for row in rows])
    return {"mae": float(np.average(mae, weights=count)), "sensors": mae.round(4).tolist()}


if __name__ == "__main__":
    main()
