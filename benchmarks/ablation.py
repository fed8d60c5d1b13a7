"""What each part of the model is worth: the same training with one thing changed, scored on the test windows.

    python benchmarks/ablation.py --data metr_la.h5              # 28 days, width 32, two epochs: hours on one core
    python benchmarks/ablation.py --data metr_la.h5 --full       # all days and all rows, examples/metr_la.yaml, CUDA

Every row is a run folder under --runs; a run that is complete is not repeated and an interrupted one goes on, so the
command may be stopped and started.  The table is written after every run, into benchmarks/results/ablation.json and
.md.  The first three rows have three seeds: differences smaller than their spread are noise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from socialx.options import Loaded, flat, load
from socialx.settings import Trainer
from socialx.training.engine import Progress

RESULTS = Path(__file__).parent / "results"
SMALL = {
    "data.days": "28",
    "model.width": "32",
    "model.blocks": "2",
    "model.slstm_at": "1",
    "model.dropout": "0",
    "loader.batch_size": "32",
    "trainer.max_epochs": "2",
    "trainer.lr_warmup_steps": "50",
}
NO_IDENTITIES = {f"model.{table}": "false" for table in ("time_of_day", "day_of_week", "sensor_identity", "adaptive")}
SEEDS = {"full model": 3, "pooling off": 3, "encoder off": 3}  # every other row has one
ROWS: dict[str, dict[str, str]] = {
    "full model": {},
    "pooling off": {"pooling.kind": "own"},  # the same layers, as large: each hears the sensor itself alone
    "encoder off": {"model.encoder": "mlp"},  # the flattened window through an MLP of as many parameters
    "identities off": NO_IDENTITIES,
    "pooling by mean": {"pooling.kind": "mean"},
    "radius fixed": {"pooling.learnable_radius": "false"},
    "interleaved": {"pooling.placement": "interleaved"},
    "mLSTM alone": {"model.slstm_at": ""},
}
MORE: dict[str, dict[str, str]] = {  # where there is a card
    "pooling by weighted mean": {"pooling.kind": "weighted_mean"},
    "pooling by max": {"pooling.kind": "max"},
    "attention by MLP": {"pooling.kind": "attention_mlp"},
    "one social layer": {"pooling.layers": "1"},
    "three social layers": {"pooling.layers": "3"},
    "half the width": {"model.width": "64"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="METR-LA as socialx convert writes it")
    parser.add_argument("--runs", type=Path, default=Path("runs/ablation"), help="where the run folders go")
    parser.add_argument("--full", action="store_true", help="the whole series and all rows, for a card")
    arguments = parser.parse_args()
    base = ["-c", str(Path(__file__).parent.parent / "examples/metr_la.yaml")] if arguments.full else []
    size, rows = ("full", ROWS | MORE) if arguments.full else ("small", ROWS)
    shared = {"data.path": str(arguments.data)} | ({} if arguments.full else SMALL)
    results: list[dict[str, Any]] = []
    seeded = [(seed, name) for seed in range(max(SEEDS.values())) for name in SEEDS if seed < SEEDS[name]]
    for seed, name in [*seeded, *((0, name) for name in rows if name not in SEEDS)]:
        settings = shared | rows[name] | {"trainer.seed": str(seed)}
        folder = arguments.runs / size / f"{name.replace(' ', '-')}-{seed}"
        results.append({"row": name, "changes": rows[name], **one_run(folder, base, settings)})
        write(results, size)


def one_run(folder: Path, base: list[str], settings: dict[str, str]) -> dict[str, Any]:
    """Train and score as a user would -> what the table needs of it."""
    layers = [*base, *(item for key, value in settings.items() for item in ("--set", f"{key}={value}"))]
    asked = load([Path(item) for item in base[1::2]], {}, [f"{key}={value}" for key, value in settings.items()])
    s, done = asked.settings, epochs_done(folder)
    if not done:
        socialx(["train", *layers, "--run-dir", str(folder), "--overwrite"])
    elif differ := differences(folder, asked):
        sys.exit(f"{folder}: a run with {differ}: name another --runs")
    elif not complete(done, s.trainer):
        socialx(["train", "--resume", str(folder)])
    report = json.loads(socialx(["evaluate", str(folder), "--json"]))
    (scores,), (trained,) = report["scores"].values(), report["stamp"]["trained"].values()
    mae = [score["mae"] for score in scores["avg_speed"]]
    metrics = epochs_done(folder)
    return {
        "seed": s.trainer.seed,
        "parameters": trained["parameters"],
        "epochs": len(metrics),
        "mae": {"15": mae[2], "30": mae[5], "60": mae[11], "all": mae[-1]},
        "validation_mae": min(row["validation_mae"] for row in metrics),
        "windows_per_s": statistics.median(row["windows_per_s"] for row in metrics),
        "stamp": report["stamp"] | {"trained": trained},  # without the folder of this machine
    }


def epochs_done(folder: Path) -> list[dict[str, Any]]:
    """The finished epochs of a run, none where there is no run."""
    metrics = folder / "metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


def differences(folder: Path, asked: Loaded) -> str:
    """What a run was told otherwise than it is asked now."""
    found, wanted = flat(load([folder / "settings.yaml"], {}).settings), flat(asked.settings)
    told = [key for key, origin in asked.origin.items() if origin != "default"]
    return ", ".join(f"{key} {found[key]}, not {wanted[key]}" for key in told if found[key] != wanted[key])


def complete(done: list[dict[str, Any]], trainer: Trainer) -> bool:
    """Whether these epochs are all, or early stopping has ended the run."""
    validation = [row["validation_mae"] for row in done]
    progress = Progress(epoch=len(done), best_epoch=validation.index(min(validation)))
    return progress.complete(trainer.max_epochs, trainer.patience)


def socialx(arguments: list[str]) -> str:
    """The command's output; its progress stays on the terminal."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, "-m", "socialx", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return done.stdout


def write(results: list[dict[str, Any]], size: str) -> None:
    """The runs as JSON, and the rows as a table: mean over the seeds, and their spread."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"ablation-{size}.json").write_text(json.dumps(results, indent=1) + "\n")
    lines = [
        "| row | seeds | parameters | MAE 15 min | 30 min | 60 min | all | spread of all | to full model, same seeds |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    full = {run["seed"]: run["mae"]["all"] for run in results if run["row"] == "full model"}
    for name in dict.fromkeys(run["row"] for run in results):
        runs = [run for run in results if run["row"] == name]
        mean = {at: statistics.mean(run["mae"][at] for run in runs) for at in runs[0]["mae"]}
        every = [run["mae"]["all"] for run in runs]
        worse = statistics.mean(run["mae"]["all"] - full[run["seed"]] for run in runs)
        spread = f"{min(every):.3f} .. {max(every):.3f}" if len(runs) > 1 else ""
        cells = [name, str(len(runs)), f"{runs[0]['parameters']:,}", *(f"{value:.3f}" for value in mean.values())]
        lines.append("| " + " | ".join([*cells, spread, f"{worse:+.3f}"]) + " |")
    (RESULTS / f"ablation-{size}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
