"""A number that can be no reading is refused wherever a model reads it, and named with its sensor and time."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import socialx
from socialx.core.errors import SocialxError
from socialx.core.progress import Note
from socialx.files.store.store import open_store
from socialx.serving.endpoints import Service
from tests.commands import LOCATIONS, cross, edited, refused, refuses, works
from tests.commands import socialx as command
from tests.serving.conftest import experiment, followed
from tests.serving.test_latest import append, latest_of
from tests.test_first_calls import frame_of

__all__ = ["experiment", "followed"]  # fixtures
CODES = [-1.0, -99.0, 255.0, 999.0, -9999.0]


def with_code(data: Path, path: Path, code: float, rows: slice = slice(-3, None), sensor: int = 1) -> Path:
    """A copy in which some rows of a sensor are a code."""
    with edited(data, path) as file:
        file["data/features"][rows, sensor, 0] = code
    return path


def table_of(data: Path, path: Path) -> Path:
    """The file as a table, a missing reading as 0."""
    store = open_store(data)
    index = pd.Index([time.decode() for time in store.timestamps], name="time")
    pd.DataFrame(store.values, index, list(store.sensors.ids)).to_csv(path)
    return path


def frame(data: Path, code: float) -> pd.DataFrame:
    found = frame_of(data, 40)
    found.iloc[-3:, 1] = code
    return found


@pytest.mark.parametrize(
    ("task", "code"), cross(["predict", "evaluate", "explain", "report", "calibrate"], CODES, "predict")
)
def test_every_task_refuses_a_code_in_a_file(data: Path, run: Path, tmp_path: Path, code: float, task: str) -> None:
    path, store = with_code(data, tmp_path / "odd.h5", code), open_store(data)
    sensor, time = store.sensors.ids[1], store.timestamps[-3].decode()
    page = ["--output", tmp_path / "page.html"] if task == "report" else []
    line = refused(task, run, "--data", path, *page)
    limit = "avg_speed below 0" if code < 0 else "avg_speed above 124.3 mph"
    assert line.code == "store.impossible"
    assert line.startswith(f"error: {path}: {limit} ({sensor} has {code:g} at {time}).\n  try: ")
    assert line.endswith(f" --missing 0,{code:g}\n")


@pytest.mark.parametrize("code", [-1.0, 255.0])
def test_a_run_for_zero_shot_refuses_it_too(data: Path, tmp_path: Path, code: float) -> None:
    assert f"has {code:g} at" in refused("predict", "zero-shot", "--data", with_code(data, tmp_path / "odd.h5", code))


@pytest.mark.parametrize("code", [-99.0, 999.0])
def test_a_table_and_a_frame_are_refused_with_a_command(data: Path, run: Path, tmp_path: Path, code: float) -> None:
    good, odd = (
        table_of(data, tmp_path / "good.csv"),
        table_of(with_code(data, tmp_path / "odd.h5", code), tmp_path / "odd.csv"),
    )
    said = ["--meta-csv", LOCATIONS, "--units", "mph", "--timezone", "America/Los_Angeles"]
    error = command("predict", run, "--data", odd, *said)
    assert error.exit_code == 1
    assert f"{odd}: avg_speed" in error.stderr
    assert f"has {code:g} at 2012-05-04 09:05:00" in error.stderr
    assert f"--missing 0,{code:g}" in error.stderr
    with pytest.raises(SocialxError, match=f"has {code:g} at 2012-05-04 09:05:00"):
        socialx.predict(run, frame(data, code))
    options = {"meta_csv": LOCATIONS, "units": "mph", "timezone": "America/Los_Angeles"}
    found = socialx.predict(run, odd, missing=f"0,{code:g}", **options)
    without = with_code(data, tmp_path / "none.h5", np.nan)
    np.testing.assert_allclose(found.values, socialx.predict(run, without).values, rtol=1e-6)
    assert found.marks[0, 1] == "partial"
    np.testing.assert_array_equal(socialx.predict(run, good, **options).values, socialx.predict(run, data).values)
    assert works("predict", run, "--data", odd, *said, f"--missing=0,{code:g}").exit_code == 0


@pytest.mark.parametrize("odd", [0.0, 0.1, 100.0, 124.0])
def test_an_odd_reading_is_one(data: Path, run: Path, tmp_path: Path, odd: float) -> None:
    path = with_code(data, tmp_path / "odd.h5", odd, slice(-2, -1))
    for task in (socialx.predict, socialx.evaluate, socialx.explain):
        task(run, path)
    socialx.predict(run, frame(data, odd))


def test_what_the_file_calls_missing_is_no_reading(data: Path, tmp_path: Path) -> None:
    """As in the Danish file in km/h, where 255 is no reading."""
    path = tmp_path / "km.h5"
    with edited(data, path) as file:
        file["metadata/units"][()] = b'{"avg_speed": "km/h"}'
        file["metadata"].attrs["missing_value"] = 255.0
        values = file["data/features"][..., 0] * 1.6
        values[values == 0] = 255.0
        file["data/features"][..., 0] = values
    assert (open_store(path).values == 255).any()
    socialx.predict("zero-shot", path)
    with edited(path, tmp_path / "odd.h5") as file:
        file["data/features"][-1, 0, 0] = 254.0
    with refuses("store.impossible") as caught:
        socialx.predict("zero-shot", tmp_path / "odd.h5")
    assert re.search(r" 200 km/h .* 254 ", str(caught.value))


def test_the_latest_reading_of_long_ago_is_looked_at_too(
    data: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sensor that has been silent since is forecast from it."""
    for module in ("dataset", "data.source", "data.series"):
        monkeypatch.setattr(f"socialx.{module}.PAGE_ROWS", 60)
    flow = np.full((4, 1), 65.0), np.full(1, 65.0)
    for module in ("tasks.build", "scoring.adaptation"):
        monkeypatch.setattr(f"socialx.{module}.latest_free_flow", lambda *_: flow)
    short = with_code(data, tmp_path / "a.h5", np.nan, slice(19, None))
    path = with_code(short, tmp_path / "odd.h5", 999, slice(18, 19))
    with pytest.raises(SocialxError, match=f"has 999 at {open_store(data).timestamps[18].decode()}"):
        socialx.predict(run, path)


