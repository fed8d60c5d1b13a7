"""A model outside of socialx: trained by its name, and run again only by whoever names it again."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import uvicorn
from fastapi.testclient import TestClient
from safetensors.torch import load_file

import socialx
from socialx.core.errors import SettingsError
from socialx.settings import kinds
from socialx.settings.layers import load_settings
from tests.commands import ROOT, refused, refuses, small_file, works
from tests.commands import socialx as run
from tests.tasks.test_export import write_inputs

OWN = ("--model", "own_models:WindowMlp")
PAGE = ROOT / "docs/compare-a-model.md"
MORE = """
from pathlib import Path

import torch

Path("imported").touch()
number = 1


class Optional(WindowMlp):
    def __init__(self, network, width, dropout=0.0, steps=2, **others):
        super().__init__(network, width, dropout)
        assert steps == 2 and not others


class Greedy(WindowMlp):
    def __init__(self, network, width, dropout, beams):
        super().__init__(network, width, dropout)


class Flat(WindowMlp):
    def forward(self, batch):
        return super().forward(batch).flatten(2)


class OfNeighbours(WindowMlp):
    def __init__(self, network, width):
        super().__init__(network, width, 0.0)
        nearest = torch.from_numpy(network.neighbours.index)  # [N,K]
        self.register_buffer("nearest", nearest, persistent=False)
        self.weights = nn.Parameter(torch.zeros(nearest.shape))

    def forward(self, batch):
        latest = batch.last_observed[:, self.nearest].nan_to_num()  # [B,N,K,G]
        return super().forward(batch) + (latest * self.weights[..., None]).mean(2)[:, None]


class Copying(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.share, self.horizon = nn.Parameter(torch.ones(1)), network.horizon

    def forward(self, batch):
        return (self.share * batch.last_observed.nan_to_num())[:, None].expand(-1, self.horizon, -1, -1)


class Picky(WindowMlp):
    def __init__(self, network, width):
        raise ValueError("width 8 is odd")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, and the module that the page shows."""
    folder = tmp_path_factory.mktemp("own")
    small_file(folder)
    code, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (folder / "own_models.py").write_text(code + MORE)
    (folder / "own_broken.py").write_text("def f(:\n")
    (folder / "own_lacking.py").write_text("import no_such_package\n")
    return folder


@pytest.fixture(autouse=True)
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    kinds.KNOWN.clear()
    yield
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
    (folder / "imported").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """A run of the class that the page shows."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        done = run(
            *("train", "--data", folder / "small.h5", *OWN, "--width", "8"),
            *("--max-epochs", "1", "--run-dir", folder / "mine"),
        )
    assert done.exit_code == 0, done.stderr
    return folder / "mine"


def training(*options: str) -> tuple[str | Path, ...]:
    return ("train", "--data", "small.h5", "--width", "8", "--max-epochs", "1", "--run-dir", "other", *options)


def test_the_class_of_the_page_is_trained_scored_and_used(trained: Path, tmp_path: Path) -> None:
    assert socialx.load_run(trained).settings.model.kind == "own_models:WindowMlp"
    for command in (["evaluate"], ["explain"], ["predict", "--output", tmp_path / "f.csv"]):
        works(command[0], trained, *command[1:], *OWN)
    again = Path(shutil.copytree(trained, tmp_path / "again"))
    works("train", "--resume", again, "--max-epochs", "2", *OWN)
    assert len(socialx.load_run(again).epochs) == 2
    assert "without social pooling" in run("explain", trained, *OWN).stdout


