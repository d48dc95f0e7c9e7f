"""Files in and out, named data sets, and training examples."""

from mcddpm.data.cases import Case, Cases, cases_of
from mcddpm.data.catalogue import DATASETS
from mcddpm.data.examples import Batch, Stream
from mcddpm.data.protocols import PROTOCOLS, measurement
from mcddpm.data.readers import open_volume
from mcddpm.data.slices import Data, Slices
from mcddpm.data.volume import Geometry, Volume
from mcddpm.data.writers import Result, write

__all__ = [
    "DATASETS",
    "PROTOCOLS",
    "Batch",
    "Case",
    "Cases",
    "Data",
    "Geometry",
    "Result",
    "Slices",
    "Stream",
    "Volume",
    "cases_of",
    "measurement",
    "open_volume",
    "write",
]
