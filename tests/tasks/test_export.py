"""Exported models: the forecasts of ``predict`` in a process that has no socialx, and one line for what cannot be."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnxruntime
import pytest
from safetensors import safe_open

import socialx as api
from socialx.core.errors import SettingsError
from socialx.tasks import export as exporting
from socialx.training.run_folder import open_run
from tests.commands import ROOT, edited, keep_rows, refused, small_file, small_run, works
from tests.networks import carry_forward

FORMATS = {"torch": "metr_la.pt2", "onnx": "metr_la.onnx", "safetensors": "metr_la.safetensors"}
ROWS = [310, 333, 350, 370, 399]  # the last one of each window, on the last day, whose climatology a program has
WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "socialx":
            raise ImportError("no socialx here")

sys.meta_path.insert(0, Without())
try:
    import socialx
except ImportError:
    pass
else:
    raise SystemExit("socialx was imported")
"""
READ = """
import contextlib, io, json, os, runpy
import numpy as np, onnxruntime, torch
from safetensors import safe_open

printed = io.StringIO()
os.chdir("xlstm")
with contextlib.redirect_stdout(printed):
    for number in range(3):
        runpy.run_path(f"example{number}.py")
os.chdir("..")
found = {"examples": printed.getvalue().splitlines()}
for name in ("xlstm", "linear"):
    os.chdir(name)
    extra = {"socialx.json": ""}
    module = torch.export.load("metr_la.pt2", extra_files=extra).module()
    session = onnxruntime.InferenceSession("metr_la.onnx")
    given = dict(np.load("inputs.npz"))
    expected, errors = given.pop("forecast"), []
    for windows in (1, 2, 5):
        some = {key: array[:windows] for key, array in given.items()}
        with torch.inference_mode():
            of_torch = module(*(torch.from_numpy(some[key]) for key in ("inputs", "last_observed", "origin"))).numpy()
        for forecast in (of_torch, *session.run(["forecast"], some)):
            assert forecast.shape == expected[:windows].shape, forecast.shape
            errors.append(float((np.abs(forecast / expected[:windows] - 1)).max()))
    texts = [extra["socialx.json"], session.get_modelmeta().custom_metadata_map["socialx"]]
    if os.path.exists("metr_la.safetensors"):
        texts.append(safe_open("metr_la.safetensors", "numpy").metadata()["socialx"])
    ends = [[end.name, end.type, end.shape] for end in (*session.get_inputs(), *session.get_outputs())]
    found[name] = {"errors": errors, "texts": texts, "ends": ends}
    os.chdir("..")
print(json.dumps(found))
"""


