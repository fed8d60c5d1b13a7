"""What a run depends on is compared: each field of its record is changed in turn, and each command refuses or says so.

The fields are those of the classes, so that a new one has its case.
"""

import json
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import pytest

import socialx as api
from socialx.core.errors import FallbackWarning, Message, SocialxError
from socialx.core.progress import Note
from socialx.files.store.layout import IMPUTED_ATTR, MISSING_ATTR, UNITS
from socialx.scoring import protocol as protocols
from socialx.scoring.protocol import ScoringProtocol
from socialx.serving.server import Runs
from socialx.settings.layers import ConfigLayers
from socialx.settings.schema import KEYS, MUTABLE, RESUME
from socialx.training import run_folder
from tests.commands import Said, cross, edited, small_run

FIELDS = [field.name for field in fields(ScoringProtocol) if field.name != "trained"]  # which a run folder lacks
FIXED = [key for key in KEYS if key not in MUTABLE[RESUME]]
COMMANDS: dict[str, Callable[..., object]] = {
    "predict": api.predict,
    "evaluate": api.evaluate,
    "report": api.report,
    "resume": lambda run, **more: api.train(resume=run, max_epochs=2, **more),
    "serve": lambda run, progress=None: Runs(run, ConfigLayers(), False, None, progress).load(run),
}


