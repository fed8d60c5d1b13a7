"""The command that answers requests over HTTP: serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from socialx.cli.command import command
from socialx.cli.flags import with_settings
from socialx.cli.progress_bars import Show
from socialx.cli.scoring_commands import RunArgument
from socialx.settings_layers import Layers


@command("serve")
@with_settings("serve")
def serve(
    layers: Layers,
    run: RunArgument,
    follow: Annotated[
        bool, typer.Option("--follow", help="look at --data every few seconds, and forecast again when it was changed")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option("--interval", metavar="0.9", help="add prediction intervals of this level", show_default=False),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="0.0.0.0: other machines can ask")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", help="0: a free one")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="requests need this token; or set $SOCIALX_TOKEN"),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", metavar="URL", help="pages of this origin may ask; may be repeated"),
    ] = None,
    queue: Annotated[
        int, typer.Option("--queue", metavar="N", help="requests that may wait; further ones are answered 429")
    ] = 64,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="requests that take longer are answered 504")
    ] = 10.0,
    max_body: Annotated[
        float, typer.Option("--max-body", metavar="MIB", help="requests that are longer are answered 413")
    ] = 4.0,
) -> None:
    """Answer requests for forecasts over HTTP.

    POST /forecast takes the readings of the last hour, as JSON or CSV.  GET /forecast/latest is the forecast after the
    last row of --data, or of the run's own file, and / is a page with a map.  It runs until Ctrl-C.

    Examples:
      socialx serve runs/demo
      socialx serve runs/demo --data live.h5 --follow
    """
    from socialx.tasks.server import serve

    serve(
        run,
        follow=follow,
        interval=interval,
        host=host,
        port=port,
        token_file=token_file,
        allow_origin=allow_origin or (),
        queue=queue,
        timeout=timeout,
        max_body=max_body,
        settings=layers,
        progress=Show("serve"),
    )
