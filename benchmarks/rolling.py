"""Which of several trainings forecasts better, asked without the test split: three origins, each scored on what
follows.

    python benchmarks/rolling.py NAME --data metr_la.h5 [--seeds 1] [KEY=VALUE ...]

``mlp-small`` with the settings KEY=VALUE is trained on the first 64, 80 and 95 days of METR-LA, and scored on the last
fifth of each: 13 to 19 days that no step of the training saw.  The test split of the file begins on day 96.  28 May
2012 is a holiday and does not count.  A run that is complete is not repeated.  A row with the MAE of each fold and of
all three is added to benchmarks/results/rolling.json, and all rows are printed.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import socialx
from benchmarks.common import RESULTS, known, line, parser, trained, write
from socialx.settings.layers import ConfigLayers

RESULT = RESULTS / "rolling.json"
DAYS = (64, 80, 95)
HOLIDAYS = {95: ("2012-05-28", "2012-05-29")}  # by the fold that has it in its last fifth


def error(run: socialx.Run, days: int) -> float:
    """The MAE over all steps of the last fifth, without forecasts that lie within a holiday."""
    whole = socialx.evaluate(run)[run].overall()
    if days not in HOLIDAYS:
        return whole.mae
    start, end = HOLIDAYS[days]
    off = socialx.evaluate(run, start=start, end=end)[run].overall()
    return (whole.mae * whole.count - off.mae * off.count) / (whole.count - off.count)


def main() -> None:
    """Train what is missing, score it, and print the table."""
    arguments = parser(__doc__, data=True, seeds=1, runs=Path("runs/rolling"))
    arguments.add_argument("name")
    arguments.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    given = arguments.parse_intermixed_args()
    layers = ConfigLayers(preset="mlp-small").over(dict(each.split("=", 1) for each in given.settings))
    found: dict[str, list[float]] = {}
    for days in DAYS:
        for seed in range(given.seeds):
            fold = {"data.path": given.data, "data.days": days, "trainer.seed": seed}
            run = trained(given.runs / f"{given.name}-{days}-{seed}", layers.over(fold))
            found.setdefault(str(days), []).append(round(error(run, days), 4))
            print(given.name, days, seed, found[str(days)][-1], flush=True)
    results = known(RESULT)
    results[given.name] = {"settings": given.settings, "mae": found}
    write(RESULT, results)
    for name, row in results.items():
        means = [statistics.mean(row["mae"][str(days)]) for days in DAYS]
        print(line([name, *(f"{each:.3f}" for each in (*means, statistics.mean(means)))]))


if __name__ == "__main__":
    main()
