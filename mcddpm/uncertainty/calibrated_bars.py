"""Intervals and the self-check, as `mcddpm reconstruct` asks for them: of a slice, of a scan, of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mcddpm.models.denoiser import Denoiser
from mcddpm.physics.measurement import Measurement
from mcddpm.reconstruction.error_bars import ScanBars, SliceBars
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.system.progress import Notice, note
from mcddpm.uncertainty import selfcheck
from mcddpm.uncertainty.calibration import Calibration, Origin, load_calibration, of_weights
from mcddpm.uncertainty.surprise import Unchecked
from mcddpm.uncertainty.verdict import Json, ScanVerdict, SliceVerdict, Summary, kept_of, summary


def error_bars(
    model: Denoiser, interval: float | None = None, self_check: bool = False, calibration: str | Path = ""
) -> CalibratedBars | None:
    """What a task asks for beside samples; None if it asks for neither. calibration: a folder or file, the model's own
    unless told."""
    if interval is None and not self_check:
        return None
    known = load_calibration(calibration or model)
    if calibration and model.card is not None:
        known = of_weights(known, model.card.sha256)
    if interval is not None:
        known.intervals.check(interval)
    if self_check:
        _ = known.checked
    return CalibratedBars(known, interval, self_check)


@dataclass(frozen=True)
class CalibratedBars:
    """interval: the level of lower and upper images; self_check: whether every slice is self-checked."""

    calibration: Calibration
    interval: float | None = None
    self_check: bool = False

    @property
    def _origins(self) -> dict[str, Origin]:
        used = {
            "calibration": self.calibration.interval_origin if self.interval is not None else None,
            "self_check": self.calibration.self_check_origin if self.self_check else None,
        }
        return {key: origin for key, origin in used.items() if origin is not None}

    @property
    def origin(self) -> Json:
        return {key: asdict(origin) for key, origin in self._origins.items()}

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What scans they hold for: nothing in a file says if it is one of those."""
        what = {"calibration": "intervals were", "self_check": "the self-check was"}
        return tuple(
            note(f"{what[key]} fitted on {origin.data} ({origin.date}): for scans like those")
            for key, origin in self._origins.items()
        )

    def of_slice(
        self, model: Denoiser, measurement: Measurement, recon: Reconstruction, *, seed: int, memory: float | str
    ) -> SliceBars:
        images: dict[str, np.ndarray] = {}
        notes: dict[str, Any] = {}
        notices: tuple[Notice, ...] = ()
        checked = None
        if self.self_check:
            try:
                checked = selfcheck.check(model, measurement, calibration=self.calibration, seed=seed, memory=memory)
                notices += checked.notices
                images["surprise"] = np.asarray(checked.surprise.image, np.float32)
                notes["self_check"] = kept_of(checked)
            except Unchecked as error:
                notices += (Notice("unchecked", str(error)),)
        if self.interval is not None:
            ends = recon.interval(self.calibration, self.interval, checked.overall if checked else None)
            images |= {"lower": np.asarray(ends.lower), "upper": np.asarray(ends.upper)}
            notices += ends.notices
        return SliceBars(images, notes, notices)

    def of_scan(self, name: str, slices: Sequence[Json]) -> ScanBars:
        provenance: dict[str, Any] = {}
        origins = self.origin
        if self.interval is not None:
            provenance["calibration"] = origins["calibration"]
        if not self.self_check:
            return ScanBars(provenance)
        checks = [SliceVerdict.read(k, notes["self_check"]) for k, notes in enumerate(slices) if "self_check" in notes]
        empty = [k for k, notes in enumerate(slices) if notes.get("empty")]
        verdict = ScanVerdict.of_slices(checks, len(slices) - len(empty), empty)
        provenance["self_check"] = {**verdict.json, "calibration": origins["self_check"]}
        return ScanBars(provenance, verdict.comments(len(slices)), (verdict.notice(name),))

    def of_run(self, scans: Mapping[str, Json | None]) -> tuple[Notice, ...]:
        if not self.self_check:
            return ()
        done = {name: Summary.read(kept["self_check"]) for name, kept in scans.items() if kept is not None}
        return (summary(done, len(scans) - len(done)),)
