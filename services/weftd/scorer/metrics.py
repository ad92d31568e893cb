"""What this scorer knows of its GPUs, as Prometheus gauges: the stored scores, and how jobs that share one slow each
other down."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from weftd.scorer.thinking.core import Scorer

LABELS = ("node", "gpu", "gpu_uuid", "class", "source")
PAIR_LABELS = ("class", "beside")


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
        beside = GaugeMetricFamily(
            "weft_scorer_slowdown_beside_ratio",
            "The GPU's own time for a step of a job beside another job on the GPU, for what takes 1 alone, by classes",
            labels=PAIR_LABELS,
        )
        beside_sure = GaugeMetricFamily(
            "weft_scorer_slowdown_beside_confidence_ratio", "How sure that is", labels=PAIR_LABELS
        )
        for pair in self._scorer.slowdowns_beside():
            beside.add_metric([pair.job_class, pair.beside], pair.slowdown)
            beside_sure.add_metric([pair.job_class, pair.beside], pair.confidence)
        yield from (family for family in (score, sure, beside, beside_sure) if family.samples)
