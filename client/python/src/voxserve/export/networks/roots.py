"""Lists, for each of the exporter's commands, the first parts of the names of the network's tensors. These parts
identify the network's weights in a checkpoint (voxserve.export.weights).
"""

from __future__ import annotations

_OPENPCDET = ("vfe", "backbone_3d", "map_to_bev_module", "backbone_2d", "dense_head")
_MMDETECTION3D = ("voxel_encoder", "middle_encoder", "backbone", "neck", "bbox_head")
_DETECTOR = (*_OPENPCDET, *_MMDETECTION3D, *(f"pts_{root}" for root in _MMDETECTION3D))
_LEVELS = range(1, 10)
_MINKUNET = (
    *("backbone", "classifier", "decode_head"),  # TorchSparse's, and mmdetection3d's
    *("stem", *(f"stage{i}" for i in _LEVELS), *(f"up{i}" for i in _LEVELS), "point_transforms"),  # spvnas'
)
_TRANSFORMER = ("backbone", "seg_head", "embedding", "enc", "dec")
ROOTS: dict[str, tuple[str, ...]] = {
    "torchsparse-minkunet": _MINKUNET,
    "spvcnn": _MINKUNET,
    "pointcept-spunet": ("backbone", "seg_head", "conv_input", "down", "up", "enc", "dec", "final"),
    "torchsparse-resnet21d": ("backbone", "classifier"),
    "minkowski-unet": (
        *("conv0p1s1", "conv1p1s2", "conv2p2s2", "conv3p4s2", "conv4p8s2"),
        *("convtr4p16s2", "convtr5p8s2", "convtr6p4s2", "convtr7p2s2"),
        *(
            "bn0",
            *(f"bn{i}" for i in _LEVELS),
            *(f"bntr{i}" for i in _LEVELS),
            *(f"block{i}" for i in _LEVELS),
            "final",
        ),
    ),
    "centerpoint": _DETECTOR,  # det3d's names too
    "centerpoint-pillar": _DETECTOR,
    "voxelnext": _DETECTOR,
    "second": _DETECTOR,
    "pointpillars": _DETECTOR,
    "dsvt": _OPENPCDET,
    "flatformer": _MMDETECTION3D,
    "transfusion-l": (*_DETECTOR, "encoders", "decoder", "heads"),  # mit-han-lab/bevfusion's too
    "bevfusion-l": _DETECTOR,
    "svtnet": ("backbone", "pooling"),
    "pointcept-ptv3": _TRANSFORMER,
    "autoware-ptv3": ("encoder", "seg3d_head", "bev_neck", "bbox_head"),
    "litept": _TRANSFORMER,
}
