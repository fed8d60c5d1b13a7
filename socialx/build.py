"""Settings -> Problem: the one place where settings become objects.

Rooms below it see no settings; rooms above it build no models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from socialx.batch import Batch
from socialx.data.geo import itself
from socialx.data.loaders import Loading
from socialx.data.network import Network
from socialx.data.normaliser import Moments
from socialx.dataset import Dataset, open_dataset
from socialx.environment import keep_freed_memory
from socialx.errors import Argument, Command, SettingsError, SocialxError
from socialx.files.neighbours import neighbours_of
from socialx.kinds import POOLINGS, OwnModel, model_of
from socialx.model.pooling import Social
from socialx.precision import Precision, resolve_device, resolve_precision
from socialx.scoring.protocol import ScoringProtocol
from socialx.settings import Model, Settings


@dataclass(frozen=True)
class Problem:
    """Everything that training or scoring starts from; ``model`` has fresh weights, drawn from ``trainer.seed``."""

    settings: Settings
    precision: Precision
    data: Dataset
    model: nn.Module
    protocol: ScoringProtocol


def build(
    s: Settings,
    data: Dataset | None = None,
    *,
    split: bool = True,
    moments: Mapping[str, Moments] | None = None,
    sensors: tuple[str, ...] | None = None,
    usual: tuple[tuple[str, ...], np.ndarray] | None = None,
) -> Problem:
    """Open the data, unless it is given, and build the model for it.

    split: whether the file is cut into train, validation and test.  moments: of a trained run, in place of those of
    this file.  sensors: the ids that the file must have, in the order of the model.  usual: sensors and climatology of
    a trained run; a file of other sensors has a climatology of its own.  Raises SettingsError where settings do not fit
    together and SocialxError where the file does not fit them.
    """
    s.refuse_conflicts()
    device = resolve_device(s.trainer.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision(s.trainer.float32_matmul_precision)
        # The gradient of a weight sums over all tokens in parts; torch would add those parts up in 16 bits.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.cuda.set_device(device)
    elif s.trainer.threads is not None:
        torch.set_num_threads(s.trainer.threads)
    if device.type == "cpu":
        keep_freed_memory(not s.model.checkpointing)
    precision = resolve_precision(s.trainer.precision, device)
    if data is None:
        if s.data.path is None:
            helps = (Argument("data.path", "FILE.h5"), ", which ", Command("convert", "auto", "FILE"), " makes")
            raise SettingsError("data.path", "no data file", helps)
        data = open_dataset(
            s.data.path,
            targets=s.data.targets,
            inputs=s.data.inputs,
            history=s.data.history,
            horizon=s.data.horizon,
            device=device,
            split=s.data.split if split else None,
            days=s.data.days if split else None,
            moments=moments,
            sensors=sensors,
            loading=loading_of(s),
        )
    network, kind, pooling = data.network, model_of(s.model.kind), POOLINGS[s.pooling.kind]
    if kind.social and s.model.climatology:
        network = replace(network, usual=data.climatology(usual))
    roads = None if "pooling.distances" in s.unread() else s.pooling.distances
    torch.manual_seed(s.trainer.seed)
    made = kind.load()
    reads = kind.arguments(made, [name for name in Model.model_fields if name != "kind"])
    arguments: dict[str, Any] = {name: getattr(s.model, name) for name in reads}
    if kind.social and pooling.path is not None:
        p = s.pooling
        own = p.kind == "own"
        arguments["social"] = Social(
            pooling.load(),
            itself(network.sensors) if own else neighbours_of(data.store, p.neighbours, p.reach_km, roads, p.strict),
            layers=p.layers,
            heads=p.heads,
            radius_km=p.radius_km,
            learnable=p.learnable_radius,
            positional=p.use_positional and "pooling.use_positional" not in pooling.ignores,
            mask_mode=p.mask_mode,
            pair_rank=0 if "pooling.pair_rank" in pooling.ignores else p.pair_rank,
            interleaved=p.placement == "interleaved",
        )
    try:
        model = made(network, **arguments)
    except ValueError as error:  # a combination of sizes that cannot be built
        sizes = (Argument("model.width"), Argument("model.blocks"), Argument("model.slstm_at"), Argument("model.heads"))
        listed = tuple(part for argument in sizes for part in (", ", argument))[1:]
        raise SettingsError("model", error, ("see ", *listed)) from None
    if isinstance(kind, OwnModel):
        model.register_forward_hook(partial(_check_shape, kind.name, network))
    return Problem(s, precision, data, model, ScoringProtocol.of(data, precision.name, s.trainer.seed, roads))


def _check_shape(name: str, network: Network, model: nn.Module, inputs: tuple[Batch], forecast: Tensor) -> None:
    """Refuse what a model of the user's own returns where it is no forecast [B,P,N,G]: it might be broadcast."""
    wanted = (len(inputs[0].history), network.horizon, network.sensors, len(network.targets))
    if not isinstance(forecast, Tensor) or forecast.shape != wanted:
        found = tuple(forecast.shape) if isinstance(forecast, Tensor) else type(forecast).__name__
        helps = "return windows x horizon x sensors x targets"
        raise SocialxError(f"model.kind {name}", f"its forward returns {found}, not {wanted}", helps)


def loading_of(s: Settings) -> Loading:
    """How windows become batches, as plain numbers."""
    return Loading(
        mode=s.loader.mode,
        chunk_bytes=None if s.loader.chunk_gb is None else int(s.loader.chunk_gb * (1 << 30)),
        workers=s.loader.num_workers,
        prefetch=s.loader.prefetch_factor,
        pin_memory=s.loader.pin_memory,
        persistent=s.loader.persistent_workers,
        timeout_s=s.loader.timeout,
    )
