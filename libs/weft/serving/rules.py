"""The constants of Weft's own autoscaler, and which of its parts are switched on. docs/serving.md has the reasons."""

from msgspec import Struct


class ScalingRules(Struct, frozen=True, kw_only=True):
    """Seconds, where nothing else is named."""

    aim: float = 0.7  # of the latency of the objective: more replicas from here on
    down_aim: float = 0.65  # the part of it below which fewer replicas must keep the latency
    busy_most: float = 0.7  # of a replica's concurrency, for a service without an objective
    window: float = 60.0  # of the rate
    bursts: tuple[float, ...] = (1.0, 2.0, 6.0, 20.0)  # windows in which a burst is looked for
    falls: tuple[float, ...] = (6.0, 20.0)  # windows in which a fall is looked for
    reserve: float = 0.5  # of the late requests that the objective allows, what bursts may make; 0: no reserve
    likelihood: float = 15.0  # the logarithm: one false burst in e^15 windows
    trend_likelihood: float = 15.0
    variation_samples: float = 300.0  # of a second each, after which an e-th part of what was seen of variation is left
    steady: float = 6.0  # windows that make one mean where the rate did not change
    rate_deviations: float = 3.0  # standard deviations by which the mean may be too low
    noise: float = 4.5  # the same for the rate of one window, which fewer replicas must still handle
    hold_least: float = 60.0  # before there are fewer replicas
    hold_most: float = 600.0
    hold_starts: float = 1.0  # times as long as a start takes
    loan_least: float = 30.0  # the same for borrowed replicas
    loan_starts: float = 1.0
    idle_least: float = 60.0  # without a request, before there are none
    idle_most: float = 3600.0
    idle_starts: float = 20.0
    clear_starts: float = 0.5  # target time to answer the backlog, in multiples of a start
    down_every: float = 2.0  # between two steps down
    down_part: int = 8  # of the replicas at once: an eighth, one at least
    regret: float = 60.0  # since more requests were bad than the objective allows, before there are fewer replicas
    alarm_window: float = 10.0
    alarm_least: float = 3.0
    alarm_deviations: float = 5.0
    share_step: int = 100  # thousandths
    share_wait: float = 3.0  # until a larger share that was asked for counts as not to be had
    share_rest: float = 60.0  # before it is asked for again
    remembered: float = 3600.0  # how long a size that did not suffice is remembered
    fresh: float = 30.0  # what a replica answers so soon after it became ready says little of how it will go on
    shares: bool = True
    forecasts: bool = True
    sees_bursts: bool = True
    alarms: bool = True
