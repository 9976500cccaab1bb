"""Traces a point transformer that uses voxserve.export.group_attention, and compares it with the module's own result;
tests the function against the curves' definition.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import voxserve
from voxserve.export import ExportError, PointFeature, Points, from_torch, group_attention
from voxserve.verify import groups

torch = pytest.importorskip("torch", reason="torch is not installed")
import traced_networks as networks  # noqa: E402
from torch import nn  # noqa: E402
from traced_networks import load, round_trip  # noqa: E402

pytestmark = pytest.mark.usefixtures("stand_in_libraries")
WIDTH = 12
SHAPE = (20, 18, 16)


def example(samples: int = 2, shape: tuple[int, ...] = SHAPE) -> Any:
    coordinates = networks.sites(6, (10, 9, 8), samples)
    spconv = load("spconv.pytorch")
    return spconv.SparseConvTensor(networks.features(coordinates), coordinates, list(shape), samples)


def transformer(**options: Any) -> Any:
    """Makes two levels of a transformer, written as Pointcept's SerializedAttention on spconv's tensors."""
    spconv = load("spconv.pytorch")

    class Block(nn.Module):
        def __init__(self, curve: str) -> None:
            super().__init__()
            self.curve = curve
            self.cpe = spconv.SubMConv3d(WIDTH, WIDTH, 3, bias=True)
            self.norm = nn.LayerNorm(WIDTH)
            self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            x = x.replace_feature(x.features + self.cpe(x).features)
            q, k, v = self.qkv(self.norm(x.features)).chunk(3, dim=-1)
            given = {"curve": self.curve, "size": 16, "num_heads": 2, **options}
            return x.replace_feature(x.features + self.proj(group_attention(q, k, v, x.indices, **given)))

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = spconv.SubMConv3d(networks.CHANNELS, WIDTH, 3)
            self.fine, self.coarse = Block("z-trans"), Block("hilbert")
            self.down = spconv.SparseConv3d(WIDTH, WIDTH, 2, stride=2, indice_key="down")
            self.up = spconv.SparseInverseConv3d(WIDTH, WIDTH, 2, indice_key="down")

        def forward(self, x: Any) -> Any:
            x = self.fine(self.stem(x))
            y = self.up(self.coarse(self.down(x)))
            return torch.cat([x.features, y.features], dim=1)

    return networks.randomize(Transformer())


@pytest.mark.parametrize("options", [{}, {"tail": "short", "scale": 0.25}, {"curve": "hilbert-trans"}, {"size": 4096}])
def test_a_transformer_is_traced(options: dict[str, Any], tmp_path: Path) -> None:
    exported, _ = round_trip(tmp_path, transformer(**options), example(), axes="xyz")
    text = exported.network.to_textproto()
    assert text.count("groups {") == 2
    assert text.count("groups_of: ") == 2
    assert "ORIGIN_RANGE" in text


def test_what_is_refused() -> None:
    module, cloud = transformer(), example()
    with pytest.raises(ExportError, match="needs a library whose axes are xyz"):
        from_torch(module, cloud, axes="zyx")
    with pytest.raises(ExportError, match="size is 5000; at most 4096"):
        from_torch(transformer(size=5000), cloud, axes="xyz")

    class Moved(nn.Module):
        def forward(self, x: Any) -> Any:
            return group_attention(x.features, x.features, x.features, x.indices + 1)

    with pytest.raises(ExportError, match="has other coordinates than its rows"):
        from_torch(Moved().eval(), cloud, axes="xyz")


def test_voxels_without_an_origin_are_refused() -> None:
    engine = load("MinkowskiEngine")

    class Attention(nn.Module):
        def forward(self, x: Any) -> Any:
            return group_attention(x.F, x.F, x.F, x.C, size=8)

    coordinates = networks.sites(6, (10, 9, 8), 1)
    cloud = engine.SparseTensor(networks.features(coordinates), coordinates=coordinates)
    with pytest.raises(ExportError, match="the voxels' origin is ZERO: give points with the origin MINIMUM or RANGE"):
        from_torch(Attention().eval(), cloud)
    features = tuple(PointFeature(f"f{i}", "1") for i in range(networks.CHANNELS))
    exported = from_torch(Attention().eval(), cloud, points=Points((1, 1, 1), features, origin="MINIMUM"))
    assert "ORIGIN_MINIMUM" in exported.network.to_textproto()


def test_pointcepts_own_code_is_refused_with_what_to_write() -> None:
    class Serialized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(networks.CHANNELS, 3 * networks.CHANNELS)
            self.down = load("spconv.pytorch").SparseConv3d(networks.CHANNELS, networks.CHANNELS, 2, stride=2)

        def forward(self, x: Any) -> Any:
            x = self.down(x)
            order = torch.argsort(x.indices[:, 3] * 4096 + x.indices[:, 2] * 64 - x.indices[:, 1])
            return self.qkv(x.features)[order]

    with pytest.raises(ExportError, match=r"attention within groups of sites is voxserve\.export\.group_attention"):
        from_torch(networks.randomize(Serialized()), example(1), axes="xyz")


@pytest.mark.parametrize("curve", ["z", "hilbert-trans"])
def test_the_function_by_its_definition(curve: str) -> None:
    sites = np.r_[[[0, 1, 2, 3]], [[2, *at] for at in np.random.default_rng(1).permutation(200).reshape(-1, 4)[:, :3]]]
    sites = np.unique(sites, axis=0)[::-1]
    q, k, v = (torch.randn((len(sites), 6), dtype=torch.float64, requires_grad=True) for _ in "qkv")
    made = group_attention(q, k, v, torch.from_numpy(sites.copy()), curve=curve, size=7, num_heads=3)
    expected = np.zeros((len(sites), 6))
    for sample in (0, 2):
        rows = np.flatnonzero(sites[:, 0] == sample)
        codes = groups.codes(sites[rows, 1:], curve.upper().replace("-TRANS", "_TRANSPOSED"), 8)
        parts = groups.cut(rows[np.argsort(codes)], 7, "BORROWS")
        expected += groups.attended(parts, q.detach().numpy(), k.detach().numpy(), v.detach().numpy(), 3, 2**-0.5)
    np.testing.assert_allclose(made.detach().numpy(), expected, atol=1e-12)
    made.sum().backward()
    assert torch.isfinite(q.grad).all()
    nothing = group_attention(q[:0], k[:0], v[:0], torch.zeros((0, 4), dtype=torch.int32))
    assert nothing.shape == (0, 6)
    with pytest.raises(ValueError, match="no curve 'peano'"):
        group_attention(q, k, v, sites, curve="peano")
    assert voxserve.export.group_attention is group_attention
