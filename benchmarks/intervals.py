"""What grouping by the forecast brings to prediction intervals: plain bounds against those by share of free flow.

    python benchmarks/intervals.py runs/small --data metr_la.h5

Both fit on the validation split and measure on the test split.  Coverage and mean width in file units are over all
steps; congested: where less than half of the free-flow speed is forecast.  The interval score is the width, and for a
reading outside also 2 / (1 - level) times its distance (Gneiting and Raftery 2007, JASA 102(477), section 6.2); lower
is better.  Ends are not cut at 0 here.  It prints a table and writes benchmarks/results/intervals.json.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import RESULTS, parser, write
from socialx.cli.progress_bars import Show
from socialx.core.progress import subscribe
from socialx.scoring import intervals
from socialx.scoring.adaptation import free_flow_speeds
from socialx.scoring.scoring_pass import run_metrics
from socialx.settings.layers import ConfigLayers
from socialx.tasks.opened import open_forecasting

LEVELS = (50, 80, 90)  # percent
Measured = tuple[np.ndarray, np.ndarray]  # signed errors [W,P,N], NaN where there is none, and their groups


def errors_of(path: Path, data: Path) -> dict[str, Measured]:
    """Of the validation and the test split, of the first target."""
    experiment = open_forecasting(path, ConfigLayers.from_call(None, {"data": data})).experiment
    d, found = experiment.data, {}
    for part in ("validation", "test"):
        loader = d.loader(part, experiment.settings.loader.batch_size)
        sums = intervals.SignedErrors(torch.from_numpy(free_flow_speeds(d)).to(d.device), loader.num_windows, d.horizon)
        run_metrics((experiment.past or experiment).model, loader, experiment.precision, sums, name=part)
        found[part] = sums.errors[..., 0], sums.groups[..., 0]
    return found


def plain(errors: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Bounds [2,L,K,N] that are the same in all groups."""
    own, count = intervals.bounds(errors)
    together, _ = intervals.bounds(errors.reshape(-1, 1))
    own = np.where(count >= intervals.LEAST, own, together)
    return np.repeat(own[:, :, None], len(intervals.SHARES) + 1, axis=2)


def measure(fit: Measured, at: Measured, made: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> dict[str, float]:
    """Coverage, mean width, coverage in congestion and interval score of each level, in percent and file units."""
    sums = {percent: np.zeros(6) for percent in LEVELS}
    for step in range(at[0].shape[1]):
        table, error, group = made(fit[0][:, step], fit[1][:, step]), at[0][:, step], at[1][:, step].astype(int)
        valid, slow, sensors = np.isfinite(error), group == 0, np.arange(error.shape[1])
        for percent in LEVELS:
            low, high = table[:, intervals.LEVELS.index(percent)][:, group, sensors].astype(float)
            inside = (low <= error) & (error <= high)
            outside = np.maximum(low - error, 0) + np.maximum(error - high, 0)
            score = high - low + 200 / (100 - percent) * outside
            numbers = (np.where(valid, each, 0) for each in (high - low, score))
            sums[percent] += [float(each.sum()) for each in (valid, inside, *numbers, valid & slow, inside & slow)]
    found = {}
    for percent, (count, inside, width, score, of_slow, inside_slow) in sums.items():
        rows = {"covered": 100 * inside / count, "congested": 100 * inside_slow / of_slow}
        rows |= {"width": width / count, "score": score / count}
        found |= {f"{name} {percent}": round(value, 2) for name, value in rows.items()}
    return found


def main() -> None:
    """Measure, print and write."""
    arguments = parser(__doc__, data=True)
    arguments.add_argument("run", type=Path)
    given = arguments.parse_args()
    with subscribe(Show()):
        parts = errors_of(given.run, given.data)
    found = {}
    served = {"by share of free flow": lambda *fit: intervals.bounds_by_group(*fit)[..., :-1]}
    for how, made in {"plain": plain, **served}.items():
        found[f"validation to test: {how}"] = measured = measure(parts["validation"], parts["test"], made)
        print(how)
        for percent in LEVELS:
            values = [measured[f"{each} {percent}"] for each in ("covered", "congested", "width", "score")]
            covered, congested, width, score = (f"{value:.2f}" for value in values)
            print(f"  {percent} %: {covered} % covered, {congested} % congested, width {width}, score {score}")
    write(RESULTS / "intervals.json", {"run": given.run.name, "shares": intervals.SHARES, "rows": found})


if __name__ == "__main__":
    main()
