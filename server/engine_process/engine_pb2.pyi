from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Stream(_message.Message):
    __slots__ = ("codec", "width", "height", "bit_depth", "chroma_format", "profile", "extradata", "codec_tag", "bits_per_coded_sample", "aspect_numerator", "aspect_denominator", "primaries", "transfer", "matrix", "range", "chroma_location")
    CODEC_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    BIT_DEPTH_FIELD_NUMBER: _ClassVar[int]
    CHROMA_FORMAT_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    EXTRADATA_FIELD_NUMBER: _ClassVar[int]
    CODEC_TAG_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_CODED_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    ASPECT_NUMERATOR_FIELD_NUMBER: _ClassVar[int]
    ASPECT_DENOMINATOR_FIELD_NUMBER: _ClassVar[int]
    PRIMARIES_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    CHROMA_LOCATION_FIELD_NUMBER: _ClassVar[int]
    codec: str
    width: int
    height: int
    bit_depth: int
    chroma_format: str
    profile: str
    extradata: bytes
    codec_tag: int
    bits_per_coded_sample: int
    aspect_numerator: int
    aspect_denominator: int
    primaries: int
    transfer: int
    matrix: int
    range: str
    chroma_location: int
    def __init__(self, codec: _Optional[str] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., bit_depth: _Optional[int] = ..., chroma_format: _Optional[str] = ..., profile: _Optional[str] = ..., extradata: _Optional[bytes] = ..., codec_tag: _Optional[int] = ..., bits_per_coded_sample: _Optional[int] = ..., aspect_numerator: _Optional[int] = ..., aspect_denominator: _Optional[int] = ..., primaries: _Optional[int] = ..., transfer: _Optional[int] = ..., matrix: _Optional[int] = ..., range: _Optional[str] = ..., chroma_location: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("config", "rotation", "mirrored", "unit_packets", "unit_wanted", "unit_spare", "packet_sample", "packet_offset", "packet_size", "packet_key", "wanted", "buffer_size", "models", "deadline", "thumbnail_size", "traceparent", "tracestate", "priority")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    ROTATION_FIELD_NUMBER: _ClassVar[int]
    MIRRORED_FIELD_NUMBER: _ClassVar[int]
    UNIT_PACKETS_FIELD_NUMBER: _ClassVar[int]
    UNIT_WANTED_FIELD_NUMBER: _ClassVar[int]
    UNIT_SPARE_FIELD_NUMBER: _ClassVar[int]
    PACKET_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    PACKET_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PACKET_SIZE_FIELD_NUMBER: _ClassVar[int]
    PACKET_KEY_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    BUFFER_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    THUMBNAIL_SIZE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    config: Stream
    rotation: int
    mirrored: bool
    unit_packets: _containers.RepeatedScalarFieldContainer[int]
    unit_wanted: _containers.RepeatedScalarFieldContainer[int]
    unit_spare: _containers.RepeatedScalarFieldContainer[int]
    packet_sample: _containers.RepeatedScalarFieldContainer[int]
    packet_offset: _containers.RepeatedScalarFieldContainer[int]
    packet_size: _containers.RepeatedScalarFieldContainer[int]
    packet_key: _containers.RepeatedScalarFieldContainer[bool]
    wanted: _containers.RepeatedScalarFieldContainer[int]
    buffer_size: int
    models: _containers.RepeatedScalarFieldContainer[str]
    deadline: float
    thumbnail_size: int
    traceparent: str
    tracestate: str
    priority: int
    def __init__(self, config: _Optional[_Union[Stream, _Mapping]] = ..., rotation: _Optional[int] = ..., mirrored: _Optional[bool] = ..., unit_packets: _Optional[_Iterable[int]] = ..., unit_wanted: _Optional[_Iterable[int]] = ..., unit_spare: _Optional[_Iterable[int]] = ..., packet_sample: _Optional[_Iterable[int]] = ..., packet_offset: _Optional[_Iterable[int]] = ..., packet_size: _Optional[_Iterable[int]] = ..., packet_key: _Optional[_Iterable[bool]] = ..., wanted: _Optional[_Iterable[int]] = ..., buffer_size: _Optional[int] = ..., models: _Optional[_Iterable[str]] = ..., deadline: _Optional[float] = ..., thumbnail_size: _Optional[int] = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ..., priority: _Optional[int] = ...) -> None: ...

class ModelResults(_message.Message):
    __slots__ = ("model", "frame", "labels", "own_labels", "scores", "wide", "regions", "region_label", "region_labels", "region_values")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    OWN_LABELS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    WIDE_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    REGION_LABEL_FIELD_NUMBER: _ClassVar[int]
    REGION_LABELS_FIELD_NUMBER: _ClassVar[int]
    REGION_VALUES_FIELD_NUMBER: _ClassVar[int]
    model: str
    frame: _containers.RepeatedScalarFieldContainer[int]
    labels: _containers.RepeatedScalarFieldContainer[str]
    own_labels: bool
    scores: bytes
    wide: bool
    regions: _containers.RepeatedScalarFieldContainer[int]
    region_label: _containers.RepeatedScalarFieldContainer[int]
    region_labels: _containers.RepeatedScalarFieldContainer[str]
    region_values: bytes
    def __init__(self, model: _Optional[str] = ..., frame: _Optional[_Iterable[int]] = ..., labels: _Optional[_Iterable[str]] = ..., own_labels: _Optional[bool] = ..., scores: _Optional[bytes] = ..., wide: _Optional[bool] = ..., regions: _Optional[_Iterable[int]] = ..., region_label: _Optional[_Iterable[int]] = ..., region_labels: _Optional[_Iterable[str]] = ..., region_values: _Optional[bytes] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("step", "begin", "end", "wait", "created")
    STEP_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    step: str
    begin: float
    end: float
    wait: float
    created: int
    def __init__(self, step: _Optional[str] = ..., begin: _Optional[float] = ..., end: _Optional[float] = ..., wait: _Optional[float] = ..., created: _Optional[int] = ...) -> None: ...

class Told(_message.Message):
    __slots__ = ("reason", "count", "detail")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    reason: int
    count: int
    detail: str
    def __init__(self, reason: _Optional[int] = ..., count: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class FrameExtra(_message.Message):
    __slots__ = ("frame", "detail", "thumbnail")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    THUMBNAIL_FIELD_NUMBER: _ClassVar[int]
    frame: int
    detail: str
    thumbnail: bytes
    def __init__(self, frame: _Optional[int] = ..., detail: _Optional[str] = ..., thumbnail: _Optional[bytes] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("sample", "keyframe", "stand_in", "skipped", "extras", "results", "timings", "degradations", "config", "batches")
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    KEYFRAME_FIELD_NUMBER: _ClassVar[int]
    STAND_IN_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    EXTRAS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    DEGRADATIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    sample: _containers.RepeatedScalarFieldContainer[int]
    keyframe: _containers.RepeatedScalarFieldContainer[bool]
    stand_in: _containers.RepeatedScalarFieldContainer[int]
    skipped: _containers.RepeatedScalarFieldContainer[int]
    extras: _containers.RepeatedCompositeFieldContainer[FrameExtra]
    results: _containers.RepeatedCompositeFieldContainer[ModelResults]
    timings: _containers.RepeatedCompositeFieldContainer[Timing]
    degradations: _containers.RepeatedCompositeFieldContainer[Told]
    config: Stream
    batches: bytes
    def __init__(self, sample: _Optional[_Iterable[int]] = ..., keyframe: _Optional[_Iterable[bool]] = ..., stand_in: _Optional[_Iterable[int]] = ..., skipped: _Optional[_Iterable[int]] = ..., extras: _Optional[_Iterable[_Union[FrameExtra, _Mapping]]] = ..., results: _Optional[_Iterable[_Union[ModelResults, _Mapping]]] = ..., timings: _Optional[_Iterable[_Union[Timing, _Mapping]]] = ..., degradations: _Optional[_Iterable[_Union[Told, _Mapping]]] = ..., config: _Optional[_Union[Stream, _Mapping]] = ..., batches: _Optional[bytes] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "message", "facts", "retry_after", "ranges")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    facts: _containers.ScalarMap[str, str]
    retry_after: float
    ranges: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., facts: _Optional[_Mapping[str, str]] = ..., retry_after: _Optional[float] = ..., ranges: _Optional[_Iterable[int]] = ...) -> None: ...
