"""Serve a run at an address until interrupted: ``socialx serve``."""

from __future__ import annotations

import gc
import math
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from socialx.core.disk import file_signature
from socialx.core.errors import Argument, Message, SettingsError, SocialxError
from socialx.core.help import INTERVAL, RUN, Help, Server, with_help
from socialx.core.progress import Callback, note, subscribe
from socialx.scoring.intervals import check_threshold
from socialx.settings.arguments import SettingsArguments
from socialx.settings.layers import ConfigLayers
from socialx.settings.schema import Settings
from socialx.tasks.build import Experiment
from socialx.tasks.opened import open_forecasting
from socialx.tasks.train import Run
from socialx.training.run_folder import find_run_folder, open_run

if TYPE_CHECKING:
    from socialx.serving.latest import Served

MIB = 1 << 20
KEEP_ALIVE_S = 75  # longer than clients and proxies keep a connection: who closes first must not be the server
BACKLOG = 2048  # connections that wait to be accepted


@with_help
def serve(
    run: Annotated[str | Path | Run, RUN],
    data: str | Path | None = None,
    *,
    follow: Annotated[bool, Server("forecast again whenever the data file changes")] = False,
    interval: Annotated[float | None, INTERVAL] = None,
    alert_below: Annotated[float | None, Server("mark sensors likely to fall below this value", "X")] = None,
    alert_program: Annotated[str | Path | None, Server("start it for each of them, with JSON as input", "FILE")] = None,
    host: Annotated[str, Server("0.0.0.0: other machines can ask", "ADDRESS")] = "127.0.0.1",
    port: Annotated[int, Server("0: a free one", "N")] = 8000,
    token_file: Annotated[str | Path | None, Server("requests need this token; or set $SOCIALX_TOKEN", "FILE")] = None,
    allow_origin: Annotated[Sequence[str], Server("pages of this origin may ask; may be repeated", "URL")] = (),
    tiles: Annotated[str | None, Help("streets below the map: a server of XYZ tiles, then its owner", "URL")] = None,
    queue: Annotated[int, Server("requests that may wait; further ones are answered 429", "N")] = 64,
    timeout: Annotated[float, Server("requests that take longer are answered 504", "SECONDS")] = 10.0,
    max_body: Annotated[float, Server("requests that are longer are answered 413", "MIB")] = 4.0,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Unpack[SettingsArguments],
) -> None:
    """Answer requests for forecasts over HTTP until the process is interrupted.

    data: a file with the sensors of the run, by default the file of the run; /forecast/latest has the latest forecast.

    Raises SettingsError for a wrong argument or an occupied address, and SocialxError as ``predict`` does.
    """
    try:
        import uvicorn

        from socialx.serving.endpoints import make_app, make_service
        from socialx.serving.guard import read_origins, read_tiles, read_token
        from socialx.serving.latest import Alerts
    except ImportError as error:
        missing = f"serving needs the packages of the extra serve ({error.name} is missing)"
        raise SocialxError("serve.package", "serve", missing, "pip install 'socialx[serve]'") from None
    for name, value, least in (("queue", queue, 1), ("timeout", timeout, 0.001), ("max_body", max_body, 0.001)):
        if not least <= value < math.inf:
            raise SettingsError("serve.low", "", f"{Argument(name, value)} is out of range", f"choose at least {least}")
    check_threshold(alert_below, name="alert_below")
    program = None if alert_program is None else _check_program(Path(alert_program), alert_below)
    with _listen(host, port) as listener:  # before the run is read: an address that is taken is known at once
        with subscribe(progress):
            token = read_token(None if token_file is None else Path(token_file), os.environ)
            origins, streets = read_origins(allow_origin), read_tiles(tiles) if tiles else ""
            path = run.path if isinstance(run, Run) else Path(run)
            layers = ConfigLayers.from_call(settings, {**sections, "data": data}, task=serve)
            named = layers.argument("data.path")
            if follow and not named:
                problem = f"{Argument('follow')} needs a file"
                raise SettingsError("serve.follow", "", problem, f"add {Argument('data.path', 'FILE.h5')}")
            runs = Runs(path, layers, follow, interval, progress, below=alert_below)
            service = make_service(runs.load(path), queue)
            service.token, service.origins, service.tiles = token, origins, streets
            service.timeout_s, service.most_bytes = timeout, int(max_body * MIB)
            service.follow, service.newer = follow, runs.newer
            if program is not None:
                service.alerts = Alerts(program, lambda result: service.metrics.programs.labels(result).inc(), progress)
            if not named:
                shown = "the map and /forecast/latest show the end of the run's own file"
                newer = f"choose a newer file with {Argument('data.path', 'FILE.h5')}"
                note(Message("serve.shows-old-file", "", shown, newer))
            _tell(listener, path, service.served.latest is not None, token is not None)
        config = uvicorn.Config(
            make_app(service),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(timeout),
        )
        gc.collect()
        gc.freeze()  # else a request of many parts has all objects of the libraries looked through
        uvicorn.Server(config).run(sockets=[listener])
    raise KeyboardInterrupt  # it returns after an interrupt that a shell has its background jobs ignore


