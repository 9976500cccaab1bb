"""Computes well-known networks from their published definitions. The exporter and the engine are tested against the
results together.

Each definition reads a state dict with the names and layouts of the library that the network comes from, and shares no
code with the exporter. CenterPoint and SECOND, in this file, are dense torch convolutions over (z, y, x), masked to the
sites that spconv's rules give. SPVCNN, MinkowskiEngine's MinkUNet and SparseResNet21D, in modules of their own, are
NumPy over lists of sites. All compute in float64. The program writes small networks as model folders that the exporter
makes, and the outputs of their definitions for a real scan. It needs torch:

    python3 tests/oracles/network_definitions.py tests/golden
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from segmentation_definitions import MinkowskiUnet, SparseResnet
from spvcnn_definition import VOXEL_SIZE, Spvcnn

from voxserve.export import model_folder
from voxserve.export.networks import center_point, minkowski_unet, minkunet, minkunet_keys, second, sparse_resnet
from voxserve.export.networks.spconv_backbone import Bev, Voxels
from voxserve.export.networks.tensors import RandomTensors

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SCAN = GOLDEN / "pandaset_063.bin"  # float32 [N, 4]: x, y, z, intensity
SPVCNN_POINTS = slice(20_000, 26_000)  # SPVCNN gets these points of the scan.
SEGMENTED_POINTS = slice(20_000, 22_000)  # MinkowskiEngine's MinkUNet and SparseResNet21D get these points of the scan.


# ---------------------------------------------------------------------------------------------------------------------
# Networks and their state dicts


class Recorder(RandomTensors):
    """Draws random tensors, and keeps them as a state dict under the names by which they are asked for."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.state: dict[str, np.ndarray] = {}

    def take(self, name, shape, **options):
        self.state[name] = super().take(name, shape, **options)
        return self.state[name]


_BEV = Bev(num_layers=(1, 2), widths=(8, 12), up_widths=(8, 10))
_FEATURES = center_point._NUSCENES_FEATURES
CENTER_POINT = replace(
    center_point.CONFIGS["nuscenes-0.075"],
    voxels=Voxels((0, -12.8, -3), (38.4, 12.8, 3), (0.4, 0.4, 0.15), 3, 0, _FEATURES),
    classes=center_point.NUSCENES_CLASSES[:3],
    tasks=((2,), (0, 1)),
    center_min=(1, -12, -10),
    center_max=(38, 12, 10),
    nms_boxes_in=40,
    nms_boxes_out=20,
    max_boxes=50,
    sparse_widths=(4, 6, 8, 8),
    sparse_out_width=8,
    bev=_BEV,
    head_width=8,
)
SECOND = replace(
    second.Config(),
    voxels=Voxels((0, -12.8, -3), (38.4, 12.8, 3), (0.4, 0.4, 0.15), 3, 0, second.KITTI_VOXELS.features),
    score_threshold=0.02,
    nms_boxes_in=60,
    nms_boxes_out=40,
    sparse_widths=(4, 6, 8, 8),
    sparse_out_width=8,
    bev=_BEV,
)
NUM_CLASSES = 5
# The voxel sizes of MinkowskiEngine's MinkUNet by its kernel's shape: three axes in metres, and for kernels of four
# axes time in seconds.
MINKOWSKI_VOXEL_SIZES = {
    "cube": (0.3, 0.3, 0.3),
    "hypercube": (0.3, 0.3, 0.3, 0.1),
    "hypercross": (0.3, 0.3, 0.3, 0.1),
    "cube_cross": (0.3, 0.3, 0.3, 0.1),
}
RESNET_VOXEL_SIZE = (0.3, 0.2, 0.3)
RESNET_AXES = ("x", "z", "y")  # The height is the second axis, because the network's last block halves the second axis.


def center_point_state(library: str) -> dict[str, np.ndarray]:
    recorder = Recorder({"openpcdet": 3, "det3d": 5}[library])
    center_point._build(recorder, CENTER_POINT, "", "", library)
    return recorder.state


