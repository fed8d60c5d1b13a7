"""Scores of finished runs on their test windows, with protocol and learning curves: the figures of docs/accuracy.md.

    python benchmarks/accuracy.py runs/xlstm-small runs/stid runs/linear

Adds them to benchmarks/results/accuracy.json, in place of runs of the same names, and writes the table accuracy.md and
the picture docs/pictures/accuracy.png.  Without a run it draws both again.  Runs that are named NAME_1, NAME_2 are
further seeds of NAME: the table has a row of their mean, too.  A run that reads the days before the day of issue has a
second row: its scores with what was known when training ended, which may stand beside those of models that read twelve
steps alone.  The minutes of a run that learnt from other ones hold the minutes of those, too: name them all.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import socialx
from benchmarks.common import RESULTS, line, parser, write
from socialx.cli.progress_bars import Show
from socialx.drawing.canvas import BLUE, GREY, VERMILION, picture, plain
from socialx.drawing.map import place_labels
from socialx.files.store.published import DATASETS
from socialx.settings.layers import as_tree

PICTURE = Path(__file__).parent.parent / "docs/pictures/accuracy.png"
ENDED = "with the days of the training"
TWELVE = "12 steps"
READS = {"scores": f"{TWELVE}, past days", ENDED: f"{TWELVE} + mean week of the training"}
AT, OTHERS = ("15", "30", "60"), ("Graph WaveNet", "STAEformer", "D2STGNN")  # of the picture
MEASURES = (("mae", 4), ("rmse", 4), ("mape", 3))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("runs", nargs="*", type=Path)
    folders = arguments.parse_args().runs
    before = json.loads((RESULTS / "accuracy.json").read_text())
    runs, protocol = before["runs"], before["protocol"]
    if folders:
        found = socialx.evaluate(folders, progress=Show())
        protocol = {key: value for key, value in found.protocol.as_dict().items() if key not in ("trained", "seed")}
        if before["protocol"]["checksum"] != protocol["checksum"]:
            sys.exit(f"{RESULTS / 'accuracy.json'}: scores on other data")
        runs |= {folder.resolve().name: result(folder, found) for folder in folders}
    write(RESULTS / "accuracy.json", {"protocol": protocol, "runs": runs})
    (RESULTS / "accuracy.md").write_text(table(runs) + "\n")
    draw(runs)


def result(folder: Path, found: Any) -> dict[str, Any]:
    """Scores, protocol and learning curve of one run."""
    run, scores, trained = socialx.load_run(folder), found[str(folder)], found.protocol.trained[str(folder)]
    settings = as_tree(run.settings)
    for section, name in (("data", "path"), ("pooling", "distances"), ("trainer", "run_dir")):  # files of this machine
        settings[section].pop(name)
    settings["trainer"]["teacher"] = [Path(name).name for name in settings["trainer"]["teacher"]]
    if settings["trainer"]["init_from"]:
        settings["trainer"]["init_from"] = Path(settings["trainer"]["init_from"]).name
    ended = {}
    if trained.past_days:
        (frozen,) = socialx.evaluate(folder, climatology_days="train").climatology_days.values()
        ended = {ENDED: of_horizons(frozen)}
    return {
        "scores": of_horizons(scores),
        **ended,
        "trained": asdict(trained),
        "minutes": round(sum(trained.windows["train"] / row.windows_per_s for row in run.epochs) / 60, 1),
        "settings": settings,
        "environment": [
            {key: value for key, value in start.items() if key != "command"}  # it names folders of the machine
            for start in json.loads((folder / "environment.json").read_text())
        ],
        "curve": [asdict(row) for row in run.epochs],
    }


def of_horizons(scores: Any) -> dict[str, Any]:
    """Scores at 15, 30 and 60 minutes, and over all steps."""
    return {**{str(at): scores.at(at).as_dict() for at in (15, 30, 60)}, "all": scores.overall().as_dict()}


def spent(name: str, runs: dict[str, Any]) -> float:
    """The minutes of the training of a run, and of those that it learnt from."""
    return sum(runs[each]["minutes"] for each in learnt_from(name, runs))


def learnt_from(name: str, runs: dict[str, Any]) -> set[str]:
    """The run itself, its teachers, the run that it starts from, and what those learnt from."""
    trainer = runs[name]["settings"]["trainer"]
    others = {*trainer["teacher"], *filter(None, [trainer.get("init_from")])}
    return {name}.union(*(learnt_from(other, runs) for other in others))


def draw(runs: dict[str, Any]) -> None:
    """Draw the mean MAE at 15, 30 and 60 minutes of every recipe by its core hours, and that of other models as lines.

    The seeds of a recipe are a point.  Nobody measured the others on such a core.
    """
    with picture(PICTURE, (9.0, 5.0)) as figure:
        axes, recipes = figure.subplots(), {name: of for name, of in several(runs).items() if ENDED in runs[name]}
        hours = [statistics.mean(spent(each, runs) for each in of) / 60 for of in recipes.values()]
        for key, color in (("scores", VERMILION), (ENDED, BLUE)):
            maes = [statistics.mean(runs[of][key][at]["mae"] for of in each for at in AT) for each in recipes.values()]
            axes.plot(hours, maes, "o", color=color, label=READS[key])
        points = np.concatenate([line.get_xydata() for line in axes.lines])
        for other in DATASETS["metr-la"].scores:
            if other.model in OTHERS:
                axes.axhline(statistics.mean(other.mae), color=GREY, linewidth=1, linestyle=":")
                label = f"{other.model}, {other.source.partition(':')[0]}"
                axes.text(max(hours), statistics.mean(other.mae), label, color=GREY, ha="right", va="bottom")
        axes.set_xlabel("hours of one CPU core")
        axes.set_ylabel("mean MAE at 15, 30 and 60 minutes, mph")
        axes.margins(0.1)
        plain(axes, "both")
        axes.legend(frameon=False, loc="lower center", ncols=2)
        figure.draw_without_rendering()  # the layout is final
        place_labels(axes, [*recipes], points[-len(recipes) :], points)


def table(runs: dict[str, Any]) -> str:
    """MAE / RMSE / MAPE of every run."""
    lines = [
        "| run | reads | parameters | epochs | minutes | validation | 15 min | 30 min | 60 min | all 12 steps |",
        "|---|---|---:|---:|---:|---:|---|---|---|---|",
    ]
    for key in ("scores", ENDED):
        with_key = {name: run for name, run in runs.items() if key in run}
        means = {f"{name}, mean of {len(of)} seeds": of for name, of in several(with_key).items() if len(of) > 1}
        for name, seeds in ({each: [each] for each in with_key} | means).items():
            of_seeds = [runs[seed] for seed in seeds]
            cost = statistics.mean(spent(seed, runs) for seed in seeds)
            validation = statistics.mean(min(row["validation_mae"] for row in run["curve"]) for run in of_seeds)
            cells = [
                " / ".join(f"{statistics.mean(run[key][at][of] for run in of_seeds):.{n}f}" for of, n in MEASURES)
                for at in of_seeds[0][key]
            ]
            reads = READS[key] if ENDED in of_seeds[0] else TWELVE
            first = [name, reads, f"{of_seeds[0]['trained']['parameters']:,}", f"{len(of_seeds[0]['curve'])}"]
            lines.append(line([*first, f"{cost:.0f}", f"{validation:.3f}", *cells]))
    return "\n".join(lines)


def several(runs: dict[str, Any]) -> dict[str, list[str]]:
    """The names of the runs of each recipe: its seeds."""
    found: dict[str, list[str]] = {}
    for name in runs:
        first, _, seed = name.rpartition("_")
        found.setdefault(first if seed.isdigit() and first in runs else name, []).append(name)
    return found


if __name__ == "__main__":
    main()
