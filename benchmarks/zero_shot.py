"""How well a run forecasts a network that it never saw, by the days that it knows of it: docs/zero-shot.md.

    python benchmarks/zero_shot.py RUN [RUN ...] --data FILE.h5
    python benchmarks/zero_shot.py --there --data FILE.h5
    python benchmarks/zero_shot.py RUN --first-hour --data FILE.h5
    python benchmarks/zero_shot.py RUN --slower 0.5 --data FILE.h5
    python benchmarks/zero_shot.py --unpack PACK.npz
    python benchmarks/zero_shot.py RUN --ship zero-shot --data FILE.h5
    python benchmarks/zero_shot.py RUN --ship metr-la --data FILE.h5

RUN: of ``train --zero-shot`` on another network; several are seeds of one training, of which the mean is shown.  The
first form scores them with 0, 1, 2, 3, 7, 14 and 28 days before each day of issue, beside naive and the historical
average, and adds the network to benchmarks/results/zero_shot.json.  The second form trains ``linear`` and ``mlp-small``
on as many days before the test split of a file, 70 % of whose windows are trained on, and scores them on that part.
The table and docs/pictures/zero_shot.png are made of all that is in the file of results.

The third form compares every sensor with naive, on the test split: where no day is known, and where all are, with and
without leaning as the days before each forecast say.  The fourth form multiplies the speeds of every
second sensor by a number, and compares both halves of the sensors with naive, on the validation split, where no day and
where 14 days are known.  The fifth form writes the Danish streets of a pack as streets.csv and streets_places.csv,
which ``convert auto`` reads.

The sixth form writes a run into the package, without any path and without what it knows of its networks, but with the
intervals of all sensors of a network of its training, no day of which is known.  The seventh form writes a run of
METR-LA into the package, with its scores and the last two days of its file.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import torch
import yaml
from torch import Tensor

import socialx
from benchmarks.common import RESULTS, head, known, line, machine, opened, parser, write
from socialx.data.climatology import PastDays
from socialx.drawing.canvas import BLUE, GREY, SMALL, VERMILION, picture, plain
from socialx.files.store.store import open_store
from socialx.scoring.intervals import fit_intervals
from socialx.scoring.references import AVERAGE, LAST_VALID, MEDIAN, REFERENCES, references
from socialx.settings.layers import ConfigLayers
from socialx.tasks.opened import open_forecasting
from socialx.training.run_folder import CPU, TRAINED, RunFolder, open_run

RESULT = RESULTS / "zero_shot.json"
PICTURE = Path(__file__).parent.parent / "docs/pictures/zero_shot.png"
DAYS = (0, 1, 2, 3, 7, 14, 28)
MINUTES = (15, 30, 60)
AS_THEN = {"batch_size": 32, "weight_decay": 3e-4}  # of every model of docs/zero-shot.md
# What is trained on a few days: its settings, and about how many optimizer steps.
THERE = {
    "linear": {"settings": {"model": {"kind": "linear"}, **AS_THEN}, "steps": 3000},
    "mlp-small": {"settings": {"preset": "mlp-small", "patch": 1, **AS_THEN}, "steps": 600},
}


def scored(runs: list[str], data: str) -> dict[str, dict[str, float]]:
    """MAE by the name of a row and the minutes ahead, or ``all``: the mean of the runs."""
    found: dict[str, list[dict[str, float]]] = {}
    for run in runs:
        evaluation = socialx.evaluate(run, data, baselines=run == runs[0], climatology_days=DAYS)
        step = evaluation.protocol.step_minutes
        for name, model in {**evaluation.models, **evaluation.climatology_days}.items():
            if name == run:
                continue
            label = name if name in REFERENCES else name.removeprefix(f"{run}, ")
            scores = next(iter(model.targets.values()))
            row = {str(minutes): scores.by_step[minutes // step - 1].mae for minutes in MINUTES}
            found.setdefault(label, []).append({**row, "all": scores.overall.mae})
    return {
        label: {key: round(statistics.mean(row[key] for row in rows), 4) for key in rows[0]}
        for label, rows in found.items()
    }


def cut(data: str, output: Path, days: int) -> None:
    """A file of the days before the first test window of another one."""
    whole = opened(Path(data))
    end = int(whole.forecast_rows("test")[0][0])
    rows = slice(max(0, end - days * 1440 // whole.store.step_minutes), end)
    shutil.copy(data, output)
    with h5py.File(output, "r+") as file:
        for name in ("data/features", "metadata/timestamps", "metadata/timestamps_epoch"):
            kept = file[name][rows]
            file[name].resize(len(kept), axis=0)
            file[name][:] = kept


def trained_there(data: str) -> dict[str, dict[str, float]]:
    """MAE of models that were trained on the days before the test split, as ``scored``."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for days in DAYS[1:]:
            file = Path(folder) / f"{days}.h5"
            cut(data, file, days)
            for name, given in THERE.items():
                windows = int(0.7 * days * 288)
                epochs = max(3, round(given["steps"] * 32 / windows))
                output = Path(folder) / f"{name}-{days}"
                run = socialx.train(file, run_dir=output, max_epochs=epochs, **given["settings"])
                scores = socialx.evaluate(run, data, climatology_days=days if name == "mlp-small" else ())
                (own,) = scores.climatology_days.values() or [scores[str(run)]]
                row = {str(minutes): own.at(minutes).mae for minutes in MINUTES} | {"all": own.overall().mae}
                found[f"{name}, {label(days)}"] = {key: round(value, 4) for key, value in row.items()}
                print(name, label(days), epochs, "epochs", found[f"{name}, {label(days)}"], flush=True)
    return found


