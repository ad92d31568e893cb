"""The owner's settings for containers: settings of the executor that the Docker runtime reads."""

from msgspec import Struct

TENANT = "<tenant>"


class ContainerSettings(Struct, frozen=True, kw_only=True):
    cluster: str = "weft"  # containers of another cluster on the same engine are not this node's
    # "": one network for each gang; "host"; the name of a network that all jobs join; or, with TENANT in it, the names
    # of the networks that the gangs of each tenant join
    job_network: str = ""
    gpu_injection: str = "auto"  # cdi, nvidia, devices, or auto
    job_user: str = ""  # "": the image's own
    pids_max: int = 8192  # processes and threads of one run; in the process runtime: if control groups allow it
    pull: bool = True
    pull_seconds_max: float = 900.0
    images_kept_days: float = 30.0  # after its last use by a job, of an image that this node fetched; 0: for ever
    engine_files: bool = True  # copy output from the engine's own files, if they can be reached, and shorten them
    limits_by: str = "auto"  # how limits change: engine (its update), files (of the control groups), or auto
    egress_by: str = "auto"  # direct, helper, off, or auto: the first of them that works
    egress_image: str = ""  # of the helper, with Python; "": the executor's own

    def __post_init__(self) -> None:
        if self.gpu_injection not in ("auto", "cdi", "nvidia", "devices"):
            raise ValueError(f"gpu_injection is auto, cdi, nvidia or devices, not {self.gpu_injection}")
        if self.limits_by not in ("auto", "engine", "files"):
            raise ValueError(f"limits_by is auto, engine or files, not {self.limits_by}")
        if self.egress_by not in ("auto", "direct", "helper", "off"):
            raise ValueError(f"egress_by is auto, direct, helper or off, not {self.egress_by}")
