#!/usr/bin/env python3
"""Times PyTorch's image convolutions for comparison with conv2d_cuda_bench: the same layers, the same table.

    conv2d_peer_bench.py [images a convolution, default 1]

Runs cuDNN in float16, channels last, with the algorithm chosen by trial. If cuDNN does not fuse bias and ReLU, their
time counts too: the convolution is timed once alone (with bias) and once with ReLU. Needs torch with CUDA.
"""

import statistics
import sys

import torch

NUM_RUNS = 50

# Each entry is (name, size, in channels, out channels, keywords). conv2d_cuda_bench.cc must have the same list.
LAYERS = [
    ("3x3", 188, 256, 128, {"padding": 1}),
    ("3x3", 188, 128, 128, {"padding": 1}),
    ("3x3", 180, 256, 128, {"padding": 1}),
    ("3x3", 180, 128, 128, {"padding": 1}),
    ("3x3 s2", 188, 128, 256, {"padding": 1, "stride": 2}),
    ("3x3 s2", 180, 128, 256, {"padding": 1, "stride": 2}),
    ("3x3", 94, 256, 256, {"padding": 1}),
    ("3x3", 90, 256, 256, {"padding": 1}),
    ("3x3", 188, 256, 256, {"padding": 1}),
    ("1x1", 188, 128, 256, {}),
    ("1x1", 180, 256, 256, {}),
    ("transposed 2x2 s2", 94, 256, 256, {"stride": 2}),
    ("transposed 2x2 s2", 90, 256, 256, {"stride": 2}),
    ("transposed 2x2 s2", 234, 128, 128, {"stride": 2}),
    ("transposed 4x4 s4", 117, 256, 128, {"stride": 4}),
    ("3x3", 188, 512, 64, {"padding": 1}),
    ("3x3", 180, 512, 64, {"padding": 1}),
    ("3x3", 180, 64, 64, {"padding": 1}),
    ("3x3", 180, 64, 2304, {"padding": 1}),
    ("3x3", 468, 192, 128, {"padding": 1}),
    ("3x3", 468, 128, 128, {"padding": 1}),
    ("3x3", 468, 384, 64, {"padding": 1}),
    ("3x3", 468, 64, 384, {"padding": 1}),
    ("3x3 s2", 468, 128, 128, {"padding": 1, "stride": 2}),
    ("3x3", 234, 128, 128, {"padding": 1}),
    ("3x3 s2", 234, 128, 256, {"padding": 1, "stride": 2}),
    ("3x3", 117, 256, 256, {"padding": 1}),
    ("3x3 in 36 groups", 180, 2304, 108, {"padding": 1, "groups": 36}),
    ("3x3 in 6 groups", 188, 384, 18, {"padding": 1, "groups": 6}),
    ("3x3 in 6 groups", 468, 384, 18, {"padding": 1, "groups": 6}),
]


def median_ms(call):
    """Returns the median of the device's own times of a call. The device waits until all calls are launched."""
    for _ in range(10):
        call()
    times = []
    for _ in range(NUM_RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(1_000_000)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def main():
    images = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.backends.cudnn.benchmark = True
    print(f"{images} image(s), float16, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
          f"{torch.cuda.get_device_name()}, medians of {NUM_RUNS} runs\n")
    print("| kernel | size | in | out | us | TFLOP/s | with ReLU us | TFLOP/s |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, size, in_channels, out_channels, keywords in LAYERS:
        is_transposed = name.startswith("transposed")
        kernel = int(name.removeprefix("transposed ")[0])
        groups = keywords.get("groups", 1)
        half = {"device": "cuda", "dtype": torch.float16}
        shape = ((in_channels, out_channels) if is_transposed else (out_channels, in_channels // groups))
        weights = torch.rand(*shape, kernel, kernel, **half).mul_(2).sub_(1).to(memory_format=torch.channels_last)
        x = torch.rand(images, in_channels, size, size, **half).mul_(2).sub_(1).to(memory_format=torch.channels_last)
        bias = torch.full((out_channels,), 0.125, **half)
        convolve = torch.nn.functional.conv_transpose2d if is_transposed else torch.nn.functional.conv2d
        out = convolve(x, weights, bias, **keywords)
        positions = (x if is_transposed else out)[:, 0].numel()
        operations = 2.0 * positions * weights.numel()
        row = f"| {name} | {size} | {in_channels} | {out_channels} |"
        for call in (lambda: convolve(x, weights, bias, **keywords),
                     lambda: convolve(x, weights, bias, **keywords).relu_()):
            ms = median_ms(call)
            row += f" {ms * 1e3:.1f} | {operations / ms * 1e-9:.0f} |"
        print(row, flush=True)


if __name__ == "__main__":
    main()