@pytest.mark.parametrize("code", [-9999.0, 255.0])
def test_a_server_that_follows_a_file_goes_on_with_the_last_good_forecast(followed: Service, code: float) -> None:
    before = latest_of(followed)
    append(followed.served.latest.path, "2012-05-04 09:20:00", [60.0, code, 50.0, 50.5])

    async def look() -> None:
        async with followed.running():
            await followed.served.latest.look(followed.worker.ask)

    asyncio.run(look())
    assert f"has {code:g} at 2012-05-04 09:20:00" in followed.served.latest.reason
    assert latest_of(followed) == before
    append(followed.served.latest.path, "2012-05-04 09:25:00", [60.0, 50.0, 50.0, 50.5])
    with edited(followed.served.latest.path, followed.served.latest.path) as file:
        file["data/features"][-2, 1, 0] = np.nan
    asyncio.run(look())
    assert (followed.served.latest.reason, latest_of(followed)["origin"]) == ("", ["2012-05-04 09:25:00"])


def told_by(call: Callable[..., object], *arguments: object, **options: object) -> dict[str, str]:
    """The notes of a task by their codes."""
    said: dict[str, str] = {}
    call(
        *arguments,
        progress=lambda event: said.update({event.message.code: str(event.message)} if isinstance(event, Note) else {}),
        **options,
    )
    return said


def test_a_code_within_the_range_is_told_where_inspect_tells_it(excerpt: Path, tmp_path: Path) -> None:
    path, rng = tmp_path / "odd.h5", np.random.default_rng(0)
    with edited(excerpt, path) as file:
        values = file["data/features"][..., 0]
        file["data/features"][..., 0] = np.where(rng.random(values.shape) < 0.1, np.float32(99), values)
    (remark,) = [line for line in socialx.inspect(path).remarks if "99 is in " in line]
    forecast = socialx.predict("zero-shot", path)
    assert any(remark.partition(":")[0].partition(" stands")[0] in line for line in forecast.notes)
    assert "inspect.odd_values" in told_by(socialx.predict, "zero-shot", path)
    table = table_of(path, tmp_path / "odd.csv")
    options = {"meta_csv": LOCATIONS, "units": "mph", "overwrite": True}
    done = socialx.convert("auto", table, tmp_path / "again.h5", **options)
    assert "inspect.odd_values" in [message.code for message in done.notes]
    assert socialx.predict("zero-shot", excerpt).notes == ()


@pytest.mark.parametrize(
    ("unit", "factor", "asked"), [("mph", 1.609344, "km/h"), ("km/h", 0.12, "m/s"), ("km/h", 0.3, "UNIT")]
)
def test_a_free_flow_that_fits_the_other_unit_is_asked_about(
    excerpt: Path, tmp_path: Path, unit: str, factor: float, asked: str
) -> None:
    path = tmp_path / "named.h5"
    with edited(excerpt, path) as file:
        file["data/features"][..., 0] = file["data/features"][..., 0] * factor
        file["metadata/units"][()] = f'{{"avg_speed": "{unit}"}}'.encode()
    forecast = socialx.predict("zero-shot", path)
    said = {"UNIT": "another unit"}.get(asked, asked)
    assert any(re.search(f": avg_speed .* {said}: ", line) for line in forecast.notes)
    assert f"units='{asked}'" in told_by(socialx.predict, "zero-shot", path)["run.unit-doubt"]
    assert "run.unit-doubt" in told_by(socialx.evaluate, "zero-shot", path)


