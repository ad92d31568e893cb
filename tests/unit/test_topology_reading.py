"""The topology of a node's GPUs: read from the driver and the kernel's files, and shown by `weft nodes`."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from tests.support.fake_gpu import FakeGpu
from tests.support.fake_nvml import FakeNvml
from tests.support.topologies import topology as recorded
from weft.domain.topology import Topology
from weft.gpus import inventory
from weft.gpus.topology import read_topology
from weft.messages.http import GpuView, NodeView
from weftd.cli.rendering.topology import flat_nodes, topologies

SWITCH = "00000000:F0:00.0"


def address(number: int) -> str:
    return f"00000000:{number:02X}:00.0"


def files(root: Path, numa: dict[int, int]) -> Path:
    for number, node in numa.items():
        folder = root / "bus" / "pci" / "devices" / f"0000:{number:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return root


def read(gpus: list[FakeGpu], sys: Path) -> Topology | None:
    nvml = FakeNvml(gpus)
    return read_topology(inventory(nvml), nvml=nvml, sys=sys)


def test_nvlinks_to_a_peer_are_counted_and_other_pairs_have_their_pcie_link(tmp_path: Path) -> None:
    gpus = [
        FakeGpu(uuid=f"GPU-{n}", bus=n // 2, address=address(n), nvlinks=(1, 1, 0), peers=(address(n ^ 1),) * 2)
        for n in range(4)
    ]
    found = read(gpus, files(tmp_path, {0: 0, 1: 0, 2: 1}))
    assert found == Topology(gpus=(0, 1, 2, 3), links=("NV2 SYS SYS", "SYS SYS", "NV2"), numa=(0, 0, 1, -1))


def test_links_to_a_switch_join_all_that_have_them(tmp_path: Path) -> None:
    gpus = [
        FakeGpu(uuid=f"GPU-{n}", address=address(n), nvlinks=(1,) * 18, peers=(SWITCH,) * (18 if n else 17))
        for n in range(3)
    ]
    found = read(gpus, files(tmp_path, {}))
    assert found is not None
    assert found.links == ("NV18 NV18", "NV18")


def test_instances_of_a_gpu_have_its_numa_node_and_no_links(tmp_path: Path) -> None:
    instances = {place: FakeGpu(uuid=f"MIG-{place}", address=address(7)) for place in range(2)}
    gpu = FakeGpu(uuid="GPU-0", address=address(7), mig=True, instances=instances)
    found = read([gpu], files(tmp_path, {7: 1}))
    assert found is not None
    assert found.links == ("SYS",)
    assert found.numa == (1, 1)


def test_a_pair_that_the_driver_does_not_know_leaves_the_node_flat(tmp_path: Path) -> None:
    gpus = [FakeGpu(uuid=f"GPU-{n}", address=address(n)) for n in range(2)]
    gpus[0].fails = {"nvmlDeviceGetTopologyCommonAncestor": 3}
    assert read(gpus, files(tmp_path, {})) is None


def test_a_single_gpu_has_its_numa_node(tmp_path: Path) -> None:
    gpu = FakeGpu(uuid="GPU-0", address=address(3))
    assert read([gpu], files(tmp_path, {3: 1})) == Topology(gpus=(0,), numa=(1,))


def view(name: str, links: Topology | None, *, emulated: bool = False, gpus: int = 8) -> NodeView:
    return NodeView(
        id=name,
        pool="default",
        address="",
        runtime="process",
        ready=True,
        drained=False,
        seen_at=0.0,
        cpus=1.0,
        cpus_allocated=0.0,
        memory=1,
        memory_allocated=0,
        gpus=tuple(GpuView(index=n, uuid=str(n), model="H", memory=1, emulated=emulated) for n in range(gpus)),
        topology=links,
    )


def drawn(*nodes: NodeView) -> str:
    console = Console(width=120, record=True, file=StringIO())
    for line in topologies(nodes):
        console.print(line)
    return console.export_text()


def test_nodes_draw_the_links_of_their_gpus() -> None:
    lines = drawn(view("node-1", recorded("pairs-8"))).splitlines()
    assert lines[2].split() == ["GPU0", "GPU1", "GPU2", "GPU3", "GPU4", "GPU5", "GPU6", "GPU7", "NUMA"]
    assert lines[4].split() == ["GPU1", "NV4", "X", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS", "0", "free"]


def test_a_node_of_which_the_links_are_not_known_is_said_to_be_one_group() -> None:
    unknown, other = view("node-1", None), view("node-2", recorded("pcie-4"))
    known, emulated, single = (
        view("node-3", recorded("pcie-8")),
        view("n-4", None, emulated=True),
        view("n-5", None, gpus=1),
    )
    assert flat_nodes([unknown, other, known, emulated, single]) == [
        "the links between the GPUs of node-1 and node-2 are not known: they count as one group"
    ]
    assert "count as one group" in drawn(unknown)
