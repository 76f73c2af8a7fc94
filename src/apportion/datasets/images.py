"""CIFAR-10, CIFAR-100 and the MNIST family, from whichever copy is in the folder of data sets.

A copy is a folder of .npy arrays, the binary version of the CIFAR archive (packed or unpacked), or the IDX
files of the MNIST family (with or without .gz). Whatever the copy, its arrays must have the known checksums:
two people who use the same seed have the same bags. Where no checksum of the content is known (Fashion-MNIST,
KMNIST), the published .gz files must have theirs. Addresses and checksums are at the end.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np
import torch

from apportion._untrusted import check_sha256, read_bytes, read_gzip, read_npy, read_tar
from apportion.datasets.download import Download, default_folder, download_hint
from apportion.datasets.instances import Instances
from apportion.errors import DataError

# {train,test}_images (n, height, width, channels) uint8 and {train,test}_labels (n,) int64
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class ImageSet:
    """What is known about a data set, and what a copy of it must agree with."""

    name: str
    shape: tuple[int, int, int]  # height, width, channels
    counts: dict[str, int]  # images in each part
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    downloads: tuple[Download, ...]
    sums: dict[str, str] = field(default_factory=dict)  # sha256 of each array; empty if unknown
    sort_rows: bool = False  # copies have their rows in different orders: sort them by content


Reader = Callable[[ImageSet, Path], Arrays]


def load_images(images: ImageSet, folder: Path | None = None) -> Instances:
    """The set from the first copy found in the folder. A damaged copy is an error and is not skipped."""
    folder = folder or default_folder()
    hint = download_hint(images.name, folder, images.downloads)
    found = find_copy(images, folder)
    if found is None:
        raise DataError(f"there is no copy of {images.name} in {folder}; {hint}")
    path, read = found
    try:
        arrays = sort_rows(images, read(images, path))
        check_arrays(images, arrays, path)
    except DataError as error:
        raise DataError(f"{error}; {hint}") from None
    # arrays read from bytes are read-only, which torch does not accept
    tensors = {
        key: torch.from_numpy(np.require(array, requirements=["C", "W"])) for key, array in arrays.items()
    }
    return Instances(
        images.name,
        tensors["train_images"].permute(0, 3, 1, 2),  # (n, c, h, w), channels last in memory
        tensors["train_labels"],
        tensors["test_images"].permute(0, 3, 1, 2),
        tensors["test_labels"],
        images.classes,
        images.mean,
        images.std,
    )


def find_copy(images: ImageSet, folder: Path) -> tuple[Path, Reader] | None:
    """The first copy of a set in the folder, as the path of a characteristic file and its reader."""
    own = folder / images.name
    copies: list[tuple[Path, Reader]] = [(own / "train_images.npy", _read_npy)]
    if images.name.startswith("cifar"):
        unpacked = (
            "cifar-10-batches-bin/data_batch_1.bin"
            if images.name == "cifar10"
            else "cifar-100-binary/train.bin"
        )
        for place in (own, folder):
            copies.append((place / unpacked, _read_cifar))
            copies.append((place / images.downloads[0].file, _read_cifar))
    else:  # the files of the MNIST family have the same names, so only folders of their own are searched
        torchvision = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "kmnist": "KMNIST"}[images.name]
        for place in (own, folder / torchvision / "raw"):
            copies.append((place / "train-images-idx3-ubyte.gz", _read_idx))
            copies.append((place / "train-images-idx3-ubyte", _read_idx))
    for path, reader in copies:
        if path.is_file():
            return path, reader
    return None


def _read_npy(images: ImageSet, path: Path) -> Arrays:
    """A folder with train_images.npy, train_labels.npy, test_images.npy and test_labels.npy."""
    arrays = {}
    for part in images.counts:
        arrays[f"{part}_images"] = read_npy(
            path.with_name(f"{part}_images.npy"), error=DataError, follow_symlinks=True
        )
        arrays[f"{part}_labels"] = _integers(path.with_name(f"{part}_labels.npy"))
    return arrays


def _integers(path: Path) -> np.ndarray:
    array = read_npy(path, error=DataError, follow_symlinks=True)
    if array.dtype.kind not in "iu":
        raise DataError(f"{path} does not hold whole numbers")
    return array.astype(np.int64)


def _read_idx(images: ImageSet, path: Path) -> Arrays:
    """The IDX files of the MNIST family."""
    sums = {item.file: item.sha256 for item in images.downloads}
    arrays: Arrays = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        count = images.counts[part]
        for kind, name, shape in (
            ("images", "images-idx3", (count, *images.shape[:2])),
            ("labels", "labels-idx1", (count,)),
        ):
            file = path.with_name(f"{prefix}-{name}-ubyte{path.suffix}")
            if not images.sums and file.name in sums:
                check_sha256(file, sums[file.name], error=DataError)
            arrays[f"{part}_{kind}"] = parse_idx(_read(file, prod(shape) + 16), shape, str(file))
        arrays[f"{part}_images"] = arrays[f"{part}_images"][..., None]
        arrays[f"{part}_labels"] = arrays[f"{part}_labels"].astype(np.int64)
    return arrays


def _read(path: Path, limit: int) -> bytes:
    if path.suffix == ".gz":
        return read_gzip(path, limit, error=DataError)
    return read_bytes(path, limit, error=DataError, follow_symlinks=True)


def parse_idx(data: bytes, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Bytes in the IDX format of MNIST: two zeros, type 8, number of axes, sizes as big-endian integers."""
    header = bytes((0, 0, 8, len(shape))) + np.array(shape, ">u4").tobytes()
    if data[: len(header)] != header or len(data) != len(header) + prod(shape):
        raise DataError(f"{name} is not an IDX file of {' x '.join(map(str, shape))} bytes")
    return np.frombuffer(data, np.uint8, offset=len(header)).reshape(shape)


