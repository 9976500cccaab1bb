"""The exported small networks compute what their definitions say, and the stored model folders and outputs are those of
this program.
"""

from __future__ import annotations

from pathlib import Path

import network_definitions as definitions
import numpy as np
import pytest
import sites_and_pillars
from minkunet_numpy import MinkUNet
from spvcnn_definition import Spvcnn

from voxserve.export import model_folder
from voxserve.export.networks import minkunet

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "networks.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def points() -> np.ndarray:
    return definitions.scan()


def test_stored_folders_are_what_the_exporter_writes(tmp_path: Path) -> None:
    networks = definitions.folders()
    assert {path.name for path in (GOLDEN / "networks").iterdir()} == set(networks)
    for name, network in networks.items():
        definitions.write_folder(tmp_path / name, network)
        for file in ("config.textproto", "1/model.textproto", "1/weights.safetensors"):
            assert (tmp_path / name / file).read_bytes() == (GOLDEN / "networks" / name / file).read_bytes(), (name, file)


@pytest.mark.parametrize("library", ["openpcdet", "det3d"])
def test_center_point_is_its_definition(library: str, golden, points) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from dense_folder import DenseFolder

    tasks = definitions.center_point_images(definitions.center_point_state(library), library, points)
    values = DenseFolder(GOLDEN / "networks" / f"small-centerpoint-{library}" / "1").run(points)
    for task, images in enumerate(tasks):
        for name, image in images.items():
            expected = image[0].transpose(2, 0, 1)
            if library == "det3d" and name == "dim":
                # OpenPCDet's order of a box's sizes is length, width, height; det3d's is width, length, height.
                expected = expected[[1, 0, 2]]
            if library == "det3d" and name == "rot":
                yaw = -np.arctan2(expected[0], expected[1]) - np.pi / 2
                expected = np.hypot(*expected) * np.array([np.sin(yaw), np.cos(yaw)])
            assert np.abs(expected).max() > 0.1
            np.testing.assert_allclose(values[f"task{task}.{name}"], expected, rtol=0, atol=1e-5)
    pytest.importorskip("detection_heads")
    np.testing.assert_allclose(
        definitions.center_point_boxes(library, tasks), golden[f"centerpoint_{library}_boxes"], rtol=1e-5, atol=1e-5
    )


def test_second_is_its_definition(golden, points) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from dense_folder import DenseFolder

    images = definitions.second_images(definitions.second_state(), points)
    values = DenseFolder(GOLDEN / "networks" / "small-second" / "1").run(points)
    for name, image in images.items():
        np.testing.assert_allclose(values[name], image[0].transpose(2, 0, 1), rtol=0, atol=1e-5)
    pytest.importorskip("detection_heads")
    np.testing.assert_allclose(definitions.second_boxes(images), golden["second_boxes"], rtol=1e-5, atol=1e-5)


def test_voxelnext_is_its_definition(golden, points) -> None:
    pytest.importorskip("torch", reason="torch is not installed")

    from voxserve.verify.compare import Model
    from voxserve.verify.interpreter import Interpreter

    # Every eighth point is enough, because the interpreter is slow.
    config, state, some = sites_and_pillars.VOXELNEXT, sites_and_pillars.voxelnext_state(), points[::8]
    tasks = sites_and_pillars.voxelnext_images(state, config, some)
    cells = definitions.mean_voxels(some, config.voxels, len(config.voxels.features))
    sites = np.array([[0, x, y, z] for z, y, x in cells])
    features = np.array(list(cells.values()))
    features[:, 3] *= 255
    model = Model.read(GOLDEN / "networks" / "small-voxelnext")
    results = Interpreter(model.network, model.tensors, sites, features).run()
    there = np.isfinite(tasks[0]["heatmap"][0, :, :, 0])
    assert 0.2 < there.mean() < 0.8
    for task, images in enumerate(tasks):
        for name, image in images.items():
            result = results[f"task{task}.{name}"]
            _, x, y, z = result.sites.T
            assert len(x) == there.sum()
            assert there[y, x].all()
            assert not z.any()
            largest = np.abs(image[0][there]).max()
            assert largest > 0.05
            np.testing.assert_allclose(result.values, image[0, y, x], rtol=0, atol=1e-6 * largest)
    boxes = definitions.center_point_boxes("openpcdet", sites_and_pillars.voxelnext_images(state, config, points), config)
    np.testing.assert_allclose(boxes, golden["voxelnext_boxes"], rtol=1e-5, atol=1e-5)


