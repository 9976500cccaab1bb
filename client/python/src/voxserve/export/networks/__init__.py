"""Published networks as model folders: from the state dict of the library that trained them, or random from a seed.

There is one module per family: minkunet (MinkUNet and SPVCNN of TorchSparse, spvnas, mmdetection3d), minkowski_unet
(MinkowskiEngine's, of 3 and 4 axes), sp_unet (Pointcept's), sparse_resnet (SparseResNet21D), center_point, voxelnext
and second (OpenPCDet's and det3d's detectors, on voxels and on pillars), trans_fusion (TransFusion-L and BEVFusion-L,
whose heads have queries), point_transformer (PTv3 of Pointcept and autoware-ml, its successors, and LitePT), dsvt and
flatformer (transformers on pillars), and svtnet (SVT-Net, a vector for each cloud).
"""
