"""The one settings tree that all commands share: data, loader, model, pooling, trainer, profile, download.

Sections are frozen and refuse unknown keys.  Everything about a setting stands on the setting: its default, its help
text, which commands show it, and when it may differ from what a run was trained with.  Settings that exist in Lightning
keep Lightning's names.  Only ``layers``, ``build``, ``tasks`` and ``cli`` see this tree; everything below takes plain
arguments.  The defaults are the recipe ``--size medium``.  torch is not imported here, so that ``--help`` stays quick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from socialx.kinds import ENCODERS, MODELS, OWN, POOLINGS, Kind
from socialx.notebook import names_in

TRAIN, STEP = ("train",), ("train", "profile")  # STEP: what a training step depends on
SCORE = ("evaluate", "explain", "calibrate", "report", "predict")
USE = (*SCORE, "export")  # what a run is used for
RESUME, SCORING = "resume", "scoring"  # when a setting may differ from the run's own


@dataclass(frozen=True)
class Facts:
    """What else is known of a setting.

    flag: its flag without dashes, where that is not made of its name.  commands: those that show it.  may_change: with
    which purposes (resume, scoring) it may differ from what the run was trained with.  scored: it decides which windows
    are scored.  weights: those that were trained with one value fit no other.  choices: the words that it takes.
    basic: ``--help`` shows it, not only ``--help-all``.
    """

    flag: str | None = None
    commands: tuple[str, ...] = ()
    may_change: tuple[str, ...] = ()
    scored: bool = False
    weights: bool = False
    choices: tuple[str, ...] = ()
    basic: bool = False


def setting(default: Any, description: str, facts: Facts | None = None, **limits: Any) -> Any:
    """A field of a section with its help text, its facts, and pydantic's limits."""
    extra: Any = {"facts": facts or Facts()}
    return Field(default, description=description, json_schema_extra=extra, **limits)


def facts(field: FieldInfo) -> Facts:
    """The facts of a field."""
    extra: Any = field.json_schema_extra
    return extra["facts"]


def _split_commas(value: Any) -> Any:
    """``"1,3"`` as typed on a command line or in the environment -> ``["1", "3"]``; the empty text is no item."""
    return names_in(value) if isinstance(value, str) else value


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    """Two scores of one feature would have one name."""
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise ValueError(f"{twice[0]} is named twice")
    return names


def _known(kinds: Collection[str], own: bool = False) -> AfterValidator:
    """One of these kinds, in pydantic's own words for a choice; ``own``: or the name of a class of the user's."""

    def check(name: str) -> str:
        if name not in kinds and not (own and OWN.fullmatch(name)):
            *first, last = (*(repr(kind) for kind in kinds), *(["package.module:Class"] if own else []))
            raise ValueError(f"Input should be {', '.join(first)} or {last}")
        return name

    return AfterValidator(check)


def _kinds(table: Mapping[str, Kind]) -> str:
    return "; ".join(f"{kind.name}: {kind.what}" for kind in table.values())


Positions = Annotated[tuple[int, ...], BeforeValidator(_split_commas)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split_commas), AfterValidator(_each_once)]


MOST_STEPS = 288  # that a model reads or forecasts: a day of five minutes
SLSTM_AT = (1, 3)  # as far as there are blocks


