"""``serve``: a run in memory behind an address, until it is interrupted."""

from __future__ import annotations

import gc
import math
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from socialx.core.disk import file_signature
from socialx.core.errors import Argument, Message, SettingsError, SocialxError
from socialx.core.help import INTERVAL, RUN, Help, with_help
from socialx.core.progress import Callback, note, subscribe
from socialx.settings.layers import ConfigLayers
from socialx.settings.schema import Settings
from socialx.tasks.build import Experiment
from socialx.tasks.predict import band_of
from socialx.tasks.train import Run
from socialx.tasks.trained_model import load_trained
from socialx.training.run_folder import folder_of, open_run

if TYPE_CHECKING:
    from socialx.serving.endpoints import Service

MIB = 1 << 20
KEEP_ALIVE_S = 75  # longer than clients and proxies keep a connection: who closes first must not be the server
BACKLOG = 2048  # connections that wait to be accepted


@with_help
def serve(
    run: Annotated[str | Path | Run, RUN],
    data: str | Path | None = None,
    *,
    follow: Annotated[
        bool, Help("look at the data file every few seconds, and forecast again when it was changed")
    ] = False,
    interval: Annotated[float | None, INTERVAL] = None,
    host: Annotated[str, Help("0.0.0.0: other machines can ask", "ADDRESS")] = "127.0.0.1",
    port: Annotated[int, Help("0: a free one", "N")] = 8000,
    token_file: Annotated[str | Path | None, Help("requests need this token; or set $SOCIALX_TOKEN", "FILE")] = None,
    allow_origin: Annotated[Sequence[str], Help("pages of this origin may ask; may be repeated", "URL")] = (),
    queue: Annotated[int, Help("requests that may wait; further ones are answered 429", "N")] = 64,
    timeout: Annotated[float, Help("requests that take longer are answered 504", "SECONDS")] = 10.0,
    max_body: Annotated[float, Help("requests that are longer are answered 413", "MIB")] = 4.0,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Any,
) -> None:
    """Answer requests for forecasts over HTTP until the process is interrupted.

    data: a file of the run's network, by default the run's own, whose latest forecast is at /forecast/latest.

    Raises SettingsError for an argument or an address that cannot be used, and SocialxError as ``predict`` does.
    """
    try:
        import uvicorn

        from socialx.serving.endpoints import make_app
        from socialx.serving.guard import read_origins, read_token
    except ImportError as error:
        found = f"serving needs the packages fastapi and uvicorn ({error.name} is not installed)"
        raise SocialxError("serve", found, "pip install 'socialx[serve]'") from None
    for name, value, least in (("queue", queue, 1), ("timeout", timeout, 0.001), ("max_body", max_body, 0.001)):
        if not least <= value < math.inf:
            raise SettingsError(Argument(name, value), "out of range", f"at least {least}")
    with _listen(host, port) as listener:  # before the run is read: an address that is taken is known at once
        with subscribe(progress):
            token = read_token(None if token_file is None else Path(token_file), os.environ)
            origins = read_origins(allow_origin)
            path = run.path if isinstance(run, Run) else Path(run)
            layers = ConfigLayers.from_call(settings, {**sections, "data": data})
            named = layers.argument("data.path")
            if follow and not named:
                raise SettingsError(Argument("follow"), "no file to follow", f"add {Argument('data.path', 'FILE.h5')}")
            served = Served(path, layers, follow, interval, queue, progress)
            service = served.make(path)
            service.token, service.origins = token, origins
            service.timeout_s, service.most_bytes = timeout, int(max_body * MIB)
            if follow:
                service.newer = served.newer
            if not named:
                found = "the map and /forecast/latest show the end of the run's own file"
                newer = f"a newer one: {Argument('data.path', 'FILE.h5')}"
                note(Message(service.experiment.data.store.path, found, newer))
            _tell(listener, path, service.latest is not None, token is not None)
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
class Served:
    """The run that is served, of which another one may take the place in its folder, or behind a link to that.

    version: of the folder whose run forecasts.  refused: versions of folder and file that gave no service, and why.
    """

    folder: Path
    layers: ConfigLayers
    follow: bool
    interval: float | None
    queue: int
    progress: Callback | None
    version: tuple[object, ...] = ()
    refused: tuple[tuple[object, ...], SocialxError] | None = None
    experiment: Experiment | None = None

    def make(self, folder: Path) -> Service:
        """The service of the run in a folder.  Raises SocialxError as ``predict`` does."""
        from socialx.serving.endpoints import make_service

        version = folder_of(self.folder).version
        run = open_run(folder)
        experiment, trained = load_trained(run, self.layers, split=False, same_missing=self.follow)
        service = make_service(experiment, folder.resolve().name, self.queue)
        if self.interval is not None:
            service.band = band_of(run, trained, experiment, self.interval, int(experiment.data.store.seconds[-1]))
        try:
            service.forecast_from_data(self.follow)
        except SocialxError as error:
            if self.layers.argument("data.path"):
                raise
            note(error.messages[0])
        self._refuse_other(experiment)
        self.version, self.experiment = version, experiment
        return service

    def newer(self) -> Service | None:
        """The service of a run that took the place of the one that forecasts; None: it is the same.

        Raises SocialxError or OSError for one that cannot be read, and SocialxError for one that does not fit.
        """
        run = folder_of(self.folder)
        now = run.version
        if now == self.version:
            return None
        files = now, file_signature(Path(str(self.layers.argument("data.path"))))
        if self.refused and self.refused[0] == files:
            raise self.refused[1]
        try:
            with subscribe(self.progress):
                service = self.make(run.path.resolve())
                note(Message(self.folder, f"the forecasts are of {service.run} now"))
                return service
        except SocialxError as error:
            self.refused = files, error
            raise

    def _refuse_other(self, experiment: Experiment) -> None:
        """Raise SocialxError where clients and requests that wait would meet another network or other windows."""
        if self.experiment is None:
            return
        names = ("network", "inputs", "targets", "step_minutes", "lookback", "horizon")
        now, then = experiment.protocol, self.experiment.protocol
        differ = [name for name in names if getattr(now, name) != getattr(then, name)]
        differ += (
            ["climatology"]
            if bool(experiment.data.train_climatology_days) != bool(self.experiment.data.train_climatology_days)
            else []
        )
        if differ:
            raise SocialxError(self.folder, f"it has another {' and '.join(differ)}", "start the server again")


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address.  Raises SettingsError where it is taken or is not of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        helps = f"choose another with {Argument('host')} or {Argument('port')}"
        raise SettingsError(f"{host} port {port}", f"it cannot be used ({reason})", helps) from None
    except OverflowError:
        raise SettingsError(Argument("port", port), "not a port", "choose 0 to 65535") from None


def _tell(listener: socket.socket, run: Path, latest: bool, token: bool) -> None:
    """One line with the address and what to type next, and one where everybody may ask."""
    host, port = listener.getsockname()[:2]
    if not token and not ip_address(host).is_loopback:
        found = "whoever reaches this address can ask"
        note(Message(host, found, f"a token keeps others out: {Argument('token_file', 'FILE')}"))
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    header = '-H "Authorization: Bearer $SOCIALX_TOKEN" ' if token else ""
    path = "forecast/latest" if latest else "sensors"
    note(Message(run, f"serving at {address}/", f"curl {header}{address}/{path}"))
