"""The xLSTM and the MLP as encoders, trained for the same minutes of one core: is the xLSTM ahead anywhere?

    python benchmarks/encoders.py --data metr_la.h5

28 days of METR-LA at width 32, three seeds of each.  The xLSTM has two epochs, and the MLP as many as take as long.  A
run that is complete is not repeated.  benchmarks/results/encoders.json is written after every run; the table is printed
at the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.ablation import MLP_WIDTH, SMALL, one_run
from socialx.settings_layers import Layers

RESULT = Path(__file__).parent / "results/encoders.json"
CASES: dict[str, dict[str, Any]] = {
    "12 steps and past days": {},
    "12 steps": {"model.climatology": False},
    "12 steps and past days, 3 hours ahead": {"data.horizon": 36},
    "36 steps": {"model.climatology": False, "data.history": 36},
}
ENCODERS: dict[str, dict[str, Any]] = {
    "xLSTM": {},
    "MLP": {"model.encoder": "mlp", "model.mlp_width": MLP_WIDTH["small"], "trainer.max_epochs": 8},
}
SEEDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="METR-LA as socialx convert writes it")
    parser.add_argument("--runs", type=Path, default=Path("runs/encoders"), help="where the run folders go")
    parser.add_argument("--cases", type=int, default=len(CASES), help="only so many of them, from the first one on")
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for case, changes in list(CASES.items())[: arguments.cases]:
        for seed in range(SEEDS):
            for encoder, own in ENCODERS.items():
                values = SMALL | changes | own | {"data.path": arguments.data, "trainer.seed": seed}
                folder = arguments.runs / f"{case} {encoder} {seed}".replace(" ", "-").replace(",", "")
                row = one_run(folder, Layers().over(values))
                minutes = row["epochs"] * row["protocol"]["windows"]["train"] / row["windows_per_s"] / 60
                kept = {key: row[key] for key in ("parameters", "epochs", "mae", "validation_mae")}
                found.setdefault(case, {}).setdefault(encoder, []).append(kept | {"minutes": round(minutes, 1)})
                RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print("| reads | encoder | parameters | epochs | minutes | validation | test | seeds differ by |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for case, encoders in found.items():
        for encoder, runs in encoders.items():
            maes = [run["mae"]["all"] for run in runs]
            minutes, validation = (statistics.mean(run[key] for run in runs) for key in ("minutes", "validation_mae"))
            print(
                f"| {case} | {encoder} | {runs[0]['parameters']:,} | {runs[0]['epochs']} | {minutes:.1f} | "
                f"{validation:.3f} | {statistics.mean(maes):.3f} | {max(maes) - min(maes):.3f} |"
            )


if __name__ == "__main__":
    main()
