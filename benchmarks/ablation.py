"""What each part of the model is worth: the same training with one thing changed, scored on the test windows.

    python benchmarks/ablation.py --data metr_la.h5              # 28 days, width 32, two epochs: hours on one core

Every row is a run folder under --runs; a run that is complete is not repeated and an interrupted one goes on, so the
command may be stopped and started.  The table is written after every run, into benchmarks/results/ablation-small.json
and .md.  The first six rows have three seeds: differences smaller than their spread are noise.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import socialx
from benchmarks.common import RESULTS, head, line, parser, trained, write
from socialx.cli.progress_bars import Show
from socialx.settings.layers import ConfigLayers

SMALL: dict[str, Any] = {
    "data.days": 28,
    "loader.batch_size": 32,
    "model.patch": 1,
    "model.width": 32,
    "pooling.neighbours": 32,
    "trainer.max_epochs": 2,
    "trainer.lr_warmup_steps": 50,
    "trainer.weight_decay": 3e-4,
}
SENSOR_ALONE = {"pooling.kind": "self_only", "pooling.adaptive_adjacency_rank": 0}  # the same layers without neighbours
MLP_WIDTH = 42  # with as many parameters as the xLSTM of the same width
ROWS: dict[str, dict[str, Any]] = {
    "full model": {},
    "climatology off": {"model.climatology": False},
    "pair bias off": {"pooling.adaptive_adjacency_rank": 0},
    # The four corners of encoder and neighbours, at equal parameters apart from those of the pair bias.
    "pooling off": SENSOR_ALONE,
    "encoder off": {"model.encoder": "mlp"},  # the flattened window through an MLP of as many parameters
    "encoder and pooling off": {"model.encoder": "mlp", **SENSOR_ALONE},
    "identities off": {"model.sensor_embedding": False},
    "pooling by mean": {"pooling.kind": "mean", "pooling.adaptive_adjacency_rank": 0},
    "radius fixed": {"pooling.learnable_radius": False},
    "mLSTM alone": {"model.slstm_at": ""},
}
SEEDED = list(ROWS)[:6]  # these have three seeds, every other row has one
SEEDS = 3


def main() -> None:
    given = parser(__doc__, data=True, runs=Path("runs/ablation")).parse_args()
    shared = SMALL | {"data.path": given.data, "model.mlp_width": MLP_WIDTH}
    results: list[dict[str, Any]] = []
    seeded = [(seed, name) for seed in range(SEEDS) for name in SEEDED]
    for seed, name in [*seeded, *((0, name) for name in ROWS if name not in SEEDED)]:
        layers = ConfigLayers().over(shared | ROWS[name] | {"trainer.seed": seed})
        folder = given.runs / "small" / f"{name.replace(' ', '-')}-{seed}"
        results.append({"row": name, "changes": ROWS[name], **one_run(folder, layers)})
        write(RESULTS / "ablation-small.json", results)
        (RESULTS / "ablation-small.md").write_text(table(results))


def one_run(folder: Path, layers: ConfigLayers) -> dict[str, Any]:
    """Train, unless that is done, and score -> what the table needs of it."""
    run = trained(folder, layers)
    found = socialx.evaluate([run], progress=Show())
    scores, (of_run,) = found[run], found.protocol.trained.values()
    return {
        "seed": run.settings.trainer.seed,
        "parameters": of_run.parameters,
        "epochs": len(run.epochs),
        "mae": {**{str(at): scores.at(at).mae for at in (15, 30, 60)}, "all": scores.overall().mae},
        "validation_mae": run.best.validation_mae if run.best else None,
        "windows_per_s": statistics.median(row.windows_per_s for row in run.epochs),
        "protocol": found.protocol.as_dict() | {"trained": asdict(of_run)},  # without the folder of this machine
    }


def table(results: list[dict[str, Any]]) -> str:
    """The rows: mean over the seeds, and their spread."""
    columns = ("seeds", "parameters", "MAE 15 min", "30 min", "60 min", "all", "spread of all", "validation")
    lines = [head("row", *columns, "to full model, test", "to full model, validation")]
    full = {run["seed"]: run for run in results if run["row"] == "full model"}
    for name in dict.fromkeys(run["row"] for run in results):
        runs = [run for run in results if run["row"] == name]
        mean = {at: statistics.mean(run["mae"][at] for run in runs) for at in runs[0]["mae"]}
        mean["validation"] = statistics.mean(run["validation_mae"] for run in runs)
        every = [run["mae"]["all"] for run in runs]
        worse = statistics.mean(run["mae"]["all"] - full[run["seed"]]["mae"]["all"] for run in runs)
        validation = statistics.mean(run["validation_mae"] - full[run["seed"]]["validation_mae"] for run in runs)
        spread = f"{min(every):.3f} .. {max(every):.3f}" if len(runs) > 1 else ""
        *at, last = [f"{value:.3f}" for value in mean.values()]
        cells = [name, len(runs), f"{runs[0]['parameters']:,}", *at, spread, last]
        lines.append(line([*cells, f"{worse:+.3f}", f"{validation:+.3f}"]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
