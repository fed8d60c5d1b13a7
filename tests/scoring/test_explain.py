"""Where a run errs and its attention weights: against NumPy and by hand, then the command from end to end."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from socialx.core.precision import Precision
from socialx.data import geo
from socialx.data.series import Series, WindowLayout
from socialx.data.source import Arrays
from socialx.files.store.layout import Sensors
from socialx.files.store.store import open_store
from socialx.model.pooling import DotAttention, Geometry, SocialLayer
from socialx.scoring.attention_sums import AttentionWeights, RunningWeights, sensor_errors, social_layers
from socialx.scoring.explanation import plot_explanation
from socialx.scoring.metrics import BY, RunningErrors, mae_values
from socialx.scoring.results import Head
from socialx.scoring.scoring_pass import run_metrics
from socialx.settings.schema import PoolingSettings
from socialx.tasks.evaluate import evaluate as evaluate_runs
from socialx.tasks.explain import explain
from tests.commands import refused, small_run, socialx, works
from tests.meters import NeverWaits
from tests.networks import CPU, MONDAY, example, forecaster, loader, pooling, positions, scores_of, series, speeds

FP32 = Precision("32-true", CPU)
LINE = np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]])  # km


def by_hand(forecast: np.ndarray, truth: np.ndarray, valid: np.ndarray, *places: np.ndarray) -> list[np.ndarray]:
    """MAE and count of each key of forecast, truth, valid and places [B,P,N], entry by entry."""
    sums = [np.zeros((2, int(place.max()) + 1)) for place in places]
    for entry in map(tuple, np.argwhere(valid)):
        for total, place in zip(sums, places, strict=True):
            total[:, place[entry]] += abs(float(forecast[entry]) - float(truth[entry])), 1
    return [np.stack([np.divide(t, n, out=np.full_like(t, np.nan), where=n > 0), n]) for t, n in sums]


@pytest.mark.parametrize(("step_minutes", "missing"), [(5, 0.0), (5, 0.4), (30, 0.4), (7, 0.2), (5, 1.0)])
def test_errors_by_each_key_equal_the_definition(step_minutes: int, missing: float) -> None:
    rng = np.random.default_rng(1)
    rows, lookback, horizon = 400, 3, 4
    values = rng.uniform(1, 70, (rows, 3, 2)).astype(np.float32)
    valid = rng.random(values.shape) >= missing
    seconds = MONDAY + 60 * step_minutes * np.arange(rows)
    made = Series(Arrays(values, valid, seconds, step_minutes), WindowLayout(lookback, horizon, (0, 1), (1, 0)), CPU)
    free_flow = torch.tensor([[60.0, 9.0], [40.0, 9.0], [80.0, 9.0]])
    running = RunningErrors(horizon, tuple("abc"), step_minutes, CPU, free_flow)
    starts = rng.integers(0, rows - 7, (3, 40))
    forecasts = rng.uniform(1, 70, (3, 40, horizon, 3, 2)).astype(np.float32)
    for start, forecast in zip(torch.from_numpy(starts), torch.from_numpy(forecasts), strict=True):
        running.update(forecast, made.window(start), made.target(start))
    ahead = starts.reshape(-1, 1) + lookback + np.arange(horizon)  # the rows that are forecast
    hour = seconds[ahead] % 86_400 // 3_600
    if step_minutes == 7:  # a slot that begins before the full hour counts as that earlier hour
        hour = seconds[ahead] % 86_400 // 420 * 7 // 60
    weekday = (seconds[ahead] - MONDAY) // 86_400 % 7
    truth, valid = values[ahead][..., 1], valid[ahead][..., 1]
    step, sensor = np.indices(truth.shape)[1:]
    free = (truth >= 0.5 * free_flow[:, 0].numpy()).astype(int)
    places = (step, *(np.broadcast_to(each[..., None], truth.shape) for each in (hour, weekday)), sensor, free)
    errors = running.compute()
    expected = by_hand(forecasts[..., 0].reshape(truth.shape), truth, valid, *places)
    for name, (mae, count) in zip(BY, expected, strict=True):
        found = errors[name][: len(mae)]
        np.testing.assert_allclose(mae_values(found), mae, rtol=1e-12)
        assert [row.count for row in found] == count.tolist()
        assert sum(row.count for row in errors[name]) == errors["all"][0].count == valid.sum()


def test_a_pass_agrees_with_evaluate_and_skips_the_padding() -> None:
    model, windows = forecaster(), loader(split="test", batch_size=32)
    assert windows.num_windows % 32
    scores = scores_of(model, windows)
    running, weights = RunningErrors(12, tuple("abcde"), 5, CPU), AttentionWeights(model)
    with weights.sample_batches(len(windows)):
        assert run_metrics(model.train(), windows, FP32, running)
    assert model.training
    errors = running.compute()
    np.testing.assert_allclose(mae_values(errors["horizon"]), mae_values(scores.by_step), rtol=1e-12)
    assert errors["all"][0].mae == pytest.approx(scores.overall.mae, rel=1e-12)
    assert sum(row.count for row in errors["hour"]) == scores.overall.count
    assert [each.layer.name for each in weights.compute()] == ["layer 1"]


def test_a_hand_set_mean_is_told_as_it_is() -> None:
    """Three sensors on a line, 0, 1 and 3 km: distances 1, 3; 1, 2; 2, 3."""
    summed = RunningWeights(pooling(LINE, heads=2, kind="mean", neighbours=None, gate_radius_km=2.0))
    with torch.no_grad():
        summed.pooling.geometry.log_radius.copy_(torch.tensor([2.0, 4.0]).log())
        summed.pooling.geometry.log_beta.copy_(torch.tensor([0.5, 4.0]).log())
        for size in (4, 1):
            summed.update(torch.randn(size, 3, 16))
    found = summed.compute("here")
    distance = np.array([[1.0, 3.0], [1.0, 2.0], [2.0, 3.0]])
    gate = np.array([1 / (1 + np.exp(-beta * (r - distance))) for r, beta in ((2.0, 0.5), (4.0, 4.0))])
    weights = gate / 2  # [H,N,K]
    null_key = 1 - weights.sum(-1)
    entropy = -(weights * np.log(weights)).sum(-1) - null_key * np.log(null_key)
    away = (weights * distance).sum((1, 2)) / weights.sum((1, 2))
    columns = [[2, 4], [2, 0.25], null_key.mean(1), entropy.mean(1), away]
    heads = [list(vars(head).values()) for head in found.layer.heads]
    np.testing.assert_allclose(heads, np.transpose(columns), rtol=1e-5)
    assert found.layer.mean.distance_km == pytest.approx((weights * distance).sum() / weights.sum(), rel=1e-5)
    np.testing.assert_allclose(found.weights, weights.mean(0), rtol=1e-5)
    np.testing.assert_array_equal(found.index, [[1, 2], [0, 2], [1, 0]])
    np.testing.assert_allclose(found.apart_km, distance, rtol=1e-6)


@pytest.mark.parametrize("kind", ["attention", "attention_mlp", "weighted_mean"])
@pytest.mark.parametrize("at_a_time", [1, 2**24])
def test_weights_are_averaged_over_the_states_that_enter_the_pooling(
    kind: str, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces or at once; what is forecast when nothing is hooked does not count."""
    monkeypatch.setattr("socialx.scoring.attention_sums.AT_A_TIME", at_a_time)
    model, windows = forecaster(social=2).eval(), loader(batch_size=8)
    model.social[1] = SocialLayer(16, pooling(positions(5), kind=kind), 0.0).eval()
    seen, _ = next(windows.epoch(0))
    running, entered = AttentionWeights(model), []
    with torch.no_grad():
        hook = model.social[1].pooling.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
        with running.sample_batches(1):
            model(seen)
        hook.remove()
        model(seen._replace(inputs=seen.inputs + 5))
        weights = model.social[1].pooling.weights(entered[0]).double().numpy()  # [B,H,N,K]
    null_key = np.clip(1 - weights.sum(-1), 0, None)
    shares = np.concatenate([null_key[..., None], weights], axis=-1)
    entropy = -(shares * np.log(shares, where=shares > 0, out=np.zeros_like(shares))).sum(-1).mean((0, 2))
    first, found = running.compute()
    assert (first.layer.name, found.layer.name) == ("layer 1", "layer 2")
    np.testing.assert_allclose([head.null_key for head in found.layer.heads], null_key.mean((0, 2)), atol=1e-6)
    np.testing.assert_allclose([head.entropy_nats for head in found.layer.heads], entropy, rtol=1e-5)
    np.testing.assert_allclose(found.weights, weights.mean((0, 1)), rtol=1e-5)


