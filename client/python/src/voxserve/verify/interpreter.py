"""Computes the nodes of a model with NumPy, as the comments of model.proto define them. It shares no code with the
server, and is slow.

The input is a list of voxels with their features, one point per voxel; values are float64. It does not compute nodes
whose rows are points (if the points are not the voxels) or boxes. It lists those nodes, and the nodes that follow them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.verify import groups as group_maths
from voxserve.verify import rows as row_maths
from voxserve.verify import sites as site_maths

Values = npt.NDArray[Any]
Tensors = Mapping[str, Values]
_NAMES_OF_NODES = ("paired_with", "sites_of", "groups_of")  # fields that name a node which is not among the inputs


class NotComputedError(Exception):
    """The interpreter does not compute the node."""


@dataclass(frozen=True)
class Result:
    """The result of a node."""

    values: Values  # [N, C]; for images [samples, C, rows, columns]
    sites: site_maths.Sites | None = None  # [N, 1 + D] for rows on sites; None for rows of samples and for images
    shape: tuple[int, ...] = ()  # the number of cells on each axis, if the sites are limited to a spatial shape
    rows_per_sample: int = 1  # for rows of samples: the rows that each sample has, one sample after another
    unit: tuple[int, ...] = ()  # voxels in a step of the coordinates, on each axis; (): not a whole number of them


class Interpreter:
    """Computes the nodes of a model (a Model message) for one input. run() returns the results by the nodes' names;
    `skipped` has the reason why a node was not computed.
    """

    def __init__(
        self, model: Any, tensors: Tensors, coordinates: Values, features: Values, points: Values | None = None
    ) -> None:
        """tensors: the model's weights by name. coordinates: [N, 1 + D], the sample, then the voxel in the model's
        order of axes. features: [N, C], the features of the voxels. points: [N, D] metres, the point of each voxel,
        which only site_position reads; None: the features that have the axes' names, if there are any.
        """
        self._nodes = {node.name: node for node in model.nodes}
        self._dimension = model.dimension or 3
        self._tensors = tensors
        self._coordinates = np.asarray(coordinates, np.int64)
        self._features = np.asarray(features, np.float64)
        self._points = points
        self._num_samples = int(self._coordinates[:, 0].max()) + 1 if len(self._coordinates) else 0
        # Strided node -> its input and kernel map, which the inverse nodes paired with it use.
        self._strided: dict[str, tuple[Result, site_maths.KernelMap]] = {}
        self._groups_of: dict[str, list[group_maths.Group]] = {}
        self.results: dict[str, Result] = {}
        self.skipped: dict[str, str] = {}

    def run(self) -> dict[str, Result]:
        for name in self._nodes:
            self._result(name)
        return self.results

    def order(self) -> list[str]:
        """Returns the names of the computed nodes, in the order in which they were computed."""
        return list(self.results)

    def _result(self, name: str) -> Result | None:
        if name in self.results or name in self.skipped:
            return self.results.get(name)
        node = self._nodes[name]
        kind = node.WhichOneof("op")
        op = getattr(node, kind)
        needed = [*node.inputs, *(v for key in _NAMES_OF_NODES if (v := getattr(op, key, "")))]
        missing = [n for n in needed if self._result(n) is None]
        method: Callable[..., Result] | None = getattr(self, f"_{kind}", None)
        if missing or method is None:
            self.skipped[name] = f"follows {missing[0]}" if missing else f"{kind} is not computed here"
            return None
        try:
            self.results[name] = method(name, op, *(self.results[n] for n in node.inputs))
        except NotComputedError as error:
            self.skipped[name] = str(error)
        return self.results.get(name)

    def _tensor(self, name: str, part: str) -> Values:
        """Returns a tensor of the node, such as its weight, or of the node that weights_of names."""
        return self._tensors[f"{self._nodes[name].weights_of or name}.{part}"]

    def _voxelize(self, _name: str, op: Any, *_inputs: Result) -> Result:
        shape = tuple(op.spatial_shape)
        if not shape and op.range_min and op.range_max:
            cells = zip(op.range_min, op.range_max, op.voxel_size, strict=True)
            shape = tuple(round((high - low) / size) for low, high, size in cells)
        if self._features.shape[1] != len(op.features):
            raise ValueError(
                f"the model reads {len(op.features)} features, the reference has {self._features.shape[1]}"
            )
        return Result(self._features, self._coordinates, shape, unit=(1,) * self._dimension)

    def _site_position(self, _name: str, op: Any, x: Result) -> Result:
        points = self._points_in_metres()
        if op.from_minimum:
            for sample in range(self._num_samples):
                at = self._coordinates[:, 0] == sample
                points[at] -= points[at].min(axis=0)
        scale, shift = (self._axes(values, preset) for values, preset in ((op.scale, 1), (op.shift, 0)))
        return replace(x, values=points * np.asarray(scale) + np.asarray(shift))

    def _points_in_metres(self) -> Values:
        """Returns the point of each voxel, [N, D]. There is one point a voxel, so it is their mean too."""
        if self._points is not None:
            return np.array(self._points, np.float64)
        voxelize = next(node.voxelize for node in self._nodes.values() if node.WhichOneof("op") == "voxelize")
        names = list(voxelize.axes) or ["x", "y", "z", "t"][: self._dimension]
        columns = {feature.name: (i, feature) for i, feature in enumerate(voxelize.features)}
        if not set(names) <= set(columns):
            raise NotComputedError("the positions of the points are not among the features")
        found = [columns[name] for name in names]
        scales = [feature.scale if feature.HasField("scale") else 1.0 for _, feature in found]
        shifts = [feature.shift for _, feature in found]
        points: Values = (self._features[:, [i for i, _ in found]] - np.asarray(shifts)) / np.asarray(scales)
        return points

    # Convolutions and pools

    def _deltas(self, op: Any) -> list[tuple[int, ...]]:
        dilation = self._axes(op.dilation)
        offsets = tuple(getattr(op, "offsets", ()))
        if offsets:
            cells = [tuple(offsets[i : i + self._dimension]) for i in range(0, len(offsets), self._dimension)]
            return [tuple(d * c for d, c in zip(dilation, cell, strict=True)) for cell in cells]
        kernel = tuple(op.kernel_size)
        if getattr(op, "kernel_shape", 0):
            reach = [
                tuple(d if i == axis else 0 for i in range(self._dimension))
                for axis, k in enumerate(kernel)
                for d in range(-(k // 2), k // 2 + 1)
                if d
            ]
            cells = [(0,) * self._dimension, *reach]
            return [tuple(d * c for d, c in zip(dilation, cell, strict=True)) for cell in cells]
        makes_sites = enum_name(op, "kind") == "KIND_TRANSPOSED" and not getattr(op, "sites_of", "")
        is_bounded = enum_name(op, "rule") == "RULE_PADDED" or makes_sites
        padding = self._axes(op.padding, 0) if op.padding or is_bounded else None
        return site_maths.deltas(kernel, dilation, padding)

    def _axes(self, values: Any, default: int = 1) -> tuple[int, ...]:
        return tuple(values) or (default,) * self._dimension

    def _place(self, name: str, op: Any, x: Result) -> tuple[Result, site_maths.KernelMap]:
        """Returns the sites of a convolution's or pool's output, as a Result whose values do not count, and the kernel
        map.
        """
        sites, kind = _sites(x), enum_name(op, "kind")
        if kind == "KIND_INVERSE":
            fine, kernel_map = self._strided[op.paired_with]
            return fine, replace(kernel_map, is_onto_fine=True)
        stride, deltas = self._axes(op.stride), self._deltas(op)
        if kind == "KIND_SUBMANIFOLD":
            return x, site_maths.KernelMap(sites, sites, (1,) * self._dimension, deltas)
        if kind in ("KIND_TRANSPOSED", "KIND_GENERATIVE"):
            if getattr(op, "sites_of", ""):
                fine = self.results[op.sites_of]
            else:
                made = site_maths.reached(sites, stride, deltas)
                unit = tuple(u // s for u, s in zip(x.unit, stride, strict=False) if u % s == 0)
                shape: tuple[int, ...] = ()
                if kind == "KIND_TRANSPOSED":
                    shape = self._transposed_shape(op, x.shape, stride)
                    made = site_maths.within(made, shape)
                fine = Result(x.values, made, shape, unit=unit if len(unit) == self._dimension else ())
            return fine, site_maths.KernelMap(_sites(fine), sites, stride, deltas, is_onto_fine=True)
        coarse = self._strided_sites(op, x, sites, stride, deltas)
        kernel_map = site_maths.KernelMap(sites, _sites(coarse), stride, deltas)
        self._strided[name] = (x, kernel_map)
        return coarse, kernel_map

    def _transposed_shape(self, op: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
        padding, extra = self._axes(op.padding, 0), self._axes(getattr(op, "output_padding", ()), 0)
        sizes = zip(shape, stride, padding, self._axes(op.dilation), op.kernel_size, extra, strict=True)
        return tuple((n - 1) * s - 2 * p + d * (k - 1) + 1 + e for n, s, p, d, k, e in sizes)

    def _strided_sites(
        self, op: Any, x: Result, sites: site_maths.Sites, stride: tuple[int, ...], deltas: list[tuple[int, ...]]
    ) -> Result:
        if getattr(op, "sites_of", ""):
            return self.results[op.sites_of]
        unit = tuple(u * s for u, s in zip(x.unit, stride, strict=False))
        rule = enum_name(op, "rule")
        if rule == "RULE_FLOOR":
            shape = tuple((n - 1) // s + 1 for n, s in zip(x.shape, stride, strict=False))
            return Result(x.values, site_maths.floored(sites, stride), shape, unit=unit)
        if rule == "RULE_PADDED":
            if not x.shape:
                raise ValueError("RULE_PADDED needs a spatial shape")
            padding = self._axes(op.padding, 0)
            sizes = zip(x.shape, padding, self._axes(op.dilation), op.kernel_size, stride, strict=True)
            shape = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in sizes)
            reaching = site_maths.within(site_maths.reaching(sites, stride, deltas), shape)
            return Result(x.values, reaching, shape, unit=unit)
        raise NotComputedError(f"{rule} is not computed here")

    def _sparse_conv(self, name: str, op: Any, x: Result) -> Result:
        out, kernel_map = self._place(name, op, x)
        weight = self._tensor(name, "weight").astype(np.float64)
        groups = op.groups or 1
        y = np.zeros((len(kernel_map.targets), op.out_channels))
        for cell, (sources, targets) in zip(weight, kernel_map.pairs(), strict=True):
            y[targets] += row_maths.grouped_product(x.values[sources], cell, groups)
        if op.bias:
            y += self._tensor(name, "bias").astype(np.float64)
        return replace(out, values=y)

    def _pool(self, name: str, op: Any, x: Result) -> Result:
        out, kernel_map = self._place(name, op, x)
        sources, targets = (np.concatenate(rows) for rows in zip(*kernel_map.pairs(), strict=True))
        values = row_maths.reduced(x.values[sources], targets, len(kernel_map.targets), _reduce(op))
        return replace(out, values=values)

    # Rows

    def _batch_norm(self, name: str, op: Any, x: Result) -> Result:
        weight, bias, mean, variance = (
            self._tensor(name, part).astype(np.float64) for part in ("weight", "bias", "running_mean", "running_var")
        )
        scale = weight / np.sqrt(variance + (op.epsilon if op.HasField("epsilon") else 1e-5))
        shift = bias - mean * scale
        if x.sites is None and x.values.ndim == 4:
            return replace(x, values=x.values * scale[:, None, None] + shift[:, None, None])
        return replace(x, values=x.values * scale + shift)

    def _instance_norm(self, name: str, op: Any, x: Result) -> Result:
        return self._sample_norm(name, op, x, x.values.shape[1])

    def _group_norm(self, name: str, op: Any, x: Result) -> Result:
        return self._sample_norm(name, op, x, op.num_groups)

    def _sample_norm(self, name: str, op: Any, x: Result, num_groups: int) -> Result:
        epsilon = op.epsilon if op.HasField("epsilon") else 1e-5
        y = row_maths.sample_normalized(x.values, _sites(x)[:, 0], num_groups, epsilon)
        if op.affine:
            y = y * self._tensor(name, "weight") + self._tensor(name, "bias")
        return replace(x, values=y)

    def _linear(self, name: str, op: Any, x: Result) -> Result:
        y = x.values @ self._tensor(name, "weight").astype(np.float64).T
        return replace(x, values=y + self._tensor(name, "bias") if op.bias else y)

    def _activation(self, _name: str, op: Any, x: Result) -> Result:
        return replace(x, values=row_maths.activated(x.values, enum_name(op, "function"), op))

    def _multiply(self, _name: str, op: Any, a: Result, b: Result) -> Result:
        a, b = self._on_same_sites(op, a, b)
        return replace(a, values=a.values * b.values)

    def _elementwise(self, _name: str, op: Any, a: Result, b: Result) -> Result:
        function = enum_name(op, "function").removeprefix("FUNCTION_")
        if a.sites is not None:
            rows = site_maths.rows_of(_sites(b), _sites(a))
            if (rows < 0).any() or len(_sites(a)) != len(_sites(b)):
                raise ValueError("the inputs have other sites")
            b = replace(b, values=b.values[rows])
        return replace(a, values=row_maths.combined(a.values, b.values, function, op.epsilon))

    def _row_reduce(self, _name: str, op: Any, x: Result) -> Result:
        function = enum_name(op, "function").removeprefix("FUNCTION_")
        return replace(x, values=row_maths.of_each_row(x.values, function))

    def _site_coordinates(self, _name: str, op: Any, x: Result) -> Result:
        scale, shift = (self._axes(values, preset) for values, preset in ((op.scale, 1), (op.shift, 0)))
        at = _sites(x)[:, 1:]
        if op.window_shape:
            at = (at + np.asarray(op.window_shift or 0)) % np.asarray(op.window_shape)
        return replace(x, values=at * np.asarray(scale) + np.asarray(shift))

    def _softmax(self, _name: str, _op: Any, x: Result) -> Result:
        return replace(x, values=row_maths.softmax(x.values))

    def _layer_norm(self, name: str, op: Any, x: Result) -> Result:
        y = row_maths.layer_normalized(x.values, op.epsilon if op.HasField("epsilon") else 1e-5)
        if op.affine:
            weight, bias = (row_maths.of_channels(self._tensor(name, part), y) for part in ("weight", "bias"))
            y = y * weight + bias
        return replace(x, values=y)

    def _l2_norm(self, _name: str, op: Any, x: Result) -> Result:
        epsilon = op.epsilon if op.HasField("epsilon") else 1e-12
        return replace(x, values=row_maths.l2_normalized(x.values, epsilon))

    def _prelu(self, name: str, _op: Any, x: Result) -> Result:
        slopes = row_maths.of_channels(self._tensor(name, "weight"), x.values)
        return replace(x, values=np.where(x.values < 0, slopes * x.values, x.values))

    def _embedding(self, name: str, op: Any, x: Result) -> Result:
        if x.values.ndim != 2:
            raise NotComputedError("an embedding of cells is not computed here")
        return replace(x, values=row_maths.embedded(x.values[:, op.channel], self._tensor(name, "weight")))

    def _add(self, _name: str, op: Any, a: Result, b: Result) -> Result:
        a, b = self._on_same_sites(op, a, b)
        return replace(a, values=a.values + b.values)

    def _concat(self, _name: str, op: Any, *parts: Result) -> Result:
        parts = tuple(self._on_same_sites(op, *parts))
        return replace(parts[0], values=np.concatenate([p.values for p in parts], axis=1))

    def _on_same_sites(self, op: Any, *parts: Result) -> list[Result]:
        if parts[0].sites is None:
            return list(parts)
        sites, is_union = _sites(parts[0]), enum_name(op, "sites") == "SITES_UNION"
        if is_union:
            sites = site_maths.unique(np.concatenate([_sites(p) for p in parts]))
        aligned = []
        for part in parts:
            rows = site_maths.rows_of(_sites(part), sites)
            if not is_union and ((rows < 0).any() or len(_sites(part)) != len(sites)):
                raise ValueError("the inputs have other sites")
            values = np.where(rows[:, None] >= 0, part.values[rows], 0)
            aligned.append(replace(part, values=values, sites=sites))
        return aligned

    def _argmax(self, _name: str, _op: Any, x: Result) -> Result:
        return replace(x, values=x.values.argmax(axis=1)[:, None])

    def _voxel_to_point(self, _name: str, _op: Any, x: Result, voxels: Result) -> Result:
        rows = site_maths.rows_of(_sites(x), _sites(voxels))
        return replace(voxels, values=x.values[rows])

    def _global_pool(self, _name: str, op: Any, x: Result) -> Result:
        reduce, samples = _reduce(op), _sites(x)[:, 0]
        if reduce == "GENERALISED_MEAN":
            exponent = op.exponent if op.HasField("exponent") else 3.0
            epsilon = op.epsilon if op.HasField("epsilon") else 1e-6
            return Result(row_maths.generalised_means(x.values, samples, self._num_samples, exponent, epsilon))
        return Result(row_maths.reduced(x.values, samples, self._num_samples, reduce))

    def _broadcast(self, _name: str, op: Any, x: Result, samples: Result) -> Result:
        rows = samples.values[_sites(x)[:, 0]]
        function = enum_name(op, "function")
        if function == "FUNCTION_CONCAT":
            return replace(x, values=np.concatenate([x.values, rows], axis=1))
        return replace(x, values=x.values + rows if function == "FUNCTION_ADD" else x.values * rows)

    def _sample_rows(self, name: str, op: Any) -> Result:
        rows = self._tensor(name, "weight").astype(np.float64)
        return Result(np.tile(rows, (self._num_samples, 1)), rows_per_sample=op.num_rows)

    def _attention(self, _name: str, op: Any, queries: Result, keys: Result, values: Result) -> Result:
        if 4 in (queries.values.ndim, keys.values.ndim):
            raise NotComputedError("attention of images is not computed here")
        heads = op.num_heads or 1
        scale = op.scale if op.HasField("scale") else (keys.values.shape[1] // heads) ** -0.5
        if op.groups_of:
            # Rows of one level may stand in another order after operators that make their own sites.
            keys, values = (self._on_sites_of(self.results[op.groups_of], part) for part in (keys, values))
            ordered = self._on_sites_of(self.results[op.groups_of], queries)
            groups = self._groups_of[op.groups_of]
            y = group_maths.attended(groups, ordered.values, keys.values, values.values, heads, scale)
            return replace(ordered, values=y)
        y = np.zeros((len(queries.values), values.values.shape[1]))
        for sample in range(self._num_samples):
            at = _rows_of_sample(queries, sample)
            of_keys, of_values = (r.values[_rows_of_sample(r, sample)] for r in (keys, values))
            y[at] = row_maths.attended(queries.values[at], of_keys, of_values, heads, scale)
        return replace(queries, values=y)

    def _on_sites_of(self, place: Result, x: Result) -> Result:
        """Returns x with its rows in the order of another result's sites, which are the same."""
        if np.array_equal(_sites(place), _sites(x)):
            return x
        rows = site_maths.rows_of(_sites(x), _sites(place))
        if (rows < 0).any() or len(_sites(x)) != len(_sites(place)):
            raise ValueError("the groups are of other sites")
        return replace(x, values=x.values[rows], sites=_sites(place))

    def _groups(self, name: str, op: Any, x: Result) -> Result:
        """Returns a result without channels, on the sites that the groups have."""
        if self._dimension != 3 or len(set(x.unit)) != 1:
            raise ValueError("groups need sites of 3 axes that are a whole number of voxels, the same on each")
        if op.HasField("windows"):
            return self._window_groups(name, op, x)
        sites, curve, size = _sites(x), enum_name(op, "curve").removeprefix("CURVE_"), op.size
        levels = x.unit[0].bit_length() - 1
        made = []
        for sample in range(self._num_samples):
            (rows,) = np.nonzero(sites[:, 0] == sample)
            depth = group_maths.depth_of(sites[rows, 1:])
            if enum_name(op, "depth") == "DEPTH_FIRST_LEVEL":
                if x.unit[0] != 1 << levels:
                    raise ValueError(f"the curve of the voxels has no level of the unit {x.unit[0]}")
                voxels = self._coordinates[self._coordinates[:, 0] == sample, 1:]
                depth = max(group_maths.depth_of(voxels) - levels, 0)
            order = rows[np.argsort(group_maths.codes(sites[rows, 1:], curve, depth), kind="stable")]
            made += group_maths.cut(order, size, enum_name(op, "tail").removeprefix("TAIL_"))
        self._groups_of[name] = made
        return replace(x, values=np.zeros((len(sites), 0)))

    def _window_groups(self, name: str, op: Any, x: Result) -> Result:
        sites, tail = _sites(x), enum_name(op, "tail").removeprefix("TAIL_")
        of_samples = [np.flatnonzero(sites[:, 0] == sample) for sample in range(self._num_samples)]
        windows = group_maths.Windows.of(op.windows)
        self._groups_of[name] = [
            group for rows in of_samples for group in windows.groups(rows, sites[rows, 1:], op.size, tail)
        ]
        return replace(x, values=np.zeros((len(sites), 0)))

    def _rotary(self, _name: str, op: Any, x: Result, *positions: Result) -> Result:
        at = self._on_sites_of(x, positions[0]).values if positions else _sites(x)[:, 1:]
        return replace(x, values=group_maths.rotated(x.values, at, op.num_heads or 1, op.base))

    def _crop(self, _name: str, op: Any, x: Result) -> Result:
        at = _sites(x)[:, 1:]
        keep = np.ones(len(at), bool)
        if op.lower_bound:
            keep &= (at >= np.asarray(op.lower_bound)).all(axis=1)
        if op.upper_bound:
            keep &= (at < np.asarray(op.upper_bound)).all(axis=1)
        return replace(x, values=x.values[keep], sites=_sites(x)[keep])

    def _prune(self, _name: str, op: Any, x: Result, scores: Result) -> Result:
        rows = site_maths.rows_of(_sites(scores), _sites(x))
        keep = scores.values[rows, 0] > op.threshold
        return replace(x, values=x.values[keep], sites=_sites(x)[keep])

    # Images

    def _to_bev(self, _name: str, _op: Any, x: Result) -> Result:
        if len(x.shape) not in (2, 3):
            raise ValueError("to_bev needs a spatial shape of 2 or 3 axes")
        columns, height, depth = (*x.shape, 1)[:3]
        image = np.zeros((self._num_samples, x.values.shape[1], depth, height, columns))
        sample, at_x, at_y, at_z = (*_sites(x).T, 0)[:4]
        image[sample, :, at_z, at_y, at_x] = x.values
        return Result(image.reshape(self._num_samples, -1, height, columns))

    def _to_dense(self, _name: str, _op: Any, x: Result) -> Result:
        if len(x.shape) != 2:
            raise NotComputedError("cells of other than 2 axes are not computed here")
        image = np.zeros((self._num_samples, x.values.shape[1], *x.shape))
        sample, row, column = _sites(x).T
        image[sample, :, row, column] = x.values
        return Result(image)

    def _conv2d(self, name: str, op: Any, x: Result) -> Result:
        weight = self._tensor(name, "weight").astype(np.float64)
        y = row_maths.conv2d(
            x.values, weight, _two(op.stride, 1), _two(op.padding, 0), _two(op.dilation, 1), op.groups or 1
        )
        return Result(y + self._tensor(name, "bias")[:, None, None] if op.bias else y)

    def _max_pool2d(self, _name: str, op: Any, x: Result) -> Result:
        kernel = _two(op.kernel_size, 1)
        stride = _two(op.stride, 1) if op.stride else kernel
        return Result(row_maths.max_pool2d(x.values, kernel, stride, _two(op.padding, 0)))

    def _conv_transpose2d(self, name: str, op: Any, x: Result) -> Result:
        weight = self._tensor(name, "weight").astype(np.float64)
        y = row_maths.conv_transpose2d(
            x.values, weight, _two(op.stride, 1), _two(op.padding, 0), _two(op.output_padding, 0)
        )
        return Result(y + self._tensor(name, "bias")[:, None, None] if op.bias else y)


def enum_name(message: Any, field: str) -> str:
    """Returns the name of the value of a message's enum field."""
    name: str = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number[getattr(message, field)].name
    return name


def _sites(result: Result) -> site_maths.Sites:
    if result.sites is None:
        raise ValueError("rows of sites are needed")
    return result.sites


def _rows_of_sample(result: Result, sample: int) -> Any:
    """Returns what indexes the rows of a sample: a mask or a slice."""
    if result.sites is not None:
        return result.sites[:, 0] == sample
    return slice(sample * result.rows_per_sample, (sample + 1) * result.rows_per_sample)


def _reduce(op: Any) -> str:
    return enum_name(op, "reduce").removeprefix("REDUCE_")


def _two(values: Any, default: int) -> tuple[int, int]:
    listed = tuple(values) or (default,)
    return listed[0], listed[-1]
