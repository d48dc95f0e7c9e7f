"""MC-DDPM: posterior samples, a mean and error bars from an under-sampled MRI or CT scan."""

__version__ = "0.1.0"

from mcddpm.models.store import load_model
from mcddpm.physics.measurement import Measurement
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.reconstruction.sample import reconstruct

__all__ = ["Measurement", "Reconstruction", "__version__", "load_model", "reconstruct"]
