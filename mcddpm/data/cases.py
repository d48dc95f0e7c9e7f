"""What methods are compared on: slices of people at accelerations, each measured in the same way for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from mcddpm import metrics
from mcddpm.data.examples import Stream
from mcddpm.data.protocols import PROTOCOLS, manifest, repeat
from mcddpm.data.slices import Slices, prepare
from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import Measurement, NoiseSource
from mcddpm.simulation.scans import Simulation
from mcddpm.system.files import fingerprint, sha256
from mcddpm.system.seeds import number_of, seed_of
from mcddpm.system.settings import changes, check_choice


@dataclass(frozen=True)
class Cases:
    """What is reconstructed: slices of a data set or of files, and how they are measured."""

    source: str = "brain:test:192"
    """A named data set as `"brain:test:192"`, or a folder of files that a protocol measures."""
    protocol: str = "simulated"
    """How slices are measured: `simulated` for named data sets, `paper` or `fastmri` for files."""
    acquisition: str = ""
    """Take only files of this acquisition: as the file says, or by its name in a named data set."""
    label: str = ""
    """What tables call these cases. It is a name of its own for each section."""
    every: int = 1
    """Take every so many slices."""
    accelerations: tuple[float, ...] = (4.0, 8.0)
    """Accelerations. Every slice is measured at each of them."""
    family: str = "random_columns"
    """For `simulated`: the family of the masks, or a mask file."""
    snr: float = 35.0
    """For `simulated`: the signal-to-noise ratio."""
    truth: Literal["measured", "clean"] = "measured"
    """What counts as the truth: the full scan as it was measured, noise included, as fastMRI has it; or, for
    `simulated`, the image without its noise."""
    seed: int = 77
    """For `simulated`: decides mask, phase and noise, together with the slice's number."""
    methods: tuple[str, ...] = ()
    """Names of the methods to run on these cases. Empty: all."""

    @property
    def name(self) -> str:
        return self.label or self.acquisition or self.source.partition(":")[0]

    @property
    def meaning(self) -> dict[str, Any]:
        """What decides a measurement, where it is not as usual: not which slices are taken, nor what runs on them."""
        return changes(self, but=("every", "methods", "accelerations"))


@dataclass(frozen=True)
class Case:
    """One slice at one acceleration, the sha256 of the file it is in, and how to measure it. seed: of its mask (and of
    phase and noise, where they are simulated)."""

    label: str
    protocol: str
    volume: str
    slice: int
    acceleration: float
    data: str
    seed: int
    choice: Cases = field(repr=False, compare=False)
    make: Callable[[], Measurement] = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return name_of(self.label, self.volume, self.slice, self.acceleration)

    def draw_seed(self, seed: int) -> int:
        """That of samples of this case, in a study with this seed."""
        return seed_of(seed, number_of(self.name))


def name_of(label: str, volume: str, slice: int, acceleration: float) -> str:
    return f"{label}-{volume}-{slice:04d}-{acceleration:g}x".replace("/", "_")


def check(choice: Cases) -> None:
    """Refuse what cannot be measured, before a folder is claimed for it."""
    where, files = f"cases of {choice.name}", tuple(PROTOCOLS)
    if choice.protocol not in ("simulated", *files):
        raise ValueError(f"{where}: unknown protocol {choice.protocol!r}; known: simulated, {', '.join(files)}")
    if choice.every < 1:
        raise ValueError(f"{where}: every is {choice.every}, expected 1 or more")
    if not choice.accelerations or min(choice.accelerations) < 1:
        raise ValueError(f"{where}: accelerations are {list(choice.accelerations)}, expected some of 1 or more")
    if choice.family not in masks.MASKS and not Path(choice.family).is_file():
        raise ValueError(
            f"{where}: unknown family {choice.family!r}; known: {', '.join(masks.MASKS)}, or a file of yours"
        )
    if not choice.snr > 0:
        raise ValueError(f"{where}: snr is {choice.snr}, expected a value above 0")
    check_choice(f"{where}: truth", choice.truth, Literal["measured", "clean"])
    usual = Cases()
    given = [key for key in ("family", "snr", "seed", "truth") if getattr(choice, key) != getattr(usual, key)]
    if given and choice.protocol in files:
        message = "it takes files as they were measured, and masks seeded by file and slice"
        raise ValueError(f"{where}: protocol {choice.protocol} has no use for {given[0]}: {message}")


