"""The commands of Slurm over Weft's client: sbatch, srun, squeue, sacct, scancel, sinfo and scontrol. docs/slurm.md."""
