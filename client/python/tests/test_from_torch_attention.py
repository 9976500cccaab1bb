"""Traces attention within a cloud, in the forms that networks use, and compares it with the modules' own results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import serving

import voxserve
from voxserve.export import ExportError, from_torch
from voxserve.verify.__main__ import main as verify

torch = pytest.importorskip("torch", reason="torch is not installed")
import traced_networks as networks  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from traced_networks import load, round_trip  # noqa: E402

pytestmark = pytest.mark.usefixtures("stand_in_libraries")
WIDTH = 8


def example(samples: int = 1) -> Any:
    coordinates = networks.sites(6, (4, 5, 6), samples)
    return load("MinkowskiEngine").SparseTensor(networks.features(coordinates), coordinates=coordinates)


class Sparse(nn.Module):
    """A convolution, then attention among its rows, as a sparse tensor. Subclasses define the attention, mixed()."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = load("MinkowskiEngine").MinkowskiConvolution(4, WIDTH, kernel_size=3, dimension=3)

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        return load("MinkowskiEngine").SparseTensor(
            self.mixed(x), coordinate_map_key=x.coordinate_map_key, coordinate_manager=x.coordinate_manager
        )


class ByHand(Sparse):
    """Loops over the samples, and computes attention with matmul and softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, n, bias=False) for n in (4, 4, WIDTH))
        self.softmax = nn.Softmax(dim=-1)

    def mixed(self, x: Any) -> Any:
        q, k, v = self.q(x.F), self.k(x.F), self.v(x.F)
        begin, parts = 0, []
        for sample in range(int(x.C[:, 0].max()) + 1):
            end = begin + torch.sum(x.C[:, 0] == sample)
            weights = self.softmax(torch.matmul(q[begin:end, :], k[begin:end, :].T) / math.sqrt(4))
            parts.append(torch.matmul(weights, v[x.C[:, 0] == sample]))
            begin = end
        return torch.cat(parts, dim=0) + x.F


class Tokens(Sparse):
    """Sums the rows to three tokens, which attend to each other, and to which the rows attend; all of it transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(WIDTH, 3, bias=False)
        self.values, self.keys, self.queries = (nn.Conv1d(WIDTH, WIDTH, 1, bias=i == 0) for i in range(3))
        self.norm = nn.BatchNorm1d(WIDTH)

    def mixed(self, x: Any) -> Any:
        weights = torch.softmax(self.key(x.F).T, dim=-1)  # [3, N]
        tokens = torch.stack([(weights @ x.F).t()])  # [1, C, 3]
        values, keys, queries = self.values(tokens), self.keys(tokens), self.queries(tokens)
        weights = torch.matmul(keys.transpose(1, 2), queries).softmax(dim=-1)
        tokens = tokens + F.relu(self.norm(torch.bmm(weights, values.transpose(1, 2)).permute(0, 2, 1)), inplace=True)
        return F.softmax(x.F @ tokens[0], dim=-1) @ tokens[0].T