def second_state(seed: int = 7) -> dict[str, np.ndarray]:
    recorder = Recorder(seed)
    second._build(recorder, SECOND, "", "")
    return recorder.state


def spvcnn_state(seed: int = 7) -> dict[str, np.ndarray]:
    recorder = Recorder(seed)
    widths = [int(0.0625 * w) for w in minkunet._BASE_WIDTHS]
    network = model_folder.Network("")
    builder = minkunet._Builder(network, recorder, minkunet_keys.SPVNAS, "voxels")
    builder.build(VOXEL_SIZE, minkunet.LIDAR_FEATURES, widths, NUM_CLASSES)
    return recorder.state


def minkowski_network(kernel: str) -> tuple[model_folder.Network, dict[str, np.ndarray]]:
    """Returns a small MinkUNet with MinkUNet14A's number of layers, and its state dict."""
    recorder, voxel_size = Recorder(3), MINKOWSKI_VOXEL_SIZES[kernel]
    dimension = len(voxel_size)
    network = model_folder.Network(f"small MinkUNet, {kernel}", "", dimension)
    boxes = (5, 5, 5, 1)[:dimension], (2, 2, 2, 1)[:dimension]
    builder = minkowski_unet._Builder(network, recorder, kernel, *boxes)
    planes = (4, 6, 8, 12, 8, 8, 6, 6)
    builder.build(voxel_size, minkowski_unet.LIDAR_FEATURES, 4, (1,) * 8, planes, NUM_CLASSES)
    return network, recorder.state


def resnet_state() -> dict[str, np.ndarray]:
    recorder, widths = Recorder(13), (4, 6, 8, 10, 10)
    features = sparse_resnet.LIDAR_FEATURES
    sparse_resnet._build(recorder, "", "", RESNET_VOXEL_SIZE, features, RESNET_AXES, widths, NUM_CLASSES)
    return recorder.state


# ---------------------------------------------------------------------------------------------------------------------
# Detectors


def mean_voxels(points, voxels: Voxels, columns: int):
    """OpenPCDet's MeanVFE. Returns the mean of each voxel's first points by the voxel's (z, y, x), `columns` values
    each. Columns that the points do not have are 0.
    """
    low, high = np.float32(voxels.range_min), np.float32(voxels.range_max)
    size = np.float32(voxels.size)
    points = points[((points[:, :3] >= low) & (points[:, :3] < high)).all(axis=1)]
    cells: dict[tuple[int, ...], list[np.ndarray]] = {}
    for zyx, point in zip(np.floor((points[:, :3] - low) / size).astype(int)[:, ::-1].tolist(), points, strict=True):
        cell = cells.setdefault(tuple(zyx), [])
        if len(cell) < voxels.max_points_per_voxel:
            cell.append(point)
    means = {cell: np.mean(np.array(rows, np.float64), axis=0) for cell, rows in cells.items()}
    return {cell: np.concatenate([row, np.zeros(columns - len(row))]) for cell, row in means.items()}


