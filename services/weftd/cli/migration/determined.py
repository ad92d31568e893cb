"""An experiment's configuration of Determined as a job."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from weft.domain.decoding.yaml_reader import DocumentError, read_yaml
from weft.domain.spec import ENV_NAME_PATTERN, IMAGE_PATTERN
from weftd.cli.cli_error import CliError
from weftd.cli.migration.determined_search import searched
from weftd.cli.migration.written import Remark, Translated, name_of

_NO_COUNTERPART = {
    "bind_mounts.propagation": "mount propagation cannot be set",
    "checkpoint_policy": "a job writes checkpoints to $WEFT_CHECKPOINT_DIR, and keeps as many as it likes",
    "checkpoint_storage": "checkpoints lie in $WEFT_CHECKPOINT_DIR, which outlives restarts; copy those to be kept",
    "data": "give the command its data as arguments, or as env",
    "debug": "there is no debug mode",
    "description": "set a label",
    "environment.pod_spec": "there is no pod; see docs/job-file.md for what can be set",
    "environment.ports": "weft port-forward reaches the port of a running job",
    "environment.proxy_ports": "weft port-forward reaches the port of a running job",
    "environment.registry_auth": "the nodes' Docker pulls with the operator's credentials",
    "environment.slurm": "Weft does not run on Slurm",
    "integrations": "Weft has no such integrations",
    "log_policies": "weft logs shows the log; Weft does not act on its lines",
    "max_restarts": "",
    "min_checkpoint_period": "set the interval as a time, not in batches: checkpoints: {every: 10m}",
    "min_validation_period": "the training code decides when it validates",
    "optimizations": "the training code decides",
    "perform_initial_validation": "the training code decides",
    "preemption_timeout": "",
    "profiling": "weft describe and weft top show GPUs, CPU and memory without it",
    "project": "set a label",
    "records_per_epoch": "the training code decides",
    "reproducibility": "give the seed to the command, or as env",
    "resources.devices": "a job has the GPUs that it asks for, no other device",
    "resources.is_single_node": "set replicas and gpus per replica: a replica is on one node",
    "resources.max_slots": "the operator sets limits of tenants: weft tenant list",
    "resources.native_parallel": "there is no adjustment to a node's slots",
    "resources.resource_pool": "nodes form pools: set pool, if your operator has more than `default`",
    "resources.weight": "see docs/quotas.md for shares of tenants",
    "scheduling_unit": "the training code decides",
    "slurm": "Weft does not run on Slurm",
    "workspace": "a job belongs to the tenant of the token that submits it",
}
_GPUS_A_NODE = 8


class _Config:
    """The fields that are still to be translated, by their path, and the remarks on the way."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._left = _flat(document)
        self.remarks: list[Remark] = []

    def take(self, path: str, kind: Callable[[Any], bool], default: Any, expected: str) -> Any:
        """The value at a path; a value of another kind is a remark."""
        value = self._left.pop(path, None)
        if value is None:
            return default
        if not kind(value):
            self.remarks.append(Remark(path, f"expected {expected}"))
            return default
        return value

    def text(self, path: str) -> str:
        return str(self.take(path, lambda value: isinstance(value, str), "", "a text"))

    def whole(self, path: str, default: int, *, least: int = 0, most: int = 100_000) -> int:
        def fits(value: object) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

        return int(self.take(path, fits, default, f"a whole number from {least} to {most}"))

    def any(self, path: str) -> Any:
        return self._left.pop(path, None)

    def seed(self) -> object:
        given = self._left.get("reproducibility")
        if isinstance(given, Mapping) and "experiment_seed" in given:
            return self._left.pop("reproducibility")["experiment_seed"]
        return None

    def name_what_is_left(self) -> None:
        for path in self._left:
            known = next((text for name, text in _NO_COUNTERPART.items() if _lies_in(path, name)), None)
            self.remarks.append(Remark(path[:200], known or "has no counterpart"))


def from_determined(body: bytes, *, path: str, folder: str) -> Translated:
    """`folder`: where the code lies, which Determined would have packed. Raises `CliError` for what is no YAML."""
    try:
        document = read_yaml(body)
    except DocumentError as error:
        raise CliError(error.reason, field=error.field) from error
    if not isinstance(document, dict) or not document:
        raise CliError(f"{path} has no configuration: expected names and values, such as entrypoint")
    config = _Config(document)
    name = name_of(config.text("name") or path.rpartition("/")[2].rpartition(".")[0] or "job")
    spec: dict[str, Any] = {"name": name, "kind": "training"}
    if (image := _image(config)) is not None:
        spec["image"] = image
    spec["command"] = _command(config)
    if image is None:
        spec["workdir"] = folder
    env = _environment(config)
    constants, wanted = _parameters(config)
    if constants:
        env["HPARAMS"] = msgspec.json.encode(constants).decode()
        config.remarks.append(Remark("hyperparameters", "are in the variable HPARAMS, as JSON: read them from there"))
    if env:
        spec["env"] = env
    spec["roles"] = {"worker": _role(config)}
    spec |= _treatment(config)
    if volumes := _volumes(config):
        spec["volumes"] = volumes
    spec |= searched(wanted, config.any("searcher"), config.seed(), config.remarks)
    config.name_what_is_left()
    return Translated(spec=spec, remarks=tuple(config.remarks))


def _image(config: _Config) -> str | None:
    image = config.any("environment.image")
    if isinstance(image, Mapping):
        image = image.get("gpu") or image.get("cuda") or image.get("cpu")
    if image is None:
        return None

    if isinstance(image, str) and re.match(IMAGE_PATTERN, image):
        return image
    config.remarks.append(Remark("environment.image", "expected a container image"))
    return None


