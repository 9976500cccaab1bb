"""Compares the exporter's table of the server's limits with the server's code, and tests that a trace refuses them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from voxserve import wire
from voxserve.export import ExportError, from_torch, limits
from voxserve.export.limits import LIMITS

ROOT = Path(__file__).resolve().parents[3]
FILES = {
    "kMaxDimension": "kernels/coordinates/conv_geometry.h",
    "kMaxPointColumns": "kernels/points/decode_points.h",
    "kMaxChannels": "engine/model/graph.h",
    "kMaxClasses": "engine/model/graph.h",
    "kMaxTensors": "engine/tensor/output_tensor.h",
    "kMaxKernelOffsets": "engine/model/checks/sparse_conv_parameters.cc",
    "kMaxSpreadWeights": "engine/model/sparse_conv_weight.h",
    "kMaxListedCells": "kernels/coordinates/conv_geometry.h",
    "kCoordinateMargin": "kernels/coordinates/coordinate_key.h",
    "kMaxConv2dKernelSize": "kernels/image/conv2d.h",
    "kMaxPool2dKernelSize": "kernels/image/max_pool2d.h",
    "kMost": "engine/model/checks/grid_checks.cc",
    "kMaxHeads": "engine/model/checks/attention_checks.cc",
    "kMaxAttentionHeadChannels": "kernels/rows/attention/attention.h",
    "kMaxSampleRows": "engine/model/checks/attention_checks.cc",
    "kMaxEmbeddingRows": "kernels/rows/embedding.h",
    "kMaxGroupSize": "kernels/rows/attention/group_attention.h",
}


def test_every_limit_is_the_servers() -> None:
    assert set(FILES) == set(LIMITS)
    for name, file in FILES.items():
        found = re.findall(rf"constexpr \w+ {name} = ([^;]+);", (ROOT / file).read_text(encoding="utf-8"))
        assert len(found) == 1, name
        value = re.sub(r"int64_t\{(\d+)\}", r"\1", found[0])
        assert eval(value, {"__builtins__": {}}) == LIMITS[name], name


def test_features_are_the_columns_that_are_no_axes() -> None:
    text = (ROOT / "engine/model/checks/voxelize_checks.cc").read_text(encoding="utf-8")
    assert "kMaxFeatures = kernels::kMaxPointColumns - kernels::kMaxDimension;" in text
    assert limits.MAX_FEATURES == 36


@pytest.mark.parametrize(
    ("op", "problem"),
    [
        ("sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [17, 17, 15] out_channels: 4 }", "has 4335 cells; at most"),
        ("sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [16, 16, 16] out_channels: 4 }", ""),
        ("sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [1, 1, 129] out_channels: 4 }", "kernel_size is 129"),
        ("sparse_conv { kernel_size: [3, 3, 3] stride: [1, 200, 1] out_channels: 4 }", "stride is 200; at most 128"),
        ("sparse_conv { kernel_size: [5, 5, 5] dilation: [65, 1, 1] out_channels: 4 }", "reaches 130 sites"),
        ("sparse_conv { kernel_size: [4, 1, 1] dilation: [43, 1, 1] out_channels: 4 }", "reaches 129 sites"),
        ("sparse_conv { kernel_size: [4, 1, 1] dilation: [43, 1, 1] padding: [9, 0, 0] out_channels: 4 }", ""),
        ("sparse_conv { kernel_size: [121, 121, 121] kernel_shape: KERNEL_SHAPE_CROSS }", "has 361 cells; at most 343"),
        ("sparse_conv { offsets: [0, 0, 0, 0, 0, 90] dilation: [1, 1, 2] }", "reaches 180 sites"),
        ("sparse_conv { offsets: [0, 0, -64, 0, 0, 64] }", "span 129 sites"),
        ("sparse_conv { kind: KIND_INVERSE paired_with: 'a' out_channels: 65537 }", "out_channels is 65537"),
        ("sparse_conv { kernel_size: [3, 3, 3] groups: 2 }", ""),
        ("sparse_conv { kernel_size: [3, 3, 3] groups: 8 }", "groups spread, is 536870944; at most 268435456"),
        ("pool { kernel_size: [17, 17, 17] }", "has 4913 cells"),
        ("linear { out_channels: 70000 }", "out_channels is 70000; at most 65536"),
        ("conv2d { out_channels: 4 kernel_size: [9] }", "kernel_size is 9; at most 7"),
        ("conv2d { out_channels: 4 kernel_size: [3] dilation: [129] }", "dilation is 129"),
        ("max_pool2d { kernel_size: [15, 16] }", "kernel_size is 16; at most 15"),
        ("attention { num_heads: 65 }", "num_heads is 65"),
        ("groups { size: 4097 }", "size is 4097; at most 4096"),
        ("sample_rows { num_rows: 5000 channels: 4 }", "num_rows is 5000; at most 4096"),
        ("embedding { }", "the table's number of rows is 16777217"),
    ],
)
def test_what_the_server_would_refuse(op: str, problem: str) -> None:
    node = text_format.Parse(f"nodes {{ name: 'n' {op} }}", wire.Model()).nodes[0]
    found = list(limits.problems(node, {"weight": (16777217, 4)}, 3))
    assert len(found) == bool(problem)
    assert problem in "".join(found)


@pytest.mark.usefixtures("stand_in_libraries")
def test_a_trace_refuses_before_it_computes_the_example(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import traced_networks as networks

    spconv, engine = networks.load("spconv.pytorch"), networks.load("MinkowskiEngine")
    rows_seen: list[int] = []

    class Counting(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            rows_seen.append(int(x.shape[0]))
            return x

    example = networks.spconv_example(spconv)
    layers = (Counting(), spconv.SubMConv3d(4, 8, 17, bias=False))
    with pytest.raises(ExportError, match=r"cannot run '1': its kernel has 4913 cells; at most 4096 are possible"):
        from_torch(spconv.SparseSequential(*layers).eval(), example, axes="zyx")
    assert rows_seen  # of a smaller cloud alone
    assert max(rows_seen) < len(example.features) / 2
    coordinates = torch.zeros((3, 6), dtype=torch.int32)
    coordinates[:, 1] = torch.arange(3)
    five = engine.SparseTensor(torch.ones(3, 2), coordinates)
    layer = engine.MinkowskiConvolution(2, 4, kernel_size=3, dimension=5)
    with pytest.raises(ExportError, match="the sparse tensor has 5 axes; the server has at most 4"):
        from_torch(torch.nn.Sequential(layer).eval(), five)
    flat = spconv.SparseSequential(spconv.SubMConv3d(4, 60000, 1, bias=False), spconv.ToDense())

    class FromAbove(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.flat = flat

        def forward(self, x: Any) -> Any:
            y = self.flat(x)
            return y.view(y.shape[0], -1, y.shape[3], y.shape[4])

    few = spconv.SparseConvTensor(torch.ones(3, 4), coordinates[:, :4].contiguous(), [4, 1, 1], 1)
    with pytest.raises(ExportError, match="an image of 60000 channels at 4 heights; at most 65536 channels"):
        from_torch(FromAbove().eval(), few, axes="zyx")
    wide = spconv.SparseConvTensor(torch.ones(3, 37), coordinates[:, :4].contiguous(), [9, 9, 9], 1)
    with pytest.raises(ExportError, match="the example has 37 features; the server has at most 36"):
        from_torch(spconv.SparseSequential(spconv.SubMConv3d(37, 4, 3)).eval(), wide, axes="zyx")
