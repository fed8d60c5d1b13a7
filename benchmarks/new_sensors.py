"""How well a run forecasts sensors that are new to it: 20 % of METR-LA's sensors are held out of training.

    python benchmarks/new_sensors.py --data metr_la.h5 --with runs/small

Three draws of 41 sensors.  Each trains ``--size small --sensor-dropout 0.2`` on the other sensors, forecasts the test
part of the whole file, and is scored on the sensors that it does not know, with 0, 1, 3 and 14 days known before each
day.  Beside it: the run that was trained with these sensors, with all days, and copying the last reading.  A training
that is complete is not repeated.  Writes benchmarks/results/new_sensors.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import nn

import socialx
from socialx.build import Problem
from socialx.files.hdf5_layout import FEATURES, SENSOR_INFO, VDIDS
from socialx.files.store import open_store
from socialx.scoring.references import LAST_VALID
from socialx.scoring.scoring_pass import survey
from socialx.settings_layers import Layers
from socialx.tasks.scored_part import ScoredPart, scored_part

RESULT = Path(__file__).parent / "results/new_sensors.json"
CPU = torch.device("cpu")
SHARE, DRAWS, DAYS = 0.2, 3, (0, 1, 3, 14, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="METR-LA as socialx convert writes it")
    parser.add_argument(
        "--with", dest="other", type=Path, required=True, help="a run that was trained with all sensors"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/new_sensors"), help="where runs and files go")
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    for draw in range(DRAWS):
        ids = open_store(arguments.data).sensors.ids
        held = np.sort(np.random.default_rng(draw).permutation(len(ids))[: round(SHARE * len(ids))])
        folder, file = arguments.runs / str(draw), arguments.runs / f"{draw}.h5"
        if not (folder / "intervals.safetensors").exists():
            without(arguments.data, file, held)
            more = {"model": {"patch": 1, "sensor_dropout": 0.2}, "trainer": {"seed": draw}}
            socialx.train(file, size="small", run_dir=folder, overwrite=True, **more)
        scored = scored_part([str(folder)], Layers.of(None, {"data": arguments.data}), "test")
        alike = scored_part([str(arguments.other)], Layers.of(None, {"data": arguments.data}), "test")
        (problem,), (beside,) = scored.problems.values(), alike.problems.values()
        others = np.setdiff1d(np.arange(len(ids)), held)
        row = {
            "draw": draw,
            "days": {str(days): errors(scored, problem, problem.model, days, held) for days in DAYS},
            "trained with them": errors(alike, beside, beside.model, None, held),
            "copied": errors(scored, problem, scored.baselines()[LAST_VALID], None, held),
            "the known sensors": errors(scored, problem, problem.model, None, others),
            "the known sensors, trained with all": errors(alike, beside, beside.model, None, others),
        }
        found.append(row)
        RESULT.write_text(json.dumps(found, indent=1) + "\n")
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
    scored: ScoredPart, problem: Problem, model: nn.Module, days: int | None, sensors: np.ndarray
) -> dict[str, Any]:
    """MAE of these sensors over all steps, of all and of each; days: known before each day, None: all."""
    question = scored.errors()
    loader = scored.data.loader("test", problem.settings.loader.batch_size, days=(days,))
    survey(model, loader, problem.precision, question, name=f"{days} days")
    of_sensors = question.compute()["sensor"]
    total, count = of_sensors.total[sensors], of_sensors.count[sensors]
    return {"mae": float(total.sum() / count.sum()), "sensors": (total / np.maximum(count, 1)).round(4).tolist()}


if __name__ == "__main__":
    main()
