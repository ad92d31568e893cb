"""Turns the orders for jobs into the orders for ranks."""

from collections.abc import Iterator

from weft.messages.nodes import JobOrder, RevisionOrder, RoleOrder, StartRun, env_with


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
            entrypoint=order.entrypoint,
            named_volumes=order.named_volumes,
            stop_signal=order.stop_signal,
            ulimits=order.ulimits,
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
        )


_AS_ORDERED = RevisionOrder()


def _addresses(order: JobOrder, role: RoleOrder) -> tuple[str, ...]:
    return tuple(order.addresses[place] for place, count in role.nodes for _ in range(count))
