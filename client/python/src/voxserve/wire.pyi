# Written by tools/update_wire.py from the .proto files, where every field is documented.
from collections.abc import Iterable, Mapping, MutableMapping
from typing import ClassVar

from google.protobuf import any_pb2, duration_pb2, timestamp_pb2
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer, RepeatedScalarFieldContainer
from google.protobuf.message import Message

def message_class(full_name: str) -> type[Message]: ...

class Status(Message):
    code: int
    message: str
    details: RepeatedCompositeFieldContainer[any_pb2.Any]
    def __init__(self, *, code: int | None = ..., message: str | None = ..., details: Iterable[any_pb2.Any] | None = ...) -> None: ...

POINT_FIELD_TYPE_UNSPECIFIED: int
POINT_FIELD_TYPE_INT8: int
POINT_FIELD_TYPE_UINT8: int
POINT_FIELD_TYPE_INT16: int
POINT_FIELD_TYPE_UINT16: int
POINT_FIELD_TYPE_INT32: int
POINT_FIELD_TYPE_UINT32: int
POINT_FIELD_TYPE_FLOAT32: int
POINT_FIELD_TYPE_FLOAT64: int
POINT_FIELD_TYPE_FLOAT16: int
class PointField(Message):
    name: str
    offset: int
    type: int
    count: int
    scale: float
    shift: float
    def __init__(self, *, name: str | None = ..., offset: int | None = ..., type: int | None = ..., count: int | None = ..., scale: float | None = ..., shift: float | None = ...) -> None: ...

class PointCloud(Message):
    data: bytes
    num_points: int
    point_step: int
    fields: RepeatedCompositeFieldContainer[PointField]
    height: int
    row_step: int
    is_bigendian: bool
    stamp: timestamp_pb2.Timestamp
    frame_id: str
    def __init__(self, *, data: bytes | None = ..., num_points: int | None = ..., point_step: int | None = ..., fields: Iterable[PointField] | None = ..., height: int | None = ..., row_step: int | None = ..., is_bigendian: bool | None = ..., stamp: timestamp_pb2.Timestamp | None = ..., frame_id: str | None = ...) -> None: ...

ELEMENT_TYPE_UNSPECIFIED: int
ELEMENT_TYPE_FLOAT32: int
ELEMENT_TYPE_FLOAT16: int
TENSOR_ROWS_UNSPECIFIED: int
TENSOR_ROWS_POINTS: int
TENSOR_ROWS_SITES: int
TENSOR_ROWS_SAMPLES: int
TENSOR_ROWS_CELLS: int
STREAM_POLICY_UNSPECIFIED: int
STREAM_POLICY_LATEST: int
STREAM_POLICY_QUEUE: int
MODEL_STATE_UNSPECIFIED: int
MODEL_STATE_LOADING: int
MODEL_STATE_READY: int
MODEL_STATE_FAILED: int
VOXEL_OVERFLOW_UNSPECIFIED: int
VOXEL_OVERFLOW_REJECT: int
VOXEL_OVERFLOW_NEAREST_FIRST: int
VOXEL_OVERFLOW_FIRST_SEEN: int
class InferRequest(Message):
    model: str
    version: int
    cloud: PointCloud
    return_scores: bool
    request_id: str
    priority: int
    sample: FarthestPointSample
    outputs: RepeatedScalarFieldContainer[str]
    tensor_type: int
    def __init__(self, *, model: str | None = ..., version: int | None = ..., cloud: PointCloud | None = ..., return_scores: bool | None = ..., request_id: str | None = ..., priority: int | None = ..., sample: FarthestPointSample | None = ..., outputs: Iterable[str] | None = ..., tensor_type: int | None = ...) -> None: ...

class FarthestPointSample(Message):
    USE_UNSPECIFIED: ClassVar[int]
    USE_RETURN: ClassVar[int]
    USE_NETWORK: ClassVar[int]
    num_points: int
    start_index: int
    seed: int
    use: int
    def __init__(self, *, num_points: int | None = ..., start_index: int | None = ..., seed: int | None = ..., use: int | None = ...) -> None: ...

class InferResponse(Message):
    model: str
    version: int
    request_id: str
    segmentation: Segmentation
    detections: Detections
    counts: PointCounts
    stages: RepeatedCompositeFieldContainer[StageDuration]
    device: str
    sampled_points: RepeatedScalarFieldContainer[int]
    tensors: RepeatedCompositeFieldContainer[Tensor]
    warnings: RepeatedCompositeFieldContainer[FeatureWarning]
    def __init__(self, *, model: str | None = ..., version: int | None = ..., request_id: str | None = ..., segmentation: Segmentation | None = ..., detections: Detections | None = ..., counts: PointCounts | None = ..., stages: Iterable[StageDuration] | None = ..., device: str | None = ..., sampled_points: Iterable[int] | None = ..., tensors: Iterable[Tensor] | None = ..., warnings: Iterable[FeatureWarning] | None = ...) -> None: ...

class FeatureWarning(Message):
    feature: str
    range: FeatureRange
    smallest: float
    largest: float
    num_checked: int
    num_outside: int
    def __init__(self, *, feature: str | None = ..., range: FeatureRange | None = ..., smallest: float | None = ..., largest: float | None = ..., num_checked: int | None = ..., num_outside: int | None = ...) -> None: ...

class FeatureRange(Message):
    low: float
    high: float
    def __init__(self, *, low: float | None = ..., high: float | None = ...) -> None: ...

