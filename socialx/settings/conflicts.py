"""What settings mean together: which have no effect on the chosen model, and which exclude each other.

torch is not imported, so that ``--help`` stays quick.
"""

from __future__ import annotations

from collections.abc import Iterator

from socialx.core.errors import Argument, SettingsError, counted
from socialx.settings.kinds import ENCODERS, NEIGHBOURS, POOLINGS, CustomModel, find_model
from socialx.settings.schema import HEADS, ModelSettings, PoolingSettings, Settings

PER_SENSOR = ("model.sensor_embedding", "model.per_sensor_output", "pooling.adaptive_adjacency_rank")  # weights of each


def ineffective_settings(settings: Settings) -> set[str]:
    """Keys of the sections model and pooling that have no effect on the chosen model.

    The class of a model of the user's own is imported, and its signature names the settings that it takes.  Which of
    its neighbours it uses only its code says.
    """
    model = {f"model.{name}" for name in ModelSettings.model_fields}
    pooling = {f"pooling.{name}" for name in PoolingSettings.model_fields}
    kind = find_model(settings.model.kind)
    if isinstance(kind, CustomModel):
        fields = [name for name in ModelSettings.model_fields if name != "kind"]
        taken = kind.arguments(kind.load(), fields)
        return {f"model.{name}" for name in fields if name not in taken} | (pooling - set(NEIGHBOURS))
    if not kind.social:
        return (model | pooling) - {f"model.{name}" for name in ("kind", *(kind.reads or ()))}
    pools = POOLINGS[settings.pooling.kind]
    ineffective = {*ENCODERS[settings.model.encoder].ignores, *pools.ignores}
    if settings.model.zero_shot:
        ineffective |= set(PER_SENSOR)
    if pools.path is None:
        ineffective |= pooling - {"pooling.kind"}
    if settings.pooling.mask_mode == "hard":
        ineffective |= {"pooling.learnable_radius"}
    return ineffective


def sensor_tables(settings: Settings) -> bool:
    """Whether the chosen model has weights of its own per sensor, so that it fits one network only."""
    tables = find_model(settings.model.kind).sensor_tables
    if isinstance(tables, bool):
        return tables
    if settings.model.zero_shot:
        return False
    pairs = (
        settings.pooling.adaptive_adjacency_rank > 0
        and "pooling.adaptive_adjacency_rank" not in ineffective_settings(settings)
    )
    return pairs or any(getattr(settings.model, name) for name in tables)


def takes_new_sensors(settings: Settings) -> bool:
    """Whether the model has weights per sensor and learnt to do without them."""
    return settings.model.sensor_dropout > 0 and find_model(settings.model.kind).social and sensor_tables(settings)


def refuse_conflicts(settings: Settings, finer: int = 1) -> None:
    """Raise SettingsError for settings that exclude each other; finer: steps of the model in one of the file."""
    for where, ineffective, remedy in _conflicts(settings, finer):
        raise SettingsError(where, ineffective, remedy)


def _conflicts(settings: Settings, finer: int) -> Iterator[tuple[object, str, str]]:
    """Where settings exclude each other, what is found there, and the remedy."""
    model, pooling, lookback = settings.model, settings.pooling, finer * settings.data.lookback
    also, social = Argument("data.extra_data"), find_model(model.kind).social
    pools = social and POOLINGS[pooling.kind].path is not None
    if settings.data.extra_data and not model.zero_shot:
        ineffective = "a model with weights of single sensors learns from one network"
        yield also, ineffective, f"add {Argument('model.zero_shot', True)}"
    if settings.data.extra_data and settings.trainer.teacher:
        yield Argument("trainer.teacher"), "its forecasts are of one network", f"leave it or {also} out"
    if social and lookback % model.patch:
        fit = [steps for steps in range(1, lookback + 1) if lookback % steps == 0]
        below = max(steps for steps in fit if steps < model.patch)
        listed = ", ".join(map(str, fit[:-1])) + f" or {lookback}" if lookback > 1 else "1"
        patch = f"model.patch {model.patch} does not divide the {counted(lookback, 'step')} of the history"
        yield patch, listed, f"{Argument('model.patch', below)}, or another {Argument('data.lookback')}"
    if pools and model.width % HEADS:
        ineffective = f"not a multiple of the {HEADS} heads of a social layer"
        yield (
            f"model.width {model.width}",
            ineffective,
            str(Argument("model.width", model.width + -model.width % HEADS)),
        )
