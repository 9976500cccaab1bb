"""MinkUNet as TorchSparse and spvnas have it, and SPVCNN, which is the same with a branch of points.

H. Tang et al., "Searching Efficient 3D Architectures with Sparse Point-Voxel Convolution", ECCV 2020. Four levels down
and up by 2x2x2 convolutions, two residual blocks a level, `widths` channels; TorchSparse calls it SparseResUNet42. Its
strided convolutions make sites floor(c / 2), and its kernels are reordered by kernel_order.

State dicts: TorchSparse's torch.nn.ModuleDict({"backbone": SparseResUNet42(...), "classifier": Linear(...)}), that is
"backbone.stem.0.kernel" to "classifier.bias", or spvnas' own MinkUNet and SPVCNN, "stem.0.kernel" to
"classifier.0.bias". Widths are read from the tensors' shapes, so that any serves.

SPVCNN's points. spvnas feeds the network one point a voxel, at whole coordinates, and gives every point of the scan its
voxel's class. So its points are the sites of level 0, and the branch is made of rows of those sites (points="voxels"):
trilinear devoxelize of a coarse level onto level 0, and the mean over the level-0 sites of a coarse one. Where both are
level 0, either is the identity (a point at a whole coordinate has weight 1 there) and left out. With points="cloud" the
branch has all points of the cloud at their own positions, which is the paper's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from voxserve.export.model_folder import Network, PointFeature
from voxserve.export.networks.layers import INPUT_GAIN, Layers, ResidualKeys, torchsparse_weight
from voxserve.export.networks.tensors import RandomTensors, StateDict, Tensor, Tensors

_NUM_STAGES = 4
_EPSILON = 1e-5  # torch's default, which both keep
_BASE_WIDTHS = (32, 32, 64, 128, 256, 256, 128, 96, 96)
LIDAR_FEATURES = (
    PointFeature("x", "m"),
    PointFeature("y", "m"),
    PointFeature("z", "m"),
    PointFeature("intensity", "1"),
)
POINTS = ("voxels", "cloud")


@dataclass(frozen=True)
class _Keys:
    """Where a library's state dict has the parts of the network. Stages and ups count from 1."""

    network: str
    stem: str
    down: str  # of a stage: index 0 convolution, 1 norm
    block: str  # of a stage and the number of its block
    up: str
    fuse: str
    main: str  # of a residual block: 0, 1, 3 and 4
    shortcut: str
    classifier: str


_TORCHSPARSE = _Keys(
    network="SparseResUNet42 + classifier",
    stem="backbone.stem",
    down="backbone.encoders.{index}.0",
    block="backbone.encoders.{index}.{block}",
    up="backbone.decoders.{index}.upsample",
    fuse="backbone.decoders.{index}.fuse.{block}",
    main="main",
    shortcut="shortcut",
    classifier="classifier",
)
_SPVNAS = _Keys(
    network="spvnas' MinkUNet",
    stem="stem",
    down="stage{number}.0.net",
    block="stage{number}.{block}",
    up="up{number}.0.net",
    fuse="up{number}.1.{block}",
    main="net",
    shortcut="downsample",
    classifier="classifier.0",
)


def is_spvcnn(state: Mapping[str, Tensor]) -> bool:
    """Whether a state dict has SPVCNN's branch of points."""
    return any(key.startswith("point_transforms.") for key in state)


def build(
    state: Mapping[str, Tensor],
    *,
    name: str,
    description: str = "",
    voxel_size: Sequence[float] = (0.05, 0.05, 0.05),
    features: Sequence[PointFeature] = LIDAR_FEATURES,
    points: str = "voxels",
) -> Network:
    """The MinkUNet or, where it has point transforms, SPVCNN of a state dict.

    Raises ExportError with every tensor that is missing, unknown or misshaped.
    """
    has_points = is_spvcnn(state)
    keys = _SPVNAS if has_points or any(key.startswith("stem.") for key in state) else _TORCHSPARSE
    tensors = StateDict(state, "spvnas' SPVCNN" if has_points else keys.network)
    widths = _widths_of(tensors, keys)
    num_classes = tensors.size(f"{keys.classifier}.weight", 0)
    network = Network(name, description)
    _Builder(network, tensors, keys, points if has_points else "").build(voxel_size, features, widths, num_classes)
    tensors.raise_problems()
    return network


