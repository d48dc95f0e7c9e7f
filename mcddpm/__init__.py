"""MC-DDPM: posterior samples, a mean and error bars from an under-sampled MRI or CT scan."""

__version__ = "0.1.0"

from mcddpm.checkpoint import load_model
from mcddpm.datasets import Measurement
from mcddpm.reconstruct import Reconstruction, reconstruct

__all__ = ["Measurement", "Reconstruction", "__version__", "load_model", "reconstruct"]
