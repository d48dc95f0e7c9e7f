"""Masks: fastMRI's own columns, the acceleration reached, seeds, files, and what is refused."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from mcddpm.physics import masks
from tests.golden import golden_json

# Two of fastMRI's random masks, from their width, acceleration, centre fraction and seed.
FASTMRI_4X = [
    *(6, 7, 10, 19, 33, 35, 44, 47, 49, 53, 56, 60, 63, 69, 73, 75, 83, 84, 88, 89, 99, 102, 119, 121, 125, 126, 127),
    *(128, 131, 133, 139, *range(147, 175), 183, 190, 197, 200, 202, 203, 220, 222, 229, 234, 235, 240, 251, 253, 264),
    *(266, 269, 271, 276, 314),
]
FASTMRI_8X = [
    *(6, 7, 33, 44, 47, 49, 53, 56, 63, 83, 88, 99, 119, 121, 127, 128, 139, *range(154, 167), 169, 171, 183, 197, 200),
    *(202, 203, 222, 240, 253, 266, 314),
]


@pytest.mark.parametrize(
    ("acceleration", "fraction", "columns"), [(4, 0.08, FASTMRI_4X), (8, 0.04, FASTMRI_8X)], ids=["4x", "8x"]
)
def test_random_columns_are_fastmris(acceleration: int, fraction: float, columns: list[int]) -> None:
    mask = masks.random_columns(320, acceleration=acceleration, center_fraction=fraction, seed=10000015)
    assert mask.dtype == torch.bool and mask.shape == (320,)
    assert mask.nonzero().squeeze(1).tolist() == columns


def test_random_columns_equal_all_recorded_masks() -> None:
    for case in golden_json("fastmri_random_masks.json"):
        mask = masks.random_columns(
            case["columns"],
            acceleration=case["acceleration"],
            center_fraction=case["center_fraction"],
            seed=case["seed"],
        )
        assert mask.nonzero().squeeze(1).tolist() == case["sampled"]


@pytest.mark.parametrize("shape", [(64, 96), (97, 64), (128, 128)])
@pytest.mark.parametrize("acceleration", [2, 4, 8])
@pytest.mark.parametrize("name", masks.MASKS)
def test_acceleration_is_reached(name: str, acceleration: int, shape: tuple[int, int]) -> None:
    """Within one line, spoke or 1 % of points; random columns on average over seeds, as fastMRI defines them."""
    seeds = range(200) if name == "random_columns" else range(3)
    drawn = [masks.get(name, shape, acceleration=acceleration, seed=seed) for seed in seeds]
    reached = np.mean([mask.float().mean() for mask in drawn])
    along_axis = name in masks.ALONG_LAST_AXIS
    line = 1 / shape[1] if along_axis else 1.5 / min(shape) if name == "radial" else 0.011 / acceleration
    assert abs(reached - 1 / acceleration) <= line
    assert drawn[0].shape == (shape[1:] if along_axis else shape)
    assert masks.acceleration(drawn[0]) == pytest.approx(1 / drawn[0].double().mean().item())


@pytest.mark.parametrize("name", masks.MASKS)
def test_seeds_decide_and_global_generators_do_not(name: str) -> None:
    np.random.seed(0)
    torch.manual_seed(0)
    state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    first = masks.get(name, (64, 64), acceleration=4, seed=1)
    again = masks.get(name, (64, 64), acceleration=4, seed=1)
    assert torch.equal(first, again)
    assert any(not torch.equal(first, masks.get(name, (64, 64), acceleration=4, seed=s)) for s in (2, 3, 4))
    assert (np.random.get_state()[1] == state).all() and torch.equal(torch.get_rng_state(), torch_state)


@pytest.mark.parametrize("name", ["random_columns", "equispaced_columns"])
def test_centre_band_is_full(name: str) -> None:
    mask = masks.get(name, (320, 320), acceleration=4, center_fraction=0.08, seed=0)
    assert mask[147:173].all()
    assert 26 == round(320 * 0.08)


def test_equispaced_columns_form_a_comb() -> None:
    """Outside the centre all gaps differ by at most one column, and are wider than 4 to pay for the centre."""
    mask = masks.equispaced_columns(320, acceleration=4, center_fraction=0.08, seed=3)
    gaps = mask[:147].nonzero().squeeze(1).diff()
    assert gaps.max() - gaps.min() <= 1 and gaps.double().mean() > 4.5


def test_plane_masks_sample_the_centre_more() -> None:
    for name in masks.IN_PLANE:
        mask = masks.get(name, (96, 96), acceleration=6, seed=0).double()
        assert mask[45:52, 45:52].mean() > 2 * mask.mean(), name


def test_poisson_disc_keeps_points_apart() -> None:
    """Fewer neighbours touch than in a random mask of the same density."""
    mask = masks.poisson_disc((128, 128), acceleration=8, center_fraction=0, slope=0, seed=0)
    random = torch.rand(128, 128, generator=torch.Generator().manual_seed(0)) < mask.double().mean()

    def touching(m: torch.Tensor) -> int:
        return int((m[1:] & m[:-1]).sum() + (m[:, 1:] & m[:, :-1]).sum())

    assert touching(mask) < 0.05 * touching(random)


def test_ct_views() -> None:
    sparse = masks.sparse_views(180, acceleration=6, seed=0).nonzero().squeeze(1)
    assert (sparse.diff() == 6).all() and len(sparse) == 30
    arc = masks.limited_angle(180, acceleration=3, seed=0)
    assert arc.sum() == 60 and (arc != arc.roll(1)).sum() == 2  # one unbroken arc on the half circle


@pytest.mark.parametrize("ending", ["npy", "npz", "h5", "txt"])
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float32])
def test_a_users_own_file(tmp_path: Path, ending: str, dtype: type) -> None:
    mask = masks.random_columns(40, acceleration=4, seed=2)
    path = tmp_path / f"mask.{ending}"
    values = mask.numpy().astype(dtype)
    if ending == "npy":
        np.save(path, values)
    elif ending == "npz":
        np.savez(path, mask=values)
    elif ending == "txt":
        np.savetxt(path, values, fmt="%d")
    else:
        with h5py.File(path, "w") as file:
            file["mask"] = values
    assert torch.equal(masks.get(path, (30, 40)), mask)
    assert torch.equal(masks.get(str(path), (30, 40)), mask)
    with pytest.raises(ValueError, match=r"mask has shape \(40,\), expected one that broadcasts to data \(30, 41\)"):
        masks.get(path, (30, 41))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([0, 2, 1]), "holds values other than 0 and 1"),
        (np.array([0.0, np.nan, 1.0]), "holds values other than 0 and 1"),
        (np.zeros(3, bool), "samples nothing"),
        (np.ones(3, bool), "samples everything"),
        (np.array([{}, 1, 0], dtype=object), "holds no readable mask"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, values: np.ndarray, message: str) -> None:
    np.save(tmp_path / "mask.npy", values, allow_pickle=True)
    with pytest.raises(ValueError, match=message):
        masks.get(tmp_path / "mask.npy", (3, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: masks.random_columns(320, acceleration=0.5, seed=0), "acceleration is 0.5, expected a factor of 1"),
        (lambda: masks.radial((8, 8), acceleration=float("nan"), seed=0), "acceleration is nan"),
        (lambda: masks.sparse_views(90, acceleration=0, seed=0), "acceleration is 0"),
        (
            lambda: masks.random_columns(320, acceleration=8, center_fraction=0.2, seed=0),
            "the centre band of 64 columns .* is wider than the 40 of 320 columns that acceleration 8 leaves",
        ),
        (lambda: masks.random_columns(320, acceleration=4, center_fraction=-0.1, seed=0), "center_fraction is -0.1"),
        (lambda: masks.random_columns(0, acceleration=4, seed=0), "width is 0"),
        (lambda: masks.radial((8,), acceleration=4, seed=0), r"shape is \(8,\), expected \(height, width\)"),
        (lambda: masks.gaussian_2d((8, 8), center_fraction=-1, seed=0), "center_fraction is -1"),
        (lambda: masks.poisson_disc((8, 8), center_fraction=2, seed=0), "center_fraction is 2, expected a share"),
        (lambda: masks.get("spiral", (8, 8), seed=0), "unknown mask 'spiral'; known: random_columns"),
        (lambda: masks.get("none.npy", (8, 8)), "no mask file none.npy"),
        (lambda: masks.get(__file__, (8, 8)), "has ending '.py', expected"),
        (lambda: masks.random_columns(4, acceleration=4, center_fraction=0, seed=3), "sampled nothing"),
        (lambda: masks.sparse_views(0, seed=0), "there are 0 entries to sample"),
        (lambda: masks.gaussian_2d((8, 8), width=0, seed=0), "width is 0, expected a value above 0"),
    ],
)
def test_wrong_settings_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_no_acceleration_samples_everything() -> None:
    assert masks.random_columns(16, acceleration=1, center_fraction=1, seed=0).all()


def test_a_batch_of_masks_is_checked_one_by_one() -> None:
    good, full = torch.tensor([[True, False]]), torch.tensor([[True, True]])
    with pytest.raises(ValueError, match="samples everything"):
        masks.check(torch.stack([good, full]), (2, 1, 2), batched=True)
