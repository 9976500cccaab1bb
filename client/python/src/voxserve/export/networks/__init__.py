"""The networks of the field as model folders: from a state dict of the library that trained them, or random by a seed.

One module a family: minkunet (MinkUNet and SPVCNN of TorchSparse, spvnas and mmdetection3d), minkowski_unet
(MinkowskiEngine's, of 3 and 4 axes), sp_unet (Pointcept's), sparse_resnet (SparseResNet21D), center_point and second
(OpenPCDet's and det3d's detectors).
"""
