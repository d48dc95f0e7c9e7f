"""One line of an evaluation: a `Row`, and how `rows.csv` writes it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from mcddpm import metrics
from mcddpm.system import files
from mcddpm.system.settings import from_dict, to_dict
from mcddpm.uncertainty.scores import LEVELS, Scores, percent

Region = Literal["foreground", "whole"]
REGIONS: tuple[Region, ...] = get_args(Region)
INSIDE = ("psnr", "ssim")  # metrics that are known of the foreground, too


@dataclass(frozen=True)
class Intervals:
    """Calibrated intervals in a region: their coverage, by level in percent, and how wide those of 90 % are."""

    coverage: dict[int, float] = field(default_factory=dict)
    width_90: float | None = None


@dataclass(frozen=True)
class CheckedRow:
    """What the self-check of a slice said, and what it cost, where that was kept."""

    overall: float
    p: float
    calls: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Row:
    """A slice, a method, and what came out.

    quality: metrics of the slice by name; foreground: those of INSIDE. scores: of methods that draw samples.
    conformal, adaptive: intervals that were calibrated, without the self-check and with it. measurement_seed: of mask,
    phase and noise; seed: of samples. weights, calibration, manifest: the first digits of a sha256. truth: the scan as
    it was measured, or clean.
    """

    label: str
    protocol: str
    volume: str
    slice: int
    acceleration: float
    method: str
    quality: dict[str, float]
    foreground: dict[str, float]
    samples: int
    calls: int
    seconds: float
    seed: int
    scores: dict[Region, Scores] = field(default_factory=dict)
    conformal: dict[Region, Intervals] = field(default_factory=dict)
    adaptive: dict[Region, Intervals] = field(default_factory=dict)
    self_check: CheckedRow | None = None
    pixels_foreground: int | None = None
    weight: float | None = None
    measurement_seed: int | None = None
    device: str = ""
    weights: str = ""
    calibration: str = ""
    manifest: str = ""
    truth: str = "measured"

    @property
    def key(self) -> tuple[str, str, float]:
        return self.label, self.method, self.acceleration


# --- rows.csv -------------------------------------------------------------------------------------------------------

Place = tuple[str | int, ...]
_SCORES = ("width_90", "crps", "energy", "spread", "correlation", "sparsification", "law", "rank_p", "variance")
_TEXT = ("label", "protocol", "volume", "method", "device", "weights", "calibration", "manifest", "truth")


def _places() -> Iterator[tuple[str, Place]]:
    """Every column, in order, and where a `Row` keeps it."""
    for name in ("label", "protocol", "volume", "slice", "acceleration", "method"):
        yield name, (name,)
    for name in metrics.METRICS:
        yield f"{name}_slice", ("quality", name)
    for name in INSIDE:
        yield f"{name}_foreground", ("foreground", name)
    percents = [percent(level) for level in LEVELS]
    for region in REGIONS:
        for v in percents:
            yield f"coverage_{v}_{region}", ("scores", region, "coverage", v)
        for v in percents[:-1]:
            yield f"quantile_{v}_{region}", ("scores", region, "quantile", v)
        for name in (*_SCORES, "squared_error"):
            yield f"{name}_{region}", ("scores", region, name)
    for way in ("conformal", "adaptive"):
        for region in REGIONS:
            for v in percents:
                yield f"{way}_{v}_{region}", (way, region, "coverage", v)
    for way in ("conformal", "adaptive"):
        for region in REGIONS:
            yield f"{way}_width_90_{region}", (way, region, "width_90")
    for name in ("overall", "p", "calls", "seconds"):
        yield f"self_check_{name}", ("self_check", name)
    for name in ("pixels_foreground", "weight", "samples", "calls", "seconds", "seed", "measurement_seed"):
        yield name, (name,)
    for name in ("device", "weights", "calibration", "manifest", "truth"):
        yield name, (name,)


PLACES = dict(_places())


def write_csv(path: Path, rows: Iterable[Row]) -> Path:
    with files.whole(path) as part, part.open("w", newline="") as file:
        writer = csv.DictWriter(file, tuple(PLACES))
        writer.writeheader()
        writer.writerows(_line(row) for row in rows)
    return path


def read_csv(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    try:
        return [from_dict(Row, _nested(line)) for line in lines]
    except ValueError as error:
        raise ValueError(f"{path} does not hold the rows of an evaluation: {error}") from error


def _line(row: Row) -> dict[str, Any]:
    values = to_dict(row)
    return {column: _at(values, [str(name) for name in place]) for column, place in PLACES.items()}


def _at(values: Any, place: list[str]) -> Any:
    """Along a place; empty where there is nothing."""
    for name in place:
        values = None if values is None else {str(key): value for key, value in values.items()}.get(name)
    return "" if values is None else values


def _nested(line: dict[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column, text in line.items():
        if column not in PLACES:
            raise ValueError(f"unknown column {column}")
        if text:
            *sections, name = PLACES[column]
            inner: dict[Any, Any] = row
            for section in sections:
                inner = inner.setdefault(section, {})
            inner[name] = text if column in _TEXT else _number(text)
    return row


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)
