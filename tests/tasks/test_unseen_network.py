"""From the command line: a network that training never saw, and files of which several features are read or forecast.

Weights without tables of sensors fit every network; with such tables they are refused for another one.
"""

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from socialx.settings.layers import ConfigLayers
from socialx.tasks.opened import open_forecasting
from tests.commands import SMALL, edited, refused, renamed, small_file, small_run, socialx, works

WITHOUT_SENSORS = ["--no-sensor-embedding"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unseen")


def file_of(folder: Path, sensors: int, rows: int = 150) -> Path:
    place = folder / f"{sensors}x{rows}"
    if not place.exists():
        place.mkdir()
        small_file(place, rows, sensors)
    return place / "small.h5"


def by_road(data: Path, path: Path) -> Path:
    """A road from every sensor to the next one."""
    with h5py.File(data) as file:
        ids = [vdid.decode() for vdid in file["metadata/vdids"][:]]
    rows = [f"{ids[n]},{ids[n + 1]},{900 + n}\n" for n in range(len(ids) - 1)]
    path.write_text("from,to,cost\n" + "".join(rows))
    return path


@pytest.fixture(scope="module")
def shared(folder: Path) -> Path:
    """A run without tables of sensors."""
    return small_run(file_of(folder, 4), folder / "shared", *WITHOUT_SENSORS)


@pytest.mark.parametrize("sensors", [7, 2])
def test_another_network_is_scored_by_a_run_without_tables_of_sensors(sensors: int, shared: Path, folder: Path) -> None:
    result = works("evaluate", shared, "--data", file_of(folder, sensors, 140), "--baselines", "--json")
    printed = json.loads(result.stdout)
    assert printed["protocol"]["sensors"] == sensors
    own, copied = (printed["scores"][name]["avg_speed"]["all"] for name in (str(shared), "naive"))
    assert own["count"] == copied["count"] > 0
    assert 0 < own["mae"] < 3 * copied["mae"]
    at_home = json.loads(socialx("evaluate", shared, "--json").stdout)["protocol"]
    assert printed["protocol"]["network"] != at_home["network"]
    assert printed["protocol"]["scaler"] == at_home["scaler"]  # the weights brought theirs along


def test_sensors_that_training_did_not_see_have_a_climatology_of_their_own(shared: Path, folder: Path) -> None:
    layers = ConfigLayers.from_call(None, {"data": file_of(folder, 7, 140)})
    experiment = open_forecasting(shared, layers, split=False).experiment
    assert experiment.data.prior_climatology.counts.shape[2] == 7
    assert not experiment.data.prior_climatology.counts[:, :, 4:].any()  # sensors that training did not see
    city = folder / "city.h5"
    with edited(file_of(folder, 4), city) as file:
        file.attrs["dataset_name"] = "city"
    other = open_forecasting(shared, ConfigLayers.from_call(None, {"data": city}), split=False).experiment
    assert other.data.prior_climatology is not None  # whatever the name of the file is


@pytest.mark.parametrize("one", ["trained", "scored"])
def test_a_network_of_one_sensor_is_one_too(one: str, shared: Path, folder: Path) -> None:
    """Nobody has a neighbour there, but the same weights exist."""
    if one == "trained":
        alone = small_run(file_of(folder, 1, 140), folder / "alone", *WITHOUT_SENSORS)
        result = socialx("evaluate", alone, "--data", file_of(folder, 4))
    else:
        result = socialx("evaluate", shared, "--data", file_of(folder, 1, 140))
    assert result.exit_code == 0, result.stderr


def test_weights_do_not_depend_on_whether_offsets_are_known(folder: Path) -> None:
    """Trained by listed roads without any position, scored where positions are known."""
    data, bare = file_of(folder, 4), folder / "bare.h5"
    with edited(data, bare) as file:
        del file["metadata/vd_info"]
    roads = by_road(bare, folder / "roads.csv")
    run = small_run(bare, folder / "by_road", "--distances", str(roads), *WITHOUT_SENSORS)
    works("evaluate", run, "--data", data)


def test_another_network_brings_its_own_roads(folder: Path, tmp_path: Path) -> None:
    first, other = file_of(folder, 4), file_of(folder, 7, 140)
    roads = by_road(first, tmp_path / "first.csv")
    run = small_run(first, tmp_path / "run", "--distances", str(roads), *WITHOUT_SENSORS)
    roads.unlink()
    error = refused("evaluate", run, "--data", other)
    assert (error.code, f" {roads}: " in error) == ("file.missing", True)
    result = works("evaluate", run, "--data", other, "--distances", by_road(other, tmp_path / "other.csv"), "--json")
    straight = works("evaluate", run, "--data", other, "--distances", "", "--json")
    of_run = [json.loads(done.stdout)["scores"][str(run)]["avg_speed"]["all"]["mae"] for done in (result, straight)]
    assert of_run[0] != of_run[1]


def test_another_network_may_lack_positions_where_that_is_allowed(shared: Path, folder: Path, tmp_path: Path) -> None:
    lost = tmp_path / "lost.h5"
    with edited(file_of(folder, 7, 140), lost) as file:
        del file["metadata/vd_info"][file["metadata/vdids"][2].decode()]
    error = refused("evaluate", shared, "--data", lost)
    assert (error.code, "1 of 7 sensors" in error) == ("places.missing", True)
    assert "--no-require-locations" in error
    allowed = works("evaluate", shared, "--data", lost, "--no-require-locations")
    assert "places.missing-alone" in allowed.codes
    assert allowed.stderr.count(f"warning: {lost}: ") == 1


@pytest.mark.parametrize(
    "tables",
    [
        ["--set", "pooling.adaptive_adjacency_rank=0"],
        [*WITHOUT_SENSORS, "--per-sensor-output"],
        [*WITHOUT_SENSORS, "--set", "pooling.adaptive_adjacency_rank=2"],
        ["--model", "stid"],
    ],
    ids=["identity", "sensor-heads", "pairs", "stid"],
)
def test_another_network_is_refused_by_a_run_with_tables(tables: list[str], folder: Path, tmp_path: Path) -> None:
    run, other = small_run(file_of(folder, 4), tmp_path / "run", *tables), file_of(folder, 7, 140)
    error = refused("evaluate", run, "--data", other)
    assert error.code == "fit.other-data"
    assert re.match(rf"error: {other}: .* {run} \(.* 7 sensors, .* 4[ ;)]", error)
    assert "--data" in error.rsplit(":", 1)[1]


def test_other_sensors_are_another_network_though_they_are_as_many(folder: Path, tmp_path: Path) -> None:
    other = renamed(file_of(folder, 4), tmp_path / "other.h5")
    error = refused("evaluate", small_run(file_of(folder, 4), tmp_path / "run"), "--data", other)
    assert error.code == "fit.other-data"
    assert re.match(rf"error: {other}: .* {tmp_path / 'run'} \(.*; network ", error)


def with_facts(data: Path, path: Path, **attributes: str | bytes) -> Path:
    """A copy with other facts: ``timezone``, ``units``."""
    with edited(data, path) as file:
        if "timezone" in attributes:
            file["metadata"].attrs["timezone"] = attributes["timezone"]
        if "units" in attributes:
            del file["metadata/units"]
            file["metadata/units"] = np.bytes_(attributes["units"])
    return path


def test_the_same_network_by_another_clock_is_refused(shared: Path, folder: Path, tmp_path: Path) -> None:
    data = file_of(folder, 4)
    for command in ("evaluate", "predict"):
        error = refused(command, shared, "--data", with_facts(data, tmp_path / "utc.h5", timezone="UTC"))
        assert error.code == "fit.other-clock"
        clocks = ("utc.h5: ", " UTC, ", f" {shared} ", " America/Los_Angeles")
        assert all(fact in error for fact in (*clocks, " socialx backfill "))


@pytest.mark.parametrize(("zone", "lines"), [("US/Pacific", 0), ("", 1), ("Mars/Base", 1)])
def test_a_clock_that_is_not_known_is_said_and_another_name_of_it_is_not(
    zone: str, lines: int, shared: Path, folder: Path, tmp_path: Path
) -> None:
    result = works("evaluate", shared, "--data", with_facts(file_of(folder, 4), tmp_path / "zone.h5", timezone=zone))
    assert ("fit.zone-unknown" in result.codes) == bool(lines)
    assert result.stderr.count(zone or "an unknown zone") == lines


def test_another_network_may_have_its_own_clock(shared: Path, folder: Path, tmp_path: Path) -> None:
    berlin = with_facts(file_of(folder, 7, 140), tmp_path / "berlin.h5", timezone="Europe/Berlin")
    assert "fit.zone-unknown" not in works("evaluate", shared, "--data", berlin).codes  # both are local times
    utc = with_facts(file_of(folder, 7, 140), tmp_path / "utc.h5", timezone="UTC")
    result = works("evaluate", shared, "--data", utc)
    assert ("fit.zone-unknown" in result.codes, "the times are of UTC" in result.stderr) == (True, True)


def test_a_file_without_a_unit_is_refused_with_the_option_for_it(shared: Path, folder: Path, tmp_path: Path) -> None:
    error = refused("predict", shared, "--data", with_facts(file_of(folder, 4), tmp_path / "bare.h5", units="{}"))
    assert (error.code, "--units" in error) == ("fit.other-data", True)
    metric = with_facts(file_of(folder, 4), tmp_path / "km.h5", units='{"avg_speed": "km/h"}')
    result = socialx("predict", shared, "--data", metric)
    assert result.stderr.count("km/h, not mph") == 1
    assert "{" not in result.stderr


def stored(run: Path) -> dict:
    return json.loads((run / "protocol.json").read_text())


def test_an_input_beside_the_target(folder: Path, tmp_path: Path) -> None:
    run = small_run(
        file_of(folder, 4),
        tmp_path / "run",
        "--targets",
        "avg_speed",
        "--inputs",
        "avg_speed,latitude",
        *WITHOUT_SENSORS,
    )
    assert list(stored(run)["inputs"]) == ["avg_speed", "latitude"]
    printed = json.loads(works("evaluate", run, "--baselines", "--json").stdout)
    assert len(printed["scores"]) == 5
    assert all(list(of_model) == ["avg_speed"] for of_model in printed["scores"].values())
    assert printed["protocol"]["inputs"] == {"avg_speed": "mph", "latitude": "degrees"}


def test_a_score_for_every_target_in_its_own_unit(folder: Path, tmp_path: Path) -> None:
    words = ("--targets", "latitude,avg_speed", "--batch-size", "16", *WITHOUT_SENSORS)
    run = small_run(file_of(folder, 4), tmp_path / "run", *words)
    printed = json.loads(socialx("evaluate", run, "--baselines", "--json").stdout)
    assert printed["protocol"]["targets"] == {"latitude": "degrees", "avg_speed": "mph"}
    for of_model in printed["scores"].values():
        assert list(of_model) == ["latitude", "avg_speed"]
        assert [len(rows["by_step"]) for rows in of_model.values()] == [12, 12]
    copied = printed["scores"]["naive"]
    assert copied["latitude"]["all"]["mae"] == pytest.approx(0, abs=1e-5)  # a place does not move
    assert 1 < copied["avg_speed"]["all"]["mae"] < 20
    own = printed["scores"][str(run)]
    assert own["latitude"]["all"]["mae"] < 0.1 < own["avg_speed"]["all"]["mae"]
    alone = json.loads(socialx("evaluate", "--baselines", "--data", file_of(folder, 4), "--json").stdout)["scores"]
    assert alone["naive"]["avg_speed"] == copied["avg_speed"]
    assert re.findall(r"(\w+), test windows", socialx("evaluate", run).stdout) == ["latitude", "avg_speed"]


@pytest.mark.parametrize(
    ("options", "status", "code", "says"),
    [
        (["--targets", "avg_sped"], 1, "store.no-feature", "'avg_sped'; .* longitude.\n.* avg_speed"),
        (["--inputs", "avg_speed,flow"], 1, "store.no-feature", "longitude.\n.* --targets avg_speed"),
        (["--targets", ""], 2, "settings.invalid", r"data\.targets \(--targets\): "),
        (["--days", "0"], 2, "settings.invalid", r"data\.days \(--days\): "),
        (["--days", "1.5"], 2, "settings.invalid", r"data\.days \(--days\): "),
    ],
)
def test_what_the_file_does_not_have_is_named(
    options: list[str], status: int, code: str, says: str, folder: Path, tmp_path: Path
) -> None:
    words = ("train", "--data", file_of(folder, 4), "--run-dir", tmp_path / "run", *SMALL, *options)
    error = refused(*words, code=status)
    assert error.code == code
    assert re.search(says, error)
    assert not (tmp_path / "run").exists()


def test_a_feature_named_twice_is_refused(folder: Path, tmp_path: Path) -> None:
    for option in ("--targets", "--inputs"):
        twice = [option, "avg_speed,latitude,avg_speed"]
        error = refused("train", "--data", file_of(folder, 4), "--run-dir", tmp_path / "run", *SMALL, *twice, code=2)
        assert (error.code, f"({option}): avg_speed " in error) == ("settings.invalid", True)


def test_a_run_is_not_scored_on_a_file_without_its_features(folder: Path, shared: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.h5"
    with edited(file_of(folder, 4), other) as file:
        file["metadata/feature_names"][0] = b"flow"
    error = refused("evaluate", shared, "--data", other)
    assert error.code == "store.no-feature"
    assert all(fact in error for fact in ("'avg_speed'", " flow, latitude, longitude."))


def test_the_first_days_alone_are_used(folder: Path, tmp_path: Path) -> None:
    """400 rows of five minutes from midnight are 288 rows of the first day and 112 of the second."""
    data, of_days = file_of(folder, 4, 400), {}
    for days in ("1", "2", "9", ""):
        result = works("evaluate", "--baselines", "--data", data, "--days", days, "--json")
        of_days[days] = json.loads(result.stdout)["protocol"]
    windows = {days: sum(protocol["windows"].values()) for days, protocol in of_days.items()}
    assert windows == {"1": 288 - 23, "2": 400 - 23, "9": 400 - 23, "": 400 - 23}
    sums = {days: protocol["checksum"] for days, protocol in of_days.items()}
    assert sums["2"] == sums["9"] == sums[""] != sums["1"]
    run = small_run(data, tmp_path / "run", "--days", "1")
    assert stored(run)["windows"] == of_days["1"]["windows"]
    assert json.loads(socialx("evaluate", run, "--json").stdout)["protocol"]["checksum"] == sums["1"]


def test_too_few_days_are_one_line(folder: Path, tmp_path: Path) -> None:
    error = refused("evaluate", "--baselines", "--data", file_of(folder, 4), "--days", "1", "--horizon", "140")
    assert "--horizon" in error
