"""One training on several networks: each batch is of one of them, and the model is set to that network."""

import re
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import socialx
from socialx.settings.layers import ConfigLayers
from socialx.tasks.build import build
from socialx.tasks.training_data import load_extra_networks, make_loaders, train_loader
from socialx.training.run_folder import open_run
from tests.commands import SMALL, in_kmh, refused, renamed, small_file, small_run, works

DAY = 288


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("several")


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return small_file(folder, 2 * DAY, 5)


@pytest.fixture(scope="module")
def other(folder: Path) -> Path:
    (folder / "other").mkdir()
    return renamed(small_file(folder / "other", 3 * DAY, 8), folder / "other.h5")


@pytest.fixture(scope="module")
def run(data: Path, other: Path, folder: Path) -> Path:
    return small_run(data, folder / "run", "--zero-shot", "--extra-data", other, "--max-epochs", "2")


def problems_of(data: Path, other: Path) -> list:
    given = {"data.path": data, "data.extra_data": (other,), "model.zero_shot": True, "loader.batch_size": 32}
    experiment = build(ConfigLayers(preset="mlp-small").over(given).load().settings)
    return [experiment, *load_extra_networks(experiment)]


def test_each_batch_of_each_network_comes_once_and_meets_a_model_of_it(data: Path, other: Path) -> None:
    networks = problems_of(data, other)
    own = [{name: tensor.clone() for name, tensor in each.model.named_buffers()} for each in networks]
    loader, _ = make_loaders(networks)
    model = networks[0].model.eval()
    same_weights = {**networks[1].model.state_dict(), **dict(model.named_parameters())}
    networks[1].model.load_state_dict(same_weights)
    seen = []
    for batch, _ in loader.epoch(3):
        network = 0 if batch.inputs.shape[2] == 5 else 1
        with torch.no_grad():
            found, alone = model(batch), networks[1].model.eval()(batch) if network else None
        assert alone is None or torch.equal(found, alone)
        assert all(torch.equal(tensor, own[network][name]) for name, tensor in model.named_buffers())
        seen.append((network, batch.inputs.double().sum().item()))
    assert len(loader) == len(seen) == sum(len(train_loader(each)) for each in networks)
    for network, experiment in enumerate(networks):
        wanted = [batch.inputs.double().sum().item() for batch, _ in train_loader(experiment).epoch(3)]
        assert [total for which, total in seen if which == network] == wanted
    assert len({*pairwise(each for each, _ in seen)}) > 2  # they take turns
    assert [batch.inputs.double().sum().item() for batch, _ in loader.epoch(3, 7)] == [total for _, total in seen[7:]]
    assert all(torch.equal(tensor, own[0][name]) for name, tensor in model.named_buffers())


def test_the_run_is_that_of_its_first_network_and_forecasts_both(run: Path, data: Path, other: Path) -> None:
    assert len(open_run(run).sensors) == 5
    for path, sensors in ((data, 5), (other, 8)):
        assert np.isfinite(socialx.predict(run, path).values).all()
        assert socialx.predict(run, path).values.shape[2] == sensors


def test_the_validation_error_is_the_mean_of_those_of_all_networks(run: Path, data: Path, other: Path) -> None:
    scores = [socialx.evaluate(run, path, split="validation", climatology_days="all") for path in (data, other)]
    errors = [each.overall().mae for of in scores for each in of.climatology_days.values()]  # which lean on nothing
    rows = socialx.load_run(run).epochs
    assert min(row.validation_mae for row in rows) == pytest.approx(sum(errors) / 2, rel=1e-4)


def test_the_validation_error_of_each_network_is_said(data: Path, other: Path, tmp_path: Path) -> None:
    flags = ("--zero-shot", "--extra-data", other, "--max-epochs", "1", "--run-dir", tmp_path / "run", *SMALL)
    said = " ".join(works("train", "--data", data, *flags).stderr.split())
    assert re.search(r"validation MAE: small \d+\.\d{3}, other \d+\.\d{3}", said)


@pytest.mark.slow
def test_a_resumed_training_goes_on_with_the_same_batches(data: Path, other: Path, folder: Path) -> None:
    flags = ("--zero-shot", "--extra-data", other, "--lr-warmup-steps", "1000")
    whole = small_run(data, folder / "whole", *flags, "--max-epochs", "2")
    half = small_run(data, folder / "half", *flags, "--max-epochs", "1")
    works("train", "--resume", half, "--max-epochs", "2")
    one, two = (open_run(path).read_weights().state for path in (whole, half))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_what_cannot_be_learnt_together_is_refused(data: Path, other: Path, tmp_path: Path) -> None:
    error = partial(refused, "train", "--data", data, "--run-dir", tmp_path / "run")
    assert "--zero-shot" in error("--extra-data", other, code=2)
    assert error("--zero-shot", "--extra-data", data).code == "train.sensors-twice"
    assert error("--zero-shot", "--extra-data", f"{other},{other}").code == "train.sensors-twice"
    (tmp_path / "shared").mkdir()
    assert "5 sensors" in error("--zero-shot", "--extra-data", small_file(tmp_path / "shared", 2 * DAY, 7))
    assert error("--zero-shot", "--extra-data", tmp_path / "gone.h5").code == "file.missing"


def test_a_network_in_another_unit_is_learnt_in_the_unit_of_the_first(data: Path, other: Path, tmp_path: Path) -> None:
    (_, plain), (_, same) = problems_of(data, other), problems_of(data, in_kmh(other, tmp_path / "metric.h5"))
    assert same.protocol.targets == plain.protocol.targets
    for batch, in_mph in zip(train_loader(same).epoch(0), train_loader(plain).epoch(0), strict=True):
        torch.testing.assert_close(batch.target.values, in_mph.target.values)
        assert torch.equal(batch.batch.valid, in_mph.batch.valid)
