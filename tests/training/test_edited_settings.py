"""A run whose settings.yaml was edited in what its training fixed is another training, and is refused."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.commands import edited, refused, socialx, works

EDITS = {
    "data.split_method": ("  split_method: canonical", "  split_method: strict"),
    "trainer.seed": ("  seed: 0", "  seed: 99"),
    "loader.batch_size": ("  batch_size: 64", "  batch_size: 7"),
    "trainer.weight_decay": ("  weight_decay: 0.1", "  weight_decay: 0.9"),
    "model.dropout": ("  dropout: 0.1", "  dropout: 0.2"),
    "data.targets": ("  - avg_speed\n  inputs", "  - avg_speed\n  - flow\n  inputs"),
}


def edit(run: Path, old: str, new: str) -> None:
    path = run / "settings.yaml"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("key", EDITS)
@pytest.mark.parametrize("command", ["resume", "evaluate", "predict"])
def test_what_the_training_fixed_is_compared(command: str, key: str, run: Path) -> None:
    edit(run, *EDITS[key])
    before = {path: path.read_bytes() for path in run.iterdir()}
    words = ("train", "--resume", run, "--max-epochs", "2") if command == "resume" else (command, run)
    assert (error := refused(*words, code=2)).code == "settings.edited"
    assert error.startswith(f"error: {key} ({run}/settings.yaml): {run} ")
    if key != "data.targets":
        (line, then), (_, now) = ((text.strip(), text.partition(": ")[2]) for text in EDITS[key])
        assert re.search(f"with {re.escape(then)}, .* {re.escape(now)}.\n  try: write '{re.escape(line)}'", error)
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def test_every_line_that_differs_is_named(run: Path) -> None:
    edit(run, *EDITS["trainer.seed"])
    edit(run, *EDITS["data.split_method"])
    errors = re.findall(r"^error: (\S+)", socialx("evaluate", run).stderr, re.MULTILINE)
    assert errors == ["data.split_method", "trainer.seed"]


def test_the_next_command_trains_another_run(run: Path, tmp_path: Path) -> None:
    edit(run, *EDITS["trainer.seed"])
    _, *words = shlex.split(refused("evaluate", run, code=2).partition("train another run with ")[2])
    works(*words, "--run-dir", tmp_path / "other", "--max-epochs", "1")
    works("evaluate", tmp_path / "other")


def test_what_may_change_is_edited_by_hand(run: Path, data: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.h5"
    with edited(data, moved):
        pass
    edit(run, f"path: {data}", f"path: {moved}")
    edit(run, "max_epochs: 1", "max_epochs: 2")
    edit(run, "num_workers: null", "num_workers: 1")
    edit(run, "weight_decay: 0.1", "weight_decay: 1.0e-1")
    edit(run, "  seed: 0\n", "  seed: 0\n  run_dir: elsewhere\n")
    works("evaluate", run)
    works("train", "--resume", run)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("record", [None, {}, []])
def test_a_protocol_without_the_settings_of_its_training_is_refused(run: Path, record: object) -> None:
    """Else an edited setting would count as the one that was trained."""
    path = run / "protocol.json"
    content = json.loads(path.read_text())
    del content["settings"]
    path.write_text(json.dumps(content | ({} if record is None else {"settings": record})))
    for words in (("evaluate", run), ("train", "--resume", run, "--max-epochs", "2")):
        assert (error := refused(*words)).code == "run.other"
        assert "protocol.json" in error
