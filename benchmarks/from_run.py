"""How much sooner a training is done that starts from the weights of a run: docs/new-network.md.

    python benchmarks/from_run.py RUN --data FILE.h5 [--days N] [--epochs N] [--from-epochs N] [--seed N] [--runs DIR]

Two trainings with ``--size small`` on the same file, one after the other: from scratch, and from RUN.  Printed is the
validation MAE of each epoch, after how many seconds of training RUN's successor is as good as the best epoch from
scratch, and the ratio.  Seconds are those of metrics.jsonl: of training steps, without validation.  An epoch is the
finest step.  A training that is in the folder already is read, not repeated.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import socialx
from benchmarks.common import machine, parser, trained
from socialx.settings_layers import Layers

Curve = list[tuple[float, float]]  # after so many seconds of training, this validation MAE


def curve(run: socialx.Run) -> Curve:
    """The epochs of a run that have a validation MAE."""
    ends = accumulate(row.seconds for row in run.epochs)
    rows = zip(ends, run.epochs, strict=True)
    return [(end, row.validation_mae) for end, row in rows if row.validation_mae is not None]


def reached(points: Curve, mae: float) -> float | None:
    """Seconds until a curve is at most so high; None: it never is."""
    return next((seconds for seconds, found in points if found <= mae), None)


def main() -> None:
    """Train twice, and compare."""
    arguments = parser(__doc__)
    arguments.add_argument("run", metavar="RUN")
    arguments.add_argument("--data", metavar="FILE.h5", required=True)
    arguments.add_argument("--days", type=int, help="only the first days of the file")
    arguments.add_argument("--epochs", type=int, help="of the training from scratch")
    arguments.add_argument("--from-epochs", type=int, help="of the training from RUN; not given: as many")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--runs", type=Path, default=Path("runs/from_run"), help="folder of both trainings")
    given = arguments.parse_args()

    def train(name: str, epochs: int | None, start: str | None) -> Curve:
        settings = {"data.path": given.data, "data.days": given.days, "trainer.seed": given.seed, "model.patch": 1}
        settings |= {"trainer.max_epochs": epochs, "trainer.from_run": start}
        told = {key: value for key, value in settings.items() if value is not None}
        return curve(trained(given.runs / name, Layers(size="small").over(told)))

    scratch = train("scratch", given.epochs, None)
    started = train("started", given.from_epochs or given.epochs, given.run)
    print(f"{given.data}, seed {given.seed}, {machine()}")
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