class Tensor(Message):
    name: str
    shape: RepeatedScalarFieldContainer[int]
    type: int
    data: bytes
    rows: int
    coordinates: bytes
    unit: RepeatedScalarFieldContainer[float]
    def __init__(self, *, name: str | None = ..., shape: Iterable[int] | None = ..., type: int | None = ..., data: bytes | None = ..., rows: int | None = ..., coordinates: bytes | None = ..., unit: Iterable[float] | None = ...) -> None: ...

class TensorInfo(Message):
    name: str
    rows: int
    channels: int
    unit: RepeatedScalarFieldContainer[float]
    cells: RepeatedScalarFieldContainer[int]
    def __init__(self, *, name: str | None = ..., rows: int | None = ..., channels: int | None = ..., unit: Iterable[float] | None = ..., cells: Iterable[int] | None = ...) -> None: ...

class Segmentation(Message):
    labels: bytes
    bytes_per_label: int
    ignore_label: int
    num_classes: int
    scores: bytes
    def __init__(self, *, labels: bytes | None = ..., bytes_per_label: int | None = ..., ignore_label: int | None = ..., num_classes: int | None = ..., scores: bytes | None = ...) -> None: ...

class Detections(Message):
    boxes: RepeatedCompositeFieldContainer[Box]
    def __init__(self, *, boxes: Iterable[Box] | None = ...) -> None: ...

class Box(Message):
    class_id: int
    score: float
    x: float
    y: float
    z: float
    length: float
    width: float
    height: float
    yaw: float
    velocity_x: float
    velocity_y: float
    class_name: str
    query: int
    def __init__(self, *, class_id: int | None = ..., score: float | None = ..., x: float | None = ..., y: float | None = ..., z: float | None = ..., length: float | None = ..., width: float | None = ..., height: float | None = ..., yaw: float | None = ..., velocity_x: float | None = ..., velocity_y: float | None = ..., class_name: str | None = ..., query: int | None = ...) -> None: ...

class PointCounts(Message):
    used: int
    invalid: int
    out_of_range: int
    dropped: int
    voxels: int
    unsampled: int
    not_finite: int
    boxes_not_finite: int
    def __init__(self, *, used: int | None = ..., invalid: int | None = ..., out_of_range: int | None = ..., dropped: int | None = ..., voxels: int | None = ..., unsampled: int | None = ..., not_finite: int | None = ..., boxes_not_finite: int | None = ...) -> None: ...

class StageDuration(Message):
    name: str
    microseconds: float
    def __init__(self, *, name: str | None = ..., microseconds: float | None = ...) -> None: ...

class InferStreamRequest(Message):
    config: StreamConfig
    frame: StreamFrame
    part: FramePart
    def __init__(self, *, config: StreamConfig | None = ..., frame: StreamFrame | None = ..., part: FramePart | None = ...) -> None: ...

class StreamConfig(Message):
    model: str
    version: int
    return_scores: bool
    priority: int
    policy: int
    frame_timeout: duration_pb2.Duration
    max_queued_frames: int
    sweeps: SweepAccumulation
    sample: FarthestPointSample
    outputs: RepeatedScalarFieldContainer[str]
    tensor_type: int
    def __init__(self, *, model: str | None = ..., version: int | None = ..., return_scores: bool | None = ..., priority: int | None = ..., policy: int | None = ..., frame_timeout: duration_pb2.Duration | None = ..., max_queued_frames: int | None = ..., sweeps: SweepAccumulation | None = ..., sample: FarthestPointSample | None = ..., outputs: Iterable[str] | None = ..., tensor_type: int | None = ...) -> None: ...

class SweepAccumulation(Message):
    num_sweeps: int
    age_feature: str
    max_age: duration_pb2.Duration
    def __init__(self, *, num_sweeps: int | None = ..., age_feature: str | None = ..., max_age: duration_pb2.Duration | None = ...) -> None: ...

class StreamFrame(Message):
    frame_id: int
    cloud: PointCloud
    pose: Pose
    reset_sweeps: bool
    def __init__(self, *, frame_id: int | None = ..., cloud: PointCloud | None = ..., pose: Pose | None = ..., reset_sweeps: bool | None = ...) -> None: ...

class FramePart(Message):
    frame_id: int
    cloud: PointCloud
    pose: Pose
    reset_sweeps: bool
    index: int
    is_last: bool
    def __init__(self, *, frame_id: int | None = ..., cloud: PointCloud | None = ..., pose: Pose | None = ..., reset_sweeps: bool | None = ..., index: int | None = ..., is_last: bool | None = ...) -> None: ...

class Pose(Message):
    x: float
    y: float
    z: float
    qw: float
    qx: float
    qy: float
    qz: float
    def __init__(self, *, x: float | None = ..., y: float | None = ..., z: float | None = ..., qw: float | None = ..., qx: float | None = ..., qy: float | None = ..., qz: float | None = ...) -> None: ...

class InferStreamResponse(Message):
    result: FrameResult
    going_away: GoingAway
    def __init__(self, *, result: FrameResult | None = ..., going_away: GoingAway | None = ...) -> None: ...

class FrameResult(Message):
    frame_id: int
    status: Status
    response: InferResponse
    num_sweeps: int
    def __init__(self, *, frame_id: int | None = ..., status: Status | None = ..., response: InferResponse | None = ..., num_sweeps: int | None = ...) -> None: ...

class GoingAway(Message):
    def __init__(self) -> None: ...

class ListModelsRequest(Message):
    def __init__(self) -> None: ...

class ListModelsResponse(Message):
    models: RepeatedCompositeFieldContainer[ModelVersion]
    def __init__(self, *, models: Iterable[ModelVersion] | None = ...) -> None: ...