@dataclass(eq=False)
class Runs:
    """Load the run in a folder or behind a link, and load again after a change.

    layers: settings from the call. follow: whether the data file is followed. interval: prediction interval level,
    if wanted. version: signature for the folder in service. refused: signatures for a folder and a file that failed ->
    error. below: threshold for probabilities, if wanted.
    """

    folder: Path
    layers: ConfigLayers
    follow: bool
    interval: float | None
    progress: Callback | None = None
    version: tuple[object, ...] = ()
    refused: dict[tuple[object, ...], SocialxError] = field(default_factory=dict)
    experiment: Experiment | None = None
    below: float | None = None

    def load(self, folder: Path) -> Served:
        """Load the run in a folder, and forecast.  Raise SocialxError as ``predict`` does."""
        from socialx.serving.latest import Served

        version = find_run_folder(self.folder).version
        opened = open_forecasting(open_run(folder), self.layers, split=False, same_missing=self.follow)
        experiment = opened.experiment
        served = Served(experiment, folder.resolve().name)
        served.band = opened.band(self.interval, int(experiment.data.store.seconds[-1]), self.below)
        try:
            served.forecast_from_data()
        except SocialxError as error:
            if self.layers.argument("data.path"):
                raise
            note(error.messages[0])
        self._refuse_other(experiment)
        self.version, self.experiment = version, experiment
        return served

    def newer(self) -> Served | None:
        """Return a newer run, or None for an unchanged folder.

        Raises SocialxError or OSError for an unreadable run, and SocialxError for another network.
        """
        run = find_run_folder(self.folder)
        if run.version == self.version:
            return None
        files = run.version, file_signature(Path(str(self.layers.argument("data.path"))))
        if files not in self.refused:
            try:
                with subscribe(self.progress):
                    served = self.load(run.path.resolve())
                    note(Message("serve.swapped", self.folder, f"{served.run} makes the forecasts now"))
                    return served
            except SocialxError as error:
                self.refused = {files: error}
        raise self.refused[files]

    def _refuse_other(self, experiment: Experiment) -> None:
        """Raise SocialxError for a run with another network or other windows: clients rely on both."""
        if self.experiment is None:
            return
        names = ("network", "inputs", "targets", "step_minutes", "lookback", "horizon")
        new, old = experiment, self.experiment
        differ = [name for name in names if getattr(new.protocol, name) != getattr(old.protocol, name)]
        if bool(new.data.train_climatology_days) != bool(old.data.train_climatology_days):
            differ.append("climatology")
        if differ:
            problem = f"the run has another {' and '.join(differ)}"
            raise SocialxError("serve.other-run", self.folder, problem, "start the server again")


def _check_program(program: Path, below: float | None) -> Path:
    """Return the absolute path of an alert program.  Raise SettingsError without a threshold or an executable file."""
    if below is None:
        needs = f"{Argument('alert_program', program)} needs a threshold"
        raise SettingsError("serve.no-threshold", "", needs, f"add {Argument('alert_below', 30)}")
    if not (program.is_file() and os.access(program, os.X_OK)):
        refused = "the file is missing or cannot be executed"
        raise SettingsError("serve.alert-program", program, refused, f"write one, and chmod +x {program}")
    return program.absolute()


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.  Raise SettingsError for an address that is occupied or belongs to another machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        helps = f"choose another with {Argument('host')} or {Argument('port')}"
        raise SettingsError("serve.bind", f"{host} port {port}", f"the address is unusable ({reason})", helps) from None
    except OverflowError:
        problem = f"{Argument('port', port)} is out of range"
        raise SettingsError("serve.port", "", problem, "choose 0 to 65535") from None


def _tell(listener: socket.socket, run: Path, latest: bool, token: bool) -> None:
    """Print the address, a command that asks for /forecast/latest or /sensors, and a warning for an open address."""
    host, port = listener.getsockname()[:2]
    if not token and not ip_address(host).is_loopback:
        everybody = "everybody who reaches the address can ask"
        note(Message("serve.everybody", host, everybody, f"set a token with {Argument('token_file', 'FILE')}"))
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    header = '-H "Authorization: Bearer $SOCIALX_TOKEN" ' if token else ""
    path = "forecast/latest" if latest else "sensors"
    note(Message("serve.ready", "", f"{run} is served at {address}/", f"curl {header}{address}/{path}"))
