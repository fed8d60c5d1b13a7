"""The files that a task is asked to write, checked before it reads: what it reads itself is never replaced."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import path as paths
from pathlib import Path
from typing import TYPE_CHECKING

from socialx.core.disk import check_name, check_output
from socialx.core.errors import SettingsError, SocialxError
from socialx.files.store.head import UNREADABLE, unpacked
from socialx.settings.layers import ConfigLayers, run_settings

if TYPE_CHECKING:
    from socialx.training.run_folder import TrainedRun

HEAD_BYTES = 512  # the beginning of a file, which tells what it is


@dataclass(frozen=True)
class OutputKind:
    """What an output without an option ``overwrite`` is: its suffixes, and how the content of such a file begins."""

    what: str
    suffixes: tuple[str, ...]
    begins: re.Pattern[bytes]

    def check(self, path: Path) -> None:
        """Refuse another suffix, and a file that is there and of another kind; one of this kind may be replaced."""
        if not path.name.lower().endswith(self.suffixes):
            *others, last = self.suffixes
            names = f"{', '.join(others)} or {last}" if others else last
            raise SettingsError(path, f"{self.what} cannot end in {path.suffix.lower()!r}", f"name it {names}")
        if path.is_file():
            try:
                with unpacked(path) as content:
                    head = content.read(HEAD_BYTES)
            except (*UNREADABLE, SocialxError):
                head = b"?"  # what cannot be read is of no kind
            if head and not self.begins.match(head):
                raise SocialxError(path, f"exists already and is not {self.what}", "choose another output")


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
    """Refuse an output that is an input of the task, or the same as another output, or a file that must stay.

    An output of an ``OutputKind`` may replace a file of that kind, any other only with ``overwrite``.  layers, runs,
    others: what the task reads, see ``inputs_of``.  An output of None is not asked for.
    """
    named = [(Path(path), kind) for path, kind in outputs if path is not None]
    inputs = tuple(inputs_of(layers, runs, others)) if any(paths.lexists(path) for path, _ in named) else ()
    seen: set[str] = set()
    for path, kind in named:
        check_output(path, overwrite or kind is not None, inputs)
        if kind is not None:
            kind.check(path)
        if (place := paths.realpath(path)) in seen:
            raise SettingsError(path, "two outputs of this command", "give each a name of its own")
        seen.add(place)


def inputs_of(
    layers: ConfigLayers | None, runs: Iterable[str | Path | TrainedRun] = (), others: Iterable[str | Path | None] = ()
) -> Iterator[Path]:
    """What a task reads: files of settings, data and distances, all files of its runs and of those they learn from.

    runs: their names, or those that were opened.
    """
    yield from (Path(each) for each in others if each is not None)
    entered = []
    if layers is not None:
        yield from layers.files
        entered.append(layers.merge().settings)
    for run in runs:
        from socialx.training.run_folder import TrainedRun, open_run

        opened = run if isinstance(run, TrainedRun) else None
        path = opened.path if opened else Path(str(run))
        yield from _files_of_run(path)
        if opened is None and (path / "settings.yaml").is_file():
            opened = open_run(path)
        if opened:
            entered.append(run_settings(opened.settings, opened.own).settings)
            yield from opened.places(str(entered[-1].data.path))
    for settings in entered:
        yield from filter(None, (settings.data.path, settings.pooling.distances))
        for other in (*settings.trainer.teacher, *filter(None, [settings.trainer.init_from])):
            yield from _files_of_run(Path(other))


def _files_of_run(folder: Path) -> Iterator[Path]:
    from socialx.training.run_folder import NAMES  # it loads torch, which an inspected file needs not

    check_name(folder)
    if folder.is_file():  # of forecasts
        yield folder
    yield from (folder / name for name in NAMES)
