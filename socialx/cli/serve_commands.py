"""The command that answers requests over HTTP: serve."""

from __future__ import annotations

from typing import Any

from socialx.cli.command import command
from socialx.cli.progress_bars import Show
from socialx.settings_layers import Layers


@command("serve")
def serve(layers: Layers, **arguments: Any) -> None:
    """Answer requests for forecasts over HTTP.

    POST /forecast takes the readings of the last hour, as JSON or CSV.  GET /forecast/latest is the forecast after the
    last row of --data, or of the run's own file, and / is a page with a map.  It runs until Ctrl-C.

    Examples:
      socialx serve runs/demo
      socialx serve runs/demo --data live.h5 --follow
    """
    import socialx

    socialx.serve(settings=layers, progress=Show("serve"), **arguments)
