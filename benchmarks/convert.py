"""What converting and backfilling cost: seconds against pandas' own parse, and peak memory of a network of a year.

    python benchmarks/convert.py --csv METR-LA.csv --meta sensor_locations.csv   time, interleaved, medians
    python benchmarks/convert.py --large                                         52,116 rows x 8,600 sensors, needs 9 GB

Every command runs in a process of its own, whose peak memory is the kernel's own figure.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

RESULT = Path(__file__).parent / "results" / "convert.json"
ROWS, SENSORS, PIECE = 52_116, 8_600, 512


# A child's peak in rusage includes its parent's memory at the fork; the kernel's VmHWM is its own.
SCRIPT = """
import sys
from socialx.cli import app
app(sys.argv[1:], standalone_mode=False)
print(*(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def socialx(*arguments: str | Path) -> tuple[float, float]:
    """Seconds of a command, all its imports included, and its peak MiB."""
    started = time.perf_counter()
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return time.perf_counter() - started, int(done.stdout.rpartition("VmHWM:")[2].split()[0]) / 1024


def published(csv: Path, meta: Path, folder: Path, rounds: int) -> dict[str, float]:
    """Medians over interleaved rounds; the parse is timed inside its process, the commands with all they import."""
    parse = "import pandas, sys, time; t = time.perf_counter(); pandas.read_csv(sys.argv[1], index_col=0); "
    parse += "print(time.perf_counter() - t)"
    work = "import sys, time; from pathlib import Path; import pandas; from socialx.files import writer; "
    work += "from socialx.files.convert_options import Request; from socialx.files.readings import read; "
    work += "t = time.perf_counter(); csv, meta, out = map(Path, sys.argv[1:]); "
    work += "writer.create(out, read('auto', Request(csv, meta=meta)).readings, overwrite=True); "
    work += "print(time.perf_counter() - t)"
    output, old = folder / "out.h5", folder / "old.h5"
    times: dict[str, list[float]] = {name: [] for name in ("pandas_parse", "convert", "command", "backfill", "mib")}
    for _ in range(rounds):
        for name, arguments in (("pandas_parse", (parse, csv)), ("convert", (work, csv, meta, output))):
            done = subprocess.run(
                [sys.executable, "-c", *map(str, arguments)], capture_output=True, text=True, check=True
            )
            times[name].append(float(done.stdout))
        options = ("--data-csv", csv, "--meta-csv", meta, "--output-h5", output, "--overwrite")
        seconds, mib = socialx("convert", "auto", *options)
        times["command"].append(seconds)
        times["mib"].append(mib)
        shutil.copyfile(output, old)
        with h5py.File(old, "r+") as file:
            del file["metadata/vd_info"], file["metadata/timestamps_epoch"]
        times["backfill"].append(socialx("backfill", old, "--meta", meta)[0])
    medians = {name: round(statistics.median(values), 3) for name, values in times.items()}
    return medians | {"convert_over_parse": round(medians["convert"] / medians["pandas_parse"], 2)}


def large(folder: Path) -> dict[str, dict[str, float]]:
    """A year and a half of California's sensors as .npy and as an HDFStore, float32 speeds with gaps."""
    locations = folder / "locations.csv"
    ids = [str(1_000_000 + i) for i in range(SENSORS)]
    rows = (f"{vdid},{33 + i / 1000},{-118 + i / 1000}" for i, vdid in enumerate(ids))
    locations.write_text("\n".join(["sensor_id,latitude,longitude", *rows]) + "\n")
    (folder / "ids.txt").write_text("\n".join(ids) + "\n")
    dice, found = np.random.default_rng(0), {}

    def piece(count: int) -> np.ndarray:
        values = np.round(dice.normal(60, 8, (count, SENSORS)), 1)
        return np.where(dice.random((count, SENSORS)) < 0.08, 0, values)

    plain = folder / "large.npy"
    array = np.lib.format.open_memmap(plain, "w+", np.float32, (ROWS, SENSORS))
    for first in range(0, ROWS, PIECE):
        array[first : first + PIECE] = piece(min(PIECE, ROWS - first))
    del array
    common = ("--meta-csv", locations, "--units", "mph", "--missing", "0", "--name", "large", "--overwrite")
    clock = ("--ids", folder / "ids.txt", "--start", "2017-01-01 00:00:00", "--freq", "5min")
    seconds, mib = socialx("convert", "npy", plain, *clock, *common, "--output-h5", folder / "out.h5")
    found["npy"] = {"seconds": round(seconds, 1), "peak_mib": round(mib), "output_mb": _megabytes(folder / "out.h5")}
    plain.unlink()
    frame = folder / "large.h5"
    with h5py.File(frame, "w") as file:
        group = file.create_group("df")
        group["axis0"] = group["block0_items"] = np.array(ids, "S")
        group["axis1"] = 1_483_228_800 + 300 * np.arange(ROWS, dtype=np.int64)
        group["axis1"].attrs["kind"] = np.bytes_("datetime64[s]")
        values = group.create_dataset("block0_values", (ROWS, SENSORS), "f8")
        for first in range(0, ROWS, PIECE):
            values[first : first + PIECE] = piece(min(PIECE, ROWS - first))
    seconds, mib = socialx("convert", "hdfstore", frame, *common, "--output-h5", folder / "out.h5")
    found["hdfstore"] = {
        "seconds": round(seconds, 1),
        "peak_mib": round(mib),
        "output_mb": _megabytes(folder / "out.h5"),
    }
    return found


def _megabytes(path: Path) -> float:
    return round(path.stat().st_size / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--meta", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        if options.csv and options.meta:
            result[options.csv.stem] = published(options.csv, options.meta, Path(folder), options.rounds)
        if options.large:
            result["52,116 x 8,600"] = large(Path(folder))
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
