"""Tests how layer_profile.py reads and joins tables, and how plot_voxels.py draws them."""

import argparse
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import layer_profile
import plot_voxels
import pytest

FOLDER = pathlib.Path(__file__).resolve().parent

LAYERS = """NVIDIA H200, CUDA 13.0

| first of | times | ratio |
|---|--:|--:|
| stem.0 | 1 | 2.00x |

| first of | times | in | out | us | best block us | useful GFLOP | issued GFLOP | issued / useful | useful TFLOP/s | issued TFLOP/s |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|
| stem.1 | 1 | 32 | 32 | 20.0 | 18.0 | 0.707 | 1.200 | 1.70 | 35 | 60 |
| up1.0.conv1 | 2 | 384 | 256 | 100.0 | 90.0 | 24.000 | 42.000 | 1.75 | 240 | 420 |
"""
NCU = '''==PROF== Connected to process 1
"ID","Process Name","Kernel Name","thread Domain:Push/Pop_Range","dram__bytes.sum","gpu__time_duration.sum","lts__t_bytes.sum"
"","","","","byte","ns","byte"
"0","bench","Kernel","<default domain>:layer=stem.1:none","1,000,000","21,000","40,000,000"
"1","bench","Other","<default domain>:layer=stem.1:none","500000","1000","n/a"
"2","bench","Kernel","<default domain>:layer=up1.0.conv1:none","2000000","101000","700000000"
==PROF== Disconnected
'''
H200 = argparse.Namespace(tflops=780, l2_tbs=7.0, memory_tbs=4.2)


def test_the_table_with_the_column_is_found():
    rows = layer_profile.read_table(LAYERS, "issued GFLOP")
    assert [row["first of"] for row in rows] == ["stem.1", "up1.0.conv1"]
    assert rows[1]["best block us"] == "90.0"
    assert layer_profile.read_table(LAYERS, "no such column") == []


def test_a_layers_kernels_are_added_up():
    layers = layer_profile.read_profile(NCU)
    assert layers["stem.1"] == {
        layer_profile.MEMORY_BYTES: 1.5e6, layer_profile.TIME: 22e3, layer_profile.L2_BYTES: 40e6}
    assert set(layers) == {"stem.1", "up1.0.conv1"}
    assert layer_profile.read_profile("==ERROR== nothing") == {}


def test_the_ceiling_is_the_longest_time():
    assert layer_profile.ceiling_us(7.8, 0, 0, H200) == (pytest.approx(10), "products")
    assert layer_profile.ceiling_us(7.8, 140e6, 0, H200) == (pytest.approx(20), "L2")
    assert layer_profile.ceiling_us(7.8, 140e6, 126e6, H200) == (pytest.approx(30), "memory")


def test_the_joined_table_has_every_number():
    lines = layer_profile.joined(
        layer_profile.read_table(LAYERS, "issued GFLOP"), layer_profile.read_profile(NCU), H200)
    assert len({line.count("|") for line in lines}) == 1
    rows = layer_profile.read_table("\n".join(lines), "ceiling us")
    assert [row["first of"] for row in rows] == ["stem.1", "up1.0.conv1", "**sum**"]
    assert (rows[0]["L2 MB"], rows[0]["ncu us"], rows[0]["bound by"]) == ("40.0", "22.0", "L2")
    assert rows[0]["ceiling us"] == "5.7"
    assert (rows[1]["ceiling us"], rows[1]["share of the ceiling"], rows[1]["bound by"]) == ("100.0", "1.00", "L2")
    assert (rows[1]["estimate us"], rows[1]["ratio"]) == ("58.5", "1.7")
    assert (rows[2]["us"], rows[2]["times"]) == ("220", "3")


def test_without_ncu_products_are_the_ceiling():
    rows = layer_profile.read_table(
        "\n".join(layer_profile.joined(layer_profile.read_table(LAYERS, "issued GFLOP"), {}, H200)), "ceiling us")
    assert (rows[1]["ceiling us"], rows[1]["bound by"], rows[1]["L2 MB"]) == ("53.8", "products", "")


