"""A measurement, or a folder of scans -> samples of the full scan, their mean and std."""

from mcddpm.reconstruction.batch import reconstruct_scans
from mcddpm.reconstruction.inputs import Task
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.reconstruction.result import Interval, Reconstruction
from mcddpm.reconstruction.sample import reconstruct

__all__ = ["DrawPlan", "Interval", "Reconstruction", "Task", "reconstruct", "reconstruct_scans"]
