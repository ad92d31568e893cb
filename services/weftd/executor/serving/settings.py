"""Where runs that serve requests are reached: settings of the executor."""

from msgspec import Struct

from weftd.executor.machine.ports import PortRange, lane_of


class ServingSettings(Struct, frozen=True, kw_only=True):
    # Of processes, and of containers with the network of their host; other containers' ports are given by the engine.
    service_port_first: int = PortRange().first
    service_port_last: int = PortRange().last
    service_publish_at: str = ""  # the address of this host at which containers' ports are published; "": the node's

    def __post_init__(self) -> None:
        if not 1024 <= self.service_port_first <= self.service_port_last <= 65_535:
            raise ValueError(
                f"service_port_first {self.service_port_first} and service_port_last {self.service_port_last}:"
                " not 1024 <= first <= last <= 65535"
            )

    def ports_of(self, node_id: str) -> PortRange:
        return PortRange(first=self.service_port_first, last=self.service_port_last, lane=lane_of(node_id))
