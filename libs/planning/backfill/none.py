"""No backfill: nobody overtakes a job that does not fit."""


class NoBackfill:
    def may_start(self, gpus: int, lasts_s: float | None) -> bool:
        del gpus, lasts_s
        return True

    def started(self, gpus: int, lasts_s: float | None) -> None: ...

    def blocked(self, gpus: int, lasts_s: float | None) -> bool:
        del gpus, lasts_s
        return False
