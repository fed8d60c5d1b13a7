"""What the columns of a table mean: units in their names or below them, and lanes that are combined to sensors."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import socialx
from socialx.files.sources.tables.columns import combine, lanes_in_columns, parse_unit, split_unit
from socialx.files.store.store import open_store
from tests import frames
from tests.commands import socialx as run
from tests.data_files import refusal

SPEED = "avg_speed"


def write_text(text: str, folder: Path, name: str = "city.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("S1 (km/h)", ("S1", "km/h")),
        ("S1 [mph]", ("S1", "mph")),
        ("speed_kmh", ("speed", "kmh")),
        ("flow (veh/h)", ("flow", "veh/h")),
        ("q [Fz/h]", ("q", "Fz/h")),
        ("occ (%)", ("occ", "%")),
        ("S1 (north)", ("S1 (north)", "")),
        ("S_1", ("S_1", "")),
        ("km/h", ("km/h", "km/h")),
    ],
)
def test_a_unit_in_a_name(name: str, parts: tuple[str, str]) -> None:
    assert split_unit(name) == parts


def test_units_are_told_from_words() -> None:
    assert parse_unit("[km/h]") == (SPEED, "km/h")
    assert parse_unit("veh/5min") == ("flow", "veh/5min")
    assert parse_unit("vehicles per hour") == ("flow", "vehicles per hour")
    assert all(parse_unit(text) is None for text in ("", "S1", "h", "north", "a/b", "12"))


WIDE = {
    "in the header": lambda text: text.replace("4001", "4001 (km/h)").replace("4002", "4002 [kmh]"),
    "below it": lambda text: text.replace("\n", "\n,km/h,km/h,km/h,km/h\n", 1),
    "behind each number": lambda text: re.sub(r"(\.[0-9]{3,})(?=[,\n])", r"\1 km/h", text),
    "behind most numbers": lambda text: re.sub(r"(\.[0-9]{3,}[1-7])(?=[,\n])", r"\1KMH", text),
    "below it in brackets": lambda text: text.replace("\n", "\n[hh:mm],[km/h],[km/h],[km/h],[km/h]\n", 1),
}


@pytest.mark.parametrize("way", WIDE)
def test_the_unit_of_a_column_is_that_of_the_file(way: str, tmp_path: Path) -> None:
    frame = frames.network()
    path = write_text(WIDE[way](frame.to_csv()), tmp_path)
    frames.same(frames.converted(path), frame)
    assert open_store(tmp_path / "out.h5").unit == "km/h"
    done = run("convert", "auto", path, "--without-positions", "--output-h5", tmp_path / "a.h5")
    assert "the unit is unknown" not in done.stderr
    assert "left out beside the header" not in done.stderr
    frames.converted(path, units="km/h")
    refusal(lambda: frames.converted(path, units="mph"), "in km/h. Try: drop it")
    places = frames.places_of(frames.IDS, tmp_path / "at.csv")
    frames.same(frames.converted(path, meta_csv=places), frame)


def test_two_units_in_one_file_are_refused(tmp_path: Path) -> None:
    text = frames.network().to_csv().replace("4001", "4001 (km/h)").replace("4002", "4002 (mph)")
    refusal(lambda: frames.converted(write_text(text, tmp_path)), "several units", "4001 (km/h)", "in km/h", "in mph")
    january = write_text(frames.network().to_csv().replace("\n", "\n,km/h,,,\n", 1), tmp_path, "jan.csv")
    later = frames.network(first="2024-02-02 20:00").to_csv().replace("\n", "\n,mph,,,\n", 1)
    february = write_text(later, tmp_path, "feb.csv")
    refusal(lambda: frames.converted([january, february]), "several units", "jan.csv", "feb.csv")
    behind = WIDE["behind each number"](frames.network().to_csv()).splitlines()
    behind[30] = behind[30].replace("km/h", "mph")
    refusal(lambda: frames.converted(write_text("\n".join(behind), tmp_path)), "line 31", " mph', not a number")


def test_columns_of_flows_are_flows(tmp_path: Path) -> None:
    frame = frames.network()
    path = write_text(frame.rename(columns=lambda name: f"{name} (veh/h)").to_csv(), tmp_path)
    frames.same(frames.converted(path, "flow"), frame)
    assert open_store(tmp_path / "out.h5", "flow").unit == "veh/h"
    refusal(lambda: frames.converted(path, quantity="speed"), "the columns are flow", "drop")


def test_the_unit_of_a_quantity_in_a_row_per_reading(tmp_path: Path) -> None:
    rows = frames.long(frames.network()).rename(columns={"speed": "v (km/h)", "volume": "q (veh/h)"})
    path = write_text(rows.to_csv(index=False), tmp_path)
    frames.same(frames.converted(path), frames.network())
    assert open_store(tmp_path / "out.h5").unit == "km/h"
    frames.converted(path, "flow", quantity="flow")
    assert open_store(tmp_path / "out.h5", "flow").unit == "veh/h"


@pytest.mark.parametrize(("quantity", "unit"), [("speed", "mph"), ("flow", "veh/h"), ("occupancy", "%")])
def test_the_advice_on_units_fits_the_quantity(quantity: str, unit: str, tmp_path: Path) -> None:
    path = write_text(frames.network().to_csv(), tmp_path)
    words = ("--quantity", quantity, "--without-positions", "--output-h5", tmp_path / "out.h5")
    done = run("convert", "auto", path, *words)
    assert done.stderr.count("the unit is unknown") == 1
    assert f"the unit is unknown.\n  try: name it with --units {unit} or --units " in done.stderr


def test_append_refuses_another_unit(tmp_path: Path) -> None:
    path = write_text(frames.network().to_csv().replace("\n", "\n,km/h,,,\n", 1), tmp_path)
    frames.converted(path)
    later = frames.network(first="2024-02-01 01:00").rename(columns=lambda name: f"{name} (mph)")
    refusal(lambda: socialx.append(tmp_path / "out.h5", write_text(later.to_csv(), tmp_path, "b.csv")), "mph", "km/h")
    same = later.rename(columns=lambda name: name.replace("mph", "km/h"))
    assert socialx.append(tmp_path / "out.h5", write_text(same.to_csv(), tmp_path, "c.csv")).rows == 60


# ---- lanes


def plainly(values: np.ndarray, sensor: np.ndarray, features: list[str], codes: tuple[float, ...]) -> np.ndarray:
    """The oracle: one cell after the other in fp64."""
    result = np.full((len(values), sensor.max() + 1, len(features)), np.nan)

    def reading(row: int, lane: int, name: str) -> float | None:
        value = float(values[row, lane, features.index(name)])
        zero_counts = name != SPEED and len(features) > 1
        missing = np.isnan(value) or (value in codes and not (value == 0 and zero_counts))
        return None if missing else value

    for row in range(len(values)):
        for vdid in range(sensor.max() + 1):
            lanes = np.flatnonzero(sensor == vdid).tolist()
            for index, name in enumerate(features):
                numbers = {lane: number for lane in lanes if (number := reading(row, lane, name)) is not None}
                if not numbers or (name == "flow" and len(numbers) < len(lanes)):
                    continue
                total = sum(numbers.values())
                result[row, vdid, index] = total if name == "flow" else total / len(numbers)
                if name == SPEED and "flow" in features:
                    flows = [reading(row, lane, "flow") for lane in numbers]
                    lane_flows = [flow for flow in flows if flow is not None]
                    if len(lane_flows) == len(flows) and sum(lane_flows) > 0:
                        weighted = sum(flow * speed for flow, speed in zip(lane_flows, numbers.values(), strict=True))
                        result[row, vdid, index] = weighted / sum(lane_flows)
    return result


@given(data=st.data())
def test_lanes_are_combined_as_the_oracle_says(data: st.DataObject) -> None:
    features = data.draw(st.sampled_from([[SPEED], ["flow"], [SPEED, "flow"], ["flow", SPEED, "occupancy"]]))
    sensor = np.array(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6)))
    sensor = np.unique(sensor, return_inverse=True)[1]
    cells = st.sampled_from([0.0, -1.0, 0.0, np.nan]) | st.floats(0.5, 200, width=32)
    shape = (2, len(sensor), len(features))
    drawn = data.draw(st.lists(cells, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    values, codes = np.array(drawn, np.float32).reshape(shape), data.draw(st.sampled_from([(), (0.0,), (-1.0, 0.0)]))
    if -1.0 not in codes:
        values = np.abs(values)
    combined = combine(values, sensor, features, codes)
    wanted = plainly(values, sensor, features, codes)
    np.testing.assert_allclose(combined, wanted.astype(np.float32), rtol=1e-6)


def test_which_columns_are_lanes() -> None:
    def sensors(names: list[str], *located: str) -> tuple[str, ...] | None:
        lanes = lanes_in_columns(names, set(located))
        return None if lanes is None else lanes.ids

    assert sensors(["S1_L1", "S1_L2", "S2_L1"]) == ("S1", "S2")
    assert sensors(["S1-lane2", "S1-lane1"]) == sensors(["S1_Spur1", "S1_Spur2"]) == ("S1",)
    assert sensors(["S1_L1", "S2_L1"]) is None  # nothing says that these are lanes
    assert sensors(["S1_L1", "S2_L1"], "S1", "S2") == ("S1", "S2")
    assert sensors(["S1_L1", "S1_L2"], "S1_L1", "S1_L2") is None
    assert sensors(["S1_L1", "S1_L2"], "s1_l1", "s1_l2") is None
    assert sensors(["S1.1", "S1.2"]) is None
    assert sensors(["S1.1", "S1.2"], "S1") == sensors(["S1_F1", "S1-2"], "S1") == ("S1",)
    assert sensors(["S1", "S1.1"], "S1") is None
    assert sensors(["400001", "400001.0"]) is None


def lane_frame(frame: pd.DataFrame, flows: bool = True) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of two lanes of each sensor, and the speeds that are right for the sensors."""
    rng = np.random.default_rng(3)
    other = (frame + rng.uniform(-5, 5, frame.shape)).round(2)
    first = frame.round(2)
    q = rng.integers(0, 40, (2, *frame.shape)).astype(float)
    rows = []
    for lane, (speeds, counts) in enumerate(zip((first, other), q, strict=True), 1):
        part = speeds.reset_index().melt("time", var_name="sensor", value_name="speed")
        part["volume"] = pd.DataFrame(counts).melt()["value"]
        part.insert(2, "Fahrstreifen", lane)
        rows.append(part)
    weight = q if flows else np.ones_like(q)
    speeds = np.stack([first.to_numpy(), other.to_numpy()])
    mean = np.where(weight.sum(0) > 0, (speeds * weight).sum(0) / np.maximum(weight.sum(0), 1), speeds.mean(0))
    return pd.concat(rows).sort_values(["time", "sensor"], kind="stable"), pd.DataFrame(
        mean, columns=frame.columns, index=frame.index
    )