@pytest.mark.parametrize(("unit", "free_flow"), [("km/h", 50), ("km/h", 62), ("km/h", 77), ("mph", 30), ("m/s", 25)])
def test_a_free_flow_of_roads_in_its_unit_is_fine(excerpt: Path, tmp_path: Path, unit: str, free_flow: float) -> None:
    path = tmp_path / "streets.h5"
    with edited(excerpt, path) as file:
        file["data/features"][..., 0] = file["data/features"][..., 0] * (free_flow / 67)
        file["metadata/units"][()] = f'{{"avg_speed": "{unit}"}}'.encode()
    assert "run.unit-doubt" not in told_by(socialx.predict, "zero-shot", path)


@pytest.mark.parametrize("factor", [1.52, 1.609344, 1.71])
def test_a_frame_of_another_unit_has_a_note(data: Path, run: Path, factor: float) -> None:
    found = socialx.predict(run, frame_of(data, 400) * factor)
    assert any(" in km/h: " in line for line in found.notes)
    assert socialx.predict(run, frame_of(data, 400)).notes == ()


def test_convert_tells_what_inspect_remarks_and_validate_fails(data: Path, tmp_path: Path) -> None:
    places = ["--meta-csv", LOCATIONS, "--units", "mph"]
    for code in (-1.0, 255.0):
        table = table_of(with_code(data, tmp_path / "odd.h5", code, slice(-60, None)), tmp_path / "odd.csv")
        output = tmp_path / "out.h5"
        plain = works("convert", "auto", table, *places, "--output-h5", output, "--overwrite").stderr
        printed = works("inspect", output).stdout
        remarks = [line.removeprefix("remark: ") for line in printed.splitlines() if line.startswith("remark: ")]
        assert remarks
        assert all(f"{output}: {remark}" in plain for remark in remarks)
        checked = command("convert", "auto", table, *places, "--output-h5", output, "--overwrite", "--validate")
        assert checked.exit_code == 3
        assert "valid:" not in checked.stdout
        assert f"--missing {code:g},0" in checked.stderr


def test_a_sensor_that_the_run_does_not_know_is_named(data: Path, run: Path, tmp_path: Path) -> None:
    city, day, places = tmp_path / "city.h5", tmp_path / "day.csv", tmp_path / "new.csv"
    city.write_bytes(data.read_bytes())
    index = pd.date_range("2012-05-04 09:20", periods=12, freq="5min", name="time")
    known = list(open_store(data).sensors.ids)
    pd.DataFrame(50.5, index, [*known, "NEW1"]).to_csv(day)
    places.write_text("id,lat,lon\nNEW1,34.1,-118.3\n")
    works("append", city, day, "--meta-csv", places)
    done = works("predict", run, "--data", city)
    assert "run.left-out" in done.codes
    assert re.search(rf"{city}: 1 of 5 sensors .* {run} .*\(NEW1\)", done.stderr)
    assert "NEW1 new to it" in refused("evaluate", run, "--data", city)
    assert list(socialx.predict(run, city).sensors) == known


@pytest.mark.parametrize("place", ["dataset_name", "timezone", "units", "feature"])
def test_no_text_of_a_file_commands_the_terminal(data: Path, run: Path, tmp_path: Path, place: str) -> None:
    escape, path = "\x1b]0;pwned\x07\x9b31m", tmp_path / "odd.h5"
    with edited(data, path) as file:
        if place == "dataset_name":
            file.attrs[place] = f"city{escape}"
        elif place == "timezone":
            file["metadata"].attrs[place] = f"Europe/Paris{escape}"
        elif place == "units":
            file["metadata/units"][()] = b'{"avg_speed": "mph\\u001b]0;pwned\\u0007"}'
        else:
            file["metadata/feature_names"][0] = b"speed\x1b]0;pwned\x07"
    for words in (["inspect", path], ["inspect", path, "--json"], ["predict", run, "--data", path]):
        done = command(*words)
        assert "\x1b" not in done.output
        assert "\x07" not in done.output
    store = open_store(path)
    assert (store.dataset_name + str(store.timezone) + store.unit + store.feature).isprintable()


def test_no_text_of_a_run_folder_commands_the_terminal(run: Path) -> None:
    protocol = run / "protocol.json"
    text = protocol.read_text()
    assert '"metr_la"' in text
    protocol.write_text(text.replace('"metr_la"', '"metr\\u001b]0;pwned\\u0007"').replace('"mph"', '"mph"'))
    for words in (["predict", run], ["evaluate", run], ["explain", run]):
        done = command(*words)
        assert "\x1b" not in done.output
        assert "\x07" not in done.output