class Section(BaseModel):
    """Frozen; a key that is no setting is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


_BASIC_WINDOWS = Facts(commands=(*STEP, "evaluate", "explain"), scored=True, basic=True)
_WINDOWS = Facts(commands=(*STEP, "evaluate", "explain"), scored=True)
_STEP, _BASIC_STEP = Facts(commands=STEP), Facts(commands=STEP, basic=True)
_FITTING, _WEIGHTS, _BASIC_WEIGHTS = (replace(each, weights=True) for each in (_WINDOWS, _STEP, _BASIC_STEP))
_TRAIN, _BASIC_TRAIN = Facts(commands=TRAIN), Facts(commands=TRAIN, basic=True)


class DataSettings(Section):
    """Which file, and how it is cut into windows."""

    path: Path | None = setting(
        None,
        "HDF5 file that convert wrote",
        Facts(
            flag="data",
            commands=(*STEP, *USE, "serve", "doctor"),
            may_change=(RESUME, SCORING),
            scored=True,
            basic=True,
        ),
    )
    also: Annotated[tuple[Path, ...], BeforeValidator(_split_commas)] = setting(
        (),
        "files of other networks that a model for any network learns from too, in turn",
        Facts(commands=TRAIN, may_change=(RESUME, SCORING)),
    )
    targets: Names = setting(("avg_speed",), "features of the file to forecast", _FITTING, min_length=1)
    inputs: Names | None = setting(None, "features that the model reads; not set: the targets", _FITTING, min_length=1)
    days: int | None = setting(None, "use only the first days of the file; not set: all of it", _BASIC_WINDOWS, ge=1)
    history: int = setting(12, "time steps that the model reads", _FITTING, ge=1, le=MOST_STEPS)
    horizon: int = setting(12, "time steps that the model forecasts", _FITTING, ge=1, le=MOST_STEPS)
    holidays: str | None = setting(
        None,
        "days with the traffic of another weekday: public holidays of a country or region, such as US-CA, which "
        "resemble Sundays; or a CSV file of dates and weekdays. Not set: none",
        Facts(commands=(*STEP, *USE, "serve"), may_change=(SCORING,)),
    )
    split: Literal["canonical", "strict"] = setting(
        "canonical",
        "canonical: cut windows, then split them 70/10/20 as the papers do; strict: split the rows first, so that no "
        "window crosses a border",
        _WINDOWS,
    )


_LOADING = Facts(commands=STEP, may_change=(RESUME, SCORING))


class LoaderSettings(Section):
    """How windows become batches."""

    batch_size: int = setting(
        16,
        "windows per batch, each of all sensors",
        Facts(commands=(*STEP, *SCORE, "serve"), may_change=(SCORING,), basic=True),
        ge=1,
    )
    shuffle: bool = setting(True, "draw a new order of the training windows in every epoch", _STEP)
    mode: Literal["auto", "resident", "chunk", "workers"] = setting(
        "auto",
        "resident: the whole series on the device; chunk: a part of it there, the next one read meanwhile; workers: "
        "processes make batches; auto: resident where the series fits into half of the free memory, else chunk",
        Facts(commands=(*STEP, *SCORE), may_change=(RESUME, SCORING)),
    )
    chunk_gb: float | None = setting(
        None,
        "GiB of a chunk, up to three of which are on the device; at least 1,020 windows. The shuffled order is made of "
        "chunks, in every mode. Not set: an eighth of the free memory, on a CPU at most 0.125; resident: no chunks",
        Facts(commands=(*STEP, *SCORE), may_change=(SCORING,)),
        gt=0,
    )
    num_workers: int | None = setting(
        None, "processes of mode workers; not set: one less than there are CPUs, at most 8", _LOADING, ge=0, le=256
    )
    prefetch_factor: int = setting(2, "batches that each worker makes ahead", _LOADING, ge=1)
    pin_memory: bool = setting(True, "workers hand CUDA devices batches in pinned memory", _LOADING)
    persistent_workers: bool = setting(True, "keep workers between epochs", _LOADING)
    timeout: int = setting(120, "seconds to wait for a batch of a worker; 0: for ever", _LOADING, ge=0)


class ModelSettings(Section):
    """The shared xLSTM encoder and what its tokens carry; or a plain model to compare it with."""

    @model_validator(mode="before")
    @classmethod
    def _slstm_within_the_blocks(cls, values: Any) -> Any:
        """Another number of blocks needs no second setting."""
        if not isinstance(values, dict) or "slstm_at" in values or not str(values.get("blocks", "")).isdecimal():
            return values
        return {**values, "slstm_at": tuple(place for place in SLSTM_AT if place < int(values["blocks"]))}

    kind: Annotated[str, _known(MODELS, own=True)] = setting(
        "xlstm",
        f"{_kinds(MODELS)}. Only the first uses neighbours. package.module:Class: a class of your own, which every "
        "command that uses its run must name",
        Facts(flag="model", commands=(*STEP, *USE, "serve", "doctor"), weights=True, choices=tuple(MODELS)),
    )
    encoder: Annotated[str, _known(ENCODERS)] = setting(
        "xlstm", _kinds(ENCODERS), Facts(commands=STEP, weights=True, choices=tuple(ENCODERS), basic=True)
    )
    patch: int = setting(
        6, "steps of the history in one token, a divisor of the history", _WEIGHTS, ge=1, le=MOST_STEPS
    )
    width: int = setting(64, "embedding width E, a multiple of heads", _BASIC_WEIGHTS, ge=8, le=2048)
    mlp_width: int = setting(76, "units of the hidden layer of encoder mlp", _WEIGHTS, ge=1, le=65536)
    blocks: int = setting(2, "xLSTM blocks in the stack", _BASIC_WEIGHTS, ge=1, le=64)
    slstm_at: Positions = setting(
        (1,), "which blocks are sLSTM, from 0; the others are mLSTM. Not set: 1 and 3, as far as there are", _WEIGHTS
    )
    heads: int = setting(4, "heads of every xLSTM block", _WEIGHTS, ge=1)
    dropout: float = setting(0.0, "dropout of the encoder and of the social layers", _STEP, ge=0, lt=1)
    impl: Literal["auto", "reference", "fused", "triton"] = setting(
        "auto",
        "implementation of the encoder; all compute the same function. auto: triton on CUDA where it can run, else "
        "fused; reference: the forward pass of the xlstm package",
        Facts(commands=(*STEP, "doctor"), may_change=(RESUME, SCORING)),
    )
    chunk: int | None = setting(
        None,
        "sequences that the encoder processes at once. Not set: 384 times the patch on a CPU, all on CUDA. On CUDA a "
        "smaller number saves memory and costs one extra forward pass",
        Facts(commands=(*STEP, *SCORE), may_change=(RESUME, SCORING)),
        ge=1,
    )
    checkpointing: bool = setting(
        False,
        "keep only the inputs of blocks and social layers for the backward pass, which then runs each a second time",
        Facts(commands=STEP, may_change=(RESUME, SCORING)),
    )
    time_of_day: bool = setting(True, "learn a vector per slot of the day", _WEIGHTS)
    day_of_week: bool = setting(True, "learn a vector per weekday", _WEIGHTS)
    sensor_identity: bool = setting(
        True, "learn a vector per sensor; turn it off to forecast a network that is unseen in training", _STEP
    )
    adaptive: bool = setting(
        True, "learn a vector per sensor and token; turn it off to forecast an unseen network", _STEP
    )
    sensor_heads: bool = setting(False, "learn a last layer per sensor on top of the shared one", _STEP)
    sensor_dropout: float = setting(
        0.0,
        "leave out what was learnt of single sensors for this share of them in each step; with 0.2 the run also "
        "forecasts sensors that are new to it",
        _STEP,
        ge=0,
        lt=1,
    )
    any_network: bool = setting(
        False,
        "forecast networks that training does not see: no weights per sensor or time, few days known as often as many",
        _BASIC_STEP,
    )
    climatology: bool = setting(
        True,
        "read what is usual for each sensor at each time of the week, from the days before the day of issue",
        _WEIGHTS,
    )


class PoolingSettings(Section):
    """How a sensor uses its neighbours."""

    kind: Annotated[str, _known(POOLINGS)] = setting(
        "attention", _kinds(POOLINGS), Facts(flag="pooling", commands=STEP, weights=True, choices=tuple(POOLINGS))
    )
    layers: int = setting(2, "social layers, one after the other", _WEIGHTS, ge=1, le=16)
    placement: Literal["stacked", "interleaved"] = setting(
        "stacked",
        "stacked: all layers after the encoder, on the last token; interleaved: after blocks of the encoder, on "
        "every token",
        _WEIGHTS,
    )
    heads: int = setting(4, "heads of every social layer; the width is a multiple of it", _WEIGHTS, ge=1)
    neighbours: int | None = setting(
        64, "use the K nearest sensors; an empty value: all within reach", _BASIC_STEP, ge=1
    )
    reach_km: float | None = setting(None, "use no sensor that is farther away; not set: no limit", _STEP, gt=0)
    distances: Path | None = setting(
        None,
        "CSV of from,to,cost with road distances in metres, or a square matrix of them, in place of straight distances",
        Facts(commands=(*STEP, *USE), may_change=(RESUME, SCORING)),
    )
    radius_km: float = setting(5.0, "distance at which the attention gate starts at one half", _WEIGHTS, gt=0, le=1000)
    learnable_radius: bool = setting(True, "train the radius and its softness", _STEP)
    mask_mode: Literal["soft", "hard"] = setting(
        "soft", "soft: weights fall around the radius; hard: no weight beyond it, and no training of it", _STEP
    )
    use_positional: bool = setting(True, "let the weights depend on the offset (east, north) too", _WEIGHTS)
    pair_rank: int = setting(
        10,
        "rank of a trained bias of every directed pair of sensors, which ties the model to its network; 0: none",
        _STEP,
        ge=0,
        le=256,
    )
    strict: bool = setting(
        True,
        "refuse a file in which sensors have no position; off: those sensors use no neighbours, with a warning",
        Facts(commands=(*STEP, *USE), may_change=(SCORING,)),
    )


def _on_or_off(value: Any) -> Any:
    """YAML reads a bare ``on`` or ``off`` as True or False."""
    return ("off", "on")[value] if isinstance(value, bool) else value


def _as_text(value: Any) -> Any:
    """A run in Python is its folder, or what ``train`` returned."""
    return None if value is None else str(value)


class TrainerSettings(Section):
    """The optimisation and the machine it runs on."""

    precision: Literal["auto", "32-true", "16-mixed", "bf16-mixed"] = setting(
        "auto",
        "auto: for training bf16-mixed on CUDA and 32-true on a CPU, for scores and forecasts 32-true",
        Facts(commands=(*STEP, *SCORE, "serve", "doctor"), may_change=(SCORING,), basic=True),
    )
    device: str = setting(
        "auto",
        "auto, cpu, cuda, or one card such as cuda:1",
        Facts(commands=(*STEP, *SCORE, "serve", "doctor"), may_change=(RESUME, SCORING), basic=True),
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
    )
    threads: int | None = setting(
        None,
        "threads of tensor operations on a CPU; not set: $OMP_NUM_THREADS, or as many as there are cores",
        Facts(commands=(*STEP, *SCORE, "serve"), may_change=(RESUME, SCORING)),
        ge=1,
        le=1024,
    )
    float32_matmul_precision: Literal["highest", "high", "medium"] = setting(
        "high",
        "float32 matrix products on CUDA; high is TF32; scores and forecasts use highest",
        Facts(commands=(*STEP, *SCORE), may_change=(SCORING,)),
    )
    compile: Annotated[
        Literal["off", "default", "max-autotune"],
        BeforeValidator(_on_or_off),
    ] = setting(
        "off",
        "torch.compile of the training step; where that fails, a warning says why and training goes on",
        Facts(commands=STEP, may_change=(RESUME,)),
    )
    cuda_graph: Annotated[
        Literal["auto", "on", "off"],
        BeforeValidator(_on_or_off),
    ] = setting(
        "auto",
        "record the training step as a CUDA graph and replay it; auto: on one card, for a model of socialx",
        Facts(commands=STEP, may_change=(RESUME,)),
    )
    max_epochs: int = setting(
        5,
        "epochs after which the schedule ends; early stopping may end before",
        Facts(commands=TRAIN, may_change=(RESUME,), basic=True),
        ge=1,
    )
    learning_rate: float = setting(2e-3, "peak learning rate of AdamW", _BASIC_TRAIN, gt=0)
    weight_decay: float = setting(0.1, "weight decay of AdamW", _TRAIN, ge=0)
    schedule: Literal["cosine", "constant"] = setting("cosine", "learning rate after the warm-up", _TRAIN)
    lr_warmup_steps: int = setting(100, "optimizer steps of linear warm-up", _TRAIN, ge=0)
    gradient_clip_val: float = setting(5.0, "largest gradient norm; 0: no clipping", _STEP, ge=0)
    accumulate_grad_batches: int = setting(1, "batches per optimizer step", _STEP, ge=1)
    patience: int = setting(
        10,
        "epochs without a better validation MAE before training stops",
        Facts(commands=TRAIN, may_change=(RESUME,)),
        ge=1,
    )
    seed: int = setting(0, "seed of weights, order and dropout", _BASIC_STEP, ge=0, lt=2**32)
    log_every_n_steps: int = setting(
        50,
        "steps between two readings of the loss; each reading waits for the device",
        Facts(commands=STEP, may_change=(RESUME,)),
        ge=1,
    )
    keep_checkpoints: int = setting(
        1,
        "states of the last epochs that stay in the run folder; more than 1: also as epoch-N.pt, to resume from",
        Facts(commands=TRAIN, may_change=(RESUME,)),
        ge=1,
    )
    loggers: Annotated[tuple[Literal["tensorboard", "wandb", "mlflow"], ...], BeforeValidator(_split_commas)] = setting(
        (),
        "send epochs to tensorboard, wandb or mlflow, beside metrics.jsonl and metrics.csv",
        Facts(commands=TRAIN, may_change=(RESUME,)),
    )
    from_run: Annotated[str | None, BeforeValidator(_as_text)] = setting(
        None,
        "run whose weights, model settings and units this training starts from; not set: fresh weights",
        Facts(flag="from", commands=TRAIN, basic=True),
    )
    teacher: Names = setting(
        (),
        "runs on the same data whose mean forecast the model learns to repeat, beside the target",
        Facts(commands=TRAIN, may_change=(RESUME,)),
    )
    teacher_weight: float = setting(0.5, "share of the loss that compares with the teachers", _TRAIN, gt=0, le=1)
    run_dir: Path | None = setting(None, "run folder; not set: runs/DATASET-DATE-TIME", _BASIC_TRAIN)


_PROFILE = Facts(commands=("profile",), may_change=(RESUME, SCORING))


class ProfileSettings(Section):
    """How long socialx profile measures."""

    steps: int = setting(200, "measured training steps", _PROFILE, ge=2)
    warmup_steps: int = setting(10, "steps before the measurement", _PROFILE, ge=0)
    max_seconds: float = setting(
        30.0, "seconds after which one process on its own ends the measurement, with at least 8 steps", _PROFILE, gt=0
    )
    trace_steps: int = setting(
        8,
        "steps under a trace after it, of kernels on CUDA, of operators on a CPU, at most 2 there; 0: none",
        _PROFILE,
        ge=0,
    )
    trials: bool = setting(True, "try other numbers of threads and larger batches for a few steps", _PROFILE)
    block_seconds: float = setting(
        1.0, "seconds of each block, at least 5 steps, when two settings are compared in turns", _PROFILE, gt=0
    )


_DOWNLOAD = Facts(commands=("download",), may_change=(RESUME, SCORING))


class DownloadSettings(Section):
    """Where published files come from."""

    mirror: str | None = setting(
        None, "address of a folder that holds the files, in place of the published one", _DOWNLOAD
    )
    retries: int = setting(5, "tries again before download gives up", _DOWNLOAD, ge=0)


class Settings(Section):
    """Everything that a run depends on, apart from the data itself."""

    data: DataSettings = DataSettings()
    loader: LoaderSettings = LoaderSettings()
    model: ModelSettings = ModelSettings()
    pooling: PoolingSettings = PoolingSettings()
    trainer: TrainerSettings = TrainerSettings()
    profile: ProfileSettings = ProfileSettings()
    download: DownloadSettings = DownloadSettings()


# Every setting by its dotted key, in the order of the tree.
KEYS: dict[str, FieldInfo] = {
    f"{section}.{name}": field
    for section, holder in Settings.model_fields.items()
    for name, field in cast(type[Section], holder.annotation).model_fields.items()
}
# Those that name a file or a folder.
FILES = tuple(key for key, field in KEYS.items() if Path in (field.annotation, *get_args(field.annotation)))
_NAMES = Counter(key.split(".")[1] for key in KEYS)
# Those whose own name is that of no other one, by it.
BY_NAME = {key.split(".")[1]: key for key in KEYS if _NAMES[key.split(".")[1]] == 1}


def keys_where(test: Callable[[Facts], bool]) -> tuple[str, ...]:
    """The settings whose facts pass a test, in the order of the tree."""
    return tuple(key for key, field in KEYS.items() if test(facts(field)))


def flag_of(key: str) -> str:
    """The flag of a setting: its own name where that is unique in the tree, else ``--section-name``."""
    name = key.split(".")[1]
    return "--" + (facts(KEYS[key]).flag or (name if name in BY_NAME else key)).replace("_", "-").replace(".", "-")
