"""The xLSTM and the MLP as encoders, trained for the same minutes of one core: is the xLSTM ahead anywhere?

    python benchmarks/encoders.py --data metr_la.h5
    python benchmarks/encoders.py --data metr_la.h5 --patch 12,6,4,3,2,1 [--seeds 0,1] [--encoders mlp] [KEY=VALUE ...]

28 days of METR-LA at width 32, three seeds of each.  The xLSTM has two epochs, and the MLP as many as take as long.  A
run that is complete is not repeated.  benchmarks/results/encoders.json is written after every run; the table is printed
at the end.

--patch: error against minutes for each number of steps in a token.  ``mlp-small`` with the settings KEY=VALUE is
trained with both encoders.  A row that benchmarks/results/patches.json has is kept, and an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import re
import statistics
from pathlib import Path
from typing import Any

import socialx
from benchmarks.ablation import MLP_WIDTH, SMALL, one_run
from benchmarks.common import RESULTS, head, known, line, numbers, parser, write
from socialx.settings.layers import ConfigLayers

CASES: dict[str, dict[str, Any]] = {
    "12 steps and past days": {},
    "12 steps": {"model.climatology": False},
    "12 steps and past days, 3 hours ahead": {"data.horizon": 36},
    "36 steps": {"model.climatology": False, "data.lookback": 36},
}
ENCODERS: dict[str, dict[str, Any]] = {
    "xLSTM": {},
    "MLP": {"model.encoder": "mlp", "model.mlp_width": MLP_WIDTH, "trainer.max_epochs": 8},
}
SEEDS = 3


def main() -> None:
    of_patch: dict[str, Any] = {"encoders": "mlp,xlstm", "output": RESULTS / "patches.json"}
    arguments = parser(__doc__, data=True, runs=Path("runs/encoders"), cases=len(CASES), **of_patch)
    arguments.add_argument("--patch", type=numbers, help="steps of a token: 12,6,4,3,2,1")
    arguments.add_argument("--seeds", type=numbers, default=[0], help="of --patch")
    arguments.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="of --patch")
    given = arguments.parse_intermixed_args()
    if given.patch:
        patches(given)
        return
    if given.settings or given.seeds != [0] or given.encoders != "mlp,xlstm":
        arguments.error("settings, seeds and encoders are those of --patch")
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for case, changes in list(CASES.items())[: given.cases]:
        for seed in range(SEEDS):
            for encoder, own in ENCODERS.items():
                values = SMALL | changes | own | {"data.path": given.data, "trainer.seed": seed}
                folder = given.runs / f"{case} {encoder} {seed}".replace(" ", "-").replace(",", "")
                row = one_run(folder, ConfigLayers().over(values))
                minutes = row["epochs"] * row["protocol"]["windows"]["train"] / row["windows_per_s"] / 60
                kept = {key: row[key] for key in ("parameters", "epochs", "mae", "validation_mae")}
                found.setdefault(case, {}).setdefault(encoder, []).append(kept | {"minutes": round(minutes, 1)})
                write(RESULTS / "encoders.json", found)
    print(head("reads", "encoder", "parameters", "epochs", "minutes", "validation", "test", "seeds differ by"))
    for case, encoders in found.items():
        for encoder, runs in encoders.items():
            maes = [run["mae"]["all"] for run in runs]
            minutes, validation = (statistics.mean(run[key] for run in runs) for key in ("minutes", "validation_mae"))
            errors = [f"{each:.3f}" for each in (validation, statistics.mean(maes), max(maes) - min(maes))]
            print(line([case, encoder, f"{runs[0]['parameters']:,}", runs[0]["epochs"], f"{minutes:.1f}", *errors]))


def patches(given: argparse.Namespace) -> None:
    """Train what is missing with each patch and encoder, and print error and minutes of all rows of these settings."""
    name = " ".join([given.data.stem, *given.settings])
    results = known(given.output)
    rows = results.setdefault(name, [])
    settings = dict(each.split("=", 1) for each in given.settings) | {"data.path": given.data}
    for seed in given.seeds:
        for patch in given.patch:
            for encoder in given.encoders.split(","):
                case = {"encoder": encoder, "patch": patch, "seed": seed}
                if any(case.items() <= row.items() for row in rows):
                    continue
                own = {"model.encoder": encoder, "model.patch": patch, "trainer.seed": seed}
                folder = given.runs / "patches" / re.sub(r"[^\w.=]+", "-", f"{name} {encoder} {patch} {seed}")
                found = one_run(folder, ConfigLayers(preset="mlp-small").over(settings | own))
                epochs = socialx.load_run(folder).epochs
                kept = {key: found[key] for key in ("parameters", "mae", "validation_mae")}
                minutes = [round(sum(each.seconds for each in epochs[: at + 1]) / 60, 2) for at in range(len(epochs))]
                curve = [[spent, each.validation_mae] for spent, each in zip(minutes, epochs, strict=True)]
                tokens = found["protocol"]["lookback"] // patch
                rows.append(case | {"tokens": tokens} | kept | {"minutes": minutes[-1], "by_epoch": curve})
                write(given.output, results)
    columns = ("patch", "tokens", "seed", "parameters", "minutes", "validation", "15", "30", "60 min", "test")
    print(head("encoder", *columns))
    for row in sorted(rows, key=lambda row: (row["encoder"], -row["patch"], row["seed"])):
        errors = [f"{each:.3f}" for each in (row["validation_mae"], *row["mae"].values())]
        cells = [row[key] for key in ("encoder", "patch", "tokens", "seed")]
        print(line([*cells, f"{row['parameters']:,}", f"{row['minutes']:.1f}", *errors]))


if __name__ == "__main__":
    main()