def networks(results: dict[str, dict]) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
    """The networks that were forecast unseen, by name, and the MAE of all rows: what was trained there, too."""
    for name, result in results.items():
        if "->" in name:
            yield name, {**result["mae"], **results.get(name.split(" -> ")[1], {}).get("mae", {})}


def draw(results: dict[str, dict]) -> None:
    """The MAE over all steps by known days, relative to copying the last reading: a panel for each network."""
    shown = list(networks(results))
    with picture(PICTURE, (4.5 * len(shown), 3.8)) as figure:
        panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
        for axes, (name, rows) in zip(panels, shown, strict=True):
            against = {row: 100 * (errors["all"] / rows[LAST_VALID]["all"] - 1) for row, errors in rows.items()}
            for there, color in (("linear", GREY), ("mlp-small", VERMILION)):
                places = [place for place, days in enumerate(DAYS) if f"{there}, {label(days)}" in against]
                values = [against[f"{there}, {label(DAYS[place])}"] for place in places]
                axes.plot(places, values, marker=".", color=color, label=f"{there}, trained on these days")
            axes.axhline(against[MEDIAN], color="tab:green", linewidth=1, linestyle=":", label=MEDIAN)
            values = [against[label(days)] for days in DAYS]
            axes.plot(range(len(DAYS)), values, marker="o", color=BLUE, label="zero-shot")
            axes.axhline(0, color="black", linewidth=1)
            axes.set_title(name.replace(" -> ", " \N{RIGHTWARDS ARROW} "))
            axes.set_xticks(range(len(DAYS)), list(map(str, DAYS)))
            axes.set_ylim(-45, 60)
            axes.set_xlabel("days of the climatology window")
            plain(axes, "y")
        panels[0].set_ylabel("MAE relative to the naive forecast, %")
        panels[0].legend(frameon=False, fontsize=SMALL, loc="upper right")


def label(days: int) -> str:
    """How a row of known days is called."""
    return f"{days} day{'s' * (days != 1)}"


