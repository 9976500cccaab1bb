"""Shows points in the colours of their classes, boxes and times in the viewer Rerun (https://rerun.io).

Rerun can send statistics of its use to its makers. This module gives it a configuration that forbids that.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.point_cloud import PointCloud
from voxserve.results import Answer, ClassInfo, Detections, Segmentation

_APPLICATION = "voxserve"
_POINT_METRES = 0.06
_UNLABELLED = 65535
_START_SECONDS = 30.0
_GREY = (110, 110, 110)


class ViewError(ValueError):
    """The viewer cannot be opened, or there is nothing to show. The message says why."""


@dataclass(frozen=True)
class Shown:
    """A scan and a model's results for it, for Viewer.show. Points that are not finite are not drawn."""

    index: int  # the place on the timeline "frame"
    stamp_ns: int | None  # the time of the scan, nanoseconds since 1970; None: unknown
    points: npt.NDArray[np.float32]  # [N, 3] metres
    labels: npt.NDArray[np.integer] | None = None  # [N] class ids
    # [N, 3] red, green, blue of each point; None: the colours of the viewer's classes
    colors: npt.NDArray[np.uint8] | None = None
    boxes: npt.NDArray[np.float64] | None = None  # [M, 7], as Detections.boxes
    box_ids: npt.NDArray[np.integer] | None = None  # [M] class ids
    # [M, 3] red, green, blue of each box; None: the colours of the viewer's classes
    box_colors: npt.NDArray[np.uint8] | None = None
    box_texts: Sequence[str] = ()  # [M]
    times_ms: Mapping[str, float] = field(default_factory=dict)  # name -> milliseconds, drawn as curves

    @staticmethod
    def of_result(index: int, cloud: PointCloud, labels: Segmentation | None, found: Detections | None) -> Shown:
        """Returns the Shown of a cloud and the model's answers. An answer that the model does not give is None."""
        answer: Answer | None = labels or found
        times = {}
        if answer is not None:
            times = {stage.name: 1e3 * stage.seconds for stage in answer.stages}
            times = {"server": sum(times.values()), "round_trip": 1e3 * answer.round_trip, **times}
        texts = []
        if found is not None:
            names = [name or f"class {number}" for name, number in zip(found.names, found.class_ids, strict=True)]
            texts = [f"{name} {score:.2f}" for name, score in zip(names, found.scores, strict=True)]
        return Shown(
            index,
            cloud.stamp_ns,
            places(cloud),
            None if labels is None else labels.labels,
            boxes=None if found is None else found.boxes.astype(np.float64),
            box_ids=None if found is None else found.class_ids,
            box_texts=texts,
            times_ms=times,
        )


def places(cloud: PointCloud) -> npt.NDArray[np.float32]:
    """Returns x, y and z of each point: [num_points, 3]. A cloud of 0 points may lack these fields."""
    if not cloud.num_points:
        return np.zeros((0, 3), np.float32)
    return np.stack([cloud.values(axis) for axis in "xyz"], axis=1)


