"""Shows labelled scans in Rerun: python -m voxserve.view --help. Needs the packages of voxserve[view].

A program that has a stream of its own shows it so:

    with Viewer(model.classes, web_port=9090) as viewer:
        for frame_id, points in enumerate(scans):
            stream.send(frame_id, points)
            result = next(stream)
            viewer.show(Shown.of_result(frame_id, as_cloud(points), result.segmentation, result.detections))
"""

from voxserve.view.viewer import Shown, Viewer, ViewError

__all__ = ["Shown", "ViewError", "Viewer"]
