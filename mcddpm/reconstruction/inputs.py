"""What there is to reconstruct: files, folders and globs -> scans, and each of their slices as a `Measurement`.

All scans are looked at before any work is done, and none is kept open: a folder may hold thousands.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from mcddpm.data.protocols import PROTOCOLS, mask_seed
from mcddpm.data.readers import ENDINGS, open_volume
from mcddpm.data.readers.dicom import is_dicom
from mcddpm.data.volume import Volume, VolumeKind
from mcddpm.data.writers.nifti import nifti_companions
from mcddpm.physics import masks
from mcddpm.physics.fourier import fft
from mcddpm.physics.measurement import Measurement, measure_kspace
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.simulation import scans
from mcddpm.system import files
from mcddpm.system.seeds import seed_of
from mcddpm.system.settings import to_dict

FORMATS = {"h5": ".h5", "nifti": ".nii.gz", "dicom": ""}


@dataclass(frozen=True)
class Task:
    """What is asked of every scan; together with the scan it decides every number in the result.

    mask: a family of `masks.MASKS` with `acceleration`, or a file; empty: as the scan itself was sampled.
    snr: noise added to magnitude images, which get a simulated phase in any case. noise: the std of k-space's noise in
    each part, in its units; auto: as the file's noise scan or the data say. interval: the level of the lower and upper
    images to write. self_check: whether to ask of every slice if the model understands it.
    """

    model: str = "default"
    mask: str = ""
    acceleration: float = 4.0
    plan: DrawPlan = field(default_factory=DrawPlan)
    snr: float = float("inf")
    kind: VolumeKind | None = None
    coil_axis: int | None = None
    interval: float | None = None
    self_check: bool = False
    formats: tuple[str, ...] = ("h5",)
    noise: str = "auto"

    def __post_init__(self) -> None:
        for name in self.formats:
            check_format(name)
        if not self.snr > 0:
            raise ValueError(f"snr is {self.snr}, expected a value above 0")
        self.noise_given  # noqa: B018 (refuses what is no number)
        if self.interval is not None and self.plan.samples < 2:
            raise ValueError(f"--interval takes 2 samples or more, asked for {self.plan.samples}")

    @property
    def noise_given(self) -> float | None:
        """None if it is to be estimated."""
        try:
            value = None if self.noise == "auto" else float(self.noise)
        except ValueError:
            value = -1.0
        if value is not None and not 0 <= value < float("inf"):
            raise ValueError(f"noise is {self.noise}, expected auto or a std of 0 or more, in the units of k-space")
        return value

    @property
    def json(self) -> dict[str, Any]:
        """As results and folders keep it: flat, the plan's settings among the others."""
        values = to_dict(self)
        return {"model": values.pop("model"), **values.pop("plan"), **values}


def check_format(name: str) -> None:
    """Refuse a format that cannot be written here."""
    if name not in FORMATS:
        raise ValueError(f"unknown format {name}; known: {', '.join(FORMATS)}")
    library = {"nifti": "nibabel", "dicom": "pydicom"}.get(name)
    if library and importlib.util.find_spec(library) is None:
        raise ValueError(f"format {name} needs the package {library}: pip install 'mcddpm[medical]'")


@lru_cache(maxsize=2)
def _open(path: Path, kind: VolumeKind | None, coil_axis: int | None) -> Volume:
    return open_volume(path, kind=kind, coil_axis=coil_axis)


