"""What magnitude images lack to be scans: phase, noise, coils; and scans made as varied as real ones."""

from mcddpm.simulation.scans import Simulation
from mcddpm.simulation.wide import Wide

__all__ = ["Simulation", "Wide"]
