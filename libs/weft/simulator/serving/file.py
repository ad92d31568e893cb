"""Services read from a YAML file: a list, each with its requests, its replicas and its objective.

    - name: chat
      rate: 20               # requests per second, in the mean
      swing: 0.7             # up and down within a day, by this part of the mean
      peak_at: 14h
      bursts: {every: 3h, lasts: 1m, times: 4}
      time: 80ms             # of a request, at a whole GPU of score 1.0
      time_cv: 0.5
      start: 20s
      objective: {latency: 400ms, percentile: 99, rate: 20}
      replicas: {min: 1, max: 16, want: 2}

`recorded: FILE` instead of `rate`: a CSV file with the columns `time,rate`, or `time` alone: the arrivals themselves.
"""

from math import inf
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from weft.domain.decoding.mistakes import mistakes_of
from weft.domain.decoding.yaml_reader import DocumentError, read_yaml
from weft.domain.quantity import DURATION_PATTERN, duration_seconds
from weft.domain.spec import GpuShare, Objective
from weft.simulator.serving.rates import Bursts, RequestRate
from weft.simulator.serving.service import Services, Spread, TraceService
from weft.simulator.traces.table import Columns, header_of, read_rows, seconds
from weft.simulator.workload import InputError

SERVICES_MAX = 10_000
REPLICAS_MAX = 65_536
Duration = Annotated[str, Meta(pattern=DURATION_PATTERN)]
Variation = Annotated[float, Meta(ge=0, le=10)]


class _Read(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Bursts(_Read, frozen=True, kw_only=True):
    every: Duration
    lasts: Duration
    times: Annotated[float, Meta(gt=0, le=1000)] = 4.0


class _Replicas(_Read, frozen=True, kw_only=True):
    min: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)] = 1
    max: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)]
    want: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)] | None = None


class _Service(_Read, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=63)]
    rate: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    swing: Annotated[float, Meta(ge=0, le=1)] = 0.0
    period: Duration = "24h"
    peak_at: Duration = "14h"
    bursts: _Bursts | None = None
    recorded: str | None = None
    time: Duration
    time_cv: Variation = 0.0
    gpu_part: Annotated[float, Meta(ge=0, le=1)] = 1.0
    start: Duration = "20s"
    start_cv: Variation = 0.0
    objective: Objective | None = None
    replicas: _Replicas
    concurrency: Annotated[int, Meta(ge=1, le=10_000)] = 1
    queue: Annotated[int, Meta(ge=0, le=100_000)] = 1000
    timeout: Duration = "60s"
    gpus: Annotated[int, Meta(ge=1, le=1024)] = 1
    share: GpuShare | None = None


class _File(_Read, frozen=True, kw_only=True):
    services: Annotated[tuple[_Service, ...], Meta(min_length=1, max_length=SERVICES_MAX)]


def read_services(path: Path, *, lasts_s: float, every_s: float = 1.0) -> Services:
    """The services of a file, for so many seconds. Raises InputError, which names the field."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise InputError(str(path), 0, f"cannot be read: {error.strerror or error}") from error
    try:
        value = {"services": read_yaml(body)}
    except DocumentError as error:
        raise InputError(str(path), 0, f"{error.field}: {error.reason}" if error.field else error.reason) from error
    try:
        file = msgspec.convert(value, _File)
    except (msgspec.ValidationError, ValueError) as error:
        wrong = next(iter(mistakes_of(value, _File, {})), None)
        sentence = str(error) if wrong is None else f"{wrong.field}: {wrong.reason}"
        raise InputError(str(path), 0, sentence) from error
    found: dict[str, TraceService] = {}
    for place, read in enumerate(file.services):
        try:
            if read.name in found:
                raise ValueError(f"name: there is another service {read.name!r}")
            found[read.name] = _service(read, path.parent)
        except ValueError as error:
            raise InputError(str(path), 0, f"services[{place}].{error}") from error
    return Services(services=tuple(found.values()), lasts_s=lasts_s, every_s=every_s)


def _service(read: _Service, folder: Path) -> TraceService:
    """Raises ValueError that begins with the field."""
    replicas, objective, share = read.replicas, read.objective, read.share
    want = max(1, replicas.min) if replicas.want is None else replicas.want
    if not replicas.min <= want <= replicas.max:
        raise ValueError(f"replicas: want must be between min and max: {replicas.min} to {replicas.max}, not {want}")
    if not duration_seconds(read.time) > 0:
        raise ValueError(f"time: a request takes more than nothing, not {read.time}")
    if share is not None and read.gpus != 1:
        raise ValueError("share: a replica has a share of one GPU or several whole ones, not both")
    return TraceService(
        name=read.name,
        rate=_rate(read, folder),
        work=Spread(mean_s=duration_seconds(read.time), cv=read.time_cv),
        start=Spread(mean_s=duration_seconds(read.start), cv=read.start_cv),
        latency_s=None if objective is None else duration_seconds(objective.latency),
        percentile=99.0 if objective is None else objective.percentile,
        rate_promised=None if objective is None else objective.rate,
        least=replicas.min,
        most=replicas.max,
        want=want,
        concurrency=read.concurrency,
        queue=read.queue,
        timeout_s=duration_seconds(read.timeout),
        gpus=read.gpus,
        share=None if share is None else share.held.request,
        share_most=None if share is None else share.held.limit,
        gpu_part=read.gpu_part,
    )


def _rate(read: _Service, folder: Path) -> RequestRate:
    if (read.rate is None) == (read.recorded is None):
        raise ValueError("rate: a service has a rate, or a recorded file of its requests: one of them")
    bursts = None
    if read.bursts is not None:
        try:
            bursts = Bursts(
                every_s=duration_seconds(read.bursts.every),
                lasts_s=duration_seconds(read.bursts.lasts),
                times=read.bursts.times,
            )
        except ValueError as error:
            raise ValueError(f"bursts: {error}") from error
    if read.recorded is not None:
        return _recorded(str(folder / read.recorded), bursts)
    if not duration_seconds(read.period) > 0:
        raise ValueError(f"period: must be above 0, not {read.period}")
    return RequestRate(
        mean=read.rate or 0.0,
        swing=read.swing,
        period_s=duration_seconds(read.period),
        peak_at_s=duration_seconds(read.peak_at),
        bursts=bursts,
    )


def _recorded(path: str, bursts: Bursts | None) -> RequestRate:
    if "rate" not in header_of(path):
        if bursts is not None:
            raise ValueError("bursts: recorded arrivals are taken as they are")
        times: list[float] = []
        for line, (at,) in read_rows(path, Columns(("time",))):
            times.append(_field(path, line, "time", at))
        return RequestRate(arrivals=tuple(times)) if times else RequestRate()
    steps: list[tuple[float, float]] = []
    before = -inf
    for line, (at, rate) in read_rows(path, Columns(("time", "rate"))):
        when = _field(path, line, "time", at)
        if when <= before:
            raise InputError(path, line, f"time does not grow: {at}")
        before = when
        steps.append((when, _field(path, line, "rate", rate)))
    return RequestRate(steps=tuple(steps), bursts=bursts)


def _field(path: str, line: int, column: str, text: str) -> float:
    try:
        return seconds(column, text)
    except ValueError as error:
        raise InputError(path, line, str(error)) from error
