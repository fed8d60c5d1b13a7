"""Settings -> Experiment: hands sections to data and model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from socialx.core.batch import Batch
from socialx.core.environment import keep_freed_memory
from socialx.core.errors import SocialxError, in_short
from socialx.core.precision import Precision, is_out_of_memory, resolve_device, resolve_precision
from socialx.data.climatology import ALL_DAYS, ZERO_SHOT_DAYS, PastDays
from socialx.data.scaler import DataSpec
from socialx.dataset import FRESH, Dataset, Fit, read_dataset
from socialx.files.sources.holidays import load_holidays
from socialx.files.sources.positions.neighbours import find_neighbours
from socialx.model.export_model import ExportModel, FileFacts
from socialx.model.plain import PlainModule
from socialx.scoring.adaptation import Past, latest_free_flow
from socialx.scoring.protocol import ScoringProtocol
from socialx.settings.conflicts import pooling_in_effect, refuse_conflicts
from socialx.settings.kinds import PAGE, CustomModel, find_model
from socialx.settings.schema import Settings


@dataclass(frozen=True)
class Experiment:
    """The start of training or scoring; ``model`` has fresh weights, drawn from ``trainer.seed``.

    random: state of torch's generator after these draws, from which training goes on.
    past: the file before each forecast, for an opened zero-shot run; None for others.
    """

    settings: Settings
    precision: Precision
    data: Dataset
    model: nn.Module
    protocol: ScoringProtocol
    random: Tensor
    past: Past | None = None


def build(settings: Settings, data: Dataset | None = None, *, split: bool = True, fit: Fit = FRESH) -> Experiment:
    """Open the data, unless ``data`` is given, and build the model for the data.

    split: whether to cut the file into train, validation and test.  fit: what a trained run fixes.

    Raises SettingsError for settings that conflict, and SocialxError for an unsuitable file.
    """
    refuse_conflicts(settings, fit.finer)
    precision = _prepare_device(settings)
    days = choose_climatology_days(settings)
    if data is None:
        section = settings.data if split else settings.data.model_copy(update={"days": None})
        data = read_dataset(section, settings.loader if split else None, precision.device, days, fit)
        if section.holidays:
            holidays = load_holidays(fit.holidays or section.holidays)
            data = replace(data, calendar=replace(data.calendar, holidays=holidays))
    elif days and not data.train_climatology_days:  # the model was built without a climatology
        data = replace(data, train_climatology_days=days)
    pooling = pooling_in_effect(settings)
    graph = pooling.neighbours, pooling.max_distance_km, pooling.distances, pooling.require_locations
    network = replace(data.network, find_neighbours=partial(find_neighbours, data.store, *graph))
    longer = {name: fit.finer * getattr(network, name) for name in ("lookback", "horizon", "slots")}
    network = replace(network, **longer)
    with torch.random.fork_rng(devices=[]):  # a notebook goes on with its own numbers
        torch.manual_seed(settings.trainer.seed)
        kind = find_model(settings.model.kind)
        model: nn.Module = kind.build(network, settings.model, pooling)
        if isinstance(kind, CustomModel):
            model = _try_model(kind, network, model, precision.device)
        random = torch.get_rng_state()
    checksum = data.checksum  # reads the whole file
    free_flow = latest_free_flow(data)[1].tolist()
    seed = settings.trainer.seed
    protocol = ScoringProtocol.from_data(data, checksum, free_flow, precision.name, seed, pooling.distances)
    return Experiment(settings, precision, data, model, protocol, random)


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


def _try_model(kind: CustomModel, network: DataSpec, user: nn.Module, device: torch.device) -> nn.Module:
    """Return a user's model as a model of batches on the device, tried on two windows of zeros.

    Raises SocialxError for a forward that fails or returns another shape, and for a model without weights.
    """
    if not any(weight.requires_grad for weight in user.parameters()):
        raise SocialxError("model.no-weights", "", f"{kind.name} has no weights to train", f"see {PAGE}")
    user.register_forward_hook(partial(_check_shape, kind.name, network))
    model = user if kind.reads_batch(user) else PlainModule(network, user)
    was_training, sizes = model.training, (2, network.lookback, network.sensors, len(network.inputs))
    facts = FileFacts(1440 // network.slots, [None] * len(network.inputs), [False] * len(network.targets), {}, [])
    tried = ExportModel(model, network, facts).to(device).eval()
    try:
        with torch.no_grad():
            tried(*(tensor.to(device) for tensor in tried.example()))
    except SocialxError:
        raise
    except Exception as error:  # whatever the code of a user raises
        if is_out_of_memory(error):
            raise
        reads = "a Batch" if model is user else f"x of shape {sizes}"
        problem = f"the forward of {kind.name} fails on {reads} ({type(error).__name__}: {in_short(error)})"
        raise SocialxError("model.forward", "", problem, f"see {PAGE}") from error
    return model.train(was_training)


def _check_shape(
    name: str, network: DataSpec, user: nn.Module, inputs: tuple[Batch | Tensor], forecast: Tensor
) -> None:
    """Raise SocialxError unless a user's model returns a forecast [B,P,N,G], because other shapes might broadcast."""
    if torch.compiler.is_exporting():  # the graph would hold for this number of windows only
        return
    (read,) = inputs
    windows, plain = (len(read.inputs), False) if isinstance(read, Batch) else (len(read), True)
    wanted = (windows, network.horizon, network.sensors, len(network.targets))
    shapes = (wanted, wanted[:-1]) if plain and len(network.targets) == 1 else (wanted,)
    if not isinstance(forecast, Tensor) or forecast.shape not in shapes:
        returned = tuple(forecast.shape) if isinstance(forecast, Tensor) else type(forecast).__name__
        problem = f"the forward of {name} returns {returned}, not {shapes[-1]}"
        sizes = " x ".join(("windows", "horizon", "sensors", "targets")[: len(shapes[-1])])
        raise SocialxError("model.shape", "", problem, f"return {sizes} ({PAGE})")
