"""Says what to write instead of torch's functions that the model format does not have."""

from __future__ import annotations

_OF_VALUES = (
    "rows are not chosen or ordered by their values there: end the network before it and choose from its output in the "
    "client, or prune sites by a score (MinkowskiPruning)"
)
_OF_ROWS = "a row reads other rows through convolutions, pools, norms and attention alone"
_DENSE = "use the library's sparse layers before dense()"
_CHOICE = "write it with relu, clamp, maximum or minimum, or as a product with a sigmoid"
_WAVES = "add an embedding of constants, or a small linear network of the coordinates, in its place"

_BY_ADVICE = {
    _OF_VALUES: "topk sort argsort msort kthvalue median nanmedian mode unique unique_consecutive nonzero argwhere "
    "masked_select bincount histc multinomial searchsorted bucketize",
    _OF_ROWS: "cumsum cumprod cummax cummin logcumsumexp cdist pdist roll flip gather take_along_dim take diff "
    "repeat_interleave segment_reduce scatter scatter_ masked_scatter index_copy index_copy_ grid_sample",
    _DENSE: "conv3d conv_transpose3d max_pool3d avg_pool3d adaptive_avg_pool3d adaptive_max_pool3d batch_norm3d",
    _CHOICE: "where masked_fill masked_fill_ index_fill index_fill_ __setitem__ heaviside sign sgn logical_and "
    "logical_or logical_not __and__ __or__ __invert__ lt le ge eq ne __lt__ __le__ __ge__ __eq__ __ne__",
    _WAVES: "sin cos sin_ cos_ tan sinc atan2 arctan2 asin acos atan",
    "scale an image by a transposed convolution, or end the network before it": "interpolate upsample",
    "the format has max_pool2d and strided conv2d of images": "avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d "
    "lp_pool2d",
    "it is of TorchScript, of which nothing can be followed: trace the torch.nn.Module that was scripted": "forward "
    "ScriptMethod",
    "its weights are quantized: trace the module before it is quantized": "linear_dynamic",
    "write it as linear, matmul or einsum of two tensors": "tensordot baddbmm addmm outer kron",
}
_ADVICE = {name: advice for advice, names in _BY_ADVICE.items() for name in names.split()}


def on(name: str) -> str:
    """Returns what follows "is not in the model format" in an error about a function of torch; "" for most."""
    advice = _ADVICE.get(name)
    return f": {advice}" if advice else ""
