"""How a scanner measures: operators, masks, coils, measurements, and what magnitude images lack to be scans."""

from mcddpm.physics import masks
from mcddpm.physics.coils import coil_maps, maps_of
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier, fft, ifft
from mcddpm.physics.measurement import Measurement, measure
from mcddpm.physics.operator import Operator
from mcddpm.physics.sense import Sense
from mcddpm.physics.simulation import Simulation

__all__ = [
    "Fourier",
    "Measurement",
    "Operator",
    "Radon",
    "Sense",
    "Simulation",
    "coil_maps",
    "fft",
    "ifft",
    "maps_of",
    "masks",
    "measure",
]
