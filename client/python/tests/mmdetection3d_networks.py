"""Small CenterPoints and SECONDs of mmdetection3d: their configurations, and checkpoints with its names and shapes.

The names and shapes are those of mmdetection3d 1.4.0, whose modules load them (tests/oracles/mmdetection3d_boxes.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from detector_config_files import mmdetection3d

Array = np.ndarray[Any, Any]
State = dict[str, Array]


class Weights:
    """Makes the tensors of a network by name, with spconv 1's or spconv 2's layout of sparse kernels."""

    def __init__(self, seed: int, *, is_spconv_1: bool) -> None:
        self.state: State = {}
        self._rng = np.random.default_rng(seed)
        self._is_spconv_1 = is_spconv_1

    def normal(self, name: str, shape: Sequence[int], scale: float) -> None:
        self.state[name] = (scale * self._rng.standard_normal(shape)).astype(np.float32)

    def norm(self, name: str, channels: int) -> None:
        for part in ("weight", "running_var"):
            self.state[f"{name}.{part}"] = self._rng.uniform(0.7, 1.3, channels).astype(np.float32)
        for part in ("bias", "running_mean"):
            self.normal(f"{name}.{part}", (channels,), 0.1)
        self.state[f"{name}.num_batches_tracked"] = np.array(7)

    def sparse(self, name: str, kernel: Sequence[int], c_in: int, c_out: int, scale: float = 0.7) -> None:
        shape = (*kernel, c_in, c_out) if self._is_spconv_1 else (c_out, *kernel, c_in)
        self.normal(f"{name}.weight", shape, scale * (2 / (np.prod(kernel) * c_in / 3)) ** 0.5)

    def conv(self, name: str, size: int, c_in: int, c_out: int, scale: float = 1.0, *, bias: bool = False) -> None:
        self.normal(f"{name}.weight", (c_out, c_in, size, size), scale * (2 / (size * size * c_in)) ** 0.5)
        if bias:
            self.normal(f"{name}.bias", (c_out,), 0.3)


def sparse_encoder(w: Weights, p: str, inputs: int, channels: Any, block: str, base: int, out: int) -> None:
    """SparseEncoder: encoder_channels as in a configuration."""
    w.sparse(f"{p}.conv_input.0", (3, 3, 3), inputs, base, 0.05)  # its inputs are metres
    w.norm(f"{p}.conv_input.1", base)
    before = base
    for i, blocks in enumerate(channels):
        for j, width in enumerate(blocks):
            key = f"{p}.encoder_layers.encoder_layer{i + 1}.{j}"
            if block == "basicblock" and not (j == len(blocks) - 1 and i != len(channels) - 1):
                for n in (1, 2):
                    w.sparse(f"{key}.conv{n}", (3, 3, 3), width, width)
                    w.norm(f"{key}.bn{n}", width)
            else:
                w.sparse(f"{key}.0", (3, 3, 3), before, width)
                w.norm(f"{key}.1", width)
            before = width
    w.sparse(f"{p}.conv_out.0", (3, 1, 1), before, out)
    w.norm(f"{p}.conv_out.1", out)


def pillar_net(w: Weights, p: str, inputs: int, widths: Sequence[int]) -> None:
    """PillarFeatureNet."""
    before = inputs + 6
    for i, width in enumerate(widths):
        units = width if i == len(widths) - 1 else width // 2
        w.normal(f"{p}.pfn_layers.{i}.linear.weight", (units, before), (1.5 if i else 0.5) / before**0.5)
        w.norm(f"{p}.pfn_layers.{i}.norm", units)
        before = 2 * units


def image_layers(w: Weights, p: str, inputs: int, nums: Any, widths: Any, ups: Any, up_widths: Any, conv: bool) -> None:
    """SECOND and SECONDFPN."""
    before = inputs
    for i, (num, width) in enumerate(zip(nums, widths, strict=True)):
        for j in range(num + 1):
            w.conv(f"{p}backbone.blocks.{i}.{3 * j}", 3, before, width)
            w.norm(f"{p}backbone.blocks.{i}.{3 * j + 1}", width)
            before = width
        up, key = ups[i], f"{p}neck.deblocks.{i}"
        if up > 1 or (up == 1 and not conv):
            w.normal(f"{key}.0.weight", (width, up_widths[i], up, up), (2 / width) ** 0.5)
        else:
            w.conv(f"{key}.0", round(1 / up), width, up_widths[i])
        w.norm(f"{key}.1", up_widths[i])


def center_head(w: Weights, p: str, inputs: int, width: int, tasks: Sequence[int], kernel: int) -> None:
    """CenterHead with SeparateHead."""
    w.conv(f"{p}.shared_conv.conv", 3, inputs, width)
    w.norm(f"{p}.shared_conv.bn", width)
    branches = {"reg": 2, "height": 1, "dim": 3, "rot": 2, "vel": 2}
    for i, classes in enumerate(tasks):
        for name, channels in {**branches, "heatmap": classes}.items():
            key = f"{p}.task_heads.{i}.{name}"
            w.conv(f"{key}.0.conv", kernel, width, width)
            w.norm(f"{key}.0.bn", width)
            w.conv(f"{key}.1", kernel, width, channels, 0.7, bias=True)


def anchor_head(w: Weights, p: str, inputs: int, anchors: int, classes: int) -> None:
    """Anchor3DHead."""
    for name, channels in (("conv_cls", anchors * classes), ("conv_reg", anchors * 7), ("conv_dir_cls", anchors * 2)):
        w.conv(f"{p}.{name}", 1, inputs, channels, 0.25, bias=True)


# Small networks

BASIC = ((4, 4, 6), (6, 6, 8), (8, 8, 10), (10, 10))
PLAIN = ((4,), (6, 6, 6), (8, 8, 8), (8, 8, 8))
TASKS = [["car"], ["bus", "tram"], ["walker", "rider"]]
BOUNDS, PILLAR_BOUNDS = [0, -9.6, -3, 25.6, 9.6, 3], [-12.8, -9.6, -3, 12.8, 9.6, 3]


def image(values: dict[str, Any], prefix: str, nums: Any, strides: Any, widths: Any, ups: Any, up_widths: Any) -> None:
    values[f"{prefix}backbone"] |= {"layer_nums": nums, "layer_strides": strides, "out_channels": widths}
    values[f"{prefix}neck"] |= {"in_channels": widths, "upsample_strides": ups, "out_channels": up_widths}


def center_point(name: str) -> dict[str, Any]:
    """Returns a small CenterPoint's configuration: "voxel" or "pillar"."""
    values = mmdetection3d(name)
    model, test = values["model"], values["model"]["test_cfg"]["pts"]
    values |= {"dataset_type": "OwnDataset", "class_names": [name for task in TASKS for name in task]}
    layer = model["data_preprocessor"]["voxel_layer"]
    head, coder = model["pts_bbox_head"], model["pts_bbox_head"]["bbox_coder"]
    if name == "voxel":
        bounds, size, factor = BOUNDS, [0.4, 0.4, 0.15], 8
        middle = {"sparse_shape": [41, 48, 64], "encoder_channels": BASIC, "base_channels": 4, "output_channels": 6}
        model["pts_middle_encoder"] |= middle
        image(model, "pts_", [1, 2], [1, 2], [8, 12], [1, 2], [6, 10])
    else:
        bounds, size, factor = PILLAR_BOUNDS, [0.4, 0.4, 6], 4
        model["pts_voxel_encoder"] |= {"feat_channels": [6, 8], "voxel_size": size, "point_cloud_range": bounds}
        model["pts_middle_encoder"] |= {"in_channels": 8, "output_shape": (48, 64)}
        image(model, "pts_", [1, 2], [2, 2], [8, 12], [0.5, 1], [6, 10])
        head["separate_head"]["final_kernel"] = 1
    layer |= {"voxel_size": size, "point_cloud_range": bounds, "max_num_points": 3, "max_voxels": (1, 50000)}
    head |= {"tasks": [{"class_names": task} for task in TASKS], "share_conv_channel": 8}
    head["separate_head"]["head_conv"] = 8
    limits = [-12, -9, -20, 24, 9, 20]
    coder |= {"voxel_size": size[:2], "pc_range": bounds[:2], "post_center_range": limits, "out_size_factor": factor}
    coder |= {"score_threshold": 0.3, "max_num": 30}
    # An overlap of 1 suppresses nothing: the definition leaves suppression out.
    test |= {"post_center_limit_range": limits, "score_threshold": 0.3, "nms_thr": 1.0, "post_max_size": 30}
    return values


