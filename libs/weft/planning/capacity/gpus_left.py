"""Free capacity of each GPU of one node: all of it, a part, or nothing."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from weft.domain.classes import JOB_CLASSES
from weft.domain.cluster import Gpu, Request
from weft.domain.shares import WHOLE, Share, context_bytes
from weft.domain.spec import Kind


class Make(NamedTuple):
    """Properties of a GPU for shares: the model, bytes of memory, and bytes of each holder's context."""

    model: str
    memory: int
    context: int


class Left(NamedTuple):
    """What is left of one GPU: thousandths of its time, bytes of its memory; and how many shares of it jobs hold, by
    their kinds, and by the classes of `JOB_CLASSES`."""

    time: int
    memory: int
    training: int = 0
    notebooks: int = 0
    others: int = 0
    classes: tuple[int, ...] = (0,) * len(JOB_CLASSES)

    @property
    def holders(self) -> int:
        return self.training + self.notebooks + self.others

    def changed(self, share: Share, context: int, sign: int) -> "Left":
        """The rest after adding (`sign` 1) or removing (-1) a held share."""
        of_class = JOB_CLASSES.index(share.job_class) if share.job_class in JOB_CLASSES else 0
        is_training, is_notebook = share.kind == Kind.TRAINING, share.kind == Kind.NOTEBOOK
        return Left(
            self.time - sign * share.request,
            self.memory - sign * (share.memory + context),
            self.training + sign * is_training,
            self.notebooks + sign * is_notebook,
            self.others + sign * (not is_training and not is_notebook),
            tuple(count + sign * (place == of_class) for place, count in enumerate(self.classes)),
        )

    @property
    def company(self) -> int:
        """The classes of the jobs that hold shares, a bit for each."""
        return sum(1 << place for place, count in enumerate(self.classes) if count > 0)


Shared = Mapping[int, Left]
"""Free capacity of shared GPUs, by index."""


