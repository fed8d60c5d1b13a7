"""Of several processes that train as one, the late one is named, with how long the others wait for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from socialx.profiling.profile import Ranks
from socialx.profiling.ranks import STEPS, ranks
from tests.commands import SMALL
from tests.networks import learner
from tests.training.test_process_group import TORCHRUN, finished, start

SLEEP_S = 0.3
TWO = """
import json, sys, time
from dataclasses import asdict
from socialx.profiling.measure import Training
from socialx.profiling.ranks import ranks
from socialx.training.process_group import joined
from tests.networks import learner, loader

class Late:
    def __init__(self, made, seconds):
        self.made, self.seconds = made, seconds

    def epoch(self, number):
        for batch in self.made.epoch(number):
            time.sleep(self.seconds)
            yield batch

with joined() as group:
    made = learner(group=group)
    training = Training(made, Late(loader(batch_size=4), float(sys.argv[1]) if group.rank == 1 else 0.0), 1000)
    training.take(1)
    found = ranks(made, lambda: training.take(1))
    alike = group.gathered(next(made.model.parameters()).detach().flatten()[:1])
    if group.first:
        print(json.dumps(asdict(found) | {"steps taken": made.steps, "apart": float(alike[0] - alike[1])}))
"""


def test_the_last_one_waits_least_and_is_late_by_what_the_next_one_waits() -> None:
    seconds = np.array([[0.030, 0.000, 0.031], [0.020, 0.010, 0.021], [0.000, 0.012, 0.000]])
    found = Ranks.of(seconds)
    assert found.wait_ms == pytest.approx([61 / 3, 17.0, 4.0])
    assert (found.steps, found.last) == (3, 2)
    assert found.late_ms == pytest.approx(13.0)
    assert found.last_share == pytest.approx(2 / 3)


def test_one_process_waits_for_nobody() -> None:
    assert ranks(learner(), lambda: pytest.fail("a step was taken")) is None


@pytest.mark.slow
def test_two_processes_name_the_one_whose_batches_are_late(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO)
    code, out, err = finished(start(*TORCHRUN, "--nproc-per-node", "2", script, str(SLEEP_S)))
    assert code == 0, err
    found = json.loads(out)
    assert (found["steps"], found["steps taken"], found["apart"]) == (STEPS, STEPS + 1, 0.0)
    assert found["last"] == 1
    assert found["last_share"] > 0.7
    first, late = found["wait_ms"]
    assert found["late_ms"] == pytest.approx(first - late)
    assert first > 1e3 * SLEEP_S / 2  # of the other one's sleep; a loaded machine may be late itself


@pytest.mark.slow
def test_the_command_measures_several_processes_and_speaks_once(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "profile.json"
    words = ["profile", "--data", data, "--steps", "3", "--warmup-steps", "1", *SMALL, "--output", output]
    code, out, err = finished(start(sys.executable, "-m", "socialx", *words, "--devices", "2"))
    assert code == 0, err
    assert out.count("3 steps in") == 1
    assert out.count("each process waits") == 1
    made = json.loads(output.read_text())
    assert made["window"]["steps"] == 3
    assert made["trials"] == []
    assert len(made["ranks"]["wait_ms"]) == 2
    assert min(made["ranks"]["wait_ms"]) >= 0
