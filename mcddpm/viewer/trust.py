"""Files of others: refused if they would make a reader open something else on this machine."""

from __future__ import annotations

from pathlib import Path

import h5py


def check(path: Path) -> None:
    """A file, or a folder of files, that holds all it is about by itself."""
    if path.is_dir():
        for file in path.iterdir():
            check(file)
        return
    name = path.name.lower()
    if name.endswith(".nhdr"):
        raise ValueError(f"{path.name} is a header whose data lie in another file; give one .nrrd with both")
    if name.endswith(".nrrd"):
        header = path.read_bytes()[:65536].split(b"\n\n", 1)[0].replace(b"\r", b"").lower()
        fields = [line.split(b":", 1)[0].replace(b" ", b"") for line in header.split(b"\n")]
        if b"datafile" in fields:
            raise ValueError(f"{path.name} names another file for its data; give one file with both")
    if name.endswith((".h5", ".hdf5")) and h5py.is_hdf5(path):
        with h5py.File(path) as file:
            if foreign := _foreign(file):
                raise ValueError(f"{path.name} refers to another file at {foreign}; give one file with everything")


def _foreign(group: h5py.Group) -> str:
    """The first entry that lies in another file, or nothing."""
    for name in group:
        if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
            return f"{group.name.rstrip('/')}/{name}"
        entry = group.get(name)
        if isinstance(entry, h5py.Dataset) and (entry.is_virtual or entry.external):
            return entry.name
        if isinstance(entry, h5py.Group) and (result := _foreign(entry)):
            return result
    return ""
