"""Downloads from a real server on this machine that can be told to misbehave."""

import hashlib
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from socialx.core.errors import SettingsError
from socialx.core.progress import Event, Note, Work, subscribe
from socialx.files.sources import download
from socialx.files.sources.download import addresses, fetch
from socialx.files.store.published import DATASETS, PublishedFile
from tests.data_files import refusal, room_for, shown, write_stations

CONTENT = bytes(range(256)) * 40  # 10,240 bytes
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
NAME = "SPEEDS.csv"


class Site:
    """One file on a server, its faults, and what was asked of it."""

    def __init__(self) -> None:
        self.url = ""
        self.content = CONTENT
        self.cuts: list[int] = []  # of each response in turn, the bytes after which it ends
        self.always_cut: int | None = None
        self.way = "close"  # how it is cut
        self.statuses: list[int] = []  # of each response in turn, in place of 200
        self.framing = "length"
        self.redirects: dict[str, str] = {}
        self.seen: list[dict[str, str]] = []
        self.over = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        site, self.close_connection = self.site, True
        site.seen.append({"path": self.path} | {name.lower(): value for name, value in self.headers.items()})
        if to := site.redirects.get(self.path):
            return self._answer(302, b"", Location=to)
        if (status := site.statuses.pop(0) if site.statuses else 200) != 200:
            return self._answer(status, b"sorry") if status else None  # None: the connection ends without a word
        self._answer(200, site.content)

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        site = self.site
        self.send_response(status)
        self.send_header("Connection", "close")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if site.framing == "length" or status >= 300:
            self.send_header("Content-Length", str(len(body)))
        if site.framing == "chunks":
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        cut = site.always_cut
        if site.cuts and status < 300:
            cut = site.cuts.pop(0)
        sent = body[:cut]
        if site.framing == "chunks":
            sent = b"%x\r\n%b\r\n" % (len(sent), sent) + (b"0\r\n\r\n" if cut is None else b"")
        self.wfile.write(sent)
        self.wfile.flush()
        if cut is not None and site.way == "stall":
            site.over.wait(5)
        if cut is not None and site.way == "reset":
            site.over.wait(0.05)  # what was sent must arrive before the reset throws it away
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


class Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        pass  # of a connection that a test has reset


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "WAITS_S", (0.0,) * 5)
    monkeypatch.setattr(download, "BLOCK_BYTES", 500)  # what a cut leaves ends with a whole block
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    server = Server(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"site": site}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield site
    finally:
        site.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def published(md5: str | None = MD5, name: str = NAME) -> PublishedFile:
    return PublishedFile(name, md5, "https://example.invalid/file")


@pytest.fixture
def events() -> Iterator[list[Event]]:
    """What a test's downloads tell whoever listens."""
    found: list[Event] = []
    with subscribe(found.append):
        yield found


def noted(events: list[Event]) -> str:
    """The notes, as the command line shows them."""
    return "\n".join(shown(event.message for event in events if isinstance(event, Note)))


def get(site: Site, folder: Path, md5: str | None = MD5, name: str = NAME, **options: object) -> Path:
    return fetch(published(md5, name), f"{site.url}/{name}", folder, **options)  # type: ignore[arg-type]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("framing", ["length", "none", "chunks", "redirect"])
def test_the_whole_file(site: Site, tmp_path: Path, framing: str, events: list[Event]) -> None:
    folder, total = tmp_path / "new" / "folder", len(CONTENT) if framing in ("length", "redirect") else None
    site.redirects = {f"/{NAME}": "/elsewhere/x"} if framing == "redirect" else {}
    site.framing = "length" if framing == "redirect" else framing
    assert (get(site, folder), (folder / NAME).read_bytes(), names(folder)) == (folder / NAME, CONTENT, [NAME])
    assert [asked["path"] for asked in site.seen] == [f"/{NAME}", *site.redirects.values()]
    assert site.seen[0]["user-agent"].startswith("socialx/")
    steps = [event for event in events if isinstance(event, Work)]
    assert {(step.name, step.total, step.unit) for step in steps} == {(f"download {NAME}", total, "B")}
    assert (steps[0].done, steps[-1].done, steps[-1].finished) == (0, len(CONTENT), True)


@pytest.mark.parametrize("way", ["close", "reset", "stall"])
def test_a_cut_file_is_fetched_anew(site: Site, tmp_path: Path, way: str, events: list[Event]) -> None:
    site.cuts, site.way = [4000, 3000], way
    get(site, tmp_path, timeout_s=0.15)
    assert ((tmp_path / NAME).read_bytes(), names(tmp_path), len(site.seen)) == (CONTENT, [NAME], 3)
    assert noted(events).count("trying again in 0 s") == 2


