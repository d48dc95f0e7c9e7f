"""Configuration: frozen dataclasses, read from TOML and `key=value` flags. An unknown key stops the run.

One `Config` describes a model and its training completely, and travels with every checkpoint.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")


@dataclass(frozen=True)
class Data:
    """Slices: a .npy file of images (N, H, W), complex or real; a named data set as "brain:train:192" (its split and
    matrix size; see `mcddpm data list`); or "drawn" for ellipses made on the fly."""

    train: str = "drawn"
    validation: str = "drawn"
    drawn_slices: int = 512
    drawn_size: int = 64
    description: str = ""
    licence: str = ""


@dataclass(frozen=True)
class Simulation:
    """What real-valued MR images get before they are measured: a smooth phase, noise at an SNR from this range, and, in
    training, flips, shifts (pixels), turns (degrees), and changes of size and contrast. See `simulation.py`."""

    phase: float = 1.0
    snr: tuple[float, ...] = (20.0, 60.0)
    augment: bool = True
    shift: float = 8.0
    turn: float = 10.0
    zoom: float = 0.0
    intensity: float = 0.1


@dataclass(frozen=True)
class OperatorChoice:
    """kind: fourier, sense (maps: a .npy of coil maps (C, H, W) or "simulated:8") or radon (views over 180 degrees)."""

    kind: str = "fourier"
    maps: str = ""
    views: int = 180


@dataclass(frozen=True)
class MaskMix:
    """Each slice of each epoch gets one of the families at one of the accelerations, by its seed."""

    families: tuple[str, ...] = ("random_columns",)
    accelerations: tuple[float, ...] = (4.0, 8.0)


@dataclass(frozen=True)
class ScheduleChoice:
    """cosine, linear (beta_scale) or variance_exploding (sigma_min, sigma_max)."""

    name: str = "cosine"
    T: int = 1000
    beta_scale: float = 0.5
    sigma_min: float = 0.002
    sigma_max: float = 80.0


@dataclass(frozen=True)
class Network:
    """stages: 0 for a U-Net (see `unet.UNet`), or how many a cascade has (see `cascade.Cascade`, which knows channels,
    multipliers, blocks, patch, groups and dropout)."""

    stages: int = 0
    channels: int = 64
    multipliers: tuple[int, ...] = (1, 2, 4)
    blocks: int = 1
    attention: tuple[int, ...] = (4,)
    heads: int = 4
    head_channels: int = 0
    patch: int = 4
    scale_shift: bool = True
    residual_resampling: bool = True
    qkv_by_head: bool = True
    groups: int = 8
    dropout: float = 0.0


@dataclass(frozen=True)
class ModelChoice:
    """kind: "denoiser", or "supervised" (the paper's U-Net baseline: zero-filled image in, image out). conditional:
    false for a prior of full scans, which is shown no measurement. parameterisation: eps (Eq. 12) or denoised, and for
    denoised data_std: the std of unmeasured data after scaling; spectrum: that of k-space, from the training data."""

    kind: str = "denoiser"
    conditional: bool = True
    parameterisation: str = "denoised"
    data_std: float = 0.1
    spectrum: bool = True


@dataclass(frozen=True)
class Training:
    """batch: slices a step, over all processes and accumulations. times: "uniform" in t or "lognormal" in sigma.

    optimiser: "adamw" or "muon". strip: rows of each slice to train on, 0 for all; where whole columns are measured,
    rows are measured independently.
    """

    steps: int = 10_000
    batch: int = 8
    strip: int = 0
    accumulate: int = 1
    optimiser: str = "adamw"
    lr: float = 3e-4
    warmup: int = 200
    final_lr: float = 0.0
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.999
    times: str = "lognormal"
    log_sigma_mean: float = -1.6
    log_sigma_std: float = 1.5
    seed: int = 0
    init: str = ""
    device: str = "auto"
    precision: str = "auto"
    compile: str = "auto"
    log_every: int = 50
    checkpoint_every: int = 500
    checkpoint_minutes: float = 5.0
    validate_every: int = 1000
    validation_slices: int = 8
    validation_samples: int = 4
    validation_steps: int = 10


@dataclass(frozen=True)
class Config:
    data: Data = field(default_factory=Data)
    simulation: Simulation = field(default_factory=Simulation)
    operator: OperatorChoice = field(default_factory=OperatorChoice)
    mask: MaskMix = field(default_factory=MaskMix)
    schedule: ScheduleChoice = field(default_factory=ScheduleChoice)
    model: ModelChoice = field(default_factory=ModelChoice)
    network: Network = field(default_factory=Network)
    training: Training = field(default_factory=Training)


def load(path: Path, overrides: tuple[str, ...] = ()) -> Config:
    """A Config from a TOML file and flags such as `training.lr=1e-4`."""
    return load_as(Config, path, overrides)


def load_as(cls: type[T], path: Path, overrides: tuple[str, ...] = ()) -> T:
    """Any frozen dataclass of settings from a TOML file and flags."""
    if not path.is_file():
        raise ValueError(f"no configuration file {path}")
    try:
        values = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    for flag in overrides:
        _put(values, flag)
    return from_dict(cls, values)


def _put(values: Any, flag: str) -> None:
    """Set `a.b=value`, or `a.0.b=value` in the first of a list of sections; read as TOML, or taken as plain text."""
    key, equals, text = flag.partition("=")
    *sections, name = key.strip().split(".")
    if not equals or not name:
        raise ValueError(f"--set {flag!r} is not of the form section.key=value")
    for section in sections:
        found: Any = values.setdefault(section, {}) if isinstance(values, dict) else values
        if isinstance(values, list):
            if not section.isdigit() or int(section) >= len(values):
                raise ValueError(f"--set {flag!r}: {section} is not one of 0 to {len(values) - 1}")
            found = values[int(section)]
        if not isinstance(found, (dict, list)):
            raise ValueError(f"--set {flag!r}: {section} is a value, not a section")
        values = found
    if not isinstance(values, dict):
        raise ValueError(f"--set {flag!r}: {name} is not a key of a section; there are {len(values)}: number one")
    try:
        values[name] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        values[name] = text.strip()


def from_dict(cls: type[T], values: Any, where: str = "") -> T:
    """A frozen dataclass from plain values: keys and types are checked, and a mistake names its place."""
    if not isinstance(values, dict):
        raise ValueError(f"{where.rstrip('.') or 'configuration'} is {values!r}, expected a section of keys")
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=3, cutoff=0.5)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ValueError(f"unknown key {where}{key}{hint} known: {', '.join(sorted(fields))}")
    for key, f in fields.items():
        if key not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}{key} is missing; known: {', '.join(sorted(fields))}")
    return cls(**{key: _read(hints[key], value, f"{where}{key}") for key, value in values.items()})


def _read(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return from_dict(kind, value, f"{where}.")  # type: ignore[arg-type]
    if typing.get_origin(kind) is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(_read(typing.get_args(kind)[0], item, where) for item in items)
    if typing.get_origin(kind) is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {value!r}, expected a section of keys")
        return {key: _read(typing.get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where} is {value!r}, expected {_name(kind)}")
    return value


def _name(kind: Any) -> str:
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(kind, str(kind))


def to_dict(config: Any) -> dict[str, Any]:
    """Plain values, as JSON and TOML have them."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def differences(old: dict[str, Any], new: dict[str, Any], where: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old, new) for every value that differs."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found |= differences(a, b, f"{where}{key}.")
        elif a != b:
            found[f"{where}{key}"] = (a, b)
    return found
