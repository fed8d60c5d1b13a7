"""Checks of output files before a task runs: an input is never replaced."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import path as paths
from pathlib import Path
from typing import TYPE_CHECKING

from socialx.core.disk import check_name, check_output
from socialx.core.errors import SettingsError, SocialxError
from socialx.files.store.head import UNREADABLE, unpack
from socialx.settings.layers import ConfigLayers, run_settings

if TYPE_CHECKING:
    from socialx.training.run_folder import TrainedRun

HEAD_BYTES = 512  # the beginning of a file, which identifies its kind


@dataclass(frozen=True)
class OutputKind:
    """An output kind that may replace a file of the same kind: suffixes, and the first bytes of such a file."""

    noun: str
    suffixes: tuple[str, ...]
    begins: re.Pattern[bytes]

    def check(self, path: Path) -> None:
        """Raise an error for another suffix, or for an existing file of another kind."""
        if not path.name.lower().endswith(self.suffixes):
            *others, last = self.suffixes
            names = f"{', '.join(others)} or {last}" if others else last
            raise SettingsError(path, f"{self.noun} cannot end in {path.suffix.lower()!r}", f"name it {names}")
        if path.is_file():
            try:
                with unpack(path) as content:
                    head = content.read(HEAD_BYTES)
            except (*UNREADABLE, SocialxError):
                head = b"?"  # unreadable files match no kind
            if head and not self.begins.match(head):
                raise SocialxError(path, f"the file exists already and is not {self.noun}", "choose another output")


PAGE = OutputKind("a page", (".html", ".htm"), re.compile(rb"\s*<!doctype html", re.IGNORECASE))
CARD = OutputKind("a model card", (".md",), re.compile(rb"---\nlibrary_name: socialx\n"))
PICTURE = OutputKind("a picture", (".png", ".svg", ".pdf"), re.compile(rb"\x89PNG|%PDF|\s*<(\?xml|svg)"))
MAP = OutputKind("a map", (".geojson", ".json"), re.compile(rb'\s*\{\s*"type"\s*:\s*"FeatureCollection"'))
PROFILE = OutputKind("a profile", (".json",), re.compile(rb'\s*\{\s*"schema"\s*:\s*"socialx\.profile/'))
TRACE = OutputKind("a trace", (".json", ".json.gz"), re.compile(rb'\s*\{\s*"(schemaVersion|traceEvents)"'))
ADVISED = "# advised by socialx profile"
ADVICE = OutputKind("advice of profile", (".yaml", ".yml"), re.compile(re.escape(ADVISED.encode())))
Output = str | Path | None


def check_outputs(
    *outputs: tuple[Output, OutputKind | None],
    layers: ConfigLayers | None = None,
    runs: Iterable[str | Path] = (),
    others: Iterable[str | Path | None] = (),
    overwrite: bool = False,
) -> None:
    """Raise an error for an output that is an input, repeats another output, or must be kept.

    An output with an ``OutputKind`` may replace a file of the same kind, any other only with ``overwrite``.  layers,
    runs, others: the inputs, as in ``list_inputs``.  An output of None is skipped.
    """
    named = [(Path(path), kind) for path, kind in outputs if path is not None]
    inputs = tuple(list_inputs(layers, runs, others)) if any(paths.lexists(path) for path, _ in named) else ()
    seen: set[str] = set()
    for path, kind in named:
        check_output(path, overwrite or kind is not None, inputs)
        if kind is not None:
            kind.check(path)
        if (target := paths.realpath(path)) in seen:
            raise SettingsError(path, "two outputs share this name", "give each output a name of its own")
        seen.add(target)


def list_inputs(
    layers: ConfigLayers | None, runs: Iterable[str | Path | TrainedRun] = (), others: Iterable[str | Path | None] = ()
) -> Iterator[Path]:
    """Yield the files that a task reads: settings, data, distances, and the files of runs and their teachers.

    runs: names, or opened runs.
    """
    yield from (Path(other_path) for other_path in others if other_path is not None)
    entered = []
    if layers is not None:
        yield from layers.files
        entered.append(layers.merge().settings)
    for run in runs:
        from socialx.training.run_folder import TrainedRun, open_run

        opened = run if isinstance(run, TrainedRun) else None
        path = opened.path if opened else Path(str(run))
        yield from _list_run_files(path)
        if opened is None and (path / "settings.yaml").is_file():
            opened = open_run(path)
        if opened:
            entered.append(run_settings(opened.settings, opened.values).settings)
            yield from opened.find_files(str(entered[-1].data.path))
    for settings in entered:
        yield from filter(None, (settings.data.path, settings.pooling.distances))
        for teacher in (*settings.trainer.teacher, *filter(None, [settings.trainer.init_from])):
            yield from _list_run_files(Path(teacher))


def _list_run_files(folder: Path) -> Iterator[Path]:
    from socialx.training.run_folder import NAMES  # imports torch, which inspect avoids

    check_name(folder)
    if folder.is_file():  # of forecasts
        yield folder
    yield from (folder / name for name in NAMES)
