"""What the benchmarks claim and a machine's load cannot blur: calls to the posterior, and memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import get_args

import pytest
import torch

import mcddpm
from benchmarks import lesions, reconstruct, sampler_overhead, selfcheck, training_cost
from benchmarks.calls_to_posterior import TOLERANCE, Bench
from mcddpm.data.cases import Case, Cases
from mcddpm.diffusion.samplers import SAMPLERS
from mcddpm.diffusion.schedules import Spacing
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.store import load_model
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.masks import random_columns
from mcddpm.physics.measurement import measure
from mcddpm.uncertainty import scores
from mcddpm.uncertainty.calibration import load_calibration
from mcddpm.uncertainty.surprise import centre, surprise
from tests.scans import kspace
from tests.uncertainty.made_up import calibrated_model


def test_dpmpp_2m_needs_a_tenth_of_the_calls_of_ancestral() -> None:
    bench = Bench()
    for n in (9, 10, 12, 16, 24):
        assert bench.error(partial(SAMPLERS["dpmpp_2m"]), n, "log_sigma") <= TOLERANCE
    for spacing in get_args(Spacing):
        for step_noise in ("beta", "tilde_beta"):
            assert bench.error(partial(SAMPLERS["ancestral"], step_noise=step_noise), 90, spacing) > TOLERANCE


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "mean"])
def test_a_step_costs_less_than_three_times_its_ffts(sampler: str) -> None:
    """Measured at 0.1 to 1.3: room enough for a busy machine."""
    assert sampler_overhead.time_ratio(sampler, repeats=3) <= sampler_overhead.MOST_TIME


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_no_more_than_three_tensors_beyond_the_state(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_overhead, "SIZE", 64)
    assert 1 <= sampler_overhead.live_tensors(sampler) <= sampler_overhead.MOST_TENSORS


def test_reconstruct_stays_within_its_memory() -> None:
    """The whole process, at 320 x 320 and 20 samples, which at once would take more."""
    assert reconstruct.peak("default", "2GB", samples=20) < 2e9


def test_steps_of_trainings_are_timed_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The median of the rounds, in each of which every training has its turn."""
    paths = [tmp_path / "one.toml", tmp_path / "two.toml"]
    for path in paths:
        path.write_text("[data]\ndrawn_size = 16\ndrawn_slices = 4\n[network]\nchannels = 8\nmultipliers = [1]\n")
    turns = iter([1.0, 20.0, 9.0, 10.0, 2.0, 90.0])
    monkeypatch.setattr(training_cost, "timed", lambda trainer, steps: next(turns))
    assert training_cost.costs(paths, rounds=3, steps=1) == {paths[0]: 2.0, paths[1]: 20.0}


def test_numbers_of_lesions_by_hand() -> None:
    """Two slices of 3 x 4, of which two rows and one column are a lesion: errors 0.3 and 0.4 there, 9 elsewhere. Each
    kind of interval is wider than the last and holds more of the four pixels."""
    truth, inside = torch.zeros(3, 4), (slice(1, 3), slice(2, 3))
    region = lesions.inside((1, 2, 2, 1), truth)
    assert region.nonzero().tolist() == [[1, 2], [2, 2]]
    images = []
    for errors in ([0.3, 0.3], [0.3, 0.4]):
        mean, std, zero = torch.full((3, 4), 9.0), torch.full((3, 4), 7.0), torch.full((3, 4), 5.0)
        mean[inside], std[inside], zero[inside] = torch.tensor(errors)[:, None], 0.1, 1.0
        found = {"mean": mean, "truth": truth, "std": std, "zero_filled": zero}
        for name, half in zip(lesions.INTERVALS, (0.2, 0.35, 0.45), strict=True):
            found |= {f"lower {name}": mean - half, f"upper {name}": mean + half}
        images.append(found)
    rows = [{"acceleration": "4", "region": "lesion"} | lesions.row_of(image, region) for image in images]
    assert lesions.table(rows) == ["| 4x, lesion | 100.00 | 32.79 | 10.00 | 0.30 | 0.0 | 75.0 | 100.0 |"]
    rows[1]["pixels"] = "6"  # pixels count alike, not slices
    assert lesions.line(rows).endswith("| 0.0 | 62.5 | 100.0")


