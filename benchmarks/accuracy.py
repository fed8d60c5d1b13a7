"""Scores of finished runs on their test windows, with protocol and learning curves: the figures of docs/accuracy.md.

    python benchmarks/accuracy.py runs/medium runs/stid runs/linear

Adds them to benchmarks/results/accuracy.json, in place of runs of the same names, and writes the table accuracy.md.
Runs that are named NAME_1, NAME_2 are further seeds of NAME: the table has a row of their mean, too.  A run that reads
the days before the day of issue has a second row: its scores with what was known when training ended, which may stand
beside those of models that read twelve steps alone.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import socialx
from socialx.cli.progress_bars import Show
from socialx.settings_layers import as_tree

RESULTS = Path(__file__).parent / "results"
ENDED = "with the days of the training"


def main() -> None:
    folders = [Path(name) for name in sys.argv[1:]]
    if not folders:
        sys.exit(__doc__)
    found = socialx.evaluate(folders, progress=Show("evaluate"))
    runs = {folder.resolve().name: result(folder, found) for folder in folders}
    protocol = {key: value for key, value in found.protocol.as_dict().items() if key not in ("trained", "seed")}
    RESULTS.mkdir(exist_ok=True)
    if (RESULTS / "accuracy.json").exists():
        before = json.loads((RESULTS / "accuracy.json").read_text())
        if before["protocol"]["checksum"] != protocol["checksum"]:
            sys.exit(f"{RESULTS / 'accuracy.json'}: scores on other data")
        runs = before["runs"] | runs
    (RESULTS / "accuracy.json").write_text(json.dumps({"protocol": protocol, "runs": runs}, indent=1) + "\n")
    (RESULTS / "accuracy.md").write_text("\n\n".join([table(runs), *map(curve, runs, runs.values())]) + "\n")


def result(folder: Path, found: Any) -> dict[str, Any]:
    """Scores, protocol and learning curve of one run."""
    run, scores, trained = socialx.load_run(folder), found[str(folder)], found.protocol.trained[str(folder)]
    settings = as_tree(run.settings)
    for section, name in (("data", "path"), ("pooling", "distances"), ("trainer", "run_dir")):  # files of this machine
        settings[section].pop(name)
    settings["trainer"]["teacher"] = [Path(name).name for name in settings["trainer"]["teacher"]]
    ended = {}
    if trained.past_days:
        (frozen,) = socialx.evaluate(folder, known_days="trained").known_days.values()
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


def table(runs: dict[str, Any]) -> str:
    """MAE / RMSE / MAPE of every run."""
    lines = [
        "| run | parameters | epochs | minutes | 15 min | 30 min | 60 min | all 12 steps |",
        "|---|---:|---:|---:|---|---|---|---|",
    ]
    rows = {name: (run, run["scores"]) for name, run in runs.items()}
    rows |= {f"{name}, {ENDED}": (run, run[ENDED]) for name, run in runs.items() if ENDED in run}
    for name, (run, scores) in rows.items():
        cells = [f"{s['mae']:.4f} / {s['rmse']:.4f} / {s['mape']:.3f}" for s in scores.values()]
        head = [name, f"{run['trained']['parameters']:,}", str(len(run["curve"])), f"{run['minutes']:.0f}"]
        lines.append("| " + " | ".join([*head, *cells]) + " |")
    for name, seeds in several(runs).items():
        means = [
            " / ".join(
                f"{statistics.mean(run['scores'][at][measure] for run in seeds):.{digits}f}"
                for measure, digits in (("mae", 4), ("rmse", 4), ("mape", 3))
            )
            for at in seeds[0]["scores"]
        ]
        minutes = statistics.mean(run["minutes"] for run in seeds)
        head = [f"{name}, mean of {len(seeds)} seeds", f"{seeds[0]['trained']['parameters']:,}"]
        lines.append("| " + " | ".join([*head, str(len(seeds[0]["curve"])), f"{minutes:.0f}", *means]) + " |")
    return "\n".join(lines)


def several(runs: dict[str, Any]) -> dict[str, list[Any]]:
    """The runs of each name that has several seeds."""
    found: dict[str, list[Any]] = {}
    for name, run in runs.items():
        first, _, seed = name.rpartition("_")
        found.setdefault(first if seed.isdigit() and first in runs else name, []).append(run)
    return {name: seeds for name, seeds in found.items() if len(seeds) > 2}


def curve(name: str, run: dict[str, Any]) -> str:
    """The epochs of one run."""
    lines = [f"{name}:", "", "| epoch | train MAE | validation MAE | windows/s |", "|---:|---:|---:|---:|"]
    lines += [
        f"| {row['epoch']} | {row['train_mae']:.4f} | {row['validation_mae']:.4f} | {row['windows_per_s']:.0f} |"
        for row in run["curve"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
