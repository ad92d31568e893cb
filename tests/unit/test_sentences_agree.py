"""Every sentence about a job agrees with the numbers beside it, and with what the scheduler does next.

The clusters are random. What an explanation promises is then done in a copy of the real core.
"""

from collections.abc import Callable
from copy import deepcopy

import pytest
from msgspec import structs

from tests.support.drawn import seen
from tests.support.scheduler import World
from tests.support.tier import some
from tests.unit.test_scheduler_any_order import Life
from weft.domain.cluster import Node
from weft.domain.job import HELD_FOR, CauseCode, Job, JobState
from weft.domain.spec import JobSpec, Replicas, Role
from weft.messages.asks import AskKind
from weft.messages.eta import Basis, Estimate, EtaOf, Helps, Sooner
from weft.messages.http.explanation import Explanation
from weft.planning.eta.ends import Steps
from weft.planning.eta.learnt import Lasted, learn
from weft.planning.eta.starts import TICK_S, PoolToCome
from weft.planning.eta.told import agreed, ends_of, to_come
from weft.planning.reasons.explain import explain
from weftd.cli.rendering.context import RenderContext
from weftd.cli.rendering.explanation import explanation
from weftd.cli.rendering.jobs import when_text

WORLDS = 6  # of each test
LOOKS = 3
ROUNDS = 6