def other(value: Any) -> Any:
    """A value of the same kind that is another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return {"America/Los_Angeles": "Asia/Tokyo"}.get(value, f"other {value}")
    if isinstance(value, list):
        return [*value, *(other(each) for each in value[:1])]
    if isinstance(value, dict) and value:
        return {name: other(each) for name, each in value.items()}
    return value


EMPTY = {  # a value for a field that says nothing in the run
    "distances": "0" * 64,
    "commit": "0" * 12,
    "holidays": {"2012-05-03": "Sunday"},
    "imputed": True,
    "first_time": "2012-01-01 00:00:00",
    "last_time": "2012-01-01 00:00:00",
    "timezone": "Asia/Tokyo",
    "local_zone": "Asia/Tokyo",
    "windows_left_out": {"train": 1},
    "free_flow": {"avg_speed": 61.0},
    "period": {"first_time": "2012-05-03 00:00:00", "last_time": "2012-05-04 00:00:00", "windows": 1, "files": []},
}


def said(command: str, run: Path) -> Said:
    """What a command refuses, or tells of another protocol."""
    messages: list[Message] = []

    def listen(event: object) -> None:
        if isinstance(event, Note):
            messages.append(event.message)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            COMMANDS[command](run, progress=listen)
        except SocialxError as error:
            return Said.of(f"error: {error}", [error.code])
    messages += [each.message.message for each in caught if issubclass(each.category, FallbackWarning)]
    told = [message for message in messages if message.code.startswith("fit.")]
    return Said.of("\n".join(map(str, told)), (message.code for message in told))


def content(run: Path) -> dict[str, Any]:
    return json.loads((run / "protocol.json").read_text())


@pytest.mark.parametrize("command", COMMANDS)
def test_an_untouched_run_is_silent(command: str, run: Path) -> None:
    assert said(command, run) == ""


@pytest.mark.parametrize(("command", "name"), cross(COMMANDS, FIELDS, "predict"))
def test_an_edited_protocol_is_another_one(command: str, name: str, run: Path) -> None:
    before = content(run)
    value = EMPTY[name] if before[name] in (None, {}) else other(before[name])
    (run / "protocol.json").write_text(json.dumps({**before, name: value}))
    assert "protocol.json: " in said(command, run)


# The differences that no line tells of in a training under another protocol, and why.
SOUND = {
    "seed": "other weights are no other data",
    "precision": "scores are in float32",
    "socialx": "a later version uses earlier runs",
    "commit": "the same",
    "scaler": "the model has it among its weights, which have their own sha256",
    "free_flow": "it is the pace of the training itself, with which a run for any network compares that of a file",
    "period": "a training has none",
}


COMPARED = [name for name in FIELDS if name not in SOUND]
PARTS = sorted(protocols.SPLIT_FIELDS)


@pytest.mark.parametrize(
    ("command", "name"), sorted({*cross(COMMANDS, COMPARED, "evaluate"), *cross(COMMANDS, PARTS, "predict")})
)
def test_a_training_under_another_protocol_is_told(command: str, name: str, run: Path) -> None:
    """As an older version of socialx, or other facts of the file, would have written it."""
    before = content(run)
    now = {**before, name: EMPTY[name] if before[name] in (None, {}) else other(before[name])}
    (run / "protocol.json").write_text(json.dumps({**now, "sha256": run_folder._seal(now)}))
    of_parts = name in protocols.SPLIT_FIELDS and command in ("predict", "serve")
    assert bool(said(command, run)) != of_parts  # they cut no file into parts


@pytest.mark.parametrize(
    ("command", "key"), cross(COMMANDS, [key for key in FIXED if key != "trainer.run_dir"], "predict")
)
def test_a_setting_that_the_training_fixed(command: str, key: str, run: Path) -> None:
    before = content(run)
    assert key in before["settings"]
    value = other(before["settings"][key])
    value = "another" if value == before["settings"][key] else value
    (run / "protocol.json").write_text(json.dumps({**before, "settings": {**before["settings"], key: value}}))
    assert (found := said(command, run)).code == "settings.edited"
    assert f"error: {key} ({run}/settings.yaml): {run} " in found


@pytest.mark.parametrize(("command", "how"), cross(COMMANDS, ["swapped", "renamed", "one more", "one less"], "predict"))
def test_the_sensors_and_their_order(command: str, how: str, run: Path) -> None:
    first, second, *rest = json.loads((run / "sensors.json").read_text())
    changed = {
        "swapped": [second, first, *rest],
        "renamed": ["another", second, *rest],
        "one more": [first, second, *rest, "another"],
        "one less": [first, second, *rest[:-1]],
    }
    (run / "sensors.json").write_text(json.dumps(changed[how]))
    assert (found := said(command, run)).code == "run.sensors"
    assert re.search(rf"{run}/sensors\.json: .* {len(changed[how])} sensors ", found)


def unit(file: h5py.File) -> None:
    del file[UNITS]
    file[UNITS] = json.dumps({"avg_speed": "km/h"})


def rule(name: str, value: object) -> Callable[[h5py.File], None]:
    return lambda file: file["metadata"].attrs.__setitem__(name, value)


FACTS: dict[str, Callable[[h5py.File], None]] = {
    "unit": unit,
    "zone": rule("timezone", "Asia/Tokyo"),
    "missing": rule(MISSING_ATTR, -1.0),
    "imputed": rule(IMPUTED_ATTR, True),
    "name": lambda file: file.attrs.__setitem__("dataset_name", "another"),
}


@pytest.mark.parametrize(("command", "fact"), cross(COMMANDS, FACTS, "evaluate"))
def test_the_file_says_more_of_its_readings(command: str, fact: str, run: Path, data: Path, tmp_path: Path) -> None:
    with edited(data, tmp_path / "other.h5") as file:
        FACTS[fact](file)
    settings = run / "settings.yaml"
    settings.write_text(settings.read_text().replace(f"path: {data}", f"path: {tmp_path}/other.h5"))
    assert said(command, run)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_copy_of_a_run_is_that_run(command: str, run: Path, tmp_path: Path) -> None:
    assert said(command, Path(shutil.copytree(run, tmp_path / "copy"))) == ""


def test_a_run_without_a_seal_is_of_an_older_version(run: Path, data: Path) -> None:
    before = content(run)
    del before["sha256"], before["place"]
    (run / "protocol.json").write_text(json.dumps(before))
    assert said("evaluate", run) == ""
    assert small_run(data, run.with_name("again")).exists()