def second() -> dict[str, Any]:
    values = mmdetection3d("second")
    values["dataset_type"] = "OwnDataset"
    model, test = values["model"], values["model"]["test_cfg"]
    layer = {"voxel_size": [0.4, 0.4, 0.15], "point_cloud_range": BOUNDS, "max_num_points": 3, "max_voxels": 50000}
    model["data_preprocessor"]["voxel_layer"] = layer
    middle = {"sparse_shape": [41, 48, 64], "encoder_channels": PLAIN, "base_channels": 4, "output_channels": 6}
    model["middle_encoder"] |= middle
    image(model, "", [1, 2], [1, 2], [8, 12], [1, 2], [6, 10])
    heights = (-0.6, -0.6, -1.78)
    model["bbox_head"]["anchor_generator"]["ranges"] = [[*BOUNDS[:2], z, *BOUNDS[3:5], z] for z in heights]
    model["bbox_head"]["feat_channels"] = 16
    test |= {"nms_thr": 1.0, "score_thr": 0.45, "nms_pre": 4096, "max_num": 4096}
    return values


def weights(name: str, *, is_spconv_1: bool) -> State:
    made = Weights(3, is_spconv_1=is_spconv_1)
    ups: Any = (0.5, 1) if name == "pillar" else (1, 2)
    prefix = "" if name == "second" else "pts_"
    if name == "pillar":
        pillar_net(made, "pts_voxel_encoder", 5, (6, 8))
    elif name == "voxel":
        sparse_encoder(made, "pts_middle_encoder", 5, BASIC, "basicblock", 4, 6)
    else:
        sparse_encoder(made, "middle_encoder", 4, PLAIN, "conv_module", 4, 6)
    inputs = 8 if name == "pillar" else 12
    image_layers(made, prefix, inputs, (1, 2), (8, 12), ups, (6, 10), conv=name != "second")
    if name == "second":
        anchor_head(made, "bbox_head", 16, 6, 3)
    else:
        center_head(made, "pts_bbox_head", 16, 8, (1, 2, 2), 1 if name == "pillar" else 3)
    return made.state


def scan() -> Array:
    """Returns float32 [N, 5]: x, y, z, intensity, age. Several points share a voxel, and some are out of range."""
    rng = np.random.default_rng(11)
    place = rng.uniform((-13, -10, -3.2), (26, 10, 3.2), (1500, 3))
    place = np.concatenate([place, place[:700] + rng.uniform(-0.02, 0.02, (700, 3))])
    rest = np.stack([rng.uniform(0, 1, len(place)), rng.uniform(0, 0.4, len(place))], axis=1)
    return np.concatenate([place, rest], axis=1).astype(np.float32)


CASES = {
    "voxel": ("voxel", "centerpoint", False),
    "voxel-spconv-1": ("voxel", "centerpoint", True),
    "pillar": ("pillar", "centerpoint-pillar", False),
    "pillar-legacy": ("pillar", "centerpoint-pillar", False),
    "second": ("second", "second", False),
}


def configuration(case: str) -> dict[str, Any]:
    values = second() if case == "second" else center_point(CASES[case][0])
    if case == "pillar-legacy":
        del values["model"]["pts_voxel_encoder"]["legacy"]  # the library's default is True
    return values
