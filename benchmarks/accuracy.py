"""Scores of finished runs on their test windows, with stamps and learning curves: the figures of docs/accuracy.md.

    python benchmarks/accuracy.py runs/metr_la_cpu runs/stid runs/linear

Each run is scored by ``socialx evaluate``.  Writes benchmarks/results/accuracy.json and accuracy.md.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    folders = [Path(name) for name in sys.argv[1:]]
    if not folders:
        sys.exit(__doc__)
    command = [sys.executable, "-m", "socialx", "evaluate", *map(str, folders), "--json"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    runs = {folder.name: result(folder, report) for folder in folders}
    stamp = {key: value for key, value in report["stamp"].items() if key not in ("trained", "seed")}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "accuracy.json").write_text(json.dumps({"stamp": stamp, "runs": runs}, indent=1) + "\n")
    (RESULTS / "accuracy.md").write_text("\n\n".join([table(runs), *map(curve, runs, runs.values())]) + "\n")


def result(folder: Path, report: dict[str, Any]) -> dict[str, Any]:
    """Scores, stamp and learning curve of one run."""
    (scores,) = report["scores"][str(folder)].values()
    trained = report["stamp"]["trained"][str(folder)]
    curve = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    minutes = sum(trained["windows"]["train"] / row["windows_per_s"] for row in curve) / 60
    at = {"15": scores[2], "30": scores[5], "60": scores[11], "all": scores[-1]}
    return {
        "scores": at,
        "trained": trained,
        "minutes": round(minutes, 1),
        "settings": re.sub(r"(?m)^  path: .*\n", "", (folder / "settings.yaml").read_text()),
        "environment": [
            {key: value for key, value in start.items() if key != "command"}  # it names folders of the machine
            for start in json.loads((folder / "environment.json").read_text())
        ],
        "curve": curve,
    }


def table(runs: dict[str, Any]) -> str:
    """MAE / RMSE / MAPE of every run."""
    lines = [
        "| run | parameters | epochs | minutes | 15 min | 30 min | 60 min | all 12 steps |",
        "|---|---:|---:|---:|---|---|---|---|",
    ]
    for name, run in runs.items():
        cells = [f"{s['mae']:.4f} / {s['rmse']:.4f} / {s['mape']:.3f}" for s in run["scores"].values()]
        head = [name, f"{run['trained']['parameters']:,}", str(len(run["curve"])), f"{run['minutes']:.0f}"]
        lines.append("| " + " | ".join([*head, *cells]) + " |")
    return "\n".join(lines)


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
