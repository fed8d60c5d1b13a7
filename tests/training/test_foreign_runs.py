"""Run folders that are damaged, half made, in use, or made by somebody else: one line, and nothing lost."""

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from socialx.core.disk import file_lock, temporary_for
from socialx.core.sealed_tensors import fingerprint
from socialx.training.run_folder import find_restarted_run, open_run
from tests.commands import SMALL, cross, process, refused, small_run, socialx, works
from tests.data_files import refusal

Content = dict[str, Any]


def resumed(run: Path) -> list[str | Path]:
    return ["train", "--resume", run, "--max-epochs", "2"]


# --- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.8, 0.99])
def test_a_flipped_bit_is_never_another_score(share: float, run: Path) -> None:
    content = bytearray((run / "best.safetensors").read_bytes())
    content[int(share * len(content))] ^= 64
    (run / "best.safetensors").write_bytes(content)
    refused("evaluate", run)
    refused("predict", run)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.8])
def test_a_flipped_bit_never_goes_on_to_other_weights(share: float, run: Path, tmp_path: Path) -> None:
    """A bit between the parts of the archive may not count; then nothing changes."""
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    content = bytearray((run / "last.pt").read_bytes())
    content[int(share * len(content))] ^= 64
    (run / "last.pt").write_bytes(content)
    result = socialx(*resumed(run))
    if result.exit_code:
        assert result.exit_code == 1
        assert result.stderr.count("\n") <= 2
        assert "last.pt" in result.stderr
        return
    works(*resumed(whole))
    one, other = (torch.load(each / "last.pt", weights_only=True)["learner"]["model"] for each in (run, whole))
    assert all(torch.equal(one[name], other[name]) for name in other)


def changed(path: Path, change: Callable[[Content], object]) -> None:
    content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path)


