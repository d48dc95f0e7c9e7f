"""What tests of evaluations ask for, and how they read what came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mcddpm.data.cases import Case, cases_of
from mcddpm.evaluation.methods import Method
from mcddpm.evaluation.rows import Row, read_csv
from mcddpm.evaluation.study import Evaluation
from mcddpm.system.workspace import Piece, Workspace
from mcddpm.uncertainty.calibration import Calibration
from mcddpm.uncertainty.conformal import VERSION, Conformal, Factors
from mcddpm.uncertainty.usual import SelfCheck, Usual

METHODS = (
    Method("ZF", "zero_filled"),
    Method("One", "mc_ddpm", sampler="mean"),
    Method("Ours", "mc_ddpm", samples=2, steps=2),
)


def only(asked: Evaluation, *methods: Method, **cases: object) -> Evaluation:
    """Other methods, on the same slices or on fewer of them."""
    return replace(asked, cases=(replace(asked.cases[0], **cases),), methods=methods)  # type: ignore[arg-type]


def first(asked: Evaluation) -> Evaluation:
    """One slice at 4x."""
    return only(asked, *asked.methods, accelerations=(4.0,), every=4)


def case_of(asked: Evaluation, volume: str, slice: int, acceleration: float) -> Case:
    place = (volume, slice, acceleration)
    return next(c for c in cases_of(asked.cases[0]) if (c.volume, c.slice, c.acceleration) == place)


def rows(out: Path) -> list[Row]:
    return read_csv(out / "rows.csv")


def untimed(out: Path) -> list[Row]:
    """All that does not depend on how busy the machine was."""
    found = [replace(row, seconds=0.0) for row in rows(out)]
    return [replace(r, self_check=r.self_check and replace(r.self_check, seconds=None)) for r in found]


def pieces(out: Path, method: str, where: Callable[[str], bool] = lambda name: True) -> list[Piece]:
    """Kept reconstructions of a method, by name."""
    names = sorted(path.stem for path in (out / "parts" / method).glob("*.npz"))
    return [Workspace(out, "evaluation").read(f"{method}/{name}") for name in names if where(name)]


def half_calibration(sha256: str, *accelerations: float) -> Calibration:
    """For 2 samples in 2 steps, up to 90 %. Without the self-check, intervals that cover everything where std is small,
    and nothing where it is large or in the background; with it, the other way round."""
    origin = (VERSION, sha256, "drawn", "2026-01-01")
    tables = tuple(Factors(a, 8, ((1e6, 0.0, 0.0),) * 3) for a in accelerations)
    follow = tuple(Factors(a, 8, ((0.0, 1e6, 1e6),) * 3, slope=1.0) for a in accelerations)
    intervals = Conformal(*origin, "dpmpp_2m_sde", 2, 2, (0.5, 0.8, 0.9), tables, follow)
    usual = {name: tuple(0.1 * k for k in range(8)) for name in ("overall", "line", "point")}
    check = SelfCheck(*origin, "fourier", "dpmpp_2m_sde", 2, 2, 2, tuple(Usual(a, usual) for a in accelerations))
    return Calibration(intervals, check)
