"""Exports MinkUNet of TorchSparse, spvnas and mmdetection3d, and SPVCNN, which adds a branch of points to it.

H. Tang et al., "Searching Efficient 3D Architectures with Sparse Point-Voxel Convolution", ECCV 2020. Four levels down
and up by 2x2x2 convolutions, two residual blocks per level, `widths` channels; TorchSparse calls it SparseResUNet42.
The output sites of its strided convolutions are floor(coordinates / 2), and kernel_order reorders its kernels.

State dicts: TorchSparse's torch.nn.ModuleDict({"backbone": SparseResUNet42(...), "classifier": Linear(...)}), that is
"backbone.stem.0.kernel" to "classifier.bias"; spvnas' own MinkUNet and SPVCNN, "stem.0.kernel" to "classifier.0.bias";
mmdetection3d's MinkUNet, MinkUNet V2 and SPVCNN, "backbone.conv_input.0.net.0.kernel" to "decode_head.conv_seg.bias",
of TorchSparse, MinkowskiEngine and spconv. Widths and mmdetection3d's depths are read from the tensors.

spvnas' MinkUNet has the tensors of its SPVCNN, including point_transforms, and does not use them: a state dict does not
show which of the two it is. V2 of mmdetection3d classifies rows of three levels, interpolated at the voxels of level 0.

SPVCNN's points: spvnas feeds the network one point per voxel, at integer coordinates, and gives every point of the scan
its voxel's class. So its points are the sites of level 0, and the branch consists of rows of those sites
(points="voxels"): trilinear devoxelize of a coarse level onto level 0, and the mean over the level-0 sites of a coarse
one. On level 0 itself both are the identity (a point at an integer coordinate has weight 1 there) and are left out.
With points="cloud" the branch has all points of the cloud at their own positions, as in the paper's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from voxserve.export.model_folder import Network, PointFeature
from voxserve.export.networks.layers import INPUT_GAIN, Layers, ResidualKeys
from voxserve.export.networks.minkunet_keys import SPVNAS, UnetKeys, keys_of
from voxserve.export.networks.tensors import RandomTensors, StateDict, Tensor, Tensors

_NUM_STAGES = 4
_EPSILON = 1e-5  # torch's default, which the libraries use
_JOINED = (4, 6, 8)  # indices of the widths that MinkUNet V2's head joins: of stage 4, of up 2 and of up 4
_BASE_WIDTHS = (32, 32, 64, 128, 256, 256, 128, 96, 96)
LIDAR_FEATURES = (
    PointFeature("x", "m"),
    PointFeature("y", "m"),
    PointFeature("z", "m"),
    # SemanticKITTI's remission as its files have it (torchsparse and spvnas feed it so), and Pointcept's strength.
    PointFeature("intensity", "1", range=(0, 1)),
)
POINTS = ("voxels", "cloud")


def is_spvcnn(state: Mapping[str, Tensor]) -> bool:
    """Returns whether a state dict has SPVCNN's branch of points."""
    return has_transforms(state, keys_of(state))


def has_transforms(state: Mapping[str, Tensor], keys: UnetKeys) -> bool:
    return any(name.startswith(f"{keys.transforms}.") for name in state)