def _read_cifar(images: ImageSet, path: Path) -> Arrays:
    """CIFAR's binary version: one row per image, labels before 1,024 bytes each of red, green and blue."""
    if images.name == "cifar10":
        files = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
        n_labels = 1
    else:
        files = {"train": ["train.bin"], "test": ["test.bin"]}
        n_labels = 2  # coarse, then fine
    counts = {name: images.counts[part] // len(names) for part, names in files.items() for name in names}
    sizes = {name: count * (n_labels + 3072) for name, count in counts.items()}
    if path.suffix == ".gz":
        contents = read_tar(path, sizes, error=DataError)
    else:
        contents = {name: _read(path.with_name(name), size) for name, size in sizes.items()}
    arrays: Arrays = {}
    for part, names in files.items():
        rows = np.concatenate(
            [parse_cifar(contents.pop(name), counts[name], n_labels, f"{name} of {path}") for name in names]
        )
        planes = rows[:, n_labels:].reshape(-1, 3, 32, 32)
        arrays[f"{part}_images"] = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        arrays[f"{part}_labels"] = rows[:, n_labels - 1].astype(np.int64)
    return arrays


def parse_cifar(data: bytes, count: int, n_labels: int, name: str) -> np.ndarray:
    width = n_labels + 3072
    if len(data) != count * width:
        raise DataError(f"{name} has {len(data)} bytes instead of {count * width}")
    return np.frombuffer(data, np.uint8).reshape(count, width)


def sort_rows(images: ImageSet, arrays: Arrays) -> Arrays:
    """Rows sorted by the hash of their pixels, equal images by label, if the set is one that needs it."""
    if not images.sort_rows:
        return arrays
    ordered = dict(arrays)
    for part in images.counts:
        pixels = arrays[f"{part}_images"]
        labels = arrays[f"{part}_labels"]
        if len(pixels) != len(labels):
            raise DataError(f"the {part} part has {len(pixels)} images and {len(labels)} labels")
        digests = b"".join(hashlib.sha256(image.tobytes()).digest() for image in pixels)
        words = np.frombuffer(digests, ">u8").reshape(-1, 4)
        order = np.lexsort((labels, *words.T[::-1]))
        if not np.array_equal(order, np.arange(len(order))):  # saves a copy of 150 MB
            ordered[f"{part}_images"] = pixels[order]
            ordered[f"{part}_labels"] = labels[order]
    return ordered


def check_arrays(images: ImageSet, arrays: Arrays, path: Path) -> None:
    """Shapes, labels and checksums must be those of the set."""
    n_classes = len(images.classes)
    for part, count in images.counts.items():
        pixels = arrays[f"{part}_images"]
        labels = arrays[f"{part}_labels"]
        if pixels.shape != (count, *images.shape) or pixels.dtype != np.uint8 or labels.shape != (count,):
            raise DataError(f"{path}: the {part} part does not have {count} images of {images.shape} bytes")
        if labels.min() < 0 or labels.max() >= n_classes:
            raise DataError(f"{path}: the {part} part has a label outside of 0 to {n_classes - 1}")
        if not images.sums and np.ptp(np.bincount(labels, minlength=n_classes)):
            raise DataError(
                f"{path}: the classes of the {part} part differ in size, as published ones do not"
            )
        for key, array in ((f"{part}_images", pixels), (f"{part}_labels", labels.astype(np.uint8))):
            found = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
            expected = images.sums.get(key)
            if expected and found != expected:
                raise DataError(f"{path} is damaged: its {key} have sha256 {found}, expected {expected}")


# --- what is known about each set

_CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FASHION_MNIST_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_KMNIST_CLASSES = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
_CIFAR100_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark
shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
_CIFAR100_CLASSES = tuple(_CIFAR100_NAMES.split())
_CIFAR_COUNTS = {"train": 50_000, "test": 10_000}
_MNIST_COUNTS = {"train": 60_000, "test": 10_000}


def _cifar_downloads(n_classes: int, size: int, sha256: str) -> tuple[Download, ...]:
    file = f"cifar-{n_classes}-binary.tar.gz"
    bases = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")  # the first moved
    return (Download(file, size, sha256, tuple(base + file for base in bases)),)


def _idx_downloads(bases: tuple[str, ...], *files: tuple[int, str]) -> tuple[Download, ...]:
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
    classes=_CIFAR10_CLASSES,
    mean=(0.491400, 0.482158, 0.446531),
    std=(0.247032, 0.243485, 0.261588),
    downloads=_cifar_downloads(
        10, 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
    ),
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
    classes=_CIFAR100_CLASSES,
    mean=(0.507075, 0.486549, 0.440918),
    std=(0.267334, 0.256438, 0.276150),
    downloads=_cifar_downloads(
        100, 168_513_733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"
    ),
    sums={  # of the sorted rows
        "train_images": "314214c52cf8821c3fd95fc3391792a3b938be3130d8a6fa1472491c1bf41022",
        "test_images": "3649f267eb9a14c4acea5df2e2b437abe44b7a6b67c2ffd653ebea273d00305e",
        "train_labels": "ea2cd91837953d77eeafb4c1f9add4fc27247412f0a8f42474f75beb5a4319fd",
        "test_labels": "5cf52a13f3e25074c5cfeba73ebc826b83f8fde92ff0e85cecbd9d7efb334a85",
    },
    sort_rows=True,
)


MNIST = ImageSet(
    name="mnist",
    shape=(28, 28, 1),
    counts=_MNIST_COUNTS,
    classes=tuple("0123456789"),
    mean=(0.130660,),
    std=(0.308108,),
    downloads=_idx_downloads(
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

# The means and deviations of the next two are the published ones, rounded to four digits.
FASHION_MNIST = ImageSet(
    name="fashion_mnist",
    shape=(28, 28, 1),
    counts=_MNIST_COUNTS,
    classes=_FASHION_MNIST_CLASSES,
    mean=(0.2860,),
    std=(0.3530,),
    downloads=_idx_downloads(
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
    classes=_KMNIST_CLASSES,
    mean=(0.1918,),
    std=(0.3483,),
    downloads=_idx_downloads(
        ("https://codh.rois.ac.jp/kmnist/dataset/kmnist/", "http://codh.rois.ac.jp/kmnist/dataset/kmnist/"),
        (18_165_135, "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4"),
        (29_497, "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17"),
        (3_041_136, "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5"),
        (5_120, "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c"),
    ),
)

IMAGE_SETS = {images.name: images for images in (CIFAR10, CIFAR100, MNIST, FASHION_MNIST, KMNIST)}