class OffsetAttention(Sparse):
    """Attention with rows as columns [1, C, N], so that the result is values times transposed weights."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Conv1d(WIDTH, n, 1) for n in (4, 4, WIDTH))

    def mixed(self, x: Any) -> Any:
        columns = x.F.transpose(0, 1).unsqueeze(0)
        scores = torch.bmm(self.q(columns).permute(0, 2, 1), self.k(columns))
        weights = torch.softmax(scores * 0.5, dim=-1)
        mixed = torch.bmm(self.v(columns), weights.transpose(-1, -2))
        return mixed.squeeze(0).transpose(0, 1).contiguous()


class Heads(Sparse):
    """Attention with two heads. One linear layer gives queries, keys and values, which are split as `form` says."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.qkv, self.out, self.form = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), form

    def mixed(self, x: Any) -> Any:
        n, heads = len(x.F), 2
        if self.form == "unbind":
            q, k, v = self.qkv(x.F[None]).reshape(1, n, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        elif self.form == "chunk":
            q, k, v = (t.view(n, heads, -1).transpose(0, 1) for t in self.qkv(x.F).chunk(3, dim=-1))
        else:
            qkv = self.qkv(x.F).unflatten(1, (3, heads, WIDTH // heads))
            q, k, v = (qkv[:, i].permute(1, 0, 2) for i in range(3))
        if self.form == "unbind":
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = (0.3 * (q @ k.transpose(-2, -1))).softmax(-1) @ v
        y = (
            y.transpose(-2, -3).reshape(*y.shape[:-3], n, WIDTH)
            if self.form != "index"
            else y.permute(1, 0, 2).flatten(1)
        )
        return self.out(y).reshape(n, WIDTH)


class OfTorch(Sparse):
    """Attention by torch's own layers."""

    def __init__(self, make: Any, is_batched: bool = True) -> None:
        super().__init__()
        self.layer, self.is_batched = make(), is_batched

    def mixed(self, x: Any) -> Any:
        rows = x.F.unsqueeze(0) if self.is_batched else x.F
        y = self.layer(rows, rows, rows, need_weights=False)[0] if self._is_plain() else self.layer(rows)
        return y.squeeze(0) if self.is_batched else y

    def _is_plain(self) -> bool:
        return isinstance(self.layer, nn.MultiheadAttention)


class Decomposed(nn.Module):
    """Attention among each sample's rows on a coarse level, by MinkowskiEngine's decomposed_features."""

    def __init__(self, stride: int = 2) -> None:
        super().__init__()
        engine = load("MinkowskiEngine")
        self.conv = engine.MinkowskiConvolution(4, WIDTH, kernel_size=stride, stride=stride, dimension=3)

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        rows = torch.cat([F.scaled_dot_product_attention(f, f, f) for f in x.decomposed_features])
        engine = load("MinkowskiEngine")
        return engine.SparseTensor(
            rows, coordinate_map_key=x.coordinate_map_key, coordinate_manager=x.coordinate_manager
        )


class Decoder(nn.Module):
    """Learned queries that attend to the sites. A head then turns each query's row into a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = load("MinkowskiEngine").MinkowskiConvolution(4, 6, kernel_size=2, stride=2, dimension=3)
        self.queries, self.others = nn.Parameter(torch.zeros(1, 5, WIDTH)), nn.Parameter(torch.zeros(3, 6))
        self.cross = nn.MultiheadAttention(WIDTH, 2, kdim=6, vdim=6, batch_first=True)
        self.own = nn.TransformerEncoderLayer(WIDTH, 4, 16, batch_first=True, norm_first=True, activation="gelu")
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Any) -> Any:
        x = self.conv(x).F.unsqueeze(0)
        tokens, _ = self.cross(self.queries, x, x)
        return {"boxes": self.head(self.own(tokens)), "rest": torch.softmax(self.others @ x[0].T, 1) @ x[0]}


class OneQuery(nn.Module):
    """Single queries that attend to the sites: the mean of the cloud, and a learned row."""

    def __init__(self) -> None:
        super().__init__()
        engine = load("MinkowskiEngine")
        self.conv = engine.MinkowskiConvolution(4, WIDTH, kernel_size=2, stride=2, dimension=3)
        self.pool = engine.MinkowskiGlobalAvgPooling()
        self.query = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.cross = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        rows, mean = x.F[None], self.pool(x).F.unsqueeze(1)  # [1, N, C], [1, 1, C]
        return {
            "learned": self.cross(self.query, rows, rows)[0],
            "mean": self.cross(mean, rows, rows)[0],
            "plain": F.scaled_dot_product_attention(mean, rows, rows),
            "hand": (mean @ rows.transpose(1, 2)).softmax(-1) @ rows,
        }


CASES = {
    "by hand": ByHand,
    "tokens": Tokens,
    "offset": OffsetAttention,
    "unbind": lambda: Heads("unbind"),
    "chunk": lambda: Heads("chunk"),
    "index": lambda: Heads("index"),
    "multi-head": lambda: OfTorch(lambda: nn.MultiheadAttention(WIDTH, 4, batch_first=True)),
    "multi-head, unbatched": lambda: OfTorch(lambda: nn.MultiheadAttention(WIDTH, 2, bias=False), False),
    "encoder": lambda: OfTorch(lambda: nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)),
    "decomposed": Decomposed,
    "decoder": Decoder,
    "one query": OneQuery,
}


@pytest.mark.parametrize("name", CASES)
def test_round_trip(tmp_path: Path, name: str) -> None:
    module = networks.randomize(CASES[name]())
    exported, comparison = round_trip(tmp_path, module, example())
    assert comparison.skipped == {}
    assert all(deviation.magnitude > 0.03 for deviation in comparison.outputs().values())
    assert set(comparison.outputs()) == set(exported.outputs)
    assert "attention {" in exported.network.to_textproto()
    assert exported.warnings == ()


@pytest.mark.integration
def test_the_server_computes_the_same(tmp_path: Path) -> None:
    for number, (name, make) in enumerate(CASES.items()):
        module = networks.randomize(make())
        from_torch(module, example(), name=name).write(tmp_path / "models" / f"m{number}")
        voxserve.record(module, example(), tmp_path / f"m{number}.npz")
    with serving(tmp_path / "models", tmp_path / "log") as address:
        for number in range(len(CASES)):
            arguments = [str(tmp_path / "models" / f"m{number}"), str(tmp_path / f"m{number}.npz")]
            assert verify([*arguments, "--address", address]) == 0, list(CASES)[number]


def test_samples_of_minkowski_engine() -> None:
    x = example(2)
    coordinates, features = x.decomposed_coordinates_and_features
    assert [len(part) for part in features] == [int((x.C[:, 0] == b).sum()) for b in range(2)]
    for b in range(2):
        np.testing.assert_array_equal(coordinates[b], x.C[x.C[:, 0] == b, 1:])
        np.testing.assert_array_equal(x.features_at(b), features[b])


def test_rows_of_one_of_two_samples_are_refused() -> None:
    for module in (ByHand(), Decomposed()):
        with pytest.raises(ExportError, match="if they are those of one sample, trace with an example of one sample"):
            from_torch(networks.randomize(module), example(2))


def test_attention_of_points_is_refused() -> None:
    with pytest.raises(ExportError, match="attention of points is not in the model format"):
        from_torch(networks.randomize(Decomposed(1)), example())


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("by hand", "decomposed")])
def test_an_example_of_two_samples_is_refused(name: str) -> None:
    with pytest.raises(ExportError, match="an example of 2 samples: trace it with an example of one sample"):
        from_torch(networks.randomize(CASES[name]()), example(2))


class Function(Sparse):
    """Applies any function to the rows."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def mixed(self, x: Any) -> Any:
        return self.function(x.F)


def crossed(y: Any) -> Any:
    """Splits rows [N, 8] into two heads, [2, 1, N, 4]."""
    return y.view(len(y), 2, 4).transpose(0, 1)[:, None]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda y: (y @ y.T) @ y, "features with features is in the model format for attention alone"),
        (lambda y: (y.T @ y).softmax(-1), "features with features is in the model format for attention alone"),
        (lambda y: y @ y, "features with features is in the model format for attention alone"),
        (lambda y: (y @ y.T).softmax(0) @ y, "'softmax' of attention's scores: it goes once, along the keys"),
        (lambda y: (y @ y.T).softmax(1).softmax(1) @ y, "'softmax' of attention's weights"),
        (lambda y: ((y @ y.T) + 1).softmax(1) @ y, "'add' of attention's scores|'__add__' of attention's scores"),
        (lambda y: (y @ y.T).relu() @ y, "'relu' of attention's scores is not"),
        (lambda y: 2 * (y @ y.T).softmax(1) @ y, "of attention's weights: scores alone are scaled"),
        (lambda y: (1 / (y @ y.T)).softmax(1) @ y, "by attention's scores is not"),
        (lambda y: (y @ y.T)[:, :3], "'__getitem__' of rows laid out as"),
        (lambda y: y[:10], "rows chosen by a slice: if they are those of one sample"),
        (lambda y: y[None].relu()[0, :7], "rows chosen by a slice"),
        (lambda y: y[y[:, 0].as_subclass(torch.Tensor) > 0], "a mask"),
        (lambda y: y.reshape(-1), "'reshape' of rows laid out as"),
        (lambda y: y.view(-1, 4), "'view' of rows laid out as"),
        (lambda y: y.view(len(y), 2, 4).permute(2, 0, 1).reshape(-1, len(y), 2).relu() @ y, "laid out|alone"),
        (lambda y: y.view(len(y), 2, 4).transpose(1, 2).reshape(len(y), 8), "'reshape' of rows laid out as"),
        (lambda y: F.layer_norm(y.view(len(y), 2, 4), (4,)), "'layer_norm' of rows laid out as"),
        (lambda y: y.view(len(y), 2, 4) + torch.ones(4), "laid out as"),
        (lambda y: y[None] + y, "tensors that are laid out in other ways|equal shapes"),
        (lambda y: y + y[:, :3], "features .* and .*: in the model format both have as many channels"),
        (lambda y: F.normalize(y[None], dim=1)[0], "'normalize' of rows laid out as"),
        (lambda y: y.T.argmax(0), "'argmax' of rows laid out as"),
        (lambda y: F.conv1d(y[:, None], torch.ones(1, 1, 4), padding=2), "along the channels with an even kernel"),
        (lambda y: F.conv1d(y[:, None], torch.ones(1, 1, 3), padding=2), "'conv1d' is in the model format with a k"),
        (lambda y: F.conv1d(y[:, None], torch.ones(1, 1, 3), padding=1, stride=2), "'conv1d' is in the model"),
        (lambda y: F.conv1d(y.T[None], torch.ones(8, 8, 3), padding=1), "'conv1d' is in the model format with a k"),
        (lambda y: torch.stack([y, y], 2).flatten(1), "'flatten' of rows laid out as"),
        (lambda y: F.scaled_dot_product_attention(y, y, y, is_causal=True), "with a mask or grouped heads"),
        (lambda y: F.scaled_dot_product_attention(y, y, y, torch.ones(len(y), len(y))), "with a mask"),
        (lambda y: F.scaled_dot_product_attention(y, y, y, dropout_p=0.5), "with a dropout is training"),
        (lambda y: F.scaled_dot_product_attention(y.T, y.T, y.T), "of rows laid out as"),
        (lambda y: F.scaled_dot_product_attention(y, torch.ones(3, 2, 8), y), "does not come from them"),
        (lambda y: F.scaled_dot_product_attention(*3 * [y[:, None]]), "last two dimensions must be the rows"),
        (lambda y: F.scaled_dot_product_attention(crossed(y), *2 * [crossed(y)[:, 0]]), "last two dimensions must be"),
        (lambda y: (y[:, None] @ y[:, None].transpose(1, 2)).softmax(-1) @ y[:, None], "for attention alone"),
        (lambda y: nn.MultiheadAttention(8, 2).eval()(*3 * [y[None]])[0], "rows must be the first .* batch_first=True"),
        (lambda y: nn.TransformerEncoderLayer(8, 2, 16).eval()(y[None]), "rows must be the first .* batch_first=True"),
    ],
)  # fmt: skip
def test_what_is_no_attention_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message) as caught:
        from_torch(networks.randomize(Function(function)), example())
    assert "cut='conv'" in str(caught.value)


