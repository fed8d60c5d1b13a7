"""Doctor: every check is a line, what is wrong says what helps, and nothing that a machine lacks is a traceback."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import pytest
import torch

import socialx
from socialx.settings.schema import MOST_STEPS
from socialx.tasks import doctor as doctor_checks
from socialx.tasks.doctor import DoctorLine, DoctorResult
from tests.commands import SMALL, edited, process, works
from tests.commands import socialx as command

NAMES = [*("machine", "packages", "settings", "device", "precision", "memory and disk", "data", "one step", "worker")]
PRESETS: dict[str, Any] = {
    "model": {"width": 8, "blocks": 1, "slstm_at": ()},
    "pooling": {"neighbours": 3},
    "trainer": {"device": "cpu"},
}
SETS = [word for section, names in PRESETS.items() for name, value in names.items() if name != "slstm_at"
        for word in ("--set", f"{section}.{name}={value}")]  # fmt: skip


def doctor(path: Path | None = None, /, **sections: dict[str, Any]) -> DoctorResult:
    """Of a small model on the CPU."""
    merged = {name: {**PRESETS.get(name, {}), **sections.get(name, {})} for name in {*PRESETS, *sections}}
    return socialx.doctor(**merged) if path is None else socialx.doctor(path, **merged)


def line(found: DoctorResult, name: str) -> DoctorLine:
    (only,) = (each for each in found.lines if each.name == name)
    return only


def test_every_check_is_ok_with_a_file_on_a_cpu(data: Path) -> None:
    found = doctor(data)
    assert [each.name for each in found.lines] == NAMES
    assert not found.failures, str(found)
    said = line(found, "data").facts
    assert all(fact in said for fact in ("4 sensors, 400 rows", " 5 min", "264 / 38 / 75 windows", " on_device"))
    assert re.match(r"encoder .* 4 sensors .* cpu$", line(found, "one step").facts)
    assert re.match(r"32-true .* cpu, .* 32-true; ", line(found, "precision").facts)
    assert f"torch {torch.__version__}" in line(found, "packages").facts


def test_a_part_of_a_large_network_and_the_features_that_are_asked_for_are_tried(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_checks, "MOST_SENSORS", 3)
    found = doctor(data={"path": data, "inputs": ("avg_speed", "latitude")})
    assert "4 sensors" in line(found, "data").facts
    assert "first 3 sensors" in line(found, "one step").facts
    wrong = doctor(data={"path": data, "targets": ("flow",)})
    assert "'flow'" in line(wrong, "data").facts
    assert [each.name for each in wrong.failures] == ["data"]


def test_without_a_file_the_step_reads_what_comes_with_socialx() -> None:
    found = doctor()
    assert line(found, "data").state == "ok"
    helps = line(found, "data").remedy
    assert all(call in helps for call in ("data={'path': 'FILE.h5'}", "convert('auto', 'FILE')"))
    assert " 207 sensors " in line(found, "one step").facts
    assert not found.failures, str(found)


FLOW = {"targets": ("flow", "occupancy"), "inputs": ("flow",), "days": 1}


@pytest.mark.parametrize(
    ("sections", "ran"),
    [
        ({"model": {"backend": "reference"}}, "encoder reference"),
        ({"model": {"encoder": "mlp"}}, "encoder mlp"),
        ({"model": {"kind": "stid"}}, "stid"),
        ({"data": FLOW, "pooling": {"distances": "roads.csv"}}, "encoder fused"),  # of another file
        ({"model": {"activation_checkpointing": True}, "trainer": {"precision": "bf16-mixed"}}, "encoder fused"),
        ({"pooling": {"kind": "none"}, "trainer": {"precision": "16-mixed"}}, "encoder fused"),
        ({"data": {"lookback": 288, "horizon": 3}}, "encoder"),
        ({"model": {"kind": "linear"}, "data": {"lookback": MOST_STEPS, "horizon": MOST_STEPS}}, "linear"),
    ],
)
def test_the_configured_model_takes_the_step(sections: dict[str, Any], ran: str) -> None:
    found = line(doctor(**sections), "one step")
    assert found.state == "ok", found
    assert found.facts.startswith(ran)


def changed_chunk(content: bytes, path: Path) -> bytes:
    """A file whose first readings are not what was compressed."""
    with h5py.File(path) as file:
        begin = file["data/features"].id.get_chunk_info(0).byte_offset + 20
    return content[:begin] + bytes(each ^ 0xFF for each in content[begin : begin + 20]) + content[begin + 20 :]


def test_a_broken_file_is_one_line_and_the_rest_is_checked(data: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.h5"
    broken.write_bytes(data.read_bytes()[:5000])
    result = command("doctor", "--data", broken, *SETS)
    assert (result.exit_code, result.stderr.count("\n")) == (3, 2)
    assert re.match(f"error: data: {broken}: .* HDF5", result.stderr)
    assert " 207 sensors " in " ".join(result.stdout.split())
    assert result.stdout.endswith(", 1 fail\n")
    broken.write_bytes(changed_chunk(data.read_bytes(), data))
    assert line(doctor(broken), "data").state == "fail"  # before a training finds it
    found = doctor(data={"path": data, "lookback": 288, "horizon": 288}, model={"kind": "linear"})
    assert [each.name for each in found.failures] == ["data"]  # shorter than a window


def test_a_file_without_positions_fails_where_the_model_needs_them(data: Path, tmp_path: Path) -> None:
    lost = tmp_path / "lost.h5"
    with edited(data, lost) as file:
        del file["metadata/vd_info/769402"]
    result = command("doctor", "--data", lost, *SETS)
    assert result.exit_code == 3
    assert re.match(r"error: one step: .* 1 .*\(769402\)", result.stderr)
    assert "--pooling none" in result.stderr
    assert not doctor(lost, pooling={"kind": "none"}).failures


def test_wrong_settings_are_lines_of_their_own() -> None:
    result = command("doctor", "--set", "loader.batch_size=0", "--set", "model.width=wide")
    assert result.exit_code == 3
    words = [each.split()[1:4] for each in result.stderr.splitlines() if each.startswith("error: ")]
    assert words == [["settings:", key, "(--set):"] for key in ("loader.batch_size", "model.width")]
    assert " line settings" in " ".join(result.stdout.split())
    found = socialx.doctor(loader={"batch_size": 0})
    assert [each.name for each in found.failures] == ["settings"]
    assert {each.name for each in found.lines if each.state == "ok"} == {"machine", "packages"}
    assert all(each.remedy for each in found.lines if each.state != "ok")


def test_settings_that_exclude_each_other_and_those_without_effect() -> None:
    conflict = line(doctor(model={"width": 10}), "settings")
    assert conflict.state == "fail"
    assert "model.width 10 " in conflict.facts
    idle = command("doctor", "--model", "linear", "--backend", "fused", "--json")
    (found,) = (each for each in json.loads(idle.stdout)["lines"] if each["name"] == "settings")
    assert (found["state"], found["remedy"], idle.exit_code) == ("warn", "leave out --backend", 0)


def test_json_has_one_shape() -> None:
    result = works("doctor", "--json", *SETS)
    assert result.stderr == ""
    printed = json.loads(result.stdout)
    assert (printed["schema"], printed["ok"]) == ("socialx.doctor/1", True)
    assert [each["name"] for each in printed["lines"]] == NAMES
    for each in printed["lines"]:
        assert list(each) == ["name", "state", "found", "remedy"]
        assert each["state"] in ("ok", "warn", "fail")
        assert each["remedy"] is None or each["remedy"]
    helps = {each["name"]: each["remedy"] for each in printed["lines"]}
    assert all(words in helps["data"] for words in ("--data FILE.h5", "socialx convert auto FILE"))


def test_more_threads_than_cores_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "usable_cores", lambda: 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    found = line(doctor(), "machine")
    assert found.state == "warn"
    assert "torch takes 64 threads" in found.facts
    assert "OMP_NUM_THREADS=3" in found.remedy
    assert "threads" in found.remedy
    works("doctor", *SETS)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert line(doctor(), "machine").state == "ok"


def stays(model: torch.nn.Module) -> None:
    model.register_buffer("stray", torch.zeros(1, device="meta"))
    model.to = lambda _: model


def spoil(model: torch.nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)


@pytest.mark.parametrize(
    ("change", "said", "helps"),
    [(stays, "stray .* meta, .* cpu", " bug "), (spoil, "forecast .* finite,", "'backend': 'reference'")],
)
def test_a_tensor_elsewhere_and_a_step_that_is_not_finite_fail(
    change: Callable[[torch.nn.Module], None], said: str, helps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = doctor_checks.build

    def build(*arguments: Any) -> Any:
        experiment = real(*arguments)
        change(experiment.model)
        return experiment

    monkeypatch.setattr(doctor_checks, "build", build)
    found = line(doctor(), "one step")
    assert found.state == "fail"
    assert re.search(said, found.facts)
    assert helps in found.remedy


def test_a_worker_without_room_or_that_does_not_start_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where workers are asked for it fails."""
    if (Path("/dev") / "shm").is_dir():
        monkeypatch.setattr(doctor_checks.shutil, "disk_usage", lambda _: SimpleNamespace(total=64 << 20, free=4 << 30))
        found = line(doctor(), "worker")
        assert (found.state, found.facts.endswith("which has 64.0 MiB")) == ("warn", True)
        assert "shm-size" in found.remedy

    def refuse(*_: object, **__: object) -> None:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(doctor_checks, "DataLoader", refuse)
    found = line(doctor(), "worker")
    assert (found.state, "Cannot allocate memory" in found.facts) == ("warn", True)
    assert line(doctor(loader={"mode": "workers"}), "worker").state == "fail"


