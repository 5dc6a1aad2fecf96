"""The configuration: every setting typed, described, with its unit and range, from a TOML file, the environment and defaults.

Later sources win: defaults, the file, the environment (`KEYGLANCE_SECTION__NAME`), the command line. An unknown key is an error
in each of them. `Config.annotated()` prints what is in effect, and what it prints can be read again.
"""

from __future__ import annotations

import difflib
import itertools
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

ENVIRONMENT_PREFIX = "KEYGLANCE_"
_DELIMITER = "__"

#: The largest luma picture of HEVC level 6.2 and of AV1 level 6.3 (H.265 table A.8, AV1 annex A.3): 8192x4352, so 8K fits.
LARGEST_LEVEL_PICTURE = 35_651_584


class ConfigError(Exception):
    """The configuration cannot be used; the message names each setting with its value and what is allowed, one a line."""


def _empty_is_none(value: object) -> object:
    return None if value == "" else value


#: A file that may be left out; the empty string is the same as none, so that an environment variable can take it away.
OptionalPath = Annotated[Path | None, BeforeValidator(_empty_is_none)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[ByteSize, Field(gt=0)]


def _address(address: str) -> str:
    # gRPC itself takes nearly everything: a name alone means port 443, port 99999 means 34463.
    host, _, port = address.rpartition(":")
    is_path = address.startswith("unix:") and len(address) > len("unix:")
    if not is_path and not (host and port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise ValueError("not HOST:PORT, [IPV6]:PORT or unix:PATH")
    return address


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class ServerSection(_Section):
    """The gRPC front."""

    listen: str = Field(
        default="127.0.0.1:50051", description="Address to listen on: HOST:PORT, [IPV6]:PORT (port 0: any free one) or unix:PATH."
    )
    largest_message: Bytes = Field(
        default=ByteSize(64 * MIB), description="Largest message in either direction, in bytes; 64 KiB or more.", ge=64 * KIB
    )
    grace: float = Field(
        default=30.0, description="Seconds that calls in flight may take to end after SIGTERM or SIGINT; 0 or more.", ge=0
    )
    default_deadline: Seconds = Field(default=10.0, description="Deadline of calls that bring none, in seconds; more than 0.")
    concurrent_calls: PositiveInt = Field(
        default=256, description="Calls handled or waiting at once in one front; one more gets OVERLOADED. 1 or more."
    )
    connection_age: Seconds = Field(
        default=600.0,
        description="Seconds after which a connection is ended, once its calls are, so that callers spread anew over all fronts.",
    )
    reuse_port: bool = Field(default=False, description="Whether several servers may share one port (SO_REUSEPORT).")
    fronts: int = Field(
        default=0,
        description="Processes that speak gRPC, on one port, beside those that decode and infer; 0: one process does all.",
        ge=0,
        le=64,
    )
    engines: int = Field(
        default=0,
        description="Processes beside fronts that decode and infer, on GPUs from gpu.index on; 0: engines_per_gpu on each GPU.",
        ge=0,
        le=64,
    )
    engines_per_gpu: PositiveInt = Field(
        default=1,
        description="Of these processes, how many share a GPU: two get more out of it and take twice its memory. 1 to 8.",
        le=8,
    )
    mps: bool = Field(
        default=False,
        description="Whether engines that share a GPU have it at once (NVIDIA's MPS), not in turns; a fault of one ends all.",
    )
    heartbeat: Seconds = Field(
        default=5.0,
        description="Seconds after which a front or engine that was stopped is replaced; four times as many for one that hangs.",
    )
    tls_certificate: OptionalPath = Field(
        default=None, description="PEM file with the server's certificate chain; with tls_key it turns TLS on."
    )
    tls_key: OptionalPath = Field(default=None, description="PEM file with the certificate's private key.")
    tls_client_ca: OptionalPath = Field(
        default=None, description="PEM file with the authorities of client certificates, which are then demanded."
    )

    @property
    def sharers(self) -> int:
        """Processes that have one GPU."""
        return self.engines_per_gpu if self.fronts else 1

    @field_validator("listen")
    @classmethod
    def _is_an_address(cls, listen: str) -> str:
        return _address(listen)

    @model_validator(mode="after")
    def _fronts_can_share(self) -> Self:
        if self.fronts > 1 and self.listen.startswith("unix:"):
            raise ValueError(f"{self.fronts} fronts cannot share {self.listen}: one front can have it, or all share a HOST:PORT")
        return self

    @model_validator(mode="after")
    def _mps_has_engines(self) -> Self:
        if self.mps and not self.fronts:
            raise ValueError("mps is for engines in processes of their own: with it fronts must be 1 or more, got 0")
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together: set both or neither")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        return self


class LimitsSection(_Section):
    """What a request may ask for; more is TOO_LARGE (bytes, pixels, seconds, samples) or BAD_POLICY (frames)."""

    bytes: Bytes = Field(default=ByteSize(64 * MIB), description="Largest video in bytes.")
    pixels: PositiveInt = Field(
        default=LARGEST_LEVEL_PICTURE, description="Largest picture in pixels; the default holds 7680x4320."
    )
    seconds: Seconds = Field(default=3600.0, description="Longest video in seconds.")
    samples: PositiveInt = Field(default=200_000, description="Most stored pictures of a video.")
    frames: PositiveInt = Field(default=64, description="Most pictures looked at in one call; 1 to 1024.", le=1024)
    decoded_samples: PositiveInt = Field(
        default=20_000, description="Most stored pictures decoded in one call to reach those looked at."
    )


class ReceiveSection(_Section):
    """Messages on their way in, bounded before they are read."""

    budget: Bytes = Field(
        default=ByteSize(GIB),
        description="Bytes of all requests in flight together, in all fronts; at least server.largest_message.",
    )
    timeout: Seconds = Field(
        default=30.0, description="Seconds in which a request's message must have arrived, once it is being read."
    )
    queue_limit: int = Field(
        default=224, description="Calls that may wait for the budget; one more gets OVERLOADED. 0 or more.", ge=0
    )


class IndexSection(_Section):
    """The worker processes that read containers."""

    workers: int = Field(default=0, description="Worker processes; a call uses one at a time. 0: the CPU cores, 2 to 4.", ge=0)
    memory_limit: Bytes = Field(
        default=ByteSize(1536 * MIB), description="Address space of one worker in bytes; 256 MiB or more.", ge=256 * MIB
    )
    seconds: Seconds = Field(default=20.0, description="Longest time for one look into a container; then the worker is ended.")


class EngineSection(_Section):
    """Where videos are decoded and models run."""

    device: Literal["auto", "cpu", "gpu"] = Field(
        default="auto",
        description="auto: the GPU if one can be used, else the CPU, and the log says why; cpu or gpu: that or nothing.",
    )


class WarmDecoders(_Section):
    """Decoders that exist before the first call and are never closed for want of work."""

    codec: str = Field(default="h264", description="FFmpeg's name of the codec.")
    bit_depth: int = Field(default=8, description="Bits a component, 8 to 16.", ge=8, le=16)
    chroma_format: str = Field(default="420", description="400, 420, 422, 444 or rgb.")
    size_class: PositiveInt = Field(default=2048, description="One of the section's size_classes.")
    count: PositiveInt = Field(default=1, description="How many; 1 or more.")


def _decoders_agree(size_classes: Sequence[int], warm: Sequence[WarmDecoders], limit: int) -> None:
    if list(size_classes) != sorted(set(size_classes)):
        raise ValueError(f"size_classes must ascend without repetition, got {list(size_classes)}")
    for decoders in warm:
        if decoders.size_class not in size_classes:
            raise ValueError(f"warm size_class {decoders.size_class} is none of size_classes {list(size_classes)}")
    if (wanted := sum(decoders.count for decoders in warm)) > limit:
        raise ValueError(f"{wanted} warm decoders exceed the limit of {limit}")


class DecodersSection(_Section):
    """Software decoding in worker processes: all of it on a CPU, beside a GPU what that refuses."""

    limit: int = Field(default=0, description="Most decoders at once; 0: two for each CPU core, at least 4.", ge=0)
    size_classes: tuple[PositiveInt, ...] = Field(
        default=(1024, 2048, 4096, 8192),
        description="Ascending longer sides in pixels; streams of one class share decoders.",
        min_length=1,
    )
    warm: tuple[WarmDecoders, ...] = Field(
        default=(WarmDecoders(size_class=2048, count=2), WarmDecoders(size_class=1024, count=1)),
        description="Decoders that exist before the first call.",
    )
    threads: PositiveInt = Field(default=1, description="Threads of one software decoder; 1 or more.")
    memory_limit: Bytes = Field(
        default=ByteSize(3 * GIB), description="Address space of one software decoder in bytes; 256 MiB or more.", ge=256 * MIB
    )
    seconds: Seconds = Field(
        default=20.0, description="Longest time for one run of packets (a keyframe and what is decoded from it), in seconds."
    )

    @property
    def most(self) -> int:
        """`limit` with 0 resolved for this machine."""
        return self.limit or max(4, 2 * (os.cpu_count() or 1))

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        _decoders_agree(self.size_classes, self.warm, self.most)
        return self


class ModelsSection(_Section):
    """Which models run, and what their labels mean for the verdict."""

    folder: OptionalPath = Field(
        default=None, description="Folder of installed models; empty: where `python -m models.install` puts them."
    )
    enabled: tuple[str, ...] = Field(default=(), description="Names of the models to load; empty: those on by default.")
    policy: OptionalPath = Field(default=None, description="TOML file with the verdict's rules; empty: the built-in policy.")


class InferenceSection(_Section):
    """How models run on a CPU."""

    threads: int = Field(default=0, description="Threads that run batches, all models together; 0: the CPU cores.", ge=0)
    intra_op_threads: PositiveInt = Field(
        default=1, description="ONNX Runtime's threads within one batch; on a CPU several batches at once are faster. 1 or more."
    )
    largest_batch: PositiveInt = Field(
        default=4, description="Most pictures in a batch, where the model does not say less; 1 or more."
    )
    largest_wait: float = Field(
        default=0.0, description="Seconds that an unfilled batch waits for more; 0 or more.", ge=0, allow_inf_nan=False
    )
    queue_limit: PositiveInt = Field(
        default=64, description="Pictures that may be queued for one model; further ones wait in their calls. 1 or more."
    )


class GpuSection(_Section):
    """Decoding and inference on a GPU."""

    index: int = Field(
        default=0, description="Which GPU, counted from 0 as CUDA does (within CUDA_VISIBLE_DEVICES); 0 or more.", ge=0
    )
    size_classes: tuple[PositiveInt, ...] = Field(
        default=(2048, 4096, 8192),
        description="Ascending longer sides in pixels; streams of one class, landscape or portrait, share decoders.",
        min_length=1,
    )
    decoder_limit: PositiveInt = Field(default=28, description="Most hardware decoders at once; 1 or more.")
    decoders_per_call: PositiveInt = Field(
        default=4, description="Most hardware decoders that one call's pictures spread over, where so many are idle. 1 or more."
    )
    busy_decoders: PositiveInt = Field(
        default=8,
        description="Hardware decoders at work with which all of the GPU's decoding engines are busy, or one a call; 1 or more.",
    )
    warm: tuple[WarmDecoders, ...] = Field(
        default=(
            WarmDecoders(count=16),  # the keyframes of one call, all at once, and so many keep every engine busy
            WarmDecoders(size_class=4096, count=2),
            WarmDecoders(codec="hevc", count=4),
            WarmDecoders(codec="hevc", bit_depth=10, count=1),
            WarmDecoders(codec="vp9", count=1),
            WarmDecoders(codec="vp8", count=1),
        ),
        description="Decoders that exist before the first call; what the GPU does not decode is left out, and the log says so.",
    )
    decoder_seconds: Seconds = Field(
        default=5.0,
        description="Longest time for one step of a decoder (a picture, a reconfiguration), in seconds; then it is replaced.",
    )
    software_wait: Seconds = Field(
        default=10.0, description="Longest wait for a software decoder for what the GPU refuses, in seconds; more than 0."
    )
    arena_pictures: tuple[PositiveInt, ...] = Field(
        default=(256, 48, 12),
        description="For each of size_classes: decoded pictures that the GPU's memory has room for, until they are looked at.",
        min_length=1,
    )
    batch_buckets: tuple[PositiveInt, ...] = Field(
        default=(4, 8, 12, 16, 24, 32, 48),
        description="Ascending batch sizes for which each model is prepared; each takes memory and time at start. 1 to 1024.",
        min_length=1,
    )
    largest_wait: float = Field(
        default=0.02,
        description="Seconds that an idle GPU waits for pictures which a call still brings; 0 or more.",
        ge=0,
        allow_inf_nan=False,
    )
    queue_limit: PositiveInt = Field(
        default=256, description="Pictures queued for the models from which on no batch waits for more of them; 1 or more."
    )
    half_precision: bool = Field(
        default=True, description="Whether models run in float16 that may and that pass the check at start; else all in float32."
    )
    cuda_graphs: bool = Field(
        default=True, description="Whether networks run as CUDA graphs, which halves what a small batch takes."
    )
    head_process: bool = Field(
        default=True,
        description="Whether a process of its own reads what the networks found, so that the engine's threads do not hold it up.",
    )
    memory_fraction: float = Field(
        default=0.9,
        description="Share of the GPU's memory, as it is free at start, that may be planned for; more than 0, at most 1.",
        gt=0,
        le=1,
    )

    @property
    def largest_batch(self) -> int:
        """Most pictures in a batch."""
        return self.batch_buckets[-1]

    @model_validator(mode="after")
    def _agree(self) -> Self:
        _decoders_agree(self.size_classes, self.warm, self.decoder_limit)
        if len(self.arena_pictures) != len(self.size_classes):
            raise ValueError(
                f"arena_pictures {list(self.arena_pictures)} must have one number for each of size_classes "
                f"{list(self.size_classes)}"
            )
        if list(self.batch_buckets) != sorted(set(self.batch_buckets)) or self.batch_buckets[-1] > 1024:
            raise ValueError(f"batch_buckets must ascend without repetition, to 1024 at most, got {list(self.batch_buckets)}")
        return self


class LoadStep(_Section):
    """How calls are answered from one load on."""

    load: float = Field(default=0.5, description="The load from which on the step is taken; more than 0, at most 1.", gt=0, le=1)
    frames: int = Field(
        default=0, description="Most pictures looked at, where the largest gap needs no more; 2 or more, 0: all.", ge=0
    )
    leave_out: tuple[str, ...] = Field(default=(), description="Optional models that run only in calls that name them.")

    @field_validator("frames")
    @classmethod
    def _not_one(cls, frames: int) -> int:
        if frames == 1:
            raise ValueError("2 or more pictures (the first and the last), or 0 for all")
        return frames


class OverloadSection(_Section):
    """What happens when more calls come than can be answered. Load is 0 while no call waits, and 1 when calls are refused."""

    least_calls: int = Field(
        default=0,
        description="Calls worked on at once at the least, for each engine, by all fronts; 0: 4, GPU 20, shared GPU 10 (mps 14).",
        ge=0,
    )
    most_calls: PositiveInt = Field(
        default=64,
        description="Calls worked on at once at the most, on each GPU, by all fronts together; in between it follows from times.",
    )
    headroom: float = Field(
        default=1.25,
        description="Calls let in for each that the engine really works for, as measured; the others wait, so that it is busy.",
        gt=1,
        le=10,
    )
    waiting: int = Field(
        default=224,
        description="Calls that may wait for their turn; where they are refused for long, it is a few of them only. 0 or more.",
        ge=0,
    )
    software_waiting: int = Field(
        default=32, description="Of calls that a GPU leaves to software: those that may wait for their turn. 0 or more.", ge=0
    )
    caller_key: str = Field(
        default="",
        description="Metadata by which callers are told apart, each to get an equal share of what is done; empty: none.",
        pattern=r"^[a-z0-9_.-]*$",
    )
    steps: tuple[LoadStep, ...] = Field(
        default=(),
        description="What answers lack from which load on, before calls are refused; such as { load = 0.5, frames = 8 }.",
    )
    settle: Seconds = Field(
        default=1.0,
        description="Seconds over which the load is smoothed, and after which one step may follow another.",
    )
    hold: Seconds = Field(
        default=10.0, description="Seconds for which a step is held, and for which it must be calm to leave it, at the least."
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.least_calls > self.most_calls:
            raise ValueError(f"least_calls ({self.least_calls}) is more than most_calls ({self.most_calls})")
        for before, after in itertools.pairwise(self.steps):
            if after.load < before.load:
                raise ValueError(f"steps must ascend by load, got {after.load:g} after {before.load:g}")
            if before.frames and not 0 < after.frames <= before.frames:
                raise ValueError(f"the step at load {after.load:g} looks at more pictures than the one at {before.load:g}")
            if missing := set(before.leave_out) - set(after.leave_out):
                raise ValueError(f"the step at load {after.load:g} has models again: {', '.join(sorted(missing))}")
        return self


class SamplingSection(_Section):
    """What a request that does not say gets."""

    frames: PositiveInt = Field(default=16, description="Pictures wanted; 1 to limits.frames.")
    largest_gap: Seconds = Field(default=10.0, description="Largest time without a picture looked at, in seconds; more than 0.")
    add_non_keyframes: bool = Field(default=True, description="Whether to decode pictures between keyframes to keep largest_gap.")
    least_score: float = Field(default=0.1, description="Labels below it are left out of the answer; 0 to 1.", ge=0, le=1)


class TelemetrySection(_Section):
    """Traces, metrics and logs. Exporters are set by OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT, …)."""

    prometheus: str = Field(
        default="",
        description="Where Prometheus can read metrics: HOST:PORT (9464 is usual, 0: any free one) or unix:PATH; empty: nowhere.",
    )
    trace_ratio: float = Field(
        default=0.1,
        description="Part of calls whose traces are sent where the caller does not say; failed, degraded and slow ones always.",
        ge=0,
        le=1,
    )
    profile_seconds: float = Field(
        default=0.0,
        description="Seconds of work, from the first call on, of which a profile is written; 0: none.",
        ge=0,
        allow_inf_nan=False,
    )
    profile_file: Path = Field(
        default=Path("keyglance-profile.json"),
        description="Where the profile goes: a Chrome trace of the steps of all processes.",
    )
    nvtx: bool = Field(default=False, description="Whether steps are NVTX ranges, for Nsight Systems; needs a GPU's packages.")
    console: bool = Field(default=False, description="Whether each finished trace is printed to standard error as a tree.")
    log_format: Literal["json", "text"] = Field(default="json", description="json for machines, text for terminals.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is logged: debug, info, warning or error."
    )

    @field_validator("prometheus")
    @classmethod
    def _is_an_address(cls, prometheus: str) -> str:
        return _address(prometheus) if prometheus else ""


class Config(BaseSettings):
    """All settings. Make one with `Config.load`."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter=_DELIMITER, extra="forbid", frozen=True, validate_default=True
    )

    server: ServerSection = ServerSection()
    limits: LimitsSection = LimitsSection()
    receive: ReceiveSection = ReceiveSection()
    index: IndexSection = IndexSection()
    engine: EngineSection = EngineSection()
    decoders: DecodersSection = DecodersSection()
    models: ModelsSection = ModelsSection()
    inference: InferenceSection = InferenceSection()
    gpu: GpuSection = GpuSection()
    sampling: SamplingSection = SamplingSection()
    overload: OverloadSection = OverloadSection()
    telemetry: TelemetrySection = TelemetrySection()

    @classmethod
    def load(cls, path: Path | None = None, *, overrides: Mapping[str, Mapping[str, object]] | None = None) -> Config:
        """Reads file and environment; `overrides`, by section and name, win over both. Raises `ConfigError`."""
        values = _read(path) if path is not None else {}
        try:
            return cls(_file=values, _overrides={k: dict(v) for k, v in (overrides or {}).items()})
        except ValidationError as error:
            raise ConfigError("\n".join(_line(item, path) for item in error.errors(include_url=False))) from None

    def __init__(self, **values: Any) -> None:
        # The two come as keywords because `settings_customise_sources` sees nothing but the keywords.
        unknown = [name for name in os.environ if _is_unknown(name)]
        if unknown:
            raise ConfigError("\n".join(_unknown_variable(name) for name in sorted(unknown)))
        super().__init__(**values)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line over environment over file; no .env file, no secrets folder."""
        values = dict(init_settings())
        file, overrides = values.pop("_file", {}), values.pop("_overrides", {})
        return (_Given(settings_cls, {**values, **overrides}), env_settings, _Given(settings_cls, file))

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.receive.budget < self.server.largest_message:
            raise ValueError(
                f"receive.budget ({self.receive.budget:,} bytes) must hold one message of server.largest_message "
                f"({self.server.largest_message:,} bytes)"
            )
        if self.sampling.frames > self.limits.frames:
            raise ValueError(f"sampling.frames ({self.sampling.frames}) is more than limits.frames ({self.limits.frames})")
        return self

    def annotated(self) -> str:
        """The settings in effect as a TOML file, each with its description and its environment variable."""
        lines = ["# Keyglance's settings in effect. Each can be set by the environment as well: KEYGLANCE_SECTION__NAME."]
        for name, info in type(self).model_fields.items():
            section: _Section = getattr(self, name)
            assert info.annotation is not None
            lines += ["", f"# {(info.annotation.__doc__ or '').strip()}", f"[{name}]"]
            for key, field in type(section).model_fields.items():
                value = getattr(section, key)
                lines.append(f"# {field.description}{_default_note(field, value)}")
                lines.append(f'{key} = ""' if value is None else f"{key} = {_toml(value)}")
        return "\n".join(lines) + "\n"


class _Given(PydanticBaseSettingsSource):
    """A source whose values are already there."""

    def __init__(self, settings_cls: type[BaseSettings], values: Mapping[str, Any]) -> None:
        super().__init__(settings_cls)
        self._values = dict(values)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._values


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


#: What the lists of tables have in them, by name.
_ITEMS: Mapping[str, type[BaseModel]] = {"warm": WarmDecoders, "steps": LoadStep}


def _names(location: Sequence[str | int]) -> list[str]:
    """The known names beside the last part of a location."""
    model: type[BaseModel] = Config
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        annotation = _ITEMS.get(part, annotation)
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return sorted(model.model_fields)


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"


def _line(error: Any, path: Path | None) -> str:
    location = tuple(error["loc"])
    where = ".".join(str(part) for part in location)
    if error["type"] == "extra_forbidden":
        return f"unknown setting {where}{f' in {path}' if path else ''}; {_nearest(str(location[-1]), _names(location))}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if not where or isinstance(error["input"], (dict, BaseModel)):
        return f"{where}: {message}" if where else message
    return f"{where} = {error['input']!r}: {message[:1].lower()}{message[1:]}"


def _is_unknown(variable: str) -> bool:
    # Only names with the delimiter are settings; KEYGLANCE_CORPUS and the like are other tools' variables.
    if not variable.upper().startswith(ENVIRONMENT_PREFIX) or _DELIMITER not in variable:
        return False
    section, _, rest = variable[len(ENVIRONMENT_PREFIX) :].lower().partition(_DELIMITER)
    annotation = Config.model_fields[section].annotation if section in Config.model_fields else None
    return not (isinstance(annotation, type) and issubclass(annotation, BaseModel) and rest in annotation.model_fields)


def _unknown_variable(variable: str) -> str:
    known = [
        f"{section}{_DELIMITER}{name}"
        for section, info in Config.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
        for name in info.annotation.model_fields
    ]
    close = difflib.get_close_matches(variable[len(ENVIRONMENT_PREFIX) :].lower(), known, n=1, cutoff=0.5)
    hint = (
        f"did you mean {ENVIRONMENT_PREFIX}{close[0].upper()}?"
        if close
        else "`keyglance-server --print-config` lists the settings"
    )
    return f"unknown setting {variable} in the environment; {hint}"


def _default_note(field: FieldInfo, value: object) -> str:
    return "" if value == field.default else f" (default: {_toml(field.default)})"


def _toml(value: object) -> str:
    match value:
        case None:
            return '""'
        case bool():
            return "true" if value else "false"
        case ByteSize():
            for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
                if value % unit == 0:
                    return f'"{value // unit}{name}"'
            return str(int(value))
        case int() | float():
            return repr(value)
        case str() | Path():
            return '"' + "".join(_escaped(c) for c in str(value)) + '"'
        case tuple():
            return f"[{', '.join(_toml(item) for item in value)}]"
        case BaseModel():
            return "{ " + ", ".join(f"{name} = {_toml(getattr(value, name))}" for name in type(value).model_fields) + " }"
    raise TypeError(f"no TOML for {value!r}")


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return f"\\u{ord(character):04x}" if ord(character) < 0x20 or ord(character) == 0x7F else character