def test_rows_that_are_laid_out_are_no_output() -> None:
    assert not from_torch(networks.randomize(Function(lambda y: y.T)), example()).network.has_outputs
    assert from_torch(networks.randomize(Function(lambda y: y[None])), example()).network.has_outputs


@pytest.mark.parametrize(
    ("options", "call", "message"),
    [
        ({"add_bias_kv": True}, {}, "MultiheadAttention with bias_k, bias_v is not"),
        ({"add_zero_attn": True}, {}, "MultiheadAttention with zeros or a mask"),
        ({}, {"attn_mask": True}, "MultiheadAttention with attn_mask"),
    ],
)
def test_options_of_multi_head_attention_that_are_refused(options: Any, call: Any, message: str) -> None:
    layer = nn.MultiheadAttention(WIDTH, 2, **options).eval()

    def function(y: Any) -> Any:
        masks = {"attn_mask": torch.zeros(len(y), len(y), dtype=torch.bool)} if call else {}
        return layer(y, y, y, **masks)[0]

    with pytest.raises(ExportError, match=message):
        from_torch(networks.randomize(Function(function)), example())


def test_attention_of_other_rows_is_refused() -> None:
    engine = load("MinkowskiEngine")

    class Levels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = engine.MinkowskiConvolution(4, 4, kernel_size=1, stride=2, dimension=3)

        def forward(self, x: Any) -> Any:
            y = self.down(x).F
            return F.scaled_dot_product_attention(y, x.F[: len(y)] if len(y) == len(x.F) else y, x.F)

    with pytest.raises(ExportError, match="attention of keys and values on other rows"):
        from_torch(networks.randomize(Levels()), example())
