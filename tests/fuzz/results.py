"""What commands that use a run give, by the name of the oracle: the same for a damaged run as for the undamaged one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load

Result = dict[str, Any]
PAGE, MAP, EXPORT = "page.html", "map.geojson", "out.safetensors"
ALWAYS = ("states", "kept")  # what holds for any input that is read


def _printed(*keys: str) -> Callable[[Path, str], Result]:
    def read(_: Path, stdout: str) -> Result:
        found = json.loads(stdout)
        return {key: found.get(key) for key in keys}

    return read


def _tensors(name: str) -> Callable[[Path, str], Result]:
    def read(folder: Path, _: str) -> Result:
        return {key: tensor.clone() for key, tensor in load((folder / name).read_bytes()).items()}

    return read


def _resumed(folder: Path, stdout: str) -> Result:
    last = torch.load(folder / "run/last.pt", weights_only=True)["learner"]["model"]
    best = _tensors("run/best.safetensors")(folder, stdout)
    return {f"last {name}": tensor for name, tensor in last.items()} | {f"best {name}": best[name] for name in best}


def _reported(folder: Path, stdout: str) -> Result:
    text = (folder / PAGE).read_text(encoding="utf-8")
    return {"verdicts": stdout.rpartition("wrote ")[0], "end": text[-8:]}


def _mapped(folder: Path, _: str) -> Result:
    return {"features": json.loads((folder / MAP).read_text(encoding="utf-8"))["features"]}


def _served(_: Path, stdout: str) -> Result:
    """Of the answers before and, with --follow, after the data file was changed."""
    found = json.loads(stdout)
    first, then = found["first"], found.get("then", found["first"])
    latest = "/forecast/latest"
    unread = then["/ready"][1]["reason"] != first["/ready"][1]["reason"]  # both say that the last row is old
    kept = not unread or then[latest] == first[latest]
    states = [[answer[0] for answer in each.values()] for each in (first, then)]
    sensors = then["/sensors"][1].get("sensors")
    return {"states": states, "kept": kept, "forecast": then[latest][1].get("forecast"), "sensors": sensors}


RESULTS: dict[str, Callable[[Path, str], Result]] = {
    "scores": _printed("split", "scores"),
    "forecast": _printed("forecast", "times", "origin", "sensors"),
    "intervals": _printed("forecast", "lower", "upper", "interval"),
    "explanation": _printed("mae", "by_horizon", "by_hour", "sensors", "layers"),
    "resumed": _resumed,
    "export": _tensors(EXPORT),
    "calibration": _tensors("run/intervals.safetensors"),
    "report": _reported,
    "map": _mapped,
    "latest": _served,
    "network": _served,
    "follow": _served,
}


def differing(found: Result, right: Result) -> list[str]:
    """The names of the parts that differ."""
    return [name for name, value in right.items() if not _same(found.get(name), value)]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)
