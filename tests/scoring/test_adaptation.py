"""A zero-shot run learns of a network from the days before a forecast alone, whoever asks for it and when."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

import socialx
from socialx.core.batch import Batch
from socialx.model.export_model import ExportModel
from socialx.scoring import adaptation
from socialx.scoring.adaptation import MIXES, LastDays, lean
from socialx.scoring.intervals import LEVELS
from socialx.serving.latest import Latest
from socialx.serving.posted import read_issue
from socialx.settings.layers import ConfigLayers
from socialx.tasks.opened import Opened, open_forecasting
from tests.commands import EXCERPT, LOCATIONS, ROOT, edited, renamed, small_file, small_run, works

DAY = 288
NAIVE, USUAL = (0.0, 1.0), (0.0, 0.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four days and some hours of a network that the run does not know."""
    folder = tmp_path_factory.mktemp("data")
    return renamed(small_file(folder, 4 * DAY + 130, 4), folder / "other.h5")


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(data.with_name("small.h5"), tmp_path_factory.mktemp("runs") / "run", "--zero-shot")


def errors(*sensors: dict[tuple[float, float], float], counts: float = 1000, days: float = 7) -> LastDays:
    """Of one lead time: for each sensor the mean errors of some mixes; those of others are large."""
    sums = counts * torch.tensor([[each.get(mix, 9.0) for each in sensors] for mix in MIXES], dtype=torch.float64)
    table = torch.full((1, len(sensors), 1), counts, dtype=torch.float64)
    return LastDays(sums[:, None, :, None], table, table.clone(), torch.full_like(table, days))


def mixes(found: LastDays) -> list[tuple[float, float]]:
    return [MIXES[index] for index in found.decide().best[0, :, 0].tolist()]


BETTER = {(1.0, 0.0): 2.0, NAIVE: 4.0, USUAL: 5.0}
WORSE = {(1.0, 0.0): 3.0, NAIVE: 1.0, USUAL: 5.0}
NOISY = {(1.0, 0.0): 3.0, (0.5, 0.0): 2.0, NAIVE: 4.0, USUAL: 2.5}


def test_each_sensor_has_the_mix_with_the_least_error_and_its_gain_is_told() -> None:
    found = errors(BETTER, WORSE, NOISY)
    assert mixes(found) == [(1.0, 0.0), NAIVE, (0.5, 0.0)]
    assert found.decide().below_naive == pytest.approx(1 - (2 + 1 + 2) / (4 + 1 + 4))  # of what is handed out


def test_a_mix_within_the_margin_is_not_taken() -> None:
    assert mixes(errors({(1.0, 0.0): 2.0, NAIVE: 1.99, USUAL: 5.0})) == [(1.0, 0.0)]


@pytest.mark.parametrize(("counts", "days"), [(0, 7), (2, 7), (1000, 2)])
def test_a_sensor_of_few_errors_or_days_is_as_the_median_one(counts: float, days: float) -> None:
    found = errors(BETTER, BETTER, WORSE)
    found.sums[:, :, 2] *= counts / 1000
    for table, value in ((found.counts, counts), (found.moved, counts), (found.days, days)):
        table[:, 2] = value
    assert mixes(found) == [(1.0, 0.0)] * 3


def test_a_sensor_without_information_decides_nothing_about_another() -> None:
    """Silent, stuck, and stuck but for a moment; each for itself may be naive."""
    known = errors(BETTER, NOISY, NOISY, counts=60)
    for still in ({mix: 0.0 for mix in MIXES}, {(1.0, 0.0): 1.0, NAIVE: 0.0, USUAL: 1.0}, {NAIVE: 1e-4, USUAL: 1.0}):
        found = errors(BETTER, NOISY, NOISY, *[still] * 5, counts=60)
        found.moved[:, 3:] = 0.5 if still.get(NAIVE) else 0
        assert mixes(found)[:3] == mixes(known)


def test_a_slower_sensor_has_the_same_mix() -> None:
    rows = np.random.default_rng(0).uniform(1, 4, (30, len(MIXES)))
    slower = rows * np.where(np.arange(30) < 9, 0.5, 1)[:, None]
    named = ((dict(zip(MIXES, row, strict=True)) for row in each) for each in (rows, slower))
    one, two = (mixes(errors(*each, counts=60)) for each in named)
    assert one == two


