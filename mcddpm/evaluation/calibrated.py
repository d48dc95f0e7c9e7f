"""Rows with what calibrated intervals cover, and what self-checks said. After the fact: mean and std are enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from mcddpm.data.cases import Case, manifest_of
from mcddpm.evaluation.methods import Method
from mcddpm.evaluation.rows import REGIONS, CheckedRow, Intervals, Region, Row
from mcddpm.evaluation.study import Study, check_name, row_of, weights_of
from mcddpm.system.progress import Notice
from mcddpm.system.workspace import Piece
from mcddpm.uncertainty import case_checks, scores
from mcddpm.uncertainty.calibration import Calibration, load_calibration
from mcddpm.uncertainty.case_checks import CaseCheck
from mcddpm.uncertainty.conformal import Conformal
from mcddpm.uncertainty.kept_slices import images_of, slice_of
from mcddpm.uncertainty.usual import Usual


def rows(study: Study, wanted: Sequence[tuple[Case, Method]]) -> Iterator[Row]:
    """All rows in the order of the configuration."""
    manifest = manifest_of({case for case, _ in wanted})
    known = {method: calibration_of(method) for _, method in wanted}
    for case, method in wanted:
        piece, calibration, check = study.piece(case, method), known[method], check_of(study, case, method)
        row = replace(
            row_of(piece),
            weights=weights_of(method.model),
            manifest=manifest,
            measurement_seed=case.seed,
        )
        if calibration is not None:
            row = _with_intervals(row, piece, calibration, check)
            study.tell(method.name, case, notices_of(piece, calibration.intervals, None))
        if check is not None:
            usual, notices = load_calibration(method.model).checked.at(float(piece["reached"]))
            row = replace(row, self_check=_checked(usual, check))
            study.tell(method.name, case, notices)
        yield row


def calibration_of(method: Method) -> Calibration | None:
    """What a method's model has, if it was fitted for this model and for samples drawn in this way."""
    if not method.draws_samples:
        return None
    try:
        known = load_calibration(method.model)
    except ValueError:  # none, or one of other weights or of another version
        return None
    return known if known.intervals.plan.is_like(method.plan) else None


def check_of(study: Study, case: Case, method: Method) -> CaseCheck | None:
    """What the self-check said of a slice; None where there was none, or where nothing could be hidden."""
    if not method.self_check:
        return None
    name = check_name(case, method)
    if not study.workspace.all_there([name]):
        folder = study.workspace.folder
        raise ValueError(f"{folder} lacks the self-check of {case.name}: run mcddpm evaluate again, which adds it")
    result = case_checks.read(study.workspace, name)
    return result if result.statistics else None


def _checked(usual: Usual, check: CaseCheck) -> CheckedRow:
    assert check.statistics is not None
    return CheckedRow(check.statistics["overall"], usual.p_value(check.statistics), check.calls, check.seconds)


def _with_intervals(row: Row, piece: Piece, calibration: Calibration, check: CaseCheck | None) -> Row:
    known, surprise = calibration.intervals, check.overall if check else None
    follows = surprise is not None and bool(known.adaptive)
    return replace(
        row,
        conformal=intervals(piece, known),
        adaptive=intervals(piece, known, surprise) if follows else {},
        calibration=calibration.fingerprint,
    )


def intervals(piece: Piece, known: Conformal, surprise: float | None = None) -> dict[Region, Intervals]:
    """How much of the truth intervals cover, and how wide those of 90 % are, on the pixels that scores count.

    surprise: what the self-check said.
    """
    mean, std, target = images_of(piece)
    regions = dict(zip(REGIONS, (even_foreground(piece), None), strict=True))
    covered: dict[Region, dict[int, float]] = {region: {} for region in regions}
    width: dict[Region, float] = {}
    for level in (v for v in scores.LEVELS if v <= known.levels[-1]):
        half = stretch_of(piece, known, level, surprise) * std
        for region, where in regions.items():
            covered[region][scores.percent(level)] = scores.coverage((mean - half, mean + half), target, where)
            if level == 0.9:
                width[region] = scores.width((-half, half), where)
    return {region: Intervals(covered[region], width.get(region)) for region in regions}


def stretch_of(piece: Piece, known: Conformal, level: float, surprise: float | None = None) -> Tensor:
    """By how much a calibrated interval is longer than std, at every pixel."""
    scaled = slice_of(piece)
    return known.stretch(scaled.mean, scaled.std, level, float(piece["reached"]), surprise)[0]


def notices_of(piece: Piece, known: Conformal, surprise: float | None) -> tuple[Notice, ...]:
    """What is to be known of calibrated intervals."""
    return known.at(float(piece["reached"]), surprise)[1]


def even_foreground(piece: Piece) -> Tensor:
    """`scores.even_foreground` of samples of which the mean is enough.  (H, W)"""
    mean, _, target = images_of(piece)
    n = len(piece["by_count"])
    return scores.foreground((n * mean + target) / (n + 1))
