"""Topologies of machines, written as `nvidia-smi topo -m` prints them; `mig-7`: seven instances of one GPU."""

from pathlib import Path

from weft.domain.topology import Topology
from weft.gpus.topology import topology_of_table

NAMES = ("pcie-4", "pcie-8", "pairs-8", "dgx1-8", "nvswitch-8", "nvswitch-16", "mig-7")


def topology(name: str) -> Topology:
    return topology_of_table(Path(__file__).with_name(f"{name}.txt").read_text())
