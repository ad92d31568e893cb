"""GPUs that a test describes and breaks: for `fake_nvml.py`, a driver, and `fake_nvml_library.py`, its library."""

from dataclasses import dataclass, field

# The error codes of NVML's own header that a test may want.
SUCCESS = 0
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMED_OUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
LIBRARY_DRIVER_MISMATCH = 18
UNKNOWN = 999

NO_INSTANCE = 0xFFFF_FFFF

EVENT_WAIT_SECONDS = 0.01
RECOVERY_ACTION = 230  # the number of its field


@dataclass
class FakeProcess:
    """`used` None: the driver does not tell. `busy`: percent of the SMs' time; it is told when `seen_at` is new."""

    pid: int
    used: int | None = None
    busy: int | None = None
    seen_at: int = 1_000_000  # µs
    mps: bool = False


@dataclass
class FakeGpu:
    """A GPU as the driver would tell of it. `fails` maps a function's name, or "*", to the error code it raises.

    Where None stands for a value, the GPU does not support it.
    """

    uuid: str
    name: str | bytes = "NVIDIA H200"
    memory_total: int = 141 * 2**30
    memory_used: int = 0
    memory_reserved: int = 0
    utilisation: int = 0
    memory_utilisation: int = 0
    power_milliwatts: int = 75_000
    power_limit_milliwatts: int = 700_000
    energy_millijoules: int = 0
    temperature: int = 30
    sm_clock: int = 345
    sm_clock_max: int = 1980
    memory_clock: int = 3201
    clock_events: int = 1
    power_capped_nanoseconds: int = 0
    thermal_nanoseconds: int = 0
    ecc: tuple[int, int] | None = (0, 0)  # corrected, uncorrected
    ecc_volatile: int = 0  # uncorrected, since the last reset
    recovery: int | None = None  # the action that the driver asks for; None: an old driver
    rows: tuple[int, int, int, int] | None = (0, 0, 0, 0)  # corrected, uncorrected, pending, failed
    pcie: tuple[int, int] = (5, 16)  # generation, width
    pcie_replays: int = 0
    temperature_slowdown: int = 92
    pcie_bytes: tuple[int, int] | None = (0, 0)  # sent, received
    pcie_counter_bits: int = 64
    pcie_kib: tuple[int, int] = (0, 0)  # sent, received per second, for who is ready to wait
    nvlinks: tuple[int, ...] = ()  # the state of each
    nvlink_kib: tuple[int, int] = (0, 0)  # sent, received since the counters began
    gpm: dict[int, float] | None = None  # by metric; None: before Hopper
    processes: list[FakeProcess] = field(default_factory=list)
    xids: bool = True  # it can report them
    bus: int = 0  # GPUs on one bus are nearer to each other
    address: str = "00000000:00:00.0"  # on the PCIe bus
    peers: tuple[str, ...] = ()  # the address at the other end of each NVLink
    fails: dict[str, int] = field(default_factory=dict)
    mig: bool = False
    instances: dict[int, "FakeGpu"] = field(default_factory=dict)  # by place
    instance: int = NO_INSTANCE
    bytes_uuid: bool = False

    def ecc_of(self, kind: int, counter: int) -> int | None:
        """The errors of a kind: 0 corrected, 1 uncorrected; since the last reset (counter 0), or ever."""
        if self.ecc is None:
            return None
        return self.ecc[kind] if counter else (0, self.ecc_volatile)[kind]

    def counter(self, number: int, scope: int) -> tuple[int, int] | None:
        """Value and bits of one of the counters of `nvmlDeviceGetFieldValues`; all NVLinks together are one scope."""
        sent, received = self.pcie_bytes or (None, None)
        values = {
            (197, 0): (sent, self.pcie_counter_bits),
            (198, 0): (received, self.pcie_counter_bits),
            (138, 0xFFFF_FFFF): (self.nvlink_kib[0] if self.nvlinks else None, 64),
            (RECOVERY_ACTION, 0): (self.recovery, 32),
            (139, 0xFFFF_FFFF): (self.nvlink_kib[1] if self.nvlinks else None, 64),
        }
        value, bits = values.get((number, scope), (None, 0))
        return None if value is None else (value % 2**bits, bits)

    def busy_since(self, moment: int) -> list[FakeProcess]:
        return [process for process in self.processes if process.busy is not None and process.seen_at > moment]


@dataclass
class Xid:
    """An XID error of a GPU, or of one MIG instance of it."""

    gpu: FakeGpu
    number: int
    instance: int = NO_INSTANCE


def topology_level(one: FakeGpu, other: FakeGpu) -> int:
    """NVML's number: 0 is one board, 10 one switch, 50 across sockets."""
    return 0 if one is other else 10 if one.bus == other.bus else 50
