"""The bench of packing: its ways of placing are what they are called, and none gives more of a GPU than there is."""

from collections import defaultdict

from tests.bench.packing_shares import GIB, GPU_MEMORY, ByArrays, FirstFit, KubeShareBestFit, Ours, Pod, Server, pack
from weft.domain.shares import CONTEXT_BYTES, WHOLE

SERVERS = [Server(f"n-{at}", gpus, "T4", 16.0 * gpus, 64 * GIB * gpus) for at, gpus in enumerate((1, 2, 4))]


class Watched:
    """Holds a way of placing to what the GPUs of SERVERS have."""

    def __init__(self, ours: Ours) -> None:
        self.ours = ours

    def start(self, number: int, pod: Pod) -> bool:
        found = self.ours.start(number, pod)
        self.check()
        return found

    def end(self, number: int, pod: Pod) -> None:
        self.ours.end(number, pod)
        self.check()

    def used(self) -> int:
        return self.ours.used()

    def check(self) -> None:
        time: dict[tuple[str, int], int] = defaultdict(int)
        memory: dict[tuple[str, int], int] = defaultdict(int)
        for (one,) in self.ours.places.values():
            assert one.share is not None
            time[one.node_id, one.gpus[0]] += one.share.request
            memory[one.node_id, one.gpus[0]] += one.share.memory + CONTEXT_BYTES
        assert max(time.values(), default=0) <= WHOLE
        assert max(memory.values(), default=0) <= GPU_MEMORY["T4"] * GIB
        assert self.used() == len(time)


def test_no_gpu_is_given_beyond_what_it_has() -> None:
    watched = Watched(Ours(SERVERS))
    found = pack(watched, SERVERS, 1)
    assert 0.5 < found.placed <= found.came <= 1
    assert 0 < found.used_at_half <= 7
    for way in (FirstFit(SERVERS), KubeShareBestFit(SERVERS)):
        assert 0.5 < pack(way, SERVERS, 1).placed <= 1
        assert (way.left >= 0).all()


def chosen(way: ByArrays, *parts: int) -> list[int]:
    for number, part in enumerate(parts):
        assert way.start(number, Pod(part, GIB, 1.0, GIB))
    return [way.places[number] for number in range(len(parts))]


def test_first_fit_takes_the_first_gpu_and_kubeshare_the_one_with_least_time_left() -> None:
    assert chosen(FirstFit(SERVERS), 300, 800, 200, 300) == [0, 1, 0, 0]
    assert chosen(KubeShareBestFit(SERVERS), 300, 800, 200, 300) == [0, 1, 1, 0]
    assert chosen(KubeShareBestFit(SERVERS), 600, 600, 600) == [0, 1, 2]
