"""Settings -> Experiment: the one place where settings become objects.

Only higher layers see settings, and only lower layers build models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from socialx.core.batch import Batch
from socialx.core.environment import keep_freed_memory
from socialx.core.errors import Argument, Command, SettingsError, SocialxError
from socialx.core.precision import Precision, resolve_device, resolve_precision
from socialx.data.climatology import ALL_DAYS, ZERO_SHOT_DAYS, PastDays
from socialx.data.geo import self_neighbours
from socialx.data.loaders import Loading
from socialx.data.scaler import DataSpec, MeanStd
from socialx.dataset import Dataset, open_dataset
from socialx.files.sources.holidays import load_holidays
from socialx.files.sources.positions.neighbours import find_neighbours
from socialx.model.pooling import Geometry, Social
from socialx.scoring.adaptation import Past, latest_free_flow
from socialx.scoring.protocol import ScoringProtocol
from socialx.settings.conflicts import idle_settings, refuse_conflicts
from socialx.settings.kinds import POOLINGS, CustomModel, find_model
from socialx.settings.schema import HEADS, LAYERS, ModelSettings, Settings


@dataclass(frozen=True)
class Experiment:
    """The start of training or scoring; ``model`` has fresh weights, drawn from ``trainer.seed``.

    past: the file before each forecast, for an opened zero-shot run; None for others.
    """

    settings: Settings
    precision: Precision
    data: Dataset
    model: nn.Module
    protocol: ScoringProtocol
    past: Past | None = None


def build(
    settings: Settings,
    data: Dataset | None = None,
    *,
    split: bool = True,
    moments: Mapping[str, MeanStd] | None = None,
    sensors: tuple[str, ...] | None = None,
    finer: int = 1,
    holidays: str | None = None,
    units: Mapping[str, str] | None = None,
) -> Experiment:
    """Open the data, unless ``data`` is given, and build the model for the data.

    split: whether to cut the file into train, validation and test.  moments: the scaler of a trained run, in place of a
    scaler for this file.  sensors: the ids that the file must have, in model order.  finer: model steps per file step.
    holidays: the holiday list, where the path differs from the settings.  units: see ``open_dataset``.

    Raises SettingsError for settings that conflict, and SocialxError for an unsuitable file.
    """
    refuse_conflicts(settings, finer)
    precision = _prepare_device(settings)
    device = precision.device
    train_climatology_days = choose_climatology_days(settings)
    if data is None:
        if settings.data.path is None:
            remedy = f"add {Argument('data.path', 'FILE.h5')}, which {Command('convert', 'auto', 'FILE')} makes"
            raise SettingsError("data.none", "", "a data file is needed", remedy)
        data = open_dataset(
            settings.data.path,
            targets=settings.data.targets,
            inputs=settings.data.inputs,
            lookback=settings.data.lookback,
            horizon=settings.data.horizon,
            device=device,
            split_method=settings.data.split_method if split else None,
            days=settings.data.days if split else None,
            moments=moments,
            sensors=sensors,
            loading=make_loading(settings),
            train_climatology_days=train_climatology_days,
            holidays=load_holidays(holidays or settings.data.holidays) if settings.data.holidays else None,
            units=units,
        )
    elif train_climatology_days and not data.train_climatology_days:  # the model was built without a climatology
        data = replace(data, train_climatology_days=train_climatology_days)
    roads = None if "pooling.distances" in idle_settings(settings) else settings.pooling.distances
    graph = (settings.pooling.neighbours, settings.pooling.max_distance_km, roads, settings.pooling.require_locations)
    network = replace(data.network, find_neighbours=partial(find_neighbours, data.store, *graph))
    longer = {name: finer * getattr(network, name) for name in ("lookback", "horizon", "slots")}
    network = replace(network, **longer)
    kind, pooling = find_model(settings.model.kind), POOLINGS[settings.pooling.kind]
    torch.manual_seed(settings.trainer.seed)
    model_class = kind.load()
    reads = kind.arguments(model_class, [name for name in ModelSettings.model_fields if name != "kind"])
    arguments: dict[str, Any] = {name: getattr(settings.model, name) for name in reads}
    if kind.social:
        arguments["heads"] = HEADS
    if kind.social and pooling.path is not None:
        social = settings.pooling
        geometry = partial(
            Geometry,
            HEADS,
            self_neighbours(network.sensors) if social.kind == "self_only" else network.neighbours,
            gate_radius_km=social.gate_radius_km,
            learnable=social.learnable_radius,
            positional=social.use_positional and "pooling.use_positional" not in pooling.ignores,
            mask_mode=social.mask_mode,
            adaptive_adjacency_rank=0
            if "pooling.adaptive_adjacency_rank" in idle_settings(settings)
            else social.adaptive_adjacency_rank,
        )
        arguments["social"] = Social(pooling.load(), geometry, LAYERS)
    try:
        model = model_class(network, **arguments)
    except ValueError as error:  # a combination of sizes that cannot be built
        sizes = (Argument(f"model.{name}") for name in ("width", "blocks", "slstm_at"))
        raise SettingsError(
            "model.sizes", "", f"the model cannot be built: {error}", f"change {', '.join(map(str, sizes))}"
        ) from None
    if isinstance(kind, CustomModel):
        model.register_forward_hook(partial(_check_shape, kind.name, network))
    checksum = data.checksum  # reads the whole file
    free_flow = latest_free_flow(data)[1].tolist()
    protocol = ScoringProtocol.from_data(data, checksum, free_flow, precision.name, settings.trainer.seed, roads)
    return Experiment(settings, precision, data, model, protocol)


def _prepare_device(settings: Settings) -> Precision:
    """Set up the device, and return the precision."""
    device = resolve_device(settings.trainer.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision(settings.trainer.float32_matmul_precision)
        # Weight gradients sum over all tokens in parts, which torch would otherwise add up in 16 bits.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.cuda.set_device(device)
    elif settings.trainer.threads is not None:
        torch.set_num_threads(settings.trainer.threads)
    if device.type == "cpu":
        keep_freed_memory(not settings.model.activation_checkpointing)
    return resolve_precision(settings.trainer.precision, device)


def choose_climatology_days(settings: Settings) -> PastDays | None:
    """Return the days behind the climatology in training, None for a model without one."""
    if not (find_model(settings.model.kind).social and settings.model.climatology):
        return None
    return ZERO_SHOT_DAYS if settings.model.zero_shot else ALL_DAYS


def _check_shape(name: str, network: DataSpec, model: nn.Module, inputs: tuple[Batch], forecast: Tensor) -> None:
    """Raise SocialxError unless a user's model returns a forecast [B,P,N,G], because other shapes might broadcast."""
    if torch.compiler.is_exporting():  # the graph would hold for this number of windows only
        return
    wanted = (len(inputs[0].inputs), network.horizon, network.sensors, len(network.targets))
    if not isinstance(forecast, Tensor) or forecast.shape != wanted:
        returned = tuple(forecast.shape) if isinstance(forecast, Tensor) else type(forecast).__name__
        remedy = "return windows x horizon x sensors x targets"
        raise SocialxError("model.shape", "", f"the forward of {name} returns {returned}, not {wanted}", remedy)


def make_loading(settings: Settings) -> Loading:
    """Return the loader settings as plain numbers."""
    return Loading(
        mode=settings.loader.mode,
        shard_bytes=None if settings.loader.shard_gb is None else int(settings.loader.shard_gb * (1 << 30)),
        workers=settings.loader.num_workers,
        prefetch=settings.loader.prefetch_factor,
        pin_memory=settings.loader.pin_memory,
    )
