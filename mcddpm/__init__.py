"""MC-DDPM: posterior samples, a mean and error bars from an under-sampled MRI or CT scan."""

__version__ = "0.1.0"

from mcddpm.checkpoint import load_model

__all__ = ["__version__", "load_model"]