# What a server does, what is said of it, and how often it is asked.
REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...], int]] = {
    "always cut": ({"always_cut": 4000}, ("the connection was lost", "run the same"), 6),
    "other content": ({"content": CONTENT[::-1]}, ("another file", MD5), 1),
    "nothing": ({"content": b""}, ("another file", MD5), 1),
    "a page": ({"content": b"\n<!DOCTYPE html><p>login</p>"}, ("a web page", MD5), 1),
    "a pointer": (
        {"content": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"},
        ("a Git-LFS pointer",),
        1,
    ),
    "too much": ({"content": CONTENT * 2}, ("more than 15,000 bytes",), 1),
    "too much of unknown length": ({"content": CONTENT * 2, "framing": "none"}, ("more than 15,000 bytes",), 1),
    "in trouble": ({"statuses": [500] * 10}, ("HTTP 500", "again"), 6),
    **{str(status): ({"statuses": [status]}, (f"HTTP {status}",), 1) for status in (404, 403, 401, 410, 204)},
    **{
        to: ({"redirects": {f"/{NAME}": to}}, (to,), 1)
        for to in ("ftp://127.0.0.1/x", "file:///etc/passwd", "data:text/plain,x")
    },
    "round in circles": ({"redirects": {f"/{NAME}": f"/{NAME}"}}, (), 31),
    "to no address": ({"redirects": {f"/{NAME}": "http://["}}, (), 1),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_the_file_is_refused_and_leaves_nothing(
    site: Site, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    does, words, asked = REFUSED[case]
    monkeypatch.setattr(download, "MOST_BYTES", 15_000)
    vars(site).update(does)
    refusal(lambda: get(site, tmp_path), f"{site.url}/{NAME}", *words, "--mirror")
    assert (len(site.seen), names(tmp_path)) == (asked, [])


def test_without_md5_it_must_be_a_table_of_locations(site: Site, tmp_path: Path) -> None:
    site.content = write_stations(tmp_path / "META.csv").read_bytes()
    (tmp_path / "META.csv").unlink()
    assert get(site, tmp_path, None, "META.csv").read_bytes() == site.content
    get(site, tmp_path, None, "META.csv")  # kept: it is a table of positions
    assert len(site.seen) == 1
    site.content = b"<html>not here</html>"
    line = refusal(lambda: get(site, tmp_path, None, "META.csv", overwrite=True), "a web page", "no table", "--mirror")
    assert ".tmp" not in line
    assert names(tmp_path) == ["META.csv"]
    assert (tmp_path / "META.csv").read_bytes().startswith(b"sensor_id")


def test_what_is_there_is_kept(site: Site, tmp_path: Path, events: list[Event]) -> None:
    (tmp_path / NAME).write_bytes(CONTENT)
    for overwrite in (False, True):
        events.clear()
        assert get(site, tmp_path, overwrite=overwrite) == tmp_path / NAME
        assert noted(events).startswith(f"{tmp_path / NAME}: ")
    assert not site.seen
    assert names(tmp_path) == [NAME]


def test_another_file_there_is_replaced_only_when_asked(site: Site, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"mine")
    refusal(lambda: get(site, tmp_path), "exists already", "--overwrite")
    assert (tmp_path / NAME).read_bytes() == b"mine"
    assert not site.seen
    get(site, tmp_path, overwrite=True)
    assert ((tmp_path / NAME).read_bytes(), names(tmp_path)) == (CONTENT, [NAME])


def test_a_server_in_trouble_is_asked_again(site: Site, tmp_path: Path) -> None:
    site.statuses = [500, 503, 0]
    get(site, tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_no_server(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[Event]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/{NAME}"
        refusal(lambda: fetch(published(), url, tmp_path), url, "refused", "--mirror")

    def lookup(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lookup)
        refusal(lambda: fetch(published(), "http://example.invalid/file", tmp_path), "Name or service", "--mirror")
    assert names(tmp_path) == []
    assert "again" not in noted(events)


def test_a_network_that_went_away_may_come_back(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[Event]
) -> None:
    known = socket.getaddrinfo

    def lookup(*arguments: Any, **options: Any) -> Any:
        if len(site.seen) == 1 and noted(events).count("trying again") == 1:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(*arguments, **options)

    site.cuts = [4000]
    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    get(site, tmp_path)
    assert "service" in noted(events)
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_a_folder_that_cannot_be_written(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        refusal(lambda folder=folder: get(site, folder), str(folder / NAME), "cannot be written", "check the folder")  # type: ignore[misc]
    (tmp_path / NAME).mkdir()
    refusal(lambda: get(site, tmp_path), NAME, "a folder")
    assert not site.seen


@pytest.mark.parametrize("framing", ["length", "none"])
def test_a_full_disk_leaves_nothing(site: Site, tmp_path: Path, framing: str) -> None:
    site.framing = framing
    with room_for(10_000):
        refusal(lambda: get(site, tmp_path), NAME, "cannot be written", "File too large", "disk")
    assert names(tmp_path) == []


def test_an_interrupt_leaves_nothing(site: Site, tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, Work) and event.done >= 4000 and not event.finished:
            raise KeyboardInterrupt

    with subscribe(interrupt), pytest.raises(KeyboardInterrupt):
        get(site, tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "url",
    ["", "x", "ftp://h/f", "file:///etc/passwd", "http://", "http://h:x/", "http://[h/", "http://h/a b", "http://ü/"],
)
def test_only_web_addresses(url: str) -> None:
    refusal(lambda: addresses("metr-la", url), "address")
    with pytest.raises(SettingsError):
        addresses("metr-la", url)


def test_addresses() -> None:
    for dataset, files in ((name, facts.files) for name, facts in DATASETS.items()):
        assert addresses(dataset, None) == [(file, file.url) for file in files]
        for mirror in ("https://example.org/a", "https://example.org/a/"):
            assert [url for _, url in addresses(dataset, mirror)] == [f"https://example.org/a/{f.name}" for f in files]
        assert all(file.url.startswith("https://") and file.url.endswith(f"/{file.name}") for file in files)
        assert all(file.md5 is None or len(bytes.fromhex(file.md5)) == 16 for file in files)
        assert all(file.md5 for file in files[:-1])  # a second run refuses what has none, and stops there
    for name, alias in (("metr-la", "METR_LA"), ("metr-la", "la"), ("metr-la", " metr-la "), ("pems-bay", "bay")):
        assert addresses(alias, None) == addresses(name, None)
    for name in ("metr-sf", "npy"):
        assert refusal(lambda name=name: addresses(name, None), name, "pems-bay").code == "fetch.unknown"
    with pytest.raises(SettingsError):
        addresses("metr-sf", None)
