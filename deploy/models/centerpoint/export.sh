#!/usr/bin/env bash
# Writes this folder again from the trained weights. Usage: export.sh WEIGHTS (weights.safetensors of deploy/train);
# needs the Python package voxserve.
set -euo pipefail
weights=${1:?usage: export.sh WEIGHTS}
exec "${PYTHON:-python3}" -m voxserve.export centerpoint "$weights" --dataset pandaset \
  --output "$(dirname "${BASH_SOURCE[0]}")" \
  --name "CenterPoint, narrow" \
  --description "Boxes of 5 street classes, trained on 57 frames of PandaSet sequence 002 (one street, one drive of 8 s): a demo, not for driving. Spinning LiDAR in the sensor's frame, x forward, z up, intensity 0..1." \
  --notice "CenterPoint on voxels (OpenPCDet's definition, narrower) trained on PandaSet sequence 002.
PandaSet by Hesai and Scale AI. Written by 'python -m voxserve.export centerpoint'; see README.md."
