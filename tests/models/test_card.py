"""The card says what a model is: typed, read once, and refused by name when it is of another version or kind."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from mcddpm.diffusion.schedules import ScheduleChoice
from mcddpm.models.card import FORMAT, Architecture, ImportedFrom, ModelCard, SpectrumOf, TrainedOn
from mcddpm.models.cascade import Cascade
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.supervised import Supervised
from mcddpm.models.unet import UNet
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.masks import MaskMix
from mcddpm.system.settings import to_dict

SMALL = Architecture(channels=8, multipliers=(1, 2), attention=(2,), heads=2, patch=2)


def card(**changes: object) -> ModelCard:
    return replace(ModelCard(SMALL), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "asked",
    [
        card(),
        card(spectrum=SpectrumOf((1.0, 0.5), (8, 8)), mask=MaskMix(("radial",), (4.0,)), validation={"mean": 30.0}),
        card(imported_from=ImportedFrom("a.pt", "0"), kind="supervised", conditional=False, measured_rms=(0.1, 0.2)),
        card(schedule=ScheduleChoice("linear", T=10), operator=TrainedOn("radon", 12, (16, 16)), step=3),
    ],
)
def test_round_trip_through_json(asked: ModelCard) -> None:
    assert ModelCard.read(json.loads(json.dumps(to_dict(asked))), "model.json") == asked


def test_a_card_of_the_first_version_is_read_without_its_calibration() -> None:
    old = {k: v for k, v in to_dict(card(step=5)).items() if v is not None}
    old |= {"format": 1, "mask": {}, "calibration": {"tables": [1]}, "self_check": {"usual": []}}
    assert ModelCard.read(old, "model.json") == card(step=5)
    known = old | {"mask": {"families": ["radial"], "accelerations": [4]}, "spectrum": {"std": [1, 2], "shape": [8, 8]}}
    read = ModelCard.read(known, "model.json")
    assert read.mask == MaskMix(("radial",), (4.0,)) and read.spectrum == SpectrumOf((1.0, 2.0), (8, 8))
    assert read.format == FORMAT


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "model.json is not the card of a model of ours: it has no architecture"),
        ([], "model.json is not the card of a model of ours: it has no architecture"),
        ({"architecture": {}}, "model.json has format None, expected 1 or 2: it needs another mcddpm"),
        ({"architecture": {}, "format": 3}, "model.json has format 3, expected 1 or 2"),
        ({"architecture": {}, "format": 2, "colour": 1}, r"unknown key model.json: colour"),
        ({"architecture": {"depth": 1}, "format": 2}, r"unknown key model.json: architecture.depth"),
        (
            {"architecture": {}, "format": 2, "kind": "gan"},
            r"model.json: kind is 'gan', expected one of: denoiser, sup",
        ),
        (
            {"architecture": {}, "format": 2, "parameterisation": "v"},
            "parameterisation is 'v', expected one of: eps, d",
        ),
        ({"architecture": {}, "format": 2, "schedule": {"name": "x"}}, "schedule.name is 'x', expected one of: cosine"),
        (
            {"architecture": {}, "format": 2, "operator": {"kind": "x"}},
            "operator.kind is 'x', expected one of: fourier",
        ),
        ({"architecture": {"channels": "x"}, "format": 2}, "architecture.channels is 'x', expected a whole number"),
        ({"architecture": {}, "format": 1, "colour": 1}, r"unknown key model.json: colour"),
    ],
)
def test_a_card_that_is_none_of_ours(values: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelCard.read(values, "model.json")  # type: ignore[arg-type]


def test_the_model_is_what_the_card_says() -> None:
    asked = card(
        parameterisation="eps",
        data_std=0.3,
        gain=0.5,
        schedule=ScheduleChoice("variance_exploding", T=20, sigma_max=50.0),
        spectrum=SpectrumOf((1.0, 0.5), (8, 8)),
    )
    model = asked.build()
    assert isinstance(model, Denoiser) and isinstance(model.network, UNet) and isinstance(model.operator, Fourier)
    assert (model.parameterisation, model.data_std, model.gain) == ("eps", 0.3, 0.5)
    assert model.schedule.T == 20 and float(model.schedule.sigma[-1]) == pytest.approx(50.0)
    assert model.spectrum is not None and model.spectrum.std.tolist() == [1.0, 0.5] and model.spectrum.shape == (8, 8)
    assert model.network.down[0][0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("residual", [False, True])
def test_a_supervised_model(residual: bool) -> None:
    one = replace(SMALL, in_channels=2, time=False)
    model = card(architecture=one, kind="supervised", residual=residual).build()
    assert isinstance(model, Supervised) and model.residual == residual and model.network.time is None


def test_the_operator_of_the_training_data() -> None:
    A = TrainedOn("radon", views=12, trained_on=(16, 12)).operator()
    assert isinstance(A, Radon) and A.image_shape == (16, 12) and len(A.angles) == 12
    assert isinstance(TrainedOn("fourier", trained_on=(16, 12)).operator(), Fourier)
    assert TrainedOn("sense", trained_on=(16, 12)).operator() is None, "its maps come with each scan"


def test_stages_make_a_cascade_of_the_settings_that_it_knows() -> None:
    network = replace(SMALL, stages=3, groups=4, channels=16).build()
    assert isinstance(network, Cascade) and len(network.stages) == 3 and network.channels == 16 and network.patch == 2
    assert isinstance(SMALL.build(), UNet)
