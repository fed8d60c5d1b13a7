"""A run folder names its format, and one of format 1 gives what it gave before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import socialx
from socialx.errors import SocialxError
from socialx.settings_file import as_yaml, read_settings
from socialx.training.run_folder import RunFolder
from socialx.training.run_format import FORMAT, up_to_date
from tests.commands import small_run


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    """An MLP of the width that format 1 gave it: with as many parameters as an xLSTM of one block of width 8."""
    width = up_to_date("settings.yaml", {"model.encoder": "mlp", "model.width": 8, "model.blocks": 1, "model.heads": 2})
    return small_run(
        data, "of format 1", "--encoder", "mlp", "--mlp-width", str(width["model.mlp_width"]), "--no-climatology"
    )


def in_format_1(run: Path, folder: Path) -> Path:
    """A copy of the run as the first version wrote it, which knew neither climatology nor the width of an MLP."""
    shutil.copytree(run, folder)
    values = read_settings(folder / "settings.yaml")
    old = {key: value for key, value in values.items() if key not in ("model.mlp_width", "model.climatology")}
    (folder / "settings.yaml").write_text(as_yaml(old))
    protocol = json.loads((folder / "protocol.json").read_text())
    protocol["scaler"] = protocol.pop("normaliser")
    (folder / "stamp.json").write_text(json.dumps(protocol))
    weights = RunFolder(run).read_weights()
    torch.save({"model": older_names(weights.state), "epoch": weights.epoch}, folder / "best.pt")
    state = torch.load(folder / "last.pt", weights_only=True)
    state["learner"]["model"] = older_names(state["learner"]["model"])
    state["progress"] = {name: v for name, v in state["progress"].items() if name not in ("chunk", "ranks")}
    torch.save({**state, "random": state["random"][0]}, folder / "last.pt")
    for name in ("format.txt", "protocol.json", "best.safetensors", "intervals.safetensors"):
        (folder / name).unlink()
    return folder


def older_names(state: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("normaliser.", "scaled."): value for name, value in state.items()}


def test_a_run_folder_has_its_number(run: Path) -> None:
    assert (run / "format.txt").read_text() == f"{FORMAT}\n"
    assert RunFolder(run).format() == FORMAT


def test_a_folder_of_format_1_gives_the_same(run: Path, tmp_path: Path) -> None:
    old = in_format_1(run, tmp_path / "old")
    assert RunFolder(old).format() == 1
    assert socialx.load_run(old).settings == socialx.load_run(run).settings
    new, again = (socialx.evaluate([folder])[str(folder)].overall().mae for folder in (run, old))
    assert new == again
    resumed, other = (socialx.train(resume=folder, trainer={"max_epochs": 2}) for folder in (old, run))
    assert [row.train_mae for row in resumed.epochs] == [row.train_mae for row in other.epochs]
    assert [row.validation_mae for row in resumed.epochs] == [row.validation_mae for row in other.epochs]


def test_a_setting_that_format_1_leaves_out_has_the_default_of_that_time() -> None:
    settings = up_to_date("settings.yaml", {"model.width": 64})
    assert (settings["model.width"], settings["model.climatology"], settings["pooling.pair_rank"]) == (64, False, 0)
    assert "model.mlp_width" not in settings
    small = {"model.encoder": "mlp", "model.width": 64, "model.blocks": 2, "model.slstm_at": [1]}
    assert up_to_date("settings.yaml", small)["model.mlp_width"] == 76
    assert "model.mlp_width" not in up_to_date("settings.yaml", {**small, "model.width": "wide"})


@pytest.mark.parametrize(
    ("text", "says"),
    [("3", "a run folder of format 3, and this socialx knows 1 to 2"), ("two", "not the number of a format")],
)
def test_a_format_that_is_not_known_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("model: {width: 64}\n")
    (tmp_path / "format.txt").write_text(text)
    with pytest.raises(SocialxError, match=says):
        socialx.load_run(tmp_path)
