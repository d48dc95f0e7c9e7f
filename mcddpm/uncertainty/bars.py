"""Intervals and the self-check, as `mcddpm reconstruct` asks for them: of a slice, of a scan, of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mcddpm.models.denoiser import Denoiser
from mcddpm.physics.measurement import Measurement
from mcddpm.reconstruction.bars import ScanBars, SliceBars
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.system.progress import Notice, note, warning
from mcddpm.uncertainty import selfcheck
from mcddpm.uncertainty.calibration import Calibration, Origin, load_calibration, of_weights
from mcddpm.uncertainty.surprise import Unchecked


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
    def origin(self) -> Mapping[str, Any]:
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
                message = {"p": checked.p, "score": checked.score, "reason": checked.reason}
                notes["self_check"] = message | {"calls": checked.surprise.calls} | checked.surprise.statistics
            except Unchecked as error:
                notices += (Notice("unchecked", str(error)),)
        if self.interval is not None:
            ends = recon.interval(self.calibration, self.interval, checked.overall if checked else None)
            images |= {"lower": np.asarray(ends.lower), "upper": np.asarray(ends.upper)}
            notices += ends.notices
        return SliceBars(images, notes, notices)

    def of_scan(self, name: str, slices: Sequence[Mapping[str, Any]]) -> ScanBars:
        provenance: dict[str, Any] = {}
        origins = self.origin
        if self.interval is not None:
            provenance["calibration"] = origins["calibration"]
        if not self.self_check:
            return ScanBars(provenance)
        checks = [{**notes["self_check"], "slice": k} for k, notes in enumerate(slices) if "self_check" in notes]
        empty = [k for k, notes in enumerate(slices) if notes.get("empty")]
        check = _of_scan(checks, len(slices) - len(empty)) | {"empty": empty}
        provenance["self_check"] = check | {"calibration": origins["self_check"]}
        return ScanBars(provenance, _comments(check, len(slices)), (_verdict(name, check),))

    def of_run(self, scans: Mapping[str, Mapping[str, Any] | None]) -> tuple[Notice, ...]:
        """Which scans the model does not understand, which hold slices that it does not, and which could not be
        checked."""
        if not self.self_check:
            return ()
        checks = {name: provenance["self_check"] for name, provenance in scans.items() if provenance is not None}
        flagged = [name for name, check in checks.items() if check["flagged"]]
        unsure = [name for name, check in checks.items() if check["p"] is None]
        some = {name: _unusual(check) for name, check in checks.items() if name not in flagged and _unusual(check)}
        message = f"self-check: {len(flagged)} of {len(checks)} scans are not understood by the model"
        message += f": {', '.join(flagged)}" if flagged else ""
        message += f"; {open_} more are not finished" if (open_ := len(scans) - len(checks)) else ""
        message += f"; not checked (the log says why): {', '.join(unsure)}" if unsure else ""
        slices = (f"{name} ({', '.join(map(str, places))})" for name, places in some.items())
        return (note(message + (f"; unusual slices in {', '.join(slices)}" if some else "")),)


def _of_scan(checks: Sequence[Mapping[str, Any]], of: int) -> dict[str, Any]:
    """What the self-check says of a scan of so many slices: its p-value (None if no slice could be checked) and the
    median of their scores, whether it is one the model does not understand, and the same of its slices."""
    p = selfcheck.of_scan([check["p"] for check in checks]) if checks else None
    calls = int(sum(check["calls"] for check in checks))
    slices = [{**check, "flagged": check["p"] <= selfcheck.ALARM} for check in checks]
    score = float(np.median([check["score"] for check in checks])) if checks else None
    message = {"p": p, "score": score, "flagged": p is not None and p <= selfcheck.ALARM, "calls": calls}
    return message | {"checked": len(checks), "of": of, "slices": slices}


def _unusual(check: Mapping[str, Any]) -> list[int]:
    return [one["slice"] for one in check["slices"] if one["flagged"]]


def _comments(check: Mapping[str, Any], slices: int) -> dict[int, str]:
    """What the self-check has against each slice, in words."""
    if check["flagged"]:
        return dict.fromkeys(range(slices), "self-check: the model does not understand this scan")
    comments = {index: "not self-checked" for index in range(slices) if index not in check["empty"]}
    for one in check["slices"]:
        unusual = f"self-check: an unusual slice, p = {one['p']:.3f}"
        comments[one["slice"]] = unusual if one["flagged"] else ""
    return comments


def _verdict(name: str, check: Mapping[str, Any]) -> Notice:
    if check["p"] is None:
        return warning(f"{name} could not be self-checked, so do not rely on its error bars")
    message = f"self-check of {name}: p = {check['p']:.3f} ({check['calls']} extra network calls)"
    message += f", on {check['checked']} of {check['of']} slices" if check["checked"] < check["of"] else ""
    if check["flagged"]:
        reasons = Counter(one["reason"] for one in check["slices"] if one["flagged"])
        why = f" (most often by {reasons.most_common(1)[0][0]})" if reasons else ""
        message += f": the model does not understand this scan{why}; do not trust its error bars"
    if unusual := _unusual(check):
        chance = selfcheck.ALARM * len(check["slices"])
        message += f"; unusual slices: {', '.join(map(str, unusual))} (among those of calibration, some {chance:.1f})"
    return warning(message) if check["flagged"] else note(message)
