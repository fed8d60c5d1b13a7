"""A training that starts from the weights of another run: what is taken, what is new, and what is refused."""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

import socialx
from socialx.model.state import TIME_TABLES, sensor_axis
from socialx.scoring import adaptation
from socialx.scoring.tables import fine_tuning_verdict
from socialx.settings.layers import load_settings
from socialx.tasks.build import build
from socialx.training.run_folder import open_run
from tests.commands import LOCATIONS, SMALL, cut_csv, in_kmh, process, refused, renamed, small_file, small_run, works

DAY = 288
TABLES = [
    "--set",
    "pooling.adaptive_adjacency_rank=3",
    "--per-sensor-output",
]  # beside the vectors per sensor, which are on
STILL = ["--learning-rate", "1e-30", "--max-epochs", "1"]  # a training that changes nothing


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("from")


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return small_file(folder, 2 * DAY, 5)


@pytest.fixture(scope="module")
def other(folder: Path) -> Path:
    """Another network: the sensors of the first one, and three more.  All have one speed of free flow, so that none is
    forecast at another pace than it is learnt at.
    """
    (folder / "other").mkdir()
    made = renamed(small_file(folder / "other", 2 * DAY, 8), folder / "other.h5")
    with h5py.File(made, "r+") as file:
        flow = np.quantile(file["data/features"][:DAY, :, 0], 0.95, axis=0)
        file["data/features"][:, :, 0] *= (67 / flow).astype(np.float32)
    return made


