"""Computes boxes with mmdetection3d's own modules, for small networks with random weights (mmdetection3d_networks.py of
client/python/tests), and writes them as tests/golden/mmdetection3d.npz:

    pip install torch PyYAML six platformdirs termcolor addict yapf spconv
    pip install --no-deps mmdet3d==1.4.0 mmdet==3.3.0 mmengine==0.10.7 mmcv-lite==2.2.0
    OMP_NUM_THREADS=1 PYTHONPATH=client/python/src:client/python/tests \\
        python tests/oracles/mmdetection3d_boxes.py tests/golden/mmdetection3d.npz

Its modules and spconv (2.3.8, on one thread of a CPU) load the weights by name and compute everything from the voxels
to the boxes. Voxels are made here, since mmcv's compiled operators are not installed; nor is NMS, so nothing is
suppressed, and an overlap threshold of 1 has the server suppress nothing either.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections import OrderedDict

import numpy as np

COLUMNS = 11  # x, y, z of the centre, length, width, height, yaw, velocity x and y, score, class
# mmdetection3d imports these modules, and these networks do not run them.
UNUSED = (
    "mmcv._ext", "cv2", "pycocotools", "numba", "nuscenes", "lyft_dataset_sdk", "open3d", "trimesh", "scipy",
    "shapely", "matplotlib", "skimage", "plyfile", "pyquaternion", "seaborn", "pandas", "sklearn", "terminaltables",
    "motmetrics", "trackeval", "lap", "PIL", "rich", "tqdm", "imageio",
)


class Unused(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of UNUSED that are not installed. Their names are classes that do nothing."""

    def find_spec(self, name, path, target=None):
        is_unused = any(name == unused or name.startswith(unused + ".") for unused in UNUSED)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_unused else None

    def create_module(self, spec):
        return UnusedModule(spec.name)

    def exec_module(self, module):
        module.__path__ = []
        module.__version__ = "9.9.9"


class UnusedModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__.startswith("numba"):  # decorators
            return lambda *given, **_: given[0] if given and callable(given[0]) else lambda function: function
        kind = UnusedMeta if self.__name__.startswith(("cv2", "PIL")) else type
        return kind(name, (), {"__init__": lambda self, *_, **__: None})


class UnusedMeta(type):
    """The class of classes whose constants are asked for."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


def cells_of(points, layer):
    """Returns the first points of each cell (z, y, x) of the range, in the points' order, as mmcv's Voxelization."""
    bounds, size = np.float32(layer.point_cloud_range), np.float32(layer.voxel_size)
    cells: dict[tuple[int, ...], list[np.ndarray]] = {}
    for point in points[((points[:, :3] >= bounds[:3]) & (points[:, :3] < bounds[3:])).all(axis=1)]:
        cell = tuple(np.floor((point[:3] - bounds[:3]) / size).astype(int)[::-1].tolist())
        rows = cells.setdefault(cell, [])
        if len(rows) < layer.max_num_points:
            rows.append(point)
    return cells


def loaded(module, state, prefix, is_spconv_1):
    """Returns the module with the tensors of its names, all of them. mmdetection3d takes a file without versions for
    one with spconv 1's layout.
    """
    import torch

    own = {name.removeprefix(f"{prefix}."): values for name, values in state.items() if name.startswith(f"{prefix}.")}
    tensors = OrderedDict((name, torch.from_numpy(np.array(values))) for name, values in own.items())
    if not is_spconv_1:
        tensors._metadata = {name: {"version": 2} for name, _ in module.named_modules()}
    module.load_state_dict(tensors, strict=True)
    return module.eval()


def boxes(case):
    """Returns the boxes of a case, [boxes, COLUMNS]."""
    import mmdetection3d_networks as networks
    import torch
    from mmdet3d.registry import MODELS
    from mmdet3d.structures import LiDARInstance3DBoxes
    from mmengine.config import ConfigDict

    name, _, is_spconv_1 = networks.CASES[case]
    model = ConfigDict(networks.configuration(case)["model"])
    state = networks.weights(name, is_spconv_1=is_spconv_1)
    prefix = "" if name == "second" else "pts_"
    layer, num_features = model.data_preprocessor.voxel_layer, 4 if name == "second" else 5

    def made(part, **options):
        module, key = MODELS.build(ConfigDict({**model[prefix + part], **options})), prefix + part
        return loaded(module, state, key, is_spconv_1) if any(n.startswith(key + ".") for n in state) else module

    cells = cells_of(networks.scan()[:, :num_features], layer)
    features = torch.zeros(len(cells), layer.max_num_points, num_features)
    for i, rows in enumerate(cells.values()):
        features[i, : len(rows)] = torch.from_numpy(np.array(rows))
    coordinates = torch.tensor([[0, *cell] for cell in cells], dtype=torch.int32)
    x = made("voxel_encoder")(features, torch.tensor([len(rows) for rows in cells.values()]), coordinates)
    x = made("middle_encoder")(x, coordinates, 1)
    x = made("neck")(made("backbone", in_channels=x.shape[1])(x))
    meta = [{"box_type_3d": LiDARInstance3DBoxes}]
    if name == "second":
        head = made("bbox_head", test_cfg=model.test_cfg, loss_dir={"type": "mmdet.CrossEntropyLoss"})
        found = head.predict_by_feat(*head(x), meta, model.test_cfg)[0]
    else:
        head = made("bbox_head", in_channels=16, test_cfg=model.test_cfg.pts, loss_bbox={"type": "mmdet.L1Loss"})
        found = head.predict_by_feat(head(x), meta)[0]
    result = np.zeros((len(found.scores_3d), COLUMNS), np.float32)
    numbers = found.bboxes_3d.tensor.numpy()
    result[:, :3], result[:, 3 : numbers.shape[1]] = found.bboxes_3d.gravity_center.numpy(), numbers[:, 3:]
    result[:, 6] = np.arctan2(np.sin(numbers[:, 6]), np.cos(numbers[:, 6]))
    result[:, 9], result[:, 10] = found.scores_3d.numpy(), found.labels_3d.numpy()
    return result


def main(path):
    sys.meta_path.append(Unused())
    import mmcv

    mmcv.__version__ = "2.1.0"  # which mmdet3d asks for
    import mmdetection3d_networks as networks
    import torch
    from mmdet3d.models.dense_heads import centerpoint_head
    from mmdet3d.models.layers import box3d_nms
    from mmengine.registry import init_default_scope

    init_default_scope("mmdet3d")
    centerpoint_head.nms_bev = lambda boxes, scores, **_: scores.sort(0, descending=True)[1]
    box3d_nms.nms_rotated = lambda boxes, scores, _: (None, torch.arange(len(scores)))
    with torch.no_grad():
        np.savez_compressed(path, **{case: boxes(case) for case in networks.CASES})


if __name__ == "__main__":
    main(sys.argv[1])