def family_of(choice: Cases) -> str:
    """The family of masks by its name, a file by its sha256."""
    return choice.family if choice.family in masks.MASKS else sha256(Path(choice.family))


def manifest_of(cases: Iterable[Case]) -> str:
    """The first digits of a sha256, of what cases are measured from: slices, their files, and how."""
    return fingerprint(
        {c.name: [c.data, c.seed, c.protocol, c.choice.snr, family_of(c.choice), *_unusual(c.choice)] for c in cases}
    )


def _unusual(choice: Cases) -> list[str]:
    """What came later, where it is not as it was before."""
    return [] if choice.truth == "measured" else [choice.truth]


def cases_of(choice: Cases) -> list[Case]:
    check(choice)
    if choice.protocol == "simulated":
        return list(_simulated(choice))
    folder = Path(choice.source)
    paths = sorted(folder.glob("*.h5"))
    if not paths:
        raise ValueError(f"no .h5 files in {folder}, which protocol {choice.protocol} is to measure")
    result = []
    for acceleration in choice.accelerations:
        for entry in manifest(paths, choice.protocol, acceleration, choice.acquisition)[:: choice.every]:
            make = partial(repeat, entry, folder)
            place = (entry.file, entry.slice, acceleration, entry.sha256, entry.seed)
            result.append(Case(choice.name, choice.protocol, *place, choice, make))
    return result


def _simulated(choice: Cases) -> Iterator[Case]:
    name, _, rest = choice.source.partition(":")
    split, _, size = rest.partition(":")
    if not size.isdigit():
        raise ValueError(f"source {choice.source!r} is not of the form NAME:SPLIT:SIZE, as brain:test:192")
    path = prepare(name, split, int(size))
    rows = json.loads(path.with_suffix(".json").read_text())["slices"]
    files = {(row["person"], row["file"]) for row in rows}
    several = {person for person, _ in files if sum(person == other for other, _ in files) > 1}
    volumes = [f"{r['person']}-{r['file']}" if r["person"] in several else r["person"] for r in rows]
    slices = Slices.open(path)
    how = Simulation(augment=False, snr=(choice.snr,))
    own = [index for index, row in enumerate(rows) if choice.acquisition in row["file"]]
    if not own:
        known = ", ".join(sorted({row["file"] for row in rows}))
        raise ValueError(f"no file of {choice.source} has {choice.acquisition!r} in its name; they are: {known}")
    for acceleration in choice.accelerations:
        clean = choice.truth == "clean"
        stream = Stream(slices, Fourier(), [choice.family], [acceleration], choice.seed, how, noisy=clean)
        for index in own[:: choice.every]:
            seed = seed_of(choice.seed, index)
            place = (volumes[index], index, acceleration, slices.sha256, seed)
            yield Case(choice.name, "simulated", *place, choice, partial(_measured, stream, index, seed))


def _measured(stream: Stream, index: int, seed: int) -> Measurement:
    batch = stream.measure([index], [seed])
    truth, std = stream.A.pinv(batch.y_0)[0], stream.noise_of(index, seed)
    noise = batch.scale[0] * std
    source: NoiseSource = "simulated" if std else "none"
    place = (batch.y_m[0], batch.mask[0], float(batch.scale[0]), stream.A, truth)
    return Measurement(*place, noise=noise, noise_from=source)


# --- the truth of a case --------------------------------------------------------------------------------------------


def target_of(m: Measurement) -> Tensor:
    """What a protocol compares with, in the scan's own units."""
    if m.target is None and m.truth is None:
        raise ValueError("a prospective scan has no truth to compare with")
    return (m.target if m.target is not None else m.truth.abs()) / m.scale  # type: ignore[union-attr]


def fitted(image: Any, target: Tensor) -> Tensor:
    """An image in the target's matrix: its centre."""
    image = torch.as_tensor(image).cpu()
    top, left = ((a - b) // 2 for a, b in zip(image.shape, target.shape, strict=True))
    return image[top : top + target.shape[0], left : left + target.shape[1]]


def quality_of(image: Any, m: Measurement) -> dict[str, float]:
    target = target_of(m)
    return {name: float(metric(fitted(image, target), target)) for name, metric in metrics.METRICS.items()}
