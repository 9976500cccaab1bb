"""Translates the names of OpenPCDet's tensors, which the builders of detectors ask for, to mmdetection3d's.

Both libraries have the same layers. In mmdetection3d (v1.4.0), mmdet3d/models:
- middle_encoders/sparse_encoder.py: the stages are encoder_layers.encoder_layer1 to 4. With residual blocks, a stage
  ends with the strided convolution that OpenPCDet's next stage begins with.
- backbones/second.py: no padding module before a block's first convolution, so entries begin at 0.
- necks/second_fpn.py: the deblocks.
- dense_heads/centerpoint_head.py: ConvModule's names conv and bn, task_heads, and the branches' names.
- dense_heads/anchor3d_head.py: conv_reg for conv_box.
The names of a CenterPoint or an MVXFasterRCNN begin with pts_, those of a VoxelNet do not. BEVFusion's begin with pts_
except for bbox_head's. mit-han-lab/bevfusion has the same parts at other places (_MIT_PLACES).

Heads with queries: projects/BEVFusion/bevfusion/transfusion_head.py and transformer.py (mmcv's MultiheadAttention and
FFN), and mit-han-lab/bevfusion's mmdet3d/models/heads/bbox/transfusion.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from voxserve.export.networks.spconv_backbone import MMDETECTION3D
from voxserve.export.networks.tensors import StateDict, Tensor

_BRANCHES = {"hm": "heatmap", "center": "reg", "center_z": "height", "dim": "dim", "rot": "rot", "vel": "vel"}
_PREFIX = "pts_"
_CONV_MODULE = {"0": "conv", "1": "bn"}
_PARTS = ("voxel_encoder", "middle_encoder", "backbone", "neck", "bbox_head")
BEVFUSION = "bevfusion"  # mit-han-lab/bevfusion
_MIT_PLACES = {
    "voxel_encoder": "encoders.lidar.voxel_encoder",
    "middle_encoder": "encoders.lidar.backbone",
    "backbone": "decoder.backbone",
    "neck": "decoder.neck",
    "bbox_head": "heads.object",
}
# mmcv's names of a decoder layer's parts, for OpenPCDet's.
_MMCV_DECODER = {
    "self_attn": "self_attn.attn",
    "multihead_attn": "cross_attn.attn",
    "linear1": "ffn.layers.0.0",
    "linear2": "ffn.layers.1",
    **{f"norm{i + 1}": f"norms.{i}" for i in range(3)},
}


def state_dict(
    state: Mapping[str, Tensor], network: str, library: str, *, is_residual: bool, is_transposed: bool = False
) -> StateDict:
    """Returns the tensors of a state dict with a library's names, which builders ask for by OpenPCDet's or det3d's.

    network: its name, for errors. is_residual: the sparse backbone has residual blocks. is_transposed: the rows of the
    library's images are x, and the kernels of 2-D convolutions are turned to rows of y.
    """
    if library in (MMDETECTION3D, BEVFUSION):
        return _Mmdetection3d(state, network, _places(state, library), is_residual, is_transposed)
    return StateDict(state, network, _is_counter)


def _places(names: Mapping[str, Tensor], library: str) -> Mapping[str, str]:
    """Returns the place of each part of the network."""
    if library == BEVFUSION:
        return _MIT_PLACES
    prefix = _PREFIX if any(name.startswith(_PREFIX) for name in names) else ""
    places = {part: f"{prefix}{part}" for part in _PARTS}
    if any(name.startswith("bbox_head.") for name in names):
        places["bbox_head"] = "bbox_head"
    return places


def library_of(names: Mapping[str, Tensor]) -> str:
    """Returns whose names a detector's state dict has; "" if that is unknown."""
    begin = {name.removeprefix(_PREFIX).partition(".")[0] for name in names}
    heads = {".".join(name.removeprefix(_PREFIX).split(".")[:2]) for name in names}
    if {"encoders.lidar", "heads.object"} & heads:
        return BEVFUSION
    if {"bbox_head.task_heads", "bbox_head.conv_reg"} & heads or "middle_encoder" in begin:
        return MMDETECTION3D
    if "bbox_head.tasks" in heads:
        return "det3d"
    return "openpcdet" if {"dense_head", "backbone_3d", "backbone_2d", "vfe"} & begin else ""