class GetModelRequest(Message):
    model: str
    version: int
    def __init__(self, *, model: str | None = ..., version: int | None = ...) -> None: ...

class GetModelResponse(Message):
    model: ModelVersion
    def __init__(self, *, model: ModelVersion | None = ...) -> None: ...

class ModelVersion(Message):
    name: str
    version: int
    state: int
    problems: RepeatedScalarFieldContainer[str]
    description: str
    classes: RepeatedCompositeFieldContainer[ClassInfo]
    ignore_label: int
    features: RepeatedCompositeFieldContainer[FeatureInfo]
    max_points: int
    voxel_size: RepeatedScalarFieldContainer[float]
    num_parameters: int
    device: str
    digest: str
    priority_levels: int
    has_scores: bool
    has_labels: bool
    has_boxes: bool
    has_velocities: bool
    tensors: RepeatedCompositeFieldContainer[TensorInfo]
    max_voxels: int
    voxel_overflow: int
    max_message_bytes: int
    reach: Reach
    def __init__(self, *, name: str | None = ..., version: int | None = ..., state: int | None = ..., problems: Iterable[str] | None = ..., description: str | None = ..., classes: Iterable[ClassInfo] | None = ..., ignore_label: int | None = ..., features: Iterable[FeatureInfo] | None = ..., max_points: int | None = ..., voxel_size: Iterable[float] | None = ..., num_parameters: int | None = ..., device: str | None = ..., digest: str | None = ..., priority_levels: int | None = ..., has_scores: bool | None = ..., has_labels: bool | None = ..., has_boxes: bool | None = ..., has_velocities: bool | None = ..., tensors: Iterable[TensorInfo] | None = ..., max_voxels: int | None = ..., voxel_overflow: int | None = ..., max_message_bytes: int | None = ..., reach: Reach | None = ...) -> None: ...

class Reach(Message):
    distance: RepeatedScalarFieldContainer[float]
    unbounded_by: str
    minimum_period: RepeatedScalarFieldContainer[int]
    def __init__(self, *, distance: Iterable[float] | None = ..., unbounded_by: str | None = ..., minimum_period: Iterable[int] | None = ...) -> None: ...

class ClassInfo(Message):
    id: int
    name: str
    color_rgb: int
    def __init__(self, *, id: int | None = ..., name: str | None = ..., color_rgb: int | None = ...) -> None: ...

class FeatureInfo(Message):
    name: str
    unit: str
    default_value: float
    range: FeatureRange
    def __init__(self, *, name: str | None = ..., unit: str | None = ..., default_value: float | None = ..., range: FeatureRange | None = ...) -> None: ...

class LoadModelRequest(Message):
    model: str
    version: int
    def __init__(self, *, model: str | None = ..., version: int | None = ...) -> None: ...

class LoadModelResponse(Message):
    versions: RepeatedScalarFieldContainer[int]
    def __init__(self, *, versions: Iterable[int] | None = ...) -> None: ...

class UnloadModelRequest(Message):
    model: str
    version: int
    def __init__(self, *, model: str | None = ..., version: int | None = ...) -> None: ...

class UnloadModelResponse(Message):
    versions: RepeatedScalarFieldContainer[int]
    def __init__(self, *, versions: Iterable[int] | None = ...) -> None: ...

class TunePlanRequest(Message):
    model: str
    version: int
    num_scans: int
    max_wait_seconds: float
    def __init__(self, *, model: str | None = ..., version: int | None = ..., num_scans: int | None = ..., max_wait_seconds: float | None = ...) -> None: ...

class TunePlanUpdate(Message):
    progress: TunePlanProgress
    result: TunePlanResult
    def __init__(self, *, progress: TunePlanProgress | None = ..., result: TunePlanResult | None = ...) -> None: ...

class TunePlanProgress(Message):
    stage: str
    fraction: float
    def __init__(self, *, stage: str | None = ..., fraction: float | None = ...) -> None: ...

class TunePlanResult(Message):
    device: str
    num_scans: int
    buckets: RepeatedCompositeFieldContainer[TunedBucket]
    seconds: float
    path: str
    def __init__(self, *, device: str | None = ..., num_scans: int | None = ..., buckets: Iterable[TunedBucket] | None = ..., seconds: float | None = ..., path: str | None = ...) -> None: ...

class TunedBucket(Message):
    min_voxels: int
    max_voxels: int
    num_scans: int
    default_ms: float
    tuned_ms: float
    def __init__(self, *, min_voxels: int | None = ..., max_voxels: int | None = ..., num_scans: int | None = ..., default_ms: float | None = ..., tuned_ms: float | None = ...) -> None: ...

SITES_UNSPECIFIED: int
SITES_SAME: int
SITES_UNION: int
class Model(Message):
    name: str
    description: str
    dimension: int
    nodes: RepeatedCompositeFieldContainer[Node]
    outputs: RepeatedCompositeFieldContainer[Output]
    def __init__(self, *, name: str | None = ..., description: str | None = ..., dimension: int | None = ..., nodes: Iterable[Node] | None = ..., outputs: Iterable[Output] | None = ...) -> None: ...