def build(
    state: Mapping[str, Tensor],
    *,
    name: str,
    description: str = "",
    voxel_size: Sequence[float] = (0.05, 0.05, 0.05),
    features: Sequence[PointFeature] = LIDAR_FEATURES,
    points: str = "voxels",
) -> Network:
    """Returns the network of a state dict: SPVCNN if it has the tensors of a branch of points, else MinkUNet. points:
    "voxels" or "cloud", the points of SPVCNN's branch (see the module's docstring); "" makes a MinkUNet in any case.

    Raises ExportError with every tensor that is missing, unknown or misshaped.
    """
    keys = keys_of(state)
    is_branched = has_transforms(state, keys) and points != ""
    tensors = StateDict(
        state,
        keys.network.replace("MinkUNet", "SPVCNN") if is_branched else keys.network,
        lambda n: n.endswith(".num_batches_tracked") or (points == "" and n.startswith(f"{keys.transforms}.")),
    )
    widths = _widths_of(tensors, keys)
    levels = range(_NUM_STAGES)
    depths = [keys.num_blocks(state, i) for i in levels] + [keys.num_blocks(state, i, is_up=True) for i in levels]
    num_classes = tensors.size(f"{keys.classifier}.weight", 0)
    network = Network(name, description)
    builder = _Builder(network, tensors, keys, points if is_branched else "")
    is_v2 = keys.has_any_depth and tensors.size(f"{keys.classifier}.weight", 1) == sum(widths[i] for i in _JOINED)
    joins_levels = is_v2 and not is_branched
    builder.build(voxel_size, features, widths, num_classes, depths, joins_levels=joins_levels)
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
    """Returns MinkUNet with random weights. width: spvnas' cr, which multiplies the channels."""
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
    """Returns SPVCNN with random weights. width: spvnas' cr, which multiplies the channels. points: "voxels" or "cloud"
    (see the module's docstring).
    """
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
    builder = _Builder(network, RandomTensors(seed), SPVNAS, points)
    builder.build(voxel_size, features, widths, num_classes)
    return network


def _widths_of(tensors: StateDict, keys: UnetKeys) -> list[int]:
    """Returns the widths of the levels from the batch norms' sizes, which every library stores in the same way."""

    def width(norm: str, **fields: int) -> int:
        return tensors.size(f"{norm.format(**fields)}.weight", 0)

    widths = [width(keys.stem[0][1])]
    for stage in range(_NUM_STAGES):
        widths.append(width(f"{keys.block}.{keys.norms[0]}", index=stage, number=stage + 1, block=1))
    for up in range(_NUM_STAGES):
        widths.append(width(keys.up[1], index=up, number=up + 1))
    return widths


class _Builder:
    """Builds the network. points: "" for MinkUNet; "voxels" or "cloud" for SPVCNN."""

    def __init__(self, network: Network, tensors: Tensors, keys: UnetKeys, points: str) -> None:
        if points and points not in POINTS:
            raise ValueError(f"points is '{points}', not one of {', '.join(POINTS)}")
        self._network = network
        self._tensors = tensors
        self._keys = keys
        self._layers = Layers(network, tensors, keys.read_weight, _EPSILON)
        self._points = points

    def build(
        self,
        voxel_size: Sequence[float],
        features: Sequence[PointFeature],
        widths: Sequence[int],
        num_classes: int,
        depths: Sequence[int] = (2,) * (2 * _NUM_STAGES),
        *,
        joins_levels: bool = False,
    ) -> None:
        """Adds all nodes. depths: the number of residual blocks of each stage (encoder level), then of each up (decoder
        level). joins_levels: the network has the head of MinkUNet V2.
        """
        network, layers, keys = self._network, self._layers, self._keys
        size = " x ".join(f"{v:g}" for v in voxel_size)
        network.section(f"Points to voxels of {size} m, as TorchSparse's datasets make them.")
        voxels = layers.points(network.voxelize("voxels", voxel_size, features), len(features))

        network.section("Stem.")
        (conv0, norm0), (conv1, norm1) = keys.stem
        x = layers.submanifold("stem.0", conv0, voxels, (3, 3, 3), widths[0], gain=INPUT_GAIN)
        x = layers.norm_relu(x, norm0)
        x = layers.submanifold("stem.1", conv1, x, (3, 3, 3), widths[0])
        x = layers.norm_relu(x, norm1)
        skips = [x]
        branch = _PointBranch(layers, self._points, keys.transforms, voxels, x) if self._points else None
        if branch:
            x = branch.voxels_of_stem()
        for stage in range(1, _NUM_STAGES + 1):
            network.section(f"Stage {stage}: stride {2**stage}.")
            fields = {"index": stage - 1, "number": stage}
            conv, norm = (key.format(**fields) for key in keys.down)
            down = f"stage{stage}.down"
            layers.strided(down, conv, x, (2, 2, 2), (2, 2, 2), layers.channels[x])
            x = layers.norm_relu(down, norm)
            for block in range(1, depths[stage - 1] + 1):
                key = keys.block.format(**fields, block=block)
                x = self._residual(f"stage{stage}.{block - 1}", key, x, widths[stage])
            skips.append(x)
        joined = [x]
        if branch:
            network.section("Points: what stage 4 tells them, and back.")
            x = branch.exchange(0, x, widths[4])
        for up in range(1, _NUM_STAGES + 1):
            stage = _NUM_STAGES + 1 - up
            width = widths[_NUM_STAGES + up]
            network.section(f"Up {up}: back to stride {2 ** (stage - 1)}, joined by the skip connection.")
            fields = {"index": up - 1, "number": up}
            conv, norm = (key.format(**fields) for key in keys.up)
            layers.inverse(f"up{up}.up", conv, x, width, f"stage{stage}.down")
            x = layers.norm_relu(f"up{up}.up", norm)
            x = layers.concat(f"up{up}.concat", [x, skips[stage - 1]])
            for block in range(depths[_NUM_STAGES + up - 1]):
                key = keys.fuse.format(**fields, block=block)
                x = self._residual(f"up{up}.{block}", key, x, width)
            if up == 2:
                joined.append(x)
            if branch and up == 2:
                network.section("Points: what up 2 tells them, and back.")
                x = branch.exchange(1, x, width)
        if branch:
            network.section("Points: what up 4 tells them.")
            x = branch.join(2, x, widths[8])
        if joins_levels:
            network.section("Three levels at the voxels of level 0.")
            fine = [
                layers.devoxelize(f"level{level}.fine", row, skips[0])
                for level, row in zip((4, 2), joined, strict=True)
            ]
            x = layers.concat("levels", [*fine, x])

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
        parts = self._keys
        keys = ResidualKeys(
            convs=tuple(f"{key}.{part}" for part in parts.convs),
            norms=tuple(f"{key}.{part}" for part in parts.norms),
            shortcut=(f"{key}.{parts.shortcut[0]}", f"{key}.{parts.shortcut[1]}"),
        )
        convolve = partial(self._layers.submanifold, kernel=(3, 3, 3), out=out)
        return self._layers.residual_block(name, keys, x, [convolve] * 2)


