"""A configuration that cannot be trained stops early, in one line, and leaves no checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mcddpm.data.phantoms import drawn
from mcddpm.data.slices import Slices
from mcddpm.training.run import train
from mcddpm.training.setup import stream_of, training_slices, validation_slices
from tests.training.small import CASCADE, SMALL, settings

Values = dict[str, dict[str, Any]]


def test_a_stream_is_as_the_configuration_says() -> None:
    """Masks, phase, noise, strips and whether a measurement is shown: another setting is another stream."""
    magnitudes = Slices(np.abs(drawn(3, 16, seed=0)), "heads")
    usual = stream_of(settings(), magnitudes, augment=True).batch(range(3))
    assert torch.equal(usual.y_m, stream_of(settings(), magnitudes, augment=True).batch(range(3)).y_m)
    for values, more in (
        ({"mask": {"families": ["radial"]}}, {}),
        ({"mask": SMALL["mask"] | {"accelerations": [8]}}, {}),
        ({"simulation": {"phase": 2.0}}, {}),
        ({"simulation": {"snr": [5.0]}}, {}),
        ({"model": {"conditional": False}}, {}),
        ({"training": SMALL["training"] | {"seed": 1}}, {}),
        ({}, {"augment": False}),
        ({}, {"strip": 8}),
    ):
        other = stream_of(settings(values), magnitudes, **({"augment": True} | more)).batch(range(3))
        assert not torch.equal(usual.y_m, other.y_m), (values, more)


def test_slices_that_are_drawn_are_others_to_validate_on() -> None:
    chosen = settings()
    train, validation = training_slices(chosen), validation_slices(chosen)
    assert (len(train), len(validation)) == (7, 16) and train.shape == validation.shape == (16, 16)
    assert all(not np.array_equal(a, b) for a in train.images for b in validation.images)
    assert training_slices(settings(seed=1)).sha256 != train.sha256 == training_slices(chosen).sha256
    assert not training_slices(settings({"operator": {"kind": "radon"}})).is_complex


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": {"train": "none.npy"}}, "no file none.npy with slices"),
        ({"data": {"train": "empty.npy"}}, "empty.npy holds no slices: nothing to train on"),
        ({"data": {"train": "flat.npy"}}, r"flat.npy has shape \(4, 4\), expected \(slices, height, width\)"),
        ({"data": {"train": "text.npy"}}, "text.npy cannot be read as slices"),
        ({"data": {"train": "nan.npy"}}, "nan.npy, slice . holds NaN or infinite values"),
        ({"data": {"train": "complex.npy"}, "operator": {"kind": "radon"}}, "is complex, but operator radon"),
        ({"data": {"validation": "typo.npy"}}, "no file typo.npy with slices"),
        ({"data": {"train": "archive.npz"}}, "archive.npz is an archive"),
        ({"operator": {"kind": "sense"}}, "operator sense needs operator.maps"),
        ({"operator": {"kind": "spiral"}}, "operator.kind is 'spiral', expected one of: fourier, sense, radon"),
        ({"schedule": {"name": "quadratic"}}, "schedule.name is 'quadratic', expected one of: cosine"),
        ({"mask": {"families": []}}, "the mix of masks is empty"),
        ({"mask": {"families": ["spiral"]}}, "unknown mask 'spiral'"),
        ({"mask": {"accelerations": [1.0]}}, "mask samples everything"),
        ({"network": {"heads": 0}}, "heads is 0 and head_channels 0"),
        ({"training": {"batch": 3, "accumulate": 2}}, "training.batch 3 does not divide into 1 processes x 2"),
        ({"training": {"steps": 0}}, "training.steps is 0, expected 1 or more"),
        ({"training": {"validation_steps": 0}}, "training.validation_steps is 0"),
        ({"training": {"times": "often"}}, "training.times is 'often', expected one of: uniform, lognormal"),
        ({"training": {"precision": "float8"}}, "training.precision is 'float8', expected one of: auto, float32"),
        ({"training": {"compile": "of"}}, "training.compile is 'of', expected one of: auto, on, off"),
        ({"training": {"optimiser": "sgd"}}, "training.optimiser is 'sgd', expected one of: adamw, muon"),
        ({"training": {"device": "banana"}}, "unknown device 'banana'"),
        ({"training": {"init": "nowhere"}}, "no model .nowhere."),
        ({"training": {"strip": 8}}, "training.strip needs model.spectrum = false"),
        ({"training": {"strip": 8}, "mask": {"families": ["radial"]}}, "needs operator fourier and masks of whole"),
        ({"training": {"strip": 99}}, "training.strip is 99, expected 0 to the height of a slice, 16"),
        ({"network": CASCADE, "model": {"parameterisation": "eps"}}, "goes with parameterisation denoised, not eps"),
        ({"network": CASCADE, "model": {"kind": "supervised"}}, "a supervised model is one U-Net: network.stages must"),
        ({"model": {"kind": "magic"}}, "model.kind is 'magic', expected one of: denoiser, supervised"),
    ],
)
def test_bad_settings_stop_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: Values, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("empty.npy", np.zeros((0, 4, 4)))
    np.save("flat.npy", np.zeros((4, 4)))
    np.save("nan.npy", np.full((3, 16, 16), np.nan))
    np.save("complex.npy", np.ones((3, 16, 16), np.complex64))
    np.savez("archive.npz", x=np.ones((3, 16, 16)))
    Path("text.npy").write_text("no array")
    mixed = {key: {**SMALL.get(key, {}), **section} for key, section in values.items()}
    with pytest.raises(ValueError, match=message) as error:
        train(settings(mixed), tmp_path / "run")
    assert "\n" not in str(error.value) and not (tmp_path / "run" / "checkpoints").exists()
