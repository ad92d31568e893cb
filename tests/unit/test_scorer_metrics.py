"""What Prometheus is shown of scores."""

from prometheus_client import CollectorRegistry, generate_latest

from tests.support.builders import node
from weft.messages.signals import GpuScore
from weftd.scorer.metrics import ScoreGauges
from weftd.scorer.thinking.core import Scorer


def test_what_is_stored_is_shown_for_each_class_of_each_gpu() -> None:
    scorer = Scorer(me="a")
    scorer.learn(nodes=[node("node-1", gpus=1)], jobs=[], now=0.0)
    scorer.divide(0.0)  # others have until then to say that they are there
    told = GpuScore(node_id="node-1", gpu_index=0, job_class="compute", score=1.25, confidence=0.5, source="jobs")
    scorer.own(scorer.divide(10.0), [told], 10.0)
    registry = CollectorRegistry()
    registry.register(ScoreGauges(scorer))
    shown = generate_latest(registry).decode()
    uuid = node("node-1", gpus=1).capacity.gpus[0].uuid
    labels = f'{{class="compute",gpu="0",gpu_uuid="{uuid}",node="node-1",source="jobs"}}'
    assert f"weft_gpu_perf_score{labels} 1.25" in shown
    assert f"weft_gpu_perf_score_confidence_ratio{labels} 0.5" in shown
    assert shown.count("weft_gpu_perf_score{") == 1, "of the other classes nothing is stored yet"