def bench(tmp_path, text, status=0):
    script = tmp_path / "bench"
    script.write_text(f"#!/bin/sh\ncat <<'EOF'\n{text}\nEOF\nexit {status}\n", encoding="utf-8")
    script.chmod(0o755)
    return str(script)


def test_a_program_that_prints_no_table_fails(tmp_path, capsys):
    assert layer_profile.main([bench(tmp_path, "skipped: no CUDA device here"), "--no_ncu"]) == 1
    assert capsys.readouterr().err == "skipped: no CUDA device here\n"
    assert layer_profile.main([bench(tmp_path, LAYERS, status=3), "--no_ncu"]) == 1
    assert layer_profile.main([str(tmp_path / "none")]) == 1


def test_ncu_is_asked_again_for_fewer_metrics(tmp_path, capsys):
    ncu = tmp_path / "ncu"
    ncu.write_text(f"#!/bin/sh\ncase \"$*\" in *xbar2l1tex*) exit 1;; esac\ncat <<'EOF'\n{NCU}EOF\n", encoding="utf-8")
    ncu.chmod(0o755)
    assert layer_profile.main([bench(tmp_path, LAYERS), "--ncu", str(ncu), "--logs", str(tmp_path / "logs")]) == 0
    printed = capsys.readouterr().out
    assert "| 700.0 |" in printed
    assert "No bytes" not in printed
    assert (tmp_path / "logs" / "layers.md").is_file()


def test_without_ncu_the_table_says_so(tmp_path, capsys):
    assert layer_profile.main([bench(tmp_path, LAYERS), "--ncu", str(tmp_path / "none")]) == 0
    assert "No bytes: ncu gave none" in capsys.readouterr().out


VOXELS = """| network, scan | batch | voxels | p50 ms | p99 ms | GPU busy ms |
|---|--:|--:|--:|--:|--:|
| a | 1 | 100992 | 2.943 | 3.217 | 2.5 |
| b | 1 | 992 | 0.943 | 1.217 | |
"""


def draw(tmp_path, *texts):
    files = []
    for i, text in enumerate(texts):
        files.append(tmp_path / f"series{i}.md")
        files[-1].write_text(text, encoding="utf-8")
    out = tmp_path / "picture.svg"
    done = subprocess.run([sys.executable, str(FOLDER / "plot_voxels.py"), *map(str, files), "--out", str(out)],
                          capture_output=True, text=True, check=False, timeout=60)
    return done, xml.etree.ElementTree.parse(out).getroot() if done.returncode == 0 else None


def marks(root, name):
    return list(root.iter(f"{{http://www.w3.org/2000/svg}}{name}"))


def test_points_lie_where_their_logarithms_say(tmp_path):
    _, root = draw(tmp_path, VOXELS)
    assert len(marks(root, "polyline")) == 3
    assert len(marks(root, "circle")) == 5  # p50 and p99 of two rows, and GPU busy, which only one row has
    xs = [float(circle.get("cx")) for circle in marks(root, "circle")][:2]
    assert xs[0] == pytest.approx(70, abs=1)  # 992 voxels: the left end of the axis
    assert xs[1] == pytest.approx(760 - 150, abs=2)  # 100,992 voxels: the right end


def test_several_tables_are_several_lines(tmp_path):
    _, root = draw(tmp_path, VOXELS, VOXELS)
    assert len(marks(root, "polyline")) == 2
    assert "series1" in [text.text for text in marks(root, "text")]


def test_a_file_without_a_table_is_refused(tmp_path):
    done, _ = draw(tmp_path, "nothing")
    assert done.returncode == 1
    assert "no table with voxels" in done.stderr


def test_axes_are_whole_decades():
    assert plot_voxels.decades(992, 1_000_992) == (3, 6)
    assert plot_voxels.decades(5, 5) == (0, 1)
