"""Makes Pointcept's PTv3-base (PT-v3m1) for peer_bench.py, of an installed Pointcept with spconv.

Without the package flash_attn, its one function that PTv3 calls is that of torch's own flash attention kernels. The
pools keep the curves' order: Pointcept shuffles it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

ORDERS = ("z", "z-trans", "hilbert", "hilbert-trans")
GROUP = 1024
NUM_CLASSES = 19
WIDTH = 64  # channels of the decoder's last stage


def _attention(qkv: Any, cu_seqlens: Any, max_seqlen: int, dropout_p: float = 0.0, softmax_scale: Any = None) -> Any:
    """Computes flash_attn_varlen_qkvpacked_func by torch. qkv: [rows, 3, heads, channels]."""
    import torch

    q, k, v = qkv.unbind(dim=1)
    made = torch.ops.aten._flash_attention_forward(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, False, False, scale=softmax_scale
    )
    return made[0]


def backbone(in_channels: int, **settings: Any) -> Any:
    """Makes PTv3-base by Pointcept's class, which keeps the order of the curves. settings: further arguments."""
    from pointcept.models.point_transformer_v3.point_transformer_v3m1_base import PointTransformerV3

    sizes = (GROUP,) * 5
    made = PointTransformerV3(
        in_channels,
        ORDERS,
        enc_patch_size=sizes,
        dec_patch_size=sizes[:4],
        shuffle_orders=False,
        drop_path=0.0,
        **settings,
    )
    for part in made.modules():
        if hasattr(part, "shuffle_orders"):
            part.shuffle_orders = False
    return made


class Ptv3:
    """Makes PTv3 and its input."""

    def __init__(self, on_cuda: bool) -> None:
        if not on_cuda:
            raise ImportError("its flash attention runs on a GPU alone")
        try:
            import flash_attn  # noqa: F401
        except ImportError:
            made = types.ModuleType("flash_attn")
            made.flash_attn_varlen_qkvpacked_func = _attention  # type: ignore[attr-defined]
            sys.modules["flash_attn"] = made
        import pointcept.models.point_transformer_v3.point_transformer_v3m1_base  # noqa: F401

    def network(self, in_channels: int) -> Any:
        from torch import nn

        class Segmentor(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.backbone, self.head = backbone(in_channels), nn.Linear(WIDTH, NUM_CLASSES)

            def forward(self, data: Any) -> Any:
                return self.head(self.backbone(dict(data)).feat)

        return Segmentor()

    def tensor(self, coordinates: Any, features: Any, num_samples: int, size: Sequence[int]) -> Any:
        del size
        places = coordinates[:, 1:].contiguous()
        ends = coordinates[:, 0].long().bincount(minlength=num_samples).cumsum(0)
        return {"coord": places.to(features.dtype), "grid_coord": places, "feat": features, "offset": ends}

    def tune(self, network: Any, inputs: Sequence[Any]) -> None:
        """Does nothing: spconv chooses a layer's kernels when the layer first runs."""