class Viewer:
    """Shows scans in Rerun. Use it in a `with` block.

    classes: the model's classes, for their names and colours.
    save: a file (.rrd) to write the recording to, instead of showing it.
    web_port: serves a viewer for browsers of this machine at this port, and its data at the next port.
    connect: the address of a viewer that runs already: rerun+http://HOST:9876/proxy.

    Without the last three, it starts a viewer on this machine. ViewError if Rerun is not installed or cannot serve.
    """

    def __init__(
        self, classes: Sequence[ClassInfo], *, save: str = "", web_port: int | None = None, connect: str = ""
    ) -> None:
        rr = _rerun()
        self._rr = rr
        self._is_known = {info.id for info in classes}
        self._had_boxes = False
        self.address = ""  # the URL of the viewer for browsers; "" without web_port
        self._server: subprocess.Popen[bytes] | None = None
        self._recording: Any = rr.RecordingStream(_APPLICATION)
        if save:
            self._recording.save(save, default_blueprint=self._blueprint())
        elif connect:
            self._recording.connect_grpc(connect, default_blueprint=self._blueprint())
        elif web_port is not None:
            self._server = _serve(web_port)
            url = f"rerun+http://127.0.0.1:{web_port + 1}/proxy"
            self._recording.connect_grpc(url, default_blueprint=self._blueprint())
            self.address = f"http://127.0.0.1:{web_port}/?url={url}"
        else:
            self._recording.spawn(default_blueprint=self._blueprint())
        if classes:
            context = [rr.AnnotationInfo(id=info.id, label=info.name, color=info.color) for info in classes]
            context.append(rr.AnnotationInfo(id=_UNLABELLED, label="not labelled", color=_GREY))
            self._recording.log("/", rr.AnnotationContext(context), static=True)
        self._recording.log("world", rr.ViewCoordinates.RIGHT_HAND_Z_UP, static=True)

    def _blueprint(self) -> Any:
        views = self._rr.blueprint
        scene = views.Spatial3DView(origin="/world", name="scan")
        times = views.TimeSeriesView(origin="/ms", name="milliseconds")
        return views.Blueprint(views.Vertical(scene, times, row_shares=[4, 1]), collapse_panels=True)

    def show(self, shown: Shown) -> None:
        """Shows a scan at its place on the timelines "frame" (its index) and "stamp" (its time)."""
        rr, recording = self._rr, self._recording
        recording.set_time("frame", sequence=shown.index)
        if shown.stamp_ns is not None:
            recording.set_time("stamp", timestamp=np.datetime64(shown.stamp_ns, "ns"))
        finite = np.isfinite(shown.points).all(axis=1)
        look: dict[str, Any] = {}
        if shown.colors is not None:
            look["colors"] = shown.colors[finite]
        elif shown.labels is not None:
            ids = np.asarray(shown.labels)[finite].astype(np.uint16)
            look["class_ids"] = np.where(np.isin(ids, list(self._is_known)), ids, _UNLABELLED).astype(np.uint16)
        recording.log("world/points", rr.Points3D(shown.points[finite], radii=_POINT_METRES, **look))
        if shown.boxes is not None:
            self._show_boxes(shown)
        elif self._had_boxes:
            recording.log("world/boxes", rr.Clear(recursive=False))
        for name, value in shown.times_ms.items():
            recording.log(f"ms/{name}", rr.Scalars(value))

    def _show_boxes(self, shown: Shown) -> None:
        rr, boxes = self._rr, shown.boxes
        assert boxes is not None
        self._had_boxes = True
        if not len(boxes):
            self._recording.log("world/boxes", rr.Clear(recursive=False))
            return
        half = boxes[:, 6] / 2
        zero = np.zeros(len(boxes))
        look: dict[str, Any] = {}
        if shown.box_colors is not None:
            look["colors"] = shown.box_colors
        elif shown.box_ids is not None:
            look["class_ids"] = np.asarray(shown.box_ids, np.uint16)
        turns = np.stack([zero, zero, np.sin(half), np.cos(half)], axis=1)  # x, y, z, w
        self._recording.log(
            "world/boxes",
            rr.Boxes3D(
                centers=boxes[:, :3],
                half_sizes=boxes[:, 3:6] / 2,
                quaternions=turns,
                labels=list(shown.box_texts),
                **look,
            ),
        )

    def close(self) -> None:
        """Writes what is still in memory, and ends the viewer for browsers."""
        self._recording.flush()
        self._recording.disconnect()
        if self._server is not None:
            self._server.terminate()
            self._server.wait()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _serve(web_port: int) -> subprocess.Popen[bytes]:
    """Starts Rerun's viewer for browsers at web_port and its data server at web_port + 1. Both accept only connections
    from this machine, for which Rerun's own functions have no option. Raises ViewError if a port is in use, or if
    they do not answer within 30 s.
    """
    if any(_is_open(port) for port in (web_port, web_port + 1)):
        raise ViewError(f"port {web_port} or {web_port + 1} is in use; name another with --web")
    ports = ["--bind", "127.0.0.1", "--port", str(web_port + 1), "--web-viewer-port", str(web_port)]
    import rerun_cli

    # The path of Rerun's program itself. Rerun's Python wrapper would leave the program running when it is ended.
    name = "rerun.exe" if os.name == "nt" else "rerun"
    command = [str(Path(rerun_cli.__file__).parent / name), "--serve-web", "--hide-welcome-screen", *ports]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < end:
        if all(_is_open(port) for port in (web_port, web_port + 1)):
            return server
        time.sleep(0.05)
    server.terminate()
    server.wait()
    raise ViewError(f"Rerun does not serve on the ports {web_port} and {web_port + 1}")


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _rerun() -> Any:
    """Returns the module rerun, which sends no statistics, nor do viewers that it starts. Raises ViewError if it is not
    installed.
    """
    silence()
    try:
        import rerun
    except ImportError:
        raise ViewError("the viewer needs more packages: pip install 'voxserve[view]'") from None
    return rerun


@cache
def silence() -> str:
    """Gives Rerun a configuration that forbids statistics, for this process and its children only. Does not change the
    user's own configuration. Returns the folder of the new one.
    """
    folder = Path(tempfile.mkdtemp(prefix="voxserve-view-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    settings = folder / "rerun" / "analytics.json"
    settings.parent.mkdir()
    content = {"analytics_enabled": False, "analytics_id": "", "metadata": {}}
    places = {"config_file_path": str(settings), "data_dir_path": str(folder)}
    settings.write_text(json.dumps({**content, **places}))
    os.environ["XDG_CONFIG_HOME"] = str(folder)
    os.environ["TELEMETRY_ENABLED"] = "false"
    return str(folder)
