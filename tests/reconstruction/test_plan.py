"""A DrawPlan: how samples are drawn, checked once, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from mcddpm.diffusion.samplers import SAMPLERS, SamplerName
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.system.settings import from_dict, to_dict


def test_the_usual_plan() -> None:
    assert to_dict(DrawPlan()) == {"samples": 20, "sampler": "dpmpp_2m_sde", "steps": 10, "grid": None, "seed": 0}
    assert from_dict(DrawPlan, to_dict(DrawPlan(3, "heun", 4, "karras", 5))) == DrawPlan(3, "heun", 4, "karras", 5)


def test_every_sampler_has_its_calls() -> None:
    assert set(get_args(SamplerName)) == set(SAMPLERS)
    calls = {name: DrawPlan(2, name, 7).calls for name in SAMPLERS}
    assert calls == {"ancestral": 7, "ddim": 7, "heun": 13, "dpmpp_2m": 7, "dpmpp_2m_sde": 7, "mean": 1}


def test_mean_is_one_image_of_one_call_whatever_is_asked() -> None:
    assert DrawPlan(20, "mean", 10) == DrawPlan(1, "mean", 1)
    assert str(DrawPlan(20, "mean", 10)) == "1 sample of mean in 1 step"


def test_steps_are_spread_as_asked_or_as_the_paper_has_them() -> None:
    assert DrawPlan(sampler="ancestral").spacing == "uniform" and DrawPlan().spacing is None
    assert DrawPlan(sampler="ancestral", grid="karras").spacing == "karras"


def test_in_words() -> None:
    assert str(DrawPlan()) == "20 samples of dpmpp_2m_sde in 10 steps"
    assert str(DrawPlan(1, "heun", 1, "karras")) == "1 sample of heun in 1 step on a karras grid"


@pytest.mark.parametrize("change", [{"samples": 19}, {"sampler": "heun"}, {"steps": 9}, {"grid": "karras"}])
def test_plans_that_draw_from_other_distributions(change: dict) -> None:
    plan = DrawPlan(seed=1)
    assert plan.is_like(replace(plan, seed=2)) and not plan.is_like(replace(plan, **change))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, "samples is 0, expected 1 or more"),
        ({"steps": -1}, "steps is -1, expected 1 or more"),
        ({"sampler": "mean", "samples": 0}, "samples is 0, expected 1 or more"),
        ({"sampler": "zebra"}, "sampler is 'zebra', expected one of: ancestral, ddim, heun, dpmpp_2m, dpm"),
        ({"grid": "zebra"}, "grid is 'zebra', expected one of: uniform, log_sigma, karras"),
    ],
)
def test_plans_that_cannot_be(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DrawPlan(**settings)
