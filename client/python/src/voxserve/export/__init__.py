"""Writes the folders that voxserve serves from the networks that people have.

python -m voxserve.export torchsparse-minkunet weights.safetensors --classes card.json --output models/minkunet
python -m voxserve.export centerpoint --dataset waymo --seed 1 --output models/centerpoint
"""

from voxserve.export.model_folder import ClassEntry, Network, PointFeature
from voxserve.export.networks.tensors import ExportError

__all__ = ["ClassEntry", "ExportError", "Network", "PointFeature"]
