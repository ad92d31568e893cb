"""The constants and switches of Weft's own autoscaler. docs/serving.md has the reasons."""

from msgspec import Struct


class ScalingRules(Struct, frozen=True, kw_only=True):
    """Values are seconds unless a comment says otherwise."""

    aim: float = 0.7  # of the latency of the objective: more replicas from here on
    down_aim: float = 0.65  # the part of it below which fewer replicas must keep the latency
    busy_most: float = 0.7  # of a replica's concurrency, for a service without an objective
    window: float = 60.0  # of the rate
    bursts: tuple[float, ...] = (1.0, 2.0, 6.0, 20.0)  # windows in which a burst is looked for
    falls: tuple[float, ...] = (6.0, 20.0)  # windows in which a fall is looked for
    reserve: float = 0.5  # fraction of the allowed late requests that bursts may cause; 0: no reserve
    likelihood: float = 15.0  # the logarithm: one false burst in e^15 windows
    trend_likelihood: float = 15.0
    variation_samples: float = 300.0  # windows of one second after which the weight of an observed variation is 1/e
    steady: float = 6.0  # windows that make one mean where the rate did not change
    rate_deviations: float = 3.0  # standard deviations by which the mean may be too low
    noise: float = 4.5  # the same for the rate of one window, which fewer replicas must still handle
    hold_least: float = 60.0  # before there are fewer replicas
    hold_most: float = 600.0
    hold_starts: float = 1.0  # times as long as a start takes
    loan_least: float = 30.0  # the same for borrowed replicas
    loan_starts: float = 1.0
    idle_least: float = 60.0  # without a request, before the service scales to zero
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
    share_wait: float = 3.0  # until a requested larger share counts as unavailable
    share_rest: float = 60.0  # before it is asked for again
    remembered: float = 3600.0  # how long a too small size is remembered
    fresh: float = 30.0  # answers this soon after a replica became ready are not typical of it
    shares: bool = True
    forecasts: bool = True
    sees_bursts: bool = True
    alarms: bool = True
