"""Computes boxes of DSVT and FlatFormer with their libraries' own classes, with random weights (window_golden.py of
client/python/tests), and writes them to tests/golden/windows/CASE.npz:

    pip install torch PyYAML
    OMP_NUM_THREADS=1 PYTHONPATH=client/python/src:client/python/tests \\
        python tests/oracles/window_networks.py CASE CLONE tests/golden/windows/CASE.npz

CASE and its CLONE: dsvt (open-mmlab/OpenPCDet 8caccce) and flatformer (mit-han-lab/flatformer 31dc5a9).

The libraries' classes and published configurations compute everything from the points to the boxes, in float32 on a
CPU, on a smaller range. Replaced is what needs a GPU or mmcv: scatters by torch's index_add and scatter_reduce,
ingroup_inds by a place in the order of the rows, flash attention by scaled_dot_product_attention for each piece of
cu_seqlens, the overlaps of NMS by detection_heads.py, and mmcv's registry and its layers of a convolution, a norm and
ReLU by a few lines. Calls of .cuda() do nothing.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path

import numpy as np
from detection_heads import iou
from query_heads import file_module, read_config, rows_of, stub

SEED = 5
CELLS_OVER = 250  # of each class whose scores are above the threshold, before an IoU rectifies them


def fill(net):
    """Fills a network with the weights of the golden's rule. Returns their shapes."""
    import torch
    from window_golden import values

    shapes = {}
    for name, tensor in net.state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue
        shapes[name] = list(tensor.shape)
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(values(name, tuple(tensor.shape), SEED)))
    net.eval()
    return shapes


def packages(root, name, *parts):
    """Makes the packages NAME and NAME.PART importable without running their __init__.py."""
    for part in ("", *parts):
        full = f"{name}.{part}" if part else name
        module = stub(full)
        module.__path__ = [str(root / part.replace(".", "/"))]
        if part:
            parent, _, own = full.rpartition(".")
            setattr(sys.modules[parent], own, module)


def sums(x, index):
    """Returns the sums of rows by index."""
    import torch

    return torch.zeros(int(index.max()) + 1, x.shape[1], dtype=x.dtype).index_add_(0, index, x)


def means(x, index, dim=0):
    import torch

    return sums(x, index) / torch.bincount(index)[:, None].to(x.dtype)


def maxima(x, index, dim=0):
    import torch

    most = torch.full((int(index.max()) + 1, x.shape[1]), -math.inf, dtype=x.dtype)
    return most.scatter_reduce(0, index[:, None].expand_as(x), x, "amax"), None


MARGINS = []  # of the overlaps, from the threshold


def kept(boxes, threshold):
    """Returns the boxes that NMS keeps. boxes: [N, 7] in the order of their scores, by OpenPCDet's conventions."""
    boxes = np.asarray(boxes, np.float64)
    reach = np.hypot(boxes[:, 3], boxes[:, 4]) / 2
    keep = []
    for i, box in enumerate(boxes):
        near = [j for j in keep if np.hypot(*(boxes[j, :2] - box[:2])) < reach[i] + reach[j]]
        shared = [iou(boxes[j], box) for j in near]
        MARGINS.extend(abs(one - threshold) for one in shared)
        if all(one <= threshold for one in shared):
            keep.append(i)
    print(f"{len(boxes)} boxes, {len(keep)} are kept")
    return keep


