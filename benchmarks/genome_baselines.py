"""A baseline of genomes that is measured here and is in no command. Importing this adds it to those that
`omniset.genomes.evaluate` compares.
"""

from jaxtyping import Float
from torch import Tensor

from omniset.genomes.baselines import Autoencoder
from omniset.genomes.noise import Observed
from omniset.genomes.training import MAKERS, TRAINING

OTHER_BASELINES = ("autoencoder-evidence",)


class AutoencoderWithEvidence(Autoencoder):
    """The evidence is added to its output, which then need not copy what was observed."""

    def log_odds(self, observed: Observed, given: Float[Tensor, "genomes two"]) -> Float[Tensor, "genomes families"]:
        return super().log_odds(observed, given) + self.noise.evidence(observed)


MAKERS["autoencoder-evidence"] = lambda suite: AutoencoderWithEvidence(suite.noise, suite.families)
TRAINING["autoencoder-evidence"] = TRAINING["autoencoder"]
