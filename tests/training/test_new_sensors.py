"""Sensors that are new to a run: what is left out in training, and a file with other sensors than the run's."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import socialx as api
from socialx.model.forecaster import Forecaster
from socialx.model.state import select_sensor_weights, sensor_axis
from socialx.settings.layers import ConfigLayers
from socialx.tasks.opened import open_forecasting
from socialx.training.run_folder import RunFolder, open_run
from tests.commands import refused, renamed, small_file, small_run, works
from tests.networks import batch

TABLES = ("--set", "pooling.adaptive_adjacency_rank=3", "--per-sensor-output", "--dropout", "0")


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five sensors: one more than the run knows."""
    return small_file(tmp_path_factory.mktemp("five"), 400, 5)


@pytest.fixture(scope="module")
def free(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four sensors that learnt to do without what it knows of single ones."""
    return small_run(data, tmp_path_factory.mktemp("free") / "run", "--sensor-dropout", "0.4", *TABLES)


def model_of(run: Path, data: Path | None = None) -> Forecaster:
    experiment = open_forecasting(run, ConfigLayers.from_call(None, {"data": data}), split=False).experiment
    assert isinstance(experiment.model, Forecaster)
    return experiment.model


def zeroed(model: Forecaster, sensors: torch.Tensor) -> dict[str, torch.Tensor]:
    """Its state, all that is of these sensors zero."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, tensor in state.items():
        if (axis := sensor_axis(name)) is not None:
            tensor.index_fill_(axis, sensors, 0)
    return state


def test_a_step_of_training_leaves_out_all_that_is_of_some_sensors(free: Path) -> None:
    """Forecast and gradients are those of a model whose tables are zero there, in fp64."""
    model, other = model_of(free).double().train(), model_of(free).double()
    windows = batch(sensors=4)
    windows = type(windows)(*(part.double() if part.is_floating_point() else part for part in windows))
    climatology = torch.full((4, 24, 4, 1), 50.0, dtype=torch.float64)
    windows = windows._replace(climatology=climatology, climatology_confidence=torch.full_like(climatology, 0.5))
    seen = set()
    for seed in range(12):
        torch.manual_seed(seed)
        forecast = model(windows)
        assert model.tokens.keep is not None
        gone = (~model.tokens.keep).nonzero().flatten()
        seen |= set(gone.tolist())
        other.load_state_dict(zeroed(model, gone))
        torch.testing.assert_close(forecast, other.eval()(windows), rtol=0, atol=1e-10)
        for each in (model, other):
            each.zero_grad()
        forecast.sum().backward()
        other(windows).sum().backward()
        for (name, mine), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
            if mine.grad is None:
                continue
            axis = sensor_axis(name)
            expected = theirs.grad if axis is None else theirs.grad.index_fill(axis, gone, 0)  # type: ignore[union-attr]
            torch.testing.assert_close(mine.grad, expected, rtol=0, atol=1e-9)
    assert seen == {0, 1, 2, 3}
    model.eval()
    forecast = model(windows)
    assert model.tokens.keep is None
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(forecast, other(windows), rtol=0, atol=0)


def test_tables_for_other_sensors() -> None:
    rng = torch.Generator().manual_seed(0)
    state = {
        "tokens.sensor": torch.randn(3, 1, 4, generator=rng),
        "social.0.pooling.geometry.goal": torch.randn(2, 3, 5, generator=rng),
        "head.0.weight": torch.randn(4, 4, generator=rng),
    }
    found = select_sensor_weights(state, [2, -1, 0, 1])
    assert found["head.0.weight"] is state["head.0.weight"]
    for name, axis in (("tokens.sensor", 0), ("social.0.pooling.geometry.goal", 1)):
        rows = found[name].unbind(axis)
        assert not rows[1].any()
        for row, place in zip((rows[0], *rows[2:]), (2, 0, 1), strict=True):
            assert torch.equal(row, state[name].select(axis, place))


def test_a_new_sensor_is_forecast_and_named(free: Path, data: Path, five: Path, tmp_path: Path) -> None:
    result = works("predict", free, "--data", five, "--interval", "0.8", "-o", tmp_path / "next.csv")
    (new,) = set(api.load_run(free).path and _ids(five)) - set(_ids(data))
    assert {"run.some-new", "run.intervals-of-all"} <= set(result.codes)
    assert str(free) in result.stderr
    assert new in result.stderr
    assert result.stderr.count("1 of 5") == 2
    forecast = api.predict(free, five)
    assert forecast.sensors == _ids(five)
    assert np.isfinite(forecast.values).all()
    model = model_of(free, five)
    place = _ids(five).index(new)
    for name, table in model.state_dict().items():
        axis = sensor_axis(name)
        if axis is not None:
            assert not table.select(axis, place).any()
    assert new in works("evaluate", free, "--data", five, "--by", "sensor", "--drift").stdout


def test_a_sensor_that_left_the_file_is_not_missed(free: Path, data: Path, tmp_path: Path) -> None:
    three = small_file(tmp_path, 400, 3)
    forecast = api.predict(free, three)
    assert forecast.sensors == _ids(three) == _ids(data)[:3]
    same = api.predict(free, data).select(list(_ids(three)))
    assert np.abs(forecast.values - same.values).max() < 20  # it lacks a neighbour, and no vector


def test_another_network_and_a_run_that_needs_its_sensors_are_refused(
    free: Path, trained: Path, five: Path, tmp_path: Path
) -> None:
    assert refused("predict", free, "--data", renamed(five, tmp_path / "other.h5")).code == "run.all-new"
    assert (line := refused("evaluate", trained, "--data", five)).code == "fit.other-data"
    assert "4 sensors with --data" in line


def test_a_training_takes_what_the_run_knows_and_learns_the_rest(free: Path, five: Path, tmp_path: Path) -> None:
    started = works("train", "--init-from", free, "--data", five, "--run-dir", tmp_path / "next", "--max-epochs", "1")
    assert "train.from-weights" in started.codes
    assert re.search(r" taken, \d+ new", started.stderr)
    run, known = open_run(tmp_path / "next"), RunFolder(free).read_weights().state
    now = run.read_weights().state
    assert run.sensors == _ids(five)
    place = {name: number for number, name in enumerate(_ids(five))}
    shared = torch.tensor([place[name] for name in open_run(free).sensors or ()])
    new = torch.tensor([number for name, number in place.items() if number not in shared.tolist()])
    for name, table in now.items():
        axis = sensor_axis(name)
        if axis is not None:
            learnt = table.index_select(axis, new).any()
            assert learnt or name.endswith("source")  # it was zero, and stays so where it is no sensor's neighbour
            before, after = known[name], table.index_select(axis, shared)
            assert (after - before).abs().max() < 0.1  # one epoch away from what it was, not drawn anew
    assert "run.some-new" not in works("predict", tmp_path / "next", "--data", five).codes


def _ids(file: Path) -> tuple[str, ...]:
    with h5py.File(file) as content:
        return tuple(name.decode() for name in content["metadata/vdids"][:])