@dataclass(frozen=True)
class Scan:
    """One input, the name of its results, and how many slices it has."""

    name: str
    path: Path
    task: Task = field(repr=False)

    @property
    def volume(self) -> Volume:
        """Opened when needed; only the last ones used are held."""
        return _open(self.path, self.task.kind, self.task.coil_axis)

    @cached_property
    def slices(self) -> int:
        return len(self.volume)

    @cached_property
    def sha256(self) -> str:
        if self.path.is_file():
            return files.sha256(self.path)
        inside = sorted(file for file in self.path.rglob("*") if file.is_file())
        return hashlib.sha256("".join(map(files.sha256, inside)).encode()).hexdigest()

    def targets(self, out: Path) -> list[Path]:
        """Its results, one a format."""
        return [out / f"{self.name}{FORMATS[name]}" for name in self.task.formats]

    def products(self, out: Path) -> list[Path]:
        """All that is written for it: the results and what comes with them."""
        targets = self.targets(out)
        beside = [path for t in targets if t.name.endswith(".nii.gz") for path in nifti_companions(t).values()]
        return [*targets, *beside]

    def measurement(self, index: int) -> Measurement | None:
        """A slice as it was sampled, or under-sampled as asked; None if there is nothing in it."""
        volume, task = self.volume, self.task
        x = volume[index]
        if not x.any():
            return None
        mask = self.mask(index) if task.mask else None
        if volume.kind == "kspace":
            return PROTOCOLS["fastmri"](volume, index, task.acceleration, mask, task.noise_given)
        std, source = task.noise_given, "given"
        if not x.is_complex():
            if x.min() < 0:
                raise ValueError("it holds negative values, as CT does; expected the magnitude of an MR image")
            if std is None:
                std, source = scans.noise_std(x, task.snr), "simulated"
            x = scans.scan(x, self.seed(index, "phase"), snr=task.snr)
        assert mask is not None
        return measure_kspace(fft(x), mask, noise=std, noise_from=source, truth=x)  # type: ignore[arg-type]

    def mask(self, index: int) -> Tensor:
        """Seeded by the scan and not by `seed`: other samples are of the same measurement."""
        seed = mask_seed(self.path, index)
        return masks.get(self.task.mask, self.volume.shape[-2:], acceleration=self.task.acceleration, seed=seed)

    def seed(self, index: int, what: str = "samples") -> int:
        return seed_of(
            self.task.plan.seed if what == "samples" else 0, zlib.crc32(f"{what} {self.name}".encode()), index
        )


def find(inputs: Sequence[str], out: Path, task: Task) -> list[Scan]:
    """All scans of these files, folders and globs, each opened and checked; those in `out` are results, not inputs."""
    places: dict[str, Path] = {}
    for given in inputs:
        matches = [given] if Path(given).exists() else sorted(glob.glob(given, recursive=True))  # noqa: PTH207
        if not matches:
            raise ValueError(f"no file or folder {given}")
        for match in matches:
            for name, path in _within(Path(match), out):
                if places.setdefault(name, path).resolve() != path.resolve():
                    raise ValueError(f"{places[name]} and {path} would both be written as {name}; give them apart")
    if not places:
        raise ValueError("nothing to reconstruct: expected at least one file or folder")
    scans = [Scan(name, path, task) for name, path in places.items()]
    for scan in scans:
        _check(scan)
    _check_apart(scans, out)
    return scans


def _within(path: Path, out: Path) -> Iterator[tuple[str, Path]]:
    """(name, path) of a file, or of all scans in a folder, named by their place in it. Each folder that has DICOM files
    in it is a scan."""
    if path.is_file():
        yield _name(path.name), path
        return
    results, series = out.resolve(), set[Path]()
    result = False
    for file in sorted(path.rglob("*")):
        place = file.relative_to(path)
        hidden = any(part.startswith(".") for part in place.parts)
        if hidden or not file.is_file() or results in file.resolve().parents:
            continue
        if _name(file.name) != file.name:
            yield _name(str(place)), file
        elif file.parent not in series and is_dicom(file):
            series.add(file.parent)
            yield path.resolve().name if file.parent == path else str(place.parent), file.parent
        else:
            continue
        result = True
    if not result:
        yield path.resolve().name, path  # which the readers refuse, saying why


def _name(file: str) -> str:
    """Without the ending of a format that holds a whole scan."""
    for ending in ENDINGS:
        if file.lower().endswith(ending):
            return file[: -len(ending)]
    return file


def _check(scan: Scan) -> None:
    volume, task = scan.volume, scan.task
    assert scan.slices
    if not task.mask and (volume.kind != "kspace" or volume.mask is None):
        what = "k-space, fully sampled" if volume.kind == "kspace" else "images and no k-space"
        raise ValueError(
            f"{volume.path} holds {what}; for a retrospective study say how to under-sample it: "
            "--mask random_columns --acceleration 4"
        )
    if task.mask and volume.mask is not None:
        factor = f"{masks.acceleration(volume.mask):.1f}x"
        raise ValueError(f"{volume.path} was under-sampled {factor} when it was measured; leave out --mask")
    if task.mask:
        masks.check(scan.mask(0), volume.shape[-2:])


def _check_apart(scans: Sequence[Scan], out: Path) -> None:
    """No two scans write the same file, and none a folder that another's results lie in."""
    owner: dict[Path, Scan] = {}
    for scan in scans:
        for path in scan.products(out):
            other = owner.setdefault(path, scan)
            if other is not scan:
                raise ValueError(f"{other.path} and {scan.path} would both write {path}; give them apart")
    for path, scan in owner.items():
        inside = next((owner[parent] for parent in path.parents if parent in owner), None)
        if inside is not None:
            raise ValueError(f"{inside.path} would write a folder that results of {scan.path} lie in; give them apart")
