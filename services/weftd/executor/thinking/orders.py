"""Turns the orders for jobs into the orders for ranks."""

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from msgspec import structs

from weft.messages.bounds import EPOCH_MAX, EXIT_CODE_MAX, JOB_ID_PATTERN, PROGRESS_NAMES_MAX, RANK_MAX, RUNS_MAX
from weft.messages.nodes import NOTED_MAX, JobOrder, RevisionOrder, RoleOrder, RunSeen, StartRun, env_with

FEW = 512  # runs, each of which may have long texts
DETAIL_CHARS, DETAIL_CHARS_OF_MANY = 2000, 100
NUMBERS_MAX = 32_768  # of progress, in one report
_JOB_ID = re.compile(JOB_ID_PATTERN)


def runs_of(order: JobOrder) -> Iterator[StartRun]:
    """The runs of one job's order; values that the ranks share stay one object."""
    envs_of_revisions: dict[tuple[int, int], dict[str, str]] = {}
    peers = {role.name: _addresses(order, role) for role in order.roles}
    envs = [{**order.env, **role.env} for role in order.roles]
    for rank in order.ranks:
        role = order.roles[rank.role]
        revision = order.revisions.get(rank.revision, _AS_ORDERED)
        env = envs[rank.role]
        if revision.env:
            both = (rank.role, rank.revision)
            if both not in envs_of_revisions:
                envs_of_revisions[both] = env_with(env, revision.env)
            env = envs_of_revisions[both]
        yield StartRun(
            job_id=order.job_id,
            name=order.name,
            tenant=order.tenant,
            epoch=order.epoch,
            rank=rank.rank,
            role=role.name,
            role_rank=rank.role_rank,
            world_size=order.world_size,
            command=(role.command or order.command) if revision.command is None else revision.command,
            image=revision.image or role.image or order.image,
            workdir=order.workdir,
            context=order.context,
            from_checkpoint=order.from_checkpoint,
            entrypoint=order.entrypoint,
            named_volumes=order.named_volumes,
            stop_signal=order.stop_signal,
            ulimits=order.ulimits,
            hung=order.hung,
            hang_signal=order.hang_signal,
            preflight=order.preflight,
            env=env,
            gpus=rank.gpus,
            cpus=rank.cpus,
            memory=rank.memory,
            egress=rank.egress,
            shm=role.shm,
            grace=order.grace,
            volumes=order.volumes,
            read_only=order.read_only,
            progress_pattern=order.progress_pattern,
            master_address=order.master_address,
            master_port=order.master_port,
            peers=peers,
            members=order.members,
            share=rank.share,
            serve=order.serve,
            revision=rank.revision,
            secrets=order.secrets,
            secret_files=order.secret_files,
            mounts=order.mounts,
            outputs=order.outputs,
            object_store=order.object_store,
        )


_AS_ORDERED = RevisionOrder()


def _addresses(order: JobOrder, role: RoleOrder) -> tuple[str, ...]:
    return tuple(order.addresses[place] for place, count in role.nodes for _ in range(count))


def lawful(runs: Collection[RunSeen]) -> tuple[RunSeen, ...]:
    """The same runs, without values that a scheduler would refuse; runs that cannot be Weft's are left out."""
    chars = DETAIL_CHARS if len(runs) <= FEW else DETAIL_CHARS_OF_MANY
    left = NUMBERS_MAX
    told: list[RunSeen] = []
    for run in islice(filter(_is_ours, runs), RUNS_MAX):
        progress = _progress(run.progress) if len(run.progress) <= left else {}
        left -= len(progress)
        told.append(_changed(run, chars, progress))
    return tuple(told)


def _is_ours(run: RunSeen) -> bool:
    return run.epoch <= EPOCH_MAX and run.rank <= RANK_MAX and _JOB_ID.search(run.job_id) is not None


def _changed(run: RunSeen, chars: int, progress: Mapping[str, float]) -> RunSeen:
    exit_code = run.exit_code if run.exit_code is None or 0 <= run.exit_code <= EXIT_CODE_MAX else EXIT_CODE_MAX
    detail, not_applied = _text(run.detail, chars), _text(run.not_applied, chars)
    noted = tuple(structs.replace(each, sentence=_text(each.sentence, chars)) for each in run.noted[:NOTED_MAX])
    lawful_parts = (exit_code, detail, not_applied, noted, progress)
    if lawful_parts == (run.exit_code, run.detail, run.not_applied, run.noted, run.progress):
        return run
    return structs.replace(
        run, exit_code=exit_code, detail=detail, not_applied=not_applied, noted=noted, progress=dict(progress)
    )


def _text(said: str, chars: int) -> str:
    """The first `chars` characters, without halves of surrogate pairs, which no message can hold."""
    return said[:chars].encode(errors="replace").decode()


def _progress(progress: Mapping[str, float]) -> Mapping[str, float]:
    """The first names that one run may use."""
    return progress if len(progress) <= PROGRESS_NAMES_MAX else dict(islice(progress.items(), PROGRESS_NAMES_MAX))
