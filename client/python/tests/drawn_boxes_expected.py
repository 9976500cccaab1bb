"""The results of the benchmarks' own programs for drawn_boxes.draw().

nuScenes: nuscenes-devkit 1.2.0, nuscenes.eval.detection.algo.accumulate, calc_ap and calc_tp (recall and precision
above 0.1) of one class. KITTI: the functions of traveller59/kitti-object-eval-python's eval.py (clean_data,
compute_statistics_jit, get_thresholds) without numba, with overlaps by shapely 2.0.7, and the mean precision at
40 recalls. This file has only the programs' results, none of their code.

tests/oracles/box_metrics.py computed the values.
"""

# The AP and the errors of translation, scale, orientation and velocity, by matching distance in metres.
NUSCENES = {
    0.5: (0.579001227314, 0.041726817508, 0.181507959696, 0.071268345474, 0.38686195007),
    1.0: (0.593437898422, 0.044443011956, 0.181342016288, 0.071370369301, 0.386547799098),
    2.0: (0.596560111495, 0.050139795549, 0.181446320067, 0.07485388066, 0.393295664888),
    4.0: (0.597758566081, 0.055245056236, 0.181517116037, 0.078356509297, 0.395885269218),
}

# The AP by difficulty, kind of overlap (bev: seen from above) and least overlap.
KITTI = {
    ("easy", "bev", 0.7): 0.045017361111,
    ("easy", "bev", 0.5): 0.045017361111,
    ("easy", "3d", 0.7): 0.02360785033,
    ("easy", "3d", 0.5): 0.045017361111,
    ("moderate", "bev", 0.7): 0.241771129479,
    ("moderate", "bev", 0.5): 0.25739219924,
    ("moderate", "3d", 0.7): 0.20077484472,
    ("moderate", "3d", 0.5): 0.257223508282,
    ("hard", "bev", 0.7): 0.386867018429,
    ("hard", "bev", 0.5): 0.421068218943,
    ("hard", "3d", 0.7): 0.324668087056,
    ("hard", "3d", 0.5): 0.411536558775,
}

# For each frame the sums of the overlaps of all pairs of boxes: of the areas seen from above, and of the volumes.
OVERLAP_SUMS = (
    (8.061053875, 6.609539039),
    (6.267164957, 5.756727675),
    (8.26743766, 7.593364832),
    (7.934565985, 7.101385959),
    (4.792585142, 4.207406858),
    (7.435244437, 6.597717669),
    (8.411547671, 7.612588791),
    (7.72019268, 6.871691826),
    (6.160243015, 5.357219798),
    (8.307320475, 7.503333587),
    (6.649970747, 6.068082794),
    (8.348824479, 7.411218208),
)