def close(actual: pd.DataFrame, wanted: pd.DataFrame) -> None:
    assert (actual.index == wanted.index).all()
    np.testing.assert_allclose(actual[list(wanted.columns)], wanted, rtol=1e-6)


@pytest.mark.parametrize("order", ["by time", "by sensor"])
def test_a_column_of_lanes(order: str, tmp_path: Path) -> None:
    rows, wanted = lane_frame(frames.network())
    rows = rows if order == "by time" else rows.sort_values(["sensor", "Fahrstreifen"], kind="stable")
    path = write_text(rows.to_csv(index=False), tmp_path)
    close(frames.converted(path), wanted)
    done = run("convert", "auto", path, "--without-positions", "--output-h5", tmp_path / "a.h5")
    assert "means of lanes weighted by flow" in done.stderr
    sums = rows.groupby(["time", "sensor"])["volume"].sum().unstack()
    close(frames.converted(path, "flow", quantity="flow"), sums)
    alone, plain = lane_frame(frames.network(), flows=False)
    path = write_text(alone.drop(columns="volume").to_csv(index=False), tmp_path)
    close(frames.converted(path), plain)


def test_columns_of_lanes_and_append(tmp_path: Path) -> None:
    names = {"4001": "S1_L1", "4002": "S1_L2", "4003": "S2_L1", "4004": "S2_L2"}
    frame = frames.network(120).rename(columns=names).round(3).fillna(0)
    valid = frame.where(frame != 0)
    wanted = pd.DataFrame({"S1": valid[["S1_L1", "S1_L2"]].mean(axis=1), "S2": valid[["S2_L1", "S2_L2"]].mean(axis=1)})
    old, new = (
        write_text(part.to_csv(), tmp_path, name) for part, name in ((frame[:60], "a.csv"), (frame[60:], "b.csv"))
    )
    options = {"missing": None, "meta_csv": frames.places_of(["S1", "S2"], tmp_path / "at.csv")}
    close(frames.converted(old, **options), wanted[:60])
    socialx.append(tmp_path / "out.h5", new)
    store = open_store(tmp_path / "out.h5")
    np.testing.assert_allclose(np.where(store.valid, store.values, np.nan), wanted, rtol=1e-6)
    dotted = frame.rename(columns=lambda name: name.replace("_L", "."))
    close(frames.converted(write_text(dotted[:60].to_csv(), tmp_path, "c.csv"), **options), wanted[:60])
    socialx.append(tmp_path / "out.h5", write_text(dotted[60:].to_csv(), tmp_path, "d.csv"))
    assert len(open_store(tmp_path / "out.h5").rows) == 120


def test_lanes_in_files_with_columns_in_another_order(tmp_path: Path) -> None:
    rows, wanted = lane_frame(frames.network())
    halves = [rows[rows["time"] < wanted.index[30]], rows[rows["time"] >= wanted.index[30]]]
    later = write_text(halves[1].to_csv(index=False), tmp_path, "a.csv")
    earlier = halves[0][["volume", "speed", "Fahrstreifen", "sensor", "time"]].to_csv(index=False)
    close(frames.converted([later, write_text(earlier, tmp_path, "b.csv")]), wanted)