def test_a_silent_sensor_keeps_the_forecast_and_an_unknown_climatology_counts_as_the_forecast() -> None:
    forecast, last = torch.full((1, 2, 3, 1), 60.0), torch.tensor([[[40.0], [torch.nan], [40.0]]])
    usual = torch.full((1, 2, 3, 1), 50.0)
    usual[:, :, 2] = torch.nan
    assert lean(forecast, last, usual, 0.5, 0.25)[0, 0, :, 0].tolist() == [52.5, 60.0, 55.0]


def opened(run: Path, data: Path) -> Opened:
    return open_forecasting(run, ConfigLayers.from_call(None, {"data": data}), split=False)


def part(data: Path, path: Path, rows: int) -> Path:
    """The first rows of a file."""
    shutil.copy(data, path)
    with h5py.File(path, "r+") as file:
        for name in ("data/features", "metadata/timestamps", "metadata/timestamps_epoch"):
            file[name].resize(rows, axis=0)
    return path


@pytest.fixture(params=["loops of wall times", "loops of two days", "streets in UTC"])
def network(request: pytest.FixtureRequest, data: Path, tmp_path: Path) -> Path:
    """METR-LA, PEMS-BAY, and a street every 15 minutes in km/h, each unknown to the run."""
    if request.param == "loops of wall times":
        return data
    path = tmp_path / "network.h5"
    if request.param == "loops of two days":
        places = ROOT / "examples/data/PEMS-BAY-META-excerpt.csv"
        socialx.convert("pems-bay", ROOT / "examples/data/PEMS-BAY-excerpt.csv", path, meta_csv=places)
        return path
    table = pd.read_csv(EXCERPT, index_col=0, parse_dates=True).iloc[: 4 * DAY + 130, :5]
    (0.8 * table.where(table > 0).resample("15min").mean()).to_csv(tmp_path / "streets.csv")
    given = {"meta_csv": LOCATIONS, "units": "km/h", "timezone": "UTC"}
    socialx.convert("auto", tmp_path / "streets.csv", tmp_path / "streets.h5", **given)
    works("backfill", tmp_path / "streets.h5", "--local-zone", "Europe/Copenhagen")
    return renamed(tmp_path / "streets.h5", path)