def elsewhere(code: str, folder: Path) -> str:
    """What a script prints in a process of its own that cannot import socialx."""
    typed = [sys.executable, "-I", "-c", WITHOUT + code]
    done = subprocess.run(typed, capture_output=True, text=True, cwd=folder, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 rows of four sensors; the second is silent from row 340 on, the third always, the first now and then."""
    path = small_file(tmp_path_factory.mktemp("data"))
    with h5py.File(path, "r+") as file:
        readings = file["data/features"]
        readings[340:, 1, 0] = 0
        readings[:, 2, 0] = 0
        readings[::5, 0, 0] = np.nan
    return path


@pytest.fixture(scope="module")
def xlstm(data: Path) -> Path:
    """The shared xLSTM with both kinds of block, small."""
    blocks = ["--blocks", "2", "--set", "model.slstm_at=1"]
    return small_run(
        data,
        "xlstm",
        *blocks,
        "--lookback",
        "3",
        "--patch",
        "1",
        "--horizon",
        "2",
        "--set",
        "pooling.adaptive_adjacency_rank=2",
    )


@pytest.fixture(scope="module")
def linear(data: Path) -> Path:
    """A run that is exported in a moment, with an input that is no target."""
    return small_run(data, "linear", "--model", "linear", "--inputs", "avg_speed,latitude")


def write_inputs(run: Path, data: Path, features: list[int], path: Path, **sections: Any) -> None:
    """What a program takes, made of the readings as they are in the file, and the forecasts of ``predict``.

    The first of the features is the target.
    """
    steps = open_run(run).protocol.lookback
    with h5py.File(data) as file:
        readings = file["data/features"][:].astype(np.float32)
        times = [time.decode() for time in file["metadata/timestamps"][:]]
    target = readings[..., features[:1]]
    latest = carry_forward(target, np.isfinite(target) & (target != 0))
    np.savez(
        path,
        inputs=np.stack([readings[row - steps + 1 : row + 1][..., features] for row in ROWS]),
        last_observed=latest[ROWS],
        origin=np.array([times[row] for row in ROWS], "datetime64[s]").astype(np.int64),
        forecast=np.concatenate([api.predict(run, at=times[row], **sections).values for row in ROWS]),
    )


# --- what is written ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(xlstm: Path, linear: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each run with its exports and what they should forecast, and the examples of the page."""
    folder = tmp_path_factory.mktemp("exported")
    for run, features, formats in ((xlstm, [0], list(FORMATS)), (linear, [0, 1], ["torch", "onnx"])):
        for name in formats:
            output = folder / run.name / FORMATS[name]
            result = works("export", run, output)
            assert result.stdout.startswith(f"wrote {output}: {name}, avg_speed (mph) of 4 sensors, ")
            assert ("past days until 2012-05-04 09:15:00" in result.stdout, result.stderr) == (run == xlstm, "")
        write_inputs(run, data, features, folder / run.name / "inputs.npz")
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs/export.md").read_text(), re.DOTALL)
    assert len(examples) == 3
    for number, code in enumerate(examples):
        (folder / "xlstm" / f"example{number}.py").write_text(code)
    return folder


@pytest.fixture(scope="module")
def found(exported: Path) -> dict[str, Any]:
    """What is read from these files without socialx."""
    return json.loads(elsewhere(READ, exported))


@pytest.mark.slow
@pytest.mark.timeout(300)  # three programs are traced, two of them written as ONNX
@pytest.mark.parametrize("name", ["xlstm", "linear"])
def test_programs_forecast_as_predict_does(name: str, found: dict[str, Any]) -> None:
    """Both formats, one, two and five windows at a time."""
    assert len(found[name]["errors"]) == 6
    assert max(found[name]["errors"]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("days", [0, 1, 2, 20, 92, 366])
def test_a_program_forgets_as_the_run_does(days: int, xlstm: Path, data: Path, exported: Path, tmp_path: Path) -> None:
    """Of the same readings on a later day, in the first minutes of it and in the afternoon.

    Its first minutes on the day of the last row are left out: there the run knows the days before yesterday alone.
    """
    session = onnxruntime.InferenceSession(exported / "xlstm" / FORMATS["onnx"])
    day = np.datetime64("2012-05-04T00:00") + np.timedelta64(days, "D")
    for time in (day + np.timedelta64(minutes, "m") for minutes in (10, 1000)[days == 0 :]):
        with edited(data, tmp_path / "later.h5") as file:
            keep_rows(file, slice(300, 303))
            times = time.astype("datetime64[s]") + 300 * np.arange(-2, 1)
            file["metadata/timestamps"][:] = np.char.replace(times.astype("S19"), b"T", b" ")
            file["metadata/timestamps_epoch"][:] = times.astype(np.int64)
            readings = file["data/features"][:, :, :1].astype(np.float32)
        last_observed = carry_forward(readings, np.isfinite(readings) & (readings != 0))
        given = {"inputs": readings[None], "last_observed": last_observed[-1:], "origin": times[-1:].astype(np.int64)}
        wanted = api.predict(xlstm, tmp_path / "later.h5").values
        np.testing.assert_allclose(session.run(["forecast"], given)[0], wanted, rtol=1e-4)


@pytest.mark.slow
def test_a_file_says_what_it_holds(xlstm: Path, found: dict[str, Any]) -> None:
    texts = found["xlstm"]["texts"]
    assert texts[0] == texts[1] == texts[2]
    about, protocol = json.loads(texts[0]), open_run(xlstm).protocol
    assert about.pop("protocol") == json.loads(json.dumps(protocol.as_dict()))
    assert about == {
        "schema": "socialx.export/2",
        "socialx": api.__version__,
        "dataset": "metr_la",
        "sensors": list(open_run(xlstm).sensors or ()),
        "inputs": {"avg_speed": "mph"},
        "missing": {"avg_speed": 0.0},
        "targets": {"avg_speed": "mph"},
        "step_minutes": 5,
        "lookback": 3,
        "horizon": 2,
        "timezone": protocol.timezone,
        "known_until": "2012-05-04 09:15:00",
    }
    assert found["xlstm"]["ends"] == [
        ["inputs", "tensor(float)", ["batch", 3, 4, 1]],
        ["last_observed", "tensor(float)", ["batch", 4, 1]],
        ["origin", "tensor(int64)", ["batch"]],
        ["forecast", "tensor(float)", ["batch", 2, 4, 1]],
    ]
    of_linear = json.loads(found["linear"]["texts"][0])
    assert (of_linear["missing"], of_linear["known_until"]) == ({"avg_speed": 0.0, "latitude": None}, None)


@pytest.mark.slow
def test_the_weights_are_those_of_the_run(xlstm: Path, exported: Path) -> None:
    state = open_run(xlstm).read_weights().state
    with safe_open(exported / "xlstm" / FORMATS["safetensors"], "pt") as file:
        read = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dict
    assert all(read[name].equal(tensor) for name, tensor in state.items())
    assert read["social.0.pooling.geometry.index"].shape == (4, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_a_program_has_no_pickle_and_no_path_of_this_machine(kind: str, xlstm: Path, exported: Path) -> None:
    path = exported / "xlstm" / FORMATS[kind]
    parts = {"": path.read_bytes()}
    if kind == "torch":
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        assert not [name for name, content in parts.items() if name.endswith((".pt", ".pkl")) and content]
        said = b"".join(parts.values()).replace(b" ", b"")
        assert b'"use_pickle":false' in said
        assert b'"use_pickle":true' not in said
    for place in (ROOT, Path(sys.prefix), xlstm):
        assert not any(str(place).encode() in content for content in parts.values()), place


@pytest.mark.slow
def test_the_examples_of_the_page_run_as_they_stand(found: dict[str, Any]) -> None:
    lines = found["examples"]
    assert len(lines) == 3
    assert all("{'avg_speed': 'mph'}" in line for line in lines[:2])
    of_onnx, of_torch = (np.array(re.findall(r"\d+\.\d+", line), float) for line in lines[:2])
    assert len(of_onnx) == 2
    np.testing.assert_allclose(of_onnx, of_torch, atol=1e-3)
    assert re.fullmatch(r"metr_la 4 sensors \d+ \w+", lines[2])


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_format_comes_from_the_suffix_or_is_named(linear: Path, tmp_path: Path) -> None:
    says = refused("export", linear, tmp_path / "model.bin", code=2)
    assert says.code == "export.suffix"
    assert all(fact in says for fact in ("'.bin'", ".pt2, .onnx, .safetensors", "--format"))
    says = refused("export", linear, tmp_path / "model.bin", "--format", "tflite", code=2)
    assert says.code == "export.format"
    assert re.search("--format tflite .*\n.* torch, onnx, safetensors", says)
    works("export", linear, tmp_path / "model.bin", "--format", "safetensors")
    with safe_open(tmp_path / "model.bin", "pt") as file:
        assert "map.weight" in file.keys()  # noqa: SIM118  it is no dict


def test_a_package_that_is_missing_is_named(linear: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # its import raises ImportError
    says = refused("export", linear, tmp_path / "model.onnx")
    assert says.code == "export.needs"
    assert all(fact in says for fact in (" onnxscript.", "'socialx[onnx]'", ".pt2"))
    assert not list(tmp_path.iterdir())


def test_a_run_that_cannot_be_loaded_leaves_nothing(linear: Path, data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(linear, copy)
    (copy / "best.safetensors").write_bytes(b"damaged")
    output, lost = tmp_path / "model.pt2", tmp_path / "lost.h5"
    for code, names, *words in (
        ("tensors.torn", "best.safetensors: ", copy, output),
        ("run.not", "nothing: ", tmp_path / "nothing", output),
        ("file.missing", f"{lost}: ", linear, output, "--data", lost),
    ):
        error = refused("export", *words)
        assert (error.code, names in error) == (code, True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_model_without_a_graph_is_one_line(linear: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from socialx.model.plain import Linear

    plain = Linear.forward
    monkeypatch.setattr(Linear, "forward", lambda self, batch: plain(self, batch) if batch.inputs.sum() > 0 else None)
    says = refused("export", linear, tmp_path / "model.pt2")
    assert says.code == "export.fails"
    assert re.fullmatch(rf"error: {linear}: .* torch \(.+\)\.\n.* \.safetensors\n", says)
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_too_large_for_one_file(linear: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "ONNX_BYTES", 100)
    said = refused("export", linear, tmp_path / "model.onnx")
    assert "GiB, and one ONNX file holds 0.0.\n  try: export it as .pt2" in said


@pytest.mark.parametrize("key", ["trainer.device", "trainer.precision", "model.backend"])
def test_a_setting_without_effect_is_refused(key: str, linear: Path, tmp_path: Path) -> None:
    value = {"trainer.device": "cpu", "trainer.precision": "16-mixed", "model.backend": "reference"}[key]
    assert key in refused("export", linear, tmp_path / "model.pt2", "--set", f"{key}={value}", code=2)
    section, name = key.split(".")
    with pytest.raises(SettingsError, match=key):
        api.export(linear, tmp_path / "model.pt2", **{section: {name: value}})


def test_another_network_is_refused_where_the_model_knows_its_sensors(xlstm: Path, tmp_path: Path) -> None:
    assert "sensors" in refused("export", xlstm, tmp_path / "model.pt2", "--data", small_file(tmp_path, 100, 3))
    assert not (tmp_path / "model.pt2").exists()


def test_another_network_is_exported_where_it_does_not(linear: Path, tmp_path: Path) -> None:
    made = api.export(linear, tmp_path / "model.safetensors", data=small_file(tmp_path, 100, 6))
    assert (len(made.about["sensors"]), made.about["protocol"]["sensors"]) == (6, 4)
    assert made.bytes == made.path.stat().st_size
