"""Tokens of several steps: the same numbers and gradients as a plain loop, and what a patch may be."""

import shutil
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import socialx as api
from socialx.core.batch import Batch, TrainingBatch
from socialx.core.errors import SettingsError
from socialx.data import geo
from socialx.data.scaler import DataSpec
from socialx.model.forecaster import Forecaster, Tokens
from socialx.model.xlstm.encoder import CPU_CHUNK
from socialx.settings.conflicts import refuse_conflicts
from socialx.settings.schema import PoolingSettings, Settings
from tests.commands import ROOT, edited, keep_rows, refused, refuses, small_file, small_run, works
from tests.networks import features, positions, small_model

PATCHES = (1, 2, 3, 4, 6, 12)


def known() -> tuple[DataSpec, TrainingBatch]:
    """Three inputs, of which two are forecast, and what is usual of those; in float64."""
    (b, target), plain = features(targets=(2, 0), batch_size=3)
    generator = torch.Generator().manual_seed(0)
    shape = (*b.time_of_day.shape, 5, 2)
    mean, std = (torch.tensor([getattr(m, name) for m in plain.targets]) for name in ("mean", "std"))
    climatology = mean + std * torch.randn(shape, generator=generator)
    climatology[0, :, 1] = torch.nan
    b = b._replace(
        climatology=climatology,
        climatology_confidence=torch.rand(shape, generator=generator),
        time_of_day=(b.time_of_day + 280) % 288,
    )
    b = b._replace(day_of_week=(b.day_of_week + (b.time_of_day < 100)) % 7)  # midnight is within a patch
    b = Batch(*(t.double() if t.is_floating_point() else t for t in b))
    return replace(plain, read=(2, 0)), TrainingBatch(b, target)


def made(network: DataSpec, patch: int, encoder: str = "xlstm", **options: Any) -> Forecaster:
    torch.manual_seed(0)
    near = geo.nearest_neighbours(positions(network.sensors), 3)
    sizes = small_model(encoder=encoder, patch=patch, mlp_width=9, climatology=True, **options)
    pooling = PoolingSettings(adaptive_adjacency_rank=2)
    model = Forecaster(replace(network, find_neighbours=lambda: near), sizes, pooling)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model.double()