class _PointBranch:
    """SPVCNN's branch of points: the points' current features, and their exchange with the voxels."""

    def __init__(self, layers: Layers, points: str, transforms: str, voxels: str, stem: str) -> None:
        """transforms: the name of the point transforms in the state dict; voxels: the voxelize node; stem: the node of
        level 0's first features.
        """
        self._layers = layers
        self._transforms = transforms
        self._is_cloud = points == "cloud"
        self._onto = voxels if self._is_cloud else stem
        self._stem = stem
        self._voxels = voxels
        self._known = self._to_points("points.0", stem) if self._is_cloud else stem

    def voxels_of_stem(self) -> str:
        return self._to_voxels("points.0.voxels", self._stem) if self._is_cloud else self._stem

    def exchange(self, index: int, x: str, out: int) -> str:
        """Updates the points' features with x, as join() does. Returns a node with the mean of the new features of the
        points in each site of x.
        """
        self.join(index, x, out)
        return self._to_voxels(f"points.{index + 1}.voxels", x)

    def join(self, index: int, x: str, out: int) -> str:
        """Updates the points' features: the interpolated rows of x, plus the earlier features after a transform.
        Returns their node.
        """
        layers, name, key = self._layers, f"points.{index + 1}", f"{self._transforms}.{index}"
        transformed = layers.linear(f"{name}.transform", f"{key}.0", self._known, out)
        transformed = layers.norm_relu(transformed, f"{key}.1")
        is_level_0 = index == 2 and not self._is_cloud
        known = x if is_level_0 else self._to_points(f"{name}.voxels_at", x)
        self._known = layers.add(f"{name}.add", [known, transformed])
        return self._known

    def _to_points(self, name: str, x: str) -> str:
        return self._layers.devoxelize(name, x, self._onto)

    def _to_voxels(self, name: str, x: str) -> str:
        voxelize = self._voxels if self._is_cloud else ""
        self._layers.channels[name] = self._layers.channels[self._known]
        return self._layers.network.point_to_voxel(name, self._known, voxelize, "AVERAGE", x)
