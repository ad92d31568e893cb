"""A program of a person who uses Hydra."""

from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path=None)
def main(config: DictConfig) -> float:
    (Path(HydraConfig.get().runtime.output_dir) / "rate").write_text(str(config.rate))
    return float(config.rate)


if __name__ == "__main__":
    main()
