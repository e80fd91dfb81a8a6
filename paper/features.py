"""Table 1: which architecture has which property."""

from __future__ import annotations

from omniset import encoders
from paper.encoders import ENCODERS as OTHERS
from paper.tables import Table

LABELS = {
    "deep-sets": "Deep Sets",
    "fspool": "FSPool",
    "set-transformer-sab": "ST (SAB)",
    "set-transformer-isab": "ST (ISAB)",
    "sse": "SSE",
    "umbc": "UMBC",
    "strxl": "STrXL",
    "ust": "UST",
    "abmil": "ABMIL",
    "dsmil": "DSMIL",
    "flare": "FLARE",
    "transolver": "Transolver",
}


def features() -> Table:
    """From the attributes of the encoders, each of which a test holds to what the encoder does."""
    rows = []
    for name, label in LABELS.items():
        encoder = (encoders.ENCODERS | OTHERS)[name]
        has = (
            encoder.cross_attention,
            encoder.self_attention,
            encoder.outputs_elements,
            encoder.mini_batch_consistent,
        )
        rows.append([label, name, *("yes" if h else "no" for h in has)])
    head = ["", "encoder", "cross-attention", "self-attention", "element outputs", "mini-batch consistent"]
    notes = [
        "ST (ISAB) and UST are one architecture: on whole sets they compute the same. Run in shards, the paper's ST "
        "reads each as a set of its own and is not consistent; merged (the default here) it is UST. "
        "ST (SAB) too is consistent here, as the engine streams all elements past every shard.",
        "The paper has none of the last four.",
    ]
    return Table("Features of the architectures (Table 1)", head, rows, notes)