class SparseImage:
    """Dense features [1, C, z, y, x], a mask of the active sites [1, 1, z, y, x], and spconv's layers on them."""

    def __init__(self, state, dense, sites) -> None:
        self.state, self.dense, self.sites = state, dense, sites

    @classmethod
    def of_voxels(cls, state, cells, shape, columns):
        import torch

        dense, sites = torch.zeros((1, columns, *shape), dtype=torch.float64), torch.zeros((1, 1, *shape)).double()
        for cell, row in cells.items():
            dense[(0, slice(None), *cell)] = torch.from_numpy(row)
            sites[(0, 0, *cell)] = 1
        return cls(state, dense, sites)

    def weight(self, key):
        """Returns spconv 2's weight [Cout, kz, ky, kx, Cin] in torch's layout [Cout, Cin, kz, ky, kx]."""
        import torch

        return torch.from_numpy(self.state[f"{key}.weight"].astype(np.float64)).permute(0, 4, 1, 2, 3)

    def submanifold(self, key):
        import torch

        bias = self.state.get(f"{key}.bias")
        bias = None if bias is None else torch.from_numpy(bias.astype(np.float64))
        dense = torch.nn.functional.conv3d(self.dense, self.weight(key), bias, padding=1)
        return SparseImage(self.state, dense * self.sites, self.sites)

    def strided(self, key, stride, padding):
        import torch

        weight = self.weight(key)
        conv = torch.nn.functional.conv3d
        sites = (conv(self.sites, torch.ones_like(weight[:1, :1]), stride=stride, padding=padding) > 0).double()
        return SparseImage(self.state, conv(self.dense, weight, stride=stride, padding=padding) * sites, sites)

    def norm(self, key):
        return SparseImage(self.state, batch_norm(self.state, key, self.dense, 1e-3) * self.sites, self.sites)

    def relu(self):
        return SparseImage(self.state, self.dense.clamp(min=0), self.sites)

    def __add__(self, other):
        return SparseImage(self.state, self.dense + other.dense, self.sites)


def batch_norm(state, key, x, epsilon):
    import torch

    parts = ("running_mean", "running_var", "weight", "bias")
    values = [torch.from_numpy(state[f"{key}.{part}"].astype(np.float64)) for part in parts]
    return torch.nn.functional.batch_norm(x, *values, training=False, eps=epsilon)


def conv2d(state, key, x, **options):
    import torch

    weight = torch.from_numpy(state[f"{key}.weight"].astype(np.float64))
    bias = state.get(f"{key}.bias")
    bias = None if bias is None else torch.from_numpy(bias.astype(np.float64))
    return torch.nn.functional.conv2d(x, weight, bias, **options)


def residual_block(x: SparseImage, key: str) -> SparseImage:
    y = x.submanifold(f"{key}.conv1").norm(f"{key}.bn1").relu()
    return (y.submanifold(f"{key}.conv2").norm(f"{key}.bn2") + x).relu()


def grid_zyx(voxels: Voxels) -> tuple[int, int, int]:
    x, y, z = voxels.grid()
    return z + 1, y, x


def voxel_res_backbone(x: SparseImage, library: str) -> SparseImage:
    """OpenPCDet's VoxelResBackBone8x, or det3d's SpMiddleResNetFHD, which has the same layers under other names."""
    is_det3d = library == "det3d"
    prefix = "backbone." if is_det3d else "backbone_3d."
    x = x.submanifold(f"{prefix}conv_input.0").norm(f"{prefix}conv_input.1").relu()
    x = residual_block(residual_block(x, f"{prefix}conv1.0"), f"{prefix}conv1.1")
    for stage, padding in ((2, (1, 1, 1)), (3, (1, 1, 1)), (4, (0, 1, 1))):
        key = f"{prefix}conv{stage}"
        conv, norm, blocks = ("0", "1", "34") if is_det3d else ("0.0", "0.1", "12")
        x = x.strided(f"{key}.{conv}", 2, padding).norm(f"{key}.{norm}").relu()
        for block in blocks:
            x = residual_block(x, f"{key}.{block}")
    key = f"{prefix}extra_conv" if is_det3d else f"{prefix}conv_out"
    return x.strided(f"{key}.0", (2, 1, 1), 0).norm(f"{key}.1").relu()


def voxel_backbone(x: SparseImage) -> SparseImage:
    """OpenPCDet's VoxelBackBone8x."""
    x = x.submanifold("backbone_3d.conv_input.0").norm("backbone_3d.conv_input.1").relu()
    x = x.submanifold("backbone_3d.conv1.0.0").norm("backbone_3d.conv1.0.1").relu()
    for stage, padding in ((2, (1, 1, 1)), (3, (1, 1, 1)), (4, (0, 1, 1))):
        key = f"backbone_3d.conv{stage}"
        x = x.strided(f"{key}.0.0", 2, padding).norm(f"{key}.0.1").relu()
        for block in (1, 2):
            x = x.submanifold(f"{key}.{block}.0").norm(f"{key}.{block}.1").relu()
    return x.strided("backbone_3d.conv_out.0", (2, 1, 1), 0).norm("backbone_3d.conv_out.1").relu()