class GpusLeft:
    """`withheld` GPUs are not given to any job, and do not become free when a job gives them back.

    `whole`: the GPUs that are free, by index; `shared`: those of which jobs hold shares. Both are replaced as a whole,
    never changed. A GPU in neither is withheld, or held as a whole.
    """

    __slots__ = ("gives_shares", "makes", "models", "shared", "whole", "withheld")

    def __init__(self, gpus: Iterable[Gpu], withheld: frozenset[int], *, gives_shares: bool = True) -> None:
        self.makes = {gpu.index: Make(gpu.model, gpu.memory, context_bytes(emulated=gpu.emulated)) for gpu in gpus}
        self.models = {index: make.model for index, make in self.makes.items()}
        self.withheld = withheld
        self.gives_shares = gives_shares
        self.whole = sorted(self.models.keys() - withheld)
        self.shared: Shared = {}

    def suited(self, request: Request) -> list[int]:
        """The free GPUs of which the model and the memory suit the request."""
        if request.on_any_gpu:
            return self.whole
        return [index for index in self.whole if self._suits(index, request)]

    def has(self, gpus: Iterable[int]) -> bool:
        """True if all of these are free, as a whole."""
        return set(gpus).issubset(self.whole)

    def take(self, gpus: Collection[int]) -> None:
        self.whole = [index for index in self.whole if index not in gpus]
        if self.shared:
            self._count_whole(gpus, 1)

    def give_back(self, gpus: Collection[int]) -> None:
        models, withheld = self.models, self.withheld
        back = [index for index in gpus if index in models and index not in withheld]
        if self.shared:
            self._count_whole(gpus, -1)
            back = [index for index in back if index not in self.shared]
        self.whole = sorted({*self.whole, *back})

    def withhold(self, gpus: Collection[int]) -> None:
        """Give these to nobody from now on, whoever holds them."""
        self.withheld = self.withheld.union(gpus)
        self.whole = [index for index in self.whole if index not in gpus]

    def release(self, gpus: Collection[int]) -> None:
        """Give these again once they are given back."""
        self.withheld = self.withheld.difference(gpus)

    # shares

    def take_share(self, index: int, share: Share) -> None:
        """Count an existing allocation, even if it exceeds the capacity."""
        make = self.makes.get(index)
        if make is None:
            return
        left = self.shared.get(index)
        if left is None:
            is_held = index not in self.whole and index not in self.withheld
            left = Left(0, 0) if is_held else Left(WHOLE, make.memory)
        self.shared = {**self.shared, index: left.changed(share, make.context, 1)}
        self.whole = [free for free in self.whole if free != index]

    def give_share_back(self, index: int, share: Share) -> None:
        before = self.shared.get(index)
        if before is None:
            return
        left = before.changed(share, self.makes[index].context, -1)
        self.shared = {gpu: left if gpu == index else other for gpu, other in self.shared.items()}
        if left.holders <= 0:
            self.shared = {gpu: other for gpu, other in self.shared.items() if gpu != index}
            if left.time >= WHOLE and index not in self.withheld:
                self.whole = sorted([*self.whole, index])

    def replace_share(self, index: int, before: Share, after: Share) -> None:
        """A job has another share than before of a GPU."""
        left = self.shared.get(index)
        if left is not None:
            context = self.makes[index].context
            left = left.changed(before, context, -1).changed(after, context, 1)
            self.shared = {gpu: left if gpu == index else other for gpu, other in self.shared.items()}

    @property
    def time_left(self) -> int:
        """Thousandths of shared GPUs that other shares may take."""
        if not self.gives_shares:
            return 0
        return sum(max(0, left.time) for index, left in self.shared.items() if index not in self.withheld)

    def left_of(self, index: int) -> Left | None:
        """Capacity of a GPU for further shares; None if it is withheld, or held as a whole."""
        if index in self.withheld:
            return None
        left = self.shared.get(index)
        return Left(WHOLE, self.makes[index].memory) if left is None and index in self.whole else left

    def giving(self) -> list[tuple[int, Make, Left]]:
        """The GPUs that shares may take a part of, with what is left of each; those that nobody has begun come last."""
        if not self.gives_shares:
            return []
        found = [(index, self.makes[index], left) for index, left in self.shared.items() if index not in self.withheld]
        found += [(index, self.makes[index], Left(WHOLE, self.makes[index].memory)) for index in self.whole]
        return found

    def begun(self, request: Request) -> Iterator[tuple[int, Make, Left]]:
        """The GPUs of which jobs hold shares, and others may."""
        for index, left in self.shared.items() if self.gives_shares else ():
            if index not in self.withheld and self._may_be(index, request):
                yield index, self.makes[index], left

    def count_shares(self, request: Request, most: int) -> int:
        """How many replicas of a share find room here, up to `most`."""
        share, count = request.share, 0
        if share is None or not self.gives_shares:
            return most if share is None else 0
        for index, left in self.shared.items():
            if left.time >= share.request and index not in self.withheld and self._may_be(index, request):
                count += how_often(share, self.makes[index], left)
        for index in self.whole:
            if count >= most:
                break
            if self._may_be(index, request):
                make = self.makes[index]
                count += how_often(share, make, Left(WHOLE, make.memory))
        return min(count, most)

    def _may_be(self, index: int, request: Request) -> bool:
        return request.gpu in (None, index) and self._suits(index, request)

    def _suits(self, index: int, request: Request) -> bool:
        return request.suits(self.models[index], self.makes[index].memory)

    def _count_whole(self, gpus: Iterable[int], sign: int) -> None:
        """GPUs of which jobs hold shares, and that one job took, or gave back, as a whole: more than there was."""
        changed = {
            index: self.shared[index]._replace(
                time=self.shared[index].time - sign * WHOLE,
                memory=self.shared[index].memory - sign * self.makes[index].memory,
            )
            for index in gpus
            if index in self.shared
        }
        if changed:
            self.shared = {**self.shared, **changed}


def how_often(share: Share, make: Make, left: Left) -> int:
    """How many such shares fit into the free part of a GPU."""
    by_time = left.time // share.request if share.request else WHOLE
    needs = share.memory + make.context
    return max(0, min(by_time, left.memory // needs if needs else by_time))
