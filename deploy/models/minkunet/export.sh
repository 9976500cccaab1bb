#!/usr/bin/env bash
# Writes this folder again from the trained weights. Usage: export.sh FOLDER_OF_WEIGHTS
# (minkunet-0.5-pandaset.safetensors and model_card.json); needs the Python package voxserve.
set -euo pipefail
source_folder=${1:?usage: export.sh FOLDER_OF_WEIGHTS}
exec "${PYTHON:-python3}" -m voxserve.export torchsparse-minkunet "$source_folder/minkunet-0.5-pandaset.safetensors" \
  --classes "$source_folder/model_card.json" \
  --output "$(dirname "${BASH_SOURCE[0]}")" \
  --name "MinkUNet 0.5x" \
  --description "12 street classes, trained on 42 frames of PandaSet sequence 002 (one street, one drive of 8 s): a demo, not for driving. Spinning LiDAR in the sensor's frame, x forward, z up, intensity 0..1." \
  --notice "MinkUNet 0.5x (TorchSparse's SparseResUNet42 and a linear classifier) trained on PandaSet sequence 002.
PandaSet by Hesai and Scale AI. Written by 'python -m voxserve.export torchsparse-minkunet'; see README.md."
