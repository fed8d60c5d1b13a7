"""Fetching the published files of a data set: a cut download is resumed, a whole one checked and moved into place."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from socialx import __version__
from socialx.disk import check_output, exclusive, folder_for, replacing
from socialx.errors import Argument, Message, SettingsError, SocialxError
from socialx.files import published
from socialx.files.locations import read_locations
from socialx.files.published import PublishedFile
from socialx.progress import note, work

BLOCK_BYTES = 1 << 16
MOST_BYTES = 4 << 30  # far above any published file: a server that sends without end must not fill the disk
WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # before the first, second, ... try without progress; then always the last one
IMPOSTORS = {b"<!doctype": "a web page", b"<html": "a web page", b"version https://git-lfs": "a Git-LFS pointer"}
MIRROR = ("try another place with ", Argument("download.mirror"))


def addresses(dataset: str, mirror: str | None) -> list[tuple[PublishedFile, str]]:
    """The files of a dataset and where to fetch each from; ``mirror``: the address of a folder that holds them all."""
    found = published.dataset(dataset)
    if found is None:
        raise SettingsError(dataset, "no data set that can be downloaded", f"choose {' or '.join(published.DATASETS)}")
    if mirror is not None:
        _check_address(mirror)
    return [(file, file.url if mirror is None else f"{mirror.rstrip('/')}/{file.name}") for file in found.files]


def fetch(
    published: PublishedFile,
    url: str,
    folder: Path,
    *,
    retries: int = 5,
    timeout_s: float = 30.0,
    overwrite: bool = False,
) -> Path:
    """Fetch a file into ``folder``, from where an earlier call was cut; it appears there whole and checked, or not.

    What is there already and right is kept, without a request, and a note says so.
    retries: how many times in a row it tries again without anything new; timeout_s: of connecting and of each read.
    """
    _check_address(url)
    target = folder / published.name
    try:
        if target.is_file() and (published.md5 or not overwrite) and _is_right(target, published):
            found = "with the published md5" if published.md5 else "a table of positions"
            note(Message(target, f"there already, {found}", "kept"))
            return target
        check_output(target, overwrite)
        with folder_for(folder):
            _fetch(published, url, target, retries, timeout_s)
    except OSError as error:  # the network's own errors never come this far
        raise SocialxError(target, f"cannot be written ({error.strerror})", "check the folder and its space") from error
    return target


def _fetch(published: PublishedFile, url: str, target: Path, retries: int, timeout_s: float) -> None:
    """Receive what is lacking, check the whole and move it to its place."""
    path = target.with_name(f".{target.name}.part")
    path.touch()
    with exclusive(path), path.open("ab", buffering=0) as file:  # unbuffered: what was counted is there to stay
        part = _Part(path, url, file)
        try:
            _receive_all(part, retries, timeout_s)
            _check_content(part, published)
            part.sidecar.unlink(missing_ok=True)
            with replacing(target) as temporary:
                shutil.move(path, temporary)  # the target may be a link to another disk
        finally:
            if not part.size():  # a moved one is not empty
                part.sidecar.unlink(missing_ok=True)
                path.unlink()


def _check_address(url: str) -> None:
    with suppress(ValueError):  # a broken host or port
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and re.fullmatch(r"[!-~]+", url):
            return
    raise SettingsError(f"{url[:200]!a}", "not an http or https address", "give one like https://example.org/folder")


def _is_right(path: Path, published: PublishedFile) -> bool:
    """Whether a file has the published md5 or, where that is unknown, is a table of positions."""
    if published.md5:
        return _md5(path) == published.md5
    with suppress(SocialxError):
        return bool(read_locations(path))
    return False


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


class _Part:
    """What has arrived of a file and, in a sidecar, from where, of which version and of how many bytes."""

    def __init__(self, path: Path, url: str, file: IO[bytes]) -> None:
        self.path, self.sidecar, self.url, self.file = path, path.with_name(f"{path.name}.json"), url, file
        self.validator: str | None = None
        self.total: int | None = None  # where the server does not tell these two, nothing can be resumed
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            left = json.loads(self.sidecar.read_text(encoding="utf-8"))
            if left["url"] == url and self.size() <= left["total"]:
                self.validator, self.total = left["validator"], left["total"]
        if self.total is None:
            file.truncate(0)

    def size(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def start(self, response: HTTPResponse) -> None:
        """Begin anew with the whole file that a response brings."""
        self.file.truncate(0)
        self.validator, self.total = _validator(response), response.length
        left = {"url": self.url, "validator": self.validator, "total": self.total}
        self.sidecar.write_text(json.dumps(left), encoding="utf-8")

    def goes_on_with(self, response: HTTPResponse) -> bool:
        """Whether a 206 brings what follows here, of the same version of the file."""
        span = re.fullmatch(r"bytes ([0-9]+)-[0-9]+/([0-9]+|\*)", response.headers.get("Content-Range", ""))
        same = _validator(response) in (None, self.validator)
        return same and span is not None and int(span[1]) == self.size() and span[2] in ("*", str(self.total))


def _validator(response: HTTPResponse) -> str | None:
    """What If-Range may name: a strong ETag, or else the date."""
    tag = response.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


def _receive_all(part: _Part, retries: int, timeout_s: float) -> None:
    """Try, and after a ConnectionError, which is all that another try may mend, try again."""
    furthest, failures = part.size(), 0
    while not part.size() or part.size() != part.total:
        try:
            return _receive(part, timeout_s)
        except ConnectionError as cut:
            # A server that cannot resume may cut at one place again and again: only what is beyond it is progress.
            failures = 1 if part.size() > furthest else failures + 1
            furthest = max(furthest, part.size())
            state = f"{cut}, {part.size():,} bytes are kept"
        if failures > retries:
            raise SocialxError(part.url, state, ("run the same command again to go on, or ", *MIRROR))
        wait_s = WAITS_S[min(failures, len(WAITS_S)) - 1]
        with work("waiting to try again", None, "B"):
            note(Message(part.url, state, f"trying again in {wait_s:g} s"))
            time.sleep(wait_s)


def _receive(part: _Part, timeout_s: float) -> None:
    """Bring the part to its whole size; a cut leaves what has arrived."""
    wanted = {}
    if part.size() and part.validator and part.total:
        wanted = {"Range": f"bytes={part.size()}-", "If-Range": part.validator}
    with _open(part.url, wanted, timeout_s) as response:
        if response.status == 200:
            part.start(response)
        elif not part.goes_on_with(response):
            response.close()
            part.file.truncate(0)
            return _receive(part, timeout_s)
        most = MOST_BYTES if part.total is None else part.total
        with work(f"download {part.url.rpartition('/')[2]}", part.total, "B") as bar:
            bar.advance(part.size())
            for block in _blocks(response):
                if most > MOST_BYTES or part.size() + len(block) > most:
                    part.file.truncate(0)
                    raise SocialxError(part.url, f"sends more than {min(most, MOST_BYTES):,} bytes", MIRROR)
                bar.advance(len(block))
                while block:  # before a disk is full a write may be short
                    block = block[part.file.write(block) :]
    if part.total is not None and part.size() < part.total:
        raise ConnectionError(f"the connection ended before byte {part.total:,}")


def _blocks(response: HTTPResponse) -> Iterator[bytes]:
    try:
        while block := response.read1(BLOCK_BYTES):
            yield block
    except (OSError, HTTPException) as error:
        raise ConnectionError(f"the connection was lost ({str(error)[:160]!a})") from None


def _open(url: str, headers: dict[str, str], timeout_s: float) -> HTTPResponse:
    """A 200, or a 206 to ``headers`` that ask for a range."""
    request = Request(url, headers={"User-Agent": f"socialx/{__version__}"} | headers)  # noqa: S310 - checked
    try:
        response: HTTPResponse = build_opener(_Redirects).open(request, timeout=timeout_s)
        if response.status == 200 or (response.status == 206 and headers):
            return response
        raise HTTPError(url, response.status, response.reason, response.headers, response)
    except HTTPError as error:
        error.close()
        answer = f"HTTP {error.code} ({str(error.reason)[:160]!a})"
        if error.code == 416 and headers:  # the file ends before the part
            return _open(url, {}, timeout_s)
        if error.code in (408, 425, 429, 500, 502, 503, 504):  # trouble that may pass
            raise ConnectionError(answer) from None
        raise SocialxError(url, answer, ("check the address, or ", *MIRROR)) from None
    except (OSError, HTTPException, ValueError) as error:  # ValueError: redirected to what is no address at all
        answer = f"no answer ({str(getattr(error, 'reason', error))[:160]!a})"
        if isinstance(error, URLError) and not headers:  # no server to begin with
            raise SocialxError(url, answer, ("check the connection and the address, or ", *MIRROR)) from None
        raise ConnectionError(answer) from None


class _Redirects(HTTPRedirectHandler):
    """Follows to http and https alone: urllib refuses most others itself, but not ftp."""

    def redirect_request(self, req: Request, *rest: Any, **named: Any) -> Request | None:
        request = super().redirect_request(req, *rest, **named)
        if request and request.type not in ("http", "https"):
            raise SocialxError(req.full_url, f"redirects to {request.full_url[:160]!a}, not http or https", MIRROR)
        return request


def _check_content(part: _Part, published: PublishedFile) -> None:
    """Refuse, and drop, what is not the published file."""
    try:
        if published.md5 is None:
            read_locations(part.path)
            return
        if (found := _md5(part.path)) == published.md5:
            return
        fault = f"md5 {found}, not {published.md5}"
    except SocialxError as error:
        fault = str(error).removeprefix(f"{part.path}: ").replace(": ", ", ")
    with part.path.open("rb") as file:
        head = file.read(256).lstrip().lower()
    likeness = [kind for start, kind in IMPOSTORS.items() if head.startswith(start)] or ["another file"]
    part.file.truncate(0)
    raise SocialxError(part.url, f"sends {likeness[0]} ({fault})", MIRROR)