class Node(Message):
    name: str
    inputs: RepeatedScalarFieldContainer[str]
    voxelize: Voxelize
    sparse_conv: SparseConv
    batch_norm: BatchNorm
    linear: Linear
    activation: Activation
    add: Add
    concat: Concat
    voxel_to_point: VoxelToPoint
    argmax: Argmax
    pool: Pool
    global_pool: GlobalPool
    broadcast: Broadcast
    instance_norm: InstanceNorm
    group_norm: GroupNorm
    farthest_point_sample: FarthestPointSampling
    to_dense: ToDense
    to_bev: ToBev
    from_dense: FromDense
    conv2d: Conv2d
    conv_transpose2d: ConvTranspose2d
    center_head_decode: CenterHeadDecode
    anchor_head_decode: AnchorHeadDecode
    nms: Nms
    crop: Crop
    prune: Prune
    point_features: PointFeatures
    point_to_voxel: PointToVoxel
    devoxelize: Devoxelize
    multiply: Multiply
    softmax: Softmax
    layer_norm: LayerNorm
    l2_norm: L2Norm
    prelu: PRelu
    embedding: Embedding
    sample_rows: SampleRows
    attention: Attention
    groups: Groups
    rotary: Rotary
    site_position: SitePosition
    elementwise: Elementwise
    row_reduce: RowReduce
    site_coordinates: SiteCoordinates
    max_pool2d: MaxPool2d
    point_offsets: PointOffsets
    select: Select
    gather: Gather
    constant: Constant
    query_decode: QueryDecode
    weights_of: str
    def __init__(self, *, name: str | None = ..., inputs: Iterable[str] | None = ..., voxelize: Voxelize | None = ..., sparse_conv: SparseConv | None = ..., batch_norm: BatchNorm | None = ..., linear: Linear | None = ..., activation: Activation | None = ..., add: Add | None = ..., concat: Concat | None = ..., voxel_to_point: VoxelToPoint | None = ..., argmax: Argmax | None = ..., pool: Pool | None = ..., global_pool: GlobalPool | None = ..., broadcast: Broadcast | None = ..., instance_norm: InstanceNorm | None = ..., group_norm: GroupNorm | None = ..., farthest_point_sample: FarthestPointSampling | None = ..., to_dense: ToDense | None = ..., to_bev: ToBev | None = ..., from_dense: FromDense | None = ..., conv2d: Conv2d | None = ..., conv_transpose2d: ConvTranspose2d | None = ..., center_head_decode: CenterHeadDecode | None = ..., anchor_head_decode: AnchorHeadDecode | None = ..., nms: Nms | None = ..., crop: Crop | None = ..., prune: Prune | None = ..., point_features: PointFeatures | None = ..., point_to_voxel: PointToVoxel | None = ..., devoxelize: Devoxelize | None = ..., multiply: Multiply | None = ..., softmax: Softmax | None = ..., layer_norm: LayerNorm | None = ..., l2_norm: L2Norm | None = ..., prelu: PRelu | None = ..., embedding: Embedding | None = ..., sample_rows: SampleRows | None = ..., attention: Attention | None = ..., groups: Groups | None = ..., rotary: Rotary | None = ..., site_position: SitePosition | None = ..., elementwise: Elementwise | None = ..., row_reduce: RowReduce | None = ..., site_coordinates: SiteCoordinates | None = ..., max_pool2d: MaxPool2d | None = ..., point_offsets: PointOffsets | None = ..., select: Select | None = ..., gather: Gather | None = ..., constant: Constant | None = ..., query_decode: QueryDecode | None = ..., weights_of: str | None = ...) -> None: ...

class Output(Message):
    KIND_UNSPECIFIED: ClassVar[int]
    KIND_LABELS: ClassVar[int]
    KIND_SCORES: ClassVar[int]
    KIND_BOXES: ClassVar[int]
    KIND_TENSOR: ClassVar[int]
    kind: int
    node: str
    name: str
    def __init__(self, *, kind: int | None = ..., node: str | None = ..., name: str | None = ...) -> None: ...

class FarthestPointSampling(Message):
    num_points: int
    start_index: int
    seed: int
    def __init__(self, *, num_points: int | None = ..., start_index: int | None = ..., seed: int | None = ...) -> None: ...

class Voxelize(Message):
    ROUNDING_UNSPECIFIED: ClassVar[int]
    ROUNDING_HALF_EVEN: ClassVar[int]
    ROUNDING_FLOOR: ClassVar[int]
    ORIGIN_UNSPECIFIED: ClassVar[int]
    ORIGIN_MINIMUM: ClassVar[int]
    ORIGIN_RANGE: ClassVar[int]
    ORIGIN_ZERO: ClassVar[int]
    REDUCE_UNSPECIFIED: ClassVar[int]
    REDUCE_FIRST: ClassVar[int]
    REDUCE_MEAN: ClassVar[int]
    voxel_size: RepeatedScalarFieldContainer[float]
    rounding: int
    origin: int
    range_min: RepeatedScalarFieldContainer[float]
    range_max: RepeatedScalarFieldContainer[float]
    reduce: int
    max_points_per_voxel: int
    features: RepeatedCompositeFieldContainer[Feature]
    axes: RepeatedScalarFieldContainer[str]
    spatial_shape: RepeatedScalarFieldContainer[int]
    def __init__(self, *, voxel_size: Iterable[float] | None = ..., rounding: int | None = ..., origin: int | None = ..., range_min: Iterable[float] | None = ..., range_max: Iterable[float] | None = ..., reduce: int | None = ..., max_points_per_voxel: int | None = ..., features: Iterable[Feature] | None = ..., axes: Iterable[str] | None = ..., spatial_shape: Iterable[int] | None = ...) -> None: ...

class Feature(Message):
    name: str
    unit: str
    scale: float
    shift: float
    default_value: float
    range: ValueRange
    def __init__(self, *, name: str | None = ..., unit: str | None = ..., scale: float | None = ..., shift: float | None = ..., default_value: float | None = ..., range: ValueRange | None = ...) -> None: ...