def test_center_point_of_pillars_is_its_definition(golden, points) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from dense_folder import DenseFolder

    config = sites_and_pillars.CENTER_POINT_PILLAR
    tasks = sites_and_pillars.center_point_pillar_images(sites_and_pillars.center_point_pillar_state(), config, points)
    values = DenseFolder(GOLDEN / "networks" / "small-centerpoint-pillar" / "1").run(points)
    for task, images in enumerate(tasks):
        for name, image in images.items():
            assert np.abs(image).max() > 0.05
            np.testing.assert_allclose(values[f"task{task}.{name}"], image[0].transpose(2, 0, 1), rtol=0, atol=1e-5)
    boxes = definitions.center_point_boxes("openpcdet", tasks, config, stride=4)
    np.testing.assert_allclose(boxes, golden["centerpoint_pillar_boxes"], rtol=1e-5, atol=1e-5)


def test_point_pillars_is_its_definition(golden, points) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from dense_folder import DenseFolder

    config = sites_and_pillars.POINT_PILLARS
    images = sites_and_pillars.point_pillars_images(sites_and_pillars.point_pillars_state(), config, points)
    values = DenseFolder(GOLDEN / "networks" / "small-pointpillars" / "1").run(points)
    for name, image in images.items():
        np.testing.assert_allclose(values[name], image[0].transpose(2, 0, 1), rtol=0, atol=1e-5)
    np.testing.assert_allclose(definitions.second_boxes(images, config), golden["pointpillars_boxes"], rtol=1e-5, atol=1e-5)


# PillarVFE's maximum includes slots without a point. Leaving them out would be another network.
def test_empty_slots_change_what_pillars_have(points) -> None:
    pytest.importorskip("torch", reason="torch is not installed")

    voxels, columns = sites_and_pillars.POINT_PILLARS.voxels, points.astype(np.float64)
    state = sites_and_pillars.point_pillars_state()
    image = sites_and_pillars.pillar_image(state, voxels, columns)
    of_points = sites_and_pillars.pillar_image(state, voxels, columns, has_empty_slots=False)
    assert (image >= of_points).all()
    assert 0.01 < (image > of_points + 1e-3).double().mean() < 0.9


def test_spvcnn_is_its_definition(golden, points) -> None:
    cloud = points[definitions.SPVCNN_POINTS]
    scores = Spvcnn(definitions.spvcnn_state()).run(cloud)
    np.testing.assert_allclose(scores, golden["spvcnn_scores"], rtol=1e-5, atol=1e-5)
    values = MinkUNet(GOLDEN / "networks" / "small-spvcnn" / "1").run(cloud)
    np.testing.assert_allclose(values["scores"].features, scores, rtol=0, atol=1e-3)
    assert scores.std(axis=0).min() > 0.1


@pytest.mark.parametrize("kernel", definitions.MINKOWSKI_VOXEL_SIZES)
def test_minkowski_unet_is_its_definition(kernel: str, golden, points) -> None:
    scores = definitions.minkowski_scores(kernel, points)
    np.testing.assert_allclose(scores, golden[f"minkowski_{kernel}_scores"], rtol=1e-5, atol=1e-5)
    assert scores.std(axis=0).min() > 0.1
    assert len(np.unique(scores.argmax(axis=1))) > 3


def test_sparse_resnet_is_its_definition(golden, points) -> None:
    scores = definitions.resnet_scores(points)
    np.testing.assert_allclose(scores, golden["resnet21d_scores"], rtol=1e-5, atol=1e-5)
    assert scores.std(axis=0).min() > 0.1
    assert len(np.unique(scores.argmax(axis=1))) > 3


def test_random_activations_stay_within_float16(tmp_path: Path, points) -> None:
    network = minkunet.random_minkunet(name="random", width=0.125, num_classes=7)
    model_folder.write(tmp_path, network, model_folder.config_textproto(()))
    values = MinkUNet(tmp_path / "1").run(points[:20_000])
    for name, value in values.items():
        if name.endswith((".relu", "classifier")):
            assert 0.01 < value.features.std() and np.abs(value.features).max() < 1000, name
