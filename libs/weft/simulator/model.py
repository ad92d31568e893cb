"""The simulated cluster, and the rules of its world."""

from collections.abc import Mapping

from msgspec import Struct

from weft.domain.quotas import Quota
from weft.domain.topology import Topology
from weft.planning.moves import MoveRules
from weft.planning.preemption.minimum_run import SECONDS, MinimumRun
from weft.planning.reserving import PATIENCE_SECONDS
from weft.planning.shares import Amounts
from weft.variability.models import WorkloadRatios

MOVES = MoveRules()
GRACE_S = 30.0  # the default of a job
LOCALITY_PENALTY = 1.7  # the PAL artifact's
CPUS, MEMORY = 1e9, 1 << 60  # of a node, where nothing is said of them: never short


SIMULATED = "simulated"  # the model of all GPUs, unless groups of nodes have others


class NodeGroup(Struct, frozen=True, kw_only=True):
    """Nodes that are alike: how many, and how many GPUs of which model each has."""

    nodes: int
    gpus_per_node: int
    model: str


class Cluster(Struct, frozen=True, kw_only=True):
    """`nodes` nodes of `gpus_per_node` GPUs each, numbered node by node. `gpu_nodes`: only the first ones have GPUs.

    `scores`: by class, the time that each GPU takes for the work of a typical one (1.0; 1.2 is a fifth slower); a class
    without scores counts as the first one, the most sensitive. `runs`: by class, all measured runs of each GPU, for
    scores that change. `cpus_per_node`: cores; `memory_per_node`: bytes. `groups`: all nodes, group by group, if they
    are not alike; `gpus_per_node` then is that of the largest. `topology`: the links of each node with as many GPUs;
    None: its GPUs are equally near to each other. `labels`: those of the first nodes; others have none.
    """

    nodes: int
    gpus_per_node: int
    scores: Mapping[str, tuple[float, ...]] = {}
    runs: Mapping[str, tuple[tuple[float, ...], ...]] = {}
    nodes_per_rack: int = 0  # 0: all nodes are in one rack
    cpus_per_node: float = CPUS
    memory_per_node: int = MEMORY
    gpu_nodes: int | None = None
    groups: tuple[NodeGroup, ...] = ()
    topology: Topology | None = None
    labels: tuple[dict[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.groups and self.nodes != sum(group.nodes for group in self.groups):
            raise ValueError(f"groups must have all {self.nodes} nodes")

    def group_of(self, number: int) -> NodeGroup:
        """The group of the node with that number."""
        for group in self.groups:
            if number < group.nodes:
                return group
            number -= group.nodes
        return NodeGroup(nodes=self.nodes, gpus_per_node=self.gpus_per_node, model=SIMULATED)

    @property
    def gpus(self) -> int:
        if self.groups:
            return sum(group.nodes * group.gpus_per_node for group in self.groups)
        return self.gpus_per_node * (self.nodes if self.gpu_nodes is None else min(self.gpu_nodes, self.nodes))

    @property
    def amounts(self) -> Amounts:
        """GPUs, CPU cores and bytes of memory of the whole cluster; 0 for a resource that is never short."""
        cpus = self.nodes * self.cpus_per_node if self.cpus_per_node < CPUS else 0.0
        memory = self.nodes * float(self.memory_per_node) if self.memory_per_node < MEMORY else 0.0
        return float(self.gpus), cpus, memory


class World(Struct, frozen=True, kw_only=True):
    """The costs and troubles of the simulated world. Times in seconds.

    `penalty`: by how much a job that spans nodes takes longer; `penalties`: the same for jobs of single models
    (`TraceJob.model`), where it differs; `rack_penalty`: by how much more, if it spans racks. If not
    `penalties_known`, the policy knows only `penalty`, and learns from the steps of running jobs each `sample_s`.
    `move_s`: how long a job that ran before does no work after every later start, be it moved or evicted; `start_s`:
    the same for its first.
    `decide_every_s`: the time between two decisions; 0: after each event.
    `patience_s`: nodes may be kept for the first job that does not fit and has waited so long. `moves`: which moves
    pay, at a cost of `move_s`, `grace_s` (in which a job writes its checkpoint) and the work that is lost.
    `minimum_run`: how long a job runs before it may be evicted; `stop_s`: how long it takes to stop then, or to move
    (None: it is gone in the same decision). The defaults of all of these are the scheduler's.
    `failures_per_node_day`, `repair_s`: how often a node fails, and for how long; the work of its jobs since their last
    checkpoint is lost, which jobs that write one when they are stopped write every `checkpoint_s` of work too.
    `spares`: the nodes of each kind that are kept for gangs of which a node failed.
    `drift_s`: how often every GPU gets other scores (0: never). `noise`: the standard deviation of one measured step
    time, as a part of it; `sample_s`: how often each GPU at work is measured; `benchmark_s`: how often each idle
    one is, for every class.
    `model_ratios`: how many times as fast workloads are on one model of GPUs as on another, which the policy knows
    beside what is usual for a class; None: all models are equally fast.
    `durations_known`: whether the policy knows each job's work; else only its user's estimate. `quotas`: of the
    tenants.
    """

    penalty: float = LOCALITY_PENALTY
    penalties: Mapping[str, float] = {}
    penalties_known: bool = True
    model_ratios: tuple[WorkloadRatios, ...] | None = None
    rack_penalty: float = 1.0
    start_s: float = 0.0
    move_s: float = MOVES.cost_seconds
    grace_s: float = GRACE_S
    moves: MoveRules = MOVES
    minimum_run: MinimumRun = MinimumRun(SECONDS)
    stop_s: float | None = None
    decide_every_s: float = 0.0
    patience_s: float = PATIENCE_SECONDS
    failures_per_node_day: float = 0.0
    repair_s: float = 3600.0
    checkpoint_s: float = 600.0
    spares: int = 0
    drift_s: float = 0.0
    noise: float = 0.02
    sample_s: float = 60.0
    benchmark_s: float = 300.0
    durations_known: bool = False
    quotas: tuple[Quota, ...] = ()