def _command(config: _Config) -> list[str]:
    entrypoint = config.any("entrypoint")
    if isinstance(entrypoint, list) and entrypoint and all(isinstance(word, str) for word in entrypoint):
        command = [str(word) for word in entrypoint]
    elif isinstance(entrypoint, str) and entrypoint:
        command = ["sh", "-c", entrypoint]
        if " " not in entrypoint and ":" in entrypoint:
            config.remarks.append(
                Remark("entrypoint", f"{entrypoint[:60]} is a class of a trial: write a program that trains it")
            )
    else:
        config.remarks.append(Remark("entrypoint", "is missing: set command"))
        return ["sh", "-c", "echo set command; exit 1"]
    if "determined.launch" in " ".join(command):
        sentence = "remove determined.launch: torchrun finds its settings in the environment of a rank"
        config.remarks.append(Remark("entrypoint", sentence))
    return command


def _environment(config: _Config) -> dict[str, str]:

    given = config.any("environment.environment_variables")
    if isinstance(given, Mapping):  # by kind of slot
        given = [pair for pairs in given.values() if isinstance(pairs, list) for pair in pairs]
    env: dict[str, str] = {}
    for pair in given if isinstance(given, list) else []:
        name, equals, value = str(pair).partition("=")
        if equals and re.match(ENV_NAME_PATTERN, name):
            env[name] = value
        else:
            config.remarks.append(Remark("environment.environment_variables", f"{str(pair)[:60]} is no NAME=VALUE"))
    return env


def _parameters(config: _Config) -> tuple[dict[str, Any], dict[str, Mapping[str, Any]]]:
    """The constants among the hyperparameters, and those that are searched for."""
    given = config.any("hyperparameters")
    values: dict[str, Any] = {}
    wanted: dict[str, Mapping[str, Any]] = {}
    if not isinstance(given, Mapping):
        return values, wanted
    for name, value in given.items():
        if isinstance(value, Mapping) and value.get("type") == "const":
            values[name] = value.get("val")
        elif isinstance(value, Mapping) and "type" in value:
            wanted[name] = value
        else:
            values[name] = value
    return values, wanted


def _role(config: _Config) -> dict[str, Any]:
    """Slots become GPUs: of one replica up to eight, beyond that of replicas with eight each."""
    slots = config.whole("resources.slots_per_trial", 1, most=32_768)
    nodes = max(1, -(-slots // _GPUS_A_NODE))
    gpus = -(-slots // nodes)
    role: dict[str, Any] = {"replicas": {"want": nodes}}
    if gpus:
        role["gpus"] = gpus
    if nodes > 1:
        sentence = f"{slots} slots are {nodes} replicas with {gpus} GPUs each, as a replica is on one node"
        config.remarks.append(Remark("resources.slots_per_trial", sentence))
    role |= {"cpus": max(1, 4 * gpus), "memory": f"{max(4, 16 * gpus)}GiB"}
    config.remarks.append(Remark("resources", "cpus and memory are guesses: the configuration does not name them"))
    shm = config.any("resources.shm_size")
    if isinstance(shm, int) and not isinstance(shm, bool) and 0 < shm <= 16 * max(1, gpus) << 30:
        role["shm"] = f"{shm}B"
    elif shm is not None:
        config.remarks.append(Remark("resources.shm_size", "set shm of the role, such as 1GiB; it is part of memory"))
    return role


def _treatment(config: _Config) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    priority = config.whole("resources.priority", 42, least=1, most=99)
    if priority != 42:
        spec["priority"] = 42 - priority
        config.remarks.append(Remark("resources.priority", "lower went first there, higher goes first here: 42 is 0"))
    spec["retries"] = {"max": min(1000, config.whole("max_restarts", 5))}
    spec["checkpoints"] = {"on_stop": True}
    if (grace := config.whole("preemption_timeout", 0)) > 0:
        spec["grace"] = f"{min(3600, grace)}s"
    labels = config.any("labels")
    names = [str(label) for label in labels] if isinstance(labels, list) else []
    if names:
        spec["labels"] = {name_of(label, "label"): "" for label in names[:64]}
    for field in ("workspace", "project"):
        if text := config.text(field):
            spec.setdefault("labels", {})[field] = text[:253]
    return spec


def _volumes(config: _Config) -> list[dict[str, Any]]:
    given = config.any("bind_mounts")
    volumes: list[dict[str, Any]] = []
    for number, mount in enumerate(given if isinstance(given, list) else []):
        source = mount.get("host_path") if isinstance(mount, Mapping) else None
        target = mount.get("container_path") if isinstance(mount, Mapping) else None
        if not (isinstance(source, str) and isinstance(target, str) and source[:1] == target[:1] == "/"):
            sentence = "expected host_path and container_path, both absolute"
            config.remarks.append(Remark(f"bind_mounts[{number}]", sentence))
            continue
        volume = {"source": source, "target": target}
        volumes.append({**volume, "read_only": True} if mount.get("read_only") is True else volume)
    if volumes:
        config.remarks.append(Remark("bind_mounts", "the operator of Weft must allow these folders of the nodes"))
    return volumes


_DEEPER = frozenset({"environment", "resources"})


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields by path: those of `environment` and `resources` each alone, all others whole."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if name in _DEEPER and isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": part for inner, part in value.items()}
        else:
            flat[name] = value
    return flat


def _lies_in(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}.")
