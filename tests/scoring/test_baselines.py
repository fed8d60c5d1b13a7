"""Baselines against plain loops, with the fallbacks that the definitions name; the plain models that are trained.

The last are what their names say: who reads what, who is told apart, and that they learn and train as any other.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from socialx.cli.progress_bars import Show
from socialx.core.batch import Batch
from socialx.core.precision import Precision
from socialx.core.progress import subscribe
from socialx.data.calendar import WALL
from socialx.data.scaler import DataSpec, MeanStd
from socialx.model.plain import Linear, SharedLstm, Stid
from socialx.scoring.metrics import masked_absolute_error
from socialx.scoring.references import HistoricalAverage, NaiveLast
from socialx.settings.layers import load_settings
from socialx.tasks.build import build
from socialx.tasks.train import describe_start
from socialx.training.learner import Learner
from tests.commands import SMALL, small_file, small_run, socialx, works
from tests.networks import CPU, batch, example, features, loader, network, scores_of, series, speeds, trainer


def test_naive_with_and_without_zeros() -> None:
    """The latest valid reading may be older than the history."""
    values, valid, seconds = speeds(60, 3, missing=0.0)
    values[9:32, 1], valid[9:32, 1] = 0, False
    values[:, 2], valid[:, 2] = 0, False  # never observed
    b = series(values, valid, seconds, 12, 3).window(torch.tensor([20]))
    copied, last = NaiveLast(3, True, [50.0])(b), NaiveLast(3, False, [50.0])(b)
    assert copied.shape == last.shape == (1, 3, 3, 1)
    assert copied[0, 0, :, 0].tolist() == [values[31, 0], 0, 0]
    assert last[0, 2, :, 0].tolist() == [values[31, 0], values[8, 1], 50.0]


def test_historical_average_of_pieces_and_of_a_sensor_that_was_never_observed() -> None:
    """``test_protocol`` has the average itself."""
    values, valid, seconds = speeds(400, 2, missing=0.0)
    values[:, 1], valid[:, 1] = 0, False
    pieces = [
        (values[part, :, None], valid[part, :, None], seconds[part])
        for part in (slice(first, min(first + 70, 300)) for first in range(0, 300, 70))
    ]
    forecast = HistoricalAverage(pieces, (2, 1), 5, WALL)(series(values, valid, seconds).window(torch.tensor([277])))
    assert forecast[0, 0, 0, 0] == pytest.approx(values[[1, 289], 0].mean())  # of the two working days at that slot
    assert forecast[0, 0, 1, 0].item() == pytest.approx(values[:300, 0].astype(np.float64).mean())


@pytest.mark.parametrize("days", [27, 28])
def test_a_weekday_has_an_average_of_its_own_from_four_weeks_on(days: int) -> None:
    values, valid, seconds = speeds(288 * days, 1, missing=0.0)
    average = HistoricalAverage([(values[..., None], valid[..., None], seconds)], (1, 1), 5, WALL)
    of_day = values[:, 0].astype(np.float64).reshape(days, 288)
    day_of_week = np.arange(days) % 7  # from a Monday on
    for each in range(7):
        alike = day_of_week == each if days == 28 else (day_of_week > 4) == (each > 4)
        np.testing.assert_allclose(average.table[each * 288 : (each + 1) * 288, 0, 0], of_day[alike].mean(axis=0))


# --- models that are trained ----------------------------------------------------------------------------------------

MODELS: dict[str, Callable[[DataSpec], Any]] = {
    "linear": Linear,
    "lstm": lambda known: SharedLstm(known, width=16, blocks=2, dropout=0.0),
    "stid": lambda known: Stid(known, width=32, dropout=0.0),
}


def made(name: str, known: DataSpec | None = None) -> Any:
    torch.manual_seed(0)
    return MODELS[name](known or network())


def permuted(b: Batch, order: list[int]) -> Batch:
    """The same windows with their sensors in another order."""
    return Batch(
        *(
            t if name in ("time_of_day", "day_of_week", "origin") else t[..., order, :]
            for name, t in b._asdict().items()
        )
    )


@pytest.mark.parametrize("targets", [(0,), (2, 0), (0, 1, 2)])
@pytest.mark.parametrize("inputs", [(1,), (0, 1, 2)])
@pytest.mark.parametrize("name", MODELS)
def test_a_forecast_of_each_target_in_its_unit(name: str, inputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    (b, target), known = features(6, inputs, targets)
    model = made(name, known)
    forecast = model(b)
    assert forecast.shape == target.values.shape == (4, 12, 6, len(targets))
    with torch.no_grad():  # a head that says step + 100 target, in deviations, whatever it reads
        head = model.map if name == "linear" else model.head
        head.weight.zero_()
        expected = torch.arange(12.0)[:, None] + 100 * torch.arange(len(targets))
        head.bias.copy_(expected.flatten())
    mean, std = (torch.tensor([getattr(m, name) for m in known.targets]) for name in ("mean", "std"))
    in_units = mean + std * expected
    torch.testing.assert_close(model(b), in_units[None, :, None].expand_as(forecast))


@pytest.mark.parametrize("name", MODELS)
def test_they_learn(name: str) -> None:
    """On windows that training did not see, against the same weights before."""
    learner = Learner(made(name), network(), Precision("32-true", CPU), trainer(learning_rate=1e-2))
    learner.total_steps = 120
    unseen = loader(split="validation", batch_size=32)
    before = scores_of(learner.model, unseen).overall.mae
    train = loader(batch_size=32, shuffle=True)
    for epoch in range(9):
        for each in train.epoch(epoch):
            learner.step([each])
    assert scores_of(learner.model, unseen).overall.mae < 0.6 * before


def test_linear_is_its_matrix() -> None:
    (b, _), known = features(3, (2, 0), (1, 0))
    model = made("linear", known)
    weight, bias = (p.detach().double().numpy() for p in (model.map.weight, model.map.bias))
    assert weight.shape == (12 * 2, 12 * 2)
    means, stds = (np.array([getattr(m, name) for m in known.inputs]) for name in ("mean", "std"))
    assert not b.valid.all()
    read = np.where(b.valid, (b.inputs.double() - means) / stds, 0.0)  # [B,T,N,F]
    rows = read.transpose(0, 2, 1, 3).reshape(4, 3, 24) @ weight.T + bias
    mean, deviation = (np.array([getattr(m, name) for m in known.targets]) for name in ("mean", "std"))
    expected = mean + deviation * rows.reshape(4, 3, 12, 2).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(model(b).detach().numpy(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["linear", "lstm"])
def test_shared_models_treat_all_sensors_alike(name: str) -> None:
    model, b, order = made(name), batch(), [3, 1, 4, 0, 2]
    torch.testing.assert_close(model(permuted(b, order)), model(b)[:, :, order], rtol=1e-5, atol=1e-4)
    more = example(sensors=8)
    assert model(more.batch).shape == more.target.values.shape  # and as many as there are


def test_stid_tells_sensors_apart_by_its_table_alone() -> None:
    model, b, order = made("stid"), batch(), [3, 1, 4, 0, 2]
    before, swapped = model(b)[:, :, order], model(permuted(b, order))
    assert not torch.allclose(swapped, before, atol=0.05)
    with torch.no_grad():
        model.sensor.weight.copy_(model.sensor.weight[order].clone())
    torch.testing.assert_close(model(permuted(b, order)), before, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_what_a_model_reads_and_trains(name: str) -> None:
    model, b = made(name), batch()
    assert not b.valid.all()  # what stands in a missing cell is not read
    assert torch.equal(model(b), model(b._replace(inputs=torch.where(b.valid, b.inputs, 1e4))))
    seen, inputs = b._replace(valid=torch.ones_like(b.valid)), b.inputs.clone()
    inputs[:, :, 2] += 7
    differs = (model(seen) != model(seen._replace(inputs=inputs))).flatten(0, 1).any(0)[:, 0]
    assert differs.tolist() == [False, False, True, False, False]  # no sensor uses another
    seen = seen._replace(inputs=b.inputs.clone().requires_grad_())
    (gradient,) = torch.autograd.grad(model(seen).sum(), seen.inputs, retain_graph=True)
    assert gradient.any(-1).any(-1).all()  # every window and step, in their order
    assert not torch.allclose(model(seen._replace(inputs=b.inputs.flip(1))), model(seen))
    if name != "stid":  # the others read values alone
        later = {"time_of_day": (b.time_of_day + 100) % 288, "day_of_week": (b.day_of_week + 1) % 7}
        assert torch.equal(model(b), model(b._replace(**later)))
    target = example().target
    masked_absolute_error(model(b), target.values, target.valid).backward()
    assert not [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]


@pytest.mark.parametrize("what", ["time_of_day", "day_of_week"])
def test_stid_reads_when_the_history_ended(what: str) -> None:
    model, b = made("stid"), batch()
    dates = getattr(b, what)
    for row in range(24):
        moved = dates.clone()
        moved[:, row] = (moved[:, row] + 3) % (288 if what == "time_of_day" else 7)
        assert torch.equal(model(b), model(b._replace(**{what: moved}))) == (row != 11)


@pytest.mark.parametrize("name", MODELS)
def test_the_moments_go_with_the_weights(name: str) -> None:
    unit = (MeanStd(0.0, 1.0),)
    model, other = made(name), made(name, network(inputs=unit, targets=unit))
    assert not torch.equal(other(batch()), model(batch()))
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(other(batch()), model(batch()))


# --- from the command line ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("data"), 150, 4)


@pytest.mark.parametrize(("model", "parameters"), [("linear", 156), ("lstm", 460), ("stid", 1164)])
def test_a_plain_model_is_trained_and_scored_as_any(model: str, parameters: int, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--model", model, "--max-epochs", "2", *SMALL, "--batch-size", "32"]
    assert f"{parameters:,} parameters" in works("train", "--data", data, "--run-dir", run, *options).stderr
    printed = json.loads(socialx("evaluate", run, "--baselines", "--json").stdout)
    own, copied = (printed["scores"][name]["avg_speed"] for name in (str(run), "naive"))
    assert (len(own["by_step"]), own["all"]["count"]) == (12, copied["all"]["count"])
    assert own["all"]["mae"] < 30
    works("train", "--resume", run, "--max-epochs", "3")
    works("train", "--data", data, "--run-dir", tmp_path / "two", "--targets", "avg_speed,latitude", *options)
    targets = json.loads(works("evaluate", tmp_path / "two", "--json").stdout)["protocol"]["targets"]
    assert list(targets) == ["avg_speed", "latitude"]
    quick = ("--steps", "2", "--warmup-steps", "0", "--no-trials", "--json")
    works("profile", "--data", data, *quick, *options[:2], *SMALL)


@pytest.mark.parametrize(
    ("settings", "says"),
    [({}, "encoder fused, float32"), ({"encoder": "mlp"}, "encoder mlp, float32")]
    + [({"kind": kind}, f"{kind}, float32") for kind in MODELS],
)
def test_what_runs_on_a_card_is_noted_whatever_the_model(
    settings: dict[str, str], says: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"width": 8, "backend": "fused", **settings}
    experiment = build(load_settings(env={}, data={"path": data}, model=small, trainer={"device": "cpu"}))
    plain = ", not compiled (compiling pays from 40,000 steps)" if says.startswith("encoder") else ""
    noted = says.replace(",", f"{plain}, steps recorded as CUDA graphs,") + " products in precision high (TF32)"
    on_card = replace(experiment, precision=Precision("32-true", torch.device("cuda")))
    for each, lines in ((on_card, [noted]), (experiment, [])):
        Show()(describe_start(each, each.data.loader("train", 8), Path("runs/one")))
        found, machine, *rest = capsys.readouterr().err.splitlines()
        assert found == f"{data}: 4 sensors, 89 training windows"
        assert machine.startswith(f"{each.precision.device}, precision 32-true, ")
        assert rest == lines


@pytest.mark.parametrize(("width", "device", "slow"), [(256, "cpu", True), (8, "cpu", False), (256, "cuda", False)])
def test_a_large_model_on_a_cpu_is_told_to_be_slow(width: int, device: str, slow: bool, data: Path) -> None:
    small = {"width": 8, "blocks": 1, "slstm_at": ()}
    made = build(load_settings(env={}, data={"path": data}, model=small, trainer={"device": "cpu"}))
    model = made.settings.model.model_copy(update={"width": width})
    made = replace(made, settings=made.settings.model_copy(update={"model": model}))
    made = replace(made, precision=Precision("32-true", torch.device(device)))
    said: list[str] = []
    with subscribe(lambda event: said.append(str(getattr(event, "message", "")))):
        describe_start(made, made.data.loader("train", 8), Path("runs/one"), processes=2)
    assert any("slow on a CPU" in line for line in said) == slow
    assert any("NCCL is not measured" in line for line in said) == (device == "cuda")


def test_flags_without_effect_are_named(data: Path, tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "own.yaml"
    file.write_text("pooling:\n  kind: mean\n")  # a file may serve several models
    rank, rest = ("--set", "pooling.adaptive_adjacency_rank=0"), ("--width", "8", "--max-epochs", "1", "--blocks", "1")
    result = works("train", "--data", data, "--run-dir", run, "-c", file, "--model", "stid", *rank, *rest)
    assert result.codes.count("settings.unread") == 1
    assert ": --blocks, --set pooling.adaptive_adjacency_rank.\n" in result.stderr


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ("--width 10", "settings.conflict", ["model.width 10", "4 heads", "--width 12"]),
        ("--model mean", "settings.invalid", ["model.kind (--model)", "'stid' or package.module:Class"]),
    ],
)
def test_flags_that_clash_are_refused(options: str, code: str, says: list[str], data: Path, tmp_path: Path) -> None:
    result = socialx("train", "--data", data, "--run-dir", tmp_path / "run", *SMALL, *options.split())
    assert (result.exit_code, result.codes[-1]) == (2, code)
    error = re.sub("^note: .*\n", "", result.stderr)
    assert re.fullmatch(r"error: [^\n]+\n(  try: [^\n]+\n)?", error), error
    assert not [words for words in says if words not in error]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "options",
    [
        "--width 10 --encoder mlp --pooling none",  # no layers at all
        "--encoder mlp --per-sensor-output",
    ],
)
def test_flags_that_go_together_train(options: str, data: Path, tmp_path: Path) -> None:
    works("evaluate", small_run(data, tmp_path / "run", *options.split()))
