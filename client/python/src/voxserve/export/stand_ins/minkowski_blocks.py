"""Stand-in for MinkowskiEngine.modules.resnet_block: residual blocks of two or three convolutions."""

from __future__ import annotations

from typing import Any

from torch import nn

from voxserve.export.stand_ins import minkowski, minkowski_norms


class _Residual(nn.Module):
    expansion = 1

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        dilation: int = 1,
        downsample: Any = None,
        bn_momentum: float = 0.1,
        dimension: int = -1,
    ) -> None:
        super().__init__()
        kernels = (3, 3) if self.expansion == 1 else (1, 3, 1)
        width = inplanes
        for index, kernel in enumerate(kernels, start=1):
            out = planes * (self.expansion if index == len(kernels) else 1)
            is_strided = kernel == 3 and index == len(kernels) - 1
            self.add_module(
                f"conv{index}",
                minkowski.MinkowskiConvolution(
                    width,
                    out,
                    kernel_size=kernel,
                    stride=stride if is_strided else 1,
                    dilation=dilation if kernel == 3 else 1,
                    dimension=dimension,
                ),
            )
            self.add_module(f"norm{index}", minkowski_norms.MinkowskiBatchNorm(out, momentum=bn_momentum))
            width = out
        self.num_layers = len(kernels)
        self.relu = minkowski.MinkowskiReLU(inplace=True)  # type: ignore[attr-defined]
        self.downsample = downsample

    def forward(self, x: Any) -> Any:
        y = x
        for index in range(1, self.num_layers + 1):
            y = getattr(self, f"norm{index}")(getattr(self, f"conv{index}")(y))
            y = self.relu(y) if index < self.num_layers else y
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class BasicBlock(_Residual):
    """A residual block of conv1, norm1, conv2 and norm2."""


class Bottleneck(_Residual):
    """A residual block of conv1 to conv3 and norm1 to norm3."""

    expansion = 4
