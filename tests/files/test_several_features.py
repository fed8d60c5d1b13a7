"""Files of several measured features: what convert makes, and what append, inspect, backfill and train do with them."""

from pathlib import Path

import h5py
import numpy as np
import pandas as pd

import socialx
from socialx.files.store.store import open_store
from tests import frames
from tests.commands import SMALL
from tests.commands import socialx as run
from tests.data_files import refusal

NAMES = ("flow", "avg_speed", "occupancy")


def table(rows: int = 120, first: str = "2024-01-31 20:00") -> dict[str, pd.DataFrame]:
    """Each quantity as a frame; speeds and flows have zeros, and all have holes."""
    rng, speeds = np.random.default_rng(5), frames.network(rows, first).round(2)
    flows = pd.DataFrame(rng.integers(0, 40, speeds.shape), speeds.index, speeds.columns).astype(float)
    speeds, flows = speeds.mask(flows == 0, 0.0), flows.mask(rng.random(flows.shape) < 0.1)
    return {"flow": flows, "avg_speed": speeds, "occupancy": (flows / 40).round(3)}


def write_rows(parts: dict[str, pd.DataFrame], path: Path) -> Path:
    names = {"flow": "q (veh/h)", "avg_speed": "speed", "occupancy": "occ [%]"}
    long = [part.reset_index().melt("time", var_name="sensor", value_name=names[name]) for name, part in parts.items()]
    rows = long[0].merge(long[1], on=["time", "sensor"]).merge(long[2], on=["time", "sensor"])
    rows.sort_values(["time", "sensor"], kind="stable").to_csv(path, index=False)
    return path


def right(path: Path, parts: dict[str, pd.DataFrame]) -> None:
    for name, part in parts.items():
        frames.same(frames.stored(open_store(path), name), part.where(part != 0) if name == "avg_speed" else part)


def city(folder: Path, parts: dict[str, pd.DataFrame]) -> Path:
    path = write_rows(parts, folder / "old.csv")
    options = {"meta_csv": frames.places_of(frames.IDS, folder / "at.csv"), "units": "km/h"}
    socialx.convert("auto", path, folder / "city.h5", channel="flow,speed,occupancy", **options)
    return folder / "city.h5"


def test_a_row_per_reading_of_several_quantities(tmp_path: Path) -> None:
    parts = table()
    path = city(tmp_path, parts)
    right(path, parts)
    with h5py.File(path) as file:
        assert file["metadata/feature_names"].asstr()[:].tolist() == [*NAMES, "latitude", "longitude"]
        assert file["data/features"].dtype == np.float32
        assert np.isnan(file["metadata"].attrs["missing_value"])
    units = {name: open_store(path, name).unit for name in NAMES}
    assert units == {"flow": "veh/h", "avg_speed": "km/h", "occupancy": "%"}
    out = ("--without-positions", "--sensor-column", "sensor", "--output-h5", tmp_path / "b.h5", "--channel")
    done = run("convert", "auto", tmp_path / "old.csv", *out, "flow,speed")
    assert "0 is treated" in done.stderr
    assert "--targets flow" in done.stderr
    done = run("convert", "auto", tmp_path / "old.csv", *out, "flow,speed", "--missing", "none", "--overwrite")
    assert (frames.stored(open_store(tmp_path / "b.h5"), "avg_speed") == 0).to_numpy().any()
    old, new = tmp_path / "old.csv", tmp_path / "c.h5"
    refusal(lambda: socialx.convert("auto", old, new, channel="flow,weather", sensor_column="sensor"), "observations")
    refusal(lambda: socialx.convert("auto", old, new, channel="flow,flow", sensor_column="sensor"), "second")


def test_append_inspect_and_backfill_know_several_features(tmp_path: Path) -> None:
    parts = table()
    path = city(tmp_path, {name: part[:70] for name, part in parts.items()})
    assert (
        socialx.append(path, write_rows({name: part[60:] for name, part in parts.items()}, tmp_path / "n.csv")).rows
        == 50
    )
    right(path, parts)
    assert socialx.append(path, tmp_path / "n.csv").rows == 0
    other = {name: part[110:] + 1 for name, part in parts.items()}
    refusal(lambda: socialx.append(path, write_rows(other, tmp_path / "o.csv")), "readings", task="append")
    report = socialx.inspect(path).report
    assert report is not None
    assert (report.features[:3], run("inspect", path).exit_code) == (list(NAMES), 0)
    before = path.read_bytes()
    assert (run("backfill", path).exit_code, path.read_bytes()) == (0, before)
    right(path, parts)


def test_lanes_of_several_quantities(tmp_path: Path) -> None:
    rows = "time,sensor,lane,speed,flow,occ\n" + "".join(
        f"2024-01-31 00:{minute:02}:00,S1,{lane},{60 + 10 * lane},{lane * minute},{0.1 * lane}\n"
        for minute in (0, 5, 10)
        for lane in (1, 2)
    )
    (tmp_path / "a.csv").write_text(rows)
    channel = "occupancy,speed,flow"
    socialx.convert(
        "auto", tmp_path / "a.csv", tmp_path / "a.h5", channel=channel, sensor_column="sensor", without_positions=True
    )
    store = open_store(tmp_path / "a.h5")
    values = {name: frames.stored(store, name)["S1"].tolist() for name in NAMES}
    assert values["flow"] == [0, 15, 30]
    np.testing.assert_allclose(values["avg_speed"], [75, 230 / 3, 230 / 3], rtol=1e-6)
    np.testing.assert_allclose(values["occupancy"], 0.15, rtol=1e-6)


def test_channels_of_an_array(tmp_path: Path) -> None:
    data = np.random.default_rng(1).integers(0, 50, (300, 4, 3)).astype(np.float32)
    np.savez(tmp_path / "p.npz", data=data)
    np.save(tmp_path / "p.npy", data)
    options = {"first_time": "2018-01-01 00:00", "freq": "5min", "without_positions": True}
    options["channel"] = "flow=0,speed=2,occupancy=1"
    for source in ("p.npz", "p.npy"):
        socialx.convert("auto", tmp_path / source, tmp_path / "p.h5", overwrite=True, **options)
        store = open_store(tmp_path / "p.h5")
        for name, index in (("flow", 0), ("occupancy", 1)):
            assert np.array_equal(frames.stored(store, name), data[..., index])
        speeds = np.where(data[..., 2] == 0, np.nan, data[..., 2])
        assert np.array_equal(frames.stored(store), speeds, equal_nan=True)
    unnamed = {**options, "channel": "flow,speed"}
    refusal(lambda: socialx.convert("auto", tmp_path / "p.npy", tmp_path / "q.h5", **unnamed), "flow=0,speed=1")


def test_two_targets_from_three_features_are_reached_from_convert(tmp_path: Path) -> None:
    path = city(tmp_path, table(700))
    words = ("--targets", "flow,avg_speed", "--inputs", "flow,avg_speed,occupancy", "--run-dir", tmp_path / "run")
    done = run("train", "--data", path, *words, "--max-epochs", "1", *SMALL)
    assert done.exit_code == 0, done.stderr
    done = run("predict", tmp_path / "run")
    assert done.exit_code == 0, done.stderr
    assert "avg_speed" in done.stdout
    assert "flow" in done.stdout
