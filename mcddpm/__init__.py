"""MC-DDPM: posterior samples, a mean and error bars from an under-sampled MRI or CT scan."""

__version__ = "0.1.0"
