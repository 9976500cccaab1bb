"""Sends a bag's sweeps to the server in a stream, and yields them with their results, in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from voxserve.bag.bag_error import BagError
from voxserve.bag.source import Source, Sweep
from voxserve.bag.transforms import Matrix, Transforms
from voxserve.client import Client
from voxserve.errors import SupersededError
from voxserve.results import FrameResult, ModelVersion
from voxserve.stream import Stream
from voxserve.stream_state import Policy, Sweeps

_MAX_UNDER_WAY = 4  # the most sweeps in memory that have no result yet; enough to keep the server busy


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
        try:
            # If tf does not contain the sensor's frame, the poses of the topic are taken as the sensor's own.
            known = frame if self.transforms.knows(frame) else self.moving
            return self.transforms.lookup(fixed, known if self.is_topic else frame, stamp)
        except BagError as error:
            raise BagError(f"message {sweep.index}: {error}") from None


@dataclass(frozen=True)
class Request:
    """The model that labels the sweeps, and the settings of the stream."""

    model: ModelVersion
    num_sweeps: int = 1  # sweeps that the server merges
    rate: float | None = None  # the pace, as a multiple of the recorded one; None: as fast as the server answers
    scales: dict[str, float] | None = None  # as in Client.stream

    @property
    def age_feature(self) -> str:
        """Returns the name of the model's feature that holds a point's age, or "" if it has none."""
        return next((feature.name for feature in self.model.features if feature.unit == "s"), "")


def label(
    client: Client, request: Request, sweeps: Iterable[Sweep], poses: Poses | None, first: int
) -> Iterator[tuple[Sweep, FrameResult]]:
    """Yields the sweeps with an index of `first` or more, with their results. Earlier sweeps are sent too, so that the
    server can merge them with the first ones. With Request.rate, sweeps that come faster than the server answers are
    left out, as in a vehicle (policy "latest"); without it, all are run. Raises InferenceError or BagError.
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
                sweep = sender.take(result.frame_id)
                if isinstance(result.error, SupersededError):
                    continue
                if result.error is not None:
                    raise result.error
                if sweep.index >= first:
                    yield sweep, result
            if sender.error is not None:
                raise sender.error
        finally:
            sender.stop()
            stream.cancel()
            thread.join()


class _Sender:
    """Reads the sweeps and sends them to the stream. run() has a thread of its own; label() calls the other methods. It
    keeps each sweep until take() returns it.
    """

    def __init__(self, stream: Stream, request: Request, poses: Poses | None) -> None:
        self.error: Exception | None = None
        self._stream, self._request, self._poses = stream, request, poses
        self._room = threading.Semaphore(_MAX_UNDER_WAY)
        self._under_way: dict[int, Sweep] = {}
        self._stopped = threading.Event()

    def run(self, sweeps: Iterator[Sweep]) -> None:
        start: tuple[float, int] | None = None
        try:
            for sweep in sweeps:
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
        pose = stamp = None
        if self._poses is not None:
            pose = self._poses.of(sweep)
        if sweep.cloud.stamp_ns is None:
            sweep = replace(sweep, cloud=replace(sweep.cloud, stamp_ns=sweep.time_ns))
        self._under_way[sweep.index] = sweep
        try:
            self._stream.send(sweep.index, sweep.cloud, pose=pose, stamp=stamp)
        except ValueError as error:
            raise BagError(f"message {sweep.index}: {error}") from None

    def take(self, index: int) -> Sweep:
        """Returns the sweep of a result, and lets run() send another one."""
        sweep = self._under_way.pop(index)
        self._room.release()
        return sweep

    def stop(self) -> None:
        """Makes run() end."""
        self._stopped.set()
        self._room.release()
