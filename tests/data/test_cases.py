"""Cases of a study: the same measurement for every method."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest

from mcddpm.data.cases import Cases, cases_of
from tests.data.files import fastmri_file


def test_a_slice_with_nothing_in_it_is_refused_by_cases_too(tmp_path: Path) -> None:
    with h5py.File(fastmri_file(tmp_path / "file1000123.h5", 2), "r+") as file:
        file["kspace"][1] = 0
    first, empty = cases_of(Cases(str(tmp_path), "fastmri", accelerations=(4.0,)))
    assert first.make().y_m.any()
    with pytest.raises(ValueError, match="zero everywhere"):
        empty.make()