def random_minkunet(
    *,
    name: str,
    width: float = 1.0,
    num_classes: int = 19,
    seed: int = 0,
    description: str = "",
    voxel_size: Sequence[float] = (0.05, 0.05, 0.05),
    features: Sequence[PointFeature] = LIDAR_FEATURES,
) -> Network:
    """MinkUNet with random weights. width: spvnas' cr, which multiplies the channels."""
    return _random(name, description, "", width, num_classes, seed, voxel_size, features)


def random_spvcnn(
    *,
    name: str,
    width: float = 1.0,
    num_classes: int = 19,
    seed: int = 0,
    description: str = "",
    voxel_size: Sequence[float] = (0.05, 0.05, 0.05),
    features: Sequence[PointFeature] = LIDAR_FEATURES,
    points: str = "voxels",
) -> Network:
    """SPVCNN with random weights. points: voxels or cloud, which the module explains."""
    return _random(name, description, points, width, num_classes, seed, voxel_size, features)


def _random(
    name: str,
    description: str,
    points: str,
    width: float,
    num_classes: int,
    seed: int,
    voxel_size: Sequence[float],
    features: Sequence[PointFeature],
) -> Network:
    widths = [int(width * w) for w in _BASE_WIDTHS]
    if min(widths) < 1:
        raise ValueError(f"width is {width}; {max(_BASE_WIDTHS)} channels at 1 leave none")
    if num_classes < 1:
        raise ValueError(f"num_classes is {num_classes}; it must be 1 or more")
    network = Network(name, description)
    builder = _Builder(network, RandomTensors(seed), _SPVNAS, points)
    builder.build(voxel_size, features, widths, num_classes)
    return network


def _widths_of(tensors: StateDict, keys: _Keys) -> list[int]:
    widths = [tensors.size(f"{keys.stem}.0.kernel", 2)]
    for stage in range(1, _NUM_STAGES + 1):
        block = keys.block.format(index=stage - 1, number=stage, block=1)
        widths.append(tensors.size(f"{block}.{keys.main}.0.kernel", 2))
    for up in range(1, _NUM_STAGES + 1):
        widths.append(tensors.size(f"{keys.up.format(index=up - 1, number=up)}.0.kernel", 2))
    return widths


