"""What is known of each image data set: sizes, classes, statistics, checksums, and where it is published."""

from dataclasses import dataclass, field

from apportion.data.classes import CIFAR10_CLASSES, CIFAR100_CLASSES, FASHION_MNIST_CLASSES, KMNIST_CLASSES


@dataclass(frozen=True)
class Download:
    """A published file; the addresses are tried in turn, and the checksum decides what may be trusted."""

    file: str
    size: int  # bytes
    sha256: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class ImageSet:
    """The facts that a copy of a data set must agree with before it is used."""

    name: str
    shape: tuple[int, int, int]  # height, width, channels
    counts: dict[str, int]  # images in each part
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    downloads: tuple[Download, ...]
    sums: dict[str, str] = field(default_factory=dict)  # sha256 of each array as bytes; empty where unknown
    ordered: bool = False  # rows are put into one order that does not depend on the source


_CIFAR_COUNTS = {"train": 50_000, "test": 10_000}
_MNIST_COUNTS = {"train": 60_000, "test": 10_000}


def _cifar(n_classes: int, size: int, sha256: str) -> tuple[Download, ...]:
    file = f"cifar-{n_classes}-binary.tar.gz"
    bases = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")  # they have moved
    return (Download(file, size, sha256, tuple(base + file for base in bases)),)


def _idx(bases: tuple[str, ...], *files: tuple[int, str]) -> tuple[Download, ...]:
    names = (
        f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    )
    return tuple(
        Download(name, size, sha256, tuple(base + name for base in bases))
        for name, (size, sha256) in zip(names, files, strict=True)
    )


# Means and deviations of CIFAR and MNIST: computed from all training pixels, divided by 255.
CIFAR10 = ImageSet(
    name="cifar10",
    shape=(32, 32, 3),
    counts=_CIFAR_COUNTS,
    classes=CIFAR10_CLASSES,
    mean=(0.491400, 0.482158, 0.446531),
    std=(0.247032, 0.243485, 0.261588),
    downloads=_cifar(10, 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
    sums={
        "train_images": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "test_images": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    },
)

CIFAR100 = ImageSet(
    name="cifar100",
    shape=(32, 32, 3),
    counts=_CIFAR_COUNTS,
    classes=CIFAR100_CLASSES,
    mean=(0.507075, 0.486549, 0.440918),
    std=(0.267334, 0.256438, 0.276150),
    downloads=_cifar(100, 168_513_733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),
    sums={  # of the rows in canonical order
        "train_images": "314214c52cf8821c3fd95fc3391792a3b938be3130d8a6fa1472491c1bf41022",
        "test_images": "3649f267eb9a14c4acea5df2e2b437abe44b7a6b67c2ffd653ebea273d00305e",
        "train_labels": "ea2cd91837953d77eeafb4c1f9add4fc27247412f0a8f42474f75beb5a4319fd",
        "test_labels": "5cf52a13f3e25074c5cfeba73ebc826b83f8fde92ff0e85cecbd9d7efb334a85",
    },
    ordered=True,
)


MNIST = ImageSet(
    name="mnist",
    shape=(28, 28, 1),
    counts=_MNIST_COUNTS,
    classes=tuple("0123456789"),
    mean=(0.130660,),
    std=(0.308108,),
    downloads=_idx(
        (
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ),
        (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    sums={
        "train_images": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "test_images": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "train_labels": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        "test_labels": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    },
)

# The statistics of the next two are the published ones, rounded to four digits.
FASHION_MNIST = ImageSet(
    name="fashion_mnist",
    shape=(28, 28, 1),
    counts=_MNIST_COUNTS,
    classes=FASHION_MNIST_CLASSES,
    mean=(0.2860,),
    std=(0.3530,),
    downloads=_idx(
        (
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
)

KMNIST = ImageSet(
    name="kmnist",
    shape=(28, 28, 1),
    counts=_MNIST_COUNTS,
    classes=KMNIST_CLASSES,
    mean=(0.1918,),
    std=(0.3483,),
    downloads=_idx(
        ("https://codh.rois.ac.jp/kmnist/dataset/kmnist/", "http://codh.rois.ac.jp/kmnist/dataset/kmnist/"),
        (18_165_135, "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4"),
        (29_497, "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17"),
        (3_041_136, "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5"),
        (5_120, "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c"),
    ),
)

IMAGE_SETS = {spec.name: spec for spec in (CIFAR10, CIFAR100, MNIST, FASHION_MNIST, KMNIST)}
