"""The signs of sickness in samples, and the faults of emulated GPUs."""

from pathlib import Path

from weft.domain.cluster import Gpu
from weft.emulation.faults import EmulatedSource, Fault, fault_file, read_fault, write_fault
from weft.messages.nodes import GpuSigns, NodeSigns
from weft.messages.signals import GpuSample, HostSample, NodeSampled
from weftd.executor.runs import RunKey
from weftd.executor.thinking.health import HANG_SECONDS, SignWatch
from weftd.executor.thinking.trends import GAP_SECONDS_MAX, MINUTE

GPUS = tuple(Gpu(index=index, uuid=f"u-{index}", model="m", memory=1, emulated=True) for index in range(2))


def sampled(*gpus: GpuSample, at: float = 0.0) -> NodeSampled:
    host = HostSample(cpus=1, memory_total=1, memory_used=0)
    return NodeSampled(node_id="node-1", pool="default", at=at, host=host, gpus=gpus, boot="t1")


def sample(index: int = 0, **fields: object) -> GpuSample:
    return GpuSample(index=index, uuid=f"u-{index}", model="m", **fields)  # type: ignore[arg-type]


def signs_of(*samples: NodeSampled) -> NodeSigns:
    watch = SignWatch()
    for each in samples:
        watch.see(each, each.at)
    assert watch.signs is not None
    return watch.signs


def test_a_well_gpu_has_no_signs_and_xids_of_programs_are_none() -> None:
    found = signs_of(sampled(sample(xid_errors={"31": 5, "13": 1}, ecc_uncorrected=7, clock_events=("sw-power-cap",))))
    assert found == NodeSigns(boot="t1")


def test_each_sign_is_named_with_its_number() -> None:
    found = signs_of(
        sampled(
            sample(
                xid_errors={"79": 2, "31": 1},
                ecc_uncorrected_volatile=3,
                row_remap_failed=True,
                row_remap_pending=True,
                recovery_action=2,
                resets=1,
            )
        )
    )
    levels = {"ecc-uncorrected": 3.0, "row-remap-failed": 1.0, "row-remap-pending": 1.0, "reboot-wanted": 2.0}
    assert found.gpus == (GpuSigns(index=0, xids={"79": 2}, resets=1, levels=levels),)


def test_one_gpu_that_cannot_be_read_fell_off_the_bus_and_all_together_are_a_hung_driver() -> None:
    alone = signs_of(sampled(sample(0, problem="GPU is lost"), sample(1)))
    assert alone.gpus == (GpuSigns(index=0, levels={"off-bus": 1.0}, detail="GPU is lost"),)
    hung = [sampled(sample(0, problem="x"), sample(1, problem="x"), at=at) for at in (0.0, HANG_SECONDS)]
    assert not signs_of(hung[0]).levels
    assert signs_of(*hung).levels == {"driver-hangs": HANG_SECONDS}
    assert not signs_of(*hung, sampled(sample(0), sample(1), at=HANG_SECONDS + 1)).levels


def test_a_gpu_is_throttled_once_it_was_slowed_down_in_six_of_ten_minutes() -> None:
    slowed = [sampled(sample(clock_events=("hw-slowdown",)), at=minute * MINUTE) for minute in range(6)]
    assert not signs_of(*slowed[:5]).gpus
    assert signs_of(*slowed).gpus[0].levels == {"throttled": 1.0}
    assert not signs_of(*slowed, sampled(sample(), at=20 * MINUTE)).gpus


# trends


class Watched:
    """One GPU, sampled every ten seconds, on a node with a disk of 100 bytes."""

    def __init__(self) -> None:
        self.watch, self.now = SignWatch(), 0.0

    def goes_on(self, seconds: float, *, held: bool = True, disk: int = 50, **fields: object) -> dict[str, float]:
        """The signs after so long with samples like this."""
        until = self.now + seconds
        while self.now < until:
            self.now += 10.0
            host = HostSample(cpus=1, memory_total=1, memory_used=0, disk_total=100, disk_used=disk)
            told = NodeSampled(node_id="n", pool="p", at=self.now, host=host, gpus=(sample(**fields),), boot="t1")
            self.watch.see(told, self.now, {0} if held else ())
        assert self.watch.signs is not None
        return {**self.watch.signs.levels, **(self.watch.signs.gpus[0].levels if self.watch.signs.gpus else {})}