def _is_counter(name: str) -> bool:
    return name.endswith(".num_batches_tracked") or name == "global_step"


class _Mmdetection3d(StateDict):
    def __init__(
        self,
        state: Mapping[str, Tensor],
        network: str,
        places: Mapping[str, str],
        is_residual: bool,
        is_transposed: bool,
    ) -> None:
        super().__init__(state, network, _is_counter)
        self._places, self._is_residual, self._is_transposed = places, is_residual, is_transposed
        self._has_mmcv_layers = any(".attn." in name or ".ffn." in name for name in state)

    def __contains__(self, name: str) -> bool:
        return super().__contains__(self._theirs(name))

    def size(self, name: str, axis: int) -> int:
        return super().size(self._theirs(name), axis)

    def take(
        self,
        name: str,
        shape: Sequence[int],
        *,
        or_shapes: Sequence[Sequence[int]] = (),
        fan_in: int = 0,
        gain: float = 1.0,
        fill: float | None = None,
    ) -> Tensor:
        found = super().take(self._theirs(name), shape, or_shapes=or_shapes, fan_in=fan_in, gain=gain, fill=fill)
        return np.ascontiguousarray(found.swapaxes(2, 3)) if self._is_transposed and found.ndim == 4 else found

    def _theirs(self, name: str) -> str:
        part, _, rest = name.partition(".")
        if part == "vfe":
            return f"{self._places['voxel_encoder']}.{rest}"
        if part == "backbone_3d":
            return f"{self._places['middle_encoder']}.{self._sparse(rest)}"
        if part == "backbone_2d":
            kind, _, layer = _image(rest).partition(".")
            return f"{self._places[kind]}.{layer}"
        return f"{self._places['bbox_head']}.{self._head(rest)}"

    def _sparse(self, name: str) -> str:
        found = re.fullmatch(r"conv(\d)\.(\d+)\.(.*)", name)
        if not found:
            return name  # conv_input and conv_out
        stage, entry, rest = int(found[1]), int(found[2]), found[3]
        if self._is_residual and stage > 1:
            # The strided convolution is the third entry of the stage before; the blocks are counted from 0.
            stage, entry = (stage - 1, 2) if entry == 0 else (stage, entry - 1)
        return f"encoder_layers.encoder_layer{stage}.{entry}.{rest}"

    def _head(self, name: str) -> str:
        part, _, rest = name.partition(".")
        if part == "decoder":
            layer, _, rest = rest.partition(".")
            layer = _MMCV_DECODER.get(layer, layer) if self._has_mmcv_layers else layer
            return f"decoder.0.{layer}.{rest}"
        if part == "prediction_head":
            branch, *parts = rest.split(".")
            if parts[0] == "0":
                parts[1] = _CONV_MODULE[parts[1]]
            return ".".join(["prediction_heads", "0", branch, *parts])
        return _center_or_anchor_head(name)


def _image(name: str) -> str:
    kind, block, entry, rest = name.split(".", 3)
    return f"backbone.blocks.{block}.{int(entry) - 1}.{rest}" if kind == "blocks" else f"neck.{name}"


def _center_or_anchor_head(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "shared_conv" and parts[1] in _CONV_MODULE:
        return ".".join(["shared_conv", _CONV_MODULE[parts[1]], *parts[2:]])
    if parts[0] == "heads_list":
        task, branch, rest = parts[1], _BRANCHES[parts[2]], parts[3:]
        if rest[0] == "0":
            rest = ["0", _CONV_MODULE[rest[1]], *rest[2:]]
        return ".".join(["task_heads", task, branch, *rest])
    return ".".join(["conv_reg" if parts[0] == "conv_box" else parts[0], *parts[1:]])
