"""hvdscale: how a training job scales under Horovod, and what gradient synchronisation costs."""

__version__ = "0.1.0"