def truncated(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


CHANGES: dict[str, Callable[[Content], object]] = {
    "another model": lambda c: c["learner"]["model"].update(more=torch.ones(1)),
    "another width": lambda c: c["learner"].update(
        model={k: torch.cat([v, v]) if v.dim() else v for k, v in c["learner"]["model"].items()}
    ),
    "no weights": lambda c: c["learner"].update(model=None),
    "no optimizer": lambda c: c["learner"].pop("optimizer"),
    "moments of a parameter too many": lambda c: c["learner"]["optimizer"]["state"].update(
        {999: c["learner"]["optimizer"]["state"][0]}
    ),
    "no progress": lambda c: c.pop("progress"),
    "more progress": lambda c: c["progress"].update(more=1),
    "less progress": lambda c: c["progress"].pop("ranks"),
    "an odd optimizer": lambda c: c["learner"]["optimizer"].update(state=[]),
    "no generators": lambda c: c.update(random=None),
}


SPOILT = {name: partial(changed, change=change) for name, change in CHANGES.items()}
SPOILT |= {f"{share:.0%} of it": partial(truncated, share=share) for share in (0.0, 0.5, 0.99)}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_state_that_is_cut_or_of_another_training_is_refused(spoil: Callable[[Path], object], run: Path) -> None:
    spoil(run / "last.pt")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert "last.pt: the checkpoint is unreadable (" in refused(*resumed(run))
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


@pytest.mark.parametrize("content", [b"\xff\xfe", None], ids=["no text", "a folder"])
def test_a_job_that_cannot_be_read_is_another_one(content: bytes | None, run: Path) -> None:
    job = run / "job.txt"
    job.write_bytes(content) if content else job.mkdir()
    assert find_restarted_run(run, "42") == (None, False)


METRICS = [
    b'{"epoch": 1, "ste',
    b"[]\n",
    b"7\n",
    b"\xff\xfe\n",
    b"[" * 20_000,
    b'{"epoch": "1", "steps": 1, "train_mae": 1, "validation_mae": 1, "windows_per_s": 1, "learning_rate": 1}\n',
    b'{"epoch": 1, "steps": 1, "train_mae": NaN, "validation_mae": 1, "windows_per_s": 1, "learning_rate": 1}\n',
    b'{"epoch": 1, "steps": 1}\n',
    b"\n\n",
    b'{"epoch": 1, "steps": 1, "train_mae": 1, "validation_mae": 1, "windows_per_s": 1%b, "learning_rate": 1}\n'
    % (b"0" * 400),
]


def test_damaged_metrics_are_refused_before_an_epoch_is_trained(run: Path) -> None:
    last = (run / "last.pt").read_bytes()
    for content in METRICS:
        (run / "metrics.jsonl").write_bytes(content)
        assert "metrics.jsonl" in refused(*resumed(run)), content[:40]
        assert (run / "last.pt").read_bytes() == last
    (run / "metrics.jsonl").unlink()  # as the line says
    works(*resumed(run))


SPEEDS = {"mean": 50.0, "std": float("inf")}
PROTOCOL: dict[str, Any] = {"checksum": None, "windows": 7, "targets": ["mph"], "horizon": "12"} | {
    f"scaler {value}": value for value in (None, {}, {"avg_speed": SPEEDS})
}


@pytest.mark.parametrize(("command", "name"), cross(["evaluate", "explain", "predict"], PROTOCOL, "predict"))
def test_a_protocol_of_other_kinds_is_refused(command: str, name: str, run: Path) -> None:
    content = json.loads((run / "protocol.json").read_text())
    (run / "protocol.json").write_text(json.dumps({**content, name.partition(" ")[0]: PROTOCOL[name]}))
    assert (error := refused(command, run)).code == ("run.scaler" if PROTOCOL[name] == {} else "run.protocol")
    assert ("avg_speed" if PROTOCOL[name] == {} else "protocol.json") in error


SETTINGS = {
    "an alias": "a: &a [1]\nmodel: *a\n",
    "an alias in itself": "model: &a\n  b: *a\n",
    "deep lists": "model: " + "[" * 3000,
    "a long file": "# " + "x" * (2 << 20),
    "a date that is none": "model: {width: 2012-13-45}\n",
}


@pytest.mark.parametrize("text", SETTINGS.values(), ids=SETTINGS.keys())
def test_hostile_settings_are_one_line(text: str, run: Path) -> None:
    (run / "settings.yaml").write_text(text)
    assert "settings.yaml" in refused("evaluate", run, code=2)


def test_a_device_as_settings_is_refused(data: Path) -> None:
    assert "/dev/zero" in refused("train", "-c", "/dev/zero", "--data", data)


# --- half made, or in use -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["protocol.json", "sensors.json", "settings_sources.json", "settings.yaml", "format.txt"]
)
def test_a_half_made_run_folder_can_be_overwritten(name: str, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "half"
    folder.mkdir()
    (folder / name).write_text("{}")
    temporary_for(folder / name, 999_999_999).write_text("")
    train = ["train", "--data", data, "--run-dir", folder, "--max-epochs", "1", *SMALL]
    assert "--overwrite" in refused(*train)
    works(*train, "--overwrite")
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("name", ["intervals.safetensors", "metrics.csv"])
def test_a_folder_in_the_place_of_a_file_is_refused_before_training_goes_on(name: str, run: Path) -> None:
    (run / name).unlink(missing_ok=True)
    (run / name).mkdir()
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert (error := refused(*resumed(run))).code == "run.is-folder"
    assert name in error
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_temporaries_alone_are_no_other_files(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "half"
    folder.mkdir()
    temporary_for(folder / "protocol.json", 999_999_999).write_text("")
    small_run(data, folder)
    assert not list(folder.glob(".*"))


def test_temporaries_of_a_killed_run_go_when_it_goes_on(run: Path) -> None:
    temporary_for(run / "best.safetensors", 999_999_999).write_bytes(b"half")
    works(*resumed(run))
    assert not list(run.glob(".*"))


def hold(folder: Path, ready: Any, done: Any) -> None:
    with file_lock(folder):
        ready.set()
        done.wait(60)


@pytest.mark.slow
def test_only_one_process_trains_in_a_folder(run: Path, data: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(run, ready, done))
    other.start()
    try:
        assert ready.wait(60)
        assert "file.busy" in refused(*resumed(run)).codes
        assert "file.busy" in refused("train", "--data", data, "--run-dir", run, "--overwrite", *SMALL).codes
        assert {path.name: path.read_bytes() for path in run.iterdir()} == before
        works("evaluate", run)  # reading is free
    finally:
        done.set()
        other.join()
    works(*resumed(run))


def test_a_refused_start_leaves_no_folder(data: Path, tmp_path: Path) -> None:
    refused("train", "--data", data, "--run-dir", tmp_path / "a/b", "--device", "cuda:7", *SMALL, code=2)
    assert not (tmp_path / "a").exists()


# --- the edge of the program ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["inspect"], ["inspect", "--json"], ["config"]], ids=" ".join)
def test_a_full_standard_output_is_one_line(arguments: list[str], data: Path) -> None:
    import subprocess
    import sys

    words = [*arguments[:1], *([str(data)] if "inspect" in arguments else []), *arguments[1:]]
    with Path("/dev/full").open("w") as full:
        code = "from socialx.cli import main; main()"
        typed = [sys.executable, "-c", code, *words]
        done = subprocess.run(typed, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.returncode == 1
    assert "(No space left" in done.stderr
    assert done.stderr.count("\n") <= 2


@pytest.mark.slow
def test_a_folder_and_file_of_any_bytes(data: Path, tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    Path(folder).mkdir()
    copy = shutil.copy(data, f"{folder}/d\xe9.h5")
    train = process("train", "--data", copy, "--run-dir", f"{folder}/run", "--max-epochs", "1", *SMALL)
    assert train.returncode == 0, train.stderr
    for command in ("evaluate", "explain", "predict"):
        done = process(command, f"{folder}/run")
        assert done.returncode == 0, done.stderr
    assert process("inspect", copy).returncode == 0
    again = process("train", "--resume", f"{folder}/run", "--max-epochs", "2")
    assert again.returncode == 0, again.stderr


# --- files of another kind than training writes --------------------------------------------------------------------


def contents(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("name", "content"),
    cross(["environment.json", "settings_sources.json"], ["{}", "[1, 2", "\xff", ""], "environment.json"),
)
def test_resuming_reads_all_before_it_writes_anything(content: str, name: str, run: Path) -> None:
    if name == "settings_sources.json" and content == "{}":
        content = "[]"
    (run / name).write_text(content, encoding="latin-1")
    before = contents(run)
    assert name in refused(*resumed(run))
    assert contents(run) == before


@pytest.mark.parametrize("name", ["environment.json", "best.safetensors", "last.pt"])
def test_a_folder_in_the_place_of_a_run_file_is_refused_before_a_run_goes(name: str, run: Path, data: Path) -> None:
    (run / name).unlink()
    (run / name / "kept").mkdir(parents=True)
    before = contents(run)
    words = ["train", "--data", data, "--run-dir", run, "--max-epochs", "1", "--overwrite", *SMALL]
    assert (error := refused(*words)).code == "run.is-folder"
    assert name in error
    assert contents(run) == before
    assert (run / name / "kept").is_dir()


OTHER_FORMATS = {
    "1\n": ("run.format", " 1, "),
    "3\n": ("run.format", " 3, "),
    "two\n": ("run.format-text", "two"),
    None: ("run.format-missing", "socialx train --config"),
}


@pytest.mark.parametrize(("task", "text"), cross(["evaluate", "predict", "train --resume"], OTHER_FORMATS, "predict"))
def test_a_folder_of_another_format_is_refused(task: str, text: str | None, run: Path) -> None:
    """Whatever opens it, and nothing in it changes."""
    assert (run / "format.txt").read_text() == "2\n"
    if text is None:
        (run / "format.txt").unlink()
    else:
        (run / "format.txt").write_text(text)
    before = contents(run)
    error, (code, words) = refused(*task.split(), run), OTHER_FORMATS[text]
    assert (error.code, words in error) == (code, True), error
    assert contents(run) == before


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["best.safetensors", "last.pt"])
def test_a_pipe_in_the_place_of_weights_is_not_waited_for(name: str, run: Path) -> None:
    (run / "best.safetensors").unlink()
    (run / "last.pt").unlink()
    os.mkfifo(run / name)
    assert refused("evaluate", run).code == "file.special"


def test_a_damaged_climatology_is_refused(run: Path) -> None:
    path = run / "climatology.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    assert (error := refused("predict", run)).code == "tensors.torn"
    assert error.startswith(f"error: {path}: ")
    assert "sha256" in error


@pytest.mark.parametrize("kind", ["-1", "3", "9", "1.5", None])
def test_a_climatology_whose_last_day_is_none_is_refused(run: Path, kind: str | None) -> None:
    path = run / "climatology.safetensors"
    tensors = load_file(path)
    described = {"schema": "socialx.climatology/2", "first": "1", "end": "2"} | ({} if kind is None else {"kind": kind})
    save_file(tensors, path, {**described, "sha256": fingerprint(tensors, json.dumps(described, sort_keys=True))})
    assert (error := refused("predict", run)).code == "tensors.torn"
    assert str(path) in error


def test_a_climatology_of_other_sensors_is_refused(run: Path) -> None:
    ids = json.loads((run / "sensors.json").read_text())
    (run / "sensors.json").write_text(json.dumps([*ids, "another"]))
    assert refusal(lambda: open_run(run).read_climatology(), "sensors.json", "5 sensors").code == "run.sensors"


@pytest.mark.parametrize("command", [["evaluate"], ["explain", "--json"], ["predict", "--json"]], ids=lambda c: c[0])
def test_a_run_whose_forecasts_are_not_numbers_is_refused(command: list[str], run: Path) -> None:
    """Weights that are numbers, but so large that no forecast is one: never scored as an empty result."""
    weights = load_file(run / "best.safetensors")
    name = next(name for name in weights if name.endswith("pooling.value.weight"))
    weights[name] = torch.full_like(weights[name], 3e38)
    open_run(run).write_weights(weights, 0, 1.0)
    result = socialx(command[0], run, *command[1:])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "score.overflow" in result.codes
    assert str(run) in result.stderr