def test_a_gpu_is_hot_after_five_minutes_within_two_degrees_of_its_slowdown() -> None:
    gpu = Watched()
    assert gpu.goes_on(600, temperature=89.0, temperature_slowdown=92.0) == {}
    assert gpu.goes_on(290, temperature=90.0, temperature_slowdown=92.0) == {}
    assert gpu.goes_on(30, temperature=90.0, temperature_slowdown=92.0) == {"hot": 90.0}
    assert gpu.goes_on(10, temperature=85.0, temperature_slowdown=92.0) == {}
    assert Watched().goes_on(900, temperature=95.0) == {}, "the driver tells no threshold"


def test_corrected_errors_are_a_sign_beyond_a_thousand_an_hour_or_ten_million_in_all() -> None:
    gpu = Watched()
    assert gpu.goes_on(600, ecc_corrected=50_000) == {}, "they are from before"
    assert gpu.goes_on(600, ecc_corrected=51_000) == {}
    assert gpu.goes_on(10, ecc_corrected=51_001) == {"ecc-corrected": 1001.0}
    assert gpu.goes_on(3 * 3600, ecc_corrected=51_001) == {}, "it is over for an hour"
    assert gpu.goes_on(10, ecc_corrected=0) == {}, "the driver counts again"
    slow = Watched()
    slow.goes_on(10, ecc_corrected=0)
    slow.now += 4000 * 3600.0
    assert slow.goes_on(10, ecc_corrected=10_000_001) == {"ecc-corrected": 10_000_001.0}


def test_more_than_512_remapped_rows_are_broken_memory() -> None:
    assert Watched().goes_on(10, rows_remapped_uncorrected=512) == {}
    assert Watched().goes_on(10, rows_remapped_uncorrected=513) == {"rows-remapped": 513.0}


def test_a_pcie_link_that_is_narrower_than_it_was_counts_while_the_gpu_is_busy() -> None:
    gpu, link = Watched(), {"pcie_width": 16, "pcie_generation": 5}
    gpu.goes_on(60, utilisation=0.9, **link)
    assert gpu.goes_on(600, utilisation=0.0, pcie_width=16, pcie_generation=1) == {}, "it saves power"
    assert gpu.goes_on(110, utilisation=0.9, pcie_width=8, pcie_generation=5) == {}
    assert gpu.goes_on(30, utilisation=0.9, pcie_width=8, pcie_generation=5) == {"pcie-slow": 8.0}
    assert gpu.goes_on(10, utilisation=0.9, **link) == {}
    assert Watched().goes_on(600, utilisation=0.9, pcie_width=8, pcie_generation=5) == {}, "it never was wider"


def test_packets_that_are_sent_again_count_by_the_minute() -> None:
    gpu = Watched()
    assert gpu.goes_on(60, pcie_replays=5000) == {}
    assert gpu.goes_on(10, pcie_replays=5100) == {}
    assert gpu.goes_on(10, pcie_replays=5300) == {"pcie-replays": 200.0}
    assert gpu.goes_on(300, pcie_replays=5300) == {}


def test_an_nvlink_is_down_if_it_was_up_before() -> None:
    gpu = Watched()
    gpu.goes_on(60, nvlinks_active=18)
    assert gpu.goes_on(50, nvlinks_active=17) == {}
    assert gpu.goes_on(30, nvlinks_active=17) == {"links-down": 1.0}
    assert gpu.goes_on(10, nvlinks_active=None) == {}


def test_memory_that_a_run_leaves_behind_is_a_sign_and_what_was_there_before_is_none() -> None:
    gpu, gib = Watched(), 1 << 30
    assert gpu.goes_on(600, held=False, memory_used=3 * gib) == {}, "a screen, as ever"
    assert gpu.goes_on(600, held=True, memory_used=70 * gib) == {}
    assert gpu.goes_on(40, held=False, memory_used=4 * gib) == {}
    assert gpu.goes_on(30, held=False, memory_used=4 * gib) == {"memory-held": float(gib)}
    assert gpu.goes_on(10, held=False, memory_used=3 * gib) == {}


