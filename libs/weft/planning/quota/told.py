"""Effects of quotas on a job, in words and numbers."""

from weft.domain.job import Cause, CauseCode, Job
from weft.domain.quotas import ALL, Amounts, gpus_text
from weft.domain.shares import WHOLE
from weft.domain.text import plural
from weft.messages.http.explanation import Borrows, QuotaSeen
from weft.planning.quota.ledger import Ledger, OverLimit, QuotaFit
from weft.planning.quota.ranks import may_start

BORROWERS_MAX = 20


def quota_seen(ledger: Ledger, tenant: str, lendable: Amounts) -> QuotaSeen:
    """The tenant's quota now. The unused part of its guarantee counts as lent if no free GPUs remain for it."""
    path = ledger.tree.path(tenant)
    own = path[0]
    held, guaranteed = ledger.use(own), own.guarantee(ALL)
    tenants = sorted({one.tenant for one in ledger.jobs.values()})
    borrowing = [(ledger.borrowed(ledger.tree.path(each)[0]), each) for each in tenants if each != tenant]
    borrowing = sorted(((amount, each) for amount, each in borrowing if amount), key=lambda one: (-one[0], one[1]))
    free = lendable.get(ALL, 0) - sum(one.amounts.get(ALL, 0) for one in ledger.jobs.values())
    lends = max(0, min(guaranteed - held - max(0, free), sum(amount for amount, _ in borrowing)))
    return QuotaSeen(
        tenant=tenant,
        group=path[1].name if len(path) > 1 else "",
        guaranteed=guaranteed / WHOLE,
        holds=held / WHOLE,
        limit=own.limit[ALL] / WHOLE if ALL in own.limit else None,
        borrows=ledger.borrowed(own) / WHOLE,
        lends=lends / WHOLE,
        borrowers=tuple(Borrows(tenant=each, gpus=amount / WHOLE) for amount, each in borrowing[:BORROWERS_MAX]),
    )


def why_held(job: Job, fit: QuotaFit, wanted: Amounts) -> Cause | None:
    """Why quotas do not let the job start now; None if they do."""
    if fit.over is not None:
        return _over(fit.over, job.tenant, wanted)
    if not may_start(fit, preemptible=job.spec.preemptible):
        sentence = (
            f"it needs {gpus_text(wanted[ALL])}, more than what is left of the guarantee of {job.tenant}; the rest"
            " would be borrowed, and only a job that may be pre-empted borrows"
        )
        return Cause(code=CauseCode.OVER_QUOTA, sentence=sentence, numbers={"gpus_wanted": wanted[ALL] / WHOLE})
    return None


def _over(over: OverLimit, tenant: str, wanted: Amounts) -> Cause:
    group, name = over.branch.key
    what = f"group {name}" if group else f"tenant {tenant}"
    model = f" of model {over.line}" if over.line else ""
    numbers = {
        "gpus_wanted": wanted.get(over.line, 0) / WHOLE,
        "quota_held": over.held / WHOLE,
        "quota_limit": over.most / WHOLE,
    }
    sentence = (
        f"{what} holds {over.held / WHOLE:g} of the {gpus_text(over.most)}{model} that its quota allows, and this job"
        f" needs {wanted.get(over.line, 0) / WHOLE:g}"
    )
    return Cause(code=CauseCode.OVER_QUOTA, sentence=sentence, numbers=numbers)


def quota_sentence(seen: QuotaSeen) -> str:
    """`tenant vision holds 2 of its guaranteed 8 GPUs; 4 of the rest are lent`. It names no other tenant."""
    if seen.borrows:
        of = f", {seen.guaranteed:g} guaranteed and {seen.borrows:g} borrowed" if seen.guaranteed else ", all borrowed"
        return f"tenant {seen.tenant} holds {plural(seen.holds, 'GPU')}{of}"
    if not seen.guaranteed:
        return f"tenant {seen.tenant} has no guarantee, so it gets GPUs that other tenants leave"
    text = f"tenant {seen.tenant} holds {seen.holds:g} of its guaranteed {plural(seen.guaranteed, 'GPU')}"
    if not seen.lends:
        return text
    return f"{text}; {seen.lends:g} of the rest {'is' if seen.lends == 1 else 'are'} lent until the tenant needs them"