@pytest.fixture(autouse=True)
def models_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run for any network would lean on the last readings of another one, and a run of its own sensors does not."""
    monkeypatch.setattr(adaptation.Past, "leaning", lambda *_: None)


@pytest.fixture(scope="module")
def first(folder: Path, data: Path) -> Path:
    """For any network: no weight is of a single sensor."""
    return small_run(data, folder / "any", "--zero-shot")


@pytest.fixture(scope="module")
def tied(folder: Path, data: Path) -> Path:
    return small_run(data, folder / "tied", *TABLES)


def begun(start: Path, data: Path, run: Path, *options: str) -> str:
    """What the command says that trains a run from another one."""
    said = works("train", "--init-from", start, "--data", data, "--run-dir", run, "--max-epochs", "1", *options).stderr
    return " ".join(said.split())


def state_of(run: Path) -> dict[str, torch.Tensor]:
    return open_run(run).read_weights().state


def parameters(run: Path) -> int:
    return sum(tensor.numel() for name, tensor in state_of(run).items() if not name.startswith("scaler."))


def test_the_first_forecast_is_that_of_the_run(first: Path, other: Path, folder: Path) -> None:
    said = begun(first, other, folder / "still", *TABLES, *STILL)
    one, two = (socialx.predict(run, other).values for run in (first, folder / "still"))
    np.testing.assert_array_equal(one, two)
    taken, all_of_it = parameters(first), parameters(folder / "still")
    assert re.search(rf"{first}: training starts .* {taken:,} .* {all_of_it - taken:,} new", said)


def test_model_and_normaliser_are_of_the_run_and_tables_are_learnt(first: Path, other: Path, folder: Path) -> None:
    begun(first, other, folder / "learnt", *TABLES)
    then, now = (socialx.load_run(run) for run in (first, folder / "learnt"))
    assert (now.settings.model.width, now.settings.model.dropout) == (8, 0.1)
    assert now.settings.trainer.init_from == str(first)
    assert then.settings.model.zero_shot
    assert not now.settings.model.zero_shot
    assert now.protocol.scaler == then.protocol.scaler
    one, two = state_of(first), state_of(folder / "learnt")
    new = {name for name in two if sensor_axis(name) is not None}
    assert two.keys() - one.keys() == new | {*TIME_TABLES}
    tables = {"sensor", "adaptive_embedding", "per_sensor_output", "goal", "source"}
    assert {name.rpartition(".")[2] for name in new} == tables
    assert all(two[name].abs().max() > 1e-6 for name in new)
    learnt = [name for name in one if not name.startswith("scaler.") and not torch.equal(one[name], two[name])]
    assert len(learnt) > 20


def test_a_model_for_zero_shot_stays_one_where_that_is_said(first: Path, other: Path, folder: Path) -> None:
    said = begun(first, other, folder / "stays", "--zero-shot", *STILL)
    assert state_of(folder / "stays").keys() == state_of(first).keys()
    assert "none new" in said


@pytest.mark.slow
def test_further_networks_are_normalised_like_the_run(first: Path, data: Path, other: Path, folder: Path) -> None:
    (folder / "third").mkdir()
    third = renamed(renamed(small_file(folder / "third", DAY, 3), folder / "x.h5"), folder / "third.h5")
    both = ["--zero-shot", "--extra-data", f"{third},{data}", "--lr-warmup-steps", "1000", "--log-every-n-steps", "1"]
    begun(first, other, folder / "whole", *both, "--max-epochs", "2")
    begun(first, other, folder / "half", *both, "--max-epochs", "1")
    works("train", "--resume", folder / "half", "--max-epochs", "2")
    runs = [socialx.load_run(folder / name) for name in ("whole", "half")]
    assert runs[0].protocol.scaler == socialx.load_run(first).protocol.scaler
    assert runs[0].epochs[1].validation_mae == runs[1].epochs[1].validation_mae


@pytest.mark.slow
def test_python_starts_from_a_run_too(first: Path, other: Path, folder: Path) -> None:
    then = socialx.load_run(first)
    for start in (first, str(first), then):
        run = socialx.train(other, init_from=start, run_dir=folder / "python", max_epochs=1, overwrite=True)
        assert (run.settings.trainer.init_from, run.settings.model.width) == (str(first), then.settings.model.width)


def test_the_settings_of_the_run_repeat_it(first: Path, other: Path, folder: Path, tmp_path: Path) -> None:
    begun(first, other, tmp_path / "one")
    works("train", "-c", tmp_path / "one/settings.yaml", "--run-dir", tmp_path / "two")
    one, two = (state_of(tmp_path / name) for name in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_file_in_another_unit_starts_from_the_same_normalised_readings(
    first: Path, data: Path, other: Path, tmp_path: Path
) -> None:
    begun(first, in_kmh(other, tmp_path / "kmh.h5"), tmp_path / "run", *STILL)
    one, two = (socialx.load_run(run).protocol.scaler["avg_speed"] for run in (first, tmp_path / "run"))
    assert (two.mean, two.std) == pytest.approx((one.mean * 1.609344, one.std * 1.609344))
    miles, kilometres = socialx.predict(first, other), socialx.predict(tmp_path / "run", tmp_path / "kmh.h5")
    assert kilometres.units == ("km/h",)
    np.testing.assert_allclose(kilometres.values, miles.values * 1.609344, rtol=2e-5)


def test_tables_follow_the_ids_of_the_sensors(tied: Path, data: Path, tmp_path: Path) -> None:
    rows = [line.split(",") for line in cut_csv(tmp_path / "a.csv", 2 * DAY, 5).read_text().splitlines()]
    (tmp_path / "a.csv").write_text("".join(",".join([row[0], *row[:0:-1]]) + "\n" for row in rows))
    works("convert", "metr-la", tmp_path / "a.csv", "--meta-csv", LOCATIONS, "--output-h5", tmp_path / "turned.h5")
    assert "none new" in begun(tied, tmp_path / "turned.h5", tmp_path / "run", *STILL)
    one, two = socialx.predict(tied, data), socialx.predict(tmp_path / "run", tmp_path / "turned.h5")
    assert two.sensors == one.sensors[::-1]
    np.testing.assert_allclose(two.values, one.values[:, :, ::-1], rtol=1e-5)
    assert socialx.load_run(tmp_path / "run").settings.model.per_sensor_output


def test_tables_of_another_network_are_new(tied: Path, other: Path, tmp_path: Path) -> None:
    begun(tied, other, tmp_path / "run", *STILL)
    one, two = state_of(tied), state_of(tmp_path / "run")
    assert {name for name in one if sensor_axis(name) is not None and not name.endswith("source")} == {
        name for name in two if one[name].shape != two[name].shape and two[name].abs().max() < 1e-20
    }
    assert all(torch.equal(one[name], two[name]) for name in one if sensor_axis(name) is None)


@pytest.mark.parametrize("options", [{}, {"pooling": {"kind": "attention_mlp"}}, {"model": {"kind": "stid"}}])
def test_every_weight_of_single_sensors_is_known(options: dict, data: Path, other: Path) -> None:
    model = {"width": 8, "blocks": 1, "per_sensor_output": True, **options.get("model", {})}
    states = [
        build(load_settings(env={}, data={"path": path}, **{**options, "model": model})).model.state_dict()
        for path in (data, other)
    ]
    tables = {name: sensor_axis(name) for name in states[0] if sensor_axis(name) is not None}
    assert tables.keys() == {name for name in states[0] if states[0][name].shape != states[1][name].shape}
    for name, axis in tables.items():
        assert [state[name].shape[axis] for state in states] == [5, 8]


@pytest.mark.parametrize("kind", ["stid", "lstm"])
def test_other_kinds_of_model_start_from_their_like(kind: str, data: Path, first: Path, tmp_path: Path) -> None:
    start = small_run(data, tmp_path / "start", "--model", kind)
    begun(start, data, tmp_path / "run", *STILL)
    assert socialx.load_run(tmp_path / "run").settings.model.kind == kind
    np.testing.assert_allclose(*(socialx.predict(run, data).values for run in (start, tmp_path / "run")), rtol=1e-6)
    error = refused("train", "--init-from", start, "--data", data, "--model", "social", code=2)
    assert error.code == "settings.start-differs"
    assert re.search(rf"\(--model\): .* {start} need {kind}, ", error)


@pytest.mark.slow
def test_it_is_resumed_without_the_run_that_it_started_from(first: Path, other: Path, tmp_path: Path) -> None:
    start = Path(shutil.copytree(first, tmp_path / "start"))
    begun(start, other, tmp_path / "whole", "--max-epochs", "2", "--lr-warmup-steps", "1000")
    begun(start, other, tmp_path / "half", "--max-epochs", "1", "--lr-warmup-steps", "1000")
    shutil.rmtree(start)
    works("train", "--resume", tmp_path / "half", "--max-epochs", "2")
    one, two = state_of(tmp_path / "whole"), state_of(tmp_path / "half")
    assert all(torch.equal(one[name], two[name]) for name in one)
    error = refused("train", "--resume", tmp_path / "half", "--init-from", first, code=2)
    assert error.code == "train.resume-keeps"
    assert f"--init-from {first}" in error


@pytest.mark.slow
def test_several_processes_start_alike(first: Path, other: Path, tmp_path: Path) -> None:
    words = ["--init-from", first, "--data", other, "--run-dir", tmp_path / "run", "--devices", "2", *STILL]
    done = process("train", *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("training starts from") == 1
    np.testing.assert_allclose(*(socialx.predict(run, other).values for run in (first, tmp_path / "run")), rtol=1e-6)


OTHERS = {
    "--width 16": ("model.width (--width)", " 8, got 16", " --width "),
    "--preset xlstm-large": ("model.width (preset xlstm-large)", " 8, got 128", ""),
    "--encoder mlp": ("model.encoder (--encoder)", " xlstm, got mlp", ""),
    "--patch 2": ("model.patch (--patch)", " 6, got 2", " --patch "),
    "--no-climatology": ("model.climatology (--climatology)", "", ""),
    "--horizon 6": ("data.horizon (--horizon)", " 12, got 6", " --horizon "),
    "--pooling mean": ("pooling.kind (--pooling)", " attention, got mean", ""),
}


@pytest.mark.parametrize("words", OTHERS)
def test_another_setting_of_the_weights_is_named(words: str, first: Path, other: Path, tmp_path: Path) -> None:
    from tests.commands import socialx as command

    done = command("train", "--init-from", first, "--data", other, "--run-dir", tmp_path / "run", *words.split())
    assert (done.exit_code, done.stdout) == (2, "")
    (setting, values, flag), (error, advice) = OTHERS[words], done.stderr.split("error: ")[1].splitlines()[:2]
    assert "settings.start-differs" in done.codes
    assert error.startswith(f"{setting}: ")
    assert f" {first} need{values}" in error
    assert flag in advice
    assert not (tmp_path / "run").exists()


def test_what_is_no_run_is_refused_in_one_line(first: Path, other: Path, tmp_path: Path) -> None:
    error = partial(refused, "train", "--data", other, "--run-dir", tmp_path / "run", "--init-from")
    assert error(tmp_path).code == "run.not"
    damaged = Path(shutil.copytree(first, tmp_path / "damaged"))
    (damaged / "best.safetensors").write_bytes(b"none")
    assert error(damaged).code == "tensors.torn"
    text = (first / "settings.yaml").read_text()
    (damaged / "settings.yaml").write_text(text.replace("  seed: 0", "  seed: 7"))
    assert error(damaged, code=2).code == "settings.edited"
    (damaged / "protocol.json").unlink()
    (damaged / "settings.yaml").write_text(re.sub("  kind: social", "  kind: mine:Model", text))
    assert "protocol.json" in error(damaged)
    shutil.copy(first / "protocol.json", damaged)
    content = json.loads((damaged / "protocol.json").read_text())
    content["settings"]["model.kind"] = "mine:Model"
    (damaged / "protocol.json").write_text(json.dumps(content))
    assert (said := error(damaged, code=2)).code == "settings.start-unnamed"
    assert re.search("mine:Model .*\n.* --init-from", said)
    inside = refused("train", "--init-from", first, "--data", other, "--run-dir", first, "--overwrite", code=2)
    assert inside.code == "train.is-start"
    assert f"--run-dir {first}" in inside
    assert open_run(first).read_weights()


def test_another_step_or_quantity_is_refused_as_for_forecasts(first: Path, tmp_path: Path) -> None:
    places = tmp_path / "at.csv"
    places.write_text("id,lat,lon\nS1,48.1,11.5\nS2,48.2,11.6\n")
    for minutes, quantity in ((45, "speed"), (5, "flow")):
        times = pd.date_range("2024-01-30", periods=200, freq=f"{minutes}min", name="time")
        pd.DataFrame(50.0, times, ["S1", "S2"]).to_csv(tmp_path / "a.csv")
        given = {"units": "km/h", "timezone": "Europe/Berlin"} if quantity == "speed" else {}
        given |= {"meta_csv": places, "quantity": quantity}
        socialx.convert("auto", tmp_path / "a.csv", tmp_path / f"{quantity}.h5", **given)
    codes = {"speed": ["fit.other-data", "run.other-step"], "flow": ["store.no-feature", "store.no-feature"]}
    for quantity, says in (("speed", "45 min"), ("flow", "avg_speed")):
        words = ["--data", tmp_path / f"{quantity}.h5"]
        trained = refused("train", "--init-from", first, "--run-dir", tmp_path / "run", *words)
        said = [trained, refused("predict", first, *words)]
        assert [each.code for each in said] == codes[quantity]
        assert all(says in each for each in said)


@pytest.mark.parametrize(
    ("low", "high", "words"), [(-0.3, -0.1, "smaller"), (-0.1, 0.1, "no significant"), (0.1, 0.3, "larger")]
)
def test_the_comparison_says_whether_local_training_pays(low: float, high: float, words: str) -> None:
    from socialx.scoring.difference import Difference, DifferenceAt

    for ends, pair in (((low, high), ("any", "mine")), ((-high, -low), ("mine", "any"))):
        row = DifferenceAt(None, sum(ends) / 2, *ends)
        verdict = fine_tuning_verdict(Difference(*pair, 9, (row,), "any"))
        assert re.search(f" mine from any: .*{words}", verdict)


@pytest.mark.slow
def test_evaluate_knows_which_run_started_from_the_other(folder: Path, tmp_path: Path) -> None:
    (folder / "long").mkdir()
    data = small_file(folder / "long", 6 * DAY, 3)
    start = small_run(data, folder / "long/start", "--zero-shot", *SMALL)
    begun(start, data, folder / "long/run", *STILL)
    runs = [folder / "long/run", start]
    assert f" {runs[0]} from {start}: no significant " in works("evaluate", *runs, "--compare", "--split", "all").stdout
    assert socialx.evaluate(runs, compare=True, split="all").difference.start == str(start)