def test_intervals_of_lesions_are_in_the_units_of_the_truth(tmp_path: Path) -> None:
    """As `reconstruct` has them, by the slice's maximum; the last with the surprise of a self-check."""
    model = load_model(calibrated_model(tmp_path / "model"))
    assert isinstance(model, Denoiser)
    y, mask = torch.from_numpy(kspace(1)[0]), random_columns(32, acceleration=4, seed=0)
    m = measure(y, mask, Fourier(), Fourier().pinv(y))
    case = Case("lesions", "simulated", "one", 3, 4.0, "", 0, Cases(), lambda: m)
    found = lesions.drawn(model, case, tmp_path)
    top = float(Fourier().pinv(y).abs().max())
    assert float(found["truth"].max()) == pytest.approx(1.0)
    recon = mcddpm.reconstruct(model, m, seed=3)
    assert torch.allclose(found["mean"], recon.mean / top, rtol=1e-4)
    known = load_calibration(model)
    overall = surprise(model, m, known.checked.plan, seed=3).statistics["overall"]
    for name, told in (("calibrated", None), ("with self-check", overall)):
        ends = recon.interval(known, 0.9, told)
        for end, image in (("lower", ends.lower), ("upper", ends.upper)):
            assert torch.allclose(found[f"{end} {name}"], image / top, rtol=1e-4, atol=1e-6), (name, end)
    assert not torch.allclose(found["upper calibrated"], found["upper with self-check"], rtol=1e-2)
    samples = recon.samples.abs()
    expected = samples.mean(0) + scores.z_of(0.9, len(samples)) * samples.std(0)
    assert torch.allclose(found["upper as drawn"], expected / top, rtol=1e-4)


def test_area_under_the_curve_of_the_self_check() -> None:
    assert selfcheck.auc([0, 1, 2], [3, 4, 5]) == 1 and selfcheck.auc([3, 4], [1, 2]) == 0
    assert selfcheck.auc([1, 2], [1, 3]) == pytest.approx((0.5 + 0 + 1 + 1) / 4)
    assert selfcheck.told([0.0, 1.0, 2.0], [3.0, 4.0, 5.0]) == "1.00 (1.00 to 1.00)"


def test_what_the_self_check_is_asked_to_find() -> None:
    """Each alters what was measured, where it says, and nothing else."""
    mask = random_columns(64, acceleration=4, seed=0)
    y = torch.randn(64, 64, dtype=torch.complex64).masked_fill(~mask, 0)
    middle = centre(mask)
    for inside in (False, True):
        for change in (selfcheck.spike, selfcheck.lost_line, selfcheck.line_of_noise):
            columns = (change(y, mask, 3, inside=inside) != y).any(0)
            assert columns.sum() == 1 and bool(middle[columns]) == inside and mask[columns].all()
    coils = torch.stack([y, 2 * y, 3 * y])
    lost = selfcheck.lost_by_one_coil(coils, mask, 4)
    assert torch.equal(lost[[0, 2]], coils[[0, 2]]) and int((lost[1] != coils[1]).any(0).sum()) == 1
    x = torch.rand(32, 32, generator=torch.Generator().manual_seed(0))
    one, four = (selfcheck.measured(x, None, 4, 0, coils=c) for c in (0, 4))
    assert one.y_m.shape == (32, 32) and four.y_m.shape == (4, 32, 32) and torch.equal(one.mask, four.mask)
    moved = selfcheck.wrong_mask(y, mask, 3)
    assert torch.equal(moved[:, middle], y[:, middle]) and not torch.equal(moved, y)
    assert torch.equal((moved != 0).any(0), mask)
    white = torch.randn(2048, 64, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    found = selfcheck.line_of_noise(3 * white, mask, 3, inside=True)
    size = found[:, (found != 3 * white).any(0)].abs().square().mean()
    assert float(size) == pytest.approx(9.0, rel=0.15), "as strong as what lies at the edge"
