"""Networks: the paper's layers, any number of classes, and options that do what they say."""

from functools import partial

import pytest
import torch
from conftest import same_bits, weights_of
from torch import nn

from apportion._random import reseed, stream
from apportion.errors import DataError
from apportion.methods.llp_gan import make_generator
from apportion.networks import MNIST_WIDTHS, NETWORKS, conv13, mlp, resnet9, resnet18, wrn_28_2


def kinds(network: nn.Module, kind: type) -> list:
    return [module for module in network.modules() if isinstance(module, kind)]


def n_weights(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("k", [2, 100])
def test_a_network_is_features_and_a_linear_head(name, k):
    shape = (3, 32, 32)
    network = NETWORKS[name](shape, k)
    assert isinstance(network, nn.Sequential)
    assert len(network) == 2
    x = torch.randn(2, *shape, generator=stream(0))
    with torch.no_grad():
        features = network[0](x)
        assert features.ndim == 2
        assert network(x).shape == (2, k)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_seed_builds_the_same_weights(name):
    built = []
    for _ in range(2):
        reseed(3, "weights")
        built.append(weights_of(NETWORKS[name]((3, 32, 32), 10)))
    assert same_bits(*built)


@pytest.mark.parametrize("name", NETWORKS)
def test_predictions_in_evaluation_mode_do_not_depend_on_the_rest_of_the_batch(name):
    network = NETWORKS[name]((3, 32, 32), 10).eval()
    x = torch.randn(3, 3, 32, 32, generator=stream(0))
    with torch.no_grad():
        torch.testing.assert_close(network(x)[:1], network(x[:1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_dropout_does_nothing_in_evaluation_mode(name):
    network = NETWORKS[name]((3, 32, 32), 10, dropout=0.5).eval()
    assert kinds(network, nn.Dropout)
    x = torch.randn(2, 3, 32, 32, generator=stream(0))
    with torch.no_grad():
        assert torch.equal(network(x), network(x))


def test_conv13_has_nine_convolutions_three_poolings_and_a_linear_layer():
    network = conv13((3, 32, 32), 10)
    convolutions = kinds(network, nn.Conv2d)
    assert [c.out_channels for c in convolutions] == [128, 128, 128, 256, 256, 256, 512, 256, 128]
    assert [c.kernel_size[0] for c in convolutions] == [3] * 7 + [1] * 2
    assert len(kinds(network, nn.MaxPool2d)) == 2
    assert len(kinds(network, nn.AdaptiveAvgPool2d)) == 1
    assert [layer.out_features for layer in kinds(network, nn.Linear)] == [10]


def test_conv13_takes_its_options():
    plain = conv13((3, 32, 32), 10, dropout=0.2, norm=False, slope=0.01, last_padding=1)
    assert kinds(plain, nn.BatchNorm2d) == []
    assert all(c.bias is not None for c in kinds(plain, nn.Conv2d))
    assert {d.p for d in kinds(plain, nn.Dropout)} == {0.2}
    assert {a.negative_slope for a in kinds(plain, nn.LeakyReLU)} == {0.01}
    assert kinds(plain, nn.Conv2d)[6].padding == (1, 1)
    assert kinds(conv13((3, 32, 32), 10), nn.Conv2d)[6].padding == (0, 0)
    assert len(kinds(conv13((3, 32, 32), 10), nn.BatchNorm2d)) == 9


def test_the_mnist_network_is_the_appendixs():
    layers = kinds(mlp((1, 28, 28), 10, MNIST_WIDTHS), nn.Linear)
    widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
    assert widths == [784, 1000, 500, 250, 250, 250, 10]


def test_the_wider_networks_have_the_size_that_the_field_reports():
    assert n_weights(wrn_28_2((3, 32, 32), 10)) == pytest.approx(1.47e6, rel=0.01)
    assert n_weights(resnet18((3, 32, 32), 10)) == pytest.approx(11.17e6, rel=0.01)
    assert n_weights(resnet9((3, 32, 32), 10)) == pytest.approx(6.57e6, rel=0.01)
    assert len(kinds(wrn_28_2((3, 32, 32), 10), nn.Conv2d)) == 1 + 2 * 12 + 3  # 25 and three shortcuts
    assert len(kinds(resnet9((3, 32, 32), 10), nn.Conv2d)) + 1 == 9


@pytest.mark.parametrize(("make", "least"), [(partial(resnet9, width=4), 8), (conv13, 12)])
def test_images_from_a_least_size_are_taken_and_smaller_ones_refused(make, least):
    network = make((1, least, least + 3), 3).eval()
    assert network(torch.zeros(2, 1, least, least + 3)).shape == (2, 3)
    with pytest.raises(DataError):
        make((3, least - 1, least), 10)


@pytest.mark.parametrize(
    "shape", [(2,), (64,), (3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 30, 30), (3, 32, 48), (3, 9, 24)]
)
def test_a_generator_makes_instances_of_the_shape_asked_for_and_images_in_range(shape):
    made = make_generator(shape, 8)(torch.rand(3, 8, generator=stream(0)))
    assert made.shape == (3, *shape)
    if len(shape) == 3:
        assert made.abs().max() <= 2


def test_all_of_a_generators_pixels_learn():
    network = make_generator((3, 32, 32), 8)
    made = network(torch.rand(4, 8, generator=stream(0)))
    assert (made.std(0) > 0).all()


@pytest.mark.parametrize("make", [partial(resnet9, width=4), partial(conv13, dropout=0.0)])
def test_test_time_flip_averages_an_image_and_its_mirror_image_in_evaluation_mode_only(make):
    reseed(0, "weights")
    both = make((3, 32, 32), 10, test_time_flip=True)
    plain = nn.Sequential(both[0].features, both[1])
    x = torch.randn(4, 3, 32, 32, generator=stream(0))
    with torch.no_grad():
        assert torch.equal(both.train()(x), plain.train()(x))
        both.eval(), plain.eval()
        torch.testing.assert_close(both(x), (plain(x) + plain(x.flip(3))) / 2, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(plain(x), plain(x.flip(3)), atol=1e-5)
