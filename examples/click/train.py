"""Train a small model of clicks whose embeddings lie in a store; killed at any moment, it goes on to the same bits.

python train.py [--data DIR] [--steps N]; README.md tells more.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import nn

import gpkvs
from gpkvs.rows import Rows
from gpkvs.torch import Adagrad, EmbeddingTable, uniform

SEED = 7
BATCH, DIM = 128, 8
USERS, ITEMS, HOURS = 500, 100, 24
SIZES = {"index_bytes": 1 << 20, "heap_bytes_max": 1 << 30}


def ids_of(*features: torch.Tensor) -> torch.Tensor:
    """Return the ids (batch, features) of features in one table: the number of the feature stands above its value."""
    return torch.stack([number << 40 | values for number, values in enumerate(features)], dim=1)


def batch_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids and the clicks of a step: data made from its number, as a run that goes on needs them again."""
    generator = torch.Generator().manual_seed(SEED << 32 | step)
    users, items, hours = (torch.randint(0, count, (BATCH,), generator=generator) for count in (USERS, ITEMS, HOURS))
    likes = uniform(3.0, SEED + 1)(users, 1) + uniform(3.0, SEED + 2)(items, 1)
    chance = torch.sigmoid(likes.squeeze(1) + torch.cos(hours * (2 * torch.pi / HOURS)))
    return ids_of(users, items, hours), (torch.rand(BATCH, generator=generator) < chance).float()


class Clicks(nn.Module):
    """Embeddings of user, item and hour, and two dense layers."""

    def __init__(self, table: EmbeddingTable) -> None:
        super().__init__()
        self.table = table
        self.dense = nn.Sequential(nn.Linear(3 * DIM, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits (batch,) of clicks."""
        logits: torch.Tensor = self.dense(self.table(ids).flatten(1)).squeeze(1)
        return logits


def train(rows: Rows, steps: int) -> None:
    """Train until so many steps are done, from where the rows say that an earlier run was."""
    torch.manual_seed(SEED)
    model = Clicks(EmbeddingTable(rows, Adagrad(0.2), initial=uniform(0.05, SEED)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    done = 0
    if state := model.table.load_state():
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])  # of the dropout
        done = state["step"]
        print(f"goes on after step {done}", flush=True)
    for step in range(done + 1, steps + 1):
        ids, clicks = batch_of(step)
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # One transaction: after a kill, the embeddings and the rest are as of the same step.
        model.table.step(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "random": torch.get_rng_state(),
                "step": step,
            }
        )
        print(f"step {step}: loss {loss.item():.4f}", flush=True)


def digest(rows: Rows) -> str:
    """Return a digest of all rows, those of the state included."""
    pieces = list(rows.scan())
    keys, values = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    order = np.argsort(keys)
    return hashlib.sha256(keys[order].tobytes() + values[order].tobytes()).hexdigest()


def main() -> None:
    """Train, and print the digest of what was learnt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("/tmp/click"), help="directory of the store")
    parser.add_argument("--steps", type=int, default=300, help="how many steps are done in all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # so sums have one order, whatever the number of processors
    layout = Adagrad().layout(DIM)
    with gpkvs.open(arguments.data, **SIZES) as store:
        store.create_table("clicks", layout=layout, exist_ok=True)
        rows = store.rows(layout, table="clicks")
        train(rows, arguments.steps)
        print(digest(rows))


if __name__ == "__main__":
    main()