def test_no_file_and_no_variable_runs_code(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
    Path("imported").unlink(missing_ok=True)
    saved = trained / "settings.yaml"
    commands: list[tuple[str | Path, ...]] = [
        *((name, trained) for name in ("evaluate", "explain", "predict", "serve")),
        ("export", trained, tmp_path / "x.pt2"),
        ("train", "--resume", trained, "--max-epochs", "2"),
        ("train", "-c", saved, "--run-dir", tmp_path / "x"),
        ("profile", "-c", saved),
    ]
    for command in commands:
        error = refused(*command, code=2)
        assert (error.code, f"({saved}): {OWN[1]} " in error) == ("model.own", True)
        assert {*OWN} <= {*error.split()}
    monkeypatch.setenv("SOCIALX_MODEL__KIND", "own_models:WindowMlp")
    for command in (training(), ("evaluate", trained)):
        assert refused(*command, code=2).code == "model.own"
    monkeypatch.delenv("SOCIALX_MODEL__KIND")
    stolen = socialx.load_run(trained).settings
    for call in (
        lambda: socialx.evaluate([trained]),
        lambda: socialx.train("small.h5", settings=stolen, run_dir="x"),
        lambda: load_settings([saved]),
    ):
        with refuses("model.own", SettingsError) as caught:
            call()
        assert f"model={{'kind': {OWN[1]!r}}}" in str(caught.value)
    works("config", "-c", saved)  # it prints, and builds nothing
    assert "own_models" not in sys.modules
    assert not Path("imported").exists()
    assert socialx.evaluate([trained], model={"kind": "own_models:WindowMlp"}).models
    assert Path("imported").exists()


def test_the_next_commands_name_the_class_again(trained: Path, tmp_path: Path) -> None:
    """Each that is printed runs as it stands."""
    again = Path(shutil.copytree(trained, tmp_path / "again"))
    done = run(*training(*OWN, "--run-dir", again, "--overwrite"))
    assert done.stdout.split()[-6:] == ["socialx", "evaluate", str(again), "--baselines", *OWN]
    complete = run("train", "--resume", again, "--set", "model.kind=own_models:WindowMlp")
    assert complete.codes[-1] == "resume.complete"
    done = run("calibrate", again, *OWN)
    (again / "intervals.safetensors").unlink()
    refused = run("predict", again, "--interval", "0.9", *OWN)
    assert refused.codes[-1] == "run.no-intervals"
    for printed, task, *more in (
        (refused.stderr, "calibrate"),
        (done.stdout, "predict", "--interval", "0.9"),
        (complete.stderr, "train", "--max-epochs", "2"),
    ):
        words = printed.rstrip().rpartition("socialx ")[2].split()
        assert words == [task, *(["--resume"] if task == "train" else []), str(again), *more, *OWN]
        works(*words)


def test_another_class_than_that_of_the_run_is_refused(trained: Path) -> None:
    error = refused("evaluate", trained, "--model", "own_models:Optional", code=2)
    assert error.code == "settings.run-differs"
    assert {"own_models:WindowMlp,", "own_models:Optional."} <= {*error.split()}
    done = run("evaluate", trained, "--model", "lstm")
    assert done.codes == ("settings.run-differs",)
    assert {"own_models:WindowMlp,", "lstm."} <= {*done.stderr.split()}


def test_it_is_scored_beside_a_model_of_socialx(trained: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    data = ("--data", trained.parent / "small.h5")
    works("train", *data, "--model", "linear", "--max-epochs", "1", "--run-dir", plain)
    assert works("evaluate", trained, plain, *OWN).stdout.count("15 min") == 2


@pytest.fixture(scope="module")
def of_neighbours(folder: Path, trained: Path) -> tuple[Path, tuple[str, str]]:
    """A run of a class that reads its neighbours, two of each sensor, and the flag that names the class."""
    named, path = ("--model", "own_models:OfNeighbours"), folder / "of_neighbours"
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        done = run(*training(*named, "--neighbours", "2", "--max-epochs", "2", "--run-dir", path))
    assert done.exit_code == 0, done.stderr
    assert "settings.unread" not in done.codes
    return path, named


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["pt2", "onnx", "safetensors"])
def test_it_is_exported(of_neighbours: tuple[Path, tuple[str, str]], suffix: str, tmp_path: Path) -> None:
    """The exported file forecasts what ``predict`` forecasts, for any number of windows."""
    path, named = of_neighbours
    output = tmp_path / f"own.{suffix}"
    works("export", path, output, *named)
    if suffix == "safetensors":
        return
    write_inputs(path, Path("small.h5"), [0], tmp_path / "inputs.npz", model={"kind": named[1]})
    inputs = dict(np.load(tmp_path / "inputs.npz"))
    expected = inputs.pop("forecast")
    for windows in (1, 5):
        some = {name: array[:windows] for name, array in inputs.items()}
        if suffix == "pt2":
            tensors = [torch.from_numpy(some[name]) for name in ("inputs", "last_observed", "origin")]
            forecast = torch.export.load(output).module()(*tensors).detach().numpy()
        else:
            (forecast,) = onnxruntime.InferenceSession(output).run(["forecast"], some)
        np.testing.assert_allclose(forecast, expected[:windows], rtol=1e-5)


def test_it_is_served(of_neighbours: tuple[Path, tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    path, named = of_neighbours
    answers = []

    def ask(server: uvicorn.Server, sockets: object) -> None:
        with TestClient(server.config.app) as client:
            answers.append(client.get("/forecast/latest").json()["forecast"]["avg_speed"])

    monkeypatch.setattr(uvicorn.Server, "run", ask)
    done = run("serve", path, "--data", "small.h5", "--port", "0", *named)
    assert answers, done.stderr
    np.testing.assert_allclose(answers[0], socialx.predict(path, model={"kind": named[1]}).values[..., 0], rtol=1e-5)


def test_its_neighbours_are_those_of_the_settings(folder: Path) -> None:
    sections = {"model": {"kind": "own_models:OfNeighbours", "width": 8}, "trainer": {"max_epochs": 1}}
    for pooling, columns in (({"neighbours": 1}, 1), ({"neighbours": None}, 3)):
        made = socialx.train(folder / "small.h5", run_dir=folder / "graph", overwrite=True, **sections, pooling=pooling)
        assert made.epochs
        assert load_file(made.path / "best.safetensors")["weights"].shape == (4, columns)


def test_settings_that_it_does_not_take_are_said() -> None:
    done = works(*training("--model", "own_models:OfNeighbours", "--dropout", "0.2", "--overwrite"))
    assert ("settings.unread" in done.codes, ": --dropout.\n" in done.stderr) == (True, True)
    done = run(*training(*OWN, "--dropout", "0.2", "--gate-radius-km", "2", "--overwrite"))
    assert ("settings.unread" in done.codes, ": --gate-radius-km.\n" in done.stderr) == (True, True)


def test_arguments_with_a_default_need_no_setting() -> None:
    works(*training("--model", "own_models:Optional", "--overwrite"))


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("own_models:Missing", "model.import", "'Missing'"),
        ("own_missing:Model", "model.import", "'own_missing'"),
        ("own_lacking:Model", "model.import", "'no_such_package'"),
        ("own_broken:Model", "model.import", "(invalid syntax"),
        ("own_models:number", "model.no-module", "torch.nn.Module"),
        ("own_models:Greedy", "model.asks", " beams,"),
        ("own_models:Flat", "model.shape", " (2, 12, 4), not (2, 12, 4, 1)"),
        ("own_models:Picky", "model.sizes", "width 8 is odd"),
        ("own_models", "settings.invalid", "package.module:Class,"),
        ("../own_models:A", "settings.invalid", "'../own_models:A'"),
        ("own_models:A.b", "settings.invalid", "'own_models:A.b'"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(name: str, code: str, words: str) -> None:
    done = run(*training("--model", name, "--overwrite"))
    assert done.exit_code in (1, 2)
    _, *errors = done.stderr.split("error: ")
    assert (len(errors), done.codes[-1]) == (1, code)
    assert words in errors[0]
    assert errors[0].count("\n") <= 2


def test_one_without_a_normaliser_takes_every_flag(tmp_path: Path) -> None:
    name, mine = ("--model", "own_models:Copying"), tmp_path / "run"
    works("train", "--data", "small.h5", *name, "--zero-shot", "--max-epochs", "1", "--run-dir", mine)
    assert "12 steps" in works("predict", mine, "--data", small_file(tmp_path, 150, 7), *name).stdout
