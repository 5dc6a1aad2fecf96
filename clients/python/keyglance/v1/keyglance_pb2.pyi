from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_INTERACTIVE: _ClassVar[Priority]
    PRIORITY_NORMAL: _ClassVar[Priority]
    PRIORITY_BULK: _ClassVar[Priority]

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_PASS: _ClassVar[Verdict]
    VERDICT_REVIEW: _ClassVar[Verdict]
    VERDICT_BLOCK: _ClassVar[Verdict]

class DegradationReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEGRADATION_REASON_UNSPECIFIED: _ClassVar[DegradationReason]
    DEGRADATION_REASON_FRAME_DAMAGED: _ClassVar[DegradationReason]
    DEGRADATION_REASON_FRAME_UNDECODABLE: _ClassVar[DegradationReason]
    DEGRADATION_REASON_GAP_EXCEEDED: _ClassVar[DegradationReason]
    DEGRADATION_REASON_SOFTWARE_FALLBACK: _ClassVar[DegradationReason]
    DEGRADATION_REASON_FEWER_FRAMES: _ClassVar[DegradationReason]
    DEGRADATION_REASON_MODEL_LEFT_OUT: _ClassVar[DegradationReason]
    DEGRADATION_REASON_TRACK_NOT_SEEN: _ClassVar[DegradationReason]
    DEGRADATION_REASON_TRUNCATED: _ClassVar[DegradationReason]
    DEGRADATION_REASON_PARTLY_ENCRYPTED: _ClassVar[DegradationReason]
    DEGRADATION_REASON_NOT_TONE_MAPPED: _ClassVar[DegradationReason]
    DEGRADATION_REASON_CONTAINER_LIES: _ClassVar[DegradationReason]
PRIORITY_UNSPECIFIED: Priority
PRIORITY_INTERACTIVE: Priority
PRIORITY_NORMAL: Priority
PRIORITY_BULK: Priority
VERDICT_UNSPECIFIED: Verdict
VERDICT_PASS: Verdict
VERDICT_REVIEW: Verdict
VERDICT_BLOCK: Verdict
DEGRADATION_REASON_UNSPECIFIED: DegradationReason
DEGRADATION_REASON_FRAME_DAMAGED: DegradationReason
DEGRADATION_REASON_FRAME_UNDECODABLE: DegradationReason
DEGRADATION_REASON_GAP_EXCEEDED: DegradationReason
DEGRADATION_REASON_SOFTWARE_FALLBACK: DegradationReason
DEGRADATION_REASON_FEWER_FRAMES: DegradationReason
DEGRADATION_REASON_MODEL_LEFT_OUT: DegradationReason
DEGRADATION_REASON_TRACK_NOT_SEEN: DegradationReason
DEGRADATION_REASON_TRUNCATED: DegradationReason
DEGRADATION_REASON_PARTLY_ENCRYPTED: DegradationReason
DEGRADATION_REASON_NOT_TONE_MAPPED: DegradationReason
DEGRADATION_REASON_CONTAINER_LIES: DegradationReason

class LabelRequest(_message.Message):
    __slots__ = ("data", "ranges", "uri", "sampling", "models", "least_score", "returns", "request_id", "priority")
    DATA_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    LEAST_SCORE_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    ranges: ByteRanges
    uri: str
    sampling: SamplingPolicy
    models: _containers.RepeatedScalarFieldContainer[str]
    least_score: float
    returns: ReturnOptions
    request_id: str
    priority: Priority
    def __init__(self, data: _Optional[bytes] = ..., ranges: _Optional[_Union[ByteRanges, _Mapping]] = ..., uri: _Optional[str] = ..., sampling: _Optional[_Union[SamplingPolicy, _Mapping]] = ..., models: _Optional[_Iterable[str]] = ..., least_score: _Optional[float] = ..., returns: _Optional[_Union[ReturnOptions, _Mapping]] = ..., request_id: _Optional[str] = ..., priority: _Optional[_Union[Priority, str]] = ...) -> None: ...

class ByteRanges(_message.Message):
    __slots__ = ("file_size", "ranges")
    FILE_SIZE_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    file_size: int
    ranges: _containers.RepeatedCompositeFieldContainer[ByteRange]
    def __init__(self, file_size: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[ByteRange, _Mapping]]] = ...) -> None: ...