def height_compression(x: SparseImage):
    n, c, d, h, w = x.dense.shape
    return x.dense.view(n, c * d, h, w)


def bev_backbone(state, x, library: str, bev: Bev):
    import torch

    prefix = "neck" if library == "det3d" else "backbone_2d"
    ups = []
    for block, (count, stride, up) in enumerate(zip(bev.num_layers, bev.strides, bev.up_strides, strict=True)):
        key = f"{prefix}.blocks.{block}"
        # This is the layer nn.ZeroPad2d, entry 0 of the library's nn.Sequential.
        x = torch.nn.functional.pad(x, (1, 1, 1, 1))
        x = batch_norm(state, f"{key}.2", conv2d(state, f"{key}.1", x, stride=stride), 1e-3).relu()
        for layer in range(count):
            y = conv2d(state, f"{key}.{4 + 3 * layer}", x, padding=1)
            x = batch_norm(state, f"{key}.{5 + 3 * layer}", y, 1e-3).relu()
        key = f"{prefix}.deblocks.{block}"
        if library == "det3d" and up == 1:
            y = conv2d(state, f"{key}.0", x)
        else:
            weight = torch.from_numpy(state[f"{key}.0.weight"].astype(np.float64))
            y = torch.nn.functional.conv_transpose2d(x, weight, stride=up)
        ups.append(batch_norm(state, f"{key}.1", y, 1e-3).relu())
    return torch.cat(ups, dim=1)


def rows_first(x):
    """Turns a torch tensor [1, C, H, W] into a NumPy array [1, H, W, C]."""
    return x.permute(0, 2, 3, 1).numpy()


def center_point_images(state, library, points):
    """Returns each task's images by branch name, [1, rows, columns, channels] each. The names are OpenPCDet's.
    `library` says which library's layers and conventions apply.
    """
    config = CENTER_POINT
    cells = mean_voxels(points, config.voxels, len(config.voxels.features))
    for row in cells.values():
        row[3] *= 255  # nuScenes stores intensities from 0 to 255.
    x = SparseImage.of_voxels(state, cells, grid_zyx(config.voxels), len(config.voxels.features))
    x = height_compression(voxel_res_backbone(x, library))
    x = bev_backbone(state, x, library, config.bev)
    prefix = "bbox_head" if library == "det3d" else "dense_head"
    x = batch_norm(state, f"{prefix}.shared_conv.1", conv2d(state, f"{prefix}.shared_conv.0", x, padding=1), 1e-5).relu()
    branches = det3d_branches if library == "det3d" else open_pcdet_branches
    return [branches(state, task, x) for task in range(len(config.tasks))]


def open_pcdet_branches(state, task, x):
    names = {"heatmap": "hm", "center": "center", "height": "center_z", "dim": "dim", "rot": "rot", "vel": "vel"}
    keys = {name: f"dense_head.heads_list.{task}.{theirs}" for name, theirs in names.items()}
    return {name: branch(state, f"{key}.0.0", f"{key}.0.1", f"{key}.1", x) for name, key in keys.items()}


def det3d_branches(state, task, x):
    names = {"heatmap": "hm", "center": "reg", "height": "height", "dim": "dim", "rot": "rot", "vel": "vel"}
    keys = {name: f"bbox_head.tasks.{task}.{theirs}" for name, theirs in names.items()}
    return {name: branch(state, f"{key}.0", f"{key}.1", f"{key}.3", x) for name, key in keys.items()}


