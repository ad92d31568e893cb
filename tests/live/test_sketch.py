"""The sketch of the Python interface, as a doctest on a cluster of its own."""

import doctest
import os
import sys
from pathlib import Path

import pytest

import weft

SKETCH = """
>>> job = weft.run(["sh", "-c", 'echo hello; echo weights >"$WEFT_RESULTS/model.pt"'], gpus=1, name="big")
>>> for line in job.logs(follow=True):
...     print(line)
hello
>>> job.result()
>>> job.state
<JobState.SUCCEEDED: 'succeeded'>
>>> [file.path for file in job.files()]
['results/model.pt']
>>> job.fetch("model.pt", here)[0].read_text()
'weights\\n'

>>> from trainings import train
>>> train(0.5)
0.25
>>> f = train.spawn(0.5, seed=1)
>>> f.result()
1.25
>>> f.metrics().last("loss")
1.25
>>> train.remote(-1.0)
Traceback (most recent call last):
weft.client.job_failed.JobFailed: ...ValueError: a rate is positive...
>>> list(train.map([0.1, 0.3], at_once=8))
[0.010000000000000002, 0.09]
>>> [each.state.value for each in weft.as_completed([train.spawn(rate) for rate in (0.1, 0.2)])]
['succeeded', 'succeeded']
"""
TRAININGS = """
import weft

@weft.function(cpus=0.1)
def train(lr: float, *, seed: int = 0) -> float:
    if lr <= 0:
        raise ValueError("a rate is positive")
    loss = lr * lr + seed
    weft.step(1, of=1, loss=loss)
    return loss
"""


@pytest.mark.timeout(300)
def test_the_sketch_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trainings.py").write_text(TRAININGS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with weft.Cluster.local(nodes=1, gpus=2):
        test = doctest.DocTestParser().get_doctest(SKETCH, {"weft": weft, "here": tmp_path}, "sketch", None, 0)
        said: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(test, out=said.append)
        assert not runner.failures, "".join(said)
