"""How much sooner a training is done that starts from the weights of a run: docs/new-network.md.

    python benchmarks/from_run.py RUN --data FILE.h5 [--days N] [--epochs N] [--from-epochs N] [--seed N] [--runs DIR]

Two trainings with ``--size small`` on the same file, one after the other: from scratch, and from RUN.  Printed is the
validation MAE of each epoch, after how many seconds of training RUN's successor is as good as the best epoch from
scratch, and the ratio.  Seconds are those of metrics.jsonl: of training steps, without validation.  An epoch is the
finest step.  A training that is in the folder already is read, not repeated.
"""

from __future__ import annotations

import argparse
from itertools import accumulate
from pathlib import Path

import socialx
from socialx.environment import cpu_field

Curve = list[tuple[float, float]]  # after so many seconds of training, this validation MAE


def curve(run: Path) -> Curve:
    """The epochs of a run that have a validation MAE."""
    rows = socialx.load_run(run).epochs
    ends = accumulate(row.seconds for row in rows)
    return [(end, row.validation_mae) for end, row in zip(ends, rows, strict=True) if row.validation_mae is not None]


def reached(points: Curve, mae: float) -> float | None:
    """Seconds until a curve is at most so high; None: it never is."""
    return next((seconds for seconds, found in points if found <= mae), None)


def trained(run: Path, data: str, days: int | None, epochs: int | None, seed: int, start: str | None) -> Curve:
    """The curve of a training, which is run where its folder is not there."""
    if not (run / "metrics.jsonl").exists():
        settings = {"patch": 1, "days": days, "max_epochs": epochs, "seed": seed}
        socialx.train(data, from_run=start, size="small", run_dir=run, **settings)
    return curve(run)


def main() -> None:
    """Train twice, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--data", metavar="FILE.h5", required=True)
    parser.add_argument("--days", type=int, help="only the first days of the file")
    parser.add_argument("--epochs", type=int, help="of the training from scratch")
    parser.add_argument("--from-epochs", type=int, help="of the training from RUN; not given: as many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/from_run"), help="folder of both trainings")
    given = parser.parse_args()
    same = (given.data, given.days)
    scratch = trained(given.runs / "scratch", *same, given.epochs, given.seed, None)
    started = trained(given.runs / "started", *same, given.from_epochs or given.epochs, given.seed, given.run)
    print(f"{given.data}, seed {given.seed}, {cpu_field('model name')}")
    for name, points in (("from scratch", scratch), (f"from {given.run}", started)):
        print(f"{name}: " + ", ".join(f"{mae:.4f} after {seconds:.0f} s" for seconds, mae in points))
    best = min(mae for _, mae in scratch)
    whole, sooner = reached(scratch, best), reached(started, best)
    if whole is None or sooner is None:
        least = min(mae for _, mae in started)
        print(
            f"the training from {given.run} does not reach {best:.4f}, the best from scratch; its best is {least:.4f}"
        )
        return
    print(f"{best:.4f} is reached after {sooner:.1f} s, from scratch after {whole:.1f} s: ratio {whole / sooner:.2f}")


if __name__ == "__main__":
    main()