@pytest.mark.slow
def test_every_door_gives_the_forecast_of_an_origin(run: Path, network: Path, tmp_path: Path) -> None:
    """On the first day, across a midnight, and later; from a server that began with 40 rows."""
    saved, live = tmp_path / "all.h5", part(network, tmp_path / "live.h5", 40)
    scores = socialx.evaluate(run, network, split="all", save_forecasts=saved, intervals=True)
    first, store = opened(run, live), socialx.open_store(network)
    latest = Latest(first.experiment, "run", live, first.band(0.8, int(first.experiment.data.store.seconds[-1])))
    values, valid = store.read(slice(0, None))
    lookback, day, utc = first.experiment.data.lookback, 1440 // store.step_minutes, "Z" if store.local_zone else ""
    texts = [f"{second}{utc}" for second in store.seconds.astype("datetime64[s]")]
    every = socialx.predict(run, network, start=texts[lookback - 1], every=f"{store.step_minutes}min", interval=0.8)
    with h5py.File(saved) as file:
        evaluated = dict(zip(file["origin"].asstr()[:], file["forecast"][:], strict=True))
    rng = np.random.default_rng(0)
    for row in [50, len(values) // 2 + 3, *np.sort(rng.integers(day, len(values) - 13, 3)).tolist()]:
        at = texts[row]
        wanted = socialx.predict(run, network, at=at, interval=0.8)
        place = int(np.flatnonzero(every.origin == wanted.origin[0])[0])
        shutil.copy(part(network, tmp_path / "next.h5", row + 1), live)
        issued = latest.read()
        latest.keep(issued, [first.experiment.precision.infer(first.experiment.model, one.batch) for one in issued])
        served = json.loads(latest.answer)
        hour = slice(row - lookback + 1, row + 1)
        cells = np.where(valid[hour], values[hour], np.nan).astype(object)
        cells[~valid[hour]] = None
        body = {"times": texts[hour], "readings": dict(zip(store.sensors.ids, cells.T.tolist(), strict=True))}
        whole = replace(latest.experiment, data=replace(latest.experiment.data, stores={"avg_speed": store}))
        posted = read_issue(whole, "application/json", json.dumps(body).encode())
        answer = posted.forecast("run", first.experiment.precision.infer(whole.model, posted.batch), latest.band)
        for door, found in {
            "--start": (every.values[place], every.lower[place], every.upper[place]),
            "--save-forecasts": (evaluated[at.removesuffix("Z").replace("T", " ")],),
            "serve": [np.array(served[name]["avg_speed"])[0, ..., None] for name in ("forecast", "lower", "upper")],
            "POST": (answer.values[0], answer.lower[0], answer.upper[0]),
        }.items():
            for one, two in zip(found, (wanted.values[0], wanted.lower[0], wanted.upper[0]), strict=False):
                np.testing.assert_allclose(one, two, atol=1e-4, err_msg=f"{door} at {at}")
    assert latest.adapted_before == str(store.clock.local(store.seconds[row]).astype("datetime64[s]"))[:10]
    assert scores.coverage
    last, (model, batch) = socialx.predict(run, network), of_arrays(run, network)
    np.testing.assert_allclose(model.model(batch).detach().numpy(), last.values, atol=1e-4)


def of_arrays(run: Path, data: Path) -> tuple[ExportModel, Batch]:
    """The loaded model, and the last lookback of a file, from plain arrays."""
    store, model = socialx.open_store(data), socialx.load_model(run, data)
    values, valid = store.read(slice(-model.network.lookback, None))
    return model, model.batch(np.where(valid, values, np.nan)[None, ..., None], store.seconds[-1:])


@pytest.mark.slow
def test_exports_and_rows_by_days_are_the_model_alone(run: Path, data: Path, tmp_path: Path) -> None:
    """The exceptions that docs/zero-shot.md lists."""
    leaned = socialx.evaluate(run, data, climatology_days="all")
    (model, batch), traced = of_arrays(run, data), []
    with pytest.MonkeyPatch.context() as patch:  # tracing takes a minute
        patch.setattr("socialx.tasks.export._trace_graph", lambda experiment, *_: traced.append(experiment.model))
        socialx.export(run, tmp_path / "model.pt2", data=data)
    exported = traced[0](batch).detach().numpy()
    assert not np.allclose(exported, socialx.predict(run, data).values, atol=1e-2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adaptation.Past, "leaning", lambda *_: None)
        np.testing.assert_allclose(exported, socialx.predict(run, data).values, atol=1e-4)
        alone = socialx.evaluate(run, data)[str(run)].overall().mae
    assert leaned.climatology_days[f"{run}, all days"].overall().mae == pytest.approx(alone, abs=1e-6)
    assert abs(leaned[str(run)].overall().mae - alone) > 1e-3
    earlier = model.make_batch(batch.inputs, batch.last_observed, batch.origin - 3 * 86_400)  # a Friday, not a Monday
    torch.testing.assert_close(earlier.climatology, batch.climatology, rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
def test_reports_explanations_calibrations_and_scores_have_one_error(run: Path, data: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(run, own)
    mae = socialx.evaluate(own, data)[str(own)].overall().mae
    assert socialx.report(own, data).evaluation[str(own)].overall().mae == pytest.approx(mae, abs=1e-5)
    assert socialx.explain(own, data).mae == pytest.approx(mae, abs=1e-5)
    saved = tmp_path / "validation.h5"
    socialx.evaluate(own, data, split="validation", save_forecasts=saved)
    with h5py.File(saved) as file:
        errors_ = (file["truth"][:] - file["forecast"][:]).ravel()
    found = socialx.calibrate(own, data)
    assert found.errors == np.isfinite(errors_).sum()
    assert float(found.upper[-1, ..., -1, 0].max()) <= np.nanmax(errors_) + 1e-4
    middle = np.sort(errors_[np.isfinite(errors_)])[[(found.errors + 1) // 4 - 1, -((found.errors + 1) // 4)]]
    half = LEVELS.index(50)
    assert found.lower[half].min() <= middle[0] + 1e-4
    assert found.upper[half].max() >= middle[1] - 1e-4


def test_later_rows_and_those_of_the_day_teach_nothing(run: Path, data: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.h5"
    with edited(data, changed) as file:
        file["data/features"][3 * DAY :] = 3.0  # from the last midnight on
    pasts = [opened(run, path).experiment.past for path in (data, changed)]
    second = int(pasts[0].data.store.seconds[3 * DAY + 100])
    (one,), (two,) = (past.bases([second]) for past in pasts)
    assert one == two
    assert torch.equal(pasts[0].leaning(one).best, pasts[1].leaning(two).best)
    np.testing.assert_array_equal(pasts[0].pace(one).speeds, pasts[1].pace(two).speeds)


def test_the_first_day_leans_on_nothing_and_has_one_pace(run: Path, data: Path) -> None:
    past = opened(run, data).experiment.past
    seconds = past.data.store.seconds
    early, noon, later = past.bases(seconds[[11, 150, DAY + 5]].tolist())
    assert (early, noon, later) == ((None, 12), (None, 144), (int(past.data.calendar.day(seconds[DAY])), DAY))
    assert past.leaning(noon) is None
    assert past.leaning(later) is not None
    assert len(set(past.pace(noon).speeds[:, 0].tolist())) == 1
    assert past.day_text(int(seconds[150])) is None


def test_a_server_measures_a_day_once_and_anew_where_it_was_changed(run: Path, data: Path, tmp_path: Path) -> None:
    past = opened(run, data).experiment.past
    known = past.bases([int(past.data.store.seconds[-1])])[0]
    first = past.leaning(known)
    past.renew(opened(run, data).experiment.data)
    assert past.leaning(known) is first
    with edited(data, tmp_path / "changed.h5") as file:
        file["data/features"][DAY + 20, 0] = 20.0
    past.renew(opened(run, tmp_path / "changed.h5").experiment.data)
    assert past.leaning(known) is not first


def test_values_that_repeat_within_a_coarser_row_are_met_at_every_place(run: Path, data: Path) -> None:
    past = opened(run, data).experiment.past
    day = int(past.data.calendar.day(past.data.store.seconds[-1]))
    starts: list[int] = []
    batches = adaptation.DailyModel.forward

    def forward(self: adaptation.DailyModel, batch: Batch) -> torch.Tensor:
        starts.extend(batch.origin.tolist())
        return batches(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adaptation.DailyModel, "forward", forward)
        list(past.past_week(day))
    for minutes in (10, 15, 20, 30):
        assert {second // 60 % minutes for second in starts} == set(range(0, minutes, 5))


def test_the_note_says_what_evaluate_finds_on_the_days_before(run: Path, data: Path) -> None:
    done = works("predict", run, "--data", data, "--at", "2012-05-06 10:00")
    assert "predict.lately" in done.codes
    assert re.search(r" 3 days .* 2012-05-06 .* \d+ % (below|above) ", " ".join(done.stderr.split()))
    assert "predict.lately" not in works("predict", run, "--data", data, "--at", "2012-05-03 10:00").codes


def test_no_sensor_is_much_worse_than_the_naive_forecast(run: Path, data: Path) -> None:
    found = socialx.evaluate(run, data, split="validation", by="sensor", baselines=True).by
    own, naive = ({row.key: row.mae for row in found[name]["sensor"]} for name in (str(run), "naive"))
    assert max(own[sensor] / naive[sensor] for sensor in own) < 1.1


@pytest.mark.parametrize("at", ["2017-01-03 10:00", "2017-01-04 08:00"])
def test_far_sensors_without_information_change_no_other_forecast(at: str, tmp_path: Path) -> None:
    """Of the shipped run, on the first day and later: forty stuck sensors 222 km away, and a silent one."""
    table = pd.read_csv(ROOT / "examples/data/PEMS-BAY-excerpt.csv", index_col=0)
    places = pd.read_csv(ROOT / "examples/data/PEMS-BAY-META-excerpt.csv")[["sensor_id", "Latitude", "Longitude"]]
    turns = np.arange(41) * np.pi / 20
    middle = places[["Latitude", "Longitude"]].mean().to_numpy()
    around = middle + 2 * np.stack([np.cos(turns), np.sin(turns) / np.cos(np.radians(middle[0]))], axis=1)
    far = pd.DataFrame({"sensor_id": 900_000 + np.arange(41), "Latitude": around[:, 0], "Longitude": around[:, 1]})
    forecasts = []
    for added in (far[:0], far):
        readings = table.assign(**{str(name): 20.0 if name < 900_040 else np.nan for name in added["sensor_id"]})
        readings.to_csv(tmp_path / "speeds.csv")
        pd.concat([places, added]).to_csv(tmp_path / "places.csv", index=False)
        files = {"data": tmp_path / "speeds.csv", "meta_csv": tmp_path / "places.csv"}
        forecasts.append(socialx.predict("zero-shot", at=at, units="mph", **files))
    columns = [forecasts[1].sensors.index(name) for name in forecasts[0].sensors]
    np.testing.assert_allclose(forecasts[1].values[:, :, columns], forecasts[0].values, atol=1e-3)
