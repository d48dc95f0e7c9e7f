"""How a scanner measures: operators, masks, coils, noise, measurements."""

from mcddpm.physics import masks
from mcddpm.physics.coils import coil_maps, maps_of
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier, fft, ifft
from mcddpm.physics.measurement import Measurement, measure
from mcddpm.physics.operator import Operator
from mcddpm.physics.sense import Sense

__all__ = [
    "Fourier",
    "Measurement",
    "Operator",
    "Radon",
    "Sense",
    "coil_maps",
    "fft",
    "ifft",
    "maps_of",
    "masks",
    "measure",
]