class _Builder:
    """points: "" of MinkUNet; of SPVCNN what its points are."""

    def __init__(self, network: Network, tensors: Tensors, keys: _Keys, points: str) -> None:
        if points and points not in POINTS:
            raise ValueError(f"points is '{points}', not one of {', '.join(POINTS)}")
        self._network = network
        self._tensors = tensors
        self._keys = keys
        self._layers = Layers(network, tensors, torchsparse_weight, _EPSILON)
        self._points = points

    def build(
        self, voxel_size: Sequence[float], features: Sequence[PointFeature], widths: Sequence[int], num_classes: int
    ) -> None:
        network, layers, keys = self._network, self._layers, self._keys
        size = " x ".join(f"{v:g}" for v in voxel_size)
        network.section(f"Points to voxels of {size} m, as TorchSparse's datasets make them.")
        voxels = layers.points(network.voxelize("voxels", voxel_size, features), len(features))

        network.section("Stem.")
        x = layers.submanifold("stem.0", f"{keys.stem}.0", voxels, (3, 3, 3), widths[0], gain=INPUT_GAIN)
        x = layers.norm_relu(x, f"{keys.stem}.1")
        x = layers.submanifold("stem.1", f"{keys.stem}.3", x, (3, 3, 3), widths[0])
        x = layers.norm_relu(x, f"{keys.stem}.4")
        skips = [x]
        branch = _PointBranch(layers, self._points, voxels, x) if self._points else None
        if branch:
            x = branch.voxels_of_stem()
        for stage in range(1, _NUM_STAGES + 1):
            network.section(f"Stage {stage}: stride {2**stage}.")
            key = keys.down.format(index=stage - 1, number=stage)
            down = f"stage{stage}.down"
            layers.strided(down, f"{key}.0", x, (2, 2, 2), (2, 2, 2), layers.channels[x])
            x = layers.norm_relu(down, f"{key}.1")
            for block in (1, 2):
                key = keys.block.format(index=stage - 1, number=stage, block=block)
                x = self._residual(f"stage{stage}.{block - 1}", key, x, widths[stage])
            skips.append(x)
        if branch:
            network.section("Points: what stage 4 tells them, and back.")
            x = branch.exchange(0, x, widths[4])
        for up in range(1, _NUM_STAGES + 1):
            stage = _NUM_STAGES + 1 - up
            width = widths[_NUM_STAGES + up]
            network.section(f"Up {up}: back to stride {2 ** (stage - 1)}, joined by the skip connection.")
            key = keys.up.format(index=up - 1, number=up)
            layers.inverse(f"up{up}.up", f"{key}.0", x, width, f"stage{stage}.down")
            x = layers.norm_relu(f"up{up}.up", f"{key}.1")
            x = layers.concat(f"up{up}.concat", [x, skips[stage - 1]])
            for block in (0, 1):
                key = keys.fuse.format(index=up - 1, number=up, block=block)
                x = self._residual(f"up{up}.{block}", key, x, width)
            if branch and up == 2:
                network.section("Points: what up 2 tells them, and back.")
                x = branch.exchange(1, x, width)
        if branch:
            network.section("Points: what up 4 tells them.")
            x = branch.join(2, x, widths[8])

        network.section("Head.")
        layers.linear("classifier", keys.classifier, x, num_classes)
        if self._points == "cloud":
            network.argmax("labels", "classifier")
            network.output("LABELS", "labels")
            network.output("SCORES", "classifier")
            return
        network.argmax("argmax", "classifier")
        network.voxel_to_point("labels", "argmax", voxels)
        network.voxel_to_point("scores", "classifier", voxels)
        network.output("LABELS", "labels")
        network.output("SCORES", "scores")

    def _residual(self, name: str, key: str, x: str, out: int) -> str:
        main, shortcut = f"{key}.{self._keys.main}", f"{key}.{self._keys.shortcut}"
        keys = ResidualKeys(
            convs=(f"{main}.0", f"{main}.3"),
            norms=(f"{main}.1", f"{main}.4"),
            shortcut=(f"{shortcut}.0", f"{shortcut}.1"),
        )
        convolve = partial(self._layers.submanifold, kernel=(3, 3, 3), out=out)
        return self._layers.residual_block(name, keys, x, convolve)


class _PointBranch:
    """SPVCNN's points: what they know so far, and what they exchange with the voxels."""

    def __init__(self, layers: Layers, points: str, voxels: str, stem: str) -> None:
        """voxels: the voxelize node; stem: level 0's first features."""
        self._layers = layers
        self._is_cloud = points == "cloud"
        self._onto = voxels if self._is_cloud else stem
        self._stem = stem
        self._voxels = voxels
        self._known = self._to_points("points.0", stem) if self._is_cloud else stem

    def voxels_of_stem(self) -> str:
        return self._to_voxels("points.0.voxels", self._stem) if self._is_cloud else self._stem

    def exchange(self, index: int, x: str, out: int) -> str:
        """The points take in x; their mean takes its place."""
        self.join(index, x, out)
        return self._to_voxels(f"points.{index + 1}.voxels", x)

    def join(self, index: int, x: str, out: int) -> str:
        """Rows of points: x there, and what they knew, transformed."""
        layers, name, key = self._layers, f"points.{index + 1}", f"point_transforms.{index}"
        transformed = layers.linear(f"{name}.transform", f"{key}.0", self._known, out)
        transformed = layers.norm_relu(transformed, f"{key}.1")
        is_level_0 = index == 2 and not self._is_cloud
        known = x if is_level_0 else self._to_points(f"{name}.voxels_at", x)
        self._known = layers.add(f"{name}.add", [known, transformed])
        return self._known

    def _to_points(self, name: str, x: str) -> str:
        self._layers.channels[name] = self._layers.channels[x]
        return self._layers.network.devoxelize(name, x, self._onto)

    def _to_voxels(self, name: str, x: str) -> str:
        voxelize = self._voxels if self._is_cloud else ""
        self._layers.channels[name] = self._layers.channels[self._known]
        return self._layers.network.point_to_voxel(name, self._known, voxelize, "AVERAGE", x)
