"""Checks in the build's compile_commands.json that certain files are compiled with the flags that they need.

CMake silently ignores such a flag if its file has moved, and results would then differ in their last bits.
"""

import json
import os
import pathlib
import shlex

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Without fused multiply-add, every product is rounded before it is added. CPU and GPU then compute the same bits.
UNFUSED_CPU = ["-ffp-contract=off"]
UNFUSED_CUDA = ["--fmad=false"]
# Without these passes of GCC, the sums of a tile stay in registers.
NEON = ["-fno-schedule-insns", "-fno-tree-pre"]
FLAGS = {
    "engine/executor/point_reader.cc": UNFUSED_CPU,
    "kernels/boxes/anchor_head.cu": UNFUSED_CUDA,
    "kernels/boxes/anchor_head_cpu.cc": UNFUSED_CPU,
    "kernels/boxes/center_head.cu": UNFUSED_CUDA,
    "kernels/boxes/center_head_cpu.cc": UNFUSED_CPU,
    "kernels/boxes/query_decode.cu": UNFUSED_CUDA,
    "kernels/boxes/query_decode_cpu.cc": UNFUSED_CPU,
    "kernels/boxes/rotated_nms.cu": UNFUSED_CUDA,
    "kernels/boxes/rotated_nms_cpu.cc": UNFUSED_CPU,
    "kernels/conv/fetch_on_demand_avx2.cc": ["-mavx2", "-mfma"],
    "kernels/conv/fetch_on_demand_avx512.cc": ["-mavx512f", "-mfma", "-mprefer-vector-width=512"],
    "kernels/conv/fetch_on_demand_neon.cc": NEON,
    "kernels/int8/int8_product_amx.cc": [
        "-mamx-tile",
        "-mamx-int8",
        "-mavx512f",
        "-mavx512bw",
        "-mprefer-vector-width=512",
    ],
    "kernels/int8/int8_product_avx2.cc": ["-mavx2", *UNFUSED_CPU],
    "kernels/int8/int8_product_avx512.cc": [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vnni",
        "-mprefer-vector-width=512",
        *UNFUSED_CPU,
    ],
    "kernels/int8/int8_product_baseline.cc": UNFUSED_CPU,
    "kernels/int8/int8_product_cpu.cc": UNFUSED_CPU,
    "kernels/points/farthest/farthest_point_sample_cpu.cc": UNFUSED_CPU,
    "kernels/points/point_offsets.cu": UNFUSED_CUDA,
    "kernels/points/point_offsets_cpu.cc": UNFUSED_CPU,
    "kernels/rows/attention/group_attention_avx2.cc": ["-mavx2", "-mfma"],
    "kernels/rows/attention/group_attention_avx512.cc": ["-mavx512f", "-mfma", "-mprefer-vector-width=512"],
    "kernels/rows/attention/group_attention_neon.cc": NEON,
    "tests/bench/farthest_point_sample_bench.cc": UNFUSED_CPU,
    "tests/bench/int8_convolution.cc": UNFUSED_CPU,
    "tests/engine/executor/point_sample_test.cc": UNFUSED_CPU,
    "tests/kernels/boxes/rotated_nms_test.cc": UNFUSED_CPU,
    "tests/kernels/conv/implicit_gemm/int8_implicit_gemm_cuda_test.cc": UNFUSED_CPU,
    "tests/kernels/image/int8/int8_im2col_cuda_test.cc": UNFUSED_CPU,
    "tests/kernels/int8/int8_conv2d_test.cc": UNFUSED_CPU,
    "tests/kernels/int8/int8_product_test.cc": UNFUSED_CPU,
    "tests/kernels/int8/int8_rows_cuda_test.cc": UNFUSED_CPU,
    "tests/kernels/points/farthest/farthest_point_sample_test.cc": UNFUSED_CPU,
}
# Ends of the names of files that only a build with CUDA has.
CUDA_ALONE = (".cu", "_cuda_test.cc", "tests/bench/int8_convolution.cc")


@pytest.fixture(scope="module")
def arguments():
    """Returns the compiler's arguments of each compiled file, by the file's path from the repository's root."""
    binary = os.environ.get("VOXSERVE_BINARY")
    if not binary:
        pytest.skip("VOXSERVE_BINARY names no build")
    build = pathlib.Path(binary).parents[1]
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    return {os.path.relpath(entry["file"], ROOT): shlex.split(entry["command"]) for entry in commands}


@pytest.mark.parametrize("file", sorted(FLAGS))
def test_a_file_is_compiled_with_its_flags(file, arguments):
    assert (ROOT / file).exists()
    if file not in arguments and file.endswith(CUDA_ALONE):
        assert not any(name.endswith(".cu") for name in arguments)
        pytest.skip("the build has no CUDA")
    if file not in arguments:
        # A build has the vectors of its own processors alone.
        others = "_neon.cc" if "kernels/conv/fetch_on_demand_avx2.cc" in arguments else ("_amx.cc", "_avx2.cc", "_avx512.cc")
        assert file.endswith(others)
        pytest.skip("the build is for another processor")
    assert [flag for flag in FLAGS[file] if flag not in arguments[file]] == []


def test_no_other_file_asks_for_flags_of_its_own(arguments):
    special = {"-ffp-contract=off", "--fmad=false"}
    own = {file for file, given in arguments.items() if special & set(given)}
    assert own == {file for file in FLAGS if special & set(FLAGS[file]) and file in arguments}
