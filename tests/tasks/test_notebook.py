"""A notebook: models that it defines, windows for a training loop of its own, and scores of the forecasts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import socialx
from socialx.core.batch import Batch
from socialx.core.errors import SocialxError
from socialx.data.geo import to_plane
from socialx.settings import kinds
from tests.commands import ROOT, python, refused, refuses, works
from tests.documents import blocks

ROUTE_1, *CODE = blocks(ROOT / "docs/compare-a-model.md", "python")
TRAIN = {"max_epochs": 1, "overwrite": True}
NET = CODE[0].partition("run = ")[0]


class Net(nn.Module):
    def __init__(self, steps: int = 12) -> None:
        super().__init__()
        self.map = nn.Linear(steps, 12)

    def forward(self, x):
        return self.map(x[..., 0].mT).mT


class Last(Net):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, windows: Batch) -> Tensor:
        return super().forward(windows.inputs)[..., None]


class Sized(Net):
    def __init__(self, steps: int) -> None:
        super().__init__(steps)


class Two(Net):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Wrong(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mT


class Tuples(Net):
    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (super().forward(x),)


class Failing(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.map(x)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    kinds.KNOWN.clear()


def saved(run: socialx.Run, **options: Any) -> np.ndarray:
    """The forecasts of the test split, float32 [W,P,N,G]."""
    socialx.evaluate(run, save_forecasts="saved.h5", overwrite=True, **options)
    with h5py.File("saved.h5") as file:
        return file["forecast"][:]


@pytest.mark.slow
def test_the_code_of_the_page_runs(excerpt: Path, tmp_path: Path) -> None:
    (tmp_path / "city.h5").symlink_to(excerpt)
    names: dict[str, Any] = {"__name__": "page"}
    for code in CODE:
        exec(compile(code, "compare-a-model", "exec"), names)  # noqa: S102
    assert names["forecasts"].shape == (len(names["test"]), 12, 28, 1)
    assert len(CODE[1].splitlines()) <= 12


@pytest.mark.parametrize("model", [Net, Net(), nn.Sequential(Net()), {"kind": Net}], ids=str)
def test_a_plain_module_forecasts_what_its_weights_say(model: Any, data: Path) -> None:
    run = socialx.train(data, model=model, run_dir="a", **TRAIN)
    test = socialx.open_dataset(data, "test", normalised=False)
    weight, bias = (part.detach().double().numpy() for part in socialx.load_model(run).model.module.parameters())
    scaler = run.protocol.scaler["avg_speed"]
    x = np.stack([x.double().numpy()[..., 0] for x, *_ in test])  # [W,T,N], 0 where missing, as no speed is 0
    x = np.where(x == 0, 0, (x - scaler.mean) / scaler.std)
    ahead = scaler.mean + scaler.std * np.einsum("wtn,pt->wpn", x, weight) + scaler.std * bias[:, None]
    np.testing.assert_allclose(saved(run)[..., 0], ahead, rtol=1e-5)
    assert socialx.predict(run).values.shape == (1, 12, 4, 1)


def test_the_generator_of_a_notebook_is_left_alone(data: Path) -> None:
    def drawn(task: Callable[[], object]) -> float:
        torch.manual_seed(5)
        task()
        return torch.rand(()).item()

    expected, small = drawn(lambda: None), {"width": 8, "dropout": 0.2, **TRAIN}
    assert drawn(lambda: socialx.train(data, run_dir="a", **small)) == expected
    for task in (socialx.predict, socialx.evaluate, socialx.load_model):
        assert drawn(partial(task, "a")) == expected
    torch.manual_seed(6)  # a training draws from its own seed
    again = socialx.train(data, run_dir="b", **small)
    assert again.best.validation_mae == socialx.load_run("a").best.validation_mae


@pytest.mark.parametrize(
    ("task", "word", "meant"),
    [
        (socialx.predict, "quantiles", "interval"),
        (socialx.predict, "threshold", "below"),
        (socialx.predict, "h", "horizon"),
        (socialx.evaluate, "group_by", "by"),
        (socialx.predict, "steps", ""),  # a setting of profile
        (socialx.evaluate, "trace_steps", ""),
    ],
)
def test_an_argument_of_another_tool_names_the_one_of_the_task(task: Any, word: str, meant: str) -> None:
    with refuses("call.unknown-argument") as caught:
        task("zero-shot", **{word: 3})
    assert str(caught.value).partition("did you mean ")[2] == (f"{meant}?" if meant else "")


def test_a_class_with_a_batch_and_a_name_are_models_too(data: Path) -> None:
    assert socialx.train(data, model="linear", run_dir="a", **TRAIN).settings.model.kind == "linear"
    assert saved(socialx.train(data, model=Last, run_dir="b", **TRAIN)).shape[1:] == (12, 4, 1)
    Path("own_page.py").write_text(ROUTE_1)
    run = socialx.train(data, model="own_page:WindowMlp", width=8, run_dir="c", **TRAIN)
    assert socialx.evaluate(run).models


def test_an_instance_gives_its_weights_and_keeps_them(data: Path) -> None:
    net = Net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    run = socialx.train(data, model=net, run_dir="a", learning_rate=1e-12, **TRAIN)
    after = socialx.load_model(run).model.module.state_dict()
    torch.testing.assert_close(after, before)
    trained = socialx.train(data, model=net, run_dir="b", **TRAIN)
    torch.testing.assert_close(dict(net.state_dict()), before, rtol=0, atol=0)
    assert not torch.equal(socialx.load_model(trained).model.module.map.weight, net.map.weight)


@pytest.mark.slow
def test_another_process_names_the_class_again(data: Path) -> None:
    python(
        NET + "import sys\nsocialx.train(sys.argv[1], model=Net, run_dir=sys.argv[2], max_epochs=1)\n",
        data,
        Path("a").absolute(),
    )
    with refuses("model.own") as caught:
        socialx.evaluate("a")
    assert "model={'kind': 'my_models:Net'}, or in Python define Net again and pass model=Net" in str(caught.value)
    said = refused("evaluate", "a", code=2)
    assert (said.code, "into my_models.py and add --model my_models:Net" in said) == ("model.own", True)
    Path("my_models.py").write_text(NET + "class Other(Net): ...\n\nnet = Net()\n")
    refused("evaluate", "a", "--model", "my_models:Other", code=2)
    assert socialx.evaluate("a", model={"kind": "my_models:net"})["a"].overall().mae > 0
    kinds.KNOWN.clear()
    works("train", "--resume", "a", "--max-epochs", "2", "--model", "my_models:Net")
    assert socialx.load_run("a").settings.model.kind == "__main__:Net"
    assert "a" in works("evaluate", "a", "--model", "my_models:Net").stdout
    assert socialx.evaluate("a", model=Net)["a"].overall().mae > 0
    assert socialx.predict("a").values.shape == (1, 12, 4, 1)
    works("train", "--data", data, "--model", "my_models:Net", "--max-epochs", "1", "--run-dir", "b")
    refused("train", "--data", data, "--model", "my_models:missing", "--run-dir", "c", code=2)


@pytest.mark.parametrize(
    ("model", "code", "words"),
    [
        (Two, "model.signature", "takes x: 'Tensor', y: 'Tensor', not one argument"),
        (nn.Module, "model.signature", "*input"),
        (Sized, "model.two-readings", "needs steps"),
        ({"kind": Sized}, "model.two-readings", "pass an instance"),
        (Wrong, "model.shape", "returns (2, 4, 12), not (2, 12, 4)"),
        (Tuples, "model.shape", "returns tuple"),
        (Failing, "model.forward", "fails on x of shape (2, 12, 4, 1) (RuntimeError: "),
        (Sized(7), "model.forward", "RuntimeError"),
        (nn.Identity, "model.no-weights", "torch.nn.modules.linear:Identity"),
        (5, "settings.no-dict", "model must be"),
    ],
)
def test_what_is_no_model_is_refused_before_the_run_folder(model: Any, code: str, words: str, data: Path) -> None:
    early = code in ("model.signature", "model.two-readings", "settings.no-dict")  # before the data are looked for
    with refuses(code) as caught:
        socialx.train("nowhere.h5" if early else data, model=model, run_dir="a", **TRAIN)
    _, *advice = str(caught.value).split("\n")
    assert (words in str(caught.value), len(advice)) == (True, 1)
    assert code == "settings.no-dict" or "docs/compare-a-model.md" in advice[0]
    assert not Path("a").exists()


@pytest.mark.parametrize("split", ["train", "validation", "test", "all"])
def test_the_windows_are_those_of_the_file(split: str, data: Path) -> None:
    sizes = {"lookback": 5, "horizon": 3}
    scaled, raw = (socialx.open_dataset(data, split, normalised=on, **sizes) for on in (True, False))
    store, moments = socialx.open_store(data), scaled.data.moments["avg_speed"]
    cuts = np.split(np.arange(393), [round(0.7 * 393), 393 - round(0.2 * 393)])
    starts = np.arange(393) if split == "all" else cuts[("train", "validation", "test").index(split)]
    assert len(scaled) == len(starts)
    values = np.where(store.valid, store.values, 0)[..., None]
    x, y, mask = (torch.cat(parts) for parts in zip(*raw.loader(50), strict=True))
    for number, start in enumerate(starts):
        np.testing.assert_array_equal(x[number], values[start : start + 5])
        np.testing.assert_array_equal(y[number], values[start + 5 : start + 8])
        np.testing.assert_array_equal(mask[number, ..., 0], store.valid[start + 5 : start + 8])
    normalised = np.where(values[starts[-1] :][:5] == 0, 0, (values[starts[-1] :][:5] - moments.mean) / moments.std)
    np.testing.assert_allclose(scaled[-1][0], normalised, rtol=1e-5, atol=1e-6)
    assert not torch.equal(next(iter(raw.loader(50, shuffle=True)))[0], x[:50])
    scores = socialx.evaluate(forecasts=y, data=data, split=split, **sizes)["forecasts"].overall()
    assert (scores.mae, scores.count) == (0, int(mask.sum()))
    frame = raw.to_frame()
    np.testing.assert_array_equal(frame.fillna(0), values[starts[0] : starts[-1] + 8, :, 0])
    assert list(frame.columns) == list(raw.sensors.ids)
    assert str(frame.index[0])[:19] == store.clock.text(int(store.seconds[starts[0]]))


def test_the_adjacency_is_a_kernel_of_distances(data: Path) -> None:
    windows = socialx.open_dataset(data)
    places = to_plane(windows.sensors.latitude, windows.sensors.longitude)
    km = np.array([[np.hypot(*(a - b)) for b in places] for a in places])
    weights = np.exp(-((km / km.std()) ** 2))
    np.testing.assert_allclose(windows.adjacency(), np.where(weights < 0.1, 0, weights), rtol=1e-6)
    Path("roads.csv").write_text("from,to,cost\n" + "{},{},500\n".format(*windows.sensors.ids[:2]))
    assert windows.adjacency("roads.csv").count_nonzero() == 4


def test_an_array_has_the_scores_of_the_run_that_made_it(run: Path) -> None:
    array = saved(run)
    for forecasts in (array, array[..., 0].astype(np.float64), torch.from_numpy(array).requires_grad_()):
        scores = socialx.evaluate(run, forecasts=forecasts, by="hour")
        found, own = (scores[name].overall() for name in ("forecasts", run))
        assert vars(found) == pytest.approx(vars(own), rel=1e-6)
    span = {"start": "2012-05-04 06:00", "end": "2012-05-04 08:30", "data": socialx.load_run(run).settings.data.path}
    alone = socialx.evaluate(forecasts=array, save_forecasts="again.h5", **span)
    assert alone["forecasts"].overall().mae == pytest.approx(socialx.evaluate(run, **span)[run].overall().mae, rel=1e-6)
    from_file = socialx.evaluate(["again.h5"], **span)["again.h5"].overall()
    assert vars(from_file) == vars(alone["forecasts"].overall())


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (lambda data, array: socialx.evaluate(forecasts=array[1:], data=data), "split.shape", "(75, 12, 4, 1)"),
        (lambda data, array: socialx.evaluate(forecasts=array[:, :, 0], data=data), "split.shape", "(75, 12, 4, 1)"),
        (lambda data, array: socialx.evaluate(forecasts=[[1], [2, 3]], data=data), "split.no-array", "numbers"),
        (lambda data, array: socialx.evaluate(forecasts=["a"], data=data), "split.no-array", "'a'"),
        (lambda data, array: socialx.evaluate(forecasts=np.nan * array, data=data), "split.no-forecast", "test"),
        (lambda data, array: socialx.evaluate(forecasts=array), "data.none", "data="),
        (lambda data, array: socialx.evaluate("forecasts", forecasts=array), "score.same-name", "forecasts"),
        (lambda data, array: socialx.evaluate(array, data), "call.no-run", "forecasts=ARRAY"),
        (lambda data, array: socialx.evaluate(forecasts=array, data=data, drift=True), "score.only-files", "drift"),
        (lambda data, array: socialx.open_dataset(data, "dev"), "split.unknown", "split='dev'"),
        (lambda data, array: socialx.open_dataset({"days": 1}), "data.none", "convert"),
        (lambda data, array: socialx.open_dataset("nowhere.h5"), "file.missing", "nowhere.h5"),
    ],
)
def test_a_wrong_call_is_refused(call: Callable[..., Any], code: str, words: str, data: Path) -> None:
    with refuses(code, SocialxError) as caught:
        call(data, np.zeros((75, 12, 4, 1)))
    assert words in str(caught.value)
