"""Loggers that send epochs to TensorBoard, Weights & Biases or MLflow, imported only when a run asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from socialx.core.errors import Argument, SocialxError
from socialx.core.progress import Epoch, Event, also_subscribe

Log = Callable[[dict[str, float], int], None]
NO_MEASURE = ("epoch", "of", "best")  # fields of an epoch that are not metrics


@contextmanager
def log_epochs_to(names: Sequence[str], run: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Send the metrics of every epoch in the block to the loggers ``names``, such as tensorboard.

    run: the run folder, whose name becomes the run name in the logger.  settings: values by dotted key, logged once.
    Raises SocialxError where a package is missing.
    """
    with ExitStack() as stack:
        logs = [stack.enter_context(LOGGERS[name](run, settings)) for name in names]

        def log_epoch(event: Event) -> None:
            if isinstance(event, Epoch):
                measures = {name: value for name, value in asdict(event).items() if name not in NO_MEASURE}
                for log in logs:
                    log({name: float(value) for name, value in measures.items() if value is not None}, event.epoch)

        if logs:
            stack.enter_context(also_subscribe(log_epoch))
        yield


@contextmanager
def _tensorboard(run: Path, settings: Mapping[str, Any]) -> Iterator[Log]:
    writer = _module("tensorboard", "torch.utils.tensorboard").SummaryWriter(str(run / "tensorboard"))
    writer.add_text("settings", "\n".join(f"    {key}: {value}" for key, value in settings.items()))

    def log(measures: dict[str, float], epoch: int) -> None:
        for name, value in measures.items():
            writer.add_scalar(name, value, epoch)
        writer.flush()

    try:
        yield log
    finally:
        writer.close()


@contextmanager
def _wandb(run: Path, settings: Mapping[str, Any]) -> Iterator[Log]:
    opened = _module("wandb", "wandb").init(project="socialx", name=run.name, dir=str(run), config=dict(settings))
    try:
        yield lambda measures, epoch: opened.log(measures, step=epoch)
    finally:
        opened.finish()


@contextmanager
def _mlflow(run: Path, settings: Mapping[str, Any]) -> Iterator[Log]:
    mlflow = _module("mlflow", "mlflow")
    with mlflow.start_run(run_name=run.name):
        mlflow.log_params({key: str(value)[:500] for key, value in settings.items()})
        yield lambda measures, epoch: mlflow.log_metrics(measures, step=epoch)


LOGGERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}


def _module(name: str, path: str) -> Any:
    try:
        return import_module(path)
    except ImportError as error:
        install = f"pip install 'socialx[{name}]'"
        problem = f"{Argument('trainer.loggers', name)} needs a package that is missing ({error})"
        raise SocialxError("train.logger", "", problem, install) from None
