"""Settings files in YAML or TOML: strict reading, and writing."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from socialx.core.disk import read_text
from socialx.core.errors import SettingsError

FILE_BYTES = 1 << 20  # longest settings file


def read_settings(path: Path) -> dict[str, Any]:
    """Read YAML or TOML into values by ``section.name``. Raises SettingsError for invalid files and repeated keys."""
    values: dict[str, Any] = {}
    for section, names in read_tree(path, "settings").items():
        if isinstance(names, Mapping) and names:
            values |= {f"{section}.{name}": value for name, value in names.items()}
        else:
            values[str(section)] = names
    return values


def read_tree(path: Path, content: str) -> dict[str, Any]:
    """Return the blocks of a YAML or TOML file; content: what the file says, for the remedy. Raises SettingsError."""
    advice = f"name a YAML or TOML file of {content}"
    try:
        text = read_text(path, FILE_BYTES)
    except UnicodeDecodeError:
        raise SettingsError("settings.no-text", path, "the file is not text", advice) from None
    except (OSError, ValueError) as error:
        problem = f"the file cannot be read ({getattr(error, 'strerror', None) or error})"
        raise SettingsError("settings.unreadable", path, problem, advice) from None
    try:
        return tomllib.loads(text) if path.suffix == ".toml" else _yaml(path, text)
    except ValueError as error:  # TOMLDecodeError, or a number with too many digits
        raise SettingsError("settings.toml", path, f"the file is not TOML ({str(error)[:200]})") from None
    except RecursionError:
        problem = "the blocks are nested too deeply"
        raise SettingsError("settings.deep", path, problem, "use two levels: section and setting") from None


@lru_cache(maxsize=8)  # a command may read a run's settings several times
def _yaml(path: Path, text: str) -> dict[str, Any]:
    import yaml  # 23 ms that --help does not need

    class Strict(yaml.SafeLoader):
        """Loader that refuses equal keys (PyYAML keeps the last) and aliases (which can expand to a huge tree)."""

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                line = self.peek_event().start_mark.line + 1
                problem = f"line {line} repeats another part by an alias (*)"
                raise SettingsError("settings.alias", path, problem, "write the values there")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            names: set[str] = set()
            for key, _ in node.value:
                name = str(self.construct_object(key, deep=True))
                if name in names:
                    line = node.start_mark.line + 1
                    problem = f"{name} is set twice in the block from line {line}"
                    raise SettingsError("settings.twice", path, problem, "keep one")
                names.add(name)
            return super().construct_mapping(node, deep)

    try:
        tree = yaml.load(text, Loader=Strict)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        problem = f"the file is not YAML ({' '.join(str(error).split())[:200]})"
        raise SettingsError("settings.yaml", path, problem) from None
    except (ValueError, OverflowError) as error:  # an impossible date or number
        problem = f"the file is not YAML ({type(error).__name__}: {str(error)[:100]})"
        raise SettingsError("settings.yaml", path, problem) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        problem = f"the file must hold sections (data, model, trainer, ...), not {type(tree).__name__}"
        raise SettingsError("settings.sections", path, problem)
    return tree


def as_yaml(values: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """Return settings by dotted key as text for a settings file, by section; comments: text to write above a key."""
    import yaml

    lines: list[str] = []
    sections: set[str] = set()
    order = list(dict.fromkeys(key.split(".")[0] for key in values))
    for key, value in sorted(values.items(), key=lambda item: order.index(item[0].split(".")[0])):
        section, name = key.split(".")
        lines += [] if section in sections else [f"{section}:"]
        sections.add(section)
        lines += [f"  # {line}" for line in textwrap.wrap((comments or {}).get(key, ""), 100)]
        lines += yaml.safe_dump({section: {name: value}}).splitlines()[1:]
    return "\n".join(lines or ["{}"]) + "\n"