def branch(state, first, norm, last, x):
    y = batch_norm(state, norm, conv2d(state, first, x, padding=1), 1e-5).relu()
    return rows_first(conv2d(state, last, y, padding=1))


def center_point_boxes(library, tasks, config=CENTER_POINT, stride=8):
    """Returns the boxes that CenterPoint decodes from its images, after non-maximum suppression. det3d's boxes are
    converted to voxserve's convention between the two steps, where det3d converts them too.
    """
    import detection_heads

    decoded = []
    for class_ids, images in zip(config.tasks, tasks, strict=True):
        case = {
            "convention": detection_heads.DET3D if library == "det3d" else detection_heads.OPENPCDET,
            "stride": stride,
            "voxel_size": np.float32(config.voxels.size),
            "range_min": np.float32(config.voxels.range_min),
            "score_threshold": np.float32(config.score_threshold),
            "max_boxes": config.max_boxes,
            "center_min": np.float32(config.center_min),
            "center_max": np.float32(config.center_max),
            "class_ids": class_ids,
        }
        boxes = detection_heads.decode_center(case, images)
        if library == "det3d":
            boxes[..., [3, 4]] = boxes[..., [4, 3]]
            yaw = -boxes[..., 6] - np.pi / 2
            boxes[..., 6] = np.arctan2(np.sin(yaw), np.cos(yaw))
        decoded.append(boxes)
    kept = detection_heads.nms(decoded, config.nms_iou, config.nms_boxes_in, config.nms_boxes_out)[0]
    return kept[kept[:, detection_heads.SCORE] >= 0]


def second_images(state, points):
    config = SECOND
    cells = mean_voxels(points, config.voxels, 4)
    x = SparseImage.of_voxels(state, cells, grid_zyx(config.voxels), 4)
    return anchor_head_images(state, bev_backbone(state, height_compression(voxel_backbone(x)), "openpcdet", config.bev))


def anchor_head_images(state, x):
    keys = {"scores": "conv_cls", "residuals": "conv_box", "directions": "conv_dir_cls"}
    return {name: rows_first(conv2d(state, f"dense_head.{key}", x)) for name, key in keys.items()}


def second_boxes(images, config=SECOND):
    import detection_heads

    anchors = [(*a.size, a.bottom, rotation) for a in config.anchors for rotation in a.rotations]
    case = {
        "range_min": np.float32(config.voxels.range_min),
        "range_max": np.float32(config.voxels.range_max),
        "direction_offset": np.float32(config.direction_offset),
        "direction_limit_offset": np.float32(config.direction_limit_offset),
        "score_threshold": np.float32(config.score_threshold),
        "max_boxes": config.nms_boxes_in,
        "anchors": np.float32(anchors),
        "class_ids": [a.class_id for a in config.anchors],
    }
    decoded = [detection_heads.decode_anchors(case, images)]
    kept = detection_heads.nms(decoded, config.nms_iou, config.nms_boxes_in, config.nms_boxes_out)[0]
    return kept[kept[:, detection_heads.SCORE] >= 0]


# ---------------------------------------------------------------------------------------------------------------------
# Golden files


def scan() -> np.ndarray:
    return np.fromfile(SCAN, np.float32).reshape(-1, 4)


def timed(points: np.ndarray) -> np.ndarray:
    """Returns the points with a fifth column of seconds, as if points of three sweeps alternated: -0.05, 0.05 and
    0.15.
    """
    seconds = 0.1 * (np.arange(len(points)) % 3) - 0.05
    return np.concatenate([points, seconds[:, None].astype(np.float32)], axis=1)


