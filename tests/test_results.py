"""docs/results.md and README.md say what was measured: tables made of docs/brain-4x8x.csv, the rows that
`mcddpm evaluate configs/brain-4x8x.toml` wrote, stand there as they are printed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from mcddpm import config, tables
from mcddpm.evaluate import COLUMNS, Evaluation

ROOT = Path(__file__).parents[1]
OURS = "MC-DDPM, mean of 20"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tables.Results:
    folder = tmp_path_factory.mktemp("results")
    shutil.copy(ROOT / "docs" / "brain-4x8x.csv", folder / "rows.csv")
    return tables.Results(folder)


@pytest.fixture(scope="module")
def study() -> Evaluation:
    return config.load_as(Evaluation, ROOT / "configs" / "brain-4x8x.toml")


def test_rows_are_of_the_configuration(results: tables.Results, study: Evaluation) -> None:
    assert results.methods == [method.name for method in study.methods]
    assert tuple(results.rows[0]) == COLUMNS and len({row["manifest"] for row in results.rows}) == 1
    slices = {tuple(row["slice"] for row in results.of(key)) for key in results.runs()}
    assert len(slices) == 1 and len(results.runs()) == 2 * len(study.methods), "the same slices for each"
    assert {int(slice) % study.cases[0].every for slice in slices.pop()} == {0}


def test_tables_stand_as_they_are_printed(results: tables.Results, study: Evaluation) -> None:
    printed = (ROOT / "docs" / "results.md").read_text().splitlines()
    drawn = [key for key in results.runs() if key[1] == OURS]
    made = [tables._quality(results, "slices"), tables._paired(results, study.reference, OURS)]
    made += [t(results, drawn, region) for t in (tables._intervals, tables._spread) for region in tables.REGIONS]
    missing = [line for table in made for line in map(tables._line, table.rows) if line not in printed]
    assert not missing, "\n".join(missing)


def test_the_readme_has_the_same_numbers(results: tables.Results) -> None:
    table = [line.replace("*", "") for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("|")]
    for method in results.methods:
        wanted = [
            f"{results.slices(('brain', method, a), name).mean():{tables.FORMAT[name]}}"
            for name in ("psnr", "ssim")
            for a in (4.0, 8.0)
        ]
        calls = results.cost(("brain", method, 4.0))[0]
        line = next((line for line in table if re.match(rf"\| {re.escape(method)}( \(|  ?\|)", line)), "")
        assert not line or [cell.strip() for cell in line.split("|")[2:7]] == [*wanted, calls], (method, line, wanted)
    assert sum(line.startswith(f"| {method} ") for line in table for method in results.methods) >= 6
