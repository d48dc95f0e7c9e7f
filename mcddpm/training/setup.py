"""What a configuration describes: slices, the stream of examples, and the card of the untrained model."""

from __future__ import annotations

from dataclasses import asdict

from mcddpm import __version__
from mcddpm.data.examples import Stream
from mcddpm.data.slices import Slices, open_slices
from mcddpm.data.wide_examples import WideStream
from mcddpm.models.card import Architecture, ModelCard, TrainedOn
from mcddpm.models.denoiser import noise_gain
from mcddpm.physics.ct import Radon
from mcddpm.system.seeds import seed_of
from mcddpm.training.settings import Config


def training_slices(settings: Config) -> Slices:
    return _slices(settings, settings.data.train, settings.data.drawn_slices, 1)


def validation_slices(settings: Config) -> Slices:
    return _slices(settings, settings.data.validation, 16, 2)


def _slices(settings: Config, source: str, drawn: int, salt: int) -> Slices:
    seed = seed_of(settings.training.seed, 5, salt)
    return open_slices(settings.data, source, seed, drawn, real=settings.operator.kind == "radon")


def stream_of(settings: Config, slices: Slices, augment: bool = False, strip: int = 0) -> Stream | WideStream:
    """Examples of these slices, measured as the configuration says."""
    if settings.simulation.wide:
        return _wide(settings, slices, augment)
    if settings.operator.kind == "radon" and slices.is_complex:
        raise ValueError(f"{slices.name} is complex, but operator radon measures real images")
    mix, seed = settings.mask, settings.training.seed
    return Stream(
        slices,
        settings.operator.operator(slices.shape, seed),
        mix.families,
        mix.accelerations,
        seed,
        settings.simulation,
        augment,
        strip,
        settings.model.conditional,
        settings.model.noise,
    )


def _wide(settings: Config, slices: Slices, augment: bool) -> WideStream:
    if settings.operator.kind != "fourier" or not settings.model.noise or settings.training.strip:
        raise ValueError("simulation.wide draws coils and noise: it takes operator fourier, model.noise, and no strip")
    exact = settings.simulation.exact if augment else 0.0
    return WideStream(slices, settings.wide, settings.training.seed, exact)


def _trained_on(settings: Config, shape: tuple[int, int]) -> TrainedOn:
    wide = settings.wide
    if not settings.simulation.wide:
        return TrainedOn(settings.operator.kind, settings.operator.views, shape)
    return TrainedOn("fourier", trained_on=shape, sizes=(min(wide.sizes), max(wide.sizes)), coils=max(wide.coils))


def card_of(settings: Config, image_shape: tuple[int, int]) -> ModelCard:
    """The card of the model that a configuration describes, for images of this shape (Radon's is fixed)."""
    choice, channels, gain = settings.model, 2, 1.0
    if settings.operator.kind == "radon":
        A = Radon(image_shape, settings.operator.views)
        channels, gain = 1, noise_gain(A, A.data_shape or (), is_complex=False)
    diffusion = choice.kind == "denoiser"
    if settings.network.stages and not diffusion:
        raise ValueError("a supervised model is one U-Net: network.stages must be 0")
    if choice.noise and not (diffusion and choice.parameterisation == "denoised" and choice.conditional):
        raise ValueError("model.noise is for a conditional denoiser that predicts the clean image")
    if choice.noise and settings.operator.kind == "radon":
        raise ValueError("model.noise is for MRI: training does not simulate the noise of CT. Leave it out")
    if not 0 <= settings.simulation.exact <= 1:
        raise ValueError(f"simulation.exact is {settings.simulation.exact}, expected a part, 0 to 1")
    inputs = 2 * channels if diffusion else channels
    return ModelCard(
        Architecture(
            **asdict(settings.network), in_channels=inputs, out_channels=channels, time=diffusion, noise=choice.noise
        ),
        kind=choice.kind,
        conditional=choice.conditional,
        residual=not diffusion,
        parameterisation=choice.parameterisation,
        data_std=choice.data_std,
        gain=gain,
        schedule=settings.schedule,
        operator=_trained_on(settings, image_shape),
        data=settings.data,
        mask=settings.wide.mask_mix if settings.simulation.wide else settings.mask,
        licence=settings.data.licence or "not stated",
        made_by=f"mcddpm {__version__}",
    )