def folders() -> dict[str, model_folder.Network]:
    """Returns the small networks as the exporter builds them, by the name of their folder."""
    import sites_and_pillars  # sites_and_pillars imports this module, so it cannot be imported at the top.

    networks = {
        f"small-centerpoint-{library}": center_point.build(
            center_point_state(library), CENTER_POINT, name="small CenterPoint", library=library
        )
        for library in ("openpcdet", "det3d")
    }
    networks["small-second"] = second.build(second_state(), SECOND, name="small SECOND")
    networks |= sites_and_pillars.folders()
    networks["small-spvcnn"] = minkunet.build(spvcnn_state(), name="small SPVCNN", voxel_size=VOXEL_SIZE)
    for kernel, voxel_size in MINKOWSKI_VOXEL_SIZES.items():
        network, state = minkowski_network(kernel)
        # No published state dict has this kernel, so the exporter's builder made the network already.
        if kernel != "cube_cross":
            network = minkowski_unet.build(state, name=network.name, voxel_size=voxel_size)
        networks[f"small-minkowski-{kernel}".replace("_", "-")] = network
    networks["small-resnet21d"] = sparse_resnet.build(
        resnet_state(), name="small SparseResNet21D", voxel_size=RESNET_VOXEL_SIZE, axes=RESNET_AXES
    )
    return networks


def write_folder(folder: Path, network: model_folder.Network) -> None:
    """Writes a model folder. Its config.textproto names no classes, because no test reads them."""
    model_folder.write(folder, network, model_folder.config_textproto(()))


def is_stable(boxes, answer, images) -> bool:
    """Returns whether the boxes do not depend on rounding: images that are changed in their sixth digit must give as
    many boxes, in the same order.
    """
    random = np.random.default_rng(0)
    for _ in range(3):
        shaken = [{n: v * random.uniform(1 - 1e-5, 1 + 1e-5, v.shape) for n, v in image.items()} for image in images]
        other = boxes(shaken)
        if other.shape != answer.shape or not np.allclose(other, answer, rtol=1e-3, atol=1e-3):
            return False
    return True


def minkowski_scores(kernel: str, points: np.ndarray) -> np.ndarray:
    """Returns MinkUNet's logits for each of the SEGMENTED_POINTS. points: the whole scan."""
    voxel_size = MINKOWSKI_VOXEL_SIZES[kernel]
    cloud = points[SEGMENTED_POINTS]
    unet = MinkowskiUnet(minkowski_network(kernel)[1], kernel, voxel_size)
    return unet.run(cloud if len(voxel_size) == 3 else timed(cloud))


def resnet_scores(points: np.ndarray) -> np.ndarray:
    columns = ["xyz".index(axis) for axis in RESNET_AXES]
    return SparseResnet(resnet_state(), RESNET_VOXEL_SIZE, columns).run(points[SEGMENTED_POINTS])


def outputs() -> dict[str, np.ndarray]:
    import sites_and_pillars

    points = scan()
    arrays = {}
    for library in ("openpcdet", "det3d"):
        tasks = center_point_images(center_point_state(library), library, points)
        boxes = center_point_boxes(library, tasks)
        assert is_stable(lambda images, name=library: center_point_boxes(name, images), boxes, tasks)
        arrays[f"centerpoint_{library}_boxes"] = boxes
    images = second_images(second_state(), points)
    arrays["second_boxes"] = second_boxes(images)
    assert is_stable(lambda shaken: second_boxes(shaken[0]), arrays["second_boxes"], [images])
    arrays |= sites_and_pillars.boxes(points)
    arrays["spvcnn_scores"] = Spvcnn(spvcnn_state()).run(points[SPVCNN_POINTS])
    for kernel in MINKOWSKI_VOXEL_SIZES:
        arrays[f"minkowski_{kernel}_scores"] = minkowski_scores(kernel, points)
    arrays["resnet21d_scores"] = resnet_scores(points)
    return {name: values.astype(np.float32) for name, values in arrays.items()}


def main() -> int:
    golden = Path(sys.argv[1])
    for name, network in folders().items():
        write_folder(golden / "networks" / name, network)
    np.savez_compressed(golden / "networks.npz", **outputs())
    return 0


if __name__ == "__main__":
    sys.exit(main())
