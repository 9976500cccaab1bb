"""Reads the training configuration of a point transformer, for the exporters: Pointcept's and LitePT's (Python),
autoware-ml's (YAML of Hydra), and the settings that Sonata, Concerto and Utonia store beside their weights.

Nothing of a file is run. A setting that the exporter cannot serve, or does not know, is refused by its name.
"""

from __future__ import annotations

from voxserve.export.transformer_configs import autoware
from voxserve.export.transformer_configs.common import Transformer
from voxserve.export.transformer_configs.pointcept import of_checkpoint, read

__all__ = ["Transformer", "autoware", "of_checkpoint", "read"]