def table(results: dict[str, dict]) -> str:
    """The MAE of all networks in Markdown, side by side: 15, 30 and 60 minutes ahead, and over all steps."""
    shown = dict(networks(results))
    lines = [head("known of the network", *shown)]
    models = ("", *(f"{name}, " for name in THERE))
    for row in (LAST_VALID, AVERAGE, MEDIAN, *(f"{model}{label(days)}" for model in models for days in DAYS)):
        cells = [" / ".join(f"{value:.3f}" for value in rows.get(row, {}).values()) for rows in shown.values()]
        if any(cells):
            lines.append(line([row, *cells]))
    return "\n".join(lines)


def by_sensor(run: str, data: str, part: str, days: int | None, leans: bool = False) -> tuple[Tensor, int]:
    """The sums of a run's errors, of those of naive, and the readings, float64 [3,P,N]; and the step in minutes.

    leans: as the days before each forecast say.
    """
    opened = open_forecasting(Path(run), ConfigLayers.from_call(None, {"data": data}))
    experiment, model = opened.experiment, opened.experiment.model if leans else opened.alone
    copying, loader = references(experiment.data)[LAST_VALID], experiment.data.loader(part, 64, days=PastDays((days,)))
    sums = torch.zeros(3, experiment.data.horizon, len(experiment.data.sensors.ids), dtype=torch.float64)
    for batch, target in loader.epoch(0):
        own = torch.from_numpy(experiment.precision.infer(model, batch))
        for place, forecast in enumerate((own, copying(batch).cpu())):
            errors = (forecast - target.values).abs().masked_fill(~target.valid, 0.0)
            sums[place] += errors[..., 0].sum(0, dtype=torch.float64)
        sums[2] += target.valid[..., 0].sum(0)
    return sums, experiment.data.store.step_minutes


