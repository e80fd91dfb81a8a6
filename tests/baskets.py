"""A whole system in a page: what a basket costs, by the products in it. CONTRIBUTING shows it to those who add one.

A basket is a multiset of products. The simple method is a linear model of the counts; the system adds what a set
encoder learns of the rest, such as discounts for products that are bought together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from sklearn.linear_model import RidgeCV
from torch import Tensor, nn

from omniset import encoders
from omniset import options as shared
from omniset.cli.options import Saving, given, takes
from omniset.core.sets import SetBatch
from omniset.fitted import Estimator
from omniset.options import Computing, options
from omniset.report import multiqc
from omniset.report.blocks import Section, plots_of
from omniset.report.frame import compose, learning, methods
from omniset.report.run import working_folder
from omniset.runs.folders import new_file
from omniset.tables.files import TableFile, TableWriter
from omniset.training import artefacts
from omniset.training.data import Lesson
from omniset.training.fit import TrainingModule
from omniset.training.fit import fit as train
from omniset.trials.comparison import Aim, Comparison, Score
from omniset.trials.kept import Done, Kept


def read(path: Path, prices: bool = True) -> tuple[pd.DataFrame, pd.Series | None]:
    """Counts, baskets x products, and what each basket costs; from rows of basket, product, count, price."""
    file = TableFile(path)
    numbers = ["count", "price"] if prices else ["count"]
    file.require(["basket", "product", *numbers])
    frames = [
        pd.DataFrame({n: c.text(n).to_pylist() for n in ("basket", "product")} | {n: c.numbers(n) for n in numbers})
        for c in file.chunks()
    ]
    rows = pd.concat(frames)
    counts = rows.pivot_table(index="basket", columns="product", values="count", aggfunc="sum", fill_value=0)
    return counts, rows.groupby("basket")["price"].first() if prices else None  # in the same order


class Network(nn.Module):
    """Price = linear in the counts + a set encoder's summary of the products."""

    def __init__(self, products: int, dim: int) -> None:
        super().__init__()
        self.simple = nn.Linear(products, 1)
        self.tokens = nn.Parameter(torch.randn(products, dim) / dim**0.5)
        self.encoder = encoders.build("ust", input_dim=dim, dim=dim, depth=1, num_heads=2, num_inducing=4)
        self.head = nn.Linear(dim, 1)
        nn.init.zeros_(self.head.weight)  # at first the simple method stands alone

    def forward(self, counts: Float[Tensor, "baskets products"]) -> Float[Tensor, " baskets"]:
        elements = self.tokens.expand(len(counts), *self.tokens.shape)
        summary = self.encoder(SetBatch(elements, counts)).summary[:, 0]
        return (self.simple(counts) + self.head(summary))[:, 0]


class Training(TrainingModule):
    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        loss = nn.functional.mse_loss(self.network(batch[0]), batch[1])
        self.log("train_loss", loss, batch_size=len(batch[1]))
        return loss


@options
class BasketOptions(Computing):
    """How a model of baskets is made."""

    dim: int = shared.dim(8)
    epochs: int = shared.epochs(3, "How often each basket is learned from.")
    learning_rate: float = shared.learning_rate(1e-3)


class BasketPredictor(BasketOptions, Estimator):
    """What a basket costs.

    Args:
        {options}
    """

    FITTED = {"products": {"type": "array", "items": {"type": "string"}}}  # noqa: RUF012

    def fit(self, counts: pd.DataFrame, prices: pd.Series, folder: Any = None, resume: bool = False) -> BasketPredictor:
        self.check_options()
        torch.manual_seed(self.seed)
        self.products_ = list(map(str, counts.columns))
        self.network_ = Network(len(self.products_), self.dim)
        simple = RidgeCV(np.logspace(-3, 3, 7)).fit(counts, prices)
        with torch.no_grad():
            self.network_.simple.weight.copy_(torch.from_numpy(simple.coef_)[None])
            self.network_.simple.bias.fill_(simple.intercept_)
        x, y = (torch.tensor(part.to_numpy(), dtype=torch.float32) for part in (counts, prices))

        def batch(keys: list[tuple[int, int]], training: bool) -> tuple[Tensor, Tensor]:
            rows = [row for _, row in keys]
            return x[rows], y[rows]

        module = Training(self.network_, self.learning_rate, 0.0, self.seed, self.fingerprint())
        data = Lesson(batch, range(len(y)), (), batch_size=16, seed=self.seed)
        how = {"device": self.device, "progress": self.progress, "log": None, "folder": folder, "resume": resume}
        train(module, data, epochs=self.epochs, patience=None, **how)
        self.history_ = module.history
        self.network_.eval()
        return self

    @torch.no_grad()
    def predict(self, counts: pd.DataFrame) -> np.ndarray:
        self.require_fitted()
        known = counts.reindex(columns=self.products_, fill_value=0)
        return self.network_(torch.tensor(known.to_numpy(), dtype=torch.float32)).numpy()

    def _state(self) -> dict[str, Any]:
        return {"products": self.products_}

    def _restore(self, fitted: dict[str, Any], tables: dict[str, pd.DataFrame], weights: artefacts.Weights) -> None:
        self.products_ = fitted["products"]
        self.network_ = weights.build(lambda: Network(len(self.products_), self.dim))


