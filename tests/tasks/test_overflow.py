"""Weights that are numbers, but so large that no forecast is one: refused, never scored as an empty result."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from socialx.training.run_folder import open_run
from tests.commands import small_file, small_run, socialx


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = small_run(small_file(tmp_path_factory.mktemp("overflow")))
    weights = load_file(run / "best.safetensors")
    name = next(name for name in weights if name.endswith("pooling.value.weight"))
    weights[name] = torch.full_like(weights[name], 3e38)
    open_run(run).write_weights(weights, 0, 1.0)
    return run


@pytest.mark.parametrize("command", [["evaluate"], ["explain", "--json"], ["predict", "--json"]], ids=lambda c: c[0])
def test_a_run_whose_forecasts_are_not_numbers_is_refused(command: list[str], run: Path) -> None:
    result = socialx(command[0], run, *command[1:])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"{run}: its weights overflow: " in result.stderr.replace("\n", " ")
