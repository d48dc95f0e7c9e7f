"""Slices that are done, each a file, until their scan is whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mcddpm import __version__, conformal, runtime, selfcheck, writers
from mcddpm.denoiser import Denoiser
from mcddpm.scans import Scan


def keep(path: Path, arrays: dict[str, np.ndarray], notes: dict[str, Any]) -> None:
    try:
        with runtime.whole(path) as part, part.open("wb") as file:
            np.savez(file, notes=np.array(json.dumps(notes)), **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from error


@dataclass(frozen=True)
class Parts(Sequence[np.ndarray]):
    """The slices of a scan that are done. As a sequence: the samples of each, read when asked for."""

    paths: Sequence[Path]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        return self.read(index, "samples")

    def read(self, index: int, key: str) -> np.ndarray | None:
        with np.load(self.paths[index], allow_pickle=False) as part:
            return part.get(key)

    def stack(self, key: str, missing: float = 0.0) -> np.ndarray | None:
        """All slices of an entry; `missing` everywhere for those without it; None if no slice has it."""
        found = [self.read(index, key) for index in range(len(self))]
        some = next((values for values in found if values is not None), None)
        return None if some is None else np.stack([np.full_like(some, missing) if v is None else v for v in found])

    def result(self, scan: Scan, model: Denoiser) -> writers.Result:
        notes = [json.loads(str(self.read(index, "notes"))) for index in range(len(self))]
        task, volume = scan.task, scan.volume
        provenance = {
            "made_by": f"mcddpm {__version__}",
            "model": {"name": task.model, "sha256": model.card.get("sha256", "")},
            "input": {"file": scan.path.name, "sha256": scan.sha256},
            "task": asdict(task) | {"snr": str(task.snr)},
            "simulated_phase": volume.kind == "image" and not volume[0].is_complex(),
            "calls": next((note["calls"] for note in notes if "calls" in note), 0),
            "scale": [note.get("scale") for note in notes],
            "warnings": sorted({text for note in notes for text in note.get("warnings", ())}),
        }
        if task.interval is not None:
            provenance["calibration"] = origin(model, "calibration")
        if task.self_check:
            checks = [note["self_check"] | {"slice": k} for k, note in enumerate(notes) if "self_check" in note]
            empty = [k for k, note in enumerate(notes) if note.get("empty")]
            found = summary(checks, len(notes) - len(empty)) | {"empty": empty}
            provenance["self_check"] = found | {"calibration": origin(model, "self_check")}
        mean, std, lower, upper = (self.stack(key) for key in ("mean", "std", "lower", "upper"))
        assert mean is not None and std is not None
        beside = {key: self.stack(key) for key in ("zero_filled", "mask", "truth")}
        beside["surprise"] = self.stack("surprise", missing=np.nan)  # what was not checked is not free of surprise
        return writers.Result(
            mean,
            None if task.sampler == "mean" or task.samples == 1 else std,
            provenance,
            self,
            volume.geometry.affine,
            volume.geometry.dicom,
            interval=None if lower is None or upper is None else (lower, upper),
            beside={key: values for key, values in beside.items() if values is not None},
        )


def origin(model: Denoiser, key: str) -> dict[str, str]:
    """Which calibration of the model was used: on what data, when, and the sha256 of what was found."""
    known = model.card[key]
    return {"data": known["data"], "date": known["date"], "sha256": conformal.fingerprint(known)}


def summary(checks: Sequence[dict[str, Any]], of: int) -> dict[str, Any]:
    """What the self-check says of a scan of so many slices: its p-value (None if no slice could be checked) and the
    median of their scores, whether it is one the model does not understand, and the same of its slices."""
    p = selfcheck.of_scan([check["p"] for check in checks]) if checks else None
    calls = int(sum(check["calls"] for check in checks))
    slices = [check | {"flagged": check["p"] <= selfcheck.ALARM} for check in checks]
    score = float(np.median([check["score"] for check in checks])) if checks else None
    told = {"p": p, "score": score, "flagged": p is not None and p <= selfcheck.ALARM, "calls": calls}
    return told | {"checked": len(checks), "of": of, "slices": slices}
