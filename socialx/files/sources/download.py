"""Download published data set files; a complete file is checked and moved into place."""

from __future__ import annotations

import hashlib
import re
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from socialx.core.disk import atomic_write, check_output
from socialx.core.errors import Argument, Message, SettingsError, SocialxError
from socialx.core.progress import note, work
from socialx.core.version import __version__
from socialx.files.sources.positions.locations import read_locations
from socialx.files.store import published
from socialx.files.store.published import PublishedFile

BLOCK_BYTES = 1 << 16
MOST_BYTES = 4 << 30  # far above any published file: a server that sends without end must not fill the disk
WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # before the second, third, ... try
MAY_PASS = (408, 425, 429, 500, 502, 503, 504)  # temporary server errors
IMPOSTORS = {b"<!doctype": "a web page", b"<html": "a web page", b"version https://git-lfs": "a Git-LFS pointer"}
MIRROR = Argument("mirror")


def addresses(dataset: str, mirror: str | None) -> list[tuple[PublishedFile, str]]:
    """Return the files of a data set with their addresses; ``mirror``: a folder URL that holds all files."""
    facts = published.dataset(dataset)
    if facts is None:
        problem = "this data set cannot be downloaded"
        raise SettingsError("fetch.unknown", dataset, problem, f"choose {' or '.join(published.DATASETS)}")
    if mirror is not None:
        is_address = False
        with suppress(ValueError):  # a broken host or port
            parts = urlsplit(mirror)
            reachable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            is_address = bool(reachable and re.fullmatch(r"[!-~]+", mirror))
        if not is_address:
            example = "give one like https://example.org/folder"
            raise SettingsError("fetch.address", f"{mirror[:200]!a}", "this is not an http or https address", example)
    return [(file, file.url if mirror is None else f"{mirror.rstrip('/')}/{file.name}") for file in facts.files]


def fetch(
    published: PublishedFile, url: str, folder: Path, *, timeout_s: float = 30.0, overwrite: bool = False
) -> Path:
    """Fetch ``published`` from the address ``url`` into ``folder``; a complete and checked file appears, or nothing.

    A correct existing file is kept, with a note. timeout_s: seconds for connecting and for each read. overwrite:
    replace a file that is wrong or has no known md5. Raises SocialxError also where the server sends another file.
    """
    target = folder / published.name
    try:
        if target.is_file() and (published.md5 or not overwrite) and not _fault(target, published):
            state = "with the published md5" if published.md5 else "a table of positions"
            note(f"{target}: the file is there already, {state}, and was kept")
            return target
        check_output(target, overwrite)
        with atomic_write(target) as temporary:
            _receive(temporary, url, timeout_s)
            if fault := _fault(temporary, published):
                with temporary.open("rb") as file:
                    head = file.read(256).lstrip().lower()
                impostors = (kind for start, kind in IMPOSTORS.items() if head.startswith(start))
                problem = f"the server sends {next(impostors, 'another file')} ({fault})"
                raise SocialxError("fetch.other-content", url, problem, f"try another server with {MIRROR}")
    except OSError as error:  # the network's own errors never come this far
        problem = f"the file cannot be written ({error.strerror})"
        raise SocialxError("fetch.unwritable", target, problem, "check the folder and disk") from error
    return target


def _fault(path: Path, published: PublishedFile) -> str:
    """Return the mismatch with the published md5, or with a locations table; "" where the file is right."""
    if published.md5:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        return "" if digest == published.md5 else f"md5 {digest}, not {published.md5}"
    try:
        return "" if read_locations(path) else "no position"
    except SocialxError as error:
        return error.messages[0].problem


def _receive(path: Path, url: str, timeout_s: float) -> None:
    """Download ``url`` to ``path``, with up to five retries; ``timeout_s``: seconds for connecting and each read."""
    for failures in range(1, len(WAITS_S) + 2):
        try:
            return _receive_once(path, url, timeout_s, again=failures > 1)
        except ConnectionError as lost:
            state = str(lost)
        if failures <= len(WAITS_S):
            wait_s = WAITS_S[failures - 1]
            with work("waiting to try again", None, "B"):
                note(Message("fetch.again", url, f"{state}: trying again in {wait_s:g} s"))
                time.sleep(wait_s)
    raise SocialxError("fetch.lost", url, state, f"run the same command again, or try another server with {MIRROR}")


def _receive_once(path: Path, url: str, timeout_s: float, again: bool) -> None:
    """Download once; raise ConnectionError where a retry may help. again: an earlier try reached the server."""
    import requests

    headers = {"User-Agent": f"socialx/{__version__}", "Accept-Encoding": "identity"}
    try:
        response = requests.get(url, headers=headers, stream=True, timeout=timeout_s)
    except (requests.RequestException, ValueError) as error:  # ValueError: redirected to an invalid address
        cause = _cause(error)
        answer = f"the server gave no answer ({str(cause)[:160]!a})"
        reached = again or isinstance(cause, ConnectionResetError)
        if reached and isinstance(error, requests.ConnectionError | requests.Timeout):
            raise ConnectionError(answer) from None
        remedy = f"check the connection and the address, or try another server with {MIRROR}"
        raise SocialxError("fetch.no-answer", url, answer, remedy) from None
    with response:
        if response.status_code != 200:
            answer = f"the server answered HTTP {response.status_code} ({(response.reason or '')[:160]!a})"
            if response.status_code in MAY_PASS:
                raise ConnectionError(answer)
            raise SocialxError("fetch.status", url, answer, f"check the address, or try another server with {MIRROR}")
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        with path.open("wb") as file, work(f"download {url.rpartition('/')[2]}", total, "B") as bar:
            try:
                for block in response.iter_content(BLOCK_BYTES):
                    file.write(block)
                    bar.advance(len(block))
                    if file.tell() > MOST_BYTES:
                        problem = f"the server sends more than {MOST_BYTES:,} bytes"
                        raise SocialxError("fetch.too-large", url, problem, f"try another server with {MIRROR}")
            except requests.RequestException as error:
                raise ConnectionError(f"the connection was lost ({str(_cause(error))[:160]!a})") from None


def _cause(error: BaseException) -> BaseException:
    """Return the root error behind the requests and urllib3 wrappers."""
    while error.__context__ is not None:
        error = error.__context__
    return error
