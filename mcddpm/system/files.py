"""Files that are whole or not there, one process at a time, and what is in them by hash: the one atomic write."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from mcddpm.system.processes import here, is_gone


@contextlib.contextmanager
def whole(path: Path, *, fresh: bool = False) -> Iterator[Path]:
    """A file or folder that is whole or not there: filled beside its place under a name of this process (which keeps
    its endings), flushed, then moved. It takes the place of what was there; `fresh` refuses that instead."""
    if fresh:
        refuse(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for torn in path.parent.glob(f".*.{glob.escape(path.name)}"):
        _remove_torn(torn, path.name)
    part = path.with_name(f".{here()}.{path.name}")
    remove(part)
    try:
        yield part
        for file in [*part.rglob("*"), part]:
            flush(file)
        _take_place(part, path)
        flush(path.parent)
    finally:
        remove(part)


def _take_place(part: Path, path: Path) -> None:
    if not path.is_dir():
        part.replace(path)
        return
    old = path.with_name(f".{here()}-old.{path.name}")  # a folder cannot be replaced in one move
    path.rename(old)
    part.rename(path)
    remove(old)


def refuse(path: Path) -> None:
    if path.exists():
        raise ValueError(f"{path} is there already; it is not overwritten. Choose another name, or remove it")


def remove(path: Path) -> None:
    """A file, a folder, or nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what killed processes of this machine were writing in a folder."""
    for torn in folder.glob(".*.*"):
        _remove_torn(torn, torn.name[1:].partition(".")[2])


def _remove_torn(torn: Path, name: str) -> None:
    writer, path = torn.name[1:].removesuffix(f".{name}"), torn.with_name(name)
    if is_gone(writer) and writer.endswith("-old") and not path.exists():
        torn.rename(path)  # it was killed between the two moves
    elif is_gone(writer):
        remove(torn)


def flush(path: Path) -> None:
    """A file or folder onto the disk, before it gets its name: a power cut must not leave an empty one under it."""
    if os.name == "nt" and path.is_dir():  # there, folders cannot be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str, *, fresh: bool = False) -> Path:
    with whole(path, fresh=fresh) as part:
        part.write_text(text)
    return path


def write_json(path: Path, content: Any, *, fresh: bool = False) -> Path:
    return write_text(path, json.dumps(content, indent=1) + "\n", fresh=fresh)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time, on systems that know flock; a process that dies lets go of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_writable(folder: Path) -> None:
    """Find out now, not at the first result, that nothing can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{here()}"
        probe.write_bytes(b"\0" * 65536)
        probe.unlink()
    except OSError as error:
        raise ValueError(f"cannot write to the folder {folder}: {error.strerror}") from error


def check_space(run: Path, checkpoint_bytes: int) -> None:
    """Two checkpoints are kept while the third is written."""
    free = shutil.disk_usage(run).free
    if free < 3 * checkpoint_bytes:
        raise ValueError(
            f"{run} has {free / 1e6:.0f} MB free, but this run's checkpoints need {3 * checkpoint_bytes / 1e6:.0f} MB"
        )


# --- hashes ---------------------------------------------------------------------------------------------------------


def sha256(path: Path) -> str:
    """A file's, read once for as long as it keeps its time and size: files are large, and asked for slice by slice."""
    result = path.stat()
    return _sha256(path, result.st_mtime_ns, result.st_size)


@lru_cache(maxsize=4096)
def _sha256(path: Path, time: int, size: int) -> str:
    return sha256_now(path)


def sha256_now(path: Path) -> str:
    """Of a file that was just written: another of its size may have had its name within one tick of the clock."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def fingerprint(content: Any) -> str:
    """The first digits of a sha256, of plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