class Seen(Life):
    """A world that is looked at as the gateway does: from what is stored of it, and what its jobs report."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.heard: dict[str, Steps] = {}

    def settle(self) -> None:
        """No command is on its way, the leader has heard of all nodes, and nothing is left to be decided."""
        for node in self.world.nodes.values():
            node.leaving = False
        for _ in range(ROUNDS):
            self.world.now += 25.0  # so long in all that a new leader has settled
            self.world.round()
        self.world.tick()
        for one in self.holding():
            if self.dice.random() < 0.5:
                self.heard.setdefault(one.id, self._steps())

    def _steps(self) -> Steps:
        step, steps = self.dice.choice([(3.0, 18_394.0), (35.0, 18_394.0), (500.0, 600.0), (0.0, 10.0)])
        return Steps(step, steps, self.dice.choice([None, 0.2]), 100.0)

    def nodes(self) -> list[Node]:
        return list(self.world.core.cluster_state.pool.nodes.values())

    def holding(self) -> list[Job]:
        return [one for one in self.world.open_jobs() if one.state.holding]

    def queued(self) -> list[Job]:
        return [one for one in self.world.open_jobs() if one.state is JobState.QUEUED]

    def pool(self) -> PoolToCome:
        durations = Lasted()
        learn(durations, [one for one in self.world.stored.values() if one.state.final])
        return PoolToCome(
            self.nodes(),
            self.holding(),
            self.queued(),
            now=self.world.now,
            policy=str(self.world.core.settings.policy),
            durations=durations,
            steps=self.heard,
            quotas=self.limits,
            minimum_run=self.world.core.cluster_state.minimum_run,
        )

    def told(self, about: Job, pool: PoolToCome) -> Explanation:
        full = explain(
            about,
            nodes=self.nodes(),
            holding=self.holding(),
            queued=self.queued(),
            now=self.world.now,
            policy=str(self.world.core.settings.policy),
            quotas=self.limits,
        )
        foreseen, helps = to_come(about, lambda: pool)
        ends = ends_of([held.job_id for held in full.holders], pool)
        holders = tuple(structs.replace(held, eta=ends[held.job_id]) for held in full.holders)
        full = agreed(full, None if foreseen is None else foreseen.estimate)
        return structs.replace(full, eta=None if foreseen is None else foreseen.estimate, sooner=helps, holders=holders)


Planted = Callable[[Explanation], Explanation]


def contradictions(life: Seen, planted: Planted = lambda told: told) -> list[str]:
    """List where sentences about the open jobs of a world contradict each other, their numbers or its scheduler."""
    pool, found = life.pool(), list[str]()
    for one in life.world.open_jobs():
        told = planted(life.told(one, pool))
        found += [f"{one.id}: {what}" for what in (*_inside(told, life), *_against_the_scheduler(one, told, life))]
    return found


def _inside(told: Explanation, life: Seen) -> list[str]:
    """Sentences against sentences, and against the numbers beside them."""
    found: list[str] = []
    lines = [
        line.strip() for line in seen(explanation(told, RenderContext(now=life.world.now, width=200), emulated={}))
    ]
    sentences = [line for line in lines if len(line.split()) > 3]
    found += [f"said twice: {line}" for line in set(sentences) if sentences.count(line) > 1]
    if told.state is JobState.QUEUED and told.code not in HELD_FOR:
        said = "first in the queue" if not told.ahead else f"{told.ahead} job{'s' * (told.ahead != 1)} ahead of it"
        if said not in " ".join(lines) or told.numbers.get("ahead") != told.ahead:
            found.append(f"ahead are {told.ahead}, but not in its lines")
    if told.eta is not None:
        found += _estimate(told.eta, told.job_id, life)
    for held in told.holders:
        own = life.told(life.world.stored[held.job_id], life.pool()).eta
        if held.eta != own:
            found.append(f"its holder {held.job_id} ends {held.eta}, and says itself {own}")
    return found


def _estimate(eta: Estimate, job_id: str, life: Seen) -> list[str]:
    found: list[str] = []
    in_words, is_bound = "about" in eta.sentence.split(",")[0], eta.earliest is not None and eta.latest is None
    if in_words != (eta.likely is not None and eta.basis is not Basis.ROOM) and not is_bound:
        found.append(f"a moment in words alone, or in numbers alone: {eta}")
    tells = eta.likely is not None or eta.latest is not None or (eta.earliest or 0.0) > life.world.now
    if (when_text(eta, RenderContext(now=life.world.now)) != "?") != tells:
        found.append(f"STARTS and the sentence differ: {eta}")
    reports = {one.id for one in life.holding() if life.heard.get(one.id, Steps(0, 0)).steps and _runs(one)}
    if "reports no steps" in eta.sentence and job_id in reports:
        found.append("it reports no steps, beside its steps")
    if "report no steps" in eta.sentence and any(
        one.id in reports
        for one in life.holding()
        if life.told(one, life.pool()).eta.basis is Basis.UNKNOWN  # type: ignore[union-attr]
    ):
        found.append("its holders report no steps, beside their steps")
    return found


def _runs(one: Job) -> bool:
    return one.state is JobState.RUNNING and not one.spec.is_service


def _against_the_scheduler(one: Job, told: Explanation, life: Seen) -> list[str]:
    found: list[str] = []
    if one.state is not JobState.QUEUED:
        return found
    is_now = told.eta is not None and told.eta.basis is Basis.ROOM and told.eta.likely == life.world.now
    if is_now and not _starts(deepcopy(life.world), one.id):
        found.append(f"it starts now, and does not: {told.code}: {told.sentence}; {told.eta}")
    if told.code == CauseCode.FITS and not _starts(deepcopy(life.world), one.id):
        found.append(f"it fits, and does not start: {told.sentence}")
    advice = [helps for helps in told.sooner if "it would start now" in helps.sentence]
    wrong = [helps for helps in advice if not _helps(deepcopy(life.world), one, helps)]
    return found + [f"advice that does not help: {helps.sentence} ({one.waiting_for})" for helps in wrong]


def _starts(world: World, job_id: str) -> bool:
    for _ in range(2):
        world.tick(TICK_S / 2)
    return world.stored[job_id].state.holding


def _helps(world: World, one: Job, helps: Sooner) -> bool:
    """Whether the job, changed as is advised, starts in the next decisions."""
    if helps.what is Helps.RESUME_NODE:
        world.ask(AskKind.RESUME, str(helps.change["node"]))
        return _starts(world, one.id)
    if helps.what is Helps.PRIORITY:
        world.ask(AskKind.PRIORITISE, one.id, int(helps.change["priority"]))
        return _starts(world, one.id)
    world.ask(AskKind.CANCEL, one.id)
    changed = structs.replace(one, id="j-changed", spec=_changed(one.spec, helps), waiting_for=None, size={})
    world.stored[changed.id] = changed
    world.core.admit([changed])
    return _starts(world, changed.id)


def _changed(spec: JobSpec, helps: Sooner) -> JobSpec:
    roles = dict(spec.roles)
    for name, role in spec.roles.items():
        if helps.what is Helps.LESS_MEMORY:
            roles[name] = structs.replace(role, memory=str(int(helps.change["memory"])))
        elif name == helps.change.get("role"):
            roles[name] = _smaller(role, helps)
    return structs.replace(spec, roles=roles)


def _smaller(role: Role, helps: Sooner) -> Role:
    change = helps.change
    if "replicas" in change:
        role = structs.replace(role, replicas=Replicas(want=int(change["replicas"])))
    if "gpus_per_replica" in change:
        role = structs.replace(role, gpus=int(change["gpus_per_replica"]))
    if "cpus" in change:
        role = structs.replace(role, cpus=float(change["cpus"]))
    return role


@pytest.mark.parametrize("first", some(2, range(0, 8 * WORLDS, WORLDS)))
def test_no_sentence_contradicts_another_or_what_the_scheduler_does_next(first: int) -> None:
    for seed in range(first, first + WORLDS):
        life = Seen(seed)
        for _ in range(LOOKS):
            life.go_on()
            life.settle()
            assert contradictions(life) == [], f"seed {seed}"


def _starts_now(told: Explanation) -> Explanation:
    if told.state is not JobState.QUEUED or told.code not in HELD_FOR:
        return told
    sentence = "it fits, and is placed in the next cycle"
    return structs.replace(told, code=str(CauseCode.FITS), sentence=sentence)


def _advised(told: Explanation) -> Explanation:
    sentence = "if node-1, which is drained, took work again (`weft resume node-1`), it would start now"
    advice = Sooner(what=Helps.RESUME_NODE, sentence=sentence, change={"node": "node-1"})
    return structs.replace(told, sooner=(advice,)) if told.code in HELD_FOR else told


def _steps_denied(told: Explanation) -> Explanation:
    if told.eta is None or told.eta.of is not EtaOf.END:
        return told
    return structs.replace(told, eta=structs.replace(told.eta, sentence="nobody can tell: it reports no steps"))


def _holder_denied(told: Explanation) -> Explanation:
    return structs.replace(told, holders=tuple(structs.replace(held, eta=None) for held in told.holders))


def _twice(told: Explanation) -> Explanation:
    return structs.replace(told, sooner=2 * (Sooner(what=Helps.SPANNING, sentence="as 2 replicas of it"),))


PLANTED: dict[str, tuple[Planted, str]] = {
    "a start in the next tick of a job that waits for others": (_starts_now, "it fits, and does not start"),
    "a node resumed for a job that waits for others": (_advised, "advice that does not help"),
    "no steps beside steps": (_steps_denied, "it reports no steps, beside its steps"),
    "another end of a holder": (_holder_denied, "and says itself"),
    "another count of jobs ahead": (lambda told: structs.replace(told, ahead=told.ahead + 1), "ahead are"),
    "a sentence said twice": (_twice, "said twice"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_contradiction_is_found(name: str) -> None:
    plant, said = PLANTED[name]
    for seed in range(4 * WORLDS):
        life = Seen(seed)
        life.go_on()
        life.settle()
        if any(said in found for found in contradictions(life, plant)):
            return
    pytest.fail(f"{name} is not found in {4 * WORLDS} worlds")
