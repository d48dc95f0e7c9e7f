"""Files that were dropped on the page: in a folder that only this user can read, checked, and gone when not needed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from fastapi import HTTPException
from starlette.concurrency import run_in_threadpool

from mcddpm.data.readers import ENDINGS
from mcddpm.viewer.results import Missing

KNOWN = (*ENDINGS, ".dcm", ".ima")
PREFIX = "mcddpm-view-"


class Uploads:
    """limit: bytes, of one file and of all that are kept."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # mode 0700
        self.lock = (self.folder / "lock").open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def sweep(self, needed: Sequence[Path]) -> None:
        """Remove what servers of this user left that were killed, but for what a job still needs."""
        for folder in self.folder.parent.glob(f"{PREFIX}*"):
            wanted = any(path.is_relative_to(folder) for path in needed)
            if folder == self.folder or wanted or not self.owns(folder):
                continue
            with contextlib.suppress(OSError), (folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its server lives
                shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def owns(path: Path) -> bool:
        """Whether a path is of an upload folder of this user, of this server or of one before it."""
        above = Path(tempfile.gettempdir()).resolve()
        try:
            place = path.resolve().relative_to(above)
            top = above / place.parts[0]
            return place.parts[0].startswith(PREFIX) and top.stat().st_uid == os.getuid()
        except (ValueError, IndexError, OSError):
            return False

    def place(self, name: str) -> Path:
        """upload:BATCH, as `keep` gave it: its one file, or the folder of several."""
        match = re.fullmatch(r"upload:([0-9a-f]{16})", name)
        folder = self.folder / match[1] if match else None
        files = sorted(folder.iterdir()) if folder is not None and folder.is_dir() else []
        if not files:
            raise Missing(f"no upload {name!r}")
        return files[0] if len(files) == 1 else files[0].parent

    async def keep(self, name: str, chunks: AsyncIterator[bytes], batch: str = "") -> str:
        """Write what arrives, as long as it is not too much. batch: add to an earlier upload, as DICOM series need."""
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", name.replace("\\", "/").rsplit("/", 1)[-1])[-120:].lstrip(".")
        if not safe.lower().endswith(KNOWN) or safe.lower() in {ending[1:] for ending in KNOWN}:
            raise HTTPException(415, f"{name!r} has none of the known endings: {', '.join(KNOWN)}")
        folder = self.folder / (batch or secrets.token_hex(8))
        if batch and not folder.is_dir():
            raise Missing(f"no upload 'upload:{batch}'")
        used = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        folder.mkdir(exist_ok=True)
        path = folder / safe
        try:
            if path.exists():
                raise HTTPException(409, f"{safe} is there already")
            with path.open("wb") as file:
                async for chunk in chunks:
                    used += len(chunk)
                    if used > self.limit:
                        raise HTTPException(413, f"uploads may take {self.limit / 1e6:g} MB together, this is more")
                    await run_in_threadpool(file.write, chunk)
        except BaseException as error:
            self.drop(folder)
            if isinstance(error, OSError):
                raise HTTPException(507, f"the file cannot be kept: {error.strerror or error}") from error
            raise
        return f"upload:{folder.name}"

    def drop(self, path: Path) -> None:
        """Forget the upload that a file or folder belongs to."""
        for parent in (path, *path.parents):
            if parent.parent == self.folder:
                shutil.rmtree(parent, ignore_errors=True)

    def close(self) -> None:
        self.lock.close()
        shutil.rmtree(self.folder, ignore_errors=True)