def first_hour(run: str, data: str) -> None:
    """Print the error of the median sensor against naive, and how many are worse: without a day, with all, leaning."""
    for known_days, days, leans in (("0 days", 0, False), ("all days", None, False), ("all days, leaning", None, True)):
        sums, step = by_sensor(run, data, "test", days, leans)
        seen, minutes = sums[2].sum(0) > 0, [n for n in (5, 15, 30, 60) if n % step == 0]
        steps = {"all steps": slice(None)} | {f"{n} min": slice(n // step - 1, n // step) for n in minutes}
        for name, part in steps.items():
            own, copied = sums[:2, part, seen].sum(1)
            ratio, mae = own / copied, own.sum() / sums[2, part].sum()
            worse = f"{100 * (ratio > 1).double().mean():.1f} % of sensors worse"
            print(f"{known_days}, {name}: MAE {mae:.3f}, median {ratio.median():.3f} of naive, {worse}", flush=True)


def unpack(pack: str) -> None:
    """Write the speeds of a pack [sensors, rows] and the places of its sensors as two tables."""
    stored = np.load(pack)
    ids, times = stored["ids"].astype(str), stored["epoch"].astype("datetime64[s]").astype(str)
    cells = np.where(stored["v"] == stored["missing"], "", stored["v"].astype(str)).T
    rows = [",".join([time, *row]) for time, row in zip(times, cells, strict=True)]
    Path("streets.csv").write_text("\n".join([",".join(["time", *ids]), *rows]) + "\n")
    places = [f"{name},{lat},{lon}" for name, lat, lon in zip(ids, stored["lat"], stored["lon"], strict=True)]
    Path("streets_places.csv").write_text("\n".join(["sensor_id,latitude,longitude", *places]) + "\n")


def slower(run: str, data: str, ratio: float) -> None:
    """Print the error against copying of the sensors whose speeds are multiplied, and of the others."""
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "slower.h5"
        shutil.copy(data, other)
        with h5py.File(other, "r+") as file:
            file["data/features"][:, ::2] = ratio * file["data/features"][:, ::2]
        for days in (0, 14):
            own, copied, _ = by_sensor(run, str(other), "validation", days)[0].sum(1)
            shares = [float(own[half].sum() / copied[half].sum()) for half in (slice(0, None, 2), slice(1, None, 2))]
            print(f"{label(days)}: {shares[0]:.3f} of copying at {ratio:g} times the speed, {shares[1]:.3f} else")


def ship(run: str, name: str, data: str) -> None:
    """Write a run into the package: its weights and settings, and all that belongs to its network, if it has one."""
    source, target = open_run(Path(run)), TRAINED / name
    kept = {file.name: file.read_bytes() for file in target.glob("last_two_days.h5")}
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file, content in kept.items():
        (target / file).write_bytes(content)
    settings = yaml.safe_load(source.settings.read_text())
    tied = not settings["model"]["zero_shot"]
    settings["data"]["path"] = f"{target.name}/last_two_days.h5" if tied else None
    settings["trainer"]["run_dir"] = None
    settings["data"]["extra_data"] = []
    (target / "settings.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    with_network = ("sensors.json", "climatology.safetensors", "intervals.safetensors") if tied else ()
    for file in ("format.txt", "metrics.jsonl", *with_network):
        shutil.copy(source.path / file, target / file)
    protocol = source.read_json("protocol.json")
    protocol.pop("place", None)
    protocol["settings"].pop("data.extra_data", None)  # files of whoever trained it
    if tied:  # its file is an excerpt of that of the training
        protocol["excerpt"] = open_store(target / settings["data"]["path"]).checksum
    (target / "protocol.json").write_text(json.dumps(protocol, indent=2) + "\n")
    weights = source.read_weights()
    best = source.rows()[(weights.epoch or 1) - 1].validation_mae or 0.0
    RunFolder(target).write_weights(weights.state, weights.epoch or 0, best)
    if tied:
        scores = socialx.evaluate(name, data, climatology_days="train", baselines=True)
        (target / "scores.json").write_text(json.dumps(scores.as_dict(), indent=2) + "\n")
    else:
        opened = open_forecasting(target, ConfigLayers.from_call(None, {"data": data}))
        experiment, trained = opened.experiment, opened.trained
        model = (experiment.past or experiment).model  # as trained
        batch, precision, then = experiment.settings.loader.batch_size, experiment.precision, experiment.protocol
        found = fit_intervals(model, experiment.data, batch, precision, then, trained.weights, days=PastDays((0,)))
        RunFolder(target).write_intervals(found.for_sensors((), CPU))
    print(f"{target}: {sum(file.stat().st_size for file in target.iterdir()):,} bytes")


def main() -> None:
    """Score, train there, or ship."""
    arguments = parser(__doc__, there=False, first_hour=False)
    arguments.add_argument("runs", nargs="*", metavar="RUN")
    arguments.add_argument("--data", metavar="FILE.h5")
    arguments.add_argument("--slower", type=float, metavar="RATIO")
    arguments.add_argument("--unpack", metavar="PACK.npz")
    arguments.add_argument("--ship", metavar="NAME")
    given = arguments.parse_args()
    if given.unpack:
        unpack(given.unpack)
    if given.ship:
        ship(given.runs[0], given.ship, given.data)
    if given.first_hour:
        first_hour(given.runs[0], given.data)
    if given.slower:
        slower(given.runs[0], given.data, given.slower)
    if given.ship or given.first_hour or given.slower or given.unpack:
        return
    network, cpu = socialx.open_store(given.data).dataset_name, machine()["cpu"]
    found = {}
    if given.there:
        found[network] = {"split": "test", "seeds": 1, "cpu": cpu, "mae": trained_there(given.data)}
    elif given.runs:
        name = f"{open_run(Path(given.runs[0])).protocol.dataset} -> {network}"
        mae = scored(given.runs, given.data)
        found[name] = {"split": "test", "seeds": len(given.runs), "cpu": cpu, "mae": mae}
    results = {**known(RESULT), **found}
    write(RESULT, results)
    draw(results)
    print(table(results))


if __name__ == "__main__":
    main()
