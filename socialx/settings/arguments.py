"""Settings as keyword arguments of Python functions; written by `make docs` from the settings tree."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict


class SettingsArguments(TypedDict, total=False):
    """Settings by their own names, and sections as mappings: ``width=64`` or ``model={"width": 64}``."""

    path: str | Path | None
    extra_data: str | Path | Sequence[str | Path]
    targets: str | Sequence[str]
    inputs: str | Sequence[str] | None
    days: int | None
    lookback: int
    horizon: int
    holidays: str | None
    split_method: Literal["canonical", "strict"]
    batch_size: int
    mode: Literal["auto", "on_device", "sharded", "workers"]
    shard_gb: float | None
    num_workers: int | None
    prefetch_factor: int
    pin_memory: bool
    encoder: str
    patch: int
    width: int
    mlp_width: int
    blocks: int
    slstm_at: int | Sequence[int]
    dropout: float
    backend: Literal["auto", "fused", "reference"]
    encoder_batch: int | None
    activation_checkpointing: bool
    sensor_embedding: bool
    per_sensor_output: bool
    sensor_dropout: float
    zero_shot: bool
    climatology: bool
    neighbours: int | None
    max_distance_km: float | None
    distances: str | Path | None
    gate_radius_km: float
    learnable_radius: bool
    mask_mode: Literal["soft", "hard"]
    use_positional: bool
    adaptive_adjacency_rank: int
    require_locations: bool
    precision: Literal["auto", "32-true", "16-mixed", "bf16-mixed"]
    device: str
    threads: int | None
    float32_matmul_precision: Literal["highest", "high", "medium"]
    compile: Literal["auto", "off", "default", "max-autotune"]
    cuda_graph: Literal["auto", "on", "off"]
    max_epochs: int
    learning_rate: float
    weight_decay: float
    lr_warmup_steps: int
    gradient_clip_val: float
    accumulate_grad_batches: int
    patience: int
    seed: int
    log_every_n_steps: int
    loggers: Literal["tensorboard", "wandb", "mlflow"] | Sequence[Literal["tensorboard", "wandb", "mlflow"]]
    init_from: Any
    teacher: Any
    run_dir: str | Path | None
    steps: int
    warmup_steps: int
    max_seconds: float
    trace_steps: int
    trials: bool
    loader: Mapping[str, Any]
    model: Any
    pooling: Mapping[str, Any]
    trainer: Mapping[str, Any]
    profile: Mapping[str, Any]
