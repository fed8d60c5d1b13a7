"""One training per seed: each is what it would be alone, and what is wrong is refused before the first."""

import signal
from pathlib import Path
from typing import Any

import pytest

import socialx as api
from socialx.core.errors import SettingsError
from socialx.core.progress import Epoch, Note
from socialx.training.run_folder import open_run
from tests.commands import refused, refuses, socialx, works

FAST = ("--model", "linear", "--max-epochs", "1", "--days", "1")
LINEAR: dict[str, Any] = {"model": {"kind": "linear"}, "max_epochs": 1, "days": 1}


def weights(run: Path) -> str:
    return open_run(run).read_weights().fingerprint


def test_each_seed_is_the_training_that_it_would_be_alone(data: Path, tmp_path: Path) -> None:
    done = works("train", "--data", data, "--run-dir", tmp_path / "mine", *FAST, "--seeds", "0,7")
    made = [tmp_path / "mine_0", tmp_path / "mine_7"]
    assert sorted(tmp_path.iterdir()) == made
    assert done.stdout.endswith(f": socialx evaluate {made[0]} {made[1]} --mean\n")
    assert f"{made[0]}, 1 of 1 epochs, best validation MAE" in done.stdout
    for run, seed in zip(made, (0, 7), strict=True):
        alone = api.train(data, seed=seed, run_dir=tmp_path / f"alone{seed}", **LINEAR)
        assert (api.load_run(run).settings.trainer.seed, weights(run)) == (seed, weights(alone.path))
    assert weights(made[0]) != weights(made[1])


@pytest.mark.parametrize("seeds", ["3,1", [3, 1]])
def test_python_returns_a_list_and_the_default_folders_end_in_the_seed(
    seeds: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = api.train(data, seeds=seeds, **LINEAR)
    names = [run.path.name for run in runs]
    assert ([name[-2:] for name in names], len({name[:-2] for name in names})) == (["_3", "_1"], 1)
    assert sorted(names) == sorted(path.name for path in (tmp_path / "runs").iterdir())


def test_one_seed_has_the_hint_of_one_run(data: Path, tmp_path: Path) -> None:
    done = works("train", "--data", data, "--run-dir", tmp_path / "mine", *FAST, "--seeds", "4")
    assert done.stdout.endswith(f": socialx evaluate {tmp_path / 'mine_4'} --baselines\n")


@pytest.mark.parametrize("seeds", ["", ",", "0,0", "1,01", "a", "0.5", "-1", "0,1 2", "½"])
def test_seeds_are_different_whole_numbers(seeds: str, data: Path) -> None:
    assert refused("train", "--data", data, "--seeds", seeds, code=2).code == "train.seeds"


@pytest.mark.parametrize("seeds", [[], [0, 0], [0.5], [None], [True], -1, ["x"]])
def test_seeds_in_python_are_different_whole_numbers(seeds: Any, data: Path) -> None:
    with refuses("train.seeds", SettingsError):
        api.train(data, seeds=seeds)


def test_a_seed_beyond_the_setting_is_refused_before_the_first(data: Path, tmp_path: Path) -> None:
    refused("train", "--data", data, "--run-dir", tmp_path / "mine", "--seeds", f"0,{2**32}", code=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("--seed", "0"), ("--resume", "runs/mine")])
def test_seeds_stand_alone(words: tuple[str, str], data: Path) -> None:
    error = refused("train", "--data", data, "--seeds", "0,1", *words, code=2)
    assert error.code == "train.seeds-and"
    assert "leave out --" in error


def test_a_folder_in_use_is_refused_before_the_first_training(data: Path, tmp_path: Path) -> None:
    words = ("train", "--data", data, "--run-dir", tmp_path / "mine", *FAST, "--seeds")
    works(*words, "1")
    assert refused(*words, "0,1").code == "run.exists"
    (tmp_path / "mine_2").mkdir()
    (tmp_path / "mine_2/notes.txt").touch()
    assert refused(*words, "0,2").code == "run.other-files"
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["mine_1", "mine_2"]
    works(*words, "0,1", "--overwrite")
    assert (tmp_path / "mine_0").is_dir()


def test_ctrl_c_ends_all_and_says_what_is_left(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(event: object) -> None:
        if isinstance(event, Note):
            print(event.message.text())
        if isinstance(event, Epoch) and event.epoch == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("socialx.cli.training_commands.Show", lambda: stop)
    words = ("train", "--data", data, "--run-dir", tmp_path / "mine", *FAST, "--max-epochs", "2")
    done = socialx(*words, "--seeds", "5,6,7")
    assert done.exit_code == 130
    assert {"train.seeds-left", "train.halted"} <= set(done.codes)
    assert "--seeds 6,7" in done.output
    assert f"train --resume {tmp_path / 'mine_5'}" in done.output
    monkeypatch.setattr("socialx.cli.training_commands.Show", lambda: lambda event: None)
    works("train", "--resume", tmp_path / "mine_5")
    works(*words, "--seeds", "6,7")
    assert [len(api.load_run(tmp_path / f"mine_{seed}").epochs) for seed in (5, 6, 7)] == [2, 2, 2]


@pytest.mark.slow
def test_several_processes_train_every_seed(data: Path, tmp_path: Path) -> None:
    from tests.commands import process

    words = ("train", "--data", data, "--run-dir", tmp_path / "mine", *FAST, "--seeds", "0,1", "--devices", "2")
    done = process(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("socialx evaluate") == 1
    assert all((tmp_path / f"mine_{seed}/intervals.safetensors").exists() for seed in (0, 1))


def test_seeds_start_from_a_run_and_its_teacher(trained: Path, data: Path, tmp_path: Path) -> None:
    words = ("train", "--data", data, "--init-from", trained, "--teacher", trained, "--max-epochs", "1")
    works(*words, "--run-dir", tmp_path / "mine", "--seeds", "0,1")
    assert weights(tmp_path / "mine_0") != weights(tmp_path / "mine_1")
