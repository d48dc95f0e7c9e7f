"""The slices of a scan that are done -> the result that is written of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mcddpm import __version__
from mcddpm.data import writers
from mcddpm.models.denoiser import Denoiser
from mcddpm.reconstruction.error_bars import ScanBars
from mcddpm.reconstruction.inputs import Scan
from mcddpm.system.workspace import Piece


@dataclass(frozen=True)
class Samples(Sequence[np.ndarray]):
    """The samples of each slice, read when asked for: they are what is large."""

    slices: Sequence[Piece]

    def __len__(self) -> int:
        return len(self.slices)

    def __getitem__(self, index: Any) -> Any:
        return self.slices[index]["samples"]


def result_of(scan: Scan, model: Denoiser, slices: Sequence[Piece], bars: ScanBars) -> writers.Result:
    volume, task = scan.volume, scan.task
    mean, std, lower, upper = (_stack(slices, key) for key in ("mean", "std", "lower", "upper"))
    assert mean is not None and std is not None
    beside = {key: _stack(slices, key) for key in ("zero_filled", "mask", "truth")}
    beside["surprise"] = _stack(slices, "surprise", missing=np.nan)  # what was not checked is not free of surprise
    return writers.Result(
        mean,
        std if task.plan.samples > 1 else None,
        _provenance(scan, model, slices) | dict(bars.provenance),
        Samples(slices),
        volume.geometry.affine,
        volume.geometry.dicom,
        interval=None if lower is None or upper is None else (lower, upper),
        beside={key: values for key, values in beside.items() if values is not None},
        comments=bars.comments,
    )


def _provenance(scan: Scan, model: Denoiser, slices: Sequence[Piece]) -> dict[str, Any]:
    volume, notes = scan.volume, [piece.notes for piece in slices]
    return {
        "made_by": f"mcddpm {__version__}",
        "model": {"name": scan.task.model, "sha256": model.card.sha256 if model.card else ""},
        "input": {"file": scan.path.name, "sha256": scan.sha256},
        "task": scan.task.json,
        "simulated_phase": volume.kind == "image" and not volume[0].is_complex(),
        "calls": next((note["calls"] for note in notes if "calls" in note), 0),
        "scale": [note.get("scale") for note in notes],
        "noise": {"std": [n.get("noise") for n in notes], "from": [n.get("noise_from") for n in notes]},
        "warnings": sorted({text for note in notes for text in note.get("warnings", ())}),
    }


def _stack(slices: Sequence[Piece], key: str, missing: float = 0.0) -> np.ndarray | None:
    """All slices of an entry; `missing` everywhere for those without it; None if no slice has it."""
    result = [piece.get(key) for piece in slices]
    some = next((values for values in result if values is not None), None)
    return None if some is None else np.stack([np.full_like(some, missing) if v is None else v for v in result])
