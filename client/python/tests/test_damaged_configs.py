"""Damages training configurations at random places: the reader reports what is wrong, and never ends otherwise."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from detector_config_files import mmdetection3d, openpcdet

from voxserve.export import ExportError, detector_configs
from voxserve.export.networks import center_point, second, voxelnext

WHOLE = [
    *(openpcdet(name) for name in ("centerpoint waymo", "centerpoint-pillar nuscenes", "second kitti")),
    *(openpcdet(name) for name in ("voxelnext nuscenes", "pointpillars kitti")),
    *(mmdetection3d(name) for name in ("voxel", "pillar", "second")),
]
NAN, INFINITY = float("nan"), float("inf")
JUNK: list[Any] = [None, "x", "", 0, -1, 2.5, NAN, INFINITY, 10**30, True, [], [None], [[1]], {}, {"type": "x"}]
JUNK += [[1, "a"], ["a", "b"], [0] * 6, [1, 2, 3], "{{_base_.x}}"]
MODULES: dict[str, Any] = {"voxelnext": voxelnext, "second": second, "pointpillars": second}


def places(values: Any) -> list[tuple[Any, Any]]:
    """Returns every section and list of a file, with each of its keys."""
    keys = list(values) if isinstance(values, dict) else range(len(values)) if isinstance(values, list) else ()
    return [place for key in keys for place in ((values, key), *places(values[key]))]


def damaged(rng: random.Random) -> Any:
    values = copy.deepcopy(rng.choice(WHOLE))
    for _ in range(rng.randint(1, 3)):
        owner, key = rng.choice(places(values))
        if rng.random() < 0.2:
            del owner[key]
        else:
            owner[key] = copy.deepcopy(rng.choice(JUNK))
    return values


@pytest.mark.usefixtures("no_values")
@pytest.mark.parametrize("seed", range(4))
def test_damaged_configurations_are_reported(tmp_path: Path, seed: int) -> None:
    rng, path, num_read = random.Random(seed), tmp_path / "c.json", 0
    for _ in range(150):
        path.write_text(json.dumps(damaged(rng)))
        problems: tuple[str, ...] = ()
        try:
            made = detector_configs.read(str(path))
        except ExportError as error:
            problems = error.problems
        except ValueError as error:
            problems = (str(error),)
        if problems:
            assert all(problem.startswith(str(path)) for problem in problems)
            continue
        num_read += 1
        library = {} if made.command == "voxelnext" else {"library": made.library}
        MODULES.get(made.command, center_point).random_network(made.config, name="n", **library)
    assert 0 < num_read < 75
