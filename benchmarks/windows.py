"""The MAE of every test window of ``metr-la``, so that others can test a difference without its forecasts.

    python benchmarks/windows.py --data metr_la.h5
    python benchmarks/windows.py theirs.csv

The first command writes benchmarks/results/windows.csv.gz: the origin of each window (the last row that it reads), how
many of its 12 x 207 targets are valid, and the MAE over them in mph, with the climatology of the training days and
with that of all days before.  The second one reads columns origin and mae, and prints theirs - ours.  The 95 %
intervals draw whole days of origins, as ``evaluate --compare`` does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.common import METR_LA, RESULTS, parser
from socialx.data.climatology import TRAINED_DAYS
from socialx.scoring.difference import confidence_interval
from socialx.scoring.scoring_pass import run_metrics
from socialx.settings.layers import ConfigLayers
from socialx.tasks.scored_split import Part, load_scored_split

RESULT, RUN = RESULTS / "windows.csv.gz", "metr-la"
WAYS = {"training days": TRAINED_DAYS, "past days": None}


def window_errors(data: Path) -> pd.DataFrame:
    """The errors of each window, with both climatologies."""
    scored = load_scored_split([RUN], ConfigLayers.from_call(None, {"data": data}), Part("test"))
    table = pd.DataFrame({"origin": scored.origins.astype("datetime64[s]")})
    for way, days in WAYS.items():
        windows = scored.rules()
        loader = scored.data.loader("test", 16, days=days)
        run_metrics(scored.opened[RUN].alone, loader, scored.experiment.precision, windows)
        total, count, _ = torch.cat(windows.parts, 1).sum(2)[:, : len(table)].cpu().numpy()
        table["valid"], table[way] = count.astype(int), total / np.where(count, count, np.nan)
    return table


def main() -> None:
    """Write the errors, or compare with them."""
    arguments = parser(__doc__)
    arguments.add_argument("theirs", nargs="?", type=Path)
    arguments.add_argument("--data", type=Path, help=METR_LA)
    given = arguments.parse_args()
    if given.data:
        written = {"method": "gzip", "mtime": 0}
        window_errors(given.data).to_csv(RESULT, index=False, float_format="%.3f", compression=written)
    table = pd.read_csv(RESULT, parse_dates=["origin"])
    if given.theirs:
        table = table.merge(pd.read_csv(given.theirs, parse_dates=["origin"])[["origin", "mae"]], on="origin")
    for way in WAYS:
        mae = table["mae"] - table[way] if given.theirs else table[way]
        days = table[["valid"]].assign(total=(mae * table["valid"]).fillna(0)).groupby(table["origin"].dt.date).sum()
        low, high = confidence_interval(days["total"].to_numpy(), days["valid"].to_numpy())
        value = f"{days['total'].sum() / days['valid'].sum():.4f} mph, 95 % from {low:.4f} to {high:.4f}"
        print(f"{'theirs - ' * bool(given.theirs)}{RUN}, {way}: {value}, {len(days)} days")


if __name__ == "__main__":
    main()