def evaluate(counts: pd.DataFrame, prices: pd.Series, predictor: BasketPredictor, kept: Kept) -> Comparison:
    """The squared error of each basket while another third is learned from, beside the linear model alone."""

    def fold(test: np.ndarray) -> Done:
        train = np.setdiff1d(np.arange(len(counts)), test)
        ours = predictor.fit(counts.iloc[train], prices.iloc[train]).predict(counts.iloc[test])
        ridge = RidgeCV(np.logspace(-3, 3, 7)).fit(counts.iloc[train], prices.iloc[train]).predict(counts.iloc[test])
        about = {"condition": "new baskets", "unit": counts.index[test].astype(str)}
        errors = {name: (values - prices.iloc[test]) ** 2 for name, values in (("omniset", ours), ("ridge", ridge))}
        return Done(
            rows=pd.concat(pd.DataFrame({**about, "method": n, "error": e.to_numpy()}) for n, e in errors.items())
        )

    order = np.array_split(np.random.default_rng(predictor.seed).permutation(len(counts)), 3)
    done = [kept.do(f"fold_{i}", predictor.plain(), lambda test=test: fold(test)) for i, test in enumerate(order)]
    error = Score("error", "squared error", larger=False)
    aims = [Aim("new baskets", "error")]
    return Comparison(pd.concat(d.rows for d in done), [error], "basket", "unit", [], ["ridge"], aims)


@takes(BasketOptions)
@takes(Saving)
def fit_command(table: Path, out: Path = Path("model"), resume: bool = False, **arguments: Any) -> None:
    """Learn what baskets cost.

    Args:
        table: Rows of basket, product, count, price.
        out: Folder for the model and its report.
        resume: Go on with an interrupted run.
    """
    predictor = BasketPredictor(**given(BasketOptions, arguments))
    about = {"makes": ["BasketPredictor"], "reads": [table], "seed": predictor.seed, "resume": resume}
    with working_folder(out, "baskets", "fit", **about) as run:
        predictor.check_resumed(run.path, resume)
        run.save(predictor.fit(*read(table), folder=run.path, resume=resume))
        sections, settings = [learning({"": predictor.history_})], predictor.get_params()
        how: dict[str, Any] = {"picture": plots_of(sections[0]), "settings": settings}
        page = compose(run.about(f"Baskets of {table.name}"), "Baskets have their costs.", "", sections, {}, **how)
        run.write(page, histories={"": predictor.history_})


@takes(Saving)
def predict_command(table: Path, model: Path = Path("model"), out: Path = Path("prices.csv")) -> None:
    """Say what baskets cost."""
    new_file(out)
    counts, _ = read(table, prices=False)
    with TableWriter(out) as writer:
        writer.write(pd.DataFrame({"basket": counts.index, "price": BasketPredictor.load(model).predict(counts)}))


@takes(BasketOptions)
@takes(Saving)
def evaluate_command(table: Path, out: Path = Path("evaluation"), resume: bool = False, **arguments: Any) -> None:
    """Compare with a linear model."""
    with working_folder(out, "baskets", "evaluation", reads=[table], resume=resume) as run:
        predictor = BasketPredictor(**given(BasketOptions, arguments))
        comparison = evaluate(*read(table), predictor, Kept(run.path, resume))
        comparison.write_rows(run.path / "scores.csv.gz")
        section = Section("Methods", "", [methods(comparison, "new baskets", ["error"])])
        page = compose(run.about(f"Baskets of {table.name}"), "", "Beside ridge.", [section], {}, comparison=comparison)
        run.write(page, metrics=comparison.numbers(), scores=multiqc.of_ours(comparison))


COMMANDS = {"_help": "Baskets.", "fit": fit_command, "predict": predict_command, "evaluate": evaluate_command}
