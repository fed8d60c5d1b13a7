"""How well a run forecasts a network that it never saw, by the days that it knows of it: docs/new-network.md.

    python benchmarks/any_network.py RUN [RUN ...] --data FILE.h5 [--part test]
    python benchmarks/any_network.py RUN --ship any

RUN: of ``train --any-network`` on another network; several are seeds of one training, of which the mean is shown.  The
first form scores them with 0, 1, 2, 3, 7, 14 and 28 days before each day of issue, beside copy-last and the historical
average, and adds the network to benchmarks/results/any_network.json.  The table and docs/pictures/any_network.png are
made of all networks in that file.  The second form writes the weights of a run into the package, without any path.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import yaml

import socialx
from socialx.environment import cpu_field
from socialx.scoring.references import REFERENCES
from socialx.tasks.trained import USUAL
from socialx.training.run_folder import TRAINED, RunFolder, open_run

RESULT = Path(__file__).parent / "results/any_network.json"
PICTURE = Path(__file__).parent.parent / "docs/pictures/any_network.png"
DAYS = (0, 1, 2, 3, 7, 14, 28)
MINUTES = (15, 30, 60)
COPIED, AVERAGE = "copy-last, last valid", "historical average"


def scored(runs: list[str], data: str, part: str) -> dict[str, dict[str, float]]:
    """MAE by the name of a row and the minutes ahead, or ``all``: the mean of the runs."""
    found: dict[str, list[dict[str, float]]] = {}
    for run in runs:
        evaluation = socialx.evaluate(run, data, part=part, baselines=run == runs[0], known_days=DAYS)
        step = evaluation.protocol.step_minutes
        for name, model in {**evaluation.models, **evaluation.known_days}.items():
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


def draw(results: dict[str, dict]) -> None:
    """The MAE over all steps by known days, relative to copying the last reading: a line for each network."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), dpi=150, layout="constrained")
    for name, result in results.items():
        rows, copied = result["mae"], result["mae"][COPIED]["all"]
        values = [100 * (rows[label(days)]["all"] / copied - 1) for days in DAYS]
        axes.plot(range(len(DAYS)), values, marker="o", label=name)
        axes.annotate(
            f"{values[-1]:.0f} %".replace("-", "\N{MINUS SIGN}"),
            (len(DAYS) - 1, values[-1]),
            xytext=(6, 0),
            textcoords="offset points",
        )
    axes.axhline(0, color="grey", linewidth=1)
    axes.annotate("copying the last reading", (len(DAYS) - 1, 0), xytext=(0, 4), textcoords="offset points", ha="right")
    axes.set_xticks(range(len(DAYS)), list(map(str, DAYS)))
    axes.set_xlim(-0.3, len(DAYS) - 0.3)
    axes.set_xlabel("days that are known of the network, before the day of the forecast")
    axes.set_ylabel("MAE against copying, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left")
    figure.savefig(PICTURE)


def label(days: int) -> str:
    """How a row of known days is called."""
    return f"{days} day{'s' * (days != 1)}"


def table(results: dict[str, dict]) -> str:
    """The MAE of all networks in Markdown, side by side: 15, 30 and 60 minutes ahead, and over all steps."""
    lines = [" | ".join(["| known of the network", *results]) + " |", "|---|" + "---|" * len(results)]
    for row in (COPIED, AVERAGE, *map(label, DAYS)):
        cells = (" / ".join(f"{value:.3f}" for value in result["mae"][row].values()) for result in results.values())
        lines.append(" | ".join([f"| {row}", *cells]) + " |")
    return "\n".join(lines)


def ship(run: str, name: str) -> None:
    """Write a run into the package: its weights without the climatology of its network, and its settings."""
    source, target = open_run(Path(run)), TRAINED / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    settings = yaml.safe_load(source.settings.read_text())
    settings["data"]["path"] = settings["trainer"]["run_dir"] = None
    settings["data"]["also"] = []
    (target / "settings.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    for file in ("format.txt", "protocol.json", "metrics.jsonl"):
        shutil.copy(source.path / file, target / file)
    weights = source.read_weights()
    best = source.rows()[(weights.epoch or 1) - 1].validation_mae or 0.0
    state = {key: tensor for key, tensor in weights.state.items() if key != USUAL}
    replace(RunFolder(target)).write_weights(state, weights.epoch or 0, best)
    print(f"{target}: {sum(file.stat().st_size for file in target.iterdir()):,} bytes")


def main() -> None:
    """Score, or ship."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--data", metavar="FILE.h5")
    parser.add_argument("--part", default="test")
    parser.add_argument("--ship", metavar="NAME")
    given = parser.parse_args()
    if given.ship:
        ship(given.runs[0], given.ship)
        return
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    trained = open_run(Path(given.runs[0])).protocol()
    name = f"{trained.dataset} -> {socialx.open_store(given.data).dataset_name}"
    mae = scored(given.runs, given.data, given.part)
    results[name] = {"part": given.part, "seeds": len(given.runs), "cpu": cpu_field("model name"), "mae": mae}
    RESULT.write_text(json.dumps(results, indent=1) + "\n")
    draw(results)
    print(table(results))


if __name__ == "__main__":
    main()
