"""Where a run errs and whom it listens to: against NumPy and by hand, then the command from end to end."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from socialx.data import geo
from socialx.data.loaders import Series
from socialx.data.store import Sensors, open_store
from socialx.model.listening import Listening, RunningWeights, social_layers
from socialx.model.pooling import KINDS, Geometry, SocialLayer
from socialx.report.explanation import plot_explanation
from socialx.training.breakdown import RunningErrors, as_tree, break_down
from socialx.training.precision import Precision
from tests.commands import SMALL, small_file, socialx
from tests.networks import CPU, MONDAY, batch, forecaster, loader, pooling, positions, speeds
from tests.test_never_waits import NeverWaits

FP32 = Precision("32-true", CPU)
LINE = np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]])  # km


def by_hand(forecast: np.ndarray, target: np.ndarray, valid: np.ndarray, hour: np.ndarray) -> dict[str, np.ndarray]:
    """Sums of errors and counts of forecast, target, valid [B,P,N] and hour [B,P], one entry after the other."""
    sums = {"by_step": np.zeros((2, 4)), "by_hour": np.zeros((2, 24)), "by_sensor": np.zeros((2, 3))}
    for b, step, sensor in np.argwhere(valid):
        error = abs(float(forecast[b, step, sensor]) - float(target[b, step, sensor]))
        for name, place in (("by_step", step), ("by_hour", hour[b, step]), ("by_sensor", sensor)):
            sums[name][:, place] += error, 1
    return sums


@pytest.mark.parametrize(("step_minutes", "missing"), [(5, 0.0), (5, 0.4), (30, 0.4), (7, 0.2), (5, 1.0)])
def test_errors_by_step_hour_and_sensor_equal_the_definition(step_minutes: int, missing: float) -> None:
    rng = np.random.default_rng(1)
    rows, history, horizon = 400, 3, 4
    values = rng.uniform(1, 70, (rows, 3, 2)).astype(np.float32)
    valid = rng.random(values.shape) >= missing
    epochs = MONDAY + 60 * step_minutes * np.arange(rows)
    series = Series(values, valid, epochs, step_minutes, CPU, (0, 1), (1, 0))
    running = RunningErrors(horizon, 3, step_minutes, CPU)
    starts = rng.integers(0, rows - 7, (3, 40))
    forecasts = rng.uniform(1, 70, (3, 40, horizon, 3, 2)).astype(np.float32)
    for start, forecast in zip(starts, forecasts, strict=True):
        running.add(torch.from_numpy(forecast), series.gather(torch.from_numpy(start), history, horizon))
    ahead = starts.reshape(-1, 1) + history + np.arange(horizon)  # the rows that are forecast
    hour = epochs[ahead] % 86_400 // 3_600
    if step_minutes == 7:  # a slot that begins before the full hour counts as that earlier hour
        hour = epochs[ahead] % 86_400 // 420 * 7 // 60
    first = (forecasts[..., 0].reshape(120, horizon, 3), values[ahead][..., 1], valid[ahead][..., 1])
    errors = running.compute()
    for name, (total, count) in by_hand(*first, hour).items():
        found = getattr(errors, name)
        np.testing.assert_allclose(found.total, total, rtol=1e-12)
        np.testing.assert_array_equal(found.count, count)
        np.testing.assert_array_equal(np.isnan(found.mae), count == 0)
        assert found.summed().count == first[2].sum()


def test_a_pass_agrees_with_evaluate_and_skips_the_padding() -> None:
    from socialx.training.engine import evaluate

    model, windows = forecaster(), loader(part="test", batch_size=32)
    assert windows.num_windows % 32
    scores = evaluate(model, windows, FP32)[0]
    errors, heard = break_down(model.train(), windows, FP32, 5)
    assert model.training
    np.testing.assert_allclose(errors.by_step.mae, [score.mae for score in scores[:-1]], rtol=1e-12)
    assert errors.by_sensor.summed().mae == pytest.approx(scores[-1].mae, rel=1e-12)
    assert errors.by_hour.count.sum() == scores[-1].count
    assert [layer.name for layer in heard] == ["layer 1"]


def test_a_hand_set_mean_is_told_as_it_is() -> None:
    """Three sensors on a line, 0, 1 and 3 km: distances 1, 3; 1, 2; 2, 3."""
    summed = RunningWeights(pooling(LINE, heads=2, kind="mean", neighbours=None, radius_km=2.0))
    with torch.no_grad():
        summed.pooling.geometry.log_radius.copy_(torch.tensor([2.0, 4.0]).log())
        summed.pooling.geometry.log_beta.copy_(torch.tensor([0.5, 4.0]).log())
        for size in (4, 1):
            summed.add(torch.randn(size, 3, 16))
    heard = summed.compute("here")
    distance = np.array([[1.0, 3.0], [1.0, 2.0], [2.0, 3.0]])
    gate = np.array([1 / (1 + np.exp(-beta * (r - distance))) for r, beta in ((2.0, 0.5), (4.0, 4.0))])
    weights = gate / 2  # [H,N,K]
    nobody = 1 - weights.sum(-1)
    entropy = -(weights * np.log(weights)).sum(-1) - nobody * np.log(nobody)
    np.testing.assert_allclose(heard.radius_km, [2, 4], rtol=1e-6)
    np.testing.assert_allclose(heard.softness_km, [2, 0.25], rtol=1e-6)
    np.testing.assert_allclose(heard.nobody, nobody.mean(1), atol=1e-6)
    np.testing.assert_allclose(heard.entropy, entropy.mean(1), atol=1e-5)
    np.testing.assert_allclose(heard.distance_km, (weights * distance).sum((1, 2)) / weights.sum((1, 2)), rtol=1e-5)
    np.testing.assert_allclose(heard.weights, weights.mean(0), rtol=1e-5)
    np.testing.assert_array_equal(heard.index, [[1, 2], [0, 2], [1, 0]])
    np.testing.assert_allclose(heard.apart_km, distance, rtol=1e-6)


@pytest.mark.parametrize("kind", ["attention", "attention_mlp", "weighted_mean"])
@pytest.mark.parametrize("at_a_time", [1, 2**24])
def test_weights_are_averaged_over_windows_in_pieces_or_at_once(
    kind: str, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socialx.model.listening.AT_A_TIME", at_a_time)
    torch.manual_seed(0)
    running = RunningWeights(pooling(positions(5), kind=kind))
    states = torch.randn(7, 5, 16)
    with torch.no_grad():
        running.add(states[:4])
        running.add(states[4:])
        weights = running.pooling.weights() if kind == "weighted_mean" else running.pooling.weights(states)  # type: ignore[operator]
    weights = weights.double().expand(7, -1, -1, -1).numpy()  # [B,H,N,K]
    nobody = np.clip(1 - weights.sum(-1), 0, None)
    everyone = np.concatenate([nobody[..., None], weights], axis=-1)
    surprise = -np.log(everyone, where=everyone > 0, out=np.zeros_like(everyone))
    heard = running.compute("here")
    np.testing.assert_allclose(heard.nobody, nobody.mean((0, 2)), atol=1e-6)
    np.testing.assert_allclose(heard.entropy, (everyone * surprise).sum(-1).mean((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(heard.weights, weights.mean((0, 1)), rtol=1e-5)


def test_the_states_that_are_heard_are_those_that_enter_the_pooling() -> None:
    model, windows = forecaster(social=2).eval(), loader(batch_size=8)
    seen = next(windows.epoch(0))
    listening, entered = Listening(model), []
    with torch.no_grad():
        hook = model.social[1].pooling.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
        with listening.on():
            model(seen)
        hook.remove()
        model(seen)  # nobody listens any more
        weights = model.social[1].pooling.weights(entered[0])
    assert [layer.name for layer in listening.compute()] == ["layer 1", "layer 2"]
    np.testing.assert_allclose(listening.compute()[1].weights, weights.mean((0, 1)), rtol=1e-5)


def test_neither_sum_waits_for_the_device() -> None:
    model, made = forecaster().eval(), batch()
    listening, errors = Listening(model), RunningErrors(12, 5, 5, CPU)
    with torch.no_grad(), listening.on(), NeverWaits():
        errors.add(model(made), made)
    assert errors.compute().by_step.count.sum() == made.target_valid.sum()


def test_max_has_radii_but_no_weights_and_a_plain_model_nothing() -> None:
    running = RunningWeights(pooling(LINE, kind="max", neighbours=None, radius_km=2.0, mask_mode="hard"))
    running.add(torch.randn(2, 3, 16))
    heard = running.compute("here")
    assert (heard.nobody, heard.entropy, heard.distance_km, heard.weights) == (None, None, None, None)
    np.testing.assert_allclose(heard.radius_km, 2, rtol=1e-6)
    assert not heard.softness_km.any()
    assert not heard.trained
    assert social_layers(torch.nn.Linear(2, 2)) == {}
    assert social_layers(forecaster(social=0)) == {}


def test_who_has_nobody_to_hear_has_no_distance() -> None:
    alone = geo.nearest(np.full((2, 2), np.nan), None)
    layer = SocialLayer(8, KINDS["attention"](8, Geometry(2, alone)), 0.0)
    running = RunningWeights(layer.pooling)
    with torch.no_grad():
        running.add(torch.randn(3, 2, 8))
    heard = running.compute("here")
    assert heard.nobody is not None
    assert heard.distance_km is not None
    np.testing.assert_array_equal(heard.nobody, 1)
    assert np.isnan(heard.distance_km).all()
    errors = RunningErrors(2, 2, 5, CPU).compute()
    tree = as_tree(errors, [heard], Sensors(("a", "b"), *np.full((2, 2), np.nan)), 5)
    assert tree["pooling"][0]["mean"]["distance_km"] is None
    assert [sensor["listens_to"] for sensor in tree["sensors"]] == [[], []]
    json.dumps(tree, allow_nan=False)


def test_the_worst_sensor_comes_first_and_one_without_targets_last() -> None:
    values, valid, epochs = speeds(300, 3, missing=0)
    valid[:, 1] = False
    series = Series(values[..., None], valid[..., None], epochs, 5, CPU)
    windows = series.gather(torch.arange(0, 200, 5), 12, 12)
    running = RunningErrors(12, 3, 5, CPU)
    running.add(windows.target + torch.tensor([1.0, 9.0, 2.0])[:, None], windows)
    tree = as_tree(running.compute(), [], Sensors(("a", "b", "c"), np.arange(3.0), np.arange(3.0)), 5)
    assert [(sensor["id"], sensor["count"]) for sensor in tree["sensors"]] == [("c", 480), ("a", 480), ("b", 0)]
    assert [sensor["mae"] for sensor in tree["sensors"]] == [pytest.approx(2), pytest.approx(1), None]
    assert tree["mae"] == pytest.approx(1.5)
    assert [row["minutes"] for row in tree["by_horizon"]] == list(range(5, 65, 5))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    return trained(data, "run", "--blocks", "2")


def trained(data: Path, name: str, *options: str) -> Path:
    folder = data.parent / name
    result = socialx("train", "--data", data, "--run-dir", folder, "--max-epochs", "1", *SMALL, *options)
    assert result.exit_code == 0, result.stderr
    return folder


def explained(run: Path, *options: str | Path) -> dict[str, Any]:
    result = socialx("explain", run, "--json", *options)
    assert result.exit_code == 0, result.stderr

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    return json.loads(result.stdout, parse_constant=refuse)  # type: ignore[no-any-return]


def texts(path: Path) -> list[str]:
    """The text nodes of an SVG."""
    root = ElementTree.parse(path).getroot()  # noqa: S314 - our own file
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_tables_answer_where_and_whom(run: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    result = socialx("explain", run)
    assert result.exit_code == 0, result.stderr
    for words in (
        *("test windows", "MAE mph", "15 min", "60 min", "all 12 steps", "by the hour of the day", "23:00"),
        *("the 4 worst of 4 sensors", "hears most", "learned radii, up to 3 neighbours", "layer 2", "nobody"),
        *("1.39 is 3 neighbours and nobody alike", "canonical split"),
    ):
        assert words in result.stdout, words
    assert max(len(line) for line in result.stdout.split("what each head")[0].splitlines()) <= 80
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_json_agrees_with_evaluate_and_holds_every_sensor(run: Path, data: Path) -> None:
    found = explained(run, "--part", "validation")
    scores = json.loads(socialx("evaluate", run, "--json", "--part", "validation").stdout)
    rows = scores["scores"][str(run)]["avg_speed"]
    assert [row["mae"] for row in found["by_horizon"]] == pytest.approx([row["mae"] for row in rows[:-1]], rel=1e-9)
    assert (found["mae"], found["count"]) == (pytest.approx(rows[-1]["mae"], rel=1e-9), rows[-1]["count"])
    assert found["stamp"] == scores["stamp"]
    assert sum(row["count"] for row in found["by_hour"]) == sum(s["count"] for s in found["sensors"]) == found["count"]
    store = open_store(data)
    assert {s["id"] for s in found["sensors"]} == set(store.sensors.ids)
    places = dict(zip(store.sensors.ids, store.sensors.latitude, strict=True))
    assert all(s["latitude"] == places[s["id"]] for s in found["sensors"])
    for sensor in found["sensors"]:
        heard = [neighbour["weight"] for neighbour in sensor["listens_to"]]
        assert heard == sorted(heard, reverse=True)
        assert sensor["id"] not in {neighbour["id"] for neighbour in sensor["listens_to"]}
        assert 0 < sum(heard) < 1
    assert [layer["layer"] for layer in found["pooling"]] == ["layer 1", "layer 2"]
    for layer in found["pooling"]:
        for head in layer["heads"]:
            assert 0 < head["nobody"] < 1
            assert 0 < head["entropy_nats"] <= math.log(4) + 1e-6


def test_a_picture_is_written_and_the_same_every_time(run: Path, tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg", "new/out.PNG"):
        result = socialx("explain", run, "--plot", tmp_path / name)
        assert result.exit_code == 0, result.stderr
        assert f"drew {tmp_path / name}" in result.stderr
    assert (tmp_path / "new/out.PNG").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    words = texts(tmp_path / "one.svg")
    assert any(word.startswith("run on metr_la: avg_speed, test part") for word in words)
    headings = {"Sensors by MAE, mph", "MAE by horizon", "MAE by hour of the day", "How far each head listens"}
    assert {*headings, "The 4 worst sensors", "minutes ahead"} <= set(words)
    assert any(word.startswith("wedges: from the 2 most listened to") for word in words)


def test_a_picture_without_positions_targets_or_pooling(run: Path, tmp_path: Path) -> None:
    found = explained(run)
    for sensor in found["sensors"]:
        sensor["latitude"] = sensor["longitude"] = None
    plot_explanation(found, tmp_path / "unplaced.svg")
    assert "no sensor has a position" in texts(tmp_path / "unplaced.svg")
    found = explained(run)
    nothing = {"mae": None, "count": 0}
    for rows in (found["by_horizon"], found["by_hour"], found["sensors"], [found]):
        for row in rows:
            row.update(nothing)
    plot_explanation(found, tmp_path / "nothing.svg")
    assert any("no valid target" in word for word in texts(tmp_path / "nothing.svg"))
    found = explained(run)
    found["sensors"][3].update(latitude=0.0)
    plot_explanation(found, tmp_path / "astray.svg")
    assert any("1 far away, not drawn" in word for word in texts(tmp_path / "astray.svg"))
    found["sensors"][0].update(latitude=None, longitude=None)
    found["sensors"][1].update(nothing)
    found["pooling"], found["sensors"][2]["listens_to"] = [], []
    plot_explanation(found, tmp_path / "some.svg")
    words = texts(tmp_path / "some.svg")
    assert any(
        "to another; 1 without position; 1 far away, not drawn; 1 without valid target (grey)" in word for word in words
    )
    assert "How far each head listens" not in words


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--model", "linear"], "model.kind linear: a model without social pooling"),
        (["--pooling", "none"], "pooling.kind none: no sensor listens to another"),
    ],
)
def test_a_model_without_pooling_says_so(options: list[str], says: str, data: Path, tmp_path: Path) -> None:
    folder = trained(data, options[1], *options)
    result = socialx("explain", folder, "--plot", tmp_path / "out.svg")
    assert result.exit_code == 0, result.stderr
    assert f"no pooling: {says}" in result.stdout
    assert "what each head listens to" not in result.stdout
    found = explained(folder)
    assert (found["pooling"], found["no_pooling"].startswith(says)) == ([], True)
    assert "no sensor listens to another" in texts(tmp_path / "out.svg")


def test_interleaved_layers_max_and_own_are_explained(data: Path, tmp_path: Path) -> None:
    between = explained(trained(data, "between", "--blocks", "2", "--placement", "interleaved"))
    assert [layer["layer"] for layer in between["pooling"]] == ["after block 1", "after block 2"]
    assert all(head["nobody"] is not None for layer in between["pooling"] for head in layer["heads"])
    largest = trained(data, "max", "--pooling", "max")
    result = socialx("explain", largest, "--plot", tmp_path / "out.svg")
    assert "max has no weights" in result.stdout
    assert "How far each head listens" in texts(tmp_path / "out.svg")
    assert all(sensor["listens_to"] == [] for sensor in explained(largest)["sensors"])
    own = explained(trained(data, "own", "--pooling", "own"))
    assert all([h["id"] for h in sensor["listens_to"]] == [sensor["id"]] for sensor in own["sensors"])
    plot_explanation(own, tmp_path / "own.svg")


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--plot", "out.pdf"], 2, "out.pdf: a picture cannot end in '.pdf': name it .png or .svg"),
        (["--plot", "out"], 2, "name it .png or .svg"),
        (["--part", "tests"], 2, "--part tests: one of train, validation, test"),
        (["--horizon", "6"], 2, "was trained with"),
    ],
)
def test_what_cannot_be_explained_is_refused_before_the_pass(
    options: list[str], code: int, says: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = socialx("explain", run, *options)
    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr
    assert not list(tmp_path.iterdir())
    assert socialx("explain", "nowhere").exit_code == 1
