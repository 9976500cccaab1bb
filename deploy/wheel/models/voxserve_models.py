"""Two trained models for voxserve, minkunet and centerpoint, and a LiDAR scan."""

from pathlib import Path

_FOLDER = Path(__file__).resolve().parent


def models() -> Path:
    """Returns the model repository, a folder of model folders."""
    return _FOLDER / "models"


def scan() -> Path:
    """Returns a scan: PandaSet 002, frame 070; float32 x, y, z and intensity 0..1."""
    return _FOLDER / "scans" / "pandaset_070.bin"
