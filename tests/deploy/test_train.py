"""Tests deploy/train: its sparse convolutions against dense ones, scenes, targets, and a training run in parts."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy"))

from train import boxes, detector, frames, loop, minkunet, scenes, segmenter, sparse  # noqa: E402
from train.center_point import CenterPoint, voxelize  # noqa: E402

from voxserve.evaluate.overlaps import overlaps  # noqa: E402
from voxserve.export.networks.spconv_backbone import Bev  # noqa: E402

CPU = torch.device("cpu")
CONFIG = replace(
    detector.CONFIG,
    voxels=replace(
        detector.CONFIG.voxels, range_min=(-25.6, -25.6, -5), range_max=(25.6, 25.6, 3), size=(0.4, 0.4, 0.2)
    ),
    center_min=(-25.6, -25.6, -10),
    center_max=(25.6, 25.6, 10),
    sparse_widths=(4, 6, 8, 8),
    sparse_out_width=8,
    bev=Bev((1, 1), (1, 2), (8, 8), (1, 2), (8, 8)),
    head_width=8,
)


def _sites(shape: tuple[int, int, int], count: int) -> sparse.Sites:
    keys = torch.randint(0, 2 * math.prod(shape), (count,), generator=torch.Generator().manual_seed(3))
    return sparse.sites_of(torch.unique(keys), shape, 2)


def _dense(sites: sparse.Sites, rows: Any) -> Any:
    b, x, y, z = sites.coords.unbind(1)
    image = torch.zeros(sites.batch, rows.shape[1], *sites.shape, dtype=rows.dtype)
    image[b, :, x, y, z] = rows
    return image


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [((3, 3, 3), 1, 1), ((3, 3, 3), 2, (0, 1, 1)), ((3, 1, 1), (2, 1, 1), 0)]
)
def test_a_sparse_convolution_equals_a_dense_one_on_its_sites(kernel: Any, stride: Any, padding: Any) -> None:
    sites = _sites((9, 8, 7), 120)
    layer = sparse.SpconvWeight(3, 5, kernel, bias=True).double()
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(len(sites), 3, dtype=torch.double)
    dense_weight = layer.weight.permute(0, 4, 1, 2, 3)
    expected = torch.nn.functional.conv3d(_dense(sites, x), dense_weight, layer.bias, stride=stride, padding=padding)
    if stride == 1:
        rulebook = sparse.submanifold(sites, kernel)
    else:
        triple = lambda value: (value,) * 3 if isinstance(value, int) else value  # noqa: E731
        rulebook = sparse.strided(sites, kernel, triple(stride), triple(padding))
        occupied = torch.nn.functional.conv3d(
            _dense(sites, torch.ones(len(sites), 1)), torch.ones(1, 1, *kernel), stride=stride, padding=padding
        )
        assert len(rulebook.out) == int((occupied > 0).sum())
    b, i, j, k = rulebook.out.coords.unbind(1)
    torch.testing.assert_close(layer(x, rulebook), expected[b, :, i, j, k])


def test_gradients_of_all_kinds_of_convolutions_are_right() -> None:
    sites = _sites((6, 6, 8), 90)
    halved = sparse.strided(sites, (2, 2, 2), (2, 2, 2), (0, 0, 0))
    padded = sparse.strided(sites, (3, 3, 3), (2, 2, 2), (1, 1, 0))
    for rulebook in (sparse.submanifold(sites, (3, 3, 3)), padded, halved, halved.reversed(sites)):
        x = torch.randn(len(rulebook.back), 2, dtype=torch.double, requires_grad=True)
        weight = torch.randn(rulebook.table.shape[1], 2, 3, dtype=torch.double, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, w, r=rulebook: sparse.convolve(x, w, r), (x, weight))


def test_a_voxel_has_the_mean_of_its_points() -> None:
    points = torch.tensor([[0.05, 0.05, 0, 1], [0.15, 0.05, 0, 0], [90, 0, 0, 1], [0.05, 0.05, 0, 0.5]])
    rows, sites = voxelize(points, torch.tensor([0, 0, 0, 1]), 2, CONFIG)
    torch.testing.assert_close(rows, torch.tensor([[0.1, 0.05, 0, 0.5], [0.05, 0.05, 0, 0.5]]))
    assert sites.coords.tolist() == [[0, 25, 64, 64], [1, 25, 64, 64]]  # batch, z, y, x


def test_a_scan_without_points_has_no_sites_and_no_error() -> None:
    found, classes, scores = detector.find(CenterPoint(CONFIG), np.zeros((0, 4), np.float32), "cpu")
    assert (found.shape[1], len(classes), len(scores)) == (7, len(found), len(found))


def test_decoding_the_wanted_images_gives_the_boxes_back() -> None:
    wanted = torch.tensor(
        [[3.3, -4.1, -1, 4.5, 1.9, 1.6, 2.0], [-20, 11, 0.2, 0.8, 0.7, 1.7, -0.4], [40, 0, 0, 4, 2, 2, 0]]
    )
    scene = scenes.Scene(torch.zeros(0, 4), torch.zeros(0), wanted, torch.tensor([0, 3, 0]), torch.tensor([9, 9, 9]))
    targets = boxes.make_targets([scene], 3, CONFIG)
    rows, columns, _ = boxes.grid_of(CONFIG)
    assert len(targets.cell) == 2  # the third is out of range
    values = torch.zeros(1, 8, rows * columns)
    values[0][:, targets.cell] = targets.values.T
    parts = values.view(1, 8, rows, columns).split([2, 1, 3, 2], dim=1)
    images = dict(zip(("center", "center_z", "dim", "rot"), parts, strict=True))
    images["hm"] = torch.where(targets.heatmap == 1, 3.0, -9.0)
    found, classes, scores = boxes.decode(images, CONFIG, 0.1)[0]
    order = np.argsort(classes)
    np.testing.assert_allclose(found[order], wanted[:2].numpy(), atol=1e-5)
    assert (classes[order].tolist(), np.round(scores, 3).tolist()) == ([0, 3], [0.953, 0.953])
    assert float(boxes.losses(images, targets)[1]) < 1e-5


def test_a_box_with_few_points_is_neither_wanted_nor_wrong() -> None:
    box = torch.tensor([[1.0, 1, 0, 4, 2, 1.5, 0]])
    for number, is_counted, is_wanted in ((0, True, False), (2, False, False), (3, True, True)):
        scene = scenes.Scene(torch.zeros(0, 4), torch.zeros(0), box, torch.tensor([0]), torch.tensor([number]))
        targets = boxes.make_targets([scene], 3, CONFIG)
        assert (bool(targets.counted.all()), len(targets.cell) == 1) == (is_counted, is_wanted)


def _labelled_frames() -> list[frames.LabelledFrame]:
    """Returns two frames with flat ground and cars, each a box full of points."""
    made = []
    for number in (0, 1):
        random = np.random.default_rng(number)
        ground = np.concatenate([random.uniform(-40, 40, (20_000, 2)), np.full((20_000, 1), -2.05)], axis=1)
        cars = np.array([[10 + number, 5, -1.2, 4.5, 1.9, 1.6, 0.2], [-12, -8 - number, -1.2, 4.2, 1.8, 1.6, 1.2]])
        parts = [ground]
        for x, y, z, length, width, height, yaw in cars:
            inner = random.uniform(-0.49, 0.49, (300, 3)) * (length, width, height)
            turned = inner @ np.array([[np.cos(yaw), np.sin(yaw), 0], [-np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]])
            parts.append(turned + np.array([x, y, z]))
        points = np.concatenate(parts)
        points = np.concatenate([points, np.full((len(points), 1), 0.5)], axis=1).astype(np.float32)
        labels = np.repeat(np.array([7, 13], np.uint8), [20_000, 600])
        made.append(
            frames.LabelledFrame(
                number, points, labels, cars.astype(np.float32), ("Car",) * 2, np.full(2, 300, np.int32)
            )
        )
    return made


def test_pasted_objects_stand_on_free_ground_with_their_points() -> None:
    maker = scenes.SceneMaker(_labelled_frames(), {"Car": 0}, scenes.Augmentation({0: 8}), 5, CPU, 1)
    assert maker.object_counts() == {0: 4}
    num_pasted = 0
    for _ in range(10):
        scene = maker.draw()
        shared, _ = overlaps(scene.boxes.numpy(), scene.boxes.numpy())
        assert (shared - np.eye(len(shared)) < 1e-3).all()
        held = scenes.inside(scene.boxes, scene.points, 0.01)
        assert (held.sum(dim=1) > 0.8 * scene.num_points).all()
        assert (scene.labels[held[2:].any(dim=0)] == 13).all()  # the ground below a pasted car is gone
        num_pasted += len(scene.boxes) - 2
    assert num_pasted > 10


def test_separating_axes_agree_with_overlaps() -> None:
    random = np.random.default_rng(5)
    some = np.concatenate(
        [
            random.uniform(-6, 6, (60, 2)),
            np.zeros((60, 1)),
            random.uniform(0.5, 5, (60, 3)),
            random.uniform(-4, 4, (60, 1)),
        ],
        1,
    )
    shared, _ = overlaps(some, some)
    hit = scenes.collide(torch.from_numpy(some), torch.from_numpy(some)).numpy()
    assert (hit == (shared > 0)).all()
    assert 0.02 < hit.mean() < 0.9


def _run(out: Path, resume: Path | None, steps: int, end: float) -> loop.Run:
    torch.manual_seed(0)
    model = CenterPoint(CONFIG)
    run = loop.Run(model, loop.Schedule(5e-3, 1e9, steps), out, resume)
    batch = [scenes.scene_of(frame, {"Car": 0}, CPU) for frame in _labelled_frames()]
    targets = boxes.make_targets(batch, 3, CONFIG)

    def loss_of() -> Any:
        peaks, errors = boxes.losses(detector.forward(model, batch, is_narrow=False), targets)
        losses.append(float((peaks + 2 * errors).detach()))
        return peaks + 2 * errors, {"heatmap": peaks.detach()}

    losses: list[float] = []
    run.losses = losses  # type: ignore[attr-defined]
    run.train(loss_of, end)
    return run


def test_a_run_learns_and_goes_on_in_a_second_part(tmp_path: Path) -> None:
    first = _run(tmp_path / "1", None, 12, time.monotonic() + 120)
    assert first.progress.step == 12
    assert first.losses[-1] < 0.7 * first.losses[0]  # type: ignore[attr-defined]
    again = _run(tmp_path / "2", tmp_path / "1", 12, time.monotonic() + 120)
    assert (again.progress.step, again.progress.part, again.losses) == (12, 2, [])  # type: ignore[attr-defined]
    for name, value in first.average().items():
        torch.testing.assert_close(again.average()[name], value)
    for one, other in zip(first.optimizer.state.values(), again.optimizer.state.values(), strict=True):
        torch.testing.assert_close(one["exp_avg"].bfloat16().float(), other["exp_avg"])
    loop.write_weights(tmp_path / "weights.safetensors", again.average())
    model = CenterPoint(CONFIG)
    loop.load_weights(model, tmp_path / "weights.safetensors")
    torch.testing.assert_close(
        model.state_dict()["dense_head.shared_conv.0.weight"],
        again.average()["dense_head.shared_conv.0.weight"],
        atol=1e-3,
        rtol=1e-3,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda weight: weight.sum() * math.nan, "the loss is nan at step 5"),
        (lambda weight: (0 * weight).sqrt().sum(), "weight is not finite after step 5"),  # the gradient is NaN
    ],
)
def test_weights_that_are_not_finite_replace_no_part(tmp_path: Path, wrong: Any, message: str) -> None:
    model = torch.nn.Linear(3, 1)
    run = loop.Run(model, loop.Schedule(1e-3, 1e9, 5), tmp_path, None)
    run.save()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert "model.pt" in before

    def loss_of() -> Any:
        is_last = run.progress.step == 4
        return wrong(model.weight) if is_last else model(torch.ones(1, 3)).square().sum(), {}

    with pytest.raises(ValueError, match=message):
        run.train(loss_of, time.monotonic() + 120)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "log.txt"} == before


def test_a_folder_without_a_part_or_of_another_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no part of this run"):
        _run(tmp_path / "1", tmp_path / "none", 1, 0)
    _run(tmp_path / "1", None, 1, 0)
    with pytest.raises(ValueError, match="has no part of this run"):
        loop.Run(minkunet.MinkUnet(3, 0.1), loop.Schedule(1e-3, 1), tmp_path / "2", tmp_path / "1")


def test_the_rate_rises_and_falls_once() -> None:
    schedule = loop.Schedule(max_rate=1.0, total_seconds=1)
    rates = [loop.rate(progress / 100, schedule)[0] for progress in range(101)]
    assert rates.index(max(rates)) == 30
    assert max(rates) == pytest.approx(1)
    assert rates[:31] == sorted(rates[:31])
    assert rates[30:] == sorted(rates[30:], reverse=True)
    assert rates[-1] == pytest.approx(1e-3)


def test_weights_that_float16_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.weight has values that float16 cannot hold"):
        loop.write_weights(tmp_path / "w.safetensors", {"a.weight": torch.tensor([1e6])})


def test_every_class_of_pandaset_is_in_one_class_or_ignored() -> None:
    table = segmenter.class_of_label(CPU)
    assert table[[7, 13, 41, 34]].tolist() == [0, 5, 3, 11]
    assert table[[0, 1, 32, 255]].tolist() == [255] * 4
    ids = [number for group in segmenter.CLASSES.values() for number in group]
    assert len(ids) == len(set(ids))


def test_minkunet_equals_torchsparse() -> None:
    """Compares the trained network's logits with those that TorchSparse computed."""
    folder = Path(os.environ.get("VOXSERVE_SHARED_DATA", ROOT.parent / "shared" / "data")) / "minkunet-pandaset"
    if not (folder / "golden").is_dir():
        pytest.skip(f"{folder} is missing; VOXSERVE_SHARED_DATA names the folder of real data")
    model = minkunet.MinkUnet(12).eval()
    loop.load_weights(model, folder / "minkunet-0.5-pandaset.safetensors")
    points = torch.from_numpy(np.fromfile(folder / "golden" / "pandaset_070.bin", np.float32).reshape(-1, 4))
    with np.load(folder / "golden" / "pandaset_070.npz") as golden, torch.no_grad():
        first, sites = minkunet.voxelize(points, torch.zeros(len(points), dtype=torch.long), 1)
        np.testing.assert_array_equal(sites.coords[:, 1:].numpy(), golden["coords"])
        np.testing.assert_allclose(model(points[first], sites).numpy(), golden["logits"], atol=1e-3)


def test_the_command_line_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "weights.safetensors"
    loop.write_weights(weights, CenterPoint(detector.CONFIG).state_dict())
    (tmp_path / "scan.bin").write_bytes(b"\0" * 20)
    save = tmp_path / "boxes.npz"
    for arguments, message in (
        (["find", "--weights", weights, "--scan", tmp_path / "scan.bin", "--save", save], "has 5 numbers"),
        (["find", "--weights", tmp_path / "none", "--scan", tmp_path / "scan.bin", "--save", save], "No such file"),
        (["evaluate", "--weights", weights, "--data", tmp_path], "has none of the frames 60 to 79"),
        (["train", "--data", tmp_path, "--out", tmp_path / "out"], "has none of the frames 0 to 59"),
    ):
        monkeypatch.setattr(sys, "argv", ["detector", *map(str, arguments), "--device", "cpu"])
        assert detector.main() == 1
        assert message in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["detector", "evaluate", "--weights", str(weights), "--data", str(tmp_path)])
    loop.write_weights(weights, minkunet.MinkUnet(3, 0.1).state_dict())
    assert detector.main() == 1
    assert "lacks backbone_3d.conv_input.0.weight" in capsys.readouterr().err
