"""The operator that a configuration names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mcddpm.physics.coils import coil_maps
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.scanner import OperatorChoice
from mcddpm.physics.sense import Sense
from mcddpm.system.seeds import seed_of
from mcddpm.system.settings import from_dict


def test_one_coil_and_ct() -> None:
    assert isinstance(OperatorChoice().operator((8, 8), 0), Fourier)
    A = OperatorChoice("radon", views=12).operator((8, 6), 0)
    assert isinstance(A, Radon) and A.image_shape == (8, 6) and len(A.angles) == 12


def test_maps_from_a_file(tmp_path: Path) -> None:
    maps = coil_maps(3, (8, 6), seed=0)
    np.save(tmp_path / "maps.npy", maps.numpy().astype(np.complex128))
    A = OperatorChoice("sense", maps=str(tmp_path / "maps.npy")).operator((8, 6), 0)
    assert isinstance(A, Sense) and torch.allclose(A.maps, maps) and A.maps.dtype == torch.complex64
    with pytest.raises(ValueError, match=r"maps.npy are for \(8, 6\), the slices are \(8, 8\)"):
        OperatorChoice("sense", maps=str(tmp_path / "maps.npy")).operator((8, 8), 0)


def test_simulated_maps_have_a_seed() -> None:
    one, same, other = (OperatorChoice("sense", maps="simulated:4").operator((8, 8), seed) for seed in (1, 1, 2))
    assert isinstance(one, Sense) and isinstance(same, Sense) and isinstance(other, Sense)
    assert torch.equal(one.maps, same.maps) and not torch.equal(one.maps, other.maps)
    assert torch.equal(one.maps, coil_maps(4, (8, 8), seed_of(1, 7))), "not the seed of anything else in the run"


@pytest.mark.parametrize("maps", ["", "none.npy", "simulated", "simulated:x"])
def test_maps_that_are_none(maps: str) -> None:
    with pytest.raises(ValueError, match=rf'needs operator.maps: a .npy of coil maps.*"simulated:8"; got {maps!r}'):
        OperatorChoice("sense", maps=maps).operator((8, 8), 0)


def test_a_kind_that_is_none() -> None:
    with pytest.raises(ValueError, match="kind is 'mri', expected one of: fourier, sense, radon"):
        from_dict(OperatorChoice, {"kind": "mri"})