def test_a_full_disk_is_a_sign_of_the_node() -> None:
    node = Watched()
    assert node.goes_on(20, disk=95) == {}
    assert node.goes_on(20, disk=95) == {"disk-fills": 0.95}
    assert node.goes_on(40, disk=99) == {"disk-fills": 0.95, "disk-full": 0.99}
    assert node.goes_on(10, disk=94) == {}


def test_after_a_time_without_samples_nothing_counts_as_lasting() -> None:
    gpu = Watched()
    gpu.goes_on(290, temperature=91.0, temperature_slowdown=92.0)
    gpu.now += GAP_SECONDS_MAX + 1.0
    assert gpu.goes_on(200, temperature=91.0, temperature_slowdown=92.0) == {}


def test_signs_out_of_range_end_nothing() -> None:
    gpu = Watched()
    huge = 2**53
    gpu.goes_on(10, temperature=-1e308, temperature_slowdown=1e308, ecc_corrected=huge, pcie_replays=huge)
    assert gpu.goes_on(10, nvlinks_active=huge, pcie_width=huge, memory_used=huge, ecc_corrected=0) == {}


def test_the_same_signs_are_told_once() -> None:
    watch = SignWatch()
    xids = [sampled(sample(xid_errors={"79": count}), at=at) for at, count in ((0, 1), (1, 1), (2, 2))]
    assert [watch.see(each, each.at) for each in xids] == [True, False, True]


def test_an_emulated_gpu_shows_the_faults_in_its_file(tmp_path: Path) -> None:
    source = EmulatedSource(GPUS, tmp_path)
    write_fault(tmp_path, 1, Fault(xids={"79": 1}, ecc=2, off_bus=True, throttle=True, resets=3))
    well, sick = source.read()
    assert (well.problem, well.xid_errors, well.ecc_uncorrected_volatile) == ("", {}, None)
    assert (sick.xid_errors, sick.last_xid, sick.ecc_uncorrected_volatile, sick.resets) == ({"79": 1}, 79, 2, 3)
    assert sick.problem
    assert sick.clock_events == ("hw-slowdown",)


def test_an_emulated_gpu_that_hangs_is_read_once_it_does_no_more(tmp_path: Path) -> None:
    write_fault(tmp_path, 0, Fault(hang=True))
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        write_fault(tmp_path, 0, Fault(hang=len(waits) < 3))

    assert len(EmulatedSource(GPUS, tmp_path, sleep=sleep).read()) == 2
    assert len(waits) == 3


def test_a_file_that_is_no_fault_counts_as_none(tmp_path: Path) -> None:
    for text in ("", "[]", '{"unknown": 1}', "\x00", '{"ecc": "many"}'):
        fault_file(tmp_path, 0).write_text(text)
        assert read_fault(tmp_path, 0) == Fault()


def test_the_end_of_a_run_that_failed_waits_for_the_next_sample_but_not_for_long() -> None:
    watch, run, day = SignWatch(), RunKey(job_id="j-1", epoch=1, rank=0), 1.8e9  # the time of day is another clock
    assert not watch.awaits_sample(run, day + 10.0, 10.1), "no telemetry"
    watch.see(sampled(sample(), at=day + 9.5), 9.6)
    assert watch.awaits_sample(run, day + 10.0, 10.1)
    assert not watch.awaits_sample(run, day + 10.0, 11.7), "samples come no more"
    watch.see(sampled(sample(), at=day + 9.9), 11.8)
    assert watch.awaits_sample(run, day + 10.0, 12.0)
    assert not watch.awaits_sample(run, day + 10.0, 12.1), "long enough"
    watch.see(sampled(sample(), at=day + 12.5), 12.5)
    other = RunKey(job_id="j-2", epoch=1, rank=0)
    assert not watch.awaits_sample(other, day + 12.5, 12.6), "the sample is from after its end"
    watch.keep(())
    assert watch.awaits_sample(run, day + 20.0, 13.0), "it is forgotten with its run"