def test_neither_sum_waits_for_the_device() -> None:
    model, (made, target) = forecaster().eval(), example()
    weights, errors = AttentionWeights(model), RunningErrors(12, tuple("abcde"), 5, CPU)
    with torch.no_grad(), weights.sample_batches(1), NeverWaits():
        errors.update(model(made), made, target)
    assert errors.compute()["all"][0].count == target.valid.sum()
    assert weights.compute()[0].weights is not None


def test_max_has_radii_but_no_weights_and_a_plain_model_nothing() -> None:
    running = RunningWeights(pooling(LINE, kind="max", neighbours=None, gate_radius_km=2.0, mask_mode="hard"))
    running.update(torch.randn(2, 3, 16))
    found = running.compute("here")
    assert found.layer.heads == (Head(pytest.approx(2), 0, None, None, None),) * 2
    assert (found.weights, found.layer.trained, social_layers(torch.nn.Linear(2, 2))) == (None, False, {})
    assert social_layers(forecaster(social=0)) == {}


def test_a_sensor_without_neighbours_has_no_distance() -> None:
    alone = geo.nearest_neighbours(np.full((2, 2), np.nan), None)
    layer = SocialLayer(8, DotAttention(8, Geometry(alone, PoolingSettings(adaptive_adjacency_rank=0), 2)), 0.0)
    running = RunningWeights(layer.pooling)
    with torch.no_grad():
        running.update(torch.randn(3, 2, 8))
    found = running.compute("here")
    assert {(head.null_key, head.distance_km) for head in (*found.layer.heads, found.layer.mean)} == {(1, None)}
    rows = RunningErrors(2, ("a", "b"), 5, CPU).compute()["sensor"]
    sensors = sensor_errors(Sensors(("a", "b"), *np.full((2, 2), np.nan)), rows, [found])
    assert [sensor.neighbours for sensor in sensors] == [(), ()]
    json.dumps([asdict(part) for part in (found.layer, *sensors, *rows)], allow_nan=False)


