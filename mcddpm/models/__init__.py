"""Networks, what makes a denoiser of them, and models on disk."""

from mcddpm.models.authors import import_authors
from mcddpm.models.card import ModelCard
from mcddpm.models.cascade import Cascade
from mcddpm.models.denoiser import Denoiser, Spectrum
from mcddpm.models.store import load_model, read_card, save_model, shipped
from mcddpm.models.supervised import Supervised
from mcddpm.models.unet import UNet

__all__ = [
    "Cascade",
    "Denoiser",
    "ModelCard",
    "Spectrum",
    "Supervised",
    "UNet",
    "import_authors",
    "load_model",
    "read_card",
    "save_model",
    "shipped",
]
