"""What the benchmarks claim and a machine's load cannot blur: calls to the posterior, and memory."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks import reconstruct, sampler_overhead
from benchmarks.calls_to_posterior import TOLERANCE, Bench
from mcddpm.samplers import SAMPLERS
from mcddpm.schedules import SPACINGS


def test_dpmpp_2m_needs_a_tenth_of_the_calls_of_ancestral() -> None:
    bench = Bench()
    for n in (9, 10, 12, 16, 24):
        assert bench.error(partial(SAMPLERS["dpmpp_2m"]), n, "log_sigma") <= TOLERANCE
    for spacing in SPACINGS:
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
