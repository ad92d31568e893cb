"""The stored scores of this scorer's GPUs, as Prometheus gauges."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.scorer.thinking.core import Scorer

LABELS = ("node", "gpu", "gpu_uuid", "class", "source")


class ScoreGauges(Collector):
    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def collect(self) -> Iterator[Metric]:
        score = GaugeMetricFamily(
            "weft_gpu_perf_score", "Time for what a typical GPU of its model does in 1, for a class", labels=LABELS
        )
        sure = GaugeMetricFamily("weft_gpu_perf_score_confidence_ratio", "How sure that is", labels=LABELS)
        for uuid, stored in self._scorer.stored_scores():
            labels = [stored.node_id, str(stored.gpu_index), uuid, stored.job_class, stored.source]
            score.add_metric(labels, stored.score)
            sure.add_metric(labels, stored.confidence)
        yield from (family for family in (score, sure) if family.samples)