class ValueRange(Message):
    low: float
    high: float
    def __init__(self, *, low: float | None = ..., high: float | None = ...) -> None: ...

class SparseConv(Message):
    KIND_UNSPECIFIED: ClassVar[int]
    KIND_SUBMANIFOLD: ClassVar[int]
    KIND_STRIDED: ClassVar[int]
    KIND_INVERSE: ClassVar[int]
    KIND_TRANSPOSED: ClassVar[int]
    KIND_GENERATIVE: ClassVar[int]
    RULE_UNSPECIFIED: ClassVar[int]
    RULE_FLOOR: ClassVar[int]
    RULE_PADDED: ClassVar[int]
    RULE_EXPAND: ClassVar[int]
    KERNEL_SHAPE_BOX: ClassVar[int]
    KERNEL_SHAPE_CROSS: ClassVar[int]
    kind: int
    kernel_size: RepeatedScalarFieldContainer[int]
    stride: RepeatedScalarFieldContainer[int]
    dilation: RepeatedScalarFieldContainer[int]
    padding: RepeatedScalarFieldContainer[int]
    rule: int
    out_channels: int
    bias: bool
    paired_with: str
    lower_bound: RepeatedScalarFieldContainer[int]
    upper_bound: RepeatedScalarFieldContainer[int]
    output_padding: RepeatedScalarFieldContainer[int]
    sites_of: str
    groups: int
    kernel_shape: int
    offsets: RepeatedScalarFieldContainer[int]
    def __init__(self, *, kind: int | None = ..., kernel_size: Iterable[int] | None = ..., stride: Iterable[int] | None = ..., dilation: Iterable[int] | None = ..., padding: Iterable[int] | None = ..., rule: int | None = ..., out_channels: int | None = ..., bias: bool | None = ..., paired_with: str | None = ..., lower_bound: Iterable[int] | None = ..., upper_bound: Iterable[int] | None = ..., output_padding: Iterable[int] | None = ..., sites_of: str | None = ..., groups: int | None = ..., kernel_shape: int | None = ..., offsets: Iterable[int] | None = ...) -> None: ...

class BatchNorm(Message):
    epsilon: float
    def __init__(self, *, epsilon: float | None = ...) -> None: ...

class Linear(Message):
    out_channels: int
    bias: bool
    def __init__(self, *, out_channels: int | None = ..., bias: bool | None = ...) -> None: ...

class Activation(Message):
    FUNCTION_UNSPECIFIED: ClassVar[int]
    FUNCTION_RELU: ClassVar[int]
    FUNCTION_LEAKY_RELU: ClassVar[int]
    FUNCTION_SIGMOID: ClassVar[int]
    FUNCTION_GELU: ClassVar[int]
    FUNCTION_SILU: ClassVar[int]
    FUNCTION_TANH: ClassVar[int]
    FUNCTION_ELU: ClassVar[int]
    FUNCTION_CLAMP: ClassVar[int]
    FUNCTION_HARD_SIGMOID: ClassVar[int]
    FUNCTION_HARD_SWISH: ClassVar[int]
    FUNCTION_SOFTPLUS: ClassVar[int]
    FUNCTION_MISH: ClassVar[int]
    FUNCTION_GELU_TANH: ClassVar[int]
    FUNCTION_EXP: ClassVar[int]
    FUNCTION_LOG: ClassVar[int]
    FUNCTION_SQUARE: ClassVar[int]
    FUNCTION_SQRT: ClassVar[int]
    FUNCTION_ABS: ClassVar[int]
    FUNCTION_POWER: ClassVar[int]
    function: int
    negative_slope: float
    alpha: float
    beta: float
    minimum: float
    maximum: float
    exponent: float
    def __init__(self, *, function: int | None = ..., negative_slope: float | None = ..., alpha: float | None = ..., beta: float | None = ..., minimum: float | None = ..., maximum: float | None = ..., exponent: float | None = ...) -> None: ...

class Add(Message):
    sites: int
    def __init__(self, *, sites: int | None = ...) -> None: ...

class Concat(Message):
    sites: int
    def __init__(self, *, sites: int | None = ...) -> None: ...

class VoxelToPoint(Message):
    def __init__(self) -> None: ...

class Argmax(Message):
    def __init__(self) -> None: ...

class Pool(Message):
    REDUCE_UNSPECIFIED: ClassVar[int]
    REDUCE_MAX: ClassVar[int]
    REDUCE_AVERAGE: ClassVar[int]
    REDUCE_SUM: ClassVar[int]
    REDUCE_GENERALISED_MEAN: ClassVar[int]
    reduce: int
    kind: int
    kernel_size: RepeatedScalarFieldContainer[int]
    stride: RepeatedScalarFieldContainer[int]
    dilation: RepeatedScalarFieldContainer[int]
    padding: RepeatedScalarFieldContainer[int]
    rule: int
    paired_with: str
    lower_bound: RepeatedScalarFieldContainer[int]
    upper_bound: RepeatedScalarFieldContainer[int]
    def __init__(self, *, reduce: int | None = ..., kind: int | None = ..., kernel_size: Iterable[int] | None = ..., stride: Iterable[int] | None = ..., dilation: Iterable[int] | None = ..., padding: Iterable[int] | None = ..., rule: int | None = ..., paired_with: str | None = ..., lower_bound: Iterable[int] | None = ..., upper_bound: Iterable[int] | None = ...) -> None: ...

