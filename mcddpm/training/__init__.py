"""Training: a configuration -> a run in a folder -> a model. The same command again resumes, exactly."""

from mcddpm.training.checkpoints import export
from mcddpm.training.run import Stopped, train
from mcddpm.training.settings import Config, Training

__all__ = ["Config", "Stopped", "Training", "export", "train"]
