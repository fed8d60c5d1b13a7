"""The format of a run folder: its number, and what the files of an older one say in today's words.

Format 2 has a file with the number and the setting ``model.mlp_width``.  A folder without that file is of format 1:
settings whose default has changed since have the default of that time, and the first folders have other names for
weights, protocol and normaliser.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from socialx.model.xlstm.encoder import SharedEncoder

FORMAT = 2
OLDER_NAMES = {"protocol.json": "stamp.json", "best.safetensors": "best.pt"}
DEFAULTS: dict[str, Any] = {  # of format 1, where those of today are others
    "loader.batch_size": 64,
    "model.climatology": False,
    "model.width": 128,
    "model.blocks": 4,
    "model.dropout": 0.1,
    "pooling.neighbours": 32,
    "pooling.pair_rank": 0,
    "trainer.max_epochs": 30,
}


def up_to_date(name: str, content: Any) -> Any:
    """What a file of format 1 says, as format 2 says it; what format 2 wrote stays the same.

    name: ``settings.yaml`` with its dotted keys, ``protocol.json``, ``weights`` with a state dict, or ``last.pt``.
    Raises KeyError, TypeError or ValueError where the content is damaged.
    """
    if name == "settings.yaml":
        content = {**DEFAULTS, **content}
        if content.get("model.encoder") == "mlp" and (width := _mlp_width(content)) is not None:
            content = {"model.mlp_width": width, **content}
    elif name == "protocol.json":
        content = {("normaliser" if key == "scaler" else key): value for key, value in content.items()}
    elif name == "weights":
        renamed = (("scaled.", "normaliser."), ("own_last_layer", "sensor_heads"))
        for old, new in renamed:
            content = {key.replace(old, new): value for key, value in content.items()}
    elif name == "last.pt":
        learner, random = dict(content["learner"]), content["random"]
        content = {
            "learner": {**learner, "model": up_to_date("weights", learner["model"])},
            "progress": {"chunk": 0, "ranks": 1, **content["progress"]},
            "random": [random] if isinstance(random, dict) else random,
        }
    return content


def _mlp_width(settings: Mapping[str, Any]) -> int | None:
    """The units that format 1 gave the MLP: those with which it has as many parameters as the xLSTM of these settings.

    None where the settings are no numbers; whoever checks them refuses them.
    """
    blocks, history = settings["model.blocks"], settings.get("data.history", 12)
    width, heads = settings["model.width"], settings.get("model.heads", 4)
    sizes = (width, blocks, heads, history)
    if not all(isinstance(size, int) and 0 < size <= 2048 for size in sizes) or blocks > 64:
        return None
    slstm_at = settings.get("model.slstm_at", [place for place in (1, 3) if place < blocks])
    try:
        with torch.device("meta"):  # without memory, and without a draw
            encoder = SharedEncoder(width, blocks, slstm_at, heads, history)
    except (TypeError, ValueError):
        return None
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    return max(1, round((parameters - width) / (width * history + 1 + width)))