class ByteRange(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class MissingRanges(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[MissingRange]
    def __init__(self, ranges: _Optional[_Iterable[_Union[MissingRange, _Mapping]]] = ...) -> None: ...

class MissingRange(_message.Message):
    __slots__ = ("offset", "size")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    size: int
    def __init__(self, offset: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class SamplingPolicy(_message.Message):
    __slots__ = ("frames", "largest_gap", "add_non_keyframes")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_GAP_FIELD_NUMBER: _ClassVar[int]
    ADD_NON_KEYFRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: int
    largest_gap: float
    add_non_keyframes: bool
    def __init__(self, frames: _Optional[int] = ..., largest_gap: _Optional[float] = ..., add_non_keyframes: _Optional[bool] = ...) -> None: ...

class ReturnOptions(_message.Message):
    __slots__ = ("frame_scores", "thumbnails", "thumbnail_size")
    FRAME_SCORES_FIELD_NUMBER: _ClassVar[int]
    THUMBNAILS_FIELD_NUMBER: _ClassVar[int]
    THUMBNAIL_SIZE_FIELD_NUMBER: _ClassVar[int]
    frame_scores: bool
    thumbnails: bool
    thumbnail_size: int
    def __init__(self, frame_scores: _Optional[bool] = ..., thumbnails: _Optional[bool] = ..., thumbnail_size: _Optional[int] = ...) -> None: ...

class LabelResponse(_message.Message):
    __slots__ = ("labels", "verdict", "verdict_reasons", "frames", "video", "models", "coverage", "degradations", "timings", "provenance", "trace_id", "request_id")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_REASONS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    VIDEO_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    DEGRADATIONS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedCompositeFieldContainer[Label]
    verdict: Verdict
    verdict_reasons: _containers.RepeatedScalarFieldContainer[str]
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    video: Video
    models: _containers.RepeatedCompositeFieldContainer[Model]
    coverage: Coverage
    degradations: _containers.RepeatedCompositeFieldContainer[Degradation]
    timings: _containers.RepeatedCompositeFieldContainer[StepTiming]
    provenance: Provenance
    trace_id: str
    request_id: str
    def __init__(self, labels: _Optional[_Iterable[_Union[Label, _Mapping]]] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., verdict_reasons: _Optional[_Iterable[str]] = ..., frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ..., video: _Optional[_Union[Video, _Mapping]] = ..., models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., coverage: _Optional[_Union[Coverage, _Mapping]] = ..., degradations: _Optional[_Iterable[_Union[Degradation, _Mapping]]] = ..., timings: _Optional[_Iterable[_Union[StepTiming, _Mapping]]] = ..., provenance: _Optional[_Union[Provenance, _Mapping]] = ..., trace_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class Label(_message.Message):
    __slots__ = ("name", "parent", "score", "threshold", "passed", "segments", "sources")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    name: str
    parent: str
    score: float
    threshold: float
    passed: bool
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    sources: _containers.RepeatedCompositeFieldContainer[ModelScore]
    def __init__(self, name: _Optional[str] = ..., parent: _Optional[str] = ..., score: _Optional[float] = ..., threshold: _Optional[float] = ..., passed: _Optional[bool] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., sources: _Optional[_Iterable[_Union[ModelScore, _Mapping]]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("start", "end", "peak", "score")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PEAK_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    start: float
    end: float
    peak: float
    score: float
    def __init__(self, start: _Optional[float] = ..., end: _Optional[float] = ..., peak: _Optional[float] = ..., score: _Optional[float] = ...) -> None: ...

class ModelScore(_message.Message):
    __slots__ = ("model", "score")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    model: str
    score: float
    def __init__(self, model: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("time", "index", "keyframe", "outside_edit", "skipped", "scores", "regions", "thumbnail")
    TIME_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KEYFRAME_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_EDIT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    THUMBNAIL_FIELD_NUMBER: _ClassVar[int]
    time: float
    index: int
    keyframe: bool
    outside_edit: bool
    skipped: DegradationReason
    scores: _containers.RepeatedCompositeFieldContainer[FrameScore]
    regions: _containers.RepeatedCompositeFieldContainer[Region]
    thumbnail: bytes
    def __init__(self, time: _Optional[float] = ..., index: _Optional[int] = ..., keyframe: _Optional[bool] = ..., outside_edit: _Optional[bool] = ..., skipped: _Optional[_Union[DegradationReason, str]] = ..., scores: _Optional[_Iterable[_Union[FrameScore, _Mapping]]] = ..., regions: _Optional[_Iterable[_Union[Region, _Mapping]]] = ..., thumbnail: _Optional[bytes] = ...) -> None: ...

class FrameScore(_message.Message):
    __slots__ = ("label", "model", "score")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    label: str
    model: str
    score: float
    def __init__(self, label: _Optional[str] = ..., model: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class Region(_message.Message):
    __slots__ = ("label", "model", "score", "x", "y", "width", "height")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    X_FIELD_NUMBER: _ClassVar[int]
    Y_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    label: str
    model: str
    score: float
    x: float
    y: float
    width: float
    height: float
    def __init__(self, label: _Optional[str] = ..., model: _Optional[str] = ..., score: _Optional[float] = ..., x: _Optional[float] = ..., y: _Optional[float] = ..., width: _Optional[float] = ..., height: _Optional[float] = ...) -> None: ...

class Video(_message.Message):
    __slots__ = ("container", "codec", "profile", "width", "height", "bit_depth", "chroma_format", "rotation", "mirrored", "duration", "samples", "keyframes", "size", "hdr")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    BIT_DEPTH_FIELD_NUMBER: _ClassVar[int]
    CHROMA_FORMAT_FIELD_NUMBER: _ClassVar[int]
    ROTATION_FIELD_NUMBER: _ClassVar[int]
    MIRRORED_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    KEYFRAMES_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    HDR_FIELD_NUMBER: _ClassVar[int]
    container: str
    codec: str
    profile: str
    width: int
    height: int
    bit_depth: int
    chroma_format: str
    rotation: int
    mirrored: bool
    duration: float
    samples: int
    keyframes: int
    size: int
    hdr: bool
    def __init__(self, container: _Optional[str] = ..., codec: _Optional[str] = ..., profile: _Optional[str] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., bit_depth: _Optional[int] = ..., chroma_format: _Optional[str] = ..., rotation: _Optional[int] = ..., mirrored: _Optional[bool] = ..., duration: _Optional[float] = ..., samples: _Optional[int] = ..., keyframes: _Optional[int] = ..., size: _Optional[int] = ..., hdr: _Optional[bool] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "version", "digest", "required", "default_on", "licence", "labels")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_ON_FIELD_NUMBER: _ClassVar[int]
    LICENCE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    digest: str
    required: bool
    default_on: bool
    licence: str
    labels: _containers.RepeatedCompositeFieldContainer[LabelInfo]
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., required: _Optional[bool] = ..., default_on: _Optional[bool] = ..., licence: _Optional[str] = ..., labels: _Optional[_Iterable[_Union[LabelInfo, _Mapping]]] = ...) -> None: ...

class LabelInfo(_message.Message):
    __slots__ = ("name", "parent", "threshold", "description")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    parent: str
    threshold: float
    description: str
    def __init__(self, name: _Optional[str] = ..., parent: _Optional[str] = ..., threshold: _Optional[float] = ..., description: _Optional[str] = ...) -> None: ...

class Coverage(_message.Message):
    __slots__ = ("frames", "largest_gap", "largest_gap_start")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_GAP_FIELD_NUMBER: _ClassVar[int]
    LARGEST_GAP_START_FIELD_NUMBER: _ClassVar[int]
    frames: int
    largest_gap: float
    largest_gap_start: float
    def __init__(self, frames: _Optional[int] = ..., largest_gap: _Optional[float] = ..., largest_gap_start: _Optional[float] = ...) -> None: ...

class Degradation(_message.Message):
    __slots__ = ("reason", "count", "detail")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    reason: DegradationReason
    count: int
    detail: str
    def __init__(self, reason: _Optional[_Union[DegradationReason, str]] = ..., count: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class StepTiming(_message.Message):
    __slots__ = ("step", "start_ms", "wall_ms", "wait_ms", "created")
    STEP_FIELD_NUMBER: _ClassVar[int]
    START_MS_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    step: str
    start_ms: float
    wall_ms: float
    wait_ms: float
    created: int
    def __init__(self, step: _Optional[str] = ..., start_ms: _Optional[float] = ..., wall_ms: _Optional[float] = ..., wait_ms: _Optional[float] = ..., created: _Optional[int] = ...) -> None: ...

class Provenance(_message.Message):
    __slots__ = ("server_version", "policy_digest", "sampling_digest", "preprocessing_digest")
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    POLICY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PREPROCESSING_DIGEST_FIELD_NUMBER: _ClassVar[int]
    server_version: str
    policy_digest: str
    sampling_digest: str
    preprocessing_digest: str
    def __init__(self, server_version: _Optional[str] = ..., policy_digest: _Optional[str] = ..., sampling_digest: _Optional[str] = ..., preprocessing_digest: _Optional[str] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("version", "models", "limits", "decoders", "device")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    DECODERS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    version: str
    models: _containers.RepeatedCompositeFieldContainer[Model]
    limits: Limits
    decoders: _containers.RepeatedCompositeFieldContainer[DecoderInfo]
    device: str
    def __init__(self, version: _Optional[str] = ..., models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., decoders: _Optional[_Iterable[_Union[DecoderInfo, _Mapping]]] = ..., device: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("bytes", "pixels", "seconds", "samples", "frames", "default_deadline")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PIXELS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    pixels: int
    seconds: float
    samples: int
    frames: int
    default_deadline: float
    def __init__(self, bytes: _Optional[int] = ..., pixels: _Optional[int] = ..., seconds: _Optional[float] = ..., samples: _Optional[int] = ..., frames: _Optional[int] = ..., default_deadline: _Optional[float] = ...) -> None: ...

class DecoderInfo(_message.Message):
    __slots__ = ("kind", "decoders", "limit", "codecs")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DECODERS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    decoders: int
    limit: int
    codecs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[str] = ..., decoders: _Optional[int] = ..., limit: _Optional[int] = ..., codecs: _Optional[_Iterable[str]] = ...) -> None: ...
