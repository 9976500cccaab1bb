"""Adds nodes for sparse convolutions and pools, of every kind in model.proto.

Weights are [K, in_channels / groups, out_channels], where K counts the kernel's cells with the last axis fastest;
kernel_order converts the weights of other libraries. A bias is [out_channels]. Sizes, strides, paddings and dilations
have one value per axis. Coordinates of sites are in steps of their own stride.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from voxserve.export.node_list import NodeList
from voxserve.export.textproto import quote, sizes

_Values = npt.NDArray[Any]
_Sizes = Sequence[int]  # one value per axis


class ConvNodes(NodeList):
    """The methods of Network for sparse convolutions and pools. reduce, for pools, is MAX, AVERAGE or SUM."""

    def submanifold(
        self,
        name: str,
        source: str,
        weight: _Values,
        kernel_size: _Sizes,
        bias: _Values | None = None,
        *,
        dilation: _Sizes = (),
        groups: int = 1,
        is_cross: bool = False,
    ) -> str:
        """Adds a submanifold convolution: its output sites are its input sites.

        is_cross: the kernel has only the centre and the cells on the axes through it. `weight` has them in the order of
            KERNEL_SHAPE_CROSS (model.proto).
        """
        parameters = f"KIND_SUBMANIFOLD kernel_size: {sizes(kernel_size)}{_shape(is_cross)}{_options(dilation, groups)}"
        return self._conv(name, source, weight, parameters, bias)

    def submanifold_offsets(
        self,
        name: str,
        source: str,
        weight: _Values,
        offsets: Sequence[_Sizes],
        bias: _Values | None = None,
        *,
        dilation: _Sizes = (),
        groups: int = 1,
    ) -> str:
        """Adds a submanifold convolution whose kernel is a list of offsets, with one value per axis each, in the order
        of `weight`.
        """
        values = [value for offset in offsets for value in offset]
        parameters = f"KIND_SUBMANIFOLD offsets: {sizes(values)}{_options(dilation, groups)}"
        return self._conv(name, source, weight, parameters, bias)

    def strided_floor(
        self,
        name: str,
        source: str,
        weight: _Values,
        kernel_size: _Sizes,
        stride: _Sizes,
        bias: _Values | None = None,
        *,
        dilation: _Sizes = (),
        groups: int = 1,
        is_cross: bool = False,
    ) -> str:
        """Adds a strided convolution whose output sites are floor(coordinates / stride), as in MinkowskiEngine, and in
        TorchSparse if kernel_size equals stride. is_cross: as for submanifold().
        """
        parameters = (
            f"KIND_STRIDED rule: RULE_FLOOR{_window(kernel_size, stride)}{_shape(is_cross)}{_options(dilation, groups)}"
        )
        return self._conv(name, source, weight, parameters, bias)

    def strided_expand(
        self,
        name: str,
        source: str,
        weight: _Values,
        kernel_size: _Sizes,
        stride: _Sizes,
        bias: _Values | None = None,
        *,
        lower: _Sizes = (),
        upper: _Sizes = (),
        dilation: _Sizes = (),
        groups: int = 1,
    ) -> str:
        """Adds a strided convolution with the output sites of TorchSparse's MLSys 2022 version: all sites that an input
        site reaches, within lower <= stride * site <= upper. The bounds are in the coordinates of the input sites, one
        value per axis. lower: empty for the smallest coordinates of the sample's input sites; upper: empty for none.
        """
        bounds = _list("lower_bound", lower) + _list("upper_bound", upper)
        parameters = f"KIND_STRIDED rule: RULE_EXPAND{_window(kernel_size, stride)}{bounds}{_options(dilation, groups)}"
        return self._conv(name, source, weight, parameters, bias)

    def strided_padded(
        self,
        name: str,
        source: str,
        weight: _Values,
        kernel_size: _Sizes,
        stride: _Sizes,
        padding: _Sizes,
        bias: _Values | None = None,
        *,
        dilation: _Sizes = (),
        groups: int = 1,
    ) -> str:
        """Adds a strided convolution with the output sites of spconv's SparseConv: all sites within the output's
        spatial shape that an input site reaches.
        """
        window = f"{_window(kernel_size, stride)} padding: {sizes(padding)}"
        parameters = f"KIND_STRIDED rule: RULE_PADDED{window}{_options(dilation, groups)}"
        return self._conv(name, source, weight, parameters, bias)

    def strided_onto(
        self,
        name: str,
        source: str,
        weight: _Values,
        kernel_size: _Sizes,
        stride: _Sizes,
        sites_of: str,
        bias: _Values | None = None,
        *,
        padding: _Sizes = (),
        dilation: _Sizes = (),
        groups: int = 1,
        is_cross: bool = False,
    ) -> str:
        """Adds a strided convolution whose output sites are those of the node sites_of. Their stride is `stride` times
        that of the input. is_cross: as for submanifold().
        """
        window = _window(kernel_size, stride) + _list("padding", padding)
        options = _shape(is_cross) + _options(dilation, groups)
        parameters = f"KIND_STRIDED{window} sites_of: {quote(sites_of)}{options}"
        return self._conv(name, source, weight, parameters, bias)

    def inverse(
        self, name: str, source: str, weight: _Values, paired_with: str, bias: _Values | None = None, *, groups: int = 1
    ) -> str:
        """Adds an inverse convolution: its output sites are the input sites of the strided node paired_with, and its
        kernel size and stride are that node's.
        """
        parameters = f"KIND_INVERSE paired_with: {quote(paired_with)}{_options((), groups)}"
        return self._conv(name, source, weight, parameters, bias)

    def transposed(
        self,
        name: str,
        source: str,
        weight: _Values,
        kernel_size: _Sizes,
        stride: _Sizes,
        padding: _Sizes = (),
        bias: _Values | None = None,
        *,
        output_padding: _Sizes = (),
        dilation: _Sizes = (),
        groups: int = 1,
    ) -> str:
        """Adds a transposed convolution with the output sites of spconv's SparseConvTranspose: all sites within the
        output's spatial shape that an input site reaches.
        """
        paddings = _list("padding", padding) + _list("output_padding", output_padding)
        parameters = f"KIND_TRANSPOSED{_window(kernel_size, stride)}{paddings}{_options(dilation, groups)}"
        return self._conv(name, source, weight, parameters, bias)

    def transposed_onto(
        self,
        name: str,
        source: str,
        weight: _Values,
        kernel_size: _Sizes,
        stride: _Sizes,
        sites_of: str,
        bias: _Values | None = None,
        *,
        padding: _Sizes = (),
        dilation: _Sizes = (),
        groups: int = 1,
        is_cross: bool = False,
    ) -> str:
        """Adds a transposed convolution whose output sites are those of the node sites_of, as with MinkowskiEngine's
        argument `coordinates`. The input's stride is `stride` times theirs. is_cross: as for submanifold().
        """
        window = _window(kernel_size, stride) + _list("padding", padding)
        options = _shape(is_cross) + _options(dilation, groups)
        parameters = f"KIND_TRANSPOSED{window} sites_of: {quote(sites_of)}{options}"
        return self._conv(name, source, weight, parameters, bias)

    def generative(
        self,
        name: str,
        source: str,
        weight: _Values,
        kernel_size: _Sizes,
        stride: _Sizes,
        bias: _Values | None = None,
        *,
        dilation: _Sizes = (),
        groups: int = 1,
        is_cross: bool = False,
    ) -> str:
        """Adds MinkowskiEngine's generative transposed convolution: its output sites are all sites that an input site
        reaches. is_cross: as for submanifold().
        """
        parameters = f"KIND_GENERATIVE{_window(kernel_size, stride)}{_shape(is_cross)}{_options(dilation, groups)}"
        return self._conv(name, source, weight, parameters, bias)

    def pool_submanifold(
        self, name: str, source: str, reduce: str, kernel_size: _Sizes, *, dilation: _Sizes = ()
    ) -> str:
        """Adds a pool whose output sites are its input sites. Each reduces the input sites in its kernel."""
        return self._pool(name, source, reduce, f"KIND_SUBMANIFOLD kernel_size: {sizes(kernel_size)}", dilation)

    def pool_strided_floor(
        self, name: str, source: str, reduce: str, kernel_size: _Sizes, stride: _Sizes, *, dilation: _Sizes = ()
    ) -> str:
        """Adds a pool whose output sites are floor(coordinates / stride), as in MinkowskiEngine."""
        sites = f"KIND_STRIDED rule: RULE_FLOOR{_window(kernel_size, stride)}"
        return self._pool(name, source, reduce, sites, dilation)

    def pool_strided_padded(
        self,
        name: str,
        source: str,
        reduce: str,
        kernel_size: _Sizes,
        stride: _Sizes,
        padding: _Sizes,
        *,
        dilation: _Sizes = (),
    ) -> str:
        """Adds a pool with the output sites of spconv's pools (as for strided_padded())."""
        sites = f"KIND_STRIDED rule: RULE_PADDED{_window(kernel_size, stride)} padding: {sizes(padding)}"
        return self._pool(name, source, reduce, sites, dilation)

    def unpool(self, name: str, source: str, paired_with: str, reduce: str = "AVERAGE") -> str:
        """Adds an unpool: its output sites are the input sites of the strided node paired_with. Each reduces the rows
        of the sites that it contributed to. SUM is MinkowskiEngine's MinkowskiPoolingTranspose, whatever its text says.
        """
        return self._pool(name, source, reduce, f"KIND_INVERSE paired_with: {quote(paired_with)}")

    def pool_transposed(
        self,
        name: str,
        source: str,
        reduce: str,
        kernel_size: _Sizes,
        stride: _Sizes,
        padding: _Sizes = (),
        *,
        dilation: _Sizes = (),
    ) -> str:
        """Adds a pool with the output sites of transposed(). Each reduces the rows of the input sites that reach it.
        A kernel of one cell without padding moves the site c to stride * c.
        """
        sites = f"KIND_TRANSPOSED{_window(kernel_size, stride)}{_list('padding', padding)}"
        return self._pool(name, source, reduce, sites, dilation)

    def _conv(self, name: str, source: str, weight: _Values, rest: str, bias: _Values | None) -> str:
        self.tensors[f"{name}.weight"] = weight
        flag = self._bias(name, bias)
        return self._node(name, [source], f"sparse_conv {{ kind: {rest} out_channels: {weight.shape[2]}{flag} }}")

    def _pool(self, name: str, source: str, reduce: str, sites: str, dilation: _Sizes = ()) -> str:
        return self._node(
            name, [source], f"pool {{ reduce: REDUCE_{reduce} kind: {sites}{_list('dilation', dilation)} }}"
        )


def _window(kernel_size: _Sizes, stride: _Sizes) -> str:
    return f" kernel_size: {sizes(kernel_size)} stride: {sizes(stride)}"


def _shape(is_cross: bool) -> str:
    return " kernel_shape: KERNEL_SHAPE_CROSS" if is_cross else ""


def _list(key: str, values: _Sizes) -> str:
    return f" {key}: {sizes(values)}" if values else ""


def _options(dilation: _Sizes, groups: int) -> str:
    is_dilated = any(value != 1 for value in dilation)
    return (_list("dilation", dilation) if is_dilated else "") + (f" groups: {groups}" if groups != 1 else "")
