"""How a model's error bars are to be read: one file, `calibration.json`, beside the weights or in the folder of
`mcddpm calibrate`. It holds what intervals are stretched by (`conformal.py`) and what is usual (`usual.py`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from mcddpm.models.denoiser import Denoiser
from mcddpm.models.store import model_folder, read_card
from mcddpm.physics.operator import LABELS
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.system import files
from mcddpm.system.progress import Notice
from mcddpm.system.settings import from_dict, to_dict
from mcddpm.uncertainty.conformal import VERSION, Conformal
from mcddpm.uncertainty.usual import SelfCheck

NAME, CARD = "calibration.json", "model.json"


@dataclass(frozen=True)
class Origin:
    """On what data a part of a calibration was fitted, when, and the first digits of a sha256 of what came out."""

    data: str
    date: str
    sha256: str


@dataclass(frozen=True)
class Calibration:
    """intervals: what std is stretched by; self_check: what is usual, None if no slices were self-checked.
    fingerprint: of both, as they stand in the file."""

    intervals: Conformal
    self_check: SelfCheck | None = None
    fingerprint: str = ""
    interval_origin: Origin | None = None
    self_check_origin: Origin | None = None

    @property
    def checked(self) -> SelfCheck:
        """What is usual, or a refusal."""
        if self.self_check is None:
            raise ValueError("this calibration knows nothing of self-checks: calibrate with check_every = 1")
        return self.self_check

    @property
    def operator(self) -> str:
        """How the scans were measured that it was fitted on; "" if that is not known."""
        return self.intervals.operator or (self.self_check.operator if self.self_check else "")

    def save(self, path: Path) -> Path:
        """Into a file, or into a folder under its usual name."""
        place = path if path.suffix == ".json" else path / NAME
        usual = None if self.self_check is None else to_dict(self.self_check)
        return files.write_json(place, {"format": 1, "intervals": to_dict(self.intervals), "self_check": usual})

    def stretch(
        self, recon: Reconstruction, mean: Tensor, std: Tensor, level: float, surprise: float | None
    ) -> tuple[Tensor, tuple[Notice, ...]]:
        """By what the std of a reconstruction is to be multiplied, pixel by pixel; and what is to be known of that."""
        known, notices = of_weights(self, recon.weights).intervals if recon.weights else self.intervals, []
        if recon.plan is None or not recon.plan.is_like(known.plan):
            message = f"intervals were fitted for {known.plan}; these are {recon.plan or 'drawn otherwise'}"
            notices.append(Notice("interval plan", message))
        if self.operator and recon.operator != self.operator:
            message = f"intervals were fitted on scans by {LABELS[self.operator]}"
            message += f", this one is by {LABELS.get(recon.operator, recon.operator)}"
            message += ": they do not follow the self-check" if surprise is not None else ""
            notices.append(Notice("interval operator", message))
            surprise = None
        factor, more = known.stretch(mean, std, level, recon.acceleration, surprise)
        return known.by_count(level, len(recon.samples)) * factor, (*notices, *more)


def load_calibration(source: Denoiser | str | Path) -> Calibration:
    """Of a model that was loaded, by a shipped model's name, or from a folder or file. A model's own is refused if it
    was fitted on other weights; of a file, and of a folder without weights, it is not known whose it is."""
    if isinstance(source, Denoiser):
        if source.folder is None or source.card is None:
            raise ValueError("this model was not loaded from a folder, so it has no calibration: pass one")
        return of_weights(_load(source.folder), source.card.sha256)
    path = Path(source)
    is_model = (path / CARD).is_file() or (path / "checkpoints").is_dir()
    if path.suffix == ".json" or ((path / NAME).is_file() and not is_model):
        return _load(path)
    return of_weights(_load(model_folder(source)), read_card(source).sha256)


def of_weights(calibration: Calibration, sha256: str) -> Calibration:
    """The calibration, if it was fitted for these weights."""
    check = calibration.self_check
    for fitted in (calibration.intervals.model, sha256 if check is None else check.model):
        if fitted != sha256:
            raise ValueError(
                f"this calibration was fitted on other weights (sha256 {fitted[:12]}, these are {sha256[:12]}): "
                "run mcddpm calibrate anew"
            )
    return calibration


def _load(path: Path) -> Calibration:
    """From a file; or from a folder: its own file, or what the card of an old model folder holds."""
    for place in (path / NAME, path / CARD) if path.is_dir() else (path,):
        if place.is_file():
            status = place.stat()
            calibration = _read(place, status.st_mtime_ns, status.st_size)
            if calibration is not None:
                return calibration
    raise ValueError(
        f"{path} holds no {NAME}, and std alone promises nothing: run mcddpm calibrate, and give its folder with "
        "--calibration, or put its file beside the weights"
    )


@lru_cache(maxsize=16)
def _read(path: Path, time: int, size: int) -> Calibration | None:
    """None of a card without one."""
    try:
        values = json.loads(path.read_text())
        if not isinstance(values, dict) or (path.name != CARD and values.get("format") != 1):
            raise ValueError("it has another format")
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not a calibration of ours: {error}") from error
    if path.name != CARD:
        return _from_json(values.get("intervals"), values.get("self_check"), str(path))
    if "calibration" not in values:
        return None
    return _from_json(values["calibration"], values.get("self_check"), str(path))


def _from_json(intervals: Any, self_check: Any, where: str) -> Calibration:
    for part in filter(None, (intervals, self_check)):
        version = part.get("version") if isinstance(part, dict) else None
        if version != VERSION:
            written = "of before there were any" if version is None else version
            raise ValueError(
                f"the calibration in {where} has version {written}, not {VERSION}: run mcddpm calibrate anew"
            )
    return Calibration(
        from_dict(Conformal, intervals, f"{where}: intervals."),
        None if self_check is None else from_dict(SelfCheck, self_check, f"{where}: self_check."),
        files.fingerprint([intervals, self_check]),
        _origin(intervals),
        None if self_check is None else _origin(self_check),
    )


def _origin(part: dict[str, Any]) -> Origin:
    return Origin(part["data"], part["date"], files.fingerprint(part))
