"""Every sparse coder keeps every promise, and the promises notice coders that do not."""

from dataclasses import dataclass

import pytest
import torch

from assay.contracts import sparse_coders as contract
from assay.core.errors import UserError
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import DecoderModule, EncoderModule, TrainedCoder, project
from promised import broken

VARIANTS = (
    "lse_infomax:lambda_tc=0",
    "lse_infomax:lambda_lse=0",
    "lse_infomax:lambda_wr=1",
    "lse_infomax:activation=softplus",
    "lse_infomax:activation=identity",
    "lse_infomax:scale=unit_norm",
    "lse_infomax:scale=hinge",
    "lse_infomax:decorrelation=logdet",
    "relu_l1:form=spec",
    "topk:dead_after=0",
    "batch_topk:dead_after=0",
    "matryoshka:dead_after=0",
    "fast_ica:rectified=true",
    "kmeans:code=triangle",
)


@pytest.mark.parametrize("word", [*sparse_coders.names(), *VARIANTS])
def test_coder_keeps_every_promise(word):
    assert not broken("sparse_coders", sparse_coders.parse(word))


class Broken(EncoderModule):
    def __init__(self, models, d_in, d_code, *, fault):
        super().__init__(models, d_in, d_code)
        self.fault = fault

    def encode(self, x):
        z = self.preactivations(x).relu()
        faults = {"batch": z - z.mean(dim=1, keepdim=True), "constant": z * 0, "unrectified": self.preactivations(x)}
        return faults.get(self.fault, z)

    def loss(self, x):
        a = self.encode(x.flip(2) if self.fault == "another" else x)
        if self.fault == "unrectified":
            a = a.relu()
        total = a.square().sum(dim=(1, 2))
        if self.fault == "mixes":
            total = total + total.sum() / 10
        return {"total": -total if self.fault == "rises" else total}

    def gradient(self, x):
        terms = super().gradient(x)
        if self.fault == "gradient":
            self.b_enc.grad.mul_(2)
        if self.fault == "rises":
            for parameter in self.parameters():
                parameter.grad.neg_()
        return terms


@dataclass(frozen=True, kw_only=True)
class Faulty(TrainedCoder):
    module = Broken
    fault: str = ""


class Straying(DecoderModule):
    """Trains one code and gives another."""

    def __init__(self, models, d_in, d_code, *, fault):
        super().__init__(models, d_in, d_code)
        self.fault = fault

    def encode(self, x):
        if self.fault == "bias":
            return project(x, self.W_enc, self.b_enc).relu()
        z = self.preactivations(x).relu()
        return z * (z >= z.topk(2, dim=2).values[:, :, -1:]) if self.fault == "cut" else z

    def loss(self, x):
        mse = self.reconstruction_error(x, self.decode(self.preactivations(x).relu()))
        return {"total": mse} if self.fault == "unnamed" else {"total": mse, "mse": mse}


@dataclass(frozen=True, kw_only=True)
class Strays(TrainedCoder):
    module = Straying
    fault: str = ""


class Priced(DecoderModule):
    """A model's price of a unit, or something else of its companions, where it has no business."""

    def __init__(self, models, d_in, d_code, *, fault, price):
        super().__init__(models, d_in, d_code)
        self.fault = fault
        self.register_buffer("price", price.float())
        self.register_buffer("steps", torch.zeros(models))

    def encode(self, x):
        shift = 1e-3 * self.price.mean() if self.fault == "encode" else 0.0
        return (self.preactivations(x) + shift).relu()

    def loss(self, x):
        a = self.encode(x)
        mse = self.reconstruction_error(x, self.decode(a))
        sizes = a.sum(dim=2).mean(dim=1)
        price = self.price.mean() if self.fault == "loss" else self.price
        spread = sizes / sizes.detach().mean() if self.fault == "statistics" else sizes
        shown = {"sizes": sizes.mean().expand_as(sizes)} if self.fault == "term" else {"sizes": sizes}
        self.steps += self.price.sum() if self.fault == "buffer" else 1
        return {"total": mse + price * spread, "mse": mse, **shown}

    @torch.no_grad()
    def after_step(self):
        super().after_step()
        if self.fault == "norms":
            self.W_enc.div_(self.W_enc.norm())


@dataclass(frozen=True, kw_only=True)
class HasAPrice(TrainedCoder):
    module = Priced
    columns = ("price",)
    fault: str = ""
    price: float = 0.1


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("loss", "total of the loss depends on who else"),
        ("statistics", "total of the loss depends on who else"),
        ("term", "sizes of the loss depends on who else"),
        ("encode", "depends on who else"),
        ("norms", "depends on who else"),
        ("buffer", "steps depends on who else"),
    ],
)
def test_a_model_that_knows_its_companions_is_noticed(fault, seen):
    contract.keeps_models_apart(HasAPrice())
    with pytest.raises(AssertionError, match=seen):
        contract.keeps_models_apart(HasAPrice(fault=fault))


def test_a_level_that_takes_one_value_only_is_no_level():
    class Fixed(HasAPrice):
        def check(self, d_in, d_code, batch):
            if self.price != 0.1:
                raise UserError("no other")

    with pytest.raises(AssertionError, match=r"no value of price but 0\.1"):
        contract.keeps_models_apart(Fixed())