class GlobalPool(Message):
    reduce: int
    exponent: float
    epsilon: float
    def __init__(self, *, reduce: int | None = ..., exponent: float | None = ..., epsilon: float | None = ...) -> None: ...

class Broadcast(Message):
    FUNCTION_UNSPECIFIED: ClassVar[int]
    FUNCTION_ADD: ClassVar[int]
    FUNCTION_MULTIPLY: ClassVar[int]
    FUNCTION_CONCAT: ClassVar[int]
    function: int
    def __init__(self, *, function: int | None = ...) -> None: ...

class InstanceNorm(Message):
    epsilon: float
    affine: bool
    def __init__(self, *, epsilon: float | None = ..., affine: bool | None = ...) -> None: ...

class GroupNorm(Message):
    num_groups: int
    epsilon: float
    affine: bool
    def __init__(self, *, num_groups: int | None = ..., epsilon: float | None = ..., affine: bool | None = ...) -> None: ...

class SampleRows(Message):
    num_rows: int
    channels: int
    def __init__(self, *, num_rows: int | None = ..., channels: int | None = ...) -> None: ...

class Attention(Message):
    num_heads: int
    scale: float
    groups_of: str
    def __init__(self, *, num_heads: int | None = ..., scale: float | None = ..., groups_of: str | None = ...) -> None: ...

class Groups(Message):
    CURVE_UNSPECIFIED: ClassVar[int]
    CURVE_Z: ClassVar[int]
    CURVE_Z_TRANSPOSED: ClassVar[int]
    CURVE_HILBERT: ClassVar[int]
    CURVE_HILBERT_TRANSPOSED: ClassVar[int]
    DEPTH_UNSPECIFIED: ClassVar[int]
    DEPTH_FIRST_LEVEL: ClassVar[int]
    DEPTH_OWN_LEVEL: ClassVar[int]
    TAIL_UNSPECIFIED: ClassVar[int]
    TAIL_BORROWS: ClassVar[int]
    TAIL_SHORT: ClassVar[int]
    TAIL_SPREAD: ClassVar[int]
    AXIS_UNSPECIFIED: ClassVar[int]
    AXIS_X: ClassVar[int]
    AXIS_Y: ClassVar[int]
    AXIS_Z: ClassVar[int]
    class Windows(Message):
        shape: RepeatedScalarFieldContainer[int]
        shift: RepeatedScalarFieldContainer[int]
        axes: RepeatedScalarFieldContainer[int]
        snake: bool
        def __init__(self, *, shape: Iterable[int] | None = ..., shift: Iterable[int] | None = ..., axes: Iterable[int] | None = ..., snake: bool | None = ...) -> None: ...
    curve: int
    depth: int
    size: int
    tail: int
    windows: Windows
    def __init__(self, *, curve: int | None = ..., depth: int | None = ..., size: int | None = ..., tail: int | None = ..., windows: Windows | None = ...) -> None: ...

class Rotary(Message):
    num_heads: int
    base: float
    def __init__(self, *, num_heads: int | None = ..., base: float | None = ...) -> None: ...

class SitePosition(Message):
    OF_UNSPECIFIED: ClassVar[int]
    OF_FIRST_POINT: ClassVar[int]
    OF_MEAN_POINT: ClassVar[int]
    of: int
    scale: RepeatedScalarFieldContainer[float]
    shift: RepeatedScalarFieldContainer[float]
    from_minimum: bool
    def __init__(self, *, of: int | None = ..., scale: Iterable[float] | None = ..., shift: Iterable[float] | None = ..., from_minimum: bool | None = ...) -> None: ...

class Multiply(Message):
    sites: int
    def __init__(self, *, sites: int | None = ...) -> None: ...

class Elementwise(Message):
    FUNCTION_UNSPECIFIED: ClassVar[int]
    FUNCTION_ADD: ClassVar[int]
    FUNCTION_SUBTRACT: ClassVar[int]
    FUNCTION_MULTIPLY: ClassVar[int]
    FUNCTION_DIVIDE: ClassVar[int]
    FUNCTION_MAXIMUM: ClassVar[int]
    FUNCTION_MINIMUM: ClassVar[int]
    function: int
    epsilon: float
    def __init__(self, *, function: int | None = ..., epsilon: float | None = ...) -> None: ...

class RowReduce(Message):
    FUNCTION_UNSPECIFIED: ClassVar[int]
    FUNCTION_SUM: ClassVar[int]
    FUNCTION_MEAN: ClassVar[int]
    FUNCTION_MAX: ClassVar[int]
    FUNCTION_MIN: ClassVar[int]
    FUNCTION_LENGTH: ClassVar[int]
    function: int
    def __init__(self, *, function: int | None = ...) -> None: ...

class Softmax(Message):
    def __init__(self) -> None: ...

class LayerNorm(Message):
    epsilon: float
    affine: bool
    def __init__(self, *, epsilon: float | None = ..., affine: bool | None = ...) -> None: ...

class L2Norm(Message):
    epsilon: float
    def __init__(self, *, epsilon: float | None = ...) -> None: ...

class PRelu(Message):
    def __init__(self) -> None: ...

class Embedding(Message):
    channel: int
    def __init__(self, *, channel: int | None = ...) -> None: ...

class Crop(Message):
    lower_bound: RepeatedScalarFieldContainer[int]
    upper_bound: RepeatedScalarFieldContainer[int]
    def __init__(self, *, lower_bound: Iterable[int] | None = ..., upper_bound: Iterable[int] | None = ...) -> None: ...

