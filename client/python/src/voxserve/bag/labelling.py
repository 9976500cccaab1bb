"""Sends a bag's sweeps to the server in a stream, and yields them with their results, in order. A cloud that the server
refuses, or whose pose is not known, does not end the stream: it is yielded as a Skipped.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from voxserve.bag.source import Skipped, Source, Sweep
from voxserve.bag.transforms import Matrix, Transforms
from voxserve.client import Client
from voxserve.errors import InferenceError, InvalidArgumentError, SupersededError
from voxserve.field_spec import Field
from voxserve.point_cloud import PointCloud
from voxserve.results import FrameResult, ModelVersion
from voxserve.stream import Stream
from voxserve.stream_state import Policy, Sweeps

_MAX_UNDER_WAY = 4  # the most sweeps in memory that have no result yet; enough to keep the server busy
_OWN_FAULTS = {"MESSAGE_TOO_LARGE", "RESPONSE_TOO_LARGE"}  # reasons that concern one cloud, not the server


@dataclass(frozen=True)
class Poses:
    """The poses of the sensor during a drive, from tf or from a topic of poses."""

    transforms: Transforms
    fixed: str  # the coordinate frame that does not move; "": the root of the transforms
    moving: str = ""  # if the poses come from a topic: the frame whose poses they are; "": that of the cloud
    is_topic: bool = False  # whether the poses come from a topic

    @staticmethod
    def read(source: Source, pose: str, fixed: str) -> Poses:
        """Reads the poses of a bag. pose: "tf", or the name of a topic of poses; in that case tf is only used for the
        sensor's position on the vehicle. fixed: the frame of tf that does not move; "" for the root. Raises BagError.
        """
        transforms = source.transforms()
        if pose == "tf":
            return Poses(transforms, fixed)
        moved, base, moving = source.poses(pose)
        return Poses(transforms.joined(moved), base, moving, is_topic=True)

    def of(self, sweep: Sweep) -> Matrix:
        """Returns the transform [4, 4] from the cloud's coordinates to the frame that does not move, at the cloud's
        time. Raises BagError if it is not known.
        """
        frame, stamp = sweep.cloud.frame_id, sweep.cloud.stamp_ns or sweep.time_ns
        fixed = self.fixed or self.transforms.root(frame)
        # If tf does not contain the sensor's frame, the poses of the topic are taken as the sensor's own.
        known = frame if self.transforms.knows(frame) else self.moving
        return self.transforms.lookup(fixed, known if self.is_topic else frame, stamp)


@dataclass(frozen=True)
class Request:
    """The model that labels the sweeps, and the settings of the stream."""

    model: ModelVersion
    topic: str
    num_sweeps: int = 1  # sweeps that the server merges
    rate: float | None = None  # the pace, as a multiple of the recorded one; None: as fast as the server answers
    scales: dict[str, float] | None = None  # as in Client.stream

    @property
    def age_feature(self) -> str:
        """Returns the name of the model's feature that holds a point's age, or "" if it has none."""
        return next((feature.name for feature in self.model.features if feature.unit == "s"), "")

    def empty_cloud(self, cloud: PointCloud) -> PointCloud:
        """Returns a cloud of 0 points with all fields that the model reads. Drivers send clouds of 0 points without
        fields, which the server would refuse.
        """
        names = ["x", "y", "z", *(feature.name for feature in self.model.features), *(self.scales or ())]
        fields = tuple(Field(name, "f32", 4 * place) for place, name in enumerate(dict.fromkeys(names)))
        return PointCloud(b"", 0, 4 * len(fields), fields, stamp_ns=cloud.stamp_ns, frame_id=cloud.frame_id)


def label(
    client: Client, request: Request, sweeps: Iterable[Sweep | Skipped], poses: Poses | None, first: int
) -> Iterator[tuple[Sweep, FrameResult] | Skipped]:
    """Yields the sweeps with an index of `first` or more, with their results, and those that are left out with the
    reason. Earlier sweeps are sent too, so that the server can merge them with the first ones. With Request.rate,
    sweeps that come faster than the server answers are left out without a word, as in a vehicle (policy "latest");
    without it, all are run. Raises InferenceError or BagError.
    """
    merged = Sweeps(request.num_sweeps, age_feature=request.age_feature) if request.num_sweeps > 1 else None
    policy: Policy = "queue" if request.rate is None else "latest"
    with client.stream(
        request.model.name, version=request.model.version, policy=policy, scales=request.scales, sweeps=merged
    ) as stream:
        sender = _Sender(stream, request, poses)
        thread = threading.Thread(target=sender.run, args=(iter(sweeps),), name="voxserve-bag", daemon=True)
        thread.start()
        try:
            for result in stream:
                yield from sender.skipped_from(first, result.frame_id)
                sweep = sender.take(result.frame_id)
                if isinstance(result.error, SupersededError):
                    continue
                if result.error is not None and not _is_own_fault(result.error):
                    raise result.error
                if sweep.index < first:
                    continue
                if result.error is not None:
                    yield sender.skip(sweep, result.error)
                else:
                    yield sweep, result
            yield from sender.skipped_from(first)
            if sender.error is not None:
                raise sender.error
        finally:
            sender.stop()
            stream.cancel()
            thread.join()


def _is_own_fault(error: InferenceError) -> bool:
    """Returns whether the error concerns one cloud, so that other clouds may be answered."""
    return isinstance(error, InvalidArgumentError) or error.reason in _OWN_FAULTS


class _Sender:
    """Reads the sweeps and sends them to the stream. run() has a thread of its own; label() calls the other methods. It
    keeps each sweep until take() returns it.
    """

    def __init__(self, stream: Stream, request: Request, poses: Poses | None) -> None:
        self.error: Exception | None = None
        self._stream, self._request, self._poses = stream, request, poses
        self._room = threading.Semaphore(_MAX_UNDER_WAY)
        self._under_way: dict[int, Sweep] = {}
        self._skipped: deque[Skipped] = deque()
        self._stopped = threading.Event()

    def run(self, sweeps: Iterator[Sweep | Skipped]) -> None:
        start: tuple[float, int] | None = None
        try:
            for sweep in sweeps:
                if isinstance(sweep, Skipped):
                    self._skipped.append(sweep)
                    continue
                self._room.acquire()
                if self._stopped.is_set():
                    return
                if self._request.rate is not None:
                    start = start or (time.perf_counter(), sweep.time_ns)
                    due = start[0] + (sweep.time_ns - start[1]) / 1e9 / self._request.rate
                    if self._stopped.wait(max(0.0, due - time.perf_counter())):
                        return
                self._send(sweep)
        except Exception as error:  # label() raises it
            self.error = error
        finally:
            if not self._stopped.is_set():
                self._stream.close_sends()

    def _send(self, sweep: Sweep) -> None:
        if sweep.cloud.stamp_ns is None:
            sweep = replace(sweep, cloud=replace(sweep.cloud, stamp_ns=sweep.time_ns))
        self._under_way[sweep.index] = sweep
        cloud = sweep.cloud if sweep.cloud.num_points else self._request.empty_cloud(sweep.cloud)
        try:
            pose = None if self._poses is None else self._poses.of(sweep)
            self._stream.send(sweep.index, cloud, pose=pose)
        except (ValueError, InferenceError) as error:
            if isinstance(error, InferenceError) and not _is_own_fault(error):
                raise
            self._skipped.append(self.skip(self.take(sweep.index), error))

    def skip(self, sweep: Sweep, error: Exception) -> Skipped:
        """Returns the Skipped of a sweep that cannot be labelled."""
        return Skipped(self._request.topic, sweep.index, sweep.time_ns, str(error))

    def skipped_from(self, first: int, end: int | None = None) -> Iterator[Skipped]:
        """Yields what was left out before the sweep with the index `end` (None: to the end), and removes it. Yields
        only those with an index of `first` or more.
        """
        while self._skipped and (end is None or self._skipped[0].index < end):
            skipped = self._skipped.popleft()
            if skipped.index >= first:
                yield skipped

    def take(self, index: int) -> Sweep:
        """Returns the sweep of a result, and lets run() send another one."""
        sweep = self._under_way.pop(index)
        self._room.release()
        return sweep

    def stop(self) -> None:
        """Makes run() end."""
        self._stopped.set()
        self._room.release()
