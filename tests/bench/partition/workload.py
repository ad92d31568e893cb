"""Dorm's own cluster and workload (Sun, Wen, Ta and Yan, 2017): 50 elastic applications on 20 servers, in 24 hours.

Known of it are the servers (240 cores, 5 GPUs and 2.5 TB of memory in all), the seven applications, their arrivals
(Poisson, one every 20 minutes) and that the static baseline gives each CPU application 8 containers for its life. The
rest is a reconstruction, because the text of the paper was not at hand: how many of each there are, what one container
needs, how far each may grow, how long it runs. The times are chosen so that the static baseline keeps a bit more than
half of the cores busy.
"""

from random import Random

from msgspec import Struct

from weft.simulator.generate import HOUR, Urn
from weft.simulator.model import Cluster
from weft.simulator.workload import Elastic, TraceJob, Workload

GIB = 1 << 30
CLUSTER = Cluster(nodes=20, gpus_per_node=1, gpu_nodes=5, cpus_per_node=12.0, memory_per_node=128 * GIB)
JOBS, JOBS_PER_HOUR = 50, 3.0
RESIZE_S = 60.0  # to save the state, to end the containers, and to go on with others


class Application(Struct, frozen=True, kw_only=True):
    """`often`: how often it comes, against the others. `gpus`, `cpus`, `gib`: of one container. `hours`: how long it
    runs with `asked` containers, in the median; half as long or twice as long is as usual as not."""

    name: str
    often: int
    gpus: int
    cpus: float
    gib: int
    asked: int
    most: int
    hours: float


APPLICATIONS = (
    Application(name="LR", often=20, gpus=0, cpus=1, gib=8, asked=8, most=32, hours=5.0),
    Application(name="MF", often=20, gpus=0, cpus=1, gib=6, asked=8, most=32, hours=5.0),
    Application(name="CaffeNet", often=6, gpus=0, cpus=2, gib=6, asked=8, most=24, hours=6.0),
    Application(name="GoogLeNet", often=1, gpus=0, cpus=3, gib=16, asked=8, most=24, hours=7.0),
    Application(name="AlexNet", often=1, gpus=0, cpus=3, gib=16, asked=8, most=24, hours=7.0),
    Application(name="VGG-16", often=1, gpus=1, cpus=4, gib=32, asked=2, most=5, hours=5.0),
    Application(name="ResNet", often=1, gpus=1, cpus=4, gib=32, asked=2, most=5, hours=5.0),
)
SPREAD = 0.6  # standard deviation of the logarithm of a duration


def dorm_workload(
    dice: Random,
    *,
    jobs: int = JOBS,
    jobs_per_hour: float = JOBS_PER_HOUR,
    exponent: float = 1.0,
    resize_s: float = RESIZE_S,
    live: bool = False,
) -> Workload:
    """The same dice give the same jobs, whatever the exponent. Raises ValueError for settings that make no sense."""
    if jobs < 1 or not jobs_per_hour > 0:
        raise ValueError(f"jobs must be at least 1, and jobs_per_hour above 0: {jobs}, {jobs_per_hour:g}")
    urn = Urn({application: application.often for application in APPLICATIONS})
    arrival_s = 0.0
    made: list[TraceJob] = []
    for number in range(jobs):
        arrival_s += dice.expovariate(jobs_per_hour / HOUR)
        application = urn.draw(dice)
        work_s = application.hours * HOUR * dice.lognormvariate(0.0, SPREAD)
        elastic = _elastic(application, exponent, resize_s, live=live)
        made.append(_job(number, application, arrival_s, work_s, elastic))
    note = f"Dorm's workload, reconstructed; n containers are n ** {exponent:g} times as fast as one"
    return Workload(name="dorm", jobs=tuple(made), notes=(note,))


def _elastic(application: Application, exponent: float, resize_s: float, *, live: bool) -> Elastic:
    return Elastic(
        asked=application.asked,
        least=1,
        most=application.most,
        each=(float(application.gpus), application.cpus, float(application.gib * GIB)),
        exponent=exponent,
        resize_s=resize_s,
        live=live,
    )


def _job(number: int, application: Application, arrival_s: float, work_s: float, elastic: Elastic) -> TraceJob:
    return TraceJob(
        id=f"{application.name}-{number:02d}",
        arrival_s=arrival_s,
        gpus=application.gpus * application.asked,
        work_s=work_s,
        model=application.name,
        elastic=elastic,
    )