class Prune(Message):
    threshold: float
    def __init__(self, *, threshold: float | None = ...) -> None: ...

class SiteCoordinates(Message):
    scale: RepeatedScalarFieldContainer[float]
    shift: RepeatedScalarFieldContainer[float]
    window_shape: RepeatedScalarFieldContainer[int]
    window_shift: RepeatedScalarFieldContainer[int]
    def __init__(self, *, scale: Iterable[float] | None = ..., shift: Iterable[float] | None = ..., window_shape: Iterable[int] | None = ..., window_shift: Iterable[int] | None = ...) -> None: ...

class PointFeatures(Message):
    def __init__(self) -> None: ...

class PointOffsets(Message):
    REFERENCE_UNSPECIFIED: ClassVar[int]
    REFERENCE_MEAN: ClassVar[int]
    REFERENCE_CENTER: ClassVar[int]
    reference: int
    max_points: int
    def __init__(self, *, reference: int | None = ..., max_points: int | None = ...) -> None: ...

class PointToVoxel(Message):
    reduce: int
    sites_of: str
    max_points: int
    has_empty_slots: bool
    def __init__(self, *, reduce: int | None = ..., sites_of: str | None = ..., max_points: int | None = ..., has_empty_slots: bool | None = ...) -> None: ...

class Devoxelize(Message):
    def __init__(self) -> None: ...

class ToDense(Message):
    def __init__(self) -> None: ...

class ToBev(Message):
    def __init__(self) -> None: ...

class FromDense(Message):
    sites_of: str
    def __init__(self, *, sites_of: str | None = ...) -> None: ...

class Conv2d(Message):
    out_channels: int
    kernel_size: RepeatedScalarFieldContainer[int]
    stride: RepeatedScalarFieldContainer[int]
    padding: RepeatedScalarFieldContainer[int]
    dilation: RepeatedScalarFieldContainer[int]
    groups: int
    bias: bool
    def __init__(self, *, out_channels: int | None = ..., kernel_size: Iterable[int] | None = ..., stride: Iterable[int] | None = ..., padding: Iterable[int] | None = ..., dilation: Iterable[int] | None = ..., groups: int | None = ..., bias: bool | None = ...) -> None: ...

class ConvTranspose2d(Message):
    out_channels: int
    kernel_size: RepeatedScalarFieldContainer[int]
    stride: RepeatedScalarFieldContainer[int]
    padding: RepeatedScalarFieldContainer[int]
    output_padding: RepeatedScalarFieldContainer[int]
    bias: bool
    def __init__(self, *, out_channels: int | None = ..., kernel_size: Iterable[int] | None = ..., stride: Iterable[int] | None = ..., padding: Iterable[int] | None = ..., output_padding: Iterable[int] | None = ..., bias: bool | None = ...) -> None: ...

class MaxPool2d(Message):
    kernel_size: RepeatedScalarFieldContainer[int]
    stride: RepeatedScalarFieldContainer[int]
    padding: RepeatedScalarFieldContainer[int]
    def __init__(self, *, kernel_size: Iterable[int] | None = ..., stride: Iterable[int] | None = ..., padding: Iterable[int] | None = ...) -> None: ...

class Select(Message):
    BORDER_UNSPECIFIED: ClassVar[int]
    BORDER_DROP: ClassVar[int]
    BORDER_KEEP: ClassVar[int]
    BORDER_PAD: ClassVar[int]
    k: int
    peak_kernel: int
    border: int
    classes_without_peak_test: RepeatedScalarFieldContainer[int]
    def __init__(self, *, k: int | None = ..., peak_kernel: int | None = ..., border: int | None = ..., classes_without_peak_test: Iterable[int] | None = ...) -> None: ...

class Gather(Message):
    OF_UNSPECIFIED: ClassVar[int]
    OF_FEATURES: ClassVar[int]
    OF_CLASS: ClassVar[int]
    OF_SCORE: ClassVar[int]
    OF_POSITION: ClassVar[int]
    of: int
    def __init__(self, *, of: int | None = ...) -> None: ...

class Constant(Message):
    rows: int
    columns: int
    channels: int
    def __init__(self, *, rows: int | None = ..., columns: int | None = ..., channels: int | None = ...) -> None: ...

class CenterHeadDecode(Message):
    CONVENTION_UNSPECIFIED: ClassVar[int]
    CONVENTION_OPENPCDET: ClassVar[int]
    CONVENTION_DET3D: ClassVar[int]
    convention: int
    class_ids: RepeatedScalarFieldContainer[int]
    stride: int
    score_threshold: float
    max_boxes: int
    center_min: RepeatedScalarFieldContainer[float]
    center_max: RepeatedScalarFieldContainer[float]
    has_velocity: bool
    iou_powers: RepeatedScalarFieldContainer[float]
    def __init__(self, *, convention: int | None = ..., class_ids: Iterable[int] | None = ..., stride: int | None = ..., score_threshold: float | None = ..., max_boxes: int | None = ..., center_min: Iterable[float] | None = ..., center_max: Iterable[float] | None = ..., has_velocity: bool | None = ..., iou_powers: Iterable[float] | None = ...) -> None: ...

