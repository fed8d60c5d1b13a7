"""Checks of output files before a task runs: a file of another kind is never replaced."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable
from dataclasses import dataclass
from os import path as paths
from pathlib import Path

from socialx.core.disk import check_output
from socialx.core.errors import SettingsError, SocialxError

HEAD_BYTES = 512  # the beginning of a file, which identifies its kind


@dataclass(frozen=True)
class OutputKind:
    """An output kind that may replace a file of the same kind: suffixes, and the first bytes of such a file.

    asks: whether it replaces a file only with ``overwrite``, as data are more than a picture.
    """

    noun: str
    suffixes: tuple[str, ...]
    begins: re.Pattern[bytes]
    asks: bool = False

    def recognises(self, path: Path) -> bool:
        """Return whether an existing file is of this kind.  Raises OSError or EOFError for an unreadable file."""
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        if head.startswith(b"\x1f\x8b"):
            with gzip.open(path) as unpacked:
                head = unpacked.read(HEAD_BYTES)
        return bool(self.begins.match(head))

    def check_name(self, path: Path) -> None:
        """Raise SettingsError for another suffix."""
        if not path.name.lower().endswith(self.suffixes):
            *others, last = self.suffixes
            names = f"{', '.join(others)} or {last}" if others else last
            problem = f"{self.noun} cannot end in {path.suffix.lower()!r}"
            raise SettingsError("output.suffix", path, problem, f"name it {names}")

    def check_older(self, path: Path, overwrite: bool = False) -> None:
        """Raise SocialxError for an existing file that must stay: one of another kind, or without ``overwrite``."""
        check_output(path, overwrite or not self.asks)
        try:
            other = path.is_file() and path.stat().st_size > 0 and not self.recognises(path)
        except (SocialxError, OSError, EOFError, ValueError):
            other = True  # unreadable files match no kind
        if other:
            problem = f"the file exists already and is not {self.noun}"
            raise SocialxError("output.other-kind", path, problem, "choose another output")


PAGE = OutputKind("a page", (".html", ".htm"), re.compile(rb"\s*<!doctype html", re.IGNORECASE))
CARD = OutputKind("a model card", (".md",), re.compile(rb"---\nlibrary_name: socialx\n"))
PICTURE = OutputKind("a picture", (".png", ".svg", ".pdf"), re.compile(rb"\x89PNG|%PDF|\s*<(\?xml|svg)"))
MAP = OutputKind("a map", (".geojson", ".json"), re.compile(rb'\s*\{\s*"type"\s*:\s*"FeatureCollection"'))
PROFILE = OutputKind("a profile", (".json",), re.compile(rb'\s*\{\s*"schema"\s*:\s*"socialx\.profile/'))
TRACE = OutputKind("a trace", (".json", ".json.gz"), re.compile(rb'\s*\{\s*"(schemaVersion|traceEvents)"'))
ADVISED = "# advised by socialx profile"
ADVICE = OutputKind("advice of profile", (".yaml", ".yml"), re.compile(re.escape(ADVISED.encode())))
SCORES = OutputKind("a table of scores", ("",), re.compile(rb"model,target,by,key,"), asks=True)
# A torch program, ONNX, or weights with what is told of them; a file of a run tells other things.
MODEL = OutputKind(
    "an exported model", ("",), re.compile(rb'PK|\x08|.{8}\{"__metadata__":\{"socialx":"\{', re.DOTALL), asks=True
)
Output = str | Path | None


def check_outputs(
    *outputs: tuple[Output, OutputKind | None], others: Iterable[str | Path | None] = (), overwrite: bool = False
) -> None:
    """Raise an error for an output that is an input, repeats another output, or must be kept.

    An output of any kind replaces a file only with ``overwrite``.  others: inputs that the call names.  An output of
    None is skipped.
    """
    seen: set[str] = set()
    for output, kind in outputs:
        if output is None:
            continue
        path = Path(output)
        check_output(path, overwrite or kind is not None, [other for other in others if other is not None])
        if kind is not None:
            kind.check_name(path)
            kind.check_older(path, overwrite)
        if (target := paths.realpath(path)) in seen:
            raise SettingsError("output.two", path, "two outputs share this name", "give each output a name of its own")
        seen.add(target)
