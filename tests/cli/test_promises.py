"""The slow promise: the demo's forecast beats both naive forecasts."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.commands import ROOT, shell_environment, works

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
def test_the_demo_beats_both_naive_forecasts_at_every_horizon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    environment = shell_environment(tmp_path)
    demo = subprocess.run(["sh", "examples/demo.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert demo.returncode == 0, demo.stderr
    monkeypatch.chdir(tmp_path)
    done = works("evaluate", "demo/run", "--baselines", "--json")
    scores = {name: of_model["avg_speed"] for name, of_model in json.loads(done.stdout)["scores"].items()}
    trained = scores.pop("demo/run")
    for step in (3, 6, 12):
        mae = trained["by_step"][step - 1]["mae"]
        for name in ("naive, zeros not masked", "naive"):
            assert mae < scores[name]["by_step"][step - 1]["mae"], (name, step)
        assert f"{mae:.4f}" in demo.stdout  # the table that the demo printed
