"""Fetching the published files of a data set: a cut download goes on, a whole one is checked and moved into place."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

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
MAY_PASS = (408, 425, 429, 500, 502, 503, 504)  # answers of a server in trouble
IMPOSTORS = {b"<!doctype": "a web page", b"<html": "a web page", b"version https://git-lfs": "a Git-LFS pointer"}
MIRROR = f"try another place with {Argument('download.mirror')}"


def addresses(dataset: str, mirror: str | None) -> list[tuple[PublishedFile, str]]:
    """The files of a dataset and where to fetch each from; ``mirror``: the address of a folder that holds them all."""
    facts = published.dataset(dataset)
    if facts is None:
        raise SettingsError(dataset, "no data set that can be downloaded", f"choose {' or '.join(published.DATASETS)}")
    if mirror is not None:
        is_address = False
        with suppress(ValueError):  # a broken host or port
            parts = urlsplit(mirror)
            reachable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            is_address = bool(reachable and re.fullmatch(r"[!-~]+", mirror))
        if not is_address:
            example = "give one like https://example.org/folder"
            raise SettingsError(f"{mirror[:200]!a}", "not an http or https address", example)
    return [(file, file.url if mirror is None else f"{mirror.rstrip('/')}/{file.name}") for file in facts.files]


def fetch(
    published: PublishedFile,
    url: str,
    folder: Path,
    *,
    retries: int = 5,
    timeout_s: float = 30.0,
    overwrite: bool = False,
) -> Path:
    """Fetch a file into ``folder``; it appears there whole and checked, or not.

    What is there already and right is kept, without a request, and a note says so.  A file with a published md5 goes on
    from where an earlier call was cut, and the md5 decides whether both parts belong together.
    retries: how many times in a row it tries again without anything new; timeout_s: of connecting and of each read.
    """
    target = folder / published.name
    part = target.with_name(f".{target.name}.part")
    try:
        if target.is_file() and (published.md5 or not overwrite) and not _fault(target, published):
            what = "with the published md5" if published.md5 else "a table of positions"
            note(Message(target, f"there already, {what}", "kept"))
            return target
        check_output(target, overwrite)
        with folder_for(folder):
            part.touch()
            with exclusive(part):
                begun = published.md5 is not None and part.stat().st_size > 0
                try:
                    _receive_all(part, url, published.md5 is not None, retries, timeout_s)
                    if begun and _fault(part, published):  # another version or address has left the beginning
                        part.write_bytes(b"")
                        _receive_all(part, url, True, retries, timeout_s)
                    if fault := _fault(part, published):
                        with part.open("rb") as file:
                            head = file.read(256).lstrip().lower()
                        impostors = (kind for start, kind in IMPOSTORS.items() if head.startswith(start))
                        part.write_bytes(b"")
                        raise SocialxError(url, f"sends {next(impostors, 'another file')} ({fault})", MIRROR)
                finally:
                    if not part.stat().st_size:
                        part.unlink()
                with replacing(target) as temporary:
                    shutil.move(part, temporary)  # the target may be a link to another disk
    except OSError as error:  # the network's own errors never come this far
        raise SocialxError(target, f"cannot be written ({error.strerror})", "check the folder and its space") from error
    return target


def _fault(path: Path, published: PublishedFile) -> str:
    """Why a file is not the published one; where its md5 is not known, why it is no table of positions; "": it is."""
    if published.md5:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        return "" if digest == published.md5 else f"md5 {digest}, not {published.md5}"
    try:
        return "" if read_locations(path) else "no position"
    except SocialxError as error:
        return str(error).removeprefix(f"{path}: ").replace(": ", ", ")


def _receive_all(part: Path, url: str, resumed: bool, retries: int, timeout_s: float) -> None:
    """Try, and after a ConnectionError, which is all that another try may mend, try again."""
    furthest, failures = part.stat().st_size, 0
    while True:
        try:
            return _receive(part, url, resumed, timeout_s)
        except ConnectionError as cut:
            # A server that cannot resume may cut at one place again and again: only what is beyond it is progress.
            size = part.stat().st_size
            failures = 1 if size > furthest else failures + 1
            furthest = max(furthest, size)
            state = f"{cut}, {size if resumed else 0:,} bytes are kept"
        if failures > retries:
            raise SocialxError(url, state, f"run the same command again to go on, or {MIRROR}")
        wait_s = WAITS_S[min(failures, len(WAITS_S)) - 1]
        with work("waiting to try again", None, "B"):
            note(Message(url, state, f"trying again in {wait_s:g} s"))
            time.sleep(wait_s)


def _receive(part: Path, url: str, resumed: bool, timeout_s: float) -> None:
    """Ask once for what a part lacks, or for the whole; a cut leaves what has arrived and raises ConnectionError."""
    import requests

    size = part.stat().st_size if resumed else 0
    headers = {"User-Agent": f"socialx/{__version__}", "Accept-Encoding": "identity"}
    headers |= {"Range": f"bytes={size}-"} if size else {}
    try:
        response = requests.get(url, headers=headers, stream=True, timeout=timeout_s)
    except (requests.RequestException, ValueError) as error:  # ValueError: redirected to what is no address at all
        cause = _cause(error)
        answer = f"no answer ({str(cause)[:160]!a})"
        reached = size > 0 or isinstance(cause, ConnectionResetError)  # otherwise there is no server to begin with
        if reached and isinstance(error, requests.ConnectionError | requests.Timeout):
            raise ConnectionError(answer) from None
        raise SocialxError(url, answer, f"check the connection and the address, or {MIRROR}") from None
    with response:
        if response.status_code == 416 and size:  # there is no more
            return
        if response.status_code not in (200, 206):
            answer = f"HTTP {response.status_code} ({(response.reason or '')[:160]!a})"
            if response.status_code in MAY_PASS:
                raise ConnectionError(answer)
            raise SocialxError(url, answer, f"check the address, or {MIRROR}")
        size = size if response.status_code == 206 else 0
        length = response.headers.get("Content-Length", "")
        total = size + int(length) if length.isdecimal() else None
        with part.open("ab" if size else "wb") as file, work(f"download {url.rpartition('/')[2]}", total, "B") as bar:
            bar.advance(size)
            try:
                for block in response.iter_content(BLOCK_BYTES):
                    file.write(block)
                    bar.advance(len(block))
                    if file.tell() > MOST_BYTES:
                        file.truncate(0)
                        raise SocialxError(url, f"sends more than {MOST_BYTES:,} bytes", MIRROR)
            except requests.RequestException as error:
                raise ConnectionError(f"the connection was lost ({str(_cause(error))[:160]!a})") from None


def _cause(error: BaseException) -> BaseException:
    """The system's own error, which requests and urllib3 wrap several times."""
    while error.__context__ is not None:
        error = error.__context__
    return error
