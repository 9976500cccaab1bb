"""Adds autoware-ml's branch for boxes to its PTv3: the two coarsest levels of the encoder, seen from above, and a head
with queries.

autoware-ml, autoware_ml/models/detection3d/ptv3.py: PTv3DetFeatureFusion joins the levels as a decoder's stage does.
PTv3BEVProjection takes the maximum over each column of sites; its ReLU is never below 0, the value of empty columns.
PTv3BEVEncoder has residual blocks with dilations. The head is query_head.py's.

State dict: "bev_neck.fusion.proj.0.weight" to "bbox_head.prediction_heads.0.heads.heatmap.3.bias".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from voxserve.export.networks import query_head
from voxserve.export.networks.layers import Layers
from voxserve.export.networks.query_head import QueryHead

_EPSILON, _PROJECTION_EPSILON = 1e-3, 1e-5  # of batch norms; those of the projection are torch's default
_NECK = "bev_neck"
_DECODER = {
    "multihead_attn": "cross_attn",
    "self_posembed.position_embedding_head.0": "query_pos_encoding.proj.0",
    "self_posembed.position_embedding_head.3": "query_pos_encoding.proj.2",
    "cross_posembed.position_embedding_head.0": "key_pos_encoding.proj.0",
    "cross_posembed.position_embedding_head.3": "key_pos_encoding.proj.2",
    "linear1": "ffn.0",
    "linear2": "ffn.3",
}
_BRANCH_LAYERS = {"0.0": "0", "0.1": "1", "1": "3"}


@dataclass(frozen=True)
class BoxBranch:
    """The sizes of the branch for boxes. The defaults are autoware-ml's for the T4 data set."""

    cells: tuple[int, int] = (256, 256)  # rows and columns of the image
    height: int = 9  # cells on z of the sites that are seen from above
    class_ids: tuple[int, ...] = tuple(range(7))  # of the head's classes, among the model's
    fusion_width: int = 256
    projection_width: int = 128
    hidden_width: int = 128
    out_width: int = 128
    dilations: tuple[int, ...] = (1, 2, 5, 2)
    head: QueryHead = field(
        default_factory=lambda: QueryHead(
            num_queries=500,
            border="KEEP",
            untested=(3, 4, 5, 6),
            center_min=(-132.88, -132.88, -5.0),
            center_max=(132.88, 132.88, 12.0),
            height_of="TOP",
            score_thresholds=(0.0,),
            is_autoware=True,
        )
    )


def add(layers: Layers, config: BoxBranch, coarse: str, fine: str, repeated: Callable[[str], str]) -> None:
    """Adds the branch, and the output of boxes. coarse, fine: the last level's rows, and those of the level before.
    repeated: returns rows of the last level on the sites of the level before.
    """
    network = layers.network
    network.section("Boxes: the two coarsest levels, joined and seen from above.")
    part = f"{_NECK}.fusion.proj"
    x = _joined(layers, "fusion.coarse", part, coarse, config.fusion_width)
    y = _joined(layers, "fusion.fine", f"{part}_skip", fine, config.fusion_width)
    x = layers.add("fusion", [y, repeated(x)])
    layers.linear("projection", f"{_NECK}.bev_projector.point_proj.0", x, config.projection_width, bias=False)
    x = layers.norm_relu("projection", f"{_NECK}.bev_projector.point_proj.1", epsilon=_PROJECTION_EPSILON)
    # A window of an odd size is centred on its coarse site, one of an even size begins there.
    column = (1, 1, config.height + config.height % 2)
    network.pool_strided_floor("columns", x, "MAX", column, column)
    layers.channels["columns"] = config.projection_width
    network.to_bev("from_above", "columns")
    layers.channels["from_above"] = config.projection_width
    x = _image_layer(
        layers,
        "refine",
        f"{_NECK}.bev_projector.bev_refine",
        "from_above",
        config.projection_width,
        _PROJECTION_EPSILON,
    )
    x = _image_layer(layers, "stem2d", f"{_NECK}.bev_encoder.stem", x, config.hidden_width, _EPSILON)
    for i, dilation in enumerate(config.dilations):
        out = config.out_width if i == len(config.dilations) - 1 else config.hidden_width
        x = _block(layers, f"block2d.{i}", f"{_NECK}.bev_encoder.blocks.{i}", x, out, dilation)
    query_head.add(layers, config.head, x, class_ids=config.class_ids, grid=config.cells, key=head_key)


def head_key(part: str) -> str:
    """Returns autoware-ml's name of a head's layer for OpenPCDet's without "dense_head."."""
    root, _, rest = part.partition(".")
    if root == "decoder":
        for theirs, ours in _DECODER.items():
            if rest == theirs:
                return f"bbox_head.decoder.0.{ours}"
        return f"bbox_head.decoder.0.{rest}"
    if root == "prediction_head":
        branch, _, layer = rest.partition(".")
        return f"bbox_head.prediction_heads.0.heads.{branch}.{_BRANCH_LAYERS[layer]}"
    return f"bbox_head.{'heatmap_head.0.norm' if part == 'heatmap_head.0.bn' else part}"


def untested(tested: Sequence[int] | None, num_classes: int) -> tuple[int, ...]:
    """Returns the classes of which every cell is a peak. tested: those with a test; None: all."""
    return () if tested is None else tuple(i for i in range(num_classes) if i not in tested)


def _joined(layers: Layers, name: str, key: str, x: str, out: int) -> str:
    layers.linear(name, f"{key}.0", x, out)
    y = layers.norm(f"{name}.norm", f"{key}.1", name, epsilon=_EPSILON)
    made = layers.network.activation(f"{name}.gelu", y, "GELU")
    layers.channels[made] = out
    return made


def _image_layer(layers: Layers, name: str, key: str, x: str, out: int, epsilon: float) -> str:
    layers.conv2d(name, f"{key}.0", x, 3, out, padding=1)
    return layers.norm_relu(name, f"{key}.1", epsilon=epsilon)


def _block(layers: Layers, name: str, key: str, x: str, out: int, dilation: int) -> str:
    layers.conv2d(f"{name}.0", f"{key}.conv1", x, 3, out, padding=dilation, dilation=dilation)
    y = layers.norm_relu(f"{name}.0", f"{key}.norm1", epsilon=_EPSILON)
    layers.conv2d(f"{name}.1", f"{key}.conv2", y, 3, out, padding=dilation, dilation=dilation)
    y = layers.norm(f"{name}.1.norm", f"{key}.norm2", f"{name}.1", epsilon=_EPSILON, gain=0.5)
    if layers.channels[x] != out:
        layers.conv2d(f"{name}.shortcut", f"{key}.shortcut.0", x, 1, out)
        x = layers.norm(f"{name}.shortcut.norm", f"{key}.shortcut.1", f"{name}.shortcut", epsilon=_EPSILON)
    return layers.relu(f"{name}.relu", layers.add(f"{name}.sum", [y, x]))
