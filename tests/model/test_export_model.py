"""The graph of a model: it sees what ``predict`` lets a model see, and computes the same for any number of windows."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import ExportedProgram

from socialx.core.batch import Batch
from socialx.data.calendar import WALL, Calendar
from socialx.data.climatology import DailyStats, OneDay, RollingClimatology
from socialx.data.geo import nearest_neighbours
from socialx.data.scaler import DataSpec
from socialx.data.series import ContextReader, WindowLayout
from socialx.data.source import Arrays
from socialx.model.export_model import INPUTS, OUTPUT, ExportModel, FileFacts, trace_model
from socialx.model.forecaster import Forecaster
from socialx.settings.kinds import MODELS
from socialx.settings.schema import PoolingSettings
from socialx.tasks.export_formats import as_onnx
from tests.networks import KINDS, MOMENTS, network, positions, small_model, speeds

NAN = torch.nan


class Seen(nn.Module):
    """A model that keeps its batch and forecasts what it is told."""

    def __init__(self, forecast: Tensor | None = None) -> None:
        super().__init__()
        self.forecast = forecast

    def forward(self, batch: Batch) -> Tensor:
        self.batch = batch
        return torch.zeros(1) if self.forecast is None else self.forecast


def around(
    model: nn.Module, of: DataSpec | None = None, bounded: bool = True, known: DailyStats | None = None
) -> ExportModel:
    of = of or replace(network(), read=(0,))
    return ExportModel(model, of, FileFacts(5, [0.0] * len(of.inputs), [bounded] * len(of.targets)), known)


def context(sensors: int = 5) -> tuple[ContextReader, np.ndarray]:
    """Made-up speeds with outages: sensor 1 for the last hours, sensor 2 from the start; and five issue times."""
    values, valid, seconds = speeds(200, sensors, missing=0.3)
    valid[100:, 1] = valid[:, 2] = False
    values[~valid] = 0
    return ContextReader(Arrays(values[..., None], valid[..., None], seconds), WindowLayout(12, 12)), seconds[
        [40, 90, 120, 121, 199]
    ]


def test_a_model_sees_the_batch_of_predict() -> None:
    made, issued = context()
    ((_, batch),) = made.batches(issued, 5)
    for marked in (batch.inputs, torch.where(batch.valid, batch.inputs, NAN)):
        model = Seen()
        around(model)(marked, batch.last_observed, torch.from_numpy(issued))
        for name in ("inputs", "valid", "last_observed", "time_of_day", "day_of_week"):
            torch.testing.assert_close(getattr(model.batch, name), getattr(batch, name), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("holiday", [False, True])
def test_what_is_usual_is_as_in_predict_however_late_it_is(holiday: bool, lost: bool) -> None:
    """On the day of the last row and on later ones, just after midnight too; lost: a sensor that was never read."""
    values, valid, seconds = speeds(2000, 5, missing=0.3)  # almost seven days
    valid[:, 2] &= not lost
    last = int(seconds[-1])
    holidays = {last // 86_400 - 1: 6, last // 86_400: 5, last // 86_400 + 2: 6} if holiday else {}
    calendar = Calendar(holidays=holidays.get)
    source = Arrays(values[..., None], valid[..., None], seconds, calendar=calendar)
    known, model = RollingClimatology(source).today(), Seen()
    program = ExportModel(model, replace(network(), read=(0,)), FileFacts(5, [0.0], [True], holidays), known)
    midnight = last // 86_400 * 86_400
    for issued in (
        last,
        *(midnight + 86_400 * days + 300 * row for days in (1, 2, 3, 15, 92, 366) for row in (5, 200)),
    ):
        later = np.concatenate([seconds, [issued] if issued > last else []]).astype(np.int64)  # a row without readings
        rows = np.zeros((len(later), 5, 1), np.float32)
        rows[: len(seconds)] = values[..., None]
        whole = Arrays(rows, np.pad(valid, ((0, len(later) - len(seconds)), (0, 0)))[..., None], later, 5, calendar)
        found = ContextReader(whole, WindowLayout(12, 12), rolling=RollingClimatology(whole))
        ((_, batch),) = found.batches(np.array([issued]), 1)
        program(batch.inputs, batch.last_observed, torch.tensor([issued]))
        torch.testing.assert_close(model.batch.climatology, batch.climatology, rtol=2e-5, atol=0, equal_nan=True)
        found, wanted = model.batch.climatology_confidence, batch.climatology_confidence
        torch.testing.assert_close(found, wanted, rtol=0, atol=1.01 / 255)
    assert batch.climatology_confidence.max() == 0  # a year later nothing is left


def test_a_latest_reading_that_is_not_given_is_that_of_the_history() -> None:
    made, issued = context()
    ((_, batch),) = made.batches(issued, 5)
    model = Seen()
    around(model)(batch.inputs, torch.full_like(batch.last_observed, NAN), torch.from_numpy(issued))
    seen = batch.valid.any(dim=1)
    assert 0 < seen.sum() < seen.numel()
    torch.testing.assert_close(model.batch.last_observed[seen], batch.last_observed[seen], rtol=0, atol=0)
    assert model.batch.last_observed[~seen].isnan().all()


def test_a_target_that_is_no_input_has_no_reading_in_the_history() -> None:
    of = DataSpec(2, 3, 2, 288, MOMENTS, (*MOMENTS, *MOMENTS), read=(None, 0))
    model = Seen()
    inputs = torch.tensor([[[[1.0], [2.0]], [[3.0], [NAN]], [[4.0], [0.0]]]])  # [1,3,2,1]
    around(model, of)(inputs, torch.full((1, 2, 2), NAN), torch.zeros(1, dtype=torch.int64))
    assert model.batch.last_observed[..., 0].isnan().all()
    assert model.batch.last_observed[..., 1].tolist() == [[4.0, 2.0]]


def test_infinity_and_the_missing_value_are_no_reading() -> None:
    model, inputs = Seen(), torch.full((1, 12, 5, 1), 60.0)
    inputs[0, :5, 0, 0] = torch.tensor([torch.inf, -torch.inf, NAN, 0.0, -1.0])
    around(model)(inputs, torch.zeros(1, 5, 1), torch.zeros(1, dtype=torch.int64))
    assert model.batch.valid[0, :6, 0, 0].tolist() == [False, False, False, False, True, True]
    assert model.batch.inputs.isfinite().all()


@given(st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1)), st.sampled_from((1, 5, 7, 15, 60)))
def test_the_calendar_is_that_of_the_data(time: datetime, step_minutes: int) -> None:
    issued, model = np.array([int(time.replace(tzinfo=UTC).timestamp())]), Seen()
    standalone = ExportModel(model, replace(network(), read=(0,)), FileFacts(step_minutes, [None], [False]))
    standalone(torch.zeros(1, 12, 5, 1), torch.zeros(1, 5, 1), torch.from_numpy(issued))
    moments = issued[:, None] + 60 * step_minutes * np.arange(-11, 13)
    time_of_day, day_of_week = WALL.time_features(moments, step_minutes)
    assert model.batch.time_of_day.tolist() == time_of_day.tolist()
    assert model.batch.day_of_week.tolist() == day_of_week.tolist()
    assert int(model.batch.day_of_week[0, 11]) == time.weekday()


@pytest.mark.parametrize("bounded", [True, False])
def test_only_what_cannot_be_negative_is_bounded(bounded: bool) -> None:
    found = around(Seen(torch.tensor([-3.0, 0.0, 2.0, NAN])), bounded=bounded)(*around(Seen()).example())
    expected = torch.tensor([0.0 if bounded else -3.0, 0.0, 2.0, NAN])
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def made(kind: str, pooling: str, sensors: int, encoder: str = "xlstm", patch: int = 1) -> ExportModel:
    """A small model of four lookback steps and two of the horizon, every weight moved so that each has an effect."""
    torch.manual_seed(0)
    of = DataSpec(sensors, STEPS, 2, 288, MOMENTS, MOMENTS, (0,))
    sizes = {"width": 8, "blocks": 2, "dropout": 0.1}
    if kind == "social":
        near = nearest_neighbours(positions(sensors), 3)
        settings = small_model(**sizes, climatology=True, encoder=encoder, patch=patch)
        pools = PoolingSettings(kind=pooling, adaptive_adjacency_rank=2)
        model: nn.Module = Forecaster(replace(of, find_neighbours=lambda: near), settings, pools)
    else:
        model = MODELS[kind].load()(of, **{name: sizes[name] for name in MODELS[kind].reads or ()})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    rng = np.random.default_rng(0)
    counts = rng.uniform(0, 9, (4, 288, sensors, 1)).astype(np.float32)
    sums = (counts * rng.normal(55, 8, counts.shape)).astype(np.float32)
    known = DailyStats(sums[:3], counts[:3], 11_000, 12_000, OneDay(12_000, 1, sums[3], counts[3]))
    return around(model.eval(), of, known=known if kind == "social" else None)


CASES = [
    ("social", "attention", 6, "xlstm"),
    *(("social", pooling, 6, "mlp") for pooling in KINDS[1:]),
    ("social", "attention", 60, "mlp"),  # more sensors per neighbour: gathered, not dense
    *((kind, "none", 6, "") for kind in ("linear", "lstm", "stid")),
    *(("social", "attention", 6, *tokens) for tokens in (("xlstm", 2), ("mlp", 4))),  # of several steps
]
STEPS = 4


def in_onnx(program: ExportedProgram) -> Callable[..., Tensor]:
    """The same program by onnxruntime."""
    session = onnxruntime.InferenceSession(as_onnx(program, INPUTS, OUTPUT).model_proto.SerializeToString())

    def forecast(*given: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT], dict(zip(INPUTS, map(Tensor.numpy, given), strict=True)))[0])

    return forecast


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # of torch's exporters
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_a_graph_computes_what_the_model_does(case: tuple[Any, ...]) -> None:
    """And of the small ones also in ONNX; tests/tasks/test_export.py does that for the others."""
    standalone, sensors = made(*case), case[2]
    program = trace_model(standalone)
    ways: list[Callable[..., Tensor]] = [program.module()]
    if case[0] in ("lstm", "stid") or len(case) > 5:
        ways.append(in_onnx(program))
    rng = np.random.default_rng(1)
    for windows in (1, 2, 5):
        inputs = torch.from_numpy(rng.normal(55, 8, (windows, STEPS, sensors, 1)).astype(np.float32))
        inputs[torch.from_numpy(rng.random(inputs.shape) < 0.3)] = NAN
        last_observed = torch.from_numpy(rng.normal(55, 8, (windows, sensors, 1)).astype(np.float32))
        last_observed[:, 0] = NAN
        issued = torch.from_numpy(rng.integers(0, 1 << 31, windows))
        with torch.no_grad():
            expected = standalone(inputs, last_observed, issued)
            assert expected.isfinite().all()
            for way in ways:
                torch.testing.assert_close(way(inputs, last_observed, issued), expected, rtol=1e-5, atol=1e-5)