def test_the_worst_sensor_comes_first_and_one_without_targets_last() -> None:
    values, valid, seconds = speeds(300, 3, missing=0)
    valid[:, 1] = False
    made, starts = series(values, valid, seconds), torch.arange(0, 200, 5)
    target, running = made.target(starts), RunningErrors(12, tuple("abc"), 5, CPU)
    running.update(target.values + torch.tensor([1.0, 9.0, 2.0])[:, None], made.window(starts), target)
    errors = running.compute()
    found = sensor_errors(Sensors(("a", "b", "c"), np.arange(3.0), np.arange(3.0)), errors["sensor"], [])
    assert [(sensor.id, sensor.count) for sensor in found] == [("c", 480), ("a", 480), ("b", 0)]
    assert [sensor.mae for sensor in found] == [pytest.approx(2), pytest.approx(1), None]
    assert errors["all"][0].mae == pytest.approx(1.5)


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    return small_run(data, "two blocks", "--blocks", "2")


def explained(run: Path, *options: str | Path) -> dict[str, Any]:
    result = works("explain", run, "--json", *options)

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    return json.loads(result.stdout, parse_constant=refuse)


def texts(path: Path) -> str:
    """The text nodes of an SVG, a line each."""
    root = ElementTree.parse(path).getroot()  # noqa: S314 - our own file
    return "\n".join("".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text"))


def test_the_tables_name_errors_and_weights(run: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    result = works("explain", run)
    for words in (
        *("test windows", "MAE mph", "15 min", "60 min", "all 12 steps", "by the hour of the day", "23:00"),
        *("sensors, the worst first", "largest weight", "trained radii, up to 3 neighbours", "layer 2", "no neighbour"),
        *("1.39 = uniform over 3 neighbours and none", "DCRNN split"),
    ):
        assert words in result.stdout, words
    tables = result.stdout.replace(str(run), "run").split("attention weights of each head")[0]
    assert max(map(len, tables.splitlines())) <= 80
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_json_agrees_with_evaluate_and_holds_every_sensor(run: Path, data: Path) -> None:
    found = explained(run, "--split", "validation")
    scores = json.loads(socialx("evaluate", run, "--json", "--split", "validation").stdout)
    rows = scores["scores"][str(run)]["avg_speed"]
    assert [row["minutes"] for row in found["by_horizon"]] == list(range(5, 65, 5))
    assert [row["hour"] for row in found["by_hour"]] == list(range(24))
    steps, total = [row["mae"] for row in rows["by_step"]], rows["all"]
    assert [row["mae"] for row in found["by_horizon"]] == pytest.approx(steps, rel=1e-9)
    assert (found["mae"], found["count"]) == (pytest.approx(total["mae"], rel=1e-9), total["count"])
    assert found["protocol"] == scores["protocol"]
    assert [row["weekday"] for row in found["by_weekday"]] == list(range(7))
    assert sum(row["count"] for row in found["by_weekday"]) == found["count"]
    given = [1 - head["null_key"] for layer in found["layers"] for head in layer["heads"]]
    received = [sensor["received"] for sensor in found["sensors"]]
    assert sum(received) == pytest.approx(len(received) * sum(given) / len(given), rel=1e-6)
    assert sum(row["count"] for row in found["by_hour"]) == sum(s["count"] for s in found["sensors"]) == found["count"]
    store = open_store(data)
    assert {s["id"] for s in found["sensors"]} == set(store.sensors.ids)
    places = dict(zip(store.sensors.ids, store.sensors.latitude, strict=True))
    assert all(s["latitude"] == places[s["id"]] for s in found["sensors"])
    for sensor in found["sensors"]:
        weights = [neighbour["weight"] for neighbour in sensor["neighbours"]]
        assert weights == sorted(weights, reverse=True)
        assert sensor["id"] not in {neighbour["id"] for neighbour in sensor["neighbours"]}
        assert 0 < sum(weights) < 1
    assert [layer["name"] for layer in found["layers"]] == ["layer 1", "layer 2"]
    for layer in found["layers"]:
        for head in layer["heads"]:
            assert 0 < head["null_key"] < 1
            assert 0 < head["entropy_nats"] <= math.log(4) + 1e-6


def test_the_references_are_those_of_evaluate(run: Path) -> None:
    found = explain(run, split="validation")
    scores = evaluate_runs([run], split="validation", baselines=True, by=["hour", "horizon"])
    assert list(found.references) == ["naive", "historical average", "historical median"]
    for name, reference in found.references.items():
        assert reference.mae == pytest.approx(scores[name].overall().mae, rel=1e-9)
        assert (reference.by_hour, reference.by_horizon) == (scores.by[name]["hour"], scores.by[name]["horizon"])
    stored = found.as_dict()["references"]["historical average"]
    assert [row["hour"] for row in stored["by_hour"]] == list(range(24))
    assert [row["minutes"] for row in stored["by_horizon"]] == list(range(5, 65, 5))


@pytest.mark.slow
def test_a_picture_is_written_and_the_same_every_time(run: Path, tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg", "out.pdf", "new/out.PNG"):
        assert f"drew {tmp_path / name}" in works("explain", run, "--plot", tmp_path / name).stderr
    assert (tmp_path / "new/out.PNG").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "out.pdf").read_bytes().startswith(b"%PDF-")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    shown = texts(tmp_path / "one.svg")
    for words in (
        *("Sensors by MAE, mph", "MAE by lead time", "MAE by hour", "each head reaches", "The 4 worst sensors"),
        *("minutes ahead", "km within which", "attention weight", "naive", "historical average"),
        *("from the 2 neighbours", "target hour, America/Los_Angeles", "test windows, 2012"),
    ):
        assert words in shown


@pytest.mark.slow
def test_a_picture_without_positions_targets_or_pooling(run: Path, tmp_path: Path) -> None:
    found, nothing, nowhere = explain(run), {"mae": None, "count": 0}, {"latitude": None, "longitude": None}
    rows = {name: getattr(found, name) for name in ("by_horizon", "by_hour", "sensors")}
    empty = {name: tuple(replace(row, **nothing) for row in each) for name, each in rows.items()}
    first, second, third, last = found.sensors
    far = replace(last, latitude=0.0)
    some = (replace(first, **nowhere), replace(second, **nothing), replace(third, neighbours=()), far)
    listed = "no social pooling; 1 without position; 1 far away, not drawn; 1 without valid target (grey)"
    for change, says in (
        ({"sensors": tuple(replace(sensor, **nowhere) for sensor in found.sensors)}, "no sensor has a position"),
        ({**empty, **nothing}, "no valid target"),
        ({"sensors": (first, second, third, far)}, "1 far away, not drawn"),
        ({"sensors": some, "layers": ()}, listed),
    ):
        plot_explanation(replace(found, **change), tmp_path / "out.svg")
        assert says in texts(tmp_path / "out.svg")
    assert "each head reaches" not in texts(tmp_path / "out.svg")


@pytest.mark.parametrize(
    ("options", "says"), [(["--model", "linear"], "model.kind linear"), (["--pooling", "none"], "pooling.kind none")]
)
def test_a_model_without_pooling_says_so(options: list[str], says: str, data: Path, tmp_path: Path) -> None:
    folder = small_run(data, options[1], *options)
    result = works("explain", folder, "--plot", tmp_path / "out.svg")
    assert f"no pooling: {says}" in result.stdout
    assert "weights of each head" not in result.stdout
    found = explained(folder)
    assert (found["layers"], found["no_pooling"].startswith(says)) == ([], True)
    assert "no social pooling" in texts(tmp_path / "out.svg")


@pytest.mark.slow
def test_max_and_own_are_explained(data: Path, tmp_path: Path) -> None:
    largest = small_run(data, "max", "--pooling", "max")
    assert "max has no" in socialx("explain", largest, "--plot", tmp_path / "out.svg").stdout
    assert "each head reaches" in texts(tmp_path / "out.svg")
    assert all(sensor["neighbours"] == [] for sensor in explained(largest)["sensors"])
    own = small_run(data, "own", "--pooling", "self_only")
    assert all([near["id"] for near in sensor["neighbours"]] == [sensor["id"]] for sensor in explained(own)["sensors"])
    plot_explanation(explain(own), tmp_path / "own.svg")
    assert "each head reaches" in texts(tmp_path / "own.svg")


@pytest.mark.parametrize(
    ("options", "status", "code", "says"),
    [
        (["--plot", "out.jpg"], 2, "output.suffix", "out.jpg: "),
        (["--plot", "out"], 2, "output.suffix", ".png, .svg"),
        (["--split", "tests"], 2, "split.unknown", "--split tests"),
        (["--set", "data.horizon=6"], 2, "settings.run-differs", "horizon"),
        (["--plot", "folder.png"], 1, "output.folder", "folder.png: "),
    ],
)
def test_what_cannot_be_explained_is_refused_before_the_pass(
    options: list[str], status: int, code: str, says: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("socialx.tasks.explain.run_metrics", lambda *_, **__: pytest.fail("it was scored"))
    Path("folder.png").mkdir()
    assert (said := refused("explain", run, *options, code=status)).code == code
    assert says in said
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]