def biased(last, heat, threshold):
    """Sets the heat map's biases so that CELLS_OVER cells of each class have a higher score. Returns them.

    last: the layer, whose biases are 0. heat: its logits, [classes, y, x].
    """
    import torch

    best = heat.flatten(1).sort(1, descending=True)[0]
    print("logits:", [[round(float(row[i]), 3) for i in (0, CELLS_OVER, len(row) // 2, -1)] for row in best])
    bias = (math.log(threshold / (1 - threshold)) - best[:, CELLS_OVER]).double().numpy().round(2)
    last.bias.copy_(torch.from_numpy(bias))
    return bias.tolist()


# Cases: each returns shapes, biases of the heat map and boxes.


def dsvt(clone, points):
    import torch
    from window_golden import CENTER_MAX, CENTER_MIN, GRID, RANGE, SIZE

    packages(clone / "pcdet", "pcdet", "models", "models.backbones_3d", "models.backbones_3d.vfe",
             "models.model_utils", "models.backbones_2d", "models.backbones_2d.map_to_bev", "models.dense_heads",
             "utils", "ops", "ops.iou3d_nms", "ops.ingroup_inds")  # fmt: skip
    torch.Tensor.cuda = lambda self, *_, **__: self

    def place_in_group(group):
        order = torch.argsort(group, stable=True)
        place = torch.empty_like(group)
        place[order] = torch.arange(len(group)) - torch.searchsorted(group[order], group[order])
        return place

    def nms_gpu(boxes, scores, thresh, pre_maxsize=None, **_):
        order = scores.sort(0, descending=True)[1][:pre_maxsize]
        return order[torch.tensor(kept(boxes[order, :7], thresh))], None

    stub("torch_scatter", scatter_mean=means, scatter_max=maxima)
    stub("pcdet.ops.ingroup_inds.ingroup_inds_op", ingroup_inds=place_in_group)
    nms = stub("pcdet.ops.iou3d_nms.iou3d_nms_utils", nms_gpu=nms_gpu)
    sys.modules["pcdet.ops.iou3d_nms"].iou3d_nms_utils = nms
    stub("numba", jit=lambda *_, **__: lambda function: function)
    unused = torch.nn.Identity
    losses = stub("pcdet.utils.loss_utils", FocalLossCenterNet=unused, RegLossCenterNet=unused,
                  IOULossCenterNet=unused)  # fmt: skip
    sys.modules["pcdet.utils"].loss_utils = losses

    config = read_config(clone / "tools/cfgs/waymo_models/dsvt_pillar.yaml")
    model, low_high, grid = config.MODEL, np.float32(RANGE), np.array(GRID)
    model.BACKBONE_3D["USE_CHECKPOINT"] = False
    model.BACKBONE_3D["output_shape"] = [GRID[1], GRID[0]]
    model.BACKBONE_3D.INPUT_LAYER["sparse_shape"] = list(GRID)
    model.MAP_TO_BEV["INPUT_SHAPE"] = list(GRID)
    post = model.DENSE_HEAD.POST_PROCESSING
    post["POST_CENTER_LIMIT_RANGE"] = [*CENTER_MIN, *CENTER_MAX]
    load = importlib.import_module
    net = torch.nn.Module()
    net.vfe = load("pcdet.models.backbones_3d.vfe.dynamic_voxel_vfe").DynamicVoxelVFE(
        model.VFE, points.shape[1], list(SIZE), grid, low_high
    )
    net.backbone_3d = load("pcdet.models.backbones_3d.dsvt").DSVT(model.BACKBONE_3D)
    net.map_to_bev_module = load("pcdet.models.backbones_2d.map_to_bev.pointpillar_scatter").PointPillarScatter3d(
        model.MAP_TO_BEV, grid
    )
    net.backbone_2d = load("pcdet.models.backbones_2d.base_bev_backbone").BaseBEVResBackbone(
        model.BACKBONE_2D, model.MAP_TO_BEV.NUM_BEV_FEATURES
    )
    head = net.dense_head = load("pcdet.models.dense_heads.center_head").CenterHead(
        model.DENSE_HEAD, net.backbone_2d.num_bev_features, 3, config.CLASS_NAMES, grid, low_high, list(SIZE),
        predict_boxes_when_training=False,
    )  # fmt: skip
    shapes = fill(net)
    batch = {"batch_size": 1, "points": torch.from_numpy(np.c_[np.zeros(len(points), np.float32), points])}
    for part in (net.vfe, net.backbone_3d, net.map_to_bev_module, net.backbone_2d):
        batch = part(batch)
    print(len(batch["voxel_coords"]), "pillars")
    branches = head.heads_list[0]
    heat = branches.hm(head.shared_conv(batch["spatial_features_2d"]))[0]
    bias = biased(branches.hm[-1], heat, post.SCORE_THRESH)
    best = (heat + branches.hm[-1].bias[:, None, None]).flatten().sort(descending=True)[0]
    most = post.MAX_OBJ_PER_SAMPLE
    print("logits around the limit of boxes:", best[most - 2 : most + 2].tolist())
    found = head(batch)["final_box_dicts"][0]
    boxes = rows_of(found["pred_boxes"], found["pred_scores"], found["pred_labels"] - 1, z_is_bottom=False)
    return shapes, {"dense_head.heads_list.0.hm.1.bias": bias}, boxes


class Registry(dict):
    """mmcv's Registry."""

    def register_module(self, *_, **__):
        return lambda made: self.setdefault(made.__name__, made)

    def build(self, config, **more):
        options = dict(config)
        return self[options.pop("type")](**options, **more)


def mmcv_layers(registry):
    """Makes those names of mmcv, mmdet and mmdet3d importable that FlatFormer's modules ask for."""
    from torch import nn

    keep = lambda *given, **_: given[0] if given and callable(given[0]) else lambda function: function  # noqa: E731

    class BaseModule(nn.Module):
        def __init__(self, init_cfg=None):
            super().__init__()

    def norm(config, channels, postfix=""):
        kind = nn.BatchNorm1d if config["type"].endswith("1d") else nn.BatchNorm2d
        return "bn", kind(channels, eps=config.get("eps", 1e-5))

    def convolution(kind):
        def build(config, *given, **options):
            return kind(*given, **options, **{k: v for k, v in (config or {}).items() if k != "type"})

        return build

    class ConvModule(nn.Module):
        def __init__(self, channels, out, kernel_size, stride=1, padding=0, bias="auto", conv_cfg=None, norm_cfg=None):
            super().__init__()
            assert bias == "auto"
            assert norm_cfg
            self.conv = nn.Conv2d(channels, out, kernel_size, stride=stride, padding=padding, bias=False)
            self.bn = norm(norm_cfg, out)[1]

        def forward(self, x):
            return self.bn(self.conv(x)).relu()

    stub("mmcv")
    stub("mmcv.runner", auto_fp16=keep, force_fp32=keep, BaseModule=BaseModule)
    stub("mmcv.cnn", build_norm_layer=norm, build_conv_layer=convolution(nn.Conv2d), ConvModule=ConvModule,
         build_upsample_layer=convolution(nn.ConvTranspose2d))  # fmt: skip
    stub("mmdet")
    stub("mmdet.models", BACKBONES=registry, NECKS=registry, HEADS=registry)
    stub("mmdet.core", build_bbox_coder=registry.build,
         multi_apply=lambda f, *given: tuple(map(list, zip(*map(f, *given), strict=True))))  # fmt: skip
    stub("mmdet.core.bbox", BaseBBoxCoder=object)
    stub("mmdet.core.bbox.builder", BBOX_CODERS=registry)


def flatformer(clone, points):
    import torch
    from query_heads import attention_of_pieces
    from window_golden import CENTER_MAX, CENTER_MIN, GRID, RANGE, SIZE

    registry = Registry()
    mmcv_layers(registry)
    arange = torch.arange  # on a device named "cuda"
    torch.arange = lambda *given, **options: arange(*given, **{k: v for k, v in options.items() if k != "device"})
    torch.Tensor.cuda = lambda self, *_, **__: self

    class DynamicScatter(torch.nn.Module):
        def __init__(self, voxel_size, point_cloud_range, average_points):
            super().__init__()
            self.mixed = means if average_points else lambda x, index: maxima(x, index)[0]

        def forward(self, x, places):
            found, index = torch.unique(places, dim=0, return_inverse=True)
            return self.mixed(x, index), found

    def nms_gpu(boxes, keep, threshold, _):
        # Corners of boxes that are not turned yet; the library's kernel turns them clockwise.
        low, high = boxes[:, :2], boxes[:, 2:4]
        zero = torch.zeros(len(boxes), 1)
        found = kept(torch.cat([(low + high) / 2, zero, high - low, zero, -boxes[:, 4:]], 1), threshold)
        keep[: len(found)] = torch.tensor(found)
        return len(found)

    def corners_of(boxes):
        half = boxes[:, 2:4] / 2
        return torch.cat([boxes[:, :2] - half, boxes[:, :2] + half, boxes[:, 4:]], 1)

    class Boxes:  # LiDARInstance3DBoxes
        def __init__(self, tensor, box_dim):
            self.tensor, self.bev = tensor, tensor[:, [0, 1, 3, 4, 6]]

    stub("flash_attn")
    stub("flash_attn.flash_attn_interface",
         flash_attn_unpadded_qkvpacked_func=lambda qkv, cuts, *_: attention_of_pieces(qkv, cuts, None))  # fmt: skip
    root = clone / "mmdet3d"
    packages(root, "mmdet3d", "models", "models.middle_encoders", "models.voxel_encoders", "models.backbones",
             "models.necks", "models.dense_heads", "ops", "ops.iou3d")  # fmt: skip
    builder = stub("mmdet3d.models.builder", MIDDLE_ENCODERS=registry, VOXEL_ENCODERS=registry, HEADS=registry,
                   build_loss=lambda _: None, build_head=registry.build, build_fusion_layer=None)  # fmt: skip
    sys.modules["mmdet3d.models"].builder = builder
    stub("mmdet3d.models.utils", clip_sigmoid=None)
    sys.modules["mmdet3d.ops"].DynamicScatter = DynamicScatter
    sys.modules["mmdet3d.ops.iou3d"].iou3d_cuda = stub("mmdet3d.ops.iou3d.iou3d_cuda", nms_gpu=nms_gpu)
    stub("mmdet3d.core", circle_nms=None, draw_heatmap_gaussian=None, gaussian_radius=None, xywhr2xyxyr=corners_of)
    stub("mmdet3d.core.bbox", bbox_overlaps_3d=None)
    file_module("mmdet3d.coder", root / "core/bbox/coders/centerpoint_bbox_coders.py")
    for name in ("middle_encoders.flatformer", "voxel_encoders.voxel_encoder", "backbones.second", "necks.second_fpn",
                 "dense_heads.centerpoint_head"):  # fmt: skip
        importlib.import_module(f"mmdet3d.models.{name}")

    values = {}
    exec((clone / "configs/flatformer/flatformer_waymo_D1_2x_3class.py").read_text(), values)
    model = values["model"]
    assert tuple(model["voxel_layer"]["voxel_size"]) == SIZE
    model["voxel_encoder"]["point_cloud_range"] = RANGE
    model["middle_encoder"] |= {"sparse_shape": GRID, "output_shape": (GRID[1], GRID[0])}
    coder = model["bbox_head"]["bbox_coder"]
    coder |= {"pc_range": RANGE[:2], "post_center_range": [*CENTER_MIN, *CENTER_MAX]}
    net = torch.nn.Module()
    for part in ("voxel_encoder", "middle_encoder", "backbone", "neck"):
        setattr(net, part, registry.build(model[part]))
    head = net.bbox_head = registry.build(model["bbox_head"], train_cfg=model["train_cfg"], test_cfg=model["test_cfg"])
    shapes = fill(net)
    low, high = np.float32(RANGE[:3]), np.float32(RANGE[3:])
    inside = points[((points[:, :3] >= low) & (points[:, :3] < high)).all(axis=1)]
    cells = np.floor((inside[:, :3] - low) / np.float32(SIZE)).astype(np.int64)
    places = np.c_[np.zeros(len(cells), np.int64), cells[:, ::-1]]
    x, places = net.voxel_encoder(torch.from_numpy(inside), torch.from_numpy(places))
    print(len(places), "pillars")
    x = net.neck(net.backbone(net.middle_encoder(x, places, 1)))
    (found,) = head(x)
    last = head.task_heads[0].heatmap[-1]
    bias = biased(last, found[0]["heatmap"][0], 2 * coder["score_threshold"])
    found[0]["heatmap"] += last.bias[:, None, None]
    iou_of = found[0]["iou"]
    print("ious", [round(float(q), 2) for q in iou_of.flatten().quantile(torch.tensor([0, 0.1, 0.5, 0.9, 1]))])
    boxes, scores, labels = head.get_bboxes((found,), [{"box_type_3d": Boxes}])[0]
    boxes = rows_of(boxes.tensor, scores, labels, z_is_bottom=True, is_old=True)
    return shapes, {"bbox_head.task_heads.0.heatmap.1.bias": bias}, boxes


def main(case, clone, path):
    import torch
    import window_golden

    torch.set_num_threads(1)
    with torch.no_grad():
        shapes, biases, boxes = {"dsvt": dsvt, "flatformer": flatformer}[case](
            Path(clone).resolve(), window_golden.points()
        )
    print(f"{len(boxes)} boxes, scores {boxes[:, 9].min():.4f} to {boxes[:, 9].max():.4f}, classes "
          f"{np.bincount(boxes[:, 10].astype(int))}, sizes {boxes[:, 3:6].min():.3g} to {boxes[:, 3:6].max():.3g}, "
          f"{len(MARGINS)} overlaps, smallest margin {min(MARGINS):.2g}")  # fmt: skip
    order = np.sort(boxes[:, 9])
    print(f"smallest difference of two scores {np.diff(order).min():.2g}")
    np.savez_compressed(path, boxes=boxes, seed=SEED, shapes=json.dumps(shapes), biases=json.dumps(biases))


if __name__ == "__main__":
    main(*sys.argv[1:])