class AnchorHeadDecode(Message):
    class Anchor(Message):
        class_id: int
        size: RepeatedScalarFieldContainer[float]
        bottom: float
        rotations: RepeatedScalarFieldContainer[float]
        def __init__(self, *, class_id: int | None = ..., size: Iterable[float] | None = ..., bottom: float | None = ..., rotations: Iterable[float] | None = ...) -> None: ...
    anchors: RepeatedCompositeFieldContainer[Anchor]
    num_direction_bins: int
    direction_offset: float
    direction_limit_offset: float
    score_threshold: float
    max_boxes: int
    def __init__(self, *, anchors: Iterable[Anchor] | None = ..., num_direction_bins: int | None = ..., direction_offset: float | None = ..., direction_limit_offset: float | None = ..., score_threshold: float | None = ..., max_boxes: int | None = ...) -> None: ...

class QueryDecode(Message):
    HEIGHT_UNSPECIFIED: ClassVar[int]
    HEIGHT_CENTER: ClassVar[int]
    HEIGHT_TOP: ClassVar[int]
    class_ids: RepeatedScalarFieldContainer[int]
    stride: int
    score_thresholds: RepeatedScalarFieldContainer[float]
    max_boxes: int
    center_min: RepeatedScalarFieldContainer[float]
    center_max: RepeatedScalarFieldContainer[float]
    bounds_bottom: bool
    has_velocity: bool
    height_of: int
    min_rot_lengths: RepeatedScalarFieldContainer[float]
    def __init__(self, *, class_ids: Iterable[int] | None = ..., stride: int | None = ..., score_thresholds: Iterable[float] | None = ..., max_boxes: int | None = ..., center_min: Iterable[float] | None = ..., center_max: Iterable[float] | None = ..., bounds_bottom: bool | None = ..., has_velocity: bool | None = ..., height_of: int | None = ..., min_rot_lengths: Iterable[float] | None = ...) -> None: ...

class Nms(Message):
    class OfClass(Message):
        class_id: int
        iou_threshold: float
        max_boxes_in: int
        max_boxes_out: int
        def __init__(self, *, class_id: int | None = ..., iou_threshold: float | None = ..., max_boxes_in: int | None = ..., max_boxes_out: int | None = ...) -> None: ...
    iou_threshold: float
    max_boxes_in: int
    max_boxes_out: int
    classes: RepeatedCompositeFieldContainer[OfClass]
    def __init__(self, *, iou_threshold: float | None = ..., max_boxes_in: int | None = ..., max_boxes_out: int | None = ..., classes: Iterable[OfClass] | None = ...) -> None: ...

PRECISION_UNSPECIFIED: int
PRECISION_FLOAT32: int
PRECISION_FLOAT16: int
PRECISION_BFLOAT16: int
PRECISION_TFLOAT32: int
PRECISION_INT8: int
VOXEL_OVERFLOW_POLICY_UNSPECIFIED: int
VOXEL_OVERFLOW_POLICY_REJECT: int
VOXEL_OVERFLOW_POLICY_NEAREST_FIRST: int
VOXEL_OVERFLOW_POLICY_FIRST_SEEN: int
class ModelConfig(Message):
    classes: RepeatedCompositeFieldContainer[ClassConfig]
    ignore_label: int
    max_points: int
    max_voxels: int
    voxel_overflow_policy: int
    precision: int
    batching: BatchingConfig
    version_policy: VersionPolicy
    int8: Int8Options
    def __init__(self, *, classes: Iterable[ClassConfig] | None = ..., ignore_label: int | None = ..., max_points: int | None = ..., max_voxels: int | None = ..., voxel_overflow_policy: int | None = ..., precision: int | None = ..., batching: BatchingConfig | None = ..., version_policy: VersionPolicy | None = ..., int8: Int8Options | None = ...) -> None: ...

class BatchingConfig(Message):
    max_batch_points: int
    max_batch_requests: int
    max_queue_delay_ms: int
    max_queue_requests: int
    priority_levels: int
    default_timeout_ms: int
    max_batch_voxels: int
    device_weight: int
    def __init__(self, *, max_batch_points: int | None = ..., max_batch_requests: int | None = ..., max_queue_delay_ms: int | None = ..., max_queue_requests: int | None = ..., priority_levels: int | None = ..., default_timeout_ms: int | None = ..., max_batch_voxels: int | None = ..., device_weight: int | None = ...) -> None: ...

class VersionPolicy(Message):
    latest: int
    specific: SpecificVersions
    def __init__(self, *, latest: int | None = ..., specific: SpecificVersions | None = ...) -> None: ...

class SpecificVersions(Message):
    versions: RepeatedScalarFieldContainer[int]
    def __init__(self, *, versions: Iterable[int] | None = ...) -> None: ...

class ClassConfig(Message):
    id: int
    name: str
    color: str
    def __init__(self, *, id: int | None = ..., name: str | None = ..., color: str | None = ...) -> None: ...

class Int8Options(Message):
    float_nodes: RepeatedScalarFieldContainer[str]
    def __init__(self, *, float_nodes: Iterable[str] | None = ...) -> None: ...

class ErrorInfo(Message):
    reason: str
    domain: str
    metadata: MutableMapping[str, str]
    def __init__(self, *, reason: str | None = ..., domain: str | None = ..., metadata: Mapping[str, str] | None = ...) -> None: ...

class RetryInfo(Message):
    retry_delay: duration_pb2.Duration
    def __init__(self, *, retry_delay: duration_pb2.Duration | None = ...) -> None: ...

class HealthCheckRequest(Message):
    service: str
    def __init__(self, *, service: str | None = ...) -> None: ...

class HealthCheckResponse(Message):
    UNKNOWN: ClassVar[int]
    SERVING: ClassVar[int]
    NOT_SERVING: ClassVar[int]
    SERVICE_UNKNOWN: ClassVar[int]
    status: int
    def __init__(self, *, status: int | None = ...) -> None: ...
