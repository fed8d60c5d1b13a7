"""Notebook input and output: names and files as lists, results as text and HTML, advice for unknown names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from socialx.core.errors import Argument, Command, SettingsError

ROWS = 12  # shown from a longer table, half from each end
NEAR = 0.8  # of difflib: a name farther away is no advice
# Attributes of other tools: by class, what to write here, and the words for it; what is not offered is skipped.
INSTEAD = {
    "socialx": {
        "open_dataset": "dataset dataloader splits adjacency windows",
        "open_store": "load open read data dataset dataloader",
        "download": "load_dataset get_dataset datasets",
        "load_settings": "presets list_presets get_config from_yaml",
        "evaluate": "metrics score test validate backtest mae rmse mape benchmark",
        "train(DATA, model='linear')": "list_models models create_model get_model build_model zoo",
        "train in a loop, docs/how-to/sweep-and-seeds.md": "sweep tune grid_search optuna hyperopt hpo search",
        "train": "fit trainer run learn trainingarguments",
        "load_run": "runs load_checkpoint restore from_checkpoint from_pretrained checkpoint",
        "load_model": "model module network",
        "predict": "forecast infer inference forecaster pipeline generate",
        "convert": "from_csv read_csv to_h5 preprocess prepare from_pandas from_frame read_parquet to_hdf5",
        "inspect": "describe info summary check stats",
        "export": "to_onnx onnx torchscript jit compile save",
        "report": "plot dashboard visualize visualise",
        "explain": "attention importance interpret shap",
        "serve": "deploy api app server",
    },
    "Run": {
        "history": "metrics logs losses log summary to_frame",
        "settings": "config cfg hparams args seed",
        "path": "run_dir folder name checkpoint ckpt_path",
        "predict": "forecast",
        "evaluate": "test score validate",
        "best": "best_epoch best_val best_mae val_loss",
        "model": "state_dict parameters module num_params",
    },
    "Evaluation": {
        **{"to_frame": "to_pandas df to_df to_dict", "difference": "significance significant p_value", "split": "part"},
        **{f"[RUN].overall().{name}": name for name in ("mae", "rmse", "mape", "r2")},
    },
    "ModelScores": {f"overall().{name}": name for name in ("mae", "rmse", "mape", "r2")},
    "Forecast": {
        **{"to_frame": "to_pandas df to_df", "values": "data numpy mean to_numpy yhat", "select": "sel loc"},
        **{"observed": "truth actual y y_true", "probability": "prob", "socialx.evaluate(RUN)": "mae rmse metrics"},
    },
    "Store": {
        "socialx.open_dataset(FILE)": "windows adjacency adj",
        "to_frame": "to_pandas df to_df head describe",
        **{"values.shape": "shape", "values": "data numpy", "sensors.ids": "ids columns"},
    },
    "RunReport": {"socialx.report(RUN, output='FILE.html')": "to_html write save html"},
}


def near_name(name: str, names: Mapping[str, str], words: Mapping[str, str]) -> str:
    """Return what to write for an unknown name: by a near one of ``names``, or by ``words``, in small letters."""
    near = difflib.get_close_matches(name, names, 1, NEAR)
    return words.get(name.lower(), names[near[0]] if near else "")


def unknown_name(problem: str, name: str, offered: Iterable[str], owner: str = "") -> str:
    """Return the text of an AttributeError or KeyError with the offered names, or the near one; owner: the class."""
    names = {offer: offer for offer in offered if not offer.startswith("_")}
    words: dict[str, str] = {}
    for instead, others in reversed(INSTEAD.get(owner, {}).items()):
        if re.split(r"\W", instead)[0] in ("", "socialx", *names):
            words |= dict.fromkeys(others.split(), instead)
    near = near_name(name, names, words)
    return f"{problem}: {f'use {near}' if near else 'choose from ' + ', '.join(names)}"


def names_in(names: str | Iterable[str]) -> list[str]:
    """Split comma-separated text into names; an iterable becomes a list."""
    return [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else list(names)


def is_frame(value: object) -> bool:
    """Return whether a value is a pandas or pyarrow table, by its methods: both packages stay unloaded."""
    return hasattr(value, "to_csv") or hasattr(value, "to_pandas")


def files_in(files: Any, argument: str = "data") -> list[Path]:
    """Return a path or several as a list. Raises SettingsError, naming ``argument``, for a wrong type (a frame)."""
    paths = list(files) if isinstance(files, Sequence) and not isinstance(files, str) else [files]
    for path in paths:
        if not isinstance(path, str | PathLike):
            remedy = "name a file"
            if is_frame(path):
                convert = Command("convert", "auto", "FILE.csv", meta_csv="LOCATIONS.csv", output="OUT.h5")
                remedy = f"write the frame with frame.to_csv('FILE.csv'), then run {convert}"
            problem = f"{Argument(argument)} must be a path, not {type(path).__name__}"
            raise SettingsError("call.no-path", "", problem, remedy)
    return [Path(path) for path in paths]


class Named:
    """Base whose unknown attribute is refused with the name to use."""

    if not TYPE_CHECKING:  # a type checker shall still refuse unknown attributes

        def __getattr__(self, name: str) -> Any:
            owner = type(self)
            if hasattr(owner, name) or name.startswith("_"):  # a property that failed, or a question of Python
                return object.__getattribute__(self, name)
            offered = dict.fromkeys([*getattr(owner, "__dataclass_fields__", ()), *dir(self)])
            problem = f"{owner.__name__!r} object has no attribute {name!r}"
            raise AttributeError(unknown_name(problem, name, offered, owner.__name__))


class ResultRepr(Named):
    """Base for results that display themselves in a notebook: a headline and a table, both from the subclass."""

    def headline(self) -> str:
        """Return the result in a line."""
        raise NotImplementedError

    def table(self) -> list[dict[str, Any]]:
        """Return the figures below the headline as rows (column -> value) for a notebook; empty if there are none."""
        return []

    def _frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame(self.table())

    def to_latex(self) -> str:
        """Return ``table`` in LaTeX, numbers with three decimals."""
        return self._frame().to_latex(index=False, escape=True, float_format="%.3f", na_rep="-")

    def to_markdown(self) -> str:
        """Return ``table`` in Markdown, numbers with three decimals."""
        rows = self._frame()
        cells = [list(rows), ["---"] * rows.shape[1], *rows.astype(object).where(rows.notna(), "-").to_numpy()]
        texts = [[f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row] for row in cells]
        return "\n".join(f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |" for row in texts)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def _repr_html_(self) -> str:
        from html import escape

        rows = self._frame()
        table = rows.to_html(index=False, max_rows=ROWS, na_rep="-", border=0, float_format="{:.3f}".format)
        return f"<p>{escape(self.headline())}</p>{table if len(rows) else ''}"
