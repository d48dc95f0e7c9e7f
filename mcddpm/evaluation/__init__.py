"""Methods on the same slices, masks and metrics: rows, tables and figures."""

from mcddpm.evaluation.baselines import total_variation, unet, zero_filled
from mcddpm.evaluation.methods import KINDS, Method
from mcddpm.evaluation.rows import Row, read_csv, write_csv
from mcddpm.evaluation.run import evaluate
from mcddpm.evaluation.study import Evaluation, Study
from mcddpm.evaluation.tables import Table, write_tables

__all__ = [
    "KINDS",
    "Evaluation",
    "Method",
    "Row",
    "Study",
    "Table",
    "evaluate",
    "read_csv",
    "total_variation",
    "unet",
    "write_csv",
    "write_tables",
    "zero_filled",
]