@pytest.mark.parametrize("fault, seen", [("bias", "not the code"), ("cut", "not the code"), ("unnamed", "`mse`")])
def test_a_decoder_that_trains_another_code_is_noticed(fault, seen):
    contract.codes_what_it_trains(Strays())
    with pytest.raises(AssertionError, match=seen):
        contract.codes_what_it_trains(Strays(fault=fault))


@pytest.mark.parametrize(
    ("fault", "promise", "seen"),
    [
        ("batch", contract.codes_each_row_alone, "rows mix"),
        ("constant", contract.distinguishes_rows, "all rows have one code"),
        ("gradient", contract.gradients_are_those_of_the_loss, "b_enc is off"),
        ("mixes", contract.keeps_models_apart, "depends on who else"),
        ("rises", contract.training_lowers_its_loss, "the loss went from"),
        ("another", contract.codes_what_it_trains, "not the code of the loss"),
        ("unrectified", contract.codes_what_it_trains, "move without moving the loss"),
    ],
)
def test_a_broken_promise_is_noticed(fault, promise, seen):
    promise(Faulty())
    with pytest.raises(AssertionError, match=seen):
        promise(Faulty(fault=fault))


@pytest.mark.parametrize(
    ("word", "sizes"),
    [
        ("lse_infomax:decorrelation=logdet", (12, 8, 31)),
        ("topk:k=9", (12, 8, 40)),
        ("pca", (12, 13, 40)),
        ("dictionary_learning:k=13", (12, 20, 40)),
    ],
)
def test_sizes_that_cannot_be_are_refused(word, sizes):
    with pytest.raises(UserError):
        sparse_coders.parse(word).check(*sizes)


@pytest.mark.parametrize(
    "option",
    [
        *("topk:k=0", "batch_topk:k=-1", "matryoshka:k=0", "dictionary_learning:k=0", "topk:dead_after=-1"),
        *("dictionary_learning:rows=0", "fast_ica:iterations=0", "fast_ica:rows=0"),
        *("relu_l1:l1=-1", "gated:l1=-0.1", "jump_relu:l0=-1", "topk:auxk=-1", "matryoshka:auxk=-1"),
        *("jump_relu:bandwidth=0", "jump_relu:threshold=-1", "batch_topk:threshold_rate=0"),
    ],
)
def test_options_that_no_sizes_allow_are_refused_when_read(option):
    with pytest.raises(UserError, match=option.partition(":")[2]):
        sparse_coders.parse(option)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_topk_keeps_the_k_largest_of_each_row(k):
    module = contract._fresh([sparse_coders.parse(f"topk:k={k}")], [0])
    x = contract._rows(1)
    z = (x[0] @ module.W_enc[0].T).relu()
    for row, code in zip(z, module.encode(x)[0], strict=True):
        largest = sorted(row.tolist(), reverse=True)[:k]
        assert sorted(code[code > 0].tolist(), reverse=True) == pytest.approx([v for v in largest if v > 0])


def test_models_of_different_levels_are_one_module():
    coders = [sparse_coders.parse(f"topk:k={k}") for k in (1, 5)]
    module = contract._fresh(coders, [0, 0])
    assert [(code > 0).sum(dim=1).max().item() for code in module.encode(contract._rows(1))] == [1, 5]


def test_a_batch_keeps_k_times_its_rows():
    module = contract._fresh([sparse_coders.parse("batch_topk:k=2")], [0])
    code = module.batch_code(module.preactivations(contract._rows(1)))[0]
    assert (code > 0).sum() == 2 * contract.BATCH and (code > 0).sum(dim=1).max() > 2
    assert torch.equal(module.threshold, code[code > 0].min()[None])


def test_silent_units_learn_from_what_the_code_missed():
    module = contract._fresh([sparse_coders.parse("topk:k=1:dead_after=0:auxk=1")], [0])
    x = contract._rows(1)[:, :3]
    terms = module.gradient(x)
    silent = (module.encode(x) == 0).all(dim=1)[0]
    assert silent.any() and terms["aux"] > 0
    assert module.W_dec.grad[0][silent].abs().sum() > 0, "without AuxK a unit that never fires has no gradient"


@pytest.mark.parametrize("name", ["topk", "batch_topk", "matryoshka"])
def test_a_unit_below_zero_on_every_row_is_given_a_gradient(name):
    module = contract._fresh([sparse_coders.parse(f"{name}:k=1:dead_after=0:auxk=1")], [0])
    with torch.no_grad():
        module.b_enc[0, 0] = -100
    module.gradient(contract._rows(1))
    assert module.W_enc.grad[0, 0].abs().sum() > 0 and module.b_enc.grad[0, 0] < 0, "upwards, to fire again"


def test_a_unit_that_is_off_does_not_move_its_threshold():
    """A threshold within half a bandwidth of 0 would be near every rectified z that is off."""
    module = contract._fresh([sparse_coders.parse("jump_relu:l0=1:threshold=0.01:bandwidth=0.1")], [0])
    with torch.no_grad():
        module.b_enc[0, 0] = -100
    module.gradient(contract._rows(1))
    assert module.log_threshold.grad[0, 0] == 0
