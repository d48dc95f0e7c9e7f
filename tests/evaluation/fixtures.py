"""A small evaluation that is done: two files of two slices at 4x and 8x, by three methods. To be read, not changed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mcddpm.data.cases import Cases
from mcddpm.evaluation.run import evaluate
from mcddpm.evaluation.study import Evaluation
from mcddpm.models.store import read_card
from tests.evaluation.studies import METHODS, half_calibration
from tests.knees import FILES, knee, saved


@pytest.fixture(scope="session")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    folder = tmp_path_factory.mktemp("asked")
    for k, name in enumerate(FILES):
        knee(folder / "files" / name, 2, seed=k)
    knee(folder / "files" / "file1000009.h5", 2, "of another kind", seed=9)
    model = str(saved(folder / "model"))
    methods = tuple(replace(m, model=model) if m.kind == "mc_ddpm" else m for m in METHODS)
    return Evaluation((Cases(str(folder / "files"), "fastmri", "CORPD_FBK", "PD"),), methods)


@pytest.fixture(scope="session")
def done(asked: Evaluation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("done")
    assert evaluate(asked, out) == out / "rows.csv"
    return out


@pytest.fixture(scope="session")
def calibrated(asked: Evaluation, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """By a model that is calibrated for "Ours", and self-checked there; "More" draws more samples than it was fitted
    for."""
    model = shutil.copytree(asked.methods[2].model, tmp_path_factory.mktemp("calibrated") / "model")
    half_calibration(read_card(model).sha256, 4.0, 8.0).save(model)
    ours = replace(asked.methods[2], model=str(model), self_check=True)
    return replace(asked, methods=(ours, replace(ours, name="More", samples=3, self_check=False)))


@pytest.fixture(scope="session")
def checked(calibrated: Evaluation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("checked")
    assert evaluate(calibrated, out) == out / "rows.csv"
    return out