def by_loop(
    tokens: Tokens,
    normalised: Tensor,
    valid: Tensor,
    time_of_day: Tensor,
    day_of_week: Tensor,
    more: Any = (),
    add: Any = None,
) -> Tensor:
    """One token after the other, and in it one step after the other."""
    numbers = [(torch.cat([normalised, 1.0 - valid.double()], -1), tokens.reading), *more]
    windows, steps, sensors, _ = normalised.shape
    of_windows = []
    for w in range(windows):
        of_sensors = []
        for n in range(sensors):
            found = []
            for place in range(steps // tokens.patch):
                last = (place + 1) * tokens.patch - 1
                token = tokens.time_of_day[time_of_day[w, last]] + tokens.day_of_week[day_of_week[w, last]]
                token = token + tokens.sensor[n, 0] + tokens.adaptive_embedding[n, place]
                for part, projection in numbers:
                    count = part.shape[-1]
                    token = token + projection.bias
                    for within in range(tokens.patch):
                        columns = projection.weight[:, within * count : (within + 1) * count]
                        token = token + columns @ part[w, last + 1 - tokens.patch + within, n]
                found.append(token)
            of_sensors.append(torch.stack(found))
        of_windows.append(torch.stack(of_sensors))
    return torch.stack(of_windows)


@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize("encoder", ["xlstm", "mlp"])
def test_forecast_and_gradients_are_those_of_a_loop(encoder: str, patch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop feeds the package's own forward, the product its fast one."""
    network, (b, _) = known()
    model = made(network, patch, encoder)
    plain = made(network, patch, encoder, backend="reference")
    monkeypatch.setattr(plain.tokens, "forward", partial(by_loop, plain.tokens))
    found = []
    for each in (model, plain):
        inputs = b.inputs.clone().requires_grad_()
        forecast = each(b._replace(inputs=inputs))
        loss = (forecast * torch.linspace(-1, 1, forecast.numel()).view_as(forecast)).sum()
        named = {"inputs": inputs, **dict(each.named_parameters())}
        found.append((forecast, dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-11, atol=1e-9)
    for name, expected in found[1][1].items():
        scale = max(float(expected.abs().max()), 1e-6)
        torch.testing.assert_close(found[0][1][name] / scale, expected / scale, rtol=0, atol=1e-9, msg=name)
    assert found[0][1]["inputs"].any(dim=-1).any(dim=0).any(dim=-1).all()  # every step has a part in it


@pytest.mark.parametrize("encoder", ["xlstm", "mlp"])
def test_a_longer_patch_is_fewer_tokens_and_less_work(encoder: str) -> None:
    network, (b, _) = known()
    batch = Batch(*(t.float() if t.is_floating_point() else t for t in b))
    work = []
    for patch in PATCHES:
        model = made(network, patch, encoder).float()
        assert model.tokens.adaptive_embedding is not None
        assert model.tokens.adaptive_embedding.shape == (5, 12 // patch, 16)
        with FlopCounterMode(display=False) as counter:
            model(batch).sum().backward()
        work.append(counter.get_total_flops())
        if encoder == "xlstm":
            assert (model.encoder.lookback, model.encoder.cpu_chunk) == (12 // patch, CPU_CHUNK * patch)
    assert all(two < one for one, two in pairwise(work))


@pytest.mark.parametrize(
    ("lookback", "patch", "said", "below"),
    [
        (12, 5, "12 steps (1, 2, 3, 4, 6 or 12 ", 4),
        (12, 24, "12 steps (1, 2, 3, 4, 6 or 12 ", 12),
        (7, 6, "7 steps (1 or 7 ", 1),
        (1, 2, "1 step (1 ", 1),
    ],
)
def test_a_patch_that_does_not_divide_the_history_is_refused(
    lookback: int, patch: int, said: str, below: int, tmp_path: Path
) -> None:
    settings = Settings(data={"lookback": lookback}, model={"patch": patch})
    with refuses("settings.conflict", SettingsError) as caught:
        refuse_conflicts(settings)
    for words in (f"model.patch {patch} ", said, f"model={{'patch': {below}}}"):
        assert words in str(caught.value)
    data = small_file(tmp_path, 60, 2)
    error = refused("train", "--data", data, "--lookback", lookback, "--patch", patch, "--pooling", "none", code=2)
    for words in (f"model.patch {patch} ", said, f"--patch {below}, ", "--lookback"):
        assert words in error
    for model in ({"kind": "linear"}, {"patch": below}):
        refuse_conflicts(Settings(data={"lookback": lookback}, model={"patch": patch} | model))


def test_a_run_forecasts_scores_and_goes_on_with_its_patch(tmp_path: Path) -> None:
    run = small_run(small_file(tmp_path), "run", "--patch", "6", "--max-epochs", "2")
    assert api.load_run(run).settings.model.patch == 6
    assert np.isfinite(api.predict(run).values).all()
    assert api.load_model(run).model.tokens.patch == 6
    api.export(run, tmp_path / "model.safetensors")
    assert np.isfinite(api.evaluate(run)[str(run)].overall().mae)
    works("calibrate", run)
    works("train", "--resume", run, "--max-epochs", "3")
    assert (error := refused("train", "--resume", run, "--set", "model.patch=4", code=2)).code == "settings.run-differs"
    assert " 6, got 4" in error


def test_a_patch_is_of_the_steps_of_the_model_where_a_file_has_longer_ones(tmp_path: Path) -> None:
    data, run = small_file(tmp_path), small_run(tmp_path / "small.h5", "run", "--zero-shot", "--patch", "6")
    coarser = tmp_path / "coarser.h5"
    with edited(data, coarser) as file:
        keep_rows(file, slice(None, None, 3))
    forecast = api.predict(run, coarser)
    assert forecast.values.shape[1] == 4  # 12 steps of the model are four of the file
    assert np.isfinite(forecast.values).all()


def test_a_run_without_the_setting_has_a_step_in_a_token(tmp_path: Path) -> None:
    older = shutil.copytree(ROOT / "socialx/trained/zero-shot", tmp_path / "older")
    settings = older / "settings.yaml"
    settings.write_text(settings.read_text().replace("  patch: 1\n", ""))
    assert "patch" not in settings.read_text()
    assert api.load_run(older).settings.model.patch == 1