def test_an_error_that_nobody_expected_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise ValueError("first\nsecond")

    monkeypatch.setattr(doctor_checks.shutil, "disk_usage", broken)
    found = doctor()
    for name in ("memory and disk", "worker"):
        assert (line(found, name).facts, line(found, name).state) == ("ValueError: first", "fail")
    assert len(found.lines) == len(NAMES)


@pytest.mark.parametrize("memory", [500 << 20, 2 << 30])
@pytest.mark.parametrize("disk", [64 << 20, 3 << 30])
def test_too_little_room_is_a_warning(memory: int, disk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks.shutil, "disk_usage", lambda _: SimpleNamespace(total=disk, free=disk))
    monkeypatch.setattr(doctor_checks, "free_bytes", lambda _: memory)
    found = doctor()
    room = line(found, "memory and disk")
    little = {"end other programs": memory < 1 << 30, "elsewhere": disk < 1 << 30}
    assert {part: part in room.remedy for part in little} == little
    assert room.state == ("warn" if any(little.values()) else "ok")
    assert ("cpu: 500.0 MiB free" if memory < 1 << 30 else "cpu: 2.0 GiB free") in room.facts
    assert ("folder: 64.0 MiB free" if disk < 1 << 30 else "folder: 3.0 GiB free") in room.facts
    assert not found.failures


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_machine_without_cuda_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "has_nvidia", lambda: False)
    plain = line(doctor(), "device")
    assert plain.state == "ok"
    assert "on the CPU" in plain.facts
    monkeypatch.setattr(doctor_checks, "has_nvidia", lambda: True)
    hidden = line(doctor(), "device")
    assert hidden.state == "warn"
    assert "no CUDA device: " in hidden.facts
    assert hidden.remedy
    asked = command("doctor", "--device", "cuda")
    assert asked.exit_code == 3
    assert re.match(r"error: device: .* cuda:0, .* 0 CUDA .*\(", asked.stderr)
    assert asked.stderr.count("\n") == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_card_without_code_in_this_torch_is_a_warning_and_asked_for_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, answer in {
        "is_available": True,
        "device_count": 1,
        "get_device_capability": (7, 0),
        "get_arch_list": ["sm_75", "compute_120"],
        "get_device_name": "Tesla V100",
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    found = line(doctor(), "device")
    assert found.state == "warn"
    assert re.search("Tesla V100, .* 7.0, .* sm_75, compute_120", found.facts)
    assert found.remedy == "install another torch"
    asked = command("doctor", "--device", "cuda")
    assert asked.exit_code == 3
    assert re.match("error: device: .*:0: .* Tesla V100", asked.stderr)
    assert asked.stderr.count("\n") == 2


@pytest.mark.parametrize(("wanted", "means"), [("highest", "exact float32"), ("high", "TF32"), ("medium", "bfloat16")])
def test_the_precision_of_a_card_names_its_products(wanted: str, means: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "cpu_field", lambda _: "")
    assert line(doctor(trainer={"precision": "bf16-mixed"}), "precision").state == "warn"
    monkeypatch.setattr(doctor_checks, "resolve_device", lambda _: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    for precision, state in (("16-mixed", "ok"), ("bf16-mixed", "warn")):
        found = line(doctor(trainer={"precision": precision, "float32_matmul_precision": wanted}), "precision")
        assert found.state == state
        said = f"{precision} on cuda:0, .* auto is 16-mixed; .* float32 in {means}; bfloat16 is emulated"
        assert re.match(said, found.facts)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_card_that_answers_nothing_is_lines_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="Card", total_memory=80 << 30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    before, found = torch.get_float32_matmul_precision(), doctor(trainer={"device": "cuda"})
    assert re.match(r"cuda:0 .* 2 x Card \(80 GiB, .* 9\.0\); ", line(found, "device").facts)
    assert {"memory and disk", "one step"} <= {each.name for each in found.failures}
    assert all(each.remedy and "\n" not in each.facts for each in found.failures)
    assert torch.get_float32_matmul_precision() == before


def test_nothing_of_torch_and_of_the_folder_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(7)
    before = torch.get_rng_state(), torch.get_num_threads(), torch.get_float32_matmul_precision()
    doctor(trainer={"threads": 2, "seed": 3})
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before[1:]
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_piped_output_is_plain(data: Path, tmp_path: Path) -> None:
    done = process("doctor", "--data", data, *SETS, cwd=tmp_path, NO_COLOR="")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert {row.split()[0] for row in done.stdout.splitlines() if row[:1].strip()} <= {"ok", "warn", "9", "8"}
    assert done.stderr == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize(
    ("device", "visible", "said"),
    [("auto", None, True), ("auto", "-1", False), ("auto", "", False), ("cpu", None, False)],
)
def test_a_training_beside_a_card_that_torch_cannot_use_says_so(
    device: str, visible: str | None, said: bool, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one whose driver is too old."""
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/usr/bin/{name}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    words = ("train", "--data", data, "--run-dir", tmp_path / "run", "--max-epochs", "1", "--device", device, *SMALL)
    done = command(*words)
    assert done.exit_code == 0, done.stderr
    assert ("train.gpu-unused" in done.codes) == said
