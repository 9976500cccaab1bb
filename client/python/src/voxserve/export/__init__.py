"""Converts networks of other libraries to the folders that voxserve serves.

python -m voxserve.export from-torch my_networks.py:make checkpoint.pth --output models/mine
python -m voxserve.export torchsparse-minkunet weights.safetensors --classes card.json --output models/minkunet
python -m voxserve.export centerpoint --dataset waymo --seed 1 --output models/centerpoint
"""

from voxserve.export.group_attention import group_attention
from voxserve.export.model_folder import ClassEntry, Network, PointFeature
from voxserve.export.networks.tensors import ExportError
from voxserve.export.tracing.from_torch import Exported, from_torch
from voxserve.export.tracing.input_points import Points

__all__ = [
    "ClassEntry",
    "ExportError",
    "Exported",
    "Network",
    "PointFeature",
    "Points",
    "from_torch",
    "group_attention",
]
