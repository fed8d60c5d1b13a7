"""The slow promises: the demo's forecast beats both copy-lasts, and a killed conversion leaves all or nothing."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from socialx.data.store import open_store
from tests.commands import EXCERPT, LOCATIONS, ROOT, process, socialx

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
def test_the_demo_beats_both_copy_lasts_at_every_horizon(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    command = tmp_path / "bin/socialx"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m socialx "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{command.parent}:{os.environ['PATH']}"}
    demo = subprocess.run(["sh", "examples/demo.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert demo.returncode == 0, demo.stderr
    done = process("evaluate", "demo/run", "--baselines", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)["scores"]
    trained = scores.pop("demo/run")
    for step in (3, 6, 12):
        for name in ("copy-last, zeros copied", "copy-last, last valid"):
            assert trained[step - 1]["mae"] < scores[name][step - 1]["mae"], (name, step)
        assert f"{trained[step - 1]['mae']:.4f}" in demo.stdout  # the table that the demo ended with


@pytest.mark.timeout(300)
def test_a_killed_conversion_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    output, whole = tmp_path / "out.h5", tmp_path / "whole.h5"
    arguments = ["convert", "metr-la", "--data-csv", EXCERPT, "--meta-csv", LOCATIONS, "--overwrite", "--output-h5"]
    started = time.monotonic()
    assert process(*arguments, whole).returncode == 0
    seconds = time.monotonic() - started
    new, old = open_store(whole).checksum, b"the old file"
    dice, kept, replaced = random.Random(1), 0, 0
    for _ in range(24):
        output.write_bytes(old)
        command = [sys.executable, "-m", "socialx", *map(str, arguments), str(output)]
        converting = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
        time.sleep(dice.uniform(0.2, 1.1) * seconds)
        converting.send_signal(signal.SIGKILL)
        converting.wait()
        if output.read_bytes() == old:
            kept += 1
        else:
            assert open_store(output).checksum == new
            replaced += 1
    assert kept
    assert replaced
    assert socialx(*arguments, output).exit_code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.h5", "whole.h5"]  # what the killed left is swept away
