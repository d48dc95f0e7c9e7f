"""`mcddpm evaluate` under torchrun: the rows of one process, to the last digit."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from mcddpm.cli import main
from tests.torchrun import session


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "rows.csv").open() as file:
        return [{**row, "seconds": ""} for row in csv.DictReader(file)]


def test_two_processes_write_the_rows_of_one(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    shared = session(tmp_path_factory)
    ended = [shared.ended("evaluation", rank) for rank in (0, 1)]
    assert [process["code"] for process in ended] == [0, 0], ended
    assert main(shared.arguments("evaluation", tmp_path / "one")) == 0
    one = rows(tmp_path / "one")
    assert len(one) == 2 * 3 * 2 * 3 and rows(shared.out("evaluation")) == one  # files, slices, accelerations, methods
