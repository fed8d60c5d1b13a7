"""What is said to do next suits the machine, is right, and works as printed."""

import re
from pathlib import Path

import pytest

from socialx.files.store.layout import UNITS
from socialx.settings import layers as settings_layers
from tests.commands import LOCATIONS, SMALL, cut_csv, edited, refused, small_file, small_run, works


def converted(folder: Path, name: str = "small.h5", rows: int = 30) -> list[str]:
    """The lines of a conversion."""
    csv = cut_csv(folder / "small.csv", rows)
    done = works("convert", "metr-la", csv, "--meta-csv", LOCATIONS, "--output-h5", folder / name)
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


@pytest.mark.parametrize("card", [True, False])
def test_convert_ends_with_a_training_here(card: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_layers.shutil, "which", lambda name: "/usr/bin/nvidia-smi" if card else None)
    monkeypatch.setattr(settings_layers.Path, "glob", lambda self, pattern: iter([]))
    *lines, last = converted(tmp_path)
    preset = [] if card else ["--preset", "mlp-small"]
    assert last.split() == ["next:", "socialx", "train", "--data", f"{tmp_path}/small.h5", *preset]
    assert any("no GPU" in each for each in lines) is not card


def test_one_of_a_kind_is_no_plural(tmp_path: Path) -> None:
    file = tmp_path / "gap.csv"
    lines = cut_csv(tmp_path / "all.csv", 40, 1).read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:20], *lines[25:]]))
    done = works("convert", "metr-la", file, "--meta-csv", LOCATIONS, "--output-h5", tmp_path / "gap.h5")
    assert " 35 rows x 1 sensor x " in done.stdout
    assert ", 1 gap, " in done.stdout


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.png"])
def test_an_output_that_would_be_called_something_else_is_refused(name: str, tmp_path: Path) -> None:
    csv = cut_csv(tmp_path / "small.csv", 30)
    error = refused("convert", "auto", csv, "--meta-csv", LOCATIONS, "--output-h5", tmp_path / name, code=2)
    assert error.code == "convert.output-suffix"
    assert error.endswith(f" {tmp_path / 'x.h5'}\n")
    assert not (tmp_path / name).exists()


def test_sixteen_bits_on_a_cpu_name_what_measures_them_and_claim_nothing(data: Path, tmp_path: Path) -> None:
    words = ("train", "--data", data, "--max-epochs", "1", "--device", "cpu", *SMALL)
    done = works(*words, "--run-dir", tmp_path / "low", "--precision", "16-mixed")
    assert done.codes.count("train.slow-precision") == 1
    assert re.search("--precision 16-mixed .*\n.* socialx profile --data", done.stderr)
    assert "6 and 7 times" not in done.stderr
    assert "train.slow-precision" not in works(*words, "--run-dir", tmp_path / "full").codes


def test_settings_of_this_folder_may_end_in_yml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "socialx.yml").write_text("model: {width: 24}\n")
    assert "24" in works("config", "--changed").stdout
    assert "socialx.yml" in works("config", "--changed").stdout
    (tmp_path / "socialx.yaml").write_text("model: {width: 32}\n")
    error = refused("config", code=2)
    assert error.code == "settings.file-here"
    assert {"socialx.yml:", "socialx.yaml"} <= {*error.split()}


def test_a_file_of_another_network_is_answered_with_what_helps(run: Path, tmp_path: Path) -> None:
    tied = small_run(small_file(tmp_path), tmp_path / "tied", "--set", "pooling.adaptive_adjacency_rank=2")
    (tmp_path / "more").mkdir()
    error = refused("evaluate", tied, "--data", small_file(tmp_path / "more", sensors=5))
    assert error.code == "fit.other-data"
    assert error.endswith(" 4 sensors with --data\n")
    (tmp_path / "fewer").mkdir()
    fewer = small_file(tmp_path / "fewer", sensors=3)
    error = refused("predict", tied, "--data", fewer)
    assert error.code == "store.lacks"
    works("predict", small_run(tmp_path / "small.h5", tmp_path / "free", error.split()[-1]), "--data", fewer)


def test_the_file_of_a_run_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    for folder in (place / "data", elsewhere):
        folder.mkdir(parents=True)
    small_file(place / "data")
    monkeypatch.chdir(place)
    works("train", "--data", "data/small.h5", "--run-dir", "runs/a", "--max-epochs", "1", *SMALL)
    here = works("predict", "runs/a").stdout
    monkeypatch.chdir(elsewhere)
    done = works("predict", "../place/runs/a")
    assert done.stdout == here
    assert "run.data-file" in done.codes
    assert f" {place}/data/small.h5.\n" in done.stderr
    works("evaluate", place / "runs/a")
    assert "run.data-file" not in works("predict", place / "runs/a", "--data", place / "data/small.h5").codes
    file = place / "data/small.h5"
    assert refused("predict", place / "runs/a", "-o", file, "--overwrite").code == "output.other-kind"
    works("train", "--resume", place / "runs/a", "--max-epochs", "2")
    assert f"path: {place}/data/small.h5" in (place / "runs/a/settings.yaml").read_text()
    (place / "data/small.h5").rename(place / "data/other.h5")
    monkeypatch.chdir(place)
    error = refused("predict", "runs/a")
    assert (error.code, "--data FILE" in error) == ("run.no-data", True)


def test_calibrate_names_the_data_that_it_was_given(run: Path, data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.h5"
    with edited(data, other):
        pass
    line = works("calibrate", run, "--data", other).stdout
    assert line.split()[-7:] == ["socialx", "predict", str(run), "--data", str(other), "--interval", "0.9"]
    assert works("calibrate", run).stdout.rstrip().endswith(f": socialx predict {run} --interval 0.9")


def test_a_unit_that_is_not_known_is_no_word_behind_a_number(data: Path, tmp_path: Path) -> None:
    unknown = tmp_path / "unknown.h5"
    with edited(data, unknown) as file:
        del file[UNITS]
    run = tmp_path / "run"
    trained = works("train", "--data", unknown, "--run-dir", run, "--max-epochs", "1", *SMALL).stdout
    assert "unknown in epoch" not in trained
    scored = works("evaluate", run, "--baselines", "--by", "sensor", "--intervals").stdout
    assert "MAE unknown" not in scored
    assert "unknown over" not in scored
    assert "(unknown), 4 sensors" in scored
    assert "MAE by sensor," in scored
    assert "MAE unknown" not in works("explain", run).stdout
