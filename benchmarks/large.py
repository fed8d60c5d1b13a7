"""A network of a whole state in shards: peak memory and time of training, scoring and forecasting.

    OMP_NUM_THREADS=1 python benchmarks/large.py [--folder DIR] [--rows 105120] [--sensors 8600]

Makes a synthetic file (a year of 5-minute rows for 8,600 sensors: 3.6 GB of readings), runs each command in a process
of its own, and writes ``benchmarks/results/large.json``.  Peaks are ``ru_maxrss`` of the process, less that of one that
only imports what the command imports.  Needs about 2 GB of disk and an hour of one core.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import RESULTS, make_network, parser, write

CALIFORNIA = (32.6, 41.0), (-123.0, -117.0)  # latitude and longitude
MIB = 1 << 20
IMPORTS = "import torch, h5py, pandas, xlstm, socialx.tasks.train, socialx.tasks.predict, socialx.cli"


def run(words: list[str]) -> tuple[float, float, str]:
    """Seconds and peak MiB of a process, and the end of what it printed."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(words, stdout=output, stderr=output)
        _, status, used = os.wait4(process.pid, 0)
        output.seek(0)
        text = output.read().decode()[-600:]
    if status:
        raise SystemExit(f"{' '.join(words)}\n{text}")
    return time.perf_counter() - began, used.ru_maxrss / 1024, text


def main() -> None:
    """Run all and write the results."""
    given = parser(__doc__, folder=Path("runs/large"), rows=105_120, sensors=8600).parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    data, linear = given.folder / f"{given.rows}x{given.sensors}.h5", given.folder / "linear"
    if not data.exists():
        # In a process of its own: until it starts another program, a child counts the memory of its parent as its own.
        asked = (data, given.rows, given.sensors, *CALIFORNIA)
        maker = multiprocessing.get_context("spawn").Process(target=make_network, args=asked)
        maker.start()
        maker.join()
    socialx = [sys.executable, "-m", "socialx"]
    shards = ["--set", "loader.mode=sharded"]
    train = ["train", "--data", str(data), *shards, "--model", "linear", "--max-epochs", "1"]
    steps = ["profile", "--preset", "xlstm-large", "--data", str(data), *shards, "--steps", "50", "--warmup-steps", "0"]
    commands = {
        "train linear, 1 epoch": [*train, "--run-dir", str(linear), "--overwrite"],
        "predict": ["predict", str(linear), "--output", str(given.folder / "forecast.csv"), "--overwrite"],
        "evaluate --baselines": ["evaluate", str(linear), "--baselines", *shards],
        "xlstm-large, 50 steps": [*steps, "--batch-size", "1", "--activation-checkpointing"],
    }
    _, bare, _ = run([sys.executable, "-c", IMPORTS])
    rows = {}
    for name, words in commands.items():
        took, peak, text = run([*socialx, *words])
        rows[name] = {"command": f"socialx {' '.join(words)}", "seconds": round(took), "peak_mib": round(peak - bare)}
        print(f"{name:<28}{took:>8.0f} s {peak - bare:>8.0f} MiB over {bare:.0f}\n{text}", flush=True)
    content = {
        "rows": given.rows, "sensors": given.sensors, "file_mib": round(data.stat().st_size / MIB),
        "readings_mib": round(4 * given.rows * given.sensors / MIB), "bare_mib": round(bare), "commands": rows
    }  # fmt: skip
    write(RESULTS / "large.json", content)


if __name__ == "__main__":
    main()
